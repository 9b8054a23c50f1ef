"""The binding of certificates with every signature that openssl makes, computed by openssl as well."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.channel_binding import end_point
from tests.support.certificates import Certificates

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
RSA = ("-newkey", "rsa:2048")
PSS = (*RSA, "-sigopt", "rsa_padding_mode:pss")
SIGNATURES = {
    "ECDSA with SHA-256": ((*EC, "-sha256"), "sha256"),
    "ECDSA with SHA-384": ((*EC, "-sha384"), "sha384"),
    "ECDSA with SHA-512": ((*EC, "-sha512"), "sha512"),
    "RSA with SHA-256": ((*RSA, "-sha256"), "sha256"),
    "RSA with SHA-384": ((*RSA, "-sha384"), "sha384"),
    "RSA with SHA-1": ((*RSA, "-sha1"), "sha256"),
    "RSA-PSS with SHA-256": ((*PSS, "-sha256"), "sha256"),
    "RSA-PSS with SHA-512": ((*PSS, "-sha512"), "sha512"),
    "Ed25519": (("-newkey", "ed25519"), None),
}


def made(folder: Path, *options: str) -> bytes:
    certificate = folder / "c.pem"
    files = ("-keyout", folder / "k.pem", "-out", certificate)
    command = ("openssl", "req", "-x509", *options, "-noenc", "-subj", "/CN=x", *files)
    subprocess.run(command, check=True, capture_output=True)
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


@pytest.mark.parametrize(("options", "digest"), SIGNATURES.values(), ids=SIGNATURES)
def test_the_signatures_own_hash_function_is_used(
    certificates: Certificates, tmp_path: Path, options: tuple[str, ...], digest: str | None
) -> None:
    der = made(tmp_path, *options)
    if digest is None:
        assert end_point(der) is None
        return
    hashed = subprocess.run(
        ["openssl", "dgst", f"-{digest}", "-binary"], input=der, check=True, capture_output=True
    ).stdout
    assert end_point(der) == hashed


@given(st.data())
def test_what_is_no_certificate_has_no_binding(certificates: Certificates, data: st.DataObject) -> None:
    der = bytearray(ssl.PEM_cert_to_DER_cert(certificates.certificate.read_text()))
    cut = data.draw(st.integers(0, 40))
    der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))

    for damaged in (bytes(der[: len(der) - cut]), data.draw(st.binary(max_size=60))):
        binding = end_point(damaged)
        assert binding is None or len(binding) in (28, 32, 48, 64)
