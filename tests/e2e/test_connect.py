"""Getting connected, staying connected, and every way to end: real drivers through a real proxy."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pg8000.dbapi
import psycopg
import psycopg2
import pytest
from psycopg import errors

from proxy.wire import startup
from tests.support.certificates import Certificates
from tests.support.postgres import Database, Server
from tests.support.proxy import PASSWORD, RunningProxy, run_proxy, wait_for


@pytest.fixture(scope="module")
def proxy(shop: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """One proxy before each server, for tests that leave it as it was."""
    with run_proxy(shop, tmp_path_factory.mktemp("proxy")) as running:
        yield running


@pytest.fixture
def own_proxy(database18: Database, tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy and a database of the test's own."""
    with run_proxy(database18, tmp_path) as running:
        yield running


def connect(proxy: RunningProxy, user: str = "reader", **more: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(**proxy.parameters(user, **more), autocommit=True)


# --- drivers ---


def by_psycopg(parameters: dict[str, Any], sql: str) -> object:
    with psycopg.connect(**parameters) as connection:
        row = connection.execute(sql.encode()).fetchone()
        return row and row[0]


def by_psycopg2(parameters: dict[str, Any], sql: str) -> object:
    connection = psycopg2.connect(**parameters)
    try:
        cursor = connection.cursor()
        cursor.execute(sql)
        row = cursor.fetchone()
        return row and row[0]
    finally:
        connection.close()


def by_asyncpg(parameters: dict[str, Any], sql: str) -> object:
    async def run() -> object:
        given = {**parameters, "database": parameters.pop("dbname")}
        del given["dbname"]
        connection = await asyncpg.connect(**given)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(run())


def by_pg8000(parameters: dict[str, Any], sql: str) -> object:
    parameters["database"] = parameters.pop("dbname")
    connection = pg8000.dbapi.connect(**parameters)
    try:
        cursor = connection.cursor()
        cursor.execute(sql)
        row = cursor.fetchone()
        return row and row[0]
    finally:
        connection.close()


Driver = Callable[[dict[str, Any], str], object]


@pytest.mark.parametrize("driver", [by_psycopg, by_psycopg2, by_asyncpg, by_pg8000])
@pytest.mark.parametrize("user", ["reader", "trusted", "shop_app"])
def test_each_driver_gets_in_each_way(proxy: RunningProxy, driver: Driver, user: str) -> None:
    password = proxy.database.server.passwords.get(user, PASSWORD)
    count = driver(proxy.parameters(user, password), "SELECT count(*) FROM orders")
    assert count == proxy.database.execute("SELECT count(*) FROM orders")[0][0]


@pytest.mark.parametrize("user", ["reader", "nobody", "shop_app"])
def test_a_wrong_password(proxy: RunningProxy, user: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=f'password authentication failed for user "{user}"'):
        connect(proxy, user, password="guess")


def test_an_agent_sees_the_server_and_not_the_role(proxy: RunningProxy) -> None:
    with connect(proxy) as connection, psycopg.connect(proxy.database.dsn()) as direct:
        told = connection.info.parameter_status
        assert told("server_version") == direct.info.parameter_status("server_version")
        assert told("session_authorization") == "reader"
        assert connection.execute("SELECT pg_backend_pid()").fetchone() == (connection.info.backend_pid,)


@pytest.mark.parametrize(
    ("user", "name", "value"),
    [
        ("reader", "default_transaction_read_only", "on"),
        ("reader", "statement_timeout", "1min"),
        ("reader", "lock_timeout", "7s"),
        ("reader", "idle_in_transaction_session_timeout", "5min"),
        ("reader", "standard_conforming_strings", "on"),
        ("reader", "client_encoding", "UTF8"),
        ("writer", "default_transaction_read_only", "off"),
    ],
)
def test_pins_hold_and_survive_a_reset(proxy: RunningProxy, user: str, name: str, value: str) -> None:
    with connect(proxy, user) as connection:
        assert connection.execute(f"SHOW {name}".encode()).fetchone() == (value,)
        connection.execute("RESET ALL")
        assert connection.execute(f"SHOW {name}".encode()).fetchone() == (value,)


def test_settings_to_begin_with_arrive(proxy: RunningProxy) -> None:
    options = r"-c TimeZone=Asia/Tokyo --extra-float-digits=2 -c application_name=my\ agent"
    with connect(proxy, options=options) as connection:
        shown = [
            connection.execute(f"SHOW {n}".encode()).fetchone() for n in ("timezone", "application_name")
        ]
    assert shown == [("Asia/Tokyo",), ("my agent",)]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("-c statement_timeout=0", "statement_timeout"),
        ("--session-replication-role=replica", "session_replication_role"),
        ("-c standard_conforming_strings=off", "standard_conforming_strings"),
        ("-c role=shop_app", "role"),
    ],
)
def test_settings_that_are_not_allowed_end_the_attempt(proxy: RunningProxy, options: str, name: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=name):
        connect(proxy, options=options)


