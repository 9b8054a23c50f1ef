"""update-without-where: an UPDATE of a whole table.

What it refuses
    An UPDATE that has no WHERE, wherever it is nested.
Why
    It changes every row, which hardly ever is what was meant.
Refused
    ``UPDATE orders SET status = 'paid'`` · ``WITH u AS (UPDATE orders SET total = 0) SELECT 1``
Allowed
    ``UPDATE orders SET status = 'paid' WHERE id = 7``
Settings
    ``rules: {update-without-where: reject | warn | off}``; reject by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts
from policy.model import Policy, RuleLevel, StatementClass, Violation
from policy.names import Names
from policy.rules.whole_table import whole_table

NAME = "update-without-where"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "rules"


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    return whole_table(NAME, StatementClass.UPDATE, facts, names, policy)
