"""affected-rows-over-limit: a statement that wrote more rows than the policy lets one statement write.

What it refuses
    An INSERT, UPDATE, DELETE, MERGE or COPY FROM that wrote more than ``affected_rows`` rows, wherever it is
    nested. The statement runs, its rows are counted before anything is committed, and above the limit all of
    it is undone. What writing CTEs, cascades and triggers wrote counts as well. A plain UPDATE or DELETE that
    is priced, and may meet more than one row, is counted before it runs, up to one row above the limit: then
    nothing has to be undone.
Why
    The planner's estimate of a WHERE may be wrong by any factor. Only the run tells how many rows it takes.
Refused
    under ``affected_rows: 25``: ``UPDATE orders SET … WHERE status = …`` that meets 26 orders
Allowed
    under the same: ``UPDATE orders SET … WHERE id = …``
Repair
    One, that names fewer rows.
Settings
    ``limits: {affected_rows: 1000}``. While it is set, a string of several statements must not write: the
    statements are to be sent one by one.
"""

from __future__ import annotations

from policy.model import Policy, RuleLevel, Violation

NAME = "affected-rows-over-limit"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "57014"
GOVERNED_BY = "limits"


def exceeded(policy: Policy, written: int) -> Violation:
    """The objection to a statement that wrote ``written`` rows."""
    limit = policy.limits.affected_rows
    return Violation(
        rule=NAME,
        message=f"The statement wrote {written:,} rows, the limit is {limit:,}; all of it is undone",
        hint="Name fewer rows in one statement, with a narrower WHERE.",
        repairable=True,
        line=policy.limits.line,
    )


def foreseen(policy: Policy) -> Violation:
    """The objection to a statement that would write more rows: they were counted, it was not run."""
    return Violation(
        rule=NAME,
        message=f"The statement would write more than {policy.limits.affected_rows:,} rows, the limit; "
        "it was not run",
        hint="Name fewer rows in one statement, with a narrower WHERE.",
        repairable=True,
        line=policy.limits.line,
    )


def uncounted(policy: Policy) -> Violation:
    """The objection to a statement whose rows cannot be counted before it would be let go."""
    return Violation(
        rule=NAME,
        message="How many rows the statement wrote cannot be told before all of its result is fetched; it is "
        "undone",
        hint="Fetch the result of RETURNING in one go, without a row limit.",
        line=policy.limits.line,
    )
