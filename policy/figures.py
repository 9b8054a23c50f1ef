"""What each node of a plan amounts to once the nodes above it are taken into account.

Owns the arithmetic between a plan and a limit: how much of a node a LIMIT lets run, how often a node runs,
what parallel workers add up to, how large the relation is that a scan reads, what a write writes and locks.
Knows no limit and no wording (``policy.rules.cost_over_limit``).

A node's cost in EXPLAIN is that of one run to its end. PostgreSQL charges a Limit for the part of its input
that it takes (``adjust_limit_rows_costs`` in src/backend/optimizer/util/pathnode.c), linearly between
start-up and total cost; ``share`` is that part, read back from the Limit's own cost. It holds for every node
that hands rows on as it gets them; what must have all of its input first (Sort, Hash, Aggregate …) starts up
at no less than its input's total cost, and there the share is whole again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from policy.catalog_values import Relation
from policy.names import QualifiedName
from policy.plan import Node, Plan

TUPLE_COST: Final = 0.0225
"""Planner units a row of a filtered sequential scan at PostgreSQL's default settings: cpu_tuple_cost, one
cpu_operator_cost, and a page's cost over 100 rows."""
_LEADER_SHARE: Final = 0.3
"""What each worker costs the leader of its own work (get_parallel_divisor in costsize.c)."""
_TINY: Final = 1e-9
_APPENDS: Final = frozenset({"Append", "Merge Append"})
_WHOLE_SCANS: Final = frozenset({"Seq Scan", "Sample Scan", "Index Scan", "Index Only Scan"})
"""Scans that read all of their relation, those by an index where no condition narrows that."""
_EVERY_ROW: Final = "bernoulli"
"""The sampling method that looks at each row; SYSTEM reads some pages."""
_SORTED: Final = frozenset(
    {
        "Sort",
        "Incremental Sort",
        "Index Scan",
        "Index Only Scan",
        "Merge Join",
        "Merge Append",
        "Gather Merge",
    }
)
_PASSING_ORDER: Final = frozenset({"Nested Loop", "Subquery Scan", "WindowAgg", "Limit", "Unique", "Result"})
"""Nodes whose rows come in the order of those of their outer child."""
_NUMBERING: Final = ("row_number()", "rank()", "dense_rank()")
"""Window functions that know their value at once."""
_READING: Final = "Select"
"""The operation of a Foreign Scan that writes nothing."""


class Relations(Protocol):
    """What is asked of a catalog here; ``policy.catalog.Catalog`` answers it."""

    def relation(self, schema: str, name: str) -> Relation | None: ...

    def ancestors(self, relation: Relation) -> frozenset[QualifiedName]: ...


class LockMode(StrEnum):
    """Table locks that plannable statements take, the weakest first (PostgreSQL's manual, 13.3.1)."""

    ACCESS_SHARE = "AccessShareLock"
    ROW_SHARE = "RowShareLock"
    ROW_EXCLUSIVE = "RowExclusiveLock"


_STRENGTH: Final = {mode: place for place, mode in enumerate(LockMode)}


class SizeSource(StrEnum):
    """Where the size of a scanned relation comes from, the most exact first."""

    PLAN = "plan"
    """A scan without a filter returns every row."""
    CATALOG = "catalog"
    COST = "cost"
    """From the scan's cost, at ``TUPLE_COST`` a row: neither plan nor catalog says it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One node and what of it is charged. ``share`` 0..1, ``runs`` how often it runs, at least 1.

    ``cost`` is for one run (the nodes above hold the sum), ``rows`` for all of them. ``scanned`` is the
    number of rows that a scan of a whole relation reads in one run, None for other nodes.
    """

    node: Node
    share: float
    runs: float
    cost: float
    rows: float
    scanned: float | None = None
    size_source: SizeSource | None = None
    repeated_by: Node | None = None
    """The node above that makes it run more than once."""
    whole: QualifiedName | None = None
    """Of an Append: the table whose parts it reads, and of which ``scanned`` is the sum."""
    never_analyzed: bool = False
    """The catalog says that statistics of the scanned relation were never gathered."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A table lock that running the plan takes. ``rows`` are those read, or for the stronger modes locked:
    each once, however often it is."""

    schema: str | None
    relation: str
    mode: LockMode
    rows: float


@dataclass(frozen=True, slots=True)
class Figures:
    """All of a plan, parents first. ``result_rows`` and ``result_bytes`` are of what the top nodes return."""

    nodes: tuple[Figure, ...]
    result_rows: float
    result_bytes: float
    total: float
    locks: tuple[Lock, ...]


