"""What holds over all connections of a proxy, whichever of its processes has them.

Owns the counts behind the limits on connections and on failed logins, and the way from a cancel request to
the connection that it names. A proxy of one process counts for itself (``Alone``); the workers of a larger
one ask their supervisor, which counts by worker, so that a limit is exact and what a worker that died had
taken is free again. Knows no sockets and no messages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from proxy.logins import Attempts, Counting


class Peers(Counting, Protocol):
    """What a server asks before it lets somebody in."""

    def entered(self) -> None:
        """A connection was accepted."""

    def left(self) -> None:
        """It is gone."""

    async def crowded(self, most: int) -> bool:
        """Whether there are more than ``most``."""
        ...

    async def take_place(self, agent: str, most: int) -> bool:
        """Take one of the ``most`` places of ``agent``; False where there is none left."""
        ...

    def leave_place(self, agent: str) -> None:
        """Give it back."""

    def allow_logins(self, connections: int) -> None:
        """As ``Attempts.allow``."""

    async def cancel(self, pid: int, secret: bytes, source: str) -> bool:
        """Answer a CancelRequest from ``source``; True where it named a connection, which has dealt with
        it."""
        ...


class Counts:
    """Who has how many connections, by the process that has them; ``process`` is any number."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.attempts = Attempts(clock)
        self._sockets: Counter[int] = Counter()
        self._agents: dict[int, Counter[str]] = {}

    def entered(self, process: int) -> None:
        self._sockets[process] += 1

    def left(self, process: int) -> None:
        self._sockets[process] -= 1

    def crowded(self, most: int) -> bool:
        return self._sockets.total() > most

    def take_place(self, process: int, agent: str, most: int) -> bool:
        if sum(agents[agent] for agents in self._agents.values()) >= most:
            return False
        self._agents.setdefault(process, Counter())[agent] += 1
        return True

    def leave_place(self, process: int, agent: str) -> None:
        agents = self._agents[process]
        agents[agent] -= 1
        if not agents[agent]:
            del agents[agent]

    def forget(self, process: int) -> None:
        """A process is gone, and all it had with it."""
        self._sockets.pop(process, None)
        self._agents.pop(process, None)


class Alone:
    """A process that has no others beside it. ``cancel`` is its own (``CancelRegistry.request``)."""

    def __init__(
        self,
        cancel: Callable[[int, bytes, str], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = Counts(clock)
        self.cancel = cancel

    def entered(self) -> None:
        self._counts.entered(0)

    def left(self) -> None:
        self._counts.left(0)

    async def crowded(self, most: int) -> bool:
        return self._counts.crowded(most)

    async def take_place(self, agent: str, most: int) -> bool:
        return self._counts.take_place(0, agent, most)

    def leave_place(self, agent: str) -> None:
        self._counts.leave_place(0, agent)

    def allow_logins(self, connections: int) -> None:
        self._counts.attempts.allow(connections)

    async def begin_login(self, source: str, user: str) -> float:
        return self._counts.attempts.begin(source, user)

    def login_over(self, source: str, user: str) -> None:
        self._counts.attempts.over(source, user)
