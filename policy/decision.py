"""decide(): one query string, one policy, one answer.

Owns the order in which a statement is judged and the sum of what the rules say. Pure: the same arguments give
the same decision. Knows no sockets, no cache and no wording of rejections (``rejection``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from policy.advisor import conjuncts
from policy.catalog_names import CatalogNames
from policy.facts import QueryString
from policy.filtered import Rewritten, rewrite
from policy.model import DANGER, Halt, Mode, Policy, RepairTerms, RuleLevel, StatementClass, Violation
from policy.names import Names, PathNames, SearchPath
from policy.parse import canonical
from policy.rules import (
    BY_NAME,
    PRECEDENCE,
    RULES,
    STRING_RULES,
    RulePage,
    not_understood,
    relation_not_allowed,
)
from policy.rules.naming import display_name
from policy.temporary import alters

MAX_VIOLATIONS: Final = 32
"""Objections that one rule may make to one statement; what more it would say is neither looked for nor told.
A hint may take a look at every name there is: a text of thousands of wrong names must not cost as many."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What, beside the text, a decision depends on. Hashable: it is part of the cache key."""

    agent: str
    names: Names


@dataclass(frozen=True, slots=True)
class RuleFailure:
    """A rule that raised instead of judging. The statement was refused for it; ``error`` is for the log."""

    rule: str
    error: Exception


class Basis(NamedTuple):
    """What names were looked up in: the snapshot (None: by the paths alone) and every search_path that might
    be in force. ``unsettled`` where the session had changed the schema in a transaction that was open."""

    catalog_sha256: str | None = None
    paths: tuple[SearchPath, ...] = ()
    unsettled: bool = False


NO_BASIS: Final = Basis()
"""Of what takes no names."""


class RuleAnswer(NamedTuple):
    """What one rule says of one statement (``statement`` is its index), or of the string (None).

    Nothing in ``violations``: it does not object, or its ``level`` is off.
    """

    rule: str
    level: RuleLevel
    statement: int | None
    violations: tuple[Violation, ...] = ()
    failure: RuleFailure | None = None


@dataclass(frozen=True, slots=True)
class Allow:
    """The statement may go on: the very bytes that were inspected, or, where it reads filtered catalogs,
    ``rewritten`` in their place. ``warnings`` become NOTICEs.

    ``observed`` holds what an enforcing policy would have refused (``mode: observe``). ``failures`` are rules
    that raised while the policy only observes.
    """

    query: QueryString
    statement_class: StatementClass | None
    """None for an empty query string."""
    warnings: tuple[Violation, ...] = ()
    observed: tuple[Violation, ...] = ()
    failures: tuple[RuleFailure, ...] = ()
    basis: Basis = NO_BASIS
    rewritten: Rewritten | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """Refused. ``violations`` are all of them, the deciding one first; ``halt`` is that one's.

    ``failures`` are rules that raised: whoever calls ``decide`` logs them.
    """

    query: QueryString
    statement_class: StatementClass
    violations: tuple[Violation, ...]
    repair: RepairTerms
    halt: Halt | None
    failures: tuple[RuleFailure, ...] = ()
    cost: Mapping[str, Any] | None = None
    """The price that was too high, as the rejection's Detail tells it."""
    basis: Basis = NO_BASIS


Decision = Allow | Reject


def decide(policy: Policy, situation: Situation, query: QueryString) -> Decision:
    """Judge ``query`` under ``policy``: every rule on every statement, any objection refuses, all are told.

    Never raises for what a rule does: a rule that fails is an objection naming it, and a ``RuleFailure``.
    """
    if query.failure is None and not query.statements:
        return Allow(query, None)
    violations, failures = _judge(policy, situation, query)
    rejecting = tuple(v for v in violations if v.level is RuleLevel.REJECT)
    warnings = tuple(v for v in violations if v.level is RuleLevel.WARN)
    cls, basis = statement_class(query), _basis(situation.names)
    if not rejecting:
        allowed = Allow(query, cls, warnings, failures=failures, basis=basis)
        return _filtered(policy, situation.names, query, allowed)
    if policy.mode is Mode.OBSERVE:
        return Allow(query, cls, warnings, rejecting, failures, basis)
    return replace(refuse(policy, situation.names, query, rejecting), failures=failures)


