"""ClientHellos of OpenSSL's making, every damage to them, and no reader that gives up in another way."""

from __future__ import annotations

import contextlib
import ssl
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import client_hello as ch
from proxy.wire.startup import NotPostgresError
from tests.support.hello import client_hello

HELLO = client_hello(["postgresql"])
PLAIN = client_hello()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("protocols", [(), ("postgresql",), ("http/1.1",), ("h2", "postgresql", "x" * 255)])
def test_what_openssl_offers_is_read(version: ssl.TLSVersion, protocols: Sequence[str]) -> None:
    hello = client_hello(protocols, version)

    assert ch.record_length(hello[: ch.HEADER]) == len(hello) - ch.HEADER
    assert ch.offered_protocols(hello[ch.HEADER :]) == tuple(name.encode() for name in protocols)


def test_a_hello_without_extensions_offers_nothing() -> None:
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"

    assert ch.offered_protocols(b"\x01" + struct.pack("!I", len(body))[1:] + body) == ()


@pytest.mark.parametrize(
    "header",
    [
        b"\x17\x03\x01\x00\x40",
        b"\x16\x02\x00\x00\x40",
        b"\x16\x03\x01\x00\x03",
        b"\x16\x03\x01\x40\x01",
        b"\x80\x2e\x01\x03\x01",  # SSL 2.0
        b"GET /",
    ],
)
def test_what_is_no_handshake_record(header: bytes) -> None:
    with pytest.raises(NotPostgresError):
        ch.record_length(header)


def extension(kind: int, body: bytes) -> bytes:
    return struct.pack("!HH", kind, len(body)) + body


def hello_with(extensions: bytes, announced: int | None = None) -> bytes:
    length = len(extensions) if announced is None else announced
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + struct.pack("!H", length)
    body += extensions
    return b"\x01" + struct.pack("!I", len(body))[1:] + body


GOOD = extension(16, b"\x00\x0b\x0apostgresql")
DAMAGED = {
    "a certificate in its place": b"\x0b" + HELLO[6:],
    "one byte short": HELLO[5:-1],
    "one byte more": HELLO[5:] + b"\0",
    "ALPN twice": hello_with(GOOD + GOOD),
    "extensions past the end": hello_with(GOOD, len(GOOD) + 1),
    "extensions that end early": hello_with(GOOD, len(GOOD) - 1),
    "an extension past the end": hello_with(GOOD[:-1]),
    "half of an extension's header": hello_with(GOOD + b"\0\x10\0"),
    "a list past the end": hello_with(extension(16, b"\x00\x0c\x0apostgresql")),
    "a name past the end": hello_with(extension(16, b"\x00\x0b\x0bpostgresql")),
    "an empty name": hello_with(extension(16, b"\x00\x0c\0\x0apostgresql")),
    "no list": hello_with(extension(16, b"\0")),
}


@pytest.mark.parametrize("record", DAMAGED.values(), ids=DAMAGED)
def test_what_does_not_decode_exactly_is_refused(record: bytes) -> None:
    with pytest.raises(NotPostgresError):
        ch.offered_protocols(record)


def test_the_undamaged_one_is_read() -> None:
    assert ch.offered_protocols(hello_with(extension(0xABAB, b"") + GOOD)) == (b"postgresql",)


@given(st.data())
def test_any_bytes_end_in_a_documented_way(data: st.DataObject) -> None:
    record = bytearray(data.draw(st.sampled_from([HELLO, PLAIN]))[ch.HEADER :])
    for _ in range(data.draw(st.integers(0, 4))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(NotPostgresError):
        ch.offered_protocols(bytes(record))
    with contextlib.suppress(NotPostgresError):
        ch.offered_protocols(data.draw(st.binary(max_size=120)))


def test_the_alert_is_one_that_openssl_understands() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    incoming.write(ch.encode_alert(ch.NO_APPLICATION_PROTOCOL))

    with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
        connection.do_handshake()
