"""The audit file of a running proxy: what holds when the disk fails, the file is rotated, the proxy dies."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.audit_chain import verify
from tests.support.postgres import Database
from tests.support.proxy import RunningProxy, free_port, run_proxy, wait_for


@pytest.fixture
def proxy(shop: Database, tmp_path: Path) -> Iterator[RunningProxy]:
    audit = {"path": str(tmp_path / "audit.jsonl")}
    with run_proxy(shop, tmp_path, audit=audit, admin={"port": free_port()}) as running:
        yield running


def connect(proxy: RunningProxy, user: str = "reader") -> psycopg.Connection[Any]:
    return psycopg.connect(**proxy.parameters(user), autocommit=True)


def statements(path: Path) -> list[str]:
    return [json.loads(line)["statement"] for line in path.read_text().splitlines()]


def readiness(proxy: RunningProxy) -> dict[str, Any]:
    url = f"http://127.0.0.1:{proxy.config['admin']['port']}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            told: dict[str, Any] = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        told = json.loads(error.read())
    return told


def fill_the_disk(proxy: RunningProxy, at: int) -> None:
    """No file of the proxy may grow beyond ``at`` bytes: the kernel refuses with EFBIG."""
    resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (at, resource.RLIM_INFINITY))


def test_a_killed_proxy_has_written_what_it_had_done_a_moment_before(proxy: RunningProxy) -> None:
    path = proxy.folder / "audit.jsonl"
    with connect(proxy) as connection:
        for n in range(200):
            connection.execute(f"SELECT {n}".encode())
        wait_for(lambda: path.exists() and len(path.read_bytes().splitlines()) == 200)
        os.kill(proxy.process.pid, signal.SIGKILL)
        proxy.process.wait(10)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert statements(path) == [f"SELECT {n}" for n in range(200)]
    assert verify([path]).holds


def test_rotation_by_signal(proxy: RunningProxy) -> None:
    path, moved = proxy.folder / "audit.jsonl", proxy.folder / "audit.jsonl.1"
    with connect(proxy) as connection:
        connection.execute("SELECT 1")
        wait_for(lambda: path.exists() and b"\n" in path.read_bytes())
        path.rename(moved)
        proxy.process.send_signal(signal.SIGUSR1)
        wait_for(path.exists)
        connection.execute("SELECT 2")
        wait_for(lambda: b"\n" in path.read_bytes())
    assert (statements(moved), statements(path)) == (["SELECT 1"], ["SELECT 2"])
    assert verify([moved, path]).holds


def test_a_full_disk_ends_statements_and_its_end_brings_them_back(proxy: RunningProxy) -> None:
    path = proxy.folder / "audit.jsonl"
    idle, busy, within = connect(proxy), connect(proxy, "writer"), connect(proxy, "writer")
    within.execute("BEGIN")
    within.execute("SELECT 1")
    wait_for(lambda: path.exists() and len(path.read_bytes().splitlines()) == 2)
    fill_the_disk(proxy, path.stat().st_size + 100)

    with connect(proxy) as last:
        last.execute("SELECT 2")
    wait_for(lambda: not readiness(proxy)["ready"])
    assert readiness(proxy)["problems"] == ["audit: File too large"]
    for connection in (idle, within):
        with pytest.raises(psycopg.OperationalError, match="cannot write its audit file"):
            connection.execute("SELECT 3")
        connection.close()
    with pytest.raises(psycopg.OperationalError, match="cannot write its audit file"):
        connect(proxy)
    busy.close()

    fill_the_disk(proxy, resource.RLIM_INFINITY)
    wait_for(lambda: bool(readiness(proxy)["ready"]))
    with connect(proxy) as again:
        again.execute("SELECT 4")
    wait_for(lambda: path.read_bytes().count(b"SELECT 4") == 1)
    assert statements(path) == ["BEGIN", "SELECT 1", "SELECT 2", "SELECT 4"]
    assert verify([path]).holds


def test_what_runs_when_the_disk_fills_finishes_and_is_recorded_later(proxy: RunningProxy) -> None:
    path = proxy.folder / "audit.jsonl"
    with connect(proxy) as first:
        first.execute("SELECT 1")
    wait_for(lambda: path.exists() and b"\n" in path.read_bytes())
    sleeper = connect(proxy, "writer")
    with ThreadPoolExecutor(1) as pool:
        slept = pool.submit(lambda: sleeper.execute("SELECT pg_sleep(4), 7").fetchone())
        wait_for(lambda: bool(sleeping(proxy)))
        fill_the_disk(proxy, path.stat().st_size)
        with connect(proxy) as other:
            other.execute("SELECT 2")
        wait_for(lambda: not readiness(proxy)["ready"])
        assert slept.result(30) is not None
    with pytest.raises(psycopg.OperationalError):
        sleeper.execute("SELECT 3")
    fill_the_disk(proxy, resource.RLIM_INFINITY)
    wait_for(lambda: b"pg_sleep" in path.read_bytes())
    assert verify([path]).holds


def sleeping(proxy: RunningProxy) -> list[tuple[Any, ...]]:
    return proxy.database.execute(
        "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
    )


def test_a_pipeline_without_its_end_is_not_waited_for_when_the_disk_fills(proxy: RunningProxy) -> None:
    path = proxy.folder / "audit.jsonl"
    half = connect(proxy, "writer")
    with pytest.raises(psycopg.OperationalError), half.pipeline():
        half.execute("SELECT 1")
        half.pgconn.flush()
        fill_the_disk(proxy, 10)
        with connect(proxy) as other:
            other.execute("SELECT 2")
        wait_for(lambda: not readiness(proxy)["ready"])
    fill_the_disk(proxy, resource.RLIM_INFINITY)
    wait_for(lambda: path.exists() and b"SELECT 2" in path.read_bytes())


def test_where_the_operator_wants_it_statements_go_on_without(shop: Database, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = {"path": str(path), "on_failure": "alarm"}
    with run_proxy(shop, tmp_path, audit=audit, admin={"port": free_port()}) as proxy, connect(proxy) as own:
        own.execute("SELECT 1")
        wait_for(lambda: path.exists() and b"\n" in path.read_bytes())
        fill_the_disk(proxy, path.stat().st_size)
        own.execute("SELECT 2")
        wait_for(lambda: not readiness(proxy)["audit"]["writable"])
        assert readiness(proxy)["ready"]
        own.execute("SELECT 3")
        with connect(proxy) as other:
            other.execute("SELECT 4")
        fill_the_disk(proxy, resource.RLIM_INFINITY)
        wait_for(lambda: b"SELECT 4" in path.read_bytes())
    assert statements(path) == [f"SELECT {n}" for n in (1, 2, 3, 4)]


def test_a_new_proxy_beside_the_old_one_has_a_run_of_its_own(shop: Database, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    audit = {"path": str(path)}
    with run_proxy(shop, tmp_path / "old", audit=audit) as old, connect(old) as first:
        first.execute("SELECT 1")
        wait_for(lambda: b"\n" in path.read_bytes())
        with run_proxy(shop, tmp_path / "new", audit=audit) as new, connect(new) as second:
            for _ in range(10):
                first.execute("SELECT 2")
                second.execute("SELECT 3")
    verdict = verify([path])
    assert (verdict.breaks, verdict.lines, len(verdict.heads)) == ([], 21, 2)


def test_the_command_says_of_a_real_file_that_it_holds(proxy: RunningProxy) -> None:
    path = proxy.folder / "audit.jsonl"
    with connect(proxy) as connection:
        connection.execute("SELECT 1")
        connection.execute("SELECT 2")
    wait_for(lambda: path.exists() and len(path.read_bytes().splitlines()) == 2)

    def verified() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "proxy", "audit", "verify", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert (verified().returncode, "the chain holds" in verified().stdout) == (0, True)
    path.write_bytes(path.read_bytes().replace(b"SELECT 1", b"SELECT 9"))
    broken = verified()
    assert broken.returncode == 1
    assert f"{path}:2: the line before it" in broken.stdout
