"""dummy-literal: a statement that fills a column which wants a value with a placeholder.

What it refuses
    The answer to ``insert-missing-not-null`` (or to the engine's own refusal of a NULL) that gives the
    column a value which only stands for one: 'TODO', 'N/A', '-', 'xxx', '', 0, -1, 1970-01-01, and the like.
Why
    The column wants a value because the rows are useless without it. A made-up one passes every constraint
    and is found months later.
Refused
    after ``INSERT INTO shipments (order_id, …) …`` without a tracking code: the same with 'TODO' as its value
Allowed
    the same with the value the agent was given
Repair
    None. Ask for the value.
Settings
    ``repair:`` and the repair of each row of ``statements:``.
"""

from __future__ import annotations

from policy.model import Halt, Policy, RuleLevel, Violation

NAME = "dummy-literal"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "53400"
GOVERNED_BY = "repair"


def invented(policy: Policy) -> Violation:
    """The objection to a repair that makes up the value that was missing."""
    return Violation(
        rule=NAME,
        message="The repair fills a column that wants a value with a placeholder",
        hint="Ask whoever knows the value; do not make one up.",
        halt=Halt.DUMMY_LITERAL,
        line=policy.repair.line,
    )
