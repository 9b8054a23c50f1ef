"""insert-missing-not-null: an INSERT that cannot succeed for want of a value.

What it refuses
    An INSERT (also MERGE's, ON CONFLICT's and a COPY's column list) that leaves out a column which may not be
    NULL and has no default, or gives it NULL or DEFAULT, in VALUES or in a select list; a parameter is judged
    as it is bound. Not where a trigger before the insert, a rule or a view stands between, which may supply
    the value.
Why
    The database refuses it anyhow, and a guess at the value is worse than a question: an agent has no repair
    here, lest it invents a placeholder.
Refused
    ``INSERT INTO shipments (order_id, carrier) VALUES (5, 'postal')`` · ``INSERT INTO shipments DEFAULT
    VALUES``
Allowed
    ``INSERT INTO shipments (order_id, carrier, shipped_on) VALUES (5, 'postal', '2025-04-01')``
Settings
    ``rules: {insert-missing-not-null: reject | warn | off}``; reject by default. Works with a catalog alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from policy.catalog_names import CatalogNames
from policy.catalog_values import Column, ColumnId, Relation, RelationKind, RuleEvent
from policy.facts import Facts, Write
from policy.model import Halt, Policy, RuleLevel, StatementClass, Violation
from policy.names import Names
from policy.resolve import Answer
from policy.rules.columns_by_catalog import HiddenColumns
from policy.rules.relation_not_allowed import is_allowed

NAME = "insert-missing-not-null"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "rules"

_STORED = frozenset({RelationKind.TABLE, RelationKind.PARTITIONED})
_NO_VALUE = frozenset({"null", "default"})
_PARAMETER = "param:"


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    yield from _check(facts, names, policy, _NO_VALUE)


def wanted(facts: Facts, names: Names, policy: Policy) -> frozenset[int]:
    """Numbers of the parameters that are a value which a column wants: NULL they may not be."""
    items = (
        row[place]
        for write, relation in _judged(facts, names, policy)
        for name, given in _required(write, relation)
        if name in given
        for row, place in ((row, given.index(name)) for row in _rows(write))
        if place < len(row)
    )
    return frozenset(int(item.removeprefix(_PARAMETER)) for item in items if item.startswith(_PARAMETER))


def unbound(facts: Facts, names: Names, policy: Policy, nulls: Iterable[int]) -> Violation | None:
    """The objection to a statement whose parameters ``nulls`` are bound to NULL, if there is one."""
    no_value = _NO_VALUE | {f"{_PARAMETER}{number}" for number in nulls}
    return next(_check(facts, names, policy, no_value), None)


def _check(facts: Facts, names: Names, policy: Policy, no_value: frozenset[str]) -> Iterator[Violation]:
    for write, relation in _judged(facts, names, policy):
        missing = list(_missing(write, relation, no_value))
        if missing and isinstance(names, CatalogNames):
            position = write.position or facts.start
            yield _violation(relation, missing, position, HiddenColumns(names, policy), policy)


def _judged(facts: Facts, names: Names, policy: Policy) -> Iterator[tuple[Write, Relation]]:
    """The inserts of a statement, and what they insert into, where that is certain and nothing adds to it."""
    if not isinstance(names, CatalogNames):
        return
    for write in facts.writes:
        if write.action not in (StatementClass.INSERT, StatementClass.COPY_IN):
            continue
        answer = names.resolve(facts).relations[write.target]
        if answer.answer is not Answer.RESOLVED or len(answer.relations) != 1:
            continue
        (relation,) = answer.relations
        # Of a relation that is not open, nothing is told.
        if is_allowed(relation.qualified, policy) and not _is_supplied(relation):
            yield write, relation


def _is_supplied(relation: Relation) -> bool:
    """Whether something may add what the statement leaves out."""
    return (
        relation.kind not in _STORED
        or any(rule.event is RuleEvent.INSERT for rule in relation.rules)
        or any(
            t.enabled and t.row and "insert" in t.events and (t.before or t.instead)
            for t in relation.triggers
        )
    )


def _missing(write: Write, relation: Relation, no_value: frozenset[str]) -> Iterator[str]:
    rows = _rows(write)
    for name, given in _required(write, relation):
        if name not in given or any(
            given.index(name) >= len(row) or row[given.index(name)] in no_value for row in rows
        ):
            yield name


def _required(write: Write, relation: Relation) -> Iterator[tuple[str, list[str]]]:
    """The columns that want a value, each with those that the statement has values for, in order."""
    given = _given(write, relation.columns)
    if given is not None:
        for column in relation.columns:
            if column.not_null and not column.default:
                yield column.name, given


def _rows(write: Write) -> tuple[tuple[str, ...], ...]:
    return (write.selected,) if write.selected else write.values


def _given(write: Write, columns: Sequence[Column]) -> list[str] | None:
    """The columns that the statement has values for, in order; None where there is no telling."""
    if write.source == "default":
        return []
    if write.has_columns:
        return list(write.columns)
    if write.source == "values" or write.selected:
        return [column.name for column in columns]
    return None


def _violation(
    relation: Relation, missing: list[str], position: int, hidden: HiddenColumns, policy: Policy
) -> Violation:
    shown = [m for m in missing if hidden.rule(ColumnId(relation.schema, relation.name, m)) is None]
    told = ", ".join(shown) + ("" if len(shown) == len(missing) else " and columns that the policy hides")
    told = told.removeprefix(" and ")
    return Violation(
        rule=NAME,
        message=f"The INSERT into {relation.qualified} has no value for {told}, which may not be NULL",
        hint=f"Ask for the values of {told}; do not make them up.",
        object=str(relation.qualified),
        position=position,
        halt=Halt.CLASS_NOT_REPAIRABLE,
        line=policy.rule_lines.get(NAME, 0),
        schema=relation.schema,
        table=relation.name,
        column=shown[0] if shown else None,
    )
