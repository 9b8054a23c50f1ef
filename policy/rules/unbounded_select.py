"""unbounded-select: a SELECT from one relation that may return any number of rows.

What it refuses
    A query whose rows go to the agent, reads one relation, and has neither LIMIT nor FETCH FIRST nor an
    aggregate that makes one row of it. Each arm of a UNION counts.
Why
    For policies whose tables are too large to be read whole.
Refused
    ``SELECT id FROM orders``
Allowed
    ``SELECT id FROM orders LIMIT 50`` · ``SELECT count(*) FROM orders`` · a read of system catalogs alone
Repair
    One, by adding LIMIT or an aggregate.
Settings
    ``rules: {unbounded-select: reject | warn | off}``; off by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names
from policy.rules.unbounded import joined_relations, unbounded_queries

NAME = "unbounded-select"
DEFAULT = RuleLevel.OFF
SQLSTATE = "42501"
GOVERNED_BY = "rules"


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    for query in unbounded_queries(facts, names):
        if joined_relations(facts, query) == 1:
            yield Violation(
                rule=NAME,
                message="The query reads a relation and may return any number of rows",
                hint="Add LIMIT, or an aggregate that makes one row of it.",
                position=query.position or facts.start,
                repairable=True,
                line=policy.rule_lines.get(NAME, 0),
            )
