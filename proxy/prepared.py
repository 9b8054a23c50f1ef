"""Names of prepared statements, portals and cursors, and the ruling each was given.

One namespace for Parse and SQL PREPARE, as in PostgreSQL. A change holds as soon as its message is forwarded,
so that what follows in the pipeline finds it, and is undone if the server turns out to have skipped it. Never
forgets a live name: over the limit the connection ends. Knows no bytes and no policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from proxy.gate import Price, Ruling

MAX_NAMES: Final = 10_000
"""Statements, portals and cursors per connection."""

Undo = Callable[[], None]


class Prepared(NamedTuple):
    """A prepared statement: its ruling, and the parameter types that Parse named."""

    ruling: Ruling
    types: tuple[int, ...] = ()


class Portal(NamedTuple):
    """A bound statement: its ruling, and the price it was let through at, where one was asked."""

    ruling: Ruling
    price: Price | None = None


Value = TypeVar("Value")


class TooManyNames(Exception):  # noqa: N818 - says what happened
    """A connection holds more names than the proxy keeps track of."""

    sqlstate = "53400"


class Names:
    """The prepared statements, portals and cursors of one connection, by name (b"" is the unnamed one)."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self.statements: dict[bytes, Prepared] = {}
        self.portals: dict[bytes, Portal] = {}
        self.cursors: dict[bytes, tuple[Ruling, bool]] = {}
        """Cursors of DECLARE; True for WITH HOLD."""
        self._limit = limit

    def prepare(self, name: bytes, prepared: Prepared) -> Undo:
        """Parse or PREPARE was forwarded. Undoing restores what the name stood for; see ``parse_failed``."""
        old = self.statements.get(name)
        if old is None:
            self._check_limit()
        self.statements[name] = prepared
        return lambda: _restore(self.statements, name, old)

    def parse_failed(self, name: bytes) -> None:
        """A Parse failed in the server, which by then had dropped the old unnamed statement."""
        if not name:
            self.statements.pop(name, None)

    def forget(self, name: bytes) -> Undo:
        """Close or DEALLOCATE was forwarded."""
        old = self.statements.pop(name, None)
        return lambda: _restore(self.statements, name, old)

    def forget_all(self) -> Undo:
        """DEALLOCATE ALL or DISCARD ALL was forwarded."""
        old, self.statements = self.statements, {}
        return lambda: self.statements.update(old)

    def open(self, name: bytes, portal: Portal) -> Undo:
        """Bind was forwarded. A stale portal is harmless: the server knows better.

        Undoing matters: a portal from before a savepoint outlives a Bind of the same name that fails.
        """
        old = self.portals.get(name)
        if old is None:
            self._check_limit()
        self.portals[name] = portal
        return lambda: _restore(self.portals, name, old)

    def close(self, name: bytes) -> Undo:
        """Close of a portal or CLOSE of a cursor was forwarded: to the server they are one."""
        portal, cursor = self.portals.pop(name, None), self.cursors.pop(name, None)

        def undo() -> None:
            _restore(self.portals, name, portal)
            _restore(self.cursors, name, cursor)

        return undo

    def declare(self, cursor: bytes, ruling: Ruling, hold: bool) -> None:
        if cursor not in self.cursors:
            self._check_limit()
        self.cursors[cursor] = (ruling, hold)

    def portal(self, name: bytes) -> Portal | None:
        """What Execute of portal or cursor ``name`` runs."""
        found = self.portals.get(name)
        if found is None and name in self.cursors:
            found = Portal(self.cursors[name][0])
        return found

    def transaction_ended(self) -> None:
        """No portal outlives its transaction, nor a cursor that was not declared WITH HOLD."""
        self.portals.clear()
        if self.cursors:
            self.cursors = {name: cursor for name, cursor in self.cursors.items() if cursor[1]}

    def _check_limit(self) -> None:
        if len(self.statements) + len(self.portals) + len(self.cursors) >= self._limit:
            raise TooManyNames(f"more than {self._limit} prepared statements and portals on one connection")


def _restore(names: dict[bytes, Value], name: bytes, old: Value | None) -> None:
    if old is None:
        names.pop(name, None)
    else:
        names[name] = old
