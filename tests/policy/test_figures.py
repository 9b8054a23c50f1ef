"""The arithmetic between a plan and a limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policy.catalog_values import Index, Relation, RelationKind
from policy.figures import Figures, LockMode, SizeSource, figures
from policy.names import QualifiedName
from policy.plan import Node, Plan, parse_plan
from tests.policy.test_plan import stored


def node(kind: str, total: float, rows: float, *children: Node, startup: float = 0.0, **more: Any) -> Node:
    return Node(kind, startup, total, rows, more.pop("width", 8), children=children, **more)


def scan(rows: float = 1000, total: float = 100, role: str = "Outer", **more: Any) -> Node:
    return node("Seq Scan", total, rows, role=role, schema="public", relation="t", alias="t", **more)


def by_index(rows: float, kind: str = "Index Scan", **more: Any) -> Node:
    return node(kind, 2 * rows, rows, schema="public", relation="orders", index="orders_pkey", **more)


def of(root: Node, **options: Any) -> Figures:
    return figures(Plan((root,)), options.pop("catalog", None), **options)


class Rows:
    """A catalog that knows one count, and of one index."""

    def __init__(self, rows: float, *, partial: bool = False) -> None:
        self.rows = rows
        self.index = Index("orders_pkey", ("id",), partial=partial)

    def relation(self, schema: str, name: str) -> Relation | None:
        return Relation(schema, name, RelationKind.TABLE, "owner", rows=self.rows, indexes=(self.index,))

    def ancestors(self, relation: Relation) -> frozenset[QualifiedName]:
        return frozenset()


def test_a_limit_charges_its_share_of_what_hands_rows_on() -> None:
    told = figures(parse_plan(stored("limit")), None)
    limit, table = told.nodes
    assert (limit.cost, limit.rows) == (0.11, 5)
    assert table.share == pytest.approx(0.11 / 45)
    assert table.cost == pytest.approx(0.11)
    assert table.scanned == pytest.approx(2000 * 0.11 / 45)


def test_a_limit_may_be_told_not_to_count() -> None:
    _, table = figures(parse_plan(stored("limit")), None, under_limit_full=True).nodes
    assert (table.share, table.cost, table.scanned) == (1.0, 45.0, 2000)


def test_what_must_have_all_its_input_has_it_under_a_limit_too() -> None:
    _, sort, join, *_ = figures(parse_plan(stored("sort_under_limit")), None).nodes
    assert sort.cost < sort.node.total
    assert (join.share, join.cost, join.rows) == (1.0, 279281.47, 15607774)


def test_the_offset_is_part_of_the_share() -> None:
    # PostgreSQL charges OFFSET 900 LIMIT 10 of 1,000 rows for 910 of them.
    _, table = of(node("Limit", 91.0, 10, scan(), startup=90.0)).nodes
    assert table.share == pytest.approx(0.91)


def test_a_limit_over_nothing_dear_goes_by_rows() -> None:
    _, table = of(node("Limit", 0.0, 5, scan(rows=10, total=0.0))).nodes
    assert table.share == 0.5


def test_the_inner_side_of_a_nested_loop_runs_for_every_outer_row() -> None:
    _, outer, inner = of(node("Nested Loop", 9e4, 5000, scan(1000), scan(5, role="Inner"))).nodes
    assert (outer.runs, inner.runs, inner.rows) == (1, 1000, 5000)
    assert inner.repeated_by is not None
    assert inner.repeated_by.kind == "Nested Loop"


@pytest.mark.parametrize("early", [{"join": "Semi"}, {"join": "Anti"}, {"inner_unique": True}])
def test_a_join_that_stops_at_the_first_match_multiplies_nothing(early: dict[str, Any]) -> None:
    *_, inner = of(node("Nested Loop", 9e4, 1000, scan(1000), scan(500, role="Inner"), **early)).nodes
    assert (inner.runs, inner.rows) == (1, 500)


def test_a_correlated_sub_select_runs_for_every_row() -> None:
    _, aggregate, table = figures(parse_plan(stored("correlated")), None).nodes
    assert aggregate.runs == pytest.approx(2000)
    assert table.rows == pytest.approx(2000 * 3001)


def test_a_sub_select_runs_no_oftener_than_the_cost_above_it_pays_for() -> None:
    _, table = of(node("Seq Scan", 210, 4000, scan(2000, 100, role="SubPlan"))).nodes
    assert table.runs == pytest.approx(2.1)


def test_exists_is_charged_for_its_first_row() -> None:
    result = node("Result", 0.06, 1, scan(1000, 50, role="InitPlan", conditions=(("Filter", "x"),)))
    _, table = of(result).nodes
    assert table.share == pytest.approx(0.06 / 50)
    assert table.scanned == pytest.approx(50 / 0.0225 * 0.06 / 50)


def test_a_sub_select_in_a_filter_makes_no_larger_relation() -> None:
    root = scan(7, 4000 * (10 + 0.0225), conditions=(("Filter", "x"),))
    root = replace(root, children=(scan(5, 10, role="SubPlan"),))
    assert of(root).nodes[0].scanned == pytest.approx(4000)


def test_workers_add_up_and_the_leader_helps() -> None:
    gather, table = figures(parse_plan(stored("parallel")), None).nodes
    # Two workers and 0.4 of the leader: what PostgreSQL divided 1,500 rows by.
    assert table.rows == pytest.approx(gather.rows) == 1500


@pytest.mark.parametrize(
    ("table", "catalog", "scanned", "source", "unknown"),
    [
        (scan(1000), None, 1000, SizeSource.PLAN, False),
        (scan(1000), Rows(-1), 1000, SizeSource.PLAN, True),
        (scan(7, conditions=(("Filter", "x"),)), Rows(5000), 5000, SizeSource.CATALOG, False),
        (scan(6000, conditions=(("Filter", "x"),)), Rows(5000), 6000, SizeSource.CATALOG, False),
        (scan(7, 225, conditions=(("Filter", "x"),)), None, 10_000, SizeSource.COST, False),
        (scan(7, 225, conditions=(("Filter", "x"),)), Rows(-1), 10_000, SizeSource.COST, True),
    ],
)
def test_where_the_size_of_a_scanned_relation_comes_from(
    table: Node, catalog: Rows | None, scanned: float, source: SizeSource, unknown: bool
) -> None:
    (figure,) = of(table, catalog=catalog).nodes
    assert figure.scanned == pytest.approx(scanned)
    assert (figure.size_source, figure.never_analyzed) == (source, unknown)


def test_the_locks_of_a_writing_cte() -> None:
    told = figures(parse_plan(stored("writing_cte")), None)
    assert [(lock.relation, lock.mode, lock.rows) for lock in told.locks] == [
        ("customers", LockMode.ROW_EXCLUSIVE, 1),
        ("orders", LockMode.ROW_EXCLUSIVE, 899),
    ]


@pytest.mark.parametrize(
    ("inner", "catalog", "rows"),
    [
        (scan(7), None, 7),
        (scan(7, 225, conditions=(("Filter", "x"),)), Rows(2_000), 350),
        (scan(7, 225, conditions=(("Filter", "x"),)), Rows(200), 200),
        (by_index(4, conditions=(("Index Cond", "x"),)), None, 200),
        (by_index(4, conditions=(("Index Cond", "x"),)), Rows(90), 90),
        (by_index(4, conditions=(("Index Cond", "x"),)), Rows(2), 4),
        (by_index(4, conditions=(("Index Cond", "x"),)), Rows(-1), 200),
        (by_index(4), None, 4),
    ],
)
def test_a_row_that_is_read_again_and_again_is_locked_once(
    inner: Node, catalog: Rows | None, rows: float
) -> None:
    outer = replace(node("Function Scan", 1, 50), role="Outer")
    loop = node("Nested Loop", 900, 50, outer, replace(inner, role="Inner"))
    (lock,) = of(loop, catalog=catalog).locks
    assert lock.rows == rows


def test_rows_that_are_locked() -> None:
    (lock,) = of(node("LockRows", 50, 20, scan(20))).locks
    assert (lock.mode, lock.rows) == (LockMode.ROW_SHARE, 20)


def test_the_result_is_what_the_top_returns() -> None:
    told = of(node("Limit", 1.0, 5, scan(), width=64))
    assert (told.result_rows, told.result_bytes, told.total) == (5, 320, 1.0)


FILTERED = (("Filter", "x"),)


@pytest.mark.parametrize(
    ("table", "catalog", "scanned"),
    [
        (by_index(900), None, 900),
        (by_index(900, "Index Only Scan"), Rows(50), 900),
        (by_index(9, conditions=FILTERED), Rows(5000), 5000),
        (by_index(9, conditions=FILTERED), Rows(5000, partial=True), 9),
        (by_index(9, conditions=FILTERED), None, 9),
        (by_index(900, conditions=(("Index Cond", "x"),)), Rows(5000), None),
        (node("Sample Scan", 30, 9, sampling="bernoulli", relation="t"), Rows(5000), 5000),
        (node("Sample Scan", 30, 9, sampling="bernoulli", relation="t", conditions=FILTERED), Rows(40), 40),
        (node("Sample Scan", 30, 900, sampling="system", relation="t"), Rows(5000), 900),
        (node("Sample Scan", 45, 9, sampling="system", relation="t", conditions=FILTERED), Rows(5000), 2000),
        (node("Bitmap Heap Scan", 45, 9, relation="t"), Rows(5000), None),
    ],
)
def test_what_reads_a_whole_relation_reads_it_by_an_index_and_in_a_sample_too(
    table: Node, catalog: Rows | None, scanned: float | None
) -> None:
    (figure,) = of(table, catalog=catalog).nodes
    assert figure.scanned == (None if scanned is None else pytest.approx(scanned))


def test_a_merge_join_reads_no_further_than_its_shorter_side() -> None:
    """So it is charged: the whole of the longer one would cost more than the join."""
    long, short = by_index(60_000, role="Outer"), replace(scan(10), role="Inner")
    join = node("Merge Join", 1200, 10, long, short, conditions=(("Merge Cond", "x"),))
    _, most, whole = of(join).nodes
    assert (most.cost, most.rows, most.scanned) == pytest.approx((1200, 600, 600))
    assert (whole.cost, whole.scanned) == (100, 10)
    _, _, part, _ = of(node("Limit", 120, 1, replace(join, role="Outer"))).nodes
    assert (part.cost, part.scanned) == pytest.approx((120, 60))


@pytest.mark.parametrize(
    ("output", "child", "share"),
    [
        ("sum(x) OVER (?)", scan(), 1.0),
        ("(sum(x) OVER (?) + 1)", node("Nested Loop", 100, 1000, scan(), role="Outer"), 1.0),
        ("sum(x) OVER (?)", by_index(1000, role="Outer"), 0.01),
        ("sum(x) OVER (?)", node("Nested Loop", 100, 1000, by_index(9, role="Outer"), role="Outer"), 0.01),
        ("row_number() OVER (?)", scan(), 0.01),
        ("(row_number() OVER (?) + 1)", scan(), 0.01),
    ],
)
def test_a_window_without_an_order_sees_all_of_its_input_first(
    output: str, child: Node, share: float
) -> None:
    """PostgreSQL 15 charges it under a LIMIT as if it did not."""
    window = node("WindowAgg", 200, 1000, child, role="Outer", output=("x", output))
    _, _, figure, *_ = of(node("Limit", 2, 10, window)).nodes
    assert figure.share == pytest.approx(share)


def test_a_foreign_scan_under_a_limit_reads_its_share_and_what_writes_runs_to_its_end() -> None:
    for operation, rows in (("Select", 10), ("Update", 1000)):
        far = node("Foreign Scan", 100, 1000, role="Outer", operation=operation, relation="far")
        _, figure = of(node("Limit", 1, 10, far)).nodes
        assert figure.rows == pytest.approx(rows)
