"""The shape of a line of the audit file (README, "The audit file"): a record in, JSON out.

Owns what a line tells and in which order. Knows nothing of frames, of sessions, of how a decision came about
or of the file; it reads the values of ``policy`` and of ``proxy.effects``.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import structlog

from policy import parse
from policy.decision import Allow, Basis, Decision, Reject
from policy.facts import CallKind, Facts, QueryString
from policy.lifting import Lifted
from policy.lineage import CloseOut, agent_and_database
from policy.model import Violation
from proxy.config import Statements
from proxy.effects import AuditEntry

_CACHED_DECISIONS: Final = 2048
_CACHED_STATEMENT: Final = 4096
"""Characters above which a decision's members are rendered anew each time, so that the cache stays small."""

log = structlog.get_logger("pgturnstile.audit")


class ConnectionIdentity(NamedTuple):
    """Who asked: what is the same for every decision of one connection under one policy.

    ``application_name`` is the one given at start-up, None where none was: a later SET does not rename the
    connection. ``client`` is ``host:port``, or ``local`` for a Unix socket; ``connection`` the proxy's own id
    of the connection.
    """

    agent: str
    database: str
    backend_user: str
    application_name: str | None
    client: str
    connection: str
    policy_name: str
    policy_sha256: str


class Renderer:
    """Records to lines. Safe to share between threads.

    What is the same for every record of a decision, of a connection or of a price is rendered once and
    spliced in, and so is what statements have in common that differ in digits alone (``policy.lifting``).
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._decisions = _Cache()
        self._alike = _Cache()
        self._identities = _Cache()
        self._policies = _Cache()
        self._costs = _Cache()
        self._second = (-1, "")

    def knows(self, decision: Decision) -> bool:
        """Whether a line of ``decision`` is put together of what was rendered before."""
        query = decision.query
        if isinstance(query, Lifted) and self._alike.get(query.like) is not None:
            return True
        return self._decisions.get(decision) is not None

    def render(self, at: float, entry: AuditEntry, identity: ConnectionIdentity) -> str:
        """One line, ASCII, with its line feed. ``at`` is the time in seconds since the epoch.

        Never fails: a record that cannot be rendered becomes a line that says so, because a statement without
        a line, or a writer that died of one statement, would be worse.
        """
        try:
            return self._line(at, entry, identity)
        except Exception as error:
            log.exception("audit record not rendered", id=entry.id)
            return (
                _encode({"ts": _timestamp(at), "id": entry.id, "agent": identity.agent, "error": repr(error)})
                + "\n"
            )

    def _line(self, at: float, entry: AuditEntry, identity: ConnectionIdentity) -> str:
        who = self._identities.get(identity) or self._identities.put(identity, _identity_members(identity))
        policy = self._policies.get(identity) or self._policies.put(identity, _policy_members(identity))
        # By hand: an encoder takes three times as long to set itself up. Integers and texts that are encoded
        # leave nothing to escape.
        micros = round(entry.ms * 1000)
        return (
            f'{{"ts":"{self._time(at)}","id":{_text(entry.id)},{who},"protocol":{_text(entry.protocol)},'
            f"{self._decided(entry.decision)},{policy},"
            f'"outcome":{{"command_tag":{_text(entry.command_tag)},"rows":{entry.rows},'
            f'"bytes":{entry.bytes},"sqlstate":{_text(entry.sqlstate)},'
            f'"ms":{micros // 1000}.{_padded(micros % 1000, 1000)},"known":{_BOOL[entry.outcome_known]}}}'
            f"{self._further(entry)}}}\n"
        )

    def _time(self, at: float) -> str:
        second = int(at)
        micros = round((at - second) * 1_000_000)
        if micros == 1_000_000:
            second, micros = second + 1, 0
        known, clock = self._second
        if second != known:
            clock = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second = (second, clock)
        return f"{clock}.{_padded(micros, 1_000_000)}+00:00"

    def _decided(self, decision: Decision) -> str:
        known = self._decisions.get(decision)
        if known is not None:
            return known
        query = decision.query
        if isinstance(query, Lifted) and isinstance(decision, Allow):
            return self._lifted(decision, query)
        members = "".join(_decision_members(decision, self._statements))
        if len(query.sql) <= _CACHED_STATEMENT:
            self._decisions.put(decision, members)
        return members

    def _lifted(self, decision: Allow, query: Lifted) -> str:
        """The members of a decision of which all but the statement's text, and the trace in it, is that of
        others. Masked, it is theirs too: it has no comments."""
        whole = self._statements is Statements.FULL
        alike = self._alike.get(query.like)
        if alike is None:
            head, statement, _, tail = _decision_members(decision, self._statements)
            alike = self._alike.put(query.like, head + ("" if whole else statement) + _SEAM + tail)
        head, _, tail = alike.partition(_SEAM)
        return head + (_statement(query.sql) if whole else "") + _trace_member(query.sql) + tail

    def _further(self, entry: AuditEntry) -> str:
        """The members that few lines have."""
        decision = entry.decision
        refused = isinstance(decision, Reject)
        told = ""
        if entry.part is not None or (isinstance(decision, Reject) and decision.halt is not None):
            told = "," + _members({"repair": _repair(entry)})
        if entry.sandbox is not None:
            told += "," + _members(
                {"sandbox": entry.sandbox.as_json(full=self._statements is Statements.FULL)}
            )
        cost = decision.cost if isinstance(decision, Reject) else entry.cost
        if cost is None:
            return told
        members = None if refused else self._costs.get(cost)
        if members is None:
            members = _members({"cost": cost})
            if not refused:
                self._costs.put(cost, members)
        return f"{told},{members}"


def lost_records(at: float, records: int) -> str:
    """The line that says that ``records`` found no room in the queue before ``at`` and are nowhere."""
    return _encode({"ts": _timestamp(at), "event": "records_lost", "records": records}) + "\n"


def closed_line(record: CloseOut, statements: Statements) -> str:
    """The line of a refusal whose repair is over, one way or another; with its line feed."""
    full = statements is Statements.FULL
    agent, database = agent_and_database(record.scope)
    body = {
        "event": "repair_closed",
        "ts": _timestamp(record.closed),
        "lineage": record.lineage,
        "agent": agent,
        "database": database,
        "class": record.statement_class,
        "rule": record.reasons[0],
        "reasons": record.reasons,
        "opened": _timestamp(record.opened),
        "turns": record.turns,
        "halt": record.halt,
        "sandbox": None if record.tried is None else record.tried.as_json(full=full),
        "outcome": record.ending,
    }
    return _encode(body) + "\n"


class _Cache:
    """Members by the identity of the object they were rendered from; the oldest go first.

    The object is kept with its entry, so that its id cannot be given to another one meanwhile.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[object, str]] = {}
        self._changing = threading.Lock()

    def get(self, key: object) -> str | None:
        found = self._entries.get(id(key))
        return found[1] if found is not None else None

    def put(self, key: object, members: str) -> str:
        with self._changing:
            if len(self._entries) >= _CACHED_DECISIONS:
                del self._entries[next(iter(self._entries))]
            self._entries[id(key)] = (key, members)
        return members


