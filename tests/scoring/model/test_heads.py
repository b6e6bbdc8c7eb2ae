"""The gate against the contract's plain reference, the folded context, the rounding, and the metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")

from kernels.precision import Precision, dequantise, quantise_rows, row_width
from scoring.model.config import Architecture, Head
from scoring.model.export import users_of
from scoring.model.heads import ONE, AdSide, MixtureOfLogits, UserSide, routed_to
from scoring.model.heads import Head as GateHead
from scoring.model.metrics import auc, auc_by_group, calibration, fit_calibration, normalised_entropy, paired_interval
from scoring.model.ranker import Ranker
from scoring.model.rounding import round_int8
from scoring.reference import score_parts, sigmoid

DIM, GATE_DIM, USERS, ADS = 8, 4, 5, 30


def architecture(head: Head = "gate", route: int = 2) -> Architecture:
    towers = ("sequence", "cohort", "semantic")
    return Architecture(head=head, dim=DIM, gate_dim=GATE_DIM, experts=(*towers, "sequence"), route=route, history=6)


def sides(head: GateHead, seed: int, context: bool = False) -> tuple[UserSide, AdSide]:
    torch.manual_seed(seed)
    towers = {name: torch.randn(USERS, DIM) for name in ("sequence", "cohort", "semantic")}
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.3)
        user = head.user(torch.randn(USERS, DIM), towers, torch.randn(USERS, DIM) if context else None)
        return user, head.ad(torch.randn(ADS, DIM), rounding=False)


@pytest.mark.parametrize("route", [1, 2, 3, 4])
@pytest.mark.parametrize("context", [False, True])
def test_the_gate_is_the_contracts(route: int, context: bool) -> None:
    head = GateHead(architecture(route=route), has_context=context)
    user, ad = sides(head, route, context)
    logits = head.logits(user, ad).detach().numpy()
    a, q = ad.embedding.detach().numpy().astype(float), ad.gate.detach().numpy().astype(float)
    for i, each in enumerate(users_of(user._replace(experts=user.experts.detach()), 0.7, -1.5, route)):
        parts = score_parts(each, a, q)
        assert np.abs(parts.y - (0.7 * logits[i] - 1.5)).max() < 1e-5
    pairs = head.logits(UserSide(*(part[[0] * ADS] for part in user[:4])), ad, paired=True)
    assert np.abs(pairs.detach().numpy() - logits[0]).max() < 1e-5


def test_equal_logits_are_routed_to_the_lower_numbered_expert() -> None:
    z = [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0])]
    assert [each.tolist() for each in routed_to(z, 1)] == [[1, 0], [0, 1], [0, 0]]
    assert [each.tolist() for each in routed_to(z, 2)] == [[1, 0], [1, 1], [0, 1]]


def test_the_folded_context_is_the_modulated_ad() -> None:
    """Section 4 with a ⊙ (1 + γ) + β in place of a, and q likewise, by hand, gives what folding gives."""
    head = GateHead(architecture(route=4), has_context=True)
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.3)
        towers = {name: torch.randn(USERS, DIM) for name in ("sequence", "cohort", "semantic")}
        trunk, context = torch.randn(USERS, DIM), torch.randn(USERS, DIM)
        ad = head.ad(torch.randn(ADS, DIM), rounding=False)
        plain = head.user(trunk, towers, None)
        folded = head.logits(head.user(trunk, towers, context), ad)
        gamma, beta, gate_gamma, gate_beta = head.modulation(context).split([DIM, DIM, GATE_DIM, GATE_DIM], -1)
    assert (ad.embedding[:, -1] == ONE).all()
    for i in range(USERS):
        a = ad.embedding * (1 + gamma[i]) + beta[i]  # [ad, D]
        q = ad.gate * (1 + gate_gamma[i]) + gate_beta[i]
        z = q @ plain.gates[i].T / math.sqrt(GATE_DIM) + plain.gate_bias[i]
        y = (torch.softmax(z, 1) * (a @ plain.experts[i].T)).sum(1)
        assert (y - folded[i]).abs().max() < 1e-4


def test_heads_of_comparison_pair_as_they_multiply() -> None:
    for kind, name in ((MixtureOfLogits, "mol"), (Ranker, "ranker")):
        head = kind(architecture(name), has_context=False).eval()
        user, ad = sides(head, 7)
        if isinstance(head, Ranker):
            has = torch.rand(USERS, 6) < 0.7
            user = head.user_with_history(user, torch.randn(USERS, 6, DIM), has, torch.randn(USERS, DIM))
        logits = head.logits(user, ad)
        pairs = head.logits(user, ad.of(torch.arange(USERS)), paired=True)
        assert logits.shape == (USERS, ADS)
        assert (pairs - logits.diagonal()).abs().max() < 1e-4
        assert head.flops() > GateHead(architecture(), has_context=False).flops()


def test_flops_are_counted_from_the_formula() -> None:
    head = GateHead(Architecture(), has_context=False)
    assert head.flops() == 4 * (2 * 4 + 1) + 6 + 2 * 2 * 64 + 2 * 4 - 1
    assert GateHead(Architecture(head="dot"), has_context=False).flops() == 128


def test_training_rounds_as_the_index_does() -> None:
    vectors = torch.randn(50, 12, requires_grad=True)
    rounded = round_int8(vectors)
    rows, scales = np.zeros((50, row_width(12, Precision.INT8)), np.int8), np.ones(50, np.float32)
    quantise_rows(vectors.detach().numpy(), Precision.INT8, rows, scales)
    assert np.abs(dequantise(rows, scales, 12) - rounded.detach().numpy()).max() < 1e-6
    rounded.sum().backward()
    assert (vectors.grad == 1).all()
    assert (round_int8(torch.zeros(2, 3)) == 0).all()


def test_the_load_is_balanced_when_experts_share_it() -> None:
    head = GateHead(architecture(route=4), has_context=False)
    user, ad = sides(head, 1)
    flat = user._replace(gates=torch.zeros_like(user.gates), gate_bias=torch.zeros_like(user.gate_bias))
    head.logits(flat, ad)
    assert head.balance().item() == pytest.approx(0.0, abs=1e-6)
    one = torch.zeros_like(user.gate_bias)
    one[:, 0] = 50.0
    head.logits(flat._replace(gate_bias=one), ad)
    assert head.balance().item() == pytest.approx(3.0)


def test_metrics_of_probabilities() -> None:
    rng = np.random.default_rng(1)
    score, engaged = rng.integers(0, 6, 200).astype(float), rng.random(200) < 0.3
    wins = [(a > b) + 0.5 * (a == b) for a in score[engaged] for b in score[~engaged]]
    assert auc(score, engaged) == pytest.approx(np.mean(wins))
    group = rng.integers(0, 9, 200)
    within = [auc(score[group == each], engaged[group == each]) for each in range(9)]
    assert auc_by_group(score, engaged, group) == pytest.approx(np.mean(within))
    assert normalised_entropy(np.full(200, engaged.mean()), engaged) == pytest.approx(1.0)
    logit = rng.normal(size=20_000)
    happened = rng.random(20_000) < sigmoid(0.5 * logit - 2)
    temperature, bias = fit_calibration(logit, happened)
    assert temperature == pytest.approx(0.5, abs=0.1)
    assert bias == pytest.approx(-2, abs=0.1)
    found = calibration(sigmoid(temperature * logit + bias), happened)
    assert found["ratio"] == pytest.approx(1.0, abs=0.02)
    assert found["error"] < 0.02


def test_a_paired_interval_holds_the_gain() -> None:
    theirs = np.random.default_rng(2).random(500)
    gain, low, high = paired_interval(theirs * 1.1, theirs)
    assert low == pytest.approx(0.1) == high == pytest.approx(gain)
    noise = np.random.default_rng(3).random(500)
    gain, low, high = paired_interval(noise, theirs)
    assert low < gain < high
    assert low < 0 < high
