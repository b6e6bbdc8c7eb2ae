"""Threads that take turns: each is a loop of `turn()`s of the product, and whoever runs is chosen from the seed.

At a seam (a call of a Kafka client, an operation of the disk) others may take their turns before the caller goes on,
as threads do; between two seams nobody interrupts. The process may end at any seam.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.disks import Crash

DEPTH_MAX = 3  # turns within turns
TURNS_MAX = 3000  # of others while one waits; then nothing will come of it
TURN_S = 0.01  # what a turn takes


class Found(BaseException):
    """Something is wrong with the product. Nothing in it catches this."""


class Stuck(Found):
    """What was waited for does not come."""


class Broken(Found):
    """The product raised what it should not have."""


class Wrong(Found):
    """The product did what it must not."""


class Clock:
    """The system's two clocks: one that only goes on, and the wall's, which somebody may set."""

    def __init__(self, now_us: int) -> None:
        self.seconds = 1000.0
        self.now_us = now_us

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds
        self.now_us += round(seconds * 1e6)

    def monotonic(self) -> float:
        return self.seconds

    def wall_us(self) -> int:
        return self.now_us


class Thread:
    """In place of threading.Thread."""

    def __init__(self, threads: Threads, target: Callable[[], Any], name: str) -> None:
        self.name = name
        self.ident: int | None = None
        self.busy = False  # in a turn
        self.ended = False
        self._threads = threads
        self._target = target
        self.each_turn: Callable[[], bool] | None = getattr(getattr(target, "__self__", None), "turn", None)

    def start(self) -> None:
        self.ident = 1
        if self.each_turn is None:
            self._target()
            self.ended = True
        else:
            self._threads.alive.append(self)

    def is_alive(self) -> bool:
        return self.ident is not None and not self.ended

    def join(self, timeout: float | None = None) -> None:
        self._threads.until(lambda: self.ended, f"the end of {self.name}")

    def take_turn(self) -> None:
        assert self.each_turn is not None
        assert not self.busy
        self.busy = True
        try:
            goes_on = self.each_turn()
        except Exception as error:
            raise Broken(f"{self.name}: {type(error).__name__}: {error}") from error
        finally:
            self.busy = False
        if not goes_on:
            self.ended = True
            self._threads.alive.remove(self)


class Threads:
    """Those of one process."""

    def __init__(self, r: random.Random, clock: Clock, switching: float, meanwhile: Callable[[], None]) -> None:
        """`switching`: how often others take a turn at a seam. `meanwhile`: the world outside, which does not stand
        still either."""
        self.alive: list[Thread] = []
        self.dead = False
        self.seams_left: int | None = None  # then the process ends
        self._r = r
        self._clock = clock
        self._switching = switching
        self._meanwhile = meanwhile
        self._depth = 0

    def thread(self, *, target: Callable[[], Any], name: str, daemon: bool) -> Thread:
        return Thread(self, target, name)

    def seam(self) -> None:
        """Others may go on here, and the process may end here."""
        if self.dead:
            raise Crash
        if self.seams_left is not None:
            self.seams_left -= 1
            if self.seams_left < 0:
                self.die()
        if self._depth < DEPTH_MAX and self._r.random() < self._switching:
            self._depth += 1
            try:
                if self._r.random() < 0.3:
                    self._meanwhile()
                else:
                    self.any_turn()
            finally:
                self._depth -= 1

    def die(self) -> None:
        self.dead = True
        raise Crash

    def any_turn(self) -> None:
        ready = [thread for thread in self.alive if not thread.busy]
        if ready:
            self._clock.pass_(TURN_S)
            self._r.choice(ready).take_turn()

    def until(self, condition: Callable[[], bool], what: str, seconds: float | None = None) -> bool:
        """Others take turns until it is so, or for so long. Raises Stuck where it never is."""
        deadline = None if seconds is None else self._clock.seconds + seconds
        for _ in range(TURNS_MAX):
            if condition():
                return True
            if deadline is not None and self._clock.seconds >= deadline:
                return False
            self._clock.pass_(0.05)
            self.any_turn()
        raise Stuck(f"waited for {what}")
