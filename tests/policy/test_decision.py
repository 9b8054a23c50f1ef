from __future__ import annotations

from collections.abc import Iterator

import pytest

from policy import rules
from policy.decision import MAX_VIOLATIONS, Allow, Basis, Reject, Situation, decide
from policy.facts import Facts
from policy.model import Halt, Policy, RuleLevel, StatementClass, Violation
from policy.names import Names, PathNames
from policy.parse import parse
from policy.rules import PRECEDENCE
from tests.policy.rules.judging import READER, WRITER, judge, policy_of


def test_what_nothing_objects_to_is_allowed() -> None:
    decision = judge("SELECT id FROM orders", policy_of())
    assert decision == Allow(decision.query, StatementClass.SELECT, basis=Basis(paths=(("public",),)))


def test_all_objections_are_told_the_one_to_read_first_first() -> None:
    decision = judge("DELETE FROM api_keys WHERE pg_sleep(1) IS NULL AND 1 = 1", policy_of())
    assert isinstance(decision, Reject)
    assert [v.rule for v in decision.violations] == [
        "class-not-allowed",
        "access-read-only",
        "relation-not-allowed",
        "function-not-allowed",
        "tautology-predicate",
    ]
    assert decision.halt is Halt.CLASS_NOT_REPAIRABLE
    assert decision.statement_class is StatementClass.DELETE


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("COPY api_keys TO '/tmp/x'", "server-file"),
        ("COPY api_keys FROM '/tmp/x'", "server-file"),
        ("SELECT * FROM api_keys; DROP TABLE x", "multiple-statements"),
        ("SELECT salary, bump(1) FROM employees, api_keys", "relation-not-allowed"),
        ("SELECT salary, bump(1) FROM employees", "function-not-allowed"),
        ("SELECT * FROM employees ORDER BY id", "column-not-allowed"),
        ("SELECT bump(1), set_config('role', 'x', true)", "function-not-allowed"),
        ("BEGIN READ WRITE", "access-read-only"),
    ],
)
def test_precedence(sql: str, rule: str) -> None:
    decision = judge(sql, policy_of())
    assert isinstance(decision, Reject)
    assert decision.violations[0].rule == rule
    places = [PRECEDENCE[v.rule] for v in decision.violations]
    assert places == sorted(places)


class Raising:
    """A rule that fails."""

    __doc__ = "raising: fails"
    NAME = "relation-not-allowed"
    DEFAULT = RuleLevel.REJECT
    SQLSTATE = "42501"
    GOVERNED_BY = "relations"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def check(self, facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
        yield from ()
        raise self._error


@pytest.mark.parametrize("error", [ValueError("boom"), RecursionError(), KeyError("x")])
def test_a_rule_that_raises_is_a_rejection_that_names_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy.decision.RULES", (*rules.RULES, Raising(error)))
    decision = judge("SELECT id FROM orders", policy_of())
    assert isinstance(decision, Reject)
    (violation,) = decision.violations
    assert violation.rule == "not-understood"
    assert "relation-not-allowed" in violation.message
    assert "boom" not in violation.message + violation.hint
    (failure,) = decision.failures
    assert failure.rule == "relation-not-allowed"
    assert failure.error is error


def test_a_rule_that_raises_refuses_even_where_its_level_is_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Warns(Raising):
        NAME = "unbounded-join"
        DEFAULT = RuleLevel.WARN

    monkeypatch.setattr("policy.decision.RULES", (Warns(ValueError()),))
    assert isinstance(judge("SELECT 1", policy_of()), Reject)


def test_a_rule_that_raises_keeps_no_objection_of_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy.decision.RULES", (Raising(ValueError()), *rules.RULES))
    decision = judge("SELECT * FROM api_keys", policy_of())
    assert isinstance(decision, Reject)
    assert [v.rule for v in decision.violations] == ["not-understood", "relation-not-allowed"]


def test_observing_allows_and_keeps_what_an_enforcing_policy_would_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sql = "DELETE FROM api_keys"
    refused = judge(sql, policy_of())
    observed = judge(sql, policy_of(mode="observe"))
    assert isinstance(refused, Reject)
    assert isinstance(observed, Allow)
    assert observed.observed == refused.violations
    monkeypatch.setattr("policy.decision.RULES", (Raising(ValueError()),))
    observed = judge(sql, policy_of(mode="observe"))
    assert isinstance(observed, Allow)
    assert [f.rule for f in observed.failures] == ["relation-not-allowed"]


def test_a_repair_needs_a_row_that_allows_it_and_repairable_objections_alone() -> None:
    join = "SELECT o.id FROM orders o, customers c"
    reader = policy_of(READER, rules="{unbounded-join: reject}")
    without_row = judge(join, reader)
    assert isinstance(without_row, Reject)
    assert not without_row.repair.allowed
    with_row = judge(join, policy_of(WRITER))
    assert isinstance(with_row, Reject)
    assert with_row.repair.allowed
    with_more = judge("SELECT o.id, bump(1) FROM orders o, customers c", policy_of(WRITER))
    assert isinstance(with_more, Reject)
    assert not with_more.repair.allowed
    no_turns = judge(join, policy_of(WRITER, repair="{turns: 0}"))
    assert isinstance(no_turns, Reject)
    assert not no_turns.repair.allowed


def test_the_same_arguments_give_the_same_decision() -> None:
    situation = Situation("a", PathNames())
    query = parse("DELETE FROM api_keys")
    policy = policy_of()
    assert decide(policy, situation, query) == decide(policy, situation, query)
    assert hash(situation) == hash(Situation("a", PathNames()))


def test_one_rule_tells_so_much_of_one_statement_and_no_more() -> None:
    """Thousands of wrong names must not cost thousands of searches for the right ones."""
    asked: list[int] = []

    def many(*_: object) -> Iterator[Violation]:
        for n in range(10 * MAX_VIOLATIONS):
            asked.append(n)
            yield Violation("unbounded-select", f"no. {n}", "Do not retry.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules.unbounded_select, "check", many)
        decision = judge("SELECT id FROM orders", policy_of(READER + "rules: {unbounded-select: reject}\n"))
    assert isinstance(decision, Reject)
    assert [v.message for v in decision.violations] == [f"no. {n}" for n in range(MAX_VIOLATIONS)]
    assert len(asked) == MAX_VIOLATIONS
