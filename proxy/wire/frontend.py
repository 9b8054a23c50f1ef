"""Messages of the frontend, decoded exactly or not at all.

A body must be consumed to its last byte: what is inspected is what arrived. Plain slotted classes, because
every message makes one. Knows no phase and no policy.
Source: PostgreSQL documentation, "Message Formats"; src/backend/tcop/postgres.c reads them the same way.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

_NULL: Final = 0xFFFFFFFF
"""The length of a value that is NULL: -1, read as it stands."""
_TARGETS: Final = b"SP"
_SHORT: Final = 2
_CODES: Final = {_SHORT: "H", 4: "I"}
"""Integers by their bytes, as ``struct`` calls them."""


class MalformedMessage(ValueError):  # noqa: N818 - the protocol's own word for it
    """A message whose body does not follow its format."""

    sqlstate: ClassVar[str] = "08P01"


class Parse:
    """``types`` are OIDs of parameter types; 0 leaves one to the server."""

    __slots__ = ("name", "text", "types")

    def __init__(self, name: bytes, text: bytes, types: tuple[int, ...]) -> None:
        self.name = name
        self.text = text
        self.types = types


class Bind:
    """The Bind in ``data``, which holds the rest of it: its format codes begin at ``at``, its values behind.

    Read only where somebody asks: most statements pass without a look at what they are bound to.
    """

    __slots__ = ("_at", "_data", "portal", "statement")

    def __init__(self, portal: bytes, statement: bytes, data: bytes, at: int) -> None:
        self.portal = portal
        self.statement = statement
        self._data = data
        self._at = at

    @property
    def formats(self) -> tuple[int, ...]:
        """The format codes of the parameters: none for text, one for all of them, or one for each."""
        return _counted(self._data, self._at, 2)

    @property
    def spans(self) -> tuple[tuple[int, int] | None, ...]:
        """Where each value begins and ends in the data, None for a null."""
        data, at = self._data, self._at
        at += 2 + 2 * (data[at] << 8 | data[at + 1])
        spans: list[tuple[int, int] | None] = []
        count = data[at] << 8 | data[at + 1]
        at += 2
        for _ in range(count):
            length = int.from_bytes(data[at : at + 4], "big")
            at += 4
            if length == _NULL:
                spans.append(None)
            else:
                spans.append((at, at + length))
                at += length
        return tuple(spans)

    @property
    def values(self) -> tuple[bytes | None, ...]:
        """Copied only here: one may be of 1 GB."""
        return tuple([None if span is None else self._data[span[0] : span[1]] for span in self.spans])


class Target:
    """Of Describe and Close: ``kind`` is ``S`` for a prepared statement, ``P`` for a portal."""

    __slots__ = ("kind", "name")

    def __init__(self, kind: bytes, name: bytes) -> None:
        self.kind = kind
        self.name = name


def decode_query(body: bytes) -> bytes:
    """The query string of a Query message, without its terminator."""
    if not body or body.find(b"\0") != len(body) - 1:
        raise MalformedMessage("Query is not one string")
    return body[:-1]


def decode_parse(body: bytes) -> Parse:
    name_end = body.find(b"\0")
    text_end = body.find(b"\0", name_end + 1)
    if name_end < 0 or text_end < 0:
        raise MalformedMessage("Parse without its two strings")
    types = _counted(body, text_end + 1, 4)
    if text_end + 3 + 4 * len(types) != len(body):
        raise MalformedMessage("bytes after Parse's parameter types")
    return Parse(body[:name_end], body[name_end + 1 : text_end], types)


def decode_bind(data: bytes, start: int, end: int) -> Bind:
    """The Bind whose body is ``data[start:end]``: read in place, as it may be of 1 GB. Offsets only grow, so
    that whoever has read past ``end`` does not come out at it."""
    portal_end = data.find(b"\0", start, end)
    statement_end = data.find(b"\0", portal_end + 1, end)
    if portal_end < 0 or statement_end < 0:
        raise MalformedMessage("Bind without its two names")
    at = statement_end + 1
    if at + 2 <= end:
        at += 2 + 2 * (data[at] << 8 | data[at + 1])
    if at + 2 > end:
        raise MalformedMessage("Bind shorter than its counts")
    count = data[at] << 8 | data[at + 1]
    at += 2
    for _ in range(count):
        if at + 4 > end:
            raise MalformedMessage("Bind shorter than its counts")
        length = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
        at += 4
        if length == _NULL:
            continue
        at += length
        if at > end:
            raise MalformedMessage("Bind value runs past its message")
    if at + 2 > end or at + 2 + 2 * (data[at] << 8 | data[at + 1]) != end:
        raise MalformedMessage("bytes after Bind's result formats")
    return Bind(data[start:portal_end], data[portal_end + 1 : statement_end], data, statement_end + 1)


def decode_target(body: bytes) -> Target:
    """Describe or Close."""
    check_target(body, 0, len(body))
    return Target(body[:1], body[1:-1])


def check_target(data: bytes, start: int, end: int) -> None:
    """Describe or Close, whose body is ``data[start:end]``."""
    if end - start < 2 or data[start] not in _TARGETS or data.find(b"\0", start, end) != end - 1:
        raise MalformedMessage("Describe or Close does not name a statement or portal")


def decode_execute(data: bytes, start: int, end: int) -> bytes:
    """The portal that the Execute with the body ``data[start:end]`` names; the row limit is the server's."""
    name_end = data.find(b"\0", start, end)
    if name_end < 0 or end != name_end + 5:
        raise MalformedMessage("Execute is not a portal name and a row limit")
    return data[start:name_end]


def decode_copy_fail(body: bytes) -> bytes:
    if not body or body.find(b"\0") != len(body) - 1:
        raise MalformedMessage("CopyFail is not one string")
    return body[:-1]


def check_empty(start: int, end: int) -> None:
    """Sync, Flush, Terminate, CopyDone, whose body goes from ``start`` to ``end``."""
    if start != end:
        raise MalformedMessage("a message that has no body has one")


def _counted(body: bytes, at: int, width: int) -> tuple[int, ...]:
    """A 16-bit count and that many unsigned integers of ``width`` bytes, 2 or 4, at ``at``."""
    size = len(body)
    if at + 2 > size:
        raise MalformedMessage("message shorter than its counts")
    count = body[at] << 8 | body[at + 1]
    if count == 0:
        return ()
    at += 2
    if at + count * width > size:
        raise MalformedMessage("message shorter than its counts")
    if count == 1 and width == _SHORT:
        return (body[at] << 8 | body[at + 1],)
    return struct.unpack_from(f"!{count}{_CODES[width]}", body, at)