def _padded(number: int, power: int) -> str:
    """``number``, below ``power`` of ten, with leading zeros: a format specification takes twice as long."""
    return str(power + number)[1:]


def _repair(entry: AuditEntry) -> dict[str, str | int | None]:
    """The lineage that the statement is of and its turn in it; why it may not be repaired."""
    part = entry.part
    return {
        "lineage": None if part is None else part.lineage,
        "turn": None if part is None else part.turn,
        "halt": entry.decision.halt if isinstance(entry.decision, Reject) else None,
    }


def _identity_members(identity: ConnectionIdentity) -> str:
    return _members(
        {
            "agent": identity.agent,
            "database": identity.database,
            "backend_user": identity.backend_user,
            "application_name": identity.application_name,
            "client": identity.client,
            "connection": identity.connection,
        }
    )


def _policy_members(identity: ConnectionIdentity) -> str:
    return _members({"policy": {"name": identity.policy_name, "sha256": identity.policy_sha256}})


def _decision_members(decision: Decision, statements: Statements) -> tuple[str, str, str, str]:
    """What a line tells of the decision: before the text of the statement, that, its trace, the rest."""
    violations = (
        (*decision.observed, *decision.warnings) if isinstance(decision, Allow) else decision.violations
    )
    refused = decision.observed if isinstance(decision, Allow) else decision.violations
    query = decision.query
    head = _members({"class": decision.statement_class, "fingerprint": parse.fingerprint(query.sql)})
    tail = _members(
        {
            "relations": _distinct(name for facts in query.statements for name in _relation_names(facts)),
            "functions": _distinct(name for facts in query.statements for name in _function_names(facts)),
            "decision": "allow" if isinstance(decision, Allow) else "reject",
            "rule": refused[0].rule if refused else None,
            "violations": [_violation(v, statements) for v in violations],
            **_basis(decision.basis),
            **({"masked": True} if statements is Statements.LITERALS_MASKED else {}),
        }
    )
    statement = ""
    if statements is Statements.FULL:
        statement = _statement(query.sql)
    elif statements is Statements.LITERALS_MASKED:
        statement = _statement(_masked(query))
    return head + ",", statement, _trace_member(query.sql), tail


