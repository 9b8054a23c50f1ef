"""unbounded-join: a SELECT that joins relations and may return any number of rows.

What it refuses
    A query whose rows go to the agent, joins two or more relations in its FROM (by JOIN or comma, in
    sub-selects or CTEs that it reads from), and has neither LIMIT nor FETCH FIRST nor an aggregate that makes
    one row of it. Each arm of a UNION counts.
Why
    A join multiplies rows; a forgotten condition multiplies them all. Fifty rows answer most questions.
Refused
    ``SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id``
Allowed
    the same with ``LIMIT 50`` · ``SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id``
    · any join of system catalogs alone, as drivers make to look around
Repair
    One, by adding LIMIT or an aggregate. DISTINCT bounds nothing.
Settings
    ``rules: {unbounded-join: reject | warn | off}``; warn by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names
from policy.rules.unbounded import joined_relations, unbounded_queries

NAME = "unbounded-join"
DEFAULT = RuleLevel.WARN
SQLSTATE = "42501"
GOVERNED_BY = "rules"


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    for query in unbounded_queries(facts, names):
        count = joined_relations(facts, query)
        if count >= 2:
            yield Violation(
                rule=NAME,
                message=f"The query joins {count} relations and may return any number of rows",
                hint="Add LIMIT, or an aggregate that makes one row of it; DISTINCT bounds nothing.",
                position=query.position or facts.start,
                repairable=True,
                line=policy.rule_lines.get(NAME, 0),
            )
