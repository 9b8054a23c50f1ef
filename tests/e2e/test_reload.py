"""A policy changed under live sessions: each statement is decided by one policy, the one that is told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import asyncpg
import psycopg
import pytest
import structlog
import uvloop
from psycopg import pq

from policy.lineage import CloseOut
from policy.loader import load
from policy.model import Access, ClassRow, Limits, Mode, Policy, Verdict
from policy.model import StatementClass as C
from proxy.agents import AgentConfig, Login, TrustLoopback
from proxy.audit_line import ConnectionIdentity
from proxy.config import Backend, Config, Listen
from proxy.effects import AuditEntry
from proxy.server import Server
from tests.support.postgres import Database
from tests.support.postgres import Server as Postgres

USUAL: Final = """
version: 1
name: {name}
access: read_write
multiple: judged
statements: {{select: allow, insert: allow, update: allow, delete: allow, transaction: allow, set: allow,
  show: allow, cursor: allow, prepare: allow, copy_out: allow, copy_in: allow}}
relations: {{allow: [{relations}]}}
functions: {{allow: [builtin-safe]}}
rules: {{unbounded-select: "off", unbounded-join: "off"}}
{more}
"""


def policy(relations: str, more: str = "", name: str = "p") -> Policy:
    """Always of the same file, as a policy that was edited is."""
    return load(USUAL.format(name=name, relations=relations, more=more), "p.yaml")


ORDERS = policy("public.orders")
CUSTOMERS = policy("public.customers")
BOTH = policy("public.orders, public.customers")


class Records:
    def __init__(self) -> None:
        self.taken: list[tuple[AuditEntry, ConnectionIdentity]] = []
        self.endings: list[CloseOut] = []
        self.log: Sequence[Mapping[str, Any]] = ()

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        self.taken.append((entry, identity))

    def closed(self, record: CloseOut) -> None:
        self.endings.append(record)

    def told(self, sql: str) -> list[tuple[str, str]]:
        """By which policy each such statement was decided, and with what outcome."""
        return [
            (identity.policy_sha256, entry.sqlstate or "passed")
            for entry, identity in self.taken
            if entry.decision.query.sql == sql
        ]


class Proxy:
    """A server in the test's own event loop."""

    def __init__(self, database: Database, first: Policy) -> None:
        self.records = Records()
        self.database = database
        login = Login("shop_app", database.server.passwords["shop_app"])
        agent = AgentConfig("local", TrustLoopback(), login, None, first)
        backend = Backend(database.server.host, database.server.port)
        self.config = Config("test", Listen("127.0.0.1", 0), backend, {"local": agent})
        self.server = Server(self.config, self.records)
        self.port = 0

    def change(self, policy: Policy | None = None, **agent: object) -> None:
        changed = dataclasses.replace(self.server.config.agents["local"], **agent)  # type: ignore[arg-type]
        if policy is not None:
            changed = dataclasses.replace(changed, policy=policy)
        self.server.replace_config(dataclasses.replace(self.server.config, agents={"local": changed}))

    async def connect(self, cached_statements: int = 0) -> asyncpg.Connection:
        return await asyncpg.connect(
            host="127.0.0.1",
            port=self.port,
            user="local",
            database=self.database.name,
            statement_cache_size=cached_statements,
        )


def through(
    database: Database, first: Policy, use: Callable[[Proxy, asyncpg.Connection], Awaitable[None]]
) -> Records:
    async def run() -> Records:
        proxy = Proxy(database, first)
        _, proxy.port = await proxy.server.start()
        try:
            connection = await proxy.connect()
            with structlog.testing.capture_logs() as proxy.records.log:
                await use(proxy, connection)
            connection.terminate()
        finally:
            await proxy.server.stop()
        return proxy.records

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as database:
        yield database


@contextlib.asynccontextmanager
async def refused(sqlstate: str = "42501", containing: str = "") -> AsyncIterator[None]:
    with pytest.raises(asyncpg.PostgresError) as caught:
        yield
    assert caught.value.sqlstate == sqlstate
    assert containing in str(caught.value)


# --- what was made before the change ---


