"""A database with something of every kind, for suites that bring no data of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.peers.suite import Target, call

_SCRIPTS: Final = (
    Path(__file__).parents[1] / "support/rich_schema.sql",
    Path(__file__).with_name("sample.sql"),
)


def load(target: Target, database: str = "sample") -> Target:
    """A new database at ``target`` with the sample in it, loaded by psql along the target's own road.

    The target with that database. Raises AssertionError with what psql said where it does not load.
    """
    made = call(["psql", "-XAtq", "-c", f"CREATE DATABASE {database}"], environment=target.environment())
    assert made.code == 0, made.output
    sample = target.at(database)
    for script in _SCRIPTS:
        command: list[str | Path] = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", script]
        loaded = call(command, environment=sample.environment(), log=target.scratch / f"{script.stem}.log")
        assert loaded.code == 0, loaded.output
    return sample
