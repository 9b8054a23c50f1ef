"""One process as its admin port shows it: the sink that counts, and the pages that tell.

Owns the wiring between what is known in different places (server, audit, reloads) and the admin port.
"""

from __future__ import annotations

from collections.abc import Callable

from policy.lineage import CloseOut
from proxy.admin import AdminPort, Pages
from proxy.audit import Audit
from proxy.audit_line import ConnectionIdentity
from proxy.config import Admin, Statements
from proxy.effects import AuditEntry
from proxy.health import Facts, Health, LastReload
from proxy.meters import Meters
from proxy.metrics import CONTENT_TYPE, Gauges, Page
from proxy.recent import Recent
from proxy.server import Server, Sink


class Observed:
    """A sink that counts and remembers what it hands on."""

    def __init__(self, sink: Sink, meters: Meters, recent: Recent) -> None:
        self._sink, self._meters = sink, meters
        self._hand_on = sink.record
        self._count = meters.record
        self._remember = recent.record

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        self._count(entry, identity)
        self._remember(entry, identity)
        self._hand_on(entry, identity)

    def closed(self, record: CloseOut) -> None:
        self._meters.closed(record)
        self._sink.closed(record)


class Overview:
    """What is made for an admin port: ``meters`` and ``sink`` go to the server, then ``port`` shows both.

    ``audit`` None where no file is kept.
    """

    def __init__(self, admin: Admin, sink: Sink, audit: Audit | None, statements: Statements) -> None:
        self.meters = Meters()
        self._admin = admin
        self._audit = audit
        self._recent = Recent(statements)
        self.sink: Sink = Observed(sink, self.meters, self._recent)

    def port(self, server: Server, last_reload: Callable[[], LastReload | None]) -> AdminPort:
        """The port, not listening yet."""

        def facts() -> Facts:
            policies = tuple(policy.name for policy in server.config.policies)
            audit = None if self._audit is None else self._audit.state
            return Facts(server.draining, policies, server.catalogs, audit, last_reload())

        def gauges() -> Gauges:
            reload = last_reload()
            audit = None if self._audit is None else self._audit.state
            return Gauges(
                server.connections,
                server.draining,
                reload is not None and reload.refused is not None,
                None if audit is None else audit.waiting,
                None if audit is None else audit.lost,
                None if audit is None else audit.failing is None,
            )

        page = Page(self.meters, gauges)
        health = Health(facts, lambda: server.endpoint)
        return AdminPort(
            self._admin, Pages(health, lambda: (page.render(), CONTENT_TYPE), self._recent.newest)
        )
