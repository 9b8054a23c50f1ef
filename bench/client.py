"""A PostgreSQL client that costs next to nothing: messages made beforehand, answers drained, not read.

Owns one raw connection that needs no password, and its messages. A driver would spend more on a statement
than a proxy does, and hide the difference. It must know nothing of contenders or workloads.

Where an answer ends is told by its last bytes, a ReadyForQuery. That is sound here, since no seeded value
holds such bytes; a program that reads what strangers store must cut frames.

Source: PostgreSQL documentation, "Message Formats".
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

READY: Final = b"Z\x00\x00\x00\x05I"
_CHUNK: Final = 1 << 18
_PATIENCE_S: Final = 60.0
_PROTOCOL_3_0: Final = 196608
_SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)


class ClientError(Exception):
    """The other side hung up or answered with an error; the message is its words."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect and as whom. ``tls`` None: in clear."""

    port: int
    user: str
    database: str
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def query(text: str) -> bytes:
    """A statement by the simple protocol."""
    return message(b"Q", text.encode() + b"\0")


def parse(name: str, text: str) -> bytes:
    return message(b"P", name.encode() + b"\0" + text.encode() + b"\0" + b"\0\0")


def run_prepared(name: str, values: Sequence[str] = ()) -> bytes:
    """Bind and Execute of the unnamed portal, values and results as text; no Sync."""
    bound = b"".join(struct.pack("!i", len(value)) + value.encode() for value in values)
    body = b"\0" + name.encode() + b"\0" + struct.pack("!hh", 0, len(values)) + bound + struct.pack("!h", 0)
    return message(b"B", body) + message(b"E", b"\0" + struct.pack("!i", 0))


SYNC: Final = message(b"S", b"")
_TERMINATE: Final = message(b"X", b"")


class Client:
    """One connection, open and idle after the constructor. Raises ClientError and OSError."""

    def __init__(self, address: Address) -> None:
        self.socket: socket.socket = socket.create_connection((address.host, address.port), _PATIENCE_S)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                self.socket = _upgraded(self.socket, address.tls)
            pairs = f"user\0{address.user}\0database\0{address.database}\0\0".encode()
            self.socket.sendall(struct.pack("!ii", 8 + len(pairs), _PROTOCOL_3_0) + pairs)
            self.drain()
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye and go; a peer that is gone already is left so."""
        try:
            self.socket.sendall(_TERMINATE)
        except OSError:
            return
        finally:
            self.socket.close()

    def ask(self, data: bytes) -> bytes:
        """Send ``data``, which ends in a Query or a Sync, and take the whole of a short answer."""
        self.socket.sendall(data)
        answer = self.socket.recv(_CHUNK)
        while not answer.endswith(READY):
            answer += self._more(answer)
        return answer

    def checked(self, data: bytes) -> bytes:
        """``ask``, and the answer holds no ErrorResponse. Dearer: not for what is timed."""
        answer = self.ask(data)
        raise_error(answer)
        return answer

    def drain(self) -> int:
        """Take an answer of any length, throw it away: its length. Raises where it begins in an error."""
        tail = head = self.socket.recv(_CHUNK)
        total = len(head)
        while not tail.endswith(READY):
            chunk = self._more(tail)
            total += len(chunk)
            tail = chunk if len(chunk) >= len(READY) else tail[-len(READY) :] + chunk
        if head[:1] == b"E":
            raise_error(head)
        return total

    def _more(self, so_far: bytes) -> bytes:
        chunk = self.socket.recv(_CHUNK)
        if not chunk:
            raise_error(so_far)
            raise ClientError("the connection was closed")
        return chunk


def raise_error(answer: bytes) -> None:
    """Raise ClientError with the first ErrorResponse of ``answer``, if there is one."""
    at = 0
    while at + 5 <= len(answer):
        (length,) = struct.unpack_from("!i", answer, at + 1)
        if answer[at : at + 1] == b"E":
            fields = answer[at + 5 : at + 1 + length].split(b"\0")
            told = {field[:1]: field[1:].decode(errors="replace") for field in fields if field}
            raise ClientError(f"{told.get(b'C', '')}: {told.get(b'M', '')} {told.get(b'H', '')}".strip())
        at += 1 + length


def _upgraded(raw: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    raw.sendall(_SSL_REQUEST)
    if raw.recv(1) != b"S":
        raise ClientError("the server offers no TLS")
    return context.wrap_socket(raw, server_hostname="localhost")