def test_replication_is_not_offered(proxy: RunningProxy) -> None:
    with pytest.raises(psycopg.OperationalError, match="replication"):
        connect(proxy, replication="database")


def test_a_database_that_does_not_exist(proxy: RunningProxy) -> None:
    with pytest.raises(psycopg.OperationalError, match='database "nowhere" does not exist') as caught:
        connect(proxy, dbname="nowhere")
    assert "shop_ro" not in str(caught.value)


# --- by hand ---


def raw(proxy: RunningProxy) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", proxy.port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while chunk := sock.recv(65536):
        data += chunk
    return data


def hello(
    proxy: RunningProxy, user: str = "trusted", version: startup.ProtocolVersion = startup.V3_0
) -> bytes:
    return startup.encode_startup({"user": user, "database": proxy.database.name}, version)


def until_ready(sock: socket.socket) -> list[tuple[bytes, bytes]]:
    """The messages up to and with ReadyForQuery."""
    messages: list[tuple[bytes, bytes]] = []
    with sock.makefile("rb", buffering=0) as file:
        while not messages or messages[-1][0] != b"Z":
            header = file.read(5)
            assert header is not None
            assert len(header) == 5, messages
            (length,) = struct.unpack_from("!I", header, 1)
            body = b""
            while len(body) < length - 4:
                body += file.read(length - 4 - len(body)) or b""
            messages.append((header[:1], body))
    return messages


@pytest.mark.parametrize(
    ("version", "first", "key_bytes"),
    [
        (startup.V3_0, "R", 4),
        (startup.V3_2, "R", 32),
        (startup.ProtocolVersion(3, 9999), "v", 32),
    ],
)
def test_the_order_of_messages(
    proxy: RunningProxy, version: startup.ProtocolVersion, first: str, key_bytes: int
) -> None:
    with raw(proxy) as sock:
        sock.sendall(hello(proxy, version=version))
        messages = until_ready(sock)
        sock.sendall(b"X\0\0\0\x04")
    kinds = b"".join(kind for kind, _ in messages).decode()
    assert kinds.startswith(first)
    assert kinds.count("v") == (1 if first == "v" else 0)
    order = kinds.removeprefix("v")
    assert order == "R" + "S" * (len(order) - 3) + "KZ"
    assert messages[-1][1] == b"I"
    assert len(messages[-2][1]) == 4 + key_bytes


def test_a_handshake_byte_by_byte(proxy: RunningProxy) -> None:
    with raw(proxy) as sock:
        for byte in hello(proxy):
            sock.sendall(bytes([byte]))
        assert until_ready(sock)[-1] == (b"Z", b"I")


