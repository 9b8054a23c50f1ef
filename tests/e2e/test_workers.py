"""A proxy of two workers: its agents, its operator and its service manager see one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from proxy.audit_chain import verify
from proxy.cli import main
from proxy.config import Config
from proxy.scram import Verifier
from tests.support.postgres import Database, Server
from tests.support.proxy import PASSWORD, READER, RunningProxy, free_port, run_proxy, wait_for

FEW: Final = READER.replace("name: reader", "name: few")
ORDERS: Final = READER.replace('["public.*"]', "[public.orders]").replace("name: reader", "name: changing")

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def proxy(postgres18: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("workers")
    with postgres18.database() as database, running(database, folder) as proxy:
        yield proxy


@contextlib.contextmanager
def running(database: Database, folder: Path, **sections: Any) -> Iterator[RunningProxy]:
    usual: dict[str, Any] = {
        "workers": 2,
        "admin": {"port": free_port()},
        "control": "control.sock",
        "audit": {"path": "audit.jsonl"},
        "limits": {"connections": 12, "connections_per_agent": 9},
        "ledger": {"store": "sqlite:ledger.sqlite"},
    }
    policies = {"few": FEW, "changing": ORDERS}
    with run_proxy(database, folder, policies, **{**usual, **sections}) as proxy:
        yield proxy


def connect(proxy: RunningProxy, user: str = "reader", **more: Any) -> Connection:
    return psycopg.connect(**proxy.parameters(user, **more), autocommit=True)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker_of(proxy: RunningProxy, connection: Connection) -> int:
    """The process that holds the other end of a connection."""
    host, port = connection.pgconn.host, 0
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        port = ours.getsockname()[1]
    assert host
    wanted = f":{port:04X}"
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[2].endswith(wanted) and words[1].endswith(f":{proxy.port:04X}"):
            inodes.add(f"socket:[{words[9]}]")
    for pid in children(proxy.process.pid):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) in inodes:
                    return pid
    raise AssertionError("no worker has this connection")


@contextlib.contextmanager
def one_at_each(proxy: RunningProxy, user: str = "reader") -> Iterator[dict[int, Connection]]:
    """A connection at each worker, by its process."""
    with contextlib.ExitStack() as open_:
        found: dict[int, Connection] = {}
        wait_for(lambda: len(children(proxy.process.pid)) == 2)
        for _ in range(100):
            connection = connect(proxy, user)
            pid = worker_of(proxy, connection)
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
