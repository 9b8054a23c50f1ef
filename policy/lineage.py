"""One refused statement and what may still answer it: pure values and the turn they take.

Owns ``Lineage``, what counts as an answer (``answers``), and what an answer does to the lineage (``weigh``,
``after``). A lineage opens at a repairable rejection, or at an engine's error of class 22, 23 or 42 under a
class whose row has ``repair: once``, or where such a statement ran out of its time, and lives for the
policy's window. Where lineages are kept is ``ledger``.

On the connection that was refused, the next write on the same target answers, in whatever class; where the
target itself was at fault, the next write of the same class, whatever its target. On other connections of the
scope, and for reads everywhere, only a statement answers that is recognisably the same (``likeness``); of
what ran out of its time that holds everywhere, and the very same may be tried again. What was denied or too
slow is answered by the same statement of another table as well, and a read, on its connection, by the same
without any condition. All else passes, costs no turn and is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from policy.facts import Use
from policy.likeness import Effort, drops_its_conditions, filters, recognisable
from policy.model import Halt, Policy, RepairRules, RepairScope, StatementClass
from policy.normal import thawed
from policy.repair import (
    MISSING_VALUE,
    Attempt,
    Fault,
    Finding,
    compare,
    dummy_literal,
    is_unchanged,
    unmarked,
)
from policy.sandbox import Tried
from policy.within import selects_within

REPAIRABLE_ERRORS: Final = ("22", "23", "42")
"""SQLSTATE classes of the engine that a class with ``repair: once`` may repair: data, constraints, names and
syntax."""
TOO_SLOW: Final = "57014"
"""query_canceled, of a statement that ran out of the time that the policy gives it."""
MAX_SOUGHT_WITHIN: Final = 32
"""Lineages whose answer is looked for within a statement: each takes some 0.3 ms for one with sub-selects."""
_DENIED: Final = "42501"
"""insufficient_privilege: the role may not touch what the statement names."""
_NOT_TRIED: Final = frozenset({"25P02", "40001", "40P01"})
"""in_failed_sql_transaction, serialization_failure, deadlock_detected: they say nothing of the statement."""


class Outcome(StrEnum):
    """What became of a repair that was let through."""

    PASSED = "passed"
    REJECTED = "rejected"
    """By the gate."""
    FAILED = "failed"
    """In the engine."""
    NOT_TRIED = "not_tried"
    """The engine had no part in it, or not because of the statement: the turn is given back."""


class Ending(StrEnum):
    """How a lineage ended."""

    REPAIRED = "repaired"
    HALTED = "halted"
    ABANDONED = "abandoned"
    """Its window ended first, or the process that alone knew of it."""
    SUPERSEDED = "superseded"
    """It gave way to later ones of its scope."""


def outcome_of(sqlstate: str | None) -> Outcome:
    """The outcome that an ErrorResponse of the engine is; None stands for success."""
    if sqlstate is None:
        return Outcome.PASSED
    return Outcome.NOT_TRIED if sqlstate in _NOT_TRIED else Outcome.FAILED


@dataclass(frozen=True, slots=True)
class Lineage:
    """A refused statement with its turns.

    ``turns_left`` does not count those in flight, ``turns_taken`` does. Times are in seconds since the epoch.
    ``answered`` are the targets of its answers so far; ``halt`` is what the last of them was halted for.
    ``watch`` is True where no repair was granted, and only a placeholder is looked out for: an INSERT that
    lacked a value may come with it as a statement of its own, not with a made-up one. ``tried`` is what the
    clone said last, of the refused statement or of a repair; None where neither was to be tried.
    """

    id: str
    scope: str
    connection: str
    first: Attempt
    finding: Finding
    opened: float
    until: float
    turns_left: int
    turns_taken: int = 0
    answered: frozenset[str] = frozenset()
    halt: Halt | None = None
    watch: bool = False
    tried: Tried | None = None


@dataclass(frozen=True, slots=True)
class CloseOut:
    """How a lineage ended, for the audit: there is one for each that granted a turn or was halted.

    ``reasons`` are what was found last, the deciding one first (``repair.Finding``); ``halt`` is set where
    ``ending`` is ``HALTED``. ``turns`` counts those taken, ``tried`` is as in ``Lineage``; times are seconds
    since the epoch.
    """

    lineage: str
    scope: str
    statement_class: StatementClass
    reasons: tuple[str, ...]
    turns: int
    ending: Ending
    halt: Halt | None
    opened: float
    closed: float
    tried: Tried | None = None


class Part(NamedTuple):
    """A statement's place in a lineage. ``turn`` is 0 for the refused statement that opened it and counts its
    answers from 1; None for an answer that had no turn left."""

    lineage: str
    turn: int | None


@dataclass(frozen=True, slots=True)
class NotAnAnswer:
    """The statement answers no refusal; it stands for itself."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The statement is the repair of ``lineage`` and has its turn; say with ``settled`` what became of it.

    ``turns_left`` are those that the policy grants beyond this one, should it fail; ``turn`` is which of them
    it has, the first being 1.
    """

    scope: str
    lineage: str
    turns_left: int = 0
    turn: int = 1

    @property
    def part(self) -> Part:
        return Part(self.lineage, self.turn)


class Again(NamedTuple):
    """A repair that failed and may itself be repaired: the next answer is compared with it.

    It kept all that the statement before it had, so whatever keeps what it has does too.
    """

    first: Attempt
    finding: Finding


@dataclass(frozen=True, slots=True)
class Halted:
    """The statement answers ``lineage`` and is refused. ``record`` is set where this ended the lineage;
    ``turn`` is the one that the statement has spent, None where none was left."""

    halt: Halt
    lineage: str
    record: CloseOut | None = None
    turn: int | None = None

    @property
    def part(self) -> Part:
        return Part(self.lineage, self.turn)


Considered = NotAnAnswer | Repair | Halted


def scope_key(rules: RepairRules, agent: str, database: str, application: str, connection: str) -> str:
    """Where the answers to a refusal are looked for. ``application`` is the name given at start-up."""
    narrowed = {RepairScope.APPLICATION: application, RepairScope.CONNECTION: connection}
    parts = (rules.scope, agent, database, narrowed.get(rules.scope, ""))
    # Names may hold any character but a zero.
    return "\0".join(parts)


def agent_and_database(scope: str) -> tuple[str, str]:
    """Whose refusals ``scope`` holds, a text that ``scope_key`` gave."""
    _, agent, database, _ = scope.split("\0")
    return agent, database


def may_open(
    policy: Policy, statement_class: StatementClass, sqlstate: str, *, timed_out: bool = False
) -> bool:
    """Whether an engine's error opens a lineage; ``timed_out`` where the statement ran out of its time."""
    return (
        policy.repair.turns >= 1
        and policy.row(statement_class).repair_once
        and (sqlstate[:2] in REPAIRABLE_ERRORS or (timed_out and sqlstate == TOO_SLOW))
    )


