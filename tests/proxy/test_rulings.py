"""What a gate remembers, and that remembering decides nothing anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.catalog import Catalog
from policy.catalog_names import SessionNames
from policy.catalog_values import Index
from policy.decision import Allow, Situation, decide
from policy.lifting import Lifted, spans
from policy.model import Policy
from policy.parse import parse
from proxy.conversation import Identity
from proxy.effects import Record, ToBackend
from proxy.gate import Gate
from proxy.ruling import LiftedRuling, Price, Ruling
from proxy.rulings import MAX_OF_SHAPE, MAX_TEXT, Rulings
from proxy.session import Session
from tests.policy.rules.judging import policy_of
from tests.policy.rules.schema import CONTENT, READER
from tests.proxy.test_gate_catalog import PATHS, View
from tests.support.wire import message

PRICED = policy_of(READER + "cost: {max_total_cost: 1000}\n")
KEY = Index("key", unique=True, primary=True, columns=("id",))
KEYED = Catalog(
    replace(
        CONTENT,
        relations=tuple(replace(r, indexes=(KEY,)) if r.name == "orders" else r for r in CONTENT.relations),
    )
)
POINT = "SELECT total FROM orders WHERE id = {}"
ANSWER = message("T", b"\0\0") + message("C", b"SELECT 0\0") + message("Z", b"I")
KEPT = (
    *(
        "text",
        "names",
        "allowed",
        "doubtful",
        "notice",
        "statements",
        "copies",
        "running",
        "alters",
        "actions",
    ),
    *("executes", "paths", "resets_path", "plain", "priced", "count"),
)
RANGE = "SELECT total FROM orders WHERE id > {}"


def gate_of(policy: Policy = PRICED) -> tuple[Gate, SessionNames]:
    gate = Gate(policy, "agent", 1_000_000, View(current=KEYED))
    return gate, gate.names(PATHS)


def judged(gate: Gate, names: SessionNames, sql: str) -> Ruling:
    """As a session asks: what is remembered, else the gate."""
    ruling = gate.cache(names).get(sql.encode()) or gate.rule(sql.encode(), names)
    assert ruling is not None
    return ruling


def remembered(gate: Gate, names: SessionNames, sql: str) -> Ruling | None:
    return gate.cache(names).get(sql.encode())


def test_another_number_of_as_many_digits_is_known() -> None:
    gate, names = gate_of()
    first = judged(gate, names, POINT.format(17))
    other = remembered(gate, names, POINT.format(42))
    assert isinstance(other, LiftedRuling)
    assert other.text == POINT.format(42).encode()
    assert other.decision.query.sql == POINT.format(42)
    assert remembered(gate, names, POINT.format(17)) is first
    assert remembered(gate, names, POINT.format(421)) is None


@pytest.mark.parametrize(
    "other",
    [
        "SELECT total FROM orders WHERE id = 55 LIMIT 20",
        "SELECT total FROM order5 WHERE id = 55 LIMIT 10",
        "SELECT total FROM orders WHERE id = 5e LIMIT 10",
        "SELECT total FROM orders WHERE id = 5\u0665 LIMIT 10",
        "SELECT total FROM orders WHERE id =-55 LIMIT 10",
        "SELECT total FROM orders WHERE id = $1 LIMIT 10",
        "SELECT total FROM orders WHERE id = '' LIMIT 10",
        "SELECT total FROM orders WHERE id = 5  LIMIT 10",
        "SELECT total FROM orders WHERE id = 1_ LIMIT 10",
        "SELECT total FROM orders WHERE id = .5 LIMIT 10",
        "SELECT total FROM ORDERS WHERE id = 55 LIMIT 10",
    ],
)
def test_nothing_else_may_differ(other: str) -> None:
    gate, names = gate_of()
    judged(gate, names, "SELECT total FROM orders WHERE id = 12 LIMIT 10")
    assert remembered(gate, names, other) is None


TRACED = "SELECT total FROM orders WHERE id > $1 AND status = 'x' /*traceparent='{}'*/"


def test_a_text_with_another_comment_is_known_and_has_the_same_price() -> None:
    gate, names = gate_of()
    first = judged(gate, names, TRACED.format("00-1f"))
    first.prices[()] = price = Price(9.0, {})
    other = remembered(gate, names, TRACED.format("01-e2"))
    assert isinstance(other, LiftedRuling)
    assert other.text == TRACED.format("01-e2").encode()
    assert other.prices[()] is price
    assert other.question is not None
    assert other.question.text is not None
    assert "traceparent='01-e2'" in other.question.text
    both = judged(gate, names, POINT.format(17) + " /* a */")
    assert both.allowed
    assert isinstance(remembered(gate, names, POINT.format(42) + " /* b */"), LiftedRuling)


@pytest.mark.parametrize(
    "other",
    [
        "SELECT total FROM orders WHERE id > $1 /*abcde*/;",
        "SELECT total FROM orders WHERE id > $1 /*abcdef*/",
        "SELECT total FROM orders WHERE id > $1 /*a*/ b*/",
        "SELECT total FROM orders WHERE id > $1 /*a/*/*/*/",
        "SELECT total FROM orders WHERE id > $1 /*a**/**/",
        "SELECT total FROM orders WHERE id > $1 /*a/ b*/ ",
        "SELECT total FROM orders WHERE id > $1 /*+Set */",
        "SELECT total FROM orders WHERE id > $1 --abcde--",
        "SELECT total FROM orders WHERE id > $1 -*abcde*/",
        "SELECT total FROM orders WHERE id > $1 /*\u00fc123*/",
        "SELECT total FROM orders WHERE id > $2 /*abcde*/",
        "SELECT salary FROM orders WHERE id> $1 /*abcde*/",
    ],
)
def test_a_comment_stands_for_a_comment_alone(other: str) -> None:
    gate, names = gate_of()
    first = "SELECT total FROM orders WHERE id > $1 /*12345*/"
    judged(gate, names, first)
    assert remembered(gate, names, other) is None
    assert isinstance(remembered(gate, names, first.replace("12345", "a'\"$;")), LiftedRuling)


@given(st.integers(0, 999), st.integers(0, 999), st.integers(0, 999))
def test_what_is_remembered_is_what_would_be_decided(one: int, two: int, three: int) -> None:
    gate, names = gate_of()
    text = "SELECT id, total FROM public.orders o WHERE o.id = {:03} AND {:03} < customer_id LIMIT 5"
    judged(gate, names, text.format(one, two))
    sql = text.format(two, three)
    found, fresh = remembered(gate, names, sql), gate.rule_slowly(sql.encode(), names)
    assert found is not None
    assert isinstance(found.decision, Allow)
    assert found.decision == fresh.decision == decide(PRICED, Situation("agent", names), parse(sql))
    assert found.question == fresh.question
    assert [getattr(found, name) for name in KEPT] == [getattr(fresh, name) for name in KEPT]


def test_a_price_is_shared_where_a_key_is_looked_up() -> None:
    gate, names = gate_of()
    first = judged(gate, names, POINT.format(17))
    first.prices[()] = Price(1.0, {})
    other = judged(gate, names, POINT.format(42))
    assert other.priced
    assert other.prices is first.prices


def test_the_facts_of_another_number_are_not_worked_out_to_let_it_run() -> None:
    """They cost more than the rest of it together."""
    gate, names = gate_of()
    judged(gate, names, POINT.format(17)).prices[()] = Price(1e9, {})
    subject = Session(
        gate, Identity("c", "app"), PATHS[0], nonce="n", clock=lambda: 0.0, message_bytes=1 << 20
    )
    query = message("Q", POINT.format(42).encode() + b"\0")
    assert [e.data for e in subject.from_frontend(query) if isinstance(e, ToBackend)] == [query]
    (record,) = [e for e in subject.from_backend(ANSWER) if isinstance(e, Record)]
    found = record.entry.decision.query
    assert isinstance(found, Lifted)
    assert found.sql == POINT.format(42)
    assert found._made is None


def test_else_each_text_has_its_own_question_and_its_own_price() -> None:
    gate, names = gate_of()
    first = judged(gate, names, RANGE.format(17))
    first.prices[()] = Price(1.0, {})
    other = judged(gate, names, RANGE.format(42))
    assert isinstance(other, LiftedRuling)
    assert other.prices == {}
    assert other.question is not None
    assert other.question.text is not None
    assert other.question.text.endswith(RANGE.format(42))
    # The price that is asked for it must be found again.
    assert judged(gate, names, RANGE.format(42)) is other


def test_without_a_limit_on_the_price_there_is_none_to_keep() -> None:
    gate, names = gate_of(policy_of(READER))
    judged(gate, names, RANGE.format(17))
    one, two = (judged(gate, names, RANGE.format(42)) for _ in range(2))
    assert isinstance(one, LiftedRuling)
    assert one is not two
    assert not one.priced


def test_other_names_remember_other_things() -> None:
    gate, names = gate_of()
    judged(gate, names, POINT.format(17))
    assert remembered(gate, gate.names((("public", "billing"),)), POINT.format(42)) is None


def test_texts_of_one_shape_are_few() -> None:
    gate, names = gate_of()
    for limit in range(10, 10 + MAX_OF_SHAPE + 1):
        judged(gate, names, POINT.format(17) + f" LIMIT {limit}")
    assert remembered(gate, names, POINT.format(42) + " LIMIT 10") is None
    assert remembered(gate, names, POINT.format(42) + " LIMIT 11") is not None


def test_both_caches_are_bounded() -> None:
    gate, names = gate_of()
    cache = Rulings(entries=3, shapes=2)
    columns = ("id", "total", "status", "notes")
    for column in columns:
        ruling = gate.rule_slowly(f"SELECT {column} FROM orders WHERE id = 17".encode(), names)
        cache.keep(ruling, spans(ruling.decision))
    exact = [cache.get(f"SELECT {column} FROM orders WHERE id = 17".encode()) for column in columns]
    assert [type(found) for found in exact] == [type(None), Ruling, Ruling, Ruling]
    assert cache.get(b"SELECT total FROM orders WHERE id = 42") is None
    assert cache.get(b"SELECT notes FROM orders WHERE id = 42") is not None


def test_long_texts_are_not_remembered() -> None:
    gate, names = gate_of()
    ruling = gate.rule_slowly(POINT.format(1).encode() + b" " * MAX_TEXT, names)
    known = Rulings()
    known.keep(ruling)
    assert known.get(ruling.text) is None
