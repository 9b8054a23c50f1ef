"""``pgturnstile review``: the review loop without a model."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from policy.catalog import Catalog
from policy.check import check
from policy.loader import load_file
from policy.model import Policy
from policy.parse import parse
from policy.review import Ending, EngineError, review
from policy.wrapping import CANNOT_BE_WRAPPED, why_not
from proxy.commands.sources import inputs, named_catalog, read_catalog
from proxy.commands.terminal import Exit, Subcommands, UsageError, command

_CONNECT_S: Final = 10.0
_STATEMENT_MS: Final = 30_000


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    review_ = command(
        commands,
        "review",
        _review,
        [
            "review --policy policies/read-write.yaml change.sql",
            "review --policy policies/read-write.yaml --sandbox postgresql://dba@localhost/clone change.sql",
        ],
    )
    review_.add_argument(
        "--policy", required=True, type=Path, metavar="FILE", help="the policy to judge under"
    )
    clone = review_.add_mutually_exclusive_group()
    clone.add_argument("--sandbox", metavar="DSN", help="a clone to try each statement on, as a URI")
    clone.add_argument(
        "--catalog", type=Path, metavar="FILE", help="look names up in what `catalog dump` wrote"
    )
    review_.add_argument("--agent", default="", metavar="NAME", help="the agent to judge for")
    review_.add_argument("files", nargs="*", metavar="FILE", help="SQL to review; - is standard input")


def _review(options: argparse.Namespace) -> Exit:
    """Take statements through the gate, then try them on a clone.

    Each statement that the policy allows is run on the clone (--sandbox) in a
    transaction that is rolled back; what cannot be rolled back is not tried, and
    sequences that it moves stay moved. Prints one close-out record a statement, as
    JSON: how the review ended, what stood against the statement, and whether one
    repair is left. Exit code 1 when one did not pass.
    """
    policy = load_file(options.policy)
    if options.sandbox is not None:
        catalog: Catalog | None = read_catalog(options.sandbox)
    else:
        options.dsn = None
        catalog = named_catalog(options)
    passed = True
    with _clone(options.sandbox) as clone:
        for record in _records(policy, options, catalog, clone):
            print(json.dumps(record))
            passed = passed and record["ending"] == Ending.PASSED
    return Exit.DONE if passed else Exit.REJECTED


def _records(
    policy: Policy, options: argparse.Namespace, catalog: Catalog | None, clone: _Clone | None
) -> Iterator[dict[str, Any]]:
    for name, text in inputs(options.files):
        for each in check(policy, text, source=name, agent=options.agent, catalog=catalog):
            trial = _Trial(clone)
            ended = review(each.sql, policy, trial.execute, catalog=catalog, agent=options.agent)
            place = {"source": each.source, "line": each.line}
            yield {**place, **ended.as_json(), "tried": trial.tried, "not_tried": trial.why_not}


class _Trial:
    """One statement's run on the clone, if there is one and it can be undone."""

    def __init__(self, clone: _Clone | None) -> None:
        self._clone = clone
        self.tried = False
        self.why_not: str | None = None

    def execute(self, sql: str) -> EngineError | None:
        if self._clone is None:
            self.why_not = "there is no clone"
            return None
        self.why_not = why_not(parse(sql))
        if self.why_not is not None:
            return None
        error = self._clone.execute(sql)
        if error is not None and error.sqlstate in CANNOT_BE_WRAPPED:
            self.why_not = error.message
            return None
        self.tried = True
        return error


class _Clone:
    """A connection to a clone, on which everything is rolled back. Its own event loop runs it."""

    def __init__(self, runner: asyncio.Runner, connection: asyncpg.Connection[Any]) -> None:
        self._runner = runner
        self._connection = connection

    def execute(self, sql: str) -> EngineError | None:
        return self._runner.run(self._rolled_back(sql))

    async def _rolled_back(self, sql: str) -> EngineError | None:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            # By Parse, which takes one statement.
            await self._connection.fetch(sql)
        except asyncpg.PostgresError as error:
            return _as_engine_error(error)
        finally:
            await transaction.rollback()
        return None


def _as_engine_error(error: asyncpg.PostgresError) -> EngineError:
    told = error.as_dict()
    position = told.get("position")
    return EngineError(
        sqlstate=error.sqlstate or "XX000",
        message=str(told.get("message", error)),
        hint=told.get("hint"),
        detail=told.get("detail"),
        position=None if position is None else int(position),
        column=told.get("column_name"),
    )


@contextmanager
def _clone(dsn: str | None) -> Iterator[_Clone | None]:
    if dsn is None:
        yield None
        return
    with asyncio.Runner() as runner:
        connection: asyncpg.Connection[Any] = runner.run(_connected(dsn))
        try:
            yield _Clone(runner, connection)
        except (OSError, asyncpg.InterfaceError) as error:
            raise UsageError(f"The clone has stopped answering: {error}") from error
        finally:
            connection.terminate()


async def _connected(dsn: str) -> asyncpg.Connection[Any]:
    settings = {"application_name": "pgturnstile review", "statement_timeout": str(_STATEMENT_MS)}
    try:
        return await asyncpg.connect(
            dsn, timeout=_CONNECT_S, statement_cache_size=0, server_settings=settings
        )
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise UsageError(f"The clone cannot be reached: {str(error) or type(error).__name__}") from error
