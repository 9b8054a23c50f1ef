"""Whether running a statement runs code that its text does not show.

Such code may do what the gate keeps account of: a function of the database's own may set the search_path for
those who call it. Owns the question alone: who asks the server afterwards is the session's business. Pure.

Counted are DO, CALL, and VOLATILE functions in a language that runs SQL, called as such or by an operator, a
cast or a view. Left out are functions that promise to change nothing, triggers, and what an agent could only
have made under a policy that lets it run code anyway.
"""

from __future__ import annotations

from typing import Final

from policy import builtin
from policy.calls import Call, find_calls
from policy.catalog_names import CatalogNames
from policy.catalog_values import Function, Volatility
from policy.decision import Allow, Decision
from policy.facts import Facts
from policy.model import StatementClass
from policy.names import Names

_OPAQUE: Final = frozenset({StatementClass.DO, StatementClass.CALL})
_COMPILED: Final = frozenset({"internal", "c"})
"""Languages of functions that set nothing for their caller, of those that are known."""


def hides(decision: Decision, names: Names) -> bool:
    """Whether what ``decision`` lets run may change settings that its text does not name.

    Where that cannot be told it may, as under a policy that only observes, which lets pass what its rules
    fail on.
    """
    if not isinstance(decision, Allow):
        return False
    try:
        return any(runs_hidden_code(facts, names) for facts in decision.query.statements)
    except Exception:
        return True


def runs_hidden_code(facts: Facts, names: Names) -> bool:
    """Whether ``facts``'s statement may change settings that its text does not name."""
    if not facts.classes.isdisjoint(_OPAQUE):
        return True
    if not facts.runs or not isinstance(names, CatalogNames):
        return False
    return any(_is_hidden(call, names) for call in names.shared(facts, find_calls).calls)


def _is_hidden(call: Call, names: CatalogNames) -> bool:
    if builtin.is_builtin(call.name.name, call.name.schema):
        return False
    if names.unsettled:
        return True
    known = names.catalog.functions(*call.name) if call.overload is None else (call.overload,)
    return any(map(_may_set, known))


def _may_set(function: Function) -> bool:
    return function.volatility is Volatility.VOLATILE and function.language not in _COMPILED
