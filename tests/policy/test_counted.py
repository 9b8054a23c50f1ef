"""The count before a write: what is asked, and where nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import (
    Cast,
    CastContext,
    CastMethod,
    Column,
    Content,
    Function,
    FunctionKind,
    Index,
    Operator,
    Relation,
    RelationKind,
    RewriteRule,
    RuleEvent,
    Trigger,
    Type,
    TypeKind,
    Volatility,
)
from policy.cost import question
from policy.counted import Count, count_of, quoted
from policy.loader import load
from policy.names import QualifiedName
from policy.parse import parse, trees

PATH = (("public",),)
INT, TEXT = QualifiedName("pg_catalog", "int4"), QualifiedName("pg_catalog", "text")
ORDERS = Relation(
    "public",
    "orders",
    RelationKind.TABLE,
    "dba",
    columns=(
        Column("id", 1, INT),
        Column("status", 2, TEXT),
        Column("mood", 3, QualifiedName("app", "mood")),
    ),
    indexes=(Index("orders_pkey", ("id",), unique=True, primary=True),),
)
LINES = Relation("public", "lines", RelationKind.TABLE, "dba", columns=(Column("order_id", 1, INT),))
SKIPS = Trigger("skips", QualifiedName("public", "f"), ("update",), before=True, row=True)


def function(name: str, volatility: Volatility) -> Function:
    return Function("public", name, FunctionKind.FUNCTION, volatility, False, "sql", "dba", (INT,), INT)


CONTENT = Content(
    160000,
    "shop",
    "dba",
    ("public",),
    ("app", "public"),
    relations=(LINES, ORDERS),
    functions=(
        function("dice", Volatility.VOLATILE),
        function("double", Volatility.IMMUTABLE),
        function("length", Volatility.VOLATILE),
    ),
    operators=(
        Operator("public", "<->", INT, INT, INT, QualifiedName("public", "dice")),
        Operator("public", "<+>", INT, INT, INT, QualifiedName("public", "double")),
    ),
    casts=(Cast(TEXT, QualifiedName("app", "odd"), None, CastContext.EXPLICIT, CastMethod.TEXT),),
    types=(
        Type("app", "mood", TypeKind.ENUM, "E"),
        Type("app", "checked", TypeKind.DOMAIN, "N", base=INT),
        Type("app", "odd", TypeKind.ENUM, "E"),
    ),
)


def with_orders(**changes: object) -> Catalog:
    changed = replace(ORDERS, **changes)  # type: ignore[arg-type]
    return Catalog(replace(CONTENT, relations=(LINES, changed)))


def count(sql: str, catalog: Catalog | None = None, limit: int = 25) -> Count | None:
    catalog = catalog or Catalog(CONTENT)
    (facts,) = parse(sql).statements
    return count_of(facts, limit, CatalogNames(catalog, PATH), catalog)


@pytest.mark.parametrize(
    ("sql", "inner", "declared"),
    [
        ("DELETE FROM orders WHERE status = 'x'", "1 FROM \"orders\" WHERE status = 'x'", ()),
        ("delete from only public.orders o where o.id>$1 -- all",
         '1 FROM ONLY "public"."orders" AS "o" WHERE o.id > $1', ()),
        ("UPDATE orders SET status = 'a WHERE b' WHERE status <> 'c WHERE d'",
         "1 FROM \"orders\" WHERE status <> 'c WHERE d'", ()),
        ("DELETE FROM orders WHERE status = ' RETURNING ' RETURNING id, ' WHERE '",
         "1 FROM \"orders\" WHERE status = ' RETURNING '", ()),
        ("UPDATE orders SET id = (SELECT max(order_id) FROM lines WHERE order_id < 3) WHERE status = 'x'",
         "1 FROM \"orders\" WHERE status = 'x'", ()),
        ("DELETE FROM orders WHERE id IN (SELECT order_id FROM lines WHERE order_id > 3)",
         '1 FROM "orders" WHERE id IN (SELECT order_id FROM lines WHERE order_id > 3)', ()),
        ("UPDATE orders SET status = $1, mood = $2 WHERE id > $3",
         '$1::"pg_catalog"."text", $2::"app"."mood" FROM "orders" WHERE id > $3', ()),
        ("UPDATE orders SET id = $1 WHERE id > $1", '1 FROM "orders" WHERE id > $1', ()),
        ("UPDATE orders SET status = $1 || 'x' WHERE id > $2", '1 FROM "orders" WHERE id > $2', (1,)),
        ("DELETE FROM orders WHERE id > $1 RETURNING $2::int", '1 FROM "orders" WHERE id > $1', (2,)),
        ("UPDATE orders SET status = random()::text WHERE id > 5", '1 FROM "orders" WHERE id > 5', ()),
        ("DELETE FROM orders WHERE double(id) = 4 AND id <+> 2 = 4",
         '1 FROM "orders" WHERE double(id) = 4 AND (id <+> 2) = 4', ()),
        ("DELETE FROM orders WHERE mood = 'calm'::app.mood AND status < now()::text",
         "1 FROM \"orders\" WHERE mood = 'calm'::app.mood AND status < now()::text", ()),
    ],
)  # fmt: skip
def test_what_is_asked(sql: str, inner: str, declared: tuple[int, ...]) -> None:
    found = count(sql)
    assert found is not None
    assert found.text == f"SELECT pg_catalog.count(*) FROM (SELECT {inner} LIMIT 26) AS counted"
    assert found.declared == frozenset(declared)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO orders SELECT * FROM orders WHERE id = 3",
        "DELETE FROM orders",
        "DELETE FROM orders WHERE CURRENT OF c",
        "UPDATE orders SET status = 'x' FROM lines WHERE id = order_id",
        "DELETE FROM orders USING lines WHERE id = order_id",
        "WITH w AS (SELECT 1) DELETE FROM orders WHERE id > 3",
        "DELETE FROM orders WHERE random() < id",
        "DELETE FROM orders WHERE public.dice(id) = 6",
        "DELETE FROM orders WHERE length(status) = 6",
        "DELETE FROM orders WHERE unheard(id) = 6",
        "DELETE FROM orders WHERE id <-> 4 < 3",
        "DELETE FROM orders WHERE id = 4::app.checked",
        "DELETE FROM orders WHERE 'x'::odd IS NULL OR id = 1",
        "DELETE FROM orders WHERE id = (SELECT order_id FROM lines FOR UPDATE)",
        "DELETE FROM orders WHERE id IN (WITH w AS (SELECT 1) SELECT * FROM w)",
        "DELETE FROM orders WHERE EXISTS (SELECT 1 FROM lines WHERE order_id = 3)",
        "DELETE FROM orders WHERE $1",
        "DELETE FROM nowhere WHERE id = 3",
        "EXPLAIN ANALYZE DELETE FROM orders WHERE id > 3",
    ],
)
def test_where_nothing_is_asked(sql: str) -> None:
    assert count(sql) is None


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"row_security": True}, False),
        ({"kind": RelationKind.VIEW}, False),
        ({"kind": RelationKind.FOREIGN_TABLE}, False),
        ({"rules": (RewriteRule("r", RuleEvent.UPDATE, True),)}, False),
        ({"triggers": (SKIPS,)}, False),
        ({"triggers": (replace(SKIPS, enabled=False),)}, True),
        ({"triggers": (replace(SKIPS, before=False),)}, True),
        ({"triggers": (replace(SKIPS, row=False),)}, True),
        ({"triggers": (replace(SKIPS, events=("insert", "delete")),)}, True),
        ({"children": (LINES.qualified,)}, True),
        ({"children": (QualifiedName("public", "unread"),)}, False),
    ],
)
def test_relations_that_are_read_and_written_alike(changes: dict[str, object], asked: bool) -> None:
    found = count("UPDATE orders SET status = 'x' WHERE id > 3", with_orders(**changes))
    assert (found is not None) is asked


def test_a_trigger_of_a_partition_skips_rows_too() -> None:
    parent = replace(ORDERS, kind=RelationKind.PARTITIONED, children=(LINES.qualified,))
    part = replace(LINES, partition=True, triggers=(SKIPS,))
    catalog = Catalog(replace(CONTENT, relations=(part, parent)))
    assert count("UPDATE orders SET status = 'x' WHERE id > 3", catalog) is None
    assert count("DELETE FROM orders WHERE id > 3", catalog) is not None


def test_types_that_parse_must_have_named() -> None:
    needs = Count("", frozenset({2}))
    assert [needs.askable(types) for types in ((), (23,), (23, 0), (0, 25))] == [False, False, False, True]
    assert Count("").askable(())


POLICY = """
version: 1
name: writer
mode: enforce
access: read_write
statements: {update: allow, delete: allow}
relations: {allow: ["public.*"]}
cost: {max_total_cost: 1000}
limits: {affected_rows: %s}
"""


@pytest.mark.parametrize(
    ("sql", "limit", "counted"),
    [
        ("UPDATE orders SET status = 'x' WHERE id > 4", "25", True),
        ("UPDATE orders SET status = 'x' WHERE id = $1", "25", False),
        ("UPDATE orders SET status = 'x' WHERE id = 4 AND status = 'y'", "25", False),
        ("UPDATE orders SET status = 'x' WHERE id = 4 OR status = 'y'", "25", True),
        ("UPDATE orders SET status = 'x' WHERE id = 4", "0", True),
        ("DELETE FROM orders WHERE id IN (1, $1, 3) AND status = 'y'", "3", False),
        ("DELETE FROM orders WHERE id IN (1, $1, 3)", "2", True),
        ("DELETE FROM orders WHERE id IN (1, 2, 3) AND id = $1", "1", False),
        ("DELETE FROM orders WHERE id IN (1, status::int)", "25", True),
        ("DELETE FROM orders WHERE id NOT IN (1, 2)", "25", True),
        ("DELETE FROM orders WHERE id = ANY ($1)", "25", True),
        ("DELETE FROM orders WHERE status IN ('x', 'y')", "25", True),
    ],
)
def test_a_look_up_on_a_unique_key_is_not_counted(sql: str, limit: str, counted: bool) -> None:
    catalog = Catalog(CONTENT)
    (facts,) = parse(sql).statements
    asked = question(facts, load(POLICY % limit, "p.yaml"), CatalogNames(catalog, PATH), catalog)
    assert asked is not None
    assert (asked.count is not None) is counted


def test_a_unique_key_does_not_span_tables_that_inherit() -> None:
    sql, policy = "UPDATE orders SET status = 'x' WHERE id = $1", load(POLICY % "25", "p.yaml")
    for kind, reusable in ((RelationKind.TABLE, False), (RelationKind.PARTITIONED, True)):
        catalog = with_orders(kind=kind, children=(LINES.qualified,))
        (facts,) = parse(sql).statements
        asked = question(facts, policy, CatalogNames(catalog, PATH), catalog)
        assert asked is not None
        assert (asked.reusable, asked.count is None) == (reusable, reusable)


WORDS = st.lists(
    st.sampled_from(["WHERE", "RETURNING", "id", "' '", "x", "=", "LIMIT", "FOR UPDATE", ")", "--", '"']),
    max_size=8,
).map(" ".join)


@given(WORDS, WORDS)
def test_whatever_the_constants_say_the_condition_is_the_writes_own(one: str, other: str) -> None:
    def text(value: str) -> str:
        return "'" + value.replace("'", "''") + "'"

    sql = f"UPDATE orders AS {quoted(one or 'o')} SET status = {text(one)} WHERE status = {text(other)}"
    found = count(sql)
    if found is None:
        return
    ((_, select),) = trees(found.text)[0].items()
    inner = select["fromClause"][0]["RangeSubselect"]["subquery"]["SelectStmt"]
    said = inner["whereClause"]["A_Expr"]["rexpr"]["A_Const"]["sval"]
    assert said.get("sval", "") == other
