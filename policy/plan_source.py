"""Asks a live database for the plan of a statement, without a proxy before it.

Owns how the question of ``policy.cost`` is put where nobody has bound a value: EXPLAIN for a statement
without parameters, a generic plan for one that has some. Nothing is run. It must know no policy, and not keep
the connection: whoever opened it closes it. A proxy's sessions ask on the agent's own connection instead
(``proxy.pricing``), with the values bound.

A generic plan is had by EXPLAIN EXECUTE under ``plan_cache_mode = force_generic_plan``, on every major alike.
EXPLAIN (GENERIC_PLAN), new in 16, would be shorter, and is of no use over the extended protocol: the server
wants its parameters bound all the same, and plans for those values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import asyncpg

from policy.cost import PREFIX, Question
from policy.plan import NoPlanError, Plan, PlanFormatError, parse_plan

PLAN_S: Final = 1.0
"""How long the server may plan one statement, in seconds, as behind the proxy: planning runs functions."""

_NAME: Final = "pgturnstile_plan"
_PREPARE: Final = f"PREPARE {_NAME} AS "
_CANCELED: Final = "57014"
_LOST: Final = ("08", "57P")
"""Classes of errors that end the connection."""


class Connection(Protocol):
    """What of asyncpg's Connection is needed here."""

    def transaction(self, *, readonly: bool) -> AbstractAsyncContextManager[Any]: ...

    async def execute(self, query: str) -> str: ...

    async def fetch(self, query: str) -> Sequence[Any]: ...


class PlanSource:
    """Plans by the database that ``connection`` is open to, for its role, search_path and statistics.

    ``connection`` is asyncpg's, without a statement cache and in no transaction, and nobody else prepares
    anything on it; between questions it is as it was.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def plan(self, question: Question, parameters: int) -> Plan:
        """The answer to ``question``, of a statement whose highest parameter is ``$parameters``.

        Raises ``NoPlanError``; what asyncpg raises where the connection is lost.
        """
        if question.text is None:
            raise NoPlanError("nothing is to be asked")
        text = question.text if not parameters else f"{PREFIX}EXECUTE {_NAME}({_nulls(parameters)})"
        statement = question.text.removeprefix(PREFIX)
        asked = PREFIX if not parameters else _PREPARE
        try:
            async with self._connection.transaction(readonly=True):
                await self._connection.execute(
                    f"SET LOCAL statement_timeout = {round(PLAN_S * 1000)};"
                    "SET LOCAL plan_cache_mode = force_generic_plan"
                )
                if parameters:
                    # By Parse, as every fetch: it takes one statement.
                    await self._connection.fetch(_PREPARE + statement)
                rows = await self._connection.fetch(text)
        except asyncpg.PostgresError as error:
            if not error.sqlstate or error.sqlstate.startswith(_LOST):
                raise
            raise _no_plan(error, question, len(asked)) from error
        finally:
            if parameters:
                # What is prepared outlives its transaction, also one that failed behind it.
                await self._connection.execute("DEALLOCATE ALL")
        try:
            return parse_plan("\n".join(row[0] for row in rows))
        except PlanFormatError as error:
            raise NoPlanError(f"the plan could not be read: {error}") from error


def _nulls(count: int) -> str:
    return ", ".join(["NULL"] * count)


def _no_plan(error: asyncpg.PostgresError, question: Question, prefix: int) -> NoPlanError:
    """PostgreSQL's refusal, its position moved into the statement where the question tells how."""
    position = getattr(error, "position", None)
    place = None
    if position is not None and question.offset is not None:
        place = int(position) - (question.offset + prefix - len(PREFIX))
    return NoPlanError(
        str(getattr(error, "message", error)),
        sqlstate=error.sqlstate,
        position=place if place is not None and place > 0 else None,
        late=error.sqlstate == _CANCELED,
    )
