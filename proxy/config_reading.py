"""``pgturnstile.yaml`` -> a frozen ``Config``, its policies and secrets included, or every fault at once.

Owns the keys of the server's configuration (contract: server config) and what each may hold. The values they
become are ``config``'s. Knows no sockets and starts nothing.

Secrets never stand in the file: passwords come from the environment or from files, both looked at here, so
that a missing one is a fault of the file and not of the first connection; and because one may stand in the
file all the same, by mistake, no diagnostic quotes its lines. Relative paths start from the folder of the
configuration file. What this version cannot honour is refused, never ignored.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from types import MappingProxyType

from policy import loader, yaml_source
from policy.diagnostics import Diagnostic, InvalidFileError, PolicyError
from policy.model import Policy, RepairScope
from policy.reader import Fields, KeyedPlace, Place
from proxy import tls
from proxy.agents import (
    AgentConfig,
    Auth,
    BackendPassword,
    CertificateAuth,
    FileAuth,
    Login,
    Network,
    ScramAuth,
    TrustLoopback,
)
from proxy.config import (
    ANY_AGENT,
    MAX_NAME_BYTES,
    Admin,
    Audit,
    Backend,
    BackendTls,
    Config,
    Fsync,
    Listen,
    ListenTls,
    OnFailure,
    ServerLimits,
    Statements,
)
from proxy.credentials import PasswordFile, SecretError, VerifierFile, checked, derive
from proxy.dsn import CloneTarget, DsnError
from proxy.ledgers import LedgerStore, read_store
from proxy.scram import Verifier
from proxy.stream import is_local_host
from proxy.tls import CertificateName, NameKind, TLSMode

VERSION = 1
MAX_WORKERS = 64
MAX_MESSAGE_BYTES = 2**30 - 1
"""PostgreSQL itself takes no longer message (PQ_LARGE_MESSAGE_LIMIT)."""
MIN_TOKEN = 16
"""Characters of the admin port's token: it is compared, not derived, so it must not be guessable."""


class ConfigError(InvalidFileError):
    """A configuration, or a policy it names, that cannot be loaded; nothing may start."""


