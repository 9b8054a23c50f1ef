"""The rows of a series whose bounds the planner does not estimate."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest

from policy.parse import trees
from policy.series import DEFAULT_ROWS, series_rows

TODAY = date(2026, 11, 30)


def rows(arguments: str) -> float:
    (tree,) = trees(f"SELECT f({arguments})")
    call: dict[str, Any] = tree["SelectStmt"]["targetList"][0]["ResTarget"]["val"]["FuncCall"]
    return series_rows(call["args"], lambda names: 1000 if names[0] == "stored" else math.inf, TODAY)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("1, 5", 5),
        ("5, 1, -1", 5),
        ("'1'::numeric, '1000000000'::numeric", 1e9),
        ("1, 10, 0", math.inf),
        ("1, 10, 0.5", 19),
        ("1, stored.n", 1002),
        ("1, stored.n * 1000000", 1e9 + 2),
        ("1, made.n", math.inf),
        ("1, array_length(x, 1)", 1002),
        ("1", math.inf),
        ("'1900-01-01 00:00:00+00'::timestamptz, '2100-01-01 00:00:00+00'::timestamptz, '00:00:01'::interval",
         6_311_433_601),
        ("'2025-03-01'::timestamptz, '2025-03-14'::timestamptz, '1 day'::interval", 14),
        ("'2025-03-01'::date, '2025-03-01'::date, '@ 1 year'::interval", 1),
        ("(now() - '30 days'::interval), now(), '1 day'::interval", 31),
        ("(CURRENT_DATE - 30), CURRENT_DATE, '1 day'::interval", 31),
        ("date_trunc('month', now()) - '1 year'::interval, now(), '1 mon'::interval", 365.25 / 30 + 1),
        ("'2026-11-30'::date, CURRENT_DATE, '1 second'::interval", 1),
        ("now(), '294276-12-31'::timestamptz, '1 second'::interval", 9.2e12),
        ("min(t), max(t), '7 days'::interval", DEFAULT_ROWS),
        ("min(t), max(t), '1 mon 2 days 03:00:00'::interval", DEFAULT_ROWS),
        ("min(t), max(t), '01:00:00'::interval", math.inf),
        ("now(), now(), '0'::interval", math.inf),
        ("now(), now(), x", math.inf),
    ],
)  # fmt: skip
def test_how_many_rows(arguments: str, expected: float) -> None:
    assert rows(arguments) == pytest.approx(expected, rel=0.01)


def test_a_year_that_no_calendar_has() -> None:
    assert rows("'2025-02-30'::date, now(), '1 second'::interval") == math.inf


def test_an_interval_as_long_as_a_statement_is_none() -> None:
    """Read by pattern it would take hours."""
    assert rows(f"now(), now(), '{'1' * 900_000}'::interval") == math.inf
