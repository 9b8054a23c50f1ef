"""The gate as a connection sees it: bytes of a query string in, a ruling out.

Owns the decision cache and nothing of how a decision is reached (``policy.decision``) or worded
(``policy.rejection``). One Gate serves every connection of one policy and agent. Knows no sockets.

The cache is keyed by the exact bytes and the search paths in force, never by a fingerprint, which merges
different names and values. It is bounded: when it is full the oldest entry goes and the next such statement
is decided again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, SessionNames, UnreadCatalog
from policy.cost import Question, judge
from policy.decision import Allow, Decision, Reject, Situation, decide, refuse
from policy.engine_errors import enrich
from policy.facts import Facts, SessionAction, SessionRef, SettingHow, SettingRef
from policy.ledger import Ledger, MemoryLedger
from policy.model import Policy, StatementClass, Violation
from policy.names import PathNames, SearchPath
from policy.parse import parse, parse_heavy
from policy.plan import PlanFormatError, parse_plan
from policy.price import catalog_of, priceable
from policy.rejection import Notice, Rejection, notice
from policy.rules import (
    affected_rows_over_limit,
    insert_missing_not_null,
    unknown_column,
    unknown_function,
    unknown_relation,
    unpriceable,
)
from policy.running import running
from policy.settings import split_identifiers
from policy.temporary import may_hold_temporary
from proxy.catalogs import CatalogView
from proxy.wire.backend import decode_row, encode_notice

MAX_ENTRIES: Final = 10_000
"""Cached rulings per Gate."""
MAX_PATHS: Final = 64
"""Search paths for which rulings are kept."""
MAX_CACHED_TEXT: Final = 4_096
"""Longer texts are decided each time: they rarely recur, and bound the cache's memory. In bytes."""

PRICE_HOLDS_S: Final = 60.0
"""How long a price that no value can change is not asked again, in seconds: it grows with the tables."""
MAX_PRICES: Final = 16
"""Combinations of parameter types for which a statement's price is kept."""

_REST_ON_ABSENCE: Final = frozenset(
    rule.NAME for rule in (unknown_relation, unknown_column, unknown_function, insert_missing_not_null)
)
"""Rules that object because the catalog lacks something."""
_UNDEFINED_OBJECT: Final = "42704"
_PATH_SETTING: Final = "search_path"
_ALTERING: Final = frozenset(
    {StatementClass.DDL, StatementClass.DO, StatementClass.CALL, StatementClass.OTHER}
)
"""Classes of statements that may change the schema."""

log = structlog.get_logger("pgturnstile.gate")

Key = TypeVar("Key")
Value = TypeVar("Value")


class Price(NamedTuple):
    """A price within the limits. ``until`` is the clock's reading up to which it need not be asked again."""

    until: float
    cost: Mapping[str, Any]
    notice: bytes = b""


class Ruling:
    """A decision with what a session must know of it, worked out once.

    ``text`` is what was judged and ``names`` the search paths, and catalog, it was judged under. ``alters``
    is True where running it may change the schema that later names are looked up in; ``doubtful`` where it is
    refused for what the catalog lacks, which may have been made since it was read. ``plain`` is True when
    forwarding the statement changes nothing the session keeps track of. ``executes`` are the names SQL
    EXECUTE runs; ``actions`` what the statement does to the session's names; ``paths`` the settings of
    search_path it makes, ``resets_path`` that it puts the path back to its start. ``question`` is what to ask
    about its price; ``prices`` those that hold whatever values are bound, by the types of the parameters.
    ``running`` is what it does to rows.
    """

    __slots__ = (
        "actions",
        "allowed",
        "alters",
        "copies",
        "decision",
        "doubtful",
        "executes",
        "names",
        "notice",
        "paths",
        "plain",
        "prices",
        "question",
        "resets_path",
        "running",
        "statements",
        "text",
    )

    def __init__(
        self,
        decision: Decision,
        policy: Policy,
        text: bytes,
        names: SessionNames,
        question: Question | None = None,
    ) -> None:
        self.text = text
        self.names = names
        self.question = question
        self.prices: dict[tuple[int, ...], Price] = {}
        facts = decision.query.statements
        self.decision = decision
        self.allowed = isinstance(decision, Allow)
        self.doubtful = isinstance(decision, Reject) and any(map(_rests_on_absence, decision.violations))
        self.notice = _notices(decision, policy)
        self.statements = len(facts)
        self.copies = any(f.copies for f in facts)
        self.running = running(decision.query)
        self.alters = any(not f.classes.isdisjoint(_ALTERING) for f in facts)
        self.actions: tuple[SessionRef, ...] = tuple(ref for f in facts for ref in _top_level(f))
        self.executes: tuple[str, ...] = tuple(
            ref.name
            for f in facts
            for ref in f.session
            if ref.action is SessionAction.EXECUTE and ref.name is not None
        )
        changes = [s for f in facts for s in f.settings]
        self.paths: tuple[tuple[str, ...], ...] = tuple(
            path for change in changes if (path := _path(change)) is not None
        )
        self.resets_path = any(_resets_path(s) for s in changes) or any(
            ref.action is SessionAction.DISCARD_ALL for ref in self.actions
        )
        self.plain = not (self.actions or self.executes or self.paths or self.resets_path or self.alters)


