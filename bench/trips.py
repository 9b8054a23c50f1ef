"""A relay that counts round trips: it stands between the proxy and PostgreSQL and looks at directions alone.

Owns its listener and threads. A round trip is counted when bytes go to PostgreSQL after bytes came from it,
so messages that leave together count once, however many they are. Knows no protocol.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final

from bench.contenders import free_port

_CHUNK: Final = 1 << 16


class _Line:
    """One connection through the relay."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.trips = 0
        self._answered = True
        self._lock = threading.Lock()
        self._ends = (near, far)

    def start(self) -> None:
        near, far = self._ends
        for source, target, outward in ((near, far, True), (far, near, False)):
            threading.Thread(target=self._pump, args=(source, target, outward), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, outward: bool) -> None:
        # One end closing closes the other: neither has anything to say to nobody.
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                with self._lock:
                    self.trips += outward and self._answered
                    self._answered = not outward
                target.sendall(chunk)
        self.close()

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class TripCounter:
    """``port`` is where to connect instead of the server."""

    def __init__(self, listener: socket.socket, server_port: int) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._server_port = server_port
        self._lines: list[_Line] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def trips(self) -> list[int]:
        """Round trips so far of each connection, in the order they were made."""
        return [line.trips for line in self._lines]

    def busiest(self, before: list[int]) -> int:
        """The most round trips that one connection has made since ``trips()`` said ``before``: those of the
        connection under test, since the proxy's reading of the catalog has one of its own."""
        now = self.trips()
        return max(
            count - was for count, was in zip(now, before + [0] * (len(now) - len(before)), strict=True)
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: no more to accept
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._server_port))
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = _Line(near, far)
                self._lines.append(line)  # before its first byte: it is counted by then
                line.start()


@contextlib.contextmanager
def count_trips(server_port: int) -> Iterator[TripCounter]:
    """A counter before the server on ``server_port`` of loopback."""
    counter = TripCounter(socket.create_server(("127.0.0.1", free_port())), server_port)
    try:
        yield counter
    finally:
        counter.close()