def load_config(path: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Reads ``path``, the policies it names and the secrets it needs.

    ``environ`` is where ``…_env`` keys look (default: the process environment). Raises ``ConfigError`` with
    every fault of every file.
    """
    try:
        with path.open("rb") as file:
            text = file.read(yaml_source.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError([Diagnostic(str(path), 0, 0, "", f"cannot be read: {_reason(error)}")]) from error
    return read_config(text, str(path), path.parent, os.environ if environ is None else environ)


def read_config(text: bytes | str, source: str, folder: Path, environ: Mapping[str, str]) -> Config:
    """``load_config`` of a text; ``folder`` is where relative paths start. Raises ``ConfigError``."""
    document = yaml_source.read(text, source, quotes_lines=False)
    reading = Reading(folder, environ)
    config = reading.config(Place.root(document), source)
    faults = [*document.report.in_order(), *reading.policy_faults()]
    if faults:
        raise ConfigError(faults)
    return config


def unshared_repairs(config: Config, workers: int) -> str | None:
    """Why so many processes cannot serve ``config``: each would count for itself whose turn a repair is.

    None where they can. What a connection keeps to itself need not be shared.
    """
    if workers == 1 or config.ledger.shared:
        return None
    for policy in config.policies:
        if policy.counts_repairs and policy.repair.scope is not RepairScope.CONNECTION:
            return (
                f"policy {policy.name} counts repairs over connections, which workers cannot keep in memory: "
                "name a ledger, store: sqlite:PATH or redis://HOST:PORT/NUMBER, or the policy "
                "repair: {scope: connection}"
            )
    return None


_NOT_OFFERED = "is not offered by this version"
_SECTIONS = (
    "version",
    "listen",
    "backend",
    "agents",
    "catalog",
    "admin",
    "audit",
    "control",
    "ledger",
    "limits",
    "workers",
)
_NO_SECRETS = "a secret never stands in the file; put it in the environment and name the variable with "
_SECRET_KEYS = dict.fromkeys(("password", "pass", "passwd", "secret"), _NO_SECRETS + "password_env")
_NO_POLICY = Policy(name="", source="", sha256="")
"""Stands in while faults are collected; a configuration with a fault never leaves this module."""


class Reading:
    """One reading of one configuration: what its keys refer to, and what was loaded for it so far."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._policies: dict[Path, Policy | PolicyError] = {}
        self._asks_certificates = False

    def config(self, root: Place, source: str) -> Config:
        fields = root.fields(_SECTIONS, required=("version", "backend", "agents"))
        fields.maybe("version", _version)
        config = Config(
            source=source,
            listen=fields.get("listen", self._listen, Listen()),
            backend=fields.get("backend", self._backend, Backend()),
            agents=MappingProxyType(fields.get("agents", self._agents, {})),
            audit=fields.maybe("audit", self._audit),
            admin=fields.maybe("admin", self._admin),
            control=fields.maybe("control", self._path),
            limits=fields.get("limits", _limits, ServerLimits()),
            ledger=fields.get("ledger", self._ledger, LedgerStore()),
            catalog_login=fields.maybe("catalog", self._catalog),
            workers=fields.get("workers", lambda p: p.integer(1, MAX_WORKERS), 1),
        )
        why_not = unshared_repairs(config, config.workers)
        if why_not is not None:
            fields["workers"].fault(why_not)
        return config

    def policy_faults(self) -> list[Diagnostic]:
        """The faults of every policy file, each file once."""
        errors = [loaded for loaded in self._policies.values() if isinstance(loaded, PolicyError)]
        return [diagnostic for error in errors for diagnostic in error.diagnostics]

    # The two legs

    def _listen(self, place: Place) -> Listen:
        fields = place.fields(("host", "port", "tls"))
        return Listen(
            host=fields.get("host", _listen_host, "127.0.0.1"),
            port=fields.get("port", lambda p: p.integer(0, 65535), 6432),
            tls=fields.maybe("tls", self._listen_tls),
        )

    def _listen_tls(self, place: Place) -> ListenTls | None:
        fields = place.fields(("cert", "key", "client_ca", "required"), required=("cert", "key"))
        self._asks_certificates = "client_ca" in fields
        cert, key = fields.maybe("cert", self._path), fields.maybe("key", self._path)
        client_ca = fields.maybe("client_ca", self._path)
        if cert is None or key is None:
            return None
        if _usable(place, "certificate and key cannot be used", lambda: tls.agent_tls(cert, key)):
            at = fields["client_ca"] if client_ca is not None else place
            _usable(at, "cannot be used", lambda: tls.agent_tls(cert, key, client_ca))
        return ListenTls(cert, key, fields.get("required", lambda p: p.boolean(), True), client_ca)

    def _backend(self, place: Place) -> Backend:
        fields = place.fields(("host", "port", "tls"))
        host = fields.get("host", _backend_host, "127.0.0.1")
        default = BackendTls(TLSMode.DISABLE if is_local_host(host) else TLSMode.VERIFY_FULL)
        settings = fields.get("tls", self._backend_tls, default)
        if host.startswith("/") and settings.mode is not TLSMode.DISABLE:
            fields["tls"].fault("PostgreSQL speaks no TLS on a Unix socket; remove the key")
        return Backend(host, fields.get("port", lambda p: p.integer(1, 65535), 5432), settings)

    def _backend_tls(self, place: Place) -> BackendTls:
        fields = place.fields(("mode", "ca", "cert", "key", "negotiation"))
        mode = fields.get("mode", lambda p: p.word(TLSMode), TLSMode.VERIFY_FULL)
        ca = fields.maybe("ca", self._path)
        if ca is not None and mode in (TLSMode.DISABLE, TLSMode.PREFER):
            fields["ca"].fault(f"would not be looked at with mode: {mode}; use verify-full, or remove it")
        elif ca is not None:
            _usable(fields["ca"], "cannot be used", lambda: tls.backend_context(mode, ca))
        direct = fields.get("negotiation", lambda p: p.choice({"postgres": False, "direct": True}), False)
        if direct and mode in (TLSMode.DISABLE, TLSMode.PREFER):
            fields["negotiation"].fault(f"direct TLS cannot be done without, as mode: {mode} might")
        return BackendTls(mode, ca, direct, self._own_certificate(fields, mode))

    def _own_certificate(self, fields: Fields, mode: TLSMode) -> tuple[Path, Path] | None:
        cert, key = fields.maybe("cert", self._path), fields.maybe("key", self._path)
        if cert is None and key is None:
            return None
        if cert is None or key is None:
            lone, other = ("cert", "key") if key is None else ("key", "cert")
            fields[lone].fault(f"is of no use without {other}")
            return None
        if mode is TLSMode.DISABLE:
            fields["cert"].fault("would not be shown with mode: disable")
            return None
        _usable(fields["cert"], "cannot be used", lambda: tls.backend_context(mode, None, (cert, key)))
        return cert, key

    # Agents

    def _agents(self, place: Place) -> dict[str, AgentConfig]:
        entries = place.entries()
        if entries is not None and not entries:
            place.fault("names nobody; nobody could connect")
        return {entry.key: self._agent(entry) for entry in entries or ()}

    def _agent(self, entry: KeyedPlace) -> AgentConfig:
        if not entry.key or "\0" in entry.key or len(entry.key.encode()) > MAX_NAME_BYTES:
            entry.fault(f"expected a user name of 1 to {MAX_NAME_BYTES} bytes")
        place = entry.value
        fields = place.fields(
            ("auth", "login", "databases", "networks", "connections", "policy"), required=("auth", "policy")
        )
        auth = self._auth(fields["auth"], entry.key) if "auth" in fields else None
        login = fields.maybe("login", self._login)
        if auth is not None:
            _judge_login(entry, auth, fields)
        policy = fields.get("policy", self._policy, _NO_POLICY)
        return AgentConfig(
            name=entry.key,
            auth=auth or BackendPassword(),
            login=login,
            databases=fields.maybe("databases", _databases),
            networks=fields.maybe("networks", _networks),
            connections=fields.maybe("connections", _count),
            policy=policy,
            clone=fields.maybe("policy", lambda place: self._clone(place, policy)),
        )

    def _auth(self, place: Place, name: str) -> Auth | None:
        readers: dict[str, Callable[[Place], Auth | None]] = {
            "scram": _scram,
            "password_env": lambda p: self._derived(p, name),
            "password_file": lambda p: self._derived_from_file(p, name),
            "cert": self._certificate,
            "trust": lambda p: p.choice({"loopback": TrustLoopback()}),
            "backend": lambda p: p.choice({"password": BackendPassword()}),
        }
        fields = place.fields(readers, refused=_SECRET_KEYS)
        if not isinstance(place.node, yaml_source.Mapping):
            return None
        given = [reader(fields[key]) for key, reader in readers.items() if key in fields]
        if len(place.node.entries) != 1:
            *first, last = readers
            place.fault(f"expected exactly one of {', '.join(first)} and {last}")
            return None
        return next(iter(given), None)

    def _derived(self, place: Place, name: str) -> ScramAuth | None:
        password = self._from_environment(place)
        return None if password is None else ScramAuth(derive(password, name))

    def _derived_from_file(self, place: Place, name: str) -> FileAuth | None:
        file = self._password_file(place)
        return None if file is None else FileAuth(VerifierFile(file, name))

    def _certificate(self, place: Place) -> CertificateAuth | None:
        fields = place.fields(("cn", "san"))
        if not self._asks_certificates:
            place.fault("no agent is asked for a certificate: listen.tls.client_ca is missing")
        common, alternative = (
            fields.maybe("cn", lambda p: p.string()),
            fields.maybe("san", lambda p: p.string()),
        )
        if isinstance(place.node, yaml_source.Mapping) and len(place.node.entries) != 1:
            place.fault("expected exactly one of cn and san")
            return None
        if common is not None:
            return CertificateAuth(CertificateName(NameKind.COMMON_NAME, common))
        return None if alternative is None else CertificateAuth(CertificateName.alternative(alternative))

    def _login(self, place: Place) -> Login:
        keys = ("user", "password_env", "password_file")
        fields = place.fields(keys, required=("user",), refused=_SECRET_KEYS)
        if "password_env" in fields and "password_file" in fields:
            fields["password_file"].fault("give one of password_env and password_file")
        source: str | PasswordFile | None = fields.maybe("password_env", self._from_environment)
        if "password_file" in fields:
            source = fields.maybe("password_file", self._password_file)
        return Login(fields.get("user", _database_name, ""), source)

    def _policy(self, place: Place) -> Policy | None:
        path = self._path(place)
        if path is None:
            return None
        if path not in self._policies:
            try:
                self._policies[path] = loader.load_file(path)
            except PolicyError as error:
                self._policies[path] = error
        loaded = self._policies[path]
        if isinstance(loaded, PolicyError):
            place.fault("this policy cannot be loaded")
            return None
        return loaded

    def _ledger(self, place: Place) -> LedgerStore:
        fields = place.fields(("store", "password_env"), required=("store",), refused=_SECRET_KEYS)
        store = LedgerStore(fields.get("store", self._store, "memory"))
        if "password_env" in fields and not store.remote:
            fields["password_env"].fault("is for a Redis server; this store takes no password")
        return replace(store, password=fields.maybe("password_env", self._from_environment))

    def _store(self, place: Place) -> str | None:
        text = place.string()
        try:
            return None if text is None else read_store(text, self._folder)
        except ValueError as error:
            place.fault(str(error))
            return None

    def _clone(self, place: Place, policy: Policy) -> CloneTarget | None:
        """The clone that the policy's ``sandbox`` names: without it what is to be tried could not run."""
        if policy.sandbox is None:
            return None
        name = policy.sandbox.dsn_env
        dsn = self._environ.get(name)
        try:
            if dsn:
                return CloneTarget.of(dsn)
            reason = "is empty" if dsn == "" else "is not set"
        except DsnError as error:
            reason = str(error)
        place.fault(f"its sandbox needs the environment variable {name}, which {reason}")
        return None

    def _catalog(self, place: Place) -> Login | None:
        return place.fields(("login",), required=("login",)).maybe("login", self._login)

    # What lies outside the file

    def _audit(self, place: Place) -> Audit | None:
        fields = place.fields(("path", "statements", "on_failure", "fsync"), required=("path",))
        path = fields.maybe("path", self._path)
        statements = fields.get("statements", lambda p: p.word(Statements), Statements.FULL)
        on_failure = fields.get("on_failure", lambda p: p.word(OnFailure), OnFailure.REFUSE)
        fsync = fields.get("fsync", lambda p: p.word(Fsync), Fsync.ON_CLOSE)
        return None if path is None else Audit(path, statements, on_failure, fsync)

    def _admin(self, place: Place) -> Admin | None:
        fields = place.fields(("host", "port", "token_env"), refused={"token": _NO_SECRETS + "token_env"})
        host = fields.get("host", _listen_host, "127.0.0.1")
        token = fields.maybe("token_env", self._from_environment)
        if "token_env" not in fields and not is_local_host(host):
            place.fault("listens to other machines: give token_env, or an address of this machine alone")
        if token is not None and len(token) < MIN_TOKEN:
            fields["token_env"].fault(f"a token has at least {MIN_TOKEN} characters")
        return Admin(host, fields.get("port", lambda p: p.integer(0, 65535), 6433), token)

    def _path(self, place: Place) -> Path | None:
        text = place.string()
        if text is None:
            return None
        return self._folder / text

    def _from_environment(self, place: Place) -> str | None:
        name = place.environment_name()
        if name is None:
            return None
        value = self._environ.get(name)
        if not value:
            place.fault(f"the environment variable {name} is {'empty' if value == '' else 'not set'}")
            return None
        try:
            return checked(value)
        except SecretError as error:
            place.fault(str(error))
            return None

    def _password_file(self, place: Place) -> PasswordFile | None:
        path = self._path(place)
        if path is None:
            return None
        file = PasswordFile(path)
        try:
            file.password()
        except SecretError as error:
            place.fault(str(error))
            return None
        return file


def _usable(place: Place, words: str, use: Callable[[], object]) -> bool:
    """Whether ``use``, which loads certificates, goes well; else a fault."""
    try:
        use()
    except (OSError, ssl.SSLError, ValueError) as error:
        place.fault(f"{words}: {_reason(error)}")
        return False
    return True


def _judge_login(entry: KeyedPlace, auth: Auth, fields: Fields) -> None:
    """Who logs in to PostgreSQL must be said once, by ``auth`` or by ``login``."""
    if isinstance(auth, BackendPassword):
        if "login" in fields:
            fields["login"].fault(
                "auth: {backend: password} logs in as the role the client names; remove login"
            )
    elif entry.key == ANY_AGENT:
        # A name nobody proves would be a fresh agent for whoever makes it up: new turns, new limits.
        fields["auth"].fault('"*" takes {backend: password} only: PostgreSQL must vouch for names not listed')
    elif "login" not in fields:
        entry.fault("login is missing: the backend role this agent works as")


def _scram(place: Place) -> ScramAuth | None:
    text = place.string()
    if text is None:
        return None
    try:
        return ScramAuth(Verifier.parse(text))
    except ValueError as error:
        place.fault(f"{error}; pgturnstile hash-password prints one")
        return None


def _version(place: Place) -> int | None:
    version = place.integer(0, 10**9)
    if version is not None and version != VERSION:
        place.fault(f"this program reads version {VERSION} of the format")
    return version


def _limits(place: Place) -> ServerLimits:
    keys = ("connections", "connections_per_agent", "startup_timeout", "judge_timeout", "message_bytes")
    fields = place.fields((*keys, "statement_bytes", "drain_timeout"))
    default = ServerLimits()
    limits = ServerLimits(
        connections=fields.get("connections", _count, default.connections),
        connections_per_agent=fields.get("connections_per_agent", _count, default.connections_per_agent),
        startup_timeout_ms=fields.get(
            "startup_timeout", lambda p: p.duration_ms(100, 600_000), default.startup_timeout_ms
        ),
        judge_timeout_ms=fields.get(
            "judge_timeout", lambda p: p.duration_ms(100, 600_000), default.judge_timeout_ms
        ),
        message_bytes=fields.get("message_bytes", _message_size, default.message_bytes),
        statement_bytes=fields.get("statement_bytes", _message_size, default.statement_bytes),
        drain_timeout_ms=fields.get(
            "drain_timeout", lambda p: p.duration_ms(0, 86_400_000), default.drain_timeout_ms
        ),
    )
    if limits.statement_bytes > limits.message_bytes:
        key = "statement_bytes" if "statement_bytes" in fields else "message_bytes"
        fields[key].fault("statement_bytes may not be larger than message_bytes, which holds the statement")
    return limits


def _count(place: Place) -> int | None:
    return place.integer(1, 100_000)


def _message_size(place: Place) -> int | None:
    return place.size(1024, MAX_MESSAGE_BYTES)


def _databases(place: Place) -> frozenset[str] | None:
    items = place.items()
    if isinstance(place.node, yaml_source.Sequence) and not items:
        place.fault("allows no database; leave the key out to allow any")
    return frozenset(name for item in items if (name := _database_name(item)) is not None)


def _networks(place: Place) -> tuple[Network, ...] | None:
    items = place.items()
    if isinstance(place.node, yaml_source.Sequence) and not items:
        place.fault("allows no address; leave the key out to allow any")
    return tuple(network for item in items if (network := _network(item)) is not None)


def _network(place: Place) -> Network | None:
    text = place.string()
    if text is None:
        return None
    try:
        return ip_network(text)
    except ValueError as error:
        strict = "has host bits set" in str(error)
        wide = f"; do you mean {ip_network(text, strict=False)}?" if strict else ""
        place.fault(f"expected a network, as in 10.0.0.0/8, or one address{wide}")
        return None


def _database_name(place: Place) -> str | None:
    """A database's or role's name: exact, as the startup packet carries it."""
    name = place.string()
    if name is not None and len(name.encode()) > MAX_NAME_BYTES:
        place.fault(f"longer than the {MAX_NAME_BYTES} bytes of a PostgreSQL name")
    return name


def _listen_host(place: Place) -> str | None:
    host = place.string()
    if host == "*":
        place.fault('expected an address; to listen on all of them write 0.0.0.0 or "::"')
    elif host is not None and host.startswith("/"):
        place.fault(f"listening on a Unix socket {_NOT_OFFERED}; give an address")
    return host


def _backend_host(place: Place) -> str | None:
    host = place.string()
    if host is not None and not host.startswith("/") and ("/" in host or " " in host or "," in host):
        place.fault("expected one host name, one address, or the absolute path of a socket folder")
    return host


def _reason(error: Exception) -> str:
    """The system's words for ``error``, without the path or the bytes it may quote."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not a certificate").lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "not UTF-8" if isinstance(error, UnicodeError) else "not usable"
