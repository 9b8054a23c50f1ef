"""A repair that is called kept reaches no row that the first statement would not, by PostgreSQL's own word.

Pairs of near statements (``conditions``) are compared; of those that are kept, many at a time, the server
says whether the second reaches a row beyond the first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policy.model import Halt
from tests.policy.conditions import TABLES, Near, pair, statements
from tests.policy.repairing import judged
from tests.support.postgres import Server

KEPT = (None, Halt.UNCHANGED)
seeds = st.integers(min_value=0, max_value=2**32 - 1)


@pytest.fixture(scope="module")
def server(postgres15: Server) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres15.shop.dsn(), autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def kept(near: Near) -> bool:
    return near.statements[0] != near.statements[1] and judged(*near.statements) in KEPT


def shortest(beyond: list[Near]) -> Near | None:
    return min(beyond, key=lambda near: sum(map(len, near.statements)), default=None)


@settings(max_examples=6, deadline=None, phases=(Phase.generate,))
@given(seed=seeds)
def test_no_condition_that_is_kept_lets_another_row_through(server: psycopg.Connection, seed: int) -> None:
    chance = random.Random(seed)
    tried = [pair(chance.choice) for _ in range(100)]
    held = [
        Near((f"DELETE FROM t WHERE {first}", f"DELETE FROM t WHERE {second}"), (first, second))
        for first, second in tried
    ]
    held = [near for near in held if kept(near)]
    # Else nothing is said of anything.
    assert len(held) > 5
    counts = ", ".join(
        f"count(*) FILTER (WHERE ({second}) AND ({first}) IS NOT TRUE)" for _, (first, second) in held
    )
    beyond = server.execute(f"SELECT {counts} FROM t").fetchone()
    assert beyond is not None
    assert shortest([near for near, rows in zip(held, beyond, strict=True) if rows]) is None


@settings(max_examples=6, deadline=None, phases=(Phase.generate,))
@given(seed=seeds)
def test_no_statement_that_is_kept_reaches_another_row(server: psycopg.Connection, seed: int) -> None:
    chance = random.Random(seed)
    held = [near for near in (statements(chance.choice) for _ in range(50)) if kept(near)]
    assert len(held) > 3
    differences = ", ".join(f"EXISTS (({second}) EXCEPT ({first}))" for _, (first, second) in held)
    beyond = server.execute(f"SELECT {differences}").fetchone()
    assert beyond is not None
    assert shortest([near for near, more in zip(held, beyond, strict=True) if more]) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a > 1", "a >= 1"),
        ("a = 1 AND b = 1", "a = 1 OR b = 1"),
        ("s = 'a'", "s ILIKE 'a'"),
        ("f", "f IS NOT FALSE"),
        ("d <= '2025-01-01'", "d <= '2025-01-02'"),
        ("a IN (SELECT x FROM u WHERE y = 0)", "a IN (SELECT x FROM u)"),
    ],
)
def test_the_rows_tell_what_is_wider(server: psycopg.Connection, first: str, second: str) -> None:
    """What is no repair can be seen on these rows: so the properties above can fail."""
    beyond = server.execute(f"SELECT count(*) FROM t WHERE ({second}) AND ({first}) IS NOT TRUE").fetchone()
    assert beyond is not None
    assert beyond[0] > 0
    assert judged(f"DELETE FROM t WHERE {first}", f"DELETE FROM t WHERE {second}") is Halt.PREDICATE_WEAKENED
