"""The records that wait to be written, and the lines that are made of them.

Owns the queue, what it may hold, and when a line is made of a record. Who waits for room and who writes is
``audit``'s. ``offer``, ``add`` and ``add_line`` are for one thread, the event loop's, ``take`` and ``done``
for another, the writer's: each counter has one writer, so neither needs a lock.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from proxy.audit_line import ConnectionIdentity, Renderer
from proxy.audit_links import Links
from proxy.effects import AuditEntry

RECORD_BYTES: Final = 1024
"""What a queued record is counted as, beside the characters of its statement."""
AT_ONCE: Final = 512
"""Characters of a statement up to which its line, the first time, is made at once."""


class _Waiting:
    """A record, or the line of one, and what it is counted as."""

    __slots__ = ("at", "entry", "identity", "line", "weight")

    def __init__(
        self,
        weight: int,
        line: str,
        at: float,
        entry: AuditEntry | None,
        identity: ConnectionIdentity | None,
    ) -> None:
        self.weight = weight
        self.line = line
        self.at = at
        self.entry = entry
        self.identity = identity


class Queue:
    """Records and lines in their order; ``capacity`` is in bytes.

    ``taken`` counts the bytes that have come so far, ``written`` those of them that are done with.
    """

    def __init__(self, renderer: Renderer, capacity: int) -> None:
        self._renderer = renderer
        self._capacity = capacity
        self._waiting: deque[_Waiting] = deque()
        self._batch: list[_Waiting] = []
        self.taken = 0
        self.written = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._batch)

    def fits(self, weight: int) -> bool:
        """Whether ``weight`` bytes may be added; a record larger than the queue may once that is empty."""
        waits = self.taken - self.written
        return waits + weight <= self._capacity or waits == 0

    def offer(self, entry: AuditEntry, identity: ConnectionIdentity) -> bool:
        """Add a record of now, where it fits."""
        decision = entry.decision
        length = len(decision.query.sql)
        weight = RECORD_BYTES + length
        if not self.fits(weight):
            return False
        at = time.time()
        self.taken += weight
        if length > AT_ONCE or self._renderer.knows(decision):
            self._waiting.append(_Waiting(weight, "", at, entry, identity))
        else:
            # Kept as it is, what its facts hold would wait with it, far more than it is counted as.
            line = self._renderer.render(at, entry, identity)
            self._waiting.append(_Waiting(weight, line, at, None, None))
        return True

    def add_line(self, line: str, weight: int) -> None:
        """Add a line that is made already, whether it fits or not."""
        self.taken += weight
        self._waiting.append(_Waiting(weight, line, 0.0, None, None))

    def take(self, most: int) -> list[str]:
        """The lines of the oldest records, ``most`` at the most: of the same as before, until ``done``."""
        while len(self._batch) < most and self._waiting:
            self._batch.append(self._waiting.popleft())
        return [self._line(each) for each in self._batch]

    def done(self) -> None:
        """What was taken is written."""
        weight = 0
        for each in self._batch:
            weight += each.weight
        self._batch = []
        self.written += weight

    def _line(self, waiting: _Waiting) -> str:
        if waiting.entry is None or waiting.identity is None:
            return waiting.line
        return self._renderer.render(waiting.at, waiting.entry, waiting.identity)


def chained(lines: list[str], links: Links) -> bytes:
    """``lines`` as the next ones of a run, in one piece."""
    return b"".join([links.link(line) for line in lines])
