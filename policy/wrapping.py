"""Which statements can be tried in a transaction that is then rolled back.

Owns the reasons why one cannot. Knows no connection; whoever tries a statement asks here first, and takes the
server's word (``CANNOT_BE_WRAPPED``) for what no text tells.

Source: PostgreSQL's PreventInTransactionBlock (src/backend/access/transam/xact.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policy.facts import QueryString
from policy.model import StatementClass

CANNOT_BE_WRAPPED: Final = frozenset({"25001", "2D000"})
"""SQLSTATEs by which the server says so: active_sql_transaction, as of CREATE INDEX CONCURRENTLY, and
invalid_transaction_termination, as of a procedure that commits."""

_WHY: Final[Mapping[StatementClass, str]] = {
    StatementClass.TRANSACTION: "it begins or ends a transaction itself",
    StatementClass.MAINTENANCE: "maintenance cannot run in a transaction, or is not undone by a rollback",
    StatementClass.REPLICATION: "a rollback does not undo it",
    StatementClass.COPY_IN: "the data that it copies is not at hand",
}


def why_not(query: QueryString) -> str | None:
    """Why ``query`` cannot be tried and rolled back; None where nothing in its text speaks against it."""
    if query.failure is not None:
        return "it does not parse"
    if len(query.statements) != 1:
        return "it is not one statement"
    return next((why for cls, why in _WHY.items() if cls in query.statements[0].classes), None)
