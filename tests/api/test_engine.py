"""The engine's promises to those who submit, offer and call. Threads meet at its queues; nothing is timed or sleeps.

A test holds the engine still with a call that waits for an event of the test's own, fills the queues, and lets go.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from api import engine as engine_
from api.engine import Engine, IndexBehind, QueueFull, Stopped
from gpu_index.events import AdEvent, AdPatch, Batch, EventKind, Outcome
from gpu_index.index import Index
from gpu_index.values import RequestAttributes
from scoring.request import Answer, Pathway, Request
from scoring.retrieve import retrieve
from tests.twins import START_US, new_index, whole_patch

WAIT_S = 120  # far above what anything here takes; a test that gets there has failed
EVERYONE = RequestAttributes({})


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """What the engine runs is compiled before anyone waits for it."""
    index, feed = new_index(), Feed()
    index.apply(feed.batch(create("a"), (EventKind.EXPIRE, "a", None)), START_US)
    retrieve(index, [request()])


class Clock:
    def __init__(self) -> None:
        self.now_us = START_US

    def __call__(self) -> int:
        return self.now_us


class Feed:
    """Batches of one partition, and what became of them."""

    def __init__(self) -> None:
        self.offset = 0
        self.applied: list[tuple[list[Outcome], int]] = []

    def batch(self, *events: tuple[EventKind, str, AdPatch | None]) -> Batch:
        made = []
        for kind, ad_id, patch in events:
            made.append(AdEvent(kind, ad_id, None, 0, self.offset, START_US // 1000, patch=patch))
            self.offset += 1
        return Batch(made, {0: self.offset}, lambda outcomes, now_us: self.applied.append((list(outcomes), now_us)))


def create(ad_id: str, **fields: object) -> tuple[EventKind, str, AdPatch | None]:
    return EventKind.CREATE, ad_id, whole_patch(**fields)


def request(k: int = 10, **fields: object) -> Request:
    return Request(EVERYONE, (Pathway("main", k),), **fields)  # type: ignore[arg-type]


def ids(answer: Answer) -> set[str]:
    return {result.ad_id for result in answer.results}


@contextmanager
def running(**limits: int) -> Iterator[Engine]:
    engine = Engine(new_index(), clock_us=Clock(), **limits)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(WAIT_S)
        assert not engine.alive
        assert engine.queued == 0


@contextmanager
def held_still(engine: Engine) -> Iterator[None]:
    """The engine's thread waits inside a call meanwhile."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(index: Index) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)

    done = engine.call(wait)
    assert inside.wait(WAIT_S)
    try:
        yield
    finally:
        go_on.set()
        done.result(WAIT_S)


def answer_of(future: Future[list[Answer]]) -> Answer:
    [answer] = future.result(WAIT_S)
    return answer