def test_a_query_may_follow_the_packet_unasked(proxy: RunningProxy) -> None:
    with raw(proxy) as sock:
        sock.sendall(hello(proxy) + b"Q\0\0\0\x0dSELECT 1\0")
        until_ready(sock)
        assert [kind for kind, _ in until_ready(sock)] == [b"T", b"D", b"C", b"Z"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x04",
        struct.pack("!I", 2**31),
        struct.pack("!I", 2**32 - 1),
        startup.encode_ssl_request() + b"\x16\x03\x01",
        startup.encode_ssl_request() + startup.encode_startup({"user": "trusted"}),
        startup.encode_cancel(1, b"abcd"),
    ],
)
def test_what_gets_no_answer(proxy: RunningProxy, sent: bytes) -> None:
    with raw(proxy) as sock:
        sock.sendall(sent)
        try:
            assert read_all(sock) == b""
        except ConnectionResetError:
            return  # unread bytes were dropped with the connection


def test_a_probe_is_not_worth_a_line(proxy: RunningProxy) -> None:
    # The first session reads the catalog, which is worth one.
    with connect(proxy):
        proxy.logged("catalog_read")
    before = len(proxy.log())
    raw(proxy).close()
    with connect(proxy):
        pass
    added = [entry["event"] for entry in proxy.log()[before:]]
    assert set(added) <= {"connection opened", "connection closed"}


@pytest.mark.parametrize("user", ["reader", "nobody_by_this_name"])
def test_a_balancer_that_asks_whether_postgresql_answers(proxy: RunningProxy, user: str) -> None:
    """HAProxy's ``option pgsql-check user NAME``: a startup packet, an R for the answer, and the end."""
    with connect(proxy):
        proxy.logged("catalog_read")
    before = len(proxy.log())
    for _ in range(3):
        with raw(proxy) as sock:
            sock.sendall(startup.encode_startup({"user": user}))
            assert sock.recv(1) == b"R"
    with connect(proxy):
        pass
    added = [entry["event"] for entry in proxy.log()[before:]]
    assert set(added) <= {"connection opened", "connection closed"}


# --- TLS ---


