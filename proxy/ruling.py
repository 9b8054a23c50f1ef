"""A ruling: the gate's decision on one query string, with what a session must know of it.

Owns the value and what of it is worked out once, when it is made. Knows neither caches (``rulings``) nor how
a decision comes about (``gate``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from policy import sandbox
from policy.catalog_names import SessionNames
from policy.cost import Question, asked_like
from policy.decision import Allow, Decision, Reject
from policy.facts import Facts, SessionAction, SessionRef, SettingHow, SettingRef, TransactionKind
from policy.lifting import Lifted
from policy.model import Policy, RuleLevel, Violation
from policy.rejection import Notice, Rejection, notice
from policy.rules import (
    insert_missing_not_null,
    unknown_column,
    unknown_function,
    unknown_relation,
)
from policy.running import running
from policy.settings import split_identifiers
from policy.temporary import alters
from proxy.wire.backend import encode_notice

_REST_ON_ABSENCE: Final = frozenset(
    rule.NAME for rule in (unknown_relation, unknown_column, unknown_function, insert_missing_not_null)
)
"""Rules that object because the catalog lacks something."""
_ANALYSED: Final = frozenset(
    {"SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt"}
    | {"DeclareCursorStmt", "CreateTableAsStmt", "ExplainStmt", "CallStmt"}
)
"""Statement nodes whose names PostgreSQL looks up before it binds them (transformStmt in analyze.c)."""
_UNDEFINED_OBJECT: Final = "42704"
_PATH_SETTING: Final = "search_path"
_ENDING: Final = frozenset(
    {
        TransactionKind.COMMIT,
        TransactionKind.ROLLBACK,
        TransactionKind.ROLLBACK_TO,
        TransactionKind.PREPARE,
    }
)


class Price(NamedTuple):
    """A price within the limits. ``until`` is the clock's reading up to which it need not be asked again,
    ``plan`` what it was read from: the bodies of EXPLAIN's DataRow messages."""

    until: float
    cost: Mapping[str, Any]
    notice: bytes = b""
    plan: tuple[bytes, ...] = ()


class Ruling:
    """A decision with what a session must know of it, worked out once.

    ``text`` is what was judged and ``policy`` by what; ``names`` are the search paths, and catalog, it was
    judged under. ``alters`` is True where running it may change the schema that later names are looked up in;
    ``doubtful`` where it is refused for what the catalog lacks, which may have been made since it was read.
    ``plain`` is True when forwarding the statement changes nothing the session keeps track of. ``declares``
    that it opens a cursor which needs a transaction around it. ``executes`` are the names SQL EXECUTE runs;
    ``actions`` what the statements do to the session's names, ``places`` which of them does it; ``paths`` the
    settings of search_path it makes, ``resets_path`` that it puts the path back to its start, ``hides`` that
    code which the text does not show may do either, ``ends`` that it ends a transaction or a part of one,
    which may bring an earlier path back. ``priced`` says that there is a ``question`` to ask
    about its price, ``count`` what to ask about the rows it would write; ``prices`` are those that hold
    whatever values are bound, by the types of the parameters. ``running`` is what it does to rows.
    ``forward`` is what goes to the server in the place of ``text``, None where that is ``text`` itself.
    ``tried`` says that the policy wants it tried on a clone first. ``wanted`` are the numbers of parameters
    that may not be bound to NULL.
    """

    __slots__ = (
        "_question",
        "actions",
        "allowed",
        "alters",
        "copies",
        "count",
        "decision",
        "declares",
        "doubtful",
        "ends",
        "executes",
        "forward",
        "hides",
        "names",
        "names_late",
        "notice",
        "paths",
        "places",
        "plain",
        "policy",
        "priced",
        "prices",
        "resets_path",
        "running",
        "statements",
        "text",
        "tried",
        "wanted",
    )

    def __init__(
        self,
        decision: Decision,
        policy: Policy,
        text: bytes,
        names: SessionNames,
        question: Question | None = None,
        *,
        hides: bool = False,
    ) -> None:
        self.text = text
        self.policy = policy
        self.names = names
        self._question = question
        self.priced = question is not None
        self.count = None if question is None else question.count
        self.prices: dict[tuple[int, ...], Price] = {}
        facts = decision.query.statements
        self.decision = decision
        self.allowed = isinstance(decision, Allow)
        rewritten = decision.rewritten if isinstance(decision, Allow) else None
        self.forward: bytes | None = None if rewritten is None else rewritten.text.encode()
        self.doubtful = isinstance(decision, Reject) and any(map(_rests_on_absence, decision.violations))
        self.notice = _notices(decision, policy)
        self.tried = sandbox.asks(policy, decision)
        self.wanted = _wanted(facts, names, policy) if self.allowed else frozenset[int]()
        self.statements = len(facts)
        self.copies = any(f.copies for f in facts)
        self.running = running(decision.query)
        self.alters = any(map(alters, facts))
        self.actions: tuple[SessionRef, ...] = tuple(ref for f in facts for ref in _top_level(f))
        self.places: tuple[int, ...] = tuple(n for n, f in enumerate(facts) for _ in _top_level(f))
        self.names_late = any(f.node not in _ANALYSED for f in facts)
        self.declares = any(ref.action is SessionAction.DECLARE and not ref.hold for ref in self.actions)
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
        self.ends = any(ref.kind in _ENDING for f in facts for ref in f.transactions)
        self.hides = hides
        changes_path = self.paths or self.resets_path or self.ends or self.hides
        self.plain = not (self.actions or self.executes or changes_path or self.alters)

    @property
    def sent(self) -> bytes:
        """What the server is sent of it."""
        return self.text if self.forward is None else self.forward

    @property
    def question(self) -> Question | None:
        """What to ask about the price; None where none is needed."""
        return self._question


