"""The messages that ask PostgreSQL what a statement would cost, in the statement's own place in the stream.

Owns how a question is put in each protocol so that the agent cannot tell that it was: EXPLAIN goes as a
Parse, which carries one statement, never as text glued into a Query; with the agent's own parameter types,
formats and values; and under names that leave the agent's statements and portals as they would be without it.
What to ask and how to read the answer is ``policy.cost``'s.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from proxy.answers import Owed
from proxy.wire import backend as wire


class Asked(NamedTuple):
    """Messages, and what each of them is owed."""

    messages: bytes
    owed: tuple[Owed, ...]


def ask_for_query(text: str, *, sync: bool) -> Asked:
    """The question about a Query: under the unnamed statement and portal, which a Query drops anyway.

    ``sync`` False inside an open pipeline, whose implicit transaction a Sync would commit.
    """
    messages = (
        wire.parse_message(b"", text.encode()) + wire.bind_message(b"", b"") + wire.execute_message(b"")
    )
    owed = (Owed.PARSE, Owed.BIND, Owed.EXECUTE)
    return Asked(messages + wire.SYNC, (*owed, Owed.SYNC)) if sync else Asked(messages + wire.FLUSH, owed)


def ask_for_bind(
    text: str, types: tuple[int, ...], bind: bytes, statement: bytes, reserved: bytes, *, sync: bool = False
) -> Asked:
    """The question about a Bind whose body is ``bind`` and whose statement had ``types``.

    The portal is the agent's own, which its Bind is about to make: an error then names it as the Bind's own
    would. ``reserved`` is a statement name that no agent can know. It is closed beforehand as well: a
    question that failed has left it behind. ``sync`` ends the implicit transaction that the question began.
    """
    portal, _, rest = bind.partition(b"\0")
    values = rest[len(statement) + 1 :]
    messages = [
        wire.close_message(b"S", reserved),
        wire.parse_message(reserved, text.encode(), types),
        wire.frame(b"B", portal + b"\0" + reserved + b"\0" + _with_text_results(values)),
        wire.execute_message(portal),
        wire.close_message(b"S", reserved),
    ]
    owed = [Owed.CLOSE, Owed.PARSE, Owed.BIND, Owed.EXECUTE, Owed.CLOSE]
    if portal:
        messages.append(wire.close_message(b"P", portal))
        owed.append(Owed.CLOSE)
    if sync:
        owed.append(Owed.SYNC)
    return Asked(b"".join([*messages, wire.SYNC if sync else wire.FLUSH]), tuple(owed))


def as_own_error(body: bytes, offset: int | None, reserved: bytes, statement: bytes = b"") -> dict[str, str]:
    """A question's error, as the statement itself would have raised it.

    ``offset`` is what its position is to be lessened by, None where it is not one in the statement. Where it
    names ``reserved`` it means the agent's ``statement``.
    """
    ours, theirs = reserved.decode(), statement.decode("utf-8", "replace")
    fields = {name: value.replace(ours, theirs) for name, value in wire.decode_fields(body).items()}
    return _moved(fields, offset)


def _moved(fields: Mapping[str, str], offset: int | None) -> dict[str, str]:
    moved = dict(fields)
    position = moved.pop("position", None)
    if position is not None and offset is not None and int(position) > offset:
        moved["position"] = str(int(position) - offset)
    return moved


def _with_text_results(values: bytes) -> bytes:
    """The part of a Bind behind its names, with every result column asked for as text.

    The result formats come last: a count and that many codes of two bytes each.
    """
    (formats,) = struct.unpack_from("!H", values, 0)
    at = 2 + 2 * formats
    (count,) = struct.unpack_from("!H", values, at)
    at += 2
    for _ in range(count):
        (length,) = struct.unpack_from("!i", values, at)
        at += 4 + max(length, 0)
    return values[:at] + b"\0\0"
