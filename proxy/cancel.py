"""Cancel keys: who may cancel what.

Owns the secrets we hand out in BackendKeyData and the answer to a CancelRequest. The backend's real process
id is relayed (drivers show it, and pg_backend_pid() agrees), its secret never is. Knows no sockets: what a
request reaches is a ``Cancellable``.

Source: PostgreSQL documentation, "Canceling Requests in Progress"; src/backend/storage/ipc/procsignal.c
(SendCancelRequest).
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final, Protocol

from proxy.throttle import Throttle
from proxy.wire.startup import V3_2, ProtocolVersion

_SHORT_SECRET: Final = 4
"""Bytes of a secret before protocol 3.2, whose BackendKeyData has room for no more."""
_LONG_SECRET: Final = 32
"""What PostgreSQL 18 itself sends on 3.2."""

_FREE_MISSES: Final = 50.0
_MISSES_PER_SECOND: Final = 5.0


class Misses:
    """How often each source has named no connection of late.

    A short secret is 32 bits: a source that guesses is answered with silence once its misses outrun
    ``_MISSES_PER_SECOND``, at which rate the whole space takes years. A request that is under way counts as a
    miss until it is none.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._throttle = Throttle(_FREE_MISSES, _MISSES_PER_SECOND, clock=clock)

    def __len__(self) -> int:
        return len(self._throttle)

    def begin(self, source: str) -> bool:
        """Whether a request of ``source`` is looked at."""
        if self._throttle.wait_s(source) > 0:
            return False
        self._throttle.add(source)
        return True

    def hit(self, source: str) -> None:
        """The request that was begun named a connection."""
        self._throttle.add(source, -1)


class Cancellable(Protocol):
    """A connection whose query may be cancelled."""

    async def cancel(self) -> None:
        """Cancel what runs, if anything does; returns when the server has dealt with it. Never raises."""


class CancelRegistry:
    """Every live connection of this process by process id and secret."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # A pooler behind us may invent process ids, so that one may stand for several connections.
        self._connections: dict[int, dict[bytes, Cancellable]] = {}
        self._misses = Misses(clock)

    def register(self, pid: int, version: ProtocolVersion, connection: Cancellable) -> bytes:
        """A secret under which ``connection`` may be cancelled from now on."""
        secret = secrets.token_bytes(_LONG_SECRET if version >= V3_2 else _SHORT_SECRET)
        self._connections.setdefault(pid, {})[secret] = connection
        return secret

    def forget(self, pid: int, secret: bytes) -> None:
        known = self._connections.get(pid, {})
        known.pop(secret, None)
        if not known:
            self._connections.pop(pid, None)

    async def request(self, pid: int, secret: bytes, source: str) -> bool:
        """Answer one CancelRequest from the address ``source``; True where it named a connection.

        Returns once the server has dealt with it: the requester's connection is closed then, which tells it
        that no later query of its own will be hit.
        """
        if not self._misses.begin(source):
            return False
        found = self.find(pid, secret)
        if found is None:
            return False
        self._misses.hit(source)
        await found.cancel()
        return True

    def find(self, pid: int, secret: bytes) -> Cancellable | None:
        """The connection that is named so. Takes as long for a wrong secret as for a right one."""
        found: Cancellable | None = None
        for known, connection in self._connections.get(pid, {}).items():
            if hmac.compare_digest(known, secret):
                found = connection
        return found
