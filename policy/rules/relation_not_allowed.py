"""relation-not-allowed: a table, view, sequence or catalog that the policy does not open.

What it refuses
    Every mention, wherever it is nested, of a relation that ``relations.allow`` does not cover or
    ``relations.deny`` does; catalogs beyond what ``relations.catalogs`` opens; TOAST tables and other
    sessions' temporary tables; ``'name'::regclass`` of such a relation.
Why
    Names decide what an agent can reach. A name without a schema must be allowed in every schema of the
    search_path that it could mean.
Refused
    ``SELECT * FROM api_keys`` · ``WITH k AS (SELECT * FROM billing.cards) SELECT 1`` · ``SELECT * FROM
    pg_authid``
Allowed
    ``SELECT * FROM orders`` · ``WITH api_keys AS (SELECT 1) SELECT * FROM api_keys`` (a CTE is no table)
Settings
    ``relations: {allow, deny, catalogs: off | filtered | on}``; deny wins. ``filtered`` opens the catalogs
    that tell names, types and keys, none that hold values, statements or secrets. A pattern opens a system
    schema only if it names it: ``pg_catalog.pg_class`` does, ``*.*`` does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.builtin import SYSTEM_SCHEMAS, catalog_relation
from policy.facts import Facts, RelationRef, TypeRef
from policy.model import Catalogs, Pattern, Policy, RuleLevel, Violation
from policy.names import Names, QualifiedName
from policy.rules.naming import display_name, system_relation
from policy.settings import split_qualified

NAME = "relation-not-allowed"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "relations"

_SHOWN_PATTERNS = 6


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    seen: set[tuple[str | None, str]] = set()
    for ref in (*facts.relations, *_named_in_literals(facts)):
        if (ref.schema, ref.name) in seen:
            continue
        seen.add((ref.schema, ref.name))
        violation = _judge(ref, names, policy)
        if violation is not None:
            yield violation


def _judge(ref: RelationRef, names: Names, policy: Policy) -> Violation | None:
    candidates = _candidates(ref, names)
    refused = [name for name in candidates if not is_allowed(name, policy)]
    if candidates and not refused:
        return None
    shown = display_name(ref, names)
    ambiguous = len(refused) < len(candidates)
    if ambiguous:
        hint = f"Write {ref.name} with the schema you mean: it could be found in one that is not allowed."
    else:
        hint = _allowed_relations(policy)
    return Violation(
        rule=NAME,
        message=f"Relation {shown} is not among those that policy {policy.name} allows",
        hint=hint,
        object=str(shown),
        position=ref.position,
        line=_deciding_line(refused, policy),
        schema=shown.schema,
        table=shown.name,
    )


def _candidates(ref: RelationRef, names: Names) -> tuple[QualifiedName, ...]:
    known = system_relation(ref, names)
    return tuple(names.relations(ref)) if known is None else (known,)


def is_allowed(name: QualifiedName, policy: Policy) -> bool:
    """Whether the policy opens ``name``. Shared with whatever resolves names or offers them in a hint."""
    rules = policy.relations
    if any(pattern.matches(*name) for pattern in rules.deny):
        return False
    if not _is_system(name.schema):
        return any(pattern.matches(*name) for pattern in rules.allow)
    if any(_names_system_schema(pattern) and pattern.matches(*name) for pattern in rules.allow):
        return True
    if name.schema not in SYSTEM_SCHEMAS or rules.catalogs is Catalogs.OFF:
        return False
    if rules.catalogs is Catalogs.ON:
        return True
    access = catalog_relation(*name)
    return access is not None and access.readable


def _is_system(schema: str) -> bool:
    return schema in SYSTEM_SCHEMAS or schema.startswith("pg_")


def _names_system_schema(pattern: Pattern) -> bool:
    return _is_system(pattern.schema.partition("*")[0])


def _named_in_literals(facts: Facts) -> Iterator[RelationRef]:
    """Relations named by a constant that is cast to regclass, which looks the name up."""
    for ref in facts.types:
        if ref.name == "regclass" and ref.schema in (None, "pg_catalog") and ref.literal_value:
            found = _relation_of(ref)
            if found is not None:
                yield found


def _relation_of(ref: TypeRef) -> RelationRef | None:
    text = (ref.literal_value or "").strip()
    if text.isdecimal() or text == "-":
        return None
    parts = split_qualified(text)
    if not parts or len(parts) > 3:
        return None
    return RelationRef(parts[-1], parts[-2] if len(parts) > 1 else None, position=ref.position)


def _allowed_relations(policy: Policy) -> str:
    denied = policy.relations.deny
    patterns = [
        str(p) for p in policy.relations.allow if not any(d.matches(p.schema, p.name) for d in denied)
    ]
    if not patterns:
        return "Leave it out: this policy allows no relation."
    shown = ", ".join(patterns[:_SHOWN_PATTERNS]) + (", …" if len(patterns) > _SHOWN_PATTERNS else "")
    return f"Leave it out, or use a relation that is allowed ({shown})."


def _deciding_line(refused: list[QualifiedName], policy: Policy) -> int:
    for name in refused:
        for pattern in policy.relations.deny:
            if pattern.matches(*name):
                return pattern.line
    return policy.relations.line
