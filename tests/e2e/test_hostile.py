"""After a hostile run the server has seen nothing but what was allowed: its own log is the witness.

The server logs every statement it ran or prepared, and the text of every one that failed. What is neither an
allowed statement nor one of the proxy's own has slipped through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn, PGresult

from tests.support.postgres import Database
from tests.support.proxy import RunningProxy, run_proxy
from tests.support.server_log import Step

READS_REFUSED = (
    "SELECT rolpassword FROM pg_authid",
    "TABLE pg_catalog.pg_shadow",
    "WITH x AS (SELECT * FROM pg_authid) SELECT 1",
    "SELECT (SELECT max(rolpassword) FROM pg_authid)",
    "SELECT 1 FROM orders WHERE EXISTS (SELECT FROM pg_authid)",
    "VALUES ((SELECT passwd FROM pg_shadow LIMIT 1))",
    "SELECT pg_read_file('/etc/passwd')",
    "VALUES (pg_read_file('/etc/passwd'))",
    "SELECT * FROM pg_ls_dir('/')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT pg_terminate_backend(1)",
    "SELECT set_config('role', 'owner', false)",
    "SELECT query_to_xml('DELETE FROM orders', true, true, '')",
    "SELECT nextval('orders_id_seq')",
    "SELECT public.restock(1, 100)",
    "SELECT 'orders'::regclass, 'pg_authid'::regclass",
)
WRITES_REFUSED = (
    "DELETE FROM orders WHERE id = 1",
    "UPDATE orders SET status = 'sent' WHERE id = 1",
    "INSERT INTO customers (name, email, city) VALUES ('n', 'e', 'c')",
    "MERGE INTO orders o USING customers c ON o.id = c.id WHEN MATCHED THEN DELETE",
    "WITH gone AS (DELETE FROM orders RETURNING id) SELECT * FROM gone",
    "EXPLAIN ANALYZE DELETE FROM orders",
    "PREPARE bad AS DELETE FROM orders",
    "DECLARE bad CURSOR FOR SELECT * FROM pg_authid",
    "SELECT * FROM orders FOR UPDATE",
    "SELECT * INTO copied FROM orders",
    "CREATE TABLE copied AS SELECT * FROM orders",
    "CREATE TEMP TABLE t (i int)",
    "TRUNCATE orders",
    "DROP TABLE orders",
    "ALTER TABLE orders ADD COLUMN c int",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'DELETE FROM orders RETURNING 1'",
    "DO $$ BEGIN DELETE FROM orders; END $$",
    "GRANT ALL ON orders TO PUBLIC",
    "CREATE ROLE intruder",
    "VACUUM orders",
    "LOCK TABLE orders",
    "COPY orders TO PROGRAM 'cat'",
    "COPY orders TO '/tmp/orders'",
    "COPY (DELETE FROM orders RETURNING *) TO STDOUT",
    "COPY orders FROM STDIN",
    "LISTEN channel",
    "NOTIFY channel",
    "BEGIN READ WRITE",
    "SET TRANSACTION READ WRITE",
    "SET default_transaction_read_only = off",
    "SET ROLE owner",
    "SET SESSION AUTHORIZATION owner",
    "SET session_replication_role = replica",
    "SET statement_timeout = 0",
    "SET standard_conforming_strings = off",
    "SET client_encoding = 'SJIS'",
    "SET search_path = pg_temp",
    "RESET statement_timeout",
    "ALTER SYSTEM SET fsync = off",
    "LOAD 'file'",
    "CHECKPOINT",
)
STRINGS_REFUSED = (
    "SELECT 1; DELETE FROM orders",
    "COMMIT; BEGIN READ WRITE; DELETE FROM orders; COMMIT",
    "SELECT 1; SELECT 2",
    "SET TimeZone = 'UTC'; DROP TABLE orders",
    "SELEC 1",
    "SELECT 'unfinished",
    "SELECT 1 /* unfinished; DELETE FROM orders",
    "DELETE FROM orders --",
    "/* SELECT */ DELETE /* 1 */ FROM/**/orders",
    r"SELECT E'\'; DELETE FROM orders; --'; DELETE FROM orders",
    r"SELECT U&'d\0061t' UESCAPE '\'; DELETE FROM orders",
    "SELECT $a$ $b$; DELETE FROM orders; $b$ $a$; DELETE FROM orders",
)
REFUSED = READS_REFUSED + WRITES_REFUSED + STRINGS_REFUSED

ALLOWED = (
    "SELECT 1",
    "SELECT count(*) FROM orders",
    "SELECT 'DELETE FROM orders'",
    "SHOW TimeZone",
    "SET search_path = public",
    "BEGIN",
    "ROLLBACK",
)

OWN = re.compile(
    r"pgturnstile_refused_[0-9a-f]{32}"
    r"|SHOW search_path /\* pgturnstile \*/"
    r"|SELECT (CASE WHEN .*|pg_catalog\.current_schemas\(false\), pg_catalog\.current_setting.*)",
    re.DOTALL,
)
"""Texts of the proxy's own: what stands in for a refused statement, and its questions about the session."""


