"""The shipped policies do what their own tests say, through the same gate that serves agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from policy.loader import load_file
from policy.trial import Tried, run_tests

EXAMPLES = sorted((Path(__file__).parents[2] / "policy" / "examples").glob("*.yaml"))
TRIED = [
    pytest.param(tried, id=f"{path.stem}:{tried.test.line}")
    for path in EXAMPLES
    for tried in run_tests(load_file(path))
]


@pytest.mark.parametrize("tried", TRIED)
def test_a_shipped_policy_keeps_its_word(tried: Tried) -> None:
    assert tried.differences == ()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_shipped_policy_has_tests_of_both_kinds(path: Path) -> None:
    assert {step.expect for test in load_file(path).tests for step in test.steps} == {"allow", "reject"}
