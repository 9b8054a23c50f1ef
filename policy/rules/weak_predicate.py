"""weak-predicate: a WHERE that leaves the table practically whole.

What it refuses
    An UPDATE or DELETE, wherever it is nested, or a MERGE that updates or deletes, whose condition spares no
    rows but oddities: ``x IS NOT NULL``, ``x LIKE '%'``, ``length(x) >= 0``; and a MERGE that writes whatever
    is NOT MATCHED BY SOURCE without any further condition.
Why
    It is no tautology in law, and one in effect.
Refused
    ``DELETE FROM coupons WHERE code LIKE '%'`` · ``UPDATE coupons SET used = 0 WHERE code IS NOT NULL``
Allowed
    ``UPDATE orders SET notes = NULL WHERE notes IS NOT NULL AND customer_id = 50`` · ``… WHERE shipped_at IS
    NULL``
Settings
    ``rules: {weak-predicate: reject | warn | off}``; reject by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts
from policy.model import Halt, Policy, RuleLevel, Violation
from policy.names import Names
from policy.predicates import Narrowing
from policy.rules.narrowing import judged_writes

NAME = "weak-predicate"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "rules"


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    for each in judged_writes(facts, names):
        if each.narrowing is not Narrowing.WEAK:
            continue
        yield Violation(
            rule=NAME,
            message=f"The condition of {each.verb} on {each.target} spares hardly any row",
            hint="Add a condition that picks out the rows meant, by key where there is one.",
            object=str(each.target),
            position=each.position,
            halt=Halt.TAUTOLOGY,
            line=policy.rule_lines.get(NAME, 0),
            schema=each.target.schema,
            table=each.target.name,
        )
