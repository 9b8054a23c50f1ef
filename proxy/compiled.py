"""Which modules of the hot path run compiled, and that none is another than its source says.

Owns the list of modules that ``PGTURNSTILE_COMPILE=1 pip install .`` compiles with mypyc, from the very
source that runs without. An extension module takes precedence over the source beside it, so one that was left
over from an older build would run unnoticed: the hash of every source is compiled in with it and compared at
start. Standard library only: the build reads the list before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

MODULES: Final = (
    "proxy.wire.frames",
    "proxy.wire.frontend",
    "proxy.wire.backend",
    "proxy.effects",
    "proxy.limits",
    "proxy.exchange",
    "proxy.phase",
    "proxy.ruling",
    "proxy.rulings",
    "proxy.prepared",
    "proxy.answers",
    "proxy.replies",
    "proxy.waiting",
    "proxy.paths",
    "proxy.conversation",
    "proxy.repairs",
    "proxy.pricing",
    "proxy.prices",
    "proxy.writes",
    "proxy.sandboxing",
    "proxy.in_force",
    "proxy.consequences",
    "proxy.succession",
    "proxy.agent_side",
    "proxy.server_side",
    "proxy.watchdog",
    "proxy.session",
    "proxy.audit_line",
    "proxy.audit_links",
    "proxy.audit_queue",
    "proxy.carrier",
)
"""What a message passes through. Names are bound when they are compiled: nothing in them can be patched."""
STAMP: Final = "proxy.compiled_from"
"""The module that a compiled build has beside these: ``SOURCES``, the hash of each one's source."""


class StaleBuildError(Exception):
    """What is compiled is not what the source says. The message is a sentence for the operator."""


def digest(source: bytes) -> str:
    """What tells one source from another."""
    return hashlib.sha256(source).hexdigest()


def check(names: Iterable[str] = MODULES, built: Mapping[str, str] | None = None) -> Mapping[str, bool]:
    """Whether each module of ``names`` is compiled; ``built`` None for what the stamp says of this build.

    Raises StaleBuildError where one must not run.
    """
    built = _stamped() if built is None else built
    found: dict[str, bool] = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        path = Path("" if spec is None else spec.origin or "")
        found[name] = path.suffix != ".py"
        if found[name] or name in built:
            _compare(name, path, built.get(name), compiled=found[name])
    return found


def _compare(name: str, path: Path, expected: str | None, *, compiled: bool) -> None:
    if not compiled:
        raise StaleBuildError(f"{name} runs from its source, though it was compiled: {_AGAIN}")
    source = path.with_name(name.rpartition(".")[2] + ".py")
    if expected is None or not source.is_file() or digest(source.read_bytes()) != expected:
        raise StaleBuildError(f"{path} was compiled from another source than {source}: {_AGAIN}")


def _stamped() -> Mapping[str, str]:
    try:
        module = importlib.import_module("proxy.compiled_from")
    except ModuleNotFoundError:
        return {}
    sources: Mapping[str, str] = module.SOURCES
    return sources


_AGAIN: Final = "install pgturnstile again, or delete the extension modules."
