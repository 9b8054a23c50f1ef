"""unparsable, statement-too-large, not-understood, server-file: what cannot or must not be read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.decision import Allow, Reject, Situation, decide
from policy.facts import NotUnderstood, ParseFailure, QueryString
from policy.model import Halt, Mode, StatementClass
from policy.names import PathNames
from policy.parse import parse
from policy.rejection import reject
from policy.rules import not_understood, statement_too_large, unparsable
from tests.policy.rules.judging import WRITER, judge, policy_of, violations


def test_unparsable_text_is_refused_with_the_place_and_one_repair() -> None:
    policy = policy_of()
    decision = judge("SELECT 1 FORM t", policy)
    assert isinstance(decision, Reject)
    assert decision.statement_class is StatementClass.OTHER
    assert decision.repair.allowed
    rejection = reject(decision, "id", policy)
    assert (rejection.sqlstate, rejection.routine, rejection.position) == ("42601", "unparsable", 15)
    assert 'near "t"' in rejection.message


def test_no_turns_no_repair() -> None:
    policy = policy_of(WRITER, repair="{turns: 0}")
    decision = judge("SELEC 1", policy)
    assert isinstance(decision, Reject)
    assert not decision.repair.allowed


def test_too_large_a_text_is_refused() -> None:
    policy = policy_of()
    decision = decide(
        policy, Situation("a", PathNames()), parse("SELECT 1 /* " + "x" * 100 + " */", max_bytes=50)
    )
    assert isinstance(decision, Reject)
    assert [v.rule for v in decision.violations] == [statement_too_large.NAME]
    assert reject(decision, "id", policy).sqlstate == "54000"
    assert decision.halt is Halt.CLASS_NOT_REPAIRABLE


def test_too_deep_a_text_is_not_understood() -> None:
    policy = policy_of()
    decision = judge("SELECT " + "1+" * 20_000 + "1", policy)
    assert isinstance(decision, Reject)
    rejection = reject(decision, "id", policy)
    assert (rejection.routine, rejection.sqlstate) == (not_understood.NAME, "54001")


def test_a_failure_of_any_other_name_is_refused_as_well() -> None:
    failed = QueryString("x", failure=ParseFailure("something-new", "no reason", "XX000"))
    decision = decide(policy_of(), Situation("a", PathNames()), failed)
    assert isinstance(decision, Reject)
    assert decision.violations[0].rule == not_understood.NAME


def test_what_the_walk_does_not_know_is_refused_with_its_place() -> None:
    (facts,) = parse("SELECT 1").statements
    unknown = QueryString("SELECT 1", (replace(facts, not_understood=NotUnderstood("the node NewThing", 8)),))
    decision = decide(policy_of(), Situation("a", PathNames()), unknown)
    assert isinstance(decision, Reject)
    assert [(v.rule, v.position) for v in decision.violations] == [(not_understood.NAME, 8)]
    assert "NewThing" in decision.violations[0].message


def test_what_nobody_understood_is_not_called_a_class() -> None:
    (facts,) = parse("SELECT 1").statements
    unknown = replace(
        facts,
        classes=frozenset({StatementClass.OTHER}),
        statement_class=StatementClass.OTHER,
        not_understood=NotUnderstood("the node NewThing"),
    )
    decision = decide(policy_of(), Situation("a", PathNames()), QueryString("SELECT 1", (unknown,)))
    assert isinstance(decision, Reject)
    assert [v.rule for v in decision.violations] == [not_understood.NAME]


def test_a_class_that_needs_a_person_is_told_before_what_was_not_understood() -> None:
    (facts,) = parse("DROP TABLE orders").statements
    unknown = replace(facts, not_understood=NotUnderstood("the field DropStmt.new"))
    decision = decide(policy_of(), Situation("a", PathNames()), QueryString("x", (unknown,)))
    assert isinstance(decision, Reject)
    assert decision.violations[0].rule == "class-not-allowed"
    assert not_understood.NAME in [v.rule for v in decision.violations]
    assert decision.halt is Halt.APPROVAL_REQUIRED


@pytest.mark.parametrize(
    ("sql", "instead"),
    [
        ("COPY orders TO '/tmp/x'", "TO STDOUT"),
        ("COPY (SELECT 1) TO PROGRAM 'cat'", "TO STDOUT"),
        ("COPY orders (id) FROM '/tmp/x'", "FROM STDIN"),
        ("COPY orders (id) FROM PROGRAM 'cat'", "FROM STDIN"),
    ],
)
def test_server_files_and_programs_are_refused_first(sql: str, instead: str) -> None:
    decision = judge(sql, policy_of(WRITER))
    assert isinstance(decision, Reject)
    assert decision.violations[0].rule == "server-file"
    assert instead in decision.violations[0].hint


def test_copy_to_the_client_is_no_server_file() -> None:
    assert violations("COPY orders TO STDOUT", policy_of(), "server-file") == []


@pytest.mark.parametrize("sql", ["SELEC 1", "COPY orders TO '/tmp/x'", "SELECT 1; SELECT 2"])
def test_observing_refuses_nothing(sql: str) -> None:
    policy = policy_of(mode="observe")
    assert policy.mode is Mode.OBSERVE
    decision = judge(sql, policy)
    assert isinstance(decision, Allow)
    assert decision.observed


def test_unparsable_is_the_only_one_of_them_that_may_be_repaired() -> None:
    for rule, expected in ((unparsable, True), (statement_too_large, False), (not_understood, False)):
        failed = QueryString("x", failure=ParseFailure(rule.NAME, "why", "42601"))
        decision = decide(policy_of(), Situation("a", PathNames()), failed)
        assert isinstance(decision, Reject)
        assert decision.repair.allowed is expected
