"""relation-not-allowed: a table, view, sequence or catalog that the policy does not open.

What it refuses
    Every mention, wherever it is nested, of a relation that ``relations.allow`` does not cover or
    ``relations.deny`` does; catalogs beyond what ``relations.catalogs`` opens; TOAST tables and other
    sessions' temporary tables. Names in constants count where a function or a cast looks them up:
    ``'name'::regclass``, ``to_regclass('name')``, ``has_table_privilege('name', …)``. With a catalog, so does
    a relation's row type, which tells of its columns: ``NULL::name``; a view
    stands for everything that reading it reads, a relation with rules for what writing it writes, and a
    partition is refused where the table it is part of is denied. So is a table one of whose partitions or
    inheritance children is denied, unless the statement says ONLY. A schema that is dropped, renamed or
    granted on stands for all that is in it, and TRUNCATE … CASCADE names every table that refers to one.
Why
    Names decide what an agent can reach. Without a catalog, a name without a schema must be allowed in every
    schema of the search_path that it could mean; with one, where it is found.
Refused
    ``SELECT * FROM api_keys`` · ``WITH k AS (SELECT * FROM billing.cards) SELECT 1`` · ``SELECT * FROM
    pg_authid``
Allowed
    ``SELECT * FROM orders`` · ``WITH api_keys AS (SELECT 1) SELECT * FROM api_keys`` (a CTE is no table)
Settings
    ``relations: {allow, deny, catalogs: off | filtered | on, views: expand | own}``; deny wins. ``views:
    own`` judges a view by its own name alone; partitions and inheritance children are read with the table
    above them and need no entry. ``filtered`` opens the catalogs that tell names, types and keys, and of them
    the rows of what the policy shows; none that hold values, statements or secrets, and no view over
    catalogs. A pattern opens a system schema only if it names it:
    ``pg_catalog.pg_class`` does, ``*.*`` does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from policy.builtin import SYSTEM_SCHEMAS, CatalogAccess, catalog_relation
from policy.calls import find_calls
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, UnreadCatalog
from policy.catalog_values import ColumnId, Relation, RelationKind, RuleEvent
from policy.facts import Facts, RelationRef, Use
from policy.model import Catalogs, Pattern, Policy, RuleLevel, Views, Violation, glob_match
from policy.names import Names, QualifiedName
from policy.probes import relations_in_constants
from policy.resolve import Answer
from policy.rules.naming import display_name, system_relation, unread

NAME = "relation-not-allowed"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "relations"

_SHOWN_PATTERNS = 6


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    if isinstance(names, UnreadCatalog):
        if facts.relations:
            yield unread(NAME, names, facts.relations[0].position)
        return
    seen: set[tuple[str | None, str, Use, bool]] = set()
    told: set[str | None] = set()
    unknown = _surely_unknown(facts, names)
    mentions = (*facts.relations, *relations_in_constants(facts), *_row_types(facts, names))
    for index, ref in enumerate(mentions):
        key = (ref.schema, ref.name, ref.use, ref.only)
        if key in seen:
            continue
        seen.add(key)
        violation = _judge(ref, names, policy, is_unknown=index in unknown)
        if violation is not None and violation.object not in told:
            told.add(violation.object)
            yield violation
    yield from _schemas(facts, names, policy)
    if facts.truncates_referring and isinstance(names, CatalogNames):
        yield from _referring(facts, names, policy)


def _referring(facts: Facts, names: CatalogNames, policy: Policy) -> Iterator[Violation]:
    """The tables named whose foreign keys lead to one that is closed."""
    for answer in names.resolve(facts).relations:
        for relation in answer.relations:
            others = _all_referring(relation, names.catalog)
            refused = sorted(other for other in others if not is_allowed(other, policy))
            if refused:
                closed = f"a relation that policy {policy.name} does not allow"
                message = f"TRUNCATE … CASCADE of {relation.qualified} empties {closed}"
                hint = "Leave CASCADE out, or delete rows by their key."
                line = _deciding_line(refused, policy)
                yield _violation(answer.ref, relation.qualified, message, hint, line)


def _all_referring(relation: Relation, catalog: Catalog) -> set[QualifiedName]:
    """The tables whose foreign keys refer to ``relation``, to one of these, and so on."""
    found: set[QualifiedName] = set()
    waiting = [relation]
    while waiting:
        now = waiting.pop()
        for other, key in catalog.neighbours(now):
            if key.target == now.qualified and other.qualified not in found:
                found.add(other.qualified)
                waiting.append(other)
    return found - {relation.qualified}


def _schemas(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    """A schema stands for all that is in it."""
    for schema in facts.schemas:
        if isinstance(names, CatalogNames):
            held = (r.qualified for r in names.catalog.content.relations if r.schema == schema.name)
            refused = [name for name in held if not is_allowed(name, policy)]
        else:
            refused = [] if _covers(schema.name, policy) else [QualifiedName(schema.name, "*")]
        if refused:
            yield Violation(
                rule=NAME,
                message=f"Schema {schema.name} holds relations that policy {policy.name} does not allow",
                hint="Name the objects that are meant, one by one.",
                object=schema.name,
                position=facts.start,
                line=_deciding_line(refused, policy),
                schema=schema.name,
            )


def _covers(schema: str, policy: Policy) -> bool:
    """Whether every relation of ``schema`` is open, whatever it is called."""
    rules = policy.relations
    opened = any(p.name == "*" and glob_match(p.schema, schema) for p in rules.allow)
    return opened and not any(glob_match(p.schema, schema) for p in rules.deny)


def _row_types(facts: Facts, names: Names) -> Iterator[RelationRef]:
    if isinstance(names, CatalogNames):
        for relation, position in names.shared(facts, find_calls).rows:
            yield RelationRef(relation.name, relation.schema, position=position, only=True)


def _surely_unknown(facts: Facts, names: Names) -> frozenset[int]:
    """Indexes of the mentions that the server is certain to refuse as unknown."""
    if not isinstance(names, CatalogNames):
        return frozenset()
    answers = enumerate(names.resolve(facts).relations)
    return frozenset(index for index, answer in answers if answer.answer is Answer.UNKNOWN)


def _judge(ref: RelationRef, names: Names, policy: Policy, *, is_unknown: bool) -> Violation | None:
    candidates = _candidates(ref, names)
    if not candidates and isinstance(names, CatalogNames):
        # What the snapshot does not hold may have been made since, or be temporary.
        candidates = tuple(names.by_path.relations(ref))
        if is_unknown and any(is_allowed(name, policy) for name in candidates):
            return None  # unknown-relation says so
    refused = [name for name in candidates if not is_allowed(name, policy)]
    if refused or not candidates:
        return _not_allowed(ref, candidates, refused, names, policy)
    if isinstance(names, CatalogNames):
        return next(filter(None, (_through(ref, name, names.catalog, policy) for name in candidates)), None)
    return None


def _not_allowed(
    ref: RelationRef,
    candidates: tuple[QualifiedName, ...],
    refused: list[QualifiedName],
    names: Names,
    policy: Policy,
) -> Violation:
    found = isinstance(names, CatalogNames) and bool(names.relations(ref))
    shown = refused[0] if found and refused else display_name(ref, _by_path(names))
    if len(refused) < len(candidates):
        hint = f"Write {ref.name} with the schema you mean: it could be found in one that is not allowed."
    elif _is_system(shown.schema) and policy.relations.catalogs is Catalogs.OFF:
        hint = f"Do without looking tables up: this policy opens no catalog. {allowed_relations(policy)}"
    else:
        hint = _without_schema(ref, names, policy) or allowed_relations(policy)
    return _violation(
        ref,
        shown,
        f"Relation {shown} is not among those that policy {policy.name} allows",
        hint,
        _deciding_line(refused, policy),
    )


def _without_schema(ref: RelationRef, names: Names, policy: Policy) -> str | None:
    """What to write where only the schema is at fault, be there one of that name or not: MySQL's writers put
    the database before the table."""
    if ref.schema is None or not isinstance(names, CatalogNames):
        return None
    meant = names.relations(RelationRef(ref.name))
    if not meant or not all(is_open(name, names.catalog, policy) for name in meant):
        return None
    return f"Use {meant[0]} instead."


def _by_path(names: Names) -> Names:
    return names.by_path if isinstance(names, CatalogNames) else names


def _violation(ref: RelationRef, shown: QualifiedName, message: str, hint: str, line: int) -> Violation:
    return Violation(
        rule=NAME,
        message=message,
        hint=hint,
        object=str(shown),
        position=ref.position,
        line=line,
        schema=shown.schema,
        table=shown.name,
    )


# What stands behind a relation -----------------------------------------------------------------------------


def _through(ref: RelationRef, name: QualifiedName, catalog: Catalog, policy: Policy) -> Violation | None:
    """The objection to what reading or writing the allowed relation ``name`` reaches; it names no other."""
    relation = catalog.relation(*name)
    if relation is None:
        return None
    above = [parent for parent in catalog.ancestors(relation) if _is_denied(parent, policy)]
    if above:
        message = f"Relation {name} holds rows of a relation that policy {policy.name} denies"
        return _violation(ref, name, message, allowed_relations(policy), _deciding_line(above, policy))
    below = [] if ref.only else _denied_below(relation, catalog, policy)
    if below:
        message = f"Relation {name} is read with a part of it that policy {policy.name} denies"
        hint = f"Read ONLY {name}, or a part of it that is allowed."
        return _violation(ref, name, message, hint, _deciding_line(below, policy))
    if policy.relations.views is Views.OWN or name.schema in SYSTEM_SCHEMAS:
        return None
    reached = {QualifiedName(r.schema, r.relation) for r in reads_through(ref, relation, catalog)} - {name}
    refused = sorted(other for other in reached if not _may_be_reached(other, catalog, policy))
    if not refused:
        return None
    kind = "a view over" if relation.kind in _VIEWS else "written by rules that reach"
    message = f"Relation {name} is {kind} a relation that policy {policy.name} does not allow"
    return _violation(ref, name, message, allowed_relations(policy), _deciding_line(refused, policy))


def _denied_below(relation: Relation, catalog: Catalog, policy: Policy) -> list[QualifiedName]:
    return [child for child in sorted(catalog.descendants(relation)) if _is_denied(child, policy)]


_VIEWS = frozenset({RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW})
EVENTS: Mapping[Use, RuleEvent] = MappingProxyType(
    {Use.INSERT: RuleEvent.INSERT, Use.UPDATE: RuleEvent.UPDATE, Use.DELETE: RuleEvent.DELETE}
)


def reads_through(ref: RelationRef, relation: Relation, catalog: Catalog) -> frozenset[ColumnId]:
    """What the mention ``ref`` of ``relation`` reaches below it: through views, and rules on what it does."""
    event = EVENTS.get(ref.use)
    reached = catalog.reach(relation)
    return reached if event is None else reached | catalog.reach_of_writing(relation, event)


def _may_be_reached(name: QualifiedName, catalog: Catalog, policy: Policy) -> bool:
    relation = catalog.relation(*name)
    if relation is not None and relation.kind is RelationKind.VIEW:
        # On the way to what it reads; it holds nothing itself.
        return not _is_denied(name, policy)
    if relation is not None and _denied_below(relation, catalog, policy):
        return False
    return is_allowed(name, policy) and not _is_filtered(name, policy)


def _is_filtered(name: QualifiedName, policy: Policy) -> bool:
    """Whether the catalog ``name`` is shown in part alone: a view over it would show the rest."""
    filtered = policy.relations.catalogs is Catalogs.FILTERED and not is_opened_by_name(name, policy)
    return filtered and catalog_relation(*name) is CatalogAccess.STRUCTURE


def _is_denied(name: QualifiedName, policy: Policy) -> bool:
    return any(pattern.matches(*name) for pattern in policy.relations.deny)


def is_open(name: QualifiedName, catalog: Catalog, policy: Policy, *, only: bool = False) -> bool:
    """Whether an agent may read ``name``, with all that stands behind it; with ``only``, less its parts."""
    ref = RelationRef(name.name, name.schema, only=only)
    return is_allowed(name, policy) and _through(ref, name, catalog, policy) is None


# What the policy says of a name ----------------------------------------------------------------------------


def _candidates(ref: RelationRef, names: Names) -> tuple[QualifiedName, ...]:
    known = system_relation(ref, names)
    return tuple(names.relations(ref)) if known is None else (known,)


def is_allowed(name: QualifiedName, policy: Policy) -> bool:
    """Whether the policy opens ``name``. Shared with whatever resolves names or offers them in a hint."""
    rules = policy.relations
    if _is_denied(name, policy):
        return False
    if not _is_system(name.schema):
        return any(pattern.matches(*name) for pattern in rules.allow)
    if is_opened_by_name(name, policy):
        return True
    if name.schema not in SYSTEM_SCHEMAS or rules.catalogs is Catalogs.OFF:
        return False
    if rules.catalogs is Catalogs.ON:
        return True
    access = catalog_relation(*name)
    return access is not None and access.readable


def is_opened_by_name(name: QualifiedName, policy: Policy) -> bool:
    """Whether a pattern opens the catalog ``name``, all of it, whatever ``catalogs`` says."""
    allow = policy.relations.allow
    return any(_names_system_schema(pattern) and pattern.matches(*name) for pattern in allow)


def _is_system(schema: str) -> bool:
    return schema in SYSTEM_SCHEMAS or schema.startswith("pg_")


def _names_system_schema(pattern: Pattern) -> bool:
    return _is_system(pattern.schema.partition("*")[0])


def allowed_relations(policy: Policy) -> str:
    """The hint that tells what is open, by the policy's own patterns."""
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
