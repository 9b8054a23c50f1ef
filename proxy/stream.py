"""Turn-taking over one connection: what a handshake needs of a socket, and nothing more.

Owns the tiny interface that handshakes are written against and its one implementation over an asyncio
transport. Once the handshake is over the transport is handed to another Protocol; no byte of the steady state
passes through here. Knows no message of the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from types import MappingProxyType
from typing import Final, Protocol, cast

from proxy.tls import PeerCertificate

_PAUSE_AT: Final = 64 * 1024
"""Unread bytes above which the transport is not read: more than any handshake has in one turn."""


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class StreamClosedError(Exception):
    """The other side is gone, or was cut off."""


class TLSFailedError(StreamClosedError):
    """The two sides could not agree on TLS; the connection is closed."""


class Stream(Protocol):
    """One connection, read in exact amounts."""

    @property
    def buffered(self) -> int:
        """Bytes that have arrived and were not read."""

    @property
    def encrypted(self) -> bool: ...

    @property
    def alpn(self) -> str | None:
        """The protocol that both sides agreed on in their TLS handshake, if they named any."""

    @property
    def certificate(self) -> PeerCertificate | None:
        """What the other side has shown in its TLS handshake."""

    @property
    def verified(self) -> bool:
        """True when the other side had to show a certificate that somebody trusted vouches for."""

    @property
    def address(self) -> Address | None:
        """Where the other end is; None for a Unix socket."""

    @property
    def local(self) -> bool:
        """True when the other end is on this machine: a loopback address or a Unix socket."""

    async def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises StreamClosedError when the connection ends first."""

    def write(self, data: bytes) -> None: ...

    async def start_tls(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        hello: bytes = b"",
    ) -> None:
        """Go on encrypted.

        ``hello`` is how the other side's handshake begins, where it was read already; what is buffered then
        belongs to it too. Otherwise nothing may be buffered. Raises TLSFailedError or StreamClosedError; the
        connection is then closed.
        """


