"""What the two directions of one connection share: its state and how an end is told.

Owns the effects being gathered, the replies owed, the names in force, the search_path, the audit entries and
the rejections. ``agent_side`` and ``server_side`` alone change it; ``session`` is what others see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from policy.catalog_names import CatalogNames
from policy.decision import Reject
from policy.dialogue import Judged
from policy.lineage import scope_key
from policy.model import Mode, Violation
from policy.rejection import reject
from proxy.answers import CYCLES, Owed
from proxy.effects import AuditEntry, Close, Decide, Effect, JudgedAnew, Record, Tell, ToBackend, ToFrontend
from proxy.exchange import Exchange
from proxy.gate import Gate
from proxy.limits import run_limits
from proxy.paths import Paths
from proxy.phase import Phase
from proxy.prepared import Names
from proxy.repairs import Repairs
from proxy.replies import Replies, Reply
from proxy.ruling import Priced, Ruling, error_fields
from proxy.waiting import Doubt, NotYetError, Unanswered
from proxy.wire import backend as wire
from proxy.wire.frames import BackendFrames, FrontendFrames

if TYPE_CHECKING:
    from proxy.writes import HeldWrite

_NOTHING: Final = b"/* pgturnstile */"
_BACKLOG: Final = 64 * 1024
"""Bytes of the agent that may wait behind a held message; more are left unread."""
_MOST_OWED: Final = 16_384
"""Replies owed above which the agent is not read: each costs memory that its five bytes did not.

