"""multiple-statements: more than one statement in one query string.

What it refuses
    A string of several statements, whole; nothing of it runs. Under ``multiple: driver_setup`` (the default)
    strings pass on to the other rules when every part is a SET or SHOW, which drivers send as they connect,
    or only undoes the session's own doing (CLOSE ALL, UNLISTEN *, DEALLOCATE ALL, RESET ALL, ``SELECT
    pg_advisory_unlock_all()``), which connection pools send as they take a connection back.
Why
    The second statement is the oldest trick; and the first failure in a string leaves the agent guessing what
    of it ran. One statement has one answer.
Refused
    ``SELECT 1; DELETE FROM orders``
Allowed
    ``SET application_name = 'x'; SHOW timezone`` · ``SELECT 5;`` · ``SELECT 'a; b'``
Settings
    ``multiple: driver_setup | never | judged``. ``judged`` lets every other rule judge every statement and
    refuses the string whole if one is refused; a change of search_path must then stand alone, since what
    follows it would be read under names that were not there when it was judged, and so must a write where
    ``limits`` counts rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts, QueryString, SessionAction
from policy.model import Halt, Multiple, Policy, RuleLevel, StatementClass, Violation
from policy.rules.session_undo import only_undoes

NAME = "multiple-statements"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "multiple"

_SETUP = frozenset({StatementClass.SET, StatementClass.SHOW})
_HINT = "Send one statement at a time, each in a message of its own."


def check_string(query: QueryString, policy: Policy) -> Iterator[Violation]:
    statements = query.statements
    if len(statements) < 2:
        return
    second = statements[1].start
    if policy.multiple is Multiple.JUDGED:
        yield from _moving_names(statements, policy)
        yield from _uncounted(statements, policy)
    elif policy.multiple is Multiple.NEVER or not all(_is_setup(part) for part in statements):
        yield _violation(f"The string holds {len(statements)} statements; none of them ran", second, policy)


def _is_setup(facts: Facts) -> bool:
    return facts.classes <= _SETUP or only_undoes(facts)


def _moving_names(statements: tuple[Facts, ...], policy: Policy) -> Iterator[Violation]:
    if all(_is_setup(part) for part in statements):
        return
    for part in statements:
        if any(ref.name in ("search_path", None) for ref in part.settings):
            yield _violation("search_path changes within a string of several statements", part.start, policy)


def _uncounted(statements: tuple[Facts, ...], policy: Policy) -> Iterator[Violation]:
    """What a string wrote is committed with its end, before its rows could be counted."""
    limits = policy.limits
    if limits.affected_rows is limits.result_rows is limits.result_bytes is None:
        return
    for part in statements:
        if part.writes or any(ref.action is SessionAction.EXECUTE for ref in part.session):
            yield _violation(
                "A write stands in a string of several statements, where its rows are not counted",
                part.start,
                policy,
            )


def _violation(message: str, position: int, policy: Policy) -> Violation:
    return Violation(
        rule=NAME,
        message=message,
        hint=_HINT,
        position=position,
        halt=Halt.CLASS_NOT_REPAIRABLE,
        line=policy.lines.get(GOVERNED_BY, 0),
    )
