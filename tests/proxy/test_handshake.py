"""The agent's leg against scripted clients: who gets in, with what, and what everybody else reads."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.model import Access, Limits, Mode, Policy, SettingRules
from proxy import backend, handshake, scram
from proxy.agents import (
    AgentConfig,
    Auth,
    BackendPassword,
    CertificateAuth,
    FileAuth,
    Login,
    ScramAuth,
    TrustLoopback,
)
from proxy.backend import BackendError, BackendSession, Endpoint
from proxy.config import Backend as BackendConfig
from proxy.config import Config, Listen
from proxy.credentials import PasswordFile, VerifierFile
from proxy.handshake import DisprovedError, Proven, RefusedError
from proxy.stream import StreamClosedError
from proxy.tls import AgentTls, CertificateName, NameKind, PeerCertificate
from proxy.wire import authentication, startup
from proxy.wire.backend import decode_fields, encode_ready
from proxy.wire.startup import CancelRequest, NotPostgresError, StartupPacket
from tests.support.hello import client_hello
from tests.support.streams import MemoryStream, read_message, run_both

Script = Callable[[MemoryStream], Awaitable[object]]

POLICY = Policy("analytics", "policies/analytics.yaml", "0" * 64)
LOGIN = Login("shop_ro", "hidden-pw")
SECRET = b"s" * 32
SSL_REQUEST = startup.encode_ssl_request()
GSS_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x30"
TLS = AgentTls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), b"b" * 32)
HELLO = client_hello()
"""Of a client older than PostgreSQL 17's."""
NAMED = client_hello(["postgresql"])
OTHERS = client_hello(["h2", "http/1.1"])
NO_PROTOCOL = b"\x15\x03\x03\0\x02\x02\x78"
"""The alert no_application_protocol."""


def agent(name: str, auth: Auth, login: Login | None = LOGIN, **more: object) -> AgentConfig:
    values: dict[str, object] = {"databases": None, "policy": POLICY, **more}
    return AgentConfig(name, auth, login, **values)  # type: ignore[arg-type]


VERIFIER = scram.Verifier.derive("secret", iterations=5000)
CONFIG = Config(
    "pgturnstile.yaml",
    Listen(),
    BackendConfig(),
    {
        "bot": agent("bot", ScramAuth(VERIFIER), databases=frozenset({"shop"})),
        "local": agent("local", TrustLoopback()),
    },
)
WITH_ANY = Config("", Listen(), BackendConfig(), {**CONFIG.agents, "*": agent("*", BackendPassword(), None)})


def packet(version: startup.ProtocolVersion = startup.V3_0, /, **parameters: str) -> bytes:
    return startup.encode_startup({"user": "bot", "database": "shop", **parameters}, version)


# --- the first message ---


def first(
    script: Script, tls: AgentTls | None = None, *, required: bool = False
) -> StartupPacket | CancelRequest:
    return run_both(lambda stream: handshake.read_first(stream, tls, tls_required=required), script)


def sends(*chunks: bytes, answers: bytes = b"") -> Script:
    """A client that waits for one answer byte after each chunk but the last."""

    async def run(stream: MemoryStream) -> None:
        for place, chunk in enumerate(chunks):
            stream.write(chunk)
            if place < len(chunks) - 1:
                assert await stream.read(1) == answers[place : place + 1]
        await stream.rest()

    return run


@pytest.mark.parametrize(
    ("tls", "chunks", "answers"),
    [
        (None, (packet(),), b""),
        (None, (SSL_REQUEST, packet()), b"N"),
        (None, (GSS_REQUEST, packet()), b"N"),
        (None, (GSS_REQUEST, SSL_REQUEST, packet()), b"NN"),
        (None, (SSL_REQUEST, GSS_REQUEST, packet()), b"NN"),
        (TLS, (SSL_REQUEST, HELLO + packet()), b"S"),
        (TLS, (SSL_REQUEST, NAMED + packet()), b"S"),
        (TLS, (GSS_REQUEST, SSL_REQUEST, HELLO + packet()), b"NS"),
        (TLS, (NAMED + packet(),), b""),
    ],
)
def test_ways_to_the_startup_packet(tls: AgentTls | None, chunks: tuple[bytes, ...], answers: bytes) -> None:
    read = first(sends(*chunks, answers=answers), tls)
    assert isinstance(read, StartupPacket)
    assert read.parameters["user"] == "bot"


def test_a_packet_may_arrive_byte_by_byte() -> None:
    async def slowly(stream: MemoryStream) -> None:
        for byte in packet():
            stream.write(bytes([byte]))
            await asyncio.sleep(0)
        await stream.rest()

    assert isinstance(first(slowly), StartupPacket)


