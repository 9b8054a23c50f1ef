"""unknown-relation: a table or view that does not exist.

What it refuses
    A mention of a relation that the catalog does not hold, where the server is certain to refuse it. A
    relation that the policy hides is relation-not-allowed's, whether it exists or not.
Why
    The agent learns what it may use instead, before the database is asked. Nothing that the policy hides is
    named, however near it is.
Refused
    ``SELECT id FROM customer``
Allowed
    ``SELECT id FROM customers`` · ``WITH customer AS (SELECT 1) SELECT * FROM customer``
Settings
    None of its own: ``relations`` says what a hint may name. Works with a catalog alone, and not where the
    agent may make temporary tables, which no catalog shows: the server answers then.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.catalog_names import CatalogNames
from policy.facts import Facts
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names
from policy.resolve import Answer, RelationAnswer
from policy.rules import relation_not_allowed
from policy.rules.relation_not_allowed import is_allowed
from policy.rules.showing import Showing, is_system
from policy.suggest import suggest_relations

NAME = "unknown-relation"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42P01"
GOVERNED_BY = "relations"

_ASKED_FOR = 12
_SHOWN = 3


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    if not isinstance(names, CatalogNames):
        return
    told: set[str] = set()
    for answer in names.resolve(facts).relations:
        if answer.answer is Answer.UNKNOWN and _is_open(answer, names, policy):
            violation = _violation(answer, names, policy)
            if violation.message not in told:
                told.add(violation.message)
                yield violation


def _is_open(answer: RelationAnswer, names: CatalogNames, policy: Policy) -> bool:
    """Whether a relation of the name would be open; else relation-not-allowed speaks."""
    return any(is_allowed(name, policy) for name in names.by_path.relations(answer.ref))


def nearest(answer: RelationAnswer, names: CatalogNames, policy: Policy) -> list[str]:
    """What the agent may have meant, as it can write it, the nearest first."""
    showing = Showing(names, policy)
    wants_system = answer.ref.name.startswith("pg_") or answer.ref.schema is not None
    found = suggest_relations(answer, names.catalog, showing, _ASKED_FOR)
    return [showing.spelt(name) for name in found if wants_system or not is_system(name)][:_SHOWN]


def _violation(answer: RelationAnswer, names: CatalogNames, policy: Policy) -> Violation:
    ref = answer.ref
    spelt = ref.name if ref.schema is None else f"{ref.schema}.{ref.name}"
    near = nearest(answer, names, policy)
    return Violation(
        rule=NAME,
        message=f"Relation {spelt} does not exist",
        hint=hint(near, policy),
        object=spelt,
        position=ref.position,
        suggestion=near[0] if near else None,
        repairable=True,
        line=policy.relations.line,
        schema=ref.schema,
        table=ref.name,
    )


def hint(near: list[str], policy: Policy) -> str:
    """The next step, given the names that are near."""
    if not near:
        return relation_not_allowed.allowed_relations(policy)
    return f"Use {' or '.join(near)} instead."
