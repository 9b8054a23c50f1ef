"""What the server is configured to do, as frozen values: one ``Config``, a part of it for each section.

Owns those values and their defaults. Reads no file and judges nothing: ``config_reading`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from policy.model import Policy
from proxy.agents import AgentConfig, Login
from proxy.ledgers import LedgerStore
from proxy.tls import TLSMode

ANY_AGENT = "*"
MAX_NAME_BYTES = 63


class Statements(StrEnum):
    """How much of a statement the audit record keeps."""

    FULL = "full"
    LITERALS_MASKED = "literals_masked"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ListenTls:
    """``listen.tls``: the files were readable and fitted at load. ``required`` refuses agents in clear;
    ``client_ca`` signs the certificates that agents may be known by."""

    cert: Path
    key: Path
    required: bool = True
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Listen:
    """Where agents connect. ``port`` 0 lets the system choose; the ``ready`` line tells which."""

    host: str = "127.0.0.1"
    port: int = 6432
    tls: ListenTls | None = None


@dataclass(frozen=True, slots=True)
class BackendTls:
    """``ca`` None means the system's authorities. ``direct``: TLS at once, without asking for it. ``own`` is
    the certificate and key to show a server that asks for one."""

    mode: TLSMode
    ca: Path | None = None
    direct: bool = False
    own: tuple[Path, Path] | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """Where PostgreSQL listens. Without a ``tls`` key the mode is ``disable`` for loopback and sockets, and
    ``verify-full`` for every other host."""

    host: str = "127.0.0.1"
    port: int = 5432
    tls: BackendTls = BackendTls(TLSMode.DISABLE)

    @property
    def socket(self) -> Path | None:
        """The Unix socket, where ``host`` is a folder; libpq's name for it."""
        return Path(self.host, f".s.PGSQL.{self.port}") if self.host.startswith("/") else None


class OnFailure(StrEnum):
    """What follows while the audit file takes no lines."""

    REFUSE = "refuse"
    """No further statement is carried."""
    ALARM = "alarm"
    """Statements go on, and what is then not recorded is counted."""


class Fsync(StrEnum):
    """When the audit file is forced to the disk."""

    ON_CLOSE = "on_close"
    ALWAYS = "always"
    """After each batch of lines."""


@dataclass(frozen=True, slots=True)
class Audit:
    path: Path
    statements: Statements = Statements.FULL
    on_failure: OnFailure = OnFailure.REFUSE
    fsync: Fsync = Fsync.ON_CLOSE


@dataclass(frozen=True, slots=True)
class Admin:
    """Where the admin port listens; ``token`` is what it asks for, never None off loopback."""

    host: str = "127.0.0.1"
    port: int = 6433
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Times in milliseconds, sizes in bytes."""

    connections: int = 500
    connections_per_agent: int = 50
    startup_timeout_ms: int = 10_000
    judge_timeout_ms: int = 10_000
    """The longest that parser and rules may take over one statement."""
    message_bytes: int = 16 * 2**20
    statement_bytes: int = 2**20
    drain_timeout_ms: int = 30_000
    """How long a draining server waits for what is under way."""


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration, loaded whole. ``audit`` None: no record is kept. ``catalog_login`` is who reads the
    catalogs; None: the agents' own logins do. ``control`` is the socket to ask the process at (``control``);
    None: there is none. ``workers`` processes serve."""

    source: str
    listen: Listen
    backend: Backend
    agents: Mapping[str, AgentConfig]
    audit: Audit | None = None
    admin: Admin | None = None
    limits: ServerLimits = ServerLimits()
    ledger: LedgerStore = field(default_factory=LedgerStore)
    catalog_login: Login | None = None
    control: Path | None = None
    workers: int = 1

    def agent_for(self, user: str) -> AgentConfig | None:
        """The agent that the startup packet's user name picks: its own entry, else ``*``'s, else none."""
        return self.agents.get(user, self.agents.get(ANY_AGENT))

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Every policy once, in the order of the agents."""
        return tuple({agent.policy.source: agent.policy for agent in self.agents.values()}.values())
