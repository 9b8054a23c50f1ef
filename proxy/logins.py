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
from typing import Final

from proxy.config import MAX_NAME_BYTES
from proxy.handshake import DisprovedError, RefusedError
from proxy.throttle import Lines, Throttle

_GUESSES: Final = 100
"""Attempts that one agent may make from one address at once, beside the connections it may have."""
_GUESSES_PER_SECOND: Final = 1.0
_LONGEST_WAIT_S: Final = 5.0


class Logins:
    """Every attempt of one process. ``connections`` is the most that any one agent may have."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempts = Throttle(_GUESSES, _GUESSES_PER_SECOND, clock=clock)
        self._disproved = Lines(1, 1 / 60, clock=clock)
        self._lines = Lines(_GUESSES, 1, clock=clock)

    def allow(self, connections: int) -> None:
        """Let an agent begin that many connections at once."""
        self._attempts.free = _GUESSES + connections

    @contextlib.asynccontextmanager
    async def attempt(self, source: str, user: str) -> AsyncIterator[None]:
        """One attempt of ``user`` at the address ``source``, whose outcome is that of the block.

        After too many failures it begins later, and after far too many not at all: raises RefusedError.
        """
        key = (source, user[:MAX_NAME_BYTES])
        wait_s = self._attempts.wait_s(key)
        if wait_s > _LONGEST_WAIT_S:
            raise RefusedError(
                f'too many failed logins for user "{user}" from this address; try again later', "53300"
            )
        self._attempts.add(key)
        try:
            if wait_s:
                await asyncio.sleep(wait_s)
            yield
        except DisprovedError:
            raise
        except BaseException:
            self._attempts.add(key, -1)
            raise
        self._attempts.add(key, -1)

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
