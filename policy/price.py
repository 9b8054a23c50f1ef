"""From a decision to the question about its price, and from the plan to the decision again.

Owns what a price makes of a decision, for whoever asks it: a proxy's session or a command offline. What to
ask and what a plan means is ``cost``'s, how it is asked ``plan_source``'s or the session's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final, Protocol

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, SessionNames
from policy.cost import PREFIX, Question, asked_like, judge, question
from policy.decision import Allow, Decision, RuleFailure, refuse
from policy.facts import Facts, QueryString
from policy.filtered import Rewritten
from policy.model import Mode, Policy
from policy.names import Names
from policy.parse import parse
from policy.plan import NoPlanError, Plan
from policy.rules import unpriceable

_PREPARED_ELSEWHERE: Final = "ExecuteStmt"
_NO_GENERIC_PLAN: Final = frozenset({"DeclareCursorStmt", "CreateTableAsStmt"})
"""Statement nodes that EXPLAIN takes and PREPARE does not (PreparableStmt in PostgreSQL's gram.y)."""


class Plans(Protocol):
    """Who answers a question; ``plan_source.PlanSource`` does."""

    async def plan(self, question: Question, parameters: int) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Settled:
    """A decision once its price is known, or known not to be had.

    ``cost`` is the price, as the contract tells it; None where none was needed or none could be had:
    ``unpriced`` says why. ``failures`` are rules that raised, which whoever asked logs.
    """

    decision: Decision
    cost: Mapping[str, Any] | None = None
    unpriced: str | None = None
    failures: tuple[RuleFailure, ...] = ()


def catalog_of(names: Names) -> Catalog | None:
    return names.catalog if isinstance(names, CatalogNames) else None


def priceable(decision: Decision, policy: Policy, names: SessionNames) -> tuple[Decision, Question | None]:
    """The decision by what the text alone says of the price, and what is to be asked before it may run.

    A refusal is not priced, since planning runs functions that it may be about; nor is anything where the
    policy only observes.
    """
    if not isinstance(decision, Allow) or policy.mode is Mode.OBSERVE:
        return decision, None
    statements = decision.query.statements
    catalog = catalog_of(names)
    questions = [
        asked for facts in statements if (asked := question(facts, policy, names, catalog)) is not None
    ]
    if decision.rewritten is not None and len(statements) == 1:
        questions = [_of_what_runs(asked, decision.query, decision.rewritten) for asked in questions]
    refused = tuple(v for asked in questions for v in asked.refused)
    if not refused and questions and len(statements) > 1:
        refused = (unpriceable.several(policy),)
    if refused:
        return refuse(policy, names, decision.query, refused), None
    warnings = tuple(v for asked in questions for v in asked.warnings)
    if warnings:
        decision = replace(decision, warnings=decision.warnings + warnings)
    return decision, next((asked for asked in questions if asked.text is not None), None)


def _of_what_runs(asked: Question, query: QueryString, rewritten: Rewritten) -> Question:
    """The question about the statement that is put in the place of the agent's, of filtered catalogs.

    Its rows are not counted before it runs: a count of the agent's own text would see what is filtered.
    """
    asked = replace(asked, count=None)
    if asked.text is None:
        return asked
    if asked.text == PREFIX + query.sql:
        return replace(asked, text=PREFIX + rewritten.priced)
    # Of a COPY, a DECLARE or a text that has more than the statement: its parts have to be told anew.
    (facts,) = parse(rewritten.priced).statements
    return replace(asked_like(asked, facts), offset=None)


async def settle(
    decision: Decision, policy: Policy, names: SessionNames, plans: Plans, today: date
) -> Settled:
    """Have ``decision`` priced, the values of its parameters being unknown, and judged by that.

    ``today`` is as ``cost.judge`` takes it. Raises what ``plans`` raises, other than ``NoPlanError``. A cost
    that is of a generic plan says so, by ``generic``.
    """
    decision, asked = priceable(decision, policy, names)
    if asked is None or not isinstance(decision, Allow):
        return Settled(decision)
    query = decision.query
    (facts,) = query.statements
    reason = _cannot_be_asked(facts)
    if reason is not None:
        return Settled(decision, unpriced=reason)
    try:
        plan = await plans.plan(asked, facts.parameters)
    except NoPlanError as error:
        if error.late:
            late = refuse(policy, names, query, (unpriceable.too_slow(policy),))
            return Settled(late, unpriced="the server did not plan it in time")
        return Settled(decision, unpriced=_told(error))
    verdict = judge(plan, facts, policy, today, catalog_of(names))
    cost = {**verdict.cost, "generic": True} if facts.parameters else verdict.cost
    settled: Decision = replace(decision, warnings=decision.warnings + verdict.warnings)
    if verdict.violations:
        settled = refuse(policy, names, query, verdict.violations, cost)
    return Settled(settled, cost, failures=verdict.failures)


def _cannot_be_asked(facts: Facts) -> str | None:
    if facts.node == _PREPARED_ELSEWHERE:
        return "what it runs is known to the session that prepared it alone"
    if facts.parameters and facts.node in _NO_GENERIC_PLAN:
        return "there is no plan of it without the values of its parameters"
    return None


def _told(error: NoPlanError) -> str:
    where = "" if error.position is None else f" at character {error.position}"
    return f"{error.sqlstate}: {error.message}{where}" if error.sqlstate else error.message
