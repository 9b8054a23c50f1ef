"""A client that speaks the protocol by hand, for tests that send what no driver would.

Owns frontend messages as bytes and reading what comes back; the same client talks to a proxy or straight to
a server, so that a test can compare the two. Knows no rule.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from proxy import scram
from proxy.wire import startup
from proxy.wire.backend import bind_message, decode_fields, parse_message
from tests.support.postgres import Database
from tests.support.proxy import RunningProxy

TIMEOUT_S: Final = 20.0
"""Generous: reached only where something hangs."""


class Message(NamedTuple):
    """One message of the backend; ``kind`` is its type as a letter."""

    kind: str
    body: bytes

    @property
    def fields(self) -> dict[str, str]:
        return decode_fields(self.body)

    @property
    def sqlstate(self) -> str:
        return self.fields["sqlstate"]


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!I", len(body) + 4) + body


def query(sql: str | bytes) -> bytes:
    return message("Q", _encoded(sql) + b"\0")


def parse(sql: str | bytes, name: str = "", types: tuple[int, ...] = ()) -> bytes:
    return parse_message(name.encode(), _encoded(sql), types)


def bind(statement: str = "", portal: str = "", values: tuple[bytes | None, ...] = ()) -> bytes:
    """Every value and result as text."""
    if not values:
        return bind_message(portal.encode(), statement.encode())
    parts = [struct.pack("!i", -1) if v is None else struct.pack("!i", len(v)) + v for v in values]
    head = portal.encode() + b"\0" + statement.encode() + b"\0\0\0"
    return message("B", head + struct.pack("!H", len(values)) + b"".join(parts) + b"\0\0")


def execute(portal: str = "", rows: int = 0) -> bytes:
    return message("E", portal.encode() + b"\0" + struct.pack("!i", rows))


def describe(kind: str, name: str = "") -> bytes:
    return message("D", kind.encode() + name.encode() + b"\0")


def close(kind: str, name: str = "") -> bytes:
    return message("C", kind.encode() + name.encode() + b"\0")


def copy_data(data: bytes) -> bytes:
    return message("d", data)


def copy_fail(reason: str = "changed my mind") -> bytes:
    return message("f", reason.encode() + b"\0")


def run(sql: str, portal: str = "", values: tuple[bytes | None, ...] = ()) -> bytes:
    """Parse, Bind and Execute of the unnamed statement."""
    return parse(sql) + bind("", portal, values) + execute(portal)


SYNC: Final = message("S")
FLUSH: Final = message("H")
COPY_DONE: Final = message("c")
TERMINATE: Final = message("X")


class Client:
    """One connection after its handshake. Every read fails after TIMEOUT_S instead of hanging."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.greeting: list[Message] = []
        self._data = b""

    @property
    def pid(self) -> int:
        return int(struct.unpack_from("!I", self._key)[0])

    @property
    def secret(self) -> bytes:
        return self._key[4:]

    @property
    def _key(self) -> bytes:
        return next(m.body for m in self.greeting if m.kind == "K")

    def send(self, *messages: bytes) -> None:
        self.sock.sendall(b"".join(messages))

    def read(self) -> Message:
        """The next message. Raises EOFError where the connection ends first."""
        head = self._take(5)
        (length,) = struct.unpack_from("!I", head, 1)
        return Message(chr(head[0]), self._take(length - 4))

    def read_until(self, kinds: str) -> list[Message]:
        """Messages up to and with the first of one of ``kinds``."""
        messages = [self.read()]
        while messages[-1].kind not in kinds:
            messages.append(self.read())
        return messages

    def cycles(self, count: int = 1) -> list[Message]:
        """Messages up to and with the ``count``-th ReadyForQuery."""
        return [m for _ in range(count) for m in self.read_until("Z")]

    def ask(self, *messages: bytes) -> list[Message]:
        """Send, and read up to the next ReadyForQuery."""
        self.send(*messages)
        return self.cycles()

    def rest(self) -> list[Message]:
        """Everything until the connection ends."""
        messages = []
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                messages.append(self.read())
        return messages

    def quiet(self, within_s: float = 0.3) -> bool:
        """Whether nothing arrives for a moment."""
        if self._data:
            return False
        self.sock.settimeout(within_s)
        try:
            self._data = self.sock.recv(65536)
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(TIMEOUT_S)
        return False

    def cut(self) -> None:
        """Vanish with a reset, whatever is on its way."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _take(self, size: int) -> bytes:
        parts = [self._data]
        have = len(self._data)
        while have < size:
            chunk = self.sock.recv(1 << 18)
            if not chunk:
                raise EOFError(f"connection ended after {b''.join(parts)[:200]!r}")
            parts.append(chunk)
            have += len(chunk)
        data = b"".join(parts)
        self._data = data[size:]
        return data[:size]


def kinds(messages: list[Message]) -> str:
    return "".join(m.kind for m in messages)


def dial(port: int, host: str = "127.0.0.1") -> socket.socket:
    sock = socket.create_connection((host, port), TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextlib.contextmanager
def through(
    proxy: RunningProxy, user: str = "trusted", settings: dict[str, str] | None = None
) -> Iterator[Client]:
    """A connection through the proxy as ``trusted``, or as a role that PostgreSQL asks for its password."""
    password = proxy.database.server.passwords.get(user, "")
    parameters = {"user": user, "database": proxy.database.name, **(settings or {})}
    with dial(proxy.port) as sock:
        yield _log_in(sock, parameters, password)


@contextlib.contextmanager
def straight(database: Database, role: str = "shop_app") -> Iterator[Client]:
    """A connection to the server itself, for comparison."""
    with dial(database.server.port, database.server.host) as sock:
        client = Client(sock)
        sock.sendall(startup.encode_startup({"user": role, "database": database.name}))
        client.read()  # which mechanisms there are
        exchange = scram.ClientExchange()
        first = exchange.first()
        client.send(message("p", b"SCRAM-SHA-256\0" + struct.pack("!I", len(first)) + first))
        challenge = exchange.read_challenge(client.read().body[4:])
        keys = scram.ClientKeys.derive(database.server.passwords[role], challenge.salt, challenge.iterations)
        client.send(message("p", exchange.respond(keys)))
        client.greeting = client.cycles()
        yield client


def _log_in(sock: socket.socket, parameters: dict[str, str], password: str) -> Client:
    client = Client(sock)
    sock.sendall(startup.encode_startup(parameters))
    if password:
        client.read()
        client.send(message("p", password.encode() + b"\0"))
    client.greeting = client.cycles()
    return client


def _encoded(sql: str | bytes) -> bytes:
    return sql.encode() if isinstance(sql, str) else sql
