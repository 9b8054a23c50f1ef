"""The gate with a database's catalog behind it, through real connections on both servers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.catalogs import LINGER_S
from tests.support.postgres import Database
from tests.support.proxy import RunningProxy, run_proxy, wait_for

ANALYST = """
version: 1
name: analyst
access: read_only
statements: {select: {decide: allow, repair: once}, show: allow, set: allow, transaction: allow}
relations: {allow: ["public.*"], deny: [public.secrets], catalogs: filtered}
columns: {public.people: {deny: [pay]}}
functions: {allow: [builtin-safe]}
rules: {unbounded-join: "off"}
"""
BUILDER = """
version: 1
name: builder
access: read_write
statements: {select: allow, show: allow, transaction: allow, insert: allow, delete: allow, ddl: allow}
relations: {allow: ["public.*"], deny: [public.secrets]}
columns: {public.people: {deny: [pay]}}
functions: {allow: [builtin-safe, "public.made_*"]}
"""
SCHEMA = """
CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL, title text NOT NULL, pay numeric NOT NULL);
INSERT INTO people VALUES (1, 'Ann', 'lead', 7777), (2, 'Bob', 'clerk', 6666);
CREATE TABLE secrets (id int PRIMARY KEY, of int NOT NULL REFERENCES people, word text);
INSERT INTO secrets VALUES (1, 1, 'hush');
CREATE VIEW words AS SELECT s.word FROM secrets s;
CREATE VIEW staff AS SELECT id, name FROM people;
CREATE FUNCTION length(n int) RETURNS int LANGUAGE sql AS 'SELECT n';
GRANT SELECT, INSERT, DELETE ON people, secrets, words, staff TO shop_ro, shop_app;
GRANT CREATE ON SCHEMA public TO shop_app;
"""
Connection = psycopg.Connection[Any]


@pytest.fixture
def gateway(database: Database, tmp_path: Path) -> Iterator[RunningProxy]:
    database.execute(SCHEMA)
    policies = {"analyst": ANALYST, "builder": BUILDER}
    with run_proxy(database, tmp_path, policies, audit={"path": "audit.jsonl"}) as running:
        yield running


@contextlib.contextmanager
def connected(gateway: RunningProxy, user: str = "analyst", **more: Any) -> Iterator[Connection]:
    with psycopg.connect(**gateway.parameters(user, **more), autocommit=True) as connection:
        yield connection


def refusal(connection: Connection, sql: str) -> psycopg.errors.Diagnostic:
    """The error that ``sql`` meets; the connection must live on."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(sql.encode())
    assert connection.execute("SELECT 1").fetchone() == (1,)
    return caught.value.diag


def test_names_mean_what_they_mean_in_the_database(gateway: RunningProxy) -> None:
    with connected(gateway) as connection:
        assert connection.execute("SELECT name FROM staff ORDER BY id").fetchall() == [("Ann",), ("Bob",)]
        assert connection.execute("SELECT length(name) FROM people WHERE id = 1").fetchone() == (3,)
        for sql, rule in (
            ("SELECT word FROM words", "relation-not-allowed"),
            ("SELECT * FROM people", "column-not-allowed"),
            ("SELECT length(id) FROM people", "function-not-allowed"),
            ("SELECT nme FROM people", "unknown-column"),
            ("SELECT 1 FROM person", "unknown-relation"),
            ("SELECT ifnull(name, '') FROM people", "unknown-function"),
        ):
            told = refusal(connection, sql)
            assert told.source_function == rule
            assert "secrets" not in f"{told.message_primary}{told.message_hint}{told.message_detail}"
        assert "title" in (refusal(connection, "SELECT * FROM people").message_hint or "")


def test_what_somebody_else_makes_is_not_unknown(gateway: RunningProxy) -> None:
    with connected(gateway) as connection:
        assert refusal(connection, "SELECT id FROM fresh").sqlstate == "42P01"
        gateway.database.execute("CREATE TABLE fresh (id int); GRANT SELECT ON fresh TO shop_app")
        assert connection.execute("SELECT count(*) FROM fresh").fetchall() == [(0,)]
        gateway.database.execute("ALTER TABLE fresh ADD COLUMN note text")
        assert connection.execute("SELECT note FROM fresh").fetchall() == []
        assert connection.execute(b"SELECT id, note FROM fresh WHERE id = %b", (1,)).fetchall() == []


