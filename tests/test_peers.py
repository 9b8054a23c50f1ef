"""The runner of the peers' suites: what it calls a difference, what it forgives, and how it is called."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from policy import loader
from tests.peers import report
from tests.peers.__main__ import main
from tests.peers.accepted import ACCEPTED, Accepted
from tests.peers.servers import policy_of
from tests.peers.suite import Outcome, Road, Verdict, call
from tests.peers.suites import SUITES

ROOT = Path(__file__).parents[1]
PASSED, FAILED, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED


def accepted(test: str, road: Road = Road.OBSERVE) -> Accepted:
    return Accepted("suite", test, (road,), "because", "tests/test_peers.py")


def outcome(seen: str | None = None, **verdicts: Verdict) -> Outcome:
    return Outcome(verdicts, {} if seen is None else dict.fromkeys(verdicts, seen))


@pytest.mark.parametrize(
    ("direct", "through", "differing"),
    [
        (outcome(a=PASSED), outcome(a=PASSED), []),
        (outcome(a=PASSED), outcome(a=FAILED), ["a"]),
        (outcome(a=PASSED), outcome(a=SKIPPED), ["a"]),
        (outcome(a=PASSED, b=PASSED), outcome(b=PASSED), ["a"]),  # not run at all
        (outcome(a=FAILED), outcome(a=FAILED), []),
        (outcome(a=FAILED), outcome(a=PASSED), []),
        (outcome("x", a=PASSED), outcome("x", a=PASSED), []),
        (outcome("x", a=PASSED), outcome("y", a=PASSED), ["a"]),
        (outcome("x", a=FAILED), outcome("y", a=FAILED), ["a"]),
        (outcome("x", a=PASSED), outcome(a=PASSED), ["a"]),
    ],
)
def test_what_differs(direct: Outcome, through: Outcome, differing: list[str]) -> None:
    differences, stale = report.compare("suite", Road.OBSERVE, direct, through, ())
    assert [difference.test for difference in differences] == differing
    assert stale == []


def test_an_accepted_difference_is_no_fault_and_an_idle_acceptance_is() -> None:
    direct, through = outcome(a=PASSED, b=PASSED), outcome(a=FAILED, b=PASSED)
    reviewed = [accepted("a"), accepted("b"), accepted("not there"), accepted("b", Road.ENFORCE)]
    differences, stale = report.compare("suite", Road.OBSERVE, direct, through, reviewed)
    assert [d.accepted for d in differences] == [reviewed[0]]
    assert stale == [reviewed[1]]
    row = report.Row("suite", "1.0", Road.OBSERVE, direct, through, differences, stale)
    assert row.faults == ["b: listed as accepted, and does not differ"]
    assert "| 2/2    | 1/2     | a (accepted), b (accepted, but the same) |" in report.table([row])


def test_a_suite_that_cannot_be_had_is_named_with_the_reason() -> None:
    row = report.Row("suite", "", Road.OBSERVE, unavailable="gcc is not installed\nsecond line")
    assert "not available: gcc is not installed |" in report.table([row])
    assert report.as_json(row)["unavailable"].startswith("gcc")


def test_what_a_client_saw_is_shown_as_a_diff() -> None:
    ((difference,), _) = report.compare(
        "suite", Road.OBSERVE, outcome("one\ntwo", a=PASSED), outcome("one\nthree", a=PASSED), ()
    )
    assert difference.how.splitlines()[-2:] == ["-two", "+three"]


@pytest.mark.parametrize("entry", ACCEPTED, ids=lambda entry: f"{entry.suite}-{entry.test}")
def test_what_is_accepted_belongs_to_a_suite_and_is_pinned_by_a_test(entry: Accepted) -> None:
    suite = next(suite for suite in SUITES if suite.name == entry.suite)
    assert set(entry.roads) <= set(suite.roads)
    assert entry.reason
    file, _, name = entry.pinned_by.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("road", [Road.OBSERVE, Road.ENFORCE])
def test_the_policies_of_the_roads_load(road: Road) -> None:
    policy = loader.load(policy_of(road), "peers.yaml")
    assert policy.mode == road.value


def test_the_suites_are_listed_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--list", "--workdir", str(tmp_path)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [s.name for s in SUITES]
    assert len({suite.name for suite in SUITES}) == len(SUITES)


def test_a_name_that_no_suite_has_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pg_regres"])
    assert ended.value.code == 2
    assert "no suite is called pg_regres" in capsys.readouterr().err


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    finished = call(["sh", "-c", "echo begun; sleep 60 & wait"], timeout_s=0.5, log=tmp_path / "log")
    assert finished.timed_out
    assert (finished.output, (tmp_path / "log").read_text()) == ("begun\n", "begun\n")
