"""TLS contexts for both legs.

Owns which versions are spoken and what is verified. Knows no sockets and no messages.
"""

from __future__ import annotations

import ssl
from enum import StrEnum
from pathlib import Path


class TLSMode(StrEnum):
    """``backend.tls.mode``, with libpq's meanings of ``sslmode``; ``allow`` is not offered."""

    DISABLE = "disable"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


def agent_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The context agents are served with. Raises OSError or ssl.SSLError for files that do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation and compression are old ways in; PostgreSQL's be-secure-openssl.c switches both off too.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["postgresql"])
    context.load_cert_chain(certificate, key)
    return context


def backend_context(mode: TLSMode, ca: Path | None) -> ssl.SSLContext | None:
    """The context PostgreSQL is reached with; None where it is reached in clear.

    A ``ca`` is honoured under ``require`` as well, as libpq does with a root certificate at hand: what was
    given to verify with is verified with. Without a ``ca`` the system's authorities count. Raises OSError or
    ssl.SSLError for a file that does not fit.
    """
    if mode is TLSMode.DISABLE:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["postgresql"])
    context.check_hostname = mode is TLSMode.VERIFY_FULL
    verifies = mode in (TLSMode.VERIFY_CA, TLSMode.VERIFY_FULL) or (
        mode is TLSMode.REQUIRE and ca is not None
    )
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    if ca is not None:
        context.load_verify_locations(ca)
    elif verifies:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context
