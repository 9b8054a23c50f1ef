"""Who has a turn left: the lineages of a process, and the seam for stores that several processes share.

Owns the ``Ledger`` protocol, the steps common to every store, and ``MemoryLedger`` for one process;
``ledger_sqlite`` serves the workers of one machine, ``ledger_redis`` those of several. Knows nothing of
sockets: a scope and a connection are opaque texts (``lineage.scope_key``).

A turn is taken when the statement is let through, not when it is done, so that of two workers with the same
repair one is refused. A repair whose outcome is never told, because its connection ended first, keeps its
turn: it may have run.

How a lineage ended is told once, by whichever process ends it: the one whose change of the store it was. A
window that is over ends it at the next look at its scope, or at the next ``sweep``.
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from policy.likeness import Effort
from policy.lineage import (
    Again,
    CloseOut,
    Considered,
    Ending,
    Halted,
    Lineage,
    NotAnAnswer,
    Outcome,
    Repair,
    after,
    answers,
    ended,
    reweigh,
    weigh,
)
from policy.model import RepairRules
from policy.repair import Attempt, Finding
from policy.sandbox import Tried

MAX_LINEAGES: Final = 256
"""Lineages of one scope. Beyond it the oldest that still has its turn gives way; where none has, no other is
opened, because a turn that was spent is not to come back by a flood of others."""

AT_ONCE: Final = 1024
"""Bytes of a statement, times one more than the lineages it is compared with, up to which a ledger in memory
answers at once. To read and to compare one takes 1 to 4 microseconds a byte."""

Lineages = dict[str, Lineage]

T = TypeVar("T")


class LedgerUnavailableError(Exception):
    """The store cannot be reached or read, so nobody knows whose turn it is: no repair is let through."""


class Ledger(Protocol):
    """Turns of repairs. ``now`` is in seconds since the epoch. All may raise ``LedgerUnavailableError``."""

    @property
    def waits(self) -> bool:
        """Whether any answer may take long enough to be waited for in another thread."""
        ...

    def takes_time(self, scope: str, size: int) -> bool:
        """Whether it does of a statement of ``size`` bytes, also where ``waits`` is False; cheap."""
        ...

    @property
    def down(self) -> bool:
        """Whether the store is known not to answer now: a turn opened now would be forgotten."""
        ...

    def has_open(self, scope: str) -> bool:
        """Whether ``consider`` could say anything but ``NotAnAnswer`` for ``scope``; cheap."""
        ...

    def open(
        self,
        scope: str,
        connection: str,
        first: Attempt,
        finding: Finding,
        *,
        now: float,
        rules: RepairRules,
        watch: bool = False,
        tried: Tried | None = None,
        name: str | None = None,
    ) -> str | None:
        """Open a lineage for the refusal of ``first``; its id, or None where ``rules`` grant no turn, or the
        scope has as many spent ones as are kept.

        ``watch`` for one that grants no repair (``lineage.watches``); ``tried`` as in ``Lineage``. ``name``
        is the id it is to have, one that is no other's; None: the ledger gives it one.
        Only for a refusal that is no answer itself: what ``consider`` called a repair or halted opens none.
        """
        ...

    def consider(self, scope: str, connection: str, made: Attempt, now: float) -> Considered:
        """What ``made`` is to the open lineages, before it is let through. Takes the turn it needs.

        To be asked whatever the gate says of the statement: a repair that the gate rejects has had its turn.
        """
        ...

    def recheck(self, repair: Repair, made: Attempt, now: float) -> Considered:
        """Compare a repair again whose values are now bound. Takes no further turn."""
        ...

    def settled(
        self,
        repair: Repair,
        outcome: Outcome,
        now: float,
        again: Again | None = None,
        tried: Tried | None = None,
    ) -> CloseOut | None:
        """Say what became of a repair; the close-out record where that ended its lineage.

        ``again`` and ``tried`` as in ``lineage.after``.
        """
        ...


class Store(Ledger, Protocol):
    """A ledger as its owner sees it. ``on_closed`` is called with each record, in whatever thread ended the
    lineage; None: nobody wants to know."""

    on_closed: Callable[[CloseOut], None] | None

    def sweep(self, now: float) -> None:
        """Forget every lineage whose window is over at ``now``."""
        ...


class Book(ABC):
    """What every store does alike, within an exclusive change of one scope's lineages."""

    waits = True
    down = False
    on_closed: Callable[[CloseOut], None] | None = None

    @abstractmethod
    def _change(self, scope: str, now: float, change: Callable[[Lineages], T]) -> T:
        """What ``change`` makes of the lineages of ``scope``, those that are over at ``now`` among them.

        Nobody else changes them meanwhile; a store that finds that somebody did calls ``change`` again, on
        what there is then.
        """

    def takes_time(self, scope: str, size: int) -> bool:  # noqa: ARG002 - the seam's
        return True

    @abstractmethod
    def has_open(self, scope: str) -> bool: ...

    @abstractmethod
    def sweep(self, now: float) -> None: ...

    def _changed(self, scope: str, now: float, change: Callable[[Lineages, list[CloseOut]], T]) -> T:
        """What ``change`` makes of the lineages that are not over; it adds the records of those it ends."""

        def without_those_over(lineages: Lineages) -> tuple[T, list[CloseOut]]:
            closed = take_over(lineages, now)
            return change(lineages, closed), closed

        result, closed = self._change(scope, now, without_those_over)
        self._report(closed)
        return result

    def _report(self, closed: Iterable[CloseOut]) -> None:
        if self.on_closed is not None:
            for record in closed:
                self.on_closed(record)

    def open(
        self,
        scope: str,
        connection: str,
        first: Attempt,
        finding: Finding,
        *,
        now: float,
        rules: RepairRules,
        watch: bool = False,
        tried: Tried | None = None,
        name: str | None = None,
    ) -> str | None:
        if rules.turns < 1:
            return None
        made = Lineage(
            id=name or new_id(),
            scope=scope,
            connection=connection,
            first=first,
            finding=finding,
            opened=now,
            until=now + rules.window_s,
            turns_left=0 if watch else rules.turns,
            watch=watch,
            tried=tried,
        )

        def add(lineages: Lineages, closed: list[CloseOut]) -> str | None:
            while len(lineages) >= MAX_LINEAGES:
                oldest = min(filter(_may_go, lineages.values()), key=lambda each: each.opened, default=None)
                if oldest is None:
                    return None
                del lineages[oldest.id]
                closed.extend(_known(ended(oldest, Ending.SUPERSEDED, now)))
            lineages[made.id] = made
            return made.id

        return self._changed(scope, now, add)

    def consider(self, scope: str, connection: str, made: Attempt, now: float) -> Considered:
        if not self.has_open(scope):
            return NotAnAnswer()

        def take(lineages: Lineages, closed: list[CloseOut]) -> Considered:
            considered, changed = weigh(lineages.values(), connection, made, now)
            if changed is not None and changed.until > now:
                lineages[changed.id] = changed
            elif changed is not None:
                del lineages[changed.id]
            closed.extend(_known(considered.record if isinstance(considered, Halted) else None))
            return considered

        return self._changed(scope, now, take)

    def recheck(self, repair: Repair, made: Attempt, now: float) -> Considered:
        def compare(lineages: Lineages, closed: list[CloseOut]) -> Considered:
            considered, changed = reweigh(lineages.get(repair.lineage), made, now)
            if changed is not None:
                lineages[changed.id] = changed
            closed.extend(_known(considered.record if isinstance(considered, Halted) else None))
            return considered

        return self._changed(repair.scope, now, compare)

    def settled(
        self,
        repair: Repair,
        outcome: Outcome,
        now: float,
        again: Again | None = None,
        tried: Tried | None = None,
    ) -> CloseOut | None:
        def close(lineages: Lineages, closed: list[CloseOut]) -> CloseOut | None:
            lineage = lineages.get(repair.lineage)
            if lineage is None:
                return None
            kept, record = after(lineage, outcome, now, again, tried)
            if kept is None:
                del lineages[lineage.id]
            else:
                lineages[kept.id] = kept
            closed.extend(_known(record))
            return record

        return self._changed(repair.scope, now, close)


