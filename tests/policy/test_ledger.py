"""Turns of repairs over every store: dialogues, what was denied or too slow, what an agent is told."""

from __future__ import annotations

import json

import pytest

from policy.decision import refuse
from policy.facts import QueryString
from policy.ledger import MAX_LINEAGES, Book
from policy.lineage import (
    TOO_SLOW,
    Again,
    Ending,
    Halted,
    NotAnAnswer,
    Outcome,
    Repair,
    may_open,
    outcome_of,
    scope_key,
    watches,
)
from policy.model import Halt, RepairRules, RepairScope, StatementClass
from policy.parse import parse
from policy.rejection import DO_NOT_RETRY, reject
from policy.rules import repair_halted
from policy.terms import Parameter
from tests.policy.repairing import NAMES, found, made, refused
from tests.policy.rules.judging import WRITER, policy_of
from tests.policy.talking import AWAY, HOME, MENDED, RULES, UPDATE, Endings, Talk

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
