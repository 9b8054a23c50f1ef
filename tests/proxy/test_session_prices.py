"""Questions before a statement over transcripts: what the server is asked, and what the agent never sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.catalog import Catalog
from policy.catalog_values import Index
from policy.decision import Reject
from policy.loader import load
from policy.rules import affected_rows_over_limit
from proxy.conversation import Identity
from proxy.effects import Decide, Effect, Record, Weigh
from proxy.gate import Gate
from proxy.session import Session
from tests.policy.rules.schema import CATALOG
from tests.proxy.test_gate_catalog import PATHS, View
from tests.proxy.test_session import (
    BOUND,
    CLOSED,
    NO_DATA,
    PARSED,
    SYNC,
    Played,
    bind,
    close,
    complete,
    describe,
    error,
    execute,
    message,
    parse,
    query,
    ready,
    row,
)
from tests.proxy.test_session_limits import UNBINDABLE, UNPARSABLE, play, sizes

POLICY = """
version: 1
name: priced
access: read_write
statements: {select: allow, update: allow, transaction: allow, cursor: allow}
relations: {allow: ["public.*"]}
functions: {allow: [builtin-safe]}
rules: {unbounded-select: "off"}
cost: {max_total_cost: 100}
limits: {affected_rows: 3}
"""
WRITE = "UPDATE orders SET status = 'x' WHERE status <> 'x'"
BY_KEY = "UPDATE orders SET status = $1 WHERE id = $2"
DECLARE = "DECLARE c CURSOR FOR SELECT id FROM orders"
TAG = complete("UPDATE 2")
NOTICE = message("N", b"SNOTICE\0VNOTICE\0C00000\0Mlooked\0\0")


def keyed() -> Catalog:
    """The catalog with a key on every table, and no operators that anybody made."""
    key = Index("pkey", ("id",), unique=True, primary=True)
    relations = tuple(replace(relation, indexes=(key,)) for relation in CATALOG.content.relations)
    return Catalog(replace(CATALOG.content, relations=relations, operators=()))


def plan(cost: int = 1) -> bytes:
    said = (
        f'[{{"Plan": {{"Node Type": "Result", "Startup Cost": 0, "Total Cost": {cost}, "Plan Rows": 1,'
        ' "Plan Width": 4}}]'
    )
    return row(said.encode()) + complete("EXPLAIN")


def number(value: int) -> bytes:
    return row(b"%d" % value) + complete("SELECT 1")


def asked(answer: bytes) -> bytes:
    """What the server says to a question in the place of a Query."""
    return PARSED + BOUND + answer + ready()


def asked_bound(answer: bytes) -> bytes:
    """The same before a Bind to the unnamed portal."""
    return CLOSED + PARSED + BOUND + answer + CLOSED


def start() -> Session:
    gate = Gate(load(POLICY, "priced.yaml"), "agent", 1 << 20, View(current=keyed()))
    identity = Identity("c1", "shop")
    return Session(gate, identity, PATHS[0], nonce="nonce", clock=lambda: 1.0, message_bytes=1 << 20)


ASKED = "PBES"
BOUND_ASKED = "CPBECH"
HELD = "PBD" + "CPBEC" + "E" + "BECC" + "H"


@sizes
def test_a_query_is_priced_then_counted_then_run(size: int) -> None:
    subject = start()
    played = play([("F", query(WRITE) + query("SELECT 1")), ("B", NOTICE + asked(plan()))], size, subject)
    assert played.sent == ASKED * 2
    assert b"WHERE status <> 'x' LIMIT 4" in played.to_backend
    assert played.to_frontend == NOTICE[:0]
    played = play([("B", asked(NOTICE + number(3)))], size, subject)
    assert (played.sent, played.to_frontend) == (HELD, b"")
    counted = CLOSED + PARSED + BOUND + number(0) + CLOSED
    answer = PARSED + BOUND + NO_DATA + counted + NOTICE + TAG + BOUND + number(2) + CLOSED * 2
    played = play([("B", answer)], size, subject)
    assert played.sent == "CCS" + "Q"
    played.take(subject.from_backend(CLOSED * 2 + ready()))
    assert played.to_frontend == NOTICE + TAG + ready()


@sizes
@pytest.mark.parametrize("rows", [3, 4])
def test_a_bind_is_priced_then_counted_then_let_go(rows: int, size: int) -> None:
    subject = start()
    played = play([("F", parse(WRITE) + bind() + execute() + SYNC)], size, subject)
    assert played.sent == "P" + BOUND_ASKED
    played = play([("B", PARSED + asked_bound(plan()))], size, subject)
    assert (played.sent, played.to_frontend) == (BOUND_ASKED, PARSED)
    played = play([("B", asked_bound(number(rows)))], size, subject)
    if rows == 3:
        assert played.sent == "B" + HELD.removeprefix("PBD")
        return
    assert played.to_backend == UNBINDABLE + SYNC
    played.take(subject.from_backend(error("26000") + ready()))
    assert played.rules == [affected_rows_over_limit.NAME]
    assert played.kinds == "EZ"


def test_a_query_over_the_limit_is_not_run() -> None:
    played = play(
        [
            ("F", query(WRITE)),
            ("B", asked(plan())),
            ("B", asked(number(4))),
            ("B", error("42601") + ready()),
        ],
        subject=start(),
    )
    assert played.to_backend.endswith(UNPARSABLE)
    assert played.sent == ASKED * 2 + "Q"
    assert played.rules == [affected_rows_over_limit.NAME]
    (entry,) = played.records
    assert (entry.sqlstate, entry.outcome_known) == ("57014", True)


def test_what_is_too_dear_is_not_counted() -> None:
    played = play([("F", query(WRITE)), ("B", asked(plan(cost=1000)))], subject=start())
    assert played.sent == ASKED + "Q"
    assert played.to_backend.endswith(UNPARSABLE)


@sizes
@pytest.mark.parametrize("status", ["I", "E"])
def test_the_error_of_a_count_is_the_statements(status: str, size: int) -> None:
    failed = PARSED + BOUND + error("22012") + ready(status)
    ended = CLOSED + ready(status)
    played = play([("F", query(WRITE)), ("B", asked(plan()) + failed), ("B", ended)], size, start())
    assert played.sent == ASKED * 2 + "CS"
    assert played.to_backend.endswith(close("S") + SYNC)
    assert played.kinds == "EZ"
    assert played.statuses == status
    (entry,) = played.records
    assert entry.sqlstate == "22012"


def test_a_question_that_is_skipped_tells_nothing() -> None:
    """The agent's own Parse fails while the question about its Bind waits behind it."""
    subject = start()
    played = play([("F", parse(WRITE) + bind() + execute() + SYNC)], subject=subject)
    assert played.sent == "P" + BOUND_ASKED
    played.take(subject.from_backend(error("42703")))
    assert played.sent == "P" + BOUND_ASKED + "CES"
    played.take(subject.from_backend(ready()))
    assert (played.kinds, played.statuses) == ("EZ", "I")
    assert not any(entry.outcome_known and entry.sqlstate is None for entry in played.records)


