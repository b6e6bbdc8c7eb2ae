"""JSON Schemas of what a request may hold, for OpenAPI: made from the attribute schema and the settings, so that the
document at /docs names this service's own attributes, fields, widths and limits."""

from __future__ import annotations

from typing import Any

from api.config import Settings
from api.requests import CAP_FIELDS, K_DEFAULT, OFFSET_MAX, PATHWAY_NAME_CHARACTERS_MAX, RANKINGS, WAIT_MS_DEFAULT
from gpu_index.json_input import INTEGER_MAX, INTEGER_MIN
from gpu_index.schema import Attribute, Kind, Schema
from gpu_index.zones import zone_names
from scoring.request import K_MAX, PATHWAYS_MAX

Json = dict[str, Any]

FLOAT32_BEYOND = float(2**128 - 2**103)  # the smallest number that float32 rounds to infinity
FLOAT64_MAX = 1.7976931348623157e308
VERSION_PATTERN = r"^[0-9]{1,18}(\.[0-9]{1,18}){0,15}$"

NULL = {"type": "null"}


def reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def one_of_these(*schemas: Json, **more: Any) -> Json:
    return {"anyOf": list(schemas), **more}


def closed(properties: Json, required: tuple[str, ...] = (), **more: Any) -> Json:
    """An object that has no other members than these."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False, **more}


def request_schemas(schema: Schema, settings: Settings, with_model: bool) -> Json:
    """The components that the bodies of retrieval refer to."""
    return {
        "Attributes": closed(
            {
                attribute.name: attribute_values(attribute)
                for attribute in schema.attribute_list
                if attribute.kind is not Kind.HOUR_OF_WEEK
            },
            description="What is known of the user and the place. Null or an empty list is: not carried.",
        ),
        "TimeZone": {"type": "string", "enum": sorted(zone_names()), "description": "An IANA zone."},
        "Filter": filter_schema(schema),
        "User": user_schema(settings, with_model),
        "RankBy": {"type": "string", "enum": list(RANKINGS)},
        "Pathway": closed(
            {
                "name": {"type": "string", "minLength": 1, "maxLength": PATHWAY_NAME_CHARACTERS_MAX},
                **shared_fields(),
                "filter": one_of_these(reference("Filter"), NULL),
            },
            ("name",),
            description="A ranked list of its own. What it does not give is the request's; its filter is in addition.",
        ),
        "RetrievalRequest": request_schema(settings),
    }


def request_schema(settings: Settings) -> Json:
    properties: Json = {
        "attributes": one_of_these(reference("Attributes"), NULL),
        "timezone": one_of_these(reference("TimeZone"), NULL, description="The user's."),
        "context": {"type": ["object", "null"], "description": "The serving context, for a model."},
        **shared_fields(),
        **retrieval_fields(settings),
    }
    return closed(properties, description="Every field may be left out, and null leaves it out.")


def shared_fields() -> Json:
    """What a request and a pathway have alike."""
    return {
        "user": one_of_these(reference("User"), NULL, description="Without one every score is 0.5."),
        "k": {"type": ["integer", "null"], "minimum": 1, "maximum": K_MAX, "description": f"{K_DEFAULT} if not given."},
        "rank_by": one_of_these(reference("RankBy"), NULL, description="`value` (score times bid) if not given."),
    }


def retrieval_fields(settings: Settings) -> Json:
    """Mirach's own parameters, which an OpenRTB request gives too."""
    fields: Json = {
        "max_per": {
            "type": ["object", "null"],
            "properties": {
                name: {"type": ["integer", "null"], "minimum": 1, "maximum": OFFSET_MAX} for name in CAP_FIELDS
            },
            "additionalProperties": False,
            "description": "Most results of one advertiser or campaign, over all pathways.",
        },
        "exclude_ads": {"type": ["array", "null"], "items": {"type": "string"}},
        "filter": one_of_these(reference("Filter"), NULL, description="What is asked of the ads themselves."),
        "pathways": {
            "type": ["array", "null"],
            "items": reference("Pathway"),
            "minItems": 1,
            "maxItems": PATHWAYS_MAX,
            "description": "Ranked lists with different names, filled in this order; no ad is in two of them.",
        },
        "min_offsets": {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
            "additionalProperties": {"type": ["integer", "null"], "minimum": 0, "maximum": OFFSET_MAX},
            "description": "By partition, the offset up to which the answer must include every event; "
            "a partition that the topic does not have is an error.",
        },
        "wait_ms": {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": settings.wait_ms_max,
            "description": f"How long to wait for `min_offsets`; {WAIT_MS_DEFAULT} if not given.",
        },
    }
    if settings.allow_now:
        fields["now"] = {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "Decides in place of the clock.",
        }
    return fields


