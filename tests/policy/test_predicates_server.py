"""What is said to hold for every row does, and what for none for none, by PostgreSQL's own word."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import psycopg
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policy.predicates import Narrowing
from tests.policy.conditions import TABLES, Pick, pair
from tests.policy.test_predicates import judge_where
from tests.support.postgres import Server

FULL: Final = "CREATE TEMP TABLE full_rows AS SELECT * FROM t WHERE t IS NOT NULL"
"""What is derived from a column alone, such as ``a = a``, is not true where that is null."""


@pytest.fixture(scope="module")
def server(postgres15: Server) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres15.shop.dsn(), autocommit=True) as connection:
        connection.execute(f"{TABLES}; {FULL}")
        yield connection


def counted(server: psycopg.Connection, conditions: Sequence[str], table: str) -> list[int]:
    """The rows that each condition leaves."""
    counts = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in conditions)
    found = server.execute(f"SELECT {counts} FROM {table} AS t").fetchone()
    assert found is not None
    return list(found)


# Conditions of which many hold for every row, or for none -------------------------------------------------

_TERMS: Final = (
    "a", "b", "a + 1", "1 + a", "a - a", "b * 0", "2 * a", "(a + b)", "(SELECT a)", "coalesce(b, 1)", "0",
    "1", "-1", "2", "abs(a)", "CASE WHEN f THEN 1 ELSE 0 END", "f::int",
)  # fmt: skip
_OWN: Final = (
    "a IN (SELECT a FROM t)",
    "a IN (SELECT DISTINCT a FROM t)",
    "EXISTS (SELECT 1 FROM t AS s WHERE s.a = t.a)",
    "EXISTS (SELECT 1 FROM t AS s WHERE s.a = t.a AND s.b > t.b)",
    "EXISTS (SELECT 1 FROM t AS s WHERE s.a > t.a)",
    "NOT EXISTS (SELECT 1 FROM t AS s WHERE s.a = t.a + 1)",
    "a >= (SELECT max(s.a) FROM t AS s WHERE s.b = t.b)",
    "a IN (SELECT x FROM u WHERE false)",
    "a NOT IN (SELECT x FROM u WHERE false)",
    "EXISTS (SELECT 1)",
    "EXISTS (SELECT count(*) FROM u WHERE false)",
)
_TESTS: Final = (
    "IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS UNKNOWN", "IS NOT UNKNOWN", "IS NULL", "= true",
    "<> false", "= false", ">= false", "> false", "<= true", "= 't'", "IS DISTINCT FROM false",
    "IS NOT DISTINCT FROM true", "IS DISTINCT FROM NULL",
)  # fmt: skip


def often_true(pick: Pick, depth: int = 3) -> str:
    if depth == 0 or pick((True, False)):
        return pick(_LEAVES)(pick)
    inner = [often_true(pick, depth - 1) for _ in range(3)]
    return pick(
        (
            f"({inner[0]}) AND ({inner[1]})",
            f"({inner[0]}) OR ({inner[1]})",
            f"NOT ({inner[0]})",
            f"({inner[0]}) {pick(_TESTS)}",
            f"{pick(('true', 'false'))} {pick(('=', '<>'))} ({inner[0]})",
            f"CASE WHEN {inner[0]} THEN {inner[1]} ELSE {inner[2]} END",
            f"CASE WHEN {inner[0]} THEN {inner[1]} END",
            f"CASE WHEN {inner[0]} THEN 1 ELSE 0 END = {pick(('0', '1', '2'))}",
            f"CASE {pick(('a', 'b'))} WHEN {pick(('a', '1'))} THEN {inner[0]} ELSE {inner[1]} END",
            f"coalesce(({inner[0]}), ({inner[1]}))",
            f"({inner[0]})::int {pick(('=', '>', '>=', '<>'))} {pick(('0', '1'))}",
            f"({inner[0]})::text = '{pick(('true', 'false'))}'",
            f"(({inner[0]})::int)::boolean",
        )
    )


def _compared(pick: Pick) -> str:
    return f"{pick(_TERMS)} {pick(('=', '<>', '<', '<=', '>', '>='))} {pick(_TERMS)}"


def _listed(pick: Pick) -> str:
    joined = ", ".join(pick(_TERMS) for _ in range(pick((1, 2, 3))))
    return f"{pick(_TERMS)} {pick(('IN', 'NOT IN'))} ({joined})"


def _between(pick: Pick) -> str:
    return f"{pick(_TERMS)} {pick(('BETWEEN', 'NOT BETWEEN'))} {pick(_TERMS)} AND {pick(_TERMS)}"


def _tested(pick: Pick) -> str:
    return f"{pick(_TERMS)} {pick(('IS NULL', 'IS NOT NULL', 'IS DISTINCT FROM NULL', 'IS DISTINCT FROM a'))}"


_LEAVES: Final[tuple[Callable[[Pick], str], ...]] = (
    _compared,
    _compared,
    _listed,
    _between,
    _tested,
    lambda pick: pick(_OWN),
    lambda pick: pick(("true", "false", "f", "NOT f", "f = f", "NULL::boolean", "f >= false", "s LIKE '%'")),
    lambda pick: pair(pick, 0)[0],
)


@settings(max_examples=8, deadline=None, phases=(Phase.generate,))
@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_what_is_called_always_or_never_is(server: psycopg.Connection, seed: int) -> None:
    chance = random.Random(seed)
    conditions = [often_true(chance.choice) for _ in range(150)]
    judged = [judge_where(condition) for condition in conditions]
    # Else nothing is said of anything.
    assert min(judged.count(Narrowing.ALWAYS), judged.count(Narrowing.NEVER)) > 3
    rows = counted(server, ["true", *conditions], "full_rows")
    wrong = [
        condition
        for condition, found, left in zip(conditions, judged, rows[1:], strict=True)
        if (found is Narrowing.ALWAYS and left != rows[0]) or (found is Narrowing.NEVER and left)
    ]
    assert min(wrong, key=len, default=None) is None