def _trace_member(sql: str) -> str:
    trace = _trace(sql)
    return "" if trace is None else f'"trace":{_text(trace)},'


def _basis(basis: Basis) -> dict[str, Any]:
    """What it takes to look names up again."""
    told: dict[str, Any] = {"search_path": basis.paths} if basis.paths else {}
    if basis.catalog_sha256 is not None:
        told["catalog_sha256"] = basis.catalog_sha256
    return {**told, "unsettled": True} if basis.unsettled else told


_TRACE: Final = re.compile(r"\btraceparent='([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})'")


def _trace(sql: str) -> str | None:
    """The OpenTelemetry context that sqlcommenter puts in a comment before or behind the statement.

    Only there: a text that begins with ``/*`` or ends with ``*/`` does so with a comment, whatever is
    between. The value is the agent's word and no more. A comment is cut out before anything is looked for in
    it: one pattern for both takes the square of a long comment's length, in which nothing else would run.
    """
    if "traceparent" not in sql:
        return None
    text = sql.strip("\t\n\r\f\v ;")
    for comment in (_last_comment(text), _first_comment(text)):
        found = _TRACE.findall(comment)
        if found:
            return str(found[-1])
    return None


def _last_comment(text: str) -> str:
    """What the comment holds with which ``text`` ends; empty where it ends otherwise, or a ``*`` is in it."""
    begin = text.rfind("/*")
    if begin < 0 or not text.endswith("*/"):
        return ""
    held = text[begin + 2 : -2]
    return "" if "*" in held else held


def _first_comment(text: str) -> str:
    """The same of the comment with which ``text`` begins."""
    end = text.find("*", 2)
    return text[2:end] if text.startswith("/*") and text.startswith("*/", end) else ""


def _statement(sql: str | None) -> str:
    return f'"statement":{_text(sql)},'


def _violation(violation: Violation, statements: Statements) -> dict[str, Any]:
    members: dict[str, Any] = {
        "rule": violation.rule,
        "level": violation.level,
        "object": violation.object,
        "position": violation.position,
    }
    if statements is Statements.FULL:
        # Messages and suggestions may quote the statement, which the other two settings keep out of the file.
        members["message"] = violation.message
        members["suggestion"] = violation.suggestion
    return members


def _masked(query: QueryString) -> str | None:
    """The text with its constants replaced by ``$n``; None where it does not parse."""
    return None if query.failure is not None else parse.masked(query.sql)


def _relation_names(facts: Facts) -> Iterable[str]:
    return (f"{ref.schema}.{ref.name}" if ref.schema else ref.name for ref in facts.relations)


def _function_names(facts: Facts) -> Iterable[str]:
    return (
        f"{ref.schema}.{ref.name}" if ref.schema else ref.name
        for ref in facts.functions
        if ref.kind is not CallKind.ATTRIBUTE
    )


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


# ASCII alone: a line is read in terminals, and no control character of a statement may reach one.
_encode: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_escaped: Final = json.encoder.encode_basestring_ascii
_BOOL: Final = {True: "true", False: "false"}


_SEAM: Final = "\n"
"""Where a statement's text goes into members that several share: no JSON text holds a line feed."""


def _text(value: str | None) -> str:
    return "null" if value is None else _escaped(value)


def _members(values: dict[str, Any]) -> str:
    """JSON members, ``"key":value,…`` without braces round them."""
    return _encode(values)[1:-1]
