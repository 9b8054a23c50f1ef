"""One connection's steady state, without I/O: chunks in, effects out.

The only place where the two directions meet. Owns what may pass, the replies owed, and how a refusal is
made to look exactly like a failed statement of PostgreSQL's own: the refused message is replaced by one of
the same kind that the server must fail, and the server's error is rewritten into ours, so that the
transaction status is always the server's. Knows no sockets, no YAML and no rule.

Invariants: nothing reaches the backend undecided; what is allowed passes byte for byte; any split of the
bytes gives the same result; any surprise closes both connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from policy.decision import Allow, Decision, Reject
from policy.facts import QueryString, SessionAction, SessionRef
from policy.model import Mode, RepairTerms, StatementClass, Violation
from policy.names import PathNames
from policy.rejection import reject
from proxy.effects import AuditEntry, Close, Decide, Effect, Record, ToBackend, ToFrontend
from proxy.exchange import Answer, Exchange
from proxy.gate import Gate, Price, Ruling, error_fields
from proxy.phase import LEGAL, Action, Phase
from proxy.prepared import AnyChange, Names, Portal, Prepared, TooManyNames
from proxy.pricing import Asked, as_own_error, ask_for_bind, ask_for_query
from proxy.replies import Owed, Replies, Reply
from proxy.wire import backend as wire
from proxy.wire import frontend
from proxy.wire.frames import HEADER, BackendFrames, FramingError, FrontendFrames
from proxy.wire.frontend import MalformedMessage

_DROP: Final = b""
_PINNED: Final = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}
"""Parameters whose change would make the server read texts otherwise than the gate did."""
_ASK_PATH: Final = b"SELECT pg_catalog.current_schemas(false) /* pgturnstile */"
_EXECUTE_ALL: Final = wire.frame(b"E", b"\0\0\0\0\0")
_BACKLOG: Final = 64 * 1024
"""Bytes of the agent that may wait behind a held message; more are left unread."""
_MOST_OWED: Final = 16_384
"""Replies owed above which the agent is not read: each costs memory that its five bytes did not.

No less than some 1,700, which PostgreSQL may keep in its own buffer until it is asked to flush.
"""

_ERROR: Final = ord("E")
_READY: Final = ord("Z")
_COMPLETE: Final = ord("C")
_DATA_ROW: Final = ord("D")
_PARAMETER: Final = ord("S")
_COPY_FAIL: Final = ord("f")
_ANY_TIME: Final = frozenset(b"SNA")
"""ParameterStatus, NoticeResponse, NotificationResponse: answers to nothing."""


class _Ending(NamedTuple):
    """Why a session ends; ``sqlstate`` None where the agent need not be told."""

    reason: str
    sqlstate: str | None = None


class Identity:
    """Who a session speaks for: what decisions and audit lines of one connection have in common.

    ``connection`` is unique to the connection and prefixes the ids of its decisions; ``role`` is the backend
    role, which "$user" in a search_path stands for.
    """

    __slots__ = ("connection", "role")

    def __init__(self, connection: str, role: str) -> None:
        self.connection = connection
        self.role = role


class _NotYetError(Exception):
    """The agent's message means one thing or another until ``change`` is settled: it is taken again then."""

    def __init__(self, change: AnyChange) -> None:
        super().__init__("waits for an earlier reply")
        self.change = change


class _Held:
    """A message that waits: for its ruling, which ``complete`` takes, if it has a ``text`` to be judged; else
    for the answer to an exchange."""

    __slots__ = ("complete", "frame", "text")

    def __init__(
        self,
        frame: bytes,
        text: bytes | None = None,
        complete: Callable[[Ruling], bytes | None] | None = None,
    ) -> None:
        self.frame = frame
        self.text = text
        self.complete = complete


