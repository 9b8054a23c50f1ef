"""What to ask PostgreSQL about a statement's price, and what its answer means.

Owns the text of the question, the sum of what the plan rules say of the answer, and the price as the contract
tells it. Pure: who asks, on which connection and when is the session's business. The question goes as a Parse
message, which carries one statement, with the agent's own parameter types and bound values; never as text
glued into a Query.

Asked with VERBOSE, because only that names schemas (a limit on a relation's rows needs the very relation) and
prints the calls of set-returning functions with bound values in place; measured at a third more planning time
for a join of four tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

from policy import builtin
from policy.catalog_values import Relation, RelationKind
from policy.counted import Count, CountCatalog, count_of, quoted
from policy.decision import RuleFailure
from policy.driver_lookups import is_driver_lookup
from policy.evaluated import volatile_argument
from policy.expressions import bare, kind_of, names_of
from policy.facts import CallKind, CopyEnd, Facts, FunctionRef, RelationRef, SessionAction
from policy.figures import Figures, LockMode, Relations, figures
from policy.model import CostLimits, Policy, RuleLevel, Violation
from policy.names import Names, PathNames, QualifiedName
from policy.parse import canonical, normalize, parse, trees
from policy.plan import Plan
from policy.priced import PlanCatalog, Priced
from policy.rules import PLAN_RULES, unpriceable
from policy.rules.cost_over_limit import NAME as _OVER
from policy.rules.cost_over_limit import Excess, excesses, worst
from policy.rules.relation_not_allowed import is_allowed
from policy.sizes import GROWING

PREFIX: Final = "EXPLAIN (FORMAT JSON, VERBOSE) "

MAX_CUTS: Final = 16
"""Places where a statement within another is looked for: each takes a parse."""
MAX_LOCKS: Final = 16
"""Locks that ``CostVerdict.cost`` names, the strongest: a partitioned table may have thousands."""

_PLANNED: Final = frozenset(
    {"SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt"}
    | {"DeclareCursorStmt", "CreateTableAsStmt", "ExecuteStmt"}
)
"""Statement nodes that EXPLAIN takes as they are (ExplainableStmt in PostgreSQL's gram.y)."""
_WRAPPED: Final = {"CopyStmt": "COPY (", "ExplainStmt": "EXPLAIN "}
"""Statement nodes that hold one, and what stands before it in their canonical text."""


_EQUALITIES: Final = frozenset({"AEXPR_OP", "AEXPR_IN"})
_VALUES: Final = frozenset({"ParamRef", "A_Const"})
_PUBLIC: Final = PathNames()


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask about one statement.

    ``text`` is one EXPLAIN statement, None where there is nothing to ask. ``offset`` is what a character
    position in PostgreSQL's error must be lessened by to be one in the query string as sent; None where it
    cannot be mapped, the text being PostgreSQL's own spelling. ``refused`` and ``warnings`` are known from
    the text alone; with a refusal nothing is asked, since planning would make the value that it is about.

    ``reusable``: the price is the same whatever values are bound. So it is without parameters, the exact text
    being the key; with parameters only where every one of a unique key's columns is compared by ``=`` to one
    value, in a statement of one relation without sub-selects or set-returning calls.

    ``keyed``: at most one row of one relation is found, whatever values stand in its text or are bound.

    ``count`` is what to ask once the price is known, where the rows it writes are limited and not certain.
    """

    text: str | None
    offset: int | None = None
    refused: tuple[Violation, ...] = ()
    warnings: tuple[Violation, ...] = ()
    reusable: bool = False
    keyed: bool = False
    count: Count | None = None


@dataclass(frozen=True, slots=True)
class CostVerdict:
    """``violations`` refuse, ``warnings`` do not. ``cost`` is the object of the rejection's Detail.

    ``failures`` are rules that raised and refused for it: whoever calls ``judge`` logs them.
    """

    violations: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    cost: Mapping[str, Any]
    failures: tuple[RuleFailure, ...] = ()


def question(
    facts: Facts, policy: Policy, names: Names = _PUBLIC, catalog: CountCatalog | None = None
) -> Question | None:
    """What to ask before ``facts``'s statement may run; None where it needs no price.

    ``names`` says what an unqualified relation could be. ``catalog`` None: no price of a statement with
    parameters is reusable, and nothing is counted beforehand.
    """
    if not _limited(policy.cost) or is_driver_lookup(facts):
        return None
    told = tuple(unpriceable.check_text(facts, policy))
    told = tuple(v for v in told if v.level is not RuleLevel.OFF)
    refused = tuple(v for v in told if v.level is RuleLevel.REJECT)
    warnings = tuple(v for v in told if v.level is RuleLevel.WARN)
    if refused:
        return Question(None, refused=refused)
    asked = _asked(facts)
    if asked is None or _trivial(facts):
        return Question(None, warnings=warnings) if warnings else None
    text, offset = asked
    if text is None:
        return Question(None, refused=(_not_taken_apart(facts, policy),))
    volatile = volatile_argument(facts, names) if _executes(facts) else None
    if volatile is not None:
        return Question(None, refused=(unpriceable.run_twice(policy, *volatile),))
    most = math.inf if catalog is None else _most_rows(facts, names, catalog)
    limit = policy.limits.affected_rows
    return Question(
        text,
        offset,
        warnings=warnings,
        # What EXECUTE runs its text does not say.
        reusable=not _executes(facts) and (not facts.parameters or most <= 1),
        keyed=most <= 1,
        # Where it is certain that no more rows match, as of a point UPDATE, nothing is counted.
        count=None
        if limit is None or catalog is None or most <= limit
        else count_of(facts, limit, names, catalog),
    )


def asked_like(other: Question, facts: Facts) -> Question:
    """The question about ``facts``, which differ in constants alone from those that ``other`` is about."""
    asked = _asked(facts)
    return other if asked is None or other.text is None else replace(other, text=asked[0])


def judge(
    plan: Plan, facts: Facts, policy: Policy, today: date, catalog: PlanCatalog | None = None
) -> CostVerdict:
    """Hold every node of ``plan`` against the limits of ``policy``.

    ``today`` is the day that decides whether an allowance has expired (it holds before that day) and what a
    plan's now() stands for. Without a ``catalog`` the size of a filtered scan's relation is worked out from
    its cost, and hints name no indexes.
    """
    limits = limits_in_force(policy.cost or CostLimits(), facts, today)
    priced = Priced(
        figures=figures(plan, catalog, limits.under_limit_full),
        facts=facts,
        limits=limits,
        policy=policy,
        today=today,
        visible=partial(is_allowed, policy=policy),
        catalog=catalog,
    )
    told: list[Violation] = []
    failures: list[RuleFailure] = []
    for rule in PLAN_RULES:
        try:
            told.extend(rule.check_plan(priced, policy))
        except Exception as error:
            failures.append(RuleFailure(rule.NAME, error))
            told.append(_failed(rule.NAME, facts))
    return CostVerdict(
        violations=tuple(v for v in told if v.level is RuleLevel.REJECT),
        warnings=tuple(v for v in told if v.level is RuleLevel.WARN),
        cost=_cost(priced, next(excesses(priced), None) if any(v.rule == _OVER for v in told) else None),
        failures=tuple(failures),
    )


def _failed(rule: str, facts: Facts) -> Violation:
    return Violation(
        rule=unpriceable.NAME,
        message=f"Unpriceable: an internal failure of rule {rule} kept the plan from being judged",
        hint="Report this to whoever runs the gate.",
        position=facts.start,
    )


def _limited(limits: CostLimits | None) -> bool:
    return limits is not None and (
        limits.unpriceable is not RuleLevel.OFF
        or any(
            ceiling is not None
            for ceiling in (
                limits.max_total_cost,
                limits.max_rows,
                limits.max_scan_rows,
                limits.max_result_bytes,
                limits.max_modified_rows,
            )
        )
    )


def _asked(facts: Facts) -> tuple[str | None, int | None] | None:
    """The EXPLAIN text and its offset; a text of None where the statement cannot be taken apart; None where
    the statement is not one that is planned."""
    if facts.node in _PLANNED:
        return PREFIX + facts.sql, len(PREFIX) - (facts.start - 1)
    if not facts.runs or facts.node not in _WRAPPED:
        return None
    copy = next(iter(facts.copies), None)
    if copy is not None and copy.relation is not None:
        if copy.end is CopyEnd.STDIN:
            return None  # its rows come from the agent, and are counted as they come
        return _copied_relation(facts.relations[copy.relation], copy.columns), None
    inner = _inner(facts)
    return (None if inner is None else PREFIX + inner), None


def _copied_relation(ref: RelationRef, columns: tuple[str, ...]) -> str:
    """COPY of a relation reads it and nothing below it (DoCopy in src/backend/commands/copy.c)."""
    name = ".".join(quoted(part) for part in (ref.catalog, ref.schema, ref.name) if part is not None)
    selected = ", ".join(map(quoted, columns)) or "*"
    return f"{PREFIX}SELECT {selected} FROM ONLY {name}"  # noqa: S608 - quoted names


def _inner(facts: Facts) -> str | None:
    """The statement that a COPY or EXPLAIN holds, in PostgreSQL's own spelling.

    It is cut at the parenthesis where what remains reads as a whole statement: a cut within a string or a
    name leaves a quote open, any other a parenthesis.
    """
    text = canonical(facts.sql)
    opening = _WRAPPED[facts.node]
    if text is None or not text.startswith(opening):
        return None
    rest = text[len(opening) :]
    candidates = _heads(rest) if facts.node == "CopyStmt" else _tails(rest)
    for candidate in islice(candidates, MAX_CUTS):
        if _is_inner(candidate, facts):
            return candidate
    return None


def _heads(text: str) -> Iterator[str]:
    """What stands before each ``) TO``, the last first: options follow it, and seldom hold another."""
    at = text.rfind(") TO ")
    while at >= 0:
        yield text[:at]
        at = text.rfind(") TO ", 0, at)


def _tails(text: str) -> Iterator[str]:
    """``text`` and what follows each option list that could stand before it."""
    if not text.startswith("("):
        yield text
        return
    at = text.find(")")
    while at >= 0:
        yield text[at + 1 :].lstrip()
        at = text.find(")", at + 1)


def _is_inner(text: str, facts: Facts) -> bool:
    """Whether ``text`` is one plannable statement that touches what ``facts``'s statement touches."""
    read = parse(text)
    if read.failure is not None or len(read.statements) != 1:
        return False
    inner = read.statements[0]
    return inner.node in _PLANNED and (_touched(inner) == _touched(facts))


