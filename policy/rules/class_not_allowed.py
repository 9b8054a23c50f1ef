"""class-not-allowed: a statement class that the policy has no ``allow`` row for.

What it refuses
    A statement any part of which, however deeply nested, is of a class that the policy does not allow.
Why
    The decision table of the policy says which kinds of statement an agent may send at all. A CTE that
    deletes makes a ``delete`` of the SELECT around it; ``EXPLAIN ANALYZE`` is what it runs; ``FOR UPDATE`` is
    ``lock``. Statements that only undo what their session did (``UNLISTEN *``, ``CLOSE ALL``, ``DISCARD ALL``
    …) need no row.
Refused
    ``DELETE FROM orders WHERE id = 1`` of a reader · ``DROP TABLE orders``
Allowed
    ``SELECT count(*) FROM orders``
Settings
    ``statements:``, one row a class: ``allow`` or ``{decide: reject, needs: approval | runbook}``; what needs
    a person halts with ``approval_required`` or ``runbook_required``.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts
from policy.model import DANGER, ClassRow, Halt, Needs, Policy, RuleLevel, StatementClass, Verdict, Violation
from policy.names import Names
from policy.rules.session_undo import only_undoes

NAME = "class-not-allowed"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "statements"

_NEEDS: dict[Needs | None, tuple[Halt, str]] = {
    Needs.APPROVAL: (
        Halt.APPROVAL_REQUIRED,
        "Ask a person for approval; {cls} statements run outside this connection, and never as another one.",
    ),
    Needs.RUNBOOK: (
        Halt.RUNBOOK_REQUIRED,
        "Ask a person to follow the runbook for {cls} statements; do not replace it by another command.",
    ),
}


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:  # noqa: ARG001 - a rule's seam
    if only_undoes(facts):
        return
    classes = facts.classes
    if facts.not_understood is not None:
        # What nobody understood has no class worth telling; not-understood refuses it in every case.
        classes = classes - {StatementClass.OTHER}
    for statement_class in sorted(classes, key=DANGER.__getitem__, reverse=True):
        row = policy.row(statement_class)
        if row.decide is not Verdict.ALLOW:
            yield _violation(facts, statement_class, row, policy)


def _violation(facts: Facts, statement_class: StatementClass, row: ClassRow, policy: Policy) -> Violation:
    halt, hint = _NEEDS.get(row.needs, (Halt.CLASS_NOT_REPAIRABLE, _allowed_classes(policy)))
    return Violation(
        rule=NAME,
        message=f"Statements of class {statement_class} are not allowed by policy {policy.name}",
        hint=hint.format(cls=statement_class),
        position=facts.class_positions.get(statement_class) or facts.start,
        halt=halt,
        line=row.line or policy.lines.get(GOVERNED_BY, 0),
    )


def _allowed_classes(policy: Policy) -> str:
    allowed = [c for c in DANGER if policy.row(c).decide is Verdict.ALLOW]
    if not allowed:
        return "This policy allows no statement at all; ask whoever keeps it."
    return f"Send only what the policy allows: {', '.join(allowed)}."
