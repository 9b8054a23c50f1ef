"""repair-halted: the one repair is spent, or this statement may not stand in for what was refused.

What it refuses
    A statement that answers an earlier refusal and changes its class, its relations or what its predicates
    bound; that is the same again; or that comes when the turn is spent. ``halt`` says which. On the
    connection that was refused, the next write on the same target is the answer; elsewhere, and for reads,
    only a statement that is recognisably the same.
Why
    A refusal names what was wrong. An agent that guesses instead of correcting it tends to widen its
    statement until something runs.
Refused
    after ``DELETE FROM coupons WHERE cod = …`` failed: ``DELETE FROM coupons WHERE code LIKE …``
Allowed
    after the same: ``DELETE FROM coupons WHERE code = …`` · ``SELECT … FROM coupons LIMIT 5``, which costs
    nothing
Repair
    None, also where the policy grants two turns. What is refused here stays refused until the window ends.
Settings
    ``repair: {turns: 0 | 1 | 2, window: 10m, scope: connection | application | agent}`` and ``repair: once``
    of a row of ``statements:``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policy.model import Halt, Policy, RuleLevel, Violation
from policy.rules import dummy_literal

NAME = "repair-halted"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "53400"
GOVERNED_BY = "repair"

_ASK: Final = "Stop here, and tell whoever asked for this what was refused and why."
WORDS: Final[Mapping[Halt, tuple[str, str]]] = {
    Halt.REPAIR_BUDGET_EXHAUSTED: (
        "No repair of an earlier refusal is left, and this statement would be one",
        _ASK,
    ),
    Halt.UNCHANGED: (
        "This is the statement that was refused, sent again; no repair of it is left",
        _ASK,
    ),
    Halt.CLASS_CHANGED: (
        "The repair does something else than the statement that was refused",
        f"A repair must keep the statement's class. {_ASK}",
    ),
    Halt.RELATIONS_CHANGED: (
        "The repair uses other relations than the statement that was refused, and not those the hint offered",
        f"A repair must keep its relations. {_ASK}",
    ),
    Halt.PREDICATE_REMOVED: (
        "The repair drops a condition of the statement that was refused",
        f"A repair must keep every condition. {_ASK}",
    ),
    Halt.PREDICATE_WEAKENED: (
        "The repair no longer implies a condition of the statement that was refused",
        f"A repair must keep every condition, or make it narrower. {_ASK}",
    ),
    Halt.TAUTOLOGY: (
        "The repair has a condition that holds for every row",
        f"A repair must keep every condition. {_ASK}",
    ),
    Halt.DISTINCT_FOR_LIMIT: (
        "The repair has DISTINCT where the refusal asked for a bound; DISTINCT bounds nothing",
        _ASK,
    ),
}


def halted(halt: Halt, policy: Policy) -> Violation:
    """The objection to a statement whose repair ended in ``halt``; it leads a rejection."""
    if halt is Halt.DUMMY_LITERAL:
        return dummy_literal.invented(policy)
    message, hint = WORDS[halt]
    return Violation(rule=NAME, message=message, hint=hint, halt=halt, line=policy.repair.line)


def unkept(policy: Policy) -> Violation:
    """Said beside the objections that could be mended, while no turn can be kept account of."""
    return Violation(
        rule=NAME,
        message="No repair of this statement can be granted now: whose turn it is cannot be kept account of",
        hint="Report this to whoever runs the gate.",
        halt=Halt.REPAIR_BUDGET_EXHAUSTED,
        line=policy.repair.line,
    )


def unavailable(policy: Policy) -> Violation:
    """The objection while nobody knows whose turn it is (``LedgerUnavailableError``)."""
    return Violation(
        rule=NAME,
        message="Whether this statement is a repair that still has its turn cannot be told now",
        hint="Report this to whoever runs the gate.",
        halt=Halt.REPAIR_BUDGET_EXHAUSTED,
        line=policy.repair.line,
    )