@pytest.fixture
def besieged(database: Database, tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy and a database of the test's own, on each server. Another role than the agents' reads the
    catalog."""
    reads = {"login": {"user": "shop_app", "password_env": "PASSWORD_SHOP_APP"}}
    with run_proxy(database, tmp_path, catalog=reads) as running:
        yield running


def slipped(database: Database) -> set[str]:
    """Every text that the server saw of the agents' role and that nobody allowed."""
    seen: set[str] = set()
    for record in database.records():
        if record.role == "shop_ro":
            if record.step is not None:
                seen.add(record.statement)
            elif record.severity in ("STATEMENT", "QUERY"):
                seen.add(record.text)
    assert "SELECT 1" in seen
    return {text for text in seen if text not in ALLOWED and not OWN.fullmatch(text)}


def attack_simple(conn: PGconn) -> None:
    for sql in REFUSED:
        assert_refused(conn.exec_(sql.encode()), sql)
        assert conn.exec_(b"SELECT 1").status == pq.ExecStatus.TUPLES_OK


def attack_in_a_transaction(conn: PGconn) -> None:
    for sql in REFUSED:
        conn.exec_(b"BEGIN")
        assert_refused(conn.exec_(sql.encode()), sql)
        assert conn.transaction_status == pq.TransactionStatus.INERROR, sql
        conn.exec_(b"ROLLBACK")
        assert conn.transaction_status == pq.TransactionStatus.IDLE, sql


def attack_extended(conn: PGconn) -> None:
    for sql in REFUSED:
        assert_refused(conn.exec_params(sql.encode(), None), sql)
        assert conn.exec_params(b"SELECT 1", None).status == pq.ExecStatus.TUPLES_OK


def attack_by_name(conn: PGconn) -> None:
    """Prepare, and run all the same: under the name, and under one that stood for something harmless."""
    conn.prepare(b"harmless", b"SELECT 1")
    for n, sql in enumerate(REFUSED):
        name = f"s{n}".encode()
        assert_refused(conn.prepare(name, sql.encode()), sql)
        assert conn.exec_prepared(name, None).status == pq.ExecStatus.FATAL_ERROR, sql
        assert conn.describe_prepared(name).status == pq.ExecStatus.FATAL_ERROR, sql
        assert conn.prepare(b"", sql.encode()).status == pq.ExecStatus.FATAL_ERROR
        assert conn.exec_prepared(b"", None).status == pq.ExecStatus.FATAL_ERROR, sql
        assert conn.exec_prepared(b"harmless", None).get_value(0, 0) == b"1"


def attack_in_a_pipeline(conn: PGconn) -> None:
    conn.enter_pipeline_mode()
    for sql in REFUSED:
        conn.send_query_params(b"SELECT 1", None)
        conn.send_query_params(sql.encode(), None)
        conn.send_query_params(b"SELECT count(*) FROM orders", None)
        conn.pipeline_sync()
        states: list[pq.ExecStatus] = []
        while not states or states[-1] != pq.ExecStatus.PIPELINE_SYNC:
            if (result := conn.get_result()) is not None:
                states.append(pq.ExecStatus(result.status))
        assert states == [
            pq.ExecStatus.TUPLES_OK,
            pq.ExecStatus.FATAL_ERROR,
            pq.ExecStatus.PIPELINE_ABORTED,
            pq.ExecStatus.PIPELINE_SYNC,
        ], sql
    conn.exit_pipeline_mode()


def assert_refused(result: PGresult, sql: str) -> None:
    assert result.status == pq.ExecStatus.FATAL_ERROR, sql
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
    assert sqlstate in (b"42501", b"42601"), (sql, sqlstate)
    assert (result.error_field(pq.DiagnosticField.MESSAGE_DETAIL) or b"").startswith(b'{"v":1,'), sql


ATTACKS = (attack_simple, attack_in_a_transaction, attack_extended, attack_by_name, attack_in_a_pipeline)


def test_nothing_reaches_the_server_undecided(besieged: RunningProxy) -> None:
    for attack in ATTACKS:
        conn = pq.PGconn.connect(make_conninfo(**besieged.parameters("reader")).encode())
        for sql in ALLOWED:
            assert conn.exec_(sql.encode()).status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK), sql
        attack(conn)
        assert conn.status == pq.ConnStatus.OK
        conn.finish()
    assert slipped(besieged.database) == set()
    assert besieged.database.execute(
        "SELECT count(*), count(*) FILTER (WHERE status = 'sent') FROM orders"
    ) == [(2000, 800)]
    prepared = {record.statement for record in besieged.database.records() if record.step is Step.PARSE}
    assert "SELECT 1" in prepared  # the extended protocol is in the log too


def test_what_slips_past_is_seen(database: Database) -> None:
    """The witness itself: without the proxy it would have told."""
    with psycopg.connect(database.dsn("shop_ro"), autocommit=True) as connection:
        connection.execute("SELECT 1")
        connection.execute("SELECT count(*) FROM customers")
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT passwd FROM pg_shadow")
        connection.execute("SELECT 2", prepare=True)
    assert slipped(database) == {
        "SELECT count(*) FROM customers",
        "SELECT passwd FROM pg_shadow",
        "SELECT 2",
    }
