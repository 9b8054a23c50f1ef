"""What update-without-where and delete-without-where share: finding writes that have no WHERE."""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts
from policy.model import Halt, Policy, StatementClass, Violation
from policy.names import Names
from policy.rules.naming import display_name


def whole_table(
    rule: str, action: StatementClass, facts: Facts, names: Names, policy: Policy
) -> Iterator[Violation]:
    """A violation of ``rule`` for every ``action`` without WHERE that the statement would run.

    The actions of a MERGE always stand under its ON condition, which tautology-predicate judges. An EXPLAIN
    without ANALYZE runs nothing, so its classes lack the action.
    """
    if action not in facts.classes:
        return
    for write in facts.writes:
        if write.action is not action or write.merge or write.where is not None or write.current_of:
            continue
        target = facts.relations[write.target]
        name = display_name(target, names)
        yield Violation(
            rule=rule,
            message=f"{action.upper()} on {name} has no WHERE clause",
            hint="Name the rows in a WHERE clause, in a new statement that somebody has asked for.",
            object=str(name),
            position=write.position or facts.start,
            halt=Halt.CLASS_NOT_REPAIRABLE,
            line=policy.rule_lines.get(rule, 0),
            schema=name.schema,
            table=name.name,
        )