class MemoryLedger(Book):
    """Lineages of one process. ``has_open`` is one look-up.

    To compare statements takes long where they are large or many. It is done without the lock, on what there
    is at the time, and again where somebody has changed the same lineage meanwhile: no thread waits for what
    another compares. What else was opened or ended by then came after it.
    """

    waits = False

    def __init__(self) -> None:
        self._scopes: dict[str, Lineages] = {}
        self._lock = threading.Lock()

    def takes_time(self, scope: str, size: int) -> bool:
        return size * (1 + len(self._scopes.get(scope, ()))) > AT_ONCE

    def has_open(self, scope: str) -> bool:
        return scope in self._scopes

    def answered(self, scope: str, connection: str, made: Attempt, now: float) -> bool:
        """Whether ``made`` answers a lineage. Takes no turn."""
        with self._lock:
            lineages = list(self._scopes.get(scope, {}).values())
        effort = Effort()
        return any(answers(each, connection, made, effort) for each in lineages if each.until > now)

    def sweep(self, now: float) -> None:
        with self._lock:
            scopes = list(self._scopes)
        for scope in scopes:
            self._changed(scope, now, _as_they_are)

    def forget(self, now: float) -> None:
        """End every lineage: with the process nobody can answer any more."""
        with self._lock:
            scopes, self._scopes = self._scopes, {}
        left = [each for lineages in scopes.values() for each in lineages.values()]
        self._report(record for each in left for record in _known(ended(each, Ending.ABANDONED, now)))

    def _change(self, scope: str, now: float, change: Callable[[Lineages], T]) -> T:  # noqa: ARG002 - the seam's
        while True:
            # What a scope holds is replaced and never changed.
            before = self._scopes.get(scope, {})
            lineages = dict(before)
            result = change(lineages)
            changed = [each for each in before | lineages if lineages.get(each) is not before.get(each)]
            with self._lock:
                now_there = dict(self._scopes.get(scope, {}))
                if any(now_there.get(each) is not before.get(each) for each in changed):
                    continue
                for each in changed:
                    now_there.pop(each, None)
                now_there |= {each: lineages[each] for each in changed if each in lineages}
                if now_there:
                    self._scopes[scope] = now_there
                else:
                    self._scopes.pop(scope, None)
            return result


def new_id() -> str:
    """An id that no lineage has, of any process."""
    return secrets.token_hex(8)


def _as_they_are(lineages: Lineages, closed: list[CloseOut]) -> None:
    """Leave what is not over."""


def take_over(lineages: Lineages, now: float) -> list[CloseOut]:
    """Take those out of ``lineages`` that are over at ``now``; the records of those that had not ended."""
    over = [lineages.pop(each.id) for each in list(lineages.values()) if each.until <= now]
    return [record for each in over for record in _known(ended(each, Ending.ABANDONED, now))]


def _known(record: CloseOut | None) -> tuple[CloseOut, ...]:
    return () if record is None else (record,)


def _may_go(lineage: Lineage) -> bool:
    return lineage.turns_left > 0 or (lineage.watch and lineage.halt is None)
