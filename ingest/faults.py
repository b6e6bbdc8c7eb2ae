"""The stable codes of bad events: what `mirach-error` of a dead letter, the metrics and `mirach check` say."""

from __future__ import annotations

from gpu_index.events import Fault, Outcome
from gpu_index.invalid_input import InvalidInput

DETAIL_CHARACTERS_MAX = 1000  # a dead letter's headers count towards the record size that its topic takes

CODES = {
    # the record
    "not_utf8": "The value, or the key, is not UTF-8.",
    "not_json": "The value is not one JSON text.",
    "lone_surrogate": "A text has half of a surrogate pair, which no UTF-8 text can hold.",
    "too_large": "The event, its nesting or its targeting is larger than what is accepted.",
    "key_mismatch": "The record's key is missing or is not the UTF-8 text of ad_id.",
    # any field
    "missing": "A field that is needed is not there, or is null and has no default.",
    "wrong_type": "A field's value has another type than the contract or the schema says.",
    "out_of_range": "A number is not finite, or lies outside what its field takes.",
    "unknown_field": "`ad` has a field that the contract does not know, or `fields` one that the schema does not know.",
    "unknown_key": "An object inside `ad` has a key that does not belong there.",
    "derived": "A value was given that Mirach derives itself.",
    "wrong_length": "ad_id is not 1 to 64 bytes long, or a vector does not have the model's width.",
    "unknown_value": "A text is not one of the values that its field takes.",
    "bad_time": "A time is not RFC 3339 with an offset or Z, or there is no such time.",
    "unknown_timezone": "A time zone is not an IANA name.",
    # targeting
    "bad_expression": "The targeting is not an expression of the targeting language.",
    "unknown_attribute": "The targeting names an attribute that the schema does not declare.",
    "wrong_predicate": "The targeting uses a predicate that the attribute's type does not have.",
    "targeting_twice": "The ad has both targeting and targeting_meta.",
    "targeting_meta": "The Meta targeting spec has something that cannot be honoured exactly.",
    # found when the event is applied
    "unknown_ad": "A modify of an ad that does not exist.",
    "index_full": "There is no room for the ad within the configured capacity.",
    # ours
    "internal": "Mirach failed on the event; its log has the details. Please report it.",
}

OUTCOME_FAULTS = {
    Outcome.UNKNOWN_AD: Fault("unknown_ad", "a modify needs an ad that exists; send a create first"),
    Outcome.INDEX_FULL: Fault("index_full", "no room in the index: raise ads_max, targetings_max or index_bytes_max"),
}


def fault_of(error: InvalidInput) -> Fault:
    return Fault(error.code, str(error)[:DETAIL_CHARACTERS_MAX])
