"""Names of prepared statements, portals and cursors, and the ruling each was given.

One namespace for Parse and SQL PREPARE, as in PostgreSQL. A change holds as soon as its message is forwarded,
so that what follows in the pipeline finds it, and is undone if the server turns out to have skipped it. Never
forgets a live name: over the limit the connection ends. Knows no bytes and no policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.gate import Ruling

MAX_NAMES: Final = 10_000
"""Statements, portals and cursors per connection."""

Undo = Callable[[], None]


class TooManyNames(Exception):  # noqa: N818 - says what happened
    """A connection holds more names than the proxy keeps track of."""

    sqlstate = "53400"


class Names:
    """The prepared statements, portals and cursors of one connection, by name (b"" is the unnamed one)."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self.statements: dict[bytes, Ruling] = {}
        self.portals: dict[bytes, Ruling] = {}
        self.cursors: dict[bytes, tuple[Ruling, bool]] = {}
        """Cursors of DECLARE; True for WITH HOLD."""
        self._limit = limit

    def prepare(self, name: bytes, ruling: Ruling) -> Undo:
        """Parse or PREPARE was forwarded. Undoing restores what the name stood for; see ``parse_failed``."""
        old = self.statements.get(name)
        self._check_limit()
        self.statements[name] = ruling
        return lambda: self._restore(name, old)

    def parse_failed(self, name: bytes) -> None:
        """A Parse failed in the server, which by then had dropped the old unnamed statement."""
        if not name:
            self.statements.pop(name, None)

    def forget(self, name: bytes) -> Undo:
        """Close or DEALLOCATE was forwarded."""
        old = self.statements.pop(name, None)
        return lambda: self._restore(name, old)

    def forget_all(self) -> Undo:
        """DEALLOCATE ALL or DISCARD ALL was forwarded."""
        old, self.statements = self.statements, {}
        return lambda: self.statements.update(old)

    def open(self, portal: bytes, ruling: Ruling) -> None:
        """Bind was forwarded. A stale portal is harmless: the server knows better."""
        self._check_limit()
        self.portals[portal] = ruling

    def declare(self, cursor: bytes, ruling: Ruling, hold: bool) -> None:
        self._check_limit()
        self.cursors[cursor] = (ruling, hold)

    def portal(self, name: bytes) -> Ruling | None:
        """The ruling that Execute of portal or cursor ``name`` runs under."""
        found = self.portals.get(name)
        if found is None and name in self.cursors:
            found = self.cursors[name][0]
        return found

    def transaction_ended(self) -> None:
        """No portal outlives its transaction, nor a cursor that was not declared WITH HOLD."""
        self.portals.clear()
        if self.cursors:
            self.cursors = {name: cursor for name, cursor in self.cursors.items() if cursor[1]}

    def _restore(self, name: bytes, old: Ruling | None) -> None:
        if old is None:
            self.statements.pop(name, None)
        else:
            self.statements[name] = old

    def _check_limit(self) -> None:
        if len(self.statements) + len(self.portals) + len(self.cursors) >= self._limit:
            raise TooManyNames(f"more than {self._limit} prepared statements and portals on one connection")
