"""The gate as a connection sees it: bytes of a query string in, a ruling out.

Owns what is remembered when, and nothing of how a decision is reached (``policy.decision``) or worded
(``policy.rejection``). One Gate serves every connection of one policy and agent. Knows no sockets.

What is remembered (``rulings``) is kept apart by the meaning that names have along the search paths in force.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import structlog

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, SessionNames, UnreadCatalog
from policy.cost import Question, judge
from policy.decision import Allow, Decision, Reject, Situation, decide, refuse
from policy.engine_errors import enrich
from policy.facts import ParseFailure, QueryString
from policy.hidden_code import hides
from policy.ledger import Ledger, MemoryLedger
from policy.lifting import comments, spans
from policy.model import Policy, Violation
from policy.names import PathNames, SearchPath
from policy.parse import parse
from policy.plan import PlanFormatError, parse_plan
from policy.price import catalog_of, priceable
from policy.rejection import notice
from policy.rules import (
    affected_rows_over_limit,
    unpriceable,
)
from policy.temporary import may_hold_temporary
from proxy.catalogs import CatalogView
from proxy.dsn import CloneTarget
from proxy.meters import GateMeter
from proxy.pace import Pace
from proxy.ruling import Price, Priced, Ruling, error_fields
from proxy.rulings import MAX_TEXT, Rulings
from proxy.wire.backend import decode_row, encode_notice

MAX_PATHS: Final = 64
"""Search paths for which rulings are kept."""

PRICE_HOLDS_S: Final = 60.0
"""How long a price that no value can change is not asked again, in seconds: it grows with the tables."""
MAX_PRICES: Final = 16
"""Combinations of parameter types for which a statement's price is kept."""

log = structlog.get_logger("pgturnstile.gate")

Key = TypeVar("Key")
Value = TypeVar("Value")


JudgeApart = Callable[[bytes, SessionNames], Awaitable[Ruling]]


