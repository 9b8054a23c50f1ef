"""A decision as the agent reads it: SQLSTATE, message, Detail, hint.

Owns all wording that is common to rejections and the layout of Detail's JSON (contract, section 4). What is
particular to a rule is in its violations. Knows no wire format: ``proxy`` puts the fields into an
ErrorResponse or NoticeResponse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, TypeVar

from policy.decision import Reject
from policy.inheritance import place_of
from policy.model import Halt, Policy, RepairTerms, Violation
from policy.rules import BY_NAME, column_not_allowed, relation_not_allowed
from policy.settings import reaches_schema

DETAIL_BYTES = 4096
"""Detail stays below this, in UTF-8."""

_MESSAGE_CHARACTERS = 600
_HINT_CHARACTERS = 1200
_TEXT_CHARACTERS = 300
_LEAST_CHARACTERS = 32
"""Longest text within Detail, and how far it gives way where Detail would grow too long."""
_WARNING = "01000"
_HIDDEN = "(hidden)"
"""What stands for a hidden name that the agent has not written in clear."""

T = TypeVar("T")

DO_NOT_RETRY = "Do not retry."
DO_NOT_RETRY_AS_IS = "Do not retry this statement as it is."


@dataclass(frozen=True, slots=True)
class Rejection:
    """The fields of one ErrorResponse, less its severity. ``position`` counts characters from 1."""

    sqlstate: str
    message: str
    detail: str
    hint: str
    position: int | None
    schema: str | None
    table: str | None
    column: str | None
    file: str
    line: int
    routine: str


@dataclass(frozen=True, slots=True)
class Notice:
    """The fields of one NoticeResponse of severity NOTICE: the statement runs, and a rule has this to say."""

    sqlstate: str
    message: str
    hint: str
    position: int | None
    file: str
    line: int
    routine: str


def reject(decision: Reject, rejection_id: str, policy: Policy) -> Rejection:
    """What the agent is sent. ``rejection_id`` names this rejection in the audit as well."""
    decision = _in_the_agents_words(decision, policy)
    first = decision.violations[0]
    file, line = _place(first, policy)
    hint = _cut(first.hint, _HINT_CHARACTERS)
    if first.routine is None:
        hint = f"{hint} {_retry(decision.repair, decision.halt)}"
    return Rejection(
        sqlstate=first.sqlstate or BY_NAME[first.rule].SQLSTATE,
        message=_cut(_message(first, decision), _MESSAGE_CHARACTERS),
        detail=_detail(decision, rejection_id),
        hint=hint,
        position=first.position,
        schema=first.schema,
        table=first.table,
        column=first.column,
        file=file,
        line=line,
        routine=first.routine or first.rule,
    )


def notice(violation: Violation, policy: Policy) -> Notice:
    """A violation of level warn, as the agent reads it beside its answer."""
    file, line = _place(violation, policy)
    return Notice(
        sqlstate=_WARNING,
        message=_cut(_sentence(violation.message), _MESSAGE_CHARACTERS),
        hint=_cut(violation.hint, _HINT_CHARACTERS),
        position=violation.position,
        file=file,
        line=line,
        routine=violation.rule,
    )


def _in_the_agents_words(decision: Reject, policy: Policy) -> Reject:
    """``decision`` without the hidden names that its text holds in escapes only (``U&"api\\005fkeys"``): what
    they decode to is not confirmed in clear."""
    unwritten = _unwritten(decision, policy)
    if not unwritten:
        return decision
    word = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(unwritten)))

    def masked(text: str) -> str:
        return word.sub(_HIDDEN, text)

    def maybe_masked(text: str | None) -> str | None:
        return None if text is None else masked(text)

    repair = decision.repair
    return replace(
        decision,
        violations=tuple(
            replace(
                each,
                message=masked(each.message),
                hint=masked(each.hint),
                object=maybe_masked(each.object),
                schema=None if each.schema in unwritten else each.schema,
                table=None if each.table in unwritten else each.table,
                column=None if each.column in unwritten else each.column,
            )
            for each in decision.violations
        ),
        repair=replace(
            repair,
            keep_relations=tuple(map(masked, repair.keep_relations)),
            keep_predicates=tuple(map(masked, repair.keep_predicates)),
        ),
    )


def _unwritten(decision: Reject, policy: Policy) -> frozenset[str]:
    text = decision.query.sql.casefold()
    hidden: set[str | None] = set()
    for violation in decision.violations:
        if violation.rule == column_not_allowed.NAME:
            hidden.add(violation.column)
        elif violation.rule == relation_not_allowed.NAME:
            hidden.add(violation.table)
            if violation.schema is not None and not reaches_schema(violation.schema, policy):
                hidden.add(violation.schema)
    return frozenset(name for name in hidden if name and name.casefold() not in text)


def _place(violation: Violation, policy: Policy) -> tuple[str, int]:
    """The name of the policy file, which may be a base, and the line of it that decided."""
    source, line = place_of(violation.line, policy.files or (policy.source,))
    return PurePath(source).name, line


def _message(first: Violation, decision: Reject) -> str:
    """What and why, then the next step: some clients pass on nothing but this."""
    if first.routine is not None:
        return first.message
    next_step = DO_NOT_RETRY if decision.halt is not None else _first_sentence(first.hint)
    return f"{_sentence(first.message)} {next_step}"


def _retry(repair: RepairTerms, halt: Halt | None) -> str:
    if repair.allowed:
        keep = (
            "; keep its relations and predicates" if repair.keep_relations or repair.keep_predicates else ""
        )
        if repair.turns_left > 1:
            return f"Send a corrected statement{keep}: there are {repair.turns_left} attempts."
        return f"Send one corrected statement{keep}: there is no second attempt."
    return DO_NOT_RETRY if halt is not None else DO_NOT_RETRY_AS_IS


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _first_sentence(text: str) -> str:
    head, dot, _ = text.partition(". ")
    return head + "." if dot else text


def _detail(decision: Reject, rejection_id: str) -> str:
    """One line of JSON below ``DETAIL_BYTES``. What is too long gives way evenly, and lists say by how
    much."""
    share = 1.0
    while True:
        text = _detail_of(decision, rejection_id, share)
        if len(text.encode()) < DETAIL_BYTES:
            return text
        share /= 2


def _detail_of(decision: Reject, rejection_id: str, share: float) -> str:
    repair = decision.repair
    left_out: dict[str, int] = {}

    def listed(name: str, items: Sequence[T]) -> Sequence[T]:
        shown = items[: max(1, int(len(items) * share))]
        if len(shown) < len(items):
            left_out[name] = len(items) - len(shown)
        return shown

    characters = max(_LEAST_CHARACTERS, int(_TEXT_CHARACTERS * share))
    keep = {
        "relations": [_cut(r, characters) for r in listed("relations", repair.keep_relations)],
        "predicates": [_cut(p, characters) for p in listed("predicates", repair.keep_predicates)],
    }
    detail: dict[str, Any] = {
        "v": 1,
        "id": rejection_id,
        "decision": "reject",
        "class": decision.statement_class,
        "rule": decision.violations[0].rule,
        "violations": [_violation(v, characters) for v in listed("violations", decision.violations)],
        "repair": {
            "allowed": repair.allowed,
            "turns_left": repair.turns_left,
            "keep": keep if repair.allowed else None,
        },
        "halt": decision.halt,
        "cost": None
        if decision.cost is None
        else {
            **{key: value for key, value in decision.cost.items() if key != "worst"},
            "locks": listed("locks", decision.cost.get("locks", ())),
        },
    }
    if left_out:
        detail["left_out"] = left_out
    return json.dumps(detail, ensure_ascii=False, separators=(",", ":"))


def _violation(violation: Violation, characters: int) -> dict[str, Any]:
    return {
        "rule": violation.rule,
        "message": _cut(violation.message, characters),
        "object": _maybe_cut(violation.object, characters),
        "position": violation.position,
        "suggestion": _maybe_cut(violation.suggestion, characters),
    }


def _maybe_cut(text: str | None, characters: int) -> str | None:
    return None if text is None else _cut(text, characters)


def _cut(text: str, characters: int) -> str:
    """``text`` on one line, at most ``characters`` long."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"
