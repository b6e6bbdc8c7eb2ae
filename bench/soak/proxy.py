"""A TCP proxy between a client and a broker, whose network can be made bad: stalled, slow, or cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

READ_BYTES = 1 << 16
PIECE_BYTES = 256  # while it trickles
PAUSE_S = 0.01  # between looks at what it shall do, and between pieces
START_S = 10.0
END_S = 0.05


class Proxy:
    """Listens on a free port of loopback, on a thread of its own. May be used as a context manager."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.bytes = 0  # that went through, both ways
        self._stalled = False
        self._trickling = False
        self._open = True
        self._connections: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()  # a task for each
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="soak-proxy", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]

    # What is wrong with the network.

    def stall(self) -> None:
        """Connections stay, and no byte goes through."""
        self._stalled = True

    def trickle(self) -> None:
        """Bytes come a few at a time: some 25 kB a second and connection."""
        self._trickling = True

    def cut(self) -> None:
        """Closes all connections and every new one."""
        self._open = False
        self._loop.call_soon_threadsafe(self._close_all)

    def heal(self) -> None:
        self._open, self._stalled, self._trickling = True, False, False

    def close(self) -> None:
        self.cut()
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The event loop's thread.

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    async def _end(self) -> None:
        self._server.close()
        await asyncio.sleep(END_S)  # connections that came just before find out by themselves
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(END_S)  # what was aborted is closed in the loop's next turns

    def _close_all(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if self._open:
                there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
                await self._join(reader, writer, there_reader, there_writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _join(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there_reader: asyncio.StreamReader,
        there_writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        both = {writer, there_writer}
        self._connections |= both
        ways = [
            asyncio.ensure_future(self._pump(reader, there_writer)),
            asyncio.ensure_future(self._pump(there_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections -= both
            there_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                size = PIECE_BYTES if self._trickling else READ_BYTES
                for first in range(0, len(data), size):
                    while self._stalled:
                        await asyncio.sleep(PAUSE_S)
                    if self._trickling:
                        await asyncio.sleep(PAUSE_S)
                    piece = data[first : first + size]
                    writer.write(piece)
                    self.bytes += len(piece)
                    await writer.drain()