def _filtered(policy: Policy, names: Names, query: QueryString, allowed: Allow) -> Decision:
    """``allowed`` with what is to be forwarded, or the refusal of what cannot be filtered."""
    try:
        found = rewrite(query, names, policy)
    except Exception as error:
        refused = refuse(policy, names, query, (_failed(relation_not_allowed.NAME),))
        return replace(refused, failures=(*allowed.failures, RuleFailure(relation_not_allowed.NAME, error)))
    if isinstance(found, Violation):
        return replace(refuse(policy, names, query, (found,)), failures=allowed.failures)
    return allowed if found is None else replace(allowed, rewritten=found)


def refuse(
    policy: Policy,
    names: Names,
    query: QueryString,
    violations: tuple[Violation, ...],
    cost: Mapping[str, Any] | None = None,
) -> Reject:
    """The refusal that ``violations`` make, the deciding one first; ``cost`` is the plan's price if asked."""
    cls = statement_class(query)
    repair = _repair_terms(policy, names, query, cls, violations)
    halt = None if repair.allowed else violations[0].halt
    return Reject(query, cls, violations, repair, halt, cost=cost, basis=_basis(names))


def answers(policy: Policy, situation: Situation, query: QueryString) -> Iterator[RuleAnswer]:
    """What each rule says of ``query``: those about the string, then for each statement those about one.

    This is what ``decide`` sums up; nothing else judges.
    """

    def ask(rule: RulePage, statement: int | None, check: Callable[[], Iterable[Violation]]) -> RuleAnswer:
        level = policy.level(rule.NAME, rule.DEFAULT)
        if level is RuleLevel.OFF:
            return RuleAnswer(rule.NAME, level, statement)
        try:
            found = tuple(
                replace(v, level=level) if v.level is not level else v
                for v in islice(check(), MAX_VIOLATIONS)
            )
        except Exception as error:
            failure = RuleFailure(rule.NAME, error)
            return RuleAnswer(rule.NAME, level, statement, (_failed(rule.NAME),), failure)
        return RuleAnswer(rule.NAME, level, statement, found)

    for string_rule in STRING_RULES:
        yield ask(string_rule, None, partial(string_rule.check_string, query, policy))
    names = situation.names
    for index, facts in enumerate(query.statements):
        for rule in RULES:
            yield ask(rule, index, partial(rule.check, facts, names, policy))
        if isinstance(names, CatalogNames) and not names.unsettled and alters(facts):
            names = names.after_change()


def _judge(
    policy: Policy, situation: Situation, query: QueryString
) -> tuple[list[Violation], tuple[RuleFailure, ...]]:
    """Every objection, in the order of ``PRECEDENCE`` and within one rule in the order of the text."""
    found: list[Violation] = []
    failures: list[RuleFailure] = []
    for answer in answers(policy, situation, query):
        found.extend(answer.violations)
        if answer.failure:
            failures.append(answer.failure)
    found.sort(key=lambda violation: PRECEDENCE[violation.rule])
    return found, tuple(failures)


def _failed(rule: str) -> Violation:
    return Violation(
        rule=not_understood.NAME,
        message=f"An internal failure of rule {rule} kept the statement from being judged",
        hint="Report this to whoever runs the gate.",
        sqlstate=BY_NAME[not_understood.NAME].SQLSTATE,
    )


def _basis(names: Names) -> Basis:
    if isinstance(names, CatalogNames):
        return Basis(names.catalog.sha256, names.paths, names.unsettled)
    return Basis(paths=names.paths) if isinstance(names, PathNames) else NO_BASIS


def statement_class(query: QueryString) -> StatementClass:
    """The most dangerous class of the string; ``other`` for text that could not be read."""
    if query.failure is not None:
        return StatementClass.OTHER
    return max((facts.statement_class for facts in query.statements), key=DANGER.__getitem__)


def _repair_terms(
    policy: Policy,
    names: Names,
    query: QueryString,
    statement_class: StatementClass,
    rejecting: tuple[Violation, ...],
) -> RepairTerms:
    """One repair, where the class and every objection leave room for it, and what it has to keep."""
    allowed = (
        policy.repair.turns >= 1
        and (query.failure is not None or policy.row(statement_class).repair_once)
        and all(violation.repairable for violation in rejecting)
    )
    if not allowed:
        return RepairTerms()
    relations = dict.fromkeys(
        str(display_name(ref, names)) for facts in query.statements for ref in facts.relations
    )
    predicates = dict.fromkeys(p for facts in query.statements for p in _predicates(facts.sql))
    return RepairTerms(True, policy.repair.turns, tuple(relations), tuple(predicates))


def _predicates(sql: str) -> Iterator[str]:
    text = canonical(sql)
    if text is not None:
        yield from conjuncts(text)
