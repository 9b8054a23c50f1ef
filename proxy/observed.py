"""What one process makes of its own decisions for whoever looks in: counts, and the latest of them.

Owns the sink that does both and hands on. How they are shown is ``overview``'s, for a process that is the
whole proxy, or the supervisor's, which asks its workers.
"""

from __future__ import annotations

from policy.lineage import CloseOut
from proxy.audit_line import ConnectionIdentity
from proxy.config import Statements
from proxy.effects import AuditEntry
from proxy.meters import Meters
from proxy.recent import Recent
from proxy.server import Sink


class Observed:
    """A sink that counts and remembers what it hands on."""

    def __init__(self, sink: Sink, statements: Statements) -> None:
        self.meters = Meters()
        self.recent = Recent(statements)
        self._sink = sink
        self._hand_on = sink.record
        self._count = self.meters.record
        self._remember = self.recent.record

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        self._count(entry, identity)
        self._remember(entry, identity)
        self._hand_on(entry, identity)

    def closed(self, record: CloseOut) -> None:
        self.meters.closed(record)
        self._sink.closed(record)
