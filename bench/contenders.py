"""Who is compared: PostgreSQL itself, PgBouncer before it, and the proxy before it, on one machine.

Owns their processes and configuration. Every contender takes the same clients without a password on loopback,
holds one server connection for each of them, and speaks to PostgreSQL in clear. It must know no workload.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import select
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from bench.client import Address, Client, query
from bench.policies import strict
from bench.processes import die_with_parent
from proxy.embedded import EmbeddedPostgres, find_binaries

USER: Final = "bench"
DATABASE: Final = "bench"
CONNECTIONS: Final = 1_200
_PORTS: Final = range(15432, 32768)
_START_S: Final = 30.0
_ROOT: Final = Path(__file__).parent.parent
_SERVER_SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": str(CONNECTIONS + 50),
    "shared_buffers": "512MB",
    "autovacuum": "off",  # measured is the way to the server, not its housekeeping
    "jit": "off",
    "log_min_messages": "error",
}


class BenchError(Exception):
    """The benchmark cannot run, or a contender failed under it; a sentence for the person at the terminal."""


class Name(StrEnum):
    """Contenders. ``UNPRICED`` is the proxy with cost checks and catalog off."""

    DIRECT = "direct"
    PGBOUNCER = "pgbouncer"
    PGBOUNCER_64K = "pgbouncer, pkt_buf 64 KiB"
    PROXY = "pgturnstile"
    UNPRICED = "pgturnstile, cost and catalog off"
    DIRECT_TLS = "direct, TLS"
    PGBOUNCER_TLS = "pgbouncer, TLS"
    PROXY_TLS = "pgturnstile, TLS"


@dataclass(frozen=True, slots=True)
class Contender:
    """``pid`` is the process between client and server, None where there is none."""

    name: Name
    address: Address
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Ring:
    """All that run. ``missing`` says of each contender that is not there why."""

    server: EmbeddedPostgres
    folder: Path
    contenders: Mapping[Name, Contender]
    missing: Mapping[Name, str]
    versions: Mapping[str, str]

    @property
    def pgbench(self) -> Path | None:
        """PostgreSQL's load generator; the wheel's binaries come without."""
        beside = self.server.binaries.folder / "pgbench"
        found = str(beside) if beside.exists() else shutil.which("pgbench")
        return Path(found) if found is not None else None

    def direct(self, database: str = DATABASE) -> Address:
        """The server itself, as the benchmark's role."""
        return replace(self.contenders[Name.DIRECT].address, database=database)


@dataclass(frozen=True, slots=True)
class _Certificate:
    certificate: Path
    key: Path


@contextlib.contextmanager
def run_ring(folder: Path) -> Iterator[Ring]:
    """Start everything in ``folder``; at the end nothing runs. Raises BenchError, EmbeddedPostgresError."""
    certificate = _make_certificate(folder)
    files = {"pg_hba.conf": b"host all all 127.0.0.1/32 trust\n"}
    settings = dict(_SERVER_SETTINGS)
    if certificate is not None:
        files |= {
            "server.crt": certificate.certificate.read_bytes(),
            "server.key": certificate.key.read_bytes(),
        }
        settings["ssl"] = "on"
    binaries = find_binaries()
    if binaries.origin == "wheel":  # it is built without OpenSSL
        certificate = None
        settings.pop("ssl", None)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedPostgres(binaries, settings=settings, files=files))
        with Client(Address(server.port, server.superuser, "postgres")) as maintenance:
            for statement in (f"CREATE ROLE {USER} LOGIN", f"CREATE DATABASE {DATABASE} OWNER {USER}"):
                maintenance.checked(query(statement))
        address = Address(server.port, USER, DATABASE)
        contenders = {Name.DIRECT: Contender(Name.DIRECT, address)}
        missing: dict[Name, str] = {}
        for name, pkt_buf in ((Name.PGBOUNCER, None), (Name.PGBOUNCER_64K, 65_536)):
            if shutil.which("pgbouncer", path=_search_path()) is None:
                missing[name] = "there is no pgbouncer program"
                continue
            pid, port = stack.enter_context(_run_pgbouncer(folder, server.port, certificate, pkt_buf))
            contenders[name] = Contender(name, replace(address, port=port), pid)
        for name, module, cost in ((Name.PROXY, "proxy", True), (Name.UNPRICED, "bench.unpriced", False)):
            proxy = run_proxy(folder, server.port, strict(cost=cost), certificate, module=module)
            pid, port = stack.enter_context(proxy)
            contenders[name] = Contender(name, replace(address, port=port), pid)
        _add_tls(contenders, missing, certificate)
        yield Ring(server, folder, contenders, missing, _versions(server))