def test_a_batch_is_seen_whole_or_not_at_all() -> None:
    """Each batch swaps one ad for the other: no answer has both, or none, or an offset between."""
    feed, batches = Feed(), 150
    swaps = [feed.batch(create("a"))]
    for i in range(batches):
        away, come = ("a", "b") if i % 2 == 0 else ("b", "a")
        swaps.append(feed.batch((EventKind.EXPIRE, away, None), create(come)))
    with running() as engine:
        assert engine.offer(swaps[0], WAIT_S)

        def offer_all() -> None:
            for swap in swaps[1:]:
                assert engine.offer(swap, WAIT_S)

        thread = threading.Thread(target=offer_all)
        thread.start()
        first = answer_of(engine.submit([request(min_offsets={0: 0}, wait_ms=WAIT_S * 1000)]))
        seen = {first.offsets[0]: ids(first)}
        while max(seen) < feed.offset - 1:
            answer = answer_of(engine.submit([request()]))
            seen[answer.offsets[0]] = ids(answer)
        thread.join(WAIT_S)
    for offset, ads in seen.items():
        assert offset % 2 == 0
        assert ads == ({"a"} if offset // 2 % 2 == 0 else {"b"})
    assert [outcomes for outcomes, _ in feed.applied] == [[Outcome.APPLIED]] + [[Outcome.APPLIED] * 2] * batches


def test_answers_of_one_submit_are_of_one_state() -> None:
    """Even of more requests than one pass takes: nothing is applied between."""
    feed = Feed()
    with running() as engine:
        assert engine.offer(feed.batch(create("a")), WAIT_S)
        with held_still(engine):
            future = engine.submit([request(min_offsets={0: 0}) for _ in range(40)])
            for i in range(5):
                assert engine.offer(feed.batch(create(f"b{i}")), WAIT_S)
        answers = future.result(WAIT_S)
        assert len(answers) == 40
        assert len({(answer.indexed, answer.offsets[0]) for answer in answers}) == 1
        assert engine.submit([]).result(WAIT_S) == []


def test_a_request_waits_for_its_offsets() -> None:
    feed = Feed()
    first, second = feed.batch(create("a")), feed.batch(create("b"))
    with running() as engine:
        future = engine.submit([request(min_offsets={0: 1}, wait_ms=WAIT_S * 1000)])
        assert engine.offer(first, WAIT_S)
        assert engine.call(lambda index: index.count).result(WAIT_S) in (0, 1)
        assert not future.done()
        assert engine.offer(second, WAIT_S)
        answer = answer_of(future)
    assert (ids(answer), answer.offsets) == ({"a", "b"}, {0: 1})


def test_others_are_answered_while_one_waits() -> None:
    with running() as engine:
        waiting = engine.submit([request(min_offsets={3: 9}, wait_ms=WAIT_S * 1000)])
        assert answer_of(engine.submit([request()])).offsets == {}
        assert not waiting.done()
        assert engine.queued == 1
        feed = Feed()
        batch = feed.batch(create("a"))
        batch.positions[3] = 10
        assert engine.offer(batch, WAIT_S)
        assert answer_of(waiting).offsets == {0: 0, 3: 9}


def test_an_index_that_stays_behind_says_where_it_stands() -> None:
    feed = Feed()
    with running() as engine:
        assert engine.offer(feed.batch(create("a")), WAIT_S)
        assert answer_of(engine.submit([request(min_offsets={0: 0}, wait_ms=WAIT_S * 1000)])).indexed == 1
        behind = engine.submit([request(), request(min_offsets={0: 1, 7: 0}, wait_ms=0)])
        with pytest.raises(IndexBehind) as caught:
            behind.result(WAIT_S)
    assert caught.value.positions == {0: 1}
    assert engine.statistics.behind == 1


def test_all_whose_offsets_come_at_once_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are too many for one pass: they do not wait for the clock's next tick, here an hour away."""
    monkeypatch.setattr(engine_, "TICK_S", 3600.0)
    feed = Feed()
    with running() as engine:
        with held_still(engine):
            futures = [engine.submit([request(min_offsets={0: 0}, wait_ms=3_600_000)]) for _ in range(50)]
        assert engine.call(lambda index: index.count).result(WAIT_S) == 0
        assert engine.offer(feed.batch(create("a")), WAIT_S)
        assert all(ids(answer_of(future)) == {"a"} for future in futures)


def test_the_queue_of_requests_has_an_end() -> None:
    with running(requests_max=3) as engine:
        with held_still(engine):
            futures = [engine.submit([request(), request()])]
            with pytest.raises(QueueFull):
                engine.submit([request(), request()])
            futures.append(engine.submit([request()]))
            with pytest.raises(QueueFull):
                engine.submit([request()])
            assert engine.queued == 3
        assert [len(future.result(WAIT_S)) for future in futures] == [2, 1]
        assert len(engine.submit([request()]).result(WAIT_S)) == 1


def test_the_queue_of_batches_has_an_end() -> None:
    feed = Feed()
    with running(batches_max=2) as engine:
        with held_still(engine):
            assert engine.offer(feed.batch(create("a")), 0)
            assert engine.offer(feed.batch(create("b")), 0)
            late = feed.batch(create("c"))
            assert not engine.offer(late, 0)
        assert engine.offer(late, WAIT_S)
        answer = answer_of(engine.submit([request(min_offsets={0: 2}, wait_ms=WAIT_S * 1000)]))
    assert ids(answer) == {"a", "b", "c"}


def test_a_call_runs_on_the_engines_thread_and_gives_back_what_it_gives_or_raises() -> None:
    with running() as engine:
        assert engine.call(lambda index: threading.current_thread().name).result(WAIT_S) == "mirach-engine"
        with pytest.raises(ZeroDivisionError):
            engine.call(lambda index: 1 // 0).result(WAIT_S)
        assert engine.call(lambda index: index.count).result(WAIT_S) == 0
        with pytest.raises(AssertionError, match="one writer"):
            engine.index.advance_clock(START_US)


def test_a_pass_that_raises_fails_only_its_own_requests(caplog: pytest.LogCaptureFixture) -> None:
    broken = request(min_offsets={}, max_per={"no such field": 1})
    feed = Feed()
    with running() as engine:
        assert engine.offer(feed.batch(create("a")), WAIT_S)
        before = engine.submit([request(min_offsets={0: 0}, wait_ms=WAIT_S * 1000)])
        assert ids(answer_of(before)) == {"a"}
        with pytest.raises(KeyError):
            engine.submit([broken]).result(WAIT_S)
        assert ids(answer_of(engine.submit([request()]))) == {"a"}
    assert "a pass failed" in caplog.text


def test_whoever_a_pass_fails_for_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    broken = request(max_per={"no such field": 1})
    feed = Feed()
    with running() as engine:
        with held_still(engine):
            assert engine.offer(feed.batch(create("a")), WAIT_S)
            first, bad = engine.submit([request()]), engine.submit([request(), broken])
            others = [engine.submit([request(), request()]) for _ in range(3)]
        for future in (first, *others):
            assert [ids(answer) for answer in future.result(WAIT_S)] == [{"a"}] * (1 if future is first else 2)
        with pytest.raises(KeyError):
            bad.result(WAIT_S)
        assert engine.statistics.requests == 7
        assert not engine.failed
    assert [record.message for record in caplog.records if "a pass failed" in record.message] == ["a pass failed"]


def test_a_cancelled_request_is_nobodys() -> None:
    with running() as engine:
        with held_still(engine):
            future = engine.submit([request()])
            assert future.cancel()
            other = engine.submit([request()])
        assert answer_of(other).indexed == 0


def test_stop_applies_and_answers_what_it_has_accepted() -> None:
    feed = Feed()
    with running() as engine:
        with held_still(engine):
            futures = [engine.submit([request(min_offsets={0: 2}, wait_ms=WAIT_S * 1000)]) for _ in range(20)]
            never = engine.submit([request(min_offsets={0: 3}, wait_ms=3_600_000)])
            for name in "abc":
                assert engine.offer(feed.batch(create(name)), WAIT_S)
            late_call = engine.call(lambda index: index.count)
            stopper = threading.Thread(target=engine.stop)
            stopper.start()
            with engine._changed:
                assert engine._changed.wait_for(lambda: engine._stopping, WAIT_S)
            with pytest.raises(Stopped):
                engine.submit([request()])
            with pytest.raises(Stopped):
                engine.call(lambda index: index.count)
            assert not engine.offer(feed.batch(create("d")), WAIT_S)
        stopper.join(WAIT_S)
        assert not stopper.is_alive()
        assert not engine.alive
    assert all(ids(answer_of(future)) == {"a", "b", "c"} for future in futures)
    with pytest.raises(IndexBehind):  # at once: nothing more would come
        never.result(0)
    assert late_call.result(0) in range(4)
    assert len(feed.applied) == 3
    assert engine.index.count == 3, "the index is free for another thread"


def test_an_engine_that_never_ran_leaves_nobody_waiting() -> None:
    engine = Engine(new_index(), clock_us=Clock())
    future, call = engine.submit([request()]), engine.call(lambda index: index.count)
    engine.stop(WAIT_S)
    with pytest.raises(Stopped):
        future.result(0)
    with pytest.raises(Stopped):
        call.result(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_ends_on_its_own_fault_refuses_everyone(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed()
    batch = feed.batch(create("a"))

    def fail(outcomes: object, now_us: int) -> None:
        raise RuntimeError("the reader's fault")

    batch.applied = fail
    engine = Engine(new_index(), clock_us=Clock())
    engine.start()
    with held_still(engine):
        future = engine.submit([request()])
        assert engine.offer(batch, WAIT_S)
    with pytest.raises(Stopped):
        future.result(WAIT_S)
    engine.stop(WAIT_S)
    assert not engine.alive
    assert "the engine stopped on a fault of its own" in caplog.text
    with pytest.raises(Stopped):
        engine.submit([request()])
    assert not engine.offer(batch, WAIT_S)


def test_the_clock_turns_ads_on_and_off_with_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tick, whether or not anyone asks."""
    assert engine_.TICK_S <= 1
    monkeypatch.setattr(engine_, "TICK_S", 0.01)
    clock, feed = Clock(), Feed()
    engine = Engine(new_index(), clock_us=clock)
    engine.start()
    ad = create("a", start_us=START_US + 10, end_us=START_US + 20)
    assert engine.offer(feed.batch(ad), WAIT_S)
    assert answer_of(engine.submit([request(min_offsets={0: 0}, wait_ms=WAIT_S * 1000)])).eligible == 0
    for now_us, eligible in ((START_US + 10, 1), (START_US + 19, 1), (START_US + 20, 0), (START_US + 12, 1)):
        clock.now_us = now_us
        assert answer_of(engine.submit([request()])).eligible == eligible
    engine.stop(WAIT_S)
    assert not engine.alive
