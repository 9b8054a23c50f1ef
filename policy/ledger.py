"""Who has a turn left: the lineages of a process, and the seam for stores that several processes share.

Owns the ``Ledger`` protocol, the steps common to every store, and ``MemoryLedger`` for one process;
``ledger_sqlite`` serves the workers of one machine, ``ledger_redis`` those of several. Knows nothing of
sockets: a scope and a connection are opaque texts (``lineage.scope_key``).

A turn is taken when the statement is let through, not when it is done, so that of two workers with the same
repair one is refused. A repair whose outcome is never told keeps its turn.
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from policy.lineage import (
    Again,
    CloseOut,
    Considered,
    Lineage,
    NotAnAnswer,
    Outcome,
    Repair,
    after,
    answers,
    reweigh,
    weigh,
)
from policy.model import RepairRules
from policy.repair import Attempt, Finding

MAX_LINEAGES: Final = 256
"""Lineages of one scope. Beyond it the oldest that still has its turn gives way, then the oldest."""

_FEW_SCOPES: Final = 256
"""Scopes among which a process does not look for those that are over."""

Lineages = dict[str, Lineage]

T = TypeVar("T")


class LedgerUnavailableError(Exception):
    """The store cannot be reached or read, so nobody knows whose turn it is: no repair is let through."""


class Ledger(Protocol):
    """Turns of repairs. ``now`` is in seconds since the epoch. All may raise ``LedgerUnavailableError``."""

    @property
    def waits(self) -> bool:
        """Whether an answer may take long enough to be waited for in another thread."""
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
    ) -> str | None:
        """Open a lineage for the refusal of ``first``; its id, or None where ``rules`` grant no turn.

        ``watch`` for one that grants no repair (``lineage.watches``).
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
        self, repair: Repair, outcome: Outcome, now: float, again: Again | None = None
    ) -> CloseOut | None:
        """Say what became of a repair; the close-out record where that ended its lineage.

        ``again`` as in ``lineage.after``.
        """
        ...


class Book(ABC):
    """What every store does alike, within an exclusive change of one scope's lineages."""

    waits = True
    down = False

    @abstractmethod
    def _change(self, scope: str, now: float, change: Callable[[Lineages], T]) -> T:
        """What ``change`` makes of the lineages of ``scope`` that are not over at ``now``.

        Nobody else changes them meanwhile; a store that finds that somebody did calls ``change`` again, on
        what there is then.
        """

    @abstractmethod
    def has_open(self, scope: str) -> bool: ...

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
        name: str | None = None,
    ) -> str | None:
        """As ``Ledger.open``; ``name`` is the id of a lineage that another store has as well."""
        if rules.turns < 1:
            return None
        made = Lineage(
            id=name or secrets.token_hex(8),
            scope=scope,
            connection=connection,
            first=first,
            finding=finding,
            opened=now,
            until=now + rules.window_s,
            turns_left=0 if watch else rules.turns,
            watch=watch,
        )

        def add(lineages: Lineages) -> str:
            while len(lineages) >= MAX_LINEAGES:
                del lineages[min(lineages.values(), key=_first_to_go).id]
            lineages[made.id] = made
            return made.id

        return self._change(scope, now, add)

    def consider(self, scope: str, connection: str, made: Attempt, now: float) -> Considered:
        if not self.has_open(scope):
            return NotAnAnswer()

        def take(lineages: Lineages) -> Considered:
            considered, changed = weigh(lineages.values(), connection, made, now)
            if changed is not None and changed.until > now:
                lineages[changed.id] = changed
            elif changed is not None:
                del lineages[changed.id]
            return considered

        return self._change(scope, now, take)

    def recheck(self, repair: Repair, made: Attempt, now: float) -> Considered:
        def compare(lineages: Lineages) -> Considered:
            considered, changed = reweigh(lineages.get(repair.lineage), made, now)
            if changed is not None:
                lineages[changed.id] = changed
            return considered

        return self._change(repair.scope, now, compare)

    def settled(
        self, repair: Repair, outcome: Outcome, now: float, again: Again | None = None
    ) -> CloseOut | None:
        def close(lineages: Lineages) -> CloseOut | None:
            lineage = lineages.get(repair.lineage)
            if lineage is None:
                return None
            kept, record = after(lineage, outcome, now, again)
            if kept is None:
                del lineages[lineage.id]
            else:
                lineages[kept.id] = kept
            return record

        return self._change(repair.scope, now, close)


class MemoryLedger(Book):
    """Lineages of one process. ``has_open`` is one look-up."""

    waits = False

    def __init__(self) -> None:
        self._scopes: dict[str, Lineages] = {}
        self._lock = threading.Lock()
        self._sweep_at = _FEW_SCOPES

    def has_open(self, scope: str) -> bool:
        return scope in self._scopes

    def answered(self, scope: str, connection: str, made: Attempt, now: float) -> bool:
        """Whether ``made`` answers a lineage. Takes no turn."""
        with self._lock:
            lineages = list(self._scopes.get(scope, {}).values())
        return any(answers(each, connection, made) for each in lineages if each.until > now)

    def _change(self, scope: str, now: float, change: Callable[[Lineages], T]) -> T:
        with self._lock:
            known = self._scopes.get(scope, {})
            lineages = {key: each for key, each in known.items() if each.until > now}
            result = change(lineages)
            if lineages:
                self._scopes[scope] = lineages
            else:
                self._scopes.pop(scope, None)
            if len(self._scopes) > self._sweep_at:
                self._sweep(now)
            return result

    def _sweep(self, now: float) -> None:
        """Forget what is over in scopes that nobody has asked about since."""
        over = [
            key for key, found in self._scopes.items() if all(each.until <= now for each in found.values())
        ]
        for key in over:
            del self._scopes[key]
        self._sweep_at = max(_FEW_SCOPES, 2 * len(self._scopes))


def _first_to_go(lineage: Lineage) -> tuple[bool, float]:
    return lineage.turns_left <= 0, lineage.opened
