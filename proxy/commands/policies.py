"""``pgturnstile policy …``: what a DBA does with policies before they are served."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from policy import loader, schema
from policy.diagnostics import Diagnostic, InvalidFileError, Severity, render
from policy.lint import lint
from proxy.commands import explain, init, trial
from proxy.commands.sources import add_names, named_catalog, policy_files
from proxy.commands.terminal import Exit, Subcommands, add_format, command, group, read


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
    add_names(lint_)
    lint_.add_argument("--strict", action="store_true", help="let a warning fail the check as well")
    add_format(lint_, "each fault with its line and a caret, or one JSON object a fault")
    init.register(policy)
    trial.register(policy)
    explain.register(policy)
    command(policy, "schema", _policy_schema, ["policy schema > policy.schema.json"])
    lint_.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a policy, or a folder of them")


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


def _policy_schema(_options: argparse.Namespace) -> Exit:
    """Print the JSON Schema of policies, for editors.

    A policy whose first line is `# yaml-language-server: $schema=FILE` is then
    completed and checked while it is written. The schema says what a file may
    look like; `policy lint` also says whether its parts go together.
    """
    print(schema.rendered(), end="")
    return Exit.DONE
