"""Turns of repairs, over every store: dialogues, explorations between, workers side by side, an adversary."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policy import ledger as ledgers
from policy.decision import Reject, Situation, decide, refuse
from policy.dialogue import Dialogue
from policy.facts import QueryString
from policy.ledger import AT_ONCE, MAX_LINEAGES, Book, LedgerUnavailableError, MemoryLedger
from policy.ledger_redis import RedisLedger
from policy.ledger_sqlite import SqliteLedger
from policy.likeness import recognisable
from policy.lineage import (
    TOO_SLOW,
    Again,
    CloseOut,
    Considered,
    Ending,
    Halted,
    Lineage,
    NotAnAnswer,
    Outcome,
    Repair,
    from_json,
    may_open,
    outcome_of,
    scope_key,
    to_json,
    watches,
)
from policy.model import Halt, RepairRules, RepairScope, StatementClass
from policy.parse import parse
from policy.rejection import DO_NOT_RETRY, reject
from policy.repair import Attempt, Finding
from policy.rules import repair_halted
from policy.sandbox import Tried
from policy.terms import Parameter
from tests.policy.repairing import NAMES, found, made, refused
from tests.policy.rules.judging import WRITER, policy_of
from tests.support.redis import PASSWORD, RedisServer

RULES = RepairRules(turns=1, window_s=600.0)
HOME = "connection 1"
AWAY = "connection 2"


class Talk:
    """One agent's statements before a ledger, by a clock that only it turns."""

    def __init__(self, ledger: Book, scope: str = "agent", rules: RepairRules = RULES) -> None:
        self.ledger = ledger
        self.scope = scope
        self.rules = rules
        self.now = 1_000.0

    def refuse(
        self,
        sql: str,
        at: str | None = None,
        offered: tuple[str, ...] = (),
        *,
        on: str = HOME,
        sqlstate: str = "42703",
        parameters: tuple[Parameter, ...] = (),
    ) -> None:
        first, finding = refused(sql, at, offered, sqlstate=sqlstate, parameters=parameters)
        self.ledger.open(self.scope, on, first, finding, now=self.now, rules=self.rules)

    def say(self, sql: str, *parameters: Parameter, on: str = HOME) -> Considered:
        self.now += 1
        return self.ledger.consider(self.scope, on, made(sql, *parameters), self.now)

    def passes(self, sql: str, on: str = HOME) -> bool:
        return self.say(sql, on=on) == NotAnAnswer()

    def halt(self, sql: str, *parameters: Parameter, on: str = HOME) -> Halt | None:
        considered = self.say(sql, *parameters, on=on)
        return considered.halt if isinstance(considered, Halted) else None

    def repair(self, sql: str, *parameters: Parameter, on: str = HOME) -> Repair:
        considered = self.say(sql, *parameters, on=on)
        assert isinstance(considered, Repair), considered
        return considered


@pytest.fixture(params=["memory", "sqlite", "redis"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Book]:
    store: SqliteLedger | RedisLedger
    if request.param == "memory":
        yield MemoryLedger()
        return
    if request.param == "sqlite":
        store = SqliteLedger(tmp_path / "ledger.db")
    else:
        store = another(request.getfixturevalue("redis_server"))
        request.getfixturevalue("redis_server").client.flushall()
    yield store
    store.close()


def another(server: RedisServer) -> RedisLedger:
    return RedisLedger(server.url, PASSWORD)


@pytest.fixture
def talk(ledger: Book) -> Talk:
    return Talk(ledger)


UPDATE = "UPDATE inventory SET onhand = 44 WHERE product_id = 5 AND warehouse = 'leeds'"
MENDED = "UPDATE inventory SET on_hand = 44 WHERE product_id = 5 AND warehouse = 'leeds'"
SELECT = (
    "SELECT o.id, o.totl, c.name FROM orders o JOIN customers c ON c.id = o.customer_id "
    "WHERE o.status = 'open'"
)
SELECT_MENDED = SELECT.replace("totl", "total")


# Dialogues -------------------------------------------------------------------------------------------


def test_a_repair_that_passes_leaves_nothing_open(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    assert talk.ledger.has_open("agent")
    assert not talk.ledger.has_open("another")
    repair = talk.repair(MENDED)
    record = talk.ledger.settled(repair, Outcome.PASSED, talk.now)
    assert record is not None
    assert (record.halt, record.turns, record.reasons) == (None, 1, ("42703",))
    assert record.statement_class is StatementClass.UPDATE
    assert (record.ending, record.scope) == (Ending.REPAIRED, talk.scope)
    assert not talk.ledger.has_open("agent")
    assert talk.passes("UPDATE inventory SET on_hand = 3 WHERE product_id = 2 AND warehouse = 'leeds'")


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REJECTED])
def test_a_repair_that_fails_is_the_last(talk: Talk, outcome: Outcome) -> None:
    talk.refuse(UPDATE, "onhand")
    record = talk.ledger.settled(talk.repair(MENDED.replace("on_hand", "stock")), outcome, talk.now)
    assert record is not None
    assert record.halt is Halt.REPAIR_BUDGET_EXHAUSTED
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
    assert talk.halt("DELETE FROM inventory WHERE product_id = 1") is Halt.REPAIR_BUDGET_EXHAUSTED
    assert talk.passes("UPDATE coupons SET used = 1 WHERE code = 'A'")
    assert talk.passes("SELECT * FROM inventory LIMIT 5")
    talk.now += RULES.window_s
    assert talk.passes(MENDED)


@pytest.mark.parametrize(
    ("second", "halt"),
    [
        (UPDATE, Halt.UNCHANGED),
        ("UPDATE inventory SET on_hand = 44 WHERE product_id = 5", Halt.PREDICATE_REMOVED),
        (MENDED.replace("= 5", ">= 5"), Halt.PREDICATE_WEAKENED),
        ("UPDATE inventory SET on_hand = 44", Halt.PREDICATE_REMOVED),
        ("UPDATE inventory SET on_hand = 44 WHERE 1 = 1", Halt.TAUTOLOGY),
        ("DELETE FROM inventory WHERE product_id = 5 AND warehouse = 'leeds'", Halt.CLASS_CHANGED),
        ("INSERT INTO inventory (on_hand) VALUES (44)", Halt.CLASS_CHANGED),
        (
            "WITH x AS (DELETE FROM inventory WHERE product_id = 5 RETURNING 1) SELECT * FROM x",
            Halt.CLASS_CHANGED,
        ),
        (
            "UPDATE inventory SET on_hand = 44 FROM orders WHERE product_id = 5 AND warehouse = 'leeds'",
            Halt.RELATIONS_CHANGED,
        ),
    ],
)
def test_the_next_write_on_the_target_is_the_answer(talk: Talk, second: str, halt: Halt) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    considered = talk.say(second)
    assert isinstance(considered, Halted)
    assert considered.halt is halt
    assert considered.record is not None
    assert (considered.record.halt, considered.record.turns) == (halt, 1)
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED


def test_an_unknown_target_is_answered_by_the_next_write_of_the_class(talk: Talk) -> None:
    talk.refuse("DELETE FROM shipment WHERE id = 3", "shipment", ("shipments",), sqlstate="42P01")
    assert talk.passes("UPDATE orders SET status = 'paid' WHERE id = 3")
    assert talk.passes("SELECT * FROM shipments WHERE id = 3")
    assert talk.halt("DELETE FROM coupons WHERE code = 'CODE3'") is Halt.RELATIONS_CHANGED
    exhausted = Halt.REPAIR_BUDGET_EXHAUSTED
    assert talk.halt("DELETE FROM coupons WHERE code = 'CODE4'") is exhausted
    assert talk.halt("DELETE FROM shipments WHERE id = 3") is exhausted
    assert talk.halt("DELETE FROM orders o WHERE o.id = 3") is exhausted
    assert talk.passes("DELETE FROM carts WHERE owner = 'x' AND age > 9")


def test_a_turn_is_one_however_many_ask(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    repair = talk.repair(MENDED)
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
    assert talk.halt(MENDED, on=AWAY) is Halt.REPAIR_BUDGET_EXHAUSTED
    assert talk.ledger.settled(repair, Outcome.PASSED, talk.now) is not None
    assert talk.ledger.settled(repair, Outcome.PASSED, talk.now) is None


def test_a_repair_the_engine_did_not_try_keeps_its_turn(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    assert outcome_of("25P02") is Outcome.NOT_TRIED
    assert talk.ledger.settled(talk.repair(MENDED), Outcome.NOT_TRIED, talk.now) is None
    repair = talk.repair(MENDED)
    record = talk.ledger.settled(repair, outcome_of(None), talk.now)
    assert record is not None
    assert record.turns == 1


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_as_many_turns_as_the_policy_grants(ledger: Book, turns: int) -> None:
    talk = Talk(ledger, rules=RepairRules(turns=turns))
    talk.refuse(UPDATE, "onhand")
    assert ledger.has_open("agent") is (turns > 0)
    for left in reversed(range(turns)):
        sql = MENDED.replace("on_hand", f"stock{left}")
        repair = talk.repair(sql)
        assert repair.turns_left == left
        again = Again(*refused(sql, f"stock{left}"))
        record = ledger.settled(repair, Outcome.FAILED, talk.now, again)
        assert (record is None) is (left > 0)
        assert record is None or record.turns == turns
    assert talk.halt(MENDED) is (Halt.REPAIR_BUDGET_EXHAUSTED if turns else None)


class Endings:
    """What a ledger says of lineages that ended."""

    def __init__(self, *ledgers: Book) -> None:
        self.told: list[CloseOut] = []
        for ledger in ledgers:
            ledger.on_closed = self.told.append

    @property
    def of_each(self) -> list[tuple[Ending, Halt | None, int]]:
        return [(each.ending, each.halt, each.turns) for each in self.told]


@pytest.mark.parametrize(
    ("second", "outcome", "told"),
    [
        (MENDED, Outcome.PASSED, (Ending.REPAIRED, None, 1)),
        (MENDED, Outcome.FAILED, (Ending.HALTED, Halt.REPAIR_BUDGET_EXHAUSTED, 1)),
        (MENDED, Outcome.REJECTED, (Ending.HALTED, Halt.REPAIR_BUDGET_EXHAUSTED, 1)),
        (MENDED, Outcome.NOT_TRIED, (Ending.ABANDONED, None, 0)),
        (MENDED.replace("= 5", "> 5"), None, (Ending.HALTED, Halt.PREDICATE_WEAKENED, 1)),
        (UPDATE, None, (Ending.HALTED, Halt.UNCHANGED, 1)),
        (None, None, (Ending.ABANDONED, None, 0)),
    ],
)
def test_how_a_lineage_ended_is_told_once(
    ledger: Book, second: str | None, outcome: Outcome | None, told: tuple[Ending, Halt | None, int]
) -> None:
    talk, endings = Talk(ledger), Endings(ledger)
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    assert endings.told == []
    if second is not None:
        considered = talk.say(second)
        if outcome is not None:
            assert isinstance(considered, Repair)
            ledger.settled(considered, outcome, talk.now)
            ledger.settled(considered, outcome, talk.now)
    talk.say(MENDED.replace("= 5", "> 5") if told[0] is Ending.HALTED else "SELECT 1 FROM orders")
    for _ in range(2):
        ledger.sweep(talk.now + RULES.window_s + 1)
    assert endings.of_each == [told]
    assert (endings.told[0].reasons, endings.told[0].opened) == (("42703",), 1_000.0)
    assert not ledger.has_open("agent")


def test_a_window_that_is_over_is_found_at_the_next_look(ledger: Book) -> None:
    talk, endings = Talk(ledger), Endings(ledger)
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    ledger.sweep(talk.now + RULES.window_s - 1)
    assert endings.told == []
    talk.now += RULES.window_s
    assert talk.passes(MENDED)
    assert endings.of_each == [(Ending.ABANDONED, None, 0)]
    ledger.sweep(talk.now)
    assert len(endings.told) == 1


def test_a_repair_that_ends_after_its_window_was_given_up_before(ledger: Book) -> None:
    talk, endings = Talk(ledger), Endings(ledger)
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    repair = talk.repair(MENDED)
    talk.now += RULES.window_s
    assert ledger.settled(repair, Outcome.PASSED, talk.now) is None
    assert endings.of_each == [(Ending.ABANDONED, None, 1)]


def test_what_gives_way_to_later_refusals_is_told(ledger: Book) -> None:
    talk, endings = Talk(ledger), Endings(ledger)
    for number in range(MAX_LINEAGES + 2):
        talk.refuse(f"UPDATE inventory SET onhand = 1 WHERE product_id = {number}", "onhand", ("on_hand",))
        talk.now += 1
    assert endings.of_each == [(Ending.SUPERSEDED, None, 0)] * 2
    assert [each.opened for each in endings.told] == [1_000.0, 1_001.0]


def test_no_turn_comes_back_to_what_another_answer_has_ended(ledger: Book) -> None:
    talk, endings = Talk(ledger, rules=RepairRules(turns=2)), Endings(ledger)
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    repair = talk.repair(MENDED)
    assert talk.halt(MENDED.replace("= 5", "> 5")) is Halt.PREDICATE_WEAKENED
    ledger.settled(repair, Outcome.NOT_TRIED, talk.now)
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
    assert endings.of_each == [(Ending.HALTED, Halt.PREDICATE_WEAKENED, 2)]


def test_of_a_refusal_that_grants_no_turn_only_a_halt_is_told(ledger: Book) -> None:
    insert = "INSERT INTO shipments (order_id, carrier) VALUES (21, 'express')"
    full = "INSERT INTO shipments (order_id, carrier, code) VALUES (21, 'express', {})"
    finding = found("insert-missing-not-null", ("code",))
    talk, endings = Talk(ledger), Endings(ledger)
    ledger.open("agent", HOME, made(insert), finding, now=talk.now, rules=RULES, watch=True)
    ledger.sweep(talk.now + RULES.window_s)
    assert endings.told == []
    ledger.open("agent", HOME, made(insert), finding, now=talk.now, rules=RULES, watch=True)
    for _ in range(2):
        assert talk.halt(full.format("'unknown'")) is Halt.DUMMY_LITERAL
    ledger.sweep(talk.now + RULES.window_s)
    assert endings.of_each == [(Ending.HALTED, Halt.DUMMY_LITERAL, 0)]


def test_a_second_turn_is_compared_with_the_first_repair(ledger: Book) -> None:
    talk = Talk(ledger, rules=RepairRules(turns=2))
    talk.refuse("UPDATE inventory SET bin = 1 WHERE prod = 5 AND wareh = 'leeds'", "prod", ("product_id",))
    second = "UPDATE inventory SET bin = 1 WHERE product_id = 5 AND wareh = 'leeds'"
    again = Again(*refused(second, "wareh", ("warehouse",)))
    assert ledger.settled(talk.repair(second), Outcome.FAILED, talk.now, again) is None
    third = second.replace("wareh", "warehouse")
    assert talk.halt(third.replace("= 5", "> 5")) is Halt.PREDICATE_WEAKENED
    assert talk.halt(third) is Halt.REPAIR_BUDGET_EXHAUSTED


def test_what_answers_by_something_else_has_no_second_turn(ledger: Book) -> None:
    talk = Talk(ledger, rules=RepairRules(turns=2))
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    assert talk.halt(MENDED.replace("= 5", "> 5")) is Halt.PREDICATE_WEAKENED
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED


def test_values_are_compared_when_they_are_bound(talk: Talk) -> None:
    second = "UPDATE inventory SET on_hand = 44 WHERE product_id = $1 AND warehouse = $2"
    for values, kept in (((5, "leeds"), True), ((6, "leeds"), False)):
        talk.refuse(UPDATE, "onhand", ("on_hand",))
        repair = talk.repair(second)
        again = talk.ledger.recheck(repair, made(second, *values), talk.now)
        if kept:
            assert again == repair
            talk.ledger.settled(repair, Outcome.PASSED, talk.now)
            assert talk.ledger.recheck(repair, made(second, 7, "york"), talk.now) == NotAnAnswer()
        else:
            assert isinstance(again, Halted)
            assert again.halt is Halt.PREDICATE_WEAKENED
            assert again.record is not None
            assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED


@pytest.mark.parametrize(
    ("sql", "sqlstate", "ours", "others"),
    [
        ("INSERT INTO t (id, v) VALUES ($1, $2)", "23505", (5, "x"), (6, "y")),
        ("UPDATE t SET v = $1 WHERE id = $2", "23514", ("x", 5), ("x", 6)),
        ("DELETE FROM t WHERE id = $1", "23503", (5,), (6,)),
        ("SELECT v / n FROM t WHERE id = $1", "22012", (5,), (6,)),
    ],
)
def test_one_statement_with_other_values_is_the_work_of_others(
    talk: Talk, sql: str, sqlstate: str, ours: tuple[Parameter, ...], others: tuple[Parameter, ...]
) -> None:
    """Workers share their statements, prepared once each."""
    talk.refuse(sql, sqlstate=sqlstate, parameters=ours)
    for worker in range(3):
        assert talk.say(sql, *others, on=f"worker {worker}") == NotAnAnswer()
    assert talk.halt(sql, *ours, on=AWAY) is Halt.UNCHANGED
    assert talk.say(sql, *others, on=AWAY) == NotAnAnswer()


def test_a_value_that_was_refused_is_no_others_matter(talk: Talk) -> None:
    sql = "UPDATE t SET v = $1 WHERE id = $2"
    first, finding = refused(sql, sqlstate="22P02", parameters=("many", 5), at_bind=True)
    talk.ledger.open(talk.scope, HOME, first, finding, now=talk.now, rules=RULES)
    for worker in range(3):
        assert talk.say(sql, 3, 7, on=f"worker {worker}") == NotAnAnswer()
    assert talk.halt(sql, "many", 5, on=AWAY) is Halt.UNCHANGED


# What was denied, or too slow ------------------------------------------------------------------------

PAID = "SELECT p.id, p.amount FROM payments p WHERE p.customer = 7 AND p.state = 'paid'"
JOINED = (
    "SELECT o.id, o.total, c.name FROM orders o JOIN customers c ON c.id = o.customer_id "
    "JOIN items i ON i.order_id = o.id WHERE o.status = 'open' AND c.city = 'York'"
)


@pytest.mark.parametrize("sqlstate", ["42501", TOO_SLOW])
@pytest.mark.parametrize(
    ("first", "second", "halt"),
    [
        (PAID, PAID.replace("payments p", "payments_archive p"), Halt.RELATIONS_CHANGED),
        (PAID, PAID.replace("payments p", "public.refunds AS p").lower(), Halt.RELATIONS_CHANGED),
        (PAID, PAID.replace(" AND p.state = 'paid'", ""), Halt.PREDICATE_REMOVED),
        (JOINED, JOINED.replace("customers c", "clients c"), Halt.RELATIONS_CHANGED),
        (JOINED, JOINED.replace("JOIN items i ON i.order_id = o.id ", ""), Halt.RELATIONS_CHANGED),
        (MENDED, MENDED.replace("inventory", "inventory_copy"), Halt.RELATIONS_CHANGED),
        (
            "DELETE FROM payments WHERE id = 3 AND state = 'open'",
            "DELETE FROM refunds WHERE state = 'open' AND id = 3",
            Halt.RELATIONS_CHANGED,
        ),
    ],
)
def test_another_table_in_the_place_of_one_is_no_repair(
    talk: Talk, sqlstate: str, first: str, second: str, halt: Halt
) -> None:
    talk.refuse(first, sqlstate=sqlstate)
    assert talk.halt(second) is halt
    assert talk.halt(second) is Halt.REPAIR_BUDGET_EXHAUSTED
    assert talk.halt(first, on=AWAY) is Halt.REPAIR_BUDGET_EXHAUSTED


@pytest.mark.parametrize("sqlstate", ["42501", TOO_SLOW])
@pytest.mark.parametrize(
    "look",
    [
        "SELECT * FROM payments_archive LIMIT 5",
        "SELECT count(*) FROM refunds",
        "SELECT r.id, r.amount FROM refunds r",
        "SELECT r.id, r.amount FROM refunds r WHERE r.customer = 8 AND r.state = 'paid'",
        "SELECT c.name FROM customers c WHERE c.id = 7",
        "SELECT p.id, r.amount FROM refunds r, old_payments p WHERE p.customer = 7 AND p.state = 'paid'",
    ],
)
def test_work_on_other_tables_goes_on(talk: Talk, sqlstate: str, look: str) -> None:
    talk.refuse(PAID, sqlstate=sqlstate)
    assert talk.passes(look)
    assert talk.passes(look, on=AWAY)


def test_of_other_connections_the_same_of_another_table_is_their_own(talk: Talk) -> None:
    talk.refuse(PAID, sqlstate="42501")
    assert talk.passes(PAID.replace("payments p", "payments_archive p"), on=AWAY)


def test_what_was_too_slow_may_be_tried_again_and_made_narrower(talk: Talk) -> None:
    batch = "UPDATE inventory SET bin = 'x' WHERE product_id BETWEEN 1 AND 9000"
    talk.refuse(batch, sqlstate=TOO_SLOW)
    for on in (HOME, AWAY):
        assert talk.passes(batch, on=on)
        assert talk.passes(batch.replace(" 1 AND 9000", " 9001 AND 9900"), on=on)
    repair = talk.repair(batch.replace("9000", "900"))
    talk.ledger.settled(repair, Outcome.FAILED, talk.now)
    assert talk.halt(batch.replace("9000", "90")) is Halt.REPAIR_BUDGET_EXHAUSTED
    assert talk.halt(batch) is Halt.REPAIR_BUDGET_EXHAUSTED


def test_a_missing_value_is_watched_for_and_not_made_up(talk: Talk) -> None:
    insert = "INSERT INTO shipments (order_id, carrier) VALUES (21, 'express')"
    full = "INSERT INTO shipments (order_id, carrier, code) VALUES (21, 'express', {})"
    finding = found("insert-missing-not-null", ("code",))

    def watch() -> None:
        talk.ledger.open("agent", HOME, made(insert), finding, now=talk.now, rules=RULES, watch=True)

    watch()
    assert talk.passes("UPDATE orders SET status = 'x' WHERE id = 1")
    assert talk.halt(full.format("'TODO'")) is Halt.DUMMY_LITERAL
    assert talk.halt(full.format("'n/a'"), on=AWAY) is Halt.DUMMY_LITERAL
    assert talk.passes(full.format("'TR-21'"))
    assert not talk.ledger.has_open("agent")
    assert watches(policy_of(WRITER), StatementClass.INSERT, finding)
    assert not watches(policy_of(WRITER), StatementClass.COPY_IN, finding)
    assert not watches(policy_of(WRITER), StatementClass.INSERT, found("unbounded-join"))


def test_text_that_no_grammar_accepts_has_one_turn(talk: Talk) -> None:
    talk.refuse("SELEC id, status FROM orders WHERE id = 5", sqlstate="42601")
    assert talk.passes("SELECT 1")
    assert talk.passes("SELECT * FROM coupons LIMIT 5")
    talk.ledger.settled(talk.repair("SELECT id, status FROM orders WHERE id = 5"), Outcome.PASSED, talk.now)
    assert talk.passes("SELECT id, status FROM orders WHERE id = 5")


# What is no answer -----------------------------------------------------------------------------------

LOOKS = [
    "SELECT * FROM inventory LIMIT 5",
    "SELECT product_id, warehouse, on_hand FROM inventory WHERE product_id = 5 AND warehouse = 'leeds'",
    "SELECT * FROM orders LIMIT 5",
    "SELECT DISTINCT status FROM orders",
    "SELECT id, status FROM orders WHERE status = 'open' LIMIT 3",
    "SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id",
    "SELECT column_name FROM information_schema.columns WHERE table_name = 'inventory'",
    "SELECT a.attname FROM pg_attribute a WHERE a.attrelid = 'orders'::regclass",
    "EXPLAIN UPDATE inventory SET on_hand = 44 WHERE product_id = 5 AND warehouse = 'leeds'",
    "SHOW search_path",
    "SET statement_timeout = '5s'",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SELECT 1",
    "SELECT max(id) FROM customers",
    "INSERT INTO notes (body) VALUES ('looking at inventory')",
    "UPDATE coupons SET used = 2 WHERE code = 'CODE2'",
]
OTHER_ROWS = [
    "UPDATE inventory SET on_hand = 12 WHERE product_id = 9 AND warehouse = 'leeds'",
    "UPDATE inventory SET on_hand = 44 WHERE product_id = 5 AND warehouse = 'york'",
    "DELETE FROM inventory WHERE product_id = 7",
    "INSERT INTO inventory (product_id, warehouse, on_hand) VALUES (5, 'leeds', 44)",
]


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_around_costs_nothing(talk: Talk, look: str) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    talk.refuse(SELECT, "o.totl", ("o.total",))
    for connection in (HOME, AWAY):
        assert talk.passes(look, on=connection)
    talk.repair(MENDED)
    talk.repair(SELECT_MENDED)


@pytest.mark.parametrize("other", OTHER_ROWS)
def test_other_work_of_another_connection_is_no_answer(talk: Talk, other: str) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    assert talk.passes(other, on=AWAY)
    talk.repair(MENDED, on=AWAY)


@pytest.mark.parametrize(
    "second",
    [
        MENDED,
        "update Inventory as i set on_hand=44 where i.warehouse='leeds' and i.product_id=5",
        "/**/ UPDATE public.inventory SET on_hand = 40 + 4 WHERE 5 = product_id AND warehouse IN ('leeds')",
        f"{MENDED} AND on_hand < 10",
        f"{MENDED} RETURNING *",
    ],
)
def test_a_respelt_repair_is_known_on_another_connection(talk: Talk, second: str) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    talk.repair(second, on=AWAY)


@pytest.mark.parametrize(
    ("first", "at", "second"),
    [
        ("SELECT custmer_id FROM orders LIMIT 1", "custmer_id", "SELECT customer_id FROM orders LIMIT 1"),
        (SELECT, "o.totl", f"{SELECT_MENDED} LIMIT 50"),
        (
            "SELECT a.nme FROM a LEFT JOIN b ON true LEFT JOIN c ON a.i = c.i AND c.k = 1",
            "a.nme",
            "SELECT x.name FROM a x LEFT JOIN b ON true LEFT JOIN c ON c.i = x.i AND c.k = 1",
        ),
        (
            SELECT,
            "o.totl",
            "SELECT x.id, x.total, y.name FROM customers y, orders x "
            "WHERE y.id = x.customer_id AND x.status = 'open'",
        ),
        ("SELECT * FROM customer WHERE id = 3", "customer", "SELECT * FROM customers WHERE id = 3"),
    ],
)
def test_a_read_is_known_by_its_likeness(first: str, at: str, second: str) -> None:
    before, finding = refused(first, at, sqlstate="42P01" if at == "customer" else "42703")
    assert recognisable(before, finding, made(second))


@pytest.mark.parametrize(
    "look",
    [
        SELECT_MENDED.replace("o.total, c.name", "o.placed_on, o.channel"),
        SELECT_MENDED.replace("'open'", "'sent'"),
        SELECT_MENDED.replace(" WHERE o.status = 'open'", " LIMIT 5"),
        "SELECT o.id, o.placed_on FROM orders o WHERE o.status = 'open'",
        f"EXPLAIN {SELECT_MENDED}",
    ],
)
def test_a_read_of_something_else_is_no_answer(look: str) -> None:
    before, finding = refused(SELECT, "o.totl", ("o.total",))
    assert recognisable(before, finding, made(SELECT_MENDED))
    assert not recognisable(before, finding, made(look))


def test_a_statement_with_nothing_to_measure_is_known_by_its_text() -> None:
    first, finding = refused("EXECUTE p (1)", sqlstate="42804")
    assert recognisable(first, finding, made("EXECUTE  p(1)"))
    assert not recognisable(first, finding, made("EXECUTE p (2)"))
    assert not recognisable(first, finding, made("BEGIN"))
    first, finding = refused("SELECT nextval('orders_id_seq')", sqlstate="42P01")
    for other in ("BEGIN", "SHOW search_path", "SELECT id, email INTO copied FROM customers"):
        assert not recognisable(first, finding, made(other))


def test_a_turn_spent_elsewhere_on_the_same_statement_is_spent(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",), on=HOME)
    talk.refuse(UPDATE, "onhand", ("on_hand",), on=AWAY)
    talk.ledger.settled(talk.repair(MENDED, on=AWAY), Outcome.FAILED, talk.now)
    assert talk.halt(MENDED, on=HOME) is Halt.REPAIR_BUDGET_EXHAUSTED


@pytest.mark.parametrize(
    "look", ["SELECT * FROM papers LIMIT 5", "SELECT p.* FROM papers p", "SELECT count(*) FROM papers"]
)
@pytest.mark.parametrize("at", ["titel", "cites"])
def test_a_look_at_every_column_is_no_repair_of_one(talk: Talk, look: str, at: str) -> None:
    right = "SELECT title FROM papers ORDER BY citations DESC LIMIT 3"
    wrong = right.replace({"titel": "title", "cites": "citations"}[at], at)
    talk.refuse(wrong, at, ("title", "citations"))
    for on in (HOME, AWAY):
        assert talk.passes(look, on=on)
    talk.repair(right, on=AWAY)


@pytest.mark.parametrize(
    ("second", "here", "elsewhere"),
    [
        ("SELECT o.id, o.total FROM orders o", Halt.PREDICATE_REMOVED, None),
        ("SELECT total, id FROM public.orders ORDER BY 1", Halt.PREDICATE_REMOVED, None),
        # These look around.
        ("SELECT o.id, o.total FROM orders o LIMIT 5", None, None),
        ("SELECT DISTINCT o.id, o.total FROM orders o", None, None),
        ("SELECT * FROM orders", None, None),
        ("SELECT o.id FROM orders o", None, None),
        ("SELECT o.id, o.total FROM orders o JOIN customers c ON c.id = o.customer_id", None, None),
    ],
)
def test_a_read_without_its_conditions_is_an_answer_where_it_was_refused(
    ledger: Book, second: str, here: Halt | None, elsewhere: Halt | None
) -> None:
    for on, halt in ((HOME, here), (AWAY, elsewhere)):
        talk = Talk(ledger, scope=f"agent on {on}")
        talk.refuse("SELECT o.id, o.totl FROM orders o WHERE o.status = 'open'", "o.totl", ("o.total",))
        assert talk.halt(second, on=on) is halt


def test_a_star_is_answered_by_a_star(talk: Talk) -> None:
    talk.refuse("SELECT * FROM papers WHERE yera = 2020", "yera", ("year",))
    talk.repair("SELECT * FROM papers WHERE year = 2020")


def test_three_columns_of_seven_are_another_statement() -> None:
    text = "SELECT a, b, c, {} FROM orders WHERE year = 3"
    first, finding = refused(text.format("d, e, f, totl"), "totl", ("total",))
    assert recognisable(first, finding, made(text.format("d, e, f, total")))
    assert not recognisable(first, finding, made(text.format("w, x, y, z")))


def test_a_count_of_another_select_is_another_statement() -> None:
    text = "SELECT count(*) FROM (SELECT author FROM writes GROUP BY author HAVING count({}) > 2) s"
    first, finding = refused(text.format("paprid"), "paprid", ("paperid",))
    assert recognisable(first, finding, made(text.format("paperid")))
    assert not recognisable(first, finding, made("SELECT count(*) FROM writes"))
    tree = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT {} FROM t"
    first, finding = refused(tree.format("nn"), "nn", ("n",))
    assert recognisable(first, finding, made(tree.format("n")))


def test_a_part_of_a_summary_is_another_statement() -> None:
    first, finding = refused("SELECT stauts, count(*) FROM orders GROUP BY 1", "stauts", ("status",))
    assert recognisable(first, finding, made("SELECT status, count(*) FROM orders GROUP BY 1"))
    assert not recognisable(first, finding, made("SELECT count(*) FROM orders"))
    assert not recognisable(first, finding, made("SELECT status FROM orders LIMIT 5"))


def test_a_delete_with_an_updates_conditions_is_known(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    delete = "DELETE FROM inventory i WHERE i.warehouse = 'leeds' AND i.product_id = 5"
    assert talk.halt(delete, on=AWAY) is Halt.CLASS_CHANGED


def test_half_of_the_conditions_and_half_of_the_columns_are_another_statement() -> None:
    first = "SELECT id, totl FROM orders WHERE status = 'open' AND year = 3"
    before, finding = refused(first, "totl", ("total",))
    assert not recognisable(before, finding, made("SELECT id, placed FROM orders WHERE status = 'open'"))
    assert recognisable(before, finding, made(first.replace("totl", "total")))


def test_a_spent_turn_is_not_had_through_another_refusal(talk: Talk) -> None:
    spent(talk)
    other = "UPDATE inventory SET onhand = 9 WHERE product_id = 8 AND warehouse = 'york'"
    talk.refuse(other, "onhand", ("on_hand",), on=AWAY)
    mended = other.replace("onhand", "on_hand")
    assert talk.halt(mended) is Halt.REPAIR_BUDGET_EXHAUSTED
    talk.repair(mended, on=AWAY)


def test_an_insert_of_another_row_is_another_statement() -> None:
    same = "INSERT INTO t (id, kind, shipped) VALUES (21, 'express', '2025-05-05')"
    first, finding = refused(same.replace("shipped", "shpped"), "shpped")
    assert recognisable(first, finding, made(same))
    assert not recognisable(first, finding, made(same.replace("21", "22")))


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


# An adversary ----------------------------------------------------------------------------------------

SAME = "UPDATE inventory SET on_hand = 44 WHERE "
A_SECOND_TURN = [
    # spelling
    MENDED,
    MENDED.lower(),
    MENDED.upper().replace("LEEDS", "leeds"),
    MENDED.replace("inventory", "INVENTORY"),
    MENDED.replace("inventory", '"inventory"'),
    MENDED.replace("inventory", "public.inventory"),
    MENDED.replace("inventory", "ONLY inventory"),
    MENDED.replace("inventory", "inventory AS i"),
    MENDED.replace("inventory", "inventory i").replace("product_id", "i.product_id"),
    MENDED.replace(" ", "\n"),
    MENDED.replace(" ", "/**/"),
    f"-- a comment\n{MENDED}",
    f"/* nested /* comments */ */ {MENDED}",
    f"{MENDED};",
    MENDED.replace("'leeds'", "E'leeds'"),
    MENDED.replace("'leeds'", "$$leeds$$"),
    MENDED.replace("'leeds'", "U&'l\\0065eds'"),
    MENDED.replace("'leeds'", "'le' || 'eds'"),
    MENDED.replace("'leeds'", "text 'leeds'"),
    MENDED.replace("= 44", "= 40 + 4"),
    MENDED.replace("= 5", "= 2 + 3"),
    MENDED.replace("product_id = 5", "5 = product_id"),
    MENDED.replace("product_id = 5", "product_id IN (5)"),
    MENDED.replace("product_id = 5", "product_id = ANY (ARRAY[5])"),
    MENDED.replace("product_id = 5", "(product_id) = (5)"),
    MENDED.replace("product_id = 5", "product_id BETWEEN 5 AND 5"),
    MENDED.replace("product_id = 5", "NOT product_id <> 5"),
    MENDED.replace("product_id = 5", "product_id IS NOT DISTINCT FROM 5"),
    f"{SAME} warehouse = 'leeds' AND product_id = 5",
    f"{SAME} (product_id, warehouse) = (5, 'leeds')",
    f"{SAME} NOT (product_id <> 5 OR warehouse <> 'leeds')",
    f"{MENDED} AND true",
    f"{MENDED} RETURNING product_id",
    # other statements on the target
    f"{SAME} product_id = 5",
    f"{SAME} warehouse = 'leeds'",
    f"{MENDED} AND on_hand = 0",
    MENDED.replace("44", "45"),
    "UPDATE inventory SET on_hand = 44, bin = 'x' WHERE product_id = 5 AND warehouse = 'leeds'",
    "UPDATE inventory SET (on_hand) = ROW (44) WHERE product_id = 5 AND warehouse = 'leeds'",
    "UPDATE inventory SET on_hand = 44 FROM orders WHERE product_id = 5 AND warehouse = 'leeds'",
    "DELETE FROM inventory WHERE product_id = 5 AND warehouse = 'leeds'",
    "INSERT INTO inventory (product_id, warehouse, on_hand) VALUES (5, 'leeds', 44)",
    "INSERT INTO inventory VALUES (5, 'leeds', 44) ON CONFLICT DO NOTHING",
    "MERGE INTO inventory USING orders o ON product_id = 5 WHEN MATCHED THEN UPDATE SET on_hand = 44",
    # nested or wrapped
    f"WITH x AS ({MENDED} RETURNING 1) SELECT count(*) FROM x",
    f"WITH x AS (SELECT 1) {MENDED}",
    f"PREPARE p AS {MENDED}",
    f"EXPLAIN ANALYZE {MENDED}",
    "PREPARE p (int, text) AS UPDATE inventory SET on_hand = 44 WHERE product_id = $1 AND warehouse = $2",
    "COPY inventory FROM STDIN",
]
PARAMETERS: list[tuple[str, tuple[Parameter, ...]]] = [
    (f"{SAME} product_id = $1 AND warehouse = $2", (5, "leeds")),
    (f"{SAME} product_id = $2 AND warehouse = $1", ("leeds", "5")),
    (f"{SAME} product_id = $1::int AND warehouse = $2::text", ("5", "leeds")),
    (f"{SAME} product_id = $1 AND warehouse = $2", ()),
    ("UPDATE inventory SET on_hand = $1 WHERE product_id = 5 AND warehouse = 'leeds'", (44,)),
]


def spent(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    talk.ledger.settled(talk.repair(MENDED), Outcome.FAILED, talk.now)


READ_AGAIN = [
    SELECT_MENDED.lower(),
    f"({SELECT_MENDED})",
    f"{SELECT_MENDED} LIMIT 100",
    f"{SELECT_MENDED} OFFSET 0",
    f"{SELECT_MENDED} FOR SHARE OF o",
    f"{SELECT_MENDED} AND o.id IS NOT NULL",
    SELECT_MENDED.replace("SELECT", "SELECT DISTINCT"),
    SELECT_MENDED.replace("= 'open'", "IN ('open', 'open')"),
    SELECT_MENDED.replace("o.status = 'open'", "NOT o.status <> 'open'"),
    SELECT_MENDED.replace("o.status = 'open'", "(o.status = 'open') IS TRUE"),
    SELECT_MENDED.replace("JOIN", "LEFT JOIN"),
    SELECT_MENDED.replace("WHERE", "AND"),
    SELECT_MENDED.replace("o.total", "o.total::text"),
    SELECT_MENDED.replace("o.id, o.total, c.name", "c.name, o.total AS t, o.id"),
    f"WITH x AS ({SELECT_MENDED}) SELECT * FROM x",
    f"WITH x AS MATERIALIZED ({SELECT_MENDED}), y AS (SELECT * FROM x) SELECT total FROM y",
    f"SELECT * FROM ({SELECT_MENDED}) s",
    f"SELECT s.total FROM ({SELECT_MENDED}) s JOIN notes n ON n.id = s.id",
    f"SELECT * FROM (SELECT * FROM ({SELECT_MENDED}) s) t",
    f"{SELECT_MENDED} UNION ALL {SELECT_MENDED}",
    f"SELECT NULL, NULL, NULL WHERE false UNION {SELECT_MENDED}",
    f"SELECT json_agg(s) FROM ({SELECT_MENDED}) s",
    f"SELECT (SELECT json_agg(s) FROM ({SELECT_MENDED}) s)",
    f"SELECT count(*) FROM ({SELECT_MENDED}) s",
    f"SELECT 1 WHERE EXISTS ({SELECT_MENDED})",
    f"COPY ({SELECT_MENDED}) TO STDOUT",
    f"DECLARE c CURSOR FOR {SELECT_MENDED}",
    f"PREPARE p AS {SELECT_MENDED}",
    f"EXPLAIN ANALYZE {SELECT_MENDED}",
    f"CREATE TEMP TABLE z AS {SELECT_MENDED}",
    f"INSERT INTO notes {SELECT_MENDED}",
    f"WITH z AS (INSERT INTO notes {SELECT_MENDED} RETURNING *) SELECT * FROM z",
]


def test_no_way_to_read_a_second_time(talk: Talk) -> None:
    talk.refuse(SELECT, "o.totl", ("o.total",))
    talk.ledger.settled(talk.repair(SELECT_MENDED), Outcome.FAILED, talk.now)
    for number, sql in enumerate(READ_AGAIN):
        for on in (HOME, f"new {number}"):
            assert talk.halt(sql, on=on) is Halt.REPAIR_BUDGET_EXHAUSTED, sql
    other = SELECT_MENDED.replace("'open'", "'sent'")
    for look in (f"SELECT * FROM ({other}) s", "SELECT * FROM (SELECT id FROM orders LIMIT 3) s", other):
        assert talk.passes(look), look


def test_what_is_wrapped_is_the_repair_or_a_look_around(talk: Talk) -> None:
    wrapped = "SELECT count(*) FROM ({}) s"
    talk.refuse(SELECT, "o.totl", ("o.total",))
    assert talk.passes(wrapped.format(SELECT_MENDED.replace(" WHERE o.status = 'open'", "")))
    assert talk.passes(f"CREATE TEMP TABLE z AS SELECT * FROM ({SELECT_MENDED}) s")
    repair = talk.repair(wrapped.format(SELECT_MENDED), on=AWAY)
    assert talk.halt(wrapped.format(SELECT_MENDED)) is Halt.REPAIR_BUDGET_EXHAUSTED
    talk.ledger.settled(repair, Outcome.PASSED, talk.now)
    assert talk.passes(SELECT_MENDED)


def test_there_are_fifty_ways() -> None:
    assert len(A_SECOND_TURN) >= 50
    assert all(parse(sql).failure is None for sql in A_SECOND_TURN)


def test_no_way_to_a_second_turn(talk: Talk) -> None:
    spent(talk)
    for sql in A_SECOND_TURN:
        assert talk.halt(sql) is Halt.REPAIR_BUDGET_EXHAUSTED, sql
    for sql, values in PARAMETERS:
        assert talk.halt(sql, *values) is Halt.REPAIR_BUDGET_EXHAUSTED, sql


def test_a_new_connection_has_no_turn_of_its_own(talk: Talk) -> None:
    spent(talk)
    for number, sql in enumerate(A_SECOND_TURN[:33]):
        assert talk.halt(sql, on=f"new {number}") is Halt.REPAIR_BUDGET_EXHAUSTED, sql
    for sql, values in PARAMETERS:
        assert talk.halt(sql, *values, on="another") is Halt.REPAIR_BUDGET_EXHAUSTED, sql


def test_a_flood_of_refusals_brings_no_turn_back(talk: Talk) -> None:
    spent(talk)
    for number in range(MAX_LINEAGES + 10):
        talk.refuse(f"SELECT nme FROM t{number} WHERE id = {number}", "nme", on="flood")
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED


def test_nor_does_a_flood_of_repairs_that_failed() -> None:
    talk = Talk(MemoryLedger())
    spent(talk)
    text = "UPDATE t{} SET {} = 1 WHERE id = 1"
    for number in range(MAX_LINEAGES - 1):
        talk.refuse(text.format(number, "nme"), "nme", ("name",))
        repair = talk.repair(text.format(number, "name"))
        talk.ledger.settled(repair, Outcome.FAILED, talk.now)
    first, finding = refused(text.format("", "nme"), "nme")
    assert talk.ledger.open("agent", HOME, first, finding, now=talk.now, rules=RULES) is None
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
    # Whoever is refused then is told that there is no repair.
    policy = policy_of(WRITER)
    dialogue = Dialogue(policy, talk.ledger, "agent", HOME)
    refusal = decide(policy, Situation("agent", NAMES), parse("SELEC 1"))
    assert isinstance(refusal, Reject)
    assert refusal.repair.allowed
    told = dialogue.judge_refused(refusal, NAMES, talk.now).decision
    assert isinstance(told, Reject)
    assert (told.repair.allowed, told.halt) == (False, Halt.REPAIR_BUDGET_EXHAUSTED)
    allowed = decide(policy, Situation("agent", NAMES), parse(text.format("", "name")))
    assert dialogue.failed(allowed, NAMES, {"sqlstate": "23514"}, talk.now).turns_left == 0
    # Windows that are over make room.
    late = talk.now + RULES.window_s
    assert talk.ledger.open("agent", HOME, first, finding, now=late, rules=RULES) is not None


def test_scopes() -> None:
    def key(scope: RepairScope, application: str, connection: str, agent: str = "bot") -> str:
        return scope_key(RepairRules(scope=scope), agent, "shop", application, connection)

    by_agent, by_name, by_connection = RepairScope.AGENT, RepairScope.APPLICATION, RepairScope.CONNECTION
    assert key(by_agent, "a", "1") == key(by_agent, "b", "2")
    assert key(by_agent, "a", "1") != key(by_agent, "a", "1", agent="other")
    assert key(by_name, "a", "1") == key(by_name, "a", "2")
    assert key(by_name, "a", "1") != key(by_name, "b", "1")
    assert key(by_connection, "a", "1") == key(by_connection, "b", "1")
    assert key(by_connection, "a", "1") != key(by_connection, "a", "2")


@pytest.mark.parametrize(
    ("statement_class", "sqlstate", "opens"),
    [
        (StatementClass.UPDATE, "42703", True),
        (StatementClass.UPDATE, "23505", True),
        (StatementClass.UPDATE, "22P02", True),
        (StatementClass.UPDATE, "57014", False),
        (StatementClass.UPDATE, "25P02", False),
        (StatementClass.DDL, "42P01", False),
        (StatementClass.COPY_IN, "42P01", False),
    ],
)
def test_which_errors_open(statement_class: StatementClass, sqlstate: str, opens: bool) -> None:
    assert may_open(policy_of(WRITER), statement_class, sqlstate) is opens
    slow = opens or (statement_class is StatementClass.UPDATE and sqlstate == TOO_SLOW)
    assert may_open(policy_of(WRITER), statement_class, sqlstate, timed_out=True) is slow
    assert not may_open(policy_of(WRITER, repair="{turns: 0}"), statement_class, sqlstate)


# Stores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql", [*LOOKS, *A_SECOND_TURN, SELECT, "SELEC nothing", "SELECT $1, 1.5, NULL, true"]
)
def test_a_lineage_is_the_same_after_json(sql: str) -> None:
    first: Attempt = made(sql)
    finding = Finding(("42703",), position=9, missing=("a",), functions=("f",), values=True)
    lineage = Lineage("id", "scope", "c", first, finding, 1.0, 2.0, 1, 0, frozenset({"t"}), Halt.UNCHANGED)
    lineage = replace(lineage, tried=Tried({"sqlstate": "23514"}, "the clone is away"))
    again = from_json(json.loads(json.dumps(to_json(lineage))))
    assert again.finding == finding
    assert again.first.levels == first.levels
    assert [type(level) for level in again.first.levels] == [type(level) for level in first.levels]
    assert (again.answered, again.halt, again.watch) == (lineage.answered, lineage.halt, False)
    assert again.tried == lineage.tried


def test_what_the_clone_said_last_is_kept_to_the_end(ledger: Book) -> None:
    talk, endings = Talk(ledger), Endings(ledger)
    failing = Tried({"sqlstate": "23514", "message": "x" * 5_000, "severity": "ERROR"})
    first, finding = refused(UPDATE, "onhand", ("on_hand",))
    for outcome, said in (
        (Outcome.PASSED, Tried()),
        (Outcome.FAILED, failing.brief()),
        (None, failing.brief()),
    ):
        ledger.open(
            talk.scope, HOME, first, finding, now=talk.now, rules=RULES, tried=failing.brief(), name="of mine"
        )
        repair = talk.repair(MENDED)
        assert repair.part == ("of mine", 1)
        if outcome is None:
            assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
            ledger.sweep(talk.now + RULES.window_s)
        else:
            ledger.settled(repair, outcome, talk.now, tried=said)
        assert endings.told[-1].tried == said
        ledger.sweep(talk.now + RULES.window_s)
    told = endings.told[-1].tried
    assert told is not None
    assert told.as_json() == {"error": {"sqlstate": "23514", "message": "x" * 1_000}}
    talk.refuse(UPDATE, "onhand")
    ledger.settled(talk.repair(MENDED), Outcome.PASSED, talk.now)
    assert endings.told[-1].tried is None


def test_workers_of_two_versions_may_share_a_store(
    ledger: Book, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A lineage that was written before ``tried`` was kept is one without; what it has spent is spent."""
    if isinstance(ledger, MemoryLedger):
        return

    def before(body: str | bytes) -> str:
        return json.dumps({key: value for key, value in json.loads(body).items() if key != "tried"})

    talk = Talk(ledger)
    spent(talk)
    if isinstance(ledger, SqliteLedger):
        with sqlite3.connect(tmp_path / "ledger.db") as file:
            ((written,),) = file.execute("SELECT body FROM lineage")
            file.execute("UPDATE lineage SET body = ?", (before(written),))
    else:
        client = request.getfixturevalue("redis_server").client
        for key in client.scan_iter(match="pgturnstile:ledger:1:*", _type="hash"):
            for name, body in client.hgetall(key).items():
                client.hset(key, name, before(body))
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED


def test_two_processes_see_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    one, other = Talk(SqliteLedger(path)), Talk(SqliteLedger(path))
    one.refuse(UPDATE, "onhand", ("on_hand",))
    assert other.ledger.has_open("agent")
    repair = other.repair(MENDED)
    assert one.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
    one.ledger.settled(repair, Outcome.PASSED, one.now)
    assert not other.ledger.has_open("agent")
    assert path.stat().st_mode & 0o077 == 0


def test_a_store_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database at all, whatever its name may be" * 40)
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    first, finding = refused(UPDATE, "onhand")
    for name in ("folder", "text", "newer"):
        store = SqliteLedger(tmp_path / name)
        with pytest.raises(LedgerUnavailableError):
            store.has_open("agent")
        with pytest.raises(LedgerUnavailableError):
            store.open("agent", HOME, first, finding, now=0.0, rules=RULES)
        store.close()


def test_a_lineage_that_cannot_be_read_lets_nothing_pass(tmp_path: Path) -> None:
    talk = Talk(SqliteLedger(tmp_path / "ledger.db"))
    talk.refuse(UPDATE, "onhand")
    with sqlite3.connect(tmp_path / "ledger.db") as file:
        file.execute("UPDATE lineage SET body = '{}'")
    with pytest.raises(LedgerUnavailableError):
        talk.say(MENDED)


def test_a_store_that_is_held_by_another_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy.ledger_sqlite.BUSY_S", 0.01)
    talk = Talk(SqliteLedger(tmp_path / "ledger.db"))
    talk.refuse(UPDATE, "onhand")
    holder = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnavailableError):
        talk.say(MENDED)
    holder.execute("ROLLBACK")
    talk.repair(MENDED)


# Wording ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("halt", [*repair_halted.WORDS, Halt.DUMMY_LITERAL])
def test_a_halt_says_plainly_not_to_retry(halt: Halt) -> None:
    policy = policy_of(WRITER)
    query: QueryString = parse(MENDED)
    decision = refuse(policy, NAMES, query, (repair_halted.halted(halt, policy),))
    rejection = reject(decision, "01J", policy)
    detail = json.loads(rejection.detail)
    assert rejection.sqlstate == "53400"
    assert rejection.routine == ("dummy-literal" if halt is Halt.DUMMY_LITERAL else "repair-halted")
    assert detail["halt"] == halt
    assert detail["repair"] == {"allowed": False, "turns_left": 0, "keep": None}
    assert rejection.message.endswith(DO_NOT_RETRY)
    assert rejection.hint.endswith(DO_NOT_RETRY)


def test_an_unreachable_ledger_is_a_refusal() -> None:
    policy = policy_of(WRITER)
    decision = refuse(policy, NAMES, parse(MENDED), (repair_halted.unavailable(policy),))
    assert decision.halt is Halt.REPAIR_BUDGET_EXHAUSTED
    assert reject(decision, "01J", policy).sqlstate == "53400"


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
