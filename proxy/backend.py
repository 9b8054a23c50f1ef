"""The way to PostgreSQL: connect, encrypt, log in, and make sure that what we pinned holds.

Owns the backend leg of a handshake as straight-line prose over a Stream. Knows nothing of agents and
policies: it is told a role, a password and the settings that must hold.

Source: PostgreSQL documentation, "Message Flow"; src/interfaces/libpq/fe-connect.c and fe-auth.c.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Self

from policy.settings import split_identifiers
from proxy import channel_binding, scram
from proxy.config import Backend
from proxy.stream import Stream, StreamClosedError, TransportStream
from proxy.tls import ALPN, TLSMode, backend_context
from proxy.wire import authentication, startup
from proxy.wire.backend import decode_fields, decode_parameter_status, decode_row, simple_query, text_array
from proxy.wire.frontend import MalformedMessage

_MAX_FRAME: Final = 64 * 1024
"""Longest message read while logging in, in bytes; libpq's own limit for an error there is 30,000."""
_MAX_MESSAGES: Final = 1000
"""Messages read before the first ReadyForQuery; a server sends some twenty."""
_MAX_NOTICES: Final = 1000
"""Notices read past on the way to one message."""
_MAX_PARAMETERS: Final = 256
"""Parameters whose value is kept; a server reports some fifteen."""
_CACHED_KEYS: Final = 256
TAKES_NONE: Final = "57P03"
"""cannot_connect_now: there is no server, or it is starting, recovering or shutting down."""
_SCRAM: Final = frozenset({scram.MECHANISM, scram.MECHANISM_PLUS})

_LISTED: Final = "pg_catalog.current_setting('search_path')"
_USED: Final = (
    f"CASE WHEN pg_catalog.strpos({_LISTED}, 'pg_temp') OPERATOR(pg_catalog.=) 0 "
    "THEN pg_catalog.current_schemas(false) END"
)
"""Not asked where temporary objects may come first: it would make the schema for them, or fail for a role
that may make none (fetch_search_path in namespace.c)."""

# The units in which PostgreSQL shows a time (time_unit_conversion_table, src/backend/utils/misc/guc.c).
_MILLISECONDS: Final[Mapping[str, int]] = {
    "ms": 1,
    "s": 1000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "": 1,
}


