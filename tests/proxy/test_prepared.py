"""Names of statements, portals and cursors: what they stand for while answers are owed, and after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.decision import Allow
from policy.facts import QueryString
from policy.model import Policy
from policy.names import PathNames
from proxy.prepared import AnyChange, Names, Portal, Prepared, TooManyNames
from proxy.ruling import Ruling

POLICY = Policy("p", "p.yaml", "0" * 64)


def ruling(word: str) -> Ruling:
    return Ruling(Allow(QueryString(word), None), POLICY, word.encode(), PathNames())


def prepared(word: str) -> Prepared:
    return Prepared(ruling(word))


def statements(names: Names, *wanted: bytes) -> list[str | None]:
    found = [names.statement(name) for name in wanted]
    return [None if one is None else one.ruling.text.decode() for one in found]


def portals(names: Names, *wanted: bytes) -> list[str | None]:
    found = [names.portal(name) for name in wanted]
    return [None if one is None else one.ruling.text.decode() for one in found]


# --- one pipeline, against a model that replays it ---


@dataclass(frozen=True, slots=True)
class Step:
    """One message of a pipeline: a word to prepare under a name, or None to drop the name."""

    name: bytes
    word: str | None
    succeeds: bool = True


steps = st.builds(Step, st.sampled_from([b"", b"a"]), st.sampled_from([None, "x", "y", "z"]), st.booleans())
segments = st.lists(st.lists(steps, max_size=4), max_size=4)


def carry_out(state: dict[bytes, str], segment: list[Step]) -> None:
    """What PostgreSQL does: up to the first failure; a failed Parse drops the unnamed statement."""
    for step in segment:
        if not step.succeeds:
            if not step.name and step.word is not None:
                state.pop(b"", None)
            return
        if step.word is None:
            state.pop(step.name, None)
        else:
            state[step.name] = step.word


@given(pipeline=segments, before=st.lists(steps.map(lambda s: replace(s, succeeds=True)), max_size=3))
def test_names_are_the_servers_once_all_is_answered(pipeline: list[list[Step]], before: list[Step]) -> None:
    """All segments are sent before the first answer, then answered in order."""
    names, server = Names(), dict[bytes, str]()
    for step in before:
        forward(names, step).settle()
    carry_out(server, before)
    sent = [[(step, forward(names, step)) for step in segment] for segment in pipeline]
    for segment, answered in zip(pipeline, sent, strict=True):
        carry_out(server, segment)
        failed = False
        for step, change in answered:
            if failed:
                change.undo()
            elif step.succeeds:
                change.settle()
            else:
                failed = True
                (change.failed_as_unnamed_parse if not step.name and step.word else change.undo)()
    assert statements(names, b"", b"a") == [server.get(b""), server.get(b"a")]


def forward(names: Names, step: Step) -> AnyChange:
    return names.forget(step.name) if step.word is None else names.prepare(step.name, prepared(step.word))


# --- the rest ---


def test_a_later_meaning_outlives_an_undone_earlier_one() -> None:
    names = Names()
    skipped, later = names.prepare(b"s", prepared("skipped")), names.prepare(b"s", prepared("later"))
    skipped.undo()
    assert statements(names, b"s") == ["later"]
    later.undo()
    assert statements(names, b"s") == [None]


def test_forgetting_all_is_taken_back() -> None:
    names = Names()
    for name in (b"", b"a", b"b"):
        names.prepare(name, prepared("x")).settle()
    changes = names.forget_all()
    assert names.forget_all() == []
    for change in changes:
        change.undo()
    assert statements(names, b"", b"a", b"b") == ["x", "x", "x"]
    for change in names.forget_all():
        change.settle()
    assert statements(names, b"", b"a", b"b") == ["x", None, None]


def test_portals_and_cursors_are_one_to_close() -> None:
    names = Names()
    names.open(b"p", Portal(ruling("portal"))).settle()
    names.declare(b"c", ruling("cursor"), hold=False).settle()
    assert portals(names, b"p", b"c") == ["portal", "cursor"]
    closed = [*names.close(b"p"), *names.close(b"c")]
    for change in closed:
        change.undo()
    assert portals(names, b"p", b"c") == ["portal", "cursor"]
    for change in [*names.close(b"p"), *names.close(b"c")]:
        change.settle()
    assert portals(names, b"p", b"c") == [None, None]


def test_what_may_be_there_still_is_found() -> None:
    names = Names()
    names.prepare(b"s", prepared("old")).settle()
    removal = names.forget(b"s")
    assert statements(names, b"s") == ["old"]
    removal.settle()
    assert statements(names, b"s") == [None]


def test_a_name_is_in_doubt_from_the_next_segment_until_it_is_settled() -> None:
    names = Names()
    names.prepare(b"s", prepared("old")).settle()
    fresh = names.prepare(b"t", prepared("only"))
    names.forget(b"s")
    second = names.prepare(b"s", prepared("new"))
    assert names.doubt(b"s") is None
    names.next_segment()
    assert names.doubt(b"s") is second
    assert names.doubt(b"t") is None
    assert names.doubt(b"nobody") is None
    second.settle()
    assert names.doubt(b"s") is None
    fresh.undo()
    assert statements(names, b"s", b"t") == ["new", None]


def test_a_name_that_means_nobody_knows_what_means_nothing() -> None:
    names = Names()
    names.prepare(b"s", prepared("old")).settle()
    names.prepare(b"s", prepared("new")).settle_unseen()
    names.prepare(b"t", prepared("only")).settle_unseen()
    assert statements(names, b"s", b"t") == [None, "only"]
    names.forget(b"t").settle_unseen()
    assert statements(names, b"t") == ["only"]


def test_only_held_cursors_outlive_their_transaction() -> None:
    names = Names()
    names.open(b"p", Portal(ruling("portal"))).settle()
    names.declare(b"c", ruling("cursor"), hold=False).settle()
    names.declare(b"h", ruling("held"), hold=True).settle()
    names.transaction_ended()
    assert portals(names, b"p", b"c", b"h") == [None, None, "held"]


@pytest.mark.parametrize(
    "add",
    [
        lambda names, name: names.prepare(name, prepared("x")),
        lambda names, name: names.open(name, Portal(ruling("x"))),
        lambda names, name: names.declare(name, ruling("x"), hold=True),
    ],
)
def test_no_live_name_is_forgotten_for_want_of_room(add: Callable[[Names, bytes], AnyChange]) -> None:
    names = Names(limit=3)
    for n in range(3):
        add(names, b"%d" % n).settle()
    add(names, b"1").settle()
    with pytest.raises(TooManyNames):
        add(names, b"3")


def test_what_was_dropped_makes_room() -> None:
    names = Names(limit=1)
    names.prepare(b"a", prepared("x")).settle()
    names.forget(b"a").settle()
    names.prepare(b"b", prepared("y")).settle()
    assert statements(names, b"a", b"b") == [None, "y"]


def test_a_settled_change_keeps_nothing_alive() -> None:
    """Else a connection that prepares the unnamed statement for years would remember each of them."""
    names = Names()
    for word in ("first", "second"):
        change = names.prepare(b"", prepared(word))
        change.settle()
    assert change.before is None


def test_texts_of_live_statements_are_bounded() -> None:
    names = Names(text_limit=10)
    for _ in range(5):
        names.prepare(b"", prepared("x" * 4)).settle()
    names.prepare(b"a", prepared("x" * 5)).settle()
    with pytest.raises(TooManyNames):
        names.prepare(b"b", prepared("x" * 2))
    names.forget(b"a").settle()
    names.prepare(b"b", prepared("x" * 2)).settle()
