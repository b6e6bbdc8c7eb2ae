"""JSON from outside, decoded so that nothing about its numbers and texts is lost or guessed.

`true`, `1` and `1.0` come as bool, int and float; integers of any size come exact; a number written with a fraction or
an exponent comes as a float, and as an InexactFloat where float64 made an integer of something that was not written as
one (9007199254740993.0, 1e-400), so that an integer attribute can refuse it. Of a repeated key the last one counts.

The hook that looks at each such number costs some 0.2 µs: decode long vectors with a msgspec type instead.
"""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

from gpu_index.invalid_input import SHOWN_CHARACTERS_MAX, InvalidInput, shown

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1
FLOAT_EXACT_MAX = 2**53  # beyond it float64 does not hold every integer
ALWAYS_EXACT_CHARACTERS = 15  # decimals this short without an exponent differ as float64 whenever they differ
LONE_SURROGATE = re.compile(r"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F][0-9a-fA-F]{2})")


class InexactFloat(float):
    """A float64 with an integral value that its decimal text does not have. `text` is what was written."""

    __slots__ = ("text",)
    text: str


def _float(text: str) -> float:
    value = float(text)
    if len(text) <= ALWAYS_EXACT_CHARACTERS and "e" not in text and "E" not in text:
        return value
    if value in (float("inf"), float("-inf")):
        raise InvalidInput("", f"the number {_cut(text)} is beyond what float64 holds", "out_of_range")
    if not value.is_integer() or abs(value) > FLOAT_EXACT_MAX or _is_exact(text, value):
        return value
    inexact = InexactFloat(value)
    inexact.text = text
    return inexact


def _is_exact(text: str, value: float) -> bool:
    if value == 0.0:  # an exponent may be too small even for Decimal
        return not re.search("[1-9]", re.split("[eE]", text)[0])
    return Decimal(text) == int(value)


_decoder = msgspec.json.Decoder(float_hook=_float)


def decode_json(raw: bytes | bytearray | memoryview | msgspec.Raw) -> object:
    """The value of one JSON text in UTF-8. Raises InvalidInput (not_json, not_utf8, lone_surrogate, out_of_range,
    too_large); a number in the wrong place is not found here but by whoever reads the value."""
    try:
        return _decoder.decode(raw)
    except RecursionError:
        raise InvalidInput("", "the JSON is nested too deeply", "too_large") from None
    except msgspec.DecodeError as error:
        raise _fault(bytes(raw), error) from None


def _fault(raw: bytes, error: msgspec.DecodeError) -> InvalidInput:
    """What is wrong with a text that could not be decoded."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as unicode_error:
        return InvalidInput("", f"not UTF-8: byte {unicode_error.start} is wrong", "not_utf8")
    if isinstance(error, msgspec.ValidationError):  # of an untyped decoder: only a number beyond every type
        return InvalidInput("", "a number is out of range", "out_of_range")
    found = LONE_SURROGATE.search(text.replace("\\\\", ""))
    if found:
        return InvalidInput("", f"a text has half of a surrogate pair, {shown(found.group())}", "lone_surrogate")
    if text.startswith("\ufeff"):
        return InvalidInput("", "not JSON: it begins with a byte order mark, leave that out", "not_json")
    if not text.strip():
        return InvalidInput("", "not JSON: it is empty", "not_json")
    return InvalidInput("", f"not JSON: {error}", "not_json")


def parse_integer(raw: object, name: str) -> int:
    """The integer that a decoded number is: `1`, `1.0` and `1e0` are one. `name` is whose value it is. Raises
    InvalidInput, also where a fraction or an exponent leaves open which integer above 2^53 was meant."""
    if type(raw) is int:
        if INTEGER_MIN <= raw <= INTEGER_MAX:
            return raw
        raise InvalidInput("", f"{shown(name)} takes integers from -2^63 to 2^63-1, not {shown(raw)}", "out_of_range")
    if not isinstance(raw, float) or not raw.is_integer():
        raise InvalidInput("", f"{shown(name)} takes an integer, not {shown(raw)}", "wrong_type")
    written = _cut(raw.text) if isinstance(raw, InexactFloat) else shown(raw)
    if abs(raw) > FLOAT_EXACT_MAX or (abs(raw) == FLOAT_EXACT_MAX and isinstance(raw, InexactFloat)):
        detail = f"{shown(name)}: an integer above 2^53 is written without fraction and exponent, not as {written}"
        raise InvalidInput("", detail, "out_of_range")
    if isinstance(raw, InexactFloat):
        raise InvalidInput("", f"{shown(name)} takes an integer, not {written}", "wrong_type")
    return int(raw)


def finite(raw: int | float, name: str) -> float:
    """A number as float64. Raises InvalidInput if that is not finite."""
    try:
        number = float(raw)
    except OverflowError:
        number = float("inf")
    if number - number != 0:
        raise InvalidInput("", f"{shown(name)} takes finite numbers, {shown(raw)} is beyond float64", "out_of_range")
    return number


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 1] + "…"
