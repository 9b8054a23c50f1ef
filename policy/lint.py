"""What is legal in a policy and yet odd: warnings, each at its place in the file.

Owns the judgement of a policy that loads; what does not load is the loader's to say. A warning names a line
that has no effect, has one that its author cannot have meant, or is about to end. Some take a catalog: names
that stand for nothing in the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from policy import yaml_source
from policy.builtin import SYSTEM_SCHEMAS
from policy.catalog import Catalog
from policy.diagnostics import Diagnostic, Severity, join_path, nearest
from policy.inheritance import is_shipped, place_of, shown_line
from policy.loader import layers
from policy.model import (
    WRITES,
    Access,
    Catalogs,
    CostLimits,
    Pattern,
    Policy,
    StatementClass,
    Verdict,
    glob_match,
)
from policy.rules.relation_not_allowed import is_allowed
from policy.yaml_source import Mark, Node

EXPIRY_NOTICE: Final = timedelta(days=14)
"""How long before an allowance ends that is said."""

_DATA: Final = frozenset(
    {
        StatementClass.SELECT,
        StatementClass.INSERT,
        StatementClass.UPDATE,
        StatementClass.DELETE,
        StatementClass.MERGE,
        StatementClass.COPY_IN,
        StatementClass.COPY_OUT,
    }
)
"""Classes that are of no use without a relation."""
_COUNTED: Final = frozenset(
    {
        StatementClass.INSERT,
        StatementClass.UPDATE,
        StatementClass.DELETE,
        StatementClass.MERGE,
        StatementClass.COPY_IN,
    }
)
_CLASSES_OF_RULE: Final[Mapping[str, frozenset[StatementClass]]] = {
    "update-without-where": frozenset({StatementClass.UPDATE, StatementClass.MERGE}),
    "delete-without-where": frozenset({StatementClass.DELETE, StatementClass.MERGE}),
    "tautology-predicate": frozenset({StatementClass.UPDATE, StatementClass.DELETE, StatementClass.MERGE}),
    "weak-predicate": frozenset({StatementClass.UPDATE, StatementClass.DELETE, StatementClass.MERGE}),
    "insert-missing-not-null": frozenset(
        {StatementClass.INSERT, StatementClass.MERGE, StatementClass.COPY_IN}
    ),
    "unbounded-join": frozenset({StatementClass.SELECT}),
    "unbounded-select": frozenset({StatementClass.SELECT}),
}
"""What a rule is about: its level means nothing where no such class is allowed."""


@dataclass(frozen=True, slots=True)
class _Odd:
    """One warning: the key path it is about, what is odd, and the nearest name that would not be."""

    path: str
    message: str
    near: str | None = None


def lint(text: bytes | str, policy: Policy, today: date, catalog: Catalog | None = None) -> list[Diagnostic]:
    """Every warning about ``policy``, which is what ``text`` says, in the order of the file.

    ``today`` is what expiry is held against, in UTC. ``catalog`` None: names are not looked up. A line of a
    base that ships is not warned of: whoever extends it cannot change it.
    """
    root = layers(text, policy.source).root
    marks = dict(_marks(root, ""))
    lines = (text if isinstance(text, str) else text.decode("utf-8")).splitlines()
    found = [_diagnostic(odd, policy, marks, lines) for odd in _odd(policy, today, catalog)]
    own = [each for each in found if each.source == policy.source or not is_shipped(each.source)]
    return sorted(own, key=lambda d: (d.source != policy.source, d.line, d.column))


def _odd(policy: Policy, today: date, catalog: Catalog | None) -> Iterator[_Odd]:
    yield from _classes(policy)
    yield from _denied_in_vain(policy)
    yield from _twice(policy)
    yield from _levels(policy)
    yield from _ceilings(policy, today)
    yield from _repairs(policy)
    if catalog is not None:
        yield from _unknown_names(policy, catalog)


# --- places ---


def _marks(node: Node, path: str) -> Iterator[tuple[str, Mark]]:
    """Key path and place of every key and item."""
    if isinstance(node, yaml_source.Mapping):
        for entry in node.entries:
            below = join_path(path, entry.key)
            yield below, entry.mark
            yield from _marks(entry.value, below)
    elif isinstance(node, yaml_source.Sequence):
        for index, item in enumerate(node.items):
            below = join_path(path, index)
            yield below, item.mark
            yield from _marks(item, below)


def _diagnostic(odd: _Odd, policy: Policy, marks: Mapping[str, Mark], lines: Sequence[str]) -> Diagnostic:
    mark = marks.get(odd.path, Mark(0, 0))
    source, line = place_of(mark.line, policy.files)
    excerpt = lines[line - 1] if line and source == policy.source else ""
    return Diagnostic(source, line, mark.column, odd.path, odd.message, odd.near, excerpt, Severity.WARNING)


# --- rows that have no effect ---


def _allowed(policy: Policy) -> frozenset[StatementClass]:
    """Classes that the policy lets through."""
    rows = {cls for cls, row in policy.statements.items() if row.decide is Verdict.ALLOW}
    return frozenset(rows - WRITES if policy.access is Access.READ_ONLY else rows)


def _classes(policy: Policy) -> Iterator[_Odd]:
    for cls, row in policy.statements.items():
        path = f"statements.{cls}"
        if row.decide is not Verdict.ALLOW:
            continue
        if policy.access is Access.READ_ONLY and cls in WRITES - {StatementClass.LOCK}:
            yield _Odd(
                path, "is allowed here and refused by access: read_only; say access: read_write to mean it"
            )
        elif cls in _DATA and not policy.relations.allow and policy.relations.catalogs is Catalogs.OFF:
            yield _Odd(path, "is allowed, but relations allows no table")
    if not policy.statements:
        yield _Odd("version", "no statement class is allowed: everything is refused")


def _denied_in_vain(policy: Policy) -> Iterator[_Odd]:
    """Denials of what nothing allows: they stop nothing, and their author may think of another spelling."""
    relations, functions = policy.relations, policy.functions
    opens_catalogs = relations.catalogs is not Catalogs.OFF
    for index, pattern in enumerate(relations.deny):
        reachable = any(_overlap(pattern, allowed) for allowed in relations.allow) or (
            opens_catalogs and any(glob_match(pattern.schema, schema) for schema in SYSTEM_SCHEMAS)
        )
        if not reachable:
            yield _Odd(f"relations.deny[{index}]", "denies what relations.allow does not open anyway")
    for rule in policy.columns:
        if not any(_overlap(rule.relation, allowed) for allowed in relations.allow):
            path = join_path("columns", str(rule.relation))
            yield _Odd(path, "hides columns of a relation that relations.allow does not open")
    opened = [*functions.allow, *(kind.pattern for kind in functions.kinds)]
    for index, pattern in enumerate(functions.deny):
        builtin = functions.builtin_safe and glob_match(pattern.schema, "pg_catalog")
        if not builtin and not any(_overlap(pattern, allowed) for allowed in opened):
            yield _Odd(f"functions.deny[{index}]", "denies what functions.allow does not open anyway")


def _twice(policy: Policy) -> Iterator[_Odd]:
    for path, patterns in (
        ("relations.allow", policy.relations.allow),
        ("relations.deny", policy.relations.deny),
        ("functions.allow", policy.functions.allow),
        ("functions.deny", policy.functions.deny),
    ):
        seen: dict[str, Pattern] = {}
        for index, pattern in enumerate(patterns):
            first = seen.setdefault(str(pattern), pattern)
            if first is not pattern:
                yield _Odd(f"{path}[{index}]", f"is there already, on line {shown_line(first.line)}")
    for index, pattern in enumerate(policy.relations.allow):
        if str(pattern) in map(str, policy.relations.deny):
            yield _Odd(f"relations.allow[{index}]", "is denied as well: deny wins, so this opens nothing")


def _levels(policy: Policy) -> Iterator[_Odd]:
    allowed = _allowed(policy)
    for rule in policy.rule_lines:
        classes = _CLASSES_OF_RULE.get(rule)
        if classes is not None and not classes & allowed:
            one = " or ".join(sorted(classes))
            yield _Odd(f"rules.{rule}", f"means nothing here: no {one} is allowed")


def _ceilings(policy: Policy, today: date) -> Iterator[_Odd]:
    writes = _allowed(policy) & _COUNTED
    if policy.limits.affected_rows is not None and not writes:
        yield _Odd("limits.affected_rows", "means nothing here: no class that writes rows is allowed")
    cost = policy.cost
    if cost is None:
        return
    if cost.max_modified_rows is not None and not writes:
        yield _Odd("cost.max_modified_rows", "means nothing here: no class that writes rows is allowed")
    if not _has_ceiling(cost):
        yield _Odd("cost", "sets no ceiling, so no price is ever asked")
    for index, allowance in enumerate(cost.allowances):
        path = f"cost.allowances[{index}]"
        ends = date.fromisoformat(allowance.expires)
        if ends <= today:
            yield _Odd(f"{path}.expires", f"the allowance {allowance.name} has expired and holds no more")
        elif ends - today <= EXPIRY_NOTICE:
            yield _Odd(f"{path}.expires", f"the allowance {allowance.name} ends on {allowance.expires}")
        if cost.max_total_cost is not None and allowance.max_total_cost <= cost.max_total_cost:
            yield _Odd(f"{path}.max_total_cost", "allows no more than cost.max_total_cost does")


def _has_ceiling(cost: CostLimits) -> bool:
    ceilings = (
        cost.max_total_cost,
        cost.max_rows,
        cost.max_scan_rows,
        cost.max_result_bytes,
        cost.max_modified_rows,
    )
    return any(ceiling is not None for ceiling in ceilings)


def _repairs(policy: Policy) -> Iterator[_Odd]:
    once = [cls for cls, row in policy.statements.items() if row.repair_once]
    if policy.repair.turns == 0:
        for cls in once:
            yield _Odd(f"statements.{cls}.repair", "means nothing here: repair.turns is 0")
    elif "repair" in policy.lines and not once:
        yield _Odd("repair", "means nothing here: no row of statements says repair: once")


# --- names that stand for nothing ---


def _unknown_names(policy: Policy, catalog: Catalog) -> Iterator[_Odd]:
    relations = [relation.qualified for relation in catalog.content.relations]
    shown = sorted(map(str, relations))
    for path, patterns in (
        ("relations.allow", policy.relations.allow),
        ("relations.deny", policy.relations.deny),
    ):
        for index, pattern in enumerate(patterns):
            if not any(pattern.matches(*name) for name in relations) and not _is_system(pattern):
                yield _Odd(
                    f"{path}[{index}]", "matches no table or view of the database", _near(pattern, shown)
                )
    for rule in policy.columns:
        path = join_path("columns", str(rule.relation))
        known = [r for r in catalog.content.relations if rule.relation.matches(*r.qualified)]
        if not known and not _is_system(rule.relation):
            yield _Odd(path, "matches no table or view of the database", _near(rule.relation, shown))
            continue
        columns = {column.name for relation in known for column in relation.columns}
        for key, names in (("allow", rule.allow or frozenset()), ("deny", rule.deny)):
            for name in sorted(names - columns) if known else ():
                yield _Odd(f"{path}.{key}", f"there is no column {name}", nearest(name, columns))
    yield from _unknown_functions(policy, catalog)
    yield from _nothing_left(policy, catalog)


def _unknown_functions(policy: Policy, catalog: Catalog) -> Iterator[_Odd]:
    functions = [function.qualified for function in catalog.content.functions]
    shown = sorted(set(map(str, functions)))
    for path, patterns in (
        ("functions.allow", policy.functions.allow),
        ("functions.deny", policy.functions.deny),
    ):
        for index, pattern in enumerate(patterns):
            if not any(pattern.matches(*name) for name in functions) and not _is_system(pattern):
                yield _Odd(f"{path}[{index}]", "matches no function of the database", _near(pattern, shown))


def _nothing_left(policy: Policy, catalog: Catalog) -> Iterator[_Odd]:
    relations = catalog.content.relations
    if policy.relations.allow and not any(is_allowed(relation.qualified, policy) for relation in relations):
        for cls, row in policy.statements.items():
            if row.decide is Verdict.ALLOW and cls in _DATA:
                yield _Odd(f"statements.{cls}", "is allowed, but every table of the database is denied")


def _near(pattern: Pattern, shown: Iterable[str]) -> str | None:
    return None if "*" in str(pattern) else nearest(str(pattern), shown)


def _is_system(pattern: Pattern) -> bool:
    """Whether it may stand for PostgreSQL's own, of which a snapshot does not hold all."""
    return any(glob_match(pattern.schema, schema) for schema in SYSTEM_SCHEMAS)


# --- patterns ---


def _overlap(one: Pattern, other: Pattern) -> bool:
    """Whether some name matches both."""
    return _globs_meet(one.schema, other.schema) and _globs_meet(one.name, other.name)


def _globs_meet(one: str, other: str) -> bool:
    """Whether some text matches both patterns: a walk over pairs of places, each met once."""
    seen: set[tuple[int, int]] = set()
    waiting = [(0, 0)]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        a, b = at
        if a == len(one) and b == len(other):
            return True
        if a < len(one) and one[a] == "*":
            waiting += [(a + 1, b), *([(a, b + 1)] if b < len(other) else [])]
        if b < len(other) and other[b] == "*":
            waiting += [(a, b + 1), *([(a + 1, b)] if a < len(one) else [])]
        if a < len(one) and b < len(other) and one[a] == other[b] != "*":
            waiting.append((a + 1, b + 1))
    return False
