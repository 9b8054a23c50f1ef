"""Reading EXPLAIN's JSON: what is there is read, the strange is passed over, what is no plan is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.plan import MAX_BYTES, MAX_DEPTH, Plan, PlanFormatError, parse_plan
from tests.support.postgres import Database

PLANS = Path(__file__).with_name("plans")
LEAF = {"Node Type": "Result", "Startup Cost": 0.0, "Total Cost": 0.01, "Plan Rows": 1, "Plan Width": 4}


def stored(name: str) -> bytes:
    return PLANS.joinpath(f"{name}.json").read_bytes()


def one(**changes: Any) -> str:
    """A plan of one node, with keys set, or left out where None."""
    node = {key: value for key, value in {**LEAF, **changes}.items() if value is not None}
    return json.dumps([{"Plan": node}])


def test_a_nested_loop_of_postgresql_15() -> None:
    (aggregate,) = parse_plan(stored("self_join_count")).roots
    (join,) = aggregate.children
    outer, inner = join.children
    assert (aggregate.kind, aggregate.strategy, aggregate.output) == ("Aggregate", "Plain", ("count(*)",))
    assert (join.kind, join.join, join.role, join.conditions) == ("Nested Loop", "Inner", "Outer", ())
    assert (join.startup, join.total, join.rows) == (0.0, 200242.04, 16008001.0)
    assert (outer.schema, outer.relation, outer.alias, outer.role) == ("public", "order_items", "a", "Outer")
    assert (inner.kind, inner.role) == ("Materialize", "Inner")


def test_a_plan_of_postgresql_18_is_walked_parents_first() -> None:
    plan = parse_plan(stored("sort_under_limit"))
    kinds = ["Limit", "Sort", "Nested Loop", "Seq Scan", "Materialize", "Seq Scan"]
    assert [node.kind for node in plan.walk()] == kinds
    assert plan.roots[0].children[0].keys == ("((a.quantity + b.quantity))",)
    join = plan.roots[0].children[0].children[0]
    assert join.has("Join Filter")
    assert not join.has("Hash Cond", "Index Cond")


def test_what_a_writing_cte_says() -> None:
    (root,) = parse_plan(stored("writing_cte")).roots
    cte, scan = root.children
    assert (root.operation, root.relation) == ("Update", "customers")
    assert (cte.operation, cte.subplan, cte.role, cte.rows) == ("Update", "CTE a", "InitPlan", 899.0)
    assert scan.index == "customers_pkey"
    assert dict(scan.conditions) == {"Index Cond": "(customers.id = 1)"}


def test_workers_and_functions() -> None:
    (gather,) = parse_plan(stored("parallel")).roots
    assert gather.workers == 2
    assert gather.children[0].parallel_aware
    scan = parse_plan(stored("series_of_times")).roots[0].children[0]
    assert (scan.function, scan.schema) == ("generate_series", "pg_catalog")
    assert scan.call is not None
    assert scan.call.startswith("generate_series('2024-01-01 00:00:00+00'")


def test_what_is_not_known_is_passed_over() -> None:
    plan = parse_plan(one(**{"Node Type": "Quantum Scan", "Sort Key": [["a"], 3]}, Novelty={"x": [1]}))
    assert [node.kind for node in plan.walk()] == ["Quantum Scan"]
    assert plan.roots[0].keys == ()


def test_rules_may_leave_no_plan_or_several() -> None:
    assert parse_plan("[]") == Plan(())
    assert len(parse_plan(json.dumps([{"Plan": LEAF}, {"Plan": LEAF}])).roots) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        (b"\xff\xfe[", "no JSON"),
        ("{}", "no list of plans"),
        ('["Utility Statement"]', "an item without a plan"),
        ('[{"Plan": []}]', "a node that is no object"),
        (one(**{"Node Type": None}), "a node without Node Type"),
        (one(**{"Node Type": 3}), "Node Type is no text"),
        (one(**{"Total Cost": None}), "Total Cost is no number"),
        (one(**{"Plan Rows": True}), "Plan Rows is no number"),
        (one(**{"Plan Rows": -1}), "no number of a plan"),
        (one(**{"Plan Rows": float("nan")}), "no number of a plan"),
        (one(**{"Total Cost": float("inf")}), "no number of a plan"),
        (one(**{"Plan Rows": 10**400}), "Plan Rows is no number"),
        (one(Plans={}), "no list"),
        (one(**{"Workers Planned": "2"}), "Workers Planned is no number"),
        (" " * (MAX_BYTES + 1), "bytes long"),
    ],
)
def test_what_is_no_plan_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(PlanFormatError, match=message):
        parse_plan(text)


def test_depth_is_bounded() -> None:
    node: dict[str, Any] = LEAF
    for _ in range(MAX_DEPTH):
        node = {**LEAF, "Plans": [node]}
    with pytest.raises(PlanFormatError, match="too deep"):
        parse_plan(json.dumps([{"Plan": node}]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["Plan", "Plans", *LEAF, "Schema", "Output"]), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(JSON | st.dictionaries(st.just("Plan"), JSON).map(lambda plan: [plan]))
def test_any_json_is_a_plan_or_refused(value: Any) -> None:
    try:
        plan = parse_plan(json.dumps(value))
    except PlanFormatError:
        return
    assert all(node.total >= 0 and node.rows >= 0 for node in plan.walk())


@given(st.data())
def test_a_plan_cut_anywhere_is_refused(data: st.DataObject) -> None:
    text = stored("self_join_count").rstrip()
    with pytest.raises(PlanFormatError):
        parse_plan(text[: data.draw(st.integers(0, len(text) - 1))])


@pytest.mark.parametrize("sql", ["SELECT 1", "TABLE orders", "VALUES (1), (2)", "DELETE FROM orders"])
def test_what_the_server_says(shop: Database, sql: str) -> None:
    ((answer,),) = shop.execute(f"EXPLAIN (FORMAT JSON, VERBOSE) {sql}")
    assert parse_plan(json.dumps(answer)).roots[0].total >= 0
