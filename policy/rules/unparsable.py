"""unparsable: text that PostgreSQL's own grammar does not accept.

What it refuses
    A query string that does not parse, or that cannot be handed to the parser safely (no valid UTF-8, a NUL).
Why
    What cannot be read cannot be judged; nothing of the string is forwarded.
Refused
    ``SELEC 1`` · ``SELECT `id` FROM orders`` · ``please show me all the orders``
Allowed
    ``SELECT 1`` · an empty string, with which drivers ping
Repair
    One corrected statement, where the policy's ``repair.turns`` is at least 1.
Settings
    None: no level can let unread text pass. ``mode: observe`` records it instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import QueryString
from policy.model import Policy, RuleLevel, Violation

NAME = "unparsable"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42601"
GOVERNED_BY = "the grammar of PostgreSQL"


def check_string(query: QueryString, policy: Policy) -> Iterator[Violation]:  # noqa: ARG001 - a rule's seam
    failure = query.failure
    if failure is None or failure.rule != NAME:
        return
    yield Violation(
        rule=NAME,
        message=f"The text is not SQL that PostgreSQL accepts: {failure.message}",
        hint="Correct the syntax at the position given and send one PostgreSQL statement.",
        position=failure.position,
        sqlstate=failure.sqlstate,
        repairable=True,
    )
