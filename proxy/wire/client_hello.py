"""The ClientHello with which a TLS client begins, as far as it must be read before it is answered.

Owns the record and the message round the ALPN extension, and the alert that refuses one. Everything else in
there is the TLS library's to judge, from the very same bytes. Decodes exactly or not at all; keeps no state.

Source: RFC 8446 sections 4.1.2, 5.1 and 6; RFC 7301 section 3.1; PostgreSQL's
src/backend/libpq/be-secure-openssl.c (alpn_cb) and src/backend/tcop/backend_startup.c (ProcessSSLStartup).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from proxy.wire.startup import TLS_HANDSHAKE, NotPostgresError

HEADER: Final = 5
"""Bytes of a record's header."""
PROTOCOL: Final = b"postgresql"
"""The name of PostgreSQL's protocol in IANA's registry of ALPN."""
NO_APPLICATION_PROTOCOL: Final = 120
"""The alert for a client that means another protocol."""

_MAX_RECORD: Final = 2**14
_CLIENT_HELLO: Final = 1
_ALPN: Final = 16
_ALERT: Final = 21
_FATAL: Final = 2


def record_length(header: bytes) -> int:
    """Bytes that follow the record ``header`` (5 bytes). Raises NotPostgresError."""
    kind, major, _, length = struct.unpack("!BBBH", header)
    if kind != TLS_HANDSHAKE or major != 3 or not 4 <= length <= _MAX_RECORD:
        raise NotPostgresError("expected a TLS handshake")
    return int(length)


def offered_protocols(record: bytes) -> tuple[bytes, ...]:
    """The names that a ClientHello offers by ALPN, none where it has no such extension.

    ``record`` is what follows the record's header. A ClientHello in several records, which no client sends
    that has less than 16 KiB to say, is not read. Raises NotPostgresError.
    """
    try:
        return _offered(record)
    except (struct.error, IndexError):
        raise NotPostgresError("malformed ClientHello") from None


def encode_alert(description: int) -> bytes:
    """A fatal alert as it is sent before any key is agreed on."""
    return struct.pack("!BBBHBB", _ALERT, 3, 3, 2, _FATAL, description)


def _offered(record: bytes) -> tuple[bytes, ...]:
    kind, high, low = struct.unpack_from("!BBH", record)
    hello = record[4:]
    if kind != _CLIENT_HELLO or (high << 16 | low) != len(hello):
        raise NotPostgresError("expected one whole ClientHello")
    at = 2 + 32  # legacy_version, random
    at += 1 + hello[at]  # legacy_session_id
    at += 2 + struct.unpack_from("!H", hello, at)[0]  # cipher_suites
    at += 1 + hello[at]  # legacy_compression_methods
    if at == len(hello):
        return ()
    found = [body for kind, body in _extensions(_vector(hello[at:])) if kind == _ALPN]
    if len(found) > 1:
        raise NotPostgresError("malformed ClientHello: ALPN twice")
    return tuple(_names(_vector(found[0]))) if found else ()


def _extensions(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("!HH", data, at)
        at += 4 + length
        if at > len(data):
            raise NotPostgresError("malformed ClientHello: an extension past its end")
        yield kind, data[at - length : at]


def _names(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = data[at]
        at += 1 + length
        if not length or at > len(data):
            raise NotPostgresError("malformed ClientHello: an ALPN name past its end")
        yield data[at - length : at]


def _vector(data: bytes) -> bytes:
    """What a two-byte length announces, which must be all there is."""
    (length,) = struct.unpack_from("!H", data)
    if length != len(data) - 2:
        raise NotPostgresError("malformed ClientHello: a length that does not fit")
    return data[2:]
