"""The agent's leg of a handshake, and the order in which the two legs take their turns.

Owns who an agent is and what its session begins with; straight-line prose over a Stream. The backend's leg is
``backend``'s, the judgement of settings ``policy.settings``'s; counting connections and deadlines are the
server's. Every refusal is a ``RefusedError``, which the caller sends and then closes.

Messages an agent sees, in this order: NegotiateProtocolVersion at most once, Authentication…,
AuthenticationOk, ParameterStatus…, BackendKeyData, ReadyForQuery.

Source: PostgreSQL documentation, "Message Flow"; src/backend/tcop/backend_startup.c and
src/backend/libpq/auth.c.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from policy.model import Access, Catalogs, Limits, Mode, Policy, Violation
from policy.settings import judge_setting
from proxy import backend, scram
from proxy.agents import AgentConfig, BackendPassword, CertificateAuth, FileAuth, ScramAuth, TrustLoopback
from proxy.backend import BackendError, BackendSession, Endpoint, Login
from proxy.config import Config
from proxy.credentials import SecretError
from proxy.stream import Stream, TransportStream
from proxy.tls import ALPN, AgentTls, CertificateName
from proxy.wire import authentication, client_hello, startup
from proxy.wire.backend import encode_error, encode_ready
from proxy.wire.frontend import MalformedMessage
from proxy.wire.startup import (
    TLS_HANDSHAKE,
    CancelRequest,
    GSSENCRequest,
    NotPostgresError,
    SSLRequest,
    StartupPacket,
)

_MAX_NAME_BYTES: Final = 63
"""PostgreSQL cuts longer names: two names would then be one role."""
_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")

_READING_PINS: Final[Mapping[str, str]] = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}
"""What makes PostgreSQL read a text as the gate reads it: pinned even where the policy only observes."""

_TIME_LIMITS: Final[Mapping[str, Callable[[Limits], int | None]]] = {
    "statement_timeout": lambda limits: limits.statement_timeout_ms,
    "lock_timeout": lambda limits: limits.lock_timeout_ms,
    "idle_in_transaction_session_timeout": lambda limits: limits.idle_in_transaction_timeout_ms,
}

_NOT_SETTINGS: Final = frozenset({"user", "database", "options", "replication"})


class RefusedError(Exception):
    """The handshake ends here. ``fields`` are those of the FATAL ErrorResponse.

    ``reason`` is for the log alone, where the agent must not learn as much.
    """

    def __init__(
        self, message: str, sqlstate: str, *, reason: str = "", fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.fields: Mapping[str, str] = {
            **(fields or {}),
            "severity": "FATAL",
            "severity_plain": "FATAL",
            "sqlstate": sqlstate,
            "message": message,
        }

    @property
    def message(self) -> bytes:
        """The ErrorResponse."""
        return encode_error(self.fields)


class DisprovedError(RefusedError):
    """Whoever is there is not the agent ``user``, or nothing of the kind was proven: a guess, perhaps."""

    def __init__(
        self,
        message: str,
        sqlstate: str,
        *,
        user: str,
        reason: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, sqlstate, reason=reason, fields=fields)
        self.user = user


@dataclass(frozen=True, slots=True)
class Proven:
    """An agent that has proven who it is, or (``password`` set) whose proof PostgreSQL will judge."""

    agent: AgentConfig
    user: str
    database: str
    packet: StartupPacket
    password: str | None = field(default=None, repr=False)

    @property
    def role(self) -> str:
        """The backend role."""
        return self.agent.login.user if self.agent.login is not None else self.user


async def read_first(stream: Stream, tls: AgentTls | None, *, tls_required: bool) -> _First:
    """The startup packet or cancel request, after whatever encryption was agreed on.

    Raises RefusedError, NotPostgresError and StreamClosedError.
    """
    prefix = await stream.read(4)
    if prefix[0] == TLS_HANDSHAKE:
        if tls is None:
            raise NotPostgresError("TLS is not offered")
        await _encrypt(stream, tls, prefix)
        prefix = await stream.read(4)
    ssl_asked = gss_asked = False
    while True:
        first = await _read_startup(stream, prefix)
        match first:
            case SSLRequest() if not ssl_asked and not stream.encrypted:
                ssl_asked = True
                _refuse_early_bytes(stream)
                stream.write(b"N" if tls is None else b"S")
                if tls is not None:
                    await _encrypt(stream, tls)
            case GSSENCRequest() if not gss_asked and not stream.encrypted:
                gss_asked = True
                _refuse_early_bytes(stream)
                stream.write(b"N")
            case SSLRequest() | GSSENCRequest():
                # PostgreSQL, too, then takes the code for a protocol version it does not know.
                raise RefusedError("unsupported frontend protocol: encryption is asked for again", "0A000")
            case StartupPacket() if tls_required and not stream.encrypted:
                raise RefusedError(
                    "connections must be encrypted", "28000", fields={"hint": "Connect with sslmode=require."}
                )
            case StartupPacket() | CancelRequest():
                return first
        prefix = await stream.read(4)


_First = StartupPacket | CancelRequest


async def _encrypt(stream: Stream, tls: AgentTls, prefix: bytes = b"") -> None:
    """Start TLS with a client that has asked for it, or (``prefix``: what was read of it) that just begins.

    The latter has to name the protocol by ALPN, and neither may name others only: words meant for a server
    of another protocol must not be taken for ours. Raises NotPostgresError and StreamClosedError.
    """
    hello = prefix + await stream.read(client_hello.HEADER - len(prefix))
    record = await stream.read(client_hello.record_length(hello))
    offered = client_hello.offered_protocols(record)
    if client_hello.PROTOCOL not in offered and (offered or prefix):
        stream.write(client_hello.encode_alert(client_hello.NO_APPLICATION_PROTOCOL))
        raise NotPostgresError("TLS for another protocol" if offered else "direct TLS without ALPN")
    await stream.start_tls(tls.for_connection(), server_side=True, hello=hello + record)
    if prefix and stream.alpn != ALPN:
        raise NotPostgresError("direct TLS without ALPN")


async def _read_startup(stream: Stream, prefix: bytes) -> startup.StartupMessage:
    length = startup.body_length(prefix)
    try:
        return startup.decode(await stream.read(length))
    except startup.StartupError as error:
        raise RefusedError(str(error), error.sqlstate) from error


def _refuse_early_bytes(stream: Stream) -> None:
    # CVE-2021-23222: what came in clear would be taken for the agent's encrypted words.
    if stream.buffered:
        raise NotPostgresError("unencrypted data after an encryption request")


# --- who --------------------------------------------------------------------------------------------------


async def authenticate(
    stream: Stream, packet: StartupPacket, config: Config, secret: bytes, tls: AgentTls | None = None
) -> Proven:
    """Negotiate the version, then make the agent prove its name.

    ``secret`` is random and one a process: it hides which names are known. ``tls`` is what the connection was
    encrypted with, if it was. Raises RefusedError and StreamClosedError.
    """
    if packet.needs_negotiation:
        stream.write(startup.encode_negotiation(packet.version, packet.unsupported))
    user, database = _names(packet)
    agent = config.agent_for(user)
    binding = tls.end_point if tls is not None and stream.encrypted else None
    try:
        password = await _prove(stream, user, agent, _mock(user, config, secret), binding)
    except MalformedMessage as error:
        raise RefusedError(str(error), "08P01") from error
    except scram.ScramError as error:
        raise RefusedError(str(error), error.sqlstate) from error
    if agent is None:
        raise AssertionError("an unknown agent was let in")
    return Proven(agent, user, database, packet, password)


def _names(packet: StartupPacket) -> tuple[str, str]:
    user = packet.parameters.get("user", "")
    if not user:
        raise RefusedError("no PostgreSQL user name specified in startup packet", "28000")
    if "replication" in packet.parameters:
        raise RefusedError('startup parameter "replication" is not allowed', "0A000")
    database = packet.parameters.get("database") or user
    for name in (user, database):
        if len(name.encode("utf-8")) > _MAX_NAME_BYTES:
            raise RefusedError(f"names longer than {_MAX_NAME_BYTES} bytes are not accepted", "28000")
    return user, database


def _mock(user: str, config: Config, secret: bytes) -> scram.Verifier:
    """What an unknown name is checked against: it looks like what most known agents have."""
    iterations = Counter(
        agent.auth.verifier.iterations
        for agent in config.agents.values()
        if isinstance(agent.auth, ScramAuth)
    )
    usual = iterations.most_common(1)[0][0] if iterations else scram.DEFAULT_ITERATIONS
    return scram.mock_verifier(user, secret, usual)


async def _prove(
    stream: Stream, user: str, agent: AgentConfig | None, mock: scram.Verifier, binding: bytes | None
) -> str | None:
    """Carry out the agent's way of authentication; gives the password where PostgreSQL is to judge it."""
    verifier, obstacle = mock, _obstacle(stream, agent)
    if agent is not None and not obstacle:
        match agent.auth:
            case TrustLoopback():
                stream.write(authentication.encode_ok())
                return None
            case BackendPassword():
                return await _ask_password(stream, user)
            case CertificateAuth(name):
                _check_certificate(stream, user, name)
                return None
            case ScramAuth(known):
                verifier = known
            case FileAuth(source):
                try:
                    verifier = source.verifier()
                except SecretError as error:
                    obstacle = f"agent's password: {error}"
    exchange = scram.ServerExchange(verifier, doomed=bool(obstacle), binding=binding)
    await _scram(stream, user, exchange, obstacle or "wrong password")
    return None


