"""Decisions taken again from what was recorded of them.

Owns how a record becomes a decision once more, under the policy it was taken under or another one: text,
search paths and catalog give what ``decide`` says, the recorded price what the cost limits say, the recorded
outcome what the limits on results say. What only the moment knew (the turns of repairs, a plan that could not
be had) is taken from the record, as long as the policy still asks for it. Pure; reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from typing import Any, Final

from policy import sandbox
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, SessionNames
from policy.cost import limits_in_force
from policy.decision import Allow, Reject, Situation, decide, statement_class
from policy.facts import QueryString
from policy.model import CostLimits, Mode, OnStale, Policy, Verdict
from policy.names import PathNames
from policy.parse import parse
from policy.price import priceable
from policy.rules import (
    BY_NAME,
    LEDGER_RULES,
    PLAN_RULES,
    affected_rows_over_limit,
    cost_over_limit,
    result_over_limit,
    sandbox_stale,
    unpriceable,
)
from policy.temporary import may_hold_temporary

_LEDGER: Final = frozenset(rule.NAME for rule in LEDGER_RULES)
_PLAN: Final = frozenset(rule.NAME for rule in PLAN_RULES)


class CannotReplay(StrEnum):
    """Why a record cannot be decided again."""

    NO_TEXT = "its text was not kept"
    MASKED = "its constants were masked"
    OTHER_CATALOG = "it was decided by another catalog than the one at hand"
    NO_CATALOG = "it was decided by a catalog, and none is at hand"
    OTHER_RULE = "it was refused for what no text tells"


@dataclass(frozen=True, slots=True)
class Again:
    """A decision: allow or reject, and the rule behind it; of an allowed statement under ``mode: observe``
    the one that enforcing would refuse it by."""

    decision: Verdict
    rule: str | None


def recorded(body: Mapping[str, Any]) -> Again:
    """The decision of one audit line, by its members."""
    return Again(Verdict(body["decision"]), body.get("rule"))


def decide_again(body: Mapping[str, Any], policy: Policy, catalog: Catalog | None) -> Again | CannotReplay:
    """The decision that ``policy`` takes of what the audit line ``body`` recorded."""
    hindrance = _hindrance(body, catalog)
    if hindrance is not None:
        return hindrance
    names = _names(body, policy, catalog)
    enforced = replace(policy, mode=Mode.ENFORCE)
    query = parse(body["statement"])
    decision = decide(enforced, Situation(str(body.get("agent", "")), names), query)
    rule = _by_history(body, enforced, query)
    if rule is None and isinstance(decision, Allow):
        settled, question = priceable(decision, enforced, names)
        rule = None if isinstance(settled, Allow) else settled.violations[0].rule
        rule = rule or _by_price(body, enforced, decision, asked=question is not None)
        rule = rule or _by_outcome(body, enforced)
        rule = rule or _by_clone(body, enforced, decision)
    elif rule is None and isinstance(decision, Reject):
        rule = decision.violations[0].rule
    rejected = rule is not None and policy.mode is Mode.ENFORCE
    return Again(Verdict.REJECT if rejected else Verdict.ALLOW, rule)


def _hindrance(body: Mapping[str, Any], catalog: Catalog | None) -> CannotReplay | None:
    if body.get("statement") is None:
        return CannotReplay.NO_TEXT
    if body.get("masked"):
        return CannotReplay.MASKED
    if body.get("rule") is not None and body["rule"] not in BY_NAME:
        return CannotReplay.OTHER_RULE
    known = body.get("catalog_sha256")
    if known is not None and catalog is None:
        return CannotReplay.NO_CATALOG
    if known is not None and catalog is not None and catalog.sha256 != known:
        return CannotReplay.OTHER_CATALOG
    return None


def _names(body: Mapping[str, Any], policy: Policy, catalog: Catalog | None) -> SessionNames:
    paths = tuple(tuple(path) for path in body.get("search_path", ())) or (("public",),)
    if catalog is None or body.get("catalog_sha256") is None:
        return PathNames(paths)
    temporary = may_hold_temporary(policy, catalog)
    return CatalogNames(catalog, paths, temporary=temporary, unsettled=bool(body.get("unsettled")))


# --- what the text does not tell ---


def _by_price(body: Mapping[str, Any], policy: Policy, decision: Allow, *, asked: bool) -> str | None:
    """The rule that the recorded price is against."""
    if not asked or policy.cost is None:
        return None
    worst = (body.get("cost") or {}).get("worst")
    if worst is None:
        # Without a plan there is nothing to hold against other limits: what was said of it stands.
        told = body.get("rule") in _PLAN
        return unpriceable.NAME if told else None
    day = date.fromisoformat(str(body["ts"])[:10])
    limits = limits_in_force(policy.cost, decision.query.statements[0], day)
    if any(worst.get(limit, 0) > ceiling for limit, ceiling in _ceilings(limits).items()):
        return cost_over_limit.NAME
    return unpriceable.NAME if body.get("rule") == unpriceable.NAME else None


def _ceilings(limits: CostLimits) -> dict[str, float]:
    named = {
        "max_total_cost": limits.max_total_cost,
        "max_rows": limits.max_rows,
        "max_scan_rows": limits.max_scan_rows,
        "max_result_bytes": limits.max_result_bytes,
        "max_modified_rows": limits.max_modified_rows,
    }
    return {limit: ceiling for limit, ceiling in named.items() if ceiling is not None}


def _by_outcome(body: Mapping[str, Any], policy: Policy) -> str | None:
    """The limit that what was returned or written is over; a run that was stopped went over it before."""
    outcome, limits, rule = body.get("outcome") or {}, policy.limits, body.get("rule")
    rows, size = outcome.get("rows", 0), outcome.get("bytes", 0)
    over_rows = limits.result_rows is not None and (
        rule == result_over_limit.NAME or rows > limits.result_rows
    )
    if over_rows or (limits.result_bytes is not None and size > limits.result_bytes):
        return result_over_limit.NAME
    if limits.affected_rows is None:
        return None
    if rule == affected_rows_over_limit.NAME or _written(outcome.get("command_tag")) > limits.affected_rows:
        return affected_rows_over_limit.NAME
    return None


def _written(tag: str | None) -> int:
    """The rows that a command tag says were written."""
    words = (tag or "").split()
    writes = bool(words) and words[0] in ("INSERT", "UPDATE", "DELETE", "MERGE", "COPY")
    return int(words[-1]) if writes and words[-1].isdecimal() else 0


def _by_clone(body: Mapping[str, Any], policy: Policy, decision: Allow) -> str | None:
    """A refusal for want of a clone's word, where the policy still asks for that word."""
    if body.get("rule") != sandbox_stale.NAME or not sandbox.asks(policy, decision):
        return None
    return sandbox_stale.NAME if sandbox.on_stale(policy) is OnStale.REJECT else None


def _by_history(body: Mapping[str, Any], policy: Policy, query: QueryString) -> str | None:
    """The halt of a repair, where the policy still lets such statements be repaired; it leads whatever else
    there is to say."""
    rule = body.get("rule")
    if rule not in _LEDGER or policy.repair.turns < 1:
        return None
    repaired = query.failure is not None or policy.row(statement_class(query)).repair_once
    return str(rule) if repaired else None
