"""What a repair must keep: one attempt, the finding that refused it, and the attempt that answers.

Owns ``Attempt`` (a statement by its normal form), ``Finding`` (what was wrong with it, and what the agent was
offered instead) and ``compare``, which says whether the second attempt may stand in for the first. Pure:
which statement answers which is ``likeness``, whose turn it is ``ledger``. The reasoning is on PostgreSQL's
own tree (``implication``), bounded, and undecided is weakened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, Final, NamedTuple

from policy.catalog_names import CatalogNames
from policy.expressions import TooLarge
from policy.facts import Facts, QueryString, RelationRef, Use
from policy.implication import OF_NO_RELATION, Reasoning, columns, relation_of
from policy.model import DANGER, WRITES, Halt, StatementClass
from policy.names import Names, QualifiedName
from policy.nearest import nearest
from policy.normal import WRAPPED, Level, levels
from policy.parse import canonical, trees
from policy.placeholders import is_placeholder
from policy.predicates import Narrowing, narrowing
from policy.rules.naming import display_name
from policy.signatures import ANY
from policy.terms import NULL, UNKNOWN_OWNER, Form, Parameter, Reading, subforms

MAX_READINGS: Final = 32
"""Ways to read the faulty names of a statement that are tried."""
MAX_WORDS: Final = 400
"""Words of a text that could not be parsed."""

UNKNOWN_RELATION: Final = "unknown-relation"
UNKNOWN_COLUMN: Final = "unknown-column"
UNKNOWN_FUNCTION: Final = "unknown-function"
MISSING_VALUE: Final = "insert-missing-not-null"
_UNBOUNDED: Final = frozenset({"unbounded-join", "unbounded-select"})
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_WRITING: Final = frozenset({Use.INSERT, Use.UPDATE, Use.DELETE})
_UNTIED: Final = frozenset({Narrowing.ALWAYS, Narrowing.UNTIED, Narrowing.WEAK})
_NAMES: Final = frozenset({"42703", "42702", "42P01", "42883"})
"""undefined_column, ambiguous_column, undefined_table (which may be a qualifier's), undefined_function."""
_NOT_NULL_VIOLATION: Final = "23502"


@dataclass(frozen=True, slots=True)
class Fault:
    """A name that was at fault, and the names the agent was offered instead (the best first)."""

    name: str
    offered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """Why an attempt was refused.

    ``reasons`` are rule names, or the engine's SQLSTATE. ``position`` counts characters of the query string
    from 1. ``relations`` are qualified as ``display_name`` has them. ``joinable`` are relations the hint
    offers to join. ``missing`` are columns that want a value, ``functions`` names no function has. ``values``
    is True where it was the bound values that the engine refused.
    """

    reasons: tuple[str, ...]
    position: int | None = None
    columns: tuple[Fault, ...] = ()
    relations: tuple[Fault, ...] = ()
    joinable: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    values: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One statement as an agent sent it, free of spelling.

    ``relations`` are qualified names with their use; ``targets`` those that are written, with the tables that
    a written view shows; ``above`` the partitioned tables and inheritance parents of these. ``levels`` are
    its normal form, () where there is none or it is too large (``decided`` False). ``readable`` is False for
    what no grammar accepts: of that there are only ``words``. ``digest`` tells texts apart. ``untied`` is
    True when a write's condition holds for every row; ``limited`` when what is returned has a bound.
    """

    statement_class: StatementClass
    classes: frozenset[StatementClass] = frozenset()
    runs: bool = True
    relations: frozenset[tuple[str, Use]] = frozenset()
    targets: frozenset[str] = frozenset()
    above: frozenset[str] = frozenset()
    levels: tuple[Level, ...] = ()
    words: tuple[str, ...] = ()
    digest: str = ""
    untied: bool = False
    limited: bool = False
    decided: bool = True
    readable: bool = True

    @property
    def writes(self) -> bool:
        return bool(self.targets)


def attempt(
    query: QueryString,
    names: Names,
    parameters: Sequence[Parameter] = (),
    finding: Finding | None = None,
) -> Attempt:
    """The attempt that ``query`` is.

    ``parameters`` are the values bound, where they are known: a number where the parameter's type is one,
    else text. ``finding`` marks what was at fault in a statement that was refused.
    """
    words = tuple(islice((word.casefold() for word in _WORD.findall(query.sql[:16_384])), MAX_WORDS))
    digest = hashlib.sha256((canonical(query.sql) or " ".join(query.sql.split())).encode(errors="replace"))
    made = Attempt(StatementClass.OTHER, words=words, digest=digest.hexdigest(), readable=False)
    if query.failure is not None or not query.statements:
        return made
    statements = query.statements
    relations = frozenset(
        (str(display_name(ref, names)), ref.use) for facts in statements for ref in facts.relations
    )
    written = frozenset(
        display_name(ref, names) for facts in statements for ref in facts.relations if ref.use in _WRITING
    )
    decided, forms = True, list[Level]()
    try:
        for facts in statements:
            forms += _levels(facts, names, parameters, finding)
    except (TooLarge, RecursionError):
        decided, forms = False, []
    return replace(
        made,
        statement_class=max((facts.statement_class for facts in statements), key=DANGER.__getitem__),
        classes=frozenset(cls for facts in statements for cls in facts.classes),
        runs=all(facts.runs for facts in statements),
        relations=relations,
        targets=frozenset(map(str, _with_shown(written, names))),
        above=frozenset(map(str, _above(_with_shown(written, names), names))),
        levels=tuple(forms),
        untied=any(_is_untied(facts) for facts in statements),
        limited=all(q.limited or q.one_row for facts in statements for q in facts.queries if q.final),
        decided=decided,
        readable=True,
    )


def _levels(
    facts: Facts, names: Names, parameters: Sequence[Parameter], finding: Finding | None
) -> Iterator[Level]:
    def called(ref: RelationRef) -> str:
        return str(display_name(ref, names))

    place, values, functions = None, False, frozenset[str]()
    if finding is not None:
        values, functions = finding.values, frozenset(finding.functions)
        if finding.position is not None and finding.position >= facts.start:
            place = len(facts.sql[: finding.position - facts.start].encode(errors="replace"))
    for tree in trees(facts.sql):
        yield from levels(tree, called, Reading(tuple(parameters), place, values, functions))


def _with_shown(written: frozenset[QualifiedName], names: Names) -> frozenset[QualifiedName]:
    """``written`` with the tables whose columns a view among them shows."""
    if not isinstance(names, CatalogNames):
        return written
    catalog, shown = names.catalog, set(written)
    for view in [catalog.relation(*name) for name in written]:
        sources = None if view is None else catalog.view_sources(view)
        found = () if sources is None else sources.columns.values()
        shown.update(QualifiedName(each.schema, each.relation) for column in found for each in column)
    return frozenset(shown)


def _above(written: frozenset[QualifiedName], names: Names) -> frozenset[QualifiedName]:
    """The partitioned tables and inheritance parents of ``written``."""
    if not isinstance(names, CatalogNames):
        return frozenset()
    known = [names.catalog.relation(*name) for name in written]
    return frozenset(parent for each in known if each is not None for parent in names.catalog.ancestors(each))


def _is_untied(facts: Facts) -> bool:
    for write in facts.writes:
        target = facts.relations[write.target]
        if write.where is not None and (
            narrowing(write.where, (target.alias or target.name,), target.name) in _UNTIED
        ):
            return True
    return False


def finding_of_error(
    sqlstate: str,
    query: QueryString,
    names: Names,
    position: int | None = None,
    *,
    offered: tuple[str, ...] = (),
    joinable: tuple[str, ...] = (),
    column: str | None = None,
    at_bind: bool = False,
) -> Finding:
    """What an engine's ErrorResponse found.

    ``position`` is its Position field, ``column`` its Column, ``offered`` what the hint named instead,
    ``at_bind`` True where Bind failed: then it is the values that were refused.
    """
    finding = Finding((sqlstate,), position, joinable=joinable, values=at_bind)
    if sqlstate in _NAMES:
        finding = _named(finding, query, names, position, offered)
    if sqlstate == _NOT_NULL_VIOLATION and column is not None:
        finding = replace(finding, missing=(column,))
    return finding


def finding_of_rejection(
    query: QueryString, names: Names, violations: Sequence[Any], joinable: tuple[str, ...] = ()
) -> Finding:
    """What the gate found: the rejecting violations (``model.Violation``), the deciding one first."""
    first = violations[0]
    reasons = tuple(dict.fromkeys(violation.rule for violation in violations))
    finding = Finding(reasons, first.position, joinable=joinable)
    for violation in violations:
        offered = (violation.suggestion,) if violation.suggestion else ()
        if violation.rule in (UNKNOWN_COLUMN, UNKNOWN_RELATION, UNKNOWN_FUNCTION):
            finding = _named(finding, query, names, violation.position, offered)
        elif violation.rule == MISSING_VALUE and violation.column is not None:
            finding = replace(finding, missing=(*finding.missing, violation.column))
    return finding


def _named(
    finding: Finding, query: QueryString, names: Names, position: int | None, offered: tuple[str, ...]
) -> Finding:
    """``finding`` with the names that stand at ``position`` as faults."""
    statements = query.statements if position is not None else ()
    relations = [ref for facts in statements for ref in facts.relations if ref.position == position]
    found = [ref.name for facts in statements for ref in facts.columns if ref.position == position]
    if relations:
        fault = Fault(str(display_name(relations[0], names)), offered)
        return replace(finding, relations=(*finding.relations, fault))
    faults = tuple(Fault(name, offered) for name in found[:1] if name is not None)
    called = tuple(
        ref.name for facts in statements for ref in facts.functions if ref.position == position and not faults
    )
    return replace(finding, columns=(*finding.columns, *faults), functions=(*finding.functions, *called[:1]))


# Comparing ------------------------------------------------------------------------------------------------


def compare(first: Attempt, finding: Finding, second: Attempt) -> Halt | None:
    """Why ``second`` may not stand in for ``first``; None where it keeps what it must.

    Where ``second`` has a ``$n`` without a value, that value is taken for the right one: compare again once
    it is bound.
    """
    if is_unchanged(first, second):
        return Halt.UNCHANGED
    if not first.readable:
        return None
    return next((halt for check in _CHECKS if (halt := check(first, finding, second)) is not None), None)


def is_unchanged(first: Attempt, second: Attempt) -> bool:
    """Whether two attempts are one statement, however they are spelt."""
    if not first.readable or not first.decided:
        return first.digest == second.digest
    if any(form[:1] == ("param",) for form in _all_forms(second)) and _has_values(first):
        return False
    same = (first.statement_class, first.relations, unmarked(first.levels))
    return same == (second.statement_class, second.relations, second.levels)


def _has_values(first: Attempt) -> bool:
    """Whether what was refused had its values: then the same ``$n`` may yet get others."""
    return not any(form[:1] == ("param",) for form in _all_forms(first))


def _all_forms(made: Attempt) -> Iterator[Form]:
    return subforms(made.levels)


def _class_changed(first: Attempt, finding: Finding, second: Attempt) -> Halt | None:  # noqa: ARG001 - one of a table
    # An INSERT that now updates on conflict, a SELECT that now locks or deletes in a CTE.
    more = second.classes - first.classes
    changed = second.statement_class is not first.statement_class or more & WRITES
    return Halt.CLASS_CHANGED if changed else None


def dummy_literal(first: Attempt, finding: Finding, second: Attempt) -> Halt | None:
    """The halt of a second attempt that makes up a value the first one lacked."""
    if MISSING_VALUE not in finding.reasons and _NOT_NULL_VIOLATION not in finding.reasons:
        return None
    before = {item[1] for level in first.levels for item in assigned(level) if not _is_no_value(item[2])}
    invented = (
        item
        for level in second.levels
        for item in assigned(level)
        if (item[1] in finding.missing or item[1] not in before) and is_placeholder(item[2])
    )
    return Halt.DUMMY_LITERAL if any(True for _ in invented) else None


def _is_no_value(value: Form) -> bool:
    return value == NULL or value[:2] == ("node", "SetToDefault")


def assigned(level: Level) -> Iterator[Form]:
    """``("set", column or place, value)`` of everything a level writes, INSERT … SELECT included."""
    yield from (item for item in level.items if item[:1] == ("set",))
    if level.action == "insert":
        for source in level.sources:
            if source[:2] == ("rows", "select"):
                names = level.shown[0][1:]
                for place, value in enumerate(source[2][1].items):
                    yield ("set", names[place] if place < len(names) else place, value)


def _distinct_for_limit(first: Attempt, finding: Finding, second: Attempt) -> Halt | None:
    if _UNBOUNDED.isdisjoint(finding.reasons) or second.limited:
        return None
    added = any(level.distinct for level in second.levels) and not any(lvl.distinct for lvl in first.levels)
    return Halt.DISTINCT_FOR_LIMIT if added else None


def _relations_changed(first: Attempt, finding: Finding, second: Attempt) -> Halt | None:
    return Halt.RELATIONS_CHANGED if replacements(first, finding, second) is None else None


def replacements(first: Attempt, finding: Finding, second: Attempt) -> Mapping[str, str] | None:
    """Faulty relation -> what stands for it now; None where relations changed beyond what was offered."""
    lost, gained = first.relations - second.relations, second.relations - first.relations
    replaced: dict[str, str] = {}
    for name, use in lost:
        fault = next((fault for fault in finding.relations if fault.name == name), None)
        found = None if fault is None else _replacement(fault, use, second)
        if found is None or replaced.setdefault(name, found) != found:
            return None
    allowed = set(replaced.values())
    joinable = {
        name
        for name, use in gained
        if use is Use.READ and (_is_among(name, finding.joinable) or _has_faulty(name, finding, second))
    }
    return replaced if {name for name, _ in gained} <= allowed | joinable else None


def _has_faulty(relation: str, finding: Finding, second: Attempt) -> bool:
    """Whether a column that was not found is now read from ``relation``, which was joined for it."""
    faulty = {fault.name for fault in finding.columns}
    return any(
        form[:1] == ("col",)
        and form[2] in faulty
        and (form[1].startswith("?") or relation_of(form[1]) == relation)
        for form in _all_forms(second)
    )


def _replacement(fault: Fault, use: Use, second: Attempt) -> str | None:
    there = sorted(name for name, its in second.relations if its is use)
    offered = next((name for name in there if _is_among(name, fault.offered)), None)
    if offered is not None:
        return offered
    # Hints offer several, and without a catalog none: then a name that is like it will do.
    plain = {name: name.rpartition(".")[2] for name in there}
    like = nearest(fault.name.rpartition(".")[2], plain.values())
    return next((name for name in there if plain[name] in like), None)


def _is_among(name: str, offered: Iterable[str]) -> bool:
    return any(name == each or name.endswith("." + each) for each in offered)


def _predicates_lost(first: Attempt, finding: Finding, second: Attempt) -> Halt | None:
    if not (first.decided and second.decided):
        return Halt.PREDICATE_WEAKENED
    first, second = _unwrapped(first), _unwrapped(second)
    if [level.action for level in first.levels] != [level.action for level in second.levels]:
        return Halt.PREDICATE_WEAKENED
    joined = _joined(first, finding, second)
    fewest: list[Form] | None = None
    for reading in readings(first, finding, second):
        lost = _lost(reading, second.levels, joined)
        if not lost:
            return None
        if fewest is None or len(lost) < len(fewest):
            fewest = lost
    return _worst(fewest or [], second)


def _unwrapped(made: Attempt) -> Attempt:
    """``made`` without what is wrapped around it and bounds no row: PREPARE, EXPLAIN ANALYZE."""
    standing = (level for level in made.levels if level.where or level.action not in WRAPPED)
    return replace(made, levels=tuple(standing))


def _joined(first: Attempt, finding: Finding, second: Attempt) -> frozenset[str]:
    """What the second statement may join that the first lacked, wherever it lacked it: relations that it has
    beside those of the first, or reads a column of that was not found; and sub-selects, for such a column."""
    gained = {name for name, _ in second.relations - first.relations}
    if not finding.columns:
        return frozenset(gained)
    found = {name for name, use in second.relations if use is Use.READ and _has_faulty(name, finding, second)}
    return frozenset({*gained, *found, OF_NO_RELATION})


def _lost(first: Sequence[Level], second: Sequence[Level], joined: frozenset[str]) -> list[Form]:
    reasoning = Reasoning(joined=joined)
    try:
        return [
            form for one, other in zip(first, second, strict=True) for form in _unkept(reasoning, one, other)
        ]
    except (TooLarge, RecursionError):
        return [("undecided",)]


def _unkept(reasoning: Reasoning, first: Level, second: Level) -> Iterator[Form]:
    if first.action.startswith("SETOP"):
        # Each arm by itself, so that what was lost is known.
        if not reasoning.narrower(first, second):
            yield first
    else:
        yield from reasoning.unkept(first, second)


def _worst(lost: Sequence[Form], second: Attempt) -> Halt:
    if second.untied:
        return Halt.TAUTOLOGY
    bound = bounding_columns(second)
    if any(columns(form) and columns(form).isdisjoint(bound) for form in lost):
        return Halt.PREDICATE_REMOVED
    return Halt.PREDICATE_WEAKENED


_CHECKS: Final = (_class_changed, dummy_literal, _distinct_for_limit, _relations_changed, _predicates_lost)
"""In the order in which one explains the refusal better than the next."""


# Names at fault -------------------------------------------------------------------------------------------


def readings(first: Attempt, finding: Finding, second: Attempt) -> Iterator[tuple[Level, ...]]:
    """The levels of ``first`` with its faulty names read as names of ``second``, likeliest first.

    One name is read alike wherever it stands. At most ``MAX_READINGS``.
    """
    relations = replacements(first, finding, second) or {}
    there = sorted(columns(second.levels) | {str(item[1]) for lvl in second.levels for item in assigned(lvl)})
    known, bounding = columns(first.levels), bounding_columns(first)
    faults = list(dict.fromkeys(fault.name for fault in finding.columns))
    offered = {fault.name: fault.offered for fault in finding.columns}
    choices = []
    for fault in faults:
        likely = [name for name in there if any(_is_among(each, (name,)) for each in offered[fault])]
        # What only is shown or assigned binds nothing: there a name that is not alike is another column.
        others = [name for name in there if name not in known] if fault in bounding else []
        choices.append(list(dict.fromkeys([*likely, *nearest(fault, there), *others, fault])))
    owners = _only_sources(second.levels)
    for chosen in islice(product(*choices), MAX_READINGS):
        names = _Names(relations, dict(zip(faults, chosen, strict=True)), owners)
        yield tuple(_renamed(level, names) for level in first.levels)


class _Names(NamedTuple):
    """How names are read: relations and columns that were at fault by what they are now, and what stands
    before a column and names no source (``terms``) by the one source that it can mean."""

    relations: Mapping[str, str]
    columns: Mapping[str, str]
    owners: Mapping[str, str]


def _only_sources(levels: Sequence[Level]) -> Mapping[str, str]:
    """The label of each relation that is there once, by a qualifier that means it by its own name alone."""
    labels: dict[str, set[str]] = {}
    for form in subforms(tuple(levels)):
        if form[:1] == ("relation",):
            name = relation_of(form[1]).rpartition(".")[2]
            labels.setdefault(f"{UNKNOWN_OWNER}{name}", set()).add(form[1])
    return {qualifier: next(iter(found)) for qualifier, found in labels.items() if len(found) == 1}


def bounding_columns(made: Attempt) -> frozenset[str]:
    """The columns in what bounds a statement's rows."""
    return columns(tuple((lvl.where, lvl.having, lvl.outer, lvl.sources, lvl.rest) for lvl in made.levels))


def _renamed(item: Any, names: _Names) -> Any:
    """``item`` with relations and columns under their new names. A renamed column may be any source's."""
    if isinstance(item, str):
        return _relabelled(item, names.relations)
    if not isinstance(item, tuple) or item[:1] in (("text",), ("typed",)):
        return item
    if item[:1] == ("col",):
        known = names.owners.get(item[1]) or _relabelled(item[1], names.relations)
        owner = ANY if item[2] in names.columns else known
        return ("col", owner, names.columns.get(item[2], item[2]))
    if item[:1] == ("set",):
        return ("set", names.columns.get(item[1], item[1]), _renamed(item[2], names))
    parts = tuple(_renamed(each, names) for each in item)
    return Level(*parts) if isinstance(item, Level) else parts


def _relabelled(label: str, relations: Mapping[str, str]) -> str:
    depth, colon, rest = label.partition(":")
    name, hash_sign, number = rest.rpartition("#")
    return f"{depth}{colon}{relations[name]}{hash_sign}{number}" if name in relations else label


def unmarked(item: Any) -> Any:
    """``item`` without the marks of what was at fault."""
    if not isinstance(item, tuple):
        return item
    if item[:1] == ("fault",):
        return unmarked(item[1])
    parts = tuple(unmarked(each) for each in item)
    return Level(*parts) if isinstance(item, Level) else parts
