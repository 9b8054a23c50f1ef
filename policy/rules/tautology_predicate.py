"""tautology-predicate: a WHERE that holds for every row, or depends on none.

What it refuses
    An UPDATE or DELETE, wherever it is nested, or a MERGE that updates or deletes, whose condition is true of
    every row (constants, ``x = x``, ``x OR NOT x``, ``id IN (SELECT id FROM same_table)``, a join of a table
    with itself by one column) or never mentions the rows it is to choose (``now() > …``, ``$1``, a joined
    table's columns alone; whose a column without a qualifier is, a catalog tells).
Why
    Such a condition looks like a WHERE and bounds nothing: it is a write of the whole table.
Refused
    ``DELETE FROM coupons WHERE 1 = 1`` · ``UPDATE coupons SET used = 0 WHERE code = 'A' OR true`` ·
    ``UPDATE coupons SET used = 0 FROM products p WHERE p.id = 3`` · ``DELETE FROM coupons WHERE $1``
Allowed
    ``DELETE FROM coupons WHERE code = 'A'`` · ``… WHERE 1 = 1 AND code = 'A'`` · ``… WHERE false``
Settings
    ``rules: {tautology-predicate: reject | warn | off}``; reject by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.advisor import holds_always
from policy.facts import Facts
from policy.model import Halt, Policy, RuleLevel, Violation
from policy.names import Names
from policy.parse import canonical
from policy.predicates import Narrowing, has_alternatives
from policy.rules.narrowing import JudgedWrite, judged_writes

NAME = "tautology-predicate"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "rules"

_SECOND_LOOK_NODES = 120
"""Mappings in the tree of a WHERE, some three a name or constant: it is to cost less than the statement."""
_SAYS = {
    Narrowing.ALWAYS: "holds for every row",
    Narrowing.UNTIED: "never compares a column of it, so it chooses no rows",
    Narrowing.UNDECIDED: "is too large to be judged",
}


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    judged = list(judged_writes(facts, names))
    refused = [each for each in judged if each.narrowing in _SAYS]
    for each in refused:
        yield _violation(each, _SAYS[each.narrowing], policy)
    if not refused and any(_worth_a_second_look(each) for each in judged):
        # Another reader's simplification, of PostgreSQL's own spelling of the statement.
        text = canonical(facts.sql)
        if text is not None and holds_always(text):
            yield _violation(judged[0], _SAYS[Narrowing.ALWAYS], policy)


def _worth_a_second_look(each: JudgedWrite) -> bool:
    where = each.write.where
    return (
        each.narrowing is Narrowing.NARROWS
        and where is not None
        and has_alternatives(where, _SECOND_LOOK_NODES)
    )


def _violation(each: JudgedWrite, says: str, policy: Policy) -> Violation:
    return Violation(
        rule=NAME,
        message=f"The condition of {each.verb} on {each.target} {says}",
        hint="Compare the target's own columns with values that pick out the rows meant.",
        object=str(each.target),
        position=each.position,
        halt=Halt.TAUTOLOGY,
        line=policy.rule_lines.get(NAME, 0),
        schema=each.target.schema,
        table=each.target.name,
    )
