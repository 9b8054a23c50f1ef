"""Messages of the authentication phase, both ways, decoded exactly or not at all.

Owns the Authentication family, the client's answers to it and BackendKeyData as a client reads it. Knows no
password and keeps no state. Source: PostgreSQL documentation, "Message Formats"; src/backend/libpq/auth.c,
auth-sasl.c; src/interfaces/libpq/fe-auth.c.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proxy.wire.backend import frame
from proxy.wire.frontend import MalformedMessage

MAX_ANSWER: Final = 65_535
"""PostgreSQL's PG_MAX_AUTH_TOKEN_LENGTH: the longest body of a client's answer, in bytes."""

_OK: Final = 0
_CLEARTEXT: Final = 3
_MD5: Final = 5
_SASL: Final = 10
_SASL_CONTINUE: Final = 11
_SASL_FINAL: Final = 12


@dataclass(frozen=True, slots=True)
class AuthenticationOk:
    pass


@dataclass(frozen=True, slots=True)
class CleartextWanted:
    pass


@dataclass(frozen=True, slots=True)
class MD5Wanted:
    salt: bytes


@dataclass(frozen=True, slots=True)
class SASLWanted:
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SASLContinue:
    data: bytes


@dataclass(frozen=True, slots=True)
class SASLFinal:
    data: bytes


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Kerberos, GSSAPI, SSPI and whatever comes later."""

    code: int


Authentication = (
    AuthenticationOk | CleartextWanted | MD5Wanted | SASLWanted | SASLContinue | SASLFinal | Unsupported
)


def decode_authentication(body: bytes) -> Authentication:
    """The body of an ``R`` message. Raises MalformedMessage."""
    if len(body) < 4:
        raise MalformedMessage("Authentication without a code")
    (code,) = struct.unpack_from("!I", body)
    data = body[4:]
    if code in (_OK, _CLEARTEXT):
        if data:
            raise MalformedMessage("bytes after an Authentication code that has no data")
        return AuthenticationOk() if code == _OK else CleartextWanted()
    if code == _MD5:
        if len(data) != 4:
            raise MalformedMessage("MD5 salt is not four bytes")
        return MD5Wanted(data)
    if code == _SASL:
        return SASLWanted(_mechanisms(data))
    if code == _SASL_CONTINUE:
        return SASLContinue(data)
    if code == _SASL_FINAL:
        return SASLFinal(data)
    return Unsupported(code)


def _mechanisms(data: bytes) -> tuple[str, ...]:
    *names, end, rest = data.split(b"\0") if data.count(b"\0") else (b"", b"?")
    if end or rest or not names or b"" in names:
        raise MalformedMessage("SASL mechanisms are not a list of strings")
    return tuple(name.decode("ascii", "replace") for name in names)


def decode_backend_key(body: bytes) -> tuple[int, bytes]:
    """Process id and secret of BackendKeyData. Raises MalformedMessage."""
    if not 5 <= len(body) <= 4 + 256:
        raise MalformedMessage("BackendKeyData without a secret, or with one that is too long")
    (pid,) = struct.unpack_from("!I", body)
    return pid, body[4:]


def decode_password(body: bytes) -> str:
    """The one string of a PasswordMessage. Raises MalformedMessage."""
    if not body or body.find(b"\0") != len(body) - 1:
        raise MalformedMessage("PasswordMessage is not one string")
    try:
        return body[:-1].decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedMessage("PasswordMessage is not valid UTF-8") from None


def decode_sasl_initial(body: bytes) -> tuple[str, bytes | None]:
    """Mechanism and initial response (None where the client leaves it out). Raises MalformedMessage."""
    end = body.find(b"\0")
    if end < 0 or len(body) < end + 5:
        raise MalformedMessage("SASLInitialResponse without mechanism and length")
    (length,) = struct.unpack_from("!i", body, end + 1)
    data = body[end + 5 :]
    mechanism = body[:end].decode("ascii", "replace")
    if length == -1 and not data:
        return mechanism, None
    if length != len(data):
        raise MalformedMessage("SASLInitialResponse's length is not that of its data")
    return mechanism, data


def encode_ok() -> bytes:
    return frame(b"R", struct.pack("!I", _OK))


def encode_cleartext_wanted() -> bytes:
    return frame(b"R", struct.pack("!I", _CLEARTEXT))


def encode_md5_wanted(salt: bytes) -> bytes:
    return frame(b"R", struct.pack("!I", _MD5) + salt)


def encode_sasl_wanted(mechanisms: Sequence[str]) -> bytes:
    names = b"".join(name.encode("ascii") + b"\0" for name in mechanisms)
    return frame(b"R", struct.pack("!I", _SASL) + names + b"\0")


def encode_sasl_continue(data: bytes) -> bytes:
    return frame(b"R", struct.pack("!I", _SASL_CONTINUE) + data)


def encode_sasl_final(data: bytes) -> bytes:
    return frame(b"R", struct.pack("!I", _SASL_FINAL) + data)


def encode_password(password: str) -> bytes:
    """A PasswordMessage. Raises ValueError for a NUL, which would cut it short."""
    if "\0" in password:
        raise ValueError("NUL in a password")
    return frame(b"p", password.encode("utf-8") + b"\0")


def encode_sasl_initial(mechanism: str, data: bytes) -> bytes:
    return frame(b"p", mechanism.encode("ascii") + b"\0" + struct.pack("!i", len(data)) + data)


def encode_sasl_response(data: bytes) -> bytes:
    return frame(b"p", data)
