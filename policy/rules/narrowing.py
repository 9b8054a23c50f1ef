"""What tautology-predicate and weak-predicate share: judging the condition of every write of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policy.facts import Facts, Write
from policy.model import StatementClass
from policy.names import Names, QualifiedName
from policy.predicates import Narrowing, all_of, narrowing
from policy.rules.naming import display_name

_JUDGED = frozenset({StatementClass.UPDATE, StatementClass.DELETE})


@dataclass(frozen=True, slots=True)
class JudgedWrite:
    """An UPDATE or DELETE, or such an action of a MERGE, with what its condition leaves of its target."""

    write: Write
    target: QualifiedName
    narrowing: Narrowing
    verb: str

    @property
    def position(self) -> int | None:
        return self.write.where_position or self.write.position


def judged_writes(facts: Facts, names: Names) -> Iterator[JudgedWrite]:
    """Every write of ``facts`` that has a condition to judge; what has none is judged by other rules."""
    for write in facts.writes:
        if write.action not in _JUDGED or write.current_of:
            continue
        if write.where is None and not write.merge:
            continue
        target = facts.relations[write.target]
        called = target.alias or target.name
        conditions = [c for c in (write.where, write.action_condition) if c is not None]
        found = all_of([narrowing(condition, (called,), target.name) for condition in conditions])
        if not conditions:
            # WHEN NOT MATCHED BY SOURCE: every row that the source does not happen to name.
            found = Narrowing.WEAK
        verb = f"{'MERGE … ' if write.merge else ''}{write.action.upper()}"
        yield JudgedWrite(write, display_name(target, names), found, verb)
