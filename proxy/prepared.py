"""Names of prepared statements, portals and cursors, and the ruling each was given.

One namespace for Parse and SQL PREPARE, as in PostgreSQL. A change holds as soon as its message is forwarded,
so that what follows in the pipeline finds it. Later the server's answer settles it, or it is undone because
the message failed or was skipped: then what the name stood for before is back, unless a message behind the
next Sync has given it another meaning meanwhile. Never forgets a live name: over the limit the connection
ends. Knows no bytes and no policy.
"""

from __future__ import annotations

from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from policy.lineage import Repair
from policy.sandbox import Session as SandboxSession
from policy.sandbox import Tried
from proxy.effects import Values
from proxy.limits import Meter
from proxy.ruling import Price, Ruling

MAX_NAMES: Final = 10_000
"""Statements, portals and cursors per connection."""
LONGEST_NAME: Final = 63
"""Bytes of a name that PostgreSQL tells apart: its tables of statements and portals cut it (NAMEDATALEN)."""
MAX_TEXT: Final = 1 << 26
"""Bytes of the texts of all prepared statements of a connection: one may have a megabyte."""


class Prepared:
    """A prepared statement: its ruling, the newest that it was given, and the parameter types that Parse
    named."""

    __slots__ = ("ruling", "types")

    def __init__(self, ruling: Ruling, types: tuple[int, ...] = ()) -> None:
        self.ruling = ruling
        self.types = types


class TriedBound(NamedTuple):
    """What came of trying a Bind on a clone; ``session`` is as it was then, None where it was not tried;
    ``runs`` how many statements had been let run."""

    outcome: Tried
    session: SandboxSession | None
    runs: int


class Portal:
    """A bound statement: its ruling, the price it was let through at, where one was asked, what it has
    returned, where that is counted, the repair of an earlier refusal that it is, how it was ``tried`` on a
    clone, until it first runs, and the ``values`` it was bound to, where a refusal of it may be repaired."""

    __slots__ = ("meter", "price", "ran", "repair", "ruling", "runs", "since", "tried", "values")

    def __init__(
        self,
        ruling: Ruling,
        price: Price | None = None,
        meter: Meter | None = None,
        repair: Repair | None = None,
        *,
        tried: TriedBound | None = None,
        values: Values | None = None,
    ) -> None:
        self.ruling = ruling
        self.price = price
        self.meter = meter
        self.repair = repair
        self.tried = tried
        self.values = values
        self.ran = False
        """True once an Execute of it was forwarded."""
        self.since = 0
        """How many refusals of this connection could be answered when it was bound."""
        self.runs: tuple[object, ...] = ()
        """What SQL EXECUTE would have run when it was bound."""


class Cursor(Portal):
    """A cursor of DECLARE; ``hold`` for WITH HOLD."""

    __slots__ = ("hold",)

    def __init__(self, ruling: Ruling, hold: bool, price: Price | None = None) -> None:
        super().__init__(ruling, price, Meter())
        self.hold = hold


class NamesError(Exception):
    """A name cannot be kept account of, so the connection ends."""

    sqlstate: ClassVar[str]


class TooManyNames(NamesError):  # noqa: N818 - says what happened
    """A connection holds more names than the proxy keeps track of."""

    sqlstate = "53400"


class ReservedNameError(NamesError):
    """A statement was given the name that none may have: what must fail is what names it."""

    sqlstate = "42939"


Value = TypeVar("Value")


