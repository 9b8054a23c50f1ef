"""What two forms must have in common to be the same: never less than the reasoning would find."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policy.implication import Reasoning, contradict
from policy.likeness import Effort, recognisable
from policy.signatures import Index, signature
from policy.terms import Form
from tests.policy.repairing import made, refused

_WORDS = st.sampled_from(["1", "2", "2027-03-01", "open"])
_OWNERS = st.sampled_from(["0:public.orders#1", "1:public.orders#1", "?0", "?1", "!o", "*"])
_NAMES = st.sampled_from(["id", "total", "*"])
_LEAVES = st.one_of(
    st.tuples(st.sampled_from(["num", "text"]), _WORDS),
    st.tuples(st.just("typed"), st.sampled_from(["date", "timestamp", "bytea"]), _WORDS),
    st.tuples(st.just("bool"), st.booleans()),
    st.just(("null",)),
    st.just(("param", 1)),
    st.tuples(st.just("col"), _OWNERS, _NAMES),
)
_SYMBOLS = st.sampled_from(["=", "<>", "<", ">", "<=", ">=", "~~"])
FORMS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("op"), _SYMBOLS, inner, inner),
        st.tuples(st.just("in"), inner, st.lists(inner, max_size=3).map(tuple)),
        st.tuples(st.just("call"), st.sampled_from(["pg_catalog.lower", "f"]), inner),
        st.tuples(st.just("fault"), inner),
    ),
    max_leaves=6,
)


def other_spelling(form: Any, choose: st.DrawFn) -> Any:
    """``form`` with what the reasoning takes for the same in the place of some of its parts."""
    if not isinstance(form, tuple) or not form:
        return form
    if form[0] in ("num", "text"):
        return (choose(st.sampled_from(["num", "text"])), form[1])
    if form[0] == "col":
        return ("col", choose(_OWNERS), form[2])
    if form[0] == "op" and choose(st.booleans()):
        turned = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
        if form[1] in turned:
            return ("op", turned[form[1]], *(other_spelling(side, choose) for side in form[:1:-1]))
    return tuple(other_spelling(part, choose) for part in form)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Form, Form]:
    form = draw(FORMS)
    return form, other_spelling(form, draw) if draw(st.booleans()) else draw(FORMS)


@given(pairs())
def test_forms_that_are_the_same_have_one_signature(pair: tuple[Form, Form]) -> None:
    signed = [signature(form) for form in pair]
    if None not in signed and signed[0] != signed[1]:
        assert not Reasoning().same(*pair)
        assert not Reasoning().same(*reversed(pair))


@given(FORMS, st.lists(FORMS, max_size=6))
def test_an_index_finds_what_a_look_at_each_would(form: Form, forms: list[Form]) -> None:
    same = Reasoning().same
    assert Index(forms, same).holds(form) is any(same(form, other) for other in forms)


@given(FORMS, st.integers(1, 3))
def test_what_was_taken_is_not_found_again(form: Form, times: int) -> None:
    index = Index([form] * times, Reasoning().same)
    if Reasoning().same(form, form):
        assert [index.take(form) for _ in range(times + 1)] == [*[True] * times, False]


def test_two_long_lists_are_compared_without_comparing_each_with_each() -> None:
    def held_to(start: int) -> list[Form]:
        values = tuple(("num", str(n)) for n in range(start, start + 1_900))
        return [("in", ("col", "0:public.orders#1", "id"), values)]

    reasoning = Reasoning()
    assert contradict(reasoning, held_to(0), held_to(5_000))
    assert not contradict(reasoning, held_to(0), held_to(1_000))
    assert reasoning.taken < 100


def test_what_is_told_by_its_type_alone_is_still_another_value() -> None:
    """One signature says only that it is worth asking."""
    seven, text = ("num", "7"), ("bool", "7")
    assert signature(seven) == signature(text)
    assert not Index([text], Reasoning().same).holds(seven)


def test_effort_that_is_spent_recognises_nothing_more() -> None:
    first, finding = refused("SELECT id, totl FROM orders WHERE status = 'open'", "totl", ("total",))
    second = made("SELECT id, total FROM orders WHERE status = 'open'")
    effort = Effort(1_000)
    assert recognisable(first, finding, second, effort)
    while not effort.spent:
        recognisable(first, finding, second, effort)
    assert not recognisable(first, finding, second, effort)
