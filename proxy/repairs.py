"""One connection's dealings with the ledger of repairs.

Owns which statement the connection judged last, and as what: the rest is ``policy.dialogue``'s, told as
rulings. Knows of bytes only the values of a Bind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from policy.decision import Decision, Reject
from policy.dialogue import Dialogue
from policy.facts import QueryString
from policy.ledger import Ledger
from policy.lineage import Repair
from policy.names import Names
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
        self._gate = gate
        self._dialogue = Dialogue(gate.policy, ledger, scope, connection)
        self._now = now
        self._kept = self._dialogue.kept
        self._judged: tuple[QueryString, Repair | None] | None = None
        """The statement judged last, and the repair it was found to be."""

    @property
    def watching(self) -> bool:
        """True while a statement could be the answer to an earlier refusal."""
        return self._kept and self._dialogue.watching

    def judge(self, ruling: Ruling, values: Sequence[Parameter] = ()) -> Ruling:
        """``ruling``, or the refusal of what answers an earlier refusal and may not stand in for it."""
        decision = ruling.decision
        self._judged = (decision.query, None)
        if not self._kept:
            return ruling
        told, repair, failure = self._dialogue.judge(decision, ruling.names, self._now(), values)
        if failure is not None:
            log.error("the ledger of repairs cannot be read; a statement is refused", error=str(failure))
        self._judged = (decision.query, repair)
        return self._as_told(ruling, told)

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
            judged = self.judge(ruling)
            if judged.decision is not decision:
                return judged
        return self._as_told(ruling, self.rejected(decision, ruling.names, self.repair_of(ruling)))

    def rejected(self, decision: Reject, names: Names, repair: Repair | None) -> Reject:
        """The same for a decision, also on a statement that was let run: it was ``repair``, or stood for
        itself."""
        return self._dialogue.refused(decision, names, repair, self._now())

    def failed(
        self,
        ruling: Ruling,
        entry: AuditEntry,
        fields: Mapping[str, str],
        *,
        judged: bool = True,
        at_bind: bool = False,
    ) -> int:
        """The server refused the statement of ``ruling``; how many repairs that leaves.

        ``judged`` is False where nobody asked before.
        """
        repair, entry.settled = entry.repair, True
        return self._dialogue.failed(
            ruling.decision, ruling.names, fields, self._now(), repair=repair, judged=judged, at_bind=at_bind
        )

    def settle(self, entry: AuditEntry) -> None:
        """The outcome of ``entry`` is recorded: so is that of the repair it was."""
        if entry.repair is not None and not entry.settled:
            self._dialogue.settled(entry.repair, entry.sqlstate, self._now(), known=entry.outcome_known)

    def _as_told(self, ruling: Ruling, told: Decision) -> Ruling:
        if told is ruling.decision or not isinstance(told, Reject):
            return ruling
        return self._gate.reworded(ruling, told)


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