@pytest.mark.parametrize("after_tls", [True, False])
def test_a_cancel_request_needs_no_tls(after_tls: bool) -> None:
    cancel = startup.encode_cancel(7, b"abcd")
    script = sends(SSL_REQUEST, HELLO + cancel, answers=b"S") if after_tls else sends(cancel)
    assert first(script, TLS, required=True) == CancelRequest(7, b"abcd")


@pytest.mark.parametrize("chunk", [SSL_REQUEST + packet(), GSS_REQUEST + packet(), SSL_REQUEST + b"\x16"])
@pytest.mark.parametrize("tls", [None, TLS])
def test_bytes_behind_an_encryption_request_end_the_connection_unanswered(
    tls: AgentTls | None, chunk: bytes
) -> None:
    heard: list[bytes] = []

    async def injects(stream: MemoryStream) -> None:
        stream.write(chunk)
        heard.append(await stream.rest())

    with pytest.raises(NotPostgresError):
        first(injects, tls)
    assert heard == [b""]


@pytest.mark.parametrize(
    ("tls", "chunks", "answers"),
    [
        (None, (SSL_REQUEST, SSL_REQUEST), b"N"),
        (None, (GSS_REQUEST, GSS_REQUEST), b"N"),
        (TLS, (SSL_REQUEST, HELLO + SSL_REQUEST), b"S"),
        (TLS, (SSL_REQUEST, HELLO + GSS_REQUEST), b"S"),
        (TLS, (NAMED + SSL_REQUEST,), b""),
        (TLS, (NAMED + GSS_REQUEST,), b""),
    ],
)
def test_encryption_asked_for_again(tls: AgentTls | None, chunks: tuple[bytes, ...], answers: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        first(sends(*chunks, answers=answers), tls)
    assert caught.value.fields["sqlstate"] == "0A000"


@pytest.mark.parametrize("hello", [HELLO, NAMED])
def test_the_tls_handshake_gets_the_hello_as_it_came(hello: bytes) -> None:
    seen: list[bytes] = []

    async def ours(stream: MemoryStream) -> None:
        await handshake.read_first(stream, TLS, tls_required=True)
        seen.append(stream.hello)

    run_both(ours, sends(SSL_REQUEST, hello + packet(), answers=b"S"))
    assert seen == [hello]


@pytest.mark.parametrize(
    ("before", "hello", "told"),
    [
        (SSL_REQUEST, OTHERS, NO_PROTOCOL),
        (b"", OTHERS, NO_PROTOCOL),
        (b"", HELLO, NO_PROTOCOL),
        (SSL_REQUEST, HELLO[:5] + b"\x02" + HELLO[6:], b""),
        (SSL_REQUEST, packet(), b""),
        (SSL_REQUEST, GSS_REQUEST, b""),
        (GSS_REQUEST, NAMED, b""),
    ],
    ids=[
        "another protocol",
        "another protocol at once",
        "no protocol at once",
        "no ClientHello",
        "in clear after all",
        "another request",
        "direct TLS that is not the first word",
    ],
)
def test_tls_that_is_not_meant_for_us(before: bytes, hello: bytes, told: bytes) -> None:
    heard: list[bytes] = []

    async def client(stream: MemoryStream) -> None:
        if before:
            stream.write(before)
            await stream.read(1)
        stream.write(hello)
        heard.append(await stream.rest())

    with pytest.raises(NotPostgresError):
        first(client, TLS)
    assert heard == [told]


def test_direct_tls_counts_only_with_the_protocol_agreed_on() -> None:
    """Two readers of one ClientHello, ours and OpenSSL's: both must have seen the name."""

    async def ours(stream: MemoryStream) -> None:
        stream.alpn = None
        await handshake.read_first(stream, TLS, tls_required=True)

    with pytest.raises(NotPostgresError):
        run_both(ours, sends(NAMED + packet()))


@pytest.mark.parametrize("hello", [NAMED, OTHERS])
def test_direct_tls_where_none_is_offered_gets_no_answer(hello: bytes) -> None:
    heard: list[bytes] = []

    async def client(stream: MemoryStream) -> None:
        stream.write(hello)
        heard.append(await stream.rest())

    with pytest.raises(NotPostgresError):
        first(client)
    assert heard == [b""]


@pytest.mark.parametrize(
    "chunks", [((packet(),), b""), ((GSS_REQUEST, packet()), b"N")], ids=["at once", "after GSS"]
)
def test_required_tls_holds_on_every_way_to_a_startup_packet(chunks: tuple[tuple[bytes, ...], bytes]) -> None:
    with pytest.raises(RefusedError) as caught:
        first(sends(*chunks[0], answers=chunks[1]), TLS, required=True)
    assert caught.value.fields["sqlstate"] == "28000"
    assert "sslmode=require" in caught.value.fields["hint"]


def test_a_packet_that_does_not_decode_is_refused_in_words() -> None:
    with pytest.raises(RefusedError) as caught:
        first(sends(struct.pack("!II", 8, 196608)))
    assert caught.value.fields["sqlstate"] == "08P01"
    assert caught.value.fields["severity"] == "FATAL"


@pytest.mark.parametrize(
    "chunk", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\0", b"\0\0\0\0", b"\xff\xff\xff\xff"]
)
def test_other_protocols_get_no_answer(chunk: bytes) -> None:
    with pytest.raises(NotPostgresError):
        first(sends(chunk))


def test_a_probe_ends_silently() -> None:
    async def probe(stream: MemoryStream) -> None:
        pass

    with pytest.raises(StreamClosedError):
        first(probe)


@given(st.lists(st.sampled_from([SSL_REQUEST, GSS_REQUEST, packet()]) | st.binary(max_size=40), max_size=5))
def test_any_bytes_end_in_a_documented_way(chunks: list[bytes]) -> None:
    async def script(stream: MemoryStream) -> None:
        for chunk in chunks:
            stream.write(chunk)
            await asyncio.sleep(0)

    async def ours(stream: MemoryStream) -> None:
        read = await handshake.read_first(stream, TLS, tls_required=True)
        if isinstance(read, StartupPacket):
            assert stream.encrypted
            await handshake.authenticate(stream, read, CONFIG, SECRET)
            raise AssertionError("somebody got in")

    with contextlib.suppress(RefusedError, NotPostgresError, StreamClosedError):
        run_both(ours, script)


# --- who ---


def authenticate(
    script: Script,
    raw: bytes,
    config: Config = CONFIG,
    *,
    local: bool = True,
    encrypted: bool = False,
    certificate: PeerCertificate | None = None,
) -> Proven:
    read = startup.decode(raw[4:])
    assert isinstance(read, StartupPacket)

    async def ours(stream: MemoryStream) -> Proven:
        stream.certificate = certificate
        return await handshake.authenticate(stream, read, config, SECRET, TLS)

    return run_both(
        ours,
        script,
        local=local,
        encrypted=encrypted,
    )


def with_scram(
    password: str,
    heard: list[object] | None = None,
    *,
    mechanism: str = "SCRAM-SHA-256",
    **exchange_options: Any,
) -> Script:
    """A client that answers a SCRAM exchange; ``heard`` collects what it could tell agents apart by."""

    async def run(stream: MemoryStream) -> None:
        kind, body = await read_message(stream)
        offered = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256" if stream.encrypted else b"SCRAM-SHA-256"
        assert (kind, body) == (b"R", struct.pack("!I", 10) + offered + b"\0\0")
        exchange = scram.ClientExchange(**exchange_options)
        stream.write(authentication.encode_sasl_initial(mechanism, exchange.first()))
        _, body = await read_message(stream)
        challenge = exchange.read_challenge(body[4:])
        if heard is not None:
            heard.extend([len(challenge.salt), challenge.iterations])
        keys = scram.ClientKeys.derive(password, challenge.salt, challenge.iterations)
        stream.write(authentication.encode_sasl_response(exchange.respond(keys)))
        _, body = await read_message(stream)
        exchange.verify(body[4:])
        assert await read_message(stream) == (b"R", b"\0\0\0\0")

    return run


def test_scram_lets_the_agent_in() -> None:
    proven = authenticate(with_scram("secret"), packet())
    assert (proven.user, proven.database, proven.role, proven.password) == ("bot", "shop", "shop_ro", None)


BOUND = {"mechanism": "SCRAM-SHA-256-PLUS", "binding": b"b" * 32}


@pytest.mark.parametrize("options", [{}, BOUND], ids=["not bound", "bound"])
def test_over_tls_an_exchange_may_be_bound_to_it(options: Mapping[str, Any]) -> None:
    assert authenticate(with_scram("secret", **options), packet(), encrypted=True).user == "bot"


@pytest.mark.parametrize(
    ("options", "encrypted", "sqlstate", "why"),
    [
        ({**BOUND, "binding": b"x" * 32}, True, "28000", "binding check failed"),
        ({"could_bind": True}, True, "28000", "negotiation error"),
        ({"binding": b"b" * 32}, True, "08P01", "was not offered"),
        ({"mechanism": "SCRAM-SHA-256-PLUS"}, True, "08P01", "not the one offered"),
        (BOUND, False, "08P01", "invalid SASL"),
    ],
    ids=["bound elsewhere", "offer taken away", "bound without saying so", "not bound at all", "in clear"],
)
@pytest.mark.parametrize("user", ["bot", "nobody"])
def test_the_right_password_does_not_excuse_a_binding_that_does_not_fit(
    options: Mapping[str, Any], encrypted: bool, sqlstate: str, why: str, user: str
) -> None:
    """What a man in the middle would cause; known and unknown agents are told the same."""
    with pytest.raises(RefusedError, match=why) as caught:
        authenticate(with_scram("secret", **options), packet(user=user), encrypted=encrypted)
    assert caught.value.fields["sqlstate"] == sqlstate


def test_in_clear_a_client_that_could_bind_is_no_downgrade() -> None:
    assert authenticate(with_scram("secret", could_bind=True), packet()).user == "bot"


def test_the_database_is_the_users_name_where_none_is_given() -> None:
    assert authenticate(with_scram("secret"), startup.encode_startup({"user": "bot"})).database == "bot"


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    ("user", "reason", "local"),
    [("bot", "wrong password", True), ("nobody", "unknown agent", True), ("local", "loopback", False)],
)
def test_unknown_and_known_agents_fail_alike(user: str, reason: str, local: bool, encrypted: bool) -> None:
    heard: list[object] = []
    with pytest.raises(RefusedError) as caught:
        authenticate(with_scram("guess", heard), packet(user=user), local=local, encrypted=encrypted)
    refusal = caught.value
    assert heard == [16, 5000]
    assert refusal.fields == {
        "severity": "FATAL",
        "severity_plain": "FATAL",
        "sqlstate": "28P01",
        "message": f'password authentication failed for user "{user}"',
    }
    assert reason in refusal.reason


