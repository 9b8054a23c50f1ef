"""Whether a process is fit to take connections, and if not, why.

Owns the questions behind ``/readyz``. Each answer is a value; how it is sent is ``admin``'s. The backend is
asked at most every ``_HOLDS_S`` seconds, however many ask here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from proxy import backend
from proxy.backend import BackendError, Endpoint

_REACH_S: Final = 2.0
"""How long the database server may take to accept a connection."""
_HOLDS_S: Final = 1.0


class LastReload(NamedTuple):
    """The last time a configuration was read anew: ``at`` in seconds since the epoch, and why it was refused,
    None where it was taken."""

    at: float
    refused: str | None


class AuditState(NamedTuple):
    """``failing`` is why the file takes no lines, None where it does; ``refuses`` whether statements wait for
    it; ``waiting`` bytes are queued, ``lost`` records were given up."""

    failing: str | None
    refuses: bool
    waiting: int
    lost: int


@dataclass(frozen=True, slots=True)
class Readiness:
    """``problems`` are reasons to send agents elsewhere, ``detail`` is for people."""

    problems: tuple[str, ...]
    detail: dict[str, Any]

    @property
    def ready(self) -> bool:
        return not self.problems


class TurnedAway(NamedTuple):
    """The last login for which there was no server, or none that takes sessions; none has succeeded since."""

    role: str
    database: str


class Facts(NamedTuple):
    """What a process knows of itself at the moment. ``catalogs`` says of each database in use whether its
    schema can be read; ``workers`` how many of how many serve, where there are any."""

    draining: bool
    policies: tuple[str, ...]
    catalogs: dict[str, bool]
    audit: AuditState | None
    reload: LastReload | None
    workers: tuple[int, int] | None = None
    turned_away: TurnedAway | None = None


class Health:
    """``facts`` and ``endpoint`` are asked each time; ``reach`` makes a connection and ends it again.

    That a server can be connected to says little: its kernel accepts for one that hangs, and one that starts,
    recovers or shuts down takes no session. Whether it does is asked as well, where a login was turned away,
    and of that login: a question of a role of our own making would be a line in the server's log each time.
    """

    def __init__(
        self,
        facts: Callable[[], Awaitable[Facts]],
        endpoint: Callable[[], Endpoint],
        *,
        reach: Callable[[Endpoint, TurnedAway | None], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = facts
        self._endpoint = endpoint
        self._reach = _connect if reach is None else reach
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked: tuple[float, str | None] | None = None

    async def readiness(self) -> Readiness:
        facts = await self._facts()
        unreachable = await self._unreachable(facts.turned_away)
        problems = []
        if facts.draining:
            problems.append("draining")
        if facts.workers is not None and not facts.workers[0]:
            problems.append("no worker serves")
        if unreachable is not None:
            problems.append(f"backend: {unreachable}")
        if facts.audit is not None and facts.audit.failing is not None and facts.audit.refuses:
            problems.append(f"audit: {facts.audit.failing}")
        return Readiness(tuple(problems), _detail(facts, unreachable))

    async def _unreachable(self, turned_away: TurnedAway | None) -> str | None:
        """Why the database server cannot be had; None where it can."""
        async with self._asking:
            if self._asked is None or self._clock() - self._asked[0] >= _HOLDS_S:
                self._asked = (self._clock(), await self._ask(turned_away))
            return self._asked[1]

    async def _ask(self, turned_away: TurnedAway | None) -> str | None:
        try:
            async with asyncio.timeout(_REACH_S):
                await self._reach(self._endpoint(), turned_away)
        except BackendError as error:
            return str(error)
        except TimeoutError:
            return "no answer in time"
        return None


async def _connect(endpoint: Endpoint, turned_away: TurnedAway | None) -> None:
    stream = await backend.connect(endpoint)
    try:
        if turned_away is not None:
            await backend.takes_sessions(stream, turned_away.role, turned_away.database)
    finally:
        stream.close()


def _detail(facts: Facts, unreachable: str | None) -> dict[str, Any]:
    audit = facts.audit
    return {
        "backend": {"reachable": unreachable is None, "error": unreachable},
        "policies": list(facts.policies),
        "catalogs": {name: "readable" if read else "unreadable" for name, read in facts.catalogs.items()},
        "audit": None
        if audit is None
        else {"writable": audit.failing is None, "error": audit.failing, "lost": audit.lost},
        # A refused reload is no reason to send agents elsewhere: what is served is the last good one.
        "reload": None
        if facts.reload is None
        else {"at": facts.reload.at, "taken": facts.reload.refused is None, "error": facts.reload.refused},
        "draining": facts.draining,
        **_workers(facts),
    }


def _workers(facts: Facts) -> dict[str, Any]:
    if facts.workers is None:
        return {}
    serving, of = facts.workers
    return {"workers": {"serving": serving, "of": of}}
