"""TLS as its clients speak it: libpq in both negotiations, channel binding, and what no client of ours sends.

The proxy stands before PostgreSQL 15 with TLS on both legs, as the wheel's PostgreSQL 18 has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pg8000.dbapi
import psycopg
import pytest

from proxy import backend, scram, tls
from proxy.backend import Endpoint, Login
from proxy.scram import Verifier
from proxy.tls import TLSMode
from proxy.wire import client_hello as ch
from proxy.wire import startup
from tests.support.certificates import Certificates
from tests.support.hello import client_hello
from tests.support.postgres import Server
from tests.support.proxy import PASSWORD, RunningProxy, run_proxy, wait_for

needs_libpq17 = pytest.mark.skipif(psycopg.pq.version() < 170000, reason="direct TLS came with libpq 17")
needs_libpq18 = pytest.mark.skipif(psycopg.pq.version() < 180000, reason="protocol 3.2 came with libpq 18")


@pytest.fixture(scope="module")
def proxy(
    postgres15_tls: Server, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """TLS on both legs, required on the agents'."""
    listen = {"tls": {"cert": str(certificates.certificate), "key": str(certificates.key)}}
    to_server = {"host": "localhost", "tls": {"ca": str(certificates.ca)}}
    folder = tmp_path_factory.mktemp("tls")
    with run_proxy(postgres15_tls.shop, folder, listen=listen, backend=to_server) as running:
        yield running


def connect(proxy: RunningProxy, user: str = "reader", **more: Any) -> psycopg.Connection[Any]:
    given = {"sslmode": "require", **more}
    return psycopg.connect(**proxy.parameters(user, **given), autocommit=True)


@needs_libpq17
@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
@pytest.mark.parametrize("user", ["reader", "shop_app"])
def test_either_negotiation(
    proxy: RunningProxy, certificates: Certificates, negotiation: str, user: str
) -> None:
    password = proxy.database.server.passwords.get(user, PASSWORD)
    verified = {"host": "localhost", "sslmode": "verify-full", "sslrootcert": str(certificates.ca)}
    with connect(proxy, user, password=password, sslnegotiation=negotiation, **verified) as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("SELECT repeat('x', 100000)").fetchone() == ("x" * 100_000,)
        connection.cancel_safe()


@pytest.mark.parametrize("binding", ["require", "prefer", "disable"])
def test_scram_with_and_without_channel_binding(proxy: RunningProxy, binding: str) -> None:
    with connect(proxy, channel_binding=binding) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_pg8000_binds_by_a_hash_of_its_own(proxy: RunningProxy, certificates: Certificates) -> None:
    given = proxy.parameters(ssl_context=ssl.create_default_context(cafile=str(certificates.ca)))
    given["database"] = given.pop("dbname")
    connection = pg8000.dbapi.connect(**given)
    try:
        assert connection.auth.mechanism_name == "SCRAM-SHA-256-PLUS"
    finally:
        connection.close()