def _obstacle(stream: Stream, agent: AgentConfig | None) -> str:
    """Why nothing that this connection proves can help, for the log alone; empty where that is not so.

    All it is told is that the password is wrong: what is there to be known is told to nobody who is not.
    """
    if agent is None:
        return "unknown agent"
    if not agent.may_come_from(stream.address):
        return "agent may not come from this address"
    if isinstance(agent.auth, TrustLoopback) and not stream.local:
        return "agent is trusted on loopback only"
    if isinstance(agent.auth, CertificateAuth) and stream.certificate is None:
        return "agent is known by a certificate and has shown none"
    return ""


def _check_certificate(stream: Stream, user: str, name: CertificateName) -> None:
    shown = stream.certificate
    if shown is None or not name.fits(shown):
        raise DisprovedError(
            f'certificate authentication failed for user "{user}"',
            "28000",
            user=user,
            reason="the certificate is another's",
        )
    stream.write(authentication.encode_ok())


async def _scram(stream: Stream, user: str, exchange: scram.ServerExchange, reason: str) -> None:
    stream.write(authentication.encode_sasl_wanted(exchange.mechanisms))
    mechanism, first = authentication.decode_sasl_initial(await _answer(stream))
    if mechanism not in exchange.mechanisms:
        raise RefusedError("client selected an invalid SASL authentication mechanism", "08P01")
    if first is None:
        stream.write(authentication.encode_sasl_continue(b""))
        first = await _answer(stream)
    stream.write(authentication.encode_sasl_continue(exchange.challenge(first, mechanism)))
    try:
        final = exchange.verify(await _answer(stream))
    except scram.ProofError:
        raise DisprovedError(
            f'password authentication failed for user "{user}"', "28P01", user=user, reason=reason
        ) from None
    stream.write(authentication.encode_sasl_final(final) + authentication.encode_ok())


