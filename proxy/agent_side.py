"""From the agent to the server: what may pass, what is put in the place of what may not.

Owns the handling of every message an agent may send. Knows no sockets and nothing of what the server answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from policy.facts import QueryString
from policy.model import StatementClass, Violation
from policy.sandbox import Tried
from policy.terms import Parameter
from proxy.answers import Owed
from proxy.consequences import Consequences
from proxy.conversation import DROP, Conversation, Ending, Held, Late
from proxy.effects import AuditEntry, Consult
from proxy.exchange import Exchange, failure
from proxy.in_force import InForce, wait_for
from proxy.limits import Meter
from proxy.phase import LEGAL, Action, Phase
from proxy.prepared import Cursor, NamesError, Portal, Prepared, TriedBound
from proxy.prices import Bound, Prices
from proxy.repairs import bound_values
from proxy.replies import Counted, Reply
from proxy.ruling import Price, Ruling
from proxy.sandboxing import Sandboxing
from proxy.succession import JUDGED, DismissedError, Succession
from proxy.waiting import NotYetError, Unanswered
from proxy.wire import backend as wire
from proxy.wire import frontend
from proxy.wire.frames import HEADER, FramingError
from proxy.wire.frontend import MalformedMessage
from proxy.writes import HeldWrite

_COPY_FAIL: Final = ord("f")
_FUNCTION_CALL: Final = ord("F")
_QUERY: Final = ord("Q")
_OF_STATEMENT: Final = ord("S")


class AgentSide:
    """The messages of the agent, one by one, in a connection's steady state."""

    def __init__(self, conversation: Conversation) -> None:
        self._c = conversation
        self._prices = Prices(conversation, self)
        self.succession = Succession(conversation)
        self._sandbox = Sandboxing(conversation, self)
        self._in_force = InForce(conversation)
        self._consequences = Consequences(conversation, self._in_force)
        self._actions: dict[Action, Callable[[bytes, int, int], bytes | None]] = {
            Action.QUERY: self._on_query,
            Action.PARSE: self._on_parse,
            Action.BIND: self._on_bind,
            Action.DESCRIBE: self._on_describe,
            Action.EXECUTE: self._on_execute,
            Action.CLOSE: self._on_close,
            Action.SYNC: self._on_sync,
            Action.FLUSH: self._on_flush,
            Action.FUNCTION_CALL: self._on_function_call,
            Action.COPY_DATA: self._on_copy_data,
            Action.COPY_END: self._on_copy_end,
            Action.TERMINATE: self._on_terminate,
            Action.DROP: self._on_dropped,
            Action.RESUME: self._on_resume,
            Action.IGNORED_SYNC: self._on_ignored_sync,
        }

    def resume(self) -> None:
        """Go on where the agent's messages were held, if there are any or something waits for that."""
        frames = self._c.agent_frames
        if frames.pending or self.succession.pending or self._c.late is not None:
            self.advance()
        else:
            frames.release()

    def advance(self) -> None:
        """Take what was held, and frame after frame while the session may go on; allowed runs leave as they
        came."""
        late = self._c.late
        if late is None or self._finish(late):
            self._advance()

    def _advance(self) -> None:
        conversation = self._c
        frames = conversation.agent_frames
        data = frames.data
        run = done = frames.end
        waiting = conversation.waiting
        ending: Ending | None = None
        flush = DROP
        while (
            ending is None
            and conversation.waiting is None
            and conversation.awaited is None
            and not conversation.cancelling
            and not (conversation.copying is not None and conversation.waits_for_copy)
        ):
            try:
                kind = frames.next_frame()
                if kind == 0:
                    break
                conversation.frame = None
                action = LEGAL[conversation.phase].get(kind)
                if action is None:
                    phase = conversation.phase.value
                    raise MalformedMessage(f"message {chr(kind)!r} is not legal while {phase}")
                if self.succession.pending and action in JUDGED:
                    self.succession.before(action, data[frames.body : frames.end])
                # None lets the message pass; bytes (b"" for none) take its place.
                replacement = self._actions[action](data, frames.body, frames.end)
            except NotYetError as wait:
                self.succession.put_back(LEGAL[conversation.phase][kind], data[frames.body : frames.end])
                frames.put_back()
                conversation.awaited = wait.doubt
                flush = wire.FLUSH if wait.flush else DROP
                break
            except (FramingError, MalformedMessage, NamesError, DismissedError) as fault:
                ending = Ending(str(fault), fault.sqlstate)
                break
            if replacement is not None:
                conversation.forward(data[run : frames.start])
                conversation.forward(replacement)
                run = frames.end
            done = frames.end
            if conversation.phase is Phase.CLOSED:
                ending = Ending("terminated by the agent")
        conversation.forward(data if run == 0 and done == len(data) else data[run:done])
        if flush:
            conversation.forward(flush)
        if self.succession.pending:
            self.succession.hasten()
        held = conversation.waiting
        if held is not None and held is not waiting and held.text is not None:
            conversation.ask_ruling(held.text)
        if ending is not None:
            conversation.end(ending.reason, ending.sqlstate)

    def _finish(self, late: Late) -> bool:
        """Go on with the message that was held; False where it waits for something else now."""
        conversation = self._c
        if conversation.held:
            return False
        conversation.late, conversation.frame = None, late.frame
        try:
            replacement = late.complete()
        except NotYetError as wait:
            if late.frame[0] != _QUERY:
                raise
            # By the time that is settled, what its names mean may be another.
            conversation.late = Late(late.frame, lambda: self._query_again(late.frame))
            conversation.awaited = wait.doubt
            if wait.flush:
                conversation.forward(wire.FLUSH)
            return False
        except NamesError as error:
            conversation.end(str(error), error.sqlstate)
            return False
        conversation.forward(late.frame if replacement is None else replacement)
        return True

    def _query_again(self, frame: bytes) -> bytes | None:
        """The Query ``frame``, which has waited for what it names, as if it had come now."""
        text = frame[HEADER:-1]
        ruling = self._in_force.rule(text)
        if ruling is not None:
            return self._settle_named_query(ruling)
        self._c.waiting = Held(frame, text, self._settle_named_query)
        self._c.ask_ruling(text)
        return DROP

    def tried(self, outcome: Tried) -> None:
        """What came of the trial that a TryOut effect asked for."""
        self._sandbox.tried(outcome)

    def _on_query(self, data: bytes, body: int, end: int) -> bytes | None:
        if data.find(b"\0", body, end) != end - 1:
            raise MalformedMessage("Query is not one string")
        self._c.await_result()
        text = data[body : end - 1]
        ruling = self._in_force.rule(text)
        if ruling is None:
            return self._hold(data, end, text, self._settle_named_query)
        return self._settle_named_query(ruling)

    def _settle_named_query(self, ruling: Ruling) -> bytes | None:
        if not ruling.plain:
            self._in_force.await_names(ruling)
        return self._settle_query(ruling)

    def _settle_query(self, ruling: Ruling) -> bytes | None:
        if not ruling.plain:
            ruling = self._in_force.check_named(ruling)
        if self._c.repairs.stands_alone(ruling):
            return self._settle_weighed_query(ruling)
        if self._c.repairs.waits_for(ruling):
            return self._weigh(ruling, self._settle_weighed_query)
        if ruling.allowed:
            runs = self._in_force.executed_rulings(ruling) if ruling.executes else ()
            ruling = self._c.repairs.judge(ruling, runs)
        return self._settle_weighed_query(ruling)

    def _settle_weighed_query(self, ruling: Ruling) -> bytes | None:
        if not ruling.allowed:
            return self.refuse_query(ruling)
        price = self._prices.price_held(ruling)
        if price is None and self._prices.must_ask(ruling):
            return self._prices.price_query(ruling)
        entry = self._c.entry(ruling, "simple")
        if price is not None and self._prices.must_count(ruling):
            return self._prices.count_query(ruling, entry, price)
        return self.let_query(ruling, entry, price)

    def let_query(self, ruling: Ruling, entry: AuditEntry, price: Price | None) -> bytes | None:
        """The Query at hand has passed the gate: it is tried on the clone where that is to be, then run."""
        if ruling.tried and self._sandbox.must_try():
            return self._sandbox.try_query(ruling, entry, price)
        return self.run_query(ruling, entry, price)

    def run_query(self, ruling: Ruling, entry: AuditEntry, price: Price | None) -> bytes | None:
        """Let the Query at hand run: as it came (None), or by the messages that hold what it writes."""
        self._sandbox.ran()
        told = ruling.notice
        if price is not None:
            told += price.notice
            entry.cost = price.cost
        counted = self._counted(ruling)
        if self._must_hold(ruling, counted, simple=True):
            write = HeldWrite(self._c, ruling, entry, counted, takes=self._in_force.takes(ruling))
            return write.query(told, () if ruling.plain else self._consequences.of(ruling, price))
        self._c.written = None
        if not self._c.unsynced:
            # In a pipeline only PostgreSQL before 18 commits here.
            self._c.pipeline_open = False
            self._c.segment_reads = True
        elif not ruling.running.reads:
            self._c.segment_reads = False
        asked = Owed.FUNCTION_CALL if self._kind() == _FUNCTION_CALL else Owed.QUERY
        reply = Reply(asked, entry, ruling=ruling, notice=told)
        if self._c.owe(reply):
            if not ruling.plain:
                reply.changes = self._consequences.of(ruling, price)
            if counted is not None:
                reply.counted = counted
                self._c.awaited = Unanswered(self._c.replies.queue, reply)
        self._c.names.next_segment()
        if self._in_force.copies(ruling):
            self._c.copying = reply
        return None if ruling.forward is None else wire.simple_query(ruling.forward)

    def _counted(self, ruling: Ruling, portal: Portal | None = None) -> Counted | None:
        """What the result of ``ruling`` is counted by; None where no limit is set, or it cannot have rows."""
        limits = self._c.limits
        if limits is None or not limits.results or not ruling.running.returns:
            return None
        meters = [Meter() if portal is None or portal.meter is None else portal.meter]
        if not ruling.plain:
            meters += [self._c.names.meter(name) for name in self._in_force.fetched(ruling)]
        return Counted(meters, ruling.running.headers)

    def _must_hold(self, ruling: Ruling, counted: Counted | None, *, simple: bool) -> bool:
        """True where what runs may have to be undone by how many rows it turns out to write or return."""
        limits = self._c.limits
        if limits is None or self._c.replies.discarding:
            return False
        if simple and ruling.running.parameters:
            # A Query has no values to bind: the server refuses it, and differently from a Bind.
            return False
        if counted is None and limits.affected_rows is None:
            return False
        if self._writes(ruling):
            return True
        # A Query commits what stands before it in an open pipeline.
        commits = simple and self._c.pipeline_open and not self._c.segment_reads
        return commits and counted is not None and ruling.running.reads

    def _writes(self, ruling: Ruling) -> bool:
        """True where running it writes rows, by itself or by what it EXECUTEs."""
        own = ruling.running
        if own.writes and not own.prepares:
            return True
        return any(run.running.writes for run in self._in_force.executed_rulings(ruling))

    def refuse_query(self, ruling: Ruling) -> bytes:
        return self.fail_query(self._c.rejection(ruling, "simple"))

    def fail_query(self, error: bytes) -> bytes:
        """Have a Query fail with the ErrorResponse ``error``: by one that cannot parse."""
        self._c.replies.owe(Reply(Owed.QUERY, rejection=error))
        self._c.names.next_segment()
        self._c.pipeline_open = False
        self._c.segment_reads = True
        return wire.simple_query(self._c.refused_text)

    def _await_sync_point(self) -> None:
        """Wait until a Sync of ours would end nothing: see ``Prices.price_bind``."""
        queue = self._c.replies.queue
        if queue and not self._c.names.bound_here:
            raise NotYetError(Unanswered(queue, queue[-1]), flush=True)

    def _has_to_fail(self, kind: Owed, of: bytes, name: bytes) -> bytes:
        """What the message at hand names was made by nothing we saw. That the server has no such thing is
        not left to our book-keeping: it is closed first. The server then says so in its own words."""
        self._c.pipeline_open = self._c.unsynced = True
        self._c.replies.owe(Reply(Owed.CLOSE, exchange=Exchange(failure)))
        self._c.replies.owe(Reply(kind, must_fail=True))
        return wire.close_message(of, name) + self.this_frame()

    def _on_parse(self, data: bytes, body: int, end: int) -> bytes | None:
        message = frontend.decode_parse(data[body:end])
        ruling = self._in_force.rule(message.text)
        self._c.pipeline_open = self._c.unsynced = True
        if message.name or ruling is None or not ruling.allowed:
            self._c.await_result()
        if ruling is None:
            return self._hold(data, end, message.text, lambda late: self._settle_parse(message, late))
        return self._settle_parse(message, ruling)

    def _settle_parse(self, message: frontend.Parse, ruling: Ruling) -> bytes | None:
        name = message.name
        if ruling.allowed:
            ruling = self._in_force.check_types(message.types, ruling)
        if not ruling.allowed:
            return self._weigh(ruling, lambda told: self._refuse_parse(name, told))
        reply = Reply(Owed.PARSE, ruling=ruling, name=name, notice=ruling.notice)
        if self._c.replies.owe(reply):
            reply.changes = (self._c.names.prepare(name, Prepared(ruling, message.types)),)
        return None if ruling.forward is None else wire.parse_message(name, ruling.forward, message.types)

    def _refuse_parse(self, name: bytes, ruling: Ruling) -> bytes:
        refused = Reply(Owed.PARSE, name=name, rejection=self._c.rejection(ruling, "extended"))
        if self._c.replies.owe(refused) and not name:
            refused.changes = (self._c.names.forget(name),)
        self._c.phase = Phase.DISCARDING
        return wire.parse_message(name, self._c.refused_text)

    def _on_bind(self, data: bytes, body: int, end: int) -> bytes | None:
        message = frontend.decode_bind(data, body, end)
        prepared = self._c.names.settled_statement(message.statement)
        if prepared is None:
            wait_for(self._c.names.doubt(message.statement))
            prepared = self._c.names.statement(message.statement)
        if prepared is None:
            if self._c.observes:
                return self._owe_unseen(message.portal)
            return self._has_to_fail(Owed.BIND, b"S", message.statement)
        if prepared.ruling.declares:
            self._await_sync_point()
        types = prepared.types
        fresh = self._in_force.again(prepared.ruling)
        self._c.pipeline_open = self._c.unsynced = True
        if fresh is not None and fresh is not prepared.ruling:
            fresh = self._in_force.held_to(prepared, fresh)
        if self._c.limited is not None and not self._binds_at_once(fresh, types):
            self._c.await_result()
        if fresh is None:
            text = prepared.ruling.text
            return self._hold(data, end, text, lambda late: self._settle_late(message, prepared, late))
        return self._settle_bind(message, types, fresh)

    def _settle_late(self, message: frontend.Bind, prepared: Prepared, ruling: Ruling) -> bytes | None:
        return self._settle_bind(message, prepared.types, self._in_force.held_to(prepared, ruling))

    def _settle_bind(self, message: frontend.Bind, types: tuple[int, ...], ruling: Ruling) -> bytes | None:
        if not ruling.plain:
            ruling = self._in_force.check_named(ruling)
        if ruling.wanted:
            ruling = self._in_force.check_values(message.values, ruling)
        repairs = self._c.repairs
        repairs.binds(ruling, message, types)
        if repairs.stands_alone(ruling):
            return self._settle_weighed_bind(message, types, ruling)
        if repairs.waits_for(ruling):
            return self._weigh_bind(message, types, ruling)
        if ruling.allowed:
            runs = self._in_force.executed_rulings(ruling) if ruling.executes else ()
            ruling = repairs.judge(ruling, runs, message, types)
        return self._settle_weighed_bind(message, types, ruling)

    def _weigh_bind(self, message: frontend.Bind, types: tuple[int, ...], ruling: Ruling) -> bytes | None:
        values = bound_values(message, types)
        return self._weigh(ruling, lambda told: self._settle_weighed_bind(message, types, told), values)

    def _settle_weighed_bind(
        self, message: frontend.Bind, types: tuple[int, ...], ruling: Ruling
    ) -> bytes | None:
        if not ruling.allowed:
            return self.refuse_bound(ruling)
        price = self._prices.price_held(ruling, types)
        if price is None and self._prices.must_ask(ruling):
            return self._prices.price_bind(Bound(self.this_frame(), message, types), ruling)
        if price is not None and self._prices.must_count(ruling, types):
            bound = Bound(self.this_frame(), message, types)
            return self._prices.count_bind(bound, ruling, self._c.entry(ruling, "extended"), price)
        if ruling.tried and self._sandbox.must_try():
            return self._sandbox.try_bind(Bound(self.this_frame(), message, types), ruling, price)
        self.owe_bind(message.portal, ruling, price)
        return None

    def let_bind(self, bound: Bound, ruling: Ruling, price: Price | None) -> bytes | None:
        """The Bind at hand has passed the gate: it is tried on the clone where that is to be, then let go."""
        if ruling.tried and self._sandbox.must_try():
            return self._sandbox.try_bind(bound, ruling, price)
        self.owe_bind(bound.message.portal, ruling, price)
        return None

    def _binds_at_once(self, ruling: Ruling | None, types: tuple[int, ...]) -> bool:
        """True where a Bind is certain to pass, with no question of ours before it."""
        if ruling is None or not ruling.allowed or ruling.executes or self._c.repairs.watching:
            return False
        if ruling.tried and self._sandbox.must_try():
            return False
        if self._prices.must_ask(ruling) and self._prices.price_held(ruling, types) is None:
            return False
        return not self._prices.must_count(ruling, types)

    def owe_bind(
        self, name: bytes, ruling: Ruling, price: Price | None, tried: TriedBound | None = None
    ) -> None:
        reply = Reply(Owed.BIND, ruling=ruling, notice=b"" if price is None else price.notice)
        if self._c.replies.owe(reply):
            meter = None if self._c.limits is None else Meter()
            reply.repair = repair = self._c.repairs.repair_of(ruling)
            reply.values = values = self._c.repairs.bound_to(ruling)
            portal = Portal(ruling, price, meter, repair, tried=tried, values=values)
            portal.since = self._c.repairs.refusals
            if ruling.executes:
                portal.runs = tuple(self._in_force.executed(ruling))
            reply.changes = (self._c.names.open(name, portal),)

    def refuse_bound(self, ruling: Ruling) -> bytes:
        """Refuse a Bind or Execute: by a Bind of a statement that cannot exist."""
        return self.fail_bound(self._c.rejection(ruling, "extended"))

    def fail_bound(self, error: bytes) -> bytes:
        """Have a Bind or Execute fail with the ErrorResponse ``error``."""
        self._c.replies.owe(Reply(Owed.BIND, rejection=error))
        self._c.phase = Phase.DISCARDING
        return wire.bind_message(b"", self._c.refused_text)

    def _owe_unseen(self, portal: bytes) -> bytes | None:
        """Under a policy that only observes, what a function has prepared may be bound as without us."""
        self._c.pipeline_open = self._c.unsynced = True
        reply = Reply(Owed.BIND)
        if self._c.replies.owe(reply):
            reply.changes = self._c.names.vacate(portal)
        return None

    def _on_describe(self, data: bytes, body: int, end: int) -> bytes | None:
        frontend.check_target(data, body, end)
        described = Owed.DESCRIBE_STATEMENT if data[body] == _OF_STATEMENT else Owed.DESCRIBE_PORTAL
        self._c.replies.owe(Reply(described))
        return None

    def _on_execute(self, data: bytes, body: int, end: int) -> bytes | None:
        self._c.pipeline_open = self._c.unsynced = True
        name = frontend.decode_execute(data, body, end)
        portal = self._c.names.settled_portal(name)
        if portal is None:
            wait_for(self._c.names.portal_doubt(name))
            portal = self._c.names.portal(name)
        if portal is None:
            if self._c.observes:
                unseen = self._in_force.unseen(name)
                return self.run_execute(Portal(unseen), unseen)
            return self._has_to_fail(Owed.EXECUTE, b"P", name)
        ruling = portal.ruling
        if not ruling.plain:
            self._in_force.await_names(ruling)
        if ruling.policy is not self._c.gate.policy:
            ruling = self._in_force.judged_anew(portal)
        if ruling.allowed and ruling.names_late:
            ruling = self._in_force.found_now(portal)
        if not ruling.plain:
            ruling = self._in_force.check_named(ruling)
            if ruling.priced and ruling.executes and portal.runs != tuple(self._in_force.executed(ruling)):
                ruling = self._c.gate.exchanged(ruling)
        if not ruling.allowed or not ruling.running.reads:
            self._c.await_result()
        self.succession.taken()
        if not ruling.allowed:
            return self._weigh(ruling, self.refuse_bound)
        if self._c.repairs.overtaken(portal):
            return self._compare_again(portal, ruling)
        return self._settle_execute(portal, ruling)

    def _compare_again(self, portal: Portal, ruling: Ruling) -> bytes | None:
        """Something was refused since the portal was bound, and a part of the transaction undone: what it
        runs may be the answer to that."""
        repairs, values = self._c.repairs, portal.values
        portal.since = repairs.refusals
        bound = () if values is None else (values.message, values.types)
        if repairs.waits_for(ruling):
            told = bound_values(*bound) if bound else ()
            return self._weigh(ruling, lambda compared: self._settle_compared(portal, compared), told)
        runs = self._in_force.executed_rulings(ruling)
        return self._settle_compared(portal, repairs.judge(ruling, runs, *bound))

    def _settle_compared(self, portal: Portal, ruling: Ruling) -> bytes | None:
        if not ruling.allowed:
            return self.refuse_bound(ruling)
        portal.repair = self._c.repairs.repair_of(ruling)
        return self._settle_execute(portal, ruling)

    def _settle_execute(self, portal: Portal, ruling: Ruling) -> bytes | None:
        if self._sandbox.must_ask_again(portal):
            return self._sandbox.ask_again(portal, ruling)
        return self.run_execute(portal, ruling)

    def run_execute(self, portal: Portal, ruling: Ruling) -> bytes | None:
        """Let the Execute at hand run: as it came (None), or by the messages that hold what it writes."""
        self._sandbox.ran()
        portal.ran = True
        entry = self._c.next_entry(ruling, "extended")
        if portal.repair is not None:
            entry.answers(portal.repair)
        entry.values = portal.values
        if portal.tried is not None:
            entry.sandbox, portal.tried = portal.tried.outcome, None
        if portal.price is not None:
            entry.cost = portal.price.cost
        if not ruling.running.reads:
            self._c.segment_reads = False
        counted, opened = self._counted(ruling, portal), isinstance(portal, Cursor)
        if self._must_hold(ruling, counted, simple=False):
            write = HeldWrite(self._c, ruling, entry, counted, takes=self._in_force.takes(ruling))
            changes = () if ruling.plain else self._consequences.of(ruling, portal.price, opened=opened)
            return write.execute(self.this_frame(), portal, changes)
        self._c.written = None
        reply = Reply(Owed.EXECUTE, entry, ruling=ruling)
        if self._c.owe(reply):
            if not ruling.plain:
                reply.changes = self._consequences.of(ruling, portal.price, opened=opened)
            if counted is not None:
                reply.counted = counted
                self._c.limited = reply
        if not self._in_force.copies(ruling):
            return None
        # The agent's Sync waits until it is certain how the server will read it, so we ask for the answer.
        self._c.copying = reply
        return self.this_frame() + wire.FLUSH

    def _on_close(self, data: bytes, body: int, end: int) -> bytes | None:
        target = frontend.decode_target(data[body:end])
        if target.kind == b"S":
            self._c.await_result()
        reply = Reply(Owed.CLOSE)
        if self._c.replies.owe(reply):
            names = self._c.names
            reply.changes = (names.forget(target.name),) if target.kind == b"S" else names.close(target.name)
        return None

    def _on_sync(self, _data: bytes, body: int, end: int) -> bytes | None:
        frontend.check_empty(body, end)
        if not self._c.segment_reads:
            self._c.await_result()
        reply = Reply(Owed.SYNC)
        self._c.replies.owe(reply)
        self._c.names.next_segment()
        self._c.pipeline_open = self._c.unsynced = False
        self._c.segment_reads = True
        if self._c.limited is not None:
            # Its transaction may have to fail yet, and what follows with it.
            self._c.limited = None
            self._c.awaited = Unanswered(self._c.replies.queue, reply)
        return None

    def _on_flush(self, _data: bytes, body: int, end: int) -> bytes | None:
        frontend.check_empty(body, end)
        return None

    def _on_function_call(self, _data: bytes, _body: int, _end: int) -> bytes | None:
        violation = Violation(
            "protocol-not-offered",
            "FunctionCall carries no SQL that could be judged",
            "Call the function in a SELECT. Do not retry this message.",
            sqlstate="0A000",
        )
        return self._settle_query(self._in_force.objection(violation, StatementClass.CALL, QueryString("")))

    def _on_copy_data(self, data: bytes, _body: int, end: int) -> bytes | None:
        self._c.copy_syncs = 0
        if self._c.late_sync and not self._c.agent_frames.mid_copy_data:
            late, self._c.late_sync = self._c.late_sync, b""
            return data[self._c.agent_frames.start : end] + late
        return None

    def _on_copy_end(self, data: bytes, _body: int, end: int) -> bytes | None:
        fails = data[self._c.agent_frames.start] == _COPY_FAIL
        if fails:
            self._c.copy_syncs = 0
        if self._c.phase is not Phase.COPY_IN:
            return None
        self._c.phase = Phase.READY
        head = self._c.replies.queue[0]
        if head.kind is Owed.EXECUTE:
            # Nothing but its completion can follow, and that waits for the agent's Sync.
            self._c.copying = None
        if head.write is None:
            return None
        if fails:
            head.write.copy_failed()
            return None
        return data[self._c.agent_frames.start : end] + head.write.copied()

    def _on_terminate(self, _data: bytes, body: int, end: int) -> bytes | None:
        frontend.check_empty(body, end)
        self._c.phase = Phase.CLOSED
        return None

    def _on_dropped(self, _data: bytes, _body: int, _end: int) -> bytes | None:
        return DROP

    def _on_resume(self, data: bytes, body: int, end: int) -> bytes | None:
        self._c.phase = Phase.READY
        return self._on_sync(data, body, end)

    def _on_ignored_sync(self, _data: bytes, body: int, end: int) -> bytes | None:
        """The server would read past it while it copies. Kept back until it is known that it did not."""
        frontend.check_empty(body, end)
        self._c.copy_syncs += 1
        return DROP

    def _weigh(
        self,
        ruling: Ruling,
        go_on: Callable[[Ruling], bytes | None],
        values: Sequence[Parameter] = (),
    ) -> bytes | None:
        """``go_on`` with ``ruling`` in the light of earlier refusals, once their store has answered: the
        message at hand is held for it, unless there is nothing to ask."""
        repairs = self._c.repairs
        ask = repairs.question(ruling, values, self._in_force.executed_rulings(ruling))
        if ask is None:
            return go_on(ruling)
        self._c.waiting = Held(
            self.this_frame(), consulted=lambda judged: go_on(repairs.answered(ruling, judged))
        )
        self._c.effects.append(Consult(ask))
        return DROP

    def _hold(self, data: bytes, end: int, text: bytes, complete: Callable[[Ruling], bytes | None]) -> bytes:
        """Keep the message back until its ruling is there."""
        self._c.waiting = Held(data[self._c.agent_frames.start : end], text, complete)
        return DROP

    def this_frame(self) -> bytes:
        """The message at hand: the one whose ruling has come late, or the one just taken."""
        frames = self._c.agent_frames
        return frames.data[frames.start : frames.end] if self._c.frame is None else self._c.frame

    def _kind(self) -> int:
        """The type of the message at hand."""
        frames = self._c.agent_frames
        return frames.data[frames.start] if self._c.frame is None else self._c.frame[0]
