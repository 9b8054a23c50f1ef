"""Attempts and findings in one line, for the tests of repairs and of the ledger.

The last few hundred are kept: most tests of the ledger send the same statements to each kind of store.
"""

from __future__ import annotations

from functools import lru_cache

from policy.model import Halt
from policy.names import PathNames
from policy.parse import parse
from policy.repair import Attempt, Finding, attempt, compare, finding_of_error
from policy.terms import Parameter

NAMES = PathNames()


@lru_cache(maxsize=1024)
def made(sql: str, *parameters: Parameter) -> Attempt:
    return attempt(parse(sql), NAMES, parameters)


@lru_cache(maxsize=1024)
def refused(
    sql: str,
    at: str | None = None,
    offered: tuple[str, ...] = (),
    *,
    sqlstate: str = "42703",
    parameters: tuple[Parameter, ...] = (),
    at_bind: bool = False,
    column: str | None = None,
) -> tuple[Attempt, Finding]:
    """What the engine refused ``sql`` for: an error that points at the first ``at`` in it."""
    query = parse(sql)
    position = None if at is None else sql.index(at) + 1
    finding = finding_of_error(
        sqlstate, query, NAMES, position, offered=offered, at_bind=at_bind, column=column
    )
    return attempt(query, NAMES, parameters, finding), finding


def found(rule: str, missing: tuple[str, ...] = ()) -> Finding:
    return Finding((rule,), missing=missing)


def judged(first: str, second: str, finding: Finding | None = None) -> Halt | None:
    """``compare`` of two texts, where the finding names nothing of the first."""
    return compare(made(first), finding or Finding(("cost-over-limit",)), made(second))
