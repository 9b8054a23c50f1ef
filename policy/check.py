"""The gate without a connection: a file of SQL in, one decision a statement out.

Owns how a file is cut into the statements an agent would send one by one, and how a decision is written down
for a program. The decisions are those of ``decide`` and ``settle``, the wording that of ``reject``: nothing
is judged here. Knows no database: names are looked up in the snapshot given, or else taken as the text gives
them, and prices are asked of the plans given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, SessionNames
from policy.decision import Allow, Decision, Reject, RuleFailure, Situation, decide
from policy.facts import QueryString
from policy.model import Policy, Violation
from policy.names import PathNames
from policy.parse import DEFAULT_MAX_BYTES, parse
from policy.price import Plans, settle
from policy.rejection import Rejection, reject
from policy.temporary import may_hold_temporary

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Checked:
    """One statement and what the gate says of it. ``line`` is where it begins in ``source``, from 1.

    Positions in ``decision`` and ``rejection`` count within ``sql``. ``cost`` and ``unpriced`` are as
    ``price.Settled`` has them.
    """

    source: str
    line: int
    sql: str
    decision: Decision
    rejection: Rejection | None
    cost: Mapping[str, Any] | None = None
    unpriced: str | None = None
    failures: tuple[RuleFailure, ...] = ()
    """Rules that raised."""

    @property
    def rejected(self) -> bool:
        return self.rejection is not None

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All objections, the deciding one first: those of a rejection, what ``mode: observe`` let through,
        and warnings.
        """
        if isinstance(self.decision, Allow):
            return (*self.decision.observed, *self.decision.warnings)
        return self.decision.violations

    def as_json(self) -> dict[str, Any]:
        """The object that ``check --format json`` prints: README, "In a pipeline"."""
        answer: dict[str, Any] = {
            "source": self.source,
            "line": self.line,
            "sql": self.sql,
            "decision": "reject" if self.rejected else "allow",
            "class": self.decision.statement_class,
            "violations": [as_violation(violation) for violation in self.violations],
            "cost": self.cost,
            "repair": None,
        }
        if self.unpriced is not None:
            answer["unpriced"] = self.unpriced
        if self.rejection is not None and isinstance(self.decision, Reject):
            answer["repair"] = json.loads(self.rejection.detail)["repair"]
            answer["rule"] = self.rejection.routine
            answer["halt"] = self.decision.halt
            answer["sqlstate"] = self.rejection.sqlstate
            answer["message"] = self.rejection.message
            answer["hint"] = self.rejection.hint
        return answer


def check(
    policy: Policy,
    text: bytes,
    *,
    source: str,
    agent: str = "",
    statement_bytes: int = DEFAULT_MAX_BYTES,
    catalog: Catalog | None = None,
) -> Iterator[Checked]:
    """Judge every statement of ``text`` under ``policy`` as if it came alone.

    ``source`` names the text in the answers, ``agent`` is whom the statements are judged for, and
    ``statement_bytes`` the size above which one is refused. Unqualified names are looked up in ``catalog``
    along the search_path it was read with; without one they are taken for schema ``public``'s. Text that does
    not parse, or cannot be read as UTF-8, has no statements to tell apart and is one rejected statement. Text
    without statements gives none.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    situation = Situation(agent, names_for(policy, catalog))
    # Cutting is allowed any size; each piece is then held to the limit.
    whole = parse(text, max(len(text), statement_bytes))
    if whole.failure is not None:
        yield judged(policy, situation, whole, source, 1)
    for facts in whole.statements:
        line = whole.sql.count("\n", 0, facts.start - 1) + 1
        yield judged(policy, situation, parse(facts.sql, statement_bytes), source, line)


async def priced(checked: Checked, policy: Policy, catalog: Catalog, plans: Plans, today: date) -> Checked:
    """``checked``, judged by its price as well: see ``price.settle``. ``catalog`` is the one it was checked
    with, and of the same database as ``plans``.
    """
    settled = await settle(checked.decision, policy, names_for(policy, catalog), plans, today)
    decided = _answered(settled.decision, policy, checked.source, checked.line, checked.sql)
    failures = (*checked.failures, *settled.failures)
    return replace(decided, cost=settled.cost, unpriced=settled.unpriced, failures=failures)


def names_for(policy: Policy, catalog: Catalog | None) -> SessionNames:
    """What a fresh session's names stand for: in ``catalog`` along the search_path it was read with, else as
    written, unqualified ones in schema ``public``.
    """
    if catalog is None:
        return PathNames()
    path = catalog.content.search_path
    return CatalogNames(catalog, (path,), temporary=may_hold_temporary(policy, catalog))


def judged(policy: Policy, situation: Situation, query: QueryString, source: str, line: int = 1) -> Checked:
    """The decision on ``query``, which begins at ``line`` of ``source``, in words."""
    decision = decide(policy, situation, query)
    return replace(_answered(decision, policy, source, line, query.sql), failures=decision.failures)


def _answered(decision: Decision, policy: Policy, source: str, line: int, sql: str) -> Checked:
    rejection = reject(decision, f"{source}:{line}", policy) if isinstance(decision, Reject) else None
    return Checked(source, line, sql, decision, rejection)


def as_violation(violation: Violation) -> dict[str, Any]:
    return {
        "rule": violation.rule,
        "level": violation.level,
        "message": violation.message,
        "hint": violation.hint,
        "object": violation.object,
        "position": violation.position,
        "suggestion": violation.suggestion,
    }
