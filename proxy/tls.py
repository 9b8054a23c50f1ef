"""TLS contexts for both legs, and what the certificates in them say.

Owns which versions and ciphers are spoken, what is verified, and which names a verified certificate carries.
Knows no sockets and no messages.
"""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from proxy import channel_binding

ALPN: Final = "postgresql"
"""The protocol's name; direct TLS, which has no SSLRequest to tell it apart, cannot do without."""

_AGENT_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption, which every libpq that speaks 1.2 can do."""
_FIRST_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (?:X509 )?CERTIFICATE-----.*?-----END (?:X509 )?CERTIFICATE-----", re.DOTALL
)


class TLSMode(StrEnum):
    """``backend.tls.mode``, with libpq's meanings of ``sslmode``; ``allow`` is not offered."""

    DISABLE = "disable"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


@dataclass(frozen=True, slots=True)
class AgentTls:
    """What agents are served with. ``end_point`` is the data a SCRAM exchange is bound to, None where the
    certificate allows no binding."""

    context: ssl.SSLContext
    end_point: bytes | None = None

    def for_connection(self) -> ssl.SSLContext:
        """A context for one connection, which is served as by ``context`` and leaves no session behind.

        OpenSSL keeps the sessions of TLS 1.2 (20,000 of them) for two hours, and whoever resumes one is not
        asked for a certificate. PostgreSQL switches that off by a call that Python does not offer
        (SSL_CTX_set_session_cache_mode). What is kept is kept in the context that a connection begins with,
        hence in one that ends with it: before anything of the ClientHello is answered it hands over to the
        one that has the certificate. It takes 0.15 ms and 13 KiB.
        """
        first = _agent_context(self.context.verify_mode)

        def hand_over(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
            connection.context = self.context

        first.sni_callback = hand_over
        return first


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """What the other side has shown, as DER; the names are empty where nothing was verified.

    ``alternative_names`` are pairs of kind and name in OpenSSL's words: ``("DNS", …)``, ``("URI", …)``.
    """

    der: bytes = field(repr=False)
    common_names: tuple[str, ...] = ()
    alternative_names: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, connection: ssl.SSLObject) -> Self | None:
        """The certificate of ``connection``'s other side, if it has shown one."""
        der = connection.getpeercert(binary_form=True)
        if der is None:
            return None
        verified: Mapping[str, Any] = connection.getpeercert() or {}
        return cls(
            der,
            tuple(v for rdn in verified.get("subject", ()) for k, v in rdn if k == "commonName"),
            tuple((kind, name) for kind, name in verified.get("subjectAltName", ())),
        )


class NameKind(StrEnum):
    """Where in a certificate a name stands: the subject's common name, or an alternative of one kind, by the
    word that Python and OpenSSL have for it."""

    COMMON_NAME = "CN"
    DNS = "DNS"
    URI = "URI"
    EMAIL = "email"


@dataclass(frozen=True, slots=True)
class CertificateName:
    """A name that a verified certificate has to carry, compared whole: wildcards stand for themselves."""

    kind: NameKind
    name: str

    @classmethod
    def alternative(cls, name: str) -> Self:
        """The subject alternative name of the kind that ``name`` looks like."""
        if "://" in name:
            return cls(NameKind.URI, name)
        return cls(NameKind.EMAIL if "@" in name else NameKind.DNS, name)

    def fits(self, certificate: PeerCertificate) -> bool:
        if self.kind is NameKind.COMMON_NAME:
            # Several could be meant for several readers.
            return certificate.common_names == (self.name,)
        names = [name for kind, name in certificate.alternative_names if kind == self.kind.value]
        if self.kind is NameKind.DNS:
            return self.name.lower() in (name.lower() for name in names)
        return self.name in names


def agent_tls(certificate: Path, key: Path, client_ca: Path | None = None) -> AgentTls:
    """What agents are served with; a ``client_ca`` has them asked for a certificate that it has signed.

    None has to be shown: which agents need one is for whoever authenticates them. One that does not verify
    ends the handshake. Raises OSError or ssl.SSLError for files that do not fit.
    """
    context = _agent_context(ssl.CERT_NONE if client_ca is None else ssl.CERT_OPTIONAL)
    text = certificate.read_bytes()
    context.load_cert_chain(certificate, key, _no_passphrase)
    if certificate.read_bytes() != text:
        raise OSError("the certificate changed while it was read")
    if client_ca is not None:
        context.load_verify_locations(client_ca)
    return AgentTls(context, _end_point(text))


def _agent_context(verify: ssl.VerifyMode) -> ssl.SSLContext:
    """All that agents are served with but the certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = verify
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # PostgreSQL's be-secure-openssl.c switches the same off: renegotiation and compression are old ways in,
    # and a resumed session would not show the certificate again that says who is there.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_ciphers(_AGENT_CIPHERS)
    context.set_alpn_protocols([ALPN])
    return context


def _end_point(pem: bytes) -> bytes | None:
    """The binding of the first certificate in a file, which is the one that is shown."""
    first = _FIRST_CERTIFICATE.search(pem)
    if first is None or b"CERTIFICATE-----" in pem[: first.start()]:
        return None
    try:
        der = ssl.PEM_cert_to_DER_cert(first[0].replace(b"X509 CERTIFICATE", b"CERTIFICATE").decode("ascii"))
    except ValueError:
        return None
    return channel_binding.end_point(der)


def _no_passphrase() -> str:
    """OpenSSL would ask the terminal, and a server that loads anew in the background waits there for ever."""
    raise OSError(errno.EACCES, "the key is protected by a passphrase")


def backend_context(
    mode: TLSMode, ca: Path | None, own: tuple[Path, Path] | None = None
) -> ssl.SSLContext | None:
    """The context PostgreSQL is reached with; None where it is reached in clear. ``own`` is the certificate
    and key to show a server that asks for one.

    A ``ca`` is honoured under ``require`` as well, as libpq does with a root certificate at hand: what was
    given to verify with is verified with. Without a ``ca`` the system's authorities count. Raises OSError or
    ssl.SSLError for a file that does not fit.
    """
    if mode is TLSMode.DISABLE:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([ALPN])
    context.check_hostname = mode is TLSMode.VERIFY_FULL
    verifies = mode in (TLSMode.VERIFY_CA, TLSMode.VERIFY_FULL) or (
        mode is TLSMode.REQUIRE and ca is not None
    )
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    if ca is not None:
        context.load_verify_locations(ca)
    elif verifies:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if own is not None:
        context.load_cert_chain(*own, _no_passphrase)
    return context