def test_a_password_from_a_file_is_the_one_of_the_moment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    config = with_agent(agent("bot", FileAuth(VerifierFile(PasswordFile(file), "bot"))))
    assert authenticate(with_scram("secret"), packet(), config).user == "bot"
    file.write_text("changed since\n")
    with pytest.raises(DisprovedError):
        authenticate(with_scram("secret"), packet(), config)
    assert authenticate(with_scram("changed since"), packet(), config).user == "bot"
    file.unlink()
    with pytest.raises(DisprovedError) as caught:
        authenticate(with_scram("changed since"), packet(), config)
    assert caught.value.fields["message"] == 'password authentication failed for user "bot"'
    assert caught.value.reason == "agent's password: the file cannot be read: No such file or directory"


def with_agent(one: AgentConfig) -> Config:
    return Config("", Listen(), BackendConfig(), {one.name: one})


NAME = CertificateName(NameKind.COMMON_NAME, "Bot")


@pytest.mark.parametrize(
    ("shown", "sqlstate"),
    [
        (PeerCertificate(b"", ("Bot",)), None),
        (PeerCertificate(b"", ("bot",)), "28000"),
        (PeerCertificate(b"", ("Bot", "Other")), "28000"),
        (PeerCertificate(b""), "28000"),
        (PeerCertificate(b"", (), (("DNS", "Bot"),)), "28000"),
        (None, "28P01"),
    ],
    ids=["fits", "another case", "two names", "not verified", "in another place", "none shown"],
)
def test_a_certificate_with_the_agents_name(shown: PeerCertificate | None, sqlstate: str | None) -> None:
    config = with_agent(agent("bot", CertificateAuth(NAME)))
    script = with_scram("guess") if shown is None else waits_for_ok
    if sqlstate is None:
        assert authenticate(script, packet(), config, encrypted=True, certificate=shown).user == "bot"
        return
    with pytest.raises(DisprovedError) as caught:
        authenticate(script, packet(), config, encrypted=True, certificate=shown)
    assert caught.value.fields["sqlstate"] == sqlstate


