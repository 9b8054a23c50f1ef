"""What a PostgreSQL server's log says was done, read as it grows.

Owns the form of the log's lines and of the records they become. A run's log reaches hundreds of megabytes, so
what was read once is kept and never read again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

# PostgreSQL indents continuation lines of a message by a tab, so no statement can forge a line like this.
_RECORD: Final = "\x1e"
_FIELD: Final = "\x1f"
_RECORDS: Final = re.compile(f"^{_RECORD}".encode(), re.MULTILINE)

LOGGING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "log_statement": "all",
        "log_min_duration_statement": "0",  # this one reports Parse and Bind, which log_statement does not
        "log_line_prefix": _RECORD + _FIELD.join(("%p", "%u", "%d", "%e", "")),
    }
)
"""Settings of a server whose log is to be read here."""


class Step(StrEnum):
    """What a backend did with a statement's text."""

    STATEMENT = "statement"  # ran it from a simple Query
    PARSE = "parse"
    BIND = "bind"
    EXECUTE = "execute"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One message of the server's log."""

    pid: int
    role: str
    database: str
    sqlstate: str
    severity: str
    text: str

    @property
    def step(self) -> Step | None:
        """What the record says was done with a statement, None for any other message."""
        match = _STEP.match(self.text) if self.severity == "LOG" else None
        return Step(match["step"]) if match else None

    @property
    def statement(self) -> str:
        """The statement's text, where step is not None."""
        match = _STEP.match(self.text)
        return self.text[match.end() :] if match else ""


# "statement: TEXT", "execute NAME: TEXT" and "duration: N ms  parse NAME: TEXT": src/backend/tcop/postgres.c.
_STEP: Final = re.compile(
    r"(?:duration: [\d.]+ ms  )?(?P<step>statement|(?:parse|bind|execute)(?= ))[^:\n]*: "
)


class ServerLog:
    """The log of one server, in a file that is only ever added to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._whole: defaultdict[str, list[LogRecord]] = defaultdict(list)
        self._last: LogRecord | None = None
        self._last_at = 0

    def of(self, database: str) -> list[LogRecord]:
        """What is said of ``database`` so far. A backend writes a statement's record before it answers."""
        self._read_on()
        told = list(self._whole[database])
        if self._last is not None and self._last.database == database:
            told.append(self._last)
        return told

    def _read_on(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._last_at)
            data = file.read()
        before, *records = _RECORDS.split(data)
        for record in records[:-1]:
            told = _read_record(record)
            self._whole[told.database].append(told)
        if records:
            # Its end shows only when the next one begins, so that one is read again.
            self._last = _read_record(records[-1])
            self._last_at += len(data) - len(records[-1]) - len(_RECORD)
        elif self._last is not None:
            raise AssertionError(f"the server's log was cut: {before[:80]!r}")


def _read_record(record: bytes) -> LogRecord:
    text = record.decode("utf-8", "replace").rstrip("\n")
    pid, role, database, sqlstate, message = text.split(_FIELD, 4)
    severity, _, said = message.partition(":  ")
    return LogRecord(int(pid), role, database, sqlstate, severity, said.replace("\n\t", "\n"))
