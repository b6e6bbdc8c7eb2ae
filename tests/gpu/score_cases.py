"""Scores of the CUDA kernels against the float64 reference and against the CPU's kernel."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, uint32, uint64
from numpy.typing import NDArray

from kernels.cuda.raw import read_f32, store_f32
from kernels.cuda.rows import load_rows
from kernels.cuda.score import TOLERANCE, scorer, tolerance
from kernels.cuda.types import Device, UserVectors
from kernels.cuda.users import Layout, pack_users, tiles_of
from kernels.precision import Precision
from kernels.score import score as score_on_cpu
from scoring.reference import score_parts, sigmoid
from tests.gpu.ads import Ads, make_ads, random_ads, random_user, served, upload, vectors_of
from tests.gpu.cases import case, cases_of

HAS_CPU_TWIN = importlib.util.find_spec("msgspec") is not None  # which the CPU's users are made with
COUNT = 64  # ads, two warps of them
INT8, FLOAT16, FLOAT32 = Precision.INT8, Precision.FLOAT16, Precision.FLOAT32


@cache
def score_kernel(layout: Layout) -> Any:
    """Scores every ad: warp w those from 32 w on."""
    score = scorer(layout)
    load, load_gate = (load_rows(bytes_, layout.precision) for bytes_ in (layout.row_bytes, layout.gate_row_bytes))
    row_bytes, gate_row_bytes = layout.row_bytes, layout.gate_row_bytes

    @cuda.jit
    def score_all(embedding: Any, scale: Any, gate: Any, gate_scale: Any, user: Any, out: Any, zero: Any) -> None:
        ad = uint64(cuda.grid(1))
        four = ad & uint64(0xFFFFFFFFFFFFFFFC)
        a, b = embedding + four * uint64(row_bytes), gate + four * uint64(gate_row_bytes)
        one, other = uint64(row_bytes), uint64(gate_row_bytes)
        rows = load((a, a + one, a + uint64(2) * one, a + uint64(3) * one), uint32(zero))
        gate_rows = load_gate((b, b + other, b + uint64(2) * other, b + uint64(3) * other), uint32(zero))
        store_f32(out, ad, score(rows, gate_rows, read_f32(scale, ad), read_f32(gate_scale, ad), user))

    return score_all


def scores_of(device: Device, ads: Ads, user: UserVectors, tiles: int | None = None) -> NDArray[np.float32]:
    layout = Layout(ads.dim, ads.gate_dim, ads.precision, tiles or tiles_of(len(user.experts)))
    assert ads.count % 32 == 0
    out = upload(device, np.full(ads.count, np.nan, np.float32))
    record = upload(device, pack_users([user], layout)[0])
    device.launch(
        score_kernel(layout), ads.count // 32, 32, (*(upload(device, c) for c in ads.columns), record, out, 0)
    )
    return device.download(out)


def assert_right(got: NDArray[np.float32], ads: Ads, user: UserVectors) -> None:
    """`got` lies where y within its tolerance puts it."""
    embedding, gate = vectors_of(ads)
    packed = served(user, ads.precision)
    parts = score_parts(packed, embedding, gate)  # type: ignore[arg-type]
    U, K = packed.experts.astype(np.float64), packed.gates.astype(np.float64)
    summed = np.abs(embedding @ U.T) if ads.precision is INT8 else np.abs(embedding) @ np.abs(U).T
    logits = (np.abs(gate) @ np.abs(K).T).max(axis=1) / np.sqrt(ads.gate_dim)
    slack = tolerance(abs(user.temperature) * summed.max(axis=1), logits, user.bias, ads.precision)
    low, high = sigmoid(parts.y - slack), sigmoid(parts.y + slack)
    wrong = ~((low * (1 - TOLERANCE) - 1e-37 <= got) & (got <= high * (1 + TOLERANCE) + 1e-37))
    assert not wrong.any(), (np.flatnonzero(wrong)[:5], got[wrong][:5], parts.score[wrong][:5], parts.y[wrong][:5])


def assert_as_on_cpu(got: NDArray[np.float32], ads: Ads, user: UserVectors, difference_max: float) -> None:
    if not HAS_CPU_TWIN:
        return  # on a machine where nothing can be installed; `on_device` says so
    from scoring.user import User, pack

    out = np.full(ads.count, np.nan)
    slots = np.arange(ads.count, dtype=np.uint32)
    score_on_cpu(ads.columns, slots, np.array([0, ads.count]), pack([User(*user)], ads.precision), out)
    assert np.abs(got - out).max() < difference_max


@cases_of(
    "scores",
    [(INT8, 32, 8, 1, 1), (INT8, 64, 16, 4, 4), (INT8, 96, 24, 7, 3), (INT8, 128, 32, 8, 8), (INT8, 256, 64, 16, 5),
     (INT8, 128, 64, 16, 16), (INT8, 37, 11, 3, 2), (FLOAT16, 32, 8, 2, 1), (FLOAT16, 64, 64, 8, 8),
     (FLOAT16, 96, 16, 9, 9), (FLOAT16, 128, 32, 8, 4), (FLOAT16, 256, 24, 16, 16), (FLOAT32, 32, 8, 8, 8),
     (FLOAT32, 64, 16, 3, 2), (FLOAT32, 96, 40, 12, 12), (FLOAT32, 128, 32, 8, 8), (FLOAT32, 25, 9, 5, 5)],
)  # fmt: skip
def check_scores(device: Device, precision: Precision, dim: int, gate_dim: int, experts: int, route: int) -> None:
    rng = np.random.default_rng(dim * 100 + experts)
    ads, user = random_ads(rng, precision, COUNT, dim, gate_dim), random_user(rng, dim, gate_dim, experts, route)
    got = scores_of(device, ads, user)
    assert_right(got, ads, user)
    assert_as_on_cpu(got, ads, user, 1e-5)


@case
def check_an_ad_scores_the_same_in_every_lane(device: Device) -> None:
    """One ad in all lanes, beside itself and others; with as many experts in the batch as its user has, or more."""
    rng = np.random.default_rng(5)
    for precision, dim, gate_dim in ((INT8, 128, 32), (FLOAT16, 64, 64), (FLOAT32, 32, 8)):
        for route in (8, 3):
            user = random_user(rng, dim, gate_dim, 8, route)
            vectors, gates = rng.normal(size=(COUNT, dim)), rng.normal(size=(COUNT, gate_dim))
            vectors[::3], gates[::3] = vectors[0], gates[0]
            ads = make_ads(
                precision,
                vectors.astype(np.float32),
                gates.astype(np.float32),
                np.ones(COUNT),
                np.zeros(COUNT, np.uint64),
            )
            got = scores_of(device, ads, user)
            assert (got[::3] == got[0]).all(), (precision, route, np.unique(got[::3]))
            if precision is INT8:
                assert (scores_of(device, ads, user, tiles=2) == got).all()


@case
def check_int8_routes_as_the_cpu_does(device: Device) -> None:
    """Gates that are equal, or differ in their last bits: ties go to the lower number, near ties as on the CPU."""
    rng = np.random.default_rng(11)
    ads = random_ads(rng, INT8, 256, 64, 16)
    user = random_user(rng, 64, 16, 8, 3)
    gates = np.repeat(user.gates[:2], 4, axis=0)
    gates[::3] *= np.float32(1 + 2.0**-20)
    for route in (1, 3, 5, 7):
        tied = user._replace(gates=gates, gate_bias=np.zeros(8, np.float32), route=route)
        assert_as_on_cpu(scores_of(device, ads, tied), ads, tied, 1e-6)
    equal = user._replace(gates=np.zeros((8, 16), np.float32), gate_bias=np.zeros(8, np.float32), route=2)
    only_two = equal._replace(experts=equal.experts[:2], gates=equal.gates[:2], gate_bias=equal.gate_bias[:2])
    assert (scores_of(device, ads, equal) == scores_of(device, ads, only_two)).all()


_EXTREMES = (1e38, 1e30, 1e10, 100.0, 1.0, 1e-10, 1e-30, 0.0)


@cases_of("extremes", [(INT8,), (FLOAT16,), (FLOAT32,)])
def check_extremes(device: Device, precision: Precision) -> None:
    """Magnitudes of every part from 0 to the largest: no NaN, and right within the tolerance."""
    rng = np.random.default_rng(17)

    def draw(magnitude: float, *shape: int) -> NDArray[np.float32]:
        return (rng.uniform(-3.4, 3.4, shape) * magnitude).astype(np.float32)

    for trial in range(24):
        e, q, u, k, c, b = rng.choice(_EXTREMES, 6)
        if precision is FLOAT32 and e == 1e-30:
            e = 1e-20  # products of such elements are denormal
        ads = make_ads(precision, draw(e, COUNT, 64), draw(q, COUNT, 16), np.ones(COUNT), np.zeros(COUNT, np.uint64))
        route = 8 if precision is not INT8 or trial % 2 else 3
        user = UserVectors(draw(u, 8, 64), draw(k, 8, 16), draw(c, 8), float(draw(1)), float(draw(b)), route)
        got = scores_of(device, ads, user)
        assert np.isfinite(got).all(), (e, q, u, k, c, b)
        assert_right(got, ads, user)


@cases_of("close", [(INT8,), (FLOAT16,), (FLOAT32,)])
def check_large_logits_that_are_close(device: Device, precision: Precision) -> None:
    """Logits of some 10,000 that differ by some 1: in float32 their differences would be wrong by a thousandth."""
    rng = np.random.default_rng(23)
    ads = random_ads(rng, precision, COUNT, 32, 16)
    gates = rng.normal(size=16) * 2e4 + rng.normal(size=(8, 16)) * 2
    user = random_user(rng, 32, 16, 8)._replace(gates=gates.astype(np.float32))
    far = user._replace(gates=user.gates / np.float32(1e4), gate_bias=user.gate_bias + np.float32(1e4))
    for each in (user, far):
        assert_right(scores_of(device, ads, each), ads, each)


@cases_of("edges", [(INT8,), (FLOAT16,), (FLOAT32,)])
def check_edges(device: Device, precision: Precision) -> None:
    """The largest sums of all, zeros, and elements 2^29 times smaller than the largest of their row."""
    largest, n = np.finfo(np.float32).max, 64
    full, zeros = np.full((32, n), largest, np.float32), np.zeros((32, n), np.float32)
    tiny = np.full((32, n), 2.0**-29, np.float32)
    tiny[:, 0] = 1
    one, tie = np.ones(96), np.zeros(96, np.uint64)
    ads = make_ads(
        precision, np.concatenate([full, zeros, tiny]), np.concatenate([full, zeros, tiny])[:, :16], one, tie
    )
    ones = np.ones((8, n), np.float32)
    for temperature, bias, magnitude in (
        (1e-41, 0.0, 1.0),
        (1.0, -2.5, -1.0),
        (0.0, 3.0, 1.0),
        (1e-30, 0.0, 1e38),
        (1.0, -1e38, 1.0),
    ):
        user = UserVectors(
            ones * np.float32(magnitude),
            ones[:, :16] * np.float32(magnitude),
            np.zeros(8, np.float32),
            temperature,
            bias,
            8,
        )
        got = scores_of(device, ads, user)
        assert np.isfinite(got).all()
        assert_right(got, ads, user)
