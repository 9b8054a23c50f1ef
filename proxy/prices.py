"""Holding a statement until its price is known, and where that is asked the rows that it would write.

Owns what follows from the answers: the held message goes its way, is refused, or fails as it would have
failed by itself. How a question is put is ``pricing``'s, what the answer means the gate's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.conversation import DROP, Conversation, Held
from proxy.effects import AuditEntry, Weigh
from proxy.exchange import Answer, Exchange, read_number
from proxy.phase import Phase
from proxy.pricing import Asked, as_own_error, ask_for_bind, ask_for_query
from proxy.replies import Reply
from proxy.ruling import Price, Priced, Ruling
from proxy.wire import backend as wire
from proxy.wire import frontend
from proxy.wire.frames import HEADER

if TYPE_CHECKING:
    from proxy.agent_side import AgentSide


EXPLAIN_S: Final = 1.0
"""How long the server may plan a statement before it counts as unpriceable: planning runs functions."""
_AT_ONCE: Final = 512
"""Bytes of a statement up to which its plan is weighed on the event loop: to word a refusal takes 5
microseconds a byte, most of it for the conditions that a repair must keep."""
_PLAN_BYTES: Final = 64
"""As many bytes of a plan count as one of its statement."""
_CANCELED: Final = "57014"


class Bound(NamedTuple):
    """A Bind that waits: as it came, decoded, and the parameter types that its statement's Parse named."""

    frame: bytes
    message: frontend.Bind
    types: tuple[int, ...]