def watches(policy: Policy, statement_class: StatementClass, finding: Finding) -> bool:
    """Whether a rejection that grants no repair opens a lineage that watches for placeholders."""
    return (
        policy.repair.turns >= 1
        and policy.row(statement_class).repair_once
        and MISSING_VALUE in finding.reasons
    )


def answers(lineage: Lineage, connection: str, made: Attempt, effort: Effort) -> bool:
    """Whether ``made``, sent on ``connection``, answers ``lineage``, as far as ``effort`` goes."""
    first, reasons = lineage.first, lineage.finding.reasons
    if TOO_SLOW in reasons and lineage.turns_left > 0 and is_unchanged(first, made):
        return False
    here = connection == lineage.connection
    if here and not {_DENIED, TOO_SLOW}.isdisjoint(reasons) and _same_of_another_table(lineage, made, effort):
        return True
    if here and not first.writes and drops_its_conditions(first, lineage.finding, made):
        return True
    if not here and lineage.finding.values:
        # Which value was refused nobody knows. Others that are bound elsewhere are other work.
        first = replace(first, levels=unmarked(first.levels))
    if not here or not first.writes or TOO_SLOW in reasons:
        return recognisable(first, lineage.finding, made, effort)
    return _is_the_next_write(lineage, made, effort)


def _is_the_next_write(lineage: Lineage, made: Attempt, effort: Effort) -> bool:
    """Whether ``made``, on the connection that was refused, writes what the refused statement was to."""
    first = lineage.first
    if not made.writes or not made.runs:
        return False
    written = first.targets | lineage.answered
    if made.targets & (written | first.above) or made.above & written:
        return True
    at_fault = [fault for fault in lineage.finding.relations if fault.name in first.targets]
    if not at_fault or made.statement_class is not first.statement_class:
        return False
    # Once its turn is spent, work on other targets is work of its own, unless it is the same under any name.
    return lineage.turns_left > 0 or _same_elsewhere(lineage, at_fault, made, effort)


def _same_elsewhere(lineage: Lineage, at_fault: Iterable[Fault], made: Attempt, effort: Effort) -> bool:
    faults = tuple(Fault(fault.name, tuple(sorted(made.targets))) for fault in at_fault)
    return recognisable(lineage.first, replace(lineage.finding, relations=faults), made, effort)


