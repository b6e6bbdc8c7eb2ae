"""`bench.gpu` end to end at tiny sizes on the emulated device, and what it says where there is no GPU."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install mirach[gpu-test])")

from bench import gpu
from bench.gpu_steps import STEPS, Bench, Sizes
from tests.gpu.emulated import EmulatedDevice

TINY = Sizes(
    ads=8192, peer_ads=64, targetings=32_768, read_bytes=1 << 16, dim=32, gate_dim=16, experts=2, batch=2, k=5,
    blocks=2, page_log2=13, memory_share=0.5, seconds=0.0, repeats=1,
)  # fmt: skip
# steps that run the same code as others, at other sizes
LIKE_OTHERS = {"score_every_ad_float16", "score_every_ad_float32", "largest_k", "score_a_tenth", "score_a_hundredth",
               "score_every_ad_for_a_batch", "match_and_expand_30_ads_a_targeting"}  # fmt: skip
PEERS = {"torch_matmul_mask_topk", "cuvs_brute_force"}


class OnceBench(Bench):
    """Runs what is timed once: the emulated device is slow."""

    def time(self, run: Any) -> dict[str, float]:
        started = perf_counter()
        run()
        return {"median_s": perf_counter() - started, "shortest_s": 1.0, "times": 1.0}


def test_every_step_runs_and_the_report_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIKE_OTHERS:
        monkeypatch.delitem(STEPS, name)
    said: list[str] = []
    report: dict[str, Any] = {
        "steps": {}, "machine": {"date": "today", "python": "3"}, "device": "emulated", "driver": "none",
        "packages": {"numpy": "2"},
    }  # fmt: skip
    bench = OnceBench(EmulatedDevice(64 << 20), TINY, perf_counter() + 1e6)
    monkeypatch.setattr("bench.gpu_match_steps._passes", lambda _bench, run: [run() or 1e-5])
    assert gpu.run_steps(bench, report, perf_counter() + 1e6, said.append, lambda: None), report
    for name, found in report["steps"].items():
        assert "failed" not in found, found
        assert ("skipped" in found) == (name in PEERS), found
    assert report["steps"]["whole_pipeline"]["eligible_share"] > 0
    assert 0.02 < report["steps"]["match_every_targeting_distinct"]["left_share"] < 0.2
    assert len(said) == len(STEPS)
    table = gpu.table_of(report)
    assert all(f"| {name} |" in table for name in STEPS)


def test_a_step_that_fails_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_bench: Bench) -> dict[str, Any]:
        raise RuntimeError("no such luck")

    for name in list(STEPS):
        monkeypatch.delitem(STEPS, name)
    monkeypatch.setitem(STEPS, "one", fails)
    monkeypatch.setitem(STEPS, "two", lambda _bench: {"figure": 1.5})
    report: dict[str, Any] = {"steps": {}}
    bench = Bench(EmulatedDevice(1 << 20), TINY, perf_counter() + 100)
    assert not gpu.run_steps(bench, report, perf_counter() + 100, lambda _line: None, lambda: None)
    assert "no such luck" in report["steps"]["one"]["failed"]
    assert report["steps"]["two"]["figure"] == 1.5
    assert gpu.run_steps(bench, report, perf_counter() - 1, lambda _line: None, lambda: None)
    assert "skipped" in report["steps"]["two"]


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_opened", lambda: "CUDA shows no GPU to this process")
    assert gpu.main([]) == 2
    assert "no GPU" in capsys.readouterr().err
