"""Everything a client can see of a conversation with PostgreSQL, by libpq, as comparable values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

PARAMETERS: Final = (
    b"server_version",
    b"server_encoding",
    b"client_encoding",
    b"DateStyle",
    b"IntervalStyle",
    b"TimeZone",
    b"application_name",
    b"is_superuser",
    b"session_authorization",
    b"default_transaction_read_only",
    b"search_path",
    b"standard_conforming_strings",
)
_TEMPORARY: Final = re.compile(rb"pg_temp_\d+|pg_toast_temp_\d+")
_PLACE: Final = frozenset(
    {
        pq.DiagnosticField.SOURCE_FILE,
        pq.DiagnosticField.SOURCE_LINE,
        pq.DiagnosticField.SOURCE_FUNCTION,
    }
)
_ADDED: Final = frozenset({pq.DiagnosticField.MESSAGE_DETAIL, pq.DiagnosticField.MESSAGE_HINT})


@dataclass(frozen=True, slots=True)
class Simple:
    """One Query message."""

    sql: str


@dataclass(frozen=True, slots=True)
class Extended:
    """Parse, Bind, Describe, Execute and Sync of the unnamed statement."""

    sql: str
    values: tuple[bytes | None, ...] = ()
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Run:
    """Bind and Execute of a prepared statement."""

    name: str
    values: tuple[bytes | None, ...] = ()
    binary: bool = False


@dataclass(frozen=True, slots=True)
class DescribeStatement:
    name: str


@dataclass(frozen=True, slots=True)
class DescribePortal:
    name: str


@dataclass(frozen=True, slots=True)
class CopyIn:
    """A COPY FROM STDIN with its data; ``failure`` ends it by CopyFail."""

    sql: str
    chunks: tuple[bytes, ...]
    failure: bytes | None = None


@dataclass(frozen=True, slots=True)
class CopyOut:
    sql: str


Piped = Extended | Prepare | Run | DescribeStatement | DescribePortal


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Messages sent without waiting; None stands for a Sync. Another Sync ends it."""

    steps: tuple[Piped | None, ...]


Step = Simple | Piped | CopyIn | CopyOut | Pipeline


class Witness:
    """Takes the steps of one conversation and writes down what came back.

    ``places`` False leaves out where in PostgreSQL's source a message was written.
    """

    def __init__(self, conninfo: str, *, places: bool = True) -> None:
        self._fields = tuple(field for field in pq.DiagnosticField if places or field not in _PLACE)
        self._connection: PGconn = pq.PGconn.connect(conninfo.encode())
        assert self._connection.status == pq.ConnStatus.OK, self._connection.error_message
        self._notices: list[object] = []
        self._connection.notice_handler = lambda result: self._notices.append(self._told(result))

    def close(self) -> None:
        self._connection.finish()

    def take(self, step: Step) -> tuple[object, ...]:
        """What the client can see after ``step``: results, notices, status, parameters."""
        self._notices = []
        results = self._results(step)
        connection = self._connection
        notifications = []
        while (notification := connection.notifies()) is not None:
            own = notification.be_pid == connection.backend_pid
            notifications.append((notification.relname, notification.extra, own))
        parameters = tuple(connection.parameter_status(name) for name in PARAMETERS)
        return (
            results,
            tuple(self._notices),
            tuple(notifications),
            connection.transaction_status,
            connection.status,
            parameters,
        )

    def _results(self, step: Step) -> Sequence[object]:
        connection = self._connection
        match step:
            case Pipeline():
                return self._pipeline(step)
            case CopyIn():
                return self._copy_in(step)
            case CopyOut():
                return self._copy_out(step)
            case Simple(sql):
                connection.send_query(sql.encode())
            case _:
                self._send(step)
        return self._drain()

    def _send(self, step: Piped) -> None:
        connection = self._connection
        match step:
            case Extended(sql, values, binary):
                connection.send_query_params(sql.encode(), values, result_format=_format(binary))
            case Prepare(name, sql):
                connection.send_prepare(name.encode(), sql.encode())
            case Run(name, values, binary):
                connection.send_query_prepared(name.encode(), values, result_format=_format(binary))
            case DescribeStatement(name):
                connection.send_describe_prepared(name.encode())
            case DescribePortal(name):
                connection.send_describe_portal(name.encode())

    def _drain(self) -> list[object]:
        results: list[object] = []
        while (result := self._connection.get_result()) is not None:
            results.append(self._seen(result))
            if result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT):
                results += self._leave_copy(result)
        return results

    def _leave_copy(self, result: PGresult) -> list[object]:
        """End a copy that a step other than CopyIn and CopyOut has begun."""
        if result.status == pq.ExecStatus.COPY_IN:
            self._connection.put_copy_end(b"not meant to copy")
            return []
        return self._lines()

    def _copy_in(self, step: CopyIn) -> list[object]:
        connection = self._connection
        connection.send_query(step.sql.encode())
        first = connection.get_result()
        assert first is not None
        results: list[object] = [self._seen(first)]
        if first.status == pq.ExecStatus.COPY_IN:
            for chunk in step.chunks:
                connection.put_copy_data(chunk)
            connection.put_copy_end(step.failure)
        return results + self._drain()

    def _copy_out(self, step: CopyOut) -> list[object]:
        self._connection.send_query(step.sql.encode())
        return self._drain()

    def _lines(self) -> list[object]:
        lines: list[object] = []
        while True:
            length, data = self._connection.get_copy_data(0)
            if length < 0:
                return [*lines, length]
            lines.append(bytes(data))

    def _pipeline(self, step: Pipeline) -> list[object]:
        connection = self._connection
        connection.enter_pipeline_mode()
        for part in step.steps:
            if part is None:
                connection.pipeline_sync()
            else:
                self._send(part)
        connection.pipeline_sync()
        results: list[object] = []
        syncs = 1 + sum(part is None for part in step.steps)
        while syncs:
            result = connection.get_result()
            results.append(result and self._seen(result))
            syncs -= result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC
        connection.exit_pipeline_mode()
        return results

    def _told(self, result: PGresult) -> tuple[tuple[str, bytes], ...]:
        """The fields of an error or notice; of an error in a name, less what the proxy adds to it."""
        sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        left_out = _ADDED if sqlstate.startswith(b"42") else frozenset()
        fields = (field for field in self._fields if field not in left_out)
        values = ((field.name, result.error_field(field)) for field in fields)
        return tuple(
            (name, _TEMPORARY.sub(b"temporary", value)) for name, value in values if value is not None
        )

    def _seen(self, result: PGresult) -> tuple[object, ...]:
        columns = range(result.nfields)
        per_column: tuple[Callable[[int], Any], ...] = (
            result.fname,
            result.ftype,
            result.fmod,
            result.fsize,
            result.fformat,
            result.ftablecol,
        )
        return (
            result.status,
            result.command_status,
            result.command_tuples,
            tuple(tuple(of(column) for of in per_column) for column in columns),
            tuple(
                tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)
            ),
            tuple(result.param_type(n) for n in range(result.nparams)),
            self._told(result),
        )


def _format(binary: bool) -> pq.Format:
    return pq.Format.BINARY if binary else pq.Format.TEXT