class Change(Generic[Value]):
    """What one message does to one name: ``value`` is what the name stands for then, None for nothing.

    Until it is settled it remembers what was ``before``, which may be a change that is not settled either.
    Changes are settled or undone in the order of their messages, those of one failed run in any order.
    ``segment`` counts the Syncs and Queries before its message: what shares it is skipped where it fails.
    """

    __slots__ = ("_name", "_table", "_undone", "before", "place", "segment", "value")

    def __init__(
        self, table: dict[bytes, Change[Value]], name: bytes, value: Value | None, segment: int
    ) -> None:
        self.value = value
        self.segment = segment
        self.place: int | None = None
        """Which statement of a string makes it, from 0; None where that is not told."""
        self.before = table.get(name)
        self._table = table
        self._name = name
        self._undone = False
        table[name] = self

    @property
    def meaning(self) -> Value | None:
        """What the name stands for; what it stood for where only a removal is not settled, which may fail."""
        return self.value if self.value is not None else self._older

    @property
    def doubtful(self) -> bool:
        """True while the name may stand for one thing or for another."""
        return self.value is not None and not self._undone and self._older is not None

    @property
    def _older(self) -> Value | None:
        change = self.before
        while change is not None and (change._undone or change.value is None):
            change = change.before
        return None if change is None else change.value

    def settle_unseen(self) -> None:
        """The server may have carried the message out or not, and will not say."""
        if self.value is None:
            self.undo()
            return
        if self._older is not None:
            # Nothing may run by a name that means nobody knows what.
            self.value = None
        self.settle()

    def settle(self) -> None:
        """The server has carried the message out."""
        self.before = None
        if self.value is None and self._table.get(self._name) is self:
            del self._table[self._name]

    def undo(self) -> None:
        """The server has not carried it out, and will not."""
        self._undone = True
        newest = self._table.get(self._name)
        while newest is not None and newest._undone:
            newest = newest.before
        if newest is None or (newest.value is None and newest.before is None):
            self._table.pop(self._name, None)
        else:
            self._table[self._name] = newest

    def failed_as_unnamed_parse(self) -> None:
        """A Parse of the unnamed statement has failed; by then the server had dropped the old one."""
        self.value = None
        self.settle()


AnyChange = Change[Prepared] | Change[Portal] | Change[Cursor]


