"""Statements that do nothing but undo what their own session did.

Connection pools send them whenever a connection comes back: asyncpg's pool sends ``SELECT
pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;`` as one string, others ``DISCARD ALL``. They give
up locks, cursors, channels, prepared statements and settings of the session and touch nothing else, so they
need no row of their own in ``statements:``. Shared by the rules on classes, functions and multiple
statements; judges nothing itself.
"""

from __future__ import annotations

from policy.facts import Facts, FunctionRef, SessionAction, SettingHow
from policy.model import StatementClass

UNLOCKS = frozenset({"pg_advisory_unlock_all"})

_UNDOING = frozenset(
    {
        SessionAction.CLOSE,
        SessionAction.CLOSE_ALL,
        SessionAction.UNLISTEN,
        SessionAction.DEALLOCATE,
        SessionAction.DEALLOCATE_ALL,
        SessionAction.DISCARD,
        SessionAction.DISCARD_ALL,
    }
)
_SESSION_CLASSES = frozenset(
    {StatementClass.CURSOR, StatementClass.NOTIFY, StatementClass.PREPARE, StatementClass.SET}
)


def only_undoes(facts: Facts) -> bool:
    """True when the whole statement only gives up what its session holds."""
    if facts.not_understood is not None:
        return False
    if facts.classes == {StatementClass.SELECT}:
        return _only_unlocks(facts)
    if not facts.classes <= _SESSION_CLASSES or facts.functions or facts.relations or facts.queries:
        return False
    acts = [ref.action in _UNDOING for ref in facts.session]
    acts += [ref.how is SettingHow.RESET_ALL for ref in facts.settings]
    return bool(acts) and all(acts)


def unlocks(ref: FunctionRef) -> bool:
    """True for a call that only releases advisory locks of the session."""
    return ref.name in UNLOCKS and ref.schema in (None, "pg_catalog") and ref.arguments == 0


def _only_unlocks(facts: Facts) -> bool:
    return (
        bool(facts.functions)
        and all(unlocks(ref) for ref in facts.functions)
        and not (facts.relations or facts.columns or facts.operators or facts.types or facts.ctes)
        and len(facts.queries) == 1
    )
