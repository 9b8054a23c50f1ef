"""The gate as a connection sees it: bytes of a query string in, a ruling out.

Owns the decision cache and nothing of how a decision is reached (``policy.decision``) or worded
(``policy.rejection``). One Gate serves every connection of one policy and agent. Knows no sockets.

The cache is keyed by the exact bytes and the search paths in force, never by a fingerprint, which merges
different names and values. It is bounded: when it is full the oldest entry goes and the next such statement
is decided again.
"""

from __future__ import annotations

import dataclasses
from typing import Final, TypeVar

import structlog

from policy.decision import Allow, Decision, Situation, decide
from policy.facts import (
    Facts,
    SessionAction,
    SessionRef,
    SettingHow,
    SettingRef,
)
from policy.model import Policy
from policy.names import PathNames
from policy.parse import parse, parse_heavy
from policy.rejection import Notice, Rejection, notice
from policy.settings import split_identifiers
from proxy.wire.backend import encode_notice

MAX_ENTRIES: Final = 10_000
"""Cached rulings per Gate."""
MAX_PATHS: Final = 64
"""Search paths for which rulings are kept."""
MAX_CACHED_TEXT: Final = 4_096
"""Longer texts are decided each time: they rarely recur, and bound the cache's memory. In bytes."""

_PATH_SETTING: Final = "search_path"

log = structlog.get_logger("pgturnstile.gate")

Key = TypeVar("Key")
Value = TypeVar("Value")


class Ruling:
    """A decision with what a session must know of it, worked out once.

    ``text`` is what was judged and ``names`` the search paths it was judged under. ``plain`` is True when
    forwarding the statement changes nothing the session keeps track of. ``executes`` are the names SQL
    EXECUTE runs; ``actions`` what the statement does to the session's names; ``paths`` the settings of
    search_path it makes, ``resets_path`` that it puts the path back to its start.
    """

    __slots__ = (
        "actions",
        "allowed",
        "copies",
        "decision",
        "executes",
        "names",
        "notice",
        "paths",
        "plain",
        "resets_path",
        "statements",
        "text",
    )

    def __init__(self, decision: Decision, policy: Policy, text: bytes, names: PathNames) -> None:
        self.text = text
        self.names = names
        facts = decision.query.statements
        self.decision = decision
        self.allowed = isinstance(decision, Allow)
        self.notice = _notices(decision, policy)
        self.statements = len(facts)
        self.copies = any(f.copies for f in facts)
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
        self.plain = not (self.actions or self.executes or self.paths or self.resets_path)


class Gate:
    """decide() for one policy and agent, with a cache in front."""

    def __init__(self, policy: Policy, agent: str, statement_bytes: int) -> None:
        self.policy = policy
        self.agent = agent
        self._statement_bytes = statement_bytes
        self._caches: dict[PathNames, dict[bytes, Ruling]] = {}

    def cache(self, names: PathNames) -> dict[bytes, Ruling]:
        """The rulings known under ``names``: a session looks there first, by the exact bytes."""
        known = self._caches.get(names)
        if known is None:
            _make_room(self._caches, MAX_PATHS)
            known = self._caches[names] = {}
        return known

    def rule(self, text: bytes, names: PathNames) -> Ruling | None:
        """The ruling on ``text``; None when it is so large that it must be judged off the event loop."""
        if parse_heavy(text):
            return None
        ruling = self.rule_slowly(text, names)
        if ruling.allowed and len(text) <= MAX_CACHED_TEXT:
            cache = self.cache(names)
            _make_room(cache, MAX_ENTRIES)
            cache[text] = ruling
        return ruling

    def rule_slowly(self, text: bytes, names: PathNames) -> Ruling:
        """The same for a text of any size, without the cache: safe to call from another thread."""
        query = parse(text, self._statement_bytes)
        decision = decide(self.policy, Situation(self.agent, names), query)
        for failure in decision.failures:
            log.error("a rule failed and refused", rule=failure.rule, exc_info=failure.error)
        return Ruling(decision, self.policy, text, names)


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