def user_schema(settings: Settings, with_model: bool) -> Json:
    """Experts with their gates: as many gates and biases as experts, which a schema says number by number."""
    number = {"type": "number", "exclusiveMinimum": -FLOAT32_BEYOND, "exclusiveMaximum": FLOAT32_BEYOND}

    def exactly(count: int, items: Json) -> Json:
        return {"type": "array", "items": items, "minItems": count, "maxItems": count}

    variants = [
        closed(
            {
                "experts": exactly(experts, exactly(settings.dim, number)),
                "gates": one_of_these(exactly(experts, exactly(settings.gate_dim, number)), NULL),
                "gate_bias": one_of_these(exactly(experts, number), NULL),
                "features": NULL,
            },
            ("experts",),
            title=f"{experts} expert{'s' if experts > 1 else ''}",
        )
        for experts in range(1, settings.experts + 1)
    ]
    if with_model:
        told = {"features": {"type": "object", "additionalProperties": True}}
        none = dict.fromkeys(("experts", "gates", "gate_bias"), NULL)
        variants.insert(0, closed({**told, **none}, ("features",), title="features, for the model"))
    return one_of_these(*variants, description="The user's vectors; gates and gate_bias are zeros if not given.")


def attribute_values(attribute: Attribute) -> Json:
    """The values that a request may carry for one attribute."""
    bounds = {"minimum": INTEGER_MIN, "maximum": INTEGER_MAX}
    if not attribute.clamp:
        if attribute.minimum is not None:
            bounds["minimum"] = attribute.minimum
        if attribute.maximum is not None:
            bounds["maximum"] = attribute.maximum
    value = value_schema(attribute.kind, bounds)
    if attribute.kind in (Kind.CATEGORY, Kind.INTEGER):
        return one_of_these(value, {"type": "array", "items": value}, NULL)
    return one_of_these(value, NULL)


def value_schema(kind: Kind, integer_bounds: Json | None = None) -> Json:
    """One value of a kind."""
    match kind:
        case Kind.CATEGORY:
            return {"type": "string"}
        case Kind.INTEGER:
            return {"type": "integer", **(integer_bounds or {"minimum": INTEGER_MIN, "maximum": INTEGER_MAX})}
        case Kind.NUMBER:
            return {"type": "number", "minimum": -FLOAT64_MAX, "maximum": FLOAT64_MAX}
        case Kind.VERSION:
            return {"type": "string", "pattern": VERSION_PATTERN, "examples": ["17.0.1"]}
        case Kind.BOOLEAN:
            return {"type": "boolean"}
        case Kind.GEO_POINT:
            latitude = {"type": "number", "minimum": -90, "maximum": 90}
            longitude = {"type": "number", "minimum": -180, "maximum": 180}
            return closed({"lat": latitude, "lon": longitude}, ("lat", "lon"))
        case Kind.HOUR_OF_WEEK:
            return {"type": "integer", "minimum": 0, "maximum": 167}


PREDICATES: dict[Kind, tuple[str, ...]] = {
    Kind.CATEGORY: ("in",),
    Kind.INTEGER: ("in", "between"),
    Kind.NUMBER: ("between",),
    Kind.VERSION: ("in", "between"),
    Kind.BOOLEAN: ("is",),
}


def filter_schema(schema: Schema) -> Json:
    """The targeting language over this schema's ad fields."""
    inner = reference("Filter")
    children = {"type": "array", "items": inner}
    nodes = [closed({"all": children}, ("all",)), closed({"any": children}, ("any",)), closed({"not": inner}, ("not",))]
    for kind, predicates in PREDICATES.items():
        names = [field.name for field in schema.field_list if field.kind is kind]
        value = value_schema(kind)
        shapes = {
            "in": {"type": "array", "items": value},
            "between": {
                "type": "array",
                "items": one_of_these(value, NULL),
                "minItems": 2,
                "maxItems": 2,
                "description": "Inclusive bounds; null is open.",
            },
            "is": value,
        }
        nodes += [
            closed({"field": {"type": "string", "enum": names}, predicate: shapes[predicate]}, ("field", predicate))
            for predicate in predicates
            if names
        ]
    return one_of_these(
        *nodes,
        description="True or false of an ad. At most 1,000 leaves and 32 levels.",
        examples=[{"field": "bid", "between": [0.5, None]}],
    )