async def _ask_password(stream: Stream, user: str) -> str:
    if not (stream.encrypted or stream.local):
        raise RefusedError(
            "a password is accepted over an encrypted connection only",
            "28000",
            fields={"hint": "Connect with sslmode=require."},
        )
    stream.write(authentication.encode_cleartext_wanted())
    password = authentication.decode_password(await _answer(stream))
    if not password:
        raise RefusedError(f'empty password returned by client for user "{user}"', "28P01")
    return password


async def _answer(stream: Stream) -> bytes:
    """The body of the client's next ``p`` message. Raises MalformedMessage and StreamClosedError."""
    header = await stream.read(5)
    if header[:1] != b"p":
        raise MalformedMessage("expected an answer to the authentication request")
    (length,) = struct.unpack_from("!I", header, 1)
    if not 4 <= length <= authentication.MAX_ANSWER + 4:
        raise MalformedMessage("invalid length of an authentication answer")
    return await stream.read(length - 4)


# --- with what --------------------------------------------------------------------------------------------


def session_settings(packet: StartupPacket, policy: Policy) -> dict[str, str]:
    """The settings an agent begins with, lower-case names, each judged. Raises RefusedError.

    ``options`` come first and are overridden by parameters of their own, as in PostgreSQL.
    """
    try:
        requested = startup.decode_options(packet.parameters.get("options", ""))
    except startup.StartupError as error:
        raise RefusedError(str(error), error.sqlstate) from error
    requested += [(name, value) for name, value in packet.parameters.items() if name not in _NOT_SETTINGS]
    settings: dict[str, str] = {}
    for name, value in requested:
        violation = judge_setting(name, (value,), policy)
        if violation is not None and policy.mode is Mode.ENFORCE:
            raise _setting_refused(violation, policy)
        settings[name.lower()] = value
    return settings


