"""statement-too-large: a text longer than ``limits.statement_bytes`` of the server's configuration.

What it refuses
    A query string over the size limit.
Why
    Reading a text costs time and stack; a limit keeps one agent from taking either from all others.
Refused
    an INSERT with megabytes of VALUES
Allowed
    the same rows by COPY … FROM STDIN, or in several INSERTs
Settings
    ``limits.statement_bytes`` in pgturnstile.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import QueryString
from policy.model import Halt, Policy, RuleLevel, Violation

NAME = "statement-too-large"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "54000"
GOVERNED_BY = "limits.statement_bytes of the server's configuration"


def check_string(query: QueryString, policy: Policy) -> Iterator[Violation]:  # noqa: ARG001 - a rule's seam
    failure = query.failure
    if failure is None or failure.rule != NAME:
        return
    yield Violation(
        rule=NAME,
        message=f"The statement is too large: {failure.message}",
        hint="Send the work in several smaller statements, or load rows with COPY … FROM STDIN.",
        sqlstate=failure.sqlstate,
        halt=Halt.CLASS_NOT_REPAIRABLE,
    )