def _touched(facts: Facts) -> tuple[Any, ...]:
    return (
        [(ref.schema, ref.name, ref.use) for ref in facts.relations],
        [(ref.schema, ref.name, ref.literals) for ref in facts.functions],
    )


def _not_taken_apart(facts: Facts, policy: Policy) -> Violation:
    return Violation(
        rule=unpriceable.NAME,
        message="Unpriceable: the statement inside this one cannot be taken out to be priced",
        hint="Send the inner statement by itself.",
        position=facts.start,
        repairable=True,
        line=policy.cost.line if policy.cost is not None else 0,
    )


def _trivial(facts: Facts) -> bool:
    """Nothing is read, written or made that could be large."""
    if facts.relations or facts.writes or _executes(facts):
        return False
    if any(query.sources for query in facts.queries):
        return False
    return not any(
        ref.name in GROWING or builtin.returns_set(ref.name) or not builtin.is_builtin(ref.name)
        for ref in facts.functions
    )


def _executes(facts: Facts) -> bool:
    return any(ref.action is SessionAction.EXECUTE for ref in facts.session)


def _most_rows(facts: Facts, names: Names, catalog: Relations) -> float:
    """How many rows a statement of one relation can find at most, by its unique keys; inf for others."""
    if _executes(facts) or len(facts.queries) != 1 or len(facts.relations) != 1:
        return math.inf
    known = [found for name in names.relations(facts.relations[0]) if (found := catalog.relation(*name))]
    if any(_may_repeat(ref, known) for ref in facts.functions):
        return math.inf
    values = _compared(facts)
    return max((_most_by_key(relation, values) for relation in known), default=math.inf)


