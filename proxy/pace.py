"""How long the texts of one agent take to judge: whether the next may be judged on the event loop.

Owns that estimate alone. A text of two hundred bytes takes 0.2 to 2 milliseconds, by what it asks: the most
goes into finding what an unknown name could have meant. An agent whose texts take little has them judged at
once, which is the quickest for everybody; one that sends what takes long is judged in a thread, from which
the loop can have the interpreter back. Knows no clock: it is told.
"""

from __future__ import annotations

from typing import Final

AT_ONCE_S: Final = 0.001
"""A text that is expected to take longer is not judged on the event loop, in seconds of the processor."""
MOST_AT_ONCE: Final = 4
"""Texts of one chunk that are judged there."""
_FIXED_S: Final = 0.0001
"""What the smallest text takes."""
_LEAST_S: Final = 0.000_001
_MOST_S: Final = 0.000_010
"""Seconds a byte that a text counts for: 8 microseconds were measured of those made to take long, and what
takes more was the first of its kind, for which something had to be loaded."""
_AT_FIRST_S: Final = 0.000_002
"""Seconds a byte: what an ordinary text takes, and what is assumed before there was one."""
_WEIGHT: Final = 0.125
"""What one text counts for against those before it."""


class Pace:
    """Seconds a byte, as the last texts had it."""

    __slots__ = ("_per_byte_s",)

    def __init__(self) -> None:
        self._per_byte_s = _AT_FIRST_S

    def allows(self, size: int) -> bool:
        """Whether a text of ``size`` bytes is expected to be judged at once."""
        return _FIXED_S + size * self._per_byte_s <= AT_ONCE_S

    def took(self, size: int, seconds: float) -> None:
        """A text of ``size`` bytes took so many seconds of the processor."""
        took = min(max((seconds - _FIXED_S) / max(size, 1), _LEAST_S), _MOST_S)
        self._per_byte_s += _WEIGHT * (took - self._per_byte_s)
