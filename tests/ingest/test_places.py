"""The table of places: what a good file gives, and where a bad one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_index.values import Point
from ingest.places import Places, PlacesError

HEADER = "kind,key,latitude,longitude\n"


def test_a_file_with_columns_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "places.csv"
    path.write_text(
        "\ufeffkey,name,kind,longitude,latitude\n"
        '1,"Ferguson, MO",city,-90.3054,38.7442\n'
        "\n"
        "US:94304,,zip,-122.165,37.397\n"
    )
    places = Places.load(path)
    assert len(places) == 2
    assert places.find("city", "1") == Point(38.7442, -90.3054)
    assert places.find("zip", "US:94304") == Point(37.397, -122.165)
    assert places.find("zip", "1") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 0: the header needs one column"),
        ("kind,key,latitude\n", '"longitude"'),
        (HEADER + "city,1,2\n", "line 2: 3 columns where the header has 4"),
        (HEADER + "town,1,2,3\n", 'unknown kind "town"'),
        (HEADER + "city,,2,3\n", "the key is empty"),
        (HEADER + "city,1,2,3\ncity,1,2,3\n", 'line 3: the city "1" was given before'),
        (HEADER + "city,1,90.5,3\n", "latitude is a number from -90 to 90"),
        (HEADER + "city,1,nan,3\n", "latitude"),
        (HEADER + "city,1,2,east\n", "longitude is a number from -180 to 180"),
        (HEADER + 'city,"1,2,3\n', "line 2"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "places.csv"
    path.write_text(text)
    with pytest.raises(PlacesError) as caught:
        Places.load(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlacesError, match="cannot be read"):
        Places.load(tmp_path / "absent.csv")
    (tmp_path / "latin").write_bytes(HEADER.encode() + "city,Köln,50.9,7\n".encode("latin-1"))
    with pytest.raises(PlacesError, match="cannot be read"):
        Places.load(tmp_path / "latin")
