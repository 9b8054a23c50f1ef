"""Somebody in between who ends TLS on one side and begins it on the other: the passwords are of no use there.

What libpq sends and checks is its own; what the proxy must do is offer the binding, hold the client to it,
and see an offer that was taken away. Source: RFC 5802 section 6; CVE-2025-49146 is a client that did not.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.wire import startup
from tests.support.certificates import Certificates, make_certificates
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, free_port, run_proxy

Rewrite = Callable[[bytes], bytes]

OFFER = b"R\0\0\0\x2a\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"
PLAIN_OFFER = b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0"


@pytest.fixture(scope="module")
def proxy(
    postgres18: Server, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    listen = {"tls": {"cert": str(certificates.certificate), "key": str(certificates.key)}}
    with run_proxy(postgres18.shop, tmp_path_factory.mktemp("mitm"), listen=listen) as running:
        yield running


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate for the same name, from another authority."""
    return make_certificates(tmp_path_factory.mktemp("others"))


def unchanged(data: bytes) -> bytes:
    return data


def without_plus(data: bytes) -> bytes:
    return data.replace(OFFER, PLAIN_OFFER)


@contextlib.contextmanager
def in_between(port: int, shown: Certificates, rewrite: Rewrite) -> Iterator[int]:
    """The port of a man in the middle before ``port``; he rewrites what the server says."""
    listener = socket.create_server(("127.0.0.1", free_port()))
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(shown.certificate, shown.key)
    client_side = ssl.create_default_context()
    client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE

    def work() -> None:
        with contextlib.suppress(OSError):  # the listener is closed, or one of the two hangs up
            while True:
                victim, _ = listener.accept()
                with contextlib.suppress(OSError), victim:
                    relay(victim)

    def relay(victim: socket.socket) -> None:
        assert victim.recv(8) == startup.encode_ssl_request()
        victim.sendall(b"S")
        with (
            server_side.wrap_socket(victim, server_side=True) as left,
            socket.create_connection(("127.0.0.1", port)) as sock,
        ):
            sock.sendall(startup.encode_ssl_request())
            assert sock.recv(1) == b"S"
            with client_side.wrap_socket(sock) as right:
                while True:
                    for ready in select.select([left, right], [], [], 10)[0]:
                        data = ready.recv(65536)
                        if not data:
                            return
                        if ready is left:
                            right.sendall(data)
                        else:
                            left.sendall(rewrite(data))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


@pytest.mark.parametrize(
    ("binding", "rewrite", "told"),
    [
        ("prefer", unchanged, "SCRAM channel binding check failed"),
        ("require", unchanged, "SCRAM channel binding check failed"),
        ("prefer", without_plus, "SCRAM channel binding negotiation error"),
        ("require", without_plus, "channel binding is required"),
    ],
    ids=["relayed", "relayed to one who insists", "offer taken away", "taken away from one who insists"],
)
def test_a_relayed_login_is_refused(
    proxy: RunningProxy, others: Certificates, binding: str, rewrite: Rewrite, told: str
) -> None:
    with (
        in_between(proxy.port, others, rewrite) as port,
        pytest.raises(psycopg.OperationalError, match=told),
    ):
        psycopg.connect(**parameters(proxy, port, channel_binding=binding))


def test_the_one_in_between_is_what_is_refused(proxy: RunningProxy, others: Certificates) -> None:
    """The same road with a client that forgoes the binding: so it was nothing else in the tests above."""
    with (
        in_between(proxy.port, others, unchanged) as port,
        psycopg.connect(**parameters(proxy, port, channel_binding="disable")) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_same_certificate_in_between_is_the_same_server(
    proxy: RunningProxy, certificates: Certificates
) -> None:
    """A balancer that ends TLS with the proxy's own certificate and begins it anew binds to the same."""
    with (
        in_between(proxy.port, certificates, unchanged) as port,
        psycopg.connect(**parameters(proxy, port, channel_binding="require")) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)


def parameters(proxy: RunningProxy, port: int, **more: Any) -> dict[str, Any]:
    return {**proxy.parameters("reader"), "port": port, "sslmode": "require", "connect_timeout": 10, **more}


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_our_own_login_is_not_relayed_either(
    postgres15_tls: Server, others: Certificates, certificates: Certificates, tmp_path: Path, mode: str
) -> None:
    """The backend's leg: nobody between us and PostgreSQL gets to use the role's password."""
    tls = {"mode": mode, **({"ca": str(certificates.ca)} if mode == "verify-full" else {})}
    with in_between(postgres15_tls.port, others, unchanged) as port:
        backend = {"host": "localhost", "port": port, "tls": tls}
        with (
            run_proxy(postgres15_tls.shop, tmp_path, backend=backend) as proxy,
            pytest.raises(psycopg.OperationalError) as caught,
        ):
            psycopg.connect(**proxy.parameters("reader"))
        told = "refused the login configured for this agent" if mode == "require" else "TLS with the database"
        assert told in str(caught.value)
        reasons = [str(entry.get("reason")) for entry in proxy.log()]
        why = "channel binding check failed" if mode == "require" else "CERTIFICATE_VERIFY_FAILED"
        assert any(why in reason for reason in reasons), reasons
