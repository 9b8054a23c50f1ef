"""Walks the demo's tour through the proxy with real drivers, and holds every answer to what was promised.

Owns the conversation with the drivers, the comparison and the print-out. What is sent and what is expected is
``demo_tour``; who serves it is ``demo``.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol

import asyncpg

from proxy.demo_tour import TOUR, Refused, Returned, Step

if TYPE_CHECKING:
    import psycopg

_SHOWN_ROWS: Final = 4
_DETAIL_KEYS: Final = {"v", "id", "decision", "class", "rule", "violations", "repair", "halt", "cost"}


class DriverMissingError(Exception):
    """The walk needs a driver that is not installed."""


@dataclass(frozen=True, slots=True)
class ErrorRead:
    """The fields of an ErrorResponse as a driver hands them over; ``rule`` is its Routine field."""

    sqlstate: str | None
    message: str | None
    detail: str | None
    hint: str | None
    table: str | None
    column: str | None
    rule: str | None


@dataclass(frozen=True, slots=True)
class RowsRead:
    """What a statement returned, or its command tag's count where it returns no rows."""

    count: int
    rows: tuple[tuple[object, ...], ...]


Answer = ErrorRead | RowsRead
Print = Callable[[str], None]


class Agent(Protocol):
    """A driver's connection: sends a batch, gives the first error or the last answer."""

    @property
    def driver(self) -> str: ...

    @property
    def pipelines(self) -> bool: ...

    async def send(self, batch: Sequence[str]) -> Answer: ...

    async def close(self) -> None: ...


