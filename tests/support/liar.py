"""A line to a PostgreSQL that lies: everything passes as it is, until a text names a lie.

``Liar`` listens before a server. Where the proxy sends a text that holds ``lie:NAME``, the script of that
name is what comes back, and the server never hears of the text. So the handshake, the proxy's own questions
and its reading of the catalog are answered truly, by any version.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

Script = Callable[[socket.socket], None]
"""Says what the server would have said, to the proxy."""

_NAMED = re.compile(rb"lie:([a-z_0-9]+)")


class Liar:
    """Accepts on ``port`` until ``close``; ``scripts`` are the lies by name."""

    def __init__(self, host: str, port: int, scripts: Mapping[str, Script]) -> None:
        self._server = host, port
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.reached: list[bytes] = []
        """What the server was sent after a lie, which should be nothing but a goodbye."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                proxy, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += proxy, server
                for work in (self._ask, self._answer):
                    threading.Thread(target=work, args=(proxy, server), daemon=True).start()

    def _ask(self, proxy: socket.socket, server: socket.socket) -> None:
        lied = False
        with contextlib.suppress(OSError):
            while data := proxy.recv(65_536):
                found = _NAMED.search(data)
                if lied:
                    self.reached.append(data)
                elif found is not None and found[1].decode() in self._scripts:
                    lied = True
                    self._scripts[found[1].decode()](proxy)
                else:
                    server.sendall(data)
        self._end(proxy, server)

    def _answer(self, proxy: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                proxy.sendall(data)
        self._end(proxy, server)

    def _end(self, *sockets: socket.socket) -> None:
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def lying(host: str, port: int, scripts: Mapping[str, Script]) -> Iterator[Liar]:
    liar = Liar(host, port, scripts)
    try:
        yield liar
    finally:
        liar.close()
