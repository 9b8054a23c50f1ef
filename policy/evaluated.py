"""What asking for the price of SQL EXECUTE would run.

EXPLAIN plans a statement and runs none of it but the arguments of EXECUTE, which it evaluates to plan for
their values (``EvaluateParams`` in src/backend/commands/prepare.c, for ``EXPLAIN EXECUTE`` and for
``EXPLAIN CREATE TABLE … AS EXECUTE``). What is IMMUTABLE or STABLE in them planning may run anywhere; a
VOLATILE function would run once for the question and once more for the statement, the first time before it
is decided that it may. Owns the search for one. Pure; what follows from it is ``cost``'s.
"""

from __future__ import annotations

from typing import NamedTuple

from policy import builtin
from policy.calls import Call, find_calls
from policy.catalog_names import CatalogNames
from policy.catalog_values import Volatility
from policy.facts import Facts
from policy.names import Names, QualifiedName


class Volatile(NamedTuple):
    """A function that may give another answer, or do another thing, each time. ``position`` in characters of
    the query string as sent, from 1; None where the statement does not write the call."""

    name: str
    position: int | None


def volatile_argument(facts: Facts, names: Names) -> Volatile | None:
    """A volatile function that evaluating the arguments of ``facts``'s EXECUTE may call; None for none.

    Sub-selects, which PostgreSQL takes no more than aggregates there, leave calls the only thing to look for:
    those written, and with a catalog those behind operators and casts. Without one, or where this session is
    changing the schema, every function outside pg_catalog is taken for a volatile one.
    """
    if isinstance(names, CatalogNames):
        calls = find_calls(facts, names).calls
        return next((Volatile(c.name.name, c.position) for c in calls if _may_vary(c, names)), None)
    return next(
        (
            Volatile(ref.name, ref.position)
            for ref in facts.functions
            if _varies(QualifiedName(ref.schema or builtin.PG_CATALOG, ref.name))
        ),
        None,
    )


def _may_vary(call: Call, names: CatalogNames) -> bool:
    if call.overload is not None:
        return names.unsettled or call.overload.volatility is Volatility.VOLATILE
    known = () if names.unsettled else names.catalog.functions(*call.name)
    if known and not builtin.is_builtin(call.name.name, call.name.schema):
        return any(function.volatility is Volatility.VOLATILE for function in known)
    return _varies(call.name)


def _varies(name: QualifiedName) -> bool:
    """By the server's own list, in which nobody else's function stands."""
    return builtin.volatility(name.name, name.schema) is builtin.Volatility.VOLATILE
