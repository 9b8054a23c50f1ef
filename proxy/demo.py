"""``pgturnstile demo``: a throw-away PostgreSQL, the sample shop, and the proxy before it.

Owns putting the parts together and taking them apart again, and what is printed meanwhile. The configuration
is made of the same text a server's would be, so that what holds in the demo holds in production; only the
passwords are sample ones, on a loopback port, before data that nobody misses.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import asyncpg

import policy
from proxy.audit import Audit
from proxy.config import Audit as AuditSettings
from proxy.config import Config
from proxy.config_reading import read_config
from proxy.demo_shop import ROLES, load_shop
from proxy.demo_tour import ANALYST, CLERK, TOUR, Refused
from proxy.demo_walk import DriverMissingError, walk
from proxy.embedded import EmbeddedPostgres, EmbeddedPostgresError
from proxy.server import Server

HOST: Final = "127.0.0.1"
PORT: Final = 6432
DATABASE: Final = "shop"
PASSWORDS: Final = MappingProxyType({ANALYST: "analyst-demo", CLERK: "clerk-demo"})
"""Documented in README: they open a sample shop on this machine and nothing else."""

_FIRST_LOOK: Final = (
    "import psycopg; print(psycopg.connect('{}').execute('SELECT count(*) FROM orders').fetchone())"
)
"""For a machine without psql: run by the interpreter of the demo itself, which has the driver."""
_POLICIES: Final = Path(policy.__file__).parent / "examples"
_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Print = Callable[[str], None]


class DemoError(Exception):
    """The demo cannot start. The message is a sentence for the person at the terminal."""


def run(port: int | None, tell: Print) -> None:
    """Serve the demo until Ctrl-C (or SIGTERM, or the terminal is closed). ``port`` None is 6432.

    Raises DemoError.
    """
    with _shop_server(PORT if port is None else port) as postgres:
        asyncio.run(_serve_until_stopped(postgres, PORT if port is None else port, tell))


def check(port: int | None, tell: Print) -> bool:
    """Walk the tour through a demo of its own; True when every answer was as promised.

    ``port`` None is any free one. Raises DemoError.
    """
    with _shop_server(port) as postgres:
        return asyncio.run(_walk_the_tour(postgres, port or 0, tell))


async def _serve_until_stopped(postgres: EmbeddedPostgres, port: int, tell: Print) -> None:
    stopped = asyncio.Event()
    for ending in _ENDINGS:
        asyncio.get_running_loop().add_signal_handler(ending, stopped.set)
    async with _demo(postgres, port) as demo:
        for line in _welcome(demo):
            tell(line)
        await stopped.wait()
        tell("Stopping; nothing of it is kept.")


async def _walk_the_tour(postgres: EmbeddedPostgres, port: int, tell: Print) -> bool:
    async with _demo(postgres, port) as demo:
        tell(
            f"PostgreSQL {postgres.binaries.version} with the sample shop; the proxy on {HOST}:{demo.port}.\n"
        )
        try:
            failures = await walk({agent: demo.uri(agent) for agent in PASSWORDS}, demo.direct, tell)
        except DriverMissingError as error:
            raise DemoError(str(error)) from error
    tell("Every answer was as promised." if not failures else f"{failures} answers were not as promised.")
    return not failures


@dataclass(frozen=True, slots=True)
class _Demo:
    """A running demo: the proxy's port, a superuser's URI past it, and where it keeps its audit."""

    port: int
    direct: str
    audit: Path

    def uri(self, agent: str) -> str:
        return f"postgresql://{agent}:{PASSWORDS[agent]}@{HOST}:{self.port}/{DATABASE}"


@contextlib.contextmanager
def _shop_server(port: int | None) -> Iterator[EmbeddedPostgres]:
    """PostgreSQL, up; ``port`` is only looked at, so that nobody waits for a server that cannot be used."""
    if port is not None and not _is_free(port):
        raise DemoError(f"Port {port} on {HOST} is in use; `make demo ARGS='--port N'` takes another one.")
    # Before the event loop has its own handlers, SIGTERM must unwind the stack as Ctrl-C does, or the
    # server's folder would stay.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with EmbeddedPostgres() as postgres:
            yield postgres
    except EmbeddedPostgresError as error:
        raise DemoError(str(error)) from error
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.asynccontextmanager
async def _demo(postgres: EmbeddedPostgres, port: int) -> AsyncIterator[_Demo]:
    """Shop and proxy, ready for agents."""
    roles = {role: secrets.token_urlsafe(18) for role in ROLES}
    direct = await _make_shop(postgres, roles)
    audit_path = postgres.folder / "audit.jsonl"
    config = _config(postgres, port, roles)
    with Audit(AuditSettings(audit_path)) as audit:
        server = Server(config, audit)
        try:
            _, port = await server.start()
            yield _Demo(port, direct, audit_path)
        finally:
            await server.stop()


async def _make_shop(postgres: EmbeddedPostgres, roles: dict[str, str]) -> str:
    administrator = await asyncpg.connect(postgres.dsn("postgres"))
    try:
        await administrator.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await administrator.close()
    direct = postgres.dsn(DATABASE)
    await load_shop(direct, roles)
    return direct


def _config(postgres: EmbeddedPostgres, port: int, roles: dict[str, str]) -> Config:
    agents = {ANALYST: ("shop_ro", "demo-analyst.yaml"), CLERK: ("shop_app", "demo-clerk.yaml")}
    lines = [
        "version: 1",
        f"listen: {{host: {HOST}, port: {port}}}",
        f"backend: {{host: {postgres.host}, port: {postgres.port}}}",
        "agents:",
    ]
    for agent, (role, policy_file) in agents.items():
        lines += [
            f"  {agent}:",
            f"    auth: {{password_env: {agent}}}",
            f"    login: {{user: {role}, password_env: {role}}}",
            f"    databases: [{DATABASE}]",
            f"    policy: {policy_file}",
        ]
    return read_config("\n".join(lines), "demo.yaml", _POLICIES, {**PASSWORDS, **roles})


def _welcome(demo: _Demo) -> Iterator[str]:
    yield f"A PostgreSQL with a sample shop is up, and pgturnstile listens before it on {HOST}:{demo.port}."
    yield ""
    for agent, does in (
        (ANALYST, "reads, except salaries and keys"),
        (CLERK, "changes a few rows at a time"),
    ):
        yield f"{agent} {does}:"
        yield f"  psql {demo.uri(agent)}"
        yield f'  {shlex.quote(sys.executable)} -c "{_FIRST_LOOK.format(demo.uri(agent))}"'
        yield ""
    for agent in PASSWORDS:
        yield f"To paste as {agent}:"
        for step in TOUR:
            if step.agent == agent and len(step.batch) == 1:
                verdict = "refused" if isinstance(step.expected, Refused) else "passes"
                # psql itself would cut a string in two at a plain semicolon.
                yield f"  {step.batch[0].replace(';', chr(92) + ';')};  -- {verdict}"
        yield ""
    yield f"Every decision is a line of {demo.audit}."
    yield "`pgturnstile demo --check` walks the tour by itself. Ctrl-C ends this demo without a trace."


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
