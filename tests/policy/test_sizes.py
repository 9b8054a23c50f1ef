"""Bounds on what a statement's own arithmetic makes."""

from __future__ import annotations

import math

import pytest

from policy.parse import parse
from policy.sizes import Growth, growth, may_grow

HUGE = math.inf


def grown(sql: str) -> Growth | None:
    (facts,) = parse(sql).statements
    return growth(facts) if may_grow(facts) else None


ESCAPED = "replace(replace(replace(name, '&', '&amp;'), '<', '&lt;'), '>', '&gt;')"
"""Five, four and four bytes for one."""


@pytest.mark.parametrize(
    ("sql", "size"),
    [
        ("SELECT repeat('xy', 1000)", 2000),
        ("SELECT pg_catalog.repeat('x', 30000 * 30000)", 9e8),
        ("SELECT repeat('x', '900000000'::int)", 9e8),
        ("SELECT repeat('x', '900000000'::text::numeric(12,2)::pg_catalog.int4)", 9e8),
        ("SELECT repeat('x', '1'::bit(30)::int)", HUGE),
        ("SELECT repeat('x', '9'::\"char\"::int)", HUGE),
        ("SELECT repeat('x', ((-1)::oid::bigint / 5)::int)", HUGE),
        ("SELECT repeat('x', '900000000e-9'::varchar(9)::int)", HUGE),
        ("SELECT repeat('x', 1::mine.int4)", HUGE),
        ("SELECT repeat('x', (SELECT 9))", HUGE),
        ("SELECT repeat('x', $1)", HUGE),
        ("SELECT repeat('x', NULL)", 0),
        ("SELECT repeat('x', least($1, 50))", 50),
        ("SELECT repeat('x', greatest(5, 50))", 50),
        ("SELECT repeat('x', CASE WHEN $1 THEN 7 ELSE 70 END)", 70),
        ("SELECT repeat('x', coalesce($1, 5))", HUGE),
        ("SELECT repeat('x', -5 - 5)", 10),
        ("SELECT repeat('x', power(10, 9)::int)", HUGE),
        ("SELECT repeat('x', 1000 % 7)", 7),
        ("SELECT repeat(repeat('x', 1000), 1000)", 1e6),
        ("SELECT repeat('a' || repeat('x', 1000), 1000)", 1e6),
        ("SELECT repeat(name, 3) FROM products", 192),
        ("SELECT repeat('#', stock) FROM products", 1000),
        ("SELECT repeat('#', stock * 1000000) FROM products", 1e9),
        ("SELECT repeat('#', (count(*) / 10)::int) FROM orders", 100),
        ("SELECT repeat('#', sum(quantity)::int / 1000) FROM order_items", 1000),
        ("SELECT lpad(id::text, 6, '0') FROM orders", 6),
        ("SELECT rpad('', 100000000)", 1e8),
        ("SELECT format('%-20s|%s', name, id) FROM products", 20 + 64 + 64 + 8),
        ("SELECT format('%*s', 900000000, 'a')", 900000000 + 3 + 9 + 1),
        ("SELECT format($1, 1)", HUGE),
        ("SELECT array_fill(0, ARRAY[30000, 30000])", 8 * 9e8),
        ("SELECT array_fill(0, $1::int[])", HUGE),
        ("SELECT 'x'::char(10000000)", 1e7),
        ("SELECT '1'::bit(8000000)", 1e6),
        ("SELECT replace(repeat('a', 1000), 'a', repeat('b', 1000))", 1e6),
        ("SELECT regexp_replace(email, '^(.).*@', '\\1@') FROM customers", 192),
    ],
)
def test_the_largest_value(sql: str, size: float) -> None:
    found = grown(sql)
    assert found is not None
    assert found.bytes == pytest.approx(size)


