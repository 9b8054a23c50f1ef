"""Each halt that a rejection can name, over both protocols: what the agent reads, what the database keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from psycopg import pq

from policy.model import Halt
from tests.e2e.test_repairs import REPAIRING, Agent, both, told
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy

HALTING = (
    REPAIRING.replace("name: repairing", "name: halting")
    .replace("select: allow", "select: {decide: allow, repair: once}")
    .replace(
        "lock: allow}",
        "lock: allow,\n  ddl: {decide: reject, needs: approval},\n"
        "  maintenance: {decide: reject, needs: runbook}}",
    )
    + "rules: {unbounded-join: reject}\ncost: {max_rows: 20000}\n"
)

STOCK = "UPDATE products SET stok = 5 WHERE id = 3 AND sku = 'TEA-003'"
ITEMS = "SELECT o.id, i.quantity FROM orders o JOIN order_items i ON i.order_id = o.id"
BOUGHT = "SELECT o.id, o.status, c.name FROM orders o JOIN customers c ON c.id = o.customer_id"
OPEN = "WHERE o.status <> 'open' AND c.city <> 'York' AND o.id > 5 LIMIT 1000000"
WELCOMED = "INSERT INTO customers (name, email) VALUES ('Ann', 'ann@example.org')"


class Row(NamedTuple):
    """``first`` is refused, ``second`` halted; ``rule`` and ``sqlstate`` are of the second refusal."""

    halt: Halt
    first: str | None
    second: str
    rule: str = "repair-halted"
    sqlstate: str = "53400"


ROWS = (
    Row(Halt.CLASS_NOT_REPAIRABLE, None, "DELETE FROM orders", "delete-without-where", "42501"),
    Row(Halt.APPROVAL_REQUIRED, None, "DROP TABLE orders", "class-not-allowed", "42501"),
    Row(Halt.RUNBOOK_REQUIRED, None, "VACUUM orders", "class-not-allowed", "42501"),
    Row(Halt.UNCHANGED, STOCK, STOCK),
    Row(Halt.UNCHANGED, STOCK, STOCK.lower().replace("'tea-003'", "'TEA-003'") + " -- again"),
    Row(Halt.CLASS_CHANGED, STOCK, "DELETE FROM products WHERE id = 3 AND sku = 'TEA-003'"),
    Row(
        Halt.REPAIR_BUDGET_EXHAUSTED,
        STOCK,
        "UPDATE products SET stokk = 5 WHERE id = 3 AND sku = 'TEA-003'",
        "unknown-column",
        "42703",
    ),
    Row(Halt.PREDICATE_REMOVED, STOCK, "UPDATE products SET stock = 5 WHERE id = 3"),
    Row(Halt.PREDICATE_WEAKENED, STOCK, "UPDATE products SET stock = 5 WHERE id = 3 AND sku LIKE 'TEA%'"),
    Row(Halt.TAUTOLOGY, STOCK, "UPDATE products SET stock = 5 WHERE true"),
    Row(
        Halt.RELATIONS_CHANGED,
        "UPDATE products p SET stok = 5 FROM order_items i WHERE i.product_id = p.id AND p.id = 3",
        "UPDATE products p SET stock = 5 WHERE p.id = 3",
    ),
    Row(Halt.RELATIONS_CHANGED, "DELETE FROM ordrs WHERE id = 3", "DELETE FROM customers WHERE id = 3"),
    Row(
        Halt.RELATIONS_CHANGED,
        f"{BOUGHT} JOIN order_items i ON i.quantity > 0 {OPEN}",
        f"{BOUGHT} {OPEN}",
    ),
    Row(Halt.DISTINCT_FOR_LIMIT, ITEMS, ITEMS.replace("SELECT", "SELECT DISTINCT")),
    Row(
        Halt.DUMMY_LITERAL,
        WELCOMED,
        "INSERT INTO customers (name, email, city) VALUES ('Ann', 'ann@example.org', 'unknown')",
        "dummy-literal",
    ),
)
COUNTED = ("orders", "order_items", "products", "customers")


@pytest.fixture(scope="module")
def proxy(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("halts")
    with postgres.database() as database, run_proxy(database, folder, {"halting": HALTING}) as running:
        yield running


@pytest.fixture
def agent(proxy: RunningProxy) -> Iterator[Agent]:
    agent = Agent(proxy, name="halting")
    yield agent
    agent.close()


def kept(proxy: RunningProxy) -> list[object]:
    return [
        proxy.database.execute(f"SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) FROM {name} t")
        for name in COUNTED
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.halt)
@pytest.mark.parametrize("within", [False, True], ids=["idle", "transaction"])
@both
def test_each_halt_says_what_it_is_and_changes_nothing(
    proxy: RunningProxy, agent: Agent, row: Row, within: bool, extended: bool
) -> None:
    before = kept(proxy)
    if row.first is not None:
        opened = told(agent.send(row.first, extended))
        assert opened["decision"] == "reject"
        # What lacks a value is only watched for: no repair is offered.
        assert opened["repair"]["allowed"] is (row.halt is not Halt.DUMMY_LITERAL)
    if within:
        agent.send("BEGIN", extended)
    refused = told(agent.send(row.second, extended))
    assert (refused["halt"], refused["rule"], refused["sqlstate"]) == (row.halt, row.rule, row.sqlstate)
    assert refused["repair"] == {"allowed": False, "turns_left": 0, "keep": None}
    status = pq.TransactionStatus.INERROR if within else pq.TransactionStatus.IDLE
    assert agent.pg.transaction_status == status
    agent.send("ROLLBACK", extended)
    assert kept(proxy) == before


def test_every_halt_has_its_row() -> None:
    assert {row.halt for row in ROWS} | {Halt.SANDBOX_STALE} == set(Halt)


@pytest.mark.parametrize("within", [False, True], ids=["idle", "transaction"])
def test_a_null_that_is_bound_to_what_wants_a_value_is_one_that_is_written(
    proxy: RunningProxy, agent: Agent, within: bool
) -> None:
    insert = b"INSERT INTO customers (name, email, city) VALUES ($1, $2, $3)"
    before = kept(proxy)
    numbers = "SELECT last_value FROM pg_sequences WHERE sequencename LIKE 'customers%'"
    number = proxy.database.execute(numbers)
    if within:
        agent.send("BEGIN", True)
    refused = told(agent.pg.exec_params(insert, [b"Ann", b"ann@example.org", None]))
    assert (refused["rule"], refused["sqlstate"]) == ("insert-missing-not-null", "42501")
    assert refused["halt"] == Halt.CLASS_NOT_REPAIRABLE
    status = pq.TransactionStatus.INERROR if within else pq.TransactionStatus.IDLE
    assert agent.pg.transaction_status == status
    agent.send("ROLLBACK", True)
    made_up = told(agent.pg.exec_params(insert, [b"Ann", b"ann@example.org", b"unknown"]))
    assert (made_up["rule"], made_up["halt"]) == ("dummy-literal", Halt.DUMMY_LITERAL)
    assert (kept(proxy), proxy.database.execute(numbers)) == (before, number)
    agent.send("BEGIN", True)
    agent.pg.exec_params(insert, [b"Ann", b"ann@example.org", b"Cork"])
    assert agent.pg.transaction_status == pq.TransactionStatus.INTRANS
    agent.send("ROLLBACK", True)


@pytest.mark.parametrize(
    ("second", "halt"),
    [("3", None), (" 3 ", None), ("three", Halt.UNCHANGED)],
)
def test_values_that_fail_where_the_price_is_asked_may_be_mended(
    agent: Agent, second: str, halt: Halt | None
) -> None:
    update = b"UPDATE products SET stock = stock WHERE id = $1 AND sku = 'TEA-003'"
    failed = agent.pg.exec_params(update, [b"three"])
    assert failed.error_field(pq.DiagnosticField.SQLSTATE) == b"22P02"
    mended = agent.pg.exec_params(update, [second.encode()])
    assert told(mended).get("halt") == halt
    assert (mended.status == pq.ExecStatus.COMMAND_OK) is (halt is None)


@pytest.mark.parametrize("failing", ["'five'", "true", "stock || 1"])
@both
def test_a_repair_that_the_server_cannot_read_has_had_its_turn(
    agent: Agent, failing: str, extended: bool
) -> None:
    """Its Parse fails while its Bind is held for the price: what was read past is no other statement."""
    right = STOCK.replace("stok", "stock")
    assert told(agent.send(STOCK, extended))["repair"]["allowed"]
    failed = agent.send(right.replace("= 5", f"= {failing}"), extended)
    assert (failed.error_field(pq.DiagnosticField.SQLSTATE) or b"")[:2] in (b"22", b"42")
    refused = told(agent.send(right, extended))
    assert (refused["halt"], refused["sqlstate"]) == (Halt.REPAIR_BUDGET_EXHAUSTED, "53400")
