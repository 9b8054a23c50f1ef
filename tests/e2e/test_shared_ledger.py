"""Two proxies before one database with one ledger between them: a turn is one, whichever of them is asked."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_repairs import REPAIRING, Agent, both, ran, told
from tests.support.postgres import Database, Server
from tests.support.proxy import RunningProxy, run_proxy, wait_for
from tests.support.redis import PASSWORD, RedisServer, run_redis

WRONG = "UPDATE products SET stok = 5 WHERE id = 3 AND sku = 'TEA-003'"
RIGHT = WRONG.replace("stok", "stock")
POLICIES = {"repairing": REPAIRING, "homely": REPAIRING.replace("scope: application", "scope: connection")}


class Pair:
    """Two proxies that share a ledger."""

    def __init__(self, one: RunningProxy, other: RunningProxy) -> None:
        self.proxies = (one, other)
        self.database: Database = one.database

    def agents(self, name: str = "repairing") -> tuple[Agent, Agent]:
        """One agent, connected to each."""
        application = secrets.token_hex(8)
        one, other = (Agent(proxy, application, name=name) for proxy in self.proxies)
        return one, other


@contextlib.contextmanager
def run_pair(database: Database, folder: Path, **ledger: str) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        running = []
        for number in ("one", "other"):
            (folder / number).mkdir()
            proxy = run_proxy(
                database, folder / number, POLICIES, environment={"REDIS_PASSWORD": PASSWORD}, ledger=ledger
            )
            running.append(stack.enter_context(proxy))
        yield Pair(*running)


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def pair(
    request: pytest.FixtureRequest, postgres15: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    ledger = {"store": f"sqlite:{folder / 'ledger.db'}"}
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        ledger = {"store": server.url, "password_env": "REDIS_PASSWORD"}
    with postgres15.database() as database, run_pair(database, folder, **ledger) as running:
        yield running


@pytest.fixture
def agents(pair: Pair) -> Iterator[tuple[Agent, Agent]]:
    one, other = pair.agents()
    yield one, other
    one.close()
    other.close()


@both
def test_a_turn_spent_at_one_is_spent_at_the_other(agents: tuple[Agent, Agent], extended: bool) -> None:
    one, other = agents
    first = told(one.send(WRONG, extended))
    assert (first["rule"], first["repair"]["allowed"], first["repair"]["turns_left"]) == (
        "unknown-column",
        True,
        1,
    )
    wider = told(other.send(RIGHT.replace("id = 3", "id >= 3"), extended))
    assert (wider["sqlstate"], wider["halt"]) == ("53400", "predicate_weakened")
    for agent in agents:
        again = told(agent.send(RIGHT, extended))
        assert (again["sqlstate"], again["halt"]) == ("53400", "repair_budget_exhausted")


@both
def test_a_repair_that_passes_at_the_other_leaves_nothing_open(
    agents: tuple[Agent, Agent], extended: bool
) -> None:
    one, other = agents
    for first, second in ((one, other), (other, one)):
        assert told(first.send(WRONG, extended))["repair"]["allowed"]
        assert ran(first.send("SELECT id, stock FROM products LIMIT 5", extended))
        assert ran(second.send(RIGHT, extended))
        assert ran(first.send(RIGHT.replace("= 5", "= 6"), extended))


@both
def test_an_error_of_the_server_is_known_at_the_other(agents: tuple[Agent, Agent], extended: bool) -> None:
    one, other = agents
    wrong = "UPDATE products SET price = {} WHERE id = 7 AND sku = 'TEA-007'"
    assert told(one.send(wrong.format(-1), extended))["sqlstate"] == "23514"
    assert told(other.send(wrong.format(-1), extended))["halt"] == "unchanged"
    assert told(one.send(wrong.format(3), extended))["halt"] == "repair_budget_exhausted"


def test_a_prepared_statement_waits_for_the_ledger_as_any(agents: tuple[Agent, Agent]) -> None:
    """Behind a Bind that waits, the rest of a pipeline waits too, in its order."""
    one, other = agents
    assert told(one.send("UPDATE products SET stok = 9 WHERE id = 4 AND sku = 'TEA-004'", True))["repair"]
    with other.connection.pipeline():
        cursors = [other.connection.execute("SELECT %s::int", (n,), prepare=True) for n in range(20)]
        mended = other.connection.execute(
            "UPDATE products SET stock = 9 WHERE id = %s AND sku = %s RETURNING id", (4, "TEA-004")
        )
        cursors += [other.connection.execute("SELECT %s::int", (n,), prepare=True) for n in range(20, 40)]
    assert [cursor.fetchone() for cursor in cursors] == [(n,) for n in range(40)]
    assert mended.fetchone() == (4,)


def test_in_a_transaction_the_status_is_the_servers(agents: tuple[Agent, Agent]) -> None:
    one, other = agents
    one.send("BEGIN", False)
    one.send(WRONG, True)
    assert told(one.send("SELECT 1", False))["sqlstate"] == "25P02"
    assert ran(one.send("ROLLBACK", False))
    other.send("BEGIN", False)
    assert ran(other.send(RIGHT, True))
    assert ran(other.send("COMMIT", True))
    assert ran(one.send(RIGHT, False))


def test_of_many_workers_with_one_repair_one_has_the_turn(pair: Pair) -> None:
    application = secrets.token_hex(8)
    workers = [Agent(pair.proxies[n % 2], application) for n in range(12)]
    try:
        assert told(workers[0].send(WRONG, False))["repair"]["allowed"]
        with ThreadPoolExecutor(12) as pool:
            answers = [told(result) for result in pool.map(lambda each: each.send(RIGHT, True), workers)]
    finally:
        for worker in workers:
            worker.close()
    halted = [answer for answer in answers if answer["sqlstate"]]
    assert {answer["halt"] for answer in halted} <= {"repair_budget_exhausted"}
    # Once the repair has passed its refusal is closed, and what comes then is a statement of its own.
    assert len(halted) < len(workers)


def test_what_a_connection_keeps_to_itself_no_other_has_a_part_in(pair: Pair) -> None:
    one, other = pair.agents("homely")
    try:
        assert told(one.send(WRONG, False))["repair"]["allowed"]
        assert ran(other.send(RIGHT.replace("id = 3 AND ", ""), False))
        assert told(one.send(RIGHT.replace("id = 3 AND ", ""), False))["halt"] == "predicate_removed"
    finally:
        one.close()
        other.close()


def test_an_agent_that_goes_while_it_waits_leaves_the_proxy_well(pair: Pair) -> None:
    for _ in range(10):
        one, other = pair.agents()
        one.send(WRONG, False)
        other.pg.send_query(RIGHT.encode())
        other.pg.flush()
        other.close()
        one.close()
    one, other = pair.agents()
    assert ran(one.send("SELECT 1", False))
    one.close()
    other.close()
    for proxy in pair.proxies:
        assert not [entry for entry in proxy.log() if entry.get("level") == "error"]


# While the store does not answer ----------------------------------------------------------------------


def refused_for_the_store(answer: dict[str, Any]) -> bool:
    repair = {"allowed": False, "turns_left": 0, "keep": None}
    said = any("cannot be kept account of" in each["message"] for each in answer["violations"])
    return said and (answer["repair"], answer["halt"]) == (repair, "repair_budget_exhausted")


def test_while_the_store_is_down_no_repair_is_granted_and_work_goes_on(
    postgres15: Server, tmp_path: Path
) -> None:
    (tmp_path / "redis").mkdir()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(run_redis(tmp_path / "redis"))
        database = stack.enter_context(postgres15.database())
        pair = stack.enter_context(
            run_pair(database, tmp_path, store=server.url, password_env="REDIS_PASSWORD")
        )
        one, other = pair.agents()
        stack.callback(one.close)
        stack.callback(other.close)
        assert told(one.send(WRONG, False))["repair"]["allowed"]
        server.stop(keeping=True)

        started = time.monotonic()
        for extended, table in ((False, "products"), (True, "orders")):
            # What answers the refusal that this proxy told of: nobody knows whether its turn is left.
            answer = told(one.send(RIGHT, extended))
            assert (answer["sqlstate"], answer["rule"]) == ("53400", "repair-halted")
            assert answer["violations"][0]["message"].endswith("cannot be told now")
            assert ran(one.send("SELECT count(*) FROM products", extended))
            assert ran(one.send("UPDATE customers SET city = 'Leeds' WHERE id = 1", extended))
            fresh = told(other.send(f"DELETE FROM {table} WHERE idd = 9", extended))
            assert fresh["rule"] == "unknown-column"
            assert refused_for_the_store(fresh)
            assert not ran(other.send(f"DELETE FROM {table} WHERE id = 9", extended))
        for _ in range(50):
            assert ran(one.send("SELECT 1", True))
        assert time.monotonic() - started < 20
        failures = pair.proxies[0].logged("the ledger of repairs does not answer; no repair is granted")
        assert len(failures) == 1
        assert failures[0]["level"] == "error"
        assert PASSWORD not in pair.proxies[0].log_path.read_text()

        server.start()
        wait_for(lambda: ran(one.send(RIGHT, False)), 10)
        pair.proxies[0].logged("the ledger of repairs answers again")
        wait_for(lambda: told(other.send("DELETE FROM customers WHERE idd = 1", True))["repair"]["allowed"])


def test_a_locked_file_is_a_store_that_does_not_answer(postgres15: Server, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with postgres15.database() as database, run_pair(database, tmp_path, store=f"sqlite:{path}") as pair:
        one, other = pair.agents()
        assert ran(one.send("SELECT 1", False))
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        assert refused_for_the_store(told(one.send(WRONG, False)))
        assert ran(other.send("SELECT 1 FROM products LIMIT 1", True))
        holder.execute("ROLLBACK")
        holder.close()
        wait_for(lambda: told(one.send("DELETE FROM orders WHERE idd = 1", False))["repair"]["allowed"], 10)
        one.close()
        other.close()


def test_the_proxy_starts_without_its_store(postgres15: Server, tmp_path: Path) -> None:
    nowhere = "redis://127.0.0.1:1/0"
    with postgres15.database() as database, run_pair(database, tmp_path, store=nowhere) as pair:
        one, other = pair.agents()
        assert ran(one.send("SELECT 1", False))
        assert refused_for_the_store(told(other.send(WRONG, True)))
        one.close()
        other.close()
