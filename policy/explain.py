"""Why a statement is decided as it is: the facts of it, what each rule says, and the policy line behind it.

Owns the choice of what is told, for a person and for a program. Judges nothing: the answers are those that
``decide`` sums up, and the wording of a rejection is ``reject``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from policy.catalog import Catalog
from policy.check import Checked, as_violation, judged, names_for, priced
from policy.cost import Question
from policy.decision import RuleAnswer, Situation, answers
from policy.facts import CallKind, Facts
from policy.inheritance import place_of
from policy.model import Policy, RuleLevel, StatementClass
from policy.names import Names
from policy.parse import parse
from policy.plan import Plan
from policy.price import Plans
from policy.rules import BY_NAME
from policy.rules.naming import display_name

_NODES: Final = 5
"""Nodes of a plan that are told."""


@dataclass(frozen=True, slots=True)
class Explained:
    """One decision and all that led to it. ``answers`` are in the order in which the rules are listed."""

    checked: Checked
    statements: tuple[Told, ...]
    answers: tuple[RuleAnswer, ...]
    policy: Policy
    nodes: tuple[PlanNode, ...] = ()
    """The dearest nodes of the plan, where a database was asked for one."""

    def as_json(self) -> dict[str, Any]:
        return {
            **self.checked.as_json(),
            "facts": [dict(told.facts) for told in self.statements],
            "rules": [
                {
                    "rule": answer.rule,
                    "statement": answer.statement,
                    "level": answer.level,
                    "governed_by": BY_NAME[answer.rule].GOVERNED_BY,
                    "file": self.place(answer)[0],
                    "line": self.place(answer)[1],
                    "violations": [as_violation(violation) for violation in answer.violations],
                }
                for answer in self.answers
            ],
            "plan": [node._asdict() for node in self.nodes],
        }

    def place(self, answer: RuleAnswer) -> tuple[str, int]:
        """The policy file, which may be a base, and the line of it that the answer rests on.

        The line is 0 for a default, and for what no policy says.
        """
        told = None if answer.statement is None else self.statements[answer.statement]
        line = answer.violations[0].line if answer.violations else 0
        return place_of(line or _line(answer.rule, told, self.policy), self.policy.files)


class PlanNode(NamedTuple):
    """One node of a plan. ``own`` is what it costs less what is below it; costs in the planner's units."""

    kind: str
    relation: str | None
    own: float
    total: float
    rows: float


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of one statement: its class, and a list of words under each heading that has any."""

    statement_class: StatementClass
    facts: Mapping[str, tuple[str, ...]]


def explain(policy: Policy, sql: str, *, agent: str = "", catalog: Catalog | None = None) -> Explained:
    """Judge ``sql`` as one query string of ``agent``, and tell what led to the decision.

    Names are looked up in ``catalog`` as ``check`` looks them up.
    """
    situation = Situation(agent, names_for(policy, catalog))
    query = parse(sql)
    return Explained(
        judged(policy, situation, query, "<sql>"),
        tuple(Told(f.statement_class, _facts(f, situation.names)) for f in query.statements),
        tuple(answers(policy, situation, query)),
        policy,
    )


async def price(explained: Explained, catalog: Catalog, plans: Plans, today: date) -> Explained:
    """``explained``, judged by its price as well: see ``check.priced``."""
    kept = _Kept(plans)
    checked = await priced(explained.checked, explained.policy, catalog, kept, today)
    nodes = () if kept.last is None else _dearest(kept.last)
    return replace(explained, checked=checked, nodes=nodes)


class _Kept:
    """``Plans`` that keeps the last answer."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self.last: Plan | None = None

    async def plan(self, question: Question, parameters: int) -> Plan:
        self.last = await self._plans.plan(question, parameters)
        return self.last


def _dearest(plan: Plan) -> tuple[PlanNode, ...]:
    """Nodes by what they cost themselves: the total of a node holds that of all below it."""
    nodes = (
        PlanNode(
            node.kind,
            node.relation,
            max(0.0, node.total - sum(child.total for child in node.children)),
            node.total,
            node.rows,
        )
        for node in plan.walk()
    )
    return tuple(sorted(nodes, key=lambda node: node.own, reverse=True)[:_NODES])


def _facts(facts: Facts, names: Names) -> Mapping[str, tuple[str, ...]]:
    listed = {heading: tuple(dict.fromkeys(tell(facts, names))) for heading, tell in _HEADINGS.items()}
    return MappingProxyType({heading: words for heading, words in listed.items() if words})


def _classes(facts: Facts, _names: Names) -> Iterator[str]:
    yield from sorted(facts.classes)


def _relations(facts: Facts, names: Names) -> Iterator[str]:
    for ref in facts.relations:
        yield f"{display_name(ref, names)} ({ref.use})"


def _columns(facts: Facts, _names: Names) -> Iterator[str]:
    for ref in facts.columns:
        yield ".".join((*ref.qualifier, ref.name or "*"))


def _functions(facts: Facts, _names: Names) -> Iterator[str]:
    for ref in facts.functions:
        if ref.kind is CallKind.CALL:
            yield ref.name if ref.schema is None else f"{ref.schema}.{ref.name}"


def _settings(facts: Facts, _names: Names) -> Iterator[str]:
    for ref in facts.settings:
        yield ref.name or "(not a constant)"


def _shape(facts: Facts, _names: Names) -> Iterator[str]:
    final = [query for query in facts.queries if query.final]
    if facts.parameters:
        yield f"{facts.parameters} parameter{'' if facts.parameters == 1 else 's'}"
    if any(query.limited for query in final):
        yield "limited"
    if any(query.one_row for query in final):
        yield "one row"
    if any(query.recursive for query in facts.queries):
        yield "recursive"
    for write in facts.writes:
        yield f"{write.action} {'with' if write.where else 'without'} a condition"
    if not facts.runs:
        yield "planned, not run"


_HEADINGS: Final = {
    "classes": _classes,
    "relations": _relations,
    "columns": _columns,
    "functions": _functions,
    "settings": _settings,
    "shape": _shape,
}


def _line(rule: str, told: Told | None, policy: Policy) -> int:
    """The line of what governs ``rule``, where the policy says anything about it."""
    governed_by = BY_NAME[rule].GOVERNED_BY
    if governed_by == "rules":
        return policy.rule_lines.get(rule, 0)
    if governed_by == "statements":
        return 0 if told is None else policy.row(told.statement_class).line
    return policy.lines.get(governed_by, 0)


def verdict(answer: RuleAnswer) -> str:
    """One word for what the rule says: ``off``, ``passes``, ``warns``, ``refuses`` or ``failed``."""
    if answer.level is RuleLevel.OFF:
        return "off"
    if answer.failure is not None:
        return "failed"
    if not answer.violations:
        return "passes"
    return "warns" if answer.level is RuleLevel.WARN else "refuses"


def may_be_set(rule: str) -> bool:
    """Whether a policy can say anything about ``rule``."""
    return BY_NAME[rule].GOVERNED_BY in _SECTIONS


_SECTIONS: Final = frozenset(field.name for field in fields(Policy))
