"""result-over-limit: a result that is longer than the policy lets an agent read.

What it refuses
    A result with more rows than ``result_rows`` or more bytes than ``result_bytes``. Rows are counted as they
    arrive: the statement is cancelled at the first one too many and ends in an error, so that no shortened
    result looks complete. What one portal or cursor gives adds up over every Execute and FETCH.
Why
    No estimate is certain. An agent that reads a table whole fills its context with it, and the server, the
    network and whatever keeps its transcripts with the rest.
Refused
    under ``result_rows: 10000``, at the 10001st row: ``SELECT … FROM events`` · ``COPY … TO STDOUT``
Allowed
    under the same: ``SELECT … FROM events ORDER BY id LIMIT 100`` · ``SELECT count(*) FROM …``
Repair
    One, by a LIMIT, an aggregate, a narrower WHERE or fewer columns.
Settings
    ``limits: {result_rows: 10000, result_bytes: 50MiB}``. Bytes are those of the rows as PostgreSQL sends
    them, without message headers.
"""

from __future__ import annotations

from policy.model import Policy, RuleLevel, Violation

NAME = "result-over-limit"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "57014"
GOVERNED_BY = "limits"


def exceeded(policy: Policy, *, by_rows: bool) -> Violation:
    """The objection to a result over ``result_rows`` (``by_rows``), else over ``result_bytes``."""
    limits = policy.limits
    limit = f"{limits.result_rows:,} rows" if by_rows else f"{limits.result_bytes:,} bytes"
    return Violation(
        rule=NAME,
        message=f"The result has more than {limit}; what was sent of it is not the whole",
        hint="Add a LIMIT, aggregate, or name fewer rows and columns.",
        repairable=True,
        line=limits.line,
    )
