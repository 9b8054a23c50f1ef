"""The books: what agents sent and were told, what the audit has, what the database holds, what was counted.

Owns the balance. A statement whose outcome the agent was told has one audit line that says the same. One
whose outcome it was not told has one that fits what the database holds, or none where it came to no decision;
then it left nothing either. A line says what the server answered to the statement: in the extended protocol
its transaction ends with the Sync behind it, and a connection lost in between undoes what was answered.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.audit_chain import verify
from tests.soak.agents import Agent, Sent, Told
from tests.soak.ground import Ground
from tests.support.proxy import wait_for

_SETTLE_S = 30.0
_TOO_SLOW = "unpriceable"
"""The rule by which a statement is refused that a busy server did not plan in time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    table: list[str]
    faults: list[str]


def balance(ground: Ground, agents: Iterable[Agent]) -> Verdict:
    """Compare the books, once nothing is under way any more."""
    agents = list(agents)
    faults = []
    try:
        wait_for(lambda: not ground.sessions(), _SETTLE_S)
    except AssertionError:
        faults.append(f"backends left: {ground.sessions()}")
    time.sleep(1)  # the writer of the audit gathers for a moment
    lines = [line for line in ground.lines() if "decision" in line]
    decided = ground.decisions()
    by_tag: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    others = 0
    for line in lines:
        tag = tag_of(line["statement"])
        if tag is None:
            others += 1
        else:
            by_tag[tag].append(line)
    written = {tag for (tag,) in ground.database.execute("SELECT tag FROM written")}
    sent = [each for agent in agents for each in agent.sent]
    for each in sent:
        faults += [
            f"{each.tag} ({each.told}): {fault}" for fault in amiss(each, by_tag.pop(each.tag, []), written)
        ]
    faults += [f"{tag}: audited and never sent" for tag in by_tag]
    if decided != len(lines):
        faults.append(f"{decided} decisions counted and {len(lines)} audited")
    if not verify(ground.audits).holds:
        faults.append("the audit's chain does not hold")
    told = Counter(each.told for each in sent)
    connections = sum(agent.connections for agent in agents)
    table = [
        f"statements sent      {len(sent):>9,}",
        *(f"  {kind:<18} {told[kind]:>9,}" for kind in Told),
        f"lines audited        {len(lines):>9,}  ({others:,} of the drivers and of the faults)",
        f"decisions counted    {decided:>9,}",
        f"connections          {connections:>9,}",
    ]
    return Verdict(table, faults)


def tag_of(statement: str) -> str | None:
    """The mark at the end of a statement; drivers may put their own in front."""
    _, found, rest = statement.rpartition("/* soak-")
    return "soak-" + rest.removesuffix(" */") if found else None


def amiss(sent: Sent, lines: list[Mapping[str, Any]], written: set[str]) -> Iterable[str]:
    """What does not fit of one statement."""
    row = sent.tag in written
    if len(lines) > 1:
        yield f"{len(lines)} audit lines"
        return
    if not lines:
        if sent.told is not Told.UNKNOWN:
            yield "no audit line"
        if row:
            yield "written and not audited"
        return
    (line,) = lines
    outcome = line["outcome"]
    said = _said(line)
    if sent.told is not Told.UNKNOWN:
        hindered = (sent.told is Told.FAILED and outcome["sqlstate"]) or _unfit(line)
        if sent.told is not sent.meant and not hindered:
            yield f"meant to be {sent.meant}, refused by {line.get('rule')}"
        if said is not sent.told:
            yield f"audited as {said} {outcome}"
    if sent.writes and row and said in (Told.REFUSED, Told.FAILED):
        yield f"audited as {said}, and a row"
    if sent.writes and sent.told is Told.ANSWERED and not row:
        yield "answered, and no row"


def _unfit(line: Mapping[str, Any]) -> bool:
    """Whether the statement was refused for what a fault took from the gate: the planner's answer in time, or
    the catalog."""
    return line.get("rule") == _TOO_SLOW or "catalog_sha256" not in line


def _said(line: Mapping[str, Any]) -> Told:
    outcome = line["outcome"]
    if line["decision"] == "reject":
        return Told.REFUSED
    if not outcome["known"]:
        return Told.UNKNOWN
    return Told.FAILED if outcome["sqlstate"] else Told.ANSWERED
