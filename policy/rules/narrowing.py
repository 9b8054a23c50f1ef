"""What tautology-predicate and weak-predicate share: judging the condition of every write of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policy.catalog_names import CatalogNames
from policy.facts import Facts, SourceKind, Write
from policy.model import StatementClass
from policy.names import Names, QualifiedName
from policy.predicates import Narrowing, all_of, narrowing
from policy.resolve import Answer
from policy.resolve_scope import SYSTEM_COLUMNS
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
        columns, again = _columns(write, facts, names), tuple(_joined_to_itself(write, facts))
        found = all_of(
            narrowing(condition, (called,), target.name, columns=columns, joined_to_itself=again)
            for condition in conditions
        )
        if not conditions:
            # WHEN NOT MATCHED BY SOURCE: every row that the source does not happen to name.
            found = Narrowing.WEAK
        verb = f"{'MERGE … ' if write.merge else ''}{write.action.upper()}"
        yield JudgedWrite(write, display_name(target, names), found, verb)


def _columns(write: Write, facts: Facts, names: Names) -> frozenset[str] | None:
    """The names of all columns of the target, where it is certain which relation that is.

    A name that nothing has is taken for one that was to be its: that is another rule's, and can be mended.
    """
    if not isinstance(names, CatalogNames):
        return None
    resolution = names.resolve(facts)
    meant = resolution.relations[write.target]
    if meant.answer is not Answer.RESOLVED or len(meant.relations) != 1:
        return None
    own = {column.name for column in meant.relations[0].columns}
    unknown = (each.ref.name for each in resolution.columns if each.answer is Answer.UNKNOWN)
    return SYSTEM_COLUMNS | own | {name for name in unknown if name is not None}


def _joined_to_itself(write: Write, facts: Facts) -> Iterator[str]:
    """The names under which FROM or USING has the target once more."""
    target = facts.relations[write.target]
    for source in facts.queries[write.query].sources:
        if source.relation in (None, write.target) or source.kind is not SourceKind.RELATION:
            continue
        joined = facts.relations[source.relation]
        if (joined.name, joined.schema) == (target.name, target.schema) and source.name is not None:
            yield source.name
