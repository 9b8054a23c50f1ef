"""Real PostgreSQL servers and databases for tests.

Owns one server a major version and run, and one database a test. Tests reach it through the fixtures of
conftest.py; it must know nothing of the proxy or the gate.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from proxy.demo_shop import ROLES, load_shop
from proxy.embedded import Binaries, BinariesNotFoundError, EmbeddedPostgres, find_binaries
from tests.support.server_log import LOGGING, LogRecord, ServerLog, Step

SHOP: Final = "shop"
"""Name of the shared database with the sample shop on each server: to be read, never written."""

FURTHER: Final = "PGTURNSTILE_TEST_POSTGRES"
"""Environment variable: folders with ``postgres`` and ``initdb``, parted as those of PATH. What takes a
server runs on their majors as well; one of a major that is run on anyway stands for what would be found."""

_USUAL: Final = (15, 18)
_TEMPLATE: Final = "shop_template"

_SETTINGS: Final[Mapping[str, str]] = {
    "autovacuum": "off",  # plans and the log then depend on the test alone
    "max_prepared_transactions": "4",
    **LOGGING,
}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server that holds the sample shop."""

    engine: EmbeddedPostgres
    passwords: Mapping[str, str]
    log: ServerLog
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def host(self) -> str:
        return self.engine.host

    @property
    def port(self) -> int:
        return self.engine.port

    @property
    def major(self) -> int:
        return self.engine.binaries.major

    @property
    def shop(self) -> Database:
        """The shared sample shop, not to be written."""
        return Database(self, SHOP)

    @contextmanager
    def database(self, template: str = _TEMPLATE) -> Iterator[Database]:
        """A sample shop of one's own, gone afterwards whoever is still connected; of template0: empty."""
        name = f"test_{next(self._names)}"
        self._copy(template, name)
        try:
            yield Database(self, name)
        finally:
            with self._maintenance() as connection:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _copy(self, template: str, name: str) -> None:
        # file_copy is the faster strategy here: without fsync its checkpoints cost nothing.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        with self._maintenance() as connection:
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))

    def _load(self) -> None:
        """Make the template, then close it: nobody may be connected to the template of CREATE DATABASE."""
        with self._maintenance() as connection:
            template = sql.Identifier(_TEMPLATE)
            connection.execute(sql.SQL("CREATE DATABASE {}").format(template))
            asyncio.run(load_shop(self.engine.dsn(_TEMPLATE), self.passwords))
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(template))
        self._copy(_TEMPLATE, SHOP)

    def _maintenance(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.engine.dsn("postgres"), autocommit=True)


@dataclass(frozen=True, slots=True)
class Database:
    """One database of a server."""

    server: Server
    name: str

    def dsn(self, role: str | None = None) -> str:
        """Connection URI as the superuser, or as one of the shop's roles."""
        if role is None:
            return self.server.engine.dsn(self.name)
        return self.server.engine.dsn(self.name, role, self.server.passwords[role])

    def execute(self, statement: str, role: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement straight on the server and return its rows."""
        with psycopg.connect(self.dsn(role), autocommit=True) as connection:
            # Bytes: psycopg's type for text admits literals only.
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def records(self) -> list[LogRecord]:
        """What the server's log says about this database."""
        return self.server.log.of(self.name)

    def executed(self, role: str | None = None) -> list[str]:
        """Texts that ran here, in order, by either sub-protocol; of one role, or of all."""
        return self._texts({Step.STATEMENT, Step.EXECUTE}, role)

    def parsed(self, role: str | None = None) -> list[str]:
        """Texts that were prepared here by Parse messages, in order; of one role, or of all."""
        return self._texts({Step.PARSE}, role)

    def _texts(self, steps: set[Step], role: str | None) -> list[str]:
        # A run may be reported twice, when it starts and with its duration: the former counts.
        return [
            record.statement
            for record in self.records()
            if record.step in steps
            and (record.step is Step.PARSE or not record.text.startswith("duration"))
            and role in (None, record.role)
        ]


@contextmanager
def run_server(
    major: int,
    settings: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
    kind: type[EmbeddedPostgres] = EmbeddedPostgres,
) -> Iterator[Server]:
    """A server of that major with the sample shop; skips (in CI: fails) where there are no binaries."""
    try:
        binaries = named_binaries().get(major) or find_binaries(major=major)
    except BinariesNotFoundError as error:
        skip_or_fail(str(error))
    passwords = {role: secrets.token_urlsafe(12) for role in ROLES}
    with kind(binaries, settings={**_SETTINGS, **(settings or {})}, files=files) as engine:
        server = Server(engine, passwords, ServerLog(engine.log_path))
        server._load()
        yield server


@cache
def named_binaries() -> Mapping[int, Binaries]:
    """The installations that ``FURTHER`` names, by major. Raises UsageError for a folder that holds none."""
    folders = [folder for folder in os.environ.get(FURTHER, "").split(os.pathsep) if folder]
    try:
        found = [find_binaries(Path(folder)) for folder in folders]
    except BinariesNotFoundError as error:
        raise pytest.UsageError(f"{FURTHER}: {error}") from error
    return {binaries.major: binaries for binaries in found}


def majors() -> tuple[int, ...]:
    """The majors that tests run on, each in turn."""
    return tuple(sorted({*_USUAL, *named_binaries()}))


def skip_or_fail(reason: str) -> Any:
    """Skip the test, stating why; in CI, where everything is meant to be there, fail instead."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{reason} (CI runs every test.)")
    pytest.skip(reason)
