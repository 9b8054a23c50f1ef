"""A line to a PostgreSQL that can fail: cut at a moment that a test picks, closed for a while, or silent.

``Line`` listens before a server and passes everything both ways. Knows no messages: a moment is a run of
bytes from the proxy.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator


class Line:
    """Accepts on ``port`` until ``close``. Connections that exist are ended by ``cut``; new ones are refused
    between ``down`` and ``up``."""

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._listener: socket.socket | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._moment: tuple[bytes, bool] | None = None
        self.reached = threading.Event()
        """Set once the moment that ``cut_at`` or ``silence_at`` waits for has come."""
        self._silent: set[socket.socket] = set()
        self._silences = False
        self.port = 0
        self.up()

    def up(self) -> None:
        """Take connections, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections and end those there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    close = down

    def cut(self) -> None:
        """End every connection with a reset."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                _reset(sock)

    def cut_at(self, moment: bytes, *, answered: bool = False) -> None:
        """Reset the connection on which the proxy next sends ``moment``: before the server has read it, or,
        with ``answered``, once the server has begun to answer it, which the proxy does not hear."""
        self.reached.clear()
        self._moment, self._silences = (moment, answered), False

    def silence_at(self, moment: bytes) -> None:
        """From ``moment`` on nothing passes either way, and nobody is told: the other end has vanished."""
        self.reached.clear()
        self._moment, self._silences = (moment, False), True

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                proxy, _ = listener.accept()
                server = socket.create_connection(self._server)
                self._pairs.append((proxy, server))
                for work in (self._ask, self._answer):
                    threading.Thread(target=work, args=(proxy, server), daemon=True).start()

    def _ask(self, proxy: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := proxy.recv(65_536):
                moment = self._moment
                if moment is not None and moment[0] in data:
                    self._moment = None
                    self._silent.add(proxy)
                    if moment[1]:
                        _until_answered(proxy, server, data)
                    self.reached.set()
                    if not self._silences:
                        _reset(proxy)
                        _reset(server)
                elif proxy not in self._silent:
                    server.sendall(data)
        _close(proxy, server)

    def _answer(self, proxy: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while server.recv(1, socket.MSG_PEEK):
                if proxy in self._silent:
                    self.reached.wait()
                    return
                proxy.sendall(server.recv(65_536))
        _close(proxy, server)


def _until_answered(proxy: socket.socket, server: socket.socket, data: bytes) -> None:
    """Pass on ``data`` and what comes behind it, until the server says something to it."""
    server.sendall(data)
    while server not in select.select([proxy, server], [], [])[0]:
        server.sendall(proxy.recv(65_536))


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _close(sock)


def _close(*sockets: socket.socket) -> None:
    for sock in sockets:
        # Whoever waits in another thread wakes up.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


@contextlib.contextmanager
def failing_line(host: str, port: int) -> Iterator[Line]:
    line = Line(host, port)
    try:
        yield line
    finally:
        line.close()
