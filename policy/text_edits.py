"""Edits of a statement's text by the spans of its tokens.

Owns where a part of the text begins and ends, and putting replacements together. What PostgreSQL's tree tells
is where a part is named, not how far it reaches: that is found by the tokens of PostgreSQL's own lexer and by
brackets. A span that were wrong would make another tree than the wanted one, which whoever rewrites must look
for (``filtered``). Bytes throughout, as locations in trees are; characters where positions are told. Knows no
catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

Span = tuple[int, int]
"""Where something begins and ends, in bytes of the text, from 0."""

_OPENING: Final = frozenset({b"(", b"["})
_CLOSING: Final = frozenset({b")", b"]"})


class Refusal(Exception):  # noqa: N818 - says what happened
    """The statement cannot be let through: ``rule`` says so, ``position`` in characters from 1."""

    def __init__(
        self, rule: str, message: str, hint: str, position: int | None = None, object_: str | None = None
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.hint = hint
        self.position = position
        self.object = object_


class UnknownSpan(Refusal):
    """A part of the text whose span cannot be told."""

    def __init__(self) -> None:
        super().__init__(
            "relation-not-allowed",
            "The statement names objects in a way that cannot be filtered",
            "Write it in a plainer form.",
        )


class Edits:
    """The edits of one text. Those at one place are made in the order in which they were asked for."""

    def __init__(self, text: str, data: bytes, tokens: tuple[Span, ...]) -> None:
        self.tokens: Final = tokens
        self._text = text
        self._data = data
        self._ascii = len(text) == len(data)
        self._index = {start: number for number, (start, _) in enumerate(tokens)}
        self._sketches = 0
        self._made: list[tuple[int, int, str, str, str]] = []

    def __bool__(self) -> bool:
        return bool(self._made)

    def position(self, at: int) -> int:
        """The character, from 1, that the byte ``at`` begins."""
        return at + 1 if self._ascii else len(self._data[:at].decode(errors="replace")) + 1

    def position_of(self, fields: Mapping[str, Any]) -> int | None:
        """The same of a node's fields; None where the parser gives it no place."""
        at = fields.get("location", -1)
        return self.position(at) if at >= 0 else None

    def replace(
        self, start: int, end: int, text: str, sketch: str | None = None, priced: str | None = None
    ) -> None:
        """Put ``text`` there; ``sketch`` is what stands for it in ``sketched``, ``priced`` in ``priced``,
        None the text itself. ``priced`` is no longer than the text."""
        told = text if priced is None else priced
        if len(told) > len(text):
            raise ValueError("what is priced is longer than what runs")
        self._made.append((start, end, text, text if sketch is None else sketch, told.ljust(len(text))))

    def next_sketch(self) -> int:
        """A number of its own for each sketch."""
        self._sketches += 1
        return self._sketches

    def sketched(self) -> str:
        """The text as edited, with the sketches in the place of what they stand for."""
        return self._with([(start, end, sketch) for start, end, _, sketch, _ in self._in_order()])

    def priced(self) -> str:
        """The text as edited, with what is priced in the place of what runs: every place is where it is in
        the other."""
        return self._with([(start, end, priced) for start, end, _, _, priced in self._in_order()])

    def _with(self, replacements: list[tuple[int, int, str]]) -> str:
        pieces: list[bytes] = []
        at = 0
        for start, end, text in replacements:
            pieces += (self._data[at:start], text.encode())
            at = end
        return b"".join((*pieces, self._data[at:])).decode()

    def applied(self) -> tuple[str, tuple[tuple[int, int, int, int], ...]]:
        """The text as edited, and its edits in characters: see ``filtered.Rewritten``."""
        pieces: list[str] = []
        told: list[tuple[int, int, int, int]] = []
        at = length = 0
        for start, end, text, _, _ in self._in_order():
            kept = self._data[at:start].decode()
            pieces += (kept, text)
            length += len(kept)
            first, last = self.position(start), self.position(end)
            told.append((length, len(text), first - 1, last - first))
            length += len(text)
            at = end
        pieces.append(self._data[at:].decode())
        return "".join(pieces), tuple(told)

    def _in_order(self) -> list[tuple[int, int, str, str, str]]:
        """Raises UnknownSpan for edits that overlap."""
        ordered = sorted(self._made, key=lambda edit: edit[0])
        if any(before[1] > after[0] for before, after in pairwise(ordered)):
            raise UnknownSpan
        return ordered

    # Spans --------------------------------------------------------------------------------------------------

    def end_of_name(self, at: int) -> int:
        """Where the name that begins at ``at`` ends: ``a``, ``a.b``, ``"a" . b``."""
        number = self._number(at)
        while self._token(number + 1) == b"." and number + 2 < len(self.tokens):
            number += 2
        return self.tokens[number][1]

    def part_of_name(self, at: int, part: int) -> int:
        """Where the part of that number, from 0, of the name at ``at`` begins."""
        number = self._number(at) + 2 * part
        if number >= len(self.tokens):
            raise UnknownSpan
        return self.tokens[number][0]

    def end_of_token(self, at: int) -> int:
        return self.tokens[self._number(at)][1]

    def end_of_bounds(self, end: int) -> int:
        """Where the ``[]`` behind the name of a type that ends at ``end`` ends."""
        number = self._index.get(self._next(end), -1)
        if number < 0 or (self._token(number), self._token(number + 1)) != (b"[", b"]"):
            raise UnknownSpan
        return self.tokens[number + 1][1]

    def keyword_before(self, at: int, keyword: bytes) -> int | None:
        """Where the reserved word right before ``at`` begins, if it is that one."""
        number = self._number(at) - 1
        return self.tokens[number][0] if self._token(number).lower() == keyword else None

    def is_in_brackets(self, at: int) -> bool:
        """Whether the token at ``at`` stands right behind an opening bracket."""
        return self._token(self._number(at) - 1) in _OPENING

    def is_cast_sign(self, at: int) -> bool:
        return self._token(self._number(at)) == b"::"

    def before_cast(self, at: int, node: Mapping[str, Any]) -> Span:
        """The span of ``node``, the operand of the ``::`` at ``at``."""
        last = self._number(at) - 1
        places = list(_locations(node))
        if last < 0 or not places:
            raise UnknownSpan
        first = self._number(min(places))
        while True:
            depth = self._depth(first, last)
            if depth == 0:
                return self.tokens[first][0], self.tokens[last][1]
            if depth > 0 or first == 0 or self._token(first - 1) not in _OPENING:
                raise UnknownSpan
            first -= 1

    def in_cast(self, at: int) -> tuple[Span, int]:
        """The span of x in the ``CAST (x AS t)`` at ``at``, and where all of it ends."""
        first = self._number(at) + 2
        depth = 1
        until = None
        for number in range(first, len(self.tokens)):
            token = self._token(number)
            if depth == 1 and until is None and token.lower() == b"as":
                until = number
            depth += (token in _OPENING) - (token in _CLOSING)
            if depth == 0 and until is not None and until > first:
                return (self.tokens[first][0], self.tokens[until - 1][1]), self.tokens[number][1]
        raise UnknownSpan

    def arguments(self, at: int) -> tuple[tuple[Span, ...], int]:
        """The spans of the arguments of the call that begins at ``at``, and where its bracket closes."""
        opening = self._index.get(self._next(self.end_of_name(at)), -1)
        if self._token(opening) != b"(":
            raise UnknownSpan
        spans: list[Span] = []
        first, depth = opening + 1, 0
        for number in range(opening, len(self.tokens)):
            token = self._token(number)
            if (depth == 1 and token == b",") or (depth == 1 and token == b")"):
                if number > first:
                    spans.append((self.tokens[first][0], self.tokens[number - 1][1]))
                first = number + 1
            depth += (token in _OPENING) - (token in _CLOSING)
            if depth == 0:
                return tuple(spans), self.tokens[number][1]
        raise UnknownSpan

    def _next(self, end: int) -> int:
        """Where the first token from ``end`` on begins."""
        return next((start for start, _ in self.tokens if start >= end), -1)

    def _depth(self, first: int, last: int) -> int:
        """Brackets opened less brackets closed from one token to another; below 0 at any place counts."""
        depth = 0
        lowest = 0
        for number in range(first, last + 1):
            token = self._token(number)
            depth += (token in _OPENING) - (token in _CLOSING)
            lowest = min(lowest, depth)
        return lowest if lowest < 0 else depth

    def _number(self, at: int) -> int:
        number = self._index.get(at)
        if number is None:
            raise UnknownSpan
        return number

    def _token(self, number: int) -> bytes:
        if not 0 <= number < len(self.tokens):
            return b""
        start, end = self.tokens[number]
        return self._data[start:end]


def _locations(node: Any) -> Iterator[int]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "location":
                if value >= 0:
                    yield value
            else:
                yield from _locations(value)
    elif isinstance(node, list):
        for item in node:
            yield from _locations(item)


def quoted(name: str) -> str:
    """``name`` as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'
