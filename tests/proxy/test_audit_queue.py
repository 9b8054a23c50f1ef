"""The queue of audit records: order, room, and what is taken until it is written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.decision import Allow
from policy.model import StatementClass
from policy.parse import parse
from proxy.audit_line import ConnectionIdentity, Renderer
from proxy.audit_queue import AT_ONCE, RECORD_BYTES, Queue
from proxy.config import Statements
from proxy.effects import AuditEntry

WHO = ConnectionIdentity("bot", "shop", "app", None, "local", "c1", "strict", "0" * 64)
KNOWN = Allow(parse("SELECT 1"), StatementClass.SELECT)
LONG = Allow(parse("SELECT '" + "x" * AT_ONCE + "'"), StatementClass.SELECT)


def entry(name: object, decision: Allow = KNOWN) -> AuditEntry:
    return AuditEntry(str(name), decision, "simple", 0.0)


def queue(capacity: int = 1 << 20) -> Queue:
    return Queue(Renderer(Statements.FULL), capacity)


def ids(lines: list[str]) -> list[str]:
    return [json.loads(line)["id"] for line in lines]


@given(st.lists(st.tuples(st.sampled_from(("record", "long", "line")), st.integers(0, 4))))
def test_what_comes_is_taken_once_and_in_its_order(steps: list[tuple[str, int]]) -> None:
    subject, came, gone = queue(), list[str](), list[str]()
    for n, (kind, most) in enumerate(steps):
        if kind == "line":
            subject.add_line(f'{{"id":"{n}"}}\n', 10)
        else:
            assert subject.offer(entry(n, LONG if kind == "long" else KNOWN), WHO)
        came.append(str(n))
        taken = subject.take(most)
        assert taken == subject.take(most)  # what the disk refused is tried again
        subject.done()
        gone += ids(taken)
    while subject:
        gone += ids(subject.take(3))
        subject.done()
    assert gone == came
    assert subject.taken == subject.written


def test_what_is_taken_keeps_its_room_until_it_is_written() -> None:
    weight = RECORD_BYTES + len(KNOWN.query.sql)
    subject = queue(2 * weight)
    assert [subject.offer(entry(n), WHO) for n in range(3)] == [True, True, False]
    assert ids(subject.take(1)) == ["0"]
    assert (len(subject), subject.offer(entry(3), WHO)) == (2, False)
    subject.done()
    assert (len(subject), subject.offer(entry(3), WHO)) == (1, True)
    assert ids(subject.take(9)) == ["1", "3"]


def test_a_record_larger_than_the_queue_has_room_in_an_empty_one() -> None:
    subject = queue(1)
    assert [subject.offer(entry(n), WHO) for n in range(2)] == [True, False]
    subject.take(1)
    subject.done()
    assert subject.offer(entry(2), WHO)


@pytest.mark.parametrize(("decision", "at_once"), [(KNOWN, True), (LONG, False)])
def test_a_line_that_may_be_long_to_make_is_left_to_the_writer(decision: Allow, at_once: bool) -> None:
    renderer = Renderer(Statements.FULL)
    subject = Queue(renderer, 1 << 20)
    subject.offer(entry(0, decision), WHO)
    assert renderer.knows(decision) is at_once
    subject.take(1)
    assert renderer.knows(decision)
