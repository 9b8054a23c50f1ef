"""Holding a statement until it has run on the clone, and what follows from that.

Owns when the database is asked what the session is, what goes to the clone, and what becomes of the message
that waits: it runs, or fails with the clone's error, or is refused because the clone can say nothing. What
may be tried and what an answer is worth is ``policy.sandbox``'s; the conversation with the clone ``clone``'s.

The session is asked in the statement's own place in the stream, so that what it is does not rest on a
remembered status: whether its transaction has written, which settings hold, what the schema is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policy import sandbox
from policy.catalog_names import CatalogNames
from policy.model import OnStale
from policy.rules import sandbox_stale
from policy.sandbox import Session, Tried
from proxy.answers import Owed
from proxy.conversation import DROP, Conversation, Held
from proxy.effects import AuditEntry, Trial, TryOut
from proxy.exchange import Answer, Exchange
from proxy.phase import Phase
from proxy.prepared import Portal, TriedBound
from proxy.pricing import Asked, ask_for_query
from proxy.replies import Reply
from proxy.ruling import Price, Ruling
from proxy.wire import backend as wire
from proxy.wire.frames import HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.agent_side import AgentSide
    from proxy.prices import Bound

_IDLE: Final = b"I"


class Sandboxing:
    """What one connection has tried on its clone."""

    def __init__(self, conversation: Conversation, agent: AgentSide) -> None:
        self._c = conversation
        self._agent = agent
        self._name = conversation.question_name + b"_session"
        self._settle: Callable[[Tried], None] | None = None
        """What takes the clone's word on the message that waits."""
        self._runs = 0
        """Statements let run so far."""

    def ran(self) -> None:
        """A statement is let run: what comes after it may find another session."""
        self._runs += 1

    def tried(self, outcome: Tried) -> None:
        """What came of the trial that a TryOut effect asked for."""
        settle, self._settle = self._settle, None
        if settle is not None:
            settle(outcome)

    def must_try(self) -> bool:
        """A server that reads past everything up to a Sync does not run the statement."""
        return not self._c.replies.discarding

    # --- a Query ---

    def try_query(self, ruling: Ruling, entry: AuditEntry, price: Price | None) -> bytes | None:
        """Hold the Query and have it tried; as ``AgentSide.run_query`` where it cannot be."""
        text, why_not = self._asked(ruling, simple=True)
        if text is None:
            entry.sandbox = Tried(why_not=why_not)
            return self._agent.run_query(ruling, entry, price)
        entry.cost = None if price is None else price.cost
        commits = self._c.status == _IDLE and not self._c.pipeline_open and not self._c.replies.queue
        asked = ask_for_query(text, sync=not self._c.unsynced)

        def answered(answer: Answer) -> bytes:
            if answer.skipped or answer.error is not None:
                return self._query_unanswered(ruling, entry, answer)
            session = self._session(answer)
            why_not = session.why_not(ruling.decision.query)
            if why_not is not None:
                self._run_query(ruling, entry, price, Tried(why_not=why_not))
                return DROP
            trial = Trial(ruling.sent, (), None, (), text, session, self._c.gate.policy, commits)
            self._try(trial, lambda tried: self._query_tried(ruling, entry, price, tried))
            return DROP

        return self._ask(asked, entry, answered)

    def _query_tried(self, ruling: Ruling, entry: AuditEntry, price: Price | None, tried: Tried) -> None:
        error = self._error(ruling, entry, tried)
        if error:
            self._release()
            self._c.forward(self._agent.fail_query(error))
        else:
            self._run_query(ruling, entry, price, tried)

    def _run_query(self, ruling: Ruling, entry: AuditEntry, price: Price | None, tried: Tried) -> None:
        entry.sandbox = tried
        frame = self._release()
        held = self._agent.run_query(ruling, entry, price)
        self._c.forward(frame if held is None else held)

    def _query_unanswered(self, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        """The session could not be asked: what keeps the server from answering keeps it from running the
        statement, as a transaction that has failed."""
        self._release()
        if answer.skipped or answer.error is None:
            self._c.record_skipped(entry)
            return DROP
        error = self._own_error(ruling, entry, answer.error)
        self._c.end_failed_query(discarding=answer.ready is None)
        return error

    # --- a Bind, and its Execute ---

    def try_bind(self, bound: Bound, ruling: Ruling, price: Price | None) -> bytes | None:
        """Hold the Bind and have its statement tried with its values; None where it cannot be: it may go."""
        text, why_not = self._asked(ruling, simple=False, types=bound.types)
        if text is None:
            self._agent.owe_bind(bound.message.portal, ruling, price, self._bound(Tried(why_not=why_not)))
            return None
        entry = self._c.entry(ruling, "extended")
        entry.cost = None if price is None else price.cost

        def let_go(tried: Tried, session: Session | None = None) -> None:
            frame = self._release()
            self._agent.owe_bind(bound.message.portal, ruling, price, self._bound(tried, session))
            self._c.forward(frame)

        def answered(answer: Answer) -> bytes:
            if answer.skipped or answer.error is not None:
                return self._bound_unanswered(ruling, entry, answer)
            session = self._session(answer)
            why_not = session.why_not(ruling.decision.query)
            if why_not is not None:
                let_go(Tried(why_not=why_not))
                return DROP

            def settle(tried: Tried) -> None:
                error = self._error(ruling, entry, tried)
                if error:
                    self._release()
                    self._c.forward(self._agent.fail_bound(error))
                else:
                    let_go(tried, session)

            self._try(self._trial(bound, ruling, text, session), settle)
            return DROP

        return self._ask(self._ask_apart(text), entry, answered)

    def _trial(self, bound: Bound, ruling: Ruling, text: str, session: Session) -> Trial:
        message = bound.message
        names = len(message.portal) + len(message.statement) + 2
        values = bound.frame[HEADER + names :]
        return Trial(
            ruling.sent,
            bound.types,
            values,
            message.formats,
            text,
            session,
            self._c.gate.policy,
            commits=False,
        )

    def _bound(self, tried: Tried, session: Session | None = None) -> TriedBound:
        return TriedBound(tried, session if tried.why_not is None else None, self._runs)

    def must_ask_again(self, portal: Portal) -> bool:
        """Whether something ran between a Bind that was tried and its Execute: it may have been a SET."""
        tried = portal.tried
        if tried is None or tried.session is None or self._c.replies.discarding:
            return False
        return tried.runs != self._runs

    def ask_again(self, portal: Portal, ruling: Ruling) -> bytes | None:
        """Hold the Execute until the session is known to be as it was when its Bind was tried."""
        text, _ = self._asked(ruling, simple=False)
        entry = self._c.entry(ruling, "extended")
        if text is None or portal.tried is None or portal.tried.session is None:
            return self._agent.fail_bound(self._changed(entry))
        before = portal.tried.session

        def answered(answer: Answer) -> bytes:
            if answer.skipped or answer.error is not None:
                return self._bound_unanswered(ruling, entry, answer)
            if self._session(answer).like(before):
                frame = self._release()
                held = self._agent.run_execute(portal, ruling)
                self._c.forward(frame if held is None else held)
            else:
                self._release()
                self._c.forward(self._agent.fail_bound(self._changed(entry)))
            return DROP

        return self._ask(self._ask_apart(text), entry, answered)

    def _changed(self, entry: AuditEntry) -> bytes:
        return self._c.untried(entry, sandbox_stale.changed(self._c.gate.policy))

    def _bound_unanswered(self, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        self._release()
        if answer.skipped or answer.error is None:
            self._c.record_skipped(entry)
            return DROP
        self._c.phase = Phase.DISCARDING
        return self._own_error(ruling, entry, answer.error)

    # --- asking, and what both protocols share ---

    def _asked(
        self, ruling: Ruling, *, simple: bool, types: tuple[int, ...] = ()
    ) -> tuple[str | None, str | None]:
        """What to ask the database of the session; or why the statement is not tried."""
        query, names = ruling.decision.query, ruling.names
        why_not = sandbox.why_not(query, simple=simple, types=types)
        if why_not is None and not isinstance(names, CatalogNames):
            why_not = "the database's catalog is not known"
        if why_not is None and ruling.executes:
            why_not = "it runs a prepared statement of the session"
        if why_not is not None or not isinstance(names, CatalogNames):
            return None, why_not
        return sandbox.question(self._c.gate.policy, query, names), None

    def _ask_apart(self, text: str) -> Asked:
        """The question in an open pipeline: under a name that no agent can know, so that its unnamed
        statement and portal stay. Closed beforehand as well: one that failed has left it behind."""
        name = self._name
        messages = (
            wire.close_message(b"S", name)
            + wire.parse_message(name, text.encode())
            + wire.bind_message(name, name)
            + wire.execute_message(name)
            + wire.close_message(b"P", name)
            + wire.close_message(b"S", name)
            + wire.FLUSH
        )
        owed = (Owed.CLOSE, Owed.PARSE, Owed.BIND, Owed.EXECUTE, Owed.CLOSE, Owed.CLOSE)
        return Asked(messages, owed)

    def _ask(self, asked: Asked, entry: AuditEntry, done: Callable[[Answer], bytes]) -> bytes:
        self._c.waiting = Held(self._agent.this_frame(), entry=entry)
        exchange = Exchange(done)
        for owed in asked.owed:
            self._c.replies.owe(Reply(owed, exchange=exchange))
        return asked.messages

    def _session(self, answer: Answer) -> Session:
        return sandbox.read_session(self._c.gate.policy, wire.decode_row(answer.rows[0]))

    def _try(self, trial: Trial, settle: Callable[[Tried], None]) -> None:
        self._settle = settle
        self._c.effects.append(TryOut(self._c.gate.clone, trial))

    def _release(self) -> bytes:
        """The message that was held; what waits behind it follows."""
        held, self._c.waiting = self._c.waiting, None
        self._c.frame = held.frame if held is not None else DROP
        return self._c.frame

    def _error(self, ruling: Ruling, entry: AuditEntry, tried: Tried) -> bytes:
        """The ErrorResponse that the statement ends with; empty where it may run."""
        entry.sandbox = tried
        policy = self._c.gate.policy
        if tried.unfit and sandbox.on_stale(policy) is OnStale.REJECT:
            violation = sandbox_stale.stale(policy, tried.why_not or "")
            return self._c.untried(entry, violation)
        if tried.error is None or not tried.is_evidence:
            return DROP
        return self._told(ruling, entry, dict(tried.error), of_clone=True)

    def _own_error(self, ruling: Ruling, entry: AuditEntry, body: bytes) -> bytes:
        fields = wire.decode_fields(body)
        fields.pop("position", None)
        return self._told(ruling, entry, fields)

    def _told(
        self, ruling: Ruling, entry: AuditEntry, fields: dict[str, str], *, of_clone: bool = False
    ) -> bytes:
        """An error of PostgreSQL's as the agent reads it; it may leave a repair, or have been one."""
        entry.sqlstate = fields.get("sqlstate")
        turns_left = self._c.repairs.failed(ruling, entry, fields)
        self._c.record(entry)
        told = self._c.gate.enrich(fields, ruling, turns_left, entry.id, sandbox=of_clone)
        return wire.encode_error(fields if told is None else told)
