"""An adversary over the wire: fifty ways to a second turn, in both protocols and on other connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.test_repairs import REPAIRING, Agent, both, ran, told
from tests.policy.talking import A_SECOND_TURN, MENDED, PARAMETERS, UPDATE
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy, wait_for

RECOGNISED = 33
"""Ways from the start of the list that are the same statement in another spelling."""
TABLE = """
CREATE TABLE inventory (product_id int, warehouse text, on_hand int CHECK (on_hand < 40), bin text);
INSERT INTO inventory VALUES (5, 'leeds', 1), (6, 'leeds', 1), (5, 'york', 1);
GRANT ALL ON inventory TO shop_app;
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE inv%'"
ROWS = "SELECT product_id, warehouse, on_hand, bin FROM inventory ORDER BY 1, 2"


@pytest.fixture(scope="module")
def proxy(postgres15: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with postgres15.database() as database:
        database.execute(TABLE)
        merging = REPAIRING.replace("copy_in: allow", "copy_in: allow, merge: allow")
        with run_proxy(database, tmp_path_factory.mktemp("turns"), {"repairing": merging}) as running:
            yield running


@pytest.fixture
def spent(proxy: RunningProxy) -> Iterator[Agent]:
    """An agent whose repair has failed, in the server's eyes."""
    agent = Agent(proxy)
    assert told(agent.send(UPDATE, False))["repair"]["turns_left"] == 1
    assert told(agent.send(MENDED, True))["sqlstate"] == "23514"
    yield agent
    agent.close()


def is_spent(answer: dict[str, Any]) -> bool:
    return (answer["sqlstate"], answer.get("halt")) == ("53400", "repair_budget_exhausted")


@both
def test_on_the_same_connection(proxy: RunningProxy, spent: Agent, extended: bool) -> None:
    before = proxy.database.execute(ROWS)
    for sql in A_SECOND_TURN:
        answer = told(spent.send(sql, extended))
        assert is_spent(answer), (sql, answer)
    for sql, values in PARAMETERS:
        if values:
            assert is_spent(told(spent.send(sql, True, *map(str, values)))), sql
    assert proxy.database.execute(ROWS) == before


@both
def test_on_another_connection(proxy: RunningProxy, spent: Agent, extended: bool) -> None:
    before = proxy.database.execute(ROWS)
    other = Agent(proxy, spent.application)
    for number, sql in enumerate(A_SECOND_TURN[:RECOGNISED]):
        if number % 8 == 0:
            other.close()
            other = Agent(proxy, spent.application)
        assert is_spent(told(other.send(sql, extended))), sql
    other.close()
    assert proxy.database.execute(ROWS) == before


def test_a_connection_that_is_cut_takes_its_turn_along(proxy: RunningProxy) -> None:
    """Whether what was cut off has run nobody can say: whoever comes back has no turn of his own."""
    agent = Agent(proxy)
    agent.send(UPDATE.replace("44", "34"), False)
    mended = MENDED.replace("44", "34")
    with psycopg.connect(proxy.database.dsn()) as holder:
        holder.execute("SELECT 1 FROM inventory FOR UPDATE")
        agent.pg.send_query(mended.encode())
        agent.pg.flush()
        wait_for(lambda: proxy.database.execute(WAITING) == [(1,)])
        with socket.socket(fileno=os.dup(agent.pg.socket)) as cut:
            cut.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: proxy.database.execute(WAITING) == [(0,)])
    before = proxy.database.execute(ROWS)
    again = Agent(proxy, agent.application)
    for sql in (mended, mended.lower(), mended.replace("product_id = 5", "5 = product_id")):
        assert is_spent(told(again.send(sql, True))), sql
    assert proxy.database.execute(ROWS) == before
    again.close()
    agent.close()


def test_prepared_before_and_executed_after(proxy: RunningProxy) -> None:
    """Neither a statement that the server has already, nor SQL's EXECUTE, nor DEALLOCATE gains a turn."""
    agent = Agent(proxy)
    mended = MENDED.replace("44", "34")
    assert ran(agent.send(f"PREPARE p AS {mended}", False))
    agent.pg.prepare(b"q", mended.encode())
    agent.send(UPDATE, False)
    assert told(agent.send(MENDED, False))["sqlstate"] == "23514"
    before = proxy.database.execute(ROWS)
    assert is_spent(told(agent.pg.exec_prepared(b"q", [])))
    for extended in (False, True):
        assert is_spent(told(agent.send("EXECUTE p", extended)))
    agent.send("DEALLOCATE p", False)
    assert is_spent(told(agent.send(f"PREPARE p AS {mended}", False)))
    agent.send("DISCARD ALL", False)
    assert is_spent(told(agent.send(mended, True)))
    agent.send("BEGIN", False)
    assert is_spent(told(agent.send(mended, False)))
    agent.send("ROLLBACK", False)
    assert proxy.database.execute(ROWS) == before
    agent.close()
