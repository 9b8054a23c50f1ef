"""Attempts to log in: how many may fail before the next one has to wait, and what of it the log is told.

Owns the bounds. Guesses are counted by address and name together: behind a balancer everybody has one
address, and one agent's wrong password is not to keep another out. An attempt that is under way counts as
failed until it is not, else a thousand at once would all be the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from proxy.config import MAX_NAME_BYTES
from proxy.handshake import DisprovedError, RefusedError
from proxy.throttle import Lines, Throttle

_GUESSES: Final = 100
"""Attempts that one agent may make from one address at once, beside the connections it may have."""
_GUESSES_PER_SECOND: Final = 1.0
LONGEST_WAIT_S: Final = 5.0


class Attempts:
    """How often each agent has failed of late at each address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.throttle = Throttle(_GUESSES, _GUESSES_PER_SECOND, clock=clock)

    def allow(self, connections: int) -> None:
        """Let an agent begin that many connections at once: the most that any one may have."""
        self.throttle.free = _GUESSES + connections

    def begin(self, source: str, user: str) -> float:
        """Seconds that an attempt has to wait, which counts as failed until it is ``over`` without that. One
        that would have to wait too long (``LONGEST_WAIT_S``) does not count: it is not to be made."""
        key = (source, user)
        wait_s = self.throttle.wait_s(key)
        if wait_s <= LONGEST_WAIT_S:
            self.throttle.add(key)
        return wait_s

    def over(self, source: str, user: str) -> None:
        """An attempt that was begun has not failed."""
        self.throttle.add((source, user), -1)


class Counting(Protocol):
    """Who counts attempts, in this process or another."""

    async def begin_login(self, source: str, user: str) -> float:
        """As ``Attempts.begin``."""
        ...

    def login_over(self, source: str, user: str) -> None:
        """As ``Attempts.over``."""
        ...


class Logins:
    """Every attempt that one process sees, counted by ``counting``."""

    def __init__(self, counting: Counting, clock: Callable[[], float] = time.monotonic) -> None:
        self._counting = counting
        self._disproved = Lines(1, 1 / 60, clock=clock)
        self._lines = Lines(_GUESSES, 1, clock=clock)

    @contextlib.asynccontextmanager
    async def attempt(self, source: str, user: str) -> AsyncIterator[None]:
        """One attempt of ``user`` at the address ``source``, whose outcome is that of the block.

        After too many failures it begins later, and after far too many not at all: raises RefusedError.
        """
        name = user[:MAX_NAME_BYTES]
        wait_s = await self._counting.begin_login(source, name)
        if wait_s > LONGEST_WAIT_S:
            raise RefusedError(
                f'too many failed logins for user "{user}" from this address; try again later', "53300"
            )
        try:
            if wait_s:
                await asyncio.sleep(wait_s)
            yield
        except DisprovedError:
            raise
        except BaseException:
            self._counting.login_over(source, name)
            raise
        self._counting.login_over(source, name)

    def to_tell(self, source: str, refusal: RefusedError | None = None) -> dict[str, int] | None:
        """Whether the log is to have a line on a connection that came to nothing: None, or fields to add.

        One line for a burst of like failures of one agent, and no flood of lines whatever an address does.
        """
        left_out = 0
        if isinstance(refusal, DisprovedError):
            told = self._disproved.admit((source, refusal.user, refusal.reason))
            if told is None:
                return None
            left_out = told
        told = self._lines.admit(source)
        if told is None:
            return None
        left_out += told
        return {"left_out": left_out} if left_out else {}
