from __future__ import annotations

import pytest

from policy.decision import Allow, Reject
from policy.model import Halt, Multiple
from tests.policy.rules.judging import judge, policy_of, violations

RULE = "multiple-statements"
POOL_RESET = "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;"


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("SELECT 1; DELETE FROM orders", 11),
        ("COMMIT; DROP TABLE orders", 9),
        ("SET timezone = 'a;b'; SELECT 1", 23),
        (r"SELECT E'O\'Neil' ; DELETE FROM orders", 21),
        ("SELECT 1 /* a /* b */ c */; SELECT 2", 29),
        ("SHOW timezone; SELECT 1", 16),
        ("SELECT pg_advisory_unlock_all(); SELECT 1", 34),
    ],
)
def test_several_statements_are_refused_whole(sql: str, position: int) -> None:
    decision = judge(sql, policy_of())
    assert isinstance(decision, Reject)
    assert decision.violations[0].rule == RULE
    assert decision.violations[0].position == position
    assert decision.halt is Halt.CLASS_NOT_REPAIRABLE


@pytest.mark.parametrize(
    "sql",
    [
        "SET application_name = 'x'; SET extra_float_digits = 3; SHOW timezone",
        "SELECT 5 ; ; ",
        "SELECT $$; DELETE FROM orders$$ AS t",
        POOL_RESET,
        "UNLISTEN *; DEALLOCATE ALL",
    ],
)
def test_drivers_setting_up_and_pools_cleaning_up_pass(sql: str) -> None:
    assert isinstance(judge(sql, policy_of()), Allow)


def test_every_part_of_a_set_up_string_is_judged() -> None:
    decision = judge("SHOW timezone; SET statement_timeout = 0", policy_of())
    assert isinstance(decision, Reject)
    assert [v.rule for v in decision.violations] == ["setting-not-allowed"]


def test_never_means_never() -> None:
    policy = policy_of(multiple="never")
    assert policy.multiple is Multiple.NEVER
    assert violations("SHOW timezone; SHOW timezone", policy, RULE)


def test_judged_judges_every_part_and_refuses_whole() -> None:
    policy = policy_of(multiple="judged")
    assert isinstance(judge("BEGIN; SELECT id FROM orders; COMMIT", policy), Allow)
    decision = judge("SELECT 1; SELECT * FROM api_keys; SELECT 2", policy)
    assert isinstance(decision, Reject)
    assert [v.rule for v in decision.violations] == ["relation-not-allowed"]


@pytest.mark.parametrize(
    "sql",
    [
        "SET search_path = public; SELECT id FROM orders",
        "SELECT set_config('search_path', 'public', false); SELECT id FROM orders",
    ],
)
def test_judged_refuses_names_that_move_within_the_string(sql: str) -> None:
    (found,) = violations(sql, policy_of(multiple="judged"), RULE)
    assert "search_path" in found.message


def test_judged_lets_search_path_change_among_settings_alone() -> None:
    assert isinstance(
        judge("SET search_path = public; SET timezone = 'UTC'", policy_of(multiple="judged")), Allow
    )
