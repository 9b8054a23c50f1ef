"""The chain through an audit's lines: each tells the SHA-256 of the one before it.

Owns how the links of ``audit_links`` are followed when files are read back. A file may hold lines of several
writers: of a process and of the one that replaces it, of one process after another. So each writer has a run
of its own, numbered from 1; its first line links to the last one that was in the file, the others to the line
before them in their run.

What a chain shows: a line that was changed, taken out, put in or moved. What no chain without a secret can
show is a file whose end was cut off, or that was written anew from somewhere on: keep the head that the proxy
logs, and have it looked for (``Verdict.heads``, ``met``).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from proxy.audit_links import digest

_LINK: Final = re.compile(rb',"chain":"([0-9a-f]{8})-([1-9][0-9]{0,17})","prev":(null|"[0-9a-f]{64}")\}\Z')
"""The end of a line as ``audit_links`` writes it: read as bytes, because bytes are what was hashed."""
_REMEMBERED: Final = 1_000_000
"""Lines that the first line of a run may link back over, where other runs have gone on meanwhile."""


class Break(NamedTuple):
    """A place where the chain does not hold, and what is wrong with it."""

    path: Path
    number: int
    reason: str


@dataclass(slots=True)
class Verdict:
    """What following the chain through some files has shown.

    ``heads`` are the digests of each run's last line. ``since`` tells of runs that begin before the first
    file: what came before was not given. ``anew`` are files that nothing links to those before them: whoever
    wrote their first line had just begun, and found the name free. ``missing`` are heads that were looked for
    and not met.
    """

    lines: int = 0
    breaks: list[Break] = field(default_factory=list)
    heads: dict[str, str] = field(default_factory=dict)
    since: list[str] = field(default_factory=list)
    anew: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.breaks and not self.missing


def verify(paths: Iterable[Path], expected: Iterable[str] = ()) -> Verdict:
    """Follow the chain through ``paths``, the oldest first.

    ``expected`` are digests of lines that must be met. Raises OSError where a file cannot be read.
    """
    following = _Following(set(expected))
    for nth, path in enumerate(paths):
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if nth and number == 1 and _begins_anew(line):
                    following.verdict.anew.append(path)
                for reason in following.line(line, first_file=nth == 0, first_line=number == 1):
                    following.verdict.breaks.append(Break(path, number, reason))
    following.verdict.missing = sorted(following.expected)
    return following.verdict


class _Following:
    """Where each run stands while lines are read."""

    def __init__(self, expected: set[str]) -> None:
        self.verdict = Verdict()
        self.expected = expected
        self._numbers: dict[str, int] = {}
        self._seen: set[str] = set()
        self._order: deque[str] = deque()

    def line(self, line: bytes, *, first_file: bool, first_line: bool) -> Iterator[str]:
        """What is wrong with the next line."""
        self.verdict.lines += 1
        own = digest(line.removesuffix(b"\n"))
        link = _LINK.search(line.removesuffix(b"\n"))
        if link is None:
            yield _what_it_is(line)
        else:
            run, number = link[1].decode(), int(link[2])
            before = None if link[3] == b"null" else link[3][1:-1].decode()
            yield from self._linked(run, number, before, first_file=first_file, first_line=first_line)
            if number > self._numbers.get(run, 0):
                self._numbers[run], self.verdict.heads[run] = number, own
        self._remember(own)

    def _linked(
        self, run: str, number: int, before: str | None, *, first_file: bool, first_line: bool
    ) -> Iterator[str]:
        last = self._numbers.get(run)
        if last is not None:
            if number <= last:
                yield f"line {number} of run {run} comes again, or late: {last} has been"
            elif number > last + 1:
                yield f"lines {last + 1} to {number - 1} of run {run} are missing"
            elif before != self.verdict.heads[run]:
                yield f"the line before it in run {run} is not what it was"
        elif number > 1:
            if not first_file:
                yield f"lines 1 to {number - 1} of run {run} are missing"
            else:
                self.verdict.since.append(f"{run}-{number}")
        elif before is None and not first_line:
            yield "it claims to be the first of all"
        elif before is not None and before not in self._seen:
            if self.verdict.lines > 1:
                yield "the line that it continues from is missing or is not what it was"
            else:
                self.verdict.since.append(f"{run}-{number}")

    def _remember(self, own: str) -> None:
        self.expected.discard(own)
        self._seen.add(own)
        self._order.append(own)
        if len(self._order) > _REMEMBERED:
            self._seen.discard(self._order.popleft())


def _begins_anew(line: bytes) -> bool:
    link = _LINK.search(line.removesuffix(b"\n"))
    return link is not None and (link[2], link[3]) == (b"1", b"null")


def _what_it_is(line: bytes) -> str:
    if not line.endswith(b"\n"):
        return "the file ends within this line"
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return "no record: a line that was cut short, or something else"
    return "a record that is not linked"


def last_digest(tail: Iterable[bytes]) -> str | None:
    """The digest of a file's last line; ``tail`` are its pieces from the end backwards. None for no line."""
    held = b""
    for piece in tail:
        held = piece + held
        _, feed, last = held.removesuffix(b"\n").rpartition(b"\n")
        if feed:
            return digest(last)
    return digest(held.removesuffix(b"\n")) if held else None
