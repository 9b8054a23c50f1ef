"""What the server may say next in answer to each message, as a table.

Owns the grammar of PostgreSQL's answers: the places an answer passes through and which message leads from one
to the next. A message with no row at its place answers nothing that was asked. Errors and what may come at
any time (ParameterStatus, NoticeResponse, NotificationResponse) have no rows: they are ``server_side``'s.
Knows message types and no bytes. The tables are plain dictionaries, because every message looks into them;
nothing changes them.

Source: PostgreSQL documentation, "Message Flow"; src/backend/tcop/postgres.c (exec_simple_query and its
siblings), src/backend/tcop/pquery.c (PortalRunMulti: what a rule adds to a statement gives rows of its own,
so one description may follow another), src/backend/commands/copyto.c, src/backend/tcop/fastpath.c.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from proxy.wire.frames import COPY_DATA, DATA_ROW


class Owed(StrEnum):
    """What a reply answers."""

    QUERY = "query"
    FUNCTION_CALL = "function call"
    PARSE = "parse"
    BIND = "bind"
    DESCRIBE_STATEMENT = "describe of a statement"
    DESCRIBE_PORTAL = "describe of a portal"
    EXECUTE = "execute"
    CLOSE = "close"
    SYNC = "sync"


CYCLES: Final = (Owed.QUERY, Owed.FUNCTION_CALL, Owed.SYNC)
"""What ReadyForQuery answers: an error leaves it owed."""


class Place(StrEnum):
    """How far an answer has come."""

    PARSE = "parse"
    BIND = "bind"
    CLOSE = "close"
    DESCRIBE_STATEMENT = "describe of a statement"
    PARAMETERS = "the parameters of a statement"
    DESCRIBE_PORTAL = "describe of a portal"
    EXECUTE = "execute"
    ASKED = "execute of a question of the proxy's own"
    EXECUTE_OUT = "execute that copies out"
    EXECUTE_COPIED = "execute that has copied out"
    EXECUTE_IN = "execute that copies in"
    QUERY = "query"
    ROWS = "the rows of a query"
    OUT = "query that copies out"
    COPIED = "query that has copied out"
    IN = "query that copies in"
    NEXT = "query that has run a statement"
    EMPTY = "query of nothing"
    CALL = "function call"
    CALLED = "function call that has run"
    SYNC = "sync"
    FAILED = "what has failed"
    REFUSED = "what had to fail"
    DONE = "what is done"


FIRST: Final[dict[Owed, Place]] = {
    Owed.QUERY: Place.QUERY,
    Owed.FUNCTION_CALL: Place.CALL,
    Owed.PARSE: Place.PARSE,
    Owed.BIND: Place.BIND,
    Owed.DESCRIBE_STATEMENT: Place.DESCRIBE_STATEMENT,
    Owed.DESCRIBE_PORTAL: Place.DESCRIBE_PORTAL,
    Owed.EXECUTE: Place.EXECUTE,
    Owed.CLOSE: Place.CLOSE,
    Owed.SYNC: Place.SYNC,
}
"""Where the answer to an agent's message begins, unless the server has to refuse it."""

_STATEMENT: Final[dict[int, Place]] = {
    ord("T"): Place.ROWS,
    ord("C"): Place.NEXT,
    ord("H"): Place.OUT,
    ord("G"): Place.IN,
}
_READY: Final[dict[int, Place]] = {ord("Z"): Place.DONE}

NEXT: Final[dict[Place, dict[int, Place]]] = {
    Place.PARSE: {ord("1"): Place.DONE},
    Place.BIND: {ord("2"): Place.DONE},
    Place.CLOSE: {ord("3"): Place.DONE},
    Place.DESCRIBE_STATEMENT: {ord("t"): Place.PARAMETERS},
    Place.PARAMETERS: dict.fromkeys(b"Tn", Place.DONE),
    Place.DESCRIBE_PORTAL: dict.fromkeys(b"Tn", Place.DONE),
    Place.EXECUTE: {
        **dict.fromkeys(b"CIs", Place.DONE),
        ord("H"): Place.EXECUTE_OUT,
        ord("G"): Place.EXECUTE_IN,
    },
    Place.ASKED: {ord("C"): Place.DONE},
    Place.EXECUTE_OUT: {ord("c"): Place.EXECUTE_COPIED},
    Place.EXECUTE_COPIED: {ord("C"): Place.DONE},
    Place.EXECUTE_IN: {ord("C"): Place.DONE},
    Place.QUERY: {**_STATEMENT, ord("I"): Place.EMPTY},
    Place.ROWS: {ord("T"): Place.ROWS, ord("C"): Place.NEXT},
    Place.OUT: {ord("c"): Place.COPIED},
    Place.COPIED: {ord("C"): Place.NEXT},
    Place.IN: {ord("C"): Place.NEXT},
    Place.NEXT: {**_STATEMENT, **_READY},
    Place.EMPTY: _READY,
    Place.CALL: {ord("V"): Place.CALLED},
    Place.CALLED: _READY,
    Place.SYNC: _READY,
    Place.FAILED: _READY,
    Place.REFUSED: {},
    Place.DONE: {},
}

NO_ROWS: Final = -1
"""No message may come in any number."""

ROWS: Final[dict[Place, int]] = {
    **dict.fromkeys(Place, NO_ROWS),
    Place.ROWS: DATA_ROW,
    Place.EXECUTE: DATA_ROW,
    Place.ASKED: DATA_ROW,
    Place.OUT: COPY_DATA,
    Place.EXECUTE_OUT: COPY_DATA,
}
"""The type of the messages that may come in any number at a place."""
