"""PostgreSQL's stored trees (``pg_node_tree``) as plain values.

Owns the text form that outfuncs.c writes and read.c reads: ``{LABEL :field value …}`` for a node, ``( … )``
for a list, ``<>`` for none. Knows no node's meaning (``view_flow``) and no catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_TOKEN: Final = re.compile(r"[{}()]|(?:\\.|[^\s{}()\\])+", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_NUMBER: Final = re.compile("-?[0-9]+")
_NONE: Final = "<>"


class NodeTreeError(ValueError):
    """The text is no stored tree, or one nested deeper than can be read."""


@dataclass(frozen=True, slots=True)
class Node:
    """``{LABEL :field value …}``. A value is a Node, a list of values, None, or a token as it stands."""

    label: str
    fields: dict[str, Any]

    def get(self, name: str) -> Any:
        """The field's value, None where the node has none of that name."""
        return self.fields.get(name)

    def number(self, name: str) -> int:
        """The field as a whole number. Raises NodeTreeError where it is none."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not _NUMBER.fullmatch(value):
            raise NodeTreeError(f"{self.label} has no number {name}")
        return int(value)

    def items(self, name: str) -> list[Any]:
        """The field's list; empty where it is none."""
        value = self.fields.get(name)
        return value if isinstance(value, list) else []


def read(text: str) -> Any:
    """The value that ``text`` holds. Raises NodeTreeError."""
    rest = iter(_TOKEN.findall(text))
    try:
        value = _value(next(rest), rest)
        left = next(rest, None)
    except StopIteration as error:
        raise NodeTreeError("a stored tree ends too early") from error
    except RecursionError as error:
        raise NodeTreeError("a stored tree is nested too deeply") from error
    if left is not None:
        raise NodeTreeError("a stored tree goes on after its end")
    return value


def _value(word: str, rest: Iterator[str]) -> Any:
    if word == "{":
        return _node(rest)
    if word == "(":
        found = []
        while (word := next(rest)) != ")":
            found.append(_value(word, rest))
        return found
    if word in ("}", ")"):
        raise NodeTreeError("a stored tree closes what it has not opened")
    return None if word == _NONE else word


def _node(rest: Iterator[str]) -> Node:
    label = next(rest)
    fields: dict[str, Any] = {}
    word = next(rest)
    while word != "}":
        if not word.startswith(":"):
            raise NodeTreeError(f"{label} has a value that belongs to no field")
        name = word[1:]
        # Whatever comes next is its value, even one that looks like a field's name.
        fields[name] = _value(next(rest), rest)
        word = next(rest)
        # A constant's bytes come one by one after their number: ``4 [ 1 0 0 0 ]``.
        while not word.startswith((":", "{", "}", "(", ")")):
            word = next(rest)
    return Node(label, fields)


def name_of(word: str) -> str:
    """A name as it was before ``outToken`` escaped it."""
    return _ESCAPED.sub(r"\1", word.strip('"'))
