"""SCRAM: the standards' vectors, each lie of either side, and the bounds on a hostile peer."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import scram
from proxy.scram import ClientExchange, ClientKeys, ProofError, ScramError, ServerExchange, Verifier

# RFC 7677 section 3.
PASSWORD = "pencil"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

VERIFIER = Verifier.derive(PASSWORD, SALT, 4096)
KEYS = ClientKeys.derive(PASSWORD, SALT, 4096)


def server(**options: bool) -> ServerExchange:
    return ServerExchange(VERIFIER, nonce=SERVER_NONCE, **options)


def client() -> ClientExchange:
    return ClientExchange(user="user", nonce=CLIENT_NONCE)


def test_the_standards_exchange_as_server() -> None:
    exchange = server()
    assert exchange.challenge(CLIENT_FIRST) == SERVER_FIRST
    assert exchange.verify(CLIENT_FINAL) == SERVER_FINAL


def test_the_standards_exchange_as_client() -> None:
    exchange = client()
    assert exchange.first() == CLIENT_FIRST
    assert exchange.read_challenge(SERVER_FIRST) == scram.Challenge(SALT, 4096)
    assert exchange.respond(KEYS) == CLIENT_FINAL
    exchange.verify(SERVER_FINAL)


@pytest.mark.parametrize("header", [b"n,,", b"y,,"])
def test_both_headers_without_channel_binding_are_taken(header: bytes) -> None:
    # libpq over TLS sends "y,,": it could bind, and believes that we cannot.
    bare = CLIENT_FIRST[3:]
    exchange = server()
    server_first = exchange.challenge(header + bare)
    without_proof = b"c=" + base64.b64encode(header) + b",r=" + (CLIENT_NONCE + SERVER_NONCE).encode()
    proof = _proof(KEYS, b",".join((bare, server_first, without_proof)))
    assert exchange.verify(without_proof + b",p=" + proof).startswith(b"v=")


BINDING = b"hash of a certificate"


def test_a_bound_exchange_holds_over_one_connection_alone() -> None:
    for seen, fits in ((BINDING, True), (b"another's", False)):
        exchange, ours = ServerExchange(VERIFIER, binding=BINDING), ClientExchange(binding=seen)
        assert exchange.mechanisms == ("SCRAM-SHA-256-PLUS", "SCRAM-SHA-256")
        assert ours.first().startswith(b"p=tls-server-end-point,,n=,r=")
        ours.read_challenge(exchange.challenge(ours.first(), exchange.mechanisms[0]))
        final = ours.respond(KEYS)
        if fits:
            ours.verify(exchange.verify(final))
            continue
        with pytest.raises(ScramError, match="binding check failed") as caught:
            exchange.verify(final)
        assert caught.value.sqlstate == "28000"


@pytest.mark.parametrize(
    ("header", "mechanism", "offered", "why"),
    [
        ("n,,", "SCRAM-SHA-256", True, None),
        ("n,,", "SCRAM-SHA-256", False, None),
        ("y,,", "SCRAM-SHA-256", False, None),
        ("y,,", "SCRAM-SHA-256", True, "negotiation error"),
        ("p=tls-server-end-point,,", "SCRAM-SHA-256-PLUS", True, None),
        ("p=tls-server-end-point,,", "SCRAM-SHA-256", True, "was not offered"),
        ("p=tls-server-end-point,,", "SCRAM-SHA-256", False, "was not offered"),
        ("p=tls-unique,,", "SCRAM-SHA-256-PLUS", True, "not the one offered"),
        ("p=,,", "SCRAM-SHA-256-PLUS", True, "not the one offered"),
        ("n,,", "SCRAM-SHA-256-PLUS", True, "not the one offered"),
        ("y,,", "SCRAM-SHA-256-PLUS", True, "not the one offered"),
        ("n,,", "SCRAM-SHA-256-PLUS", False, None),  # the caller has offered no such mechanism
        ("N,,", "SCRAM-SHA-256", True, "was not offered"),
        (",,", "SCRAM-SHA-256", True, "was not offered"),
    ],
)
def test_what_a_client_may_say_of_channel_binding(
    header: str, mechanism: str, offered: bool, why: str | None
) -> None:
    exchange = ServerExchange(VERIFIER, binding=BINDING if offered else None)
    first = f"{header}n=,r=abc".encode()
    if why is None:
        assert exchange.challenge(first, mechanism).startswith(b"r=abc")
        return
    with pytest.raises(ScramError, match=why):
        exchange.challenge(first, mechanism)


def _proof(keys: ClientKeys, message: bytes) -> bytes:
    import hashlib
    import hmac

    stored = hashlib.sha256(keys.client_key).digest()
    signature = hmac.digest(stored, message, "sha256")
    return base64.b64encode(bytes(a ^ b for a, b in zip(keys.client_key, signature, strict=True)))


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"", "cannot be read"),
        (b"n,,n=user", "cannot be read"),
        (b"n,,m=ext,n=user,r=abc", "cannot be read"),
        (b"n,n=user,r=abc", "cannot be read"),
        (b"n,,n=user,r=abc,junk", "cannot be read"),
        (b"p=tls-server-end-point,,n=user,r=abc", "channel binding"),
        (b"x,,n=user,r=abc", "channel binding"),
        (b"n,a=root,n=user,r=abc", "authorization identity"),
        (b"n,,n=user,r=", "nonce"),
        (b"n,,n=user,r=a b", "nonce"),
        (b"n,,n=user,r=a\x7f", "nonce"),
        (b"n,,n=user,r=" + b"a" * 1025, "nonce"),
        (b"n,,n=user,r=" + b"a" * 5000, "too long"),
        (b"n,,n=\xff,r=abc", "UTF-8"),
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes, why: str) -> None:
    with pytest.raises(ScramError, match=why):
        server().challenge(first)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"c=biws", b"c=eSws", "channel-binding data changed"),
        (b"c=biws", b"c=", "channel-binding data changed"),
        (b"r=rOprNG", b"r=rOprNX", "nonce changed"),
        (b"$k0,p=", b"$k0x,p=", "nonce changed"),
        (b",p=dHzb", b",p=!!!!", "not base64"),
        (b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b",p=dHzb", "wrong length"),
        (b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"", "cannot be read"),
    ],
)
def test_a_final_message_that_does_not_continue_the_first_is_refused(
    old: bytes, new: bytes, why: str
) -> None:
    exchange = server()
    exchange.challenge(CLIENT_FIRST)
    assert old in CLIENT_FINAL
    with pytest.raises(ScramError, match=why):
        exchange.verify(CLIENT_FINAL.replace(old, new))


def test_a_wrong_password_proves_nothing() -> None:
    exchange = server()
    impostor = client()
    impostor.read_challenge(exchange.challenge(CLIENT_FIRST))
    with pytest.raises(ProofError):
        exchange.verify(impostor.respond(ClientKeys.derive("pencils", SALT, 4096)))


def test_a_doomed_exchange_refuses_the_right_proof() -> None:
    exchange = server(doomed=True)
    exchange.challenge(CLIENT_FIRST)
    with pytest.raises(ProofError):
        exchange.verify(CLIENT_FINAL)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "malformed"),
        (b"e=other-error", "malformed"),
        (b"m=ext," + SERVER_FIRST, "malformed"),
        (SERVER_FIRST.replace(b"i=4096", b"i=0"), "malformed"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-1"), "malformed"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1000001"), "iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=99999999999"), "malformed"),
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not extend"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not extend"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=,i=4096", "salt"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=" + base64.b64encode(b"s" * 1025) + b",i=4096", "salt"),
        (b"r=rOprNGfwEbeRWgbNEkqO" + b"x" * 1025 + b",s=W22Z,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO" + b"x" * 5000 + b",s=W22Z,i=4096", "too long"),
    ],
)
def test_a_hostile_challenge_is_refused(answer: bytes, why: str) -> None:
    with pytest.raises(ScramError, match=why):
        client().read_challenge(answer)


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    exchange = client()
    exchange.read_challenge(SERVER_FIRST)
    exchange.respond(KEYS)
    with pytest.raises(ProofError):
        exchange.verify(b"v=" + base64.b64encode(b"\0" * 32))
    with pytest.raises(ScramError):
        exchange.verify(b"e=invalid-proof")


def test_a_signature_before_our_proof_is_not_accepted() -> None:
    exchange = client()
    exchange.read_challenge(SERVER_FIRST)
    with pytest.raises(ProofError):
        exchange.verify(b"v=")


def test_every_exchange_has_its_own_nonce() -> None:
    assert ClientExchange().first() != ClientExchange().first()
    assert ServerExchange(VERIFIER).challenge(CLIENT_FIRST) != ServerExchange(VERIFIER).challenge(
        CLIENT_FIRST
    )


def test_a_verifier_survives_its_text_and_hides_in_repr() -> None:
    text = str(VERIFIER)
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert Verifier.parse(text) == VERIFIER
    assert repr(VERIFIER) == "<Verifier>"
    assert repr(KEYS) == "<ClientKeys>"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "md5d41d8cd98f00b204e9800998ecf8427e",
        str(VERIFIER) + "\n",
        str(VERIFIER).replace("4096", "0"),
        str(VERIFIER).replace("4096", "1000001"),
        str(VERIFIER).replace("W22ZaJ0SNY7soEsUEjb6gQ==", "W22ZaJ0SNY7soEsUEjb6gQ="),
        "SCRAM-SHA-256$4096:c2FsdA==$c2hvcnQ=:c2hvcnQ=",
    ],
)
def test_what_is_no_verifier_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        Verifier.parse(text)
    assert not text or text not in str(caught.value)


def test_a_mock_verifier_is_steady_by_name_and_differs_by_secret() -> None:
    one = scram.mock_verifier("a", b"k" * 32)
    assert one == scram.mock_verifier("a", b"k" * 32)
    assert one.salt != scram.mock_verifier("b", b"k" * 32).salt
    assert one.salt != scram.mock_verifier("a", b"l" * 32).salt
    assert len(one.salt) == scram.SALT_BYTES
    assert scram.mock_verifier("a", b"k" * 32, 7).iterations == 7


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        # RFC 4013 section 3.
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        # Prohibited or mixed in direction: used as it is, as PostgreSQL does.
        ("\u0007", "\u0007"),
        ("\u0627\u0031", "\u0627\u0031"),
        ("p\u00a0w\u00e9", "p w\u00e9"),
        ("\u00ad", "\u00ad"),
        ("caf\u0065\u0301", "caf\u00e9"),
    ],
)
def test_saslprep(password: str, prepared: str) -> None:
    assert scram.saslprep(password) == prepared


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_give_a_documented_error(first: bytes, final: bytes) -> None:
    for exchange in (ServerExchange(VERIFIER), ServerExchange(VERIFIER, doomed=True)):
        try:
            exchange.challenge(first)
            exchange.verify(final)
        except (ScramError, ProofError):
            continue
        raise AssertionError("random bytes proved a password")


@given(st.text(min_size=1, max_size=30))
def test_whatever_the_password_both_sides_agree(password: str) -> None:
    if any("\ud800" <= c <= "\udfff" for c in password):
        return
    exchange, ours = ServerExchange(Verifier.derive(password, SALT, 1)), ClientExchange()
    ours.read_challenge(exchange.challenge(ours.first()))
    ours.verify(exchange.verify(ours.respond(ClientKeys.derive(password, SALT, 1))))
