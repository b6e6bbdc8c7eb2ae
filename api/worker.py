"""A thread with a queue: begun once, woken by whoever puts something in, told to end, and waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Worker:
    """`_changed` guards the queue and `_stopping`; `_run`, on the thread, goes on until that and nothing waits."""

    def __init__(self, name: str, thread: Callable[..., threading.Thread]) -> None:
        """`thread`: makes it, as threading.Thread does."""
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Takes nothing more, does what waits, and ends the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        raise NotImplementedError