@pytest.mark.parametrize(
    ("sql", "size"),
    [
        ("WITH m AS (SELECT count(*) AS n FROM orders) SELECT repeat('#', n::int) FROM m", 1000),
        ("SELECT repeat('#', n) FROM (SELECT 900000000 AS n) t", 9e8),
        ("SELECT repeat('#', t.n) FROM (SELECT n FROM (SELECT 900000000 AS n) s) t", 9e8),
        ("SELECT repeat('#', int4) FROM (SELECT '900000000'::int4) t", 1000),
        ("SELECT repeat('#', n) FROM (SELECT 900000000) t(n)", HUGE),
        ("WITH m(n) AS (SELECT 900000000) SELECT repeat('#', n) FROM m", HUGE),
        ("WITH m(n) AS (SELECT 900000000) SELECT repeat('#', t.n) FROM m AS t", HUGE),
        ("SELECT repeat('#', column1) FROM (VALUES (900000000)) t", HUGE),
        ("SELECT repeat('#', n) FROM generate_series(900000000, 900000000) n", HUGE),
        ("SELECT repeat('#', p.stock) FROM products p, unnest(p.tags) t", 1000),
        ("SELECT repeat(x, 9000) FROM (SELECT repeat('a', 9000) AS x) t", 9000.0**2 * 64),
        # What one SELECT nests, or lists, is worked out at once.
        (f"SELECT x FROM (SELECT {ESCAPED} AS x FROM products) t", 64 * 5 * 4 * 4),
        (f"SELECT x, y FROM (SELECT {ESCAPED} AS x, {ESCAPED} AS y FROM products) t", 64 * 5 * 4 * 4),
        (f"WITH e AS (SELECT {ESCAPED} AS x FROM products) SELECT {ESCAPED} FROM e", 64 * 80.0**2),
        # What reads another's is not, wherever it stands.
        ("SELECT 1 FROM repeat('a', 90) x, repeat(x, 90) y, repeat(y, 90) z", 90.0**3 * 64),
        (
            "SELECT 1 FROM LATERAL (SELECT repeat('a', 90) x) s, LATERAL (SELECT repeat(x, 90) y) t",
            90.0**2 * 64,
        ),
        ("SELECT x FROM (SELECT repeat('a', 90) AS x UNION SELECT repeat('b', 9)) t", 90),
    ],
)
def test_columns_that_the_statement_makes(sql: str, size: float) -> None:
    found = grown(sql)
    assert found is not None
    assert found.bytes == pytest.approx(size)


@pytest.mark.parametrize(
    ("sql", "least"),
    [
        ("SELECT repeat((SELECT repeat(x, 90) FROM (SELECT repeat('a', 90) AS x) s), 90)", 90.0**3),
        ("SELECT repeat(y, 90) FROM (SELECT repeat(x, 90) y FROM (SELECT repeat('a', 90) x) s) t", 90.0**3),
        (
            "WITH a AS (SELECT repeat('a', 90) x), b AS (SELECT repeat(x, 90) y FROM a) SELECT y FROM b",
            90.0**2,
        ),
        ("UPDATE t SET a = repeat(x, 90) FROM (SELECT repeat('a', 90) x) s RETURNING repeat(a, 90)", 90.0**3),
        ("SELECT 1 FROM (SELECT repeat('a', 90) x) s WHERE repeat(x, 90) > repeat('b', 9)", 90.0**2),
    ],
)
def test_what_passes_from_one_into_another_is_no_less(sql: str, least: float) -> None:
    found = grown(sql)
    assert found is not None
    assert found.bytes >= least


@pytest.mark.parametrize(
    "sql", ["SELECT length('x')", "SELECT mine.repeat('x', 1000000000)", "SELECT 'x'::varchar(10000000)"]
)
def test_what_does_not_grow(sql: str) -> None:
    assert grown(sql) is None


def test_the_place_is_the_calls_own() -> None:
    found = grown("SELECT 'é', repeat('x', 900000000)")
    assert found is not None
    assert (found.function, found.location) == ("repeat", len("SELECT 'é', ".encode()))


def test_a_number_is_traced_only_so_far() -> None:
    items = ", ".join(f"a{n} AS a{n + 1}" for n in range(5000))
    found = grown(f"SELECT repeat('x', a5000) FROM (SELECT 1 AS a0, {items}) t")
    assert found is not None
    assert found.bytes == HUGE


def test_nesting_is_worked_out_once() -> None:
    depth = 200
    sql = "SELECT " + "repeat('a' || " * depth + "'b'" + ", 2)" * depth
    found = grown(sql)
    assert found is not None
    assert found.bytes >= 2.0**depth
