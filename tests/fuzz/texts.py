"""What is fuzzed beside the session: the login's messages, and texts that a server or a file hands us.

Owns the targets ``scram`` and ``texts`` and what they begin with. As in ``targets``, an AssertionError or any
exception that is not documented is a finding.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from policy import catalog_json, node_tree, plan
from policy.catalog_json import CatalogFormatError
from policy.catalog_values import Content
from policy.figures import figures
from policy.node_tree import NodeTreeError
from policy.plan import PlanFormatError
from proxy import scram
from proxy.audit_chain import last_digest, verify
from proxy.audit_lines import AuditLineError, read_lines
from proxy.audit_links import Links
from proxy.dsn import CloneTarget, DsnError
from proxy.scram import ClientExchange, ProofError, ScramError, ServerExchange, Verifier

_NONCE: Final = "fyko+d2lbbFgONRv9qkxdawL"
_KEPT_FROM_FILES: Final = "sslrootcert"
"""A DSN that names a file is read with it: what is in the file system is not of the input."""


def exchanges(data: bytes) -> None:
    """Nobody is let in, and no server is believed, by a message that was made without the password: a NUL
    parts the first message from the final one."""
    first, _, final = data.partition(b"\0")
    for binding in (None, b"end point"):
        for mechanism in (scram.MECHANISM, scram.MECHANISM_PLUS):
            with contextlib.suppress(ScramError, ProofError):
                server = ServerExchange(_VERIFIER, nonce=_NONCE, binding=binding)
                server.challenge(first, mechanism)
                server.verify(final)
                raise AssertionError("let in")
        with contextlib.suppress(ScramError, ProofError):
            client = ClientExchange(nonce=_NONCE, binding=binding)
            client.first()
            challenge = client.read_challenge(first)
            assert 0 < challenge.iterations <= scram.MAX_ITERATIONS
            assert 0 < len(challenge.salt) <= scram.MAX_SALT_BYTES
            client.respond(_KEYS)
            client.verify(final)
            raise AssertionError("believed")
    with contextlib.suppress(ValueError):
        verifier = Verifier.parse(data.decode("utf-8"))
        assert Verifier.parse(str(verifier)) == verifier


_VERIFIER: Final = Verifier(4096, b"salt", b"k" * 32, b"s" * 32)
_KEYS: Final = scram.ClientKeys(b"k" * 32, b"s" * 32)


def texts(data: bytes) -> None:
    """Every reader gives a value or its documented error."""
    for read in _READERS:
        read(data)


def _plan(data: bytes) -> None:
    with contextlib.suppress(PlanFormatError):
        figures(plan.parse_plan(data), None)


def _tree(data: bytes) -> None:
    with contextlib.suppress(UnicodeDecodeError, NodeTreeError):
        node_tree.read(data.decode())


def _catalog(data: bytes) -> None:
    with contextlib.suppress(CatalogFormatError):
        content = catalog_json.load(data)
        assert catalog_json.load(catalog_json.dump(content)) == content


def _clone(data: bytes) -> None:
    with contextlib.suppress(UnicodeDecodeError, DsnError):
        text = data.decode()
        if _KEPT_FROM_FILES not in text:
            assert 0 < CloneTarget.of(text).port < 1 << 16


def _audit(data: bytes) -> None:
    """A file that holds is one in which each line tells the one before it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        path = Path(file.name)
        verdict = verify([path])
        assert verdict.lines == data.count(b"\n") + (data[-1:] not in (b"\n", b""))
        assert bool(verdict.heads) or not verdict.holds or not data
        with contextlib.suppress(AuditLineError):
            list(read_lines([path]))
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    assert last_digest(reversed(pieces)) == last_digest([data] if data else [])


_READERS: Final[tuple[Callable[[bytes], None], ...]] = (_plan, _tree, _catalog, _clone, _audit)


def _audited() -> bytes:
    links = Links()
    return b"".join(links.link(f'{{"id":"{n}","decision":"allow"}}\n') for n in range(3))


EXCHANGES: Final = (
    f"n,,n=,r={_NONCE}\0c=biws,r={_NONCE}{_NONCE},p={'A' * 43}=".encode(),
    f"y,,n=,r={_NONCE}\0c=eSws,r={_NONCE}{_NONCE},p={'A' * 43}=".encode(),
    f"p=tls-server-end-point,,n=,r={_NONCE}\0c=cD10,r={_NONCE}{_NONCE},p={'A' * 43}=".encode(),
    f"r={_NONCE}more,s=c2FsdA==,i=4096\0v={'A' * 43}=".encode(),
    str(_VERIFIER).encode(),
)
TEXTS: Final = (
    b'[{"Plan": {"Node Type": "Limit", "Startup Cost": 0.0, "Total Cost": 1.5, "Plan Rows": 3, "Plan Width":'
    b' 4, "Plans": [{"Node Type": "Seq Scan", "Parent Relationship": "Outer", "Relation Name": "a", "Alias":'
    b' "a", "Startup Cost": 0, "Total Cost": 9e3, "Plan Rows": 9, "Plan Width": 4, "Workers Planned": 2,'
    b' "Filter": "(id > 5)", "Sort Key": ["a", "b"], "Output": ["id"]}]}}]',
    rb"({QUERY :commandType 1 :rtable ({RANGETBLENTRY :alias <> :relid 16 :names (\"a\\ b\" c)}) :limit <>})",
    catalog_json.dump(
        Content(180000, "shop", "reader", ("public",), ("public",), comparisons=(), row_functions=("f",))
    ).encode(),
    b"postgresql://role:pass%20word@clone.example:5433/shop?sslmode=require",
    _audited(),
)
