"""Messages without a type byte, with which every connection begins, and the first answers to them.

Owns the startup packet, the three requests that may stand in its place, and the ``options`` inside it, both
ways. Decodes exactly or not at all; knows no policy and keeps no state.

Source: PostgreSQL documentation, "Message Formats"; src/backend/tcop/backend_startup.c
(ProcessStartupPacket, SendNegotiateProtocolVersion), src/backend/utils/init/postinit.c (pg_split_opts),
src/backend/tcop/postgres.c (process_postgres_switches).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.wire.backend import frame

MAX_BODY: Final = 10_000
"""PostgreSQL's MAX_STARTUP_PACKET_LENGTH, in bytes, the length field not counted."""
MAX_CANCEL_KEY: Final = 256
"""Longest secret of protocol 3.2, in bytes."""
TLS_HANDSHAKE: Final = 0x16
"""First byte of a TLS ClientHello: a client that starts TLS without asking."""

_CANCEL_CODE: Final = 80877102
_SSL_CODE: Final = 80877103
_GSSENC_CODE: Final = 80877104
_OPTION_PREFIX: Final = "_pq_."

# C's isspace() in the C locale.
_SPACES: Final = frozenset(" \t\n\v\f\r")


class ProtocolVersion(NamedTuple):
    major: int
    minor: int

    @property
    def code(self) -> int:
        """As one 32-bit number, the way it travels."""
        return self.major << 16 | self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


V3_0: Final = ProtocolVersion(3, 0)
V3_2: Final = ProtocolVersion(3, 2)
NEWEST: Final = V3_2


class StartupError(Exception):
    """A first message that is refused. ``sqlstate`` and the text go to the client."""

    def __init__(self, message: str, sqlstate: str = "08P01") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class NotPostgresError(Exception):
    """What arrived is not this protocol at all: close, and say nothing."""


@dataclass(frozen=True, slots=True)
class SSLRequest:
    pass


@dataclass(frozen=True, slots=True)
class GSSENCRequest:
    pass


@dataclass(frozen=True, slots=True)
class CancelRequest:
    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class StartupPacket:
    """``requested`` is what the client asked for; ``unsupported`` its ``_pq_.`` options, none of them ours.

    ``parameters`` has every other key as sent, none of them twice.
    """

    requested: ProtocolVersion
    parameters: Mapping[str, str]
    unsupported: tuple[str, ...] = ()

    @property
    def version(self) -> ProtocolVersion:
        """The version both sides go on with."""
        return min(self.requested, NEWEST)

    @property
    def needs_negotiation(self) -> bool:
        return self.requested > NEWEST or bool(self.unsupported)


StartupMessage = SSLRequest | GSSENCRequest | CancelRequest | StartupPacket


def body_length(prefix: bytes) -> int:
    """Bytes that follow the four of ``prefix``. Raises NotPostgresError for an impossible length."""
    (length,) = struct.unpack("!I", prefix)
    if not 8 <= length <= MAX_BODY + 4:
        raise NotPostgresError(f"invalid length of startup packet: {length}")
    return int(length) - 4


def decode(body: bytes) -> StartupMessage:
    """The message in ``body`` (4 bytes at least, the length field not included). Raises StartupError."""
    (code,) = struct.unpack_from("!I", body)
    if code == _SSL_CODE:
        return _alone(body, SSLRequest())
    if code == _GSSENC_CODE:
        return _alone(body, GSSENCRequest())
    if code == _CANCEL_CODE:
        return _decode_cancel(body)
    version = ProtocolVersion(code >> 16, code & 0xFFFF)
    if version.major != 3:
        raise StartupError(
            f"unsupported frontend protocol {version}: server supports {V3_0} to {NEWEST}", "0A000"
        )
    return _decode_packet(version, body[4:])


def _alone(body: bytes, message: SSLRequest | GSSENCRequest) -> SSLRequest | GSSENCRequest:
    if len(body) != 4:
        raise StartupError("invalid length of an encryption request")
    return message


def _decode_cancel(body: bytes) -> CancelRequest:
    secret = body[8:]
    if not 1 <= len(secret) <= MAX_CANCEL_KEY:
        raise StartupError("invalid length of query cancel packet")
    (pid,) = struct.unpack_from("!I", body, 4)
    return CancelRequest(pid, secret)


