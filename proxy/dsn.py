"""The DSN of a clone, read.

Owns which connection URIs are understood and what they mean. The text holds a password: no error quotes it.
Knows no connection.

Source: PostgreSQL documentation, "Connection URIs".
"""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from proxy.stream import is_local_host
from proxy.tls import TLSMode, backend_context


class DsnError(ValueError):
    """A DSN that cannot be used; the text names no part of it that may be secret."""


@dataclass(frozen=True, slots=True)
class CloneTarget:
    """Where a clone is, and who to be there. A ``host`` that begins with ``/`` is its socket's folder.

    ``tls`` is made of ``mode`` and ``ca``.
    """

    host: str
    port: int
    mode: TLSMode
    tls: ssl.SSLContext | None
    role: str
    database: str
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        # Certificates that were loaded cannot travel to another process; where they come from can.
        kept = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "tls"}
        return functools.partial(_made_again, **kept), ()

    @classmethod
    def of(cls, dsn: str) -> Self:
        """``postgresql://role:password@host:port/database?sslmode=…``. Raises DsnError.

        Without ``sslmode`` the clone is reached in clear on this machine alone, and elsewhere verified.
        """
        try:
            parts = urlsplit(dsn)
            port = parts.port
            asked = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise DsnError("is no URI") from error
        if parts.scheme not in ("postgresql", "postgres"):
            raise DsnError("is no postgresql:// URI")
        host = asked.pop("host", None) or unquote(parts.hostname or "") or "localhost"
        role = asked.pop("user", None) or unquote(parts.username or "")
        database = asked.pop("dbname", None) or unquote(parts.path[1:]) or role
        password = asked.pop("password", None) or (unquote(parts.password) if parts.password else None)
        port = _port(asked.pop("port", None), port)
        ca = asked.pop("sslrootcert", None)
        context, mode = _tls(host, asked.pop("sslmode", None), ca)
        if asked:
            raise DsnError(f"has parameters that are not known here: {', '.join(sorted(asked))}")
        if not role:
            raise DsnError("names no role")
        return cls(host, port, mode, context, role, database, password, None if ca is None else Path(ca))


def _made_again(*, mode: TLSMode, ca: Path | None, **kept: Any) -> CloneTarget:
    return CloneTarget(mode=mode, tls=backend_context(mode, ca), ca=ca, **kept)


def _port(asked: str | None, given: int | None) -> int:
    if asked is not None and not asked.isdecimal():
        raise DsnError("has a port that is no number")
    return int(asked) if asked is not None else given or 5432


def _tls(host: str, mode: str | None, ca: str | None) -> tuple[ssl.SSLContext | None, TLSMode]:
    if mode is None:
        mode = TLSMode.DISABLE if is_local_host(host) and ca is None else TLSMode.VERIFY_FULL
    if mode not in list(TLSMode):
        raise DsnError(f"has an sslmode that is none of {', '.join(TLSMode)}")
    try:
        return backend_context(TLSMode(mode), None if ca is None else Path(ca)), TLSMode(mode)
    except (OSError, ssl.SSLError) as error:
        raise DsnError("has an sslrootcert that cannot be used") from error
