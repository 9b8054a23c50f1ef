"""What is wrong with a file, where, and what was probably meant.

Owns the value, the errors that carry it and its rendering, so that the terminal, JSON and tests share one
account of a fault. Knows neither YAML nor what a policy holds.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

EXCERPT_WIDTH = 96
"""Characters of a source line that a rendered diagnostic shows; a longer line is cut round the caret."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault of one file.

    ``line`` and ``column`` count from 1, in characters; 0 where the fault has no such place (a file that
    cannot be opened). ``path`` is the key path, empty for the whole file. ``near`` is the nearest valid word.
    ``excerpt`` is the line at fault, empty where it may hold a secret.
    """

    source: str
    line: int
    column: int
    path: str
    message: str
    near: str | None = None
    excerpt: str = ""
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """``file:line:column: key.path: message`` in one line, as editors and CI read it."""
        place = ":".join([printable(self.source), *(str(n) for n in (self.line, self.column) if n)])
        kind = "warning: " if self.severity is Severity.WARNING else ""
        path = f"{printable(self.path)}: " if self.path else ""
        advice = f"; did you mean {self.near!r}?" if self.near else ""
        return f"{place}: {kind}{path}{printable(self.message)}{advice}"


class InvalidFileError(Exception):
    """A file that was refused as a whole. ``diagnostics`` holds every fault found, in the file's order."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(str(d) for d in self.diagnostics))


class PolicyError(InvalidFileError):
    """A policy that cannot be loaded; nothing of it holds."""


def render(diagnostics: Iterable[Diagnostic]) -> str:
    """All of ``diagnostics`` for a person to read: each with its source line and a caret under the fault."""
    return "\n".join(line for diagnostic in diagnostics for line in _rendered(diagnostic))


def _rendered(diagnostic: Diagnostic) -> list[str]:
    lines = [str(diagnostic)]
    if diagnostic.excerpt and diagnostic.line and diagnostic.column:
        start = max(0, diagnostic.column - 1 - EXCERPT_WIDTH // 2)
        gutter = f"{diagnostic.line:>5} | "
        shown = printable(diagnostic.excerpt[start : start + EXCERPT_WIDTH])
        caret = " " * (len(gutter) - 2) + "| " + " " * (diagnostic.column - 1 - start) + "^"
        lines += [f"{gutter}{shown}", caret]
    return lines


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` most like ``word``, None where nothing is close enough to be meant."""
    by_fold = {k.casefold().replace("_", "-"): k for k in known}
    found = difflib.get_close_matches(word[:64].casefold().replace("_", "-"), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def join_path(path: str, key: str | int) -> str:
    """``path`` one step deeper: ``a.b``, ``a[0]``, ``a["public.users"]``."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.fullmatch(key):
        quoted = key if len(key) <= 80 else key[:77] + "..."
        return f'{path}["{quoted}"]'
    return f"{path}.{key}" if path else key


def printable(text: str) -> str:
    """``text`` with every character that could move a terminal's cursor replaced, one for one."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" if c != "\t" else " " for c in text)
