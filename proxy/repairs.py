"""One connection's dealings with the ledger of repairs.

Owns which statement the connection judged last, and as what: the rest is ``policy.dialogue``'s, told as
rulings. Knows of bytes only the values of a Bind.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from policy.decision import Decision, Reject
from policy.dialogue import Dialogue, Judged, Run
from policy.facts import QueryString
from policy.ledger import Ledger
from policy.lineage import Part, Repair
from policy.names import Names
from policy.terms import Parameter
from proxy.effects import AuditEntry, Values
from proxy.gate import Gate
from proxy.prepared import Cursor, Portal
from proxy.ruling import Ruling
from proxy.wire.frontend import Bind

_INTEGERS: Final[Mapping[int, str]] = {21: "!h", 23: "!i", 20: "!q"}
"""OIDs of smallint, integer and bigint, and how their binary form is read."""
_INTEGER_BYTES: Final = (2, 4, 8)
_FLOATS: Final[Mapping[int, str]] = {700: "!f", 701: "!d"}


class Repairs:
    """What the statements of one connection are to the refusals before them.

    ``scope`` and ``connection`` are as ``lineage.scope_key`` and the ledger take them; ``now`` gives seconds
    since the epoch. Of a statement that it ``waits_for``, ``question`` and ``answered`` take the place of
    ``judge``, and what the ledger is to know goes through ``tell``, which has calls carried out elsewhere, in
    their order.
    """

    def __init__(
        self,
        gate: Gate,
        ledger: Ledger,
        scope: str,
        connection: str,
        *,
        now: Callable[[], float],
        tell: Callable[[Callable[[], object]], None],
    ) -> None:
        self._gate = gate
        self._ledger = ledger
        self._scope = scope
        self._asked = Dialogue(gate.policy, ledger, scope, connection)
        self._kept = self._asked.kept
        self.waits = self._kept and ledger.waits
        self._later = Dialogue(gate.policy, ledger, scope, connection, self._tell_later)
        self._untold: deque[None] = deque()
        """What the ledger is told elsewhere and does not know yet."""
        self._now = now
        self._tell = tell
        self.refusals = 0
        """How often something was refused that a later statement may answer."""
        self._judged: QueryString | None = None
        """The statement judged last."""
        self._found: Judged | None = None
        """What it was found to be, None for a statement of its own."""
        self._bound: tuple[QueryString, Values] | None = None
        self._told: Decision | None = None
        """The decision last had from a ledger that waits, which knows of it."""

    @property
    def watching(self) -> bool:
        """True while a statement could be the answer to an earlier refusal."""
        return self.waits or (self._kept and self._ledger.has_open(self._scope))

    def stands_alone(self, ruling: Ruling) -> bool:
        """True where the statement of ``ruling`` may run and can be no answer to anything: it is judged."""
        # Asked of every statement: what a ledger in memory need not be asked costs nothing else.
        if self.waits or not ruling.allowed or self._untold:
            return False
        if self._kept and self._ledger.has_open(self._scope):
            return False
        self._judged, self._found = ruling.decision.query, None
        return True

    def waits_for(self, ruling: Ruling) -> bool:
        """True where what the statement of ``ruling`` is to the refusals before it takes time to find out, or
        hangs on what the ledger does not know yet."""
        if not self._kept:
            return False
        if self.waits:
            return True
        concerned = not ruling.allowed or self._ledger.has_open(self._scope) or self._untold
        return bool(concerned) and self._takes_time(len(ruling.text))

    def _takes_time(self, size: int) -> bool:
        return bool(self._untold) or self._ledger.takes_time(self._scope, size)

    def _dialogue(self, size: int = 0) -> Dialogue:
        """By which the ledger is told of a statement of ``size`` bytes: at once, or elsewhere."""
        return self._later if self._kept and (self.waits or self._takes_time(size)) else self._asked

    def _tell_later(self, call: Callable[[], object]) -> None:
        self._untold.append(None)

        def told() -> object:
            try:
                return call()
            finally:
                self._untold.pop()

        self._tell(told)

    def overtaken(self, portal: Portal) -> bool:
        """Whether something was refused since ``portal`` was bound that its statement may answer. What has
        begun to run, or is the repair of an earlier refusal, answers nothing else."""
        if portal.since == self.refusals or portal.ran or portal.repair is not None:
            return False
        return (self.watching or bool(self._untold)) and not isinstance(portal, Cursor)

    def judge(
        self,
        ruling: Ruling,
        runs: Sequence[Ruling] = (),
        bound: Bind | None = None,
        types: Sequence[int] = (),
    ) -> Ruling:
        """``ruling``, or the refusal of what answers an earlier refusal and may not stand in for it.

        ``runs`` are the rulings on what it has run by EXECUTE; ``bound`` is the Bind at hand, of a statement
        whose parameters have ``types``.
        """
        decision = ruling.decision
        self._judged, self._found = decision.query, None
        if not self._kept or not (self.waits or self._ledger.has_open(self._scope)):
            return ruling
        values = () if bound is None else bound_values(bound, types)
        judged = self._asked.judge(decision, ruling.names, self._now(), values, _as_runs(runs))
        self._found = judged
        return self._as_told(ruling, judged.decision)

    def question(
        self, ruling: Ruling, values: Sequence[Parameter] = (), runs: Sequence[Ruling] = ()
    ) -> Callable[[], Judged] | None:
        """What to ask in another thread; None where there is nothing to ask, or it need not be there."""
        decision, names, now = ruling.decision, ruling.names, self._now()
        if not self.waits_for(ruling):
            return None
        if not self._asked.concerns(decision):
            self._judged, self._found = decision.query, None
            return None
        if isinstance(decision, Reject):
            return lambda: self._asked.judge_refused(decision, names, now, values)
        return lambda: self._asked.judge(decision, names, now, values, _as_runs(runs))

    def answered(self, ruling: Ruling, judged: Judged) -> Ruling:
        """``ruling`` as the answer to its question has it."""
        self._judged, self._found = ruling.decision.query, judged
        self._told = judged.decision
        return self._as_told(ruling, judged.decision)

    def give_back(self, judged: Judged) -> None:
        """The statement whose question was answered so is not to run any more."""
        if judged.repair is not None and not isinstance(judged.decision, Reject):
            self._dialogue().settled(judged.repair, None, self._now(), known=False)

    def binds(self, ruling: Ruling, message: Bind, types: Sequence[int]) -> None:
        """The statement of ``ruling`` is bound by ``message``; ``types`` are the OIDs of its parameters as
        far as they are known."""
        if self._kept:
            self._bound = (ruling.decision.query, Values(message, types))

    def bound_to(self, ruling: Ruling) -> Values | None:
        """What the statement of ``ruling``, bound last, was bound to."""
        bound = self._bound
        return bound[1] if bound is not None and bound[0] is ruling.decision.query else None

    def repair_of(self, ruling: Ruling) -> Repair | None:
        """The repair that the statement of ``ruling``, judged last, was found to be."""
        found = self._found_of(ruling)
        return None if found is None else found.repair

    def part_of(self, ruling: Ruling) -> Part | None:
        """The place in a lineage of the statement of ``ruling``, judged last."""
        found = self._found_of(ruling)
        return None if found is None else found.part

    def _found_of(self, ruling: Ruling) -> Judged | None:
        return self._found if self._judged is ruling.decision.query else None

    def refused(self, ruling: Ruling) -> Ruling:
        """A refusal as it is to be told: it opens a lineage, or spends the turn of the one it answers."""
        decision = ruling.decision
        if not self._kept or not isinstance(decision, Reject) or decision is self._told:
            return ruling
        if self._judged is not decision.query:
            judged = self.judge(ruling)
            if judged.decision is not decision:
                return judged
        _, repair, part = self._found_of(ruling) or Judged(decision)
        if part is not None and repair is None:
            # Halted as an answer: it opens nothing of its own.
            return ruling
        self.refusals += 1
        values = _parameters(self.bound_to(ruling))
        dialogue = self._dialogue(len(ruling.text))
        told = dialogue.refused(decision, ruling.names, repair, self._now(), values=values)
        self._judged, self._found = decision.query, Judged(told.decision, repair, told.part)
        return self._as_told(ruling, told.decision)

    def rejected(self, decision: Reject, names: Names, entry: AuditEntry) -> Reject:
        """The same for a decision on the statement of ``entry``, which was let run."""
        self.refusals += 1
        told = self._dialogue(len(decision.query.sql)).refused(
            decision,
            names,
            entry.repair,
            self._now(),
            values=_parameters(entry.values),
            tried=entry.sandbox,
        )
        entry.part = told.part
        return told.decision

    def failed(
        self,
        ruling: Ruling,
        entry: AuditEntry,
        fields: Mapping[str, str],
        *,
        judged: bool = True,
        at_bind: bool = False,
        ran_ms: float = 0.0,
    ) -> int:
        """The server refused the statement of ``ruling``; how many repairs that leaves.

        ``judged`` is False where nobody asked before: of one that it ``waits_for`` it is not known then
        whether it was a repair, and the answer is that of one that was none. ``ran_ms`` is how long the
        statement has been under way, in milliseconds: whether it had all the time that the policy gives.
        """
        limit_ms = self._gate.policy.limits.statement_timeout_ms
        self.refusals += 1
        timed_out = bool(limit_ms) and ran_ms >= (limit_ms or 0)
        repair, entry.settled = entry.repair, True
        decision, names, now, tried = ruling.decision, ruling.names, self._now(), entry.sandbox
        if not judged and self.waits_for(ruling):
            # Nothing is tried before it was judged.
            self._tell_later(
                lambda: self._asked.failed(decision, names, fields, now, judged=False, at_bind=at_bind)
            )
            return self._asked.leaves(decision, fields.get("sqlstate", ""))
        left = self._dialogue(len(ruling.text)).failed(
            decision,
            names,
            fields,
            now,
            repair=repair,
            judged=judged,
            at_bind=at_bind,
            timed_out=timed_out,
            values=_parameters(entry.values),
            tried=tried,
        )
        entry.part = left.part
        return left.turns_left

    def settle(self, entry: AuditEntry) -> None:
        """The outcome of ``entry`` is recorded: so is that of the repair it was."""
        if entry.repair is not None and not entry.settled:
            self._dialogue().settled(
                entry.repair, entry.sqlstate, self._now(), known=entry.outcome_known, tried=entry.sandbox
            )

    def _as_told(self, ruling: Ruling, told: Decision) -> Ruling:
        if told is ruling.decision or not isinstance(told, Reject):
            return ruling
        return self._gate.reworded(ruling, told)


def _as_runs(rulings: Sequence[Ruling]) -> tuple[Run, ...]:
    return tuple(Run(each.decision.query, each.names) for each in rulings)


def _parameters(values: Values | None) -> tuple[Parameter, ...]:
    return () if values is None else bound_values(values.message, values.types)


def bound_values(message: Bind, types: Sequence[int]) -> tuple[Parameter, ...]:
    """The values of a Bind as a repair is compared by them: numbers where the type is one, else text.

    A binary value of another type is told by its bytes, which says whether it is the same again; where Parse
    left the type to the server, bytes that are no text and as many as an integer has are read as one.
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
    text = value.decode("utf-8", "backslashreplace")
    if type_oid == 0 and len(value) in _INTEGER_BYTES and ("\0" in text or text.encode() != value):
        return int.from_bytes(value, "big", signed=True)
    return text