@needs_libpq18
@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
def test_protocol_3_2_over_tls(proxy: RunningProxy, negotiation: str) -> None:
    with connect(proxy, min_protocol_version="3.2", sslnegotiation=negotiation) as connection:
        assert connection.pgconn.full_protocol_version == 30002
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_backend_leg_is_bound_to_its_connection(
    postgres15_tls: Server, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL checks the binding and logs no mechanism: what we chose is seen on our side."""
    chosen: list[object] = []

    class Exchange(scram.ClientExchange):
        def __init__(self, **options: Any) -> None:
            chosen.append(options["binding"])
            super().__init__(**options)

    monkeypatch.setattr(scram, "ClientExchange", Exchange)
    context = tls.backend_context(TLSMode.VERIFY_FULL, certificates.ca)
    endpoint = Endpoint("localhost", postgres15_tls.port, TLSMode.VERIFY_FULL, context)
    login = Login("shop_ro", "shop", postgres15_tls.passwords["shop_ro"])

    async def run() -> None:
        stream = await backend.connect(endpoint)
        try:
            await backend.log_in(stream, login)
        finally:
            stream.abort()

    asyncio.run(run())
    der = ssl.PEM_cert_to_DER_cert(certificates.certificate.read_text())
    assert chosen == [hashlib.sha256(der).digest()]


# --- what no client of ours sends ---


def raw(proxy: RunningProxy) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", proxy.port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def rest(sock: socket.socket) -> bytes:
    """All that comes until the proxy hangs up."""
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


ALERT = ch.encode_alert(ch.NO_APPLICATION_PROTOCOL)


@pytest.mark.parametrize(
    ("asks", "protocols", "told"),
    [
        (True, ["h2"], ALERT),
        (False, ["h2"], ALERT),
        (False, [], ALERT),
    ],
    ids=["another protocol", "another protocol at once", "no protocol at once"],
)
def test_tls_that_is_not_meant_for_us(
    proxy: RunningProxy, asks: bool, protocols: list[str], told: bytes
) -> None:
    with raw(proxy) as sock:
        if asks:
            sock.sendall(startup.encode_ssl_request())
            assert sock.recv(1) == b"S"
        sock.sendall(client_hello(protocols))
        assert rest(sock) == told


def test_a_hello_byte_by_byte(proxy: RunningProxy, certificates: Certificates) -> None:
    hello = client_hello(["postgresql"])
    with raw(proxy) as sock:
        for byte in hello:
            sock.sendall(bytes([byte]))
        assert sock.recv(3) == b"\x16\x03\x03"


@pytest.mark.parametrize(
    "words",
    [startup.encode_startup({"user": "trusted"}), startup.encode_ssl_request(), b"\0" * 100],
    ids=["a startup packet", "another request", "zeros"],
)
def test_plaintext_in_place_of_the_handshake(proxy: RunningProxy, words: bytes) -> None:
    with raw(proxy) as sock:
        sock.sendall(startup.encode_ssl_request())
        assert sock.recv(1) == b"S"
        sock.sendall(words)
        assert rest(sock) == b""


def test_plaintext_behind_the_hello_is_never_read_as_words(proxy: RunningProxy) -> None:
    """CVE-2021-23222's other half: what a man in the middle puts behind a direct ClientHello."""
    words = startup.encode_startup({"user": "trusted", "database": proxy.database.name})
    with raw(proxy) as sock:
        sock.sendall(client_hello(["postgresql"]) + words)
        answer = rest(sock)
    assert answer[:1] in (b"\x16", b"\x15", b"")
    assert b"trusted" not in answer
    assert not proxy.log() or "trusted" not in str(proxy.log()[-1].get("agent"))


HELLO = client_hello(["postgresql"])
RECORDS = {
    "a heartbeat that asks for more than it holds": b"\x18\x03\x02\x00\x03\x01\x40\x00",
    "a change of ciphers out of turn": b"\x14\x03\x03\x00\x01\x01",
    "two changes of ciphers": b"\x14\x03\x03\x00\x01\x01" * 2,
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "data in clear": b"\x17\x03\x03\x00\x05hello",
    "a record over its limit": b"\x16\x03\x01\xff\xff" + b"\x01" * 300,
    "an empty record": b"\x16\x03\x01\x00\x00",
    "a hello of SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"\x01\x00\x80" * 7 + b"c" * 16,
    "a hello that says it is longer": HELLO[:6] + b"\x00\xff\xff" + HELLO[9:],
    "a hello cut into records": b"\x16\x03\x01\x00\x04" + HELLO[5:9] + HELLO[:3] + b"\x00\x10" + HELLO[9:25],
    "a finished in clear": b"\x16\x03\x03\x00\x10\x14\x00\x00\x0c" + b"f" * 12,
}
HANDSHAKE, ALERTED, CIPHERS_CHANGED, ENCRYPTED = 22, 21, 20, 23


@pytest.mark.parametrize("behind", [False, True], ids=["in place of a hello", "behind one"])
@pytest.mark.parametrize("name", RECORDS)
def test_records_that_broke_other_libraries(proxy: RunningProxy, name: str, behind: bool) -> None:
    """Heartbleed (CVE-2014-0160), an early ChangeCipherSpec (CVE-2014-0224) and their like: the answer is an
    alert at the most, behind a hello what answers the hello, and never a byte that was not ours to send."""
    with raw(proxy) as sock:
        sock.sendall(startup.encode_ssl_request())
        assert sock.recv(1) == b"S"
        sock.sendall((HELLO if behind else b"") + RECORDS[name])
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        answer = rest(sock)
    kinds = set(record_kinds(answer))
    assert kinds <= ({HANDSHAKE, CIPHERS_CHANGED, ENCRYPTED, ALERTED} if behind else {ALERTED})
    assert len(answer) < (4096 if behind else 16)
    assert b"hello" not in answer
    with connect(proxy) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def record_kinds(data: bytes) -> Iterator[int]:
    """Of whole TLS records, of which ``data`` must consist."""
    while data:
        length = 5 + int.from_bytes(data[3:5], "big")
        assert len(data) >= length
        yield data[0]
        data = data[length:]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_not_spoken(proxy: RunningProxy, version: ssl.TLSVersion) -> None:
    assert_no_tls(proxy, lax(version), "UNSUPPORTED_PROTOCOL")


@pytest.mark.parametrize(
    "ciphers",
    ["NULL", "aNULL", "AES128-SHA", "AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-SHA", "DHE-RSA-AES128-SHA"],
)
def test_weak_ciphers_are_not_spoken(proxy: RunningProxy, ciphers: str) -> None:
    context = lax(ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    assert_no_tls(proxy, context, "NO_SHARED_CIPHER")


@pytest.mark.parametrize(
    ("version", "name"), [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")]
)
def test_what_is_spoken_is_sane(proxy: RunningProxy, version: ssl.TLSVersion, name: str) -> None:
    with raw(proxy) as sock, lax(version).wrap_socket(sock) as connection:
        cipher = connection.cipher()
        assert connection.version() == name
        assert connection.compression() is None
        assert connection.selected_alpn_protocol() == "postgresql"
    assert cipher is not None
    assert "GCM" in cipher[0] or "CHACHA20" in cipher[0]
    assert cipher[2] >= 128


def lax(version: ssl.TLSVersion) -> ssl.SSLContext:
    """A client that would speak ``version`` with anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["postgresql"])
    return context


def assert_no_tls(proxy: RunningProxy, context: ssl.SSLContext, why: str) -> None:
    """The handshake fails, for the reason that the log gives."""
    with raw(proxy) as sock:
        client = "{}:{}".format(*sock.getsockname())
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(sock)
    [entry] = proxy.logged("connection dropped", client=client)
    assert why in entry["reason"]


def test_no_renegotiation(proxy: RunningProxy) -> None:
    command = [
        "openssl",
        "s_client",
        "-starttls",
        "postgres",
        "-tls1_2",
        "-connect",
        f"127.0.0.1:{proxy.port}",
    ]
    done = subprocess.run(command, input=b"R\n", capture_output=True, timeout=20, check=False)
    output = done.stdout + done.stderr
    assert b"RENEGOTIATING" in output
    assert b"no renegotiation" in output.lower() or b"no_renegotiation" in output.lower(), output.decode()


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_no_session_is_resumed_by_ticket(proxy: RunningProxy, version: str) -> None:
    command = ["openssl", "s_client", "-starttls", "postgres", version, "-connect", f"127.0.0.1:{proxy.port}"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=20, check=False)
    assert b"CONNECTED" in done.stdout
    assert b"session ticket" not in done.stdout.lower()


def test_no_session_is_resumed_by_its_name(proxy: RunningProxy) -> None:
    """TLS 1.2 keeps sessions on the server's side unless it is told not to; clients in Java ask for them."""
    context = lax(ssl.TLSVersion.TLSv1_2)
    session = None
    for _ in range(3):
        with raw(proxy) as sock:
            sock.sendall(startup.encode_ssl_request())
            assert sock.recv(1) == b"S"
            with context.wrap_socket(sock, session=session) as connection:
                assert not connection.session_reused
                session = connection.session
                connection.unwrap()
    assert session is not None


# --- direct TLS towards the backend ---

OBSERVED = "version: 1\nname: inner\nmode: observe\naccess: read_write\nstatements: {select: allow}\n"


@pytest.mark.parametrize("own", [False, True], ids=["by password", "by certificate"])
def test_direct_tls_towards_the_backend(
    postgres15_tls: Server, certificates: Certificates, tmp_path: Path, own: bool
) -> None:
    """A second proxy stands for PostgreSQL 17 and later, which the tests have with TLS in no package."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    files = {"cert": str(certificates.certificate), "key": str(certificates.key)}
    agents = {
        "known": {
            "auth": {"cert": {"cn": "outer"}} if own else {"scram": str(Verifier.derive(PASSWORD))},
            "login": {"user": "shop_ro", "password_env": "PASSWORD_SHOP_RO"},
            "policy": "observed.yaml",
        }
    }
    (inner / "observed.yaml").write_text(OBSERVED)
    (outer / "password").write_text(PASSWORD)
    to_inner: dict[str, Any] = {"mode": "verify-full", "ca": str(certificates.ca), "negotiation": "direct"}
    login = {"user": "known", **({} if own else {"password_file": "password"})}
    if own:
        cert, key = certificates.issue("outer")
        to_inner |= {"cert": str(cert), "key": str(key)}
    trusted = {"auth": {"trust": "loopback"}, "login": login, "policy": "reader.yaml"}
    listen = {"tls": {**files, "client_ca": str(certificates.ca)}}
    with run_proxy(postgres15_tls.shop, inner, listen=listen, agents=agents) as behind:
        backend = {"host": "localhost", "port": behind.port, "tls": to_inner}
        with (
            run_proxy(postgres15_tls.shop, outer, backend=backend, agents={"trusted": trusted}) as front,
            psycopg.connect(**front.parameters("trusted", None), autocommit=True) as connection,
        ):
            assert connection.execute("SELECT count(*) > 0 FROM customers").fetchone() == (True,)
            assert front.logged("catalog_read")
        assert behind.logged("connection opened", agent="known")


def test_direct_tls_towards_a_server_that_knows_none(
    postgres15_tls: Server, certificates: Certificates, tmp_path: Path
) -> None:
    to_server = {"host": "localhost", "tls": {"ca": str(certificates.ca), "negotiation": "direct"}}
    with (
        run_proxy(postgres15_tls.shop, tmp_path, backend=to_server) as proxy,
        pytest.raises(psycopg.OperationalError, match="TLS with the database server failed"),
    ):
        psycopg.connect(**proxy.parameters("reader"))


# --- who takes long ---


def test_a_handshake_that_does_not_go_on_is_ended(
    postgres15_tls: Server, certificates: Certificates, tmp_path: Path
) -> None:
    """At each point of a TLS handshake: the places are free again, nothing is answered, nobody is let in."""
    files = {"cert": str(certificates.certificate), "key": str(certificates.key)}
    hello = client_hello(["postgresql"])
    limits = {"startup_timeout": "1s", "connections": 8}
    with run_proxy(postgres15_tls.shop, tmp_path, listen={"tls": files}, limits=limits) as proxy:
        stuck = [raw(proxy) for _ in range(8)]
        for place, sock in enumerate(stuck):
            if place % 2:
                sock.sendall(startup.encode_ssl_request())
                assert sock.recv(1) == b"S"
            sock.sendall(hello[: (0, 3, 60, len(hello))[place // 2]])
        for place, sock in enumerate(stuck):
            answer = rest(sock)
            assert (answer[:1] == b"\x16") == (place // 2 == 3)
            sock.close()
        with connect(proxy) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


# --- ends ---


@pytest.mark.parametrize("how", ["goodbye", "end of stream", "reset", "half of a record"])
def test_an_agent_that_goes_frees_its_locks(proxy: RunningProxy, how: str) -> None:
    """Whether TLS was ended in its own way or the connection just stops."""
    with proxy.database.server.database() as database:
        connection = psycopg.connect(
            **proxy.parameters("writer", dbname=database.name, sslmode="require"), autocommit=True
        )
        connection.execute("BEGIN")
        connection.execute("UPDATE customers SET notes = 'locked' WHERE id = 1")
        pid = connection.info.backend_pid
        match how:
            case "goodbye":
                connection.close()
            case "end of stream" | "half of a record":
                with socket.socket(fileno=os.dup(connection.fileno())) as sock:
                    sock.sendall(b"\x17\x03\x03\x01\x00half" if how == "half of a record" else b"")
                    sock.shutdown(socket.SHUT_RDWR)
            case "reset":
                with socket.socket(fileno=os.dup(connection.fileno())) as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
        alive = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"
        wait_for(lambda: not database.execute(alive))
        assert database.execute("SELECT count(*) FROM customers WHERE notes = 'locked'") == [(0,)]
        connection.close()


def test_a_record_that_was_tampered_with_ends_the_connection(proxy: RunningProxy) -> None:
    with connect(proxy) as connection:
        pid = connection.info.backend_pid
        with socket.socket(fileno=os.dup(connection.fileno())) as sock:
            sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        alive = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"
        wait_for(lambda: not proxy.database.execute(alive))