def figures(plan: Plan, relations: Relations | None, under_limit_full: bool = False) -> Figures:
    """Work out ``plan``. ``under_limit_full`` charges everything under a Limit in full."""
    reading = _Reading(relations, under_limit_full)
    for root in plan.roots:
        reading.visit(root, _Above())
    nodes = tuple(reading.found)
    return Figures(
        nodes=nodes,
        result_rows=sum(root.rows for root in plan.roots),
        result_bytes=sum(root.rows * root.width for root in plan.roots),
        total=sum(root.total for root in plan.roots),
        locks=_locks(nodes, relations),
    )


def modified_rows(figure: Figure) -> float:
    """The rows that a ModifyTable node writes: those of its input, which always runs to its end."""
    return sum(child.rows for child in figure.node.children if child.role not in ("InitPlan", "SubPlan"))


@dataclass(frozen=True, slots=True)
class _Above:
    """What the nodes above make of a node. ``processes`` that each yield its rows."""

    share: float = 1.0
    runs: float = 1.0
    processes: float = 1.0
    repeated_by: Node | None = None


class _Reading:
    """One walk of a plan. ``found`` fills parents first."""

    __slots__ = ("_full", "_relations", "found")

    def __init__(self, relations: Relations | None, full: bool) -> None:
        self._relations = relations
        self._full = full
        self.found: list[Figure] = []

    def visit(self, node: Node, above: _Above) -> None:
        share, runs = above.share, above.runs
        run_rows = node.rows * above.processes
        scanned, source, unknown = _scanned(node, run_rows, self._relations)
        place = len(self.found)
        self.found.append(
            Figure(
                node=node,
                share=share,
                runs=runs,
                cost=node.startup + share * (node.total - node.startup),
                rows=run_rows * share * runs,
                scanned=None if scanned is None else scanned * share,
                size_source=source,
                repeated_by=above.repeated_by,
                never_analyzed=unknown,
            )
        )
        below = above.processes * _processes(node)
        outer_rows = next((child.rows * below for child in node.children if child.role == "Outer"), 1.0)
        for child in node.children:
            part = 1.0 if self._full else _share_of_child(node, child, share)
            times = _runs_of_child(node, child, outer_rows * part, run_rows * share)
            repeated_by = node if times > 1 else above.repeated_by
            processes = 1.0 if child.role == "InitPlan" else below
            self.visit(child, _Above(part, runs * times, processes, repeated_by))
        if node.kind in _APPENDS and self._relations is not None:
            self.found[place] = _of_whole(self.found[place], self.found[place + 1 :], self._relations)


def _of_whole(append: Figure, below: Sequence[Figure], relations: Relations) -> Figure:
    """What ``append`` reads of one partitioned or inherited table: small parts make a large whole."""
    sums: dict[QualifiedName, float] = {}
    for part in below:
        whole = _whole(part.node, relations) if part.scanned is not None else None
        if whole is not None and part.scanned is not None:
            sums[whole] = sums.get(whole, 0.0) + part.scanned
    if not sums:
        return append
    largest = max(sums, key=lambda each: sums[each])
    unknown = any(part.never_analyzed for part in below)
    return replace(append, scanned=sums[largest], whole=largest, never_analyzed=unknown)


def _whole(scan: Node, relations: Relations) -> QualifiedName | None:
    """The table at the top of those that the one scanned is a part of; None where it is no part."""
    known = relations.relation(scan.schema or "", scan.relation or "")
    above = relations.ancestors(known) if known is not None else frozenset()
    for name in sorted(above):
        parent = relations.relation(*name)
        if parent is not None and not relations.ancestors(parent):
            return name
    return None


def _processes(node: Node) -> float:
    """How many processes' worth of rows those of the nodes below stand for."""
    if node.kind not in ("Gather", "Gather Merge") or not node.workers:
        return 1.0
    leader = max(0.0, 1.0 - _LEADER_SHARE * node.workers)
    return node.workers + leader


def _share_of_child(node: Node, child: Node, share: float) -> float:
    if child.operation not in (None, _READING):
        return 1.0
    if child.role in ("InitPlan", "SubPlan"):
        # EXISTS is charged for its first row (cost_subplan in costsize.c), so less than one run of it.
        return _part_within(node, child)
    if node.kind == "Limit":
        return share * _limit_share(node, child)
    blocking = node.startup >= child.total and child.total > child.startup
    if blocking or _waits_for_all(node, child):
        return 1.0
    # It is charged for its inputs up to where the one of them ends (initial_cost_mergejoin in costsize.c).
    return share * _part_within(node, child) if node.kind == "Merge Join" else share


