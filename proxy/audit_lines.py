"""The lines of audit files, read back.

Owns how a line becomes a value again, for commands that look back on what was decided. Knows nothing of how
lines are written (``audit``); a line that is none is an error with its place, never skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class AuditLineError(Exception):
    """A line that is no audit record. The text says which and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One record and where it stands. ``body`` holds the members that README, "The audit file" lists."""

    path: Path
    number: int
    body: dict[str, Any]

    @property
    def is_decision(self) -> bool:
        """False for what is recorded beside decisions, which says so by ``event``."""
        return "event" not in self.body

    @property
    def place(self) -> str:
        return f"{self.path}:{self.number}"


def read_lines(paths: Iterable[Path]) -> Iterator[Line]:
    """Every line of every file, in order. Raises AuditLineError; OSError where a file cannot be read."""
    for path in paths:
        # As bytes, so that a line is here what it is to the chain: a carriage return ends none.
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield Line(path, number, _body(line, f"{path}:{number}"))


def _body(line: bytes, place: str) -> dict[str, Any]:
    try:
        body = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        # The last line of a file that is being written may be half of one.
        half = "" if line.endswith(b"\n") else ", the file ends within it"
        raise AuditLineError(f"{place}: no JSON{half}") from error
    if not isinstance(body, dict) or not ("event" in body or {"id", "decision"} <= body.keys()):
        raise AuditLineError(f"{place}: no audit record")
    return body
