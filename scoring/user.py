"""The user's side of the score: what a request brings, checked, and packed for the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpu_index.invalid_input import InvalidInput, nearest, shown, step
from kernels.precision import Precision
from kernels.score import EXPERTS_MAX, PackedUsers, pack_vectors, packed_dtype, packed_shape, padded_columns

FIELDS = ("experts", "gates", "gate_bias", "features")
FLOAT32_MAX = float(np.finfo(np.float32).max)
TOLD = ("history", "surfaces", "cohort", "semantic", "context")  # the parts of what a request tells a model


class User(msgspec.Struct, frozen=True, eq=False):
    """E experts with their gates, and what a model adds: contract section 4."""

    experts: NDArray[np.float32]  # [E, D]
    gates: NDArray[np.float32]  # [E, G]
    gate_bias: NDArray[np.float32]  # [E]
    temperature: float
    bias: float
    route: int  # experts that take part, 1 .. E
    understood: NDArray[np.int64] | None = None  # [part of TOLD, 2] values told that the model knew, and did not


def understood_figures(understood: NDArray[np.int64]) -> dict[str, dict[str, int]]:
    """[part of TOLD, 2] as JSON types."""
    counts = zip(TOLD, understood.tolist(), strict=True)
    return {part: {"known": known, "unknown": unknown} for part, (known, unknown) in counts}


class UserFeatures(msgspec.Struct, frozen=True, eq=False):
    """What a request tells of a user, for the model's towers to make a User of."""

    features: dict[str, Any]
    place: str = "user"  # in the request


def parse_user(
    raw: object, dim: int, gate_dim: int, experts_max: int, path: str = "user", *, with_model: bool = False
) -> User | UserFeatures:
    """The user of a request: 1 to `experts_max` experts of width `dim`, gates of width `gate_dim` and a gate bias where
    given, else zeros; or, with a model, features. Raises InvalidInput with the path of the fault."""
    try:
        return _parse(raw, dim, gate_dim, experts_max, with_model)
    except InvalidInput as fault:
        raise fault.under(path) from None


def _parse(raw: object, dim: int, gate_dim: int, experts_max: int, with_model: bool) -> User | UserFeatures:
    if type(raw) is not dict:
        raise InvalidInput("", f'a user is an object such as {{"experts": [[…]]}}, not {shown(raw)}', "wrong_type")
    for name in raw:
        if name not in FIELDS:
            detail = f"a user has no field {shown(name)}{nearest(str(name), FIELDS)}"
            raise InvalidInput(step(str(name)), detail, "unknown_field")
    features, given = raw.get("features"), raw.get("experts")
    if features is not None:
        if not with_model:
            detail = "features need a model and this service has none: send the user's vectors as experts"
            raise InvalidInput("features", detail, "no_model")
        return _features(features, raw)
    if given is None:
        needed = f"experts: 1 to {experts_max} vectors of width {dim}"
        what = f"features, or {needed}" if with_model else needed
        raise InvalidInput("features" if with_model else "experts", f"a user needs {what}", "missing")
    experts = _vectors(given, dim, "experts")
    count = len(experts)
    if not 1 <= count <= experts_max:
        raise InvalidInput("experts", f"there are {count} experts, not 1 to {experts_max}", "out_of_range")
    gates, gate_bias = np.zeros((count, gate_dim), np.float32), np.zeros(count, np.float32)
    if raw.get("gates") is not None:
        gates = _vectors(raw["gates"], gate_dim, "gates")
        if len(gates) != count:
            raise InvalidInput("gates", f"there are {len(gates)} gates for {count} experts", "wrong_width")
    if raw.get("gate_bias") is not None:
        gate_bias = _vector(raw["gate_bias"], count, "gate_bias", "one for each expert")
    return User(experts, gates, gate_bias, temperature=1.0, bias=0.0, route=count)


