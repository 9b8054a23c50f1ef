"""What a service manager is told and what it hands over, with the manager's side played here."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.systemd import Notifier, take_listener

CONFIG = """
version: 1
listen: {port: 1}
backend: {port: 1}
agents: {bot: {auth: {trust: loopback}, login: {user: ro}, policy: p.yaml}}
"""
POLICY = "version: 1\nname: reading\nstatements: {select: allow}\n"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(30)
        yield heard


def test_states_are_told_as_the_manager_reads_them(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready()
    notifier.stopping()
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]
    state, _, stamp = manager.recv(100).partition(b"\nMONOTONIC_USEC=")
    assert (state, int(stamp) >= before) == (b"RELOADING=1", True)


def test_an_abstract_socket_is_found() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0pgturnstile-test-{os.getpid()}")
        heard.settimeout(30)
        Notifier({"NOTIFY_SOCKET": f"@pgturnstile-test-{os.getpid()}"}).ready()
        assert heard.recv(100) == b"READY=1"


def test_no_manager_and_one_that_is_gone_are_no_failure(tmp_path: Path) -> None:
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready()


@pytest.mark.parametrize(
    ("pid", "told"), [(str(os.getpid()), True), ("1", False), (None, True)], ids=["own", "other's", "none"]
)
def test_the_watchdog_hears_of_the_loop_twice_as_often_as_it_wants(
    manager: socket.socket, pid: str | None, told: bool
) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000"}
    environ |= {} if pid is None else {"WATCHDOG_PID": pid}

    async def run() -> None:
        notifier = Notifier(environ)
        notifier.watch()
        await asyncio.sleep(0.1)
        notifier.close()

    asyncio.run(run())
    manager.setblocking(False)
    if told:
        assert [manager.recv(100), manager.recv(100)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
    else:
        with pytest.raises(BlockingIOError):
            manager.recv(100)


@pytest.mark.parametrize(
    "environ",
    [{}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_FDS": "0", "LISTEN_PID": str(os.getpid())}],
)
def test_sockets_of_another_process_are_left_alone(environ: dict[str, str]) -> None:
    assert take_listener(environ) is None


def started(
    folder: Path, listening: socket.socket, *, count: int = 1, workers: int = 1, **environ: str
) -> subprocess.Popen[str]:
    """A proxy that finds ``listening`` as descriptor 3, and LISTEN_PID as its own process id."""
    (folder / "p.yaml").write_text(POLICY)
    (folder / "c.yaml").write_text(f"{CONFIG}workers: {workers}\n")
    program = (
        "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); "
        f"os.dup2({listening.fileno()}, 3); "
        "os.execv(sys.executable, [sys.executable, '-m', 'proxy', 'serve', '--config', sys.argv[1]])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder / "c.yaml")],
        env={**os.environ, **environ, "LISTEN_FDS": str(count)},
        pass_fds=[listening.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_proxy_serves_the_socket_it_is_handed_and_tells_its_life(
    manager: socket.socket, tmp_path: Path, workers: int
) -> None:
    """Whoever serves, the manager hears of one process, and once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        # Connections that come before the proxy wait in the socket: a restart refuses nobody.
        early = socket.create_connection(("127.0.0.1", port))
        process = started(tmp_path, listening, workers=workers, NOTIFY_SOCKET=manager.getsockname())
        try:
            assert manager.recv(100) == b"READY=1"
            assert process.stdout is not None
            assert process.stdout.readline() == f"ready host=127.0.0.1 port={port}\n"
            early.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")
            early.settimeout(30)
            assert early.recv(1) == b"N"
            process.send_signal(signal.SIGHUP)
            assert manager.recv(100).startswith(b"RELOADING=1\n")
            assert manager.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0
            manager.setblocking(False)
            with pytest.raises(BlockingIOError):
                manager.recv(100)
        finally:
            early.close()
            process.kill()
            process.communicate()


def test_more_sockets_than_one_are_refused_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = started(tmp_path, listening, count=2)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "hands over 2 sockets" in told
