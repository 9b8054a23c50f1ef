"""What the runner of the peers' suites makes of a suite's own report."""

from __future__ import annotations

import pytest

from tests.peers.flows import outcome_of
from tests.peers.python_drivers import retried, verdicts_of
from tests.peers.suite import Outcome, Verdict

PASSED, FAILED, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED

JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="a.T" name="good"/>
<testcase classname="a.T" name="bad"><failure message="no"/></testcase>
<testcase classname="a.T" name="broken"><error message="no"/></testcase>
<testcase classname="a.T" name="left"><skipped message="why"/></testcase>
<testcase classname="a.T" name="torn"/>
<testcase classname="a.T" name="torn"><error message="at teardown"/></testcase>
<testcase classname="a.T" name="object at 0x7fdf80fb9f30"/>
</testsuite></testsuites>"""


def test_a_junit_report() -> None:
    assert verdicts_of(JUNIT) == {
        "a.T::good": PASSED,
        "a.T::bad": FAILED,
        "a.T::broken": FAILED,
        "a.T::left": SKIPPED,
        "a.T::torn": FAILED,
        "a.T::object at 0x…": PASSED,
    }


def test_a_test_that_passes_when_tried_again_counts_as_passed_and_is_named() -> None:
    first = Outcome({"a": PASSED, "b": FAILED, "c": FAILED, "d": FAILED})
    found = retried(first, Outcome({"b": PASSED, "c": FAILED}))
    assert found.verdicts == {"a": PASSED, "b": PASSED, "c": FAILED, "d": FAILED}
    assert found.note == "passed when tried again: b"


@pytest.mark.parametrize(
    ("output", "complete", "verdicts", "seen"),
    [
        (
            "== one\n1\n== two, more\n2\n3\n",
            True,
            {"one": PASSED, "two, more": PASSED, "ran to its end": PASSED},
            {"one": "1\n", "two, more": "2\n3\n"},
        ),
        (
            "warning\n== one\nTraceback\n",
            False,
            {"one": PASSED, "ran to its end": FAILED},
            {"one": "Traceback\n"},
        ),
        ("", False, {"ran to its end": FAILED}, {}),
    ],
)
def test_the_output_of_a_flow(
    output: str, complete: bool, verdicts: dict[str, Verdict], seen: dict[str, str]
) -> None:
    found = outcome_of(output, complete=complete)
    assert (found.verdicts, found.seen) == (verdicts, seen)
