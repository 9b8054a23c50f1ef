"""Hidden columns beside PostgreSQL's own column privileges, which know every road to a column.

The agent's role may use what the policy opens, and no more: a statement that the server refuses to it is to
be refused by the gate, and one that it runs is to pass. References are multiplied by the places to put them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psycopg
import pytest

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.decision import Reject, Situation, decide
from policy.model import Policy
from policy.parse import parse
from tests.policy.conftest import read_catalog
from tests.policy.rules.judging import policy_of
from tests.support.postgres import Database, Server

SCHEMA: Final = """
CREATE TABLE staff (id int PRIMARY KEY, name text NOT NULL, boss int, salary numeric, title text);
CREATE TABLE jobs (id int PRIMARY KEY, staff int, note text);
CREATE TABLE vault (id int, secret text);
CREATE VIEW shown AS SELECT id, name FROM staff;
INSERT INTO staff SELECT n, 'n' || n, 1, 1000 + n, 't' FROM generate_series(1, 3) n;
INSERT INTO jobs SELECT n, n, 'x' FROM generate_series(1, 3) n;
GRANT USAGE ON SCHEMA public TO shop_app;
GRANT ALL ON jobs, shown TO shop_app;
GRANT SELECT (id, name, boss, title), INSERT (id, name, boss, title), UPDATE (id, name, boss, title), DELETE
  ON staff TO shop_app;
