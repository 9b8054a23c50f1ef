"""What connections cost the proxy in memory while one side does not read: a bound for each, times fifty."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Database
from tests.support.proxy import RunningProxy, run_proxy, wait_for
from tests.support.wire import Client, copy_data, query, through

CONNECTIONS = 50
BOUND_KIB = 1024
"""What README promises of a connection whose other side does not read."""

RESULT = query("SELECT repeat('x', 10000) FROM generate_series(1, 20000)")
"""200 MB."""
PIECE = copy_data(b"a\tb\tc\n") * 10_000


@pytest.fixture
def roomy(database18: Database, tmp_path: Path) -> Iterator[RunningProxy]:
    limits = {"connections": 200, "connections_per_agent": 100}
    with run_proxy(database18, tmp_path, limits=limits) as running:
        yield running


def resident_kib(proxy: RunningProxy) -> int:
    status = Path(f"/proc/{proxy.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def ask_and_not_read(clients: list[Client]) -> None:
    for client in clients:
        client.send(RESULT)
        client.read()


def copy_to_nobody(clients: list[Client]) -> None:
    """Each as much as it can get rid of: the server waits for a lock and reads nothing."""
    for client in clients:
        client.send(query("COPY customers (name, email, city) FROM STDIN"))
        client.sock.setblocking(False)
    idle = 0
    while idle < 5:
        idle += 1
        for client in clients:
            with contextlib.suppress(BlockingIOError):
                while client.sock.send(PIECE):
                    idle = 0
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("load", [ask_and_not_read, copy_to_nobody])
def test_fifty_connections_with_a_side_that_does_not_read(
    roomy: RunningProxy, load: Callable[[list[Client]], None]
) -> None:
    with contextlib.ExitStack() as stack:
        blocker = stack.enter_context(through(roomy, "shop_app"))
        blocker.ask(query("BEGIN"))
        blocker.ask(query("LOCK TABLE customers IN EXCLUSIVE MODE"))
        clients = [stack.enter_context(through(roomy, "shop_app")) for _ in range(CONNECTIONS)]
        before = resident_kib(roomy)
        load(clients)
        time.sleep(1.0)
        grown = resident_kib(roomy) - before
        print(f"{grown / CONNECTIONS:.0f} KiB a connection")
        assert grown < CONNECTIONS * BOUND_KIB
        (answer,) = [m for m in blocker.ask(query("SELECT 7")) if m.kind == "D"]
        assert answer.body.endswith(b"7")
        for client in clients:
            client.cut()
    left = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND usename = 'shop_app'"
    wait_for(lambda: roomy.database.execute(left) == [(0,)], within_s=20)
