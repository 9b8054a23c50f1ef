"""Questions of the proxy's own, put to the server in their place in the stream.

An exchange is a run of messages whose replies the agent never sees. Owns what came back and who is told; what
was asked and what follows from the answer is the asker's business. Knows no sockets and no policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from proxy.wire.backend import decode_row


class Answer(NamedTuple):
    """What the server said.

    ``rows`` are the bodies of DataRow messages, ``error`` the body of an ErrorResponse. ``skipped`` is True
    where an earlier message of the pipeline failed and the server read past the question. ``ready`` is the
    transaction status where the exchange ended with ReadyForQuery. ``late`` is True where it took longer than
    it might: what was asked may have been cancelled.
    """

    rows: tuple[bytes, ...] = ()
    error: bytes | None = None
    skipped: bool = False
    ready: bytes | None = None
    late: bool = False


def read_number(answer: Answer) -> int:
    """The one number in the answer; 0 where there is none."""
    value = decode_row(answer.rows[0])[0] if answer.rows else None
    return int(value or b"0")


class Exchange:
    """One question under way. ``done`` is called once and returns the bytes the agent is to read instead.

    ``limit_s`` is how long any one of its replies may take, in seconds; None for as long as a statement may.
    """

    __slots__ = ("done", "error", "late", "limit_s", "ready", "rows")

    def __init__(self, done: Callable[[Answer], bytes], limit_s: float | None = None) -> None:
        self.done = done
        self.limit_s = limit_s
        self.late = False
        self.rows: list[bytes] = []
        self.error: bytes | None = None
        self.ready: bytes | None = None

    def finish(self, *, skipped: bool = False) -> bytes:
        return self.done(Answer(tuple(self.rows), self.error, skipped, self.ready, self.late))