"""
POLICY: Final = """\
version: 1
name: strict
access: read_write
statements: {select: allow, insert: allow, update: allow, delete: allow, merge: allow}
relations: {allow: ["public.*"], deny: [public.vault]}
columns: {public.staff: {deny: [salary]}}
functions: {allow: [builtin-safe]}
"""
HIDDEN: Final = (
    *("salary", "s.salary", '"salary"', "(s).salary", "s", "s.*", "to_jsonb(s)", "s::text", "(s.*)::text"),
    *("ROW(s.*)", "salary(s)", "(SELECT salary)", "(SELECT s.salary)", "(VALUES (salary))", "(s IS NULL)"),
    "(SELECT x FROM (SELECT salary AS x) q)",
    "(SELECT s.salary + j.id FROM jobs j LIMIT 1)",
    "(SELECT max(t.salary) FROM staff t)",
    "(SELECT count(*) FROM staff t WHERE t.salary > s.id)",
    "ARRAY(SELECT salary FROM staff)",
    "(SELECT t FROM staff t LIMIT 1)",
    "(SELECT count(t) FROM staff t)",
    "(SELECT count(*) FROM staff a NATURAL JOIN staff b)",
    "(SELECT count(*) FROM staff a JOIN staff b USING (salary))",
    "(SELECT count(*) FROM vault)",
    "(SELECT j.d FROM staff AS j(a, b, c, d) LIMIT 1)",
    "(SELECT j.salary FROM staff AS j(a, b) LIMIT 1)",
    "(SELECT string_agg(name, ',' ORDER BY salary) FROM staff)",
    "(SELECT count(*) FILTER (WHERE salary > 3) FROM staff)",
    "(SELECT rank() OVER (ORDER BY salary) FROM staff LIMIT 1)",
    "(SELECT 1 FROM staff GROUP BY salary LIMIT 1)",
    "(SELECT DISTINCT ON (salary) id FROM staff LIMIT 1)",
    "(SELECT 1 FROM staff a JOIN staff b ON a.salary = b.salary LIMIT 1)",
    "(SELECT b.x FROM staff a, LATERAL (SELECT a.salary AS x) b LIMIT 1)",
    "(SELECT b FROM ROWS FROM (unnest(ARRAY(SELECT salary FROM staff))) b LIMIT 1)",
    "(SELECT g FROM staff a, generate_series(1, a.salary::int) g LIMIT 1)",
    "(WITH q(a) AS (SELECT salary FROM staff) SELECT a FROM q LIMIT 1)",
    "(SELECT id FROM jobs LIMIT (SELECT count(salary) FROM staff))",
    "(SELECT max(id) FROM jobs WHERE id IN (SELECT salary FROM staff))",
    "(SELECT j.salary FROM (staff a CROSS JOIN (SELECT 1) q) AS j LIMIT 1)",
    "(SELECT a.salary FROM ONLY staff a LIMIT 1)",
)
OPEN: Final = (
    *("name", "s.name", "(SELECT name)", "(SELECT s.name)", "(SELECT count(*) FROM staff)"),
    "(SELECT x FROM (SELECT s.name AS x) q)",
    "(SELECT salary FROM (SELECT id AS salary FROM staff) z LIMIT 1)",
    "(SELECT z.salary FROM (SELECT note AS salary FROM jobs) z LIMIT 1)",
    "(SELECT z FROM (SELECT id, name FROM staff) z LIMIT 1)",
    "(SELECT j FROM jobs j LIMIT 1)",
    "(SELECT count(*) FROM staff a JOIN staff b USING (id))",
    "(SELECT j.b FROM staff AS j(a, b, c, d, e) LIMIT 1)",
    "(SELECT j.b FROM staff AS j(a, b) LIMIT 1)",
    "(SELECT name FROM shown LIMIT 1)",
    "(SELECT first_value(name) OVER (ORDER BY id) FROM staff LIMIT 1)",
    "(SELECT 1 FROM staff GROUP BY GROUPING SETS ((id), (title)) LIMIT 1)",
    "(WITH q AS (SELECT id, name FROM staff) SELECT count(q) FROM q)",
    "(WITH salary AS (SELECT 5 AS s) SELECT s FROM salary)",
    "(SELECT j.title FROM (staff a CROSS JOIN (SELECT 1) q) AS j LIMIT 1)",
    "(SELECT a.id FROM ONLY staff a LIMIT 1)",
)
PLACES: Final = (
    "SELECT {} FROM staff s",
    "SELECT 1 FROM staff s WHERE {} IS NOT NULL",
    "SELECT 1 FROM staff s ORDER BY {}",
    "SELECT CASE WHEN {} IS NULL THEN 1 END FROM staff s",
    "SELECT q.x FROM staff s, LATERAL (SELECT {} AS x) q",
    "WITH q AS (SELECT {} AS x FROM staff s) SELECT x FROM q",
    "SELECT 1 FROM jobs j JOIN staff s ON {} IS NOT NULL",
    "SELECT s.name FROM staff s UNION SELECT ({})::text FROM staff s",
    "SELECT array_agg({}) OVER () FROM staff s",
    "INSERT INTO jobs (id, note) SELECT 9 + s.id, ({})::text FROM staff s",
    "UPDATE staff s SET title = ({})::text WHERE s.id = 3",
    "UPDATE staff s SET title = 'x' WHERE s.id = 3 AND {} IS NOT NULL",
    "UPDATE staff s SET title = 'x' WHERE s.id = 3 RETURNING {}",
    "DELETE FROM jobs j USING staff s WHERE j.id = 3 AND {} IS NULL",
    "MERGE INTO staff s USING (SELECT 3 AS k) m ON s.id = m.k WHEN MATCHED AND {} IS NOT NULL"
    " THEN UPDATE SET title = 'x'",
    "MERGE INTO staff s USING (SELECT 3 AS k) m ON s.id = m.k"
    " WHEN MATCHED THEN UPDATE SET title = ({})::text",
    "INSERT INTO staff AS s (id, name) VALUES (3, 'a') ON CONFLICT (id) DO UPDATE SET title = ({})::text",
    "INSERT INTO staff AS s (id, name) VALUES (9, 'a') RETURNING {}",
)


@pytest.fixture(scope="module")
def staffed(postgres18: Server) -> Iterator[Database]:
    with postgres18.database("template0") as database:
        database.execute(SCHEMA)
        yield database


@pytest.fixture(scope="module")
def catalog(staffed: Database) -> Catalog:
    return read_catalog(staffed.dsn())


@pytest.fixture(scope="module")
def agent(staffed: Database) -> Iterator[psycopg.Connection[object]]:
    with psycopg.connect(staffed.dsn("shop_app")) as connection:
        yield connection


def refused_by_the_server(connection: psycopg.Connection[object], sql: str) -> bool | None:
    """None where it fails for another reason."""
    try:
        connection.execute(sql.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    except psycopg.Error:
        return None
    finally:
        connection.rollback()
    return False


def refused(sql: str, catalog: Catalog, policy: Policy) -> bool:
    names = CatalogNames(catalog, (("public",),), temporary=False)
    decision = decide(policy, Situation("agent", names), parse(sql.encode()))
    assert decision.failures == ()
    return isinstance(decision, Reject)


@pytest.mark.parametrize("place", PLACES)
def test_the_gate_refuses_what_the_server_refuses(
    agent: psycopg.Connection[object], catalog: Catalog, place: str
) -> None:
    policy, judged = policy_of(POLICY), 0
    for reference, wanted in (*((each, True) for each in HIDDEN), *((each, False) for each in OPEN)):
        sql = place.format(reference)
        found = refused_by_the_server(agent, sql)
        if found is not None:
            assert found == wanted, f"the server on {sql}"
            assert refused(sql, catalog, policy) == wanted, sql
            judged += 1
    assert judged > (len(HIDDEN) + len(OPEN)) * 3 // 4