def test_a_live_session_is_judged_anew(database: Database) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT id FROM orders LIMIT 1")
        proxy.change(CUSTOMERS)
        async with refused(containing="public.orders"):
            await connection.execute("SELECT id FROM orders LIMIT 1")
        await connection.execute("SELECT id FROM customers LIMIT 1")
        proxy.change(ORDERS)
        await connection.execute("SELECT id FROM orders LIMIT 1")

    records = through(database, ORDERS, use)
    assert records.told("SELECT id FROM orders LIMIT 1") == [
        (ORDERS.sha256, "passed"),
        (CUSTOMERS.sha256, "42501"),
        (ORDERS.sha256, "passed"),
    ]


def test_a_prepared_statement_is_judged_at_its_next_execution(database: Database) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        prepared = await connection.prepare("SELECT id FROM orders WHERE id = $1")
        assert await prepared.fetchval(1) == 1
        proxy.change(CUSTOMERS)
        for _ in range(2):
            async with refused(containing="public.orders"):
                await prepared.fetchval(1)
        proxy.change(BOTH)
        assert await prepared.fetchval(2) == 2

    through(database, ORDERS, use)


def showing(relations: str) -> Policy:
    opened = f"allow: [{relations}]"
    text = USUAL.format(name="p", relations=relations, more="")
    return load(text.replace(opened, f"{opened}, catalogs: filtered"), "p.yaml")


TABLES: Final = (
    "SELECT relname::text AS name FROM pg_class WHERE relname IN ('orders', 'customers') ORDER BY relname"
)


def test_a_driver_prepares_anew_what_was_prepared_to_show_less(database: Database) -> None:
    """As it does where PostgreSQL says so: unseen, but inside a transaction, which has failed by then."""

    async def use(proxy: Proxy, _: asyncpg.Connection) -> None:
        connection = await proxy.connect(cached_statements=100)
        assert [row["name"] for row in await connection.fetch(TABLES)] == ["orders"]
        proxy.change(showing("public.orders, public.customers"))
        assert [row["name"] for row in await connection.fetch(TABLES)] == ["customers", "orders"]
        proxy.change(showing("public.customers"))
        with pytest.raises(asyncpg.InvalidCachedStatementError):
            async with connection.transaction():
                await connection.fetch(TABLES)
        assert [row["name"] for row in await connection.fetch(TABLES)] == ["customers"]
        connection.terminate()

    through(database, showing("public.orders"), use)


KNOWN_BY: Final = (
    pq.DiagnosticField.SQLSTATE,
    pq.DiagnosticField.MESSAGE_PRIMARY,
    pq.DiagnosticField.SOURCE_FUNCTION,
)


def test_what_was_prepared_to_show_less_fails_in_the_server_s_own_words(database: Database) -> None:
    """pgjdbc looks for SQLSTATE and routine, pgx for the message; what they prepare next is new."""

    async def use(proxy: Proxy, _: asyncpg.Connection) -> None:
        loop = asyncio.get_running_loop()

        def converse() -> None:
            where = f"host=127.0.0.1 port={proxy.port} user=local dbname={database.name}"
            with psycopg.connect(where, autocommit=True) as connection:
                raw = connection.pgconn
                prepared = raw.prepare(b"S_1", TABLES.encode())
                assert prepared.status == pq.ExecStatus.COMMAND_OK
                assert raw.exec_prepared(b"S_1", ()).get_value(0, 0) == b"orders"
                loop.call_soon_threadsafe(proxy.change, showing("public.customers"))
                raw.exec_(b"SELECT 1")  # answered after that
                failed = raw.exec_prepared(b"S_1", ())
                told = [failed.error_field(field) for field in KNOWN_BY]
                assert told == [
                    b"0A000",
                    b"cached plan must not change result type",
                    b"RevalidateCachedQuery",
                ]
                assert raw.transaction_status == pq.TransactionStatus.IDLE
                raw.prepare(b"S_2", TABLES.encode())
                assert raw.exec_prepared(b"S_2", ()).get_value(0, 0) == b"customers"

        await asyncio.to_thread(converse)

    through(database, showing("public.orders"), use)


def test_sql_prepare_is_judged_at_its_next_execute(database: Database) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("PREPARE p AS SELECT id FROM orders WHERE id = 1")
        await connection.execute("EXECUTE p")
        proxy.change(CUSTOMERS)
        async with refused(containing="public.orders"):
            await connection.execute("EXECUTE p")
        async with refused(containing="public.orders"):
            await connection.fetch("EXECUTE p")
        proxy.change(BOTH)
        await connection.execute("EXECUTE p")

    through(database, ORDERS, use)


