"""The tests that a policy brings along, put to the gate.

Owns the comparison of a decision with what a test expects of it. The decisions are those of ``decide``, the
wording that of ``reject``. Knows no file and no terminal; names are looked up in the snapshot given, or else
taken as the text gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from policy.catalog import Catalog
from policy.check import names_for
from policy.decision import Allow, Situation, decide
from policy.model import Mode, Policy, PolicyTest, Verdict
from policy.parse import parse
from policy.rejection import reject


@dataclass(frozen=True, slots=True)
class Tried:
    """One test and how the decision differs from it, a sentence a difference; none where it holds."""

    test: PolicyTest
    complaints: tuple[str, ...]


def run_tests(policy: Policy, catalog: Catalog | None = None) -> Iterator[Tried]:
    """Put every test of ``policy`` to the gate, each as one query string, in the order of the file.

    A policy that only observes is tried as if it refused: its tests say what it would.
    """
    policy = replace(policy, mode=Mode.ENFORCE)
    situation = Situation("", names_for(policy, catalog))
    for test in policy.tests:
        yield Tried(test, tuple(_complaints(test, policy, situation)))


def _complaints(test: PolicyTest, policy: Policy, situation: Situation) -> Iterator[str]:
    decision = decide(policy, situation, parse(test.sql))
    if isinstance(decision, Allow):
        if test.expect is Verdict.REJECT:
            yield "it is allowed"
        return
    rejection = reject(decision, "test", policy)
    if test.expect is Verdict.ALLOW:
        yield f"{rejection.routine} rejects it: {rejection.message}"
        return
    for what, expected, found in (
        ("rule", test.rule, rejection.routine),
        ("sqlstate", test.sqlstate, rejection.sqlstate),
        ("halt", test.halt, decision.halt),
    ):
        if expected is not None and expected != found:
            yield f"{what} is {found or 'none'}, not {expected}"
    for text in test.hint_contains:
        if text not in rejection.hint:
            yield f"the hint does not say {text!r}: {rejection.hint}"