def _same_of_another_table(lineage: Lineage, made: Attempt, effort: Effort) -> bool:
    """Whether ``made`` asks of one other relation what the first statement asked, rows picked out alike."""
    first = lineage.first
    before, after = ({name for name, _ in each.relations} for each in (first, made))
    lost, gained = before - after, after - before
    if len(lost) != 1 or len(gained) != 1 or not filters(made):
        return False
    swapped = (Fault(lost.pop(), (gained.pop(),)),)
    return recognisable(first, replace(lineage.finding, relations=swapped), made, effort)


def _is_read(lineage: Lineage) -> bool:
    return lineage.first.statement_class is StatementClass.SELECT and not lineage.first.writes


def _answer(
    lineage: Lineage, connection: str, made: Attempt, within: Iterable[Attempt], effort: Effort
) -> Attempt | None:
    """What of ``made`` answers ``lineage``: the whole, or of a read one of ``within`` that is the same.

    While there is a turn only one that keeps what it must: what is wrapped is more often a look around.
    """
    if answers(lineage, connection, made, effort):
        return made
    first, finding = lineage.first, lineage.finding
    if not _is_read(lineage) or not first.decided:
        return None
    kept = (None, Halt.UNCHANGED)
    for select in within:
        if recognisable(first, finding, select, effort) and (
            lineage.turns_left <= 0 or compare(first, finding, select) in kept
        ):
            return select
    return None


def weigh(
    lineages: Iterable[Lineage], connection: str, made: Attempt, now: float
) -> tuple[Considered, Lineage | None]:
    """What ``made`` is to ``lineages``, and the lineage that this changes.

    A spent lineage that it answers comes before one with a turn left, this connection's before others', the
    newest before older ones.
    """
    ranked = sorted(
        (lineage for lineage in lineages if lineage.until > now),
        key=lambda each: (each.turns_left > 0 or each.watch, each.connection != connection, -each.opened),
    )
    within = tuple(selects_within(made)) if any(_is_read(each) for each in ranked) else ()
    effort = Effort()
    found = (
        (each, _answer(each, connection, made, within if place < MAX_SOUGHT_WITHIN else (), effort))
        for place, each in enumerate(ranked)
    )
    lineage, answer = next(((each, answer) for each, answer in found if answer is not None), (None, made))
    if lineage is None:
        return NotAnAnswer(), None
    if lineage.watch:
        return _watched(lineage, made, now)
    if lineage.turns_left <= 0:
        return Halted(Halt.REPAIR_BUDGET_EXHAUSTED, lineage.id), None
    taken = replace(
        lineage,
        turns_left=lineage.turns_left - 1,
        turns_taken=lineage.turns_taken + 1,
        answered=lineage.answered | made.targets,
    )
    halt = compare(lineage.first, lineage.finding, answer)
    if halt is None:
        return Repair(lineage.scope, lineage.id, taken.turns_left, taken.turns_taken), taken
    # Whoever answers a refusal by something else is told not to go on: no turn is left for it.
    return _halted(taken, halt, now)


def _halted(lineage: Lineage, halt: Halt, now: float) -> tuple[Halted, Lineage]:
    """``lineage`` without a turn; the record, unless it was halted before."""
    changed = replace(lineage, halt=halt, turns_left=0)
    record = _record(changed, Ending.HALTED, now) if lineage.halt is None else None
    return Halted(halt, lineage.id, record, lineage.turns_taken or None), changed


def _watched(lineage: Lineage, made: Attempt, now: float) -> tuple[Considered, Lineage | None]:
    """A watch ends with the INSERT that has a value of its own, which it is no repair to send."""
    halt = dummy_literal(lineage.first, lineage.finding, made)
    if halt is None:
        return NotAnAnswer(), replace(lineage, until=now)
    return _halted(lineage, halt, now)


def reweigh(lineage: Lineage | None, made: Attempt, now: float) -> tuple[Considered, Lineage | None]:
    """The same for a repair that has its turn and now has its values as well.

    A lineage that is gone has let its repair pass already: the statement stands for itself.
    """
    if lineage is None:
        return NotAnAnswer(), None
    halt = compare(lineage.first, lineage.finding, made)
    if halt is None:
        return Repair(lineage.scope, lineage.id, lineage.turns_left, lineage.turns_taken), None
    return _halted(lineage, halt, now)


