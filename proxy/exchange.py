"""Questions of the proxy's own, put to the server in their place in the stream.

An exchange is a run of messages whose replies the agent never sees. Owns what came back and who is told; what
was asked and what follows from the answer is the asker's business. Knows no sockets and no policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from proxy.wire.backend import decode_row, frame
from proxy.wire.frames import HELD_LIMIT, FramingError
from proxy.wire.frontend import MalformedMessage

_DIGITS: Final = 40
"""More than sum(bigint) needs."""
_ROW_BYTES: Final = 64
"""What a row costs beside its bytes."""


class Answer(NamedTuple):
    """What the server said.

    ``rows`` are the bodies of DataRow messages, ``error`` the body of an ErrorResponse. ``skipped`` is True
    where an earlier message of the pipeline failed and the server read past the question. ``ready`` is the
    transaction status where the exchange ended with ReadyForQuery. ``late`` is True where it took longer than
    it might: what was asked may have been cancelled. ``at_bind`` is True where its Bind failed.
    """

    rows: tuple[bytes, ...] = ()
    error: bytes | None = None
    skipped: bool = False
    ready: bytes | None = None
    late: bool = False
    at_bind: bool = False


def read_number(answer: Answer) -> int:
    """The one number in the answer, 0 for NULL. Raises MalformedMessage where there is not one."""
    values = [value for row in answer.rows for value in decode_row(row)]
    if len(values) != 1:
        raise MalformedMessage(f"{len(values)} values in answer to a question for one number")
    number = values[0] or b"0"
    if not number.isdigit() or len(number) > _DIGITS:
        raise MalformedMessage("no number in answer to a question for one")
    return int(number)


def failure(answer: Answer) -> bytes:
    """The ErrorResponse of what was asked in the place of a message and is no more than a part of it."""
    return b"" if answer.error is None else frame(b"E", answer.error)


class Exchange:
    """One question under way. ``done`` is called once and returns the bytes the agent is to read instead.

    ``limit_s`` is how long any one of its replies may take, in seconds; None for as long as a statement may.
    """

    __slots__ = ("_size", "at_bind", "done", "error", "late", "limit_s", "ready", "rows")

    def __init__(self, done: Callable[[Answer], bytes], limit_s: float | None = None) -> None:
        self.done = done
        self.limit_s = limit_s
        self.late = False
        self.at_bind = False
        self.rows: list[bytes] = []
        self._size = 0
        self.error: bytes | None = None
        self.ready: bytes | None = None

    def add_row(self, body: bytes) -> None:
        """Take the body of a DataRow. Raises FramingError where the answer is longer than any of ours is."""
        self._size += len(body) + _ROW_BYTES
        if self._size > HELD_LIMIT:
            raise FramingError(f"over {HELD_LIMIT} bytes in answer to a question of the proxy's", "54000")
        self.rows.append(body)

    def finish(self, *, skipped: bool = False) -> bytes:
        return self.done(Answer(tuple(self.rows), self.error, skipped, self.ready, self.late, self.at_bind))