class Names:
    """The prepared statements, portals and cursors of one connection, by name (b"" is the unnamed one)."""

    def __init__(self, limit: int = MAX_NAMES, text_limit: int = MAX_TEXT, *, reserved: bytes = b"") -> None:
        self._statements: dict[bytes, Change[Prepared]] = {}
        self._portals: dict[bytes, Change[Portal]] = {}
        self._cursors: dict[bytes, Change[Cursor]] = {}
        self._strays: dict[bytes, Meter] = {}
        self._reserved = reserved
        self._limit = limit
        self._text_limit = text_limit
        self._text_bytes = 0
        """Of all texts prepared since they were last added up: what was dropped since is in it."""
        self._segment = 0

    def next_segment(self) -> None:
        """A Sync or a Query was forwarded: what follows runs whether or not what was before failed."""
        self._segment += 1

    @property
    def bound_here(self) -> bool:
        """Whether a portal was bound since the last Sync or Query, or is yet to be closed."""
        return any(change.segment == self._segment for change in self._portals.values())

    def settled_statement(self, name: bytes) -> Prepared | None:
        """What ``name`` stands for, where that is one thing and was nothing else before; else ask further."""
        found = self._statements.get(name[:LONGEST_NAME])
        return found.value if found is not None and found.before is None else None

    def settled_portal(self, name: bytes) -> Portal | None:
        """The same of a portal's name."""
        found = self._portals.get(name[:LONGEST_NAME])
        return found.value if found is not None and found.before is None else None

    def statement(self, name: bytes) -> Prepared | None:
        """What was prepared under ``name``, and may be there still."""
        found = self._statements.get(name[:LONGEST_NAME])
        return None if found is None else found.meaning

    def portal(self, name: bytes) -> Portal | None:
        """What Execute of portal or cursor ``name``, or FETCH from it, runs."""
        name = name[:LONGEST_NAME]
        opened = self._portals.get(name)
        portal = None if opened is None else opened.meaning
        if portal is not None:
            return portal
        declared = self._cursors.get(name)
        return None if declared is None else declared.meaning

    def meter(self, name: bytes) -> Meter:
        """What FETCH from ``name`` has returned: it may also be a portal that a function opened."""
        name = name[:LONGEST_NAME]
        portal = self.portal(name)
        if portal is not None and portal.meter is not None:
            return portal.meter
        if name not in self._strays:
            self._make_room(False)
        return self._strays.setdefault(name, Meter())

    def doubt(self, statement: bytes) -> AnyChange | None:
        """The change that leaves two meanings to a statement's name, both open to what is sent now."""
        return self._doubt(self._statements.get(statement[:LONGEST_NAME]))

    def portal_doubt(self, portal: bytes) -> AnyChange | None:
        """The same of a portal's name."""
        return self._doubt(self._portals.get(portal[:LONGEST_NAME]))

    def cursor_doubt(self, name: bytes) -> AnyChange | None:
        """The same of what FETCH from ``name`` reads."""
        name = name[:LONGEST_NAME]
        return self._doubt(self._portals.get(name)) or self._doubt(self._cursors.get(name))

    def _doubt(self, change: AnyChange | None) -> AnyChange | None:
        if change is None or change.before is None or change.segment == self._segment:
            return None
        return change if change.doubtful else None

    def prepare(self, name: bytes, prepared: Prepared) -> Change[Prepared]:
        """Parse or PREPARE is to be forwarded. Raises NamesError where it may not be."""
        name = name[:LONGEST_NAME]
        if name and name == self._reserved:
            raise ReservedNameError("a statement may not have this name")
        self._make_room(name in self._statements)
        self._text_bytes += len(prepared.ruling.text)
        if self._text_bytes > self._text_limit:
            self._add_up(len(prepared.ruling.text))
        return Change(self._statements, name, prepared, self._segment)

    def forget(self, name: bytes) -> Change[Prepared]:
        """Close or DEALLOCATE was forwarded, or a Parse of the unnamed statement that has to fail."""
        return Change(self._statements, name[:LONGEST_NAME], None, self._segment)

    def forget_all(self) -> list[Change[Prepared]]:
        """DEALLOCATE ALL or DISCARD ALL was forwarded. The unnamed statement outlives both
        (DropAllPreparedStatements in prepare.c), unless they come in a Query, which drops it."""
        live = [name for name, change in self._statements.items() if name and change.value is not None]
        return [self.forget(name) for name in live]

    def open(self, name: bytes, portal: Portal) -> Change[Portal]:
        """Bind was forwarded. A stale portal is harmless: the server knows better.

        Undoing matters: a portal from before a savepoint outlives a Bind of the same name that fails.
        """
        name = name[:LONGEST_NAME]
        self._make_room(name in self._portals)
        return Change(self._portals, name, portal, self._segment)

    def close(self, name: bytes) -> list[AnyChange]:
        """Close of a portal or CLOSE of a cursor was forwarded: to the server they are one."""
        name = name[:LONGEST_NAME]
        return [
            Change(self._portals, name, None, self._segment),
            Change(self._cursors, name, None, self._segment),
        ]

    def declare(self, name: bytes, ruling: Ruling, hold: bool, price: Price | None = None) -> Change[Cursor]:
        self._make_room(name in self._cursors)
        return Change(self._cursors, name, Cursor(ruling, hold, price), self._segment)

    def vacate(self, name: bytes) -> list[AnyChange]:
        """DECLARE was forwarded: a portal of that name, if one is known still, is gone, or DECLARE fails."""
        return [Change(self._portals, name, None, self._segment)] if name in self._portals else []

    def transaction_ended(self) -> None:
        """No portal outlives its transaction, nor a cursor that was not declared WITH HOLD.

        To be called when nothing is owed, hence when every change is settled.
        """
        self._portals.clear()
        self._strays.clear()
        if self._cursors:
            held = {
                name: change for name, change in self._cursors.items() if change.value and change.value.hold
            }
            self._cursors.clear()
            self._cursors.update(held)

    def _add_up(self, more: int) -> None:
        live = (change.meaning for change in self._statements.values())
        self._text_bytes = more + sum(len(found.ruling.text) for found in live if found is not None)
        if self._text_bytes > self._text_limit:
            raise TooManyNames(f"more than {self._text_limit} bytes of prepared statements on one connection")

    def _make_room(self, known: bool) -> None:
        kept = len(self._statements) + len(self._portals) + len(self._cursors) + len(self._strays)
        if not known and kept >= self._limit:
            raise TooManyNames(f"more than {self._limit} prepared statements and portals on one connection")
