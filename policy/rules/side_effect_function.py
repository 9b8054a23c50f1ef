"""side-effect-function: what a write or a read sets off without naming it.

What it refuses
    A statement whose relation runs, by its own definition, a function that ``functions`` does not open:
    triggers on what is written, defaults and generated columns, checks, also those of a column's domain, what
    reads, writes and compares a column's own type, expressions of indexes, row level security.
Why
    These are the schema's own business and whoever made them answers for them: off unless a policy asks.
Refused
    ``INSERT INTO orders (customer_id) VALUES (1)`` where a trigger on orders calls a function that is not
    listed
Allowed
    ``SELECT id FROM orders``, which fires no trigger
Settings
    ``rules: {side-effect-function: reject | warn | off}``; off by default. Works with a catalog alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import PG_CATALOG, ExpressionOrigin, Relation, Uses
from policy.facts import Facts, RelationRef, Use
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names, QualifiedName
from policy.rules.function_not_allowed import is_function_allowed
from policy.rules.relation_not_allowed import is_allowed
from policy.value_types import made_of

NAME = "side-effect-function"
DEFAULT = RuleLevel.OFF
SQLSTATE = "42501"
GOVERNED_BY = "rules"

_WRITTEN = frozenset({ExpressionOrigin.CHECK, ExpressionOrigin.INDEX, ExpressionOrigin.DEFAULT})
_EXPRESSIONS: Mapping[Use, frozenset[ExpressionOrigin]] = MappingProxyType(
    {Use.INSERT: _WRITTEN, Use.UPDATE: _WRITTEN}
)
_EVENTS: Mapping[Use, frozenset[str]] = MappingProxyType(
    {
        Use.INSERT: frozenset({"insert", "update"}),
        Use.UPDATE: frozenset({"insert", "update"}),
        Use.DELETE: frozenset({"insert", "update", "delete"}),
    }
)
"""A MERGE's target is mentioned once, under the most that is done to it; ON CONFLICT updates."""


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    if not isinstance(names, CatalogNames):
        return
    for answer in names.resolve(facts).relations:
        for relation in answer.relations:
            if not is_allowed(relation.qualified, policy):
                continue  # relation-not-allowed says so, and nothing else is told of it
            for called in sorted(set(_set_off(answer.ref, relation, names.catalog))):
                if called.schema != PG_CATALOG and not is_function_allowed(called, names.catalog, policy):
                    yield _violation(answer.ref, relation, called, policy)


def _set_off(ref: RelationRef, relation: Relation, catalog: Catalog) -> Iterator[QualifiedName]:
    for trigger in relation.triggers:
        if trigger.enabled and not _EVENTS.get(ref.use, frozenset()).isdisjoint(trigger.events):
            yield trigger.function
    wanted = _EXPRESSIONS.get(ref.use, frozenset())
    if relation.row_security:
        wanted |= {ExpressionOrigin.POLICY}
    for expression in relation.expressions:
        if expression.origin in wanted:
            yield from catalog.closure(expression.uses)
    if ref.use in _EXPRESSIONS:
        yield from _of_column_types(relation, catalog)


def _of_column_types(relation: Relation, catalog: Catalog) -> Iterator[QualifiedName]:
    """The checks of domains and what types are read and written by; where a column is indexed, what compares
    its values too."""
    yield from catalog.closure(Uses(types=tuple({column.type for column in relation.columns})))
    indexed = {name for index in relation.indexes for name in index.columns}
    compared = {
        part
        for column in relation.columns
        if column.name in indexed
        for part in made_of(column.type, catalog)
    }
    for comparison in catalog.content.comparisons:
        if comparison.type in compared:
            yield from comparison.functions


def _violation(ref: RelationRef, relation: Relation, called: QualifiedName, policy: Policy) -> Violation:
    return Violation(
        rule=NAME,
        message=f"The statement makes {relation.qualified} run function {called}, which is not allowed",
        hint="Leave it to whoever may run that function.",
        object=str(called),
        position=ref.position,
        line=policy.rule_lines.get(NAME, 0),
        schema=relation.schema,
        table=relation.name,
    )