async def waits_for_ok(stream: MemoryStream) -> None:
    with contextlib.suppress(StreamClosedError):
        assert await read_message(stream) == (b"R", b"\0\0\0\0")


@pytest.mark.parametrize(
    "auth", [ScramAuth(VERIFIER), TrustLoopback(), BackendPassword(), CertificateAuth(NAME)]
)
def test_from_elsewhere_every_agent_is_an_unknown_one(auth: Auth) -> None:
    """The right password, certificate or loopback address does not help, and shows no difference."""
    networks = (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))
    login = None if isinstance(auth, BackendPassword) else LOGIN
    config = with_agent(agent("bot", auth, login, networks=networks))
    with pytest.raises(DisprovedError) as caught:
        authenticate(
            with_scram("secret"), packet(), config, certificate=PeerCertificate(b"", ("Bot",)), encrypted=True
        )
    assert caught.value.fields["message"] == 'password authentication failed for user "bot"'
    assert caught.value.reason == "agent may not come from this address"


@pytest.mark.parametrize(
    ("address", "welcome"),
    [("10.1.2.3", True), ("11.0.0.1", False), ("2001:db8::7", True), ("2001:db9::7", False), (None, False)],
)
def test_the_address_decides(address: str | None, welcome: bool) -> None:
    networks = (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))
    given = agent("bot", TrustLoopback(), networks=networks)
    assert given.may_come_from(None if address is None else ip_address(address)) is welcome
    assert agent("bot", TrustLoopback()).may_come_from(None if address is None else ip_address(address))


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_known_and_an_unknown_agent_cost_the_same(monkeypatch: pytest.MonkeyPatch, encrypted: bool) -> None:
    """Equal work of the costly kind, in the same order: nothing for a stop-watch to see."""
    done: dict[str, list[str]] = {}

    def counted(name: str, function: Callable[..., bytes]) -> Callable[..., bytes]:
        def call(*arguments: Any) -> bytes:
            done[user].append(name)
            return function(*arguments)

        return call

    monkeypatch.setattr(scram.hmac, "digest", counted("hmac", scram.hmac.digest))
    monkeypatch.setattr(scram.hashlib, "sha256", counted("sha256", scram.hashlib.sha256))
    for user in ("bot", "nobody", "local"):
        done[user] = []
        with pytest.raises(DisprovedError):
            authenticate(answers_blindly, packet(user=user), local=False, encrypted=encrypted)
    assert done["bot"] == done["nobody"] == done["local"]
    assert len(done["bot"]) > 2


