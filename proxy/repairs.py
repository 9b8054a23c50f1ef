"""One connection's dealings with the ledger of repairs.

Owns when the ledger is asked: before a statement is let through, when one is refused, and when its outcome is
known. What a repair must keep is ``policy.repair``'s, who has a turn left the ledger's. Where no class of the
policy may be repaired nothing is ever asked. Knows no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from policy.decision import Reject
from policy.facts import QueryString
from policy.ledger import Ledger, LedgerUnavailableError
from policy.lineage import Halted, NotAnAnswer, Outcome, Repair, may_open, outcome_of, watches
from policy.model import Halt, Mode, Policy, RepairTerms, StatementClass, Violation
from policy.names import Names
from policy.repair import Finding, attempt, finding_of_error, finding_of_rejection
from policy.rules.repair_halted import halted, unavailable
from policy.terms import Parameter
from proxy.effects import AuditEntry
from proxy.gate import Gate
from proxy.ruling import Ruling
from proxy.wire.frontend import Bind

log = structlog.get_logger("pgturnstile.repairs")

_INTEGERS: Final[Mapping[int, str]] = {21: "!h", 23: "!i", 20: "!q"}
"""OIDs of smallint, integer and bigint, and how their binary form is read."""
_FLOATS: Final[Mapping[int, str]] = {700: "!f", 701: "!d"}


class Repairs:
    """What the statements of one connection are to the refusals before them.

    ``scope`` and ``connection`` are as ``lineage.scope_key`` and the ledger take them; ``now`` gives seconds
    since the epoch.
    """

    def __init__(
        self, gate: Gate, ledger: Ledger, scope: str, connection: str, now: Callable[[], float]
    ) -> None:
        policy = gate.policy
        self._gate = gate
        self._ledger = ledger
        self._scope = scope
        self._connection = connection
        self._now = now
        self._kept = policy.mode is Mode.ENFORCE and _repairs_any(policy)
        self._judged: tuple[QueryString, Repair | None] | None = None
        """The statement judged last, and the repair it was found to be."""

    @property
    def watching(self) -> bool:
        """True while a statement could be the answer to an earlier refusal."""
        return self._kept and self._ledger.has_open(self._scope)

    def judge(self, ruling: Ruling, values: Sequence[Parameter] = ()) -> Ruling:
        """``ruling``, or the refusal of what answers an earlier refusal and may not stand in for it."""
        query = ruling.decision.query
        self._judged = (query, None)
        if not self.watching:
            return ruling
        try:
            considered = self._consider(ruling, values)
        except LedgerUnavailableError as error:
            log.error("the ledger of repairs cannot be read; a statement is refused", error=str(error))
            return self._refusal(ruling, unavailable(self._gate.policy))
        if isinstance(considered, Halted):
            return self._refusal(ruling, halted(considered.halt, self._gate.policy))
        if isinstance(considered, Repair):
            self._judged = (query, considered)
        return ruling

    def repair_of(self, ruling: Ruling) -> Repair | None:
        """The repair that the statement of ``ruling``, judged last, was found to be."""
        judged = self._judged
        return judged[1] if judged is not None and judged[0] is ruling.decision.query else None

    def refused(self, ruling: Ruling) -> Ruling:
        """A refusal as it is to be told: it opens a lineage, or spends the turn of the one it answers."""
        decision = ruling.decision
        if not self._kept or not isinstance(decision, Reject):
            return ruling
        if self._judged is None or self._judged[0] is not decision.query:
            ruling = self.judge(ruling)
            if ruling.decision is not decision:
                return ruling
        told = self.rejected(decision, ruling.names, self.repair_of(ruling))
        return ruling if told is decision else self._gate.reworded(ruling, told)

    def rejected(self, decision: Reject, names: Names, repair: Repair | None) -> Reject:
        """The same for a decision, also on a statement that was let run: it was ``repair``, or stood for
        itself."""
        if not self._kept:
            return decision
        if repair is not None:
            self._ledger.settled(repair, Outcome.REJECTED, self._now())
            return replace(decision, repair=RepairTerms(), halt=Halt.REPAIR_BUDGET_EXHAUSTED)
        finding = finding_of_rejection(decision.query, names, decision.violations)
        watch = watches(self._gate.policy, decision.statement_class, finding)
        if decision.repair.allowed or watch:
            self._open(decision.query, names, finding, watch=watch and not decision.repair.allowed)
        return decision

    def failed(
        self, ruling: Ruling, fields: Mapping[str, str], *, judged: bool, at_bind: bool = False
    ) -> None:
        """The server refused the statement of ``ruling``; ``judged`` False where nobody asked before."""
        sqlstate = fields.get("sqlstate", "")
        statement_class = ruling.decision.statement_class
        if not self._kept or statement_class is None:
            return
        if not judged:
            considered = self._consider(ruling) if self.watching else NotAnAnswer()
            if isinstance(considered, Repair):
                self._ledger.settled(considered, outcome_of(sqlstate), self._now())
            if not isinstance(considered, NotAnAnswer):
                return
        if may_open(self._gate.policy, statement_class, sqlstate):
            position = int(fields["position"]) if "position" in fields else None
            column = fields.get("column")
            query = ruling.decision.query
            finding = finding_of_error(
                sqlstate, query, ruling.names, position, column=column, at_bind=at_bind
            )
            self._open(query, ruling.names, finding)

    def settle(self, entry: AuditEntry) -> None:
        """The outcome of ``entry`` is recorded: so is that of the repair it was."""
        if entry.repair is not None:
            outcome = outcome_of(entry.sqlstate) if entry.outcome_known else Outcome.NOT_TRIED
            self._ledger.settled(entry.repair, outcome, self._now())

    def _consider(self, ruling: Ruling, values: Sequence[Parameter] = ()) -> NotAnAnswer | Repair | Halted:
        made = attempt(ruling.decision.query, ruling.names, values)
        return self._ledger.consider(self._scope, self._connection, made, self._now())

    def _refusal(self, ruling: Ruling, violation: Violation) -> Ruling:
        """The refusal that ``violation`` leads, whatever the gate had to say as well."""
        decision = ruling.decision
        others = decision.violations if isinstance(decision, Reject) else ()
        return self._gate.refused(ruling, (violation, *others))

    def _open(self, query: QueryString, names: Names, finding: Finding, *, watch: bool = False) -> None:
        first = attempt(query, names, finding=finding)
        self._ledger.open(
            self._scope,
            self._connection,
            first,
            finding,
            now=self._now(),
            rules=self._gate.policy.repair,
            watch=watch,
        )


def bound_values(message: Bind, types: Sequence[int]) -> tuple[Parameter, ...]:
    """The values of a Bind as a repair is compared by them: numbers where the type is one, else text.

    A binary value of another type is told by its bytes, which says whether it is the same again.
    """
    return tuple(
        None if value is None else _value(value, types[n] if n < len(types) else 0, _format(message, n))
        for n, value in enumerate(message.values)
    )


def _format(message: Bind, n: int) -> int:
    """The format code of parameter ``n``: one code stands for all, none for text."""
    if len(message.formats) > 1:
        return message.formats[n] if n < len(message.formats) else 0
    return message.formats[0] if message.formats else 0


def _value(value: bytes, type_oid: int, code: int) -> Parameter:
    if code == 0:
        text = value.decode("utf-8", "replace")
        if type_oid in _INTEGERS and text.strip().lstrip("+-").isdigit():
            return int(text)
        return text
    form = _INTEGERS.get(type_oid) or _FLOATS.get(type_oid)
    if form is not None and struct.calcsize(form) == len(value):
        number: int | float = struct.unpack(form, value)[0]
        return number
    return value.decode("utf-8", "backslashreplace")


def _repairs_any(policy: Policy) -> bool:
    return policy.repair.turns >= 1 and any(policy.row(each).repair_once for each in StatementClass)
