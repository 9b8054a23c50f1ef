"""How many rows a query may give: limits, keys of one row, locks."""

from __future__ import annotations

import pytest

from tests.policy.extracting import facts

ONE_ROW = [
    "SELECT 1",
    "SELECT now()",
    "SELECT (SELECT generate_series(1, 9))",
    "VALUES (1)",
    "SELECT count(*) FROM a JOIN b ON true",
    "SELECT coalesce(round(sum(x), 2), 0) FROM a",
    "SELECT sum(count(*)) OVER () FROM a",
    "SELECT sum(generate_series(1, 2)) FROM a",
    "SELECT JSON_ARRAYAGG(x) FROM a",
    "SELECT 1 FROM a HAVING true",
    "SELECT 1 FROM a ORDER BY count(*)",
    "SELECT pg_catalog.count(*) FROM a",
    "SELECT max(x)::text || 'y' FROM a",
]
MANY_ROWS = [
    "SELECT 1 FROM a",
    "SELECT generate_series(1, 9)",
    "SELECT reporting.f(1)",
    "VALUES (1), (2)",
    "SELECT count(*) FROM a GROUP BY x",
    "SELECT count(*) OVER () FROM a",
    "SELECT generate_series(1, count(*)) FROM a",
    "SELECT count(*) FROM a ORDER BY generate_series(1, 9)",
    "SELECT unnest(array_agg(x)) FROM a",
    "SELECT (array_agg(a))[1].f FROM a",
    "SELECT reporting.rate(count(*)) FROM a",
    "SELECT evil.count(*) FROM a",
    "SELECT (SELECT count(*) FROM b) FROM a",
    "SELECT 1 UNION SELECT 2",
    "SELECT JSON_ARRAYAGG(x) OVER () FROM a",
]


@pytest.mark.parametrize("sql", ONE_ROW)
def test_at_most_one_row(sql: str) -> None:
    assert facts(sql).queries[0].one_row


@pytest.mark.parametrize("sql", MANY_ROWS)
def test_not_certain_to_be_one_row(sql: str) -> None:
    assert not facts(sql).queries[0].one_row


@pytest.mark.parametrize(
    ("clause", "limited", "limit", "parameter"),
    [
        ("", False, None, None),
        ("LIMIT 10", True, 10, None),
        ("FETCH FIRST ROW ONLY", True, 1, None),
        ("FETCH FIRST 5 ROWS ONLY", True, 5, None),
        ("LIMIT (1_000_000)", True, 1_000_000, None),
        ("LIMIT 10::bigint", True, 10, None),
        ("LIMIT '10'", True, 10, None),
        ("LIMIT 5 + 5", True, None, None),
        ("LIMIT $1", True, None, 1),
        ("LIMIT $1::bigint", True, None, 1),
        ("LIMIT $2 + 1", True, None, 2),
        ("LIMIT $1 + $2", False, None, None),
        ("LIMIT ALL", False, None, None),
        ("LIMIT NULL", False, None, None),
        ("LIMIT NULL::bigint", False, None, None),
        ("LIMIT 10 + NULL", False, None, None),
        ("LIMIT NULLIF(1, 1)", False, None, None),
        ("LIMIT (SELECT NULL)", False, None, None),
        ("LIMIT CASE WHEN false THEN 1 END", False, None, None),
        ("OFFSET 10", False, None, None),
        ("ORDER BY a FETCH FIRST 3 ROWS WITH TIES", True, 3, None),
        ("ORDER BY true FETCH FIRST 3 ROWS WITH TIES", False, 3, None),
    ],
)
def test_limits(clause: str, limited: bool, limit: int | None, parameter: int | None) -> None:
    found = facts(f"SELECT a FROM t {clause}").queries[0]
    assert (found.limited, found.limit, found.limit_parameter) == (limited, limit, parameter)


def test_a_query_has_a_place() -> None:
    found = facts("WITH d AS (DELETE FROM t RETURNING 1) SELECT a, b FROM d")
    assert [query.position for query in found.queries] == [46, 24]
    assert facts("TABLE t").queries[0].position is None


def test_distinct_locking_and_values() -> None:
    found = facts("SELECT DISTINCT a FROM t, (VALUES (1), (2)) v FOR UPDATE")
    assert (found.queries[0].distinct, found.queries[0].locking) == (True, True)
    assert found.queries[1].values_rows == 2
    assert found.queries[0].relation_count == 1


@pytest.mark.parametrize(
    ("sql", "returns"),
    [
        ("SELECT 1", True),
        ("INSERT INTO t VALUES (1)", False),
        ("INSERT INTO t SELECT 1", False),
        ("INSERT INTO t SELECT 1 RETURNING a", True),
        ("DELETE FROM t WHERE a IN (SELECT 1)", False),
        ("UPDATE t SET a = 1 RETURNING *", True),
        ("WITH d AS (DELETE FROM t RETURNING 1) UPDATE u SET a = 1", False),
        ("CREATE TABLE t AS SELECT 1", False),
        ("CREATE VIEW v AS SELECT 1", False),
        ("EXPLAIN SELECT 1", False),
        ("EXPLAIN ANALYZE SELECT 1", True),
        ("COPY t TO STDOUT", True),
        ("COPY (SELECT 1) TO STDOUT", True),
        ("COPY t FROM STDIN WHERE a > (SELECT 1)", False),
        ("DECLARE c CURSOR FOR SELECT 1", True),
        ("PREPARE p AS SELECT 1", True),
        ("EXECUTE p((SELECT 1))", False),
        ("CALL p((SELECT 1))", False),
    ],
)
def test_which_query_returns_rows(sql: str, returns: bool) -> None:
    found = facts(sql)
    assert found.returns_rows is returns
    assert sum(query.final for query in found.queries) == returns
