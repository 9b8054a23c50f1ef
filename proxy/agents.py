"""Who may connect: the agents of a configuration as values.

Owns what an agent has to prove, where it may come from, and what it works as. Where all this stands in the
file is ``config_reading``'s, the proving ``handshake``'s. Knows no sockets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from policy.model import Policy
from proxy.credentials import PasswordFile, VerifierFile
from proxy.dsn import CloneTarget
from proxy.scram import Verifier
from proxy.tls import CertificateName


@dataclass(frozen=True, slots=True)
class ScramAuth:
    """The agent proves a password by SCRAM-SHA-256 (``scram`` as it stands, ``password_env`` derived)."""

    verifier: Verifier


@dataclass(frozen=True, slots=True)
class FileAuth:
    """The agent proves the password that a file holds at the time, by SCRAM-SHA-256."""

    source: VerifierFile


@dataclass(frozen=True, slots=True)
class CertificateAuth:
    """The agent shows a certificate with this name in it, signed by ``listen.tls.client_ca``."""

    name: CertificateName


@dataclass(frozen=True, slots=True)
class TrustLoopback:
    """No proof is asked of a peer on a loopback address; any other peer is refused."""


@dataclass(frozen=True, slots=True)
class BackendPassword:
    """The password is asked in clear, over TLS or loopback only, and PostgreSQL is the judge of it."""


Auth = ScramAuth | FileAuth | CertificateAuth | TrustLoopback | BackendPassword
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Login:
    """The backend role an agent works as. ``source`` None: PostgreSQL asks for no password (peer, trust)."""

    user: str
    source: str | PasswordFile | None = field(default=None, repr=False)

    def password(self) -> str | None:
        """The password of the moment. Raises SecretError where its file cannot be read."""
        return self.source.password() if isinstance(self.source, PasswordFile) else self.source


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """``login`` is None with ``BackendPassword``: the name and password given are the role's own.

    ``name`` is ``*`` for the entry of every name without one. ``databases`` and ``networks`` None allow any;
    ``connections`` None leaves it to ``limits.connections_per_agent``. ``clone`` is where the policy's
    ``sandbox`` tries statements; None without one.
    """

    name: str
    auth: Auth
    login: Login | None
    databases: frozenset[str] | None
    policy: Policy
    networks: tuple[Network, ...] | None = None
    connections: int | None = None
    clone: CloneTarget | None = None

    def may_use(self, database: str) -> bool:
        return self.databases is None or database in self.databases

    def may_come_from(self, address: IPv4Address | IPv6Address | None) -> bool:
        """``address`` None, a Unix socket, is in no network."""
        if self.networks is None:
            return True
        return address is not None and any(address in network for network in self.networks)