class BackendError(Exception):
    """PostgreSQL cannot be used for this session.

    ``sqlstate`` and the text are for the agent, and name no role unless ``fields`` is set: those are the
    fields of the server's own ErrorResponse, which only whoever logged in as that role may see.
    """

    def __init__(self, message: str, sqlstate: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.fields = fields or {}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where PostgreSQL listens. A ``host`` that begins with ``/`` is the folder of its Unix socket.

    ``direct`` begins with TLS at once, as PostgreSQL 17 and later understand it, instead of asking for it.
    """

    host: str
    port: int
    mode: TLSMode = TLSMode.DISABLE
    tls: ssl.SSLContext | None = None
    direct: bool = False

    @classmethod
    def of(cls, config: Backend) -> Self:
        """Raises OSError or ssl.SSLError where its certificates have become unusable."""
        context = backend_context(config.tls.mode, config.tls.ca, config.tls.own)
        return cls(config.host, config.port, config.tls.mode, context, config.tls.direct)

    @property
    def is_socket(self) -> bool:
        return self.host.startswith("/")

    @property
    def socket_path(self) -> str:
        return str(PurePosixPath(self.host) / f".s.PGSQL.{self.port}")


@dataclass(frozen=True, slots=True)
class Login:
    """Who to be, and what must hold.

    ``settings`` go out with the startup packet; ``pins`` too, and are verified afterwards. With
    ``must_ask`` the server has to demand ``password``: where it is the agent's only proof, a server that
    trusts our address would let anybody in as anybody.
    """

    role: str
    database: str
    password: str | None = field(default=None, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    must_ask: bool = False


@dataclass(frozen=True, slots=True)
class BackendSession:
    """A session that is ready for its first query, with status ``I``.

    ``parameters`` are the server's last word on each of its ParameterStatus, in the order of their first
    appearance; ``search_path`` is current_schemas(false), the schemas that are searched, and ``listed`` what
    the setting names, there or not.
    """

    pid: int
    secret: bytes = field(repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict)
    search_path: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


async def connect(endpoint: Endpoint) -> TransportStream:
    """A connection to the endpoint, encrypted as its mode asks. Raises BackendError."""
    loop = asyncio.get_running_loop()
    try:
        if endpoint.is_socket:
            _, stream = await loop.create_unix_connection(TransportStream, endpoint.socket_path)
        else:
            _, stream = await loop.create_connection(TransportStream, endpoint.host, endpoint.port)
    except OSError as error:
        raise BackendError("the database server cannot be reached", TAKES_NONE) from error
    try:
        if endpoint.tls is not None and not endpoint.is_socket:
            await encrypt(stream, endpoint)
    except BaseException:
        stream.abort()
        raise
    return stream


async def encrypt(stream: Stream, endpoint: Endpoint) -> None:
    """Start TLS: at once, or where the server agrees to it. Raises BackendError."""
    if endpoint.tls is None:
        raise ValueError("no TLS context for this endpoint")
    try:
        if not endpoint.direct and not await _agrees_to_tls(stream, endpoint.mode):
            return
        await stream.start_tls(endpoint.tls, server_side=False, server_hostname=endpoint.host)
    except StreamClosedError as error:
        raise BackendError("TLS with the database server failed", "08006") from error
    if endpoint.direct and stream.alpn != ALPN:
        # Without the name, another protocol's server could be on the other side. libpq insists on it too.
        raise BackendError("the database server does not offer direct TLS", "08P01")


async def _agrees_to_tls(stream: Stream, mode: TLSMode) -> bool:
    stream.write(startup.encode_ssl_request())
    answer = await stream.read(1)
    if stream.buffered:
        # CVE-2021-23222: bytes that came in clear would be taken for the server's encrypted words.
        raise BackendError("the database server sent data before TLS was up", "08P01")
    if answer == b"N" and mode is TLSMode.PREFER:
        return False
    if answer != b"S":
        raise BackendError("the database server does not offer TLS", "08P01")
    return True


async def takes_sessions(stream: Stream, role: str, database: str) -> None:
    """Whether the server would begin a session, asked as pg_isready does: it need not say more than how the
    role is to prove itself. Raises BackendError where it says that it takes none at the moment, or nothing.

    Source: src/interfaces/libpq/fe-connect.c (internal_ping).
    """
    stream.write(startup.encode_startup({"user": role, "database": database}))
    try:
        await _next(stream)
    except BackendError as error:
        # Any other error is an answer of a server that is there.
        if error.sqlstate == TAKES_NONE:
            raise
    except StreamClosedError as error:
        raise BackendError("the database server closed the connection", TAKES_NONE) from error
    except MalformedMessage as error:
        raise BackendError("the database server broke the protocol at login", "08P01") from error


async def log_in(stream: Stream, login: Login) -> BackendSession:
    """Log in, read everything up to the first ReadyForQuery, then verify the pins. Raises BackendError."""
    try:
        return await _log_in(stream, login)
    except StreamClosedError as error:
        raise BackendError("the database server closed the connection", TAKES_NONE) from error
    except (MalformedMessage, scram.ScramError, ValueError, struct.error) as error:
        raise BackendError("the database server broke the protocol at login", "08P01") from error


async def _log_in(stream: Stream, login: Login) -> BackendSession:
    settings = {**login.settings, **login.pins}
    # 3.0 is all a session needs of the server, and every pooler that may stand in between knows it.
    stream.write(startup.encode_startup({"user": login.role, "database": login.database, **settings}))
    await _authenticate(stream, login)
    parameters: dict[str, str] = {}
    key: tuple[int, bytes] | None = None
    for _ in range(_MAX_MESSAGES):
        kind, body = await _next(stream)
        if kind == b"S":
            _note(parameters, body)
        elif kind == b"K":
            key = authentication.decode_backend_key(body)
        elif kind == b"Z" and body == b"I":
            break
        else:
            raise MalformedMessage("unexpected message while logging in")
    else:
        raise MalformedMessage("no end of messages while logging in")
    if key is None:
        raise MalformedMessage("no BackendKeyData")
    used, listed = await _verify(stream, login, parameters)
    return BackendSession(*key, parameters, used, listed)


async def _authenticate(stream: Stream, login: Login) -> None:
    wanted = await _authentication(stream)
    if isinstance(wanted, authentication.AuthenticationOk):
        if login.must_ask:
            raise BackendError("the database server asked for no password, so it proves nobody", "28000")
        return
    if login.password is None:
        raise BackendError("the database server asks for a password and none is configured", "28000")
    match wanted:
        case authentication.CleartextWanted():
            if not (stream.verified or stream.local):
                # Whoever stands in between could ask for it, and ends TLS where nobody is verified.
                raise BackendError(
                    "the database server asks for the password in clear and is not verified by TLS", "28000"
                )
            stream.write(authentication.encode_password(login.password))
        case authentication.MD5Wanted(salt):
            stream.write(authentication.encode_password(_md5_answer(login.role, login.password, salt)))
        case authentication.SASLWanted(mechanisms) if _SCRAM & set(mechanisms):
            await _scram(stream, login, login.password, mechanisms)
        case _:
            raise BackendError(
                "the database server asks for an authentication method that is not offered", "28000"
            )
    if not isinstance(await _authentication(stream), authentication.AuthenticationOk):
        raise MalformedMessage("authentication does not end")


async def _scram(stream: Stream, login: Login, password: str, offered: Sequence[str]) -> None:
    mechanism, exchange = _choose(stream, offered)
    stream.write(authentication.encode_sasl_initial(mechanism, exchange.first()))
    answer = await _authentication(stream)
    if not isinstance(answer, authentication.SASLContinue):
        raise MalformedMessage("SASL exchange without a challenge")
    challenge = exchange.read_challenge(answer.data)
    # A password that an agent sent is not kept; one of the config is known to us anyway.
    keys = await (_derive(password, challenge) if login.must_ask else _cached_keys(password, challenge))
    stream.write(authentication.encode_sasl_response(exchange.respond(keys)))
    answer = await _authentication(stream)
    if not isinstance(answer, authentication.SASLFinal):
        raise MalformedMessage("SASL exchange without the server's proof")
    try:
        exchange.verify(answer.data)
    except scram.ProofError as error:
        raise BackendError("the database server could not prove that it knows the role", "28000") from error


def _choose(stream: Stream, offered: Sequence[str]) -> tuple[str, scram.ClientExchange]:
    """Channel binding wherever both sides can; libpq's ``channel_binding=prefer``. Raises BackendError."""
    shown = stream.certificate
    binding = channel_binding.end_point(shown.der) if shown is not None else None
    if scram.MECHANISM_PLUS in offered and binding is not None:
        return scram.MECHANISM_PLUS, scram.ClientExchange(binding=binding)
    if scram.MECHANISM in offered:
        could_bind = binding is not None and scram.MECHANISM_PLUS not in offered
        return scram.MECHANISM, scram.ClientExchange(could_bind=could_bind)
    raise BackendError("the database server insists on a channel binding that cannot be had", "28000")


_known_keys: dict[tuple[str, scram.Challenge], scram.ClientKeys] = {}
"""Keys of the config's roles, which log in again and again with the same salt."""


async def _cached_keys(password: str, challenge: scram.Challenge) -> scram.ClientKeys:
    keys = _known_keys.get((password, challenge))
    if keys is None:
        keys = await _derive(password, challenge)
        if len(_known_keys) >= _CACHED_KEYS:
            _known_keys.clear()
        _known_keys[password, challenge] = keys
    return keys


async def _derive(password: str, challenge: scram.Challenge) -> scram.ClientKeys:
    return await asyncio.to_thread(scram.ClientKeys.derive, password, challenge.salt, challenge.iterations)


def _md5_answer(role: str, password: str, salt: bytes) -> str:
    # pg_md5_encrypt, src/common/md5_common.c.
    inner = hashlib.md5((password + role).encode("utf-8"), usedforsecurity=False).hexdigest()
    outer = hashlib.md5(inner.encode("ascii") + salt, usedforsecurity=False).hexdigest()
    return f"md5{outer}"


async def _authentication(stream: Stream) -> authentication.Authentication:
    kind, body = await _next(stream)
    if kind != b"R":
        raise MalformedMessage("expected an Authentication message")
    return authentication.decode_authentication(body)


async def _verify(
    stream: Stream, login: Login, parameters: dict[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ask for the search path and every pin in one Query; returns the schemas that are searched and those
    that are listed. Raises BackendError where a pin does not hold.

    A pooler in between may drop startup parameters without a word. Every name in the query is qualified, so
    that no search path can bend it.
    """
    columns = [_USED, _LISTED, *(f"pg_catalog.current_setting('{name}')" for name in login.pins)]
    stream.write(simple_query(f"SELECT {', '.join(columns)}".encode("ascii")))
    row: list[bytes | None] | None = None
    for _ in range(_MAX_MESSAGES):
        kind, body = await _next(stream)
        if kind == b"D":
            row = decode_row(body)
        elif kind == b"S":
            _note(parameters, body)
        elif kind == b"Z":
            break
        elif kind not in (b"T", b"C"):
            raise MalformedMessage("unexpected message in answer to a query")
    if row is None or len(row) != len(columns) or None in row[1:]:
        raise MalformedMessage("no answer to the check of the pinned settings")
    path, setting, *values = [(value or b"").decode("utf-8") for value in row]
    for (name, wanted), value in zip(login.pins.items(), values, strict=True):
        if not _same_setting(wanted, value):
            raise BackendError(f'the database session does not keep the setting "{name}"', "55000")
    listed = tuple(login.role if name == "$user" else name for name in split_identifiers(setting) or ())
    return (listed if row[0] is None else text_array(path)), listed


def _note(parameters: dict[str, str], body: bytes) -> None:
    """Keep what a ParameterStatus says."""
    name, value = decode_parameter_status(body)
    parameters[name] = value
    if len(parameters) > _MAX_PARAMETERS:
        raise MalformedMessage("no end of parameters while logging in")


def _same_setting(wanted: str, shown: str) -> bool:
    """Whether ``shown``, as current_setting gives it, is ``wanted``; a number is a time in milliseconds."""
    if not wanted.isdigit():
        return wanted == shown
    digits = shown.rstrip("dhimns")
    unit = _MILLISECONDS.get(shown[len(digits) :])
    return digits.isdigit() and unit is not None and int(digits) * unit == int(wanted)


async def _next(stream: Stream) -> tuple[bytes, bytes]:
    """The next message that is not a notice. Raises BackendError for an ErrorResponse."""
    for _ in range(_MAX_NOTICES):
        header = await stream.read(5)
        (length,) = struct.unpack_from("!I", header, 1)
        if not 4 <= length <= _MAX_FRAME:
            raise MalformedMessage(f"message of {length} bytes while logging in")
        kind, body = header[:1], await stream.read(length - 4)
        if kind == b"E":
            fields = decode_fields(body)
            raise BackendError(
                fields.get("message", "the database server refused the login"),
                fields.get("sqlstate", "08006"),
                fields,
            )
        if kind != b"N":
            return kind, body
    raise MalformedMessage("no end of notices while logging in")


async def cancel(endpoint: Endpoint, pid: int, secret: bytes) -> None:
    """Send a CancelRequest and wait until the server has dealt with it. Raises BackendError."""
    stream = await connect(endpoint)
    try:
        stream.write(startup.encode_cancel(pid, secret))
        await stream.wait_until_ended()
    finally:
        stream.close()