async def walk(agents: Mapping[str, str], direct: str, tell: Print) -> int:
    """Walk the tour once a driver, and return how many answers were not as promised.

    ``agents`` maps agent names to URIs of the proxy; ``direct`` is a superuser's URI past it, for looking at
    what really changed; ``tell`` takes one line of output at a time.

    Raises DriverMissingError, and whatever a driver raises when it cannot connect.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise DriverMissingError("The tour needs psycopg: pip install 'pgturnstile[demo]'.")
    failures = 0
    witness = await asyncpg.connect(direct)
    try:
        for connect in (_PsycopgAgent.connect, _AsyncpgAgent.connect):
            connections = {name: await connect(uri) for name, uri in agents.items()}
            try:
                tell(f"--- {connections[TOUR[0].agent].driver} ---\n")
                for number, step in enumerate(TOUR, start=1):
                    failures += await _take(number, step, connections[step.agent], witness, tell)
            finally:
                for connection in connections.values():
                    await connection.close()
    finally:
        await witness.close()
    return failures


async def _take(
    number: int, step: Step, agent: Agent, witness: asyncpg.Connection[asyncpg.Record], tell: Print
) -> int:
    if len(step.batch) > 1 and not agent.pipelines:
        return 0
    before = await witness.fetchval(step.probe) if step.probe else 0
    answer = await agent.send(step.batch)
    after = await witness.fetchval(step.probe) if step.probe else 0
    tell(f"{number:>2}. {step.title}")
    for sql in step.batch:
        tell(f"    {step.agent} ({agent.driver})> {sql};")
    for line in _shown(answer):
        tell(f"    {line}")
    complaints = [*complaints_about(step, answer)]
    if after - before != step.change:
        complaints.append(f"{step.probe} changed by {after - before}, not by {step.change}")
    for complaint in complaints:
        tell(f"    NOT AS PROMISED: {complaint}")
    tell("")
    return len(complaints)


def complaints_about(step: Step, answer: Answer) -> Iterator[str]:
    """Every difference between what ``step`` promises and ``answer``, as a sentence each."""
    if isinstance(step.expected, Refused):
        yield from _complaints_about_refusal(step.expected, answer)
    else:
        yield from _complaints_about_rows(step.expected, answer)
    told = " ".join(str(getattr(answer, f.name)) for f in fields(answer))
    for secret in step.secrets:
        if secret in told:
            yield f"the answer tells {secret!r}"


def _complaints_about_refusal(expected: Refused, answer: Answer) -> Iterator[str]:
    if isinstance(answer, RowsRead):
        yield f"it passed and gave {answer.count} rows; {expected.rule} should have refused it"
        return
    read: dict[str, tuple[object, object]] = {
        "SQLSTATE": (answer.sqlstate, expected.sqlstate),
        "rule (Routine)": (answer.rule, expected.rule),
    }
    if expected.table is not None:
        read["Table"] = (answer.table, expected.table)
    if expected.column is not None:
        read["Column"] = (answer.column, expected.column)
    detail = _detail(answer)
    if detail is None:
        yield f"Detail is not one line of JSON with the keys {sorted(_DETAIL_KEYS)}: {answer.detail!r}"
    else:
        read["Detail's decision"] = (detail["decision"], "reject")
        read["Detail's rule"] = (detail["rule"], expected.rule)
        read["Detail's class"] = (detail["class"], expected.statement_class)
    for what, (is_value, should) in read.items():
        if is_value != should:
            yield f"{what} is {is_value!r}, not {should!r}"
    if expected.hint not in (answer.hint or ""):
        yield f"Hint does not say {expected.hint!r}"


def _complaints_about_rows(expected: Returned, answer: Answer) -> Iterator[str]:
    if isinstance(answer, ErrorRead):
        yield f"it was refused: {answer.sqlstate} {answer.message}"
        return
    if answer.count != expected.rows:
        yield f"{answer.count} rows, not {expected.rows}"
    if expected.values is not None and answer.rows != expected.values:
        yield f"the rows are not {expected.values!r}"


def _detail(answer: ErrorRead) -> dict[str, Any] | None:
    try:
        detail = json.loads(answer.detail or "")
    except json.JSONDecodeError:
        return None
    if not isinstance(detail, dict) or not detail.keys() >= _DETAIL_KEYS or "\n" in (answer.detail or ""):
        return None
    return detail


def _shown(answer: Answer) -> Iterator[str]:
    if isinstance(answer, ErrorRead):
        yield f"ERROR {answer.sqlstate}: {answer.message}"
        if answer.hint is not None:
            yield f"HINT: {answer.hint}"
        if answer.detail is not None:
            yield f"DETAIL: {answer.detail}"
        return
    for row in answer.rows[:_SHOWN_ROWS]:
        yield " | ".join(str(value) for value in row)
    yield f"({answer.count} row{'' if answer.count == 1 else 's'})"


def _rows_read(tag: str | None, rows: Sequence[Sequence[object]]) -> RowsRead:
    count = (tag or "").rpartition(" ")[2]
    return RowsRead(int(count) if count.isdigit() else len(rows), tuple(tuple(row) for row in rows))


class _PsycopgAgent:
    """psycopg: the simple protocol for single statements, a pipeline of the extended one for several.

    Imported where it is used: the demo extra alone brings it, and every other command would load it in vain.
    """

    driver: Final = "psycopg"
    pipelines: Final = True

    def __init__(self, connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, uri: str) -> Agent:
        import psycopg  # noqa: PLC0415 - as said above

        return cls(await psycopg.AsyncConnection.connect(uri, autocommit=True))

    async def send(self, batch: Sequence[str]) -> Answer:
        import psycopg  # noqa: PLC0415 - as said above

        try:
            if len(batch) > 1:
                async with self._connection.pipeline():
                    cursors = [await self._connection.execute(sql.encode()) for sql in batch]
                cursor = cursors[-1]
            else:
                cursor = await self._connection.execute(batch[0].encode())
            rows = await cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            diagnostics = error.diag
            return ErrorRead(
                error.sqlstate,
                diagnostics.message_primary,
                diagnostics.message_detail,
                diagnostics.message_hint,
                diagnostics.table_name,
                diagnostics.column_name,
                diagnostics.source_function,
            )
        return _rows_read(cursor.statusmessage, rows)

    async def close(self) -> None:
        await self._connection.close()


class _AsyncpgAgent:
    """asyncpg: the extended protocol with named prepared statements, binary results."""

    driver: Final = "asyncpg"
    pipelines: Final = False

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, uri: str) -> Agent:
        return cls(await asyncpg.connect(uri))

    async def send(self, batch: Sequence[str]) -> Answer:
        try:
            statement = await self._connection.prepare(batch[0])
            rows = await statement.fetch()
        except asyncpg.PostgresError as error:
            return ErrorRead(
                error.sqlstate,
                error.message,
                error.detail,
                error.hint,
                error.table_name,
                error.column_name,
                error.server_source_function,
            )
        return _rows_read(statement.get_statusmsg(), [tuple(row.values()) for row in rows])

    async def close(self) -> None:
        await self._connection.close()
