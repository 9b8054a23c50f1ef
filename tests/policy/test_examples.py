"""The shipped policies do what their own tests say, through the same gate that serves agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from policy.decision import Allow, Situation, decide
from policy.loader import load_file
from policy.model import Policy, PolicyTest, Verdict
from policy.names import PathNames
from policy.parse import parse
from policy.rejection import reject

EXAMPLES = sorted((Path(__file__).parents[2] / "policy" / "examples").glob("*.yaml"))
CASES = [
    pytest.param(policy, test, id=f"{path.stem}:{test.line}")
    for path in EXAMPLES
    for policy in (load_file(path),)
    for test in policy.tests
]


@pytest.mark.parametrize(("policy", "case"), CASES)
def test_a_shipped_policy_keeps_its_word(policy: Policy, case: PolicyTest) -> None:
    decision = decide(policy, Situation("someone", PathNames()), parse(case.sql))

    if isinstance(decision, Allow):
        assert case.expect is Verdict.ALLOW
        return
    rejection = reject(decision, "1", policy)
    assert (case.expect, case.rule) == (Verdict.REJECT, rejection.routine), rejection.message
    assert case.halt in (None, decision.halt)
    assert all(text in rejection.hint for text in case.hint_contains)