def after(
    lineage: Lineage, outcome: Outcome, now: float, again: Again | None = None, tried: Tried | None = None
) -> tuple[Lineage | None, CloseOut | None]:
    """The lineage once its repair's outcome is known, None where it is closed; and the record if it ended.

    A repair that failed and comes with ``again`` leaves the turns that there are; any other ends it. Where
    another answer was halted meanwhile, that has ended it: no turn comes back. ``tried`` is what the clone
    said of the repair.
    """
    if tried is not None:
        lineage = replace(lineage, tried=tried)
    given_back = outcome is Outcome.NOT_TRIED
    if lineage.halt is not None or (given_back and lineage.turns_taken == 0):
        return lineage, None
    if outcome is Outcome.PASSED:
        return None, _record(lineage, Ending.REPAIRED, now)
    if given_back:
        return replace(lineage, turns_left=lineage.turns_left + 1, turns_taken=lineage.turns_taken - 1), None
    if again is not None and lineage.turns_left > 0:
        return replace(lineage, first=again.first, finding=again.finding), None
    halted, changed = _halted(lineage, Halt.REPAIR_BUDGET_EXHAUSTED, now)
    return changed, halted.record


def ended(lineage: Lineage, ending: Ending, now: float) -> CloseOut | None:
    """The record of a lineage that is to be forgotten; None where it has one, or never granted a turn."""
    return None if lineage.halt is not None or lineage.watch else _record(lineage, ending, now)


def _record(lineage: Lineage, ending: Ending, now: float) -> CloseOut:
    return CloseOut(
        lineage=lineage.id,
        scope=lineage.scope,
        statement_class=lineage.first.statement_class,
        reasons=lineage.finding.reasons,
        turns=lineage.turns_taken,
        ending=ending,
        halt=lineage.halt,
        opened=lineage.opened,
        closed=now,
        tried=lineage.tried,
    )


# As JSON --------------------------------------------------------------------------------------------------


def to_json(lineage: Lineage) -> dict[str, Any]:
    """``lineage`` in values that JSON has."""
    first, finding = lineage.first, lineage.finding
    return {
        "id": lineage.id,
        "scope": lineage.scope,
        "connection": lineage.connection,
        "opened": lineage.opened,
        "until": lineage.until,
        "turns_left": lineage.turns_left,
        "turns_taken": lineage.turns_taken,
        "answered": sorted(lineage.answered),
        "halt": lineage.halt,
        "watch": lineage.watch,
        "tried": None if lineage.tried is None else lineage.tried.as_json(),
        "above": sorted(first.above),
        "first": {
            "statement_class": first.statement_class,
            "classes": sorted(first.classes),
            "runs": first.runs,
            "relations": sorted(first.relations),
            "targets": sorted(first.targets),
            "levels": first.levels,
            "words": () if first.readable else first.words,
            "digest": first.digest,
            "untied": first.untied,
            "limited": first.limited,
            "decided": first.decided,
            "readable": first.readable,
        },
        "finding": {
            "reasons": finding.reasons,
            "position": finding.position,
            "columns": [(fault.name, fault.offered) for fault in finding.columns],
            "relations": [(fault.name, fault.offered) for fault in finding.relations],
            "joinable": finding.joinable,
            "missing": finding.missing,
            "functions": finding.functions,
            "values": finding.values,
        },
    }


def from_json(body: Mapping[str, Any]) -> Lineage:
    """The lineage that ``to_json`` wrote. Raises KeyError, TypeError or ValueError for anything else.

    ``tried`` and ``above`` may be missing, as from what was written before they were kept; whoever does not
    know of them reads past them. So workers of both kinds may share a store while they are exchanged.
    """
    first, finding = body["first"], body["finding"]
    return Lineage(
        id=body["id"],
        scope=body["scope"],
        connection=body["connection"],
        opened=body["opened"],
        until=body["until"],
        turns_left=body["turns_left"],
        turns_taken=body["turns_taken"],
        answered=frozenset(body["answered"]),
        halt=None if body["halt"] is None else Halt(body["halt"]),
        watch=body["watch"],
        tried=_tried(body.get("tried")),
        first=Attempt(
            **{
                **first,
                "statement_class": StatementClass(first["statement_class"]),
                "classes": frozenset(map(StatementClass, first["classes"])),
                "relations": frozenset((name, Use(use)) for name, use in first["relations"]),
                "targets": frozenset(first["targets"]),
                "above": frozenset(body.get("above", ())),
                "levels": thawed(first["levels"]),
                "words": tuple(first["words"]),
            }
        ),
        finding=Finding(
            reasons=tuple(finding["reasons"]),
            position=finding["position"],
            columns=_faults(finding["columns"]),
            relations=_faults(finding["relations"]),
            joinable=tuple(finding["joinable"]),
            missing=tuple(finding["missing"]),
            functions=tuple(finding["functions"]),
            values=finding["values"],
        ),
    )


def _tried(told: Mapping[str, Any] | None) -> Tried | None:
    return None if told is None else Tried(told["error"], told.get("not_tried"))


def _faults(pairs: Iterable[tuple[str, list[str]]]) -> tuple[Fault, ...]:
    return tuple(Fault(name, tuple(offered)) for name, offered in pairs)
