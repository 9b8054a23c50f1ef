"""The narrowest policy that allows what was recorded.

Owns the way there: from a policy that allows nothing, each recorded statement is judged, and what refuses it
is cured by the least that cures it, until nothing is refused that can be allowed at all. The gate that judges
is the one that will: a statement passes under the result because ``decide`` says so here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from policy.builtin import PG_CATALOG, SYSTEM_SCHEMAS
from policy.catalog import Catalog
from policy.check import names_for
from policy.decision import Reject, Situation, decide
from policy.facts import QueryString
from policy.model import (
    Access,
    Catalogs,
    ClassRow,
    FunctionRules,
    Multiple,
    Pattern,
    Policy,
    RuleLevel,
    StatementClass,
    Verdict,
    Violation,
)
from policy.parse import parse
from policy.rules import CONFIGURABLE

_ROUNDS: Final = 24
"""Cures that one statement may take; each removes an objection, and one may uncover another."""


@dataclass(frozen=True, slots=True)
class Narrowest:
    """The policy, and how often what it opens was used: classes, relations and functions by name.

    ``refused`` holds what no policy allows, by rule, with one example each.
    """

    policy: Policy
    statements: int
    classes: Counter[StatementClass] = field(default_factory=Counter)
    relations: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)
    settings: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    refused: Mapping[str, tuple[int, str]] = field(default_factory=dict)


def narrowest(recorded: Mapping[str, int], name: str, catalog: Catalog | None = None) -> Narrowest:
    """The policy for ``recorded``: texts as agents sent them, with how often each was sent.

    Names are looked up in ``catalog``, or taken as written, unqualified ones in schema ``public``.
    """
    policy = Policy(name, "", "", access=Access.READ_ONLY, functions=FunctionRules(builtin_safe=True))
    found = Narrowest(policy, sum(recorded.values()))
    refused: dict[str, tuple[int, str]] = {}
    for sql, count in recorded.items():
        query = parse(sql)
        policy, rule = _opened(policy, query, catalog)
        if rule is not None:
            total, example = refused.get(rule, (0, sql))
            refused[rule] = (total + count, example)
    # Counted under what came out: what one statement opened another may have used.
    for sql, count in recorded.items():
        _count(found, parse(sql), policy, catalog, count)
    return replace(found, policy=policy, refused=refused)


def _opened(policy: Policy, query: QueryString, catalog: Catalog | None) -> tuple[Policy, str | None]:
    """``policy`` with what ``query`` needs; or as it was, and the rule that nothing cures."""
    opened = policy
    for _ in range(_ROUNDS):
        decision = decide(opened, Situation("", names_for(opened, catalog)), query)
        if not isinstance(decision, Reject):
            return opened, None
        violation = decision.violations[0]
        cure = _CURES.get(violation.rule, _level if violation.rule in CONFIGURABLE else None)
        cured = None if cure is None else cure(opened, violation, query)
        if cured is None or cured == opened:
            return policy, violation.rule
        opened = cured
    return policy, violation.rule


# --- cures ---


def _class(policy: Policy, _violation: Violation, query: QueryString) -> Policy:
    needed = {cls for facts in query.statements for cls in facts.classes}
    rows = {cls: ClassRow(Verdict.ALLOW) for cls in StatementClass if cls in needed}
    return replace(policy, statements={**policy.statements, **rows})


def _access(policy: Policy, _violation: Violation, _query: QueryString) -> Policy:
    return replace(policy, access=Access.READ_WRITE)


def _relation(policy: Policy, violation: Violation, _query: QueryString) -> Policy | None:
    """By its name; a name that may be PostgreSQL's own as well takes the catalogs, too."""
    if violation.schema is None or violation.table is None:
        return None
    rules = policy.relations
    named = Pattern(violation.schema, violation.table)
    if rules.catalogs is Catalogs.OFF and (violation.schema in SYSTEM_SCHEMAS or named in rules.allow):
        return replace(policy, relations=replace(rules, catalogs=Catalogs.FILTERED))
    if named in rules.allow:
        named = replace(named, schema=PG_CATALOG)
    if named in rules.allow:
        return None
    return replace(policy, relations=replace(rules, allow=(*rules.allow, named)))


def _function(policy: Policy, violation: Violation, _query: QueryString) -> Policy | None:
    schema, dot, name = (violation.object or "").partition(".")
    if not dot:
        return None
    rules = policy.functions
    return replace(policy, functions=replace(rules, allow=(*rules.allow, Pattern(schema, name))))


def _setting(policy: Policy, violation: Violation, _query: QueryString) -> Policy | None:
    if violation.object is None:
        return None
    rules = policy.settings
    return replace(policy, settings=replace(rules, allow=rules.allow | {violation.object}))


def _multiple(policy: Policy, _violation: Violation, _query: QueryString) -> Policy:
    return replace(policy, multiple=Multiple.JUDGED)


def _level(policy: Policy, violation: Violation, _query: QueryString) -> Policy:
    return replace(policy, rules={**policy.rules, violation.rule: RuleLevel.WARN})


_CURES: Final[Mapping[str, Callable[[Policy, Violation, QueryString], Policy | None]]] = {
    "class-not-allowed": _class,
    "access-read-only": _access,
    "relation-not-allowed": _relation,
    "function-not-allowed": _function,
    "setting-not-allowed": _setting,
    "multiple-statements": _multiple,
}
"""What cures an objection of a rule, where anything does. None from it: nothing does here."""


# --- counts ---


def _count(found: Narrowest, query: QueryString, policy: Policy, catalog: Catalog | None, count: int) -> None:
    names = names_for(policy, catalog)
    decision = decide(policy, Situation("", names), query)
    if isinstance(decision, Reject):
        return
    for warning in {violation.rule for violation in decision.warnings}:
        found.warned[warning] += count
    for facts in query.statements:
        for cls in facts.classes:
            found.classes[cls] += count
        relations = {str(name) for ref in facts.relations for name in names.relations(ref)}
        called = {ref.name for ref in facts.functions}
        _add(found.relations, relations & set(map(str, policy.relations.allow)), count)
        _add(found.functions, {str(each) for each in policy.functions.allow if each.name in called}, count)
        _add(found.settings, {ref.name for ref in facts.settings if ref.name} & policy.settings.allow, count)


def _add(counter: Counter[str], names: Iterable[str], count: int) -> None:
    for name in names:
        counter[name] += count
