"""What one process counts while it serves: plain numbers, incremented where the event is known.

Owns the counters and their bounds. How they are shown is ``metrics``'s. Nothing here is worked out again for
a number's sake: a statement is counted from its audit entry, at the cost of a few dictionary look-ups.

The labels are bounded: agents are those that the configuration names, everybody else counts as ``*``; classes
and rules are closed sets; an error counts by the two characters of its SQLSTATE's class.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final

from policy.decision import Allow
from policy.lineage import CloseOut
from policy.rules import BY_NAME
from proxy.audit_line import ConnectionIdentity
from proxy.config import ANY_AGENT
from proxy.effects import AuditEntry
from proxy.rulings import Lookups

MAX_AGENTS: Final = 1000
"""Agents that are told apart; a configuration that names more has the rest counted as ``*``."""
Steps = tuple[float, ...]
"""Upper limits in seconds. Of a length left open: ten floats are a struct to mypyc, which takes it for
one that was never set."""
_STATEMENT_S: Final[Steps] = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
_GATE_S: Final[Steps] = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5)
_EXPLAIN_S: Final[Steps] = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)

DecisionKey = tuple[str, str, str]
"""Statement class, decision (``allow``, ``observe``, ``reject``), and the rule that decided, "" for none."""


class Histogram:
    """How often something took how long. ``bounds`` are upper limits in seconds, inclusive and ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Steps) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def add(self, other: Histogram) -> None:
        """What ``other`` has observed, by the same bounds."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class GateMeter:
    """What judging takes. ``judged`` is called from several threads, all else from the event loop's."""

    __slots__ = ("_changing", "explain_s", "judged_s", "lookups")

    def __init__(self) -> None:
        self.lookups = Lookups()
        self.judged_s = Histogram(_GATE_S)
        self.explain_s = Histogram(_EXPLAIN_S)
        self._changing = threading.Lock()

    def judged(self, seconds: float) -> None:
        """A text was parsed and held against every rule."""
        with self._changing:
            self.judged_s.observe(seconds)

    def explained(self, seconds: float) -> None:
        """PostgreSQL said what a statement would cost, that long after it was asked."""
        self.explain_s.observe(seconds)

    def add(self, other: GateMeter) -> None:
        self.lookups.exact += other.lookups.exact
        self.lookups.lifted += other.lookups.lifted
        self.lookups.missed += other.lookups.missed
        self.judged_s.add(other.judged_s)
        self.explain_s.add(other.explain_s)

    def __reduce__(self) -> tuple[object, ...]:
        # A worker tells its supervisor. Neither a lock nor what is compiled travels.
        lookups = (self.lookups.exact, self.lookups.lifted, self.lookups.missed)
        with self._changing:
            return _gate_meter, (lookups, self.judged_s, self.explain_s)


def _gate_meter(lookups: tuple[int, int, int], judged_s: Histogram, explain_s: Histogram) -> GateMeter:
    meter = GateMeter()
    meter.lookups.exact, meter.lookups.lifted, meter.lookups.missed = lookups
    meter.judged_s, meter.explain_s = judged_s, explain_s
    return meter


class AgentMeter:
    """What one agent asked for and got. ``errors`` are PostgreSQL's, by SQLSTATE class: what the gate refuses
    is under ``decisions`` alone."""

    __slots__ = ("bytes", "decisions", "errors", "opened", "rows", "statement_s", "unknown")

    def __init__(self) -> None:
        self.opened = 0
        self.decisions: dict[DecisionKey, int] = {}
        self.errors: dict[str, int] = {}
        self.unknown = 0
        self.rows = 0
        self.bytes = 0
        self.statement_s = Histogram(_STATEMENT_S)

    def count(self, entry: AuditEntry) -> None:
        """One decision whose outcome is recorded."""
        decision = entry.decision
        key: DecisionKey
        if isinstance(decision, Allow):
            observed = decision.observed
            if observed:
                key = (decision.statement_class or "", "observe", observed[0].rule)
            else:
                key = (decision.statement_class or "", "allow", "")
            self.rows += entry.rows
            self.bytes += entry.bytes
            self.statement_s.observe(entry.ms / 1000)
            if entry.sqlstate is not None:
                state = entry.sqlstate[:2]
                self.errors[state] = self.errors.get(state, 0) + 1
            elif not entry.outcome_known:
                self.unknown += 1
        else:
            key = (decision.statement_class or "", "reject", decision.violations[0].rule)
            # A result that went over its limit has reached the agent up to there.
            self.rows += entry.rows
            self.bytes += entry.bytes
        self.decisions[key] = self.decisions.get(key, 0) + 1

    def add(self, other: AgentMeter) -> None:
        self.opened += other.opened
        for key, count in other.decisions.items():
            self.decisions[key] = self.decisions.get(key, 0) + count
        for state, count in other.errors.items():
            self.errors[state] = self.errors.get(state, 0) + count
        self.unknown += other.unknown
        self.rows += other.rows
        self.bytes += other.bytes
        self.statement_s.add(other.statement_s)


class Meters:
    """Everything that one process counts."""

    def __init__(self) -> None:
        self.gate = GateMeter()
        self.agents: dict[str, AgentMeter] = {}
        self.anybody = AgentMeter()
        self.refused: Counter[str] = Counter()
        """Connections refused, by SQLSTATE."""
        self.repairs: Counter[tuple[str, str]] = Counter()
        """Refusals whose repair is over, by what refused (a rule, or the class of a SQLSTATE) and outcome."""
        self.backend_failures = 0
        """Connections for which the database server gave no session."""

    def know(self, agents: Iterable[str]) -> None:
        """Tell these agents apart from now on; what was counted for others before stays theirs."""
        for name in agents:
            if name != ANY_AGENT and name not in self.agents and len(self.agents) < MAX_AGENTS:
                self.agents[name] = AgentMeter()

    def add(self, other: Meters) -> None:
        """Count what another process counted, and tell its agents apart."""
        self.know(other.agents)
        self.gate.add(other.gate)
        self.anybody.add(other.anybody)
        for name, meter in other.agents.items():
            self.of(name).add(meter)
        self.refused.update(other.refused)
        self.repairs.update(other.repairs)
        self.backend_failures += other.backend_failures

    def of(self, agent: str) -> AgentMeter:
        return self.agents.get(agent, self.anybody)

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        """One decision whose outcome is known."""
        self.agents.get(identity.agent, self.anybody).count(entry)

    def closed(self, record: CloseOut) -> None:
        """A refusal whose repair is over."""
        reason = record.reasons[0]
        self.repairs[reason if reason in BY_NAME else reason[:2], record.ending] += 1