class TransportStream(asyncio.Protocol):
    """A Stream over an asyncio (or uvloop) transport: pass it as the protocol of a new connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wanted = 0
        self._ended = False
        self._paused = False
        self._tls: ssl.SSLObject | None = None
        self._linger: asyncio.TimerHandle | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(self.transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= max(_PAUSE_AT, self._wanted) and not self._paused:
            self.transport.pause_reading()
            self._paused = True
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._ended = True
        if self._linger is not None:
            self._linger.cancel()
        self._wake()

    # the handshake's side

    @property
    def transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise StreamClosedError("not connected yet")
        return self._transport

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    @property
    def ended(self) -> bool:
        return self._ended or self.transport.is_closing()

    @property
    def encrypted(self) -> bool:
        return self._tls is not None

    @property
    def address(self) -> Address | None:
        return peer_address(self.transport.get_extra_info("peername"))

    @property
    def local(self) -> bool:
        return is_local(self.transport.get_extra_info("peername"))

    async def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if self._ended:
                raise StreamClosedError("connection ended in the handshake")
            if self._paused:
                self.transport.resume_reading()
                self._paused = False
            self._wanted = size
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._wanted = 0
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def write(self, data: bytes) -> None:
        if not self._ended:
            self.transport.write(data)

    @property
    def alpn(self) -> str | None:
        return self._tls.selected_alpn_protocol() if self._tls is not None else None

    @property
    def certificate(self) -> PeerCertificate | None:
        return PeerCertificate.of(self._tls) if self._tls is not None else None

    @property
    def verified(self) -> bool:
        return self._tls is not None and self._tls.context.verify_mode is ssl.CERT_REQUIRED

    async def start_tls(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        hello: bytes = b"",
    ) -> None:
        if self._ended or (self._buffer and not hello):
            raise StreamClosedError("cannot start TLS on this connection")
        plain = self.transport
        early = hello + bytes(self._buffer) if hello else b""
        self._buffer.clear()
        # From here on no byte may reach this object before it is decrypted. The loop reads again once its
        # TLS protocol has taken the transport over: what was sent too early in clear fails there as a record.
        plain.pause_reading()
        self._paused = False
        loop = asyncio.get_running_loop()
        starting = loop.create_task(
            loop.start_tls(plain, self, context, server_side=server_side, server_hostname=server_hostname)
        )
        try:
            if early:
                # The task's first step has put the TLS protocol in place and asked the loop to tell it of its
                # transport, then to read on. This is asked for next: nothing is read before it is done.
                await asyncio.sleep(0)
                loop.call_soon(_feed, plain, early)
            transport = await starting
        except ssl.SSLError as error:
            self.abort()
            raise TLSFailedError(f"TLS handshake failed: {error}") from error
        except OSError as error:
            self.abort()
            raise StreamClosedError("connection ended in the TLS handshake") from error
        except BaseException:
            starting.cancel()
            raise
        if transport is None:  # uvloop and asyncio both give None when the peer left meanwhile
            raise StreamClosedError("connection ended in the TLS handshake")
        self._transport = transport
        self._tls = transport.get_extra_info("ssl_object")
        if self._paused:
            # So much came right behind the handshake that it was the plain transport that was stopped.
            plain.resume_reading()
            transport.pause_reading()

    def hand_over(self, protocol: asyncio.Protocol) -> bytes:
        """Give the transport, not reading, to ``protocol``; returns what had arrived and was not read.

        Raises StreamClosedError when the connection has ended meanwhile.
        """
        if self.ended:
            raise StreamClosedError("connection ended at the end of the handshake")
        if not self._paused:
            self.transport.pause_reading()
        self.transport.set_protocol(protocol)
        return bytes(self._buffer)

    def close(self, within_s: float = 5.0) -> None:
        """Close once everything written has left, or after ``within_s`` seconds whatever has not."""
        if self._transport is not None:
            self._transport.close()
            self._linger = asyncio.get_running_loop().call_later(within_s, self._transport.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def wait_until_ended(self) -> None:
        """Drop what arrives until the other side closes."""
        with contextlib.suppress(StreamClosedError):
            while True:
                await self.read(max(1, self.buffered))

    def _wake(self) -> None:
        if (
            self._waiter is not None
            and not self._waiter.done()
            and (self._ended or len(self._buffer) >= self._wanted)
        ):
            self._waiter.set_result(None)


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    """Have the BufferedProtocol of ``transport``, as both loops' TLS protocols are, receive ``data``."""
    receiver = cast("asyncio.BufferedProtocol", transport.get_protocol())
    while data and not transport.is_closing():
        buffer = memoryview(receiver.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        receiver.buffer_updated(size)
        data = data[size:]


def peer_network(peer: object) -> str:
    """Whom to hold to account for a ``peername``: an IPv4 address, an IPv6 network of 64 bits (any host has
    as many addresses in it as it likes), or ``local``."""
    address = peer_address(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return "local" if address is None else str(address)


def is_local(peer: object) -> bool:
    """Whether a ``peername`` is on this machine: a Unix socket (a path) or a loopback address."""
    if isinstance(peer, str | bytes):
        return True
    address = peer_address(peer)
    return address is not None and address.is_loopback


def is_local_host(host: str) -> bool:
    """True where traffic to ``host`` never leaves the machine. Only what needs no look-up counts."""
    if host.startswith("/") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def peer_address(peer: object) -> Address | None:
    """The IP address in a ``peername``, an IPv4 one also where it came in by IPv6; None where it has none."""
    if not isinstance(peer, tuple) or not peer:
        return None
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


KEEPALIVE: Final = MappingProxyType({"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4})
"""Seconds of silence, seconds between probes, and probes: a peer that is gone without a word, with the locks
of its transaction held, is noticed within two minutes, where Linux by itself would take two hours."""


def tune(transport: asyncio.BaseTransport) -> None:
    """Switch Nagle's algorithm off and keep-alive on where the transport is TCP, as PostgreSQL does.

    asyncio does the former only for sockets made with an explicit protocol number, and an accepted socket
    inherits the listener's: left to chance this costs stalls of 40 ms. Raises OSError when it does not hold.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        # Not every system has each; its own default holds then.
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY):
        raise OSError("TCP_NODELAY does not hold")
