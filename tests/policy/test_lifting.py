"""Digits and comments that do not matter to a decision: which they are, and that it is the same without."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from policy.cost import asked_like, question
from policy.decision import Allow, Decision, Situation, decide
from policy.lifting import COMMENT, MAX_SPANS, MAX_TEXT, Lifted, comments, shape, spans
from policy.model import CostLimits, Mode, Policy
from policy.names import PathNames
from policy.parse import parse
from tests.policy.rules.judging import policy_of
from tests.policy.rules.schema import CATALOG, READER, names

POLICY = policy_of(READER)
PATH = PathNames((("public",),))


def decided(sql: str, policy: Policy = POLICY) -> Decision:
    return decide(policy, Situation("agent", PATH), parse(sql))


def lifted(sql: str) -> list[str]:
    decision = decided(sql)
    assert isinstance(decision, Allow)
    return [sql[start:end] for start, end in spans(decision)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT total FROM orders WHERE id = 12345", ["12345"]),
        ("SELECT total FROM orders WHERE id=5;", ["5"]),
        ("SELECT total FROM orders WHERE 5=id", ["5"]),
        ("\tSELECT 1, total\nFROM orders o WHERE o.id = 7 AND customer_id <> 9 LIMIT 3 OFFSET 4", ["7", "9"]),
        ("SELECT total FROM orders WHERE (id >= 1 AND (id < 10 AND total != 3)) AND 2 <= customer_id",
         ["1", "10", "3", "2"]),
        ("SELECT total FROM orders WHERE id = 007", ["007"]),
        ("SELECT total FROM orders WHERE id = 0", ["0"]),
        ("SELECT total FROM orders WHERE id=999999999", ["999999999"]),
        ("SELECT total FROM orders WHERE id = /* 4 */ 5", ["5"]),
        ("/*a*/ SELECT total FROM orders WHERE id = 5/*b='1'*/", ["5"]),
        ("SELECT total FROM orders WHERE id=+5", []),
        ("SELECT total FROM orders WHERE id = 5 ORDER BY 1", ["5"]),
        ("SELECT count(*) FROM orders WHERE id = 5 GROUP BY status HAVING count(*) > 2", ["5"]),
        ("SELECT o.id FROM orders o JOIN customers c ON c.id = 4 WHERE o.id = 5 LIMIT 6", ["5"]),
    ],
)  # fmt: skip
def test_numbers_that_a_column_is_compared_to(sql: str, expected: list[str]) -> None:
    assert lifted(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 5",
        "SELECT total FROM orders LIMIT 100",
        "SELECT total FROM orders ORDER BY 1",
        "SELECT total FROM orders WHERE 1 = 1",
        "SELECT total FROM orders WHERE id = 5 OR 1=1",
        "SELECT total FROM orders WHERE id = 5 OR id = 6",
        "SELECT total FROM orders WHERE NOT id = 5",
        "SELECT total FROM orders WHERE (id = 5) IS TRUE",
        "SELECT total FROM orders WHERE id = -5",
        "SELECT total FROM orders WHERE id =- 5",
        "SELECT total FROM orders WHERE id = 5 + 1",
        "SELECT total FROM orders WHERE id + 1 = customer_id",
        "SELECT total FROM orders WHERE id IN (1, 2, 3)",
        "SELECT total FROM orders WHERE id BETWEEN 1 AND 5",
        "SELECT total FROM orders WHERE id = ANY (ARRAY[1, 2])",
        "SELECT total FROM orders WHERE id = 2147483647",
        "SELECT total FROM orders WHERE id = 1234567890",
        "SELECT total FROM orders WHERE id = 5e3",
        "SELECT total FROM orders WHERE id = 5.0",
        "SELECT total FROM orders WHERE id = 5.",
        "SELECT total FROM orders WHERE id = .5",
        "SELECT total FROM orders WHERE id = 0x10",
        "SELECT total FROM orders WHERE id = 1_000",
        "SELECT total FROM orders WHERE id = 5::int8",
        "SELECT total FROM orders WHERE id = CAST(5 AS numeric(3))",
        "SELECT total FROM orders WHERE id = '5'",
        "SELECT total FROM orders WHERE id = 5 AND status = 'x'",
        "SELECT total FROM orders WHERE id = 5 -- 6",
        "SELECT total AS \"a\" FROM orders WHERE id = 5",
        "SELECT total FROM orders WHERE id = $1",
        "SELECT total AS \u00fc FROM orders WHERE id = 5",
        "SELECT lpad(status, 400) FROM orders WHERE id = 5",
        "SELECT total FROM orders WHERE id = (SELECT 5)",
        "SELECT total FROM (SELECT * FROM orders WHERE id = 5) o",
        "SELECT total FROM orders WHERE id = 5 UNION SELECT total FROM orders WHERE id = 6",
        "EXPLAIN SELECT total FROM orders WHERE id = 5",
        "PREPARE p AS SELECT total FROM orders WHERE id = 5",
        "SELECT total FROM orders WHERE id = 5; SELECT 6",
        "SELECT total FROM orders WHERE " + " AND ".join(["id = 5"] * (MAX_SPANS + 1)),
        "SELECT total FROM orders WHERE id = 5" + " " * MAX_TEXT,
    ],
)  # fmt: skip
def test_numbers_that_may_matter_stay(sql: str) -> None:
    assert spans(decided(sql)) == ()


def test_a_refusal_has_none() -> None:
    for sql in ("DELETE FROM orders WHERE id = 5", "SELECT secret FROM api_keys WHERE id = 5", "SELEC 5"):
        assert spans(decided(sql)) == ()


def test_nor_has_what_was_let_through_with_a_word() -> None:
    joined = "SELECT * FROM orders o JOIN customers c ON c.id = o.id WHERE o.id = 5"
    decision = decided(joined)
    assert isinstance(decision, Allow)
    assert [v.rule for v in decision.warnings] == ["unbounded-join"]
    assert spans(decision) == ()
    observing = policy_of(READER + "mode: observe\n")
    assert observing.mode is Mode.OBSERVE
    denied = decided("SELECT salary FROM employees WHERE id = 5", observing)
    assert isinstance(denied, Allow)
    assert denied.observed
    assert spans(denied) == ()


def test_what_came_of_another_text_is_no_origin_of_a_third() -> None:
    first = decided("SELECT total FROM orders WHERE id = 5")
    assert isinstance(first, Allow)
    query = Lifted("SELECT total FROM orders WHERE id = 6", first.query)
    assert spans(Allow(query, first.statement_class)) == ()


TRACE = "traceparent='00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (f"SELECT total FROM orders WHERE id = 5 /*{TRACE}*/", [TRACE]),
        (f"/*{TRACE}*/SELECT total FROM orders WHERE id = $1;", [TRACE]),
        ('SELECT/*a*/total/**/FROM orders /* "b$$ */', ["a", "", ' "b$$ ']),
        ("SELECT total -/*a*/- 1 FROM orders WHERE status = 'it''s /* x' /*'b*/", ["a", "'b"]),
        ('SELECT total */*a*/ 2 AS "/* x" FROM orders /*b -- \\ c\n*/', ["a", "b -- \\ c\n"]),
        ("SELECT total FROM orders", []),
    ],
)
def test_comments_that_may_say_something_else(sql: str, expected: list[str]) -> None:
    assert [sql[start:end] for start, end in comments(decided(sql))] == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT total FROM orders /* a /* b */ c */",
        "SELECT total FROM orders /* a * b */",
        "SELECT total FROM orders /* a / b */",
        "SELECT total FROM orders /*/ a */",
        "SELECT total FROM orders /** a */",
        "SELECT total FROM orders /* a **/",
        "/*+ SeqScan(orders) */ SELECT total FROM orders WHERE id = 5",
        "SELECT total FROM orders /* \u00fc */",
        "SELECT total AS \u00fc FROM orders /* a */",
        "SELECT total FROM orders -- /* a */",
        "SELECT total FROM orders /* a */ -- b",
        "SELECT total FROM orders WHERE status = $$/* a */$$ /* b */",
        "SELECT total FROM orders WHERE status = $x$/* a */$x$ /* b */",
        "SELECT total FROM orders WHERE status = E'\\' /* a */ ' /* b */",
        "SELECT total FROM orders WHERE status = '\\' /* b */",
        "SELECT total FROM orders /* a */; SELECT 6",
        "EXPLAIN SELECT total FROM orders /* a */",
        "SELECT total FROM orders " + "/* a */" * (MAX_SPANS + 1),
        "SELECT total FROM orders /* a */" + " " * MAX_TEXT,
    ],
)
def test_comments_that_may_matter_stay(sql: str) -> None:
    assert comments(decided(sql)) == ()


COLUMNS = st.sampled_from(("id", "customer_id", "o.id", "total"))
SMALL = st.integers(0, 10**9 - 1).map(str)
ODD = ("0", "00", "007", "999999999", "1000000000", "2147483648", "5e3", "5.0", "0x1f", "1_000", "-5", "- 5")
NUMBERS = st.one_of(st.integers(0, 10**12).map(str), st.sampled_from(ODD))
EQUAL = st.sampled_from(("=", " = ", "<>", "=-", "<", " >= ", "!=", "= \n"))
AFTER = st.sampled_from(("::text", "::int8", "+1", "%2"))
COMPARED = st.one_of(
    st.tuples(COLUMNS, EQUAL, NUMBERS),
    st.tuples(NUMBERS, st.sampled_from(("=", " = ", "<")), COLUMNS),
    st.tuples(NUMBERS, st.just("="), NUMBERS),
    st.tuples(COLUMNS, st.just(" IN ("), NUMBERS, st.just(","), NUMBERS, st.just(")")),
    st.tuples(COLUMNS, st.just(" = "), NUMBERS, AFTER),
    st.tuples(st.just("abs("), NUMBERS, st.just(") = "), COLUMNS),
).map("".join)
CONDITIONS = st.tuples(
    st.builds("{}{}{}".format, COLUMNS, st.sampled_from(("=", " < ", "<>")), SMALL),
    st.lists(COMPARED, max_size=3),
    st.sampled_from((" AND ", " and\t", " OR ", " AND NOT ")),
).map(lambda drawn: f"{drawn[0]} AND ({drawn[2].join(drawn[1])})" if drawn[1] else drawn[0])
SELECTS = st.builds(
    "SELECT {}{} FROM orders o WHERE {}{}".format,
    st.sampled_from(("*", "total", "id, 1", "round(total, 2)", "id = 5")),
    st.sampled_from(("", ", 12", ", 3 AS c1")),
    CONDITIONS,
    st.sampled_from(
        ("", ";", " LIMIT 10", " ORDER BY 1 LIMIT 100000000", " OFFSET 5", " FETCH FIRST 3 ROWS ONLY")
    ),
)


WORDS = (
    "SELECT",
    "total",
    "*",
    "2",
    "FROM",
    "orders",
    "o",
    "WHERE",
    "id",
    "=",
    "-",
    "5",
    "AND",
    "status",
    "=",
    "'it''s /*'",
)
BETWEEN = st.sampled_from(
    (" ", "\n", " /*a*/", "/*'*/ ", '/*b="2"*/', "/**/ ", "/*-- c*/ ", "/*$$*/", " /*0;*/", "/*\\*/")
)
COMMENTED = st.lists(BETWEEN, min_size=len(WORDS), max_size=len(WORDS)).map(
    lambda drawn: "".join(word + gap for word, gap in zip(WORDS, drawn, strict=True)) + "/*end*/"
)
SPOKEN = st.text(st.characters(max_codepoint=127), min_size=1, max_size=20)


@given(COMMENTED, st.lists(SPOKEN, min_size=1, max_size=4))
@example("SELECT total FROM orders WHERE id = 5 /*0123456789*/", ["*/ OR 1=1 /*"])
@example("SELECT total */*a*/1 FROM orders -/*b*/1 ", ["+", "-", "'"])
def test_whatever_else_comments_say_the_decision_is_the_same(sql: str, spoken: list[str]) -> None:
    situation = Situation("agent", names("public"))
    first = decide(POLICY, situation, parse(sql))
    places = comments(first)
    assume(places)
    other = list(sql)
    for n, (start, end) in enumerate(places):
        said = (spoken[n % len(spoken)] * (end - start))[: end - start]
        if COMMENT.fullmatch(said.encode()):
            other[start:end] = said
    text = "".join(other)
    assert shape(text.encode()) == shape(sql.encode())
    parsed = parse(text)
    assert Lifted(text, first.query) == parsed
    by_itself = decide(POLICY, situation, parsed)
    assert by_itself == Allow(parsed, first.statement_class, basis=first.basis)
    assert comments(by_itself) == places


def redrawn(sql: str, places: tuple[tuple[int, int], ...], seed: int) -> str:
    """``sql`` with other digits in ``places``."""
    drawn = random.Random(seed)
    edges = (0, *(edge for place in places for edge in place), len(sql))
    return "".join(
        "".join(drawn.choices("0123456789", k=end - start)) if n % 2 else sql[start:end]
        for n, (start, end) in enumerate(pairwise(edges))
    )


@settings(deadline=None)
@given(SELECTS, st.integers(0, 1 << 30))
@example("SELECT total FROM orders o WHERE id = 10 AND 7 <total", 3)
@example("SELECT total FROM orders o WHERE id = 999999999 LIMIT 100000000", 5)
def test_other_digits_make_the_same_decision(sql: str, seed: int) -> None:
    known = names("public")
    situation = Situation("agent", known)
    first = decide(POLICY, situation, parse(sql))
    places = spans(first)
    assume(places)
    other = redrawn(sql, places, seed)
    parsed = parse(other)
    query = Lifted(other, first.query)
    assert query == parsed
    assert parsed == query
    assert query.statements == parsed.statements
    by_itself = decide(POLICY, situation, parsed)
    assert isinstance(by_itself, Allow)
    assert by_itself == Allow(query, first.statement_class, basis=first.basis)
    priced = policy_of(READER + "cost: {max_total_cost: 10}\n")
    asked = question(first.query.statements[0], priced, known, CATALOG)
    assert asked is not None
    assert asked_like(asked, query.statements[0]) == question(parsed.statements[0], priced, known, CATALOG)
    assert priced.cost != CostLimits()
