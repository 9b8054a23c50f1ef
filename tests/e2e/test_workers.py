"""A proxy of two workers: its agents, its operator and its service manager see one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from proxy.audit_chain import verify
from proxy.cli import main
from proxy.relay import ADMIN_SHUTDOWN
from proxy.scram import Verifier
from proxy.wire import startup
from tests.support.postgres import Database, Server
from tests.support.proxy import PASSWORD, READER, RunningProxy, free_port, run_proxy, wait_for
from tests.support.wire import Client, dial, query

FEW: Final = READER.replace("name: reader", "name: few")
ORDERS: Final = READER.replace('["public.*"]', "[public.orders]").replace("name: reader", "name: changing")

VERIFIER: Final = str(Verifier.derive(PASSWORD))

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="session")
def shop18(postgres18: Server) -> Database:
    return postgres18.shop


@pytest.fixture(scope="module")
def proxy(postgres18: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("workers")
    with postgres18.database() as database, running(database, folder) as proxy:
        yield proxy
        workers = children(proxy.process.pid)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(20) == 0
        assert gone(workers)
        assert {each["worker"] for each in proxy.logged("audit closed")} == {1, 2}


@contextlib.contextmanager
def running(database: Database, folder: Path, **sections: Any) -> Iterator[RunningProxy]:
    usual: dict[str, Any] = {
        "workers": 2,
        "admin": {"port": free_port()},
        "control": "control.sock",
        "audit": {"path": "audit.jsonl"},
        "limits": {"connections": 12, "connections_per_agent": 9},
        "ledger": {"store": "sqlite:ledger.sqlite"},
        "agents": {name: agent(name) for name in ("reader", "writer", "trusted", "few", "changing", "filed")},
    }
    policies = {"few": FEW, "changing": ORDERS}
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o600)
    with run_proxy(database, folder, policies, **{**usual, **sections}) as proxy:
        yield proxy


def agent(name: str) -> dict[str, Any]:
    """No ``*`` among them: a name that is none is to look like one that is."""
    role = "shop_app" if name == "writer" else "shop_ro"
    ways = {"trusted": {"trust": "loopback"}, "filed": {"password_file": "password"}}
    policy = name if name in ("writer", "few", "changing") else "reader"
    return {
        "auth": ways.get(name, {"scram": VERIFIER}),
        "login": {"user": role, "password_env": f"PASSWORD_{role.upper()}"},
        "policy": f"{policy}.yaml",
    }


def connect(proxy: RunningProxy, user: str = "reader", **more: Any) -> Connection:
    return psycopg.connect(**proxy.parameters(user, **more), autocommit=True)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def worker_of(proxy: RunningProxy, descriptor: int) -> int:
    """The process that has the other end of the connection behind ``descriptor``, once one has."""
    with socket.socket(fileno=os.dup(descriptor)) as ours:
        ends = f":{proxy.port:04X}", f":{ours.getsockname()[1]:04X}"
    found: list[int] = []

    def look() -> bool:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        [inode] = [row[9] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1])]
        for pid in children(proxy.process.pid):
            with contextlib.suppress(OSError):
                for held in Path(f"/proc/{pid}/fd").iterdir():
                    if str(held.readlink()) == f"socket:[{inode}]":
                        found.append(pid)
        return bool(found)

    wait_for(look)
    return found[0]


@contextlib.contextmanager
def one_at_each(proxy: RunningProxy, user: str = "reader") -> Iterator[dict[int, Connection]]:
    """A connection at each worker, by its process."""
    with contextlib.ExitStack() as open_:
        found: dict[int, Connection] = {}
        wait_for(lambda: len(children(proxy.process.pid)) == 2)
        for _ in range(100):
            connection = connect(proxy, user)
            pid = worker_of(proxy, connection.fileno())
            if pid in found:
                connection.close()
            else:
                found[pid] = open_.enter_context(connection)
            if len(found) == 2:
                break
        assert len(found) == 2
        yield found


def get(proxy: RunningProxy, target: str) -> tuple[int, str]:
    try:
        url = f"http://127.0.0.1:{proxy.config['admin']['port']}{target}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def sample(proxy: RunningProxy, name: str) -> float:
    for line in get(proxy, "/metrics")[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name}")


def test_connections_spread_and_each_is_judged(proxy: RunningProxy) -> None:
    with one_at_each(proxy) as found:
        for connection in found.values():
            assert connection.execute("SELECT 1").fetchone() == (1,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("DELETE FROM orders")


@pytest.mark.parametrize("version", [startup.V3_0, startup.V3_2], ids=str)
def test_a_cancel_reaches_its_query_whichever_worker_hears_it(
    proxy: RunningProxy, version: startup.ProtocolVersion
) -> None:
    asked: set[bool] = set()
    with dial(proxy.port) as sock:
        client = Client(sock)
        parameters = {"user": "trusted", "database": proxy.database.name}
        sock.sendall(startup.encode_startup(parameters, version))
        client.greeting = client.cycles()
        assert len(client.secret) == (4 if version == startup.V3_0 else 32)
        ours = worker_of(proxy, sock.fileno())
        while len(asked) < 2:
            with dial(proxy.port) as other:
                hears = worker_of(proxy, other.fileno())
                if (hears == ours) in asked:
                    continue
                asked.add(hears == ours)
                client.send(query(SLOW))
                wait_for(lambda: running_queries(proxy) == 1)
                other.sendall(startup.encode_cancel(client.pid, client.secret))
                assert other.recv(1) == b""
            assert [m.sqlstate for m in client.cycles() if m.kind == "E"] == ["57014"]
            with dial(proxy.port) as stranger:
                stranger.sendall(startup.encode_cancel(client.pid, client.secret[::-1]))
                assert stranger.recv(1) == b""


SLOW: Final = "SELECT count(*) FROM orders a, orders b, orders c, orders d"


def running_queries(proxy: RunningProxy, sql: str = SLOW) -> int:
    counting = f"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = '{sql}'"
    return int(proxy.database.execute(counting)[0][0])


def test_a_worker_that_is_killed_takes_its_own_sessions_alone(proxy: RunningProxy) -> None:
    restarts = sample(proxy, "pgturnstile_worker_restarts_total")
    # Its successor begins by what the others serve by, whatever is on the disk.
    policy = proxy.folder / "changing.yaml"
    policy.write_text("version: 2")
    with one_at_each(proxy) as found:
        (killed, lost), (_, other) = found.items()
        before = sample(proxy, DECISIONS)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            lost.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)
        # Who connects meanwhile waits at the most, and its places are free again.
        for _ in range(8):
            connect(proxy).close()
        wait_for(lambda: len(children(proxy.process.pid)) == 2, 20)
    died = proxy.logged("worker died")[-1]
    assert (died["exit"], died["level"], died["again_in_s"]) == (-signal.SIGKILL, "error", 0)
    wait_for(lambda: json.loads(get(proxy, "/readyz")[1])["workers"] == {"serving": 2, "of": 2}, 20)
    assert sample(proxy, "pgturnstile_worker_restarts_total") == restarts + 1
    wait_for(lambda: sample(proxy, DECISIONS) >= before + 1)
    with one_at_each(proxy, "changing") as found:
        assert killed not in found
        assert not any(refuses(each, "orders") for each in found.values())
    policy.write_text(ORDERS)


DECISIONS: Final = 'pgturnstile_decisions_total{agent="reader",class="select",decision="allow",rule=""}'


def test_limits_hold_over_all_workers(proxy: RunningProxy) -> None:
    with contextlib.ExitStack() as open_:
        for _ in range(9):
            open_.enter_context(connect(proxy))
        for _ in range(6):
            with pytest.raises(psycopg.OperationalError, match='too many connections for role "reader"'):
                connect(proxy)
        for _ in range(3):
            open_.enter_context(connect(proxy, "few"))
        for _ in range(6):
            with pytest.raises(psycopg.OperationalError, match="too many clients already"):
                connect(proxy, "few")
        wait_for(lambda: sample(proxy, 'pgturnstile_connections{agent="reader"}') == 9)
        assert sample(proxy, 'pgturnstile_connections{agent="few"}') == 3
    # All of it is given back.
    wait_for(lambda: sample(proxy, 'pgturnstile_connections{agent="reader"}') == 0)
    with contextlib.ExitStack() as open_:
        for _ in range(9):
            open_.enter_context(connect(proxy))


def test_one_page_tells_of_both(proxy: RunningProxy) -> None:
    before = sample(proxy, DECISIONS)
    with one_at_each(proxy) as found:
        for n, connection in enumerate(found.values()):
            connection.execute(f"SELECT {70 + n}".encode())
    wait_for(lambda: sample(proxy, DECISIONS) == before + 2)
    assert sample(proxy, "pgturnstile_workers") == 2
    assert sample(proxy, "process_resident_memory_bytes") > 3 * 20e6
    latest = json.loads(get(proxy, "/decisions?limit=2")[1])
    assert [each["statement"] for each in latest] == ["SELECT 71", "SELECT 70"]
    status, body = get(proxy, "/readyz")
    told = json.loads(body)
    assert (status, told["ready"], told["workers"]) == (200, True, {"serving": 2, "of": 2})
    assert told["audit"] == {"writable": True, "error": None, "lost": 0}


def reload(proxy: RunningProxy) -> int:
    return main(["reload", "--config", str(proxy.folder / "pgturnstile.yaml")])


def refuses(connection: Connection, table: str) -> bool:
    try:
        connection.execute(f"SELECT id FROM {table}".encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def test_a_reload_is_every_workers_or_none(proxy: RunningProxy, capsys: pytest.CaptureFixture[str]) -> None:
    policy, config = proxy.folder / "changing.yaml", proxy.folder / "pgturnstile.yaml"
    good = config.read_text()
    with one_at_each(proxy, "changing") as found:
        policy.write_text(ORDERS.replace("public.orders", "public.customers"))
        assert reload(proxy) == 0
        assert all(refuses(each, "orders") and not refuses(each, "customers") for each in found.values())
        policy.write_text("version: 2")
        assert reload(proxy) == 1
        assert all(refuses(each, "orders") and not refuses(each, "customers") for each in found.values())
        assert json.loads(get(proxy, "/readyz")[1])["reload"]["taken"] is False
    policy.write_text(ORDERS)
    capsys.readouterr()
    try:
        # What these workers could not share is not taken, though another number of them could.
        config.write_text(json.dumps({**json.loads(good), "ledger": {"store": "memory"}, "workers": 1}))
        (proxy.folder / "few.yaml").write_text(
            FEW.replace("select: allow", "select: {decide: allow, repair: once}")
        )
        assert reload(proxy) == 1
        assert "counts repairs over connections" in capsys.readouterr().out
    finally:
        config.write_text(good)
        (proxy.folder / "few.yaml").write_text(FEW)
    assert reload(proxy) == 0


def test_both_write_whole_lines_of_one_chain_and_follow_a_rotation(proxy: RunningProxy) -> None:
    path, moved = proxy.folder / "audit.jsonl", proxy.folder / "audit.jsonl.1"
    with one_at_each(proxy) as found:
        for n in range(20):
            for connection in found.values():
                connection.execute(f"SELECT {n}, '{'x' * 97 * n}'".encode())
        wait_for(lambda: path.read_bytes().count(b"'" + b"x" * 97 * 19 + b"'") == 2)
        path.rename(moved)
        proxy.process.send_signal(signal.SIGUSR1)
        wait_for(path.exists)
        for connection in found.values():
            connection.execute("SELECT 'after'")
        wait_for(lambda: path.read_bytes().count(b"SELECT 'after'") == 2)
    verdict = verify([moved, path])
    assert (verdict.breaks, len(verdict.heads) >= 2) == ([], True)


def test_no_worker_tells_by_its_salt_who_is_an_agent(proxy: RunningProxy) -> None:
    salts = {name: {salt_for(proxy, name) for _ in range(8)} for name in ("filed", "nobody")}
    assert {name: len(found) for name, found in salts.items()} == {"filed": 1, "nobody": 1}


def salt_for(proxy: RunningProxy, name: str) -> bytes:
    """The salt of the challenge that somebody who claims to be ``name`` gets."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as raw:
        body = struct.pack("!I", 3 << 16) + f"user\0{name}\0\0".encode()
        raw.sendall(struct.pack("!I", len(body) + 4) + body)
        answer(raw)
        first = b"n,,n=,r=" + b"a" * 24
        body = b"SCRAM-SHA-256\0" + struct.pack("!I", len(first)) + first
        raw.sendall(b"p" + struct.pack("!I", len(body) + 4) + body)
        found = re.search(rb",s=([^,]+),", answer(raw))
        assert found
        return found[1]


