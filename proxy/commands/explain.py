"""``pgturnstile policy explain``: why a statement is decided as it is."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import asyncpg

from policy.catalog import Catalog
from policy.diagnostics import printable
from policy.explain import Explained, explain, may_be_set, price, verdict
from policy.loader import load_file
from policy.model import Policy
from policy.plan_source import PlanSource
from policy.rejection import Rejection
from proxy.commands.sources import add_names, named_catalog, with_database
from proxy.commands.terminal import Exit, Subcommands, add_format, command, painter

_COLOURS = {"refuses": "31", "failed": "31", "warns": "33", "passes": "32", "off": "2"}


def register(policy_commands: Subcommands) -> None:
    """Add the command to those of ``policy``."""
    explain_ = command(
        policy_commands,
        "explain",
        _explain,
        [
            "policy explain policies/analytics.yaml --sql 'DELETE FROM orders'",
            "policy explain policies/analytics.yaml --dsn postgresql://localhost/shop --sql 'SELECT 1'",
        ],
    )
    explain_.add_argument("file", type=Path, metavar="FILE", help="the policy")
    explain_.add_argument("--sql", required=True, metavar="SQL", help="what an agent would send")
    explain_.add_argument("--agent", default="", metavar="NAME", help="the agent to judge for")
    add_names(explain_)
    add_format(explain_, "text to read, or one JSON object")


def _explain(options: argparse.Namespace) -> Exit:
    """Say why a statement is decided as it is.

    Prints what was understood of it, what each rule says with the line of the
    policy behind that, the dearest nodes of the plan where a database is named
    (--dsn), and the rejection word for word as the agent would read it. Names
    are looked up as `check` looks them up; nothing is run. Exit code 1 when it
    is rejected.
    """
    policy = load_file(options.file)
    if options.dsn is not None:
        explained = asyncio.run(with_database(options.dsn, partial(_explain_there, policy, options)))
    else:
        explained = explain(policy, options.sql, agent=options.agent, catalog=named_catalog(options))
    if options.format == "json":
        print(json.dumps(explained.as_json()))
    else:
        _print(explained)
    return Exit.REJECTED if explained.checked.rejected else Exit.DONE


async def _explain_there(
    policy: Policy, options: argparse.Namespace, connection: asyncpg.Connection[Any], catalog: Catalog
) -> Explained:
    explained = explain(policy, options.sql, agent=options.agent, catalog=catalog)
    return await price(explained, catalog, PlanSource(connection), datetime.now(UTC).date())


def _print(explained: Explained) -> None:
    for number, told in enumerate(explained.statements, 1):
        print(f"statement {number}: {told.statement_class}")
        for heading, words in told.facts.items():
            print(f"  {heading}: {printable(', '.join(words))}")
    paint = painter(sys.stdout)
    width = max(len(answer.rule) for answer in explained.answers)
    statement: int | None = None
    for answer in explained.answers:
        if answer.statement != statement:
            statement = answer.statement
            print(f"rules on statement {0 if statement is None else statement + 1}")
        source, line = explained.place(answer)
        word = verdict(answer)
        place = (
            f"{PurePath(source).name}:{line}" if line else "default" if may_be_set(answer.rule) else "always"
        )
        print(f"  {answer.rule:<{width}}  {paint(f'{word:<7}', _COLOURS[word])}  {place}")
        for violation in answer.violations:
            print(f"      {printable(violation.message)}")
    _print_price(explained)
    rejection = explained.checked.rejection
    print(f"decision: {'allow' if rejection is None else 'reject'}")
    if rejection is not None:
        _print_rejection(rejection)


def _print_price(explained: Explained) -> None:
    checked = explained.checked
    if checked.unpriced is not None:
        print(f"not priced: {printable(checked.unpriced)}")
    if checked.cost is not None:
        generic = ", by a generic plan" if checked.cost.get("generic") else ""
        print(
            f"price: {checked.cost['total']:,} for {checked.cost['rows']:,} rows{generic}; its dearest parts:"
        )
    for node in explained.nodes:
        where = "" if node.relation is None else f" on {printable(node.relation)}"
        print(f"  {node.kind}{where}: {node.own:,.0f} of {node.total:,.0f}, {node.rows:,.0f} rows")


def _print_rejection(rejection: Rejection) -> None:
    """As psql shows it with ``\\set VERBOSITY verbose``."""
    print(f"ERROR:  {rejection.sqlstate}: {printable(rejection.message)}")
    print(f"DETAIL:  {rejection.detail}")
    print(f"HINT:  {printable(rejection.hint)}")
    for heading, value in (
        ("POSITION", rejection.position),
        ("SCHEMA NAME", rejection.schema),
        ("TABLE NAME", rejection.table),
        ("COLUMN NAME", rejection.column),
    ):
        if value is not None:
            print(f"{heading}:  {value}")
    print(f"LOCATION:  {rejection.routine}, {rejection.file}:{rejection.line}")
