"""Scripts for psql, cut into the statements that psql would send.

Owns what of psql's own language the corpora need: where a statement ends, the variables that ``\\set`` and
``\\getenv`` make, the data after COPY … FROM STDIN. Other commands of psql are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_PIECE: Final = re.compile(
    r"""
    (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
                  | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag) )
    | (?P<variable> (?<!:):(?:'\w+'|"\w+"|[A-Za-z_]\w*) )
    | (?P<open> [(\[] ) | (?P<close> [)\]] )
    | (?P<end> ; )
    | (?P<command> \\[^\n]* )
    | (?P<word> \w+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_SETS: Final = re.compile(r"\\(?P<how>set|getenv)\s+(?P<name>\w+)\s*(?P<value>.*)")
_PARTS: Final = re.compile(r"'(?:[^']|'')*'|:'?\w+'?|\S+")
_ATOMIC: Final = frozenset({"begin", "case"})


@dataclass(frozen=True, slots=True)
class Step:
    """One statement; ``data`` are the lines after a COPY … FROM STDIN."""

    sql: str
    data: str | None = None


def steps(text: str, environment: Mapping[str, str]) -> Iterator[Step]:
    """The statements of ``text`` in order; ``environment`` is what ``\\getenv`` reads."""
    variables: dict[str, str] = {}
    sql, depth, at = "", 0, 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        assert piece is not None, "the last alternative takes any character"
        at = piece.end()
        kind, found = piece.lastgroup, piece.group()
        if kind == "tag":
            kind = "quoted"
        if kind == "command":
            ended = sql.strip() and found[1:2] == "g"
            _set(found, variables, environment)
            if ended:
                yield Step(sql.strip())
                sql, depth = "", 0
            continue
        if kind == "variable":
            found = _valued(found, variables)
        elif kind in ("open", "close"):
            depth += 1 if kind == "open" else -1
        elif kind == "word" and re.search(r"(?i)^\s*create\b.*\b(function|procedure)\b", sql, re.DOTALL):
            depth += (found.lower() in _ATOMIC) - (found.lower() == "end")
        sql += found
        if kind == "end" and depth <= 0:
            statement, sql, depth = sql.strip(), "", 0
            data = None
            if re.match(r"(?is)\s*(--[^\n]*\n\s*)*copy\b.*\bfrom\s+stdin\b", statement):
                line = text.index("\n", at) + 1
                end = re.compile(r"^\\\.$", re.MULTILINE).search(text, line)
                data, at = text[line : end.start() if end else len(text)], end.end() if end else len(text)
            if statement != ";":
                yield Step(statement, data)
    if sql.strip():
        yield Step(sql.strip())


def _set(command: str, variables: dict[str, str], environment: Mapping[str, str]) -> None:
    found = _SETS.match(command)
    if found is None:
        return
    if found["how"] == "getenv":
        variables[found["name"]] = environment.get(found["value"].strip(), "")
    else:
        values = (_valued(part, variables).strip("'") for part in _PARTS.findall(found["value"]))
        variables[found["name"]] = "".join(values)


def _valued(found: str, variables: Mapping[str, str]) -> str:
    name = found.strip(":'\"")
    if not found.startswith(":") or name not in variables:
        return found
    quote = found[1] if found[1] in "'\"" else ""
    return quote + variables[name] + quote
