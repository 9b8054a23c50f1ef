"""What no driver would send: garbage, floods, wrong lengths, silence, and servers that vanish.

Three things must hold after each: nothing that was not judged has run, the proxy's memory is what it was, and
another connection gets its answer.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.wire import startup
from tests.support.postgres import Database, run_server
from tests.support.proxy import RunningProxy, run_proxy, wait_for
from tests.support.wire import (
    COPY_DONE,
    FLUSH,
    SYNC,
    Client,
    Message,
    bind,
    close,
    copy_data,
    dial,
    execute,
    kinds,
    message,
    parse,
    query,
    run,
    through,
)

REFUSED = "SELECT pg_read_file('/etc/passwd')"
FLAT_KIB = 40_000
"""Growth of the proxy that passes for none: buffers of both directions, and Python's own."""


@pytest.fixture
def own(database18: Database, tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy and a database of the test's own, for tests that look at memory, locks or settings."""
    with run_proxy(database18, tmp_path) as running:
        yield running


def resident_kib(proxy: RunningProxy) -> int:
    status = Path(f"/proc/{proxy.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def assert_serves(proxy: RunningProxy) -> None:
    with through(proxy) as client:
        assert kinds(client.ask(query("SELECT 1"))) == "TDCZ"


def last_words(client: Client) -> Message:
    """The one message with which the connection ends."""
    [message] = client.rest()
    return message


# --- frames ---

BROKEN = {
    "a length of 0": b"Q\0\0\0\0",
    "a length of 3": b"Q\0\0\0\x03",
    "a length of 2^31": b"Q\x80\0\0\0",
    "a length of 2^32 - 1": b"Q\xff\xff\xff\xff",
    "a gigabyte of Query": b"Q\x3f\xff\xff\xff",
    "a large Sync": b"S\0\0\x27\x15",
    "an unknown type": b"z\0\0\0\x04",
    "a type of the server's": b"T\0\0\0\x04",
    "a password": message("p", b"guess\0"),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "a startup packet": startup.encode_startup({"user": "trusted"}),
    "Query without its end": message("Q", b"SELECT 1"),
    "Query with a NUL inside": message("Q", b"SELECT 1\0; SELECT 2\0"),
    "Parse with more types than it has": message("P", b"\0SELECT 1\0\xff\xff"),
    "Parse with bytes left over": message("P", b"\0SELECT 1\0\0\0x"),
    "Bind with a negative length": message("B", b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0"),
    "Bind with a length past its end": message("B", b"\0\0\0\0\0\x01\x7f\xff\xff\xff\0\0"),
    "Bind with 65,535 values": message("B", b"\0\0\0\0\xff\xff"),
    "Execute without a limit": message("E", b"\0"),
    "Describe of nothing": message("D", b"?\0"),
    "Sync with a body": message("S", b"x"),
}
PHASES = {
    "idle": b"",
    "in a transaction": query("BEGIN"),
    "in a pipeline": run("SELECT 1"),
    "behind a refusal": parse(REFUSED),
    "in a copy": query("COPY customers FROM STDIN"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_garbage_in_every_phase(gateway: RunningProxy, phase: str) -> None:
    """The connection ends with one FATAL error, and nothing of the garbage has reached the server."""
    secret = f"garbage {phase}"
    for name, garbage in BROKEN.items():
        with through(gateway, "shop_app") as client:
            client.send(PHASES[phase], FLUSH if phase in ("in a pipeline", "behind a refusal") else b"")
            if PHASES[phase]:
                client.read_until("Z" if phase == "in a transaction" else "CEG")
            client.send(garbage + query(f"SELECT '{secret}'"))
            if phase == "behind a refusal":
                client.send(SYNC)
                if (first := client.read()).kind == "Z":
                    continue  # like PostgreSQL, which reads no body before that Sync, only types and lengths
                words = [first, *client.rest()]
            else:
                words = client.rest()
            assert kinds(words) == "E", name
            assert words[0].fields["severity"] == "FATAL", name
            assert words[0].sqlstate in ("08P01", "54000"), name
    assert not any(secret in text for text in gateway.database.executed())
    assert_serves(gateway)


def test_a_huge_declared_length_costs_nothing(own: RunningProxy) -> None:
    with through(own, "shop_app") as client:
        before = resident_kib(own)
        client.ask(query("SELECT 1"))
        client.send(b"d\x3f\xff\xff\xff" + b"x" * 1000)
        unread = [dial(own.port) for _ in range(20)]
        for sock in unread:
            sock.sendall(struct.pack("!I", 2**31 - 1))
        with through(own, "shop_app") as other:
            other.send(b"B\x3f\xff\xff\xff")
            assert last_words(other).sqlstate == "54000"
        assert resident_kib(own) - before < FLAT_KIB
        for sock in unread:
            sock.close()


def test_a_large_message_is_not_kept_once_it_is_answered(own: RunningProxy) -> None:
    with through(own, "shop_app") as client:
        client.ask(parse("SELECT length($1::text)", "s"), SYNC)
        before = resident_kib(own)
        for _ in range(5):
            assert kinds(client.ask(bind("s", "", (b"x" * 8_000_000,)), execute(), SYNC)) == "2DCZ"
        client.ask(query("SELECT 1"))
        assert resident_kib(own) - before < FLAT_KIB


def test_an_error_longer_than_a_statement_may_be(gateway: RunningProxy) -> None:
    """PostgreSQL quotes the bound value that it cannot read."""
    with through(gateway, "shop_app") as client:
        client.send(parse("SELECT $1::text::int"), bind("", "", (b"x" * 3_000_000,)), execute(), SYNC)
        answer = client.cycles()
        assert [m.sqlstate for m in answer if m.kind == "E"] == ["22P02"]
        assert kinds(client.ask(query("SELECT 1"))) == "TDCZ"


# --- the start ---

ENCRYPTION = (startup.encode_ssl_request(), struct.pack("!II", 8, 80877104))


@pytest.mark.parametrize("request_", ENCRYPTION, ids=["SSL", "GSS"])
def test_ten_thousand_requests_for_encryption(own: RunningProxy, request_: bytes) -> None:
    before = resident_kib(own)
    with dial(own.port) as sock:
        try:
            for _ in range(10_000):
                sock.sendall(request_)
        except OSError:
            pass  # closed on us, which is the point
        received = b""
        try:
            while chunk := sock.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass
        assert len(received) < 1000
    assert resident_kib(own) - before < FLAT_KIB
    assert_serves(own)


@pytest.mark.parametrize(
    ("parameters", "sqlstate"),
    [
        ([("user", "trusted"), ("user", "shop_app")], "08P01"),
        ([("user", "trusted"), ("USER", "shop_app")], "08P01"),
        ([("user", "trusted"), ("database", "a"), ("database", "b")], "08P01"),
        ([("user", "trusted"), ("options", "-c a=b"), ("options", "")], "08P01"),
        *(
            ([("user", "trusted"), (name, value)], sqlstate)
            for name, value, sqlstate in [
                ("replication", "database", "0A000"),
                ("replication", "false", "0A000"),
                ("session_replication_role", "replica", "42501"),
                ("standard_conforming_strings", "off", "42501"),
                ("client_encoding", "SJIS", "42501"),
                ("default_transaction_read_only", "off", "42501"),
                ("search_path", "pg_catalog, evil", "42501"),
                ("role", "postgres", "42501"),
                ("session_authorization", "postgres", "42501"),
                ("local_preload_libraries", "evil", "42501"),
                ("backslash_quote", "on", "42501"),
                ("row_security", "off", "42501"),
                ("options", "-c session_replication_role=replica", "42501"),
                ("options", "--standard-conforming-strings=off", "42501"),
                ("options", r"-c search_path=e\vil", "42501"),
                ("options", "-c\tstatement_timeout=0", "42501"),
                ("options", "-f s", "42601"),
                ("options", "-d 5", "42601"),
            ]
        ),
    ],
)
def test_dangerous_startup_parameters(
    gateway: RunningProxy, parameters: list[tuple[str, str]], sqlstate: str
) -> None:
    if not any(name == "database" for name, _ in parameters):
        parameters = [*parameters, ("database", gateway.database.name)]
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters) + b"\0"
    with dial(gateway.port) as sock:
        sock.sendall(struct.pack("!II", len(body) + 8, startup.V3_0.code) + body)
        client = Client(sock)
        # AuthenticationOk may come first: who asks is known before what for.
        error = client.rest()[-1]
    assert error.kind == "E"
    assert error.fields["severity"] == "FATAL"
    assert error.sqlstate == sqlstate


def test_slow_and_silent_clients_do_not_keep_their_places(database18: Database, tmp_path: Path) -> None:
    limits = {"connections": 10, "startup_timeout": "1s"}
    with run_proxy(database18, tmp_path, limits=limits) as proxy:
        slow = [dial(proxy.port) for _ in range(12)]
        hello = startup.encode_startup({"user": "trusted", "database": database18.name})
        for sock in slow[:6]:
            sock.sendall(hello[:5])
        wait_for(lambda: _closed(slow))
        assert_serves(proxy)
        for sock in slow:
            sock.close()


def _closed(sockets: list[socket.socket]) -> bool:
    for sock in sockets:
        sock.setblocking(False)
        try:
            while sock.recv(4096):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
    return True


def test_guessing_cancel_keys_stops_nobody(gateway: RunningProxy) -> None:
    with through(gateway, "shop_app") as client:
        client.send(query("SELECT pg_sleep(1.5)"))
        guess = random.Random(1)
        for _ in range(200):
            with dial(gateway.port) as sock:
                sock.sendall(startup.encode_cancel(client.pid, guess.randbytes(4)))
                assert sock.recv(1) == b""
        assert kinds(client.cycles()) == "TDCZ"


# --- names ---


def test_a_hundred_thousand_names(own: RunningProxy) -> None:
    """Over the limit the connection ends; a name is never forgotten."""
    with through(own, "shop_app") as client:
        before = resident_kib(own)
        sent, told = 0, b""
        client.sock.settimeout(30)
        try:
            while sent < 100_000:
                client.send(b"".join(parse("SELECT 1", f"s{n}") for n in range(sent, sent + 1000)), SYNC)
                sent += 1000
                client.cycles()
        except (OSError, EOFError) as error:
            told = str(error).encode()
        assert sent < 12_000, told
        assert resident_kib(own) - before < FLAT_KIB
    assert_serves(own)


def test_as_many_names_as_one_likes_one_after_the_other(own: RunningProxy) -> None:
    with through(own, "shop_app") as client:
        client.ask(query("BEGIN"))
        for n in range(0, 12_000, 1000):
            each = (
                parse("SELECT 1", f"s{k}")
                + bind(f"s{k}", f"p{k}")
                + close("P", f"p{k}")
                + close("S", f"s{k}")
                for k in range(n, n + 1000)
            )
            assert kinds(client.ask(*each, SYNC)) == "1233" * 1000 + "Z"


# --- memory, both ways ---


def test_replies_owed_to_who_does_not_read(own: RunningProxy) -> None:
    """Five bytes of Sync must not cost the proxy a hundred for as long as the server is busy."""
    with through(own, "shop_app") as client:
        before = resident_kib(own)
        client.send(query("SELECT pg_sleep(2)"))
        client.sock.setblocking(False)
        flood, sent = SYNC * 50_000, 0
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            try:
                sent += client.sock.send(flood)
            except BlockingIOError:
                time.sleep(0.05)
        assert resident_kib(own) - before < FLAT_KIB
        client.cut()
    assert_serves(own)


def test_a_large_result_to_who_does_not_read(own: RunningProxy) -> None:
    with through(own) as client:
        before = resident_kib(own)
        client.send(query("SELECT repeat('x', 10000) FROM generate_series(1, 20000)"))
        time.sleep(0.7)
        assert resident_kib(own) - before < FLAT_KIB
        assert_serves(own)
        pid = client.pid
        client.cut()
    wait_for(lambda: not alive(own.database, pid))


def test_a_large_copy_to_a_server_that_does_not_read(own: RunningProxy) -> None:
    with through(own, "shop_app") as client, through(own, "shop_app") as blocker:
        blocker.ask(query("BEGIN"))
        blocker.ask(query("LOCK TABLE customers IN EXCLUSIVE MODE"))
        before = resident_kib(own)
        client.send(query("COPY customers (name, email, city) FROM STDIN"))
        client.sock.setblocking(False)
        rows, sent, end = copy_data(b"a\tb\tc\n") * 10_000, 0, time.monotonic() + 1.0
        while time.monotonic() < end:
            try:
                sent += client.sock.send(rows)
            except BlockingIOError:
                time.sleep(0.05)
        assert sent < 60_000_000
        assert resident_kib(own) - before < FLAT_KIB
        client.cut()
        blocker.ask(query("ROLLBACK"))
    assert own.database.execute("SELECT count(*) FROM customers WHERE name = 'a'") == [(0,)]


# --- ends ---


def alive(database: Database, pid: int) -> bool:
    return bool(database.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))


@pytest.mark.parametrize("how", ["reset", "end of stream", "half of a frame"])
def test_a_client_that_goes_with_a_lock_frees_it(own: RunningProxy, how: str) -> None:
    with through(own, "shop_app") as client:
        client.ask(query("BEGIN"))
        client.ask(query("UPDATE customers SET notes = 'locked' WHERE id = 1"))
        if how == "half of a frame":
            client.send(query("SELECT 1")[:8])
        pid = client.pid
        if how == "reset":
            client.cut()
        else:
            client.sock.shutdown(socket.SHUT_WR)
        wait_for(lambda: not alive(own.database, pid), within_s=4)
    own.database.execute("SET lock_timeout = '1s'; UPDATE customers SET city = city WHERE id = 1")
    assert own.database.execute("SELECT count(*) FROM customers WHERE notes = 'locked'") == [(0,)]


def test_a_client_that_goes_while_it_waits_for_a_lock(own: RunningProxy) -> None:
    """Also while its COPY has not begun, and messages behind it wait in the proxy."""
    with through(own, "shop_app") as blocker:
        blocker.ask(query("BEGIN"))
        blocker.ask(query("LOCK TABLE customers IN EXCLUSIVE MODE"))
        with through(own, "shop_app") as client:
            client.send(
                run("COPY customers (name, email, city) FROM STDIN"), SYNC, copy_data(b"x\n"), COPY_DONE
            )
            pid = client.pid
            wait_for(lambda: _waits(own.database, pid))
            client.cut()
        wait_for(lambda: not alive(own.database, pid), within_s=4)


def _waits(database: Database, pid: int) -> bool:
    return bool(
        database.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'")
    )


@pytest.mark.parametrize("when", ["mid-row", "mid-pipeline", "idle", "in a copy", "behind a refusal"])
def test_a_backend_that_is_terminated_says_so_once(gateway: RunningProxy, when: str) -> None:
    with through(gateway, "shop_app") as client:
        sent = {
            "mid-row": query("SELECT repeat('x', 10000) FROM generate_series(1, 100000)"),
            "mid-pipeline": run("SELECT 1") * 10 + run("SELECT pg_sleep(20)") + SYNC * 5 + run("SELECT 2"),
            "idle": b"",
            "in a copy": query("COPY customers FROM STDIN"),
            "behind a refusal": run("SELECT pg_sleep(20)") + run(REFUSED) + SYNC,
        }[when]
        client.send(sent)
        if when == "mid-row":
            client.read_until("D")
        time.sleep(0.2)
        gateway.database.execute(f"SELECT pg_terminate_backend({client.pid})")
        fatal = [m for m in client.rest() if m.kind == "E"]
    assert [m.sqlstate for m in fatal] == ["57P01"] or (when == "mid-row" and not fatal)
    assert_serves(gateway)


@pytest.mark.slow
def test_a_server_whose_backend_is_killed_takes_everybody_down_in_words(tmp_path: Path) -> None:
    """kill -9 of one backend makes PostgreSQL end them all and recover; the proxy is there again with it."""
    with run_server(18) as server, server.database() as database, run_proxy(database, tmp_path) as proxy:
        with through(proxy, "shop_app") as victim, through(proxy, "shop_app") as witness:
            witness.ask(query("BEGIN"))
            victim.send(query("SELECT pg_sleep(20)"))
            time.sleep(0.2)
            os.kill(victim.pid, signal.SIGKILL)
            assert [m.sqlstate for m in victim.rest()] == ["57P01"]
            assert {m.sqlstate for m in witness.rest() if m.kind == "E"} <= {"57P01", "57P02"}

        def recovered() -> bool:
            try:
                assert_serves(proxy)
            except (EOFError, OSError, StopIteration, AssertionError):
                return False
            return True

        wait_for(recovered, within_s=15)


# --- what is put between the agent's bytes ---


@pytest.mark.parametrize("pad", range(0, 400, 7))
def test_no_frame_of_ours_gets_into_the_agents(gateway: RunningProxy, pad: int) -> None:
    """After a SET the proxy asks for the path. Inside half a CopyData its question would be data, and the
    agent's data behind it a message."""
    evil = query("UPDATE customers SET notes = 'smuggled'")
    frame = copy_data(b"x" * pad + evil + b"y" * 400)
    with through(gateway, "shop_app") as client:
        client.send(query("SET search_path TO public"), frame[: pad + 5])
        client.read_until("Z")
        client.send(frame[pad + 5 :], query("SELECT 1"))
        assert kinds(client.cycles()) == "TDCZ"
        assert client.quiet(0.02)
    assert gateway.database.execute("SELECT count(*) FROM customers WHERE notes = 'smuggled'") == [(0,)]


def test_execute_of_a_prepared_set_does_not_move_the_path_unseen(
    database18: Database, tmp_path: Path
) -> None:
    """PostgreSQL lets EXECUTE run what Parse prepared, whatever it is."""
    database18.execute("CREATE SCHEMA split")
    database18.execute("CREATE TABLE split.orders AS SELECT 'secret' AS id")
    database18.execute("GRANT USAGE ON SCHEMA split TO shop_ro")
    database18.execute("GRANT SELECT ON split.orders TO shop_ro")
    policy = """
version: 1
name: split
mode: enforce
access: read_only
statements: {select: allow, set: allow, prepare: allow, transaction: allow}
relations: {allow: ["public.*", "split.*"], deny: [split.orders]}
functions: {allow: [builtin-safe]}
"""
    with run_proxy(database18, tmp_path) as proxy:
        (proxy.folder / "reader.yaml").write_text(policy)
        proxy.process.send_signal(signal.SIGHUP)
        proxy.logged("configuration reloaded")
        with through(proxy) as client:
            client.ask(parse("SET search_path TO split", "s"), SYNC)
            client.send(query("EXECUTE s"), query("SELECT id FROM orders LIMIT 1"))
            answers = client.cycles(2)
            again = client.ask(query("SELECT id FROM orders LIMIT 1"))
    assert not any(b"secret" in m.body for m in [*answers, *again])
    assert [m.sqlstate for m in again if m.kind == "E"] == ["42501"]


# --- statements at the limits of the parser ---


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT 1 WHERE 1 IN ({', '.join(str(n) for n in range(130_000))})",
        f"SELECT {'(' * 20_000}1{')' * 20_000}",
        f"SELECT 1 WHERE {' OR '.join(f'1={n}' for n in range(100_000))}",
        f"SELECT {'-' * 3}{' - ' * 50_000}1",
        f"SELECT '{'x' * 1_100_000}'",
    ],
    ids=["a long list", "deep parentheses", "a long OR", "signs", "over the limit"],
)
def test_a_heavy_statement_keeps_nobody_waiting(gateway: RunningProxy, sql: str) -> None:
    answers: list[list[Message]] = []
    with through(gateway, "shop_app") as client, through(gateway, "shop_app") as other:
        worker = threading.Thread(target=lambda: answers.append(client.ask(query(sql))))
        worker.start()
        while worker.is_alive():
            assert kinds(other.ask(query("SELECT 2"))) == "TDCZ"
        worker.join()
        assert answers[0][-1].body == b"I"
        assert kinds(client.ask(query("SELECT 3"))) == "TDCZ"
