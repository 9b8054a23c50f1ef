"""A proxy of one process as its admin port shows it.

Owns the wiring between what is known in different places (server, audit, reloads) and the admin port.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.admin import AdminPort, Pages
from proxy.audit import Audit
from proxy.config import Admin, Statements
from proxy.health import Facts, Health, LastReload
from proxy.metrics import CONTENT_TYPE, Gauges, Page
from proxy.observed import Observed
from proxy.server import Server, Sink


class Overview:
    """What is made for an admin port: ``meters`` and ``sink`` go to the server, then ``port`` shows both.

    ``audit`` None where no file is kept.
    """

    def __init__(self, admin: Admin, sink: Sink, audit: Audit | None, statements: Statements) -> None:
        observed = Observed(sink, statements)
        self.sink: Sink = observed
        self.meters = observed.meters
        self._admin = admin
        self._audit = audit
        self._recent = observed.recent

    def port(self, server: Server, last_reload: Callable[[], LastReload | None]) -> AdminPort:
        """The port, not listening yet."""

        async def facts() -> Facts:
            policies = tuple(policy.name for policy in server.config.policies)
            audit = None if self._audit is None else self._audit.state
            return Facts(
                server.draining,
                policies,
                server.catalogs,
                audit,
                last_reload(),
                turned_away=server.turned_away,
            )

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

        async def metrics() -> tuple[bytes, str]:
            return page.render(), CONTENT_TYPE

        async def decisions(limit: int) -> list[str]:
            return [told.line for told in self._recent.newest(limit)]

        return AdminPort(self._admin, Pages(Health(facts, lambda: server.endpoint), metrics, decisions))
