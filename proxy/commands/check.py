"""``pgturnstile check``: the gate, offline; with a database, the prices too."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from policy.catalog import Catalog
from policy.check import Checked, check, priced
from policy.diagnostics import printable
from policy.loader import load_file
from policy.model import Policy
from policy.plan_source import PlanSource
from proxy.commands.sources import add_names, inputs, named_catalog, with_database
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
    unqualified ones in schema public. A database is asked for the plan of what
    the policy allows, and cost limits are held against it: for parameters, whose
    values nobody knows here, by a generic plan. No statement is run.
    """
    policy = load_file(options.policy)
    if options.dsn is not None:
        seen, rejected = asyncio.run(with_database(options.dsn, partial(_check_there, policy, options)))
    else:
        seen, rejected = _check_here(policy, options)
    if options.format == "text":
        print(f"{seen} statement{'' if seen == 1 else 's'}, {rejected} rejected by policy {policy.name}")
    return Exit.REJECTED if rejected else Exit.DONE


def _check_here(policy: Policy, options: argparse.Namespace) -> tuple[int, int]:
    """The numbers of statements and of rejected ones, without a database."""
    rejected = [_shown(checked, options).rejected for checked in _checked(policy, options)]
    return len(rejected), sum(rejected)


async def _check_there(
    policy: Policy, options: argparse.Namespace, connection: asyncpg.Connection[Any], catalog: Catalog
) -> tuple[int, int]:
    """The same, with prices by the database that ``connection`` is open to."""
    plans, today = PlanSource(connection), datetime.now(UTC).date()
    rejected = [
        _shown(await priced(checked, policy, catalog, plans, today), options).rejected
        for checked in _checked(policy, options, catalog)
    ]
    return len(rejected), sum(rejected)


def _checked(
    policy: Policy, options: argparse.Namespace, catalog: Catalog | None = None
) -> Iterator[Checked]:
    catalog = catalog or named_catalog(options)
    for name, text in inputs(options.files):
        yield from check(policy, text, source=name, agent=options.agent, catalog=catalog)


def _shown(checked: Checked, options: argparse.Namespace) -> Checked:
    _print_checked(checked, options)
    return checked


def _print_checked(checked: Checked, options: argparse.Namespace) -> None:
    for failure in checked.failures:
        print(f"rule {failure.rule} failed: {failure.error!r}", file=sys.stderr)
    if options.format == "json":
        print(json.dumps(checked.as_json()))
        return
    paint = painter(sys.stdout)
    verdict = paint("reject", "31") if checked.rejected else paint("allow ", "32")
    statement_class = checked.decision.statement_class or "-"
    print(f"{checked.source}:{checked.line}: {verdict} {statement_class:<11} {one_line(checked.sql)}")
    if checked.unpriced is not None:
        print(f"    not priced: {printable(checked.unpriced)}")
    elif checked.cost is not None:
        generic = " by a generic plan" if checked.cost.get("generic") else ""
        print(f"    cost {checked.cost['total']:,}, {checked.cost['rows']:,} rows{generic}")
    for violation in checked.violations:
        print(f"    {violation.rule}: {printable(violation.message)}")
    if checked.rejection is not None:
        print(f"    SQLSTATE {checked.rejection.sqlstate}, hint: {printable(checked.rejection.hint)}")
