"""pg_dump and what reads its output: dumped and restored through the road, compared with a direct dump.

Every format, with psql and pg_restore as readers; large objects too, which travel by FunctionCall.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.peers import sample
from tests.peers.suite import Finished, Outcome, Road, Suite, Target, Verdict, call, need

_FORMATS: Final = {
    "plain": ("-Fp",),
    "inserts": ("-Fp", "--column-inserts", "--rows-per-insert=50"),
    "custom": ("-Fc",),
    "tar": ("-Ft",),
    "directory": ("-Fd", "-j", "2"),
}


class Dump(Suite):
    """A format passes where the restored database dumps, directly, as the one that was dumped does."""

    name = "pg_dump"
    roads = (Road.OBSERVE, Road.ENFORCE)
    quick = True
    settings: ClassVar[Mapping[str, str]] = {"autovacuum": "off"}  # sizes and statistics are shown

    def prepare(self, workdir: Path) -> str:
        output = need("pg_dump --version", call(["pg_dump", "--version"]))
        match = re.search(r"\(PostgreSQL\) (\S+)", output)
        return match[1] if match else output.strip()

    def run(self, target: Target) -> Outcome:
        source = sample.load(target)
        wanted = _direct_dump(source)
        verdicts, seen = {"loading": _verdict(bool(wanted))}, {"loading": wanted}
        for name, options in _FORMATS.items():
            verdicts[name] = _verdict(_round_trip(source, name, options, wanted))
        globals_ = _run(target, "globals", ["pg_dumpall", "--globals-only"])
        verdicts["globals"] = _verdict(globals_.code == 0)
        # Verifiers are salted.
        seen["globals"] = re.sub(r"SCRAM-SHA-256\S+", "SCRAM-SHA-256", _unfenced(globals_.output))
        verdicts["large-objects"] = _verdict(_large_objects(source))
        return Outcome(verdicts, seen)


def _round_trip(source: Target, name: str, options: Sequence[str], wanted: str) -> bool:
    copy = source.at(f"copy_{name}")
    path = source.scratch / f"{name}.dump"
    if _run(source, name, ["pg_dump", *options, "-f", str(path)]).code != 0:
        return False
    if _run(source, f"{name}-create", ["psql", "-Xq", "-c", f"CREATE DATABASE {copy.database}"]).code != 0:
        return False
    if "-Fp" in options:
        reader = ["psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", str(path)]
    else:
        parallel = ["-j", "2"] if "-j" in options else []
        reader = ["pg_restore", "--exit-on-error", *parallel, "-d", copy.database, str(path)]
    restored = _run(copy, f"{name}-restore", reader)
    return restored.code == 0 and _direct_dump(copy) == wanted


def _large_objects(source: Target) -> bool:
    """Into the server by psql, out by pg_dump, in again by pg_restore, and out by psql."""
    given, got = source.scratch / "large", source.scratch / "large-back"
    given.write_bytes(bytes(range(256)) * 5000)
    copy, archive = source.at("copy_large"), source.scratch / "large.dump"
    steps = [
        (
            source,
            ["psql", "-Xq", "-c", rf"\lo_import '{given}' 'a comment'", "-c", "CREATE DATABASE copy_large"],
        ),
        (source, ["pg_dump", "-Fc", "-b", "-t", "public.wide", "-f", str(archive)]),
        (copy, ["pg_restore", "--exit-on-error", "-d", copy.database, str(archive)]),
    ]
    if any(_run(at, f"large-objects-{n}", step).code != 0 for n, (at, step) in enumerate(steps)):
        return False
    oid = call(
        ["psql", "-XAtq", "-c", "SELECT oid FROM pg_largeobject_metadata"], environment=copy.environment()
    ).output.strip()
    exported = _run(copy, "large-objects-export", ["psql", "-Xq", "-c", rf"\lo_export {oid} '{got}'"])
    return exported.code == 0 and got.read_bytes() == given.read_bytes()


def _direct_dump(target: Target) -> str:
    finished = call(["pg_dump"], environment=target.straight.environment(), timeout_s=300)
    assert finished.code == 0, finished.output
    return _unfenced(finished.output)


def _unfenced(dump: str) -> str:
    """Less the random word that a dump is fenced in by since 15.14."""
    return re.sub(r"^\\(un)?restrict .*", "", dump, flags=re.MULTILINE)


def _run(target: Target, name: str, command: Sequence[str]) -> Finished:
    log = target.scratch / f"{name}.log"
    return call(command, environment=target.environment(), timeout_s=600, log=log)


def _verdict(passed: bool) -> Verdict:
    return Verdict.PASSED if passed else Verdict.FAILED