def _features(features: object, user: dict[str, object]) -> UserFeatures:
    for name in ("experts", "gates", "gate_bias"):
        if user.get(name) is not None:
            detail = f"a user has features, of which the model makes vectors, or {name} of its own, not both"
            raise InvalidInput(name, detail, "not_both")
    if type(features) is not dict:
        raise InvalidInput("features", f"features are an object, not {shown(features)}", "wrong_type")
    return UserFeatures(features)


def _vectors(raw: object, width: int, path: str) -> NDArray[np.float32]:
    if type(raw) is not list:
        raise InvalidInput(path, f"a list of vectors is needed, not {shown(raw)}", "wrong_type")
    if len(raw) > EXPERTS_MAX:  # before the work of reading them
        raise InvalidInput(path, f"there are {len(raw)} vectors, more than {EXPERTS_MAX}", "out_of_range")
    at_once = _all_at_once(raw, width)
    if at_once is not None:
        return at_once
    vectors = np.empty((len(raw), width), np.float32)
    for i, row in enumerate(raw):
        vectors[i] = _vector(row, width, f"{path}[{i}]", "the width of the index")
    return vectors


def _vector(raw: object, width: int, path: str, why: str) -> NDArray[np.float32]:
    if type(raw) is not list:
        raise InvalidInput(path, f"a list of {width} numbers is needed, not {shown(raw)}", "wrong_type")
    if len(raw) != width:
        raise InvalidInput(path, f"{len(raw)} numbers where {width} are needed ({why})", "wrong_width")
    return np.array([_number(value, f"{path}[{i}]") for i, value in enumerate(raw)], np.float32)


def _all_at_once(raw: list[object], width: int) -> NDArray[np.float32] | None:
    """Good vectors the quick way; None if anything at all is to be looked at."""
    if not all(type(row) is list and len(row) == width for row in raw):
        return None
    if not set(map(type, chain.from_iterable(raw))) <= {float, int}:  # type: ignore[arg-type]
        return None
    try:
        wide = np.array(raw, np.float64).reshape(len(raw), width)
    except OverflowError:
        return None
    return wide.astype(np.float32) if (np.abs(wide) <= FLOAT32_MAX).all() else None


def _number(raw: object, path: str) -> float:
    """A JSON number as a float32. The slow way, which knows what to say."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise InvalidInput(path, f"a number is needed, not {shown(raw)}", "wrong_type")
    with np.errstate(over="ignore"):
        value = float(np.float32(max(min(raw, 1e308), -1e308)))
    if not np.isfinite(value):
        raise InvalidInput(path, f"{shown(raw)} is beyond float32, whose largest is {FLOAT32_MAX:.4g}", "out_of_range")
    return value


def pack(users: Sequence[User], precision: Precision) -> PackedUsers:
    """Users of one D and one G, in the kernels' layout for ads stored in `precision`."""
    dim, gate_dim = users[0].experts.shape[1], users[0].gates.shape[1]
    columns = padded_columns(max(len(user.experts) for user in users))
    dtype, shape = packed_dtype(precision), (len(users), columns)
    packed = PackedUsers(
        experts=np.zeros((len(users), *packed_shape(dim, columns, precision)), dtype),
        gates=np.zeros((len(users), *packed_shape(gate_dim, columns, precision)), dtype),
        expert_factor=np.zeros(shape), gate_factor=np.zeros(shape), gate_bias=np.zeros(shape),
        bias=np.array([user.bias for user in users], np.float64),
        expert_count=np.array([len(user.experts) for user in users], np.int64),
        route=np.array([user.route for user in users], np.int64),
    )  # fmt: skip
    for i, user in enumerate(users):
        count = len(user.experts)
        assert user.experts.shape == (count, dim), user.experts.shape
        assert user.gates.shape == (count, gate_dim), user.gates.shape
        packed.expert_factor[i, :count] = pack_vectors(user.experts, precision, packed.experts[i]) * user.temperature
        packed.gate_factor[i, :count] = pack_vectors(user.gates, precision, packed.gates[i]) / math.sqrt(gate_dim)
        packed.gate_bias[i, :count] = user.gate_bias
    return packed