def test_a_look_up_by_key_is_not_counted_and_its_price_is_kept() -> None:
    subject = start()
    run = parse(BY_KEY, "s") + bind("s") + execute() + SYNC
    played = play([("F", run), ("B", PARSED + asked_bound(plan()))], subject=subject)
    assert played.sent == "P" + BOUND_ASKED + "B" + HELD.removeprefix("PBD")
    counted = CLOSED + PARSED + BOUND + number(0) + CLOSED + TAG + BOUND + number(1) + CLOSED * 2
    play([("B", BOUND + counted), ("B", ready())], subject=subject)
    played = play([("F", bind("s") + execute() + SYNC)], subject=subject)
    assert played.sent == "B" + HELD.removeprefix("PBD")


@sizes
def test_before_a_cursor_the_question_ends_its_own_transaction(size: int) -> None:
    subject = start()
    played = play([("F", parse(DECLARE) + bind() + describe("P") + execute() + SYNC)], size, subject)
    assert played.sent == "PH"
    played = play([("B", PARSED)], size, subject)
    assert played.sent == "CPBECS"
    played = play([("B", asked_bound(plan()))], size, subject)
    assert (played.sent, played.to_frontend) == ("", b"")
    played = play([("B", ready())], size, subject)
    assert (played.sent, played.to_frontend) == ("BDES", b"")
    played = play([("B", BOUND + NO_DATA + error("25P01") + ready())], size, subject)
    assert (played.kinds, played.statuses) == ("2nEZ", "I")