async def answers_blindly(stream: MemoryStream) -> None:
    """A client that costs nothing itself: its proof is zeros."""
    await read_message(stream)
    stream.write(authentication.encode_sasl_initial("SCRAM-SHA-256", b"n,,n=,r=abc"))
    _, body = await read_message(stream)
    nonce = body[4:].split(b",")[0]
    stream.write(
        authentication.encode_sasl_response(b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(32)))
    )
    await stream.rest()


def test_an_unknown_agent_is_asked_with_the_same_salt_each_time() -> None:
    salts = {handshake._mock("nobody", CONFIG, SECRET).salt for _ in range(2)}
    assert len(salts) == 1


def test_trust_on_loopback() -> None:
    async def waits(stream: MemoryStream) -> None:
        assert await read_message(stream) == (b"R", b"\0\0\0\0")

    assert authenticate(waits, packet(user="local")).user == "local"


@pytest.mark.parametrize(("local", "encrypted"), [(True, False), (False, True)])
def test_a_password_for_postgresql_to_judge(local: bool, encrypted: bool) -> None:
    async def tells(stream: MemoryStream) -> None:
        assert await read_message(stream) == (b"R", struct.pack("!I", 3))
        stream.write(authentication.encode_password("pässword"))
        assert await stream.rest() == b""  # AuthenticationOk is PostgreSQL's to give

    proven = authenticate(tells, packet(user="shop_app"), WITH_ANY, local=local, encrypted=encrypted)
    assert (proven.user, proven.role, proven.password) == ("shop_app", "shop_app", "pässword")
    assert "pässword" not in repr(proven)


def test_no_password_in_clear_over_a_network() -> None:
    with pytest.raises(RefusedError) as caught:
        authenticate(lambda stream: stream.rest(), packet(user="shop_app"), WITH_ANY, local=False)
    assert caught.value.fields["sqlstate"] == "28000"


def test_an_agents_own_entry_wins_over_any() -> None:
    with pytest.raises(RefusedError):
        authenticate(with_scram("guess"), packet(), WITH_ANY)


@pytest.mark.parametrize(
    ("answer", "sqlstate"),
    [
        (authentication.encode_sasl_initial("SCRAM-SHA-256-PLUS", b"p=tls-unique,,n=,r=a"), "08P01"),
        (authentication.encode_sasl_initial("SCRAM-SHA-256", b"p=tls-unique,,n=,r=a"), "08P01"),
        (authentication.encode_sasl_initial("SCRAM-SHA-256", b"n,a=root,n=,r=a"), "08P01"),
        (authentication.encode_sasl_initial("SCRAM-SHA-256", b"junk"), "08P01"),
        (authentication.encode_password("secret"), "08P01"),
        (b"Q\0\0\0\x0dSELECT 1\0", "08P01"),
        (b"X\0\0\0\x04", "08P01"),
        (b"p\0\0\0\x03", "08P01"),
        (b"p\xff\xff\xff\xff", "08P01"),
        (b"p\0\x01\0\x05", "08P01"),
    ],
)
def test_answers_that_break_the_exchange(answer: bytes, sqlstate: str) -> None:
    async def answers(stream: MemoryStream) -> None:
        await read_message(stream)
        stream.write(answer)
        await stream.rest()

    with pytest.raises(RefusedError) as caught:
        authenticate(answers, packet())
    assert caught.value.fields["sqlstate"] == sqlstate


