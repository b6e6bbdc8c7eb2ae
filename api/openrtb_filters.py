"""What an OpenRTB exchange forbids, as filters on ad fields: for the whole request, and for each imp its own.

An ad fits an imp if one of its formats is one that the imp offers and, in that format, it breaks no rule: a banner has
one of the sizes, and none of the creative attributes is blocked there. An ad without a field that a fit needs does not
fit; one without a field that is only blocked by its values is not blocked.
"""

from __future__ import annotations

from api.categories import IAB_CONTENT_1_0, covered
from api.openrtb_read import Json, integer, integers, number, object_at, objects, text, texts, wrong_type
from gpu_index.invalid_input import InvalidInput, shown
from gpu_index.schema import Kind, Schema

FORMATS = ("banner", "video", "audio", "native")
FIELDS = {
    "format": Kind.CATEGORY,
    "size": Kind.CATEGORY,
    "categories": Kind.CATEGORY,
    "advertiser_domain": Kind.CATEGORY,
    "app_bundle": Kind.CATEGORY,
    "creative_attributes": Kind.INTEGER,
    "language": Kind.CATEGORY,
    "bid": Kind.NUMBER,
}
FLOOR_CURRENCY_DEFAULT = "USD"  # of OpenRTB


class Filters:
    """Makes filters for one schema and the currency of its ads' bids."""

    def __init__(self, schema: Schema, currency: str) -> None:
        self._schema = schema
        self._currency = currency

    def of_request(self, request: Json) -> list[Json]:
        """The conditions that hold for every imp."""
        conditions: list[Json] = []
        taxonomy = IAB_CONTENT_1_0 if request.get("cattax") is None else integer(request["cattax"], "cattax")
        blocked = covered(_texts(request, "bcat"), taxonomy)
        allowed = covered(_texts(request, "acat"), taxonomy)
        domains = _in_any_case(_texts(request, "badv"))
        languages = _in_any_case(_texts(request, "wlang") + _texts(request, "wlangb"))
        for field, values, path in (
            ("categories", blocked, "bcat"),
            ("advertiser_domain", domains, "badv"),
            ("app_bundle", _texts(request, "bapp"), "bapp"),
        ):
            if values:
                conditions.append({"not": self._listed(field, values, path)})
        if allowed:
            conditions.append(self._listed("categories", allowed, "acat"))
        if languages:
            conditions.append(self._listed("language", languages, "wlang"))
        return conditions

    def of_imp(self, imp: Json, path: str) -> list[Json]:
        """The conditions of one imp: its floor, and its formats with what each of them allows."""
        conditions: list[Json] = []
        floor = 0.0 if imp.get("bidfloor") is None else number(imp["bidfloor"], f"{path}.bidfloor")
        if floor > 0:
            self._check_currency(imp, path)
            conditions.append({"field": "bid", "between": [floor, None]})
        open_formats: list[str] = []
        clauses: list[Json] = []
        for name in FORMATS:
            if imp.get(name) is None:
                continue
            rules = self._rules(name, object_at(imp, name, f"{path}.{name}"), f"{path}.{name}")
            if rules:
                clauses.append({"all": [self._listed("format", [name], path), *rules]})
            else:
                open_formats.append(name)
        if open_formats:
            clauses.append(self._listed("format", open_formats, path))
        if not clauses:
            raise InvalidInput(path, f"an imp offers at least one of {', '.join(FORMATS)}; this one none", "missing")
        conditions.append(clauses[0] if len(clauses) == 1 else {"any": clauses})
        return conditions

    def _rules(self, name: str, offered: Json, path: str) -> list[Json]:
        """What an ad of one format must be beyond being of it."""
        rules: list[Json] = []
        sizes = _sizes(offered, path) if name == "banner" else []
        if sizes:
            rules.append(self._listed("size", sizes, path))
        blocked = [] if offered.get("battr") is None else integers(offered["battr"], f"{path}.battr")
        if blocked:
            rules.append({"not": self._listed("creative_attributes", blocked, f"{path}.battr")})
        return rules

    def _check_currency(self, imp: Json, path: str) -> None:
        given = imp.get("bidfloorcur")
        currency = FLOOR_CURRENCY_DEFAULT if given is None else text(given, f"{path}.bidfloorcur")
        if currency.upper() != self._currency.upper():
            stated = "" if given is not None else ", which is OpenRTB's where none is given"
            raise InvalidInput(
                f"{path}.bidfloorcur",
                f"the floor is in {shown(currency)}{stated}, but bids and floors here are in {self._currency} "
                "(setting currency): convert it before it is sent",
                "other_currency",
            )

    def _listed(self, field: str, values: list[str] | list[int], path: str) -> Json:
        """`values` of a field; raises InvalidInput if the schema has no such field, so that ads could not say."""
        declared = self._schema.fields.get(field)
        if declared is None or declared.kind is not FIELDS[field]:
            detail = f"the schema declares no ad field {shown(field)} of type {FIELDS[field]}, by which this is decided"
            raise InvalidInput(path, detail, "unknown_field")
        return {"field": field, "in": list(dict.fromkeys(values))}


def _in_any_case(values: list[str]) -> list[str]:
    """Values whose case means nothing: as they are written, and in lower case, as ads have them."""
    return values + [value.lower() for value in values]


def _texts(parent: Json, name: str) -> list[str]:
    return [] if parent.get(name) is None else texts(parent[name], name)


def _sizes(banner: Json, path: str) -> list[str]:
    """Every `w`×`h` of a banner and of its formats. Flexible formats (ratios) name no size."""
    found = [_size(banner, path)]
    found += [_size(each, place) for each, place in objects(banner.get("format"), f"{path}.format")]
    return [size for size in found if size is not None]


def _size(raw: Json, path: str) -> str | None:
    sides = []
    for name in ("w", "h"):
        side = 0 if raw.get(name) is None else integer(raw[name], f"{path}.{name}")
        if side < 0:
            raise wrong_type(f"{path}.{name}", "at least 0", side)
        sides.append(side)
    return f"{sides[0]}x{sides[1]}" if all(sides) else None
