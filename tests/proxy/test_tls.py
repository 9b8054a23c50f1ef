"""What is loaded from certificate files, what is refused of them, and which names in a certificate count."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
from pathlib import Path

import pytest

from proxy import channel_binding, tls
from proxy.tls import CertificateName, NameKind, PeerCertificate, TLSMode
from tests.support.certificates import Certificates


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def test_agents_get_modern_tls_and_nothing_of_the_old(certificates: Certificates) -> None:
    served = tls.agent_tls(certificates.certificate, certificates.key)

    assert served.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert served.context.verify_mode is ssl.CERT_NONE
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION, ssl.OP_NO_TICKET):
        assert served.context.options & option
    ciphers = served.context.get_ciphers()
    assert ciphers
    assert all(cipher["aead"] for cipher in ciphers)
    assert {c["kea"] for c in ciphers if c["protocol"] == "TLSv1.2"} == {"kx-ecdhe"}
    assert served.end_point == channel_binding.end_point(der(certificates.certificate))
    asking = tls.agent_tls(certificates.certificate, certificates.key, certificates.ca)
    assert asking.context.verify_mode is ssl.CERT_OPTIONAL


def test_a_handshake_leaves_no_session_behind(certificates: Certificates) -> None:
    """Else whoever shakes hands, again and again, fills the server's memory."""
    served = tls.agent_tls(certificates.certificate, certificates.key, certificates.ca)
    client = ssl.create_default_context(cafile=certificates.ca)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_alpn_protocols(["postgresql"])
    client.load_cert_chain(*certificates.issue("session", subject="/CN=known"))
    session = None
    for _ in range(3):
        context = served.for_connection()
        theirs, ours = shaken_hands(client, context, session)
        session = theirs.session
        assert (theirs.session_reused, ours.session_reused) == (False, False)
        assert ours.selected_alpn_protocol() == "postgresql"
        assert ours.version() == "TLSv1.2"
        seen = PeerCertificate.of(ours)
        assert seen is not None
        assert seen.common_names == ("known",)
        assert served.context.session_stats()["number"] == 0


def shaken_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a connection in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends


def test_the_binding_is_of_the_certificate_that_is_shown(certificates: Certificates, tmp_path: Path) -> None:
    """A file may hold the way up to the authority behind it, and text before it."""
    chain = tmp_path / "chain.pem"
    chain.write_bytes(
        b"subject=localhost\n" + certificates.certificate.read_bytes() + certificates.ca.read_bytes()
    )
    served = tls.agent_tls(chain, certificates.key)
    assert served.end_point == channel_binding.end_point(der(certificates.certificate))
    chain.write_bytes(certificates.certificate.read_bytes().replace(b" CERTIFICATE", b" X509 CERTIFICATE"))
    assert tls.agent_tls(chain, certificates.key).end_point == served.end_point