def _decode_packet(version: ProtocolVersion, body: bytes) -> StartupPacket:
    parameters: dict[str, str] = {}
    unsupported: list[str] = []
    for name, value in _pairs(body):
        # Two readers of a name given twice would see two identities. PostgreSQL's settings ignore case.
        if any(name.lower() == known.lower() for known in (*parameters, *unsupported)):
            raise StartupError(f'startup parameter "{name}" is given twice')
        if name.startswith(_OPTION_PREFIX):
            unsupported.append(name)
        else:
            parameters[name] = value
    return StartupPacket(version, parameters, tuple(unsupported))


def _pairs(body: bytes) -> Iterable[tuple[str, str]]:
    if not body.endswith(b"\0") or (len(body) > 1 and not body.endswith(b"\0\0")):
        raise StartupError("invalid startup packet layout: expected terminator as last byte")
    try:
        strings = body[:-1].decode("utf-8").split("\0")[:-1]
    except UnicodeDecodeError:
        raise StartupError("startup packet is not valid UTF-8", "22021") from None
    names = strings[::2]
    if len(strings) % 2 or "" in names:
        raise StartupError("invalid startup packet layout: expected terminator as last byte")
    return zip(names, strings[1::2], strict=True)


def split_options(options: str) -> list[str]:
    """``options`` cut into arguments as pg_split_opts does: at white space, a backslash escapes."""
    arguments: list[str] = []
    current: list[str] | None = None
    escaped = False
    for character in options:
        if character in _SPACES and not escaped:
            if current is not None:
                arguments.append("".join(current))
            current = None
            continue
        current = [] if current is None else current
        if character == "\\" and not escaped:
            escaped = True
            continue
        escaped = False
        current.append(character)
    if current is not None:
        arguments.append("".join(current))
    return arguments


def decode_options(options: str) -> list[tuple[str, str]]:
    """The settings in ``options``, in order, names with ``-`` turned into ``_``.

    Only ``-c name=value`` (in one argument or two) and ``--name=value`` are settings by their spelling; the
    one-letter switches of the server program are refused by name, and so is anything that is no switch.
    Raises StartupError.
    """
    settings: list[tuple[str, str]] = []
    arguments = iter(split_options(options))
    for argument in arguments:
        if argument == "-c":
            following = next(arguments, None)
            if following is None:
                raise StartupError("option -c in startup options requires a value", "42601")
            settings.append(_assignment("-c ", following))
        elif argument.startswith("-c"):
            settings.append(_assignment("-c ", argument[2:]))
        elif argument.startswith("--") and len(argument) > 2:
            settings.append(_assignment("--", argument[2:]))
        else:
            raise StartupError(f'invalid argument in startup options: "{argument}"', "42601")
    return settings


def _assignment(switch: str, text: str) -> tuple[str, str]:
    # ParseLongOption, src/backend/utils/misc/guc.c: the name ends at the first "=".
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise StartupError(f"{switch}{name} in startup options requires a value", "42601")
    return name.replace("-", "_"), value


def encode_startup(parameters: Mapping[str, str], version: ProtocolVersion = V3_0) -> bytes:
    """A startup packet. Raises ValueError for a NUL, which would make two strings of one."""
    parts = [text for pair in parameters.items() for text in pair]
    if any("\0" in text for text in parts):
        raise ValueError("NUL in a startup parameter")
    body = b"".join(text.encode("utf-8") + b"\0" for text in parts) + b"\0"
    return struct.pack("!II", len(body) + 8, version.code) + body


def encode_ssl_request() -> bytes:
    return struct.pack("!II", 8, _SSL_CODE)


def encode_cancel(pid: int, secret: bytes) -> bytes:
    """A CancelRequest."""
    return struct.pack("!III", 12 + len(secret), _CANCEL_CODE, pid) + secret


def encode_negotiation(version: ProtocolVersion, unsupported: Sequence[str]) -> bytes:
    """NegotiateProtocolVersion: the version we go on with and the options we do not know.

    ``version`` never exceeds what the client asked for: libpq aborts on a "downgrade" upwards.
    """
    names = b"".join(name.encode("utf-8") + b"\0" for name in unsupported)
    return frame(b"v", struct.pack("!II", version.code, len(unsupported)) + names)


def encode_parameter_status(name: str, value: str) -> bytes:
    return frame(b"S", name.encode("utf-8") + b"\0" + value.encode("utf-8") + b"\0")


def encode_backend_key(pid: int, secret: bytes) -> bytes:
    return frame(b"K", struct.pack("!I", pid) + secret)
