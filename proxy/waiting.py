"""Why a message of the agent's has to wait: for a reply, or for what an earlier one makes of a name.

Owns the signal alone, which ends the handling of a message without having done anything with it.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from proxy.replies import Reply


class Doubt(Protocol):
    """What a message may have to wait for."""

    @property
    def doubtful(self) -> bool: ...


class Unanswered:
    """A reply that is still owed."""

    __slots__ = ("_queue", "_reply")

    def __init__(self, queue: deque[Reply], reply: Reply) -> None:
        self._queue = queue
        self._reply = reply

    @property
    def doubtful(self) -> bool:
        return self._reply in self._queue


class NotYetError(Exception):
    """What the agent's message means, or whether it may run, is open until ``doubt`` ends: it is taken again
    then. ``flush`` where the server may keep the answer that settles it until it is asked to flush.
    """

    def __init__(self, doubt: Doubt, *, flush: bool = False) -> None:
        super().__init__("waits for an earlier reply")
        self.doubt = doubt
        self.flush = flush
