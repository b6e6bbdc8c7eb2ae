"""BidRequests to bodies of a retrieval: every row of the table, every prohibition, real requests, and random harm."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.openrtb import PARAMETERS, in_bid_request, map_request
from api.openrtb_attributes import TABLES
from gpu_index.schema import Schema
from gpu_index.values import InvalidInput
from tests.api.bid_requests import (
    BANNER,
    NOW_US,
    PARSER,
    SCHEMA,
    SETTINGS,
    Json,
    attributes_of,
    body_of,
    fits,
    refusal,
    request,
)
from tests.shared import shared

# The table: what each row gives, and what it gives nothing for. By path and attribute.

USA = {"country": "USA"}
ROWS: dict[tuple[str, str], tuple[object, object, list[object]]] = {
    ("device.geo.country", "geo.country"): ("MEX", "MX", ["", "XXX", "unknown", "Mexico"]),
    ("device.geo.region", "geo.region"): ("US-CO", "US-CO", ["CO", ""]),
    ("device.geo.metro", "geo.metro"): ("751", "751", [""]),
    ("device.geo.city", "geo.city"): ("Ft Collins", "Ft Collins", [""]),
    ("device.geo.zip", "geo.zip"): (None, None, ["80524", ""]),
    ("device.geo.lat", "geo.point"): (None, None, [1.5]),
    ("device.sua.browsers", "device.browser"): ([{"brand": "Edge"}, None, {}], ["Edge"], [[], [{"brand": ""}]]),
    ("device.sua.mobile", "device.platform"): (1, "mobile", [0, 2]),
    ("device.sua.model", "device.model"): ("Pixel 8", "Pixel 8", [""]),
    ("device.sua.platform.brand", "device.os"): ("Mac OS X", "macos", [""]),
    ("device.sua.platform.version", "device.os_version"): (["10", "0", "0"], "10.0.0", [[], ["10", "b"]]),
    ("device.devicetype", "device.type"): (4, 4, [0, 9, 500]),
    ("device.devicetype", "device.platform"): (7, "connected_tv", [6, 8, 500]),
    ("device.make", "device.make"): ("Apple", "Apple", [""]),
    ("device.model", "device.model"): ("iPhone", "iPhone", [""]),
    ("device.carrier", "device.carrier"): ("VERIZON", "VERIZON", [""]),
    ("device.connectiontype", "device.connection_type"): (2, 2, [0, 8]),
    ("device.language", "device.language"): ("zh-TW", "zh-TW", [""]),
    ("device.langb", "device.language"): ("zh-Hant-TW", "zh-Hant-TW", [""]),
    ("device.language", "language"): ("zh-TW", "zh", ["", "x", "12"]),
    ("device.langb", "language"): ("EN_us", "en", ["", "english"]),
    ("device.pxratio", "device.pixel_ratio"): (1.5, 1.5, []),
    ("device.os", "device.os"): ("iOS", "ios", ["", " "]),
    ("device.osv", "device.os_version"): (" 6.1 ", "6.1", ["", "6.x", "iOS 6", "1." * 16 + "1", "9" * 19]),
    ("user.yob", "age"): (1984, 42, [2027, 1900, 0, -5]),
    ("user.gender", "gender"): ("f", "female", ["", "X"]),
    ("user.keywords", "user.keywords"): ("a, b,,c ", ["a", "b", "c"], ["", " , "]),
    ("user.kwarray", "user.keywords"): (["a", None, ""], ["a"], [[]]),
    ("user.data", "audience"): (
        [{"segment": [{"id": "7"}, {"name": "x"}]}, {"id": "p"}, {"segment": [{"id": "8"}], "ext": {}}],
        ["7", "8"],
        [
            [],
            [{}],
            [{"segment": [{"id": "7"}], "ext": {"segtax": 4}}],
            [{"segment": [{"id": "7"}], "ext": {"segtax": "4"}}],
        ],
    ),
    ("user.data", "user.interests"): (
        [{"segment": [{"id": "243"}], "ext": {"segtax": 4}}],
        ["4:243"],
        [[{"segment": [{"id": "7"}]}], [{"segment": [{"id": "7"}], "ext": {"segtax": [4]}}]],
    ),
    ("site.domain", "site.domain"): ("WWW.Foobar.com", "www.foobar.com", [""]),
    ("site.page", "site.domain"): ("https://Good.site:8080/url", "good.site", ["prebid.org", "http://[", ""]),
    ("site.cat", "site.category"): (["IAB3-1"], ["IAB3-1"], [[]]),
    ("site.sectioncat", "site.category"): (["IAB3-1"], ["IAB3-1"], [[]]),
    ("site.pagecat", "site.category"): (["IAB3-1"], ["IAB3-1"], [[]]),
    ("site.mobile", "site.mobile"): (1, True, [2]),
    ("app.bundle", "app.bundle"): ("com.foo", "com.foo", [""]),
    ("app.cat", "app.category"): (["IAB15", "IAB15-10"], ["IAB15", "IAB15-10"], [[]]),
    ("app.sectioncat", "app.category"): (["IAB1"], ["IAB1"], [[]]),
    ("app.pagecat", "app.category"): (["IAB1"], ["IAB1"], [[]]),
    ("dooh.venuetype", "dooh.venue_type"): (["transit"], ["transit"], [[], ""]),
}
for channel in ("site", "app", "dooh"):
    ROWS[f"{channel}.keywords", "keywords"] = ("a,b", ["a", "b"], [""])
    ROWS[f"{channel}.kwarray", "keywords"] = (["a"], ["a"], [[]])
    ROWS[f"{channel}.publisher.id", "publisher.id"] = ("8953", "8953", [""])
    ROWS[f"{channel}.content.genre", "content.genre"] = ("drama", "drama", [""])
    ROWS[f"{channel}.content.cat", "content.category"] = (["IAB8-6"], ["IAB8-6"], [[]])
    ROWS[f"{channel}.content.language", "content.language"] = ("EN", "en", ["?"])
    ROWS[f"{channel}.content.langb", "content.language"] = ("en-GB", "en", ["?"])
    ROWS[f"{channel}.content.contentrating", "content.rating"] = ("PG", "PG", [""])
    ROWS[f"{channel}.content.livestream", "content.live"] = (0, False, [3])
    ROWS[f"{channel}.content.keywords", "keywords"] = ("a,b", ["a", "b"], [""])
    ROWS[f"{channel}.content.kwarray", "keywords"] = (["a"], ["a"], [[]])

ALL_ROWS = [(f"{path}.{row.field}", row.attribute) for path, rows in TABLES for row in rows]


def at(path: str, value: object) -> Json:
    """A request with one value at a path."""
    first, *steps = path.split(".")
    inner: Any = value
    for step in reversed(steps):
        inner = {step: inner}
    return request(**{first: inner})


@pytest.mark.parametrize(("path", "attribute"), ALL_ROWS)
def test_every_row_gives_its_attribute(path: str, attribute: str) -> None:
    raw, expected, unusable = ROWS[path, attribute]
    assert attribute in SCHEMA.attributes
    assert body_of(at(path, raw))["attributes"].get(attribute) == expected
    for value in [*unusable, None]:
        assert attribute not in body_of(at(path, value))["attributes"]


@pytest.mark.parametrize("path", sorted({path for path, _ in ALL_ROWS}))
def test_every_row_refuses_a_wrong_type(path: str) -> None:
    raw = ROWS[next(key for key in ALL_ROWS if key[0] == path)][0]
    wrong: list[object] = [{}, True]
    if not isinstance(raw, list) and path != "dooh.venuetype":
        wrong.append([1.5])
    if path != "device.geo.lat":
        wrong.append(1.5) if path != "device.pxratio" else None
    for value in wrong:
        fault = refusal(at(path, value))
        assert fault.path.startswith(path)
        assert fault.code == "wrong_type"


@pytest.mark.parametrize(
    "path",
    ["device", "device.geo", "device.sua", "user", "user.geo", "site", "app.content", "dooh.publisher", "regs", "ext"],
)
@pytest.mark.parametrize("value", [[], "x", 1, True])
def test_an_object_that_is_none_is_refused(path: str, value: object) -> None:
    fault = refusal(at(path, value))
    assert (fault.path, fault.code) == (path, "wrong_type")


def test_no_object_at_all_is_well() -> None:
    assert body_of(request(device=None, user=None, site=None, regs=None, ext=None, badv=None, bcat=None)) == {
        "attributes": {},
        "pathways": [{"name": "1", "filter": {"all": [{"field": "format", "in": ["banner"]}]}}],
    }


def test_unknown_fields_are_passed_over() -> None:
    plain = request(device={"os": "iOS"}, site={"domain": "a.com"})
    strange = request(
        device={"os": "iOS", "brand_new": {"x": [1]}},
        site={"domain": "a.com", "ext": {"amp": 1}},
        tomorrow=[{}],
        ext={"prebid": 1},
    )
    assert body_of(plain) == body_of(strange)


# Place and time.


def test_the_devices_place_comes_before_the_users_home() -> None:
    device, home = {"geo": {"country": "FRA", "city": "Paris"}}, {"geo": {"country": "USA", "zip": "94304"}}
    both = attributes_of(device=device, user=home)
    assert both == {"geo.country": "FR", "geo.city": "Paris", "geo.location_type": "recent"}
    at_home = {"geo.country": "US", "geo.zip": "US:94304", "geo.location_type": "home"}
    assert attributes_of(user=home) == at_home
    assert attributes_of(device={"geo": {"country": "unknown", "type": 2}}, user=home) == at_home


def test_regions_and_zips_have_their_country_in_front() -> None:
    found = attributes_of(device={"geo": {"country": "usa", "region": "co", "zip": "80524"}})
    assert (found["geo.region"], found["geo.zip"]) == ("US-CO", "US:80524")
    assert attributes_of(device={"geo": {"country": "MEX", "region": "JAL"}})["geo.region"] == "MX-JAL"


@pytest.mark.parametrize(
    ("geo", "expected"),
    [
        ({"lat": 51.5, "lon": -0.12}, {"lat": 51.5, "lon": -0.12}),
        ({"lat": -90, "lon": 180}, {"lat": -90.0, "lon": 180.0}),
        ({"lat": 123.456, "lon": 678.90}, None),
        ({"lat": 51.5, "lon": 180.5}, None),
        ({"lat": 51.5}, None),
        ({"lon": 51.5}, None),
    ],
)
def test_points(geo: Json, expected: object) -> None:
    assert attributes_of(device={"geo": geo}).get("geo.point") == expected


def test_a_point_of_texts_is_refused() -> None:
    assert refusal(request(device={"geo": {"lat": 1, "lon": "2"}})).path == "device.geo.lon"
    assert refusal(request(device={"geo": {"lat": float("inf"), "lon": 2}})).code == "out_of_range"


@pytest.mark.parametrize(
    ("geo", "zone"),
    [
        ({"utcoffset": -300}, "Etc/GMT+5"),
        ({"utcoffset": 0}, "Etc/UTC"),
        ({"utcoffset": 840}, "Etc/GMT-14"),
        ({"utcoffset": 330}, "Asia/Kolkata"),
        ({"utcoffset": 120, "country": "FRA"}, "Etc/GMT-2"),
        ({"utcoffset": 20, "country": "FRA"}, "Europe/Paris"),
        ({"utcoffset": 900}, None),
        ({"country": "JPN"}, "Asia/Tokyo"),
        ({"country": "DEU"}, "Europe/Berlin"),
        ({"country": "USA"}, None),
        ({}, None),
    ],
)
def test_time_zones(geo: Json, zone: str | None) -> None:
    assert body_of(request(device={"geo": geo})).get("timezone") == zone


def test_the_time_zone_of_the_device_goes_with_the_place_of_the_home() -> None:
    body = body_of(request(device={"geo": {"utcoffset": -480}}, user={"geo": {"country": "FRA"}}))
    assert body["timezone"] == "Etc/GMT+8"
    assert body["attributes"] == {"geo.country": "FR", "geo.location_type": "home"}


def test_an_offset_of_another_type_is_refused() -> None:
    assert refusal(request(device={"geo": {"utcoffset": "60"}})).path == "device.geo.utcoffset"


# The device, the user, the medium.


def test_sua_comes_before_the_device() -> None:
    sua = {"platform": {"brand": "Android", "version": ["14"]}, "model": "Pixel 8", "mobile": 1}
    device = {"os": "Linux", "osv": "5.1", "model": "K", "sua": sua, "ua": "Mozilla"}
    assert attributes_of(device=device) == {
        "device.os": "android",
        "device.os_version": "14",
        "device.model": "Pixel 8",
        "device.platform": "mobile",
    }


def test_the_version_of_another_system_is_not_taken() -> None:
    device = {"os": "Linux", "osv": "5.1", "sua": {"platform": {"brand": "Android"}}}
    assert attributes_of(device=device) == {"device.os": "android"}
    same = {"os": "android", "osv": "14", "sua": {"platform": {"brand": "Android"}}}
    assert attributes_of(device=same) == {"device.os": "android", "device.os_version": "14"}


def test_the_kind_of_device_comes_before_what_its_browser_prefers() -> None:
    assert attributes_of(device={"devicetype": 3, "sua": {"mobile": 1}})["device.platform"] == "connected_tv"


def test_the_age_is_that_of_the_requests_own_time() -> None:
    asked = request(user={"yob": 1984}, ext={"mirach": {"now": "2020-01-01T00:00:00Z"}})
    assert body_of(asked, allow_now=True)["attributes"]["age"] == 36
    assert map_request(asked, SCHEMA, SETTINGS, NOW_US)["attributes"]["age"] == 42  # the parser refuses `now` then
    assert refusal(request(ext={"mirach": {"now": "soon"}}), allow_now=True).path == "ext.mirach.now"


def test_lists_of_one_attribute_are_joined() -> None:
    site = {"cat": ["IAB1"], "pagecat": ["IAB2"], "keywords": "a", "content": {"keywords": "b", "kwarray": ["c"]}}
    found = attributes_of(site=site)
    assert (found["site.category"], found["keywords"]) == (["IAB1", "IAB2"], ["a", "b", "c"])


def test_a_schema_without_an_attribute_or_with_another_kind_of_it() -> None:
    schema = Schema.parse(
        '[attributes.gender]\ntype = "integer"\n[attributes.age]\ntype = "integer"\nmin = 18\n'
        '[attributes."device.os"]\ntype = "category"\n[fields.format]\ntype = "category"\n'
    )
    asked = request(user={"gender": "M", "yob": 2020}, device={"os": "iOS", "osv": "17"})
    assert map_request(asked, schema, SETTINGS, NOW_US)["attributes"] == {"device.os": "ios"}


# The request's own parameters.


def test_parameters_of_the_retrieval_come_from_ext_mirach() -> None:
    given_ = {
        "k": 7,
        "rank_by": "score",
        "max_per": {"advertiser_id": 1},
        "exclude_ads": ["a"],
        "min_offsets": {"0": 4},
        "wait_ms": 10,
        "user": {"experts": [[0.5] * 64]},
        "now": None,
    }
    body = body_of(request(ext={"mirach": given_}))
    parsed = PARSER.parse_object(body)
    assert parsed.pathways[0].k == 7
    assert parsed.pathways[0].rank_by == "score"
    assert parsed.pathways[0].user is not None
    assert (parsed.max_per, parsed.exclude_ads, parsed.min_offsets) == ({"advertiser_id": 1}, ("a",), {0: 4})


def test_a_filter_of_the_request_holds_beside_the_exchanges() -> None:
    own = {"field": "categories", "in": ["IAB2", "IAB3"]}
    asked = request(bcat=["IAB3"], ext={"mirach": {"filter": own}})
    assert body_of(asked)["filter"] == own
    assert fits(asked, format="banner", categories="IAB2")
    assert not fits(asked, format="banner", categories="IAB3")
    assert not fits(asked, format="banner", categories="IAB4")


def test_a_misspelt_parameter_is_answered_with_the_right_one() -> None:
    fault = refusal(request(ext={"mirach": {"rank_bye": "score"}}))
    assert fault.path == "ext.mirach.rank_bye"
    assert '"rank_by"' in fault.detail


def test_paths_in_the_body_are_told_as_paths_in_the_request() -> None:
    assert all(in_bid_request(name) == f"ext.mirach.{name}" for name in PARAMETERS)
    assert in_bid_request("filter.not.field") == "ext.mirach.filter.not.field"
    assert in_bid_request("exclude_ads[2]") == "ext.mirach.exclude_ads[2]"
    assert in_bid_request("pathways[3].name") == "imp[3].id"
    assert in_bid_request("pathways[3].filter.all[0]") == "imp[3]"
    assert in_bid_request("") == ""


# Rules of the specification.


@pytest.mark.parametrize(
    ("asked", "path", "code"),
    [
        ({"imp": [BANNER]}, "id", "missing"),
        (request(id=""), "id", "missing"),
        (request(id=5), "id", "wrong_type"),
        (request(imp=None), "imp", "missing"),
        (request(imp=[]), "imp", "missing"),
        (request(imp={}), "imp", "wrong_type"),
        (request(imp=["x"]), "imp[0]", "wrong_type"),
        (request(imp=[{"banner": {}}]), "imp[0].id", "missing"),
        (request(imp=[{"id": 1, "banner": {}}]), "imp[0].id", "wrong_type"),
        (request(imp=[BANNER, {"id": "1", "video": {}}]), "imp[1].id", "not_distinct"),
        (request(imp=[{"id": str(i), "banner": {}} for i in range(65)]), "imp", "too_many"),
        (request(imp=[{"id": "1"}]), "imp[0]", "missing"),
        (request(imp=[{"id": "1", "banner": None}]), "imp[0]", "missing"),
        (request(imp=[{"id": "1", "banner": []}]), "imp[0].banner", "wrong_type"),
        (request(imp=[{"id": "1", "banner": {"w": "300"}}]), "imp[0].banner.w", "wrong_type"),
        (request(imp=[{"id": "1", "banner": {"w": -1, "h": 1}}]), "imp[0].banner.w", "wrong_type"),
        (
            request(imp=[{"id": "1", "banner": {"format": [{"w": 1, "h": 2.5}]}}]),
            "imp[0].banner.format[0].h",
            "wrong_type",
        ),
        (request(imp=[{"id": "1", "banner": {"format": {}}}]), "imp[0].banner.format", "wrong_type"),
        (request(imp=[{"id": "1", "video": {"battr": ["6"]}}]), "imp[0].video.battr[0]", "wrong_type"),
        (request(imp=[{"id": "1", "video": {"battr": 6}}]), "imp[0].video.battr", "wrong_type"),
        (request(imp=[BANNER | {"bidfloor": "1"}]), "imp[0].bidfloor", "wrong_type"),
        (request(imp=[BANNER | {"bidfloor": 1, "bidfloorcur": 840}]), "imp[0].bidfloorcur", "wrong_type"),
        (request(site={}, app={}), "app", "openrtb"),
        (request(app={}, dooh={}), "dooh", "openrtb"),
        (request(site={}, dooh={"id": "x"}), "dooh", "openrtb"),
        (request(regs={"gdpr": 2}), "regs.gdpr", "openrtb"),
        (request(regs={"gdpr": "1"}), "regs.gdpr", "wrong_type"),
        (request(bcat="IAB1"), "bcat", "wrong_type"),
        (request(bcat=["IAB1", 2]), "bcat[1]", "wrong_type"),
        (request(badv=[["a.com"]]), "badv[0]", "wrong_type"),
        (request(bapp={}), "bapp", "wrong_type"),
        (request(ext={"mirach": []}), "ext.mirach", "wrong_type"),
        (request(user={"data": [{"segment": [{"id": 7}]}]}), "user.data[0].segment[0].id", "wrong_type"),
        (request(user={"data": [{"segment": {}}]}), "user.data[0].segment", "wrong_type"),
        (request(user={"keywords": "\ud800"}), "user.keywords", "lone_surrogate"),
    ],
)
def test_broken_rules_are_faults_with_their_path(asked: Json, path: str, code: str) -> None:
    fault = refusal(asked)
    assert (fault.path, fault.code) == (path, code)


@pytest.mark.parametrize("regs", [{}, {"gdpr": 0}, {"gdpr": 1, "coppa": 1}, {"ext": {"gdpr": 7}}])
def test_regulations_in_order(regs: Json) -> None:
    assert body_of(request(regs=regs))


# Real requests.

EXPECTED = {
    "ortb26_spec_ex4.json": {
        "device.os": "macos",
        "audience": ["12341318394918", "1234131839491234"],
        "site.domain": "siteabcd.com",
        "site.category": ["IAB2-1", "IAB2-2"],
        "content.category": ["IAB2-2"],
        "keywords": ["keyword-a", "keyword-b", "keyword-c"],
        "publisher.id": "pub12345",
    },
    "pbs_rubicontest_user-fpd.json": {
        "geo.country": "US",
        "geo.point": {"lat": 47.6275, "lon": -122.3462},
        "geo.location_type": "home",
        "age": 26,
        "gender": "female",
        "user.keywords": ["someKeywords"],
        "user.interests": ["4:idToCopy", "4:idToCopy2"],
    },
    "pbs_valid_device-sua.json": {
        "device.browser": ["MS", "MS"],
        "device.model": "mac",
        "device.os": "ms",
        "publisher.id": "a3de7af2-a86a-4043-a77b-c7e86744155e",
    },
}
REFUSED = {"pbs_invalid_regs-gdpr-invalid.json": "regs.gdpr", "pbs_invalid_site-app-both.json": "app"}


def real_requests() -> dict[str, Json]:
    found = {}
    for path in sorted(shared("cases/openrtb").glob("*.json")):
        case = json.loads(path.read_text())
        found[path.name] = case.get("mockBidRequest", case)
    return found


def test_real_requests() -> None:
    """Prebid Server's valid requests and the specification's examples are mapped, its invalid ones refused."""
    requests = real_requests()
    assert len(requests) == 15
    for name, bid_request in requests.items():
        if name in REFUSED:
            assert refusal(bid_request).path == REFUSED[name]
            continue
        before = copy.deepcopy(bid_request)
        body = body_of(bid_request)
        assert bid_request == before
        assert [pathway["name"] for pathway in body["pathways"]] == [imp["id"] for imp in bid_request["imp"]]
        if name in EXPECTED:
            assert body["attributes"] == EXPECTED[name]


def harm(draw: st.DrawFn, place: Any) -> None:
    """Changes one thing somewhere inside a JSON value."""
    while True:
        keys: list[Any] = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
            place = place[key]
            continue
        match draw(st.integers(0, 2)):
            case 0:
                del place[key]
            case 1:
                place[key] = copy.deepcopy(draw(VALUES))
            case 2:
                place[key] = [place[key], copy.deepcopy(draw(VALUES))]
        return


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        2**63,
        2**64,
        1e300,
        -0.0,
        2.5,
        "",
        "x",
        "USA",
        "\ud800",
        "1.2",
        [],
        {},
        [None],
        [{}],
        {"id": "1"},
        [1],
        ["a"],
    ]
)


@given(st.data())
def test_no_harm_to_a_real_request_is_worse_than_a_fault(data: st.DataObject) -> None:
    requests = real_requests()
    bid_request = copy.deepcopy(requests[data.draw(st.sampled_from(sorted(requests)))])
    for _ in range(data.draw(st.integers(1, 4))):
        harm(data.draw, bid_request)
    try:
        body = map_request(bid_request, SCHEMA, SETTINGS, NOW_US)
    except InvalidInput:
        return
    PARSER.parse_object(body)


def test_attributes_of_one_value_are_the_models_context() -> None:
    body = body_of(request(
        device={"os": "iOS", "geo": {"country": "USA"}}, user={"keywords": "a,b"},
        site={"domain": "example.com", "cat": ["IAB1"]},
    ))  # fmt: skip
    attributes, context = body["attributes"], body["context"]
    assert context["geo.country"] == "US"
    assert context["device.os"] == "ios"
    assert attributes["user.keywords"] == ["a", "b"]
    assert "user.keywords" not in context
    assert context.items() >= {"site.category": "IAB1"}.items()