@contextlib.contextmanager
def run_proxy(
    folder: Path,
    server_port: int,
    policy: str,
    certificate: _Certificate | None = None,
    *,
    module: str = "proxy",
    further: Sequence[str] = (),
) -> Iterator[tuple[int, int]]:
    """A proxy of its own under ``policy``, its audit on: process id and port. ``further`` are more agents."""
    port = free_port()
    home = folder / f"proxy-{port}"
    home.mkdir()
    (home / "policy.yaml").write_text(policy, encoding="utf-8")
    listen: dict[str, object] = {"host": "127.0.0.1", "port": port}
    if certificate is not None:
        listen["tls"] = {
            "cert": str(certificate.certificate),
            "key": str(certificate.key),
            "required": False,
        }
    config = {
        "version": 1,
        "listen": listen,
        "backend": {"host": "127.0.0.1", "port": server_port},
        "agents": {
            agent: {"auth": {"trust": "loopback"}, "login": {"user": USER}, "policy": "policy.yaml"}
            for agent in (USER, *further)
        },
        "audit": {"path": "audit.jsonl", "statements": "full"},
        "limits": {"connections": CONNECTIONS, "connections_per_agent": CONNECTIONS},
    }
    path = home / "pgturnstile.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", "--config", str(path)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one system call, no lock taken
        )
    with _ended(process):
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], _START_S)
        line = process.stdout.readline() if readable else b""
        if not line.startswith(b"ready "):
            raise BenchError(f"the proxy did not start: {(home / 'log').read_text()[-2000:]}")
        yield process.pid, port


@contextlib.contextmanager
def _run_pgbouncer(
    folder: Path, server_port: int, certificate: _Certificate | None, pkt_buf: int | None
) -> Iterator[tuple[int, int]]:
    port = free_port()
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "session",
        "default_pool_size": CONNECTIONS,
        "max_client_conn": CONNECTIONS,
        "server_tls_sslmode": "disable",
        "log_connections": 0,
        "log_disconnections": 0,
        **({"pkt_buf": pkt_buf} if pkt_buf is not None else {}),
    }
    if certificate is not None:
        settings |= {
            "client_tls_sslmode": "allow",
            "client_tls_cert_file": certificate.certificate,
            "client_tls_key_file": certificate.key,
        }
    path = folder / f"pgbouncer-{port}.ini"
    lines = [
        "[databases]",
        f"{DATABASE} = host=127.0.0.1 port={server_port} dbname={DATABASE} user={USER}",
        "[pgbouncer]",
        *(f"{key} = {value}" for key, value in settings.items()),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    program = shutil.which("pgbouncer", path=_search_path())
    assert program is not None
    log_path = path.with_suffix(".log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [program, str(path)],
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # as above
            **_no_root(certificate),
        )
    with _ended(process):
        deadline = time.monotonic() + _START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"PgBouncer did not start: {log_path.read_text()[-2000:]}")
            time.sleep(0.05)
        yield process.pid, port


def _no_root(certificate: _Certificate | None) -> dict[str, Any]:
    """PgBouncer refuses to run as root: whom it runs as instead, who then may read the key."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    if certificate is not None:
        os.chown(certificate.key, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process is gone at the end, however that comes: asked, asked again, made to."""
    try:
        yield
    finally:
        for _ in range(2):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
                break
        else:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _add_tls(
    contenders: dict[Name, Contender], missing: dict[Name, str], certificate: _Certificate | None
) -> None:
    pairs = (
        (Name.DIRECT, Name.DIRECT_TLS),
        (Name.PGBOUNCER, Name.PGBOUNCER_TLS),
        (Name.PROXY, Name.PROXY_TLS),
    )
    for plain, name in pairs:
        if certificate is None:
            missing[name] = "TLS needs the openssl program and a PostgreSQL built with OpenSSL"
        elif plain in missing:
            missing[name] = missing[plain]
        else:
            context = ssl.create_default_context(cafile=str(certificate.certificate))
            was = contenders[plain]
            contenders[name] = Contender(name, replace(was.address, tls=context), was.pid)


def _make_certificate(folder: Path) -> _Certificate | None:
    if shutil.which("openssl") is None:
        return None
    made = _Certificate(folder / "server.crt", folder / "server.key")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-noenc",
            ),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(made.key), "-out", str(made.certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return made


def _versions(server: EmbeddedPostgres) -> dict[str, str]:
    program = shutil.which("pgbouncer", path=_search_path())
    bouncer = _first_line([program, "--version"]) if program is not None else "none"
    return {"postgresql": server.binaries.version, "pgbouncer": bouncer}


def _first_line(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def _search_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


def free_port() -> int:
    """A port of loopback below the ephemeral range."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise BenchError("none of 100 ports is free")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
