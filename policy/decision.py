"""decide(): one query string, one policy, one answer.

Owns the order in which a statement is judged and the sum of what the rules say. Pure: the same arguments give
the same decision. Knows no sockets, no cache and no wording of rejections (``rejection``).
"""

from __future__ import annotations

from dataclasses import dataclass

from policy.facts import QueryString
from policy.model import Halt, RepairTerms, StatementClass, Violation
from policy.names import Names


@dataclass(frozen=True, slots=True)
class Situation:
    """What, beside the text, a decision depends on. Hashable: it is part of the cache key.

    ``extended`` is True for a Parse message, which PostgreSQL itself limits to one statement.
    """

    agent: str
    names: Names
    extended: bool = False


@dataclass(frozen=True, slots=True)
class Allow:
    """The very bytes that were inspected may go on. ``warnings`` become NOTICEs.

    ``observed`` holds what an enforcing policy would have refused (``mode: observe``).
    """

    query: QueryString
    statement_class: StatementClass | None
    """None for an empty query string."""
    warnings: tuple[Violation, ...] = ()
    observed: tuple[Violation, ...] = ()


@dataclass(frozen=True, slots=True)
class Reject:
    """Refused. ``violations`` are all of them, the deciding one first; ``halt`` is that one's."""

    query: QueryString
    statement_class: StatementClass
    violations: tuple[Violation, ...]
    repair: RepairTerms
    halt: Halt | None


Decision = Allow | Reject
