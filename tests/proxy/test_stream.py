"""Turn-taking over real transports, asyncio's and uvloop's."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from proxy import tls
from proxy.stream import StreamClosedError, TransportStream, is_local, peer_network
from tests.support.certificates import Certificates

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run(
    factory: LoopFactory,
    ours: Callable[[TransportStream], Awaitable[None]],
    theirs: Callable[[socket.socket], Awaitable[None]],
) -> None:
    """``ours`` on an accepted connection, ``theirs`` on the raw socket at its other end."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[TransportStream] = loop.create_future()

        class Accepted(TransportStream):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                accepted.set_result(self)

        # The protocol number of such a listener is 0, and what it accepts inherits that.
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        server = await loop.create_server(Accepted, sock=listener)
        other = socket.socket()
        other.setblocking(False)
        await loop.sock_connect(other, listener.getsockname())
        stream = await accepted
        try:
            async with asyncio.timeout(10):
                await asyncio.gather(ours(stream), theirs(other))
        finally:
            stream.abort()
            other.close()
            server.close()
            await server.wait_closed()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@pytest.mark.parametrize("factory", LOOPS)
def test_exact_reads_over_any_split(factory: LoopFactory) -> None:
    async def ours(stream: TransportStream) -> None:
        assert await stream.read(3) == b"abc"
        assert await stream.read(0) == b""
        assert await stream.read(4) == b"defg"
        with pytest.raises(StreamClosedError):
            await stream.read(2)
        assert await stream.read(1) == b"h"

    async def theirs(sock: socket.socket) -> None:
        for byte in b"abcdefgh":
            await asyncio.get_running_loop().sock_sendall(sock, bytes([byte]))
            await asyncio.sleep(0)
        sock.shutdown(socket.SHUT_WR)

    run(factory, ours, theirs)


@pytest.mark.parametrize("factory", LOOPS)
def test_nagle_is_off_whatever_the_listener_was_made_of(factory: LoopFactory) -> None:
    async def ours(stream: TransportStream) -> None:
        sock = stream.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert stream.local

    async def theirs(sock: socket.socket) -> None:
        pass

    run(factory, ours, theirs)


@pytest.mark.parametrize("factory", LOOPS)
def test_what_nobody_reads_is_not_taken_in(factory: LoopFactory) -> None:
    total = 32 * 1024 * 1024

    async def ours(stream: TransportStream) -> None:
        await asyncio.sleep(0.3)
        assert stream.buffered < 1024 * 1024
        await stream.read(total)

    async def theirs(sock: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, b"x" * total)

    run(factory, ours, theirs)


