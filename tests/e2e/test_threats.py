"""Known ways past a firewall for SQL, by name, each tried over both protocols on real servers.

The backend role may do everything its tables allow, so that nothing but the gate stands between a statement
and its harm. A refusal names its rule and its SQLSTATE, leaves the connection usable, and nothing of it has
reached the server: no transaction id was taken. What only looks like an attack passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg
import pytest

from tests.e2e.test_effects import PROTOCOLS
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy

Connection = psycopg.Connection[Any]

CLASS, FUNCTION, RELATION = "class-not-allowed", "function-not-allowed", "relation-not-allowed"
COLUMN, SETTING, READ_ONLY = "column-not-allowed", "setting-not-allowed", "access-read-only"
UNPRICEABLE, COST = "unpriceable", "cost-over-limit"
FORBIDDEN, TOO_DEAR, NO_SYNTAX, NOT_OFFERED = "42501", "54001", "42601", "0A000"

READS: Final = """
version: 1
name: reads
access: read_only
statements: {select: allow, explain: allow, show: allow, set: allow, transaction: allow, cursor: allow,
  prepare: allow, copy_out: allow}
relations: {allow: ["public.*", "reporting.*"], deny: [public.api_keys], catalogs: filtered}
columns: {public.users: {deny: [ssn, password_hash]}}
functions: {allow: [builtin-safe]}
rules: {unbounded-select: "off", unbounded-join: "off"}
cost: {max_total_cost: 100000, max_rows: 1000000}
"""
WRITES: Final = """
version: 1
name: writes
access: read_write
multiple: judged
statements: {select: allow, explain: allow, set: allow, transaction: allow,
  cursor: allow, prepare: allow, insert: allow, update: allow, delete: allow, merge: allow, copy_out: allow,
  copy_in: allow}
relations: {allow: ["public.*"], deny: [public.api_keys]}
columns: {public.users: {deny: [ssn, password_hash]}}
functions: {allow: [builtin-safe]}
rules: {unbounded-select: "off", unbounded-join: "off"}
cost: {max_total_cost: 100000, max_rows: 1000000}
"""
SCHEMA: Final = """
CREATE SCHEMA reporting;
CREATE TABLE users (id int PRIMARY KEY, name text, email text, ssn text, password_hash text);
INSERT INTO users SELECT g, 'U' || g, g || '@example.com', 'CANARY-' || g, 'CANARY'
  FROM generate_series(1, 50) g;
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, total numeric, day date);
INSERT INTO orders SELECT g, 1 + g % 50, g, date '2026-01-01' + g % 99 FROM generate_series(1, 3000) g;
CREATE TABLE api_keys (id int, key text);
INSERT INTO api_keys VALUES (1, 'CANARY-KEY');
CREATE FUNCTION reporting.noted(int) RETURNS int LANGUAGE plpgsql AS
  'BEGIN UPDATE public.orders SET total = 0; RETURN $1; END';
