from __future__ import annotations

import pytest

from policy.model import Halt, StatementClass
from tests.policy.rules.judging import judge, passes, policy_of, violations

RULE = "class-not-allowed"


@pytest.mark.parametrize(
    ("sql", "classes"),
    [
        ("DELETE FROM orders WHERE id = 1", ["delete"]),
        ("INSERT INTO orders (id) VALUES (1)", ["insert"]),
        ("WITH d AS (DELETE FROM orders WHERE id = 1 RETURNING id) SELECT * FROM d", ["delete"]),
        ("MERGE INTO a USING b ON a.i = b.i WHEN MATCHED THEN DELETE", ["delete", "merge"]),
        ("EXPLAIN ANALYZE DELETE FROM orders WHERE id = 1", ["delete"]),
        ("SELECT id FROM orders FOR UPDATE", ["lock"]),
        ("SELECT id INTO copied FROM orders", ["ddl"]),
        ("COPY (DELETE FROM orders WHERE id = 1 RETURNING id) TO STDOUT", ["delete"]),
        ("PREPARE p AS DELETE FROM orders WHERE id = $1", ["delete"]),
        ("DO 'BEGIN END'", ["do"]),
        ("CALL close_day('2025-01-01')", ["call"]),
        ("LISTEN orders", ["notify"]),
        ("VACUUM orders", ["maintenance"]),
        ("PREPARE TRANSACTION 'x'", ["other"]),
    ],
)
def test_every_class_without_an_allow_row_is_told_the_most_dangerous_first(
    sql: str, classes: list[str]
) -> None:
    found = violations(sql, policy_of(), RULE)
    assert [v.message for v in found] == [
        f"Statements of class {name} are not allowed by policy reader" for name in classes
    ]


@pytest.mark.parametrize(
    ("sql", "halt", "hint"),
    [
        ("DROP TABLE orders", Halt.APPROVAL_REQUIRED, "approval"),
        ("GRANT ALL ON orders TO PUBLIC", Halt.RUNBOOK_REQUIRED, "runbook"),
        ("DELETE FROM orders WHERE id = 1", Halt.CLASS_NOT_REPAIRABLE, "select, copy_out"),
    ],
)
def test_what_needs_a_person_says_so(sql: str, halt: Halt, hint: str) -> None:
    (found,) = violations(sql, policy_of(), RULE)
    assert found.halt is halt
    assert hint in found.hint
    assert not found.repairable


def test_the_place_and_the_policy_line_are_given() -> None:
    policy = policy_of()
    (found,) = violations("WITH d AS (DELETE FROM orders WHERE id = 1) SELECT 1", policy, RULE)
    assert found.position == 24
    (found,) = violations("DROP TABLE orders", policy, RULE)
    assert found.line == policy.row(StatementClass.DDL).line == 6


@pytest.mark.parametrize(
    "sql",
    [
        "UNLISTEN *",
        "UNLISTEN orders",
        "CLOSE ALL",
        "CLOSE c",
        "DEALLOCATE ALL",
        "RESET ALL",
        "DISCARD ALL",
        "SELECT pg_advisory_unlock_all()",
        "SELECT pg_catalog.pg_advisory_unlock_all()",
    ],
)
def test_undoing_the_sessions_own_doing_needs_no_row(sql: str) -> None:
    passes(sql, policy_of(statements="{explain: allow}", functions="{allow: []}"))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT pg_advisory_unlock_all(), id FROM orders",
        "SELECT pg_advisory_unlock_all() FROM orders",
        "SELECT pg_advisory_unlock(1)",
        "FETCH ALL FROM c",
        "EXECUTE p",
        "SET timezone = 'UTC'",
        "RESET timezone",
    ],
)
def test_anything_more_needs_its_row(sql: str) -> None:
    assert violations(sql, policy_of(statements="{explain: allow}"), RULE)


def test_a_policy_that_allows_nothing_says_so() -> None:
    (found,) = violations("SELECT 1", policy_of(statements="{}"), RULE)
    assert "no statement at all" in found.hint


def test_the_class_of_a_rejection_is_the_most_dangerous_of_the_string() -> None:
    decision = judge("SELECT 1; DROP TABLE orders; SELECT 2", policy_of())
    assert decision.statement_class is StatementClass.DDL
