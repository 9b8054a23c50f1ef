"""The registry, and every rule's page: what a page calls refused is refused, what it calls allowed passes."""

from __future__ import annotations

import re

import pytest

from policy import levels
from policy.decision import Allow
from policy.model import Policy, Violation
from policy.rules import (
    BY_NAME,
    CLONE_RULES,
    CONFIGURABLE,
    LEDGER_RULES,
    PLAN_RULES,
    PRECEDENCE,
    RULES,
    RUN_RULES,
    STRING_RULES,
    page,
)
from tests.policy.rules.judging import READER, WRITER, judge, policy_of, violations
from tests.policy.rules.schema import objections

OPEN = """\
version: 1
name: open
access: read_write
statements: {select: allow, insert: allow, update: allow, delete: allow, merge: allow, explain: allow,
             show: allow, set: allow, transaction: allow, prepare: allow, copy_out: allow, copy_in: allow}
relations: {allow: ["public.*"], deny: [public.api_keys], catalogs: filtered}
columns: {public.employees: {deny: [salary]}}
functions: {allow: [builtin-safe]}
rules: {unbounded-select: reject, unbounded-join: reject, side-effect-function: reject}
"""
NEED_A_CATALOG = {
    "unknown-relation",
    "unknown-column",
    "unknown-function",
    "insert-missing-not-null",
    "side-effect-function",
}
POLICIES = {"class-not-allowed": READER, "access-read-only": READER, "unbounded-join": WRITER}
EXAMPLE = re.compile(r"``([^`]+)``")


def section(name: str, heading: str) -> str:
    """The text under ``heading`` of a rule's page."""
    found = re.search(rf"^{heading}\n((?:    .*\n|\n)+)", page(name) + "\n", re.MULTILINE)
    assert found is not None, f"{name} has no section {heading}"
    return " ".join(found[1].split())


def examples(heading: str) -> list[tuple[str, str]]:
    """Every statement under ``heading`` that is written out in full, less those that need a server."""
    need_a_server = {rule.NAME for rule in (*PLAN_RULES, *RUN_RULES, *CLONE_RULES)}
    return [
        (name, text)
        for name in BY_NAME
        if name not in need_a_server
        for text in EXAMPLE.findall(section(name, heading))
        if "…" not in text and " " in text
    ]


def policy_for(name: str) -> Policy:
    return policy_of(POLICIES.get(name, OPEN))


def told(sql: str, name: str) -> list[Violation]:
    """What rule ``name`` says of ``sql``."""
    if name not in NEED_A_CATALOG:
        return violations(sql, policy_for(name), name)
    return [violation for violation in objections(sql, policy_for(name)) if violation.rule == name]


@pytest.mark.parametrize(("name", "sql"), examples("Refused"))
def test_what_a_page_calls_refused_is_refused_by_that_rule(name: str, sql: str) -> None:
    assert told(sql, name)


@pytest.mark.parametrize(("name", "sql"), examples("Allowed"))
def test_what_a_page_calls_allowed_passes_that_rule(name: str, sql: str) -> None:
    assert told(sql, name) == []


def test_pages_give_enough_examples() -> None:
    for name in BY_NAME:
        assert page(name).startswith(f"{name}: ")
        assert section(name, "Why")
        assert section(name, "Settings")
        assert section(name, "Refused")
        assert section(name, "Allowed")
    assert len(examples("Refused")) > 30
    assert len(examples("Allowed")) > 20


def test_every_page_is_printed_for_its_name_alone() -> None:
    with pytest.raises(KeyError):
        page("no-such-rule")


def test_precedence_ranks_every_rule_once() -> None:
    known = (*STRING_RULES, *RULES, *PLAN_RULES, *LEDGER_RULES, *RUN_RULES, *CLONE_RULES)
    assert set(PRECEDENCE) == {rule.NAME for rule in known}
    assert len(set(PRECEDENCE.values())) == len(PRECEDENCE)


def test_policies_configure_exactly_the_rules_that_say_so() -> None:
    known = {name: level for name, level in levels.default_levels().items() if name in BY_NAME}
    assert known == {name: BY_NAME[name].DEFAULT for name in CONFIGURABLE}
    assert set(BY_NAME) - CONFIGURABLE <= set(levels.GOVERNED_ELSEWHERE)


def test_an_empty_string_is_no_statement() -> None:
    for text in ("", "  ", "-- ping", "/* ping */ ;;"):
        decision = judge(text, policy_of())
        assert isinstance(decision, Allow)
        assert decision.statement_class is None