@pytest.mark.parametrize("simple", [True, False], ids=["simple", "extended"])
def test_a_cursor_is_judged_at_its_next_fetch(database: Database, simple: bool) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        run = connection.execute if simple else connection.fetch
        await run("DECLARE c CURSOR WITH HOLD FOR SELECT id FROM orders")
        await run("FETCH 1 FROM c")
        proxy.change(CUSTOMERS)
        for command in ("FETCH 1 FROM c", "MOVE 1 FROM c"):
            async with refused(containing="public.orders"):
                await run(command)
        await run("SELECT id FROM customers")
        proxy.change(BOTH)
        await run("FETCH 1 FROM c")
        await run("CLOSE c")

    records = through(database, ORDERS, use)
    assert records.told("FETCH 1 FROM c") == [(ORDERS.sha256, "passed"), (BOTH.sha256, "passed")]
    assert (CUSTOMERS.sha256, "42501") in records.told("DECLARE c CURSOR WITH HOLD FOR SELECT id FROM orders")


def test_a_portal_is_judged_at_its_next_execute(database: Database) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        transaction = connection.transaction()
        await transaction.start()
        cursor = await connection.cursor("SELECT id FROM orders ORDER BY id")
        assert [row["id"] for row in await cursor.fetch(2)] == [1, 2]
        proxy.change(BOTH)
        assert [row["id"] for row in await cursor.fetch(2)] == [3, 4]
        proxy.change(CUSTOMERS)
        async with refused(containing="public.orders"):
            await cursor.fetch(2)
        async with refused("25P02"):
            await connection.execute("SELECT id FROM customers")
        await transaction.rollback()

    through(database, ORDERS, use)


def test_names_of_a_cursor_mean_what_they_meant(database: Database) -> None:
    """The path of now would find another relation than the one that is read."""
    for sql in (
        "CREATE SCHEMA IF NOT EXISTS other",
        "CREATE TABLE IF NOT EXISTS other.orders AS SELECT 7 AS id",
        "GRANT USAGE ON SCHEMA other TO PUBLIC",
        "GRANT SELECT ON other.orders TO PUBLIC",
    ):
        database.execute(sql)
    first, then = policy("public.orders, other.orders"), policy("other.orders")

    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("DECLARE c CURSOR WITH HOLD FOR SELECT id FROM orders")
        await connection.execute("SET search_path = other")
        proxy.change(then)
        await connection.execute("SELECT id FROM orders")
        # Nothing of what is sent names the schema, and the policy of now hides it.
        async with refused(containing="(hidden).orders"):
            await connection.execute("FETCH 1 FROM c")

    through(database, first, use)


def test_a_price_that_was_asked_is_held_against_the_new_limits(database: Database) -> None:
    cheap, dear = (policy("public.orders", f"cost: {{max_total_cost: {cost}}}") for cost in (1, 100_000))

    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("DECLARE c CURSOR WITH HOLD FOR SELECT id FROM orders")
        await connection.execute("FETCH 1 FROM c")
        proxy.change(ORDERS)
        await connection.execute("FETCH 1 FROM c")
        for _ in range(2):
            proxy.change(cheap)
            async with refused("54001"):
                await connection.execute("FETCH 1 FROM c")
            proxy.change(dear)
            await connection.execute("FETCH 1 FROM c")

    through(database, dear, use)


def test_what_was_never_priced_is_not_read_on(database: Database) -> None:
    dear = policy("public.orders", "cost: {max_total_cost: 100000}")

    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("DECLARE c CURSOR WITH HOLD FOR SELECT id FROM orders")
        prepared = await connection.prepare("SELECT id FROM orders WHERE id = $1")
        proxy.change(dear)
        async with refused("54001", "opened before"):
            await connection.execute("FETCH 1 FROM c")
        assert await prepared.fetchval(1) == 1

    through(database, ORDERS, use)