No less than some 1,700, which PostgreSQL may keep in its own buffer until it is asked to flush.
"""

_BREACH: Final = "the database server broke the protocol; the connection is closed"

DROP: Final = b""
"""Nothing passes in the place of a message; None would let the message itself pass."""


class Ending(NamedTuple):
    """Why a session ends; ``sqlstate`` None where the agent need not be told."""

    reason: str
    sqlstate: str | None = None


class Identity:
    """Who a session speaks for: what decisions and audit lines of one connection have in common.

    ``connection`` is unique to the connection and prefixes the ids of its decisions; ``role`` is the backend
    role, which "$user" in a search_path stands for; ``database`` and ``application`` (the name given at
    start-up) narrow where the answer to a refusal is looked for.
    """

    __slots__ = ("application", "connection", "database", "role")

    def __init__(self, connection: str, role: str, database: str = "", application: str = "") -> None:
        self.connection = connection
        self.role = role
        self.database = database
        self.application = application


class Held:
    """A message that waits: for its ruling, which ``complete`` takes, if it has a ``text`` to be judged; for
    what the store of repairs says of it, which ``consulted`` takes; else for the answer to an exchange or
    for what comes of a trial. ``entry`` is its audit record, where it is decided and not forwarded yet."""

    __slots__ = ("complete", "consulted", "entry", "frame", "text")

    def __init__(
        self,
        frame: bytes,
        text: bytes | None = None,
        complete: Callable[[Ruling], bytes | None] | None = None,
        consulted: Callable[[Judged], bytes | None] | None = None,
        entry: AuditEntry | None = None,
    ) -> None:
        self.frame = frame
        self.text = text
        self.complete = complete
        self.consulted = consulted
        self.entry = entry


class Late(NamedTuple):
    """A message that was held and may go its way now, by what ``complete`` makes of it."""

    frame: bytes
    complete: Callable[[], bytes | None]


class Conversation:
    """The state of one connection after the handshake, the backend being idle and owing nothing.

    ``path`` is the effective search_path, ``listed`` the schemas that its setting names; ``reports_path``
    where the server tells of every change of it; ``nonce`` an unguessable word that marks our substitutes;
    ``clock`` gives seconds.
    """

    weighing: Callable[[Priced], bytes] | None = None
    """What is gone on with once a price is known that is weighed elsewhere."""
    late: Late | None = None
    """What is gone on with before the messages of the agent that wait behind it."""
    judged = 0
    """Texts that were not known, of the chunk at hand."""

    def __init__(
        self,
        gate: Gate,
        identity: Identity,
        path: tuple[str, ...],
        *,
        nonce: str,
        clock: Callable[[], float],
        message_bytes: int,
        listed: tuple[str, ...] | None = None,
        reports_path: bool = False,
    ) -> None:
        self.identity = identity
        self.temporary = False
        """True where an earlier policy let the session make temporary relations."""
        self._judge_by(gate)
        self.clock = clock
        self.now = clock()
        """The clock's reading when what is being dealt with arrived: a chunk, or the answer to an effect."""
        self.agent_frames = FrontendFrames(message_bytes)
        self.server_frames = BackendFrames()
        self.replies = Replies()
        self.awaited: Doubt | None = None
        self.limited: Reply | None = None
        """The last result forwarded that may yet go over a limit."""
        self.segment_reads = True
        """False where something forwarded since the last Sync or Query outlasts its transaction."""
        self.written: int | None = None
        """Rows that the server's counters had at the end of the last held write; None where anything else may
        have written since, or its transaction has ended."""
        self.muted = False
        """True from a result over its limit, which the server completed, up to its Sync: to the agent all
        that was forwarded behind it has failed with it."""
        self.cancelling = False
        """True until a cancel request of ours has been dealt with."""
        self.late_sync = b""
        """A Sync of ours, and what goes with it, that waits for the end of the agent's CopyData frame."""
        self.altered = False
        """True from a statement that may change the schema until the catalog has been asked again."""
        self.use_paths((path,))
        self.paths = Paths(self, path, path if listed is None else listed, reported=reports_path)
        self.has_altered = False
        """True from the first statement of the session that may have changed the schema."""
        self.phase = Phase.READY
        self.waiting: Held | None = None
        self.decisions = 0
        self.copying: Reply | None = None
        self.copy_syncs = 0
        self.frame: bytes | None = None
        """The message whose late ruling is being carried out; None while one is taken from the stream."""
        self.unsynced = False
        """True from a message of the extended protocol up to a Sync: a Query between them may be read past,
        and since PostgreSQL 18 ends no transaction. A Sync of ours would."""
        self.pipeline_open = False
        """True from a message of the extended protocol up to the Sync or Query that ends its transaction."""
        self._reserve(nonce)
        self.names = Names(reserved=self.refused_text)
        self.status = b"I"
        """Transaction status as the server last gave it."""
        self.fatal_relayed = False
        self.effects: list[Effect] = []

    def _reserve(self, nonce: str) -> None:
        """Names and a text that are ours."""
        self.question_name = f"pgturnstile_price_{nonce}".encode()
        self.count_name = f"pgturnstile_count_{nonce}".encode()
        self.refused_text = f"pgturnstile_refused_{nonce}".encode()
        self.path_statement = f"pgturnstile_path_{nonce}".encode()

    def begin(self) -> None:
        """Something has arrived: what follows from it is gathered anew."""
        self.effects = []
        self.now = self.clock()
        self.asked_schema = False
        self.judged = 0

    def _judge_by(self, gate: Gate) -> None:
        identity = self.identity
        self.gate = gate
        self.observes = gate.policy.mode is Mode.OBSERVE
        self.limits = run_limits(gate.policy)
        scope = scope_key(
            gate.policy.repair, gate.agent, identity.database, identity.application, identity.connection
        )
        self.repairs = Repairs(gate, gate.ledger, scope, identity.connection, now=time.time, tell=self._tell)

    def change_gate(self, gate: Gate) -> None:
        """Judge by ``gate`` from here on, where no reply is owed and no message waits (``succession``).

        What was prepared and opened before keeps the ruling it was given, and so tells whose it is.
        """
        # Where no catalog says what the old policy allowed, it may have been anything.
        self.temporary = not isinstance(self.scope, CatalogNames) or self.scope.temporary
        self._judge_by(gate)
        self.limited = None
        self.written = None
        self.server_frames.watch(None, None)
        self.use_paths(self.scope.paths)
        self.effects.append(JudgedAnew())

    @property
    def held(self) -> bool:
        """True while the agent's messages wait: for a ruling, a price, a COPY or what a name stands for."""
        if self.awaited is not None and not self.awaited.doubtful:
            self.awaited = None
        if self.waiting is not None or self.awaited is not None or self.cancelling:
            return True
        return self.copying is not None and self.waits_for_copy

    @property
    def may_be_held(self) -> bool:
        """True where ``held`` is, and where it is yet to be seen that it is not any more."""
        awaits = self.waiting is not None or self.awaited is not None or self.late is not None
        return awaits or self.cancelling or self.copying is not None

    @property
    def overfull(self) -> bool:
        """True while the agent should not be read: too much of its waits already, here or in the server."""
        frames = self.agent_frames
        backlog = len(frames.data) - frames.end
        return len(self.replies.queue) > _MOST_OWED or (backlog > _BACKLOG and self.held)

    @property
    def in_flight(self) -> bool:
        """True while the server works for the agent: a cancel request may be passed on."""
        return any(reply.exchange is None for reply in self.replies.queue)

    @property
    def cancellable(self) -> bool:
        """True when all that runs would fail as one if it were cancelled.

        Else cancelling could let a later, already forwarded part run alone: a cancelled BEGIN, and the write
        behind it commits by itself.
        """
        queue = self.replies.queue
        return bool(queue) and all(reply.kind not in CYCLES for reply in list(queue)[:-1])

    @property
    def idle(self) -> bool:
        """True when nothing is owed, asked or half sent, and no transaction is open."""
        waits = self.waiting is not None or self.late is not None or self.agent_frames.pending
        return not (self.replies.queue or waits) and self.status == b"I"

    @property
    def closed(self) -> bool:
        return self.phase is Phase.CLOSED

    @property
    def waits_for_copy(self) -> bool:
        """True from a COPY until the server asks for its data, and again until what follows is certain.

        What the agent sends next means one thing to a server that copies and another to one that does not.
        """
        if self.copying is None:
            return False
        queue = self.replies.queue
        return self.phase is Phase.READY and bool(queue) and queue[-1] is self.copying

    def _tell(self, tell: Callable[[], object]) -> None:
        self.effects.append(Tell(tell))

    def tell_agent(self, data: bytes) -> None:
        """Write ``data`` before what else this chunk of the server's makes, but for what the store of repairs
        is to know first: what we ask or record comes after what the agent reads."""
        if not self.effects:
            self.effects.append(ToFrontend(data))
            return
        place = 0
        for n, effect in enumerate(self.effects):
            if isinstance(effect, Tell):
                place = n + 1
        self.effects.insert(place, ToFrontend(data))

    def forward(self, data: bytes) -> None:
        if data:
            self.effects.append(ToBackend(data))

    def owe(self, reply: Reply) -> bool:
        """Note the reply to a decided statement; one that the server reads past is recorded at once."""
        if not self.replies.discarding:
            self.replies.queue.append(reply)
            return True
        self.record_dropped((reply,))
        return False

    def end_query(self, *before: tuple[Owed, bytes], write: HeldWrite | None = None) -> None:
        """End a Query that was carried out, or asked about, by other messages: what the agent sent behind it
        may follow. The agent sees nothing of what stands ``before`` the ReadyForQuery, messages with what
        each is owed, unless one fails under a ``write`` that would be told as done.
        """
        unheard = Exchange(
            lambda answer: DROP if write is None or answer.error is None else write.not_ended(answer.error)
        )
        for owed, _ in before:
            self.replies.owe(Reply(owed, exchange=unheard))
        kind, ending = self._ending()
        reply = Reply(kind)
        reply.write = write
        self.replies.owe(reply)
        self.names.next_segment()
        if self.unsynced:
            self.segment_reads = False
            self.awaited = Unanswered(self.replies.queue, reply)
        else:
            self.pipeline_open = False
        self.put_between(b"".join(message for _, message in before) + ending)

    def _ending(self) -> tuple[Owed, bytes]:
        """What ends our own messages in the place of a Query, and what it is owed.

        A Sync, but not behind messages of the extended protocol that wait for the agent's own: their
        transaction PostgreSQL 15 commits with a Query, and 18 keeps open behind it (start_xact_command in
        postgres.c, of a pipeline). A Query of nothing does as the server does.
        """
        return (Owed.QUERY, wire.simple_query(_NOTHING)) if self.unsynced else (Owed.SYNC, wire.SYNC)

    def put_between(self, messages: bytes) -> None:
        """Forward messages of ours, behind the agent's CopyData frame where one is half sent."""
        if self.agent_frames.mid_copy_data:
            self.late_sync += messages
        else:
            self.forward(messages)

    def end_failed_query(self, *, discarding: bool) -> None:
        """End one that has failed, ``discarding`` where the server reads up to a Sync.

        A Query drops the unnamed statement (exec_simple_query in postgres.c). What was sent in its place has
        made another, which no Bind of the agent's may find: it was not judged as what the agent prepared.
        """
        # What failed has ended the transaction of all that stands before it.
        self.unsynced, self.segment_reads = False, True
        sync = ((Owed.SYNC, wire.SYNC),) if discarding else ()
        self.end_query(*sync, (Owed.CLOSE, wire.close_message(b"S", b"")))

    def next_entry(self, ruling: Ruling, protocol: str) -> AuditEntry:
        """The record of a statement whose place in a lineage is yet to be told."""
        self.decisions += 1
        return AuditEntry(
            f"{self.identity.connection}-{self.decisions}",
            ruling.decision,
            "copy" if ruling.copies else protocol,
            self.now,
        )

    def entry(self, ruling: Ruling, protocol: str) -> AuditEntry:
        """The record of the statement of ``ruling``, with what it was found to be if it was judged last."""
        entry = self.next_entry(ruling, protocol)
        entry.repair, entry.part = self.repairs.repair_of(ruling), self.repairs.part_of(ruling)
        if protocol == "extended":
            entry.values = self.repairs.bound_to(ruling)
        return entry

    def rejection(self, ruling: Ruling, protocol: str) -> bytes:
        """Record the refusal and word it as the ErrorResponse the agent will read."""
        ruling = self.repairs.refused(ruling)
        if not isinstance(ruling.decision, Reject):
            raise TypeError("only a Reject can be worded")
        entry = self.entry(ruling, protocol)
        entry.repair = None
        rejection = reject(ruling.decision, entry.id, self.gate.policy)
        entry.sqlstate = rejection.sqlstate
        entry.outcome_known = True
        self.effects.append(Record(entry))
        return wire.encode_error(error_fields(rejection))

    def untried(self, entry: AuditEntry, violation: Violation) -> bytes:
        """Make ``entry``, of a statement that its clone can say nothing of, that of a refusal, and word it. A
        turn that the statement was taking stays what it was: nobody knows whether it is one."""
        self.repairs.settle(entry)
        entry.settled = True
        decision = self.gate.exceeded(entry.decision, self.scope, violation)
        entry.decision, entry.repair = decision, None
        entry.part = None if entry.part is None else entry.part._replace(turn=None)
        rejection = reject(decision, entry.id, self.gate.policy)
        entry.sqlstate = rejection.sqlstate
        self.record(entry)
        return wire.encode_error(error_fields(rejection))

    def exceeded(self, entry: AuditEntry, violation: Violation) -> bytes:
        """Make ``entry``, of a statement that was let run, that of a refusal, and word it for the agent."""
        decision = self.gate.exceeded(entry.decision, self.scope, violation)
        decision = self.repairs.rejected(decision, self.scope, entry)
        entry.decision, entry.repair = decision, None
        rejection = reject(decision, entry.id, self.gate.policy)
        entry.sqlstate = rejection.sqlstate
        return wire.encode_error(error_fields(rejection))

    def await_result(self) -> None:
        """What must not run, or be committed, behind a result that may yet go over its limit waits for it."""
        if self.limited is not None:
            doubt = Unanswered(self.replies.queue, self.limited)
            if doubt.doubtful:
                raise NotYetError(doubt, flush=True)
            self.limited = None

    def record(self, entry: AuditEntry) -> None:
        """The outcome of ``entry`` is known."""
        entry.outcome_known = True
        self.record_unknown(entry)

    def record_unknown(self, entry: AuditEntry) -> None:
        if entry.repair is not None:
            self.repairs.settle(entry)
        entry.values = None
        entry.ms = (self.now - entry.started) * 1000
        self.effects.append(Record(entry))

    def record_skipped(self, entry: AuditEntry) -> None:
        """The server read past a question about the statement of ``entry``: for an error before it, unless it
        was the statement's own, of which there is a record."""
        if not entry.outcome_known:
            self.record_unknown(entry)

    def record_dropped(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            if reply.entry is not None:
                self.record_unknown(reply.entry)

    def record_lost(self) -> None:
        """The conversation ends while replies are owed, or while a message waits for what a question of ours
        brings: whether their statements have run nobody will say.

        A repair among them keeps its turn: else whoever cuts the connection could try it again and again.
        """
        owed = [] if self.waiting is None else [self.waiting.entry]
        owed += [reply.entry if reply.write is None else reply.write.entry for reply in self.replies.queue]
        self.waiting = None
        self.replies.queue.clear()
        for entry in dict.fromkeys(owed):
            if entry is not None and not entry.outcome_known:
                entry.settled = True
                self.record_unknown(entry)

    def end(self, reason: str, sqlstate: str | None) -> None:
        """Close both; first tell the agent why, where a message may stand at this place of its stream."""
        if sqlstate is not None and not self.server_frames.mid_frame and not self.fatal_relayed:
            error = wire.encode_error({"severity": "FATAL", "sqlstate": sqlstate, "message": reason})
            self.effects.append(ToFrontend(error))
        # Behind an agent that said goodbye, PostgreSQL finishes what it was sent before.
        self.surprised(reason, abandon=sqlstate is not None)

    def breached(self, reason: str, *, room: bool) -> None:
        """The server broke the protocol: close both. The agent is told so where its stream has ``room``, but
        not what the server said."""
        if room and not self.fatal_relayed:
            error = wire.encode_error({"severity": "FATAL", "sqlstate": "08P01", "message": _BREACH})
            self.effects.append(ToFrontend(error))
        self.surprised(reason)

    def surprised(self, reason: str, *, abandon: bool = True) -> None:
        abandoned = abandon and self.cancellable
        self.record_lost()
        self.effects.append(Close(reason, abandoned))
        self.phase = Phase.CLOSED

    def use_paths(self, paths: tuple[tuple[str, ...], ...]) -> None:
        self.generation = self.gate.generation
        self.asked_schema = True
        """True where ``generation`` is that of now: nothing else happens while a chunk is dealt with."""
        self.scope = self.gate.names(paths, unsettled=self.unsettled, temporary=self.temporary)
        """What names mean now: rulings are made and kept under it."""
        self.distrusted = isinstance(self.scope, CatalogNames) and self.scope.unsettled
        """True where ``scope`` takes the schema for one that this session may have changed."""
        self.cache = self.gate.cache(self.scope)

    def keep_up(self) -> None:
        """Judge by the newest snapshot of the schema, and trust it no further than it can be trusted."""
        outgrown = False
        if self.altered or self.distrusted:
            outgrown = isinstance(self.scope, CatalogNames) and self.unsettled is not self.distrusted
        before = self.generation
        if outgrown or not (self.asked_schema or self.gate.generation is before):
            self.use_paths(self.scope.paths)
            if self.generation is not before:
                self.paths.schema_changed()
        self.asked_schema = True

    def ask_ruling(self, text: bytes) -> None:
        """Have ``text`` judged away from here, by the schema as it then is if this session changed it."""
        renew = self.schema_outdated
        if renew:
            self.altered = False
        self.effects.append(Decide(text, self.scope, renew=renew, temporary=self.temporary))

    def enriched(
        self, fields: Mapping[str, str], ruling: Ruling | None, entry: AuditEntry | None, turns_left: int
    ) -> bytes | None:
        """The server's error as the agent is to read it instead: saying where a name does exist, how many
        repairs are left, and nothing that is hidden. None where it may pass as it came."""
        if ruling is None:
            return None
        fields = self.gate.enrich(fields, ruling, turns_left, "" if entry is None else entry.id) or {}
        return wire.encode_error(fields) if fields else None

    @property
    def unsettled(self) -> bool:
        """True where this session may have changed the schema in a transaction that is not over yet."""
        return self.altered and not self.schema_outdated

    @property
    def schema_outdated(self) -> bool:
        """True where this session's own change of the schema is committed and the catalog may not show it."""
        return self.altered and self.status == b"I" and not self.replies.queue
