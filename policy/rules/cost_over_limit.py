"""cost-over-limit: a plan with a node over one of the limits of ``cost``.

What it refuses
    A statement whose plan, as PostgreSQL makes it for this agent and these values, has a node over
    ``max_total_cost``, ``max_rows``, ``max_scan_rows`` or ``max_modified_rows``, or a result over
    ``max_result_bytes``. Every node counts: an aggregate's one row hides the join below it.
Why
    The statement would take the server's time, its memory or its rows. The planner knows before it runs.
Refused
    ``SELECT count(*) FROM order_items a, order_items b`` · ``SELECT a.order_id FROM order_items a JOIN
    order_items b ON a.unit_price <> b.unit_price ORDER BY a.quantity LIMIT 5``
Allowed
    ``SELECT * FROM orders LIMIT 5`` · ``SELECT count(*) FROM orders o JOIN order_items i ON i.order_id =
    o.id``
Repair
    One, by what the hint names: a join condition, a condition on an indexed column, a LIMIT.
Settings
    ``cost: {max_total_cost, max_rows, max_scan_rows, max_result_bytes, max_modified_rows, allowances}``, and
    ``under_limit: full`` to count nodes under a LIMIT as if it were not there. An allowance's ceiling stands
    for the first three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from policy.figures import Figure, SizeSource, modified_rows
from policy.model import CostLimits, Policy, RuleLevel, Violation
from policy.plan import Node
from policy.priced import Priced

NAME = "cost-over-limit"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "54001"
GOVERNED_BY = "cost"

_ROWS: Final = "max_rows"

_NO_LIMIT: Final = frozenset({"UpdateStmt", "DeleteStmt", "MergeStmt"})

COLLECTING: Final = frozenset(
    {"string_agg", "array_agg", "json_agg", "jsonb_agg", "json_object_agg", "jsonb_object_agg", "xmlagg"}
    | {"json_agg_strict", "jsonb_agg_strict", "json_object_agg_strict", "jsonb_object_agg_strict"}
)
"""Aggregates of pg_catalog that keep all they are given: their value is as large as their input."""
_COLLECTORS: Final = frozenset({"Aggregate", "WindowAgg"})


@dataclass(frozen=True, slots=True)
class Excess:
    """One limit and the lowest node over it. ``amount`` and ``ceiling`` are in the limit's own unit."""

    limit: str
    figure: Figure
    amount: float
    ceiling: float

    @property
    def node(self) -> Node:
        """The node to blame: where repetition makes the amount, the one that repeats."""
        repeated = self.figure.repeated_by
        once = self.amount / self.figure.runs
        return repeated if self.limit == _ROWS and once <= self.ceiling and repeated else self.figure.node


@dataclass(frozen=True, slots=True)
class _Measure:
    limit: str
    ceiling: Callable[[CostLimits], float | None]
    amount: Callable[[Figure, float], float]
    """Of a node, given the ceiling (what is dear to work out is looked at only near it)."""
    phrase: str


def check_plan(priced: Priced, policy: Policy) -> Iterator[Violation]:
    for excess in excesses(priced):
        node = excess.node
        relation = priced.shown(node) or next(iter(priced.relations_below(node)), None)
        yield Violation(
            rule=NAME,
            message=_message(priced, excess),
            hint=_hint(priced, excess),
            object=None if relation is None else str(relation),
            repairable=True,
            line=policy.cost.line if policy.cost is not None else 0,
            schema=None if relation is None else relation.schema,
            table=None if relation is None else relation.name,
        )


def excesses(priced: Priced) -> Iterator[Excess]:
    """The limits that the plan is over, each with the node that is to blame: the lowest one over it."""
    for measure in _MEASURES:
        ceiling = measure.ceiling(priced.limits)
        if ceiling is None:
            continue
        for figure in reversed(priced.figures.nodes):
            amount = measure.amount(figure, ceiling)
            if amount > ceiling:
                yield Excess(measure.limit, figure, amount, ceiling)
                break


def worst(priced: Priced) -> Iterator[tuple[str, float]]:
    """The largest amount of each limit's kind in the plan, whatever the limits are."""
    for measure in _MEASURES:
        yield (
            measure.limit,
            max((measure.amount(figure, 0.0) for figure in priced.figures.nodes), default=0.0),
        )


def joins_without_condition(node: Node) -> bool:
    """A nested loop that pairs every row of one side with every row of the other."""
    if node.kind != "Nested Loop" or node.has("Join Filter"):
        return False
    inner = next((child for child in node.children if child.role == "Inner"), None)
    if inner is None:
        return False
    # Only a Materialize is certain not to look at the outer row; below another node any condition may.
    if inner.kind == "Materialize":
        return True
    return not any(each.conditions or each.kind in ("Function Scan", "Memoize") for each in inner.walk())


def _modified(figure: Figure, _ceiling: float) -> float:
    return modified_rows(figure) if figure.node.kind == "ModifyTable" else 0.0


