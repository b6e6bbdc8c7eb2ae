"""The end of a seed: everything is mended, the service must catch up, and all of it is held to the truth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.service import Service
from tests.simulation.threads import Stuck, Wrong

if TYPE_CHECKING:
    from tests.simulation.world import World

ROUNDS_MAX = 400  # in which the service must have caught up when nothing is wrong any more
LOOK_EVERY = 8  # rounds: how often the topic is looked at
STARTS_MAX = 6  # that gaps and a topic made again may take


def settle(world: World) -> None:
    """The service catches up, however often it must be started for it, and is what it must be."""
    world.mend()
    for _ in range(STARTS_MAX):
        if world.service is None:
            world.start()
        assert world.service is not None
        why = _catch_up(world, world.service)
        if why is None:
            _check(world, world.service)
            return
        world.say_(f"started again: {why}")
        world.settings = replace(world.settings, on_gap="continue")  # the operator accepts it
        world.stop()
    raise Stuck("the service does not settle, however often it is started")


def _catch_up(world: World, service: Service) -> str | None:
    """-> why it must be started again, None if it has caught up"""
    for number in range(ROUNDS_MAX):
        if not service.reading:
            service.begin()
        for thread in list(service.threads.alive):
            rests = thread.name == "mirach-topic-watcher" and service.reading and number % LOOK_EVERY > 0
            if not thread.ended and not rests:
                thread.take_turn()
        world.clock.pass_(0.3)
        world.look()
        if service.ingest.failure is not None:
            return service.ingest.failure
        refused = [gap for gap in service.ingest.statistics._gaps if gap.refused]
        if not world.truth.lost:
            _check_gaps(world, service)
        if refused:
            if service.ingest.ready:
                raise Wrong("the service is ready in spite of a gap that is refused")
            return str(refused[0])
        if service.reading and not world.truth.lost and _has_caught_up(world, service):
            return None
    raise Stuck(f"the service does not catch up: {service.ingest.statistics.snapshot(0)}")


def _check_gaps(world: World, service: Service) -> None:
    """Records are gone where the service says that they are."""
    assert world.broker.topic is not None
    for gap in service.ingest.statistics._gaps:
        if gap.kind != "removed" or gap.first >= world.broker.topic.partitions[gap.partition].begins_at:
            raise Wrong(f"there is no such gap: {gap}")


def _has_caught_up(world: World, service: Service) -> bool:
    """Everything is read, applied, sent, committed and answered."""
    topic, states = world.broker.topic, service.ingest.statistics._partitions
    assert topic is not None
    ends = {number: partition.end for number, partition in enumerate(topic.partitions)}
    identity, committed = service.ingest._reader.identity, world.broker.committed
    return (
        service.ingest.ready
        and not service.requests
        and {number: state.position for number, state in states.items()} == ends
        and service.ingest.safe_positions() == ends
        and all(committed.get(number) == (end, identity) for number, end in ends.items() if end > 0)
    )


def _check(world: World, service: Service) -> None:
    truth, index = world.truth, service.engine.index
    truth.check_state(index)
    missing = truth.missing_letters({number: partition.end for number, partition in enumerate(truth.topic.partitions)})  # type: ignore[union-attr]
    if missing:
        raise Wrong(f"dead letters of {missing} are missing")
    counts = service.ingest.statistics.snapshot(0)["outcomes"]
    if counts != truth.counted():
        raise Wrong(f"outcomes are counted as {counts}, not {truth.counted()}")
    for _ in range(2):
        world.do_ask()
    service.threads.until(lambda: not service.requests, "answers")
    world.outside.shelf.check(world.outside.disk, world.settings.kept)
    world.say_(f"settled at {index.positions} with {index.count} ads")
