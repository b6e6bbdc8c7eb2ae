"""A TCP proxy between a client and a broker, whose network can be made bad: stalled, slow, or cut."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

READ_BYTES = 1 << 16
PIECE_BYTES = 256  # while it trickles
PAUSE_S = 0.01  # between looks at what it shall do, and between pieces
END_S = 10.0


class Proxy:
    """Listens on a free port of loopback; two threads carry the bytes of each connection. May be used as a context
    manager."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.bytes = 0  # that went through, both ways
        self._stalled = False
        self._trickling = False
        self._open = True
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()  # one for each connection
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="soak-proxy", daemon=True)
        self._accepting.start()

    # What is wrong with the network.

    def stall(self) -> None:
        """Connections stay, and no byte goes through."""
        self._stalled = True

    def trickle(self) -> None:
        """Bytes come a few at a time: some 25 kB a second and connection."""
        self._trickling = True

    def cut(self) -> None:
        """Ends all connections and every new one."""
        with self._lock:
            self._open = False
            for each in self._connections:
                _end(each)

    def heal(self) -> None:
        self._open, self._stalled, self._trickling = True, False, False

    def close(self) -> None:
        self.cut()
        _end(self._listener)
        self._accepting.join(END_S)
        self._listener.close()
        with self._lock:
            left = list(self._threads)
        for thread in left:
            thread.join(END_S)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Threads.

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), name="soak-proxy", daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()

    def _serve(self, here: socket.socket) -> None:
        try:
            with here, suppress(OSError), socket.create_connection(("127.0.0.1", self.target_port)) as there:
                both = {here, there}
                with self._lock:
                    if not self._open:
                        return
                    self._connections |= both
                back = threading.Thread(target=self._pump, args=(there, here), name="soak-proxy", daemon=True)
                back.start()
                self._pump(here, there)
                back.join()
                with self._lock:
                    self._connections -= both
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Carries bytes one way until either end is gone, and then ends the other way too."""
        with suppress(OSError):
            while data := source.recv(READ_BYTES):
                size = PIECE_BYTES if self._trickling else READ_BYTES
                for first in range(0, len(data), size):
                    while self._stalled and self._open:
                        time.sleep(PAUSE_S)
                    if self._trickling:
                        time.sleep(PAUSE_S)
                    piece = data[first : first + size]
                    sink.sendall(piece)
                    self.bytes += len(piece)
        _end(source)
        _end(sink)


def _end(connection: socket.socket) -> None:
    """Wakes whoever waits for it; its owner closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
