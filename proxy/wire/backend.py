"""Messages of the backend: decode what the proxy must notice, encode what it must say itself.

Owns the field tables of ErrorResponse and NoticeResponse and the small messages a session builds. Knows no
phase and no policy. Source: PostgreSQL documentation, "Message Formats", "Error and Notice Message Fields".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from proxy.wire.frontend import MalformedMessage

FIELD_CODES: Final[Mapping[str, bytes]] = {
    "severity": b"S",
    "severity_plain": b"V",
    "sqlstate": b"C",
    "message": b"M",
    "detail": b"D",
    "hint": b"H",
    "position": b"P",
    "internal_position": b"p",
    "internal_query": b"q",
    "context": b"W",
    "schema": b"s",
    "table": b"t",
    "column": b"c",
    "data_type": b"d",
    "constraint": b"n",
    "file": b"F",
    "line": b"L",
    "routine": b"R",
}
_FIELD_NAMES: Final = {code[0]: name for name, code in FIELD_CODES.items()}

_LENGTH = struct.Struct("!I")


def frame(kind: bytes, body: bytes) -> bytes:
    """One message: type byte, length (itself included, the type byte not), body."""
    return kind + _LENGTH.pack(len(body) + 4) + body


SYNC: Final = frame(b"S", b"")
FLUSH: Final = frame(b"H", b"")


def encode_fields(kind: bytes, fields: Mapping[str, str]) -> bytes:
    """An ErrorResponse (``kind`` b"E") or NoticeResponse (b"N") of the named ``fields``, in table order.

    ``severity`` is sent localised and not, as PostgreSQL 9.6 and later do. NUL cannot travel in a field and
    is shown as U+FFFD; empty fields are left out.
    """
    values = {"severity_plain": fields.get("severity", "ERROR"), **fields}
    parts = [
        code + values[name].replace("\0", "\ufffd").encode("utf-8", "replace") + b"\0"
        for name, code in FIELD_CODES.items()
        if values.get(name)
    ]
    return frame(kind, b"".join(parts) + b"\0")


def encode_error(fields: Mapping[str, str]) -> bytes:
    """An ErrorResponse; ``severity`` defaults to ERROR."""
    return encode_fields(b"E", {"severity": "ERROR", **fields})


def encode_notice(fields: Mapping[str, str]) -> bytes:
    """A NoticeResponse; ``severity`` defaults to NOTICE."""
    return encode_fields(b"N", {"severity": "NOTICE", **fields})


def encode_ready(status: bytes) -> bytes:
    """ReadyForQuery with transaction status ``I``, ``T`` or ``E``."""
    return frame(b"Z", status)


def decode_fields(body: bytes) -> dict[str, str]:
    """The fields of an ErrorResponse or NoticeResponse by name; unknown codes are kept under the code itself.

    Raises MalformedMessage when the list is not ended as the protocol demands.
    """
    fields: dict[str, str] = {}
    at = 0
    while True:
        if at >= len(body):
            raise MalformedMessage("error fields without terminator")
        code = body[at]
        if code == 0:
            if at + 1 != len(body):
                raise MalformedMessage("bytes after the error fields' terminator")
            return fields
        end = body.find(b"\0", at + 1)
        if end < 0:
            raise MalformedMessage("error field without terminator")
        fields[_FIELD_NAMES.get(code, chr(code))] = body[at + 1 : end].decode("utf-8", "replace")
        at = end + 1


def decode_row(body: bytes) -> list[bytes | None]:
    """The values of a DataRow; None for NULL. Raises MalformedMessage when counts and bytes disagree."""
    try:
        (count,) = struct.unpack_from("!H", body, 0)
        at = 2
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from("!i", body, at)
            at += 4
            if length == -1:
                row.append(None)
                continue
            if length < 0 or at + length > len(body):
                raise MalformedMessage("DataRow value runs past its frame")
            row.append(body[at : at + length])
            at += length
    except struct.error as error:
        raise MalformedMessage("DataRow shorter than its counts") from error
    if at != len(body):
        raise MalformedMessage("bytes after the DataRow's last value")
    return row


def decode_parameter_status(body: bytes) -> tuple[str, str]:
    """Name and value of a ParameterStatus."""
    parts = body.split(b"\0")
    if len(parts) != 3 or parts[2]:
        raise MalformedMessage("ParameterStatus is not two strings")
    return parts[0].decode("utf-8", "replace"), parts[1].decode("utf-8", "replace")


def text_array(literal: str) -> tuple[str, ...]:
    """The items of a one-dimensional text[] in its output form, e.g. ``{public,"Odd name"}``.

    Source: PostgreSQL's array_out (src/backend/utils/adt/arrayfuncs.c).
    """
    if literal[:1] != "{" or literal[-1:] != "}":
        raise MalformedMessage(f"not an array literal: {literal!r}")
    items: list[str] = []
    item: list[str] = []
    quoted = began = False
    inside = iter(literal[1:-1])
    for character in inside:
        if character == "\\":
            item.append(next(inside, ""))
        elif character == '"':
            quoted, began = not quoted, True
        elif character == "," and not quoted:
            items.append("".join(item))
            item, began = [], True
        else:
            item.append(character)
            began = True
    if item or began:
        items.append("".join(item))
    return tuple(items)


def simple_query(text: bytes) -> bytes:
    """A Query message."""
    return frame(b"Q", text + b"\0")


def parse_message(name: bytes, text: bytes, types: Sequence[int] = ()) -> bytes:
    """A Parse message."""
    return frame(b"P", name + b"\0" + text + b"\0" + struct.pack(f"!H{len(types)}I", len(types), *types))


def bind_message(portal: bytes, statement: bytes) -> bytes:
    """A Bind message without parameters and with every result column as text."""
    return frame(b"B", portal + b"\0" + statement + b"\0" + b"\0\0\0\0\0\0")


def describe_portal(name: bytes) -> bytes:
    """A Describe message for a portal."""
    return frame(b"D", b"P" + name + b"\0")


def execute_message(portal: bytes) -> bytes:
    """An Execute message for all rows."""
    return frame(b"E", portal + b"\0\0\0\0\0")


def close_message(kind: bytes, name: bytes) -> bytes:
    """A Close message; ``kind`` is ``S`` for a prepared statement, ``P`` for a portal."""
    return frame(b"C", kind + name + b"\0")