def _bytes(figure: Figure, ceiling: float) -> float:
    """The result at the top; elsewhere what an aggregate collects into values."""
    node = figure.node
    if not node.role:
        result = figure.rows * node.width
        if result > ceiling:
            return result
    if node.kind not in _COLLECTORS:
        return 0.0
    collected = sum(child.rows * child.width for child in node.children if child.role == "Outer")
    return collected if collected > ceiling and _collects(node) else 0.0


def _collects(node: Node) -> bool:
    # EXPLAIN's spelling is no SQL (PARTIAL, SubPlan 1), so names are looked for as text. It is PostgreSQL's
    # text, not the agent's; a constant in it that holds such a name errs to the safe side.
    return any(f"{name}(" in item for item in node.output for name in COLLECTING)


_MEASURES: Final = (
    _Measure("max_modified_rows", lambda limits: limits.max_modified_rows, _modified,
             "modifies about {} rows"),
    _Measure("max_total_cost", lambda limits: limits.max_total_cost, lambda f, _: f.cost, "costs about {}"),
    _Measure(_ROWS, lambda limits: limits.max_rows, lambda f, _: f.rows, "yields about {} rows"),
    _Measure("max_scan_rows", lambda limits: limits.max_scan_rows, lambda f, _: f.scanned or 0.0,
             "reads about {} rows"),
    _Measure("max_result_bytes", lambda limits: limits.max_result_bytes, _bytes, "makes about {} bytes"),
)  # fmt: skip
_PHRASES: Final = {measure.limit: measure.phrase for measure in _MEASURES}


def _message(priced: Priced, excess: Excess) -> str:
    figure, node = excess.figure, excess.node
    what = _PHRASES[excess.limit].format(_number(excess.amount))
    if node is not figure.node:
        what = f"runs its {figure.node.kind} {_number(figure.runs)} times, which {what}"
    text = f"The plan's {_name(priced, node)} {what}, over the limit of {_number(excess.ceiling)}"
    text += f" ({excess.limit})"
    if joins_without_condition(node):
        text += "; it joins without a condition"
    if figure.never_analyzed:
        text += "; statistics of the relation were never gathered, so this is a guess"
    elif excess.limit == "max_scan_rows" and figure.size_source is SizeSource.COST:
        text += "; the size is worked out from the scan's cost"
    return text


def _name(priced: Priced, node: Node) -> str:
    kind = node.operation if node.kind == "ModifyTable" and node.operation is not None else node.kind
    own = priced.shown(node)
    names = (own,) if own is not None else priced.relations_below(node)
    shown = " and ".join(str(name) for name in names[:2]) + (" and others" if len(names) > 2 else "")
    return f"{kind} on {shown}" if shown else kind


def _hint(priced: Priced, excess: Excess) -> str:  # noqa: PLR0911 - one cure for each cause
    node = excess.node
    if excess.limit == "max_modified_rows":
        return "Narrow the condition, by key where there is one, or write fewer rows at a time."
    cross = next((each for each in node.walk() if joins_without_condition(each)), None)
    if cross is not None:
        return f"Join {_sides(priced, cross)} on a condition, as in ON a.id = b.a_id."
    if node.kind == "Nested Loop" and node.has("Join Filter"):
        return f"Join {_sides(priced, node)} on an equality, as in ON a.id = b.a_id; others pair many rows."
    if node.kind in ("Function Scan", "ProjectSet"):
        return "Ask the function for fewer rows, as with nearer bounds of a series."
    if excess.limit == "max_result_bytes":
        return (
            "Select fewer columns or rows, with a LIMIT or an aggregate that counts in place of collecting."
        )
    if any(child.role == "SubPlan" for child in node.children):
        return "Replace the sub-select that runs for every row by a join, or add a condition or a LIMIT."
    return _condition(priced, node)


def _sides(priced: Priced, join: Node) -> str:
    names = [str(name) for name in priced.relations_below(join)]
    if len(names) > 1:
        return " and ".join(names[:2])
    return f"{names[0]} with itself" if names else "its relations"


def _condition(priced: Priced, node: Node) -> str:
    """By an index, where there is one; by a LIMIT, where the statement can have one."""
    limit = "" if priced.facts.node in _NO_LIMIT else ", or a LIMIT without an ORDER BY that needs a sort"
    names = priced.relations_below(node)
    told = [
        f"{name} (indexed: {', '.join(columns)})"
        for name in names
        if (columns := tuple(priced.indexed(name)))
    ]
    if told:
        return f"Add a condition on an indexed column of {' or '.join(told[:3])}{limit}."
    if len(names) == 1 and priced.known(names[0]):
        unindexed = f"{names[0]} has no index on a column that you may use"
        return (
            f"Add{limit.removeprefix(', or')}: {unindexed}." if limit else f"All of it is read: {unindexed}."
        )
    return f"Add a condition on an indexed column{limit}."


def _number(value: float) -> str:
    return f"{value:,.0f}"
