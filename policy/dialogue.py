"""One connection's dealings with the ledger of repairs, as decisions.

Owns what the ledger is asked and told of a statement: before it is let through (``judge``), when it is
refused (``refused``), when PostgreSQL refuses it (``failed``) and when its outcome is known (``settled``).
What a repair must keep is ``repair``'s, who has a turn left the ledger's. Where no class of the policy may be
repaired, or it only observes, nothing is ever asked. Knows no bytes and no sockets: the proxy and the tests
of a policy hold the same dialogue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from policy.decision import Decision, Reject, refuse
from policy.facts import QueryString
from policy.ledger import Ledger, LedgerUnavailableError, new_id
from policy.lineage import (
    Again,
    Considered,
    Halted,
    NotAnAnswer,
    Outcome,
    Part,
    Repair,
    may_open,
    outcome_of,
    watches,
)
from policy.model import Halt, Policy, RepairTerms, StatementClass, Violation
from policy.names import Names
from policy.repair import Attempt, Finding, attempt, finding_of_error, finding_of_rejection
from policy.rules.repair_halted import halted, unavailable, unkept
from policy.sandbox import Tried
from policy.terms import Parameter

_ASIDE: Final = frozenset({StatementClass.SHOW, StatementClass.TRANSACTION, StatementClass.SET})
"""Classes that touch no row: unless they may be repaired themselves, they stand in for nothing."""


class Judged(NamedTuple):
    """A decision in the light of the refusals before it, and the ``repair`` that its statement is; ``part``
    is the statement's place in a lineage, where it has one."""

    decision: Decision
    repair: Repair | None = None
    part: Part | None = None


class Refused(NamedTuple):
    """A refusal as it is to be told, and the place that its statement has in a lineage by now."""

    decision: Reject
    part: Part | None = None


class Failed(NamedTuple):
    """The turns that an error of PostgreSQL's leaves, and the place in a lineage of what ended with it."""

    turns_left: int = 0
    part: Part | None = None


