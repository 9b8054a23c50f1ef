"""server-file: COPY to or from a file or program of the database server.

What it refuses
    ``COPY … TO/FROM 'file'`` and ``COPY … TO/FROM PROGRAM``, whatever the policy allows.
Why
    They read, write and run things on the machine PostgreSQL runs on. No agent needs that.
Refused
    ``COPY orders TO '/tmp/orders.csv'`` · ``COPY orders FROM PROGRAM 'curl …'``
Allowed
    ``COPY orders TO STDOUT`` · ``COPY orders FROM STDIN``, where their classes are allowed
Settings
    None: no policy can allow it.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import CopyEnd, Facts
from policy.model import Halt, Policy, RuleLevel, Violation
from policy.names import Names

NAME = "server-file"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "no policy: it is always refused"

_DOES = {
    CopyEnd.TO_FILE: ("writes a file on the database server", "COPY … TO STDOUT"),
    CopyEnd.FROM_FILE: ("reads a file on the database server", "COPY … FROM STDIN"),
    CopyEnd.TO_PROGRAM: ("runs a program on the database server", "COPY … TO STDOUT"),
    CopyEnd.FROM_PROGRAM: ("runs a program on the database server", "COPY … FROM STDIN"),
}


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:  # noqa: ARG001 - a rule's seam
    for copy in facts.copies:
        if copy.end not in _DOES:
            continue
        does, instead = _DOES[copy.end]
        yield Violation(
            rule=NAME,
            message=f"COPY {does}, which no policy allows",
            hint=f"Use {instead} and keep the data on your side.",
            position=facts.start,
            halt=Halt.CLASS_NOT_REPAIRABLE,
        )
