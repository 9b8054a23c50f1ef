"""The sample shop: what the demo, its policies and the other tests take for granted about it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from proxy.demo_shop import ROLES, load_shop
from proxy.embedded import EmbeddedPostgres
from tests.support.postgres import Database, Server

TABLES = ("customers", "products", "employees", "orders", "order_items", "api_keys")


def fingerprint(database: Database) -> dict[str, tuple[object, ...]]:
    """Row count and content of each table, whatever the order of rows."""
    return {
        table: database.execute(
            f"SELECT count(*), md5(string_agg(t::text, '|' ORDER BY t::text)) FROM public.{table} AS t"
        )[0]
        for table in TABLES
    }


def test_two_loads_are_alike(empty_database: Database, shop: Database) -> None:
    asyncio.run(load_shop(empty_database.dsn(), shop.server.passwords))
    loaded = fingerprint(empty_database)
    assert loaded == fingerprint(shop)
    assert all(count for count, _ in loaded.values())


def test_both_majors_hold_the_same_rows(postgres15: Server, postgres18: Server) -> None:
    assert fingerprint(postgres15.shop) == fingerprint(postgres18.shop)


def test_passwords_of_any_spelling_are_set(postgres15: Server) -> None:
    passwords = {"shop_ro": 'it\'s \\ "odd"', "shop_app": "p@ss:w/rd %s $1"}
    with EmbeddedPostgres(postgres15.engine.binaries) as server:
        asyncio.run(load_shop(server.dsn("postgres"), passwords))
        for role in ROLES:
            psycopg.connect(server.dsn("postgres", role, passwords[role])).close()


def test_a_missing_password_is_noticed_before_anything_is_loaded(empty_database: Database) -> None:
    with pytest.raises(KeyError, match="shop_app"):
        asyncio.run(load_shop(empty_database.dsn(), {"shop_ro": "secret"}))
    assert empty_database.execute("SELECT count(*) FROM pg_stat_user_tables") == [(0,)]


def test_hidden_values_are_recognisable_wherever_they_show(shop: Database) -> None:
    assert shop.execute("SELECT bool_and(salary % 1 = 0.37) FROM employees", "shop_ro") == [(True,)]
    assert shop.execute("SELECT bool_and(wage % 1 = 0.37) FROM wage_bill", "shop_ro") == [(True,)]
    assert shop.execute("SELECT bool_and(secret LIKE 'hidden-key-%') FROM api_keys", "shop_ro") == [(True,)]


def test_the_reading_role_writes_through_a_function_alone(database: Database) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.execute("UPDATE products SET stock = 0", "shop_ro")
    [(before,)] = database.execute("SELECT stock FROM products WHERE id = 1")
    assert database.execute("SELECT restock(1, 5)", "shop_ro") == [(before + 5,)]


def test_the_writing_role_writes_rows_and_nothing_else(database: Database) -> None:
    database.execute(
        "INSERT INTO customers (name, email, city) VALUES ('N', 'n@example.org', 'Oslo')", "shop_app"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.execute("DROP TABLE order_items", "shop_app")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.execute("CREATE TABLE mine ()", "shop_app")


def test_the_reports_add_up(shop: Database) -> None:
    [(by_report,)] = shop.execute("SELECT sum(revenue) FROM reporting.revenue(2024)", "shop_ro")
    [(by_view,)] = shop.execute(
        "SELECT sum(total) FROM order_totals WHERE status <> 'refunded' AND ordered_at < '2025-01-01'",
        "shop_ro",
    )
    assert by_report == by_view > 0
    [(spent,)] = shop.execute("SELECT sum(reporting.spent_by(id)) FROM customers", "shop_ro")
    assert spent == shop.execute("SELECT sum(total) FROM order_totals", "shop_ro")[0][0]