@pytest.mark.parametrize("factory", LOOPS)
def test_the_transport_and_what_it_had_are_handed_over(factory: LoopFactory) -> None:
    received: list[bytes] = []

    class Next(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

    async def ours(stream: TransportStream) -> None:
        assert await stream.read(5) == b"hello"
        received.append(stream.hand_over(Next()))
        await asyncio.sleep(0.1)
        assert received == [b" world"]  # not read until the new owner says so
        stream.transport.resume_reading()
        while len(received) < 2:
            await asyncio.sleep(0.01)
        assert received == [b" world", b"later"]

    async def theirs(sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"hello world")
        await asyncio.sleep(0.05)
        await loop.sock_sendall(sock, b"later")
        await asyncio.sleep(0.3)

    run(factory, ours, theirs)


@pytest.mark.parametrize("factory", LOOPS)
def test_a_connection_that_ended_is_not_handed_over(factory: LoopFactory) -> None:
    async def ours(stream: TransportStream) -> None:
        with pytest.raises(StreamClosedError):
            await stream.read(1)
        with pytest.raises(StreamClosedError):
            stream.hand_over(asyncio.Protocol())

    async def theirs(sock: socket.socket) -> None:
        sock.shutdown(socket.SHUT_RDWR)

    run(factory, ours, theirs)


@pytest.mark.parametrize("factory", LOOPS)
def test_tls_then_exact_reads(factory: LoopFactory, certificates: Certificates) -> None:
    context = tls.agent_tls(certificates.certificate, certificates.key).for_connection()

    async def ours(stream: TransportStream) -> None:
        await stream.start_tls(context, server_side=True)
        assert stream.encrypted
        assert await stream.read(5) == b"hello"
        stream.write(b"world")
        with pytest.raises(StreamClosedError):
            await stream.read(1)

    def talk(sock: socket.socket) -> None:
        sock.setblocking(True)
        client = ssl.create_default_context(cafile=str(certificates.ca))
        client.set_alpn_protocols(["postgresql"])
        with client.wrap_socket(sock.dup(), server_hostname="localhost") as encrypted:
            assert encrypted.selected_alpn_protocol() == "postgresql"
            encrypted.sendall(b"hello")
            assert encrypted.recv(5) == b"world"
        sock.shutdown(socket.SHUT_RDWR)

    async def theirs(sock: socket.socket) -> None:
        await asyncio.to_thread(talk, sock)

    run(factory, ours, theirs)


@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize("cut", [1, 5, 100, 10_000], ids=lambda cut: f"{cut} bytes")
def test_tls_from_a_hello_that_was_read_already(
    factory: LoopFactory, certificates: Certificates, cut: int
) -> None:
    context = tls.agent_tls(certificates.certificate, certificates.key).for_connection()

    async def ours(stream: TransportStream) -> None:
        hello = await stream.read(1)
        while len(hello) < cut and stream.buffered:
            hello += await stream.read(1)
        await stream.start_tls(context, server_side=True, hello=hello)
        assert stream.alpn == "postgresql"
        assert stream.certificate is None
        assert not stream.verified
        assert await stream.read(200_000) == b"x" * 200_000
        stream.write(b"world")
        with pytest.raises(StreamClosedError):
            await stream.read(1)

    def talk(sock: socket.socket) -> None:
        sock.setblocking(True)
        client = ssl.create_default_context(cafile=str(certificates.ca))
        client.set_alpn_protocols(["postgresql"])
        with client.wrap_socket(sock.dup(), server_hostname="localhost") as encrypted:
            encrypted.sendall(b"x" * 200_000)
            assert encrypted.recv(5) == b"world"
        sock.shutdown(socket.SHUT_RDWR)

    async def theirs(sock: socket.socket) -> None:
        await asyncio.to_thread(talk, sock)

    run(factory, ours, theirs)


@pytest.mark.parametrize("factory", LOOPS)
def test_a_tls_handshake_that_is_given_up_leaves_nothing_running(
    factory: LoopFactory, certificates: Certificates
) -> None:
    context = tls.agent_tls(certificates.certificate, certificates.key).for_connection()

    async def ours(stream: TransportStream) -> None:
        hello = await stream.read(5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await stream.start_tls(context, server_side=True, hello=hello)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= 3

    async def theirs(sock: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, b"\x16\x03\x01\x01\x00")
        await asyncio.sleep(0.3)

    run(factory, ours, theirs)


@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize("later", [True, False], ids=["in the handshake", "before it"])
def test_plaintext_is_never_taken_for_encrypted_words(
    factory: LoopFactory, certificates: Certificates, later: bool
) -> None:
    context = tls.agent_tls(certificates.certificate, certificates.key).for_connection()

    async def ours(stream: TransportStream) -> None:
        assert await stream.read(1) == b"?"
        if not later:
            await asyncio.sleep(0.05)
            assert stream.buffered
        with pytest.raises(StreamClosedError):
            await stream.start_tls(context, server_side=True)
        if later:
            assert stream.buffered == 0

    async def theirs(sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"?" if later else b"?injected")
        await asyncio.sleep(0.1)
        if later:
            await loop.sock_sendall(sock, b"Q\0\0\0\x0dSELECT 1\0")
        await asyncio.sleep(0.1)

    run(factory, ours, theirs)


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        (("127.0.0.1", 1), True),
        (("127.8.8.8", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        ("/run/socket", True),
        ("", True),
        (("10.0.0.1", 1), False),
        (("::ffff:10.0.0.1", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        (("localhost", 1), False),
        ((), False),
        (None, False),
    ],
)
def test_what_counts_as_this_machine(peer: object, local: bool) -> None:
    assert is_local(peer) is local


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        (("2001:db8::1", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:ffff:ffff:ffff", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8:0:1::1", 1, 0, 0), "2001:db8:0:1::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("/run/socket", "local"),
        (None, "local"),
    ],
)
def test_who_is_held_to_account(peer: object, network: str) -> None:
    assert peer_network(peer) == network
