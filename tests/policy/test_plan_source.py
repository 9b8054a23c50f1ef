"""Prices without a proxy: what a live server says of a statement that nobody runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any, TypeVar

import asyncpg
import pytest

from policy.catalog import Catalog
from policy.check import Checked, check, priced
from policy.cost import Question
from policy.loader import load
from policy.model import Mode
from policy.plan import NoPlanError, Plan
from policy.plan_source import PlanSource
from tests.policy.conftest import read_catalog
from tests.support.postgres import Database

T = TypeVar("T")
TODAY = date(2026, 7, 1)
POLICY = """
version: 1
name: priced
mode: %s
access: read_write
statements: {select: allow, insert: allow, update: allow, prepare: allow, cursor: allow, copy_out: allow,
  explain: allow}
relations: {allow: ["public.*"]}
functions: {allow: [builtin-safe, public.slow_plan]}
rules: {unbounded-join: "off"}
cost: {max_total_cost: 20000, max_modified_rows: 50}
"""
SLOW = """
CREATE OR REPLACE FUNCTION slow_plan(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_catalog.pg_sleep(8); RETURN n; END $$
"""


def on(database: Database, use: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
    async def run() -> T:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(database.dsn(), statement_cache_size=0)
        try:
            return await use(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def judged(database: Database, catalog: Catalog, sql: str, mode: str = "enforce") -> Checked:
    policy = load(POLICY % mode, "p.yaml")
    (checked,) = check(policy, sql.encode(), source="x", catalog=catalog)
    return on(database, lambda c: priced(checked, policy, catalog, PlanSource(c), TODAY))


@pytest.mark.parametrize(
    ("sql", "rejected", "limit", "generic"),
    [
        ("SELECT count(*) FROM orders WHERE id < 5", False, None, False),
        ("SELECT count(*) FROM orders WHERE id = $1", False, None, True),
        ("SELECT count(*) FROM order_items a, order_items b", True, "max_total_cost", False),
        (
            "SELECT count(*) FROM order_items a, order_items b WHERE a.quantity > $1",
            True,
            "max_total_cost",
            True,
        ),
        ("UPDATE orders SET status = 'x' WHERE id > 0", True, "max_modified_rows", False),
        ("UPDATE orders SET status = $1 WHERE id = $2", False, None, True),
        ("INSERT INTO orders SELECT * FROM orders WHERE id > $1", True, "max_modified_rows", True),
        ("DECLARE c CURSOR FOR SELECT * FROM order_items a, order_items b", True, "max_total_cost", False),
        ("COPY (SELECT * FROM orders WHERE id = 1) TO STDOUT", False, None, False),
        ("EXPLAIN ANALYZE SELECT * FROM order_items a, order_items b", True, "max_total_cost", False),
    ],
)
def test_a_price_judges(  # noqa: PLR0917 - a table's row
    shop: Database, shop_catalog: Catalog, sql: str, rejected: bool, limit: str | None, generic: bool
) -> None:
    found = judged(shop, shop_catalog, sql)
    told = found.as_json()
    assert (found.rejected, told["cost"]["limit"]) == (rejected, limit)
    assert told["cost"].get("generic", False) is generic
    assert told["cost"]["total"] > 0
    assert "unpriced" not in told
    if rejected:
        assert (told["rule"], told["sqlstate"]) == ("cost-over-limit", "54001")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("EXECUTE p(1)", "the session that prepared it"),
        ("DECLARE c CURSOR FOR SELECT * FROM orders WHERE id = $1", "without the values of its parameters"),
        (
            "SELECT id + 'x'::date FROM orders",
            '22007: invalid input syntax for type date: "x" at character 13',
        ),
        ("/* é */ SELECT 'é', id + $1, 'x'::date FROM orders", 'date: "x" at character 22'),
    ],
)
def test_what_cannot_be_priced_says_so(shop: Database, shop_catalog: Catalog, sql: str, said: str) -> None:
    found = judged(shop, shop_catalog, sql)
    assert not found.rejected
    assert found.cost is None
    assert said in (found.unpriced or "")
    assert found.as_json()["unpriced"] == found.unpriced


@pytest.mark.parametrize(
    ("sql", "mode"),
    [
        ("SELECT 1", "enforce"),
        ("DELETE FROM orders WHERE id = 1", "enforce"),
        ("SELECT repeat('x', 1000000000)", "enforce"),
        ("SELECT count(*) FROM order_items a, order_items b", "observe"),
    ],
)
def test_what_needs_no_price_is_not_asked(shop: Database, shop_catalog: Catalog, sql: str, mode: str) -> None:
    class Nobody:
        async def plan(self, question: Question, parameters: int) -> Plan:
            raise AssertionError(question.text)

    policy = load(POLICY % mode, "p.yaml")
    (checked,) = check(policy, sql.encode(), source="x", catalog=shop_catalog)
    found = asyncio.run(priced(checked, policy, shop_catalog, Nobody(), TODAY))
    assert (found.cost, found.unpriced) == (None, None)
    assert policy.mode is Mode(mode)


def test_planning_that_takes_long_is_refused(database18: Database) -> None:
    database18.execute(SLOW)
    catalog = read_catalog(database18.dsn())
    found = judged(database18, catalog, "SELECT slow_plan(id) + slow_plan(3) FROM orders")
    assert found.rejected
    assert found.as_json()["rule"] == "unpriceable"
    assert found.unpriced == "the server did not plan it in time"


def test_nothing_runs_and_nothing_stays(shop: Database, shop_catalog: Catalog) -> None:
    before = len(shop.executed())

    async def ask(connection: asyncpg.Connection[Any]) -> list[Any]:
        plans = PlanSource(connection)
        for text, parameters in (
            ("UPDATE orders SET status = 'gone' WHERE id > $1", 1),
            ("SELECT nope($1)", 1),
        ):
            question = Question(f"EXPLAIN (FORMAT JSON, VERBOSE) {text}", 31)
            try:
                await plans.plan(question, parameters)
            except NoPlanError as error:
                assert (error.sqlstate, error.position, error.late) == ("42883", 8, False)
        return await connection.fetch(
            "SELECT (SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'pgturnstile%'), "
            "current_setting('plan_cache_mode'), current_setting('statement_timeout')"
        )

    assert [tuple(row) for row in on(shop, ask)] == [(0, "auto", "0")]
    ran = [text for text in shop.executed()[before:] if text.startswith("UPDATE")]
    assert ran == []
    assert shop.execute("SELECT count(*) FROM orders WHERE status = 'gone'") == [(0,)]


def test_a_lost_connection_is_no_verdict(shop: Database) -> None:
    async def ask(connection: asyncpg.Connection[Any]) -> None:
        connection.terminate()
        await PlanSource(connection).plan(Question("EXPLAIN (FORMAT JSON, VERBOSE) SELECT 1"), 0)

    with pytest.raises((asyncpg.InterfaceError, asyncpg.PostgresConnectionError)):
        on(shop, ask)
