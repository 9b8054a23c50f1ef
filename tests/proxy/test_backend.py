"""The backend leg against scripted servers: every way to log in, and every way to be lied to."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from proxy import backend, channel_binding, scram
from proxy.backend import BackendError, BackendSession, Endpoint, Login
from proxy.tls import PeerCertificate, TLSMode
from proxy.wire import authentication, startup
from proxy.wire.backend import encode_error, encode_fields, encode_ready, frame
from tests.support.streams import MemoryStream, read_message, run_both

Script = Callable[[MemoryStream], Awaitable[None]]

PINS = {"client_encoding": "UTF8", "statement_timeout": "30000"}
LOGIN = Login("shop_ro", "shop", "secret", {"application_name": "test"}, PINS)


def row(*values: str | None) -> bytes:
    parts = [struct.pack("!i", -1) if v is None else struct.pack("!i", len(v)) + v.encode() for v in values]
    return frame(b"D", struct.pack("!H", len(values)) + b"".join(parts))


async def startup_packet(stream: MemoryStream) -> startup.StartupPacket:
    length = startup.body_length(await stream.read(4))
    read = startup.decode(await stream.read(length))
    assert isinstance(read, startup.StartupPacket)
    return read


def server(
    authenticate: Script | None = None,
    *,
    answer: Sequence[str | None] = ("{public}", '"$user", public', "UTF8", "30s"),
    before_ready: bytes = b"",
    seen: list[object] | None = None,
) -> Script:
    """A server that logs anybody in whom ``authenticate`` lets pass, and answers one query."""

    async def run(stream: MemoryStream) -> None:
        packet = await startup_packet(stream)
        if authenticate is not None:
            await authenticate(stream)
        stream.write(
            authentication.encode_ok()
            + startup.encode_parameter_status("server_version", "18.6")
            + startup.encode_backend_key(4711, b"real")
            + before_ready
            + encode_ready(b"I")
        )
        kind, body = await read_message(stream)
        assert kind == b"Q"
        if seen is not None:
            seen.extend([packet, body])
        stream.write(frame(b"T", b"\0\0") + row(*answer) + frame(b"C", b"SELECT 1\0") + encode_ready(b"I"))
        await stream.rest()

    return run


def log_in(
    script: Script,
    login: Login = LOGIN,
    *,
    local: bool = True,
    encrypted: bool = False,
    verified: bool = False,
    certificate: PeerCertificate | None = None,
) -> BackendSession:
    async def ours(stream: MemoryStream) -> BackendSession:
        stream.verified = verified
        stream.certificate = certificate
        return await backend.log_in(stream, login)

    return run_both(ours, script, local=local, encrypted=encrypted)


def refused(script: Script, login: Login = LOGIN, **options: bool) -> BackendError:
    with pytest.raises(BackendError) as caught:
        log_in(script, login, **options)
    return caught.value


async def ask_cleartext(stream: MemoryStream) -> None:
    stream.write(authentication.encode_cleartext_wanted())
    assert await read_message(stream) == (b"p", b"secret\0")


async def ask_md5(stream: MemoryStream) -> None:
    stream.write(authentication.encode_md5_wanted(b"salt"))
    inner = hashlib.md5(b"secretshop_ro").hexdigest().encode()
    expected = b"md5" + hashlib.md5(inner + b"salt").hexdigest().encode() + b"\0"
    assert await read_message(stream) == (b"p", expected)


async def ask_scram(stream: MemoryStream, password: str = "secret", mechanisms: Sequence[str] = ()) -> None:
    exchange = scram.ServerExchange(scram.Verifier.derive(password))
    stream.write(authentication.encode_sasl_wanted(mechanisms or ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]))
    _, body = await read_message(stream)
    mechanism, first = authentication.decode_sasl_initial(body)
    assert mechanism == "SCRAM-SHA-256"
    stream.write(authentication.encode_sasl_continue(exchange.challenge(first or b"")))
    _, final = await read_message(stream)
    stream.write(authentication.encode_sasl_final(exchange.verify(final)))


BOTH = ("SCRAM-SHA-256-PLUS", "SCRAM-SHA-256")
BINDS = PeerCertificate(bytes.fromhex("3012 3000 300b06092a864886f70d01010b 030100"))
"""The bare bones of a certificate: nothing, signed by RSA with SHA-256."""
UNBINDABLE = PeerCertificate(b"signed in a way that names no hash function")


@pytest.mark.parametrize(
    ("shown", "offered", "chosen", "header"),
    [
        (BINDS, BOTH, "SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,"),
        (BINDS, BOTH[:1], "SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,"),
        (BINDS, BOTH[1:], "SCRAM-SHA-256", b"y,,"),
        (UNBINDABLE, BOTH, "SCRAM-SHA-256", b"n,,"),
        (UNBINDABLE, BOTH[1:], "SCRAM-SHA-256", b"n,,"),
        (None, BOTH, "SCRAM-SHA-256", b"n,,"),
        (None, BOTH[1:], "SCRAM-SHA-256", b"n,,"),
    ],
)
def test_the_login_is_bound_to_the_connection_wherever_it_can_be(
    shown: PeerCertificate | None, offered: Sequence[str], chosen: str, header: bytes
) -> None:
    async def asks(stream: MemoryStream) -> None:
        binding = channel_binding.end_point(shown.der) if shown is not None else None
        exchange = scram.ServerExchange(
            scram.Verifier.derive("secret"), binding=binding if BOTH[0] in offered else None
        )
        stream.write(authentication.encode_sasl_wanted(offered))
        _, body = await read_message(stream)
        mechanism, client_first = authentication.decode_sasl_initial(body)
        assert mechanism == chosen
        assert client_first is not None
        assert client_first.startswith(header)
        stream.write(authentication.encode_sasl_continue(exchange.challenge(client_first, mechanism)))
        _, final = await read_message(stream)
        stream.write(authentication.encode_sasl_final(exchange.verify(final)))

    assert log_in(server(asks), encrypted=shown is not None, certificate=shown).pid == 4711


@pytest.mark.parametrize("shown", [UNBINDABLE, None])
def test_a_binding_that_cannot_be_had_is_not_done_without(shown: PeerCertificate | None) -> None:
    async def asks(stream: MemoryStream) -> None:
        stream.write(authentication.encode_sasl_wanted(BOTH[:1]))
        assert await stream.rest() == b""

    with pytest.raises(BackendError, match="insists on a channel binding"):
        log_in(server(asks), encrypted=shown is not None, certificate=shown)


@pytest.mark.parametrize("authenticate", [None, ask_cleartext, ask_md5, ask_scram])
def test_each_way_to_log_in(authenticate: Script | None) -> None:
    seen: list[object] = []
    session = log_in(server(authenticate, seen=seen))
    assert session == BackendSession(
        4711, b"real", {"server_version": "18.6"}, ("public",), ("shop_ro", "public")
    )
    packet, query = seen
    assert isinstance(packet, startup.StartupPacket)
    assert packet.requested == startup.V3_0
    assert packet.parameters == {
        "user": "shop_ro",
        "database": "shop",
        "application_name": "test",
        "client_encoding": "UTF8",
        "statement_timeout": "30000",
    }
    assert query == (
        b"SELECT CASE WHEN pg_catalog.strpos(pg_catalog.current_setting('search_path'), 'pg_temp') "
        b"OPERATOR(pg_catalog.=) 0 THEN pg_catalog.current_schemas(false) END, "
        b"pg_catalog.current_setting('search_path'), pg_catalog.current_setting('client_encoding'), "
        b"pg_catalog.current_setting('statement_timeout')\0"
    )


def test_pins_win_over_settings() -> None:
    seen: list[object] = []
    log_in(server(seen=seen), Login("r", "d", settings={"statement_timeout": "0"}, pins=PINS))
    assert isinstance(seen[0], startup.StartupPacket)
    assert seen[0].parameters["statement_timeout"] == "30000"


def test_notices_and_late_parameters_are_read_past() -> None:
    notice = encode_fields(b"N", {"severity": "WARNING", "message": "role shop_ro expires soon"})
    session = log_in(server(before_ready=notice + startup.encode_parameter_status("server_version", "19")))
    assert session.parameters == {"server_version": "19"}


@pytest.mark.parametrize(
    ("used", "setting", "path", "listed"),
    [
        ("{}", "", (), ()),
        ('{a,"Odd, name"}', 'A, "Odd, name", b', ("a", "Odd, name"), ("a", "Odd, name", "b")),
        ("{pg_catalog,public}", 'pg_catalog, "$user"', ("pg_catalog", "public"), ("pg_catalog", "shop_ro")),
        (None, "pg_temp, public", ("pg_temp", "public"), ("pg_temp", "public")),
    ],
)
def test_the_search_path_is_learnt(
    used: str | None, setting: str, path: tuple[str, ...], listed: tuple[str, ...]
) -> None:
    session = log_in(server(answer=(used, setting, "UTF8", "30s")))
    assert (session.search_path, session.listed) == (path, listed)


@pytest.mark.parametrize("shown", ["30000ms", "30s"])
def test_a_time_is_the_same_in_any_unit(shown: str) -> None:
    assert log_in(server(answer=("{public}", "public", "UTF8", shown))).pid == 4711


@pytest.mark.parametrize("shown", ["0", "31s", "30min", "3000", "s", "", "30 s", "on"])
def test_a_pin_that_does_not_hold_ends_the_session(shown: str) -> None:
    error = refused(server(answer=("{public}", "public", "UTF8", shown)))
    assert (error.sqlstate, error.fields) == ("55000", {})
    assert str(error) == 'the database session does not keep the setting "statement_timeout"'


def test_another_encoding_ends_the_session() -> None:
    assert "client_encoding" in str(refused(server(answer=("{public}", "public", "SJIS", "30s"))))


@pytest.mark.parametrize(
    "answer",
    [
        ("{public}", "public", "UTF8"),
        ("{public}", "public", "UTF8", None),
        ("{public}", None, "UTF8", "30s"),
        ("public", "public", "UTF8", "30s"),
    ],
)
def test_an_answer_that_does_not_fit_ends_the_session(answer: Sequence[str | None]) -> None:
    assert refused(server(answer=answer)).sqlstate == "08P01"


def test_a_server_that_asks_for_no_password_proves_nobody() -> None:
    error = refused(server(), Login("root", "shop", "guess", must_ask=True))
    assert error.sqlstate == "28000"
    assert "asked for no password" in str(error)


def test_an_agents_own_password_logs_in_where_it_is_asked_for() -> None:
    assert log_in(server(ask_scram), Login("shop_ro", "shop", "secret", pins=PINS, must_ask=True)).pid == 4711


def test_no_password_for_a_server_that_asks() -> None:
    error = refused(server(ask_scram), Login("shop_ro", "shop", None))
    assert (error.sqlstate, str(error)) == (
        "28000",
        "the database server asks for a password and none is configured",
    )


@pytest.mark.parametrize(("local", "verified"), [(True, False), (False, True)])
def test_in_clear_over_a_safe_way(local: bool, verified: bool) -> None:
    assert log_in(server(ask_cleartext), local=local, encrypted=verified, verified=verified).pid == 4711


@pytest.mark.parametrize("encrypted", [False, True], ids=["without TLS", "with TLS to anybody"])
def test_never_in_clear_to_who_may_be_in_between(encrypted: bool) -> None:
    heard: list[bytes] = []

    async def greedy(stream: MemoryStream) -> None:
        await startup_packet(stream)
        stream.write(authentication.encode_cleartext_wanted())
        heard.append(await stream.rest())

    assert refused(greedy, local=False, encrypted=encrypted).sqlstate == "28000"
    assert heard == [b""]


def test_a_server_that_does_not_know_the_verifier_is_refused() -> None:
    async def forger(stream: MemoryStream) -> None:
        exchange = scram.ServerExchange(scram.Verifier.derive("other"))
        stream.write(authentication.encode_sasl_wanted(["SCRAM-SHA-256"]))
        _, body = await read_message(stream)
        first = authentication.decode_sasl_initial(body)[1] or b""
        stream.write(authentication.encode_sasl_continue(exchange.challenge(first)))
        await read_message(stream)
        stream.write(authentication.encode_sasl_final(b"v=" + base64.b64encode(b"\0" * 32)))

    error = refused(server(forger))
    assert error.sqlstate == "28000"
    assert "could not prove" in str(error)


def test_a_scram_login_is_not_over_before_the_servers_proof() -> None:
    async def hasty(stream: MemoryStream) -> None:
        exchange = scram.ServerExchange(scram.Verifier.derive("secret"))
        stream.write(authentication.encode_sasl_wanted(["SCRAM-SHA-256"]))
        _, body = await read_message(stream)
        first = authentication.decode_sasl_initial(body)[1] or b""
        stream.write(authentication.encode_sasl_continue(exchange.challenge(first)))
        await read_message(stream)

    assert refused(server(hasty)).sqlstate == "08P01"


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=x,s=c2FsdA==,i=4096",
        b"r=%NONCE%x,s=c2FsdA==,i=2000000000",
        b"r=%NONCE%" + b"x" * 2000 + b",s=eA==,i=1",
    ],
    ids=["nonce", "iterations", "long nonce"],
)
def test_a_hostile_challenge_ends_the_login(challenge: bytes) -> None:
    async def hostile(stream: MemoryStream) -> None:
        await startup_packet(stream)
        stream.write(authentication.encode_sasl_wanted(["SCRAM-SHA-256"]))
        _, body = await read_message(stream)
        nonce = (authentication.decode_sasl_initial(body)[1] or b"").partition(b"r=")[2]
        stream.write(authentication.encode_sasl_continue(challenge.replace(b"%NONCE%", nonce)))
        await stream.rest()

    assert refused(hostile).sqlstate == "08P01"


@pytest.mark.parametrize(
    "wanted",
    [frame(b"R", struct.pack("!I", code)) for code in (2, 7, 9, 13)]
    + [authentication.encode_sasl_wanted(["OAUTHBEARER"])],
)
def test_methods_that_are_not_offered(wanted: bytes) -> None:
    async def script(stream: MemoryStream) -> None:
        await startup_packet(stream)
        stream.write(wanted)
        await stream.rest()

    error = refused(script)
    assert error.sqlstate == "28000"
    assert "not offered" in str(error)


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"H",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"R\xff\xff\xff\xff",
        b"R\0\0\0\x03",
        b"R\0\x01\0\x05" + b"x" * 70_000,
        encode_ready(b"I"),
        authentication.encode_ok() + encode_ready(b"I"),
        authentication.encode_ok() + encode_ready(b"T"),
        authentication.encode_ok() + frame(b"K", b"\0\0"),
        authentication.encode_ok() + frame(b"T", b"\0\0"),
        authentication.encode_ok() + frame(b"v", struct.pack("!II", 196608, 0)),
        authentication.encode_ok() + frame(b"S", b"a\0b"),
        authentication.encode_ok() + authentication.encode_ok(),
        authentication.encode_ok() + startup.encode_parameter_status("a", "b") * 1001,
        authentication.encode_ok()
        + b"".join(startup.encode_parameter_status(f"p{n}", "") for n in range(257)),
        frame(b"N", b"\0") * 1000 + authentication.encode_ok(),
        encode_error({"message": "x"})[:-1],
    ],
)
def test_whatever_a_server_says_the_error_is_ours(words: bytes) -> None:
    async def script(stream: MemoryStream) -> None:
        await startup_packet(stream)
        stream.write(words)

    error = refused(script)
    assert error.sqlstate in ("08P01", "57P03")
    assert error.fields == {}


def test_an_error_of_the_server_is_kept_as_it_was() -> None:
    async def script(stream: MemoryStream) -> None:
        await startup_packet(stream)
        stream.write(encode_error({"severity": "FATAL", "sqlstate": "3D000", "message": "no such database"}))

    error = refused(script)
    assert (error.sqlstate, str(error), error.fields["severity_plain"]) == (
        "3D000",
        "no such database",
        "FATAL",
    )


def test_an_error_without_sqlstate_gets_one() -> None:
    async def script(stream: MemoryStream) -> None:
        await startup_packet(stream)
        stream.write(frame(b"E", b"Mgo away\0\0"))

    assert refused(script).sqlstate == "08006"


def test_an_error_in_answer_to_the_check_is_the_servers() -> None:
    async def script(stream: MemoryStream) -> None:
        await startup_packet(stream)
        stream.write(authentication.encode_ok() + startup.encode_backend_key(1, b"real") + encode_ready(b"I"))
        await read_message(stream)
        stream.write(encode_error({"sqlstate": "57014", "message": "canceled"}) + encode_ready(b"I"))

    assert refused(script).sqlstate == "57014"


# --- whether it takes sessions ---


@pytest.mark.parametrize(
    ("answer", "takes_none"),
    [
        (authentication.encode_ok(), ""),
        (authentication.encode_sasl_wanted(["SCRAM-SHA-256"]), ""),
        (encode_error({"sqlstate": "57P03", "message": "the database system is starting up"}), "starting up"),
        (encode_error({"sqlstate": "3D000", "message": "no such database"}), ""),
        (encode_error({"sqlstate": "28000", "message": "no pg_hba.conf entry"}), ""),
        (encode_error({"sqlstate": "53300", "message": "too many clients already"}), ""),
        (b"", "closed the connection"),
        (b"R\0\0\0\0", "broke the protocol"),
    ],
)
def test_a_server_takes_sessions_unless_it_says_that_it_takes_none(answer: bytes, takes_none: str) -> None:
    async def ours(stream: MemoryStream) -> str:
        try:
            await backend.takes_sessions(stream, "shop_ro", "shop")
        except BackendError as error:
            return str(error)
        return ""

    async def script(stream: MemoryStream) -> None:
        assert (await startup_packet(stream)).parameters == {"user": "shop_ro", "database": "shop"}
        stream.write(answer)

    said = run_both(ours, script)
    assert takes_none in said
    assert bool(said) is bool(takes_none)


# --- encryption ---

CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.mark.parametrize(
    ("mode", "answer", "outcome"),
    [
        (TLSMode.REQUIRE, b"S", "encrypted"),
        (TLSMode.PREFER, b"S", "encrypted"),
        (TLSMode.PREFER, b"N", "in clear"),
        (TLSMode.REQUIRE, b"N", "does not offer TLS"),
        (TLSMode.VERIFY_FULL, b"N", "does not offer TLS"),
        (TLSMode.PREFER, b"E", "does not offer TLS"),
        (TLSMode.REQUIRE, b"SE\0\0\0\x05x", "sent data before TLS was up"),
        (TLSMode.PREFER, b"NR", "sent data before TLS was up"),
        (TLSMode.REQUIRE, b"", "failed"),
    ],
)
def test_asking_for_tls(mode: TLSMode, answer: bytes, outcome: str) -> None:
    async def ours(stream: MemoryStream) -> str:
        try:
            await backend.encrypt(stream, Endpoint("db.example", 5432, mode, CONTEXT))
        except BackendError as error:
            return str(error)
        assert not stream.encrypted or stream.hostname == "db.example"
        return "encrypted" if stream.encrypted else "in clear"

    async def theirs(stream: MemoryStream) -> None:
        assert await stream.read(8) == startup.encode_ssl_request()
        stream.write(answer)
        if answer:
            await stream.rest()

    assert outcome in run_both(ours, theirs)


@pytest.mark.parametrize(("alpn", "outcome"), [("postgresql", ""), (None, "does not offer direct TLS")])
def test_tls_at_once(alpn: str | None, outcome: str) -> None:
    async def ours(stream: MemoryStream) -> str:
        stream.alpn = alpn
        try:
            await backend.encrypt(stream, Endpoint("db.example", 5432, TLSMode.REQUIRE, CONTEXT, direct=True))
        except BackendError as error:
            return str(error)
        assert stream.encrypted
        return ""

    async def theirs(stream: MemoryStream) -> None:
        assert await stream.rest() == b""  # TLS itself is not a stream in memory's business

    assert outcome in run_both(ours, theirs)


def test_nobody_listens() -> None:
    async def attempt() -> None:
        await backend.connect(Endpoint("127.0.0.1", 1))

    with pytest.raises(BackendError) as caught:
        asyncio.run(attempt())
    assert caught.value.sqlstate == "57P03"


@pytest.mark.parametrize("by_socket", [True, False])
def test_connecting(tmp_path: Path, by_socket: bool) -> None:
    async def attempt() -> None:
        heard = asyncio.Queue[bytes]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.put_nowait(await reader.read())
            writer.close()

        listener = await (
            asyncio.start_unix_server(serve, tmp_path / ".s.PGSQL.7")
            if by_socket
            else asyncio.start_server(serve, "127.0.0.1", 0)
        )
        port = 7 if by_socket else listener.sockets[0].getsockname()[1]
        stream = await backend.connect(Endpoint(str(tmp_path) if by_socket else "127.0.0.1", port))
        sock = stream.transport.get_extra_info("socket")
        assert by_socket or sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert stream.local
        stream.write(b"hello")
        stream.close()
        assert await heard.get() == b"hello"
        listener.close()

    asyncio.run(attempt())


def test_a_cancel_ends_when_the_server_hangs_up() -> None:
    async def attempt() -> None:
        heard = asyncio.Queue[bytes]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.put_nowait(await reader.readexactly(16))
            await asyncio.sleep(0.1)
            heard.put_nowait(b"hung up")
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        await backend.cancel(Endpoint("127.0.0.1", port), 4711, b"real")
        assert heard.get_nowait() == startup.encode_cancel(4711, b"real")
        assert heard.get_nowait() == b"hung up"
        listener.close()

    asyncio.run(attempt())


def test_a_socket_folder() -> None:
    endpoint = Endpoint("/run/postgresql", 5433)
    assert (endpoint.is_socket, endpoint.socket_path) == (True, "/run/postgresql/.s.PGSQL.5433")
    assert not Endpoint("localhost", 5432).is_socket
