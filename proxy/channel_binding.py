"""Channel binding of type tls-server-end-point: what ties a SCRAM exchange to one TLS server.

Owns the hash of a certificate, and as much DER as finding its signature's hash function takes. Knows no
sockets and no SCRAM.

Source: RFC 5929 section 4.1; PostgreSQL's src/backend/libpq/be-secure-openssl.c
(be_tls_get_certificate_hash) and src/interfaces/libpq/fe-secure-openssl.c.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

_RSA: Final = bytes.fromhex("2a864886f70d0101")  # 1.2.840.113549.1.1
_ECDSA: Final = bytes.fromhex("2a8648ce3d04")  # 1.2.840.10045.4
_SHA2: Final = bytes.fromhex("6086480165030402")  # 2.16.840.1.101.3.4.2
_RSA_PSS: Final = _RSA + b"\x0a"

# "If the hash function is MD5 or SHA-1, use SHA-256."
_SIGNATURES: Final[Mapping[bytes, str]] = {
    _RSA + b"\x04": "sha256",
    _RSA + b"\x05": "sha256",
    _RSA + b"\x0b": "sha256",
    _RSA + b"\x0c": "sha384",
    _RSA + b"\x0d": "sha512",
    _RSA + b"\x0e": "sha224",
    _ECDSA + b"\x01": "sha256",
    _ECDSA + b"\x03\x01": "sha224",
    _ECDSA + b"\x03\x02": "sha256",
    _ECDSA + b"\x03\x03": "sha384",
    _ECDSA + b"\x03\x04": "sha512",
}
_HASHES: Final[Mapping[bytes, str]] = {
    bytes.fromhex("2b0e03021a"): "sha256",  # SHA-1
    _SHA2 + b"\x01": "sha256",
    _SHA2 + b"\x02": "sha384",
    _SHA2 + b"\x03": "sha512",
    _SHA2 + b"\x04": "sha224",
}
_SEQUENCE: Final = 0x30
_OBJECT_IDENTIFIER: Final = 0x06
_HASH_OF_PSS: Final = 0xA0


class _Element(NamedTuple):
    tag: int
    content: bytes


def end_point(certificate: bytes) -> bytes | None:
    """The binding data of a server that shows ``certificate`` (DER).

    None where the signature names no hash function (Ed25519) or one that is not known: the standard leaves
    the binding undefined then, and no peer could compute it either.
    """
    try:
        name = _hash_name(certificate)
    except (IndexError, ValueError):
        return None
    return None if name is None else hashlib.new(name, certificate).digest()


def _hash_name(certificate: bytes) -> str | None:
    _, algorithm, _ = _elements(_content(_elements(certificate)[0], _SEQUENCE))
    identifier, *parameters = _elements(_content(algorithm, _SEQUENCE))
    oid = _content(identifier, _OBJECT_IDENTIFIER)
    if oid != _RSA_PSS:
        return _SIGNATURES.get(oid)
    # RSASSA-PSS-params, RFC 4055 section 3.1: hashAlgorithm [0] DEFAULT sha1.
    for parameter in _elements(_content(parameters[0], _SEQUENCE)):
        if parameter.tag == _HASH_OF_PSS:
            hashing = _elements(_content(_elements(parameter.content)[0], _SEQUENCE))
            return _HASHES.get(_content(hashing[0], _OBJECT_IDENTIFIER))
    return "sha256"


def _content(element: _Element, tag: int) -> bytes:
    if element.tag != tag:
        raise ValueError("not the element that belongs here")
    return element.content


def _elements(data: bytes) -> list[_Element]:
    """The elements that ``data`` consists of. Raises ValueError and IndexError where it is no DER."""
    elements: list[_Element] = []
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("an element past the end")
        elements.append(_Element(tag, data[at : at + length]))
        at += length
    return elements