@pytest.fixture(scope="module")
def tls_proxy(
    postgres15_tls: Server, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """TLS on both legs, required on the agent's."""
    listen = {"tls": {"cert": str(certificates.certificate), "key": str(certificates.key)}}
    to_server = {"host": "localhost", "tls": {"mode": "verify-full", "ca": str(certificates.ca)}}
    folder = tmp_path_factory.mktemp("tls")
    with run_proxy(postgres15_tls.shop, folder, listen=listen, backend=to_server) as running:
        yield running


@pytest.mark.parametrize("user", ["reader", "shop_app"])
def test_tls_on_both_legs(tls_proxy: RunningProxy, certificates: Certificates, user: str) -> None:
    password = tls_proxy.database.server.passwords.get(user, PASSWORD)
    root = {"sslmode": "verify-full", "sslrootcert": str(certificates.ca), "gssencmode": "disable"}
    with connect(tls_proxy, user, password=password, **root) as connection:
        assert connection.pgconn.ssl_in_use
        assert backend_is_encrypted(tls_proxy, connection)


def backend_is_encrypted(proxy: RunningProxy, connection: psycopg.Connection[Any]) -> bool:
    """Whether the proxy's own connection to the server is."""
    sql = f"SELECT ssl FROM pg_stat_ssl WHERE pid = {connection.info.backend_pid}"
    return bool(proxy.database.execute(sql)[0][0])


def test_a_large_result_over_tls(tls_proxy: RunningProxy) -> None:
    with connect(tls_proxy, sslmode="require") as connection:
        rows = connection.execute("SELECT repeat('x', 1000) FROM generate_series(1, 20000)").fetchall()
    assert len(rows) == 20_000


def test_asyncpg_and_pg8000_over_tls(tls_proxy: RunningProxy, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    assert by_asyncpg(tls_proxy.parameters(ssl=context), "SELECT 1") == 1
    assert by_pg8000(tls_proxy.parameters(ssl_context=context), "SELECT 1") == 1


def test_in_clear_where_tls_is_required(tls_proxy: RunningProxy) -> None:
    with pytest.raises(psycopg.OperationalError, match="must be encrypted"):
        connect(tls_proxy, sslmode="disable")


def test_a_cancel_over_tls(tls_proxy: RunningProxy) -> None:
    with connect(tls_proxy, sslmode="require") as connection:
        assert_cancelled(connection, SLOW)


@pytest.mark.parametrize(
    ("mode", "with_ca"),
    [
        ("disable", False),
        ("prefer", False),
        ("require", False),
        ("require", True),
        ("verify-ca", True),
        ("verify-full", True),
    ],
)
def test_modes_of_the_backend_leg(
    postgres15_tls: Server, certificates: Certificates, tmp_path: Path, mode: str, with_ca: bool
) -> None:
    tls = {"mode": mode, **({"ca": str(certificates.ca)} if with_ca else {})}
    with (
        run_proxy(postgres15_tls.shop, tmp_path, backend={"tls": tls}) as running,
        connect(running) as connection,
    ):
        assert backend_is_encrypted(running, connection) is (mode != "disable")


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_a_certificate_that_nobody_vouches_for(postgres15_tls: Server, tmp_path: Path, mode: str) -> None:
    with (
        run_proxy(postgres15_tls.shop, tmp_path, backend={"tls": {"mode": mode}}) as running,
        pytest.raises(psycopg.OperationalError, match="TLS with the database server failed"),
    ):
        connect(running)


def test_a_server_without_tls_where_it_is_required(postgres18: Server, tmp_path: Path) -> None:
    with (
        run_proxy(postgres18.shop, tmp_path, backend={"tls": {"mode": "require"}}) as running,
        pytest.raises(psycopg.OperationalError, match="does not offer TLS"),
    ):
        connect(running)


# --- cancelling ---

SLOW = "SELECT count(*) FROM orders a, orders b, orders c, orders d"


def assert_cancelled(connection: psycopg.Connection[Any], sql: str) -> None:
    timer = threading.Timer(0.3, connection.cancel_safe)
    timer.start()
    with pytest.raises(errors.QueryCanceled):
        connection.execute(sql.encode())
    timer.join()
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_cancel_stops_the_query_and_nothing_later(proxy: RunningProxy) -> None:
    with connect(proxy) as connection:
        assert_cancelled(connection, SLOW)
        connection.cancel_safe()
        assert connection.execute("SELECT 2").fetchone() == (2,)


def test_nobody_cancels_without_the_secret(proxy: RunningProxy) -> None:
    with connect(proxy) as connection, raw(proxy) as sock:
        sock.sendall(startup.encode_cancel(connection.info.backend_pid, b"0000"))
        timer = threading.Timer(0.2, lambda: None)
        timer.start()
        assert read_all(sock) == b""
        assert connection.execute("SELECT count(*) FROM orders a, orders b LIMIT 1").fetchone()


# --- ends ---


def backends(database: Database) -> int:
    return int(
        database.execute(
            "SELECT count(*) FROM pg_stat_activity "
            f"WHERE datname = '{database.name}' AND usename IN ('shop_ro', 'shop_app') "
            "AND application_name <> 'pgturnstile catalog'"
        )[0][0]
    )


def test_a_lost_agent_frees_its_locks(own_proxy: RunningProxy) -> None:
    database = own_proxy.database
    connection = connect(own_proxy, "writer")
    connection.execute("BEGIN")
    connection.execute("UPDATE customers SET notes = 'lost' WHERE id = 1")
    thread = threading.Thread(target=_until_cut, args=(connection, "SELECT pg_sleep(60)"))
    thread.start()
    wait_for(lambda: _sleeps(database))
    with socket.socket(fileno=socket.dup(connection.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)
    started = time.monotonic()
    database.execute("UPDATE customers SET city = city WHERE id = 1")
    assert time.monotonic() - started < 30
    assert cancels(database) == 1
    wait_for(lambda: backends(database) == 0)
    thread.join()


def cancels(database: Database) -> int:
    """How many statements the server cancelled there."""
    return sum((record.sqlstate, record.severity) == ("57014", "ERROR") for record in database.records())


def _until_cut(connection: psycopg.Connection[Any], sql: str) -> None:
    with pytest.raises(psycopg.OperationalError):
        connection.execute(sql.encode())


def _sleeps(database: Database) -> bool:
    found = database.execute(
        "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    )
    return bool(found)


def test_a_lost_agents_pipeline_is_not_cut_in_the_middle(own_proxy: RunningProxy) -> None:
    """A cancelled BEGIN would let the write behind it commit alone."""
    database = own_proxy.database
    with raw(own_proxy) as sock:
        sock.sendall(startup.encode_startup({"user": "shop_app", "database": database.name}))
        sock.recv(9)
        sock.sendall(b"p" + struct.pack("!I", 5 + len(database.server.passwords["shop_app"])))
        sock.sendall(database.server.passwords["shop_app"].encode() + b"\0")
        until_ready(sock)
        statements = ["SELECT pg_sleep(1)", "BEGIN", "UPDATE customers SET notes = 'lost' WHERE id = 1"]
        sock.sendall(b"".join(b"Q" + struct.pack("!I", 5 + len(s)) + s.encode() + b"\0" for s in statements))
        wait_for(lambda: _sleeps(database))
    wait_for(lambda: backends(database) == 0)
    assert cancels(database) == 0
    assert database.execute("SELECT count(*) FROM customers WHERE notes = 'lost'") == [(0,)]


def test_a_lost_server_is_told_once(own_proxy: RunningProxy) -> None:
    with connect(own_proxy) as connection:
        own_proxy.database.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
        with pytest.raises(errors.AdminShutdown):
            connection.execute("SELECT 1")
        assert connection.broken
    own_proxy.logged("connection closed")


def test_a_server_that_terminates_says_so_once(own_proxy: RunningProxy) -> None:
    with raw(own_proxy) as sock:
        sock.sendall(hello(own_proxy))
        messages = until_ready(sock)
        pid = struct.unpack_from("!I", messages[-2][1])[0]
        own_proxy.database.execute(f"SELECT pg_terminate_backend({pid})")
        last_words = read_all(sock)
    assert last_words[:1] == b"E"
    assert len(last_words) == 1 + struct.unpack_from("!I", last_words, 1)[0]
    assert b"C57P01\0" in last_words


def test_too_many_connections(database18: Database, tmp_path: Path) -> None:
    limits = {"connections": 3, "connections_per_agent": 2}
    with run_proxy(database18, tmp_path, limits=limits) as running:
        with connect(running) as one, connect(running, "trusted"), connect(running):
            with pytest.raises(psycopg.OperationalError, match="too many clients already"):
                connect(running, "writer")
            one.cancel_safe()  # must get through although the house is full
        wait_for(lambda: len(running.logged("connection closed")) == 3)
        with connect(running), connect(running):
            with pytest.raises(psycopg.OperationalError, match='too many connections for role "reader"'):
                connect(running)
            with connect(running, "trusted") as other:
                assert other.execute("SELECT 1").fetchone() == (1,)


def test_a_silent_client_is_dropped_in_time(database18: Database, tmp_path: Path) -> None:
    with (
        run_proxy(database18, tmp_path, limits={"startup_timeout": "300ms"}) as running,
        raw(running) as sock,
    ):
        sock.sendall(hello(running)[:10])
        assert read_all(sock) == b""


def test_sigterm_drains(database18: Database, tmp_path: Path) -> None:
    with run_proxy(database18, tmp_path) as running:
        idle, busy, open_transaction = (connect(running, "writer") for _ in range(3))
        open_transaction.execute("BEGIN")
        answers: list[object] = []
        worker = threading.Thread(
            target=lambda: answers.append(busy.execute("SELECT 1 FROM pg_sleep(1.5)").fetchone())
        )
        worker.start()
        wait_for(lambda: _sleeps(database18))
        running.process.send_signal(signal.SIGTERM)
        wait_for(lambda: bool(running.logged("draining")))
        with pytest.raises(errors.AdminShutdown):
            idle.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            connect(running)
        open_transaction.execute("UPDATE customers SET notes = 'drained' WHERE id = 1")
        open_transaction.execute("COMMIT")
        worker.join()
        assert answers == [(1,)]
        assert running.process.wait(10) == 0
    assert database18.execute("SELECT notes FROM customers WHERE id = 1") == [("drained",)]
    assert backends(database18) == 0


def test_a_second_sigterm_stops_at_once(database18: Database, tmp_path: Path) -> None:
    with run_proxy(database18, tmp_path) as running:
        busy = connect(running, "writer")
        worker = threading.Thread(target=_until_cut, args=(busy, "SELECT pg_sleep(60)"))
        worker.start()
        wait_for(lambda: _sleeps(database18))
        running.process.send_signal(signal.SIGTERM)
        running.logged("draining")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(10) == 0
        worker.join()
    wait_for(lambda: backends(database18) == 0)


def test_sighup_brings_a_new_policy_and_keeps_the_old_one_where_it_fails(own_proxy: RunningProxy) -> None:
    policy = own_proxy.folder / "reader.yaml"
    before = policy.read_text()
    policy.write_text(before + "\nnonsense: 1\n")
    own_proxy.process.send_signal(signal.SIGHUP)
    own_proxy.logged("reload failed; the old configuration stays")
    with connect(own_proxy) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    policy.write_text(before.replace("select: allow, ", ""))
    own_proxy.process.send_signal(signal.SIGHUP)
    own_proxy.logged("configuration reloaded")
    with connect(own_proxy) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute("SELECT 1")


# --- backpressure ---


def test_an_agent_that_reads_slowly_keeps_the_proxy_small(own_proxy: RunningProxy) -> None:
    with raw(own_proxy) as sock:
        sock.sendall(hello(own_proxy))
        until_ready(sock)
        text = b"SELECT repeat('x', 100000) FROM generate_series(1, 2000)\0"
        before = _resident_kib(own_proxy.process.pid)
        sock.sendall(b"Q" + struct.pack("!I", 4 + len(text)) + text)
        time.sleep(1)
        assert _resident_kib(own_proxy.process.pid) - before < 40_000
        assert sum(kind == b"D" for kind, _ in until_ready(sock)) == 2000


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_a_server_that_reads_slowly_keeps_the_proxy_small(own_proxy: RunningProxy) -> None:
    with connect(own_proxy, "writer") as connection, connect(own_proxy, "writer") as blocker:
        blocker.execute("BEGIN")
        blocker.execute("LOCK TABLE customers IN EXCLUSIVE MODE")
        before = _resident_kib(own_proxy.process.pid)
        copied: list[int] = []

        def copy_in() -> None:
            cursor = connection.cursor()
            with cursor.copy("COPY customers (name, email, city, notes) FROM STDIN") as copy:
                for n in range(3000):
                    copy.write_row((f"n{n}", f"copied{n}@example.org", "Oslo", "x" * 20_000))
            copied.append(cursor.rowcount)

        worker = threading.Thread(target=copy_in)
        worker.start()
        time.sleep(1)
        assert _resident_kib(own_proxy.process.pid) - before < 40_000
        blocker.execute("ROLLBACK")
        worker.join()
        assert copied == [3000]
    total = "SELECT sum(length(notes)) FROM customers WHERE email LIKE 'copied%'"
    assert own_proxy.database.execute(total) == [(60_000_000,)]
