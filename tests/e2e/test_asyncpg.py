"""What asyncpg does beyond statements: pools and their reset, cursors, COPY, introspection of types."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.support.proxy import RunningProxy

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
REFUSED = "DELETE FROM orders"


def given(gateway: RunningProxy, agent: str) -> dict[str, Any]:
    parameters = gateway.parameters(agent)
    parameters["database"] = parameters.pop("dbname")
    return parameters


def with_connection(
    gateway: RunningProxy, scenario: Callable[[Connection], Awaitable[None]], agent: str = "writer"
) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(**given(gateway, agent))
        try:
            await scenario(connection)
        finally:
            await connection.close(timeout=5)

    asyncio.run(run())


@pytest.fixture
def table(gateway: RunningProxy) -> Any:
    """A table of the test's own."""
    gateway.database.execute("CREATE TABLE notebook (id int PRIMARY KEY, word text NOT NULL, at date)")
    gateway.database.execute("GRANT ALL ON notebook TO shop_app")
    yield "notebook"
    gateway.database.execute("DROP TABLE notebook")


def words(gateway: RunningProxy) -> list[str]:
    return [word for (word,) in gateway.database.execute("SELECT word FROM notebook ORDER BY id")]


@pytest.mark.parametrize("agent", ["reader", "writer"])
def test_a_pool_hands_out_connections_reset(gateway: RunningProxy, agent: str) -> None:
    """asyncpg resets a connection by one string of several statements."""

    async def run() -> None:
        async with asyncpg.create_pool(**given(gateway, agent), min_size=1, max_size=3) as pool:
            for _ in range(4):
                async with pool.acquire() as connection:
                    await connection.execute("SET TimeZone = 'Asia/Tokyo'")
                    assert await connection.fetchval("SHOW TimeZone") == "Asia/Tokyo"
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.execute(REFUSED)
            async with pool.acquire() as connection:
                assert await connection.fetchval("SHOW TimeZone") == "UTC"
            counts = await asyncio.gather(*(pool.fetchval("SELECT $1::int", n) for n in range(60)))
            assert counts == list(range(60))

    asyncio.run(run())


def test_a_pool_takes_back_a_failed_transaction(gateway: RunningProxy) -> None:
    async def run() -> None:
        async with asyncpg.create_pool(**given(gateway, "writer"), min_size=1, max_size=1) as pool:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute(REFUSED)
            async with pool.acquire() as connection:
                assert not connection.is_in_transaction()
                assert await connection.fetchval("SELECT 1") == 1

    asyncio.run(run())


def test_prepared_statements(gateway: RunningProxy) -> None:
    async def scenario(connection: Connection) -> None:
        statement = await connection.prepare("SELECT id, ordered_at, details FROM orders WHERE id = $1")
        assert [p.name for p in statement.get_parameters()] == ["int4"]
        assert [a.type.name for a in statement.get_attributes()] == ["int4", "timestamptz", "jsonb"]
        for n in (1, 2, 3):
            record = await statement.fetchrow(n)
            assert record is not None
            assert record["id"] == n
        assert (await statement.explain(1))[0]["Plan"]["Relation Name"] == "orders"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.prepare(REFUSED)
        assert await statement.fetchval(4) == 4

    with_connection(gateway, scenario)


def test_cursors(gateway: RunningProxy) -> None:
    async def scenario(connection: Connection) -> None:
        async with connection.transaction():
            found = [
                r["id"] async for r in connection.cursor("SELECT id FROM orders ORDER BY id", prefetch=7)
            ]
            assert found == list(range(1, 2001))
            cursor = await connection.cursor("SELECT id FROM orders ORDER BY id")
            await cursor.forward(3)
            assert [r["id"] for r in await cursor.fetch(2)] == [4, 5]
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with connection.transaction():
                await connection.cursor("SELECT * FROM pg_authid")
        assert await connection.fetchval("SELECT 1") == 1

    with_connection(gateway, scenario)


def test_executemany_is_all_or_nothing(gateway: RunningProxy, table: str) -> None:
    insert = "INSERT INTO notebook (id, word, at) VALUES ($1, $2, $3)"
    day = dt.date(2026, 5, 1)

    async def scenario(connection: Connection) -> None:
        await connection.executemany(insert, [(n, f"wörd {n}", day) for n in range(300)])
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.executemany(insert, [(300, "lost", day), (1, "again", day)])
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.executemany("DELETE FROM notebook WHERE $1::int IS NOT NULL OR true", [(1,)])

    with_connection(gateway, scenario)
    assert words(gateway) == [f"wörd {n}" for n in range(300)]


