"""delete-without-where: a DELETE of a whole table.

What it refuses
    A DELETE that has no WHERE, wherever it is nested.
Why
    It removes every row, which hardly ever is what was meant.
Refused
    ``DELETE FROM orders`` · ``WITH u AS (DELETE FROM orders) SELECT 1``
Allowed
    ``DELETE FROM orders WHERE id = 7``
Settings
    ``rules: {delete-without-where: reject | warn | off}``; reject by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts
from policy.model import Policy, RuleLevel, StatementClass, Violation
from policy.names import Names
from policy.rules.whole_table import whole_table

NAME = "delete-without-where"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "rules"


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    return whole_table(NAME, StatementClass.DELETE, facts, names, policy)
