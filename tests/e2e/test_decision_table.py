"""The decision table that a policy has by default, row by row, as an agent meets it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from psycopg import pq

from policy.model import Halt
from tests.e2e.test_halts import HALTING, WELCOMED
from tests.e2e.test_repairs import Agent, both, ran, told
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy

DEFAULTS = HALTING.replace("name: halting", "name: defaults").replace("rules: {unbounded-join: reject}\n", "")

MESSAGE = pq.DiagnosticField.MESSAGE_PRIMARY


class Row(NamedTuple):
    """``gate`` is the rule that refuses, or the SQLSTATE of PostgreSQL's own answer, None where it runs.

    ``turns`` are those it leaves, None where PostgreSQL's own Detail stands in for ours; ``evidence``
    is a part of what the agent reads, a notice where it runs; ``answer`` is halted for ``halts_on``.
    """

    statement: str
    sql: str
    gate: str | None
    turns: int | None = 0
    evidence: str = ""
    answer: str | None = None
    halts_on: Halt | None = None


ROWS = (
    Row("no-where", "UPDATE products SET stock = 5", "update-without-where"),
    Row("no-where", "DELETE FROM products", "delete-without-where"),
    Row("where", "UPDATE products SET stock = stock WHERE id = 3", None),
    Row(
        "where-fails",
        "UPDATE products SET price = -1 WHERE id = 7",
        "23514",
        None,
        "products_price_check",
        "UPDATE products SET price = 1 WHERE id > 6",
        Halt.PREDICATE_WEAKENED,
    ),
    Row(
        "join",
        "SELECT p.id FROM products p JOIN order_items i ON i.product_id = p.id",
        None,
        0,
        "joins 2 relations",
    ),
    Row("two", "SELECT 1; SELECT 2", "multiple-statements"),
    Row(
        "join-fault",
        "SELECT p.id, i.qantity FROM products p JOIN order_items i ON i.product_id = p.id WHERE p.id = 3",
        "unknown-column",
        1,
        "quantity",
    ),
    Row("one-table", "SELECT id FROM products", None),
    Row(
        "insert-not-null",
        WELCOMED,
        "insert-missing-not-null",
        0,
        "city",
        WELCOMED.replace("email)", "email, city)").replace("org')", "org', 'unknown')"),
        Halt.DUMMY_LITERAL,
    ),
    Row("ddl", "DROP TABLE orders", "class-not-allowed", 0, "approv"),
    Row("maintenance", "VACUUM orders", "class-not-allowed", 0, "runbook"),
    Row("unparsable", "SELEC 1", "unparsable", 1),
    Row("server-file", "COPY products TO '/nowhere'", "server-file"),
    Row(
        "unknown-table",
        "DELETE FROM ordrs WHERE id = 3",
        "unknown-relation",
        1,
        "orders",
        "DELETE FROM customers WHERE id = 3",
        Halt.RELATIONS_CHANGED,
    ),
)


@pytest.fixture(scope="module")
def proxy(postgres15: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("table")
    with postgres15.database() as database, run_proxy(database, folder, {"defaults": DEFAULTS}) as running:
        yield running


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.statement)
@both
def test_the_table_holds(proxy: RunningProxy, row: Row, extended: bool) -> None:
    agent = Agent(proxy, name="defaults")
    try:
        notices: list[bytes] = []
        agent.pg.notice_handler = lambda notice: notices.append(notice.error_field(MESSAGE) or b"")
        result = agent.send(row.sql, extended)
        if row.gate is None:
            assert ran(result)
            assert bool(notices) is bool(row.evidence)
            assert row.evidence in b"".join(notices).decode()
            return
        first = told(result)
        assert row.gate in (first.get("rule"), first["sqlstate"])
        assert first.get("repair", {}).get("turns_left") == row.turns
        assert row.evidence in result.get_error_message()
        if row.answer is not None:
            assert told(agent.send(row.answer, extended))["halt"] == row.halts_on
    finally:
        agent.close()