CREATE FUNCTION reporting.either(int, int) RETURNS bool LANGUAGE sql AS 'SELECT reporting.noted($1) > $2';
CREATE OPERATOR reporting.<~> (LEFTARG = int, RIGHTARG = int, FUNCTION = reporting.either);
CREATE FUNCTION reporting.rate(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT reporting.noted($1)';
CREATE VIEW reporting.daily AS SELECT day, reporting.noted(1) AS n FROM public.orders GROUP BY day;
CREATE VIEW reporting.keys AS SELECT key FROM public.api_keys;
GRANT ALL ON SCHEMA public, reporting TO shop_app;
GRANT ALL ON ALL TABLES IN SCHEMA public, reporting TO shop_app;
ANALYZE;
"""

Attack = tuple[str, str, str]
"""A statement, the rule that refuses it (empty for the parser) and its SQLSTATE."""


def refused(rule: str, *statements: str, sqlstate: str = FORBIDDEN) -> tuple[Attack, ...]:
    return tuple((sql, rule, sqlstate) for sql in statements)


READING: Final[Mapping[str, tuple[Attack, ...]]] = {
    # --- reading the text ---
    "incomplete walk": (
        *refused(
            FUNCTION,
            "VALUES (length(pg_read_file('PG_VERSION')))",
            "SELECT 1 FROM orders TABLESAMPLE system (length(pg_read_file('PG_VERSION')))",
            "SELECT id FROM orders ORDER BY pg_sleep(1)",
            "SELECT count(*) FILTER (WHERE pg_sleep(1) IS NULL) FROM orders",
            "SELECT sum(total) OVER (ORDER BY id ROWS length(pg_read_file('x')) PRECEDING) FROM orders",
            "SELECT id FROM orders LIMIT length(pg_read_file('PG_VERSION'))",
            "SELECT id FROM orders GROUP BY GROUPING SETS ((id), (pg_sleep(1)))",
            "SELECT id FROM orders WHERE id = ANY (ARRAY[length(pg_read_file('PG_VERSION'))])",
        ),
        *refused(
            RELATION,
            "SELECT 1 ORDER BY (SELECT key FROM api_keys LIMIT 1)",
            "SELECT id FROM orders LIMIT (SELECT count(*) FROM api_keys)",
            "SELECT id FROM orders o JOIN users u ON EXISTS (SELECT FROM api_keys)",
            "VALUES ((SELECT key FROM api_keys))",
            "SELECT CASE WHEN true THEN (SELECT key FROM api_keys) END",
        ),
    ),
    "unparsable": refused("", "SELEC 1", "SELECT FROM WHERE", "SELECT 1 LIMIT", sqlstate=NO_SYNTAX),
    "disguised names": (
        *refused(FUNCTION, r'SELECT U&"pg\005fsleep"(5)', 'SELECT "pg_sleep"(5)', "SELECT PG_SLEEP(5)"),
        *refused(RELATION, r'TABLE U&"api\005fkeys"', 'TABLE "api_keys"', "TABLE public . API_KEYS"),
    ),
    "attribute call": refused(
        FUNCTION,
        "SELECT (total::float8).pg_sleep FROM orders",
        "SELECT (1.0::float8).pg_sleep",
    ),
    "splitting by eye": refused(
        "multiple-statements", r"SELECT E'it\'s'; DROP TABLE orders; --'", "SELECT 1; SELECT 2"
    ),
    "moving grammar": refused(
        SETTING,
        "SET standard_conforming_strings = off",
        "SET client_encoding = 'SJIS'",
        "SET NAMES 'BIG5'",
    ),
    # --- effects in hiding ---
    "writing CTE": refused(
        READ_ONLY, "WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone"
    ),
    "run by EXPLAIN": refused(
        READ_ONLY,
        "EXPLAIN (ANALYZE) WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone",
        "EXPLAIN ANALYZE DELETE FROM orders WHERE id = 1",
    ),
    "creating SELECT": refused(CLASS, "SELECT id INTO TEMP t FROM users", "CREATE TEMP TABLE t AS SELECT 1"),
    "COPY": (
        *refused(RELATION, "COPY api_keys TO STDOUT", "COPY (TABLE api_keys) TO STDOUT"),
        *refused(COLUMN, "COPY users TO STDOUT", "COPY users (ssn) TO STDOUT"),
        *refused(READ_ONLY, "COPY (DELETE FROM orders RETURNING id) TO STDOUT"),
        *refused(
            "server-file",
            "COPY orders TO PROGRAM 'x'",
            "COPY orders TO '/tmp/x'",
            "COPY (SELECT 1) TO PROGRAM 'x'",
        ),
        *refused(
            CLASS,
            "COPY orders FROM PROGRAM 'x'",
            "COPY orders FROM '/tmp/x'",
        ),
    ),
    "opaque bodies": refused(
        CLASS,
        "DO $$BEGIN EXECUTE 'DEL' || 'ETE FROM users'; END$$",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'DELETE FROM users; SELECT 1'",
    ),
    "functions that run text": refused(
        FUNCTION,
        "SELECT query_to_xml('TABLE api_keys', true, false, '')",
        "SELECT table_to_xml('api_keys', true, false, '')",
        "SELECT database_to_xml(true, false, '')",
        "SELECT * FROM ts_stat('SELECT key::tsvector FROM api_keys')",
        "SELECT cursor_to_xml('c', 1, true, false, '')",
    ),
    "PREPARE": (
        *refused(READ_ONLY, "PREPARE p AS DELETE FROM orders"),
        *refused(RELATION, "PREPARE p AS TABLE api_keys"),
        *refused("not-understood", "EXECUTE unheard_of", sqlstate="26000"),
    ),
    "cursors": (
        *refused(COLUMN, "DECLARE c CURSOR FOR SELECT ssn FROM users"),
        *refused(RELATION, "DECLARE c CURSOR WITH HOLD FOR TABLE api_keys"),
    ),
    "hidden calls": (
        *refused(
            FUNCTION,
            "SELECT 1 OPERATOR(reporting.<~>) 2",
            "TABLE reporting.daily",
            "SELECT max(n) FROM reporting.daily WHERE day > '2026-01-01'",
            "SELECT reporting.noted(1)",
        ),
        *refused(RELATION, "TABLE reporting.keys"),
    ),
    "shadowing": refused(CLASS, "CREATE TEMP TABLE orders AS SELECT 99 AS id"),
    "column detours": refused(
        COLUMN,
        "SELECT * FROM users",
        "TABLE users",
        "SELECT u FROM users u",
        "SELECT to_jsonb(u) FROM users u",
        "SELECT row_to_json(u.*) FROM users u",
        "SELECT (u).ssn FROM users u",
        "SELECT u::text FROM users u",
        "SELECT count(*) FROM users WHERE ssn LIKE '1_'",
        "SELECT id FROM users ORDER BY ssn",
        "SELECT count(*) FROM users GROUP BY ssn",
        "SELECT max(a) FROM users AS x (a1, b, c, a, e)",
        "SELECT a.id FROM users a JOIN users b USING (ssn)",
        "SELECT a.id FROM users a NATURAL JOIN users b",
        "SELECT count(*) FROM users u WHERE u = ROW(1, 'a', 'b', 'c', 'd')::users",
        "SELECT array_agg(u) FROM users u",
        "WITH q AS (SELECT * FROM users) SELECT 1 FROM q",
    ),
    "dialling out": (
        *refused(
            CLASS,
            "CREATE SERVER s FOREIGN DATA WRAPPER w",
            "IMPORT FOREIGN SCHEMA x FROM SERVER s INTO public",
            "CREATE EXTENSION file_fdw",
            "CREATE SUBSCRIPTION s CONNECTION 'host=x' PUBLICATION p",
        ),
        *refused(
            "unknown-function",
            "SELECT dblink_connect('host=x')",
            "SELECT dblink_exec('DELETE FROM orders')",
            sqlstate="42883",
        ),
    ),
    # --- read-only and settings ---
    "READ ONLY is no boundary": (
        *refused(
            FUNCTION,
            "SELECT lo_create(0)",
            "SELECT pg_advisory_lock(1)",
            "SELECT nextval('s')",
            "SELECT pg_terminate_backend(1)",
            "SELECT pg_notify('x', '')",
        ),
        *refused(CLASS, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE", "NOTIFY x", "LISTEN x"),
        *refused(READ_ONLY, "SELECT id FROM orders FOR UPDATE"),
    ),
    "leaving it": (
        *refused("multiple-statements", "COMMIT; BEGIN READ WRITE; DELETE FROM orders WHERE id = 7"),
        *refused(
            READ_ONLY,
            "SET TRANSACTION READ WRITE",
            "BEGIN READ WRITE",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
            "SET default_transaction_read_only = off",
            "SET transaction_read_only = off",
        ),
    ),
    "set_config": (
        *refused(
            READ_ONLY,
            "SELECT set_config('default_transaction_read_only', 'off', false)",
            "SELECT pg_catalog.set_config('transaction_read_only', 'off', true)",
        ),
        *refused(
            SETTING,
            "SELECT set_config('role', 'postgres', true)",
            "SELECT set_config(name, 'off', false) FROM users",
            "SELECT set_config('statement' || '_timeout', '0', false)",
            "SET statement_timeout = 0",
            "SET session_replication_role = replica",
            "SET ROLE shop_ro",
            "SET SESSION AUTHORIZATION shop_ro",
        ),
    ),
    # --- EXPLAIN and cost ---
    "EXPLAIN executes": refused(
        FUNCTION,
        "SELECT * FROM orders WHERE id = reporting.rate(7)",
        "EXPLAIN SELECT * FROM orders WHERE id = reporting.rate(7)",
    ),
    "root misleads": refused(
        COST,
        "SELECT count(*) FROM orders a, orders b",
        "SELECT a.id FROM orders a, orders b, orders c ORDER BY a.total + b.total + c.total LIMIT 10",
        sqlstate=TOO_DEAR,
    ),
    "unpriceable": refused(
        UNPRICEABLE,
        "WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 100000000)"
        " SELECT count(*) FROM t",
        "SELECT repeat('x', 1000000000)",
        sqlstate=TOO_DEAR,
    ),
}
WRITING: Final[Mapping[str, tuple[Attack, ...]]] = {
    "writing CTE": refused(
        "delete-without-where", "WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone"
    ),
    "run by EXPLAIN": refused("delete-without-where", "EXPLAIN (ANALYZE) DELETE FROM orders"),
    "MERGE": refused(
        "tautology-predicate",
        "MERGE INTO orders o USING users u ON true WHEN MATCHED THEN DELETE",
    ),
    "always true": (
        *refused(
            "tautology-predicate",
            "DELETE FROM orders WHERE id = id",
            "DELETE FROM orders WHERE true",
            "UPDATE orders SET total = 0 WHERE 1 = 1",
            "DELETE FROM orders WHERE id = 1 OR true",
        ),
        *refused("weak-predicate", "UPDATE orders SET total = 0 WHERE id IS NOT NULL"),
    ),
    "rows out of sight": refused(
        "update-without-where",
        "WITH a AS (UPDATE orders SET total = 0 RETURNING id) UPDATE users SET email = 'x' WHERE id = 1",
    ),
    "column detours": refused(
        COLUMN,
        "INSERT INTO users (id) VALUES (99) RETURNING *",
        "UPDATE users SET name = ssn WHERE id = 1",
        "UPDATE users SET ssn = 'x' WHERE id = 1",
        "UPDATE orders o SET total = 0 FROM users u WHERE u.ssn = 'x' AND o.id = 1",
        "DELETE FROM users WHERE password_hash = 'x'",
        "INSERT INTO users (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET name = excluded.ssn",
    ),
}
PASSING: Final[Mapping[str, tuple[str, ...]]] = {
    "false alarm": (
        "SELECT $$); DELETE FROM orders; --$$ AS delete",
        "SELECT 'DROP TABLE orders' AS drop",
        "SELECT 1 /* DELETE FROM orders; */ -- TRUNCATE orders",
        'SELECT name AS "DELETE FROM users" FROM users WHERE id = 1',
        "SELECT id FROM orders WHERE total = 1 OR day = '2026-01-02'",
        "SELECT id FROM users WHERE name = 'pg_sleep(5)'",
        "WITH api_keys AS (SELECT 1 AS key) SELECT key FROM api_keys",
    ),
    "around the hidden columns": (
        "SELECT id, name, email FROM users",
        "SELECT to_jsonb(q) FROM (SELECT id, name FROM users) q",
        "SELECT count(*) FROM users",
        "SELECT o.id FROM orders o JOIN users u ON u.id = o.customer_id WHERE u.name = 'U1'",
    ),
    "within the limits": (
        "SELECT count(*) FROM orders a JOIN orders b USING (id)",
        "SELECT repeat('x', 10)",
    ),
}


@pytest.fixture(scope="module")
def proxy(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with postgres.database("template0") as database:
        database.execute(SCHEMA)
        policies = {"reads": READS, "writes": WRITES}
        with run_proxy(database, tmp_path_factory.mktemp("threats"), policies) as running:
            yield running


@pytest.fixture(scope="module")
def observer(proxy: RunningProxy) -> Iterator[Connection]:
    """A superuser's connection past the proxy."""
    with psycopg.connect(proxy.database.dsn(), autocommit=True) as connection:
        yield connection


TRACES: Final = """
SELECT pg_snapshot_xmax(pg_current_snapshot()), (SELECT sum(total) FROM orders), (SELECT count(*) FROM users),
       (SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE a.datname = current_database() AND a.usename = 'shop_app' AND l.locktype <> 'virtualxid'
          AND l.mode <> 'AccessShareLock')
"""


def tried(proxy: RunningProxy, observer: Connection, agent: str, attacks: tuple[Attack, ...]) -> None:
    before = observer.execute(TRACES).fetchone()
    with psycopg.connect(**proxy.parameters(agent), autocommit=True) as connection:
        for run in PROTOCOLS:
            for sql, rule, sqlstate in attacks:
                with pytest.raises(psycopg.Error) as caught:
                    run(connection, sql)
                told = caught.value.diag
                found = json.loads(told.message_detail or "{}").get("violations", ())
                assert (told.sqlstate, sql) == (sqlstate, sql)
                assert not rule or rule in {violation["rule"] for violation in found}, (sql, found)
                assert "CANARY" not in repr(told.message_primary) + repr(told.message_detail)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    assert observer.execute(TRACES).fetchone() == before


@pytest.mark.parametrize("threat", READING)
def test_a_reading_agent_does_not_get_past(proxy: RunningProxy, observer: Connection, threat: str) -> None:
    tried(proxy, observer, "reads", READING[threat])


@pytest.mark.parametrize("threat", WRITING)
def test_a_writing_agent_does_not_get_past(proxy: RunningProxy, observer: Connection, threat: str) -> None:
    tried(proxy, observer, "writes", WRITING[threat])


@pytest.mark.parametrize("kind", PASSING)
def test_what_only_looks_like_it_passes(proxy: RunningProxy, kind: str) -> None:
    with psycopg.connect(**proxy.parameters("reads"), autocommit=True) as connection:
        for run in PROTOCOLS:
            for sql in PASSING[kind]:
                assert "CANARY" not in repr(run(connection, sql)), sql