def test_a_response_sent_late_is_asked_for() -> None:
    async def late(stream: MemoryStream) -> None:
        await read_message(stream)
        stream.write(b"p\0\0\0\x16SCRAM-SHA-256\0\xff\xff\xff\xff")
        assert await read_message(stream) == (b"R", struct.pack("!I", 11))
        stream.write(authentication.encode_sasl_response(b"n,,n=,r=abc"))
        assert (await read_message(stream))[1].startswith(struct.pack("!I", 11) + b"r=abc")

    with pytest.raises(StreamClosedError):
        authenticate(late, packet())


def test_an_empty_password_is_refused_before_postgresql_sees_it() -> None:
    async def empty(stream: MemoryStream) -> None:
        await read_message(stream)
        stream.write(authentication.encode_password(""))

    with pytest.raises(RefusedError, match="empty password") as caught:
        authenticate(empty, packet(user="shop_app"), WITH_ANY)
    assert caught.value.fields["sqlstate"] == "28P01"


@pytest.mark.parametrize(
    ("parameters", "sqlstate", "why"),
    [
        ({"user": ""}, "28000", "no PostgreSQL user name"),
        ({"replication": "database"}, "0A000", "replication"),
        ({"replication": "false"}, "0A000", "replication"),
        ({"user": "u" * 64}, "28000", "63 bytes"),
        ({"database": "d" * 64}, "28000", "63 bytes"),
    ],
)
def test_packets_refused_before_anybody_is_asked(
    parameters: Mapping[str, str], sqlstate: str, why: str
) -> None:
    with pytest.raises(RefusedError, match=why) as caught:
        authenticate(lambda stream: stream.rest(), packet(**parameters), WITH_ANY)
    assert caught.value.fields["sqlstate"] == sqlstate


@pytest.mark.parametrize(
    ("version", "extra", "expected"),
    [
        (startup.V3_0, {}, None),
        (startup.V3_2, {}, None),
        (startup.ProtocolVersion(3, 9999), {}, struct.pack("!II", 196610, 0)),
        (startup.V3_0, {"_pq_.x": "1"}, struct.pack("!II", 196608, 1) + b"_pq_.x\0"),
        (startup.ProtocolVersion(3, 9999), {"_pq_.x": "1"}, struct.pack("!II", 196610, 1) + b"_pq_.x\0"),
    ],
)
def test_versions_are_negotiated_once_and_first(
    version: startup.ProtocolVersion, extra: Mapping[str, str], expected: bytes | None
) -> None:
    async def listens(stream: MemoryStream) -> list[tuple[bytes, bytes]]:
        return [await read_message(stream) for _ in range(1 if expected is None else 2)]

    heard: list[tuple[bytes, bytes]] = []

    async def script(stream: MemoryStream) -> None:
        heard.extend(await listens(stream))
        assert stream.buffered == 0

    authenticate(script, packet(version, user="local", **extra))
    assert heard == [*([(b"v", expected)] if expected is not None else []), (b"R", b"\0\0\0\0")]


# --- with what ---


def settings(policy: Policy = POLICY, /, **parameters: str) -> dict[str, str]:
    read = startup.decode(packet(**parameters)[4:])
    assert isinstance(read, StartupPacket)
    return handshake.session_settings(read, policy)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, {}),
        ({"application_name": "x", "DateStyle": "ISO"}, {"application_name": "x", "datestyle": "ISO"}),
        ({"options": "-c geqo=off --extra-float-digits=2"}, {"geqo": "off", "extra_float_digits": "2"}),
        ({"options": "-c geqo=off", "geqo": "on"}, {"geqo": "on"}),
        ({"options": r"-c application_name=a\ b"}, {"application_name": "a b"}),
        ({"client_encoding": "'utf-8'"}, {"client_encoding": "'utf-8'"}),
        ({"standard_conforming_strings": "on"}, {"standard_conforming_strings": "on"}),
        ({"options": ""}, {}),
    ],
)
def test_settings_an_agent_may_begin_with(parameters: Mapping[str, str], expected: Mapping[str, str]) -> None:
    assert settings(**parameters) == expected


