from __future__ import annotations

import pytest

from gpu_index.schema import AGE_S, BID, Kind, Schema, SchemaError

TEXT = """
[attributes."geo.country"]
type = "category"
[attributes.age]
type = "integer"
min = 13
max = 65
clamp = true
[attributes.audience]
type = "category"
cardinality = "high"
[fields.format]
type = "category"
"""


def test_attributes_are_numbered_in_the_order_of_the_file_and_fields_after_the_built_in_ones() -> None:
    schema = Schema.parse(TEXT)
    assert [(each.name, each.index) for each in schema.attribute_list] == [
        ("geo.country", 0),
        ("age", 1),
        ("audience", 2),
    ]
    names = ["advertiser_id", "campaign_id", "bid", "age_s", "format"]
    assert [each.name for each in schema.field_list] == names
    assert [schema.fields[name].index for name in names] == [0, 1, 2, 3, 4]
    assert schema.field_list[BID].kind is schema.field_list[AGE_S].kind is Kind.NUMBER
    age = schema.attributes["age"]
    assert (age.kind, age.minimum, age.maximum, age.clamp) == (Kind.INTEGER, 13, 65, True)
    assert schema.attributes["audience"].high_cardinality
    assert not schema.attributes["geo.country"].high_cardinality


def test_the_default_schema_has_every_kind_and_the_contracts_fields() -> None:
    schema = Schema.load()
    assert {each.kind for each in schema.attribute_list} == set(Kind)
    assert 40 <= len(schema.attributes) <= 80
    needed = {"format", "size", "categories", "advertiser_domain", "app_bundle", "creative_attributes", "language"}
    assert needed <= set(schema.fields)
    assert schema.attributes["age"].clamp


def test_the_fingerprint_is_of_the_meaning_and_not_of_the_formatting() -> None:
    same = TEXT.replace('[attributes."geo.country"]\ntype', "# a comment\n[attributes]\n'geo.country'.type")
    assert same != TEXT
    assert Schema.parse(same).fingerprint == Schema.parse(TEXT).fingerprint
    for change in (
        TEXT.replace("13", "14"),
        TEXT.replace("clamp = true", "clamp = false"),
        TEXT.replace('cardinality = "high"', ""),
        TEXT.replace('"geo.country"', '"geo.region"'),
        TEXT + '[fields.size]\ntype = "category"',
    ):
        assert Schema.parse(change).fingerprint != Schema.parse(TEXT).fingerprint
    swapped = '[fields.a]\ntype="number"\n[fields.b]\ntype="number"'
    other = '[fields.b]\ntype="number"\n[fields.a]\ntype="number"'
    assert Schema.parse(swapped).fingerprint != Schema.parse(other).fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[attributes", "not TOML"),
        ("[attribute.age]\ntype='integer'", 'unknown key "attribute"'),
        ("attributes = 3", "must be tables"),
        ("[attributes.age]\n", "needs a type"),
        ("[attributes.age]\ntype='intger'", 'did you mean "integer"?'),
        ("[attributes.age]\ntype=3", "unknown type 3"),
        ("[attributes.geo.country]\ntype='category'", '"geo.country"'),
        ("[attributes.age]\ntype='integer'\nminimum=3", 'did you mean "min"?'),
        ("[attributes.age]\ntype='integer'\nmin=3\nmax=2", "min 3 is greater than max 2"),
        ("[attributes.age]\ntype='integer'\nmin=3.5", "min must be an integer"),
        ("[attributes.age]\ntype='integer'\nmin=true", "min must be an integer"),
        ("[attributes.age]\ntype='integer'\nmax=9223372036854775808", "max must be an integer"),
        ("[attributes.age]\ntype='integer'\nclamp=true", "clamp needs a min or a max"),
        ("[attributes.age]\ntype='integer'\nmin=1\nclamp='yes'", "clamp must be true or false"),
        ("[attributes.age]\ntype='number'\nmin=3", '"min" is not a setting of a number attribute'),
        ("[attributes.age]\ntype='integer'\ncardinality='high'", '"cardinality" is not a setting'),
        ("[attributes.zip]\ntype='category'\ncardinality='huge'", 'must be "low" or "high"'),
        ("[fields.bid]\ntype='number'", "is always declared"),
        ("[fields.place]\ntype='geo_point'", 'unknown type "geo_point"'),
        ("[fields.hour]\ntype='hour_of_week'", 'unknown type "hour_of_week"'),
        ("[fields.n]\ntype='integer'\nmin=1", '"min" is not a setting of a integer field'),
        ("[attributes.'']\ntype='integer'", "empty name"),
        ("[attributes]\n" + "".join(f"a{i}={{type='number'}}\n" for i in range(1025)), "the limit is 1024"),
    ],
)
def test_a_faulty_schema_is_refused_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.parse(text)
    assert message in str(caught.value)


def test_a_file_is_named_in_its_errors(tmp_path) -> None:
    with pytest.raises(SchemaError, match="cannot be read"):
        Schema.load(tmp_path / "absent.toml")
    path = tmp_path / "schema.toml"
    path.write_text("[attributes.age]\n", "utf-8")
    with pytest.raises(SchemaError, match=r"schema\.toml: .*needs a type"):
        Schema.load(path)
    path.write_text(TEXT, "utf-8")
    assert Schema.load(path).fingerprint == Schema.parse(TEXT).fingerprint
