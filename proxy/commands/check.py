"""``pgturnstile check``: the gate, offline."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from policy.check import Checked, check
from policy.diagnostics import printable
from proxy.commands.sources import add_names, inputs, load_policy, named_catalog
from proxy.commands.terminal import Exit, Subcommands, add_format, command, one_line, painter


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    check_ = command(
        commands,
        "check",
        _check,
        [
            "check --policy policies/analytics.yaml report.sql",
            "check --policy policies/analytics.yaml --format json -  < report.sql",
            "check --policy policies/analytics.yaml --dsn postgresql://localhost/shop report.sql",
            "check --policy policies/analytics.yaml --catalog shop.json report.sql",
        ],
    )
    check_.add_argument(
        "--policy", required=True, type=Path, metavar="FILE", help="the policy to judge under"
    )
    add_names(check_)
    check_.add_argument("--agent", default="", metavar="NAME", help="the agent to judge for")
    check_.add_argument("files", nargs="*", metavar="FILE", help="SQL to judge; - is standard input")
    add_format(check_, "one line a statement and its violations, or one JSON object a statement")


def _check(options: argparse.Namespace) -> Exit:
    """Judge SQL under a policy.

    Judges each statement of each file as if an agent sent it alone. Exit code 1
    when any is rejected. A file that does not parse is one rejected statement.
    Names are looked up in the catalog of a database (--dsn) or in one that was
    dumped (--catalog); without either they are taken as the text gives them,
    unqualified ones in schema public. No statement is run or priced.
    """
    policy = load_policy(options.policy)
    catalog = named_catalog(options)
    seen = rejected = 0
    for name, text in inputs(options.files):
        for checked in check(policy, text, source=name, agent=options.agent, catalog=catalog):
            seen += 1
            rejected += checked.rejected
            _print_checked(checked, options)
    if options.format == "text":
        print(f"{seen} statement{'' if seen == 1 else 's'}, {rejected} rejected by policy {policy.name}")
    return Exit.REJECTED if rejected else Exit.DONE


def _print_checked(checked: Checked, options: argparse.Namespace) -> None:
    for failure in checked.decision.failures:
        print(f"rule {failure.rule} failed: {failure.error!r}", file=sys.stderr)
    if options.format == "json":
        print(json.dumps(checked.as_json()))
        return
    paint = painter(sys.stdout)
    verdict = paint("reject", "31") if checked.rejected else paint("allow ", "32")
    statement_class = checked.decision.statement_class or "-"
    print(f"{checked.source}:{checked.line}: {verdict} {statement_class:<11} {one_line(checked.sql)}")
    for violation in checked.violations:
        print(f"    {violation.rule}: {printable(violation.message)}")
    if checked.rejection is not None:
        print(f"    SQLSTATE {checked.rejection.sqlstate}, hint: {printable(checked.rejection.hint)}")
