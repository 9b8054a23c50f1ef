"""The fixtures themselves: what other tests take for granted about servers, databases and the log."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from tests.support import postgres as support
from tests.support.certificates import Certificates
from tests.support.postgres import Database, Server
from tests.support.server_log import LogRecord, Step


def test_each_server_is_the_major_it_is_named_for(postgres15: Server, postgres18: Server) -> None:
    assert (postgres15.major, postgres18.major) == (15, 18)
    for server in (postgres15, postgres18):
        [(version,)] = server.shop.execute("SHOW server_version_num")
        assert int(version) // 10000 == server.major


def test_further_installations_are_those_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, postgres18: Server, tmp_path: Path
) -> None:
    folder = postgres18.engine.binaries.folder
    monkeypatch.setenv(support.FURTHER, f"{folder}{os.pathsep}")
    named = support.named_binaries.__wrapped__()
    assert {major: binaries.folder for major, binaries in named.items()} == {18: folder}
    monkeypatch.setenv(support.FURTHER, str(tmp_path))
    with pytest.raises(pytest.UsageError, match=f"{support.FURTHER}: .* does not hold working postgres"):
        support.named_binaries.__wrapped__()


def test_a_test_database_is_a_copy_of_the_shop_and_goes_away(postgres: Server) -> None:
    with postgres.database() as database:
        database.execute("DELETE FROM order_items")
        assert database.execute("SELECT count(*) FROM order_items") == [(0,)]
        # still connected when the context ends: the drop must not wait for it
        lingering = psycopg.connect(database.dsn("shop_ro"))
    with pytest.raises(psycopg.OperationalError):
        lingering.execute("SELECT 1")
    assert postgres.shop.execute("SELECT count(*) > 4000 FROM order_items") == [(True,)]
    names = postgres.shop.execute("SELECT datname FROM pg_database")
    assert (database.name,) not in names


def test_roles_log_in_by_password_and_hold_what_the_shop_grants(database: Database) -> None:
    assert database.execute("SELECT session_user::text", "shop_ro") == [("shop_ro",)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.execute("DELETE FROM order_items", "shop_ro")
    database.execute("DELETE FROM order_items", "shop_app")


def test_an_empty_database_has_no_tables(empty_database: Database) -> None:
    assert empty_database.execute("SELECT count(*) FROM pg_stat_user_tables") == [(0,)]


def test_the_log_tells_what_ran_and_what_was_only_parsed(database: Database) -> None:
    forged = "SELECT 1 /*\n\x1e\x1f1\x1fshop_ro\x1f*/"
    database.execute(forged, "shop_ro")
    with psycopg.connect(database.dsn("shop_ro"), autocommit=True) as connection:
        connection.execute("SELECT %s::integer", [7])
        connection.pgconn.prepare(b"later", b"SELECT 'never run'")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM no_such_table")
    assert database.executed("shop_ro") == [forged, "SELECT $1::integer", "SELECT * FROM no_such_table"]
    assert database.parsed("shop_ro") == ["SELECT $1::integer", "SELECT 'never run'"]
    assert database.executed("shop_app") == []
    assert "42P01" in {record.sqlstate for record in database.records()}


@pytest.mark.parametrize(
    ("text", "step", "statement"),
    [
        ("statement: SELECT 'a: b'", Step.STATEMENT, "SELECT 'a: b'"),
        ("execute <unnamed>: SELECT 1", Step.EXECUTE, "SELECT 1"),
        ("execute s1/c1: SELECT 1", Step.EXECUTE, "SELECT 1"),
        ("execute fetch from s1/c1: SELECT 1", Step.EXECUTE, "SELECT 1"),
        ("duration: 0.123 ms  parse s1: SELECT 1", Step.PARSE, "SELECT 1"),
        ("duration: 0.123 ms  bind s1: SELECT 1", Step.BIND, "SELECT 1"),
        ("duration: 0.123 ms", None, ""),
        ("executed: nothing", None, ""),
    ],
)
def test_log_records_are_told_apart(text: str, step: Step | None, statement: str) -> None:
    record = LogRecord(1, "shop_ro", "shop", "00000", "LOG", text)
    assert (record.step, record.statement) == (step, statement)


def test_the_tls_server_offers_tls_with_the_test_certificate(
    postgres15_tls: Server, certificates: Certificates
) -> None:
    with psycopg.connect(
        postgres15_tls.shop.dsn("shop_ro"), sslmode="verify-full", sslrootcert=str(certificates.ca)
    ) as connection:
        assert connection.pgconn.ssl_in_use
