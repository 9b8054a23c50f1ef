"""Repairs of many at once: random dialogues, workers side by side, comparisons beside one another."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from policy import ledger as ledgers
from policy.ledger import AT_ONCE, Book, MemoryLedger
from policy.ledger_redis import RedisLedger
from policy.ledger_sqlite import SqliteLedger
from policy.lineage import Considered, Halted, NotAnAnswer, Outcome, Repair
from policy.model import Halt
from tests.policy.repairing import made
from tests.policy.talking import AWAY, HOME, LOOKS, MENDED, SELECT, SELECT_MENDED, UPDATE, Talk, another

# Random dialogues ------------------------------------------------------------------------------------

TABLES: list[tuple[str, str, str, list[str]]] = [
    ("inventory", "onhand", "on_hand", ["product_id", "warehouse", "bin"]),
    ("coupons", "usd", "used", ["code", "percent", "owner"]),
    ("orders", "stauts", "status", ["id", "customer_id", "channel"]),
    ("employees", "titel", "title", ["id", "office", "team"]),
]
RESPELL: list[Callable[[str], str]] = [
    lambda sql: sql,
    lambda sql: sql.replace(" WHERE ", "\n  WHERE\t"),
    lambda sql: f"-- again\n{sql}",
    lambda sql: f"{sql} /* {{trace: 9}} */",
    lambda sql: sql.replace("UPDATE", "update").replace("WHERE", "where").replace("AND", "and"),
    lambda sql: sql.replace(" = ", "="),
]
WIDEN: list[Callable[[str], str]] = [
    lambda sql: sql.rpartition(" AND ")[0],
    lambda sql: sql.partition(" WHERE ")[0],
    lambda sql: f"{sql} OR true",
    lambda sql: sql.replace(" AND ", " OR "),
    lambda sql: f"{sql.partition(' WHERE ')[0]} WHERE 1 = 1",
]


def test_random_dialogues() -> None:
    """No look around is halted, every honest repair passes, no dishonest one does, and there is no third
    try."""
    chance = random.Random(20250117)
    falsely_halted = falsely_passed = 0
    for number in range(1_000):
        table, wrong, right, keys = chance.choice(TABLES)
        pinned = " AND ".join(f"{key} = '{key}{chance.randrange(9)}'" for key in chance.sample(keys, 2))
        first = f"UPDATE {table} SET {wrong} = 'v{chance.randrange(9)}' WHERE {pinned}"
        second = first.replace(wrong, right)
        talk = Talk(MemoryLedger(), scope=f"agent {number}")
        talk.refuse(first, wrong, (right,))
        for _ in range(chance.randrange(5)):
            look = chance.choice(LOOKS)
            if f"UPDATE {table}" not in look:
                falsely_halted += not talk.passes(look, on=chance.choice([HOME, AWAY]))
        if chance.random() < 0.5:
            considered = talk.say(chance.choice(RESPELL)(second), on=chance.choice([HOME, AWAY]))
            falsely_halted += not isinstance(considered, Repair)
            if isinstance(considered, Repair):
                talk.ledger.settled(considered, Outcome.PASSED, talk.now)
                falsely_halted += talk.ledger.has_open(talk.scope)
        else:
            falsely_passed += talk.halt(chance.choice(WIDEN)(second)) is None
            falsely_passed += talk.halt(second) is not Halt.REPAIR_BUDGET_EXHAUSTED
    assert (falsely_halted, falsely_passed) == (0, 0)


# Workers ---------------------------------------------------------------------------------------------


def test_fifty_workers_mend_fifty_rows(talk: Talk) -> None:
    rows = [(n, f"w{n % 3}") for n in range(50)]
    text = "UPDATE inventory SET {} = 1 WHERE product_id = {} AND warehouse = '{}'"
    for number, row in enumerate(rows):
        talk.refuse(text.format("onhand", *row), "onhand", ("on_hand",), on=f"worker {number}")
    random.Random(7).shuffle(rows)
    for number, warehouse in rows:
        sql = text.format("on_hand", number, warehouse)
        repair = talk.repair(sql, on=f"worker {number}")
        talk.ledger.settled(repair, Outcome.PASSED, talk.now)
    assert not talk.ledger.has_open("agent")


def test_of_fifty_workers_with_one_repair_one_has_the_turn(
    talk: Talk, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    second = made(MENDED)

    def store() -> Book:
        if isinstance(talk.ledger, SqliteLedger):
            return SqliteLedger(tmp_path / "ledger.db")
        if isinstance(talk.ledger, RedisLedger):
            return another(request.getfixturevalue("redis_server"))
        return talk.ledger

    stores = [store() for _ in range(10)]

    def ask(worker: int) -> Considered:
        return stores[worker % 10].consider("agent", f"worker {worker}", second, talk.now)

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, range(50)))
    assert sum(isinstance(answer, Repair) for answer in answers) == 1
    refusals = [answer.halt for answer in answers if isinstance(answer, Halted)]
    assert refusals == [Halt.REPAIR_BUDGET_EXHAUSTED] * 49
    for each in stores:
        if isinstance(each, SqliteLedger | RedisLedger):
            each.close()


# Comparing beside one another ----------------------------------------------------------------------------


def test_a_turn_is_taken_once_by_those_who_compare_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has its answer while the first still compares."""
    talk = Talk(MemoryLedger())
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    second: list[Considered] = []
    weigh = ledgers.weigh

    def interrupted(*of: Any) -> Any:
        if not second:
            second.append(NotAnAnswer())
            second[0] = talk.say(MENDED, on=HOME)
        return weigh(*of)

    monkeypatch.setattr(ledgers, "weigh", interrupted)
    first = talk.say(MENDED)
    assert isinstance(second[0], Repair)
    assert first == Halted(Halt.REPAIR_BUDGET_EXHAUSTED, second[0].lineage)


def test_what_is_opened_and_settled_while_another_compares_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(MemoryLedger())
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    talk.refuse(SELECT, "totl", ("total",), on=AWAY)
    under_way = talk.repair(SELECT_MENDED, on=AWAY)
    weigh = ledgers.weigh

    def interrupted(*of: Any) -> Any:
        monkeypatch.setattr(ledgers, "weigh", weigh)
        talk.ledger.settled(under_way, Outcome.PASSED, talk.now)
        talk.refuse("DELETE FROM orders WHERE idd = 4", "idd", ("id",))
        return weigh(*of)

    monkeypatch.setattr(ledgers, "weigh", interrupted)
    talk.repair(MENDED)
    assert talk.passes(SELECT_MENDED, on=AWAY), "settled, and not brought back"
    talk.repair("DELETE FROM orders WHERE id = 4")


def test_what_takes_time_is_told_by_size_and_by_what_it_is_compared_with() -> None:
    talk = Talk(MemoryLedger())
    assert not talk.ledger.takes_time(talk.scope, AT_ONCE)
    assert talk.ledger.takes_time(talk.scope, AT_ONCE + 1)
    for n in range(20):
        talk.refuse(f"SELECT totl FROM orders WHERE id = {n}", "totl")
    assert talk.ledger.takes_time(talk.scope, 60)
    assert not talk.ledger.takes_time("another", 60)
