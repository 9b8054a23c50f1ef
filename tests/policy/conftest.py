"""Fixtures for tests of the catalog and of whatever asks it, and of the ledger over every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from policy import catalog_source
from policy.catalog import Catalog
from policy.ledger import Book, MemoryLedger
from policy.ledger_redis import RedisLedger
from policy.ledger_sqlite import SqliteLedger
from tests.policy.talking import Talk, another
from tests.support.postgres import Database, Server

RICH_SCHEMA = Path(__file__).parent.parent.joinpath("support", "rich_schema.sql")


def read_catalog(dsn: str) -> Catalog:
    """A snapshot of the database behind ``dsn``."""

    async def read() -> Catalog:
        connection = await asyncpg.connect(dsn)
        try:
            return await catalog_source.read(connection)
        finally:
            await connection.close()

    return asyncio.run(read())


@pytest.fixture(scope="session")
def rich(postgres: Server) -> Iterator[Database]:
    """A database of ``tests/support/rich_schema.sql``, one of everything, on each server; to be read."""
    with postgres.database("template0") as database:
        database.execute(RICH_SCHEMA.read_text())
        yield database


@pytest.fixture(scope="session")
def rich_catalog(rich: Database) -> Catalog:
    return read_catalog(rich.dsn())


@pytest.fixture(scope="session")
def shop_catalog(shop: Database) -> Catalog:
    return read_catalog(shop.dsn())


@pytest.fixture(scope="session")
def postgres18_rich(postgres18: Server) -> Catalog:
    """The rich schema's catalog on PostgreSQL 18 alone, for tests that ask no server."""
    with postgres18.database("template0") as database:
        database.execute(RICH_SCHEMA.read_text())
        return read_catalog(database.dsn())


@pytest.fixture(params=["memory", "sqlite", "redis"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Book]:
    store: SqliteLedger | RedisLedger
    if request.param == "memory":
        yield MemoryLedger()
        return
    if request.param == "sqlite":
        store = SqliteLedger(tmp_path / "ledger.db")
    else:
        store = another(request.getfixturevalue("redis_server"))
        request.getfixturevalue("redis_server").client.flushall()
    yield store
    store.close()


@pytest.fixture
def talk(ledger: Book) -> Talk:
    return Talk(ledger)
