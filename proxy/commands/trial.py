"""``pgturnstile policy test``: whether policies do what their tests say."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from policy.diagnostics import printable
from policy.loader import load_file
from policy.trial import Tried, TriedStep, run_all
from proxy.commands.sources import add_names, dumped_catalog, named_catalog, policy_files
from proxy.commands.terminal import Exit, Subcommands, UsageError, add_format, command, one_line


class _Outcome(NamedTuple):
    """One test of one policy."""

    policy: Path
    tried: Tried

    @property
    def place(self) -> str:
        return f"{self.tried.test.source}:{self.tried.test.line}"

    @property
    def title(self) -> str:
        return self.tried.test.name or one_line(self.tried.test.sql)


def register(policy_commands: Subcommands) -> None:
    """Add the command to those of ``policy``."""
    test = command(
        policy_commands,
        "test",
        _test,
        [
            "policy test policies",
            "policy test --catalog shop.json --junit report.xml policies/analytics.yaml",
        ],
    )
    add_names(test)
    test.add_argument("--junit", type=Path, metavar="FILE", help="write a report that CI systems read")
    add_format(test, "what differs, or one JSON object a test")
    test.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a policy, or a folder of them")


def _test(options: argparse.Namespace) -> Exit:
    """Run the tests that policies bring along.

    Each entry of `tests:`, in the policy and in NAME.tests.yaml beside it, is
    judged as one query string, or as several one after the other where it has
    `steps:`. Names are looked up as `check` looks them up, or in the dump that
    the file of tests names. Exit code 1 when one does not hold, 2 when there is
    none.
    """
    outcomes: list[_Outcome] = []
    for path in policy_files(options.files):
        for tried in run_all(load_file(path), named_catalog(options), dumped_catalog):
            outcomes.append(_Outcome(path, tried))
            _print(outcomes[-1], options)
    if not outcomes:
        raise UsageError("There are no tests; write what you expect under `tests:`.")
    if options.junit is not None:
        _write_junit(options.junit, outcomes)
    failed = sum(not outcome.tried.holds for outcome in outcomes)
    if options.format == "text":
        print(f"{len(outcomes)} test{'' if len(outcomes) == 1 else 's'}, {failed} failed")
    return Exit.REJECTED if failed else Exit.DONE


def _print(outcome: _Outcome, options: argparse.Namespace) -> None:
    tried = outcome.tried
    if options.format == "json":
        print(json.dumps(_as_json(outcome)))
    elif not tried.holds:
        print(f"{outcome.place}: {outcome.title}")
        print("\n".join(f"    {line}" for line in _explanation(tried)))


def _as_json(outcome: _Outcome) -> dict[str, object]:
    test, steps = outcome.tried.test, outcome.tried.steps
    answer: dict[str, object] = {
        "policy": str(outcome.policy),
        "source": test.source,
        "line": test.line,
        "name": test.name,
        "sql": test.sql,
        "holds": outcome.tried.holds,
    }
    if len(steps) > 1:
        answer["steps"] = [{"line": each.step.line, "sql": each.step.sql, **_found(each)} for each in steps]
    else:
        answer.update(_found(steps[0]))
    return answer


def _found(tried: TriedStep) -> dict[str, object]:
    rejection = tried.rejection
    return {
        "differences": [difference._asdict() for difference in tried.differences],
        "rejection": None
        if rejection is None
        else {
            "rule": rejection.routine,
            "sqlstate": rejection.sqlstate,
            "message": rejection.message,
            "hint": rejection.hint,
            "detail": json.loads(rejection.detail),
        },
    }


def _explanation(tried: Tried) -> Iterator[str]:
    """What differs, step by step where there are several."""
    for number, each in enumerate(tried.steps, 1):
        if not each.differences:
            continue
        if len(tried.steps) > 1:
            yield f"step {number}, line {each.step.line}: {one_line(each.step.sql)}"
        yield from _difference(each)


def _difference(tried: TriedStep) -> Iterator[str]:
    """What was expected (-) and what was found (+), and the rejection in full."""
    for what, expected, found in tried.differences:
        yield f"- {what}: {printable(expected)}"
        yield f"+ {what}: {printable(found)}"
    rejection = tried.rejection
    if rejection is not None:
        yield f"ERROR:  {rejection.sqlstate}: {printable(rejection.message)}"
        yield f"DETAIL:  {rejection.detail}"
        yield f"HINT:  {printable(rejection.hint)}"
        yield f"LOCATION:  {rejection.routine}, {rejection.file}:{rejection.line}"


def _write_junit(path: Path, outcomes: list[_Outcome]) -> None:
    """The form that CI systems read: a suite a policy, a case a test."""
    root = ElementTree.Element("testsuites")
    for policy in dict.fromkeys(outcome.policy for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.policy == policy]
        failed = sum(not outcome.tried.holds for outcome in own)
        suite = ElementTree.SubElement(
            root, "testsuite", name=str(policy), tests=str(len(own)), failures=str(failed)
        )
        for outcome in own:
            test = outcome.tried.test
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=str(policy),
                name=outcome.title,
                file=test.source,
                line=str(test.line),
            )
            if not outcome.tried.holds:
                what = "; ".join(difference.what for difference in outcome.tried.differences)
                failure = ElementTree.SubElement(case, "failure", message=f"differs: {what}")
                failure.text = "\n".join(_explanation(outcome.tried))
    try:
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
