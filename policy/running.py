"""What running a query string does to rows: whether it only reads, may return some, writes some.

Owns the reading of ``Facts`` that limits on what really happens rest on. Knows no policy and no protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policy.facts import CopyEnd, Facts, QueryString, SessionAction
from policy.model import StatementClass

_READS: Final = frozenset(
    {
        StatementClass.SELECT,
        StatementClass.SHOW,
        StatementClass.EXPLAIN,
        StatementClass.COPY_OUT,
        StatementClass.CURSOR,
    }
)
_SILENT: Final = frozenset(
    {
        StatementClass.TRANSACTION,
        StatementClass.SET,
        StatementClass.NOTIFY,
        StatementClass.INSERT,
        StatementClass.UPDATE,
        StatementClass.DELETE,
        StatementClass.MERGE,
        StatementClass.COPY_IN,
        StatementClass.DO,
        StatementClass.DDL,
        StatementClass.ROLE,
        StatementClass.MAINTENANCE,
    }
)
"""Classes that return rows only where the text says so: by RETURNING, EXPLAIN or COPY TO."""
_NO_HEADER: Final = frozenset({"false", "off", "0"})
"""How a COPY option says no (defGetBoolean in src/backend/commands/define.c)."""


@dataclass(frozen=True, slots=True)
class Running:
    """``reads``: whatever it did, nothing of it outlasts its transaction's end. ``returns``: it may return
    rows. ``writes``: its text writes rows, of which ``prepares`` says that it does so only when executed.
    ``takes``: it asks for copy data. ``headers``: lines of a COPY TO that are no rows. ``parameters``: it has
    $n.
    """

    reads: bool
    returns: bool
    writes: bool
    prepares: bool
    takes: bool
    headers: int
    parameters: bool


def running(query: QueryString) -> Running:
    """The sum over the statements of ``query``."""
    statements = query.statements
    return Running(
        reads=all(facts.classes <= _READS and not facts.writes for facts in statements),
        returns=any(_may_return(facts) for facts in statements),
        writes=any(facts.writes for facts in statements),
        prepares=any(ref.action is SessionAction.PREPARE for facts in statements for ref in facts.session),
        takes=any(copy.end is CopyEnd.STDIN for facts in statements for copy in facts.copies),
        headers=sum(_has_header(facts) for facts in statements),
        parameters=any(facts.parameters for facts in statements),
    )


def _may_return(facts: Facts) -> bool:
    return (
        facts.statement_class not in _SILENT
        or facts.returns_rows
        or facts.explain_analyze
        or any(copy.end is CopyEnd.STDOUT for copy in facts.copies)
    )


def _has_header(facts: Facts) -> bool:
    return any(
        copy.end is CopyEnd.STDOUT and name == "header" and value.lower() not in _NO_HEADER
        for copy in facts.copies
        for name, value in copy.options
    )