class Prices:
    """The questions about prices in one connection."""

    def __init__(self, conversation: Conversation, agent: AgentSide) -> None:
        self._c = conversation
        self._agent = agent
        self._asked = 0.0
        """When the question under way was put, by the conversation's clock: there is one at a time."""

    def price_held(self, ruling: Ruling, types: tuple[int, ...] = ()) -> Price | None:
        """The price asked before, where no bound value can change it and it is not too old."""
        price = ruling.prices.get(types)
        return price if price is not None and price.until > self._c.now else None

    def must_ask(self, ruling: Ruling) -> bool:
        """A server that reads past everything up to a Sync answers nothing, nor runs the statement."""
        return ruling.priced and not self._c.replies.discarding

    def must_count(self, ruling: Ruling, types: tuple[int, ...] = ()) -> bool:
        """Whether the rows that the statement would write are to be counted before it runs."""
        count = ruling.count
        return count is not None and count.askable(types) and not self._c.replies.discarding

    def price_query(self, ruling: Ruling) -> bytes:
        """Hold the Query and ask first what it would cost."""
        entry = self._c.entry(ruling, "simple")
        asked = ask_for_query(_text(ruling), sync=not self._c.unsynced)
        return self._ask(asked, entry, lambda answer: self._query_priced(ruling, entry, answer), EXPLAIN_S)

    def _query_priced(self, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        if answer.skipped or answer.error is not None:
            return self._query_unanswered(ruling, entry, answer, of_price=True)
        return self._weigh(ruling, answer, (), lambda priced: self._query_weighed(ruling, entry, priced))

    def _query_weighed(self, ruling: Ruling, entry: AuditEntry, priced: Priced) -> bytes:
        refusal, price = priced
        if refusal is None and price is not None and self.must_count(ruling):
            self._c.forward(self.count_query(ruling, entry, price))
            return DROP
        return self._query_settled(ruling, entry, refusal, price)

    def count_query(self, ruling: Ruling, entry: AuditEntry, price: Price) -> bytes:
        """Hold the Query, whose price is known, and ask how many rows it would write."""
        asked = ask_for_query(_count_text(ruling), sync=not self._c.unsynced)
        return self._ask(asked, entry, lambda answer: self._query_counted(ruling, entry, price, answer))

    def _query_counted(self, ruling: Ruling, entry: AuditEntry, price: Price, answer: Answer) -> bytes:
        if answer.skipped or answer.error is not None:
            return self._query_unanswered(ruling, entry, answer, of_price=False)
        return self._query_settled(ruling, entry, self._counted(ruling, price, answer), price)

    def _query_settled(
        self, ruling: Ruling, entry: AuditEntry, refusal: Ruling | None, price: Price | None
    ) -> bytes:
        self._c.frame = frame = self._release()
        if refusal is not None:
            self._c.forward(self._agent.refuse_query(refusal))
        else:
            held = self._agent.let_query(ruling, entry, price)
            self._c.forward(frame if held is None else held)
        return DROP

    def _query_unanswered(
        self, ruling: Ruling, entry: AuditEntry, answer: Answer, *, of_price: bool
    ) -> bytes:
        """The error of a question is the statement's own; the status after it is what the server says."""
        self._release()
        if answer.skipped:
            self._c.record_skipped(entry)
            return DROP
        error = self._failure(ruling, entry, answer, "simple", of_price=of_price)
        # Inside an open pipeline the server now reads up to a Sync, as it would not after a failed Query.
        self._c.end_failed_query(discarding=answer.ready is None)
        return error

    def price_bind(self, bound: Bound, ruling: Ruling) -> bytes:
        """Hold the Bind and ask what its statement would cost with its values.

        Before a DECLARE the question ends with a Sync, where nothing was bound that this would drop: behind a
        statement of the same implicit transaction PostgreSQL lets DECLARE pass, which it refuses by itself.
        """
        entry = self._c.entry(ruling, "extended")
        return self._ask_bind(
            _text(ruling),
            bound,
            entry,
            lambda answer: self._bind_priced(bound, ruling, entry, answer),
            EXPLAIN_S,
            sync=ruling.declares and not self._c.names.bound_here,
        )

    def _bind_priced(self, bound: Bound, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        if answer.skipped or answer.error is not None:
            return self._bind_unanswered(bound, ruling, entry, answer, of_price=True)
        return self._weigh(
            ruling, answer, bound.types, lambda priced: self._bind_weighed(bound, ruling, entry, priced)
        )

    def _bind_weighed(self, bound: Bound, ruling: Ruling, entry: AuditEntry, priced: Priced) -> bytes:
        refusal, price = priced
        if refusal is None and price is not None and self.must_count(ruling, bound.types):
            self._c.forward(self.count_bind(bound, ruling, entry, price))
            return DROP
        return self._bind_settled(bound, ruling, refusal, price)

    def count_bind(self, bound: Bound, ruling: Ruling, entry: AuditEntry, price: Price) -> bytes:
        """Hold the Bind, whose price is known, and ask how many rows its statement would write."""
        return self._ask_bind(
            _count_text(ruling),
            bound,
            entry,
            lambda answer: self._bind_counted(bound, ruling, entry, price, answer),
        )

    def _bind_counted(
        self, bound: Bound, ruling: Ruling, entry: AuditEntry, price: Price, answer: Answer
    ) -> bytes:
        if answer.skipped or answer.error is not None:
            return self._bind_unanswered(bound, ruling, entry, answer, of_price=False)
        return self._bind_settled(bound, ruling, self._counted(ruling, price, answer), price)

    def _bind_settled(
        self, bound: Bound, ruling: Ruling, refusal: Ruling | None, price: Price | None
    ) -> bytes:
        self._c.frame = frame = self._release()
        if refusal is not None:
            self._c.forward(self._agent.refuse_bound(refusal))
        else:
            held = self._agent.let_bind(bound, ruling, price)
            self._c.forward(frame if held is None else held)
        return DROP

    def _bind_unanswered(
        self, bound: Bound, ruling: Ruling, entry: AuditEntry, answer: Answer, *, of_price: bool
    ) -> bytes:
        self._release()
        if answer.skipped:
            self._c.record_skipped(entry)
            return DROP
        self._c.phase = Phase.DISCARDING
        statement = bound.message.statement
        return self._failure(ruling, entry, answer, "extended", statement, of_price=of_price)

    def _ask_bind(
        self,
        text: str,
        bound: Bound,
        entry: AuditEntry,
        done: Callable[[Answer], bytes],
        limit_s: float | None = None,
        *,
        sync: bool = False,
    ) -> bytes:
        statement, name = bound.message.statement, self._c.question_name
        asked = ask_for_bind(text, bound.types, bound.frame[HEADER:], statement, name, sync=sync)
        return self._ask(asked, entry, done, limit_s)

    def _ask(
        self,
        asked: Asked,
        entry: AuditEntry,
        done: Callable[[Answer], bytes],
        limit_s: float | None = None,
    ) -> bytes:
        """Hold the message at hand, if it is not held yet; the messages that take its place are a question
        of ours."""
        if self._c.waiting is None:
            self._c.waiting = Held(self._agent.this_frame(), entry=entry)
        exchange = Exchange(done, limit_s)
        self._asked = self._c.now
        for owed in asked.owed:
            self._c.replies.owe(Reply(owed, exchange=exchange))
        return asked.messages

    def _release(self) -> bytes:
        """The message that was held, which may now go its way; what waits behind it follows."""
        held, self._c.waiting = self._c.waiting, None
        return held.frame if held is not None else DROP

    def _weigh(
        self,
        ruling: Ruling,
        answer: Answer,
        types: tuple[int, ...],
        go_on: Callable[[Priced], bytes],
    ) -> bytes:
        """``go_on`` with what the answer means, at once where that is soon told. The message stays held."""
        gate, now = self._c.gate, self._c.now
        gate.meter.explained(now - self._asked)

        def weigh() -> Priced:
            if answer.late:
                return Priced(gate.unpriced(ruling), None)
            return gate.weighed(ruling, answer.rows, now)

        def kept(priced: Priced) -> bytes:
            gate.keep(ruling, types, priced)
            return go_on(priced)

        if len(ruling.text) + sum(map(len, answer.rows)) // _PLAN_BYTES <= _AT_ONCE:
            return kept(weigh())
        self._c.weighing = kept
        self._c.effects.append(Weigh(weigh))
        return DROP

    def _counted(self, ruling: Ruling, price: Price, answer: Answer) -> Ruling | None:
        """The refusal of a statement that would write more rows than it may."""
        limits = self._c.limits
        if limits is None or limits.affected_rows is None or read_number(answer) <= limits.affected_rows:
            return None
        return self._c.gate.foreseen(ruling, price.cost)

    def _failure(
        self,
        ruling: Ruling,
        entry: AuditEntry,
        answer: Answer,
        protocol: str,
        statement: bytes = b"",
        *,
        of_price: bool,
    ) -> bytes:
        """What the agent reads where a question failed: by itself, or because it took too long."""
        if ruling.question is None or answer.error is None:
            raise TypeError("an error without a question")
        sqlstate = wire.decode_fields(answer.error).get("sqlstate")
        if of_price and answer.late and sqlstate == _CANCELED:
            return self._c.rejection(self._c.gate.unpriced(ruling), protocol)
        # A count is PostgreSQL's own spelling of a part of the statement: no position in it is the agent's.
        offset = ruling.question.offset if of_price else None
        own = as_own_error(answer.error, offset, self._c.question_name, statement)
        entry.sqlstate = sqlstate
        turns_left = self._c.repairs.failed(ruling, entry, own, at_bind=answer.at_bind)
        self._c.record(entry)
        return self._c.enriched(own, ruling, entry, turns_left) or wire.encode_error(own)


def _count_text(ruling: Ruling) -> str:
    if ruling.count is None:
        raise TypeError("a statement without a count")
    return ruling.count.text


def _text(ruling: Ruling) -> str:
    if ruling.question is None or ruling.question.text is None:
        raise TypeError("a statement without a question")
    return ruling.question.text
