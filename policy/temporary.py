"""Whether an agent may have made what no catalog snapshot shows.

Owns two questions: whether a session under a policy may hold temporary relations, and whether a statement may
change the schema. Where neither is so, a name that the snapshot lacks is certain not to exist. Knows no
session.
"""

from __future__ import annotations

from typing import Final

from policy.catalog import Catalog
from policy.catalog_values import Function, Volatility
from policy.facts import Facts
from policy.model import Access, Mode, Policy, StatementClass, Verdict
from policy.names import QualifiedName
from policy.rules.function_not_allowed import is_function_allowed

_MAKING: Final = frozenset({StatementClass.DDL, StatementClass.DO, StatementClass.CALL, StatementClass.OTHER})
"""Classes of statements that may change the schema."""


def alters(facts: Facts) -> bool:
    """Whether running the statement may change the schema that later names are looked up in."""
    return not facts.classes.isdisjoint(_MAKING)


def may_hold_temporary(policy: Policy, catalog: Catalog) -> bool:
    """Whether a session under ``policy`` may hold temporary relations, or what else is not in ``catalog``.

    A read-only transaction makes none, and only a VOLATILE function can (ClassifyUtilityCommandAsReadOnly in
    utility.c; _SPI_execute_plan in spi.c).
    """
    if policy.mode is Mode.OBSERVE:
        return True
    if policy.access is Access.READ_ONLY:
        return False
    if any(policy.row(made_by).decide is Verdict.ALLOW for made_by in _MAKING):
        return True
    return any(_is_suspect(function, policy, catalog) for function in catalog.content.functions)


def _is_suspect(function: Function, policy: Policy, catalog: Catalog) -> bool:
    name: QualifiedName = function.qualified
    return (
        function.volatility is Volatility.VOLATILE
        and not name.schema.startswith("pg_")
        and is_function_allowed(name, catalog, policy)
    )