def test_limits_hold_from_the_change_on(database: Database) -> None:
    few = policy("public.orders", "limits: {result_rows: 3, affected_rows: 1}")

    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        transaction = connection.transaction()
        await transaction.start()
        cursor = await connection.cursor("SELECT id FROM orders")
        await cursor.fetch(2)
        await connection.execute("UPDATE orders SET status = status WHERE id < 4")
        proxy.change(few)
        async with connection.transaction():
            await cursor.fetch(3)
        async with refused("57014"), connection.transaction():
            await connection.execute("UPDATE orders SET status = status WHERE id < 4")
        async with refused("57014"), connection.transaction():
            await cursor.fetch(1)
        proxy.change(ORDERS)
        assert len(await connection.fetch("SELECT id FROM orders LIMIT 5")) == 5
        await transaction.rollback()

    through(database, ORDERS, use)


# --- what cannot be changed under a session ---


def making(relations: str, more: str = "") -> Policy:
    """One that lets its agent make temporary relations."""
    made = policy(relations, more)
    return dataclasses.replace(made, statements={**made.statements, C.DDL: ClassRow(Verdict.ALLOW)})


async def ended(proxy: Proxy, connection: asyncpg.Connection, containing: str) -> None:
    """The proxy has ended the connection, and says why."""
    async with asyncio.timeout(5):
        while not connection.is_closed():
            await asyncio.sleep(0.01)
    reasons = [entry["reason"] for entry in proxy.records.log if entry["event"] == "connection closed"]
    assert [containing in reason for reason in reasons] == [True]


def test_what_a_temporary_view_reads_ends_with_its_session(database: Database) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("BEGIN")
        await connection.execute("CREATE TEMP VIEW seen AS SELECT * FROM public.customers")
        proxy.change(making('"public.*"', "cost: {max_total_cost: 100000}"))
        await connection.execute("SELECT * FROM seen LIMIT 1")
        proxy.change(making("public.orders, public.seen"))
        await ended(proxy, connection, "temporary relations")

    through(database, making('"public.*"'), use)


CHANGES: Final[dict[str, dict[str, Any]]] = {
    "databases": {"databases": frozenset({"another"})},
    "login": {"login": Login("shop_ro", "")},
    "name": {"name": "*"},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
def test_an_agent_that_may_no_longer_be_there_is_not_waited_for(
    database: Database, changed: dict[str, Any]
) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("BEGIN")
        await connection.execute("UPDATE customers SET name = name || '?' WHERE id = 1")
        proxy.change(**changed)
        await ended(proxy, connection, "change of the configuration")

    through(database, BOTH, use)
    assert database.execute("SELECT count(*) FROM customers WHERE name LIKE '%?'") == [(0,)]


REPINNED: Final = {
    "read only": dataclasses.replace(BOTH, access=Access.READ_ONLY),
    "time limit": dataclasses.replace(BOTH, limits=Limits(statement_timeout_ms=5_000)),
    "observe": dataclasses.replace(BOTH, mode=Mode.OBSERVE),
}


@pytest.mark.parametrize("then", REPINNED.values(), ids=REPINNED)
def test_a_session_that_would_begin_otherwise_ends_when_it_is_idle(database: Database, then: Policy) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("BEGIN")
        proxy.change(dataclasses.replace(then, sha256="2"))
        await connection.execute("SELECT id FROM orders LIMIT 1")
        await connection.execute("COMMIT")
        await ended(proxy, connection, "connect anew")
        await (await proxy.connect()).close()

    records = through(database, BOTH, use)
    assert records.told("SELECT id FROM orders LIMIT 1") == [("2", "passed")]
    assert records.told("COMMIT") == [("2", "passed")]


def test_what_the_agent_may_have_set_meanwhile_ends_its_session(database: Database) -> None:
    """The first policy and the last are alike; between them the agent could take more memory."""
    strict, lenient = policy("public.orders"), policy("public.orders", "settings: {allow: [work_mem]}")

    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        proxy.change(lenient)
        await connection.execute("SET work_mem = '1GB'")
        proxy.change(strict)
        await ended(proxy, connection, "connect anew")

    through(database, strict, use)


def test_nothing_happens_where_the_policy_says_the_same(database: Database) -> None:
    async def use(proxy: Proxy, connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT id FROM orders LIMIT 1")
        (relay,) = proxy.server._live
        gate = relay._gate
        proxy.change(policy("public.orders"))
        await connection.execute("SELECT id FROM orders LIMIT 1")
        assert relay._gate is gate

    through(database, ORDERS, use)
