from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_index.invalid_input import InvalidInput
from gpu_index.json_input import InexactFloat, decode_json, parse_integer

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)


@given(DOCUMENTS)
def test_what_json_writes_is_read_back(document: object) -> None:
    assert decode_json(json.dumps(document, ensure_ascii=False).encode()) == document
    assert decode_json(json.dumps(document).encode()) == document


def test_true_1_and_1_0_stay_apart() -> None:
    assert [type(each) for each in decode_json(b'[true, 1, 1.0, "1"]')] == [bool, int, float, str]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "not_json"),
        (b"  ", "not_json"),
        (b"{", "not_json"),
        (b"[1,]", "not_json"),
        (b"01", "not_json"),
        (b"NaN", "not_json"),
        (b"-Infinity", "not_json"),
        (b"{'a': 1}", "not_json"),
        (b'{"a": 1} x', "not_json"),
        (b'"\x00"', "not_json"),
        (b"\xef\xbb\xbf{}", "not_json"),
        (b'"\xff"', "not_utf8"),
        (b'"\xed\xa0\x80"', "not_utf8"),  # a surrogate written as UTF-8 would be
        (b'"\\ud800"', "lone_surrogate"),
        (b'"\\udc00"', "lone_surrogate"),
        (b'"\\ud800\\u0041"', "lone_surrogate"),
        (b'"\\udc00\\ud800"', "lone_surrogate"),
        (b'["\\ud83d\\ude00", "\\uD83D"]', "lone_surrogate"),
        (b"1e400", "out_of_range"),
        (b"-1.5e999999999999999999999", "out_of_range"),
        (b"1" * 400 + b".5", "out_of_range"),
        (b"1" * 10_000, "out_of_range"),
        (b"[" * 100_000, "too_large"),
        (b"[" * 100_000 + b"]" * 100_000, "too_large"),
        (b'{"a":' * 100_000, "too_large"),
    ],
)
def test_what_is_not_json_is_refused_with_its_code(raw: bytes, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_json(raw)
    assert caught.value.code == code
    assert caught.value.detail


def test_escaped_pairs_and_escaped_backslashes_are_no_lone_surrogates() -> None:
    assert decode_json(b'"\\ud83d\\ude00"') == "😀"
    assert decode_json(b'"\\\\ud800"') == "\\ud800"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("-0.0", 0),
        ("0e999999", 0),
        ("0.000e-999999999999999999999", 0),
        ("1.0", 1),
        ("1e2", 100),
        ("100e-2", 1),
        ("1.5e1", 15),
        ("9007199254740991.0", 2**53 - 1),
        ("9007199254740992.0", 2**53),
        ("-9007199254740992e0", -(2**53)),
        ("9007199254740992", 2**53),
        ("9007199254740993", 2**53 + 1),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_integers_are_exact(text: str, value: int) -> None:
    assert parse_integer(decode_json(text.encode()), "n") == value
    assert type(parse_integer(decode_json(text.encode()), "n")) is int


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("9007199254740993.0", "out_of_range"),  # float64 makes it 2^53
        ("-9007199254740993.0", "out_of_range"),
        ("9007199254740992.5", "out_of_range"),
        ("9007199254740994.0", "out_of_range"),
        ("1e16", "out_of_range"),
        ("9.223372036854775807e18", "out_of_range"),
        ("1e300", "out_of_range"),
        ("9223372036854775808", "out_of_range"),
        ("-9223372036854775809", "out_of_range"),
        ("1" * 4000, "out_of_range"),
        ("1.5", "wrong_type"),
        ("1e-400", "wrong_type"),  # float64 makes it 0
        ("1.00000000000000000001", "wrong_type"),  # float64 makes it 1
        ("4503599627370497.25", "wrong_type"),  # float64 makes it an integer
        ("0.99999999999999999999", "wrong_type"),
        ("true", "wrong_type"),
        ('"1"', "wrong_type"),
        ("null", "wrong_type"),
        ("[1]", "wrong_type"),
        ("{}", "wrong_type"),
    ],
)
def test_what_is_no_exact_integer_is_refused(text: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_integer(decode_json(text.encode()), "n")
    assert caught.value.code == code


NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}.{fraction}" + ("" if exponent is None else f"e{exponent}"),
    st.sampled_from(["", "-"]),
    st.integers(0, 2**54) | st.integers(0, 9),
    st.text("0123456789", min_size=1, max_size=25) | st.text("0", min_size=1, max_size=25),
    st.none() | st.integers(-30, 20),
)


@given(NUMBERS)
@example("9007199254740993.0")
@example("9007199254740991.5")
def test_written_with_a_fraction_an_integer_is_exact_up_to_2_53_and_else_refused(text: str) -> None:
    exact = Fraction(text)
    decoded = decode_json(text.encode())
    assert decoded == float(text)
    if exact.denominator == 1 and abs(exact) <= 2**53:
        assert parse_integer(decoded, "n") == exact
    else:
        with pytest.raises(InvalidInput):
            parse_integer(decoded, "n")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_read_as_float64_reads_them(value: float) -> None:
    decoded = decode_json(repr(value).encode())
    assert math.copysign(1, decoded) == math.copysign(1, value)
    assert decoded == value
    assert not isinstance(decoded, InexactFloat)
