"""The facts against PostgreSQL itself: its locks, its column names, its row counts, its syntax errors."""
# ruff: noqa: E501  (a statement stays on its line)

from __future__ import annotations

from itertools import count

import psycopg
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from policy.facts import Facts
from policy.parse import parse
from tests.support.postgres import Database

LOCKED = """
    SELECT relname FROM pg_locks JOIN pg_class ON pg_class.oid = relation
    WHERE pid = pg_backend_pid() AND relkind = 'r' AND relnamespace = 'public'::regnamespace
"""


def facts(sql: str) -> Facts:
    (found,) = parse(sql).statements
    assert found.not_understood is None
    return found


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM orders o JOIN products p ON p.id = o.id, LATERAL (SELECT FROM customers) c",
        "WITH orders AS (SELECT * FROM orders) SELECT * FROM orders",
        "WITH orders AS (SELECT 1 AS id) SELECT * FROM orders",
        "WITH orders AS (SELECT 1 AS id) SELECT * FROM public.orders",
        "WITH orders AS (SELECT * FROM products), products AS (SELECT 1) SELECT * FROM orders, products",
        "WITH RECURSIVE orders AS (SELECT * FROM products), products AS (SELECT 1) SELECT * FROM orders",
        "WITH RECURSIVE orders(n) AS (SELECT 1 UNION SELECT n FROM orders) SELECT * FROM orders",
        "WITH api_keys AS (SELECT 1 AS x) SELECT (SELECT x FROM (SELECT * FROM api_keys) y)",
        "SELECT * FROM (WITH api_keys AS (SELECT 1) SELECT * FROM api_keys) x, api_keys",
        "SELECT (WITH api_keys AS (SELECT 1) SELECT 1 FROM api_keys LIMIT 1), (SELECT 1 FROM api_keys LIMIT 1)",
        "(WITH api_keys AS (SELECT 1) SELECT 1 FROM api_keys) UNION SELECT 2 FROM api_keys",
        "WITH api_keys AS (SELECT 1) (SELECT 1 FROM api_keys UNION SELECT 2 FROM customers)",
        "WITH customers AS (SELECT 1 AS id) DELETE FROM customers WHERE id IN (SELECT id FROM customers)",
        "WITH customers AS (SELECT 1 AS id) UPDATE customers SET name = '' FROM customers AS c WHERE c.id = 1",
        "WITH customers AS (SELECT 1 AS id) INSERT INTO api_keys SELECT FROM customers",
        "SELECT 1 FROM products ORDER BY (SELECT count(*) FROM customers) LIMIT (SELECT 1 FROM api_keys LIMIT 1)",
        "VALUES ((SELECT count(*) FROM customers))",
        "SELECT 1 FROM products TABLESAMPLE system (1) WHERE EXISTS (SELECT FROM customers)",
    ],
)
def test_relations_are_those_that_planning_locks(shop: Database, sql: str) -> None:
    with psycopg.connect(shop.dsn()) as connection:
        connection.execute(f"EXPLAIN {sql}".encode())
        locked = {name for (name,) in connection.execute(LOCKED)}
        connection.rollback()
    assert {relation.name for relation in facts(sql).relations} == locked


@st.composite
def scoped_queries(draw: st.DrawFn) -> str:
    """Queries whose CTEs bear the names of tables, nested every way that PostgreSQL scopes apart."""
    aliases = count()
    table = st.sampled_from(["orders", "products", "customers", "api_keys"])

    def query(depth: int) -> str:
        simple = f"SELECT 1 AS id FROM {', '.join(item(depth) for _ in range(draw(st.integers(1, 2))))}"
        if depth <= 0:
            return simple
        inner = depth - 1
        shapes = {
            "plain": lambda: simple,
            "with": lambda: with_ctes(inner, ""),
            "recursive": lambda: with_ctes(inner, "RECURSIVE"),
            "union": lambda: f"({query(inner)}) UNION ALL ({query(inner)})",
            "exists": lambda: f"{simple} WHERE EXISTS ({query(inner)})",
            "scalar": lambda: f"{simple} ORDER BY ({query(inner)} LIMIT 1)",
        }
        if depth == DEPTH:
            shapes["delete"] = lambda: delete(inner)
        return shapes[draw(st.sampled_from(sorted(shapes)))]()

    def with_ctes(depth: int, recursive: str) -> str:
        names = draw(st.lists(table, min_size=1, max_size=2, unique=True))
        bodies = ", ".join(f"{name} AS ({query(depth)})" for name in names)
        return f"WITH {recursive} {bodies} {query(depth)}"

    def delete(depth: int) -> str:
        name = draw(table)
        return f"WITH {name} AS ({query(depth)}) DELETE FROM {name} WHERE id IN ({query(depth)})"

    def item(depth: int) -> str:
        kind = draw(st.sampled_from(["table", "table", "qualified", "sub-select", "lateral"]))
        alias = f"a{next(aliases)}"
        if kind == "table" or depth <= 0:
            return f"{draw(table)} AS {alias}"
        if kind == "qualified":
            return f"public.{draw(table)} AS {alias}"
        return f"{'LATERAL ' if kind == 'lateral' else ''}({query(depth - 1)}) AS {alias}"

    return query(DEPTH)


