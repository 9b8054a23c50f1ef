"""Throw-away certificates for TLS tests, made by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.postgres import skip_or_fail


@dataclass(frozen=True, slots=True)
class Certificates:
    """A certificate authority, and a server certificate it signed for localhost and 127.0.0.1 (PEM files)."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make all files in ``folder``; skips (in CI: fails) where the openssl program is missing."""
    if shutil.which("openssl") is None:
        skip_or_fail("TLS tests need the openssl program.")
    ca, ca_key = folder / "ca.crt", folder / "ca.key"
    certificate, key, request = folder / "server.crt", folder / "server.key", folder / "server.csr"
    extensions = folder / "server.ext"
    extensions.write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n", encoding="ascii"
    )
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
    _openssl(
        "req",
        "-x509",
        *curve,
        "-days",
        "30",
        "-subj",
        "/CN=pgturnstile test CA",
        "-keyout",
        ca_key,
        "-out",
        ca,
    )
    _openssl("req", *curve, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial"),
        *("-days", "30", "-extfile", extensions, "-out", certificate),
    )
    return Certificates(ca, certificate, key)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