class Priced(NamedTuple):
    """Either a refusal or a price."""

    refusal: Ruling | None
    price: Price | None


class LiftedRuling(Ruling):
    """The ruling on ``text``, which is that of ``like`` but for what ``policy.lifting`` lets be another.

    With ``keyed`` that cannot change its price either, which both then share (``cost.Question.keyed``).
    """

    __slots__ = ("_like",)

    def __init__(self, like: Ruling, text: bytes, *, keyed: bool) -> None:
        decided = like.decision
        query = Lifted(text.decode("ascii"), decided.query)
        self.decision = Allow(query, decided.statement_class, basis=decided.basis)
        self.text = text
        self.policy = like.policy
        self.names = like.names
        self._question = None
        self._like = like
        self.priced = like.priced
        self.count = like.count
        self.prices = like.prices if keyed else {}
        self.allowed = like.allowed
        self.forward = None
        self.doubtful = like.doubtful
        self.notice = like.notice
        self.tried = like.tried
        self.wanted = like.wanted
        self.statements = like.statements
        self.copies = like.copies
        self.running = like.running
        self.alters = like.alters
        self.actions = like.actions
        self.places = like.places
        self.declares = like.declares
        self.names_late = like.names_late
        self.executes = like.executes
        self.paths = like.paths
        self.resets_path = like.resets_path
        self.ends = like.ends
        self.hides = like.hides
        self.plain = like.plain

    @property
    def question(self) -> Question | None:
        """What to ask about the price of this very text: put together when somebody asks."""
        like = self._like.question
        if self._question is None and like is not None:
            self._question = asked_like(like, self.decision.query.statements[0])
        return self._question


def _wanted(statements: Sequence[Facts], names: SessionNames, policy: Policy) -> frozenset[int]:
    rule = insert_missing_not_null
    if policy.level(rule.NAME, rule.DEFAULT) is not RuleLevel.REJECT:
        return frozenset()
    return frozenset(number for facts in statements for number in rule.wanted(facts, names, policy))


def _rests_on_absence(violation: Violation) -> bool:
    return violation.rule in _REST_ON_ABSENCE or violation.sqlstate == _UNDEFINED_OBJECT


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
