"""Connections in memory, for handshakes without sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TypeVar

from proxy.stream import Address, Stream, StreamClosedError
from proxy.tls import PeerCertificate

T = TypeVar("T")


class MemoryStream:
    """One end of a connection in memory; what is written arrives at ``peer`` at once."""

    def __init__(self, *, local: bool = True) -> None:
        self.peer: MemoryStream
        self.encrypted = False
        self.local = local
        self.closed = False
        self.hostname: str | None = None
        self.hello = b""
        self.alpn: str | None = "postgresql"
        self.certificate: PeerCertificate | None = None
        self.verified = False
        self.address: Address | None = ip_address("127.0.0.1" if local else "192.0.2.7")
        self._arrived = bytearray()
        self._change = asyncio.Event()

    @classmethod
    def pair(cls, *, local: bool = True) -> tuple[MemoryStream, MemoryStream]:
        left, right = cls(local=local), cls(local=local)
        left.peer, right.peer = right, left
        return left, right

    @property
    def buffered(self) -> int:
        return len(self._arrived)

    async def read(self, size: int) -> bytes:
        while len(self._arrived) < size:
            if self.peer.closed:
                raise StreamClosedError("the other end is closed")
            self._change.clear()
            await self._change.wait()
        data = bytes(self._arrived[:size])
        del self._arrived[:size]
        return data

    async def rest(self) -> bytes:
        """Everything until the other end closes."""
        while not self.peer.closed:
            self._change.clear()
            await self._change.wait()
        return bytes(self._arrived)

    def write(self, data: bytes) -> None:
        self.peer._arrived += data
        self.peer._change.set()

    async def start_tls(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        hello: bytes = b"",
    ) -> None:
        self.encrypted = True
        self.hello = hello
        self.hostname = server_hostname

    def close(self) -> None:
        self.closed = True
        self.peer._change.set()

    abort = close


async def read_message(stream: Stream) -> tuple[bytes, bytes]:
    """Type and body of the next message."""
    header = await stream.read(5)
    (length,) = struct.unpack_from("!I", header, 1)
    return header[:1], await stream.read(length - 4)


def run_both(
    ours: Callable[[MemoryStream], Awaitable[T]],
    theirs: Callable[[MemoryStream], Awaitable[object]],
    *,
    local: bool = True,
    encrypted: bool = False,
) -> T:
    """Run both ends of one connection to their end; the result, or the exception, of ``ours``."""

    async def run() -> T:
        left, right = MemoryStream.pair(local=local)
        left.encrypted = right.encrypted = encrypted

        async def their_side() -> None:
            try:
                await theirs(right)
            finally:
                right.close()

        other = asyncio.create_task(their_side())
        try:
            async with asyncio.timeout(5):
                return await ours(left)
        finally:
            left.close()
            with contextlib.suppress(StreamClosedError):
                await other

    return asyncio.run(run())