REFUSED_SETTINGS = [
    ({"session_replication_role": "replica"}, "session_replication_role"),
    ({"statement_timeout": "0"}, "statement_timeout"),
    ({"Statement_Timeout": "0"}, "statement_timeout"),
    ({"options": "-c statement_timeout=0"}, "statement_timeout"),
    ({"options": "--statement-timeout=0"}, "statement_timeout"),
    ({"options": r"-c\ statement_timeout=0"}, "statement_timeout"),
    ({"options": "-c geqo=off -c role=postgres"}, "role"),
    ({"standard_conforming_strings": "off"}, "standard_conforming_strings"),
    ({"client_encoding": "SJIS"}, "client_encoding"),
    ({"shop.tenant": "2"}, "shop.tenant"),
    ({"search_path": "secret"}, "search_path"),
    ({"User": "root"}, "user"),
    ({"OPTIONS": "-c role=postgres"}, "options"),
]


@pytest.mark.parametrize(("parameters", "name"), REFUSED_SETTINGS)
def test_settings_that_are_refused_are_named(parameters: Mapping[str, str], name: str) -> None:
    raw = {"user": "bot", **parameters}
    with pytest.raises(RefusedError) as caught:
        handshake.session_settings(StartupPacket(startup.V3_0, raw), POLICY)
    fields = caught.value.fields
    assert name in fields["message"]
    assert fields["sqlstate"] == "42501"
    assert fields["routine"] == "setting-not-allowed"
    assert fields["file"] == "policies/analytics.yaml"
    assert fields["hint"]


@pytest.mark.parametrize("options", ["-S 1000", "-f h", "-c", "geqo=off"])
def test_switches_of_the_server_are_refused(options: str) -> None:
    with pytest.raises(RefusedError) as caught:
        settings(options=options)
    assert caught.value.fields["sqlstate"] == "42601"


def test_leaving_read_only_is_refused_by_its_own_rule() -> None:
    with pytest.raises(RefusedError) as caught:
        settings(default_transaction_read_only="off")
    assert caught.value.fields["routine"] == "access-read-only"


def test_a_policy_that_observes_refuses_no_setting() -> None:
    observes = Policy("watch", "watch.yaml", "0", mode=Mode.OBSERVE)
    asked = {"statement_timeout": "0", "client_encoding": "SJIS", "standard_conforming_strings": "off"}
    assert settings(observes, **asked) == asked


READING = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (POLICY, {**READING, "default_transaction_read_only": "on"}),
        (Policy("w", "", "", access=Access.READ_WRITE), READING),
        (Policy("o", "", "", mode=Mode.OBSERVE, limits=Limits(statement_timeout_ms=1)), READING),
        (
            Policy(
                "l",
                "",
                "",
                access=Access.READ_WRITE,
                limits=Limits(
                    statement_timeout_ms=30_000, lock_timeout_ms=2_000, idle_in_transaction_timeout_ms=5
                ),
            ),
            {
                **READING,
                "statement_timeout": "30000",
                "lock_timeout": "2000",
                "idle_in_transaction_session_timeout": "5",
            },
        ),
    ],
)
def test_pins(policy: Policy, expected: Mapping[str, str]) -> None:
    assert handshake.pins(policy) == expected


# --- the backend's turn ---


def proven(name: str = "bot", **parameters: str) -> Proven:
    config = AGENTS.get(name, agent("*", BackendPassword(), None))
    raw = {"user": name, "database": "shop", **parameters}
    password = "typed" if config.login is None else None
    return Proven(config, name, "shop", StartupPacket(startup.V3_0, raw), password)


LIMITED = Policy(
    "limited",
    "limited.yaml",
    "0",
    limits=Limits(statement_timeout_ms=30_000),
    settings=SettingRules(frozenset({"statement_timeout"})),
)
AGENTS = {**CONFIG.agents, "limited": agent("limited", TrustLoopback(), policy=LIMITED)}


def opens(
    monkeypatch: pytest.MonkeyPatch, who: Proven, error: BackendError | None = None
) -> tuple[list[backend.Login], list[RefusedError]]:
    """The logins that open_backend tries, and how it refuses where the backend fails with ``error``."""
    logins: list[backend.Login] = []
    refusals: list[RefusedError] = []

    async def connect(endpoint: Endpoint) -> MemoryStream:
        return MemoryStream.pair()[0]

    async def log_in(stream: object, login: backend.Login) -> BackendSession:
        logins.append(login)
        if error is not None:
            raise error
        return BackendSession(1, b"real")

    monkeypatch.setattr(backend, "connect", connect)
    monkeypatch.setattr(backend, "log_in", log_in)
    try:
        asyncio.run(handshake.open_backend(who, Endpoint("", 0)))
    except RefusedError as refusal:
        refusals.append(refusal)
    return logins, refusals