def test_a_cursor_behind_a_bind_shares_its_transaction() -> None:
    subject = start()
    first = parse("SELECT 1") + bind() + execute()
    played = play([("F", first + parse(DECLARE, "d") + bind("d") + execute() + SYNC)], subject=subject)
    assert played.sent == "PBE" + "P" + BOUND_ASKED


@sizes
def test_a_cursor_whose_parse_fails_is_not_asked_about(size: int) -> None:
    subject = start()
    play([("F", parse(DECLARE) + bind() + execute() + SYNC)], size, subject)
    played = play([("B", error("42P01"))], size, subject)
    assert played.sent == "CBCES"
    played.take(subject.from_backend(ready()))
    assert (played.kinds, played.statuses) == ("EZ", "I")


# What takes long to weigh ---------------------------------------------------------------------------------

LONG = "SELECT id FROM orders WHERE " + " OR ".join(f"id = {n}" for n in range(60))


def weighs(effects: list[Effect]) -> list[Weigh]:
    return [effect for effect in effects if isinstance(effect, Weigh)]


@pytest.mark.parametrize("cost", [1, 1_000])
def test_a_long_statement_is_weighed_elsewhere_and_what_follows_waits(cost: int) -> None:
    subject, played = start(), Played()
    effects = subject.from_frontend(query(LONG) + query("SELECT 1"))
    played.take(effects)
    if subject.held and not played.to_backend:
        [decide] = [effect for effect in effects if isinstance(effect, Decide)]
        played.take(subject.decided(subject.gate.rule_slowly(decide.text, decide.names)))
    assert played.sent() == ASKED
    [weigh] = weighs(subject.from_backend(asked(plan(cost))))
    assert subject.held
    assert subject.from_frontend(query("SELECT 2")) == []
    played = Played()
    played.take(subject.weighed(weigh.weigh()))
    assert not subject.closed
    if cost == 1:
        assert played.to_backend.startswith(query(LONG))
    else:
        assert LONG.encode() not in played.to_backend
        played.take(subject.from_backend(error("42601") + ready()))
        assert b"C54001" in played.to_frontend
        [record] = played.records
        assert isinstance(record.decision, Reject)


def test_a_long_plan_of_a_short_statement_is_weighed_elsewhere() -> None:
    subject = start()
    subject.from_frontend(query("SELECT id FROM orders"))
    figures = '"Startup Cost": 0, "Total Cost": 1, "Plan Rows": 1, "Plan Width": 4'
    nodes = ", ".join([f'{{"Node Type": "Result", {figures}}}'] * 999)
    long = f'[{{"Plan": {{"Node Type": "Append", {figures}, "Plans": [{nodes}]}}}}]'
    answer = PARSED + BOUND + row(long.encode()) + complete("EXPLAIN") + ready()
    [weigh] = weighs(subject.from_backend(answer))
    played = Played()
    played.take(subject.weighed(weigh.weigh()))
    assert played.to_backend == query("SELECT id FROM orders")


def test_a_price_that_comes_after_the_end_changes_nothing() -> None:
    subject = start()
    decided = subject.gate.rule_slowly(LONG.encode(), subject.gate.names((PATHS[0],)))
    if not weighs(subject.from_frontend(query(LONG))) and subject.held:
        subject.decided(decided)
    [weigh] = weighs(subject.from_backend(asked(plan())))
    lost = subject.lost()
    assert len([effect for effect in lost if isinstance(effect, Record)]) == 1
    assert subject.weighed(weigh.weigh()) == []
