"""The one repair over the wire: what answers a refusal, what it must keep, and when no turn is left."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from tests.support.postgres import Database, Server
from tests.support.proxy import WRITER, RunningProxy, run_proxy

REPAIRING = (
    WRITER.replace("name: writer", "name: repairing")
    .replace("insert: allow", "insert: {decide: allow, repair: once}")
    .replace("update: allow", "update: {decide: allow, repair: once}")
    .replace("delete: allow", "delete: {decide: allow, repair: once}")
    + "repair: {turns: 1, window: 10m, scope: application}\n"
)
VAULTS = """
CREATE TABLE vault (id int, note text);
CREATE TABLE vault_copy (id int, note text);
GRANT ALL ON vault_copy TO shop_app;
CREATE TABLE kept (id int, n int) PARTITION BY RANGE (id);
CREATE TABLE kept_low PARTITION OF kept FOR VALUES FROM (0) TO (100);
CREATE TABLE kept_high PARTITION OF kept FOR VALUES FROM (100) TO (200);
CREATE VIEW kept_seen AS SELECT id AS number, n FROM kept;
GRANT ALL ON kept, kept_low, kept_high, kept_seen TO shop_app;
"""


@pytest.fixture(scope="module")
def proxy(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("repairs")
    limited = REPAIRING.replace("name: repairing", "name: limited") + "limits: {affected_rows: 3}\n"
    twice = REPAIRING.replace("name: repairing", "name: twice").replace("turns: 1", "turns: 2")
    hasty = REPAIRING.replace("name: repairing", "name: hasty").replace(
        "select: allow", "select: {decide: allow, repair: once}"
    )
    policies = {
        "repairing": REPAIRING,
        "limited": limited,
        "twice": twice,
        "hasty": hasty + "limits: {statement_timeout: 200ms}\n",
    }
    with postgres.database() as database:
        database.execute(VAULTS)
        with run_proxy(database, folder, policies) as running:
            yield running


@pytest.fixture
def database(proxy: RunningProxy) -> Database:
    return proxy.database


class Agent:
    """One connection whose application name is the scope of its turns."""

    def __init__(
        self, proxy: RunningProxy, application: str | None = None, *, name: str = "repairing"
    ) -> None:
        self.application = application or secrets.token_hex(8)
        parameters = proxy.parameters(name, application_name=self.application)
        self.connection = psycopg.connect(**parameters, autocommit=True)
        self.pg: PGconn = self.connection.pgconn

    def send(self, sql: str, extended: bool, *values: str) -> PGresult:
        if extended or values:
            return self.pg.exec_params(sql.encode(), [value.encode() for value in values] or None)
        return self.pg.exec_(sql.encode())

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def agent(proxy: RunningProxy) -> Iterator[Agent]:
    agent = Agent(proxy)
    yield agent
    agent.close()


@pytest.fixture
def twice(proxy: RunningProxy) -> Iterator[Agent]:
    agent = Agent(proxy, name="twice")
    yield agent
    agent.close()


@pytest.fixture
def limited(proxy: RunningProxy) -> Iterator[Agent]:
    agent = Agent(proxy, name="limited")
    yield agent
    agent.close()


def told(result: PGresult) -> dict[str, Any]:
    """The Detail of a rejection, where it is one, with the SQLSTATE."""
    fields = pq.DiagnosticField
    text = (result.error_field(fields.MESSAGE_DETAIL) or b"").decode()
    detail = json.loads(text) if text.startswith("{") else {}
    return {**detail, "sqlstate": (result.error_field(fields.SQLSTATE) or b"").decode()}


def ran(result: PGresult) -> bool:
    return result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


both = pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])


@both
def test_a_repair_that_keeps_everything_passes_once(agent: Agent, extended: bool) -> None:
    first = told(agent.send("UPDATE products SET stok = 5 WHERE id = 3", extended))
    assert (first["sqlstate"], first["rule"], first["repair"]["allowed"]) == ("42703", "unknown-column", True)
    assert first["repair"]["turns_left"] == 1
    assert first["repair"]["keep"]["relations"] == ["public.products"]
    assert ran(agent.send("SELECT id, stock FROM products LIMIT 5", extended))
    assert ran(agent.send("UPDATE products SET stock = 5 WHERE id = 3", extended))
    assert ran(agent.send("UPDATE products SET stock = 6 WHERE id = 4", extended))


@pytest.mark.parametrize(
    ("first", "second", "is_answer"),
    [
        ("kept", "kept_low", True),
        ("kept_low", "kept", True),
        ("kept", "kept_seen", True),
        ("kept_seen", "kept_low", True),
        ("kept_low", "kept_high", False),
        ("kept_high", "products", False),
    ],
)
def test_a_write_by_another_name_of_the_same_rows_is_the_answer(
    agent: Agent, first: str, second: str, is_answer: bool
) -> None:
    key, column = ("number" if second == "kept_seen" else "id"), "stock" if second == "products" else "n"
    assert told(agent.send(f"UPDATE {first} SET m = 1 WHERE n = 3", False))["sqlstate"] == "42703"
    answer = agent.send(f"UPDATE {second} SET {column} = 1 WHERE {key} = -1", False)
    if is_answer:
        assert told(answer)["halt"] == "relations_changed"
    else:
        assert ran(answer)


@pytest.mark.parametrize(
    ("second", "halt"),
    [
        ("UPDATE products SET stok = 5 WHERE id = 3 AND sku = 'TEA-003'", "unchanged"),
        ("UPDATE products SET stock = 5 WHERE id = 3", "predicate_removed"),
        ("UPDATE products SET stock = 5 WHERE id >= 3 AND sku = 'TEA-003'", "predicate_weakened"),
        ("DELETE FROM products WHERE id = 3 AND sku = 'TEA-003'", "class_changed"),
        ("UPDATE products SET stock = 5 WHERE true", "tautology"),
    ],
)
@both
def test_a_repair_that_does_not_is_halted(
    agent: Agent, database: Database, second: str, halt: str, extended: bool
) -> None:
    before = database.execute("SELECT sum(stock), count(*) FROM products")
    agent.send("UPDATE products SET stok = 5 WHERE id = 3 AND sku = 'TEA-003'", extended)
    refused = told(agent.send(second, extended))
    assert (refused["halt"], refused["sqlstate"]) == (halt, "53400")
    assert refused["repair"] == {"allowed": False, "turns_left": 0, "keep": None}
    right = told(agent.send("UPDATE products SET stock = 5 WHERE id = 3 AND sku = 'TEA-003'", extended))
    assert (right["halt"], right["rule"]) == ("repair_budget_exhausted", "repair-halted")
    assert database.execute("SELECT sum(stock), count(*) FROM products") == before


@both
def test_an_error_of_the_server_opens_a_turn_and_a_second_one_spends_it(agent: Agent, extended: bool) -> None:
    wrong = "UPDATE products SET price = {} WHERE id = 7"
    assert told(agent.send(wrong.format(-1), extended))["sqlstate"] == "23514"
    assert told(agent.send(wrong.format(-2), extended))["sqlstate"] == "23514"
    assert told(agent.send(wrong.format(3), extended))["halt"] == "repair_budget_exhausted"


@both
def test_an_error_says_how_many_repairs_it_leaves(agent: Agent, extended: bool) -> None:
    wrong = "UPDATE products SET stock = nosuch({}) WHERE id = 7"
    first = told(agent.send(wrong.format("1::int, 'a'::date"), extended))
    assert (first["sqlstate"], first["repair"]["turns_left"]) == ("42883", 1)
    again = told(agent.send(wrong.format("'a'::text"), extended))
    assert (again["sqlstate"], again["repair"]["turns_left"]) == ("42883", 0)


@both
def test_a_policy_may_grant_two_turns_and_no_third(twice: Agent, database: Database, extended: bool) -> None:
    first = told(twice.send("UPDATE products SET stok = 5 WHERE idd = 3", extended))
    assert (first["repair"]["allowed"], first["repair"]["turns_left"]) == (True, 2)
    second = told(twice.send("UPDATE products SET stock = 5 WHERE iid = 3", extended))
    assert (second["rule"], second["repair"]["allowed"], second["halt"]) == ("unknown-column", True, None)
    assert second["repair"]["turns_left"] == 1
    third = told(twice.send("UPDATE products SET stock = -5 WHERE id = 3", extended))
    assert (third["sqlstate"], third.get("repair", {}).get("turns_left", 0)) == ("23514", 0)
    fourth = told(twice.send("UPDATE products SET stock = 7171 WHERE id = 3", extended))
    assert fourth["halt"] == "repair_budget_exhausted"
    assert database.execute("SELECT count(*) FROM products WHERE stock = 7171") == [(0,)]


def test_of_two_turns_none_is_left_for_something_else(twice: Agent) -> None:
    twice.send("UPDATE products SET stok = 5 WHERE id = 3", False)
    wider = told(twice.send("UPDATE products SET stock = 5 WHERE id > 3", False))
    assert (wider["halt"], wider["repair"]["turns_left"]) == ("predicate_weakened", 0)
    right = told(twice.send("UPDATE products SET stock = 5 WHERE id = 3", False))
    assert right["halt"] == "repair_budget_exhausted"


def test_a_bound_value_may_be_the_repair(agent: Agent) -> None:
    sql = "UPDATE products SET stock = $1::int WHERE id = 8"
    assert told(agent.send(sql, True, "many"))["sqlstate"] == "22P02"
    assert ran(agent.send(sql, True, "9"))


def test_the_same_statement_with_other_values_is_the_work_of_others(
    proxy: RunningProxy, agent: Agent
) -> None:
    sql = "UPDATE products SET price = $1::numeric WHERE id = $2 AND sku = $3"
    assert told(agent.send(sql, True, "-1", "7", "TEA-007"))["sqlstate"] == "23514"
    other = Agent(proxy, agent.application)
    try:
        for row in ("8", "9"):
            assert ran(other.send(sql, True, "3", row, f"TEA-00{row}"))
        # A worker's own failure is no answer either: it has a turn of its own.
        for price, failed in (("-2", "23514"), ("3", "")):
            assert told(other.send(sql, True, price, "11", "TEA-011"))["sqlstate"] == failed
        # Of all of them only the same row is the same statement: this was its repair.
        again = "UPDATE products SET price = -1 WHERE id = 7 AND sku = 'TEA-007'"
        assert told(other.send(again, False))["sqlstate"] == "23514"
    finally:
        other.close()
    assert told(agent.send(sql, True, "3", "7", "TEA-007"))["halt"] == "repair_budget_exhausted"


def test_binary_values_are_the_literals_they_stand_for(proxy: RunningProxy, agent: Agent) -> None:
    """Also where Parse leaves their types to the server."""
    wrong = "UPDATE products SET price = -1 WHERE id = 3 AND sku = 'TEA-003'"
    for expected in ("23514", "53400"):
        assert told(agent.send(wrong, False))["sqlstate"] == expected
    sql = b"UPDATE products SET price = -1 WHERE id = $1 AND sku = $2"
    other = Agent(proxy, agent.application)
    try:
        for types in (None, [23, 25]):
            values = [(3).to_bytes(4, "big"), b"TEA-003"]
            answer = told(other.pg.exec_params(sql, values, types, [1, 1]))
            assert answer["halt"] == "repair_budget_exhausted"
    finally:
        other.close()


SLOW = (
    "SELECT p.id FROM products p JOIN order_items i ON i.product_id = p.id "
    "WHERE p.id = 3 AND p.sku = 'TEA-003' AND pg_sleep(1) IS NOT NULL"
)


@both
def test_what_ran_out_of_its_time_keeps_its_tables(proxy: RunningProxy, extended: bool) -> None:
    hasty = Agent(proxy, name="hasty")
    try:
        for _ in range(2):
            assert told(hasty.send(SLOW, extended))["sqlstate"] == "57014"
        assert ran(hasty.send("SELECT p.id, p.price FROM products p WHERE p.id = 3", extended))
        dropped = SLOW.replace("JOIN order_items i ON i.product_id = p.id ", "")
        refused = told(hasty.send(dropped, extended))
        assert (refused["sqlstate"], refused["halt"]) == ("53400", "relations_changed")
    finally:
        hasty.close()


@both
def test_what_the_role_may_not_touch_is_not_swapped(proxy: RunningProxy, extended: bool) -> None:
    hasty = Agent(proxy, name="hasty")
    try:
        for first in ("DELETE FROM vault WHERE note = 'x'", "SELECT v.id FROM vault v WHERE v.note = 'x'"):
            assert told(hasty.send(first, extended))["sqlstate"] == "42501"
            assert ran(hasty.send("SELECT count(*) FROM vault_copy", extended))
            swapped = told(hasty.send(first.replace("vault", "vault_copy"), extended))
            assert (swapped["sqlstate"], swapped["halt"]) == ("53400", "relations_changed")
    finally:
        hasty.close()


def test_neither_protocol_nor_spelling_nor_a_new_connection_gains_a_turn(
    proxy: RunningProxy, agent: Agent
) -> None:
    agent.send("DELETE FROM products WHERE skew = 'TEA-009'", False)
    spelt = "delete /* again */ from only public.products p where p.skew = 'TEA-009'"
    assert told(agent.send(spelt, True))["halt"] in ("unchanged", "relations_changed", "predicate_weakened")
    other = Agent(proxy, agent.application)
    try:
        assert told(other.send("DELETE FROM products WHERE skew = 'TEA-009'", False))["halt"] is not None
        assert not ran(other.send("DELETE FROM products WHERE sku = 'TEA-009'", True))
    finally:
        other.close()
    stranger = Agent(proxy)
    try:
        first = told(stranger.send("DELETE FROM products WHERE skew = 'TEA-009'", False))
        assert first["repair"]["allowed"]
    finally:
        stranger.close()


def test_a_refusal_for_its_shape_opens_no_turn(agent: Agent) -> None:
    first = told(agent.send("DELETE FROM products", False))
    assert (first["rule"], first["repair"]["allowed"]) == ("delete-without-where", False)
    again = told(agent.send("DELETE FROM products", True))
    assert (again["rule"], again["halt"]) == ("delete-without-where", "class_not_repairable")


def test_in_a_transaction_the_status_is_the_servers(agent: Agent) -> None:
    agent.send("BEGIN", False)
    agent.send("UPDATE products SET stok = 5 WHERE id = 3", False)
    assert agent.pg.transaction_status == pq.TransactionStatus.INERROR
    agent.send("ROLLBACK", False)
    agent.send("BEGIN", False)
    assert ran(agent.send("UPDATE products SET stock = 5 WHERE id = 3", True))
    assert ran(agent.send("COMMIT", False))
    assert agent.pg.transaction_status == pq.TransactionStatus.IDLE


@both
def test_a_write_that_went_over_its_limit_may_be_narrowed_once(
    limited: Agent, database: Database, extended: bool
) -> None:
    before = database.execute("SELECT count(*) FROM products WHERE stock = 77")
    first = told(limited.send("UPDATE products SET stock = 77 WHERE price > 0", extended))
    assert (first["rule"], first["repair"]["allowed"]) == ("affected-rows-over-limit", True)
    again = told(limited.send("UPDATE products SET stock = 77 WHERE price > 0 AND stock >= 0", extended))
    assert (again["rule"], again["halt"]) == ("affected-rows-over-limit", "repair_budget_exhausted")
    assert not again["repair"]["allowed"]
    spent = told(limited.send("UPDATE products SET stock = 77 WHERE price > 0 AND id = 1", extended))
    assert spent["halt"] == "repair_budget_exhausted"
    assert database.execute("SELECT count(*) FROM products WHERE stock = 77") == before
