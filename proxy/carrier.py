"""What is done for every chunk of a connection: the session asked, its usual effects carried out.

Owns the way from a transport through the session to the other transport and to the audit, and nothing else:
whatever happens seldom is ``Aside``'s, which is the relay. It is apart from that because it is compiled with
what it calls (``compiled``). Knows no event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from proxy.audit_line import ConnectionIdentity
from proxy.effects import AuditEntry, Effect, Record, ToBackend, ToFrontend
from proxy.session import Session


class AuditSink(Protocol):
    """Takes the audit record of a decision whose outcome is known; may raise to end the connection."""

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None: ...


class Outlet(Protocol):
    """What the carrier asks of a transport."""

    def write(self, data: bytes, /) -> None: ...


class Aside(Protocol):
    """What the carrier leaves to others."""

    def take(self, effect: Effect, rest: Sequence[Effect]) -> bool:
        """Carry out an effect that is none of the usual ones; True where ``rest``, those behind it, is seen
        to as well."""
        ...

    def heed_overfull(self) -> None:
        """``Session.overfull`` is another than it was, or may be."""
        ...

    def watch(self) -> None:
        """The server has something to do: have the session looked at while it is busy."""
        ...

    def part(self) -> None:
        """The connection is to end, and the server has said something."""
        ...

    def surprised(self, error: Exception) -> None:
        """Something failed: nothing more may pass."""
        ...


class Carrier:
    """One connection's chunks and effects.

    ``to_agent`` and ``to_server`` are set before the first chunk. ``ended``: nothing passes any more.
    ``behind``: effects that wait, to which what follows is added; None while nothing waits. ``identity`` is
    what records are made under. ``idle_watch``: True while ``Aside.watch`` is to be called when something is
    sent to the server. ``overfull``: True while the agent is not read because the session was that.
    ``parting``: ``Aside.part`` is to be called when the server has said something.
    """

    to_agent: Outlet
    to_server: Outlet

    def __init__(
        self, session: Session, audit: AuditSink, identity: ConnectionIdentity, aside: Aside
    ) -> None:
        self._session = session
        self._record = audit.record
        self._aside = aside
        self.identity = identity
        self.ended = False
        self.behind: list[Effect] | None = None
        self.idle_watch = False
        self.overfull = False
        self.parting = False

    def from_agent(self, data: bytes) -> None:
        """A chunk of the agent has come."""
        if self.ended:
            return
        try:
            self.carry_out(self._session.from_frontend(data))
            if self.overfull or self._session.overfull:
                self._aside.heed_overfull()
        except Exception as error:
            self._aside.surprised(error)

    def from_server(self, data: bytes) -> None:
        """A chunk of the server has come."""
        if self.ended:
            return
        try:
            self.carry_out(self._session.from_backend(data))
            if self.overfull:
                self._aside.heed_overfull()
            if self.parting:
                self._aside.part()
        except Exception as error:
            self._aside.surprised(error)

    def carry_out(self, effects: list[Effect]) -> None:
        """Do what the session wants done, in its order; behind what waits already."""
        if self.behind is not None:
            self.behind += effects
            return
        for n, effect in enumerate(effects):
            if isinstance(effect, ToBackend):
                self.to_server.write(effect.data)
                if self.idle_watch:
                    self._aside.watch()
            elif isinstance(effect, ToFrontend):
                self.to_agent.write(effect.data)
            elif isinstance(effect, Record):
                self._record(effect.entry, self.identity)
            elif self._aside.take(effect, effects[n + 1 :]):
                return
