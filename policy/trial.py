"""The tests that a policy brings along, put to the gate.

Owns the comparison of a decision with what a test expects of it. The decisions are those of ``decide``, in
the light of what was refused before in the same test (``dialogue``), the wording that of ``reject``. Knows no
terminal and no server: names are looked up in the snapshot given, or else taken as the text gives them, and
what is allowed is taken to have run as the test says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from policy.catalog import Catalog
from policy.catalog_names import SessionNames
from policy.check import names_for
from policy.decision import Reject, Situation, decide
from policy.dialogue import Dialogue
from policy.ledger import MemoryLedger
from policy.lineage import scope_key
from policy.loader import load_tests, tests_beside
from policy.model import Mode, Policy, PolicyTest, Step, Verdict
from policy.parse import parse
from policy.rejection import Rejection, reject


class Difference(NamedTuple):
    """One part of an answer that is not as the test expects it."""

    what: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class TriedStep:
    """One statement, the rejection it met (None: it is allowed) and what differs; nothing where it holds."""

    step: Step
    rejection: Rejection | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Tried:
    """One test, statement by statement."""

    test: PolicyTest
    steps: tuple[TriedStep, ...]

    @property
    def holds(self) -> bool:
        return not self.differences

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(difference for step in self.steps for difference in step.differences)


def run_tests(
    policy: Policy, catalog: Catalog | None = None, tests: Iterable[PolicyTest] | None = None
) -> Iterator[Tried]:
    """Put ``tests``, or those that ``policy`` itself brings along, to the gate, each statement as one query
    string. Every test begins with nothing refused before it.

    A policy that only observes is tried as if it refused: its tests say what it would.
    """
    policy = replace(policy, mode=Mode.ENFORCE)
    names = names_for(policy, catalog)
    for test in policy.tests if tests is None else tests:
        yield Tried(test, tuple(_dialogue(test, policy, names)))


def run_all(policy: Policy, catalog: Catalog | None, read_dump: Callable[[Path], Catalog]) -> Iterator[Tried]:
    """Put the tests of ``policy``'s file, and those of the file beside it, to the gate.

    Where ``catalog`` is None, the latter are tried by the snapshot that their file names, which ``read_dump``
    gives. Raises ``PolicyError`` for a file of tests with faults.
    """
    yield from run_tests(policy, catalog)
    beside = tests_beside(Path(policy.source))
    if not beside.exists():
        return
    file = load_tests(beside)
    if catalog is None and file.catalog is not None:
        catalog = read_dump(file.catalog)
    yield from run_tests(policy, catalog, file.tests)


def _dialogue(test: PolicyTest, policy: Policy, names: SessionNames) -> Iterator[TriedStep]:
    ledger, situation = MemoryLedger(), Situation(test.agent, names)
    for second, step in enumerate(test.steps):
        scope = scope_key(policy.repair, test.agent, "", "", step.connection)
        decision = _decided(step, situation, Dialogue(policy, ledger, scope, step.connection), float(second))
        rejection = halt = None
        if decision is not None:
            rejection, halt = reject(decision, "test", policy), decision.halt
        yield TriedStep(step, rejection, tuple(_differences(step, rejection, halt)))


def _decided(step: Step, situation: Situation, dialogue: Dialogue, now: float) -> Reject | None:
    """The rejection of ``step`` as the agent would read it; None where it is let run, to its end."""
    names = situation.names
    decision = decide(dialogue.policy, situation, parse(step.sql))
    if isinstance(decision, Reject):
        told, repair, _ = dialogue.judge_refused(decision, names, now)
    else:
        told, repair, _ = dialogue.judge(decision, names, now)
    if isinstance(told, Reject):
        return told
    if step.fails is not None:
        fields = {"sqlstate": step.fails}
        if step.position is not None:
            fields["position"] = str(step.position)
        dialogue.failed(told, names, fields, now, repair=repair)
    elif repair is not None:
        dialogue.settled(repair, None, now)
    return None


def _differences(step: Step, rejection: Rejection | None, halt: str | None) -> Iterator[Difference]:
    found = Verdict.ALLOW if rejection is None else Verdict.REJECT
    if step.expect is not found:
        yield Difference("expect", step.expect, found)
    if rejection is None:
        return
    for what, expected, got in (
        ("rule", step.rule, rejection.routine),
        ("sqlstate", step.sqlstate, rejection.sqlstate),
        ("halt", step.halt, halt or "none"),
    ):
        if expected is not None and expected != got:
            yield Difference(what, expected, got)
    for what, texts, got in (
        ("message_contains", step.message_contains, rejection.message),
        ("hint_contains", step.hint_contains, rejection.hint),
    ):
        for text in texts:
            if text not in got:
                yield Difference(what, text, got)