def test_what_the_connection_makes_itself_is_known_to_its_next_statement(gateway: RunningProxy) -> None:
    with connected(gateway, "builder") as connection:
        connection.execute("CREATE VIEW peek AS SELECT id FROM people")
        assert connection.execute("SELECT id FROM peek ORDER BY id LIMIT 1").fetchone() == (1,)
        connection.execute("CREATE OR REPLACE VIEW peek AS SELECT id, name FROM people")
        assert connection.execute("SELECT name FROM peek WHERE id = 1").fetchone() == ("Ann",)
        with connection.transaction():
            connection.execute("CREATE FUNCTION made_here() RETURNS int LANGUAGE sql AS 'SELECT 7'")
            assert connection.execute("SELECT made_here()").fetchone() == (7,)
        assert connection.execute("SELECT made_here()").fetchone() == (7,)
        with connection.transaction():
            connection.execute("CREATE TABLE public.fresh (id int)")
            connection.execute("INSERT INTO public.fresh VALUES (1)")
            connection.execute("ALTER TABLE public.fresh ADD more int DEFAULT 5")
            assert connection.execute("SELECT f.more FROM public.fresh f").fetchall() == [(5,)]
            connection.execute("ALTER TABLE public.fresh RENAME TO newer")
            connection.execute("DELETE FROM public.newer WHERE more = 5")
        connection.execute("ALTER TABLE public.newer ADD last int")
        with connection.transaction():
            connection.execute("ALTER TABLE public.newer RENAME last TO lasting")
            connection.execute("INSERT INTO public.newer (lasting) VALUES (1)")
        connection.execute("CREATE TEMP TABLE mine (id int)")
        assert connection.execute("SELECT id FROM mine").fetchall() == []


def test_a_prepared_statement_is_judged_by_the_schema_as_it_is(gateway: RunningProxy) -> None:
    gateway.database.execute("CREATE VIEW v AS SELECT id FROM people; GRANT SELECT ON v TO shop_app")
    with connected(gateway) as connection:
        for _ in range(3):
            assert connection.execute("SELECT id FROM v WHERE id = %s", (1,), prepare=True).fetchone() == (1,)
        before = gateway.logged("catalog_read")
        gateway.database.execute(
            "DROP VIEW v; CREATE VIEW v AS SELECT s.id FROM secrets s; GRANT SELECT ON v TO shop_app"
        )
        wait_for(lambda: len(gateway.logged("catalog_read")) > len(before), within_s=15)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT id FROM v WHERE id = %s", (1,), prepare=True)


def test_an_error_of_the_server_tells_nothing_hidden(gateway: RunningProxy) -> None:
    with connected(gateway, "builder") as connection:
        told = refusal(connection, "DELETE FROM people WHERE id = 1")
        assert told.sqlstate == "23503"
        every = [told.message_primary, told.message_detail, told.table_name, told.constraint_name]
        assert "secrets" not in " ".join(filter(None, every))
        ambiguous = refusal(connection, "SELECT name FROM people p JOIN staff s ON s.id = p.id LIMIT 1")
        assert ambiguous.sqlstate == "42702"
        assert "p.name" in (ambiguous.message_hint or "")
        detail = json.loads(ambiguous.message_detail or "")
        assert detail["decision"] == "engine_error"


def test_a_database_that_nobody_uses_any_more_can_be_dropped(gateway: RunningProxy) -> None:
    server = gateway.database.server
    with server.database() as other:
        name = other.name
        for _ in range(2):  # the second session finds the catalog that the first one left
            with connected(gateway, "analyst", dbname=name) as connection:
                assert connection.execute("SELECT count(*) FROM products").fetchone()
            wait_for(lambda: not sessions(gateway, name))
        read = len(gateway.logged("catalog_read"))
        with connected(gateway, "analyst", dbname=name) as connection:
            assert connection.execute("SELECT max(id) FROM products").fetchone()
        assert len(gateway.logged("catalog_read")) == read
        # Without FORCE, so that a session which stays makes it fail.
        gateway.database.execute(f'DROP DATABASE "{name}"')
        gateway.database.execute(f'CREATE DATABASE "{name}"')  # for the fixture to drop


def test_a_session_of_the_database_keeps_its_catalog_watched(gateway: RunningProxy) -> None:
    name = gateway.database.name
    with connected(gateway) as staying:
        with connected(gateway) as leaving:
            assert leaving.execute("SELECT count(*) FROM people").fetchone() == (2,)
        time.sleep(LINGER_S + 0.3)
        assert len(sessions(gateway, name)) == 1
        assert staying.execute("SELECT count(*) FROM staff").fetchone() == (2,)


def sessions(gateway: RunningProxy, name: str) -> list[tuple[Any, ...]]:
    """Of the proxy's own in that database."""
    return gateway.database.server.shop.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgturnstile catalog' "
        f"AND datname = '{name}'"
    )


def test_the_audit_tells_which_catalog_decided(gateway: RunningProxy) -> None:
    with connected(gateway) as connection:
        connection.execute("SELECT id FROM people LIMIT 1")
    path = gateway.folder / "audit.jsonl"
    wait_for(lambda: path.exists() and "people" in path.read_text())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (line,) = [line for line in lines if "people" in line.get("statement", "")]
    assert line["catalog_sha256"] == gateway.logged("catalog_read")[-1]["sha256"]


def test_without_a_catalog_what_needs_one_is_refused(database: Database, tmp_path: Path) -> None:
    nobody = {"login": {"user": "nobody_of_that_name", "password_env": "PASSWORD_SHOP_RO"}}
    limits = {"startup_timeout": "3s"}
    with (
        run_proxy(database, tmp_path, catalog=nobody, limits=limits) as running,
        psycopg.connect(**running.parameters("reader"), autocommit=True) as connection,
    ):
        assert connection.execute("SHOW timezone").fetchone() is not None
        told = refusal(connection, "SELECT count(*) FROM orders")
        assert told.sqlstate == "42501"
        assert "catalog of database" in (told.message_primary or "")
        assert running.logged("catalog_unreadable")
