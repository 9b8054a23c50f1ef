"""What a service manager and a process tell each other: readiness, reloads, the end, a watchdog, sockets.

Owns systemd's two protocols, both without a library: state is sent as datagrams to ``$NOTIFY_SOCKET``
(sd_notify(3)), and sockets that are listened on already come as descriptors from 3 on (sd_listen_fds(3)).
Where neither is there, nothing happens.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping, MutableMapping
from typing import Final

import structlog

_FIRST_DESCRIPTOR: Final = 3
"""SD_LISTEN_FDS_START."""

log = structlog.get_logger("pgturnstile.systemd")


class SocketsError(Exception):
    """The sockets handed over are not what can be served. The message is a sentence for the operator."""


class Notifier:
    """Tells the manager named by ``environ``, if one is. A manager that does not listen is no failure."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is of the abstract namespace.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        usec = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog_s = int(usec) / 1_000_000 if usec.isdigit() and ours else 0.0
        self._watchdog: asyncio.Task[None] | None = None

    def ready(self) -> None:
        """Connections are accepted, or a reload is over."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Followed by ``ready``. The time is what ``Type=notify-reload`` asks for."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def watch(self) -> None:
        """From now on say that the event loop runs, twice as often as is wanted."""
        if self._address and self._watchdog_s:
            self._watchdog = asyncio.get_running_loop().create_task(self._keep_saying())

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()

    async def _keep_saying(self) -> None:
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("the service manager cannot be told", state=state, error=error.strerror)


def take_listener(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The socket that the service manager listens on for us; None where there is none.

    It is taken once, and children learn nothing of it. Raises SocketsError where there are several, or one
    that is no listening stream socket.
    """
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if not count.isdigit() or int(count) == 0 or pid != str(os.getpid()):
        return None
    if int(count) > 1:
        raise SocketsError(f"The service manager hands over {count} sockets; give the proxy one.")
    os.set_inheritable(_FIRST_DESCRIPTOR, False)
    try:
        taken = socket.socket(fileno=_FIRST_DESCRIPTOR)
        listens = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise SocketsError(f"What the service manager hands over is no socket: {error.strerror}.") from error
    if taken.family not in (socket.AF_INET, socket.AF_INET6) or not listens:
        raise SocketsError("The socket of the service manager is not one that listens for TCP connections.")
    return taken
