"""The review loop: one statement, at most one repair, and a record of how it ended.

For people who write agents. Owns the loop and what the model is asked, over plain callables: it knows no
model and no database. The gate is the policy's own (``decide``), the row of the statement's class says
whether there is a repair at all, and the comparison that keeps it honest is ``repair``'s, as in the proxy. No
ledger is needed: what a model answers is the answer.

* A statement that runs is done: nobody is asked to make it nicer.
* A fault that the policy lets repair is answered once, by what the gate or PostgreSQL said of it.
* A model that gives up although every name it missed exists elsewhere is told so, and asked once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from policy.catalog import Catalog
from policy.check import names_for
from policy.decision import Decision, Reject, Situation, decide, refuse
from policy.engine_errors import enrich
from policy.facts import QueryString
from policy.lineage import may_open
from policy.model import Halt, Policy, StatementClass
from policy.names import Names
from policy.parse import parse
from policy.rejection import Rejection, reject
from policy.repair import Finding, attempt, compare, finding_of_error, finding_of_rejection
from policy.rules import unknown_column, unknown_function, unknown_relation
from policy.rules.repair_halted import halted

CANNOT_ANSWER: Final = "CANNOT ANSWER"
"""How a model says that there is no such statement."""

_MISSING: Final = frozenset({unknown_relation.NAME, unknown_column.NAME, unknown_function.NAME})
_FENCE: Final = re.compile(r"```[a-zA-Z]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class EngineError:
    """What PostgreSQL said of a statement. ``position`` counts characters from 1."""

    sqlstate: str
    message: str
    hint: str | None = None
    detail: str | None = None
    position: int | None = None
    column: str | None = None

    def fields(self) -> dict[str, str]:
        """By the names that ``engine_errors`` takes."""
        told = {
            "sqlstate": self.sqlstate,
            "message": self.message,
            "hint": self.hint,
            "detail": self.detail,
            "position": None if self.position is None else str(self.position),
            "column": self.column,
        }
        return {name: value for name, value in told.items() if value is not None}


Complete = Callable[[str], str]
"""Asks a model: a prompt in, its answer out."""
Execute = Callable[[str], EngineError | None]
"""Runs one statement: None where it succeeded."""


class Ending(StrEnum):
    """How a review ends."""

    PASSED = "passed"
    """The first statement ran."""
    REPAIRED = "repaired"
    REFUSED = "refused"
    """It may not run, and there is no repair."""
    REPAIRABLE = "repairable"
    """There is a turn, and nobody to take it."""
    HALTED = "halted"
    """The turn is spent, or what was offered may not stand in for the first statement."""
    GIVEN_UP = "given_up"
    """The model says that there is no such statement."""


@dataclass(frozen=True, slots=True)
class Review:
    """The close-out record. ``reasons`` are what stood against each statement, rule or SQLSTATE first;
    ``sql`` is the last statement; ``turns`` counts the repairs taken; ``sandbox`` is PostgreSQL's last error.
    """

    ending: Ending
    statement_class: StatementClass | None
    sql: str
    reasons: tuple[str, ...] = ()
    turns: int = 0
    halt: Halt | None = None
    sandbox: EngineError | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "ending": self.ending,
            "class": self.statement_class,
            "sql": self.sql,
            "reasons": list(self.reasons),
            "turns": self.turns,
            "halt": self.halt,
            "sandbox": None if self.sandbox is None else self.sandbox.fields(),
        }


def review(
    sql: str,
    policy: Policy,
    execute: Execute,
    complete: Complete | None = None,
    *,
    catalog: Catalog | None = None,
    agent: str = "",
) -> Review:
    """Take ``sql`` through gate and ``execute``, with one repair by ``complete`` where ``policy`` grants it.

    ``execute`` may run statements for good, or try them and roll back; it is never given one that the gate
    refuses. Without ``complete`` the review ends where a repair would begin. ``catalog`` is where names are
    looked up. What the callables raise passes through.
    """
    gate = _Gate(policy, execute, catalog, agent)
    first = gate.put(sql)
    if first.runs:
        return _closed(Ending.PASSED, [first])
    if first.finding is None:
        return _closed(Ending.REFUSED, [first])
    if complete is None:
        return _closed(Ending.REPAIRABLE, [first])
    answer = _statement(complete(_prompt(first)))
    if answer is None and first.exists_elsewhere:
        answer = _statement(complete(_contradiction(first)))
    if answer is None:
        return _closed(Ending.GIVEN_UP, [first])
    second = gate.put(answer, first)
    return _closed(Ending.REPAIRED if second.runs else Ending.HALTED, [first, second])


def _closed(ending: Ending, tried: Sequence[_Attempt]) -> Review:
    last = tried[-1]
    halt = last.halt
    if ending is Ending.HALTED and halt is None:
        halt = Halt.REPAIR_BUDGET_EXHAUSTED
    reasons = tuple(f"{each.fault[0]}: {each.fault[1]}" for each in tried if not each.runs)
    error = next((each.error for each in reversed(tried) if each.error is not None), None)
    return Review(ending, last.statement_class, last.sql, reasons, len(tried) - 1, halt, error)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One statement and what stood against it."""

    sql: str
    decision: Decision
    rejection: Rejection | None = None
    error: EngineError | None = None
    finding: Finding | None = None
    """What the one repair may change; None where there is none."""

    @property
    def runs(self) -> bool:
        return self.rejection is None and self.error is None

    @property
    def statement_class(self) -> StatementClass | None:
        return self.decision.statement_class

    @property
    def halt(self) -> Halt | None:
        return self.decision.halt if isinstance(self.decision, Reject) else None

    @property
    def fault(self) -> tuple[str, str, str]:
        """Rule or SQLSTATE, message and hint."""
        if self.rejection is not None:
            return self.rejection.routine, self.rejection.message, self.rejection.hint
        if self.error is not None:
            return self.error.sqlstate, self.error.message, self.error.hint or ""
        return "", "", ""

    @property
    def exists_elsewhere(self) -> bool:
        """Whether all that it misses is somewhere else: then there is such a statement."""
        if not isinstance(self.decision, Reject):
            return False
        violations = self.decision.violations
        return all(v.rule in _MISSING and v.suggestion is not None for v in violations)


