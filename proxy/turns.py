"""Whose turn it is on the event loop: an agent that has much to be dealt with does not keep it from others.

Owns the queue of what has to be gone on with, and how much of what has arrived is dealt with at a time. Knows
no session and no socket. One chunk of a socket may hold ten thousand messages, and a stream that always has
more is read for megabytes without a pause. So whoever has had its share goes on behind what else is ready,
with one share of each agent in each turn of the loop, however many connections it has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

MESSAGES: Final = 128
"""About as many messages are dealt with in one go: half a millisecond of the smallest ones. A pipeline of a
hundred statements takes three."""
BYTES: Final = 128 * 1024
"""So many bytes one stream may bring before others are looked at: half a millisecond of copying."""
FEW: Final = 5 * MESSAGES
"""Bytes that cannot hold more messages than that: each has a type and a length."""
_LEAST: Final = 1024
"""Bytes that are always worth a turn: where most are zeroes, as in numbers of binary form, there seem to be
far more messages than there are."""
_ZEROES: Final = b"\0\0"
"""In the header of every message that is shorter than ``_LONG``, behind its type."""
_LONG: Final = 1 << 16


class Turns:
    """What is to be gone on with, by agent."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def later(self, agent: str, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` when it is the turn of ``agent`` again and what it had before has had its own."""
        waiting = self._waiting.get(agent)
        if waiting is None:
            self._waiting[agent] = deque((go_on,))
            asyncio.get_running_loop().call_soon(self._next, agent)
        else:
            waiting.append(go_on)

    def _next(self, agent: str) -> None:
        waiting = self._waiting[agent]
        go_on = waiting.popleft()
        if waiting:
            asyncio.get_running_loop().call_soon(self._next, agent)
        else:
            del self._waiting[agent]
        go_on()


def share(data: bytes, expected: int = 0) -> int:
    """How many bytes of ``data`` are dealt with at once; ``expected`` of them end a message that has begun.

    By an estimate from above of its messages, spread evenly: where they stand closer at its beginning, more
    of them are dealt with.
    """
    messages = data.count(_ZEROES) + len(data) // _LONG
    if messages <= MESSAGES:
        return len(data)
    return min(len(data), max(len(data) * MESSAGES // messages, expected, _LEAST))
