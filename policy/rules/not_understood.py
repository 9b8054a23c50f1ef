"""not-understood: SQL that parses but holds something the gate has no knowledge of.

What it refuses
    A statement with a syntax node, field or option that the gate's walk does not know, a tree too deep to be
    read, or one that a rule failed to judge.
Why
    Whatever is unknown may hide a write or a name. Silence never means allowed.
Refused
    a construct of a PostgreSQL newer than the gate
Allowed
    the same question asked with constructs of PostgreSQL 15 to 18
Settings
    None.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts, QueryString
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names
from policy.rules import statement_too_large, unparsable

NAME = "not-understood"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "what the gate can read"


_TOLD_BY_OTHERS = frozenset({unparsable.NAME, statement_too_large.NAME})


def check_string(query: QueryString, policy: Policy) -> Iterator[Violation]:  # noqa: ARG001 - a rule's seam
    """Whatever kept the text from being read, unless a rule of its own tells it."""
    failure = query.failure
    if failure is None or failure.rule in _TOLD_BY_OTHERS:
        return
    yield Violation(
        rule=NAME,
        message=f"The gate could not read the statement: {failure.message}",
        hint="Write it shorter and less deeply nested, or in several statements.",
        position=failure.position,
        sqlstate=failure.sqlstate,
    )


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:  # noqa: ARG001 - a rule's seam
    unknown = facts.not_understood
    if unknown is None:
        return
    yield Violation(
        rule=NAME,
        message=f"The statement holds something the gate does not understand: {unknown.what}",
        hint="Write the statement without it, with constructs of PostgreSQL 15 to 18.",
        position=unknown.position,
    )
