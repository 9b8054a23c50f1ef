"""How the rules about what a statement does as it runs say it."""

from __future__ import annotations

import json

import pytest

from policy.decision import refuse
from policy.loader import load
from policy.model import Violation
from policy.names import PathNames
from policy.parse import parse
from policy.rejection import reject
from policy.rules import affected_rows_over_limit, result_over_limit
from tests.policy.rules.judging import WRITER, violations

POLICY = load(WRITER + "limits: {result_rows: 10000, result_bytes: 2MiB, affected_rows: 25}\n", "writer.yaml")
NAMES = PathNames((("public",),))


@pytest.mark.parametrize(
    ("violation", "says"),
    [
        (result_over_limit.exceeded(POLICY, by_rows=True), "10,000 rows"),
        (result_over_limit.exceeded(POLICY, by_rows=False), "2,097,152 bytes"),
        (affected_rows_over_limit.exceeded(POLICY, 26), "26 rows, the limit is 25"),
    ],
)
def test_the_rejection_names_the_limit_and_leaves_one_repair(violation: Violation, says: str) -> None:
    query = parse(b"UPDATE orders SET a = 1 WHERE id = 7", 1 << 20)
    said = reject(refuse(POLICY, NAMES, query, (violation,)), "c1-1", POLICY)
    assert said.sqlstate == "57014"
    assert says in said.message
    assert said.line == POLICY.limits.line > 0
    assert said.hint.endswith("there is no second attempt.")
    assert json.loads(said.detail)["repair"]["allowed"] is True


def test_what_cannot_be_counted_says_how_to_ask() -> None:
    assert "one go" in affected_rows_over_limit.uncounted(POLICY).hint


@pytest.mark.parametrize(
    ("limits", "sql", "refused"),
    [
        ("{affected_rows: 3}", "SELECT 1; UPDATE t SET a = 1 WHERE b = 2", True),
        ("{result_rows: 3}", "INSERT INTO t VALUES (1); SELECT 1", True),
        ("{affected_rows: 3}", "SELECT 1; EXECUTE p", True),
        ("{affected_rows: 3}", "SELECT 1; SELECT 2", False),
        ("{lock_timeout: 3s}", "SELECT 1; UPDATE t SET a = 1 WHERE b = 2", False),
    ],
)
def test_where_rows_are_counted_a_write_stands_alone(limits: str, sql: str, refused: bool) -> None:
    policy = load(WRITER + f"multiple: judged\nlimits: {limits}\n", "writer.yaml")
    assert bool(violations(sql, policy, "multiple-statements")) is refused
