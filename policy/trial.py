"""The tests that a policy brings along, put to the gate.

Owns the comparison of a decision with what a test expects of it. The decisions are those of ``decide``, the
wording that of ``reject``. Knows no terminal; names are looked up in the snapshot given, or else taken as the
text gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from policy.catalog import Catalog
from policy.check import names_for
from policy.decision import Reject, Situation, decide
from policy.model import Mode, Policy, PolicyTest, Verdict
from policy.parse import parse
from policy.rejection import Rejection, reject


class Difference(NamedTuple):
    """One part of an answer that is not as the test expects it."""

    what: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Tried:
    """One test, the rejection it met (None: it is allowed) and what differs; nothing where it holds."""

    test: PolicyTest
    rejection: Rejection | None
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        return not self.differences


def run_tests(
    policy: Policy, catalog: Catalog | None = None, tests: Iterable[PolicyTest] | None = None
) -> Iterator[Tried]:
    """Put ``tests``, or those that ``policy`` itself brings along, to the gate, each as one query string.

    A policy that only observes is tried as if it refused: its tests say what it would.
    """
    policy = replace(policy, mode=Mode.ENFORCE)
    names = names_for(policy, catalog)
    for test in policy.tests if tests is None else tests:
        decision = decide(policy, Situation(test.agent, names), parse(test.sql))
        rejection = reject(decision, "test", policy) if isinstance(decision, Reject) else None
        halt = decision.halt if isinstance(decision, Reject) else None
        yield Tried(test, rejection, tuple(_differences(test, rejection, halt)))


def _differences(test: PolicyTest, rejection: Rejection | None, halt: str | None) -> Iterator[Difference]:
    found = Verdict.ALLOW if rejection is None else Verdict.REJECT
    if test.expect is not found:
        yield Difference("expect", test.expect, found)
    if rejection is None:
        return
    for what, expected, got in (
        ("rule", test.rule, rejection.routine),
        ("sqlstate", test.sqlstate, rejection.sqlstate),
        ("halt", test.halt, halt or "none"),
    ):
        if expected is not None and expected != got:
            yield Difference(what, expected, got)
    for what, texts, got in (
        ("message_contains", test.message_contains, rejection.message),
        ("hint_contains", test.hint_contains, rejection.hint),
    ):
        for text in texts:
            if text not in got:
                yield Difference(what, text, got)
