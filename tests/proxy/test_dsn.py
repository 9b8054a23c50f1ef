"""The DSN of a clone."""

from __future__ import annotations

import ssl

import pytest

from proxy.dsn import CloneTarget, DsnError
from proxy.tls import TLSMode


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("postgresql://dba:p%40ss@127.0.0.1:5433/clone", ("127.0.0.1", 5433, "dba", "clone", "p@ss")),
        ("postgres://dba@localhost", ("localhost", 5432, "dba", "dba", None)),
        ("postgresql://dba@[::1]/c", ("::1", 5432, "dba", "c", None)),
        ("postgresql:///c?host=/run/pg&user=dba&port=7", ("/run/pg", 7, "dba", "c", None)),
        ("postgresql://dba@/c%20d?password=x", ("localhost", 5432, "dba", "c d", "x")),
    ],
)
def test_what_a_uri_says(dsn: str, told: tuple[object, ...]) -> None:
    target = CloneTarget.of(dsn)
    assert (target.host, target.port, target.role, target.database, target.password) == told
    assert (target.mode, target.tls) == (TLSMode.DISABLE, None)
    assert target.password is None or target.password not in repr(target)


def test_another_machine_is_verified_unless_the_uri_says_otherwise() -> None:
    far = CloneTarget.of("postgresql://dba@db.example/c")
    assert far.mode is TLSMode.VERIFY_FULL
    assert far.tls is not None
    assert far.tls.verify_mode is ssl.CERT_REQUIRED
    assert CloneTarget.of("postgresql://dba@db.example/c?sslmode=disable").tls is None


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("", "no postgresql:// URI"),
        ("host=localhost user=dba", "no postgresql:// URI"),
        ("mysql://dba:hidden@h/c", "no postgresql:// URI"),
        ("postgresql://dba:hidden@h:many/c", "no URI"),
        ("postgresql://dba:hidden@h/c?sslmode=allow", "sslmode"),
        ("postgresql://dba:hidden@h/c?sslrootcert=/nowhere", "sslrootcert"),
        ("postgresql://dba:hidden@h/c?options=-cx%3D1", "options"),
        ("postgresql://dba:hidden@h/c?port=x", "port"),
        ("postgresql://localhost/c", "names no role"),
    ],
)
def test_what_cannot_be_used_is_said_without_the_password(dsn: str, says: str) -> None:
    with pytest.raises(DsnError, match=says) as caught:
        CloneTarget.of(dsn)
    assert "hidden" not in str(caught.value)