class Gate:
    """decide() for one policy, agent and database, with a cache in front.

    ``catalog`` is the database's; without one, names are taken as the text and the search path give them.
    ``ledger`` knows the turns of repairs, of other gates and connections too. ``meter`` counts, for other
    gates as well. ``clone`` is where the policy's ``sandbox`` tries statements.
    """

    def __init__(
        self,
        policy: Policy,
        agent: str,
        statement_bytes: int,
        catalog: CatalogView | None = None,
        ledger: Ledger | None = None,
        *,
        meter: GateMeter | None = None,
        clone: CloneTarget | None = None,
    ) -> None:
        self.ledger = MemoryLedger() if ledger is None else ledger
        self.meter = GateMeter() if meter is None else meter
        self.policy = policy
        self.agent = agent
        self.statement_bytes = statement_bytes
        self.clone = clone
        self.catalog = catalog
        self._pace = Pace()
        self._temporary: tuple[Catalog, bool] | None = None
        self._names: dict[CatalogNames, CatalogNames] = {}
        """Of the newest snapshot alone: one object for sessions that mean the same, which a look tells."""
        self._caches: dict[SessionNames, Rulings] = {}

    @property
    def generation(self) -> Catalog | None:
        """What the names of a session rest on: where it is another object than before, ``names`` are due
        again, and with them ``cache``. None where there is no catalog, or none that can be trusted."""
        return self.catalog.current if self.catalog is not None else None

    def names(
        self, paths: tuple[SearchPath, ...], *, unsettled: bool = False, temporary: bool = False
    ) -> SessionNames:
        """What names mean now along ``paths``; ``unsettled`` as in ``CatalogNames``, and ``temporary`` for a
        session that may hold temporary relations whatever this policy lets it make."""
        if self.catalog is None:
            return PathNames(paths)
        catalog = self.catalog.current
        if catalog is None:
            return UnreadCatalog(paths, self.catalog.database)
        if self._temporary is None or self._temporary[0] is not catalog:
            self._temporary = (catalog, may_hold_temporary(self.policy, catalog))
            self._names = {}
        temporary = temporary or self._temporary[1]
        names = CatalogNames(catalog, paths, temporary=temporary, unsettled=unsettled)
        known = self._names.get(names)
        if known is None:
            _make_room(self._names, MAX_PATHS)
            known = self._names[names] = names
        return known

    async def renewed(
        self, paths: tuple[SearchPath, ...], *, unsettled: bool = False, temporary: bool = False
    ) -> SessionNames:
        """``names`` by a snapshot that shows everything committed by now."""
        if self.catalog is not None and not await self.catalog.renew():
            return UnreadCatalog(paths, self.catalog.database)
        return self.names(paths, unsettled=unsettled, temporary=temporary)

    def enrich(
        self,
        fields: Mapping[str, str],
        ruling: Ruling,
        turns_left: int,
        error_id: str = "",
        *,
        sandbox: bool = False,
    ) -> Mapping[str, str] | None:
        """PostgreSQL's error to the statement of ``ruling`` as its agent is sent it; None: as it came.

        ``fields`` are by the names of ``wire.backend``; ``turns_left`` are the repairs that the error leaves.
        ``sandbox``: the clone raised it.
        """
        query, names = ruling.decision.query, ruling.names
        placed = _placed(fields, ruling.decision)
        told = enrich(
            placed, query, names, self.policy, turns_left=turns_left, error_id=error_id, sandbox=sandbox
        )
        return told if told is not None or placed is fields else placed

    def cache(self, names: SessionNames) -> Rulings:
        """The rulings known under ``names``: a session looks there first."""
        known = self._caches.get(names)
        if known is None:
            self._drop_outdated(names)
            _make_room(self._caches, MAX_PATHS)
            known = self._caches[names] = Rulings(lookups=self.meter.lookups)
        return known

    def _drop_outdated(self, names: SessionNames) -> None:
        """Keep no ruling, and no snapshot, of a schema that is no more."""
        catalog = names.catalog if isinstance(names, CatalogNames) else None
        if catalog is not None:
            outdated = [n for n in self._caches if not isinstance(n, CatalogNames) or n.catalog != catalog]
            for other in outdated:
                del self._caches[other]

    def rule(self, text: bytes, names: SessionNames) -> Ruling | None:
        """The ruling on ``text``; None where it takes time (``rule_surely``).

        It does for a text that is large by how long this agent's take (``pace``), and to make sure of a
        refusal that rests on what the catalog lacks.
        """
        if not self._pace.allows(len(text)):
            return None
        ruling = self.rule_slowly(text, names)
        if ruling.doubtful and isinstance(names, CatalogNames):
            return None
        if ruling.allowed:
            self._remember(ruling)
        return ruling

    def _remember(self, ruling: Ruling) -> None:
        names = ruling.names
        if ruling.count is not None:
            self.cache(names).keep(ruling)
            return
        lifted = spans(ruling.decision)
        # What a comment says changes no price.
        keyed = not lifted or (ruling.question is not None and ruling.question.keyed)
        self.cache(names).keep(ruling, lifted, comments(ruling.decision), keyed=keyed)

    async def rule_surely(
        self,
        text: bytes,
        names: SessionNames,
        judge_apart: JudgeApart,
        *,
        renew: bool = False,
        temporary: bool = False,
    ) -> Ruling:
        """The ruling on a text of any size; ``judge_apart`` runs ``rule_slowly`` elsewhere.

        With ``renew``, and before a refusal that rests on what the catalog lacks, the catalog is asked again;
        ``temporary`` as in ``names``.
        """
        if renew:
            names = await self.renewed(names.paths, temporary=temporary)
        ruling = await judge_apart(text, names)
        if ruling.doubtful and not renew and isinstance(names, CatalogNames):
            fresh = await self.renewed(names.paths, unsettled=names.unsettled, temporary=temporary)
            if fresh != names:
                ruling = await judge_apart(text, fresh)
        if ruling.allowed and len(text) <= MAX_TEXT and not isinstance(ruling.names, UnreadCatalog):
            self._remember(ruling)
        return ruling

    def rule_slowly(self, text: bytes, names: SessionNames) -> Ruling:
        """The same for a text of any size, without the cache: safe to call from another thread."""
        began, began_cpu = time.perf_counter(), time.thread_time()
        query = parse(text, self.statement_bytes)
        decision = decide(self.policy, Situation(self.agent, names), query)
        decision, question = priceable(decision, self.policy, names)
        ruling = self.ruled(decision, question, text, names, hides=hides(decision, names))
        self.meter.judged(time.perf_counter() - began)
        self._pace.took(len(text), time.thread_time() - began_cpu)
        return ruling

    def ruled(
        self,
        decision: Decision,
        question: Question | None,
        text: bytes,
        names: SessionNames,
        *,
        hides: bool = False,
    ) -> Ruling:
        """The ruling that ``decision`` is; ``question`` is what its price is asked by, if it has one, and
        ``hides`` whether it lets code run that the text does not show."""
        for failure in decision.failures:
            log.error("a rule failed and refused", rule=failure.rule, exc_info=failure.error)
        return Ruling(decision, self.policy, text, names, question, hides=hides)

    def unjudged(self, text: bytes, names: SessionNames, reason: str) -> Ruling:
        """The ruling on a text that could not be judged: what is not understood is not let through."""
        failure = ParseFailure("not-understood", f"the statement was not judged: {reason}", "54001")
        query = QueryString(text.decode(errors="replace"), failure=failure)
        decision = decide(self.policy, Situation(self.agent, names), query)
        return self.ruled(decision, None, text, names)

    def priced(self, ruling: Ruling, rows: Sequence[bytes], types: tuple[int, ...], now: float) -> Priced:
        """What EXPLAIN's answer makes of ``ruling``; ``rows`` are its DataRow bodies, ``now`` in seconds."""
        priced = self.weighed(ruling, rows, now)
        self.keep(ruling, types, priced)
        return priced

    def keep(self, ruling: Ruling, types: tuple[int, ...], priced: Priced) -> None:
        """Remember the price of ``ruling`` with parameters of ``types``, where no value can change it."""
        if priced.price is not None and ruling.question is not None and ruling.question.reusable:
            _make_room(ruling.prices, MAX_PRICES)
            ruling.prices[types] = priced.price

    def weighed(self, ruling: Ruling, rows: Sequence[bytes], now: float) -> Priced:
        """``priced`` for this one use, as of an answer that was given earlier: safe to call from another
        thread."""
        query = ruling.decision.query
        facts = query.statements[0]
        try:
            plan = parse_plan(b"\n".join(decode_row(row)[0] or b"" for row in rows))
        except PlanFormatError as error:
            log.error("a plan could not be read", exc_info=error)
            return Priced(self.refused(ruling, (unpriceable.unread(self.policy),), None), None)
        verdict = judge(plan, facts, self.policy, datetime.now(UTC).date(), catalog_of(ruling.names))
        for failure in verdict.failures:
            log.error("a rule failed and refused", rule=failure.rule, exc_info=failure.error)
        if verdict.violations:
            return Priced(self.refused(ruling, verdict.violations, verdict.cost), None)
        notice_bytes = b"".join(encode_notice(error_fields(notice(w, self.policy))) for w in verdict.warnings)
        return Priced(None, Price(now + PRICE_HOLDS_S, verdict.cost, notice_bytes, tuple(rows)))

    def unpriced(self, ruling: Ruling) -> Ruling:
        """The refusal of a statement whose price could not be had in time."""
        return self.refused(ruling, (unpriceable.too_slow(self.policy),), None)

    def unasked(self, ruling: Ruling) -> Ruling:
        """The refusal of what was opened when nobody asked for its price, and now has to have one."""
        return self.refused(ruling, (unpriceable.unasked(self.policy),), None)

    def exchanged(self, ruling: Ruling) -> Ruling:
        """The refusal of what was priced when it was bound, and runs another statement by now."""
        return self.refused(ruling, (unpriceable.exchanged(self.policy),), None)

    def foreseen(self, ruling: Ruling, cost: Mapping[str, Any] | None) -> Ruling:
        """The refusal of a statement that was counted to write too many rows; ``cost`` is its plan's."""
        told = {**(cost or {}), "limit": "affected_rows", "ceiling": self.policy.limits.affected_rows}
        return self.refused(ruling, (affected_rows_over_limit.foreseen(self.policy),), told)

    def exceeded(self, decision: Decision, names: SessionNames, violation: Violation) -> Reject:
        """The refusal of a statement that was let run and went over a limit."""
        return refuse(self.policy, names, decision.query, (violation,))

    def reworded(self, ruling: Ruling, decision: Reject) -> Ruling:
        """The same ruling told as ``decision``."""
        return Ruling(decision, self.policy, ruling.text, ruling.names)

    def refused(
        self, ruling: Ruling, violations: tuple[Violation, ...], cost: Mapping[str, Any] | None = None
    ) -> Ruling:
        """The refusal of the statement of ``ruling`` that ``violations`` make."""
        decision = refuse(self.policy, ruling.names, ruling.decision.query, violations, cost)
        return Ruling(decision, self.policy, ruling.text, ruling.names)


def _placed(fields: Mapping[str, str], decision: Decision) -> Mapping[str, str]:
    """``fields`` of an error with the position it has in the statement as the agent sent it."""
    rewritten = decision.rewritten if isinstance(decision, Allow) else None
    position = fields.get("position", "")
    if rewritten is None or not position.isdecimal():
        return fields
    return {**fields, "position": str(rewritten.position(int(position)))}


def _make_room(cache: dict[Key, Value], limit: int) -> None:
    while len(cache) >= limit:
        del cache[next(iter(cache))]
