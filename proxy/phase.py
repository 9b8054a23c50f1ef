"""The phases of a connection's steady state and the table of messages an agent may send in each.

A message with no row in its phase is a protocol violation and ends the connection. Owns no bytes, no policy.
Source: PostgreSQL documentation, "Message Flow"; src/backend/tcop/postgres.c, SocketBackend and PostgresMain.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    READY = "ready"
    """Any message; the server is or will be ready to read it."""
    DISCARDING = "discarding"
    """A message of the extended protocol was refused: everything is dropped until Sync."""
    COPY_IN = "copy_in"
    """The server asked for copy data and has not been told that it ended."""
    CLOSED = "closed"


class Action(StrEnum):
    QUERY = "query"
    PARSE = "parse"
    BIND = "bind"
    DESCRIBE = "describe"
    EXECUTE = "execute"
    CLOSE = "close"
    SYNC = "sync"
    FLUSH = "flush"
    FUNCTION_CALL = "function_call"
    COPY_DATA = "copy_data"
    COPY_END = "copy_end"
    TERMINATE = "terminate"
    DROP = "drop"
    RESUME = "resume"
    """The Sync that ends a discarded run."""
    IGNORED_SYNC = "ignored_sync"
    """Sync or Flush while copying in: the server reads past it and owes nothing."""


_READY: Final[dict[int, Action]] = {
    ord("Q"): Action.QUERY,
    ord("P"): Action.PARSE,
    ord("B"): Action.BIND,
    ord("D"): Action.DESCRIBE,
    ord("E"): Action.EXECUTE,
    ord("C"): Action.CLOSE,
    ord("S"): Action.SYNC,
    ord("H"): Action.FLUSH,
    ord("F"): Action.FUNCTION_CALL,
    # Copy messages outside COPY are read past by the server, as happens after a COPY that failed half-way.
    ord("d"): Action.COPY_DATA,
    ord("c"): Action.COPY_END,
    ord("f"): Action.COPY_END,
    ord("X"): Action.TERMINATE,
}

LEGAL: Final[dict[Phase, dict[int, Action]]] = {
    Phase.READY: _READY,
    Phase.DISCARDING: {
        **dict.fromkeys(_READY, Action.DROP),
        # It may be the rest of a frame whose beginning was forwarded; the server reads past it.
        ord("d"): Action.COPY_DATA,
        ord("S"): Action.RESUME,
        ord("X"): Action.TERMINATE,
    },
    Phase.COPY_IN: {
        ord("d"): Action.COPY_DATA,
        ord("c"): Action.COPY_END,
        ord("f"): Action.COPY_END,
        ord("S"): Action.IGNORED_SYNC,
        ord("H"): Action.FLUSH,
        ord("X"): Action.TERMINATE,
    },
    Phase.CLOSED: {},
}