class Session:
    """The two directions of one connection after the handshake, the backend being idle and owing nothing.

    ``path`` is the effective search_path; ``nonce`` an unguessable word that marks our substitutes; ``clock``
    gives seconds.
    """

    def __init__(
        self,
        gate: Gate,
        identity: Identity,
        path: tuple[str, ...],
        *,
        nonce: str,
        clock: Callable[[], float],
        message_bytes: int,
    ) -> None:
        self._gate = gate
        self._observes = gate.policy.mode is Mode.OBSERVE
        self._identity = identity
        self._clock = clock
        self._frontend = FrontendFrames(message_bytes)
        self._backend = BackendFrames()
        self._replies = Replies()
        self._names = Names()
        self._awaited: AnyChange | None = None
        self._first_path = path
        self._path_unsettled = False
        self._paths = PathNames((path,))
        self._cache = gate.cache(self._paths)
        self._phase = Phase.READY
        self._held: _Held | None = None
        self._decisions = 0
        self._copying: Reply | None = None
        self._copy_syncs = 0
        self._frame: bytes | None = None
        """The message whose late ruling is being carried out; None while one is taken from the stream."""
        self._pipeline_open = False
        """True from a message of the extended protocol up to the Sync or Query that ends its transaction."""
        self._question_name = f"pgturnstile_price_{nonce}".encode()
        self._refused_text = f"pgturnstile_refused_{nonce}".encode()
        self._path_statement = f"pgturnstile_path_{nonce}".encode()
        self.status = b"I"
        """Transaction status as the server last gave it."""
        self._fatal_relayed = False
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
        self._effects: list[Effect] = []

    # --- what the relay sees --------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """True while the agent's messages wait: for a ruling, a price, a COPY or what a name stands for."""
        if self._awaited is not None and not self._awaited.doubtful:
            self._awaited = None
        return self._held is not None or self._awaited is not None or self._waits_for_copy

    @property
    def overfull(self) -> bool:
        """True while the agent should not be read: too much of its waits already, here or in the server."""
        return len(self._replies.queue) > _MOST_OWED or (self.held and self._frontend.backlog > _BACKLOG)

    @property
    def in_flight(self) -> bool:
        """True while the server works for the agent: a cancel request may be passed on."""
        return any(reply.exchange is None for reply in self._replies.queue)

    @property
    def cancellable(self) -> bool:
        """True when all that runs would fail as one if it were cancelled.

        Else cancelling could let a later, already forwarded part run alone: a cancelled BEGIN, and the write
        behind it commits by itself.
        """
        queue = self._replies.queue
        syncs = (Owed.QUERY, Owed.SYNC)
        return bool(queue) and all(reply.kind not in syncs for reply in list(queue)[:-1])

    @property
    def idle(self) -> bool:
        """True when nothing is owed, asked or half sent, and no transaction is open."""
        return not (self._replies.queue or self._held or self._frontend.pending) and self.status == b"I"

    @property
    def closed(self) -> bool:
        return self._phase is Phase.CLOSED

    @property
    def _waits_for_copy(self) -> bool:
        """True from a COPY until the server asks for its data, and again until what follows is certain.

        What the agent sends next means one thing to a server that copies and another to one that does not.
        """
        if self._copying is None:
            return False
        queue = self._replies.queue
        return self._phase is Phase.READY and bool(queue) and queue[-1] is self._copying

    def from_frontend(self, chunk: bytes) -> list[Effect]:
        """Bytes of the agent, in any split."""
        if self._phase is Phase.CLOSED:
            return []
        self._effects = []
        self._frontend.feed(chunk)
        self._advance()
        return self._effects

    def from_backend(self, chunk: bytes) -> list[Effect]:
        """Bytes of PostgreSQL, in any split."""
        if self._phase is Phase.CLOSED:
            return []
        self._effects = []
        was_held = self.held
        try:
            self._relay(chunk)
        except (FramingError, MalformedMessage, LookupError) as surprise:
            self._surprised(f"backend: {surprise}")
            return self._effects
        if was_held and not self.held and not self.closed:
            self._advance()
        return self._effects

    def decided(self, ruling: Ruling) -> list[Effect]:
        """The ruling that a Decide effect asked for."""
        self._effects = []
        held, self._held = self._held, None
        if held is None or held.complete is None or self._phase is Phase.CLOSED:
            return []
        if ruling.text != held.text:
            self._surprised("a ruling on another statement than the one that waits")
            return self._effects
        self._frame = held.frame
        try:
            replacement = held.complete(ruling)
        except TooManyNames as error:
            self._end(str(error), error.sqlstate)
            return self._effects
        self._forward(held.frame if replacement is None else replacement)
        self._advance()
        return self._effects

    def lost(self) -> list[Effect]:
        """One of the connections is gone: what is still owed is recorded as unknown."""
        self._effects = []
        self._phase = Phase.CLOSED
        self._record_dropped(self._replies.queue)
        self._replies.queue.clear()
        return self._effects

    def refuse(self, message: str, sqlstate: str) -> list[Effect]:
        """End the session from our side with a FATAL error (drain, failure of the proxy)."""
        self._effects = []
        self._end(message, sqlstate)
        return self._effects

    # --- from the agent -------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Take frame after frame while the session may go on; allowed runs leave as they came."""
        frames = self._frontend
        data = frames.data
        run = done = frames.end
        waiting = self._held
        ending: _Ending | None = None
        while ending is None and self._held is None and self._awaited is None and not self._waits_for_copy:
            try:
                kind = frames.next_frame()
                if kind == 0:
                    break
                replacement = self._take(kind, data)
            except _NotYetError as wait:
                frames.put_back()
                self._awaited = wait.change
                break
            except (FramingError, MalformedMessage, TooManyNames) as fault:
                ending = _Ending(str(fault), fault.sqlstate)
                break
            if replacement is not None:
                self._forward(data[run : frames.start])
                self._forward(replacement)
                run = frames.end
            done = frames.end
            if self._phase is Phase.CLOSED:
                ending = _Ending("terminated by the agent")
        self._forward(data if run == 0 and done == len(data) else data[run:done])
        if self._held is not None and self._held is not waiting and self._held.text is not None:
            self._effects.append(Decide(self._held.text, self._paths))
        if ending is not None:
            self._end(ending.reason, ending.sqlstate)

    def _forward(self, data: bytes) -> None:
        if data:
            self._effects.append(ToBackend(data))

    def _take(self, kind: int, data: bytes) -> bytes | None:
        """Account for one message of the agent. None lets it pass; bytes (b"" for none) take its place."""
        self._frame = None
        action = LEGAL[self._phase].get(kind)
        if action is None:
            raise MalformedMessage(f"message {chr(kind)!r} is not legal while {self._phase.value}")
        return self._actions[action](data, self._frontend.body, self._frontend.end)

    def _on_query(self, data: bytes, body: int, end: int) -> bytes | None:
        if data.find(b"\0", body, end) != end - 1:
            raise MalformedMessage("Query is not one string")
        text = data[body : end - 1]
        ruling = self._rule(text)
        if ruling is None:
            return self._hold(data, end, text, self._settle_query)
        for name in ruling.executes:
            self._await(self._names.doubt(name.encode()))
        return self._settle_query(ruling)

    def _settle_query(self, ruling: Ruling) -> bytes | None:
        ruling = self._check_executes(ruling)
        if not ruling.allowed:
            return self._refuse_query(ruling)
        price = self._price_held(ruling)
        if price is None and self._must_ask(ruling):
            return self._price_query(ruling)
        self._owe_query(ruling, self._entry(ruling, "simple"), price)
        return None

    def _owe_query(self, ruling: Ruling, entry: AuditEntry, price: Price | None) -> None:
        self._pipeline_open = False
        told = ruling.notice
        if price is not None:
            told += price.notice
            entry.cost = price.cost
        reply = Reply(Owed.QUERY, entry, notice=told)
        if self._owe(reply) and not ruling.plain:
            reply.changes = self._apply(ruling)
        self._names.next_segment()
        if ruling.copies:
            self._copying = reply

    def _await(self, change: AnyChange | None) -> None:
        if change is not None:
            raise _NotYetError(change)

    def _owe(self, reply: Reply) -> bool:
        """Note the reply to a decided statement; one that the server reads past is recorded at once."""
        owed = self._replies.owe(reply)
        if not owed:
            self._record_dropped((reply,))
        return owed

    def _refuse_query(self, ruling: Ruling) -> bytes:
        rejection = self._rejection(ruling, "simple")
        self._replies.owe(Reply(Owed.QUERY, rejection=rejection))
        self._names.next_segment()
        self._pipeline_open = False
        return wire.simple_query(self._refused_text)

    def _on_parse(self, data: bytes, body: int, end: int) -> bytes | None:
        self._pipeline_open = True
        message = frontend.decode_parse(data[body:end])
        ruling = self._rule(message.text)
        if ruling is None:
            return self._hold(data, end, message.text, lambda late: self._settle_parse(message, late))
        return self._settle_parse(message, ruling)

    def _settle_parse(self, message: frontend.Parse, ruling: Ruling) -> bytes | None:
        name = message.name
        if not ruling.allowed:
            refused = Reply(Owed.PARSE, name=name, rejection=self._rejection(ruling, "extended"))
            if self._replies.owe(refused) and not name:
                refused.changes = (self._names.forget(name),)
            self._phase = Phase.DISCARDING
            return wire.parse_message(name, self._refused_text)
        reply = Reply(Owed.PARSE, name=name, notice=ruling.notice)
        if self._replies.owe(reply):
            reply.changes = (self._names.prepare(name, Prepared(ruling, message.types)),)
        return None

    def _on_bind(self, data: bytes, body: int, end: int) -> bytes | None:
        self._pipeline_open = True
        message = frontend.decode_bind(data[body:end])
        self._await(self._names.doubt(message.statement))
        prepared = self._names.statement(message.statement)
        if prepared is None:
            # Prepared nowhere that we saw: the server has no such statement, and says so itself.
            self._replies.owe(Reply(Owed.BIND, must_fail=True))
            return None
        types = prepared.types
        fresh = self._again(prepared.ruling)
        if fresh is None:
            text = prepared.ruling.text
            return self._hold(data, end, text, lambda late: self._settle_bind(message, types, late))
        return self._settle_bind(message, types, fresh)

    def _settle_bind(self, message: frontend.Bind, types: tuple[int, ...], ruling: Ruling) -> bytes | None:
        ruling = self._check_executes(ruling)
        if not ruling.allowed:
            return self._refuse_bound(ruling)
        price = self._price_held(ruling, types)
        if price is None and self._must_ask(ruling):
            return self._price_bind(message, types, ruling)
        self._owe_bind(message.portal, Portal(ruling, price))
        return None

    def _owe_bind(self, name: bytes, portal: Portal) -> None:
        reply = Reply(Owed.BIND, notice=b"" if portal.price is None else portal.price.notice)
        if self._replies.owe(reply):
            reply.changes = (self._names.open(name, portal),)

    def _refuse_bound(self, ruling: Ruling) -> bytes:
        """Refuse a Bind or Execute: by a Bind of a statement that cannot exist."""
        rejection = self._rejection(ruling, "extended")
        self._replies.owe(Reply(Owed.BIND, rejection=rejection))
        self._phase = Phase.DISCARDING
        return wire.bind_message(b"", self._refused_text)

    def _on_describe(self, data: bytes, body: int, end: int) -> bytes | None:
        frontend.decode_target(data[body:end])
        self._replies.owe(Reply(Owed.DESCRIBE))
        return None

    def _on_execute(self, data: bytes, body: int, end: int) -> bytes | None:
        self._pipeline_open = True
        message = frontend.decode_execute(data[body:end])
        self._await(self._names.portal_doubt(message.portal))
        portal = self._names.portal(message.portal)
        if portal is None:
            # Bound to nothing we saw: the server has no such portal, and says so itself.
            self._replies.owe(Reply(Owed.EXECUTE, must_fail=True))
            return None
        for name in portal.ruling.executes:
            self._await(self._names.doubt(name.encode()))
        ruling = self._check_executes(portal.ruling)
        if not ruling.allowed:
            return self._refuse_bound(ruling)
        entry = self._entry(ruling, "extended")
        if portal.price is not None:
            entry.cost = portal.price.cost
        reply = Reply(Owed.EXECUTE, entry)
        if self._owe(reply) and not ruling.plain:
            reply.changes = self._apply(ruling)
        if not ruling.copies:
            return None
        # The agent's Sync waits until it is certain how the server will read it, so we ask for the answer.
        self._copying = reply
        return data[self._frontend.start : end] + wire.FLUSH

    def _on_close(self, data: bytes, body: int, end: int) -> bytes | None:
        target = frontend.decode_target(data[body:end])
        reply = Reply(Owed.CLOSE)
        if self._replies.owe(reply):
            names = self._names
            reply.changes = (names.forget(target.name),) if target.kind == b"S" else names.close(target.name)
        return None

    def _on_sync(self, data: bytes, body: int, end: int) -> bytes | None:
        frontend.decode_empty(data[body:end])
        self._replies.owe(Reply(Owed.SYNC))
        self._names.next_segment()
        self._pipeline_open = False
        return None

    def _on_flush(self, data: bytes, body: int, end: int) -> bytes | None:
        frontend.decode_empty(data[body:end])
        return None

    def _on_function_call(self, _data: bytes, _body: int, _end: int) -> bytes | None:
        violation = Violation(
            "protocol-not-offered",
            "FunctionCall carries no SQL that could be judged",
            "Call the function in a SELECT. Do not retry this message.",
            sqlstate="0A000",
        )
        return self._settle_query(self._objection(violation, StatementClass.CALL, QueryString("")))

    def _on_copy_data(self, _data: bytes, _body: int, _end: int) -> bytes | None:
        self._copy_syncs = 0
        return None

    def _on_copy_end(self, data: bytes, _body: int, _end: int) -> bytes | None:
        if data[self._frontend.start] == _COPY_FAIL:
            self._copy_syncs = 0
        if self._phase is Phase.COPY_IN:
            self._phase = Phase.READY
            if self._replies.queue[0].kind is Owed.EXECUTE:
                # Nothing but its completion can follow, and that waits for the agent's Sync.
                self._copying = None
        return None

    def _on_terminate(self, data: bytes, body: int, end: int) -> bytes | None:
        frontend.decode_empty(data[body:end])
        self._phase = Phase.CLOSED
        return None

    def _on_dropped(self, _data: bytes, _body: int, _end: int) -> bytes | None:
        return _DROP

    def _on_resume(self, data: bytes, body: int, end: int) -> bytes | None:
        self._phase = Phase.READY
        return self._on_sync(data, body, end)

    def _on_ignored_sync(self, data: bytes, body: int, end: int) -> bytes | None:
        """The server would read past it while it copies. Kept back until it is known that it did not."""
        frontend.decode_empty(data[body:end])
        self._copy_syncs += 1
        return _DROP

    # --- rulings --------------------------------------------------------------------------------------------

    def _rule(self, text: bytes) -> Ruling | None:
        known = self._cache.get(text)
        return known if known is not None else self._gate.rule(text, self._paths)

    def _hold(self, data: bytes, end: int, text: bytes, complete: Callable[[Ruling], bytes | None]) -> bytes:
        """Keep the message back until its ruling is there."""
        self._held = _Held(data[self._frontend.start : end], text, complete)
        return _DROP

    def _this_frame(self) -> bytes:
        """The message at hand: the one whose ruling has come late, or the one just taken."""
        frames = self._frontend
        return frames.data[frames.start : frames.end] if self._frame is None else self._frame

    def _again(self, ruling: Ruling) -> Ruling | None:
        """The ruling on a prepared statement now: on another path the server resolves its names anew."""
        return ruling if ruling.names == self._paths else self._rule(ruling.text)

    def _check_executes(self, ruling: Ruling) -> Ruling:
        """What SQL EXECUTE runs is judged as prepared here, under the names in force now."""
        for name, prepared in self._executed(ruling):
            if prepared is None or self._names.doubt(name.encode()) is not None:
                return self._objection(
                    Violation(
                        "not-understood",
                        f'prepared statement "{name}" does not exist',
                        "PREPARE it on this connection first. Do not retry this statement as it is.",
                        object=name,
                        sqlstate="26000",
                    ),
                    StatementClass.PREPARE,
                    ruling.decision.query,
                )
            inner = prepared.ruling
            if inner.names != self._paths:
                inner = self._rule(inner.text) or self._gate.rule_slowly(inner.text, self._paths)
                if not inner.allowed:
                    return inner
        return ruling

    def _executed(self, ruling: Ruling) -> Iterable[tuple[str, Prepared | None]]:
        """Every name that runs with ``ruling``: what EXECUTE runs may EXECUTE in its turn."""
        names = list(ruling.executes)
        for name in names:
            prepared = self._names.statement(name.encode())
            if prepared is not None:
                names += [more for more in prepared.ruling.executes if more not in names]
            yield name, prepared

    def _objection(self, violation: Violation, statement_class: StatementClass, query: QueryString) -> Ruling:
        """A ruling that the session itself makes: a refusal, unless the policy only observes."""
        decision: Decision = Reject(query, statement_class, (violation,), RepairTerms(), violation.halt)
        if self._observes:
            decision = Allow(query, statement_class, observed=(violation,))
        return Ruling(decision, self._gate.policy, query.sql.encode(), self._paths)

    def _apply(self, ruling: Ruling) -> list[AnyChange]:
        """What forwarding the statement does to names and search_path; returns the former."""
        executed = [(name, found.ruling) for name, found in self._executed(ruling) if found is not None]
        changes: list[AnyChange] = []
        for name, run in [(None, ruling), *executed]:
            if run.paths or run.resets_path:
                self._widen_paths(run)
            for ref in run.actions:
                # Running what PREPARE made does not make it again.
                if (ref.action, ref.name) != (SessionAction.PREPARE, name):
                    changes += self._act(ref, run)
        return changes

    def _act(self, ref: SessionRef, ruling: Ruling) -> Sequence[AnyChange]:
        name = (ref.name or "").encode()
        match ref.action:
            case SessionAction.PREPARE:
                return (self._names.prepare(name, Prepared(ruling)),)
            case SessionAction.DEALLOCATE:
                return (self._names.forget(name),)
            case SessionAction.CLOSE if ruling.statements == 1:
                return self._names.close(name)
            case SessionAction.DEALLOCATE_ALL | SessionAction.DISCARD_ALL:
                return self._names.forget_all()
            case SessionAction.DECLARE:
                return (self._names.declare(name, ruling, ref.hold),)
            case _:
                return ()

    def _entry(self, ruling: Ruling, protocol: str) -> AuditEntry:
        self._decisions += 1
        return AuditEntry(
            f"{self._identity.connection}-{self._decisions}",
            ruling.decision,
            "copy" if ruling.copies else protocol,
            self._clock(),
        )

    def _rejection(self, ruling: Ruling, protocol: str) -> bytes:
        """Record the refusal and word it as the ErrorResponse the agent will read."""
        if not isinstance(ruling.decision, Reject):
            raise TypeError("only a Reject can be worded")
        entry = self._entry(ruling, protocol)
        rejection = reject(ruling.decision, entry.id, self._gate.policy)
        entry.sqlstate = rejection.sqlstate
        entry.outcome_known = True
        self._effects.append(Record(entry))
        return wire.encode_error(error_fields(rejection))

    # --- prices ---------------------------------------------------------------------------------------------

    def _price_held(self, ruling: Ruling, types: tuple[int, ...] = ()) -> Price | None:
        """The price asked before, where no bound value can change it and it is not too old."""
        price = ruling.prices.get(types)
        return price if price is not None and price.until > self._clock() else None

    def _must_ask(self, ruling: Ruling) -> bool:
        """A server that reads past everything up to a Sync answers nothing, nor runs the statement."""
        return ruling.question is not None and not self._replies.discarding

    def _price_query(self, ruling: Ruling) -> bytes:
        """Hold the Query and ask first what it would cost."""
        entry = self._entry(ruling, "simple")
        asked = ask_for_query(_text(ruling), sync=not self._pipeline_open)
        return self._ask(asked, lambda answer: self._query_priced(ruling, entry, answer))

    def _query_priced(self, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        frame = self._release()
        if answer.skipped:
            self._record_unknown(entry)
            return _DROP
        if answer.error is not None:
            return self._query_failed(ruling, entry, answer)
        refusal, price = self._gate.priced(ruling, answer.rows, (), self._clock())
        if refusal is not None:
            self._forward(self._refuse_query(refusal))
        else:
            self._owe_query(ruling, entry, price)
            self._forward(frame)
        return _DROP

    def _query_failed(self, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        """EXPLAIN's error is the statement's own; the status after it is what the server says."""
        error = self._own_error(ruling, entry, answer)
        if answer.ready is not None:
            return error + wire.encode_ready(answer.ready)
        # Inside an open pipeline the server now reads up to a Sync, as it would not after a failed Query: the
        # Sync's ReadyForQuery is the Query's.
        self._replies.owe(Reply(Owed.SYNC))
        self._forward(wire.SYNC)
        self._pipeline_open = False
        return error

    def _price_bind(self, message: frontend.Bind, types: tuple[int, ...], ruling: Ruling) -> bytes:
        """Hold the Bind and ask what its statement would cost with its values."""
        entry = self._entry(ruling, "extended")
        body = self._this_frame()[HEADER:]
        asked = ask_for_bind(_text(ruling), types, body, message.statement, self._question_name)
        return self._ask(
            asked, lambda answer: self._bind_priced(message.portal, types, ruling, entry, answer)
        )

    def _bind_priced(
        self, portal: bytes, types: tuple[int, ...], ruling: Ruling, entry: AuditEntry, answer: Answer
    ) -> bytes:
        frame = self._release()
        if answer.skipped:
            self._record_unknown(entry)
            return _DROP
        if answer.error is not None:
            self._phase = Phase.DISCARDING
            return self._own_error(ruling, entry, answer)
        refusal, price = self._gate.priced(ruling, answer.rows, types, self._clock())
        if refusal is not None:
            self._forward(self._refuse_bound(refusal))
        else:
            self._owe_bind(portal, Portal(ruling, price))
            self._forward(frame)
        return _DROP

    def _ask(self, asked: Asked, done: Callable[[Answer], bytes]) -> bytes:
        """Hold the message at hand; the messages that take its place are a question of ours."""
        self._held = _Held(self._this_frame())
        exchange = Exchange(done)
        for owed in asked.owed:
            self._replies.owe(Reply(owed, exchange=exchange))
        return asked.messages

    def _release(self) -> bytes:
        """The message that was held, which may now go its way; what waits behind it follows."""
        held, self._held = self._held, None
        return held.frame if held is not None else _DROP

    def _own_error(self, ruling: Ruling, entry: AuditEntry, answer: Answer) -> bytes:
        if ruling.question is None or answer.error is None:
            raise TypeError("an error without a question")
        entry.sqlstate = wire.decode_fields(answer.error).get("sqlstate")
        self._record(entry)
        return as_own_error(answer.error, ruling.question)

    # --- search_path ----------------------------------------------------------------------------------------

    def _widen_paths(self, ruling: Ruling) -> None:
        """Until the server says which path holds, names are judged along every path that may."""
        new = [self._expand(path) for path in ruling.paths]
        if ruling.resets_path:
            new.append(self._first_path)
        self._use_paths(tuple(dict.fromkeys([*self._paths.paths, *new])))
        self._path_unsettled = True

    def _expand(self, path: tuple[str, ...]) -> tuple[str, ...]:
        expanded = (self._identity.role if schema == "$user" else schema for schema in path)
        return tuple(schema for schema in expanded if schema and schema != "pg_catalog")

    def _use_paths(self, paths: tuple[tuple[str, ...], ...]) -> None:
        self._paths = PathNames(paths)
        self._cache = self._gate.cache(self._paths)

    def _ask_path(self) -> None:
        """Ask by a name of our own: a Query would drop the agent's unnamed statement."""
        self._path_unsettled = False
        name, exchange = self._path_statement, Exchange(self._learn_path)
        for kind in (Owed.PARSE, Owed.BIND, Owed.EXECUTE, Owed.CLOSE, Owed.SYNC):
            self._replies.owe(Reply(kind, exchange=exchange))
        self._forward(
            wire.parse_message(name, _ASK_PATH)
            + wire.bind_message(b"", name)
            + _EXECUTE_ALL
            + wire.frame(b"C", b"S" + name + b"\0")
            + wire.SYNC
        )

    def _learn_path(self, answer: Answer) -> bytes:
        if answer.error is not None or not answer.rows:
            self._path_unsettled = True
        elif not self._path_unsettled:
            value = wire.decode_row(answer.rows[0])[0]
            self._use_paths((wire.text_array((value or b"{}").decode()),))
        return _DROP

    # --- from the backend -----------------------------------------------------------------------------------

    def _relay(self, chunk: bytes) -> None:
        """Pass the chunk on, less what answers ourselves, with errors of our substitutes rewritten."""
        frames = self._backend
        queue = self._replies.queue
        frames.feed(chunk)
        data = frames.data
        pieces: list[bytes] = []
        run = 0
        while True:
            frames.capture = bool(queue) and queue[0].exchange is not None
            head = queue[0] if queue else None
            if head is not None and head.rows_before < 0:
                head.rows_before, head.bytes_before = frames.rows, frames.row_bytes
            kind = frames.next_frame()
            if kind == 0:
                break
            if head is not None and head.notice:
                pieces += (data[run : frames.start], head.notice)
                run = frames.start
                head.notice = b""
            replacement = self._reply(kind, data, head)
            if self._phase is Phase.CLOSED:
                break
            if replacement is not None:
                pieces += (data[run : frames.start], replacement)
                run = frames.end
        tail = frames.tail
        if run < tail:
            pieces.append(data if run == 0 and tail == len(data) else data[run:tail])
        passed = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if passed:
            # Before the other effects of this chunk: what we ask or record comes after what the agent reads.
            self._effects.insert(0, ToFrontend(passed))

    def _reply(self, kind: int, data: bytes, head: Reply | None) -> bytes | None:
        """Account for one message of the backend. None lets it pass; bytes (b"" for none) take its place."""
        frames = self._backend
        if kind in _ANY_TIME:
            if kind == _PARAMETER:
                self._check_parameter(data[frames.body : frames.end])
            return None
        if kind == _ERROR:
            return self._on_error(data[frames.body : frames.end], head)
        if head is not None and head.exchange is not None:
            return self._on_own_answer(kind, data, head, head.exchange)
        if kind == _READY:
            self._on_ready(data, head)
        else:
            self._on_progress(kind, data, head)
        return None

    def _on_progress(self, kind: int, data: bytes, head: Reply | None) -> None:
        """Any answer but an error and ReadyForQuery."""
        if head is None:
            raise LookupError(f"message {chr(kind)!r} that nothing asked for")
        if head.rejection or head.must_fail:
            raise LookupError("the server ran what it had to refuse")
        step = _COMPLETES.get((head.kind, kind))
        if step is None:
            raise LookupError(f"message {chr(kind)!r} does not answer {head.kind.value}")
        self._complete(step, kind, data, head)

    def _complete(self, step: str, kind: int, data: bytes, head: Reply) -> None:
        frames = self._backend
        if kind == _COMPLETE and head.entry is not None:
            head.entry.command_tag = data[frames.body : frames.end - 1].decode("utf-8", "replace")
        if step == "done":
            self._copy_syncs = 0
            self._replies.queue.popleft()
            for change in head.changes:
                change.settle()
            self._finish(head)
        elif step == "copy_in":
            if self._replies.queue[-1] is not head:
                raise LookupError("the server copies in what the gate did not take for a COPY")
            self._copying = head
            self._phase = Phase.COPY_IN
            self._copy_syncs = 0

    def _on_error(self, body: bytes, head: Reply | None) -> bytes | None:
        fields = wire.decode_fields(body)
        if fields.get("severity_plain", fields.get("severity")) in ("FATAL", "PANIC"):
            self._fatal_relayed = True
            return None
        if head is None:
            return None
        if head.exchange is not None:
            return self._on_own_error(body, head, head.exchange)
        if self._phase is Phase.COPY_IN:
            self._phase = Phase.READY
        head.failed = True
        if head.entry is not None:
            head.entry.sqlstate = fields.get("sqlstate")
        behind_copy = self._copy_syncs if self._replies.queue[-1] is head else 0
        self._copy_syncs = 0
        if head.kind not in (Owed.QUERY, Owed.SYNC):
            self._skip_to_sync(head)
        for _ in range(behind_copy):
            self._replies.owe(Reply(Owed.SYNC))
            self._forward(wire.SYNC)
        return head.rejection or None

    def _skip_to_sync(self, failed: Reply) -> None:
        """The server reads past everything until Sync: names it would have changed are put back."""
        dropped = self._replies.fail_head()
        for reply in dropped:
            for change in reply.changes:
                if reply is failed and failed.kind is Owed.PARSE and not failed.name:
                    change.failed_as_unnamed_parse()
                else:
                    change.undo()
        for exchange in dict.fromkeys(reply.exchange for reply in dropped if reply.exchange is not None):
            exchange.finish(skipped=True)
        self._finish(failed)
        self._record_dropped(dropped[1:])

    def _on_ready(self, data: bytes, head: Reply | None) -> None:
        queue = self._replies.queue
        self.status = data[self._backend.body : self._backend.end]
        if head is None or head.kind not in (Owed.QUERY, Owed.SYNC):
            raise LookupError("ReadyForQuery before its Sync")
        if head.rejection and not head.failed:
            raise LookupError("the server ran what it had to refuse")
        self._copy_syncs = 0
        queue.popleft()
        if head.kind is Owed.QUERY:
            self._settle_names(head)
            self._finish(head)
        if not queue and self.status == b"I":
            self._names.transaction_ended()
            if self._path_unsettled and not self._frontend.mid_copy_data:
                self._ask_path()

    def _settle_names(self, query: Reply) -> None:
        """A Query has ended: the names it changed stand, or are put back where it failed.

        Of several statements in one string those before the failed one have run: what they made may be there,
        and what they dropped may not.
        """
        several = query.entry is not None and len(query.entry.decision.query.statements) > 1
        for change in query.changes:
            if not query.failed:
                change.settle()
            elif several:
                change.settle_unseen()
            else:
                change.undo()

    def _on_own_answer(self, kind: int, data: bytes, head: Reply, exchange: Exchange) -> bytes:
        """A message that answers a question of ours: the agent sees nothing of it."""
        frames = self._backend
        if kind == _DATA_ROW:
            exchange.rows.append(data[frames.body : frames.end])
            return _DROP
        if kind == _READY and head.kind in (Owed.QUERY, Owed.SYNC):
            self.status = exchange.ready = data[frames.body : frames.end]
        else:
            step = _COMPLETES.get((head.kind, kind))
            if step is None:
                raise LookupError(f"message {chr(kind)!r} does not answer our {head.kind.value}")
            if step != "done":
                return _DROP
        self._replies.queue.popleft()
        return self._finish_exchange(exchange)

    def _on_own_error(self, body: bytes, head: Reply, exchange: Exchange) -> bytes:
        exchange.error = body
        if head.kind not in (Owed.QUERY, Owed.SYNC):
            self._replies.fail_head()
            return self._finish_exchange(exchange)
        return _DROP

    def _finish_exchange(self, exchange: Exchange) -> bytes:
        queue = self._replies.queue
        return _DROP if queue and queue[0].exchange is exchange else exchange.finish()

    def _check_parameter(self, body: bytes) -> None:
        name, value = wire.decode_parameter_status(body)
        if _PINNED.get(name, value) != value and not self._observes:
            raise LookupError(f"{name} changed to {value}")

    # --- ends -----------------------------------------------------------------------------------------------

    def _finish(self, reply: Reply) -> None:
        entry = reply.entry
        if entry is None:
            return
        frames = self._backend
        entry.rows = frames.rows - reply.rows_before
        entry.bytes = frames.row_bytes - reply.bytes_before
        self._record(entry)

    def _record(self, entry: AuditEntry) -> None:
        """The outcome of ``entry`` is known."""
        entry.outcome_known = True
        self._record_unknown(entry)

    def _record_unknown(self, entry: AuditEntry) -> None:
        entry.ms = (self._clock() - entry.started) * 1000
        self._effects.append(Record(entry))

    def _record_dropped(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            if reply.entry is not None:
                self._record_unknown(reply.entry)

    def _end(self, reason: str, sqlstate: str | None) -> None:
        """Close both; first tell the agent why, where a message may stand at this place of its stream."""
        if sqlstate is not None and not self._backend.mid_frame and not self._fatal_relayed:
            error = wire.encode_error({"severity": "FATAL", "sqlstate": sqlstate, "message": reason})
            self._effects.append(ToFrontend(error))
        # Behind an agent that said goodbye, PostgreSQL finishes what it was sent before.
        self._surprised(reason, abandon=sqlstate is not None)

    def _surprised(self, reason: str, *, abandon: bool = True) -> None:
        abandoned = abandon and self.cancellable
        self._record_dropped(self._replies.queue)
        self._replies.queue.clear()
        self._effects.append(Close(reason, abandoned))
        self._phase = Phase.CLOSED


_COMPLETES: Final = {
    (Owed.PARSE, ord("1")): "done",
    (Owed.BIND, ord("2")): "done",
    (Owed.CLOSE, ord("3")): "done",
    (Owed.DESCRIBE, ord("t")): "more",
    (Owed.DESCRIBE, ord("T")): "done",
    (Owed.DESCRIBE, ord("n")): "done",
    (Owed.EXECUTE, ord("C")): "done",
    (Owed.EXECUTE, ord("I")): "done",
    (Owed.EXECUTE, ord("s")): "done",
    (Owed.EXECUTE, ord("G")): "copy_in",
    (Owed.EXECUTE, ord("H")): "more",
    (Owed.EXECUTE, ord("c")): "more",
    (Owed.QUERY, ord("T")): "more",
    (Owed.QUERY, ord("C")): "more",
    (Owed.QUERY, ord("I")): "more",
    (Owed.QUERY, ord("G")): "copy_in",
    (Owed.QUERY, ord("H")): "more",
    (Owed.QUERY, ord("c")): "more",
    (Owed.QUERY, ord("V")): "more",
}
"""What each backend message is to the reply at the head; a pair that is not here is a surprise."""


def _text(ruling: Ruling) -> str:
    if ruling.question is None or ruling.question.text is None:
        raise TypeError("a statement without a question")
    return ruling.question.text
