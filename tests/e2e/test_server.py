"""The server inside the test's own event loop: asyncio's and uvloop's alike, and backends that misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
import structlog
import uvloop

from policy.lineage import CloseOut
from policy.model import Access, ClassRow, FunctionRules, Limits, Pattern, Policy, RelationRules, Verdict
from policy.model import StatementClass as C
from proxy import handshake, stream
from proxy.agents import AgentConfig, Login, TrustLoopback
from proxy.audit_line import ConnectionIdentity
from proxy.config import Backend, Config, Listen, ServerLimits
from proxy.effects import AuditEntry
from proxy.server import Server
from proxy.wire import startup
from tests.support.postgres import Database
from tests.support.postgres import Server as PostgresServer
from tests.support.wire import Client, dial, query

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

POLICY = Policy(
    "reads",
    "reads.yaml",
    "0" * 64,
    access=Access.READ_ONLY,
    statements={c: ClassRow(Verdict.ALLOW) for c in (C.SELECT, C.SET, C.SHOW, C.TRANSACTION)},
    relations=RelationRules(allow=(Pattern("public", "*"),)),
    functions=FunctionRules(builtin_safe=True),
    limits=Limits(statement_timeout_ms=30_000),
)


def config_for(database: Database, *, port: int | None = None, **limits: int) -> Config:
    login = Login("shop_ro", database.server.passwords["shop_ro"])
    return Config(
        "test",
        Listen("127.0.0.1", 0),
        Backend(database.server.host, port or database.server.port),
        {"local": AgentConfig("local", TrustLoopback(), login, None, POLICY)},
        limits=ServerLimits(**limits),
    )


class Records:
    def __init__(self) -> None:
        self.taken: list[tuple[AuditEntry, ConnectionIdentity]] = []
        self.endings: list[CloseOut] = []

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        self.taken.append((entry, identity))

    def closed(self, record: CloseOut) -> None:
        self.endings.append(record)


def serving(
    config: Config,
    use: Callable[[Server, int], Awaitable[None]],
    factory: LoopFactory = uvloop.new_event_loop,
    audit: Records | None = None,
) -> None:
    async def run() -> None:
        server = Server(config, audit)
        _, port = await server.start()
        try:
            await use(server, port)
        finally:
            await server.stop()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


def connect(database: Database, port: int) -> Awaitable[asyncpg.Connection[asyncpg.Record]]:
    return asyncpg.connect(host="127.0.0.1", port=port, user="local", database=database.name, timeout=10)


@pytest.mark.parametrize("factory", LOOPS)
def test_a_session_on_each_event_loop(shop: Database, factory: LoopFactory) -> None:
    records = Records()

    async def use(server: Server, port: int) -> None:
        connection = await connect(shop, port)
        expected = shop.execute("SELECT count(*) FROM orders")[0][0]
        assert await connection.fetchval("SELECT count(*) FROM orders") == expected
        rows = await connection.fetch("SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        assert len(rows) == 20_000
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("DELETE FROM orders")
        # Too long to be judged on the event loop.
        listed = ", ".join(str(n) for n in range(1, 20_000))
        assert await connection.fetchval(f"SELECT count(*) FROM orders WHERE id IN ({listed})") == expected
        await connection.close()

    serving(config_for(shop), use, factory, records)
    identities = {identity for _, identity in records.taken}
    assert {(i.agent, i.database, i.backend_user, i.policy_name) for i in identities} == {
        ("local", shop.name, "shop_ro", "reads")
    }
    assert any(entry.sqlstate == "42501" for entry, _ in records.taken)


@pytest.mark.parametrize("factory", LOOPS)
def test_stopping_ends_every_session(shop: Database, factory: LoopFactory) -> None:
    async def use(server: Server, port: int) -> None:
        connections = [await connect(shop, port) for _ in range(3)]
        await server.stop()
        await asyncio.sleep(0.05)
        assert all(connection.is_closed() for connection in connections)
        with pytest.raises(OSError):
            await connect(shop, port)

    serving(config_for(shop), use, factory)


@pytest.mark.parametrize("started", [True, False])
def test_a_handshake_that_is_cut_short_by_a_stop_leaves_nothing(
    shop: Database, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    async def use(server: Server, port: int) -> None:
        accept = server._accept

        def accept_and_stop(stream: Any) -> None:
            accept(stream)
            server._refuse_new()

        if not started:
            monkeypatch.setattr(server, "_accept", accept_and_stop)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
        await server.stop()
        last = await reader.read()
        assert (b"C57P03\0" in last) is started
        assert server._sockets == 0
        writer.close()

    serving(config_for(shop), use)


async def refusal_of(database: Database, port: int) -> asyncpg.PostgresError:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connect(database, port)
    return caught.value


def test_a_server_that_says_nothing_is_not_waited_for(shop: Database) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def run() -> None:
        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        backend_port = listener.sockets[0].getsockname()[1]
        server = Server(config_for(shop, port=backend_port, startup_timeout_ms=200))
        _, port = await server.start()
        error = await refusal_of(shop, port)
        assert (error.sqlstate, str(error)) == ("57P03", "the database server did not answer in time")
        assert not server._agents
        await server.stop()
        listener.close()

    asyncio.run(run())


def test_nobody_listens_behind_us(shop: Database) -> None:
    async def use(server: Server, port: int) -> None:
        error = await refusal_of(shop, port)
        assert (error.sqlstate, str(error)) == ("57P03", "the database server cannot be reached")

    serving(config_for(shop, port=1), use)


def test_a_name_that_is_not_resolved_for_a_while(
    postgres18: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is told what it can use, the log why; and once the name is known again so is the server."""
    shop = postgres18.shop
    known = False
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        if host != "db.test":
            return resolve(host, *rest, **more)
        if not known:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(shop.server.host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    config = config_for(shop)
    config = replace(config, backend=Backend("db.test", shop.server.port))

    async def use(server: Server, port: int) -> None:
        nonlocal known
        with structlog.testing.capture_logs() as logged:
            error = await refusal_of(shop, port)
        assert (error.sqlstate, str(error)) == ("57P03", "the database server cannot be reached")
        (line,) = [entry for entry in logged if entry["event"] == "connection refused"]
        assert "Temporary failure in name resolution" in line["reason"]
        assert not server._agents
        known = True
        connection = await connect(shop, port)
        assert await connection.fetchval("SELECT count(*) FROM orders") > 0
        await connection.close()

    serving(config, use, asyncio.new_event_loop)


def test_an_agent_that_vanishes_without_a_word_is_noticed(
    postgres18: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open TCP: this end hears neither data nor an end. Keep-alive asks, and where the other end was
    nobody knows the connection. (A machine that is gone altogether does not answer at all, which comes to the
    same after ``TCP_KEEPCNT`` questions; that cannot be had on loopback.)"""
    shop = postgres18.shop
    monkeypatch.setattr(stream, "KEEPALIVE", {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 1})

    def begin_and_vanish(port: int) -> None:
        with dial(port) as sock:
            sock.sendall(startup.encode_startup({"user": "local", "database": shop.name}))
            client = Client(sock)
            client.cycles()
            assert client.ask(query("BEGIN"))[-1].body == b"T"
            try:
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
            except OSError as error:
                pytest.skip(f"nobody vanishes from loopback without CAP_NET_ADMIN: {error}")

    async def use(server: Server, port: int) -> None:
        await asyncio.to_thread(begin_and_vanish, port)
        assert len(server._live) == 1
        async with asyncio.timeout(20):
            while server._live:
                await asyncio.sleep(0.05)

    serving(config_for(shop), use, asyncio.new_event_loop)


_TCP_REPAIR = 19
"""Linux, include/uapi/linux/tcp.h: what is closed in it is forgotten without a word."""


def test_a_bug_in_the_handshake_shows_nothing_of_itself(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(*arguments: object) -> None:
        raise RuntimeError("the password is hidden-pw")

    async def use(server: Server, port: int) -> None:
        error = await refusal_of(shop, port)
        assert error.sqlstate == "XX000"
        assert "hidden-pw" not in str(error)

    monkeypatch.setattr(handshake, "open_backend", breaks)
    serving(config_for(shop), use)
