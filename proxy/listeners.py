"""The sockets at which several processes of one proxy listen: one for each, at one address.

Owns their options and that all have one port. The kernel spreads connections over those that listen
(SO_REUSEPORT in socket(7)), also over those of another proxy of the same user: one that is to take this one's
place may begin before this one ends. A socket outlives the process that listened at it as long as anybody
holds it, so that what waits there waits for the next one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

Bind = Callable[[], list[socket.socket]]
"""Gives the sockets of one more process; not listening yet, or already, as they come. Raises OSError."""


class Address:
    """Every address of ``host`` with one ``port``; 0 lets the system choose at the first ``bind``.

    Raises OSError where the host has none.
    """

    def __init__(self, host: str, port: int) -> None:
        self._port = port
        self._found = [
            (family, number, where)
            for family, _, number, _, where in socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            if family in (socket.AF_INET, socket.AF_INET6)
        ]

    def bind(self) -> list[socket.socket]:
        """``Bind``."""
        made: list[socket.socket] = []
        try:
            for family, number, (host, _, *scope) in self._found:
                # Made with its protocol's number: by that asyncio knows whose delay (Nagle's) to switch off.
                made.append(socket.socket(family, socket.SOCK_STREAM, number))
                made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    made[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made[-1].bind((host, self._port, *scope))
                self._port = made[-1].getsockname()[1]
        except BaseException:
            for each in made:
                each.close()
            raise
        return made


def handed(listening: socket.socket) -> Bind:
    """What all processes listen at together: a socket that somebody else made."""
    return lambda: [listening.dup()]
