"""Python's PostgreSQL drivers behind one small interface, so that a test of the wire is written once.

Each adapter keeps the driver's own ways: psycopg and asyncpg speak the extended protocol with native
parameters, pg8000 does so with protocol code of its own, psycopg2 fills parameters in and sends simple
queries. What one driver alone can do is tested with that driver.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import asyncpg
import pg8000.dbapi
import psycopg
import psycopg2

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Told:
    """An error as the driver tells it; ``kind`` is the class it raised, None stands for an absent field."""

    kind: type[BaseException]
    severity: str | None
    sqlstate: str | None
    message: str | None
    detail: str | None
    hint: str | None
    position: str | None
    table: str | None
    routine: str | None


class Driver(ABC):
    """One connection in autocommit mode. ``?`` in a statement stands for the next parameter."""

    name: ClassVar[str]
    refused: ClassVar[type[BaseException]]
    """The class of this driver's error for SQLSTATE 42501."""
    aborted: ClassVar[type[BaseException]]
    """The same for 25P02."""

    @abstractmethod
    def __init__(self, parameters: Mapping[str, Any]) -> None:
        """Connect, by libpq's names of parameters."""

    @abstractmethod
    def run(self, sql: str, *parameters: object) -> Rows:
        """The statement's rows, as plain tuples; raises the driver's own error."""

    @abstractmethod
    def told(self, error: BaseException) -> Told: ...

    @abstractmethod
    def parameter(self, name: str) -> str | None:
        """A parameter that the server reported."""

    @abstractmethod
    def close(self) -> None: ...

    def fail(self, sql: str, *parameters: object) -> Told:
        """The error of a statement that must fail."""
        try:
            rows = self.run(sql, *parameters)
        except Exception as error:
            return self.told(error)
        raise AssertionError(f"ran: {sql} -> {rows}")


class Psycopg(Driver):
    name = "psycopg"
    refused = psycopg.errors.InsufficientPrivilege
    aborted = psycopg.errors.InFailedSqlTransaction

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.connection = psycopg.connect(**parameters, autocommit=True)

    def run(self, sql: str, *parameters: object) -> Rows:
        cursor = self.connection.execute(_placeholders(sql, lambda n: "%s").encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def told(self, error: BaseException) -> Told:
        assert isinstance(error, psycopg.Error), error
        return _from_diagnostics(error)

    def parameter(self, name: str) -> str | None:
        return self.connection.info.parameter_status(name)

    def close(self) -> None:
        self.connection.close()


class Psycopg2(Driver):
    name = "psycopg2"
    refused = psycopg2.errors.InsufficientPrivilege
    aborted = psycopg2.errors.InFailedSqlTransaction

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.connection = psycopg2.connect(**parameters)
        self.connection.autocommit = True

    def run(self, sql: str, *parameters: object) -> Rows:
        with self.connection.cursor() as cursor:
            cursor.execute(_placeholders(sql, lambda n: "%s"), parameters or None)
            rows = cursor.fetchall() if cursor.description else []
        return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows]

    def told(self, error: BaseException) -> Told:
        assert isinstance(error, psycopg2.Error), error
        return _from_diagnostics(error)

    def parameter(self, name: str) -> str | None:
        value = self.connection.get_parameter_status(name)
        assert value is None or isinstance(value, str)
        return value

    def close(self) -> None:
        self.connection.close()


class Asyncpg(Driver):
    name = "asyncpg"
    refused = asyncpg.InsufficientPrivilegeError
    aborted = asyncpg.InFailedSQLTransactionError

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        given = {("database" if key == "dbname" else key): value for key, value in parameters.items()}
        self._runner = asyncio.Runner()
        self.connection: asyncpg.Connection[Any] = self._runner.run(asyncpg.connect(**given))

    def run(self, sql: str, *parameters: object) -> Rows:
        records = self._runner.run(self.connection.fetch(_placeholders(sql, lambda n: f"${n}"), *parameters))
        return [tuple(record) for record in records]

    def told(self, error: BaseException) -> Told:
        assert isinstance(error, asyncpg.PostgresError), error
        fields = error.as_dict()
        return Told(
            kind=type(error),
            severity=fields.get("severity"),
            sqlstate=fields.get("sqlstate"),
            message=fields.get("message"),
            detail=fields.get("detail"),
            hint=fields.get("hint"),
            position=fields.get("position"),
            table=fields.get("table_name"),
            routine=fields.get("server_source_function"),
        )

    def parameter(self, name: str) -> str | None:
        value = getattr(self.connection.get_settings(), name)
        assert value is None or isinstance(value, str)
        return value

    def close(self) -> None:
        self._runner.run(self.connection.close())
        self._runner.close()


class Pg8000(Driver):
    name = "pg8000"
    refused = pg8000.dbapi.DatabaseError
    aborted = pg8000.dbapi.DatabaseError

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        given = {("database" if key == "dbname" else key): value for key, value in parameters.items()}
        self.connection = pg8000.dbapi.connect(**given)
        self.connection.autocommit = True

    def run(self, sql: str, *parameters: object) -> Rows:
        cursor = self.connection.cursor()
        cursor.execute(_placeholders(sql, lambda n: "%s"), parameters)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def told(self, error: BaseException) -> Told:
        assert isinstance(error, pg8000.dbapi.DatabaseError), error
        fields: dict[str, str] = error.args[0]
        return Told(type(error), *(fields.get(code) for code in "VCMDHPtR"))

    def parameter(self, name: str) -> str | None:
        value = self.connection.parameter_statuses.get(name)
        assert value is None or isinstance(value, str)
        return value

    def close(self) -> None:
        self.connection.close()


DRIVERS: Final = (Psycopg, Psycopg2, Asyncpg, Pg8000)


def _placeholders(sql: str, write: Callable[[int], str]) -> str:
    numbers = iter(range(1, len(sql) + 1))
    return re.sub(r"\?", lambda _: write(next(numbers)), sql)


def _from_diagnostics(error: psycopg.Error | psycopg2.Error) -> Told:
    diag = error.diag
    return Told(
        type(error),
        diag.severity,
        diag.sqlstate,
        diag.message_primary,
        diag.message_detail,
        diag.message_hint,
        diag.statement_position,
        diag.table_name,
        diag.source_function,
    )
