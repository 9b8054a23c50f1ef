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

    def issue(
        self,
        name: str,
        *,
        subject: str | None = None,
        alternatives: str = "",
        usage: str = "clientAuth",
        days: int = 30,
    ) -> tuple[Path, Path]:
        """Certificate and key of ``subject`` (default: CN=``name``), signed by the authority.

        ``alternatives`` is openssl's subjectAltName; ``days`` below 0 have passed since it expired. The files
        are called ``name``.
        """
        return _issue(
            self.ca,
            self.ca.with_suffix(".key"),
            name,
            subject=subject or f"/CN={name}",
            alternatives=alternatives,
            usage=usage,
            days=days,
        )


def make_certificates(folder: Path) -> Certificates:
    """Make all files in ``folder``; skips (in CI: fails) where the openssl program is missing."""
    if shutil.which("openssl") is None:
        skip_or_fail("TLS tests need the openssl program.")
    ca, ca_key = folder / "ca.crt", folder / "ca.key"
    _openssl(
        *("req", "-x509", *_CURVE, "-days", "30", "-subj", "/CN=pgturnstile test CA"),
        *("-keyout", ca_key, "-out", ca),
    )
    certificate, key = _issue(
        ca,
        ca_key,
        "server",
        subject="/CN=localhost",
        alternatives="DNS:localhost,IP:127.0.0.1",
        usage="serverAuth",
    )
    return Certificates(ca, certificate, key)


_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


def _issue(
    ca: Path, ca_key: Path, name: str, *, subject: str, alternatives: str, usage: str, days: int = 30
) -> tuple[Path, Path]:
    certificate, key, request, extensions = (
        ca.with_name(f"{name}.{ending}") for ending in ("crt", "key", "csr", "ext")
    )
    lines = ["basicConstraints=CA:FALSE", f"extendedKeyUsage={usage}"]
    lines += [f"subjectAltName={alternatives}"] if alternatives else []
    extensions.write_text("\n".join(lines) + "\n", encoding="ascii")
    _openssl("req", *_CURVE, "-subj", subject, "-keyout", key, "-out", request)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial"),
        *("-days", str(days), "-extfile", extensions, "-out", certificate),
    )
    return certificate, key


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
