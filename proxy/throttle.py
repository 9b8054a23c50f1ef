"""How often somebody may do a thing, counted by who does it, in bounded memory.

Owns the arithmetic alone: what is counted, and what follows from too much of it, is the caller's. Whoever
makes up names to be forgotten by has to make up as many as are remembered.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

_KEYS: Final = 4096


class Throttle:
    """``free`` times at once, and ``per_second`` after that; whatever was not done for long is forgotten."""

    def __init__(
        self,
        free: float,
        per_second: float,
        *,
        keys: int = _KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.free = free
        self._per_second = per_second
        self._keys = keys
        self._clock = clock
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: Hashable, count: float = 1.0) -> None:
        """Count once more; a negative ``count`` takes back."""
        total = self._count(key) + count
        self._counts.pop(key, None)
        if total > 0:
            self._counts[key] = (total, self._clock())
        if len(self._counts) > self._keys:
            self._counts.popitem(last=False)

    def wait_s(self, key: Hashable) -> float:
        """Seconds until one more is within bounds; 0 where it is."""
        return max(0.0, (self._count(key) + 1 - self.free) / self._per_second)

    def _count(self, key: Hashable) -> float:
        count, since = self._counts.get(key, (0.0, 0.0))
        return max(0.0, count - (self._clock() - since) * self._per_second)


class Lines:
    """Which of many like lines a log gets: those that a throttle lets through."""

    def __init__(
        self, free: float, per_second: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._throttle = Throttle(free, per_second, clock=clock)
        self._left_out: OrderedDict[Hashable, int] = OrderedDict()

    def admit(self, key: Hashable) -> int | None:
        """None where the line is to be left out, else how many of its like were since the last one."""
        if self._throttle.wait_s(key) > 0:
            self._left_out[key] = self._left_out.pop(key, 0) + 1
            if len(self._left_out) > _KEYS:
                self._left_out.popitem(last=False)
            return None
        self._throttle.add(key)
        return self._left_out.pop(key, 0)
