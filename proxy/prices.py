"""Holding a statement until its price is known.

Owns what follows from EXPLAIN's answer: the held message goes its way, is refused, or fails as it would have
failed by itself. How the question is put is ``pricing``'s, what the answer means the gate's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from proxy.conversation import DROP, Conversation, Held
from proxy.effects import AuditEntry
from proxy.exchange import Answer, Exchange
from proxy.gate import Price, Priced, Ruling
from proxy.phase import Phase
from proxy.pricing import Asked, as_own_error, ask_for_bind, ask_for_query
from proxy.replies import Owed, Reply
from proxy.wire import backend as wire
from proxy.wire import frontend
from proxy.wire.frames import HEADER

if TYPE_CHECKING:
    from proxy.agent_side import AgentSide


EXPLAIN_S: Final = 1.0
"""How long the server may plan a statement before it counts as unpriceable: planning runs functions."""
_CANCELED: Final = "57014"


class Prices:
    """The questions about prices in one connection."""

    def __init__(self, conversation: Conversation, agent: AgentSide) -> None:
        self._c = conversation
        self._agent = agent

    def price_held(self, ruling: Ruling, types: tuple[int, ...] = ()) -> Price | None:
        """The price asked before, where no bound value can change it and it is not too old."""
        price = ruling.prices.get(types)
        return price if price is not None and price.until > self._c.clock() else None

    def must_ask(self, ruling: Ruling) -> bool:
        """A server that reads past everything up to a Sync answers nothing, nor runs the statement."""
        return ruling.question is not None and not self._c.replies.discarding

    def price_query(self, ruling: Ruling) -> bytes:
        """Hold the Query and ask first what it would cost."""
        entry = self._c.entry(ruling, "simple")
        asked = ask_for_query(_text(ruling), sync=not self._c.pipeline_open)
        return self._ask(asked, lambda answer: self._query_priced(ruling, entry, answer))

    def _query_priced(self, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        frame = self._release()
        if answer.skipped:
            self._c.record_unknown(entry)
            return DROP
        if answer.error is not None:
            return self._query_failed(ruling, entry, answer)
        refusal, price = self._priced(ruling, answer, ())
        if refusal is not None:
            self._c.forward(self._agent.refuse_query(refusal))
        else:
            held = self._agent.run_query(ruling, entry, price)
            self._c.forward(frame if held is None else held)
        return DROP

    def _query_failed(self, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        """EXPLAIN's error is the statement's own; the status after it is what the server says."""
        error = self._failure(ruling, entry, answer, "simple")
        if answer.ready is not None:
            return error + wire.encode_ready(answer.ready)
        # Inside an open pipeline the server now reads up to a Sync, as it would not after a failed Query: the
        # Sync's ReadyForQuery is the Query's.
        self._c.replies.owe(Reply(Owed.SYNC))
        self._c.forward(wire.SYNC)
        self._c.pipeline_open = False
        return error

    def price_bind(self, message: frontend.Bind, types: tuple[int, ...], ruling: Ruling) -> bytes:
        """Hold the Bind and ask what its statement would cost with its values."""
        entry = self._c.entry(ruling, "extended")
        body = self._agent.this_frame()[HEADER:]
        asked = ask_for_bind(_text(ruling), types, body, message.statement, self._c.question_name)
        return self._ask(asked, lambda answer: self._bind_priced(message, types, ruling, entry, answer))

    def _bind_priced(
        self,
        message: frontend.Bind,
        types: tuple[int, ...],
        ruling: Ruling,
        entry: AuditEntry,
        answer: Answer,
    ) -> bytes:
        frame = self._release()
        if answer.skipped:
            self._c.record_unknown(entry)
            return DROP
        if answer.error is not None:
            self._c.phase = Phase.DISCARDING
            return self._failure(ruling, entry, answer, "extended", message.statement)
        refusal, price = self._priced(ruling, answer, types)
        if refusal is not None:
            self._c.forward(self._agent.refuse_bound(refusal))
        else:
            self._agent.owe_bind(message.portal, ruling, price)
            self._c.forward(frame)
        return DROP

    def _ask(self, asked: Asked, done: Callable[[Answer], bytes]) -> bytes:
        """Hold the message at hand; the messages that take its place are a question of ours."""
        self._c.waiting = Held(self._agent.this_frame())
        exchange = Exchange(done, EXPLAIN_S)
        for owed in asked.owed:
            self._c.replies.owe(Reply(owed, exchange=exchange))
        return asked.messages

    def _release(self) -> bytes:
        """The message that was held, which may now go its way; what waits behind it follows."""
        held, self._c.waiting = self._c.waiting, None
        return held.frame if held is not None else DROP

    def _priced(self, ruling: Ruling, answer: Answer, types: tuple[int, ...]) -> Priced:
        if answer.late:
            return Priced(self._c.gate.unpriced(ruling), None)
        return self._c.gate.priced(ruling, answer.rows, types, self._c.clock())

    def _failure(
        self, ruling: Ruling, entry: AuditEntry, answer: Answer, protocol: str, statement: bytes = b""
    ) -> bytes:
        """What the agent reads where EXPLAIN failed: by itself, or because it took too long."""
        if ruling.question is None or answer.error is None:
            raise TypeError("an error without a question")
        sqlstate = wire.decode_fields(answer.error).get("sqlstate")
        if answer.late and sqlstate == _CANCELED:
            return self._c.rejection(self._c.gate.unpriced(ruling), protocol)
        entry.sqlstate = sqlstate
        self._c.record(entry)
        own = as_own_error(answer.error, ruling.question, self._c.question_name, statement)
        if entry.repair is None:
            self._c.repairs.failed(ruling, own, judged=True)
        return self._c.enriched(own, ruling, entry) or wire.encode_error(own)


def _text(ruling: Ruling) -> str:
    if ruling.question is None or ruling.question.text is None:
        raise TypeError("a statement without a question")
    return ruling.question.text
