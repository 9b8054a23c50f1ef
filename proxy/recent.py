"""The latest decisions of a process, for whoever looks in.

Owns a bounded ring of audit records and nothing of how a line looks (``audit_line``): a record becomes text
only when somebody asks. Bounded by number and by the size of the statements, so that an agent with long
statements costs no more memory than one with short ones.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final, NamedTuple

from proxy.audit_line import ConnectionIdentity, Renderer
from proxy.config import Statements
from proxy.effects import AuditEntry

MAX_RECORDS: Final = 1000
MAX_CHARACTERS: Final = 2 * 1024 * 1024
"""Of the statements kept, with their trees many times that in bytes."""

_Kept = tuple[float, AuditEntry, ConnectionIdentity]


class Told(NamedTuple):
    """An audit line without its line feed, and when its outcome was known, in seconds since the epoch."""

    at: float
    line: str


class Recent:
    """The last decisions. ``statements``: how much of their text is told, as in the audit file."""

    def __init__(
        self, statements: Statements, *, records: int = MAX_RECORDS, characters: int = MAX_CHARACTERS
    ) -> None:
        self._renderer = Renderer(statements)
        self._records = records
        self._characters = characters
        self._kept: deque[_Kept] = deque()
        self._held = 0

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        """One decision whose outcome is known; ``entry`` must not change any more."""
        kept = self._kept
        kept.append((time.time(), entry, identity))
        self._held += len(entry.decision.query.sql)
        while len(kept) > self._records or (self._held > self._characters and len(kept) > 1):
            self._held -= len(kept.popleft()[1].decision.query.sql)

    def newest(self, limit: int) -> list[Told]:
        """At most ``limit`` decisions, the newest first."""
        latest = [self._kept[-1 - n] for n in range(min(limit, len(self._kept)))]
        return [Told(each[0], self._renderer.render(*each).rstrip("\n")) for each in latest]