DEPTH = 3


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(sql=scoped_queries())
def test_scopes_are_postgresqls(shop: Database, sql: str) -> None:
    with psycopg.connect(shop.dsn()) as connection:
        try:
            connection.execute(f"EXPLAIN {sql}".encode())
        except psycopg.errors.Error:
            assume(False)  # a name in a recursion that PostgreSQL does not offer
        locked = {name for (name,) in connection.execute(LOCKED)}
        connection.rollback()
    assert {relation.name for relation in facts(sql).relations} == locked


ITEMS = """
    a; t.a; a AS z; a + 1; 'x'; 1::int; a::text; 'x'::text; lower(b); lower(b)::text; b COLLATE "C"; -a; t.*; (r).f1
    CASE WHEN true THEN a END; CASE WHEN true THEN 1 ELSE a END; COALESCE(a, 1); GREATEST(a, 1); LEAST(a, 1)
    NULLIF(a, 1); ARRAY[1]; ROW(1); (ARRAY[a])[1]; EXISTS (SELECT 1); ARRAY(SELECT 1); (SELECT a AS q); (SELECT a)
    (SELECT 1); a = ANY (SELECT 1); a IS NULL; a IN (1); current_date; current_timestamp; current_timestamp(2)
    localtime; current_user; session_user; user; current_catalog; current_schema; EXTRACT(year FROM now())
    b LIKE 'x'; b SIMILAR TO 'x'; date '2020-01-01'; interval '1 day'; bool 'true'; substring(b FROM 1 FOR 1)
    position('x' IN b); trim(b); b || 'x'; now() AT TIME ZONE 'UTC'; count(*) OVER (); 1.5; true; NULL; 'x'::char(3)
"""


@pytest.mark.parametrize(
    "item", [item.strip() for item in ITEMS.replace("\n", ";").split(";") if item.strip()]
)
def test_output_names_are_postgresqls(shop: Database, item: str) -> None:
    sql = f"SELECT {item} FROM (SELECT 1 AS a, 'x'::text AS b, ROW(1) AS r) t"
    if "(r)" in item:
        sql = "SELECT (r).oid FROM (SELECT c AS r FROM pg_class c LIMIT 1) t"
    with psycopg.connect(shop.dsn()) as connection:
        description = connection.execute(sql.encode()).description
    assert description is not None
    outputs = facts(sql).queries[0].outputs
    if not outputs[0].star:
        assert [output.name for output in outputs] == [column.name for column in description]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM products a JOIN products b ON true",
        "SELECT coalesce(round(avg(price), 2), 0), max(name) || 'x' FROM products",
        "SELECT sum(count(*)) OVER () FROM products",
        "SELECT 1 FROM products HAVING true",
        "SELECT 1 FROM products ORDER BY count(*)",
        "SELECT sum(x) FROM products, generate_series(1, 3) AS x",
        "SELECT (array_agg(id ORDER BY id))[1] FROM products",
        "SELECT json_agg(p) FROM products p",
    ],
)
def test_one_row_is_one_row(shop: Database, sql: str) -> None:
    assert facts(sql).queries[0].one_row
    assert len(shop.execute(sql)) <= 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT generate_series(1, count(*)) FROM products",
        "SELECT count(*) FROM products ORDER BY generate_series(1, 9)",
        "SELECT DISTINCT ON (generate_series(1, 9)) count(*) FROM products",
        "SELECT unnest(array_agg(id)) FROM products",
        "SELECT count(*) OVER () FROM products",
        "SELECT (SELECT count(*) FROM customers) FROM products",
        "SELECT (jsonb_agg(id)).jsonb_array_elements FROM products",
        "SELECT CASE WHEN true THEN (SELECT count(*) FROM customers) END FROM products",
        "SELECT regexp_split_to_table(string_agg(name, ','), ',') FROM products",
        "SELECT id FROM products LIMIT NULLIF(1, 1)",
        "SELECT id FROM products ORDER BY 1 = 1 FETCH FIRST 1 ROW WITH TIES",
    ],
)
def test_what_returns_many_rows_is_not_taken_for_one(shop: Database, sql: str) -> None:
    query = facts(sql).queries[0]
    assert not query.one_row
    assert not query.limited
    assert len(shop.execute(sql)) > 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELEC 1",
        "SELECT 'é🐘', from",
        "SELECT 'abc",
        "SELECT 1 FROM",
        'SELECT "a',
        "SELECT $$x",
        "SELECT 1 /* x",
        "SELECT U&'\\zzzz'",
        "SELECT 'ü' FROM t WHERE )",
        "INSERT INTO t VALUES (1,)",
    ],
)
def test_syntax_errors_are_postgresqls(shop: Database, sql: str) -> None:
    failure = parse(sql).failure
    assert failure is not None
    with pytest.raises(psycopg.errors.SyntaxError) as caught:
        shop.execute(sql)
    assert failure.message == caught.value.diag.message_primary
    assert failure.position == int(caught.value.diag.statement_position or 0)
    assert failure.sqlstate == caught.value.sqlstate