def test_copies(gateway: RunningProxy, table: str) -> None:
    async def scenario(connection: Connection) -> None:
        rows = [(n, f"w{n}", None) for n in range(500)]
        assert await connection.copy_records_to_table("notebook", records=rows) == "COPY 500"
        source = io.BytesIO(b"500,w500,2026-01-01\n")
        assert await connection.copy_to_table("notebook", source=source, format="csv") == "COPY 1"
        out = io.BytesIO()
        await connection.copy_from_table("notebook", output=out, columns=["id", "word"])
        assert out.getvalue().splitlines()[-1] == b"500\tw500"
        out = io.BytesIO()
        await connection.copy_from_query("SELECT id FROM notebook WHERE id < $1 ORDER BY id", 2, output=out)
        assert out.getvalue() == b"0\n1\n"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.copy_from_query("SELECT * FROM pg_authid", output=io.BytesIO())
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.copy_to_table("pg_class", source=io.BytesIO(b"1\n"))
        assert await connection.fetchval("SELECT count(*) FROM notebook") == 501

    with_connection(gateway, scenario)


def test_transactions_and_savepoints(gateway: RunningProxy, table: str) -> None:
    async def scenario(connection: Connection) -> None:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("INSERT INTO notebook VALUES (1, 'kept')")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with connection.transaction():
                    await connection.execute("INSERT INTO notebook VALUES (2, 'lost')")
                    await connection.execute(REFUSED)
            assert await connection.fetchval("SELECT count(*) FROM notebook") == 1

    with_connection(gateway, scenario)
    assert words(gateway) == ["kept"]


def test_types_of_the_database_are_looked_up(gateway: RunningProxy) -> None:
    """asyncpg reads pg_type and its kin for what it does not know, by a query of its own."""
    gateway.database.execute("CREATE TYPE mood AS ENUM ('calm', 'cross')")
    gateway.database.execute("CREATE TYPE place AS (city text, moods mood[])")
    gateway.database.execute("CREATE TABLE moody (mood mood, place place, moods mood[])")
    gateway.database.execute("INSERT INTO moody VALUES ('calm', ROW('Oslo', '{calm,cross}'), '{cross}')")
    gateway.database.execute("GRANT SELECT ON moody TO shop_app")

    async def scenario(connection: Connection) -> None:
        record = await connection.fetchrow("TABLE moody")
        assert record is not None
        assert record[0] == "calm"
        assert (record[1]["city"], record[1]["moods"], record[2]) == ("Oslo", ["calm", "cross"], ["cross"])
        await connection.set_type_codec("jsonb", encoder=repr, decoder=len, schema="pg_catalog")
        assert await connection.fetchval("SELECT '[1]'::jsonb") == 3
        await connection.reset_type_codec("jsonb", schema="pg_catalog")
        await connection.reload_schema_state()

    try:
        with_connection(gateway, scenario, "strict")
    finally:
        gateway.database.execute("DROP TABLE moody")
        gateway.database.execute("DROP TYPE place, mood")


def test_listeners(gateway: RunningProxy) -> None:
    async def scenario(connection: Connection) -> None:
        received: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

        def heard(_connection: object, _pid: int, channel: str, payload: object) -> None:
            received.put_nowait((channel, str(payload)))

        await connection.add_listener("news", heard)
        await connection.execute("NOTIFY news, 'ä'")
        assert await asyncio.wait_for(received.get(), 5) == ("news", "ä")
        await connection.remove_listener("news", heard)

    with_connection(gateway, scenario, "insider")


def test_a_timeout_cancels_the_statement(gateway: RunningProxy) -> None:
    async def scenario(connection: Connection) -> None:
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT pg_sleep(30)", timeout=0.5)
        assert await connection.fetchval("SELECT 1", timeout=10) == 1

    with_connection(gateway, scenario)


def test_a_script_of_several_statements(gateway: RunningProxy) -> None:
    """Without arguments asyncpg sends a simple Query."""

    async def scenario(connection: Connection) -> None:
        with pytest.raises(asyncpg.InsufficientPrivilegeError) as caught:
            await connection.execute("SELECT 1; SELECT 2")
        assert caught.value.as_dict()["server_source_function"] == "multiple-statements"
        assert await connection.execute("SELECT 1") == "SELECT 1"

    with_connection(gateway, scenario)