def answer(raw: socket.socket) -> bytes:
    header = raw.recv(5, socket.MSG_WAITALL)
    return raw.recv(struct.unpack_from("!I", header, 1)[0] - 4, socket.MSG_WAITALL)


# --- beginnings and ends ---


@pytest.mark.slow
def test_a_successor_begins_before_the_old_one_ends_and_nobody_is_refused(
    shop18: Database, tmp_path: Path
) -> None:
    """At one address and one admin port; what runs finishes, and no process is left."""
    sections = {"listen": {"port": free_port()}, "admin": {"port": free_port()}}
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    stop = threading.Event()
    refused: list[str] = []
    served = 0

    def keep_connecting(old: RunningProxy) -> None:
        nonlocal served
        while not stop.is_set():
            try:
                connect(old).close()
                served += 1
            except psycopg.OperationalError as error:
                refused.append(str(error))

    with running(shop18, tmp_path / "old", **sections) as old, one_at_each(old, "writer") as found:
        workers = children(old.process.pid)
        busy, idle = found.values()
        connecting = threading.Thread(target=keep_connecting, args=(old,))
        connecting.start()
        with running(shop18, tmp_path / "new", **sections) as new:
            done: list[Any] = []
            sql = "SELECT 7 FROM pg_sleep(1)"
            working = threading.Thread(target=lambda: done.append(busy.execute(sql.encode()).fetchone()))
            working.start()
            wait_for(lambda: running_queries(old, sql) == 1)
            old.process.send_signal(signal.SIGTERM)
            assert select.select([idle.fileno()], [], [], 20)[0]
            with pytest.raises(psycopg.OperationalError):
                idle.execute("SELECT 1")
            assert old.logged("connection closed", reason=ADMIN_SHUTDOWN.message)
            working.join()
            assert done == [(7,)]
            assert old.process.wait(20) == 0
            assert gone(workers)
            before = served
            wait_for(lambda: served > before + 3)
            stop.set()
            connecting.join()
            assert json.loads(get(new, "/readyz")[1])["ready"] is True
            and_their_supervisor_is_not_outlived_by_workers(new)
    assert refused == []
    assert {each["worker"] for each in old.logged("audit closed")} == {1, 2}
    assert verify([tmp_path / "old" / "audit.jsonl"]).holds


def and_their_supervisor_is_not_outlived_by_workers(proxy: RunningProxy) -> None:
    with connect(proxy) as connection:
        workers = children(proxy.process.pid)
        # What a terminal or a service manager sends to all processes is the supervisor's to heed.
        for pid in workers:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                os.kill(pid, number)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        proxy.process.kill()
        wait_for(lambda: gone(workers), 10)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
