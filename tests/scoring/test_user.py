"""A request's user: what is taken, and what is said of the rest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gpu_index.values import InvalidInput
from kernels.precision import Precision
from kernels.score import int16_max, packed_shape
from scoring.user import User, pack, parse_user

DIM, GATE_DIM, EXPERTS = 3, 2, 4


def parse(raw: object) -> User:
    return parse_user(raw, DIM, GATE_DIM, EXPERTS)


def test_experts_alone_are_a_plain_mean() -> None:
    user = parse({"experts": [[1, 2.5, -3], [0.1, 1e-45, 3.4e38]]})
    assert user.experts.dtype == np.float32
    assert np.array_equal(user.experts, np.array([[1, 2.5, -3], [0.1, 1e-45, 3.4e38]], np.float32))
    assert user.gates.shape == (2, GATE_DIM)
    assert not user.gates.any()
    assert not user.gate_bias.any()
    assert (user.temperature, user.bias, user.route) == (1.0, 0.0, 2)


def test_gates_and_their_bias() -> None:
    user = parse({"experts": [[1, 2, 3], [4, 5, 6]], "gates": [[1, 2], [3, 4]], "gate_bias": [0.5, -1]})
    assert np.array_equal(user.gates, [[1, 2], [3, 4]])
    assert np.array_equal(user.gate_bias, [0.5, -1])


def test_null_is_the_same_as_absent() -> None:
    user = parse({"experts": [[1, 2, 3]], "gates": None, "gate_bias": None, "features": None})
    assert user.experts.shape == (1, DIM)


def test_the_most_experts_and_one_more() -> None:
    assert parse({"experts": [[1, 2, 3]] * EXPERTS}).route == EXPERTS
    with pytest.raises(InvalidInput, match="there are 5 experts, not 1 to 4"):
        parse({"experts": [[1, 2, 3]] * (EXPERTS + 1)})


GOOD = [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("raw", "path", "code"),
    [
        (None, "user", "wrong_type"),
        ([], "user", "wrong_type"),
        ("user", "user", "wrong_type"),
        ({}, "user.experts", "missing"),
        ({"experts": None}, "user.experts", "missing"),
        ({"gates": [[1, 2]]}, "user.experts", "missing"),
        ({"experts": []}, "user.experts", "out_of_range"),
        ({"experts": [[1, 2, 3]] * 100_000}, "user.experts", "out_of_range"),
        ({"experts": {}}, "user.experts", "wrong_type"),
        ({"experts": [1, 2, 3]}, "user.experts[0]", "wrong_type"),
        ({"experts": [[1, 2]]}, "user.experts[0]", "wrong_width"),
        ({"experts": [[1, 2, 3], [1, 2, 3, 4]]}, "user.experts[1]", "wrong_width"),
        ({"experts": [[1, 2, 3], []]}, "user.experts[1]", "wrong_width"),
        ({"experts": [[1, True, 3]]}, "user.experts[0][1]", "wrong_type"),
        ({"experts": [[1, None, 3]]}, "user.experts[0][1]", "wrong_type"),
        ({"experts": [[1, "2", 3]]}, "user.experts[0][1]", "wrong_type"),
        ({"experts": [[1, [2], 3]]}, "user.experts[0][1]", "wrong_type"),
        ({"experts": [[1, 2, 3.5e38]]}, "user.experts[0][2]", "out_of_range"),
        ({"experts": [[1, 2, -1e300]]}, "user.experts[0][2]", "out_of_range"),
        ({"experts": [[1, 2, 10**400]]}, "user.experts[0][2]", "out_of_range"),
        ({"experts": [[1, 2, float("nan")]]}, "user.experts[0][2]", "out_of_range"),
        ({"experts": [[1, 2, float("-inf")]]}, "user.experts[0][2]", "out_of_range"),
        ({"experts": GOOD, "gates": []}, "user.gates", "wrong_width"),
        ({"experts": GOOD, "gates": [[1, 2], [1, 2]]}, "user.gates", "wrong_width"),
        ({"experts": GOOD, "gates": [[1]]}, "user.gates[0]", "wrong_width"),
        ({"experts": GOOD, "gates": 7}, "user.gates", "wrong_type"),
        ({"experts": GOOD, "gate_bias": [1, 2]}, "user.gate_bias", "wrong_width"),
        ({"experts": GOOD, "gate_bias": 1}, "user.gate_bias", "wrong_type"),
        ({"experts": GOOD, "gate_bias": [1e39]}, "user.gate_bias[0]", "out_of_range"),
        ({"experts": GOOD, "expert": 1}, "user.expert", "unknown_field"),
        ({"experts": GOOD, "a b": 1}, 'user."a b"', "unknown_field"),
        ({"features": {}}, "user.features", "no_model"),
        ({"experts": GOOD, "features": {"x": 1}}, "user.features", "no_model"),
    ],
)
def test_what_is_wrong_and_where(raw: Any, path: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(raw)
    assert (caught.value.path, caught.value.code) == (path, code)
    assert len(caught.value.detail) > 10
    assert len(str(caught.value)) < 300


def test_the_path_of_a_pathways_user_is_its_own() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_user({}, DIM, GATE_DIM, EXPERTS, path="pathways[2].user")
    assert caught.value.path == "pathways[2].user.experts"


@pytest.mark.parametrize("value", [3.4028234e38, 3.4028235e38, -3.4028235e38, 1e-50, -0.0])
def test_the_ends_of_float32_are_in(value: float) -> None:
    for others in ([1.0, 2.0], [1, 2]):
        assert np.isfinite(parse({"experts": [[value, *others]]}).experts).all()


def test_numbers_of_any_json_reader_are_read_alike() -> None:
    class Inexact(float):
        pass

    for spelling in ("[1, 2, 3]", "[1.0, 2e0, 3]"):
        assert np.array_equal(parse({"experts": [json.loads(spelling)]}).experts, [[1, 2, 3]])
    assert np.array_equal(parse({"experts": [[Inexact(1), 2, 3]]}).experts, [[1, 2, 3]])


def test_users_of_one_batch_are_packed_to_the_widest() -> None:
    users = [parse({"experts": [[1, 2, 3]] * count}) for count in (1, 4, 2)]
    for precision in Precision:
        packed = pack(users, precision)
        assert packed.experts.shape == (3, *packed_shape(DIM, 4, precision))
        assert packed.expert_count.tolist() == packed.route.tolist() == [1, 4, 2]
        assert not packed.experts[0, :, 1:].any()


@pytest.mark.parametrize("dim", [1, 16, 64, 516, 517, 1024])
def test_packed_integers_cannot_overflow_a_sum(dim: int) -> None:
    assert dim * 127 * int16_max(dim) < 2**31
    assert int16_max(dim) >= 2**14  # fourteen bits and a sign at the least
    users = [User(np.ones((1, dim), np.float32), np.zeros((1, 1), np.float32), np.zeros(1, np.float32), 1.0, 0.0, 1)]
    packed = pack(users, Precision.INT8)
    assert packed.experts.view(np.int16).max() == int16_max(dim)
    assert packed.expert_factor[0, 0] * int16_max(dim) == pytest.approx(1.0)