JudgeApart = Callable[[bytes, SessionNames], Awaitable[Ruling]]


class Gate:
    """decide() for one policy, agent and database, with a cache in front.

    ``catalog`` is the database's; without one, names are taken as the text and the search path give them.
    ``ledger`` knows the turns of repairs, of other gates and connections too.
    """

    def __init__(
        self,
        policy: Policy,
        agent: str,
        statement_bytes: int,
        catalog: CatalogView | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.ledger = MemoryLedger() if ledger is None else ledger
        self.policy = policy
        self.agent = agent
        self._statement_bytes = statement_bytes
        self.catalog = catalog
        self._temporary: tuple[Catalog, bool] | None = None
        self._caches: dict[SessionNames, dict[bytes, Ruling]] = {}

    @property
    def generation(self) -> Catalog | None:
        """What the names of a session rest on: where it is another object than before, ``names`` are due
        again, and with them ``cache``. None where there is no catalog, or none that can be trusted."""
        return self.catalog.current if self.catalog is not None else None

    def names(self, paths: tuple[SearchPath, ...]) -> SessionNames:
        """What names mean now along ``paths``."""
        if self.catalog is None:
            return PathNames(paths)
        catalog = self.catalog.current
        if catalog is None:
            return UnreadCatalog(paths, self.catalog.database)
        if self._temporary is None or self._temporary[0] is not catalog:
            self._temporary = (catalog, may_hold_temporary(self.policy, catalog))
        return CatalogNames(catalog, paths, temporary=self._temporary[1])

    async def renewed(self, paths: tuple[SearchPath, ...]) -> SessionNames:
        """``names`` by a snapshot that shows everything committed by now."""
        if self.catalog is not None and not await self.catalog.renew():
            return UnreadCatalog(paths, self.catalog.database)
        return self.names(paths)

    def enrich(
        self, fields: Mapping[str, str], ruling: Ruling, error_id: str = ""
    ) -> Mapping[str, str] | None:
        """PostgreSQL's error to the statement of ``ruling`` as its agent is sent it; None: as it came.

        ``fields`` are by the names of ``wire.backend``.
        """
        return enrich(fields, ruling.decision.query, ruling.names, self.policy, error_id=error_id)

    def cache(self, names: SessionNames) -> dict[bytes, Ruling]:
        """The rulings known under ``names``: a session looks there first, by the exact bytes."""
        known = self._caches.get(names)
        if known is None:
            self._drop_outdated(names)
            _make_room(self._caches, MAX_PATHS)
            known = self._caches[names] = {}
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

        It does for a text that is large, and to make sure of a refusal that rests on what the catalog lacks.
        """
        if parse_heavy(text):
            return None
        ruling = self.rule_slowly(text, names)
        if ruling.doubtful and isinstance(names, CatalogNames):
            return None
        if ruling.allowed and len(text) <= MAX_CACHED_TEXT:
            cache = self.cache(names)
            _make_room(cache, MAX_ENTRIES)
            cache[text] = ruling
        return ruling

    async def rule_surely(
        self, text: bytes, names: SessionNames, judge_apart: JudgeApart, *, renew: bool = False
    ) -> Ruling:
        """The ruling on a text of any size; ``judge_apart`` runs ``rule_slowly`` in another thread.

        With ``renew``, and before a refusal that rests on what the catalog lacks, the catalog is asked again.
        """
        if renew:
            names = await self.renewed(names.paths)
        ruling = await judge_apart(text, names)
        if ruling.doubtful and not renew and isinstance(names, CatalogNames):
            fresh = await self.renewed(names.paths)
            if fresh != names:
                ruling = await judge_apart(text, fresh)
        return ruling

    def rule_slowly(self, text: bytes, names: SessionNames) -> Ruling:
        """The same for a text of any size, without the cache: safe to call from another thread."""
        query = parse(text, self._statement_bytes)
        decision = decide(self.policy, Situation(self.agent, names), query)
        for failure in decision.failures:
            log.error("a rule failed and refused", rule=failure.rule, exc_info=failure.error)
        return self._priceable(decision, text, names)

    def _priceable(self, decision: Decision, text: bytes, names: SessionNames) -> Ruling:
        """The ruling on what the rules allow: what its price is to be asked by, if it has one."""
        decision, asked = priceable(decision, self.policy, names)
        return Ruling(decision, self.policy, text, names, asked)

    def priced(self, ruling: Ruling, rows: Sequence[bytes], types: tuple[int, ...], now: float) -> Priced:
        """What EXPLAIN's answer makes of ``ruling``; ``rows`` are its DataRow bodies, ``now`` in seconds."""
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
        price = Price(now + PRICE_HOLDS_S, verdict.cost, notice_bytes)
        if ruling.question is not None and ruling.question.reusable:
            _make_room(ruling.prices, MAX_PRICES)
            ruling.prices[types] = price
        return Priced(None, price)

    def unpriced(self, ruling: Ruling) -> Ruling:
        """The refusal of a statement whose price could not be had in time."""
        return self.refused(ruling, (unpriceable.too_slow(self.policy),), None)

    def foreseen(self, ruling: Ruling, cost: Mapping[str, Any] | None) -> Ruling:
        """The refusal of a statement that was counted to write too many rows; ``cost`` is its plan's."""
        return self.refused(ruling, (affected_rows_over_limit.foreseen(self.policy),), cost)

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


class Priced(NamedTuple):
    """Either a refusal or a price."""

    refusal: Ruling | None
    price: Price | None


def _rests_on_absence(violation: Violation) -> bool:
    return violation.rule in _REST_ON_ABSENCE or violation.sqlstate == _UNDEFINED_OBJECT


def _make_room(cache: dict[Key, Value], limit: int) -> None:
    while len(cache) >= limit:
        del cache[next(iter(cache))]


def _top_level(facts: Facts) -> tuple[SessionRef, ...]:
    return tuple(ref for ref in facts.session if ref.action is not SessionAction.EXECUTE)


def _path(change: SettingRef) -> tuple[str, ...] | None:
    """The schemas that ``change`` makes the search_path, as written; None where it sets none."""
    if change.name != _PATH_SETTING or change.values is None:
        return None
    if change.how is SettingHow.SET:
        return change.values
    # set_config takes the list as one text; a text that is no list fails in the server.
    return split_identifiers(",".join(change.values)) or ()


def _resets_path(change: SettingRef) -> bool:
    if change.how is SettingHow.RESET_ALL:
        return True
    return change.name == _PATH_SETTING and change.values is None


def error_fields(said: Rejection | Notice) -> dict[str, str]:
    """What the policy side says, by the field names of ``wire.backend``; None is left out."""
    named = {field.name: getattr(said, field.name) for field in dataclasses.fields(said)}
    return {name: str(value) for name, value in named.items() if value is not None}


def _notices(decision: Decision, policy: Policy) -> bytes:
    if not isinstance(decision, Allow):
        return b""
    return b"".join(encode_notice(error_fields(notice(w, policy))) for w in decision.warnings)