def _most_by_key(relation: Relation, values: Mapping[str, int]) -> float:
    if _inherited(relation):
        return math.inf
    keys = (math.prod(values.get(column, math.inf) for column in key) for key in relation.unique_keys)
    return min(keys, default=math.inf)


def _inherited(relation: Relation) -> bool:
    """A unique key spans the partitions of its table, but not the tables that inherit from one."""
    return bool(relation.children) and relation.kind is not RelationKind.PARTITIONED


def _may_repeat(ref: FunctionRef, relations: Sequence[Relation]) -> bool:
    """Whether a call may return many rows; ``x.name`` is none where every relation has that column."""
    if ref.kind is CallKind.ATTRIBUTE and all(relation.column(ref.name) for relation in relations):
        return False
    return builtin.returns_set(ref.name) or not builtin.is_builtin(ref.name)


def _compared(facts: Facts) -> Mapping[str, int]:
    """The columns that the WHERE of a SELECT, UPDATE or DELETE compares by AND, each to how many values."""
    read = trees(facts.sql)
    where = kind_of(read[0])[1].get("whereClause") if len(read) == 1 else None
    values: dict[str, int] = {}
    for column, count in _compared_columns(where) if where else ():
        values[column] = min(count, values.get(column, count))
    return values


def _compared_columns(node: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    kind, fields = kind_of(node)
    if kind == "BoolExpr" and fields.get("boolop") == "AND_EXPR":
        for arg in fields.get("args", ()):
            yield from _compared_columns(arg)
    elif kind == "A_Expr" and fields.get("kind") in _EQUALITIES and names_of(fields["name"]) == ("=",):
        for one, other in (("lexpr", "rexpr"), ("rexpr", "lexpr")):
            column, value = kind_of(fields.get(one, {})), fields.get(other, {})
            items = kind_of(value)[1].get("items", ()) if kind_of(value)[0] == "List" else (value,)
            if column[0] == "ColumnRef" and all(kind_of(item)[0] in _VALUES for item in items):
                yield names_of(column[1].get("fields", ()))[-1], len(items)


def limits_in_force(limits: CostLimits, facts: Facts, today: date) -> CostLimits:
    """``limits``, or those an allowance puts in their place.

    An allowance is a price: its ceiling stands for max_total_cost, max_rows and max_scan_rows, three ways to
    say one thing. What is written and what is sent stay limited.
    """
    valid = [each for each in limits.allowances if today < date.fromisoformat(each.expires)]
    if not valid:
        return limits
    shape = _shape(facts.sql)
    if shape is None:
        return limits
    for allowance in valid:
        if _allowed_shape(allowance.statement) == shape:
            return replace(limits, max_total_cost=allowance.max_total_cost, max_rows=None, max_scan_rows=None)
    return limits


@lru_cache(maxsize=256)
def _allowed_shape(statement: str) -> Any:
    read = parse(statement)
    return _shape(read.statements[0].sql) if len(read.statements) == 1 else None


def _shape(sql: str) -> Any:
    """The statement's tree with constants and parameters lifted alike: names stay as they are. None where it
    cannot be read."""
    lifted = normalize(sql)
    return _without_numbers(bare(trees(lifted))) or None if lifted is not None else None


def _without_numbers(node: Any) -> Any:
    """``node`` with every parameter the same: which number a constant is lifted to depends on those that the
    text has already."""
    if isinstance(node, list):
        return [_without_numbers(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {kind: {} if kind == "ParamRef" else _without_numbers(value) for kind, value in node.items()}


def _cost(priced: Priced, excess: Excess | None) -> dict[str, Any]:
    told: Figures = priced.figures
    name = priced.shown(excess.node) if excess is not None else None
    return {
        "total": _rounded(told.total),
        "rows": _rounded(told.result_rows if excess is None else excess.figure.rows),
        "limit": None if excess is None else excess.limit,
        "estimate": None if excess is None else _rounded(excess.amount),
        "ceiling": None if excess is None else _rounded(excess.ceiling),
        "node": None if excess is None else excess.node.kind,
        "relation": None if name is None else str(name),
        "locks": _locks(priced),
        "worst": {limit: _rounded(amount) for limit, amount in worst(priced) if amount},
    }


def _locks(priced: Priced) -> list[dict[str, Any]]:
    """The locks of those relations that may be named, the strongest of each; the parts of one table
    together."""
    found: dict[QualifiedName, tuple[LockMode, float]] = {}
    for lock in priced.figures.locks:
        name = priced.named(lock.schema, lock.relation)
        if name is None:
            continue
        mode, rows = found.get(name, (lock.mode, 0.0))
        if mode is lock.mode:
            found[name] = (mode, rows + lock.rows)
    return [
        {"relation": str(name), "mode": mode, "rows": round(rows)}
        for name, (mode, rows) in islice(found.items(), MAX_LOCKS)
    ]


def _rounded(value: float) -> float | int:
    return round(value) if value >= 100 or value == int(value) else round(value, 2)