def _waits_for_all(node: Node, child: Node) -> bool:
    """Whether a window without an order has to see all of ``child`` before its first row, for which
    PostgreSQL charges since 16 alone (get_windowclause_startup_tuples in pathnode.c)."""
    if node.kind != "WindowAgg" or _is_sorted(child):
        return False
    return any(" OVER " in item and not item.lstrip("(").startswith(_NUMBERING) for item in node.output)


def _is_sorted(node: Node) -> bool:
    while node.kind in _PASSING_ORDER and node.children:
        node = next(
            (child for child in node.children if child.role in ("Outer", "Subquery")), node.children[0]
        )
    return node.kind in _SORTED


def _limit_share(limit: Node, child: Node) -> float:
    """The part of ``child`` that the Limit takes, its OFFSET included."""
    if child.total - child.startup > _TINY:
        return _part_within(limit, child)
    return min(1.0, limit.rows / child.rows) if child.rows else 1.0


def _part_within(node: Node, child: Node) -> float:
    """How much of a run of ``child`` the whole cost of ``node`` has room for."""
    run = child.total - child.startup
    return min(1.0, max(0.0, (node.total - child.startup) / run)) if run > _TINY else 1.0


def _runs_of_child(node: Node, child: Node, outer_rows: float, own_rows: float) -> float:
    """How often ``child`` runs in one run of ``node``.

    A hashed SubPlan runs once and a correlated one for every row; their nodes do not say which they are, but
    the cost above does.
    """
    if child.role == "SubPlan":
        return max(1.0, min(own_rows, node.total / child.total if child.total > _TINY else own_rows))
    if node.kind == "Nested Loop" and child.role == "Inner":
        # Semi, anti and unique joins leave the inner side at its first match: its rows do not multiply.
        stops_early = node.inner_unique or node.join in ("Semi", "Anti")
        return 1.0 if stops_early else max(1.0, outer_rows)
    return 1.0


def _scanned(
    node: Node, run_rows: float, relations: Relations | None
) -> tuple[float | None, SizeSource | None, bool]:
    """The size of the relation that a scan reads whole, where that comes from, and whether the catalog says
    that nobody ever counted it."""
    if node.kind not in _WHOLE_SCANS or node.has("Index Cond"):
        return None, None, False
    known = relations.relation(node.schema or "", node.relation or "") if relations is not None else None
    unknown = known is not None and known.rows < 0
    by_part = known is None or any(index.partial for index in known.indexes if index.name == node.index)
    if (not node.has("Filter") and node.sampling != _EVERY_ROW) or (node.index is not None and by_part):
        return run_rows, SizeSource.PLAN, unknown
    by_pages = node.sampling not in (None, _EVERY_ROW)
    if known is not None and not unknown and not by_pages:
        # The planner counts pages as they are now, the catalog as they were: the larger of the two.
        return max(known.rows, run_rows), SizeSource.CATALOG, False
    # A sub-select in the filter is part of a row's cost; taken for one that runs for each row.
    row_cost = TUPLE_COST + sum(child.total for child in node.children)
    return max(run_rows, (node.total - node.startup) / row_cost), SizeSource.COST, unknown


def _touched(figure: Figure, relations: Relations | None) -> float:
    """The rows of its relation that a scan returns, one that is read again and again counted once."""
    if figure.scanned is not None:
        return min(figure.rows, figure.scanned)
    node = figure.node
    known = relations.relation(node.schema or "", node.relation or "") if relations is not None else None
    if known is None or known.rows < 0:
        return figure.rows
    # The catalog counted some time ago: no less than one run of the plan takes for certain.
    return min(figure.rows, max(known.rows, figure.rows / figure.runs))


def _locks(nodes: tuple[Figure, ...], relations: Relations | None) -> tuple[Lock, ...]:
    """The strongest lock of each relation, those written first."""
    locks: dict[tuple[str | None, str], Lock] = {}

    def take(node: Node, mode: LockMode, rows: float) -> None:
        if node.relation is None:
            return
        key = (node.schema, node.relation)
        known = locks.get(key)
        if known is None or (_STRENGTH[mode], rows) > (_STRENGTH[known.mode], known.rows):
            locks[key] = Lock(node.schema, node.relation, mode, rows)

    for figure in nodes:
        if figure.node.kind == "ModifyTable":
            take(figure.node, LockMode.ROW_EXCLUSIVE, modified_rows(figure))
        elif figure.node.kind == "LockRows":
            for below in figure.node.walk():
                take(below, LockMode.ROW_SHARE, figure.rows)
        else:
            take(figure.node, LockMode.ACCESS_SHARE, _touched(figure, relations))
    return tuple(sorted(locks.values(), key=lambda lock: -_STRENGTH[lock.mode]))
