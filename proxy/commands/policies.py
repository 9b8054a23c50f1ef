"""``pgturnstile policy …``: what a DBA does with policies before they are served."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from policy import loader, schema
from policy.diagnostics import Diagnostic, InvalidFileError, Severity, printable, render
from policy.lint import lint
from policy.trial import run_tests
from proxy.commands import explain
from proxy.commands.sources import add_names, load_policy, named_catalog, policy_files
from proxy.commands.terminal import Exit, Subcommands, UsageError, add_format, command, group, one_line, read


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    policy = group(commands, "policy", "Read and test policies.")
    lint_ = command(
        policy,
        "lint",
        _policy_lint,
        [
            "policy lint policies/*.yaml",
            "policy lint --strict --dsn postgresql://dba@localhost/shop policies",
        ],
    )
    test = command(
        policy,
        "test",
        _policy_test,
        ["policy test policies", "policy test --catalog shop.json policies/analytics.yaml"],
    )
    add_names(test)
    add_names(lint_)
    lint_.add_argument("--strict", action="store_true", help="let a warning fail the check as well")
    add_format(lint_, "each fault with its line and a caret, or one JSON object a fault")
    explain.register(policy)
    command(policy, "schema", _policy_schema, ["policy schema > policy.schema.json"])
    for reads in (lint_, test):
        reads.add_argument(
            "files", nargs="+", type=Path, metavar="FILE", help="a policy, or a folder of them"
        )


def _policy_lint(options: argparse.Namespace) -> Exit:
    """Read policies, and say all that is wrong with them.

    Each fault has its line, its column and the nearest key that exists. What is
    legal and yet odd is a warning: a line that has no effect, an allowance that
    has ended, a name that stands for nothing in the database (--dsn, --catalog).
    Exit code 1 when a policy cannot be used; with --strict, for a warning too.
    """
    catalog = named_catalog(options)
    today = datetime.now(UTC).date()
    found: list[Diagnostic] = []
    for path in policy_files(options.files):
        text = read(path)
        try:
            found += lint(text, loader.load(text, str(path)), today, catalog)
        except InvalidFileError as error:
            found += error.diagnostics
    if options.format == "json":
        for diagnostic in found:
            print(json.dumps(asdict(diagnostic)))
    elif found:
        print(render(found))
    faulty = any(options.strict or diagnostic.severity is Severity.ERROR for diagnostic in found)
    return Exit.REJECTED if faulty else Exit.DONE


def _policy_test(options: argparse.Namespace) -> Exit:
    """Run the tests that policies bring along.

    Each entry of `tests:` is judged as one query string. Names are looked up as
    `check` looks them up. Exit code 1 when one does not hold.
    """
    catalog = named_catalog(options)
    count = failed = 0
    for path in policy_files(options.files):
        for tried in run_tests(load_policy(path), catalog):
            count += 1
            failed += bool(tried.complaints)
            for complaint in tried.complaints:
                print(f"{path}:{tried.test.line}: {one_line(tried.test.sql)}\n    {printable(complaint)}")
    if count == 0:
        raise UsageError("There are no tests; write what you expect under `tests:`.")
    print(f"{count} test{'' if count == 1 else 's'}, {failed} failed")
    return Exit.REJECTED if failed else Exit.DONE


def _policy_schema(_options: argparse.Namespace) -> Exit:
    """Print the JSON Schema of policies, for editors.

    A policy whose first line is `# yaml-language-server: $schema=FILE` is then
    completed and checked while it is written. The schema says what a file may
    look like; `policy lint` also says whether its parts go together.
    """
    print(schema.rendered(), end="")
    return Exit.DONE