@dataclass(frozen=True, slots=True)
class _Gate:
    """Where statements are put to: the policy, then whoever runs them."""

    policy: Policy
    execute: Execute
    catalog: Catalog | None
    agent: str

    def put(self, sql: str, repairs: _Attempt | None = None) -> _Attempt:
        """``sql``, which is to stand in for ``repairs`` where that is given."""
        query, names = parse(sql), names_for(self.policy, self.catalog)
        decision = self._judged(query, names, repairs)
        if isinstance(decision, Reject):
            finding = finding_of_rejection(query, names, decision.violations)
            rejection = reject(decision, "review", self.policy)
            return _Attempt(sql, decision, rejection, finding=finding if decision.repair.allowed else None)
        error = self.execute(sql)
        if error is None:
            return _Attempt(sql, decision)
        told = _told(error, enrich(error.fields(), query, names, self.policy))
        return _Attempt(sql, decision, error=told, finding=self._of_error(error, query, names, decision))

    def _judged(self, query: QueryString, names: Names, repairs: _Attempt | None) -> Decision:
        decision = decide(self.policy, Situation(self.agent, names), query)
        if repairs is None or repairs.finding is None:
            return decision
        first = attempt(parse(repairs.sql), names, finding=repairs.finding)
        halt = compare(first, repairs.finding, attempt(query, names))
        if halt is None:
            return decision
        others = decision.violations if isinstance(decision, Reject) else ()
        return refuse(self.policy, names, query, (halted(halt, self.policy), *others))

    def _of_error(
        self, error: EngineError, query: QueryString, names: Names, decision: Decision
    ) -> Finding | None:
        cls = decision.statement_class
        if cls is None or not may_open(self.policy, cls, error.sqlstate):
            return None
        return finding_of_error(error.sqlstate, query, names, error.position, column=error.column)


def _told(error: EngineError, enriched: Mapping[str, str] | None) -> EngineError:
    if enriched is None:
        return error
    return EngineError(
        error.sqlstate,
        enriched.get("message", error.message),
        enriched.get("hint"),
        enriched.get("detail"),
        error.position,
        error.column,
    )


# --- what the model is asked and how it answers ---


def _prompt(attempt: _Attempt) -> str:
    _, message, hint = attempt.fault
    keep = attempt.decision.repair if isinstance(attempt.decision, Reject) else None
    lines = ["This statement cannot run:", "", attempt.sql, "", f"Reason: {message}"]
    if hint:
        lines.append(f"Hint: {hint}")
    if keep is not None and keep.keep_relations:
        lines.append(f"Keep these relations: {', '.join(keep.keep_relations)}")
    if keep is not None and keep.keep_predicates:
        lines.append(f"Keep these conditions: {'; '.join(keep.keep_predicates)}")
    lines += [
        "",
        "Mend the fault and nothing else. There is one attempt. Answer with one SQL statement alone,",
        f"or with {CANNOT_ANSWER} and why.",
    ]
    return "\n".join(lines)


def _contradiction(attempt: _Attempt) -> str:
    """What a model that gave up is told of the names that it missed."""
    decision = attempt.decision
    found = [
        f"{violation.object} is {violation.suggestion}"
        for violation in (decision.violations if isinstance(decision, Reject) else ())
    ]
    return "\n".join(
        [
            "It can be answered; what is missing exists elsewhere:",
            *found,
            "",
            "The statement was:",
            "",
            attempt.sql,
            "",
            "Answer with one SQL statement alone.",
        ]
    )


def _statement(answer: str) -> str | None:
    """The statement in a model's answer; None where it gives up."""
    fenced = _FENCE.search(answer)
    text = (fenced.group(1) if fenced else answer).strip()
    return None if not text or text.upper().startswith(CANNOT_ANSWER) else text