def _setting_refused(violation: Violation, policy: Policy) -> RefusedError:
    return RefusedError(
        f"{violation.message}; the connection is refused",
        violation.sqlstate or "42501",
        fields={
            "hint": violation.hint,
            "file": policy.source,
            "line": str(violation.line) if violation.line else "",
            "routine": violation.rule,
        },
    )


def pins(policy: Policy) -> dict[str, str]:
    """What must hold of the backend session, times in milliseconds. A policy that observes limits nothing."""
    pinned = dict(_READING_PINS)
    if policy.mode is Mode.OBSERVE:
        return pinned
    if policy.access is Access.READ_ONLY:
        pinned["default_transaction_read_only"] = "on"
    if policy.relations.catalogs is Catalogs.FILTERED:
        # The conditions of the filter are many and run once: compiling them was measured at 20 s.
        pinned["jit"] = "off"
    limits = {name: read(policy.limits) for name, read in _TIME_LIMITS.items()}
    return pinned | {name: str(limit) for name, limit in limits.items() if limit is not None}


# --- the backend's turn -----------------------------------------------------------------------------------


async def open_backend(proven: Proven, endpoint: Endpoint) -> tuple[TransportStream, BackendSession]:
    """A backend session of the agent's own, its settings judged and its pins verified.

    Raises RefusedError; nothing is left open then.
    """
    if not proven.agent.may_use(proven.database):
        raise RefusedError(f'permission denied for database "{proven.database}"', "42501")
    try:
        login = _login(proven)
    except SecretError as error:
        raise RefusedError(
            "the login configured for this agent cannot be had", "57P03", reason=f"login's password: {error}"
        ) from None
    try:
        stream = await backend.connect(endpoint)
        try:
            return stream, await backend.log_in(stream, login)
        except BaseException:
            stream.abort()
            raise
    except BackendError as error:
        raise _refused_by_backend(error, proven, login) from error


def _login(proven: Proven) -> Login:
    policy = proven.agent.policy
    settings = session_settings(proven.packet, policy)
    # A time limit that the policy lets the agent set is the agent's from the start, and under a policy that
    # only observes so is everything: what is then misread was not going to be refused either.
    theirs = settings.keys() if policy.mode is Mode.OBSERVE else settings.keys() & _TIME_LIMITS.keys()
    pinned = {name: value for name, value in pins(policy).items() if name not in theirs}
    configured = proven.agent.login
    return Login(
        role=proven.role,
        database=proven.database,
        password=configured.password() if configured is not None else proven.password,
        settings=settings,
        pins=pinned,
        must_ask=configured is None,
    )


def _refused_by_backend(error: BackendError, proven: Proven, login: Login) -> RefusedError:
    sqlstate = error.sqlstate if _SQLSTATE.fullmatch(error.sqlstate) else "08006"
    text = str(error)
    reason = f"{error}: {error.__cause__}" if error.__cause__ is not None else text
    if proven.agent.login is None:
        if error.fields and sqlstate.startswith("28"):
            return DisprovedError(text, sqlstate, user=proven.user, fields=error.fields)
        return RefusedError(text, sqlstate, reason=reason, fields=error.fields)
    told = text.lower()
    if error.fields and sqlstate.startswith("28"):
        text = "the database refused the login configured for this agent"
    elif error.fields and (login.role.lower() in told or (login.password and login.password.lower() in told)):
        text = "the database refused the session configured for this agent"
    return RefusedError(text, sqlstate, reason=reason)


def greeting(proven: Proven, session: BackendSession, secret: bytes) -> bytes:
    """The last messages of the handshake; ``secret`` is the agent's own cancel key."""
    parameters = dict(session.parameters)
    if proven.agent.login is not None and "session_authorization" in parameters:
        # An agent never learns the backend role's name.
        parameters["session_authorization"] = proven.user
    return b"".join(
        (
            authentication.encode_ok() if proven.password is not None else b"",
            *(startup.encode_parameter_status(name, value) for name, value in parameters.items()),
            startup.encode_backend_key(session.pid, secret),
            encode_ready(b"I"),
        )
    )
