"""The registry of rules: which there are, and which of two violations an agent reads first.

Every rule is one module: its docstring is the rule's page (``pgturnstile rules NAME`` prints it), ``NAME``
its name in policies and rejections, ``DEFAULT`` its level where a policy says nothing, ``SQLSTATE`` what its
rejection carries, ``GOVERNED_BY`` the part of a policy that steers it. A rule yields violations and decides
nothing: every rule sees every statement, and their order changes no decision. A new rule is a module, a line
in ``RULES``, ``STRING_RULES`` or ``PLAN_RULES``, and its tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from policy.facts import Facts, QueryString
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names
from policy.priced import Priced
from policy.rules import (
    access_read_only,
    affected_rows_over_limit,
    class_not_allowed,
    column_not_allowed,
    cost_over_limit,
    delete_without_where,
    dummy_literal,
    function_not_allowed,
    insert_missing_not_null,
    multiple_statements,
    not_understood,
    relation_not_allowed,
    repair_halted,
    result_over_limit,
    sandbox_stale,
    server_file,
    setting_not_allowed,
    side_effect_function,
    statement_too_large,
    tautology_predicate,
    unbounded_join,
    unbounded_select,
    unknown_column,
    unknown_function,
    unknown_relation,
    unparsable,
    unpriceable,
    update_without_where,
    weak_predicate,
)


class RulePage(Protocol):
    """What every rule module has."""

    __doc__: str | None
    NAME: str
    DEFAULT: RuleLevel
    SQLSTATE: str
    GOVERNED_BY: str
    """``rules`` where a policy may set the level; else the section or circumstance that decides."""


class StringRule(RulePage, Protocol):
    """A rule about the query string as a whole."""

    def check_string(self, query: QueryString, policy: Policy) -> Iterator[Violation]: ...


class Rule(RulePage, Protocol):
    """A rule about one statement."""

    def check(self, facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]: ...


class PlanRule(RulePage, Protocol):
    """A rule about the plan PostgreSQL made of one statement (``cost.judge``)."""

    def check_plan(self, priced: Priced, policy: Policy) -> Iterator[Violation]: ...


STRING_RULES: tuple[StringRule, ...] = (unparsable, statement_too_large, multiple_statements, not_understood)

RULES: tuple[Rule, ...] = (
    server_file,
    class_not_allowed,
    not_understood,
    access_read_only,
    relation_not_allowed,
    function_not_allowed,
    column_not_allowed,
    setting_not_allowed,
    side_effect_function,
    unknown_relation,
    unknown_function,
    unknown_column,
    insert_missing_not_null,
    update_without_where,
    delete_without_where,
    tautology_predicate,
    weak_predicate,
    unbounded_join,
    unbounded_select,
)
"""The order says which violation leads a rejection: first what no rewriting cures (files, class, access),
then what the agent may not touch, then what does not exist, then how the statement is made."""

PLAN_RULES: tuple[PlanRule, ...] = (unpriceable, cost_over_limit)

LEDGER_RULES: tuple[RulePage, ...] = (repair_halted, dummy_literal)
"""Rules about a statement and the refusal it answers (``ledger``): whoever asks it words them."""

RUN_RULES: tuple[RulePage, ...] = (result_over_limit, affected_rows_over_limit)
"""Rules about what a statement does as it runs: whoever counts words them."""

CLONE_RULES: tuple[RulePage, ...] = (sandbox_stale,)
"""Rules about a statement and the clone it is tried on: whoever asks that words them."""

_ALL: tuple[RulePage, ...] = (*STRING_RULES, *RULES, *PLAN_RULES, *LEDGER_RULES, *RUN_RULES, *CLONE_RULES)
BY_NAME: Mapping[str, RulePage] = MappingProxyType({rule.NAME: rule for rule in _ALL})
PRECEDENCE: Mapping[str, int] = MappingProxyType({rule.NAME: place for place, rule in enumerate(_ALL)})
"""not-understood has two places and takes the later: a statement's purpose comes before its spelling."""
CONFIGURABLE = frozenset(name for name, rule in BY_NAME.items() if rule.GOVERNED_BY == "rules")
"""The names that ``rules:`` of a policy may give a level."""


def page(name: str) -> str:
    """The page of rule ``name``. Raises KeyError for a name that is no rule's."""
    return (BY_NAME[name].__doc__ or "").strip()
