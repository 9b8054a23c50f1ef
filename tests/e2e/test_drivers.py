"""What every driver must see of the proxy: the same rows, its own errors, a session that lives on."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
from collections.abc import Iterator
from typing import Any

import pg8000.dbapi
import psycopg
import pytest

from tests.support.drivers import DRIVERS, Driver, Told
from tests.support.proxy import RunningProxy

REPORTED = (
    "server_version",
    "server_encoding",
    "client_encoding",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
)

READS: list[tuple[str, tuple[object, ...]]] = [
    ("SELECT 1", ()),
    ("TABLE products", ()),
    ("SELECT * FROM customers WHERE id < ? ORDER BY id", (20,)),
    ("SELECT * FROM order_totals WHERE total > 100 ORDER BY id", ()),
    ("SELECT name, tags FROM products WHERE ? = ANY(tags) ORDER BY id LIMIT 5", ("gift",)),
    ("WITH o AS (SELECT * FROM orders WHERE status = ?) SELECT count(*), min(ordered_at) FROM o", ("paid",)),
    ("SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id ORDER BY o.id LIMIT 7", ()),
    ("SELECT sum(unit_price * quantity), avg(quantity) FROM order_items", ()),
    ("SELECT joined_on, newsletter, notes FROM customers WHERE id = 3", ()),
    ("SELECT details FROM orders WHERE id = 10", ()),
    ("SELECT interval '1 day 2 hours', time '12:30', 1.5::float8, 'NaN'::numeric, 'a'::\"char\"", ()),
    ("SELECT '2026-01-01 10:00+02'::timestamptz, '{1,NULL,3}'::int[], '\\x00ff'::bytea", ()),
    ("SELECT int4range(1, 5), '10.0.0.1'::inet, NULL::text, ''::text", ()),
    ("SELECT 'grüße 💡 日本'::text, ?::text", ("ärgerlich 🚀",)),
    ("SELECT ?::numeric, ?::date, ?::bool", (decimal.Decimal("12.345"), dt.date(2026, 2, 28), True)),
    ("SELECT repeat('x', 100000) FROM generate_series(1, 20)", ()),
    ("SELECT * FROM customers WHERE id < 0", ()),
    ("SELECT", ()),
    ("EXPLAIN (COSTS off) SELECT * FROM orders WHERE id = 1", ()),
    ("SHOW server_version", ()),
    ("VALUES (1, 'a'), (2, 'b')", ()),
]  # fmt: skip

Refusal = tuple[str, str, str, str, int]
REFUSALS: list[Refusal] = [
    ("UPDATE customers SET city = 'Oslo'", "update-without-where", "42501", "update", 1),
    ("DELETE FROM orders WHERE true", "tautology-predicate", "42501", "delete", 26),
    ("DROP TABLE orders", "class-not-allowed", "42501", "ddl", 1),
    ("SELECT pg_read_file('/etc/passwd')", "function-not-allowed", "42501", "select", 8),
    ("SELECT rolpassword FROM pg_authid", "relation-not-allowed", "42501", "select", 25),
    ("SET session_replication_role = replica", "setting-not-allowed", "42501", "set", 32),
    ("SELECT 1; SELECT 2", "multiple-statements", "42501", "select", 11),
    ("SELEC 1", "unparsable", "42601", "other", 1),
    ("COPY orders TO PROGRAM 'cat'", "server-file", "42501", "copy_out", 1),
]


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def kind(request: pytest.FixtureRequest) -> type[Driver]:
    driver: type[Driver] = request.param
    return driver


@pytest.fixture
def writer(gateway: RunningProxy, kind: type[Driver]) -> Iterator[Driver]:
    yield from connected(kind, gateway, "writer")


@pytest.fixture
def reader(gateway: RunningProxy, kind: type[Driver]) -> Iterator[Driver]:
    yield from connected(kind, gateway, "reader")


@pytest.fixture
def direct(gateway: RunningProxy, kind: type[Driver]) -> Iterator[Driver]:
    """The same driver without the proxy, as the backend role of ``writer``."""
    server = gateway.database.server
    driver = kind(
        {
            "host": server.host,
            "port": server.port,
            "user": "shop_app",
            "password": server.passwords["shop_app"],
            "dbname": gateway.database.name,
        }
    )
    yield driver
    driver.close()


def connected(kind: type[Driver], proxy: RunningProxy, agent: str) -> Iterator[Driver]:
    driver = kind(proxy.parameters(agent))
    yield driver
    driver.close()


def test_rows_are_those_of_the_server(writer: Driver, direct: Driver) -> None:
    for sql, parameters in READS:
        assert repr(writer.run(sql, *parameters)) == repr(direct.run(sql, *parameters)), sql


def test_the_server_introduces_itself(reader: Driver, direct: Driver) -> None:
    for name in REPORTED:
        assert reader.parameter(name) == direct.parameter(name), name


def test_a_write_arrives_and_is_counted(gateway: RunningProxy, writer: Driver) -> None:
    email = f"{writer.name}@drivers.example"
    insert = "INSERT INTO customers (name, email, city) VALUES (?, ?, ?) RETURNING id, city"
    ((row, city),) = writer.run(insert, "Ünal", email, "Graz")
    assert city == "Graz"
    writer.run("UPDATE customers SET notes = ? WHERE id = ?", "né", row)
    seen = f"SELECT name, notes FROM customers WHERE email = '{email}'"
    assert gateway.database.execute(seen) == [("Ünal", "né")]
    writer.run("DELETE FROM customers WHERE id = ?", row)
    assert gateway.database.execute(seen) == []


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal[1])
def test_a_rejection_is_the_drivers_own_error(
    gateway: RunningProxy, writer: Driver, refusal: Refusal
) -> None:
    sql, rule, sqlstate, statement_class, position = refusal
    told = writer.fail(sql)
    if sqlstate == "42501":
        assert told.kind is writer.refused
    assert (told.severity, told.sqlstate, told.routine) == ("ERROR", sqlstate, rule)
    assert told.position == str(position)
    detail = the_detail(told)
    assert (detail["v"], detail["decision"], detail["rule"], detail["class"]) == (
        1,
        "reject",
        rule,
        statement_class,
    )
    assert told.message
    assert told.hint
    assert ("Do not retry" in told.hint) is not detail["repair"]["allowed"]
    assert writer.run("SELECT 1") == [(1,)]


def the_detail(told: Told) -> dict[str, Any]:
    assert told.detail is not None
    detail = json.loads(told.detail)
    assert isinstance(detail, dict)
    return detail


def test_an_error_of_the_server_is_told_as_it_is(writer: Driver, direct: Driver) -> None:
    for sql in (
        "SELECT 1/0",
        "INSERT INTO customers (id, name, email, city) VALUES (1, 'n', 'e', 'c')",
        "UPDATE products SET stock = -1 WHERE id = 1",
        "SELECT 'x'::int FROM orders",
    ):
        assert writer.fail(sql) == direct.fail(sql), sql


def test_a_refused_statement_fails_its_transaction(gateway: RunningProxy, writer: Driver) -> None:
    email = f"{writer.name}@aborted.example"
    writer.run("BEGIN")
    writer.run("INSERT INTO customers (name, email, city) VALUES ('n', ?, 'c')", email)
    assert writer.fail("DELETE FROM orders").kind is writer.refused
    for sql in ("SELECT 1", "DELETE FROM orders", "SELECT count(*) FROM customers"):
        told = writer.fail(sql)
        if sql.startswith("SELECT"):
            assert (told.kind, told.sqlstate) == (writer.aborted, "25P02")
    writer.run("ROLLBACK")
    assert writer.run("SELECT count(*) FROM customers WHERE email = ?", email) == [(0,)]


def test_commit_of_a_refused_transaction_rolls_back(gateway: RunningProxy, writer: Driver) -> None:
    email = f"{writer.name}@committed.example"
    writer.run("BEGIN")
    writer.run("INSERT INTO customers (name, email, city) VALUES ('n', ?, 'c')", email)
    writer.fail("DELETE FROM orders")
    with contextlib.suppress(pg8000.dbapi.InterfaceError):  # pg8000 complains of the answer ROLLBACK itself
        writer.run("COMMIT")
    assert gateway.database.execute(f"SELECT count(*) FROM customers WHERE email = '{email}'") == [(0,)]


def test_a_savepoint_outlives_a_refusal(gateway: RunningProxy, writer: Driver) -> None:
    email = f"{writer.name}@savepoint.example"
    writer.run("BEGIN")
    writer.run("INSERT INTO customers (name, email, city) VALUES ('n', ?, 'c')", email)
    writer.run("SAVEPOINT before")
    writer.fail("DELETE FROM orders")
    writer.run("ROLLBACK TO SAVEPOINT before")
    writer.run("UPDATE customers SET city = 'kept' WHERE email = ?", email)
    writer.run("COMMIT")
    found = gateway.database.execute(f"SELECT city FROM customers WHERE email = '{email}'")
    gateway.database.execute(f"DELETE FROM customers WHERE email = '{email}'")
    assert found == [("kept",)]


def test_a_reader_writes_nothing(gateway: RunningProxy, reader: Driver) -> None:
    for sql in (
        "DELETE FROM orders WHERE id = 1",
        "INSERT INTO customers (name, email, city) VALUES ('n', 'e', 'c')",
        "WITH gone AS (DELETE FROM orders WHERE id = 1 RETURNING id) SELECT id FROM gone",
        "SELECT id FROM orders WHERE id = 1 FOR UPDATE",
        "SELECT setval('orders_id_seq', 1)",
        "BEGIN READ WRITE",
        "SET default_transaction_read_only = off",
    ):
        assert reader.fail(sql).kind is reader.refused, sql
    assert reader.run("SELECT count(*) FROM orders WHERE id = 1") == [(1,)]


def test_the_same_statement_many_times(writer: Driver) -> None:
    """Drivers prepare on the server what recurs: psycopg after five runs, asyncpg at once."""
    for n in range(1, 12):
        assert writer.run("SELECT id FROM orders WHERE id = ?", n) == [(n,)]
        assert writer.fail("DELETE FROM orders").sqlstate == "42501"


def test_the_backend_is_the_servers_own(reader: Driver, gateway: RunningProxy) -> None:
    ((pid,),) = reader.run("SELECT pg_backend_pid()")
    found = f"SELECT usename FROM pg_stat_activity WHERE pid = {pid}"
    with psycopg.connect(gateway.database.dsn()) as connection:
        assert connection.execute(found.encode()).fetchall() == [("shop_ro",)]
