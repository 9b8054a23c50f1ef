"""What a policy refused, or would have refused had it enforced, counted over audit lines.

Owns the counting. Decides nothing anew: the lines say what was decided (``replay`` decides again).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from proxy.audit_lines import Line


@dataclass(slots=True)
class Shape:
    """Statements of one fingerprint that one rule objects to. ``example`` is the first one's text, None where
    the file keeps none."""

    fingerprint: str
    example: str | None
    count: int = 0
    agents: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Refusals:
    """What one rule objects to."""

    rule: str
    refused: int = 0
    """Rejected."""
    observed: int = 0
    """Let through, because the policy only observes."""
    agents: Counter[str] = field(default_factory=Counter)
    shapes: dict[str, Shape] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.refused + self.observed

    def dearest(self, most: int) -> list[Shape]:
        """The shapes that are met most often."""
        return sorted(self.shapes.values(), key=lambda shape: -shape.count)[:most]


@dataclass(slots=True)
class Summary:
    """The sum over some lines. ``failed`` counts what was let through and failed in PostgreSQL."""

    decisions: int = 0
    failed: int = 0
    policies: Counter[str] = field(default_factory=Counter)
    by_rule: dict[str, Refusals] = field(default_factory=dict)

    @property
    def rules(self) -> list[Refusals]:
        """Those that object most first."""
        return sorted(self.by_rule.values(), key=lambda each: (-each.count, each.rule))

    @property
    def refused(self) -> int:
        return sum(each.refused for each in self.by_rule.values())

    @property
    def observed(self) -> int:
        return sum(each.observed for each in self.by_rule.values())

    def as_json(self, most: int) -> dict[str, Any]:
        """``most`` is how many statements are told for each rule."""
        return {
            "decisions": self.decisions,
            "refused": self.refused,
            "would_refuse": self.observed,
            "failed": self.failed,
            "policies": dict(self.policies),
            "rules": [
                {
                    "rule": each.rule,
                    "refused": each.refused,
                    "would_refuse": each.observed,
                    "agents": dict(each.agents),
                    "statements": [
                        {
                            "fingerprint": shape.fingerprint,
                            "count": shape.count,
                            "agents": dict(shape.agents),
                            "example": shape.example,
                        }
                        for shape in each.dearest(most)
                    ],
                }
                for each in self.rules
            ],
        }


def summarize(lines: Iterable[Line]) -> Summary:
    """Count what ``lines`` say."""
    summary = Summary()
    for line in lines:
        if line.is_decision:
            _add(summary, line.body)
    return summary


def _add(summary: Summary, body: dict[str, Any]) -> None:
    summary.decisions += 1
    policy = body.get("policy") or {}
    summary.policies[str(policy.get("name", "?"))] += 1
    rule = body.get("rule")
    refused = body["decision"] == "reject"
    if not refused and (body.get("outcome") or {}).get("sqlstate"):
        summary.failed += 1
    if rule is None:
        return
    refusals = summary.by_rule.setdefault(rule, Refusals(rule))
    if refused:
        refusals.refused += 1
    else:
        refusals.observed += 1
    agent = str(body.get("agent", "?"))
    refusals.agents[agent] += 1
    fingerprint = str(body.get("fingerprint") or "-")
    shape = refusals.shapes.setdefault(fingerprint, Shape(fingerprint, body.get("statement")))
    shape.count += 1
    shape.agents[agent] += 1
