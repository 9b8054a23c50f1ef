"""ClientHellos as OpenSSL makes them."""

from __future__ import annotations

import ssl
from collections.abc import Sequence


def client_hello(
    protocols: Sequence[str] = (), version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, name: str = "localhost"
) -> bytes:
    """The first flight of a client that offers ``protocols`` by ALPN and speaks up to ``version``."""
    context = ssl.create_default_context()
    context.maximum_version = version
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a server")
