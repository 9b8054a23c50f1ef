"""``pgturnstile serve`` as a child process before a real server, for tests with real drivers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proxy.scram import Verifier
from tests.support.postgres import Database

PASSWORD: Final = "correct horse"
"""Of the agents ``reader`` and ``writer``."""

READER: Final = """
version: 1
name: reader
mode: enforce
access: read_only
statements: {select: allow, show: allow, set: allow, transaction: allow, cursor: allow, prepare: allow,
  explain: allow}
relations: {allow: ["public.*"], catalogs: filtered}
functions: {allow: [builtin-safe, pg_catalog.pg_backend_pid]}
rules: {unbounded-join: "off"}
limits: {statement_timeout: 60s, lock_timeout: 7s, idle_in_transaction_timeout: 5m}
"""
WRITER: Final = """
version: 1
name: writer
mode: enforce
access: read_write
statements: {select: allow, show: allow, set: allow, transaction: allow, cursor: allow, prepare: allow,
  explain: allow, insert: allow, update: allow, delete: allow, copy_in: allow, copy_out: allow, lock: allow}
relations: {allow: ["public.*"], catalogs: filtered}
functions: {allow: [builtin-safe, pg_catalog.pg_sleep, pg_catalog.pg_backend_pid]}
"""

# Each worker of pytest-xdist has ports of its own: what one found free no other takes before it is used.
_WORKERS: Final = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_PORTS: Final = range(15432, 32768)[_WORKER::_WORKERS]
_START_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A proxy that accepts connections."""

    process: subprocess.Popen[str]
    port: int
    database: Database
    folder: Path
    log_path: Path
    config: Mapping[str, Any] = field(default_factory=dict)

    def parameters(
        self, user: str = "reader", password: str | None = PASSWORD, **more: Any
    ) -> dict[str, Any]:
        """Connection parameters by libpq's names."""
        given = {"host": "127.0.0.1", "port": self.port, "user": user, "dbname": self.database.name, **more}
        return given | ({"password": password} if password is not None else {})

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]

    def logged(self, event: str, within_s: float = 20.0, **fields: object) -> list[dict[str, Any]]:
        """The log's entries of that event and fields, once there is one."""

        def found() -> list[dict[str, Any]]:
            return [e for e in self.log() if e["event"] == event and fields.items() <= e.items()]

        wait_for(lambda: bool(found()), within_s)
        return found()


@contextlib.contextmanager
def run_proxy(
    database: Database,
    folder: Path,
    policies: Mapping[str, str] | None = None,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    **sections: Any,
) -> Iterator[RunningProxy]:
    """A proxy before ``database`` with the agents reader, writer, trusted and ``*``.

    ``policies`` are the texts of policies by the name of a further agent, whose backend role is shop_app.
    ``arguments`` go to ``serve``, ``environment`` adds to the proxy's. ``sections`` replace those of the
    configuration; ``backend`` and ``listen`` add to the usual ones.
    """
    policies = policies or {}
    for agent, text in {"reader": READER, "writer": WRITER, **policies}.items():
        (folder / f"{agent}.yaml").write_text(text)
    config = _config(database, policies, sections)
    path = folder / "pgturnstile.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML, without the aliases a dumper would write
    log_path = folder / "proxy.log"
    secrets = {f"PASSWORD_{role.upper()}": word for role, word in database.server.passwords.items()}
    secrets |= environment or {}
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "proxy",
                "serve",
                "--config",
                str(path),
                "--log-format",
                "json",
                *arguments,
            ],
            env={**os.environ, **secrets},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        port = _wait_until_ready(process, log_path)
        yield RunningProxy(process, port, database, folder, log_path, config)
    finally:
        for number in (signal.SIGTERM, signal.SIGTERM):
            if process.poll() is None:
                process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _config(database: Database, further: Iterable[str], sections: Mapping[str, Any]) -> dict[str, Any]:
    verifier = {"scram": str(Verifier.derive(PASSWORD))}
    reads = {"user": "shop_ro", "password_env": "PASSWORD_SHOP_RO"}
    writes = {"user": "shop_app", "password_env": "PASSWORD_SHOP_APP"}
    server = database.server
    usual: dict[str, Any] = {
        "version": 1,
        "listen": {"host": "127.0.0.1", "port": free_port(), **sections.get("listen", {})},
        "backend": {"host": server.host, "port": server.port, **sections.get("backend", {})},
        "agents": {
            "reader": {"auth": verifier, "login": reads, "policy": "reader.yaml"},
            "writer": {"auth": verifier, "login": writes, "policy": "writer.yaml"},
            "trusted": {"auth": {"trust": "loopback"}, "login": reads, "policy": "reader.yaml"},
            "*": {"auth": {"backend": "password"}, "policy": "writer.yaml"},
            **{agent: {"auth": verifier, "login": writes, "policy": f"{agent}.yaml"} for agent in further},
        },
    }
    return {**usual, **{k: v for k, v in sections.items() if k not in ("listen", "backend")}}


def free_port() -> int:
    """A port below the ephemeral range, so that no outgoing connection takes it in between."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait_until_ready(process: subprocess.Popen[str], log_path: Path) -> int:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _START_S)
    line = process.stdout.readline() if readable else ""
    if not line.startswith("ready host="):
        raise AssertionError(f"the proxy did not start: {line!r}\n{log_path.read_text()}")
    return int(line.rpartition("port=")[2])


def wait_for(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Until ``condition`` holds; fails when it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain")
        time.sleep(0.02)
