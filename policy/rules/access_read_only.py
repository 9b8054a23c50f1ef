"""access-read-only: a write, or a way to writing, under ``access: read_only``.

What it refuses
    Under ``access: read_only``: every class that writes or locks, whatever ``statements:`` says (but for LOCK
    in ACCESS SHARE mode, in which SELECT itself locks), and DO, whose block may; READ WRITE in BEGIN, START
    TRANSACTION, SET TRANSACTION and SET SESSION CHARACTERISTICS; ``transaction_read_only`` and
    ``default_transaction_read_only`` set to anything but ``on``, and the former reset.
Why
    The backend session of such an agent is pinned read-only; nothing may take the pin out.
Refused
    ``BEGIN READ WRITE`` · ``SET default_transaction_read_only = off`` · ``UPDATE orders SET total = 0 WHERE
    id = 1``
Allowed
    ``BEGIN`` · ``BEGIN READ ONLY`` · ``SET default_transaction_read_only = on``
Settings
    ``access: read_only | read_write``.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts, SettingHow, TransactionKind
from policy.model import DANGER, WRITES, Access, Halt, Policy, RuleLevel, StatementClass, Violation
from policy.names import Names
from policy.settings import judge_read_only

NAME = "access-read-only"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "access"

_SPELLING = {
    TransactionKind.BEGIN: "BEGIN",
    TransactionKind.SET_TRANSACTION: "SET TRANSACTION",
    TransactionKind.SET_CHARACTERISTICS: "SET SESSION CHARACTERISTICS",
}


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:  # noqa: ARG001 - a rule's seam
    if policy.access is not Access.READ_ONLY:
        return
    writes = facts.classes & WRITES - ({StatementClass.LOCK} if facts.locks_as_reading else set())
    for statement_class in sorted(writes, key=DANGER.__getitem__, reverse=True):
        yield Violation(
            rule=NAME,
            message=f"Policy {policy.name} is read-only and {statement_class} statements write or lock",
            hint="Read only: send SELECT without locking clauses.",
            position=facts.class_positions.get(statement_class) or facts.start,
            halt=Halt.CLASS_NOT_REPAIRABLE,
            line=policy.lines.get(GOVERNED_BY, 0),
        )
    for transaction in facts.transactions:
        if transaction.read_only is False:
            yield Violation(
                rule=NAME,
                message=f"{_SPELLING[transaction.kind]} asks for READ WRITE under a read-only policy",
                hint="Leave READ WRITE out, or say READ ONLY.",
                position=transaction.position or facts.start,
                halt=Halt.CLASS_NOT_REPAIRABLE,
                line=policy.lines.get(GOVERNED_BY, 0),
            )
    for setting in facts.settings:
        # Transaction modes have been told above, in the words the agent used.
        if setting.how is not SettingHow.TRANSACTION:
            violation = judge_read_only(setting, policy)
            if violation is not None:
                yield violation