def test_an_agent_logs_in_as_its_role_with_its_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    logins, refusals = opens(monkeypatch, proven(application_name="x"))
    assert refusals == []
    assert logins == [
        backend.Login("shop_ro", "shop", "hidden-pw", {"application_name": "x"}, handshake.pins(POLICY))
    ]
    assert "hidden-pw" not in repr(logins)


def test_any_other_name_logs_in_as_itself_and_must_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    (login,), _ = opens(monkeypatch, proven("shop_app"))
    assert (login.role, login.password, login.must_ask) == ("shop_app", "typed", True)


def test_a_limit_the_policy_lets_an_agent_set_is_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    (login,), _ = opens(monkeypatch, proven("limited", statement_timeout="1s"))
    assert login.settings == {"statement_timeout": "1s"}
    assert "statement_timeout" not in login.pins
    (login,), _ = opens(monkeypatch, proven("limited"))
    assert login.pins["statement_timeout"] == "30000"


def test_a_database_that_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    who = proven()
    elsewhere = Proven(who.agent, who.user, "postgres", who.packet)
    logins, (refusal,) = opens(monkeypatch, elsewhere)
    assert logins == []
    assert refusal.fields["sqlstate"] == "42501"
    assert refusal.fields["message"] == 'permission denied for database "postgres"'


SERVER_SAID = [
    ("28P01", 'password authentication failed for user "shop_ro"', "refused the login configured"),
    ("28000", "no pg_hba.conf entry for host 10.0.0.7", "refused the login configured"),
    ("42501", "permission denied for SHOP_RO", "refused the session configured"),
    ("XX000", "hidden-pw is odd", "refused the session configured"),
    ("3D000", 'database "shop" does not exist', 'database "shop" does not exist'),
    ("53300", "sorry, too many clients already", "sorry, too many clients already"),
]


@pytest.mark.parametrize(("sqlstate", "text", "told"), SERVER_SAID)
def test_the_backends_refusal_without_the_roles_name(
    monkeypatch: pytest.MonkeyPatch, sqlstate: str, text: str, told: str
) -> None:
    error = BackendError(text, sqlstate, {"message": text, "sqlstate": sqlstate, "detail": "shop_ro"})
    _, (refusal,) = opens(monkeypatch, proven(), error)
    assert told in refusal.fields["message"]
    assert refusal.fields["sqlstate"] == sqlstate
    assert b"shop_ro" not in refusal.message.lower()
    assert b"hidden-pw" not in refusal.message
    assert refusal.reason == text


def test_whoever_logs_in_as_a_role_reads_the_servers_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {
        "message": 'password authentication failed for user "shop_app"',
        "sqlstate": "28P01",
        "detail": "d",
    }
    _, (refusal,) = opens(monkeypatch, proven("shop_app"), BackendError(fields["message"], "28P01", fields))
    sent = decode_fields(refusal.message[5:])
    assert {name: sent[name] for name in fields} == fields
    assert sent["severity_plain"] == "FATAL"


@pytest.mark.parametrize("sqlstate", ["", "42501\0", "lower", "1234567"])
def test_an_odd_sqlstate_is_not_passed_on(monkeypatch: pytest.MonkeyPatch, sqlstate: str) -> None:
    _, (refusal,) = opens(monkeypatch, proven(), BackendError("x", sqlstate, {"message": "x"}))
    assert refusal.fields["sqlstate"] == "08006"


def test_the_greeting_of_a_named_agent_hides_the_role() -> None:
    session = BackendSession(4711, b"real", {"server_version": "18", "session_authorization": "shop_ro"})
    assert handshake.greeting(proven(), session, b"ours") == (
        startup.encode_parameter_status("server_version", "18")
        + startup.encode_parameter_status("session_authorization", "bot")
        + startup.encode_backend_key(4711, b"ours")
        + encode_ready(b"I")
    )


def test_the_greeting_of_any_other_begins_with_ok() -> None:
    session = BackendSession(4711, b"real", {"session_authorization": "shop_app"})
    assert handshake.greeting(proven("shop_app"), session, b"ours") == (
        authentication.encode_ok()
        + startup.encode_parameter_status("session_authorization", "shop_app")
        + startup.encode_backend_key(4711, b"ours")
        + encode_ready(b"I")
    )