def test_a_form_that_is_not_read_here_is_served_without_binding(
    certificates: Certificates, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    openssl("x509", "-in", certificates.certificate, "-trustout", "-addtrust", "serverAuth", "-out", trusted)
    trusted.write_bytes(trusted.read_bytes() + certificates.ca.read_bytes())
    assert b"TRUSTED CERTIFICATE" in trusted.read_bytes()
    assert tls.agent_tls(trusted, certificates.key).end_point is None


def test_a_certificate_that_allows_no_binding_is_served_without(
    certificates: Certificates, tmp_path: Path
) -> None:
    files = tmp_path / "c.pem", tmp_path / "k.pem"
    openssl(
        *("req", "-x509", "-newkey", "ed25519", "-noenc", "-subj", "/CN=x"),
        *("-out", files[0], "-keyout", files[1]),
    )
    assert tls.agent_tls(*files).end_point is None


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(
    certificates: Certificates, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    openssl("pkey", "-in", certificates.key, "-aes256", "-passout", "pass:secret", "-out", locked)
    with pytest.raises(OSError, match="protected by a passphrase"):
        tls.agent_tls(certificates.certificate, locked)
    with pytest.raises(OSError, match="protected by a passphrase"):
        tls.backend_context(TLSMode.REQUIRE, None, (certificates.certificate, locked))


def test_a_certificate_that_changes_under_our_hands_is_not_served(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context would show one certificate and the binding be another's: no login would hold."""
    reads = iter([b"before", b"after"])
    monkeypatch.setattr(Path, "read_bytes", lambda self: next(reads))
    with pytest.raises(OSError, match="changed while it was read"):
        tls.agent_tls(certificates.certificate, certificates.key)


@pytest.mark.parametrize(
    ("mode", "with_ca", "verifies", "names"),
    [
        (TLSMode.PREFER, False, False, False),
        (TLSMode.REQUIRE, False, False, False),
        (TLSMode.REQUIRE, True, True, False),
        (TLSMode.VERIFY_CA, False, True, False),
        (TLSMode.VERIFY_CA, True, True, False),
        (TLSMode.VERIFY_FULL, False, True, True),
        (TLSMode.VERIFY_FULL, True, True, True),
    ],
)
def test_what_is_verified_of_the_backend(
    certificates: Certificates, mode: TLSMode, with_ca: bool, verifies: bool, names: bool
) -> None:
    context = tls.backend_context(mode, certificates.ca if with_ca else None)
    assert context is not None
    assert (context.verify_mode is ssl.CERT_REQUIRED) is verifies
    assert context.check_hostname is names
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert not with_ca or [ca["subject"] for ca in context.get_ca_certs()] == [
        ((("commonName", "pgturnstile test CA"),),)
    ]


def test_in_clear_there_is_no_context() -> None:
    assert tls.backend_context(TLSMode.DISABLE, None) is None


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("bot.example.org", NameKind.DNS),
        ("bot", NameKind.DNS),
        ("bot@example.org", NameKind.EMAIL),
        ("spiffe://example.org/bot", NameKind.URI),
        ("spiffe://user@example.org/bot", NameKind.URI),
    ],
)
def test_an_alternative_name_is_of_the_kind_that_it_looks_like(written: str, kind: NameKind) -> None:
    assert CertificateName.alternative(written) == CertificateName(kind, written)


DNS = CertificateName.alternative("bot.example.org")
MAIL = CertificateName.alternative("bot@example.org")
URI = CertificateName.alternative("spiffe://shop/bot")
COMMON = CertificateName(NameKind.COMMON_NAME, "bot.example.org")


@pytest.mark.parametrize(
    ("name", "common", "alternatives", "fits"),
    [
        (DNS, (), (("DNS", "bot.example.org"),), True),
        (DNS, (), (("DNS", "x"), ("DNS", "BOT.Example.org")), True),
        (DNS, ("bot.example.org",), (), False),
        (DNS, (), (("URI", "bot.example.org"), ("email", "bot.example.org")), False),
        (DNS, (), (("DNS", "*.example.org"), ("DNS", "bot.example.org\0.evil")), False),
        (DNS, (), (("DNS", "bot.example.org.evil"), ("DNS", "a.bot.example.org")), False),
        (MAIL, (), (("email", "bot@example.org"),), True),
        (MAIL, (), (("email", "Bot@example.org"), ("DNS", "bot@example.org")), False),
        (URI, (), (("URI", "spiffe://shop/bot"),), True),
        (URI, (), (("URI", "spiffe://shop/bot/2"), ("URI", "spiffe://shop/Bot")), False),
        (COMMON, ("bot.example.org",), (), True),
        (COMMON, ("BOT.example.org",), (), False),
        (COMMON, ("bot.example.org", "other"), (), False),
        (COMMON, (), (("DNS", "bot.example.org"),), False),
    ],
)
def test_a_name_counts_whole_and_in_its_place(
    name: CertificateName, common: tuple[str, ...], alternatives: tuple[tuple[str, str], ...], fits: bool
) -> None:
    assert name.fits(PeerCertificate(b"", common, alternatives)) is fits


def test_a_certificate_is_shown_as_der_alone() -> None:
    assert "secret" not in repr(PeerCertificate(b"secret"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_taken_up_again(certificates: Certificates, version: ssl.TLSVersion) -> None:
    """Each connection shows its certificate anew: one that was withdrawn or has expired ends there."""
    server = tls.agent_tls(certificates.certificate, certificates.key, certificates.ca).context
    client = ssl.create_default_context(cafile=str(certificates.ca))
    client.maximum_version = version
    first = shaken(client, server)
    assert first.version() == version.name.replace("_", ".", 1)
    assert not shaken(client, server, first.session).session_reused


def shaken(
    client: ssl.SSLContext, server: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLObject:
    """The client's side of a connection in memory that has carried a byte each way."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname="localhost", session=session)
    theirs = server.wrap_bio(up, down, server_side=True)
    steps = [ours.do_handshake, theirs.do_handshake]
    while steps:
        step = steps.pop(0)
        try:
            step()
        except ssl.SSLWantReadError:
            steps.append(step)
    theirs.write(b"x")
    assert ours.read(1) == b"x"
    return ours