class Run(NamedTuple):
    """A statement and what its names stand for."""

    query: QueryString
    names: Names


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What the statements of one connection are to the refusals before them.

    ``scope`` and ``connection`` are as ``lineage.scope_key`` and the ledger take them; ``now`` is in seconds
    since the epoch throughout. Everything but ``judge`` may raise ``LedgerUnavailableError``.

    ``later``, where it is set, has calls carried out elsewhere and in their order: what the ledger is told
    goes through it, and so does the work that this takes. What it is asked is not.
    """

    policy: Policy
    ledger: Ledger
    scope: str
    connection: str
    later: Callable[[Callable[[], object]], None] | None = None
    kept: bool = field(init=False)
    """Whether there is anything to ask the ledger, ever: worked out once, being asked of every statement."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept", self.policy.counts_repairs)

    @property
    def watching(self) -> bool:
        """True while a statement could be the answer to an earlier refusal."""
        return self.kept and self.ledger.has_open(self.scope)

    def concerns(self, decision: Decision) -> bool:
        """Whether the statement of ``decision`` could be an answer, or have one: else nobody is asked."""
        cls = decision.statement_class
        if not self.kept or cls is None:
            return False
        return isinstance(decision, Reject) or cls not in _ASIDE or self.policy.row(cls).repair_once

    def judge(
        self,
        decision: Decision,
        names: Names,
        now: float,
        values: Sequence[Parameter] = (),
        runs: Sequence[Run] = (),
    ) -> Judged:
        """``decision``, or the refusal of what answers an earlier refusal and may not stand in for it.

        ``values`` are the parameters bound, where they are known. ``runs`` are the statements prepared before
        that this one has run: each of them may be the answer.
        """
        considered: Considered = NotAnAnswer()
        try:
            for query, known in (Run(decision.query, names), *runs):
                considered = self.consider(query, known, now, values)
                if not isinstance(considered, NotAnAnswer):
                    break
        except LedgerUnavailableError:
            return Judged(self._led_by(unavailable(self.policy), decision, names))
        if isinstance(considered, Halted):
            refusal = self._led_by(halted(considered.halt, self.policy), decision, names)
            return Judged(refusal, part=considered.part)
        if isinstance(considered, Repair):
            return Judged(decision, considered, considered.part)
        return Judged(decision)

    def judge_refused(
        self, decision: Reject, names: Names, now: float, values: Sequence[Parameter] = ()
    ) -> Judged:
        """``judge`` and ``refused`` in one: the refusal as it is to be told, which the ledger knows of."""
        judged = self.judge(decision, names, now, values)
        if judged.decision is not decision:
            return judged
        told = self.refused(decision, names, judged.repair, now, values=values)
        return Judged(told.decision, judged.repair, told.part)

    def consider(
        self, query: QueryString, names: Names, now: float, values: Sequence[Parameter] = ()
    ) -> Considered:
        """What ``query`` is to the refusals before it; takes the turn it needs."""
        if not self.watching:
            return NotAnAnswer()
        made = attempt(query, names, values)
        return self.ledger.consider(self.scope, self.connection, made, now)

    def refused(
        self,
        decision: Reject,
        names: Names,
        repair: Repair | None,
        now: float,
        *,
        values: Sequence[Parameter] = (),
        tried: Tried | None = None,
    ) -> Refused:
        """A refusal as it is to be told: it opens a lineage, or spends the turn of the one it answers.

        ``repair`` is what its statement was judged to be, also where it was let run and then went too far;
        ``values`` are those bound, ``tried`` is what the clone had said of it by then.
        """
        if not self.kept:
            return Refused(decision)
        finding = finding_of_rejection(decision.query, names, decision.violations)
        if repair is None:
            part = None
            watch = watches(self.policy, decision.statement_class, finding)
            if decision.repair.allowed or watch:
                watch = watch and not decision.repair.allowed
                part = self._open(
                    _Refused(decision.query, names, values, finding), now, watch=watch, tried=tried
                )
            if decision.repair.allowed and (part is None or self.ledger.down):
                violations = (*decision.violations, unkept(self.policy))
                halt = Halt.REPAIR_BUDGET_EXHAUSTED
                return Refused(replace(decision, violations=violations, repair=RepairTerms(), halt=halt))
            return Refused(decision, part)
        if repair.turns_left > 0 and decision.repair.allowed:
            self._failed_again(repair, _Refused(decision.query, names, values, finding), now, tried)
            left = replace(decision.repair, turns_left=repair.turns_left)
            return Refused(replace(decision, repair=left), repair.part)
        self._tell(lambda: self.ledger.settled(repair, Outcome.REJECTED, now, tried=_brief(tried)))
        spent = replace(decision, repair=RepairTerms(), halt=Halt.REPAIR_BUDGET_EXHAUSTED)
        return Refused(spent, repair.part)

    def failed(
        self,
        decision: Decision,
        names: Names,
        fields: Mapping[str, str],
        now: float,
        *,
        repair: Repair | None = None,
        judged: bool = True,
        at_bind: bool = False,
        timed_out: bool = False,
        values: Sequence[Parameter] = (),
        tried: Tried | None = None,
    ) -> Failed:
        """PostgreSQL refused the statement of ``decision`` with an ErrorResponse; what that leaves.

        ``fields`` are by the names of the wire's decoder (``sqlstate``, ``position``, ``column``). ``repair``
        is what the statement was judged to be, ``judged`` False where nobody has asked: it may be a repair
        after all. ``at_bind`` as in ``repair.finding_of_error``; ``timed_out`` as in ``lineage.may_open``.
        ``values`` are those bound: of the same statement with others it tells nothing. ``tried`` is what the
        clone said of the statement, where it was to be tried.
        """
        sqlstate = fields.get("sqlstate", "")
        statement_class = decision.statement_class
        if not self.kept or statement_class is None:
            return Failed()
        if not judged:
            considered = self.consider(decision.query, names, now)
            if isinstance(considered, Halted):
                return Failed(0, considered.part)
            repair = considered if isinstance(considered, Repair) else None
        finding = None
        if may_open(self.policy, statement_class, sqlstate, timed_out=timed_out):
            position = int(fields["position"]) if "position" in fields else None
            finding = finding_of_error(
                sqlstate, decision.query, names, position, column=fields.get("column"), at_bind=at_bind
            )
        if repair is None and finding is not None:
            part = self._open(_Refused(decision.query, names, values, finding), now, tried=tried)
            kept = part is not None and not self.ledger.down
            return Failed(self.policy.repair.turns if kept else 0, part)
        if repair is None:
            return Failed()
        if finding is not None and repair.turns_left > 0:
            self._failed_again(repair, _Refused(decision.query, names, values, finding), now, tried)
            return Failed(repair.turns_left, repair.part)
        self.settled(repair, sqlstate, now, tried=tried)
        return Failed(0, repair.part)

    def leaves(self, decision: Decision, sqlstate: str) -> int:
        """The turns that such an error leaves, if the statement of ``decision`` is no repair."""
        cls = decision.statement_class
        opens = self.kept and cls is not None and may_open(self.policy, cls, sqlstate)
        return self.policy.repair.turns if opens and not self.ledger.down else 0

    def settled(
        self,
        repair: Repair,
        sqlstate: str | None,
        now: float,
        *,
        known: bool = True,
        tried: Tried | None = None,
    ) -> None:
        """What became of ``repair``: the error it ended with, None for success; ``known`` False where
        PostgreSQL read past it. ``tried`` as in ``failed``."""
        outcome = outcome_of(sqlstate) if known else Outcome.NOT_TRIED
        self._tell(lambda: self.ledger.settled(repair, outcome, now, tried=_brief(tried)))

    def _led_by(self, violation: Violation, decision: Decision, names: Names) -> Reject:
        """The refusal that ``violation`` leads, whatever the gate had to say as well."""
        others = decision.violations if isinstance(decision, Reject) else ()
        return refuse(self.policy, names, decision.query, (violation, *others))

    def _open(
        self, refused: _Refused, now: float, *, watch: bool = False, tried: Tried | None = None
    ) -> Part | None:
        # Known at once, also where the ledger is told later.
        name = new_id()

        def tell() -> str | None:
            return self.ledger.open(
                self.scope,
                self.connection,
                refused.attempt(),
                refused.finding,
                now=now,
                rules=self.policy.repair,
                watch=watch,
                tried=_brief(tried),
                name=name,
            )

        if self.later is None:
            return None if tell() is None else Part(name, 0)
        self.later(tell)
        return Part(name, 0)

    def _failed_again(self, repair: Repair, refused: _Refused, now: float, tried: Tried | None) -> None:
        self._tell(
            lambda: self.ledger.settled(
                repair, Outcome.FAILED, now, Again(refused.attempt(), refused.finding), _brief(tried)
            )
        )

    def _tell(self, tell: Callable[[], object]) -> None:
        if self.later is None:
            tell()
        else:
            self.later(tell)


class _Refused(NamedTuple):
    """A refused statement, of which an attempt is made where the ledger is told of it."""

    query: QueryString
    names: Names
    values: Sequence[Parameter]
    finding: Finding

    def attempt(self) -> Attempt:
        return attempt(self.query, self.names, self.values, self.finding)


def _brief(tried: Tried | None) -> Tried | None:
    return None if tried is None else tried.brief()
