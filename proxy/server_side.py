"""From the server to the agent: every message accounted for, what answers ourselves kept back.

Owns the matching of answers to the replies owed. A message that answers nothing, or answers what had to
fail, is a surprise (LookupError). Knows no sockets and no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policy.rules import result_over_limit
from proxy.answers import CYCLES, NEXT, NO_ROWS, ROWS, Owed, Place
from proxy.conversation import DROP, Conversation
from proxy.effects import AuditEntry, CancelRunning
from proxy.exchange import Exchange
from proxy.limits import RunLimits
from proxy.phase import Phase
from proxy.replies import Counted, Reply
from proxy.ruling import Ruling
from proxy.waiting import Unanswered
from proxy.wire import backend as wire
from proxy.wire.frames import COPY_DATA, DATA_ROW
from proxy.writes import HeldWrite

_PINNED: Final = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}
"""Parameters whose change would make the server read texts otherwise than the gate did."""
_ERROR: Final = ord("E")
_READY: Final = ord("Z")
_COMPLETE: Final = ord("C")
_PARAMETER: Final = ord("S")
_NOTICE: Final = ord("N")
_DESCRIPTION: Final = ord("T")
_COPY_BEGINS: Final = ord("G")
_COPY_TRAILER: Final = b"\xff\xff"
"""What ends binary copy data: a CopyData message that is no row."""
_STATUSES: Final = (b"I", b"T", b"E")
_ANY_TIME: Final = frozenset(b"SNA")
"""ParameterStatus, NoticeResponse, NotificationResponse: answers to nothing."""
_COPY_IN: Final = (Place.IN, Place.EXECUTE_IN)
_RUN: Final = (Owed.QUERY, Owed.EXECUTE)
"""What rows answer."""
_TAG_BYTES: Final = 256
"""The longest command tag that is kept; PostgreSQL's are under 64 (COMPLETION_TAG_BUFSIZE)."""


class ServerSide:
    """The messages of the server, one by one, in a connection's steady state."""

    def __init__(self, conversation: Conversation) -> None:
        self._c = conversation
        self._mid_dropped = False
        """True while the rest of a row that the agent does not get is still to come."""

    def relay(self, chunk: bytes) -> None:
        """Pass the chunk on, less what answers ourselves, with errors of our substitutes rewritten."""
        frames = self._c.server_frames
        queue = self._c.replies.queue
        frames.feed(chunk)
        data = frames.data
        pieces: list[bytes] = []
        run = 0
        if self._mid_dropped:
            run = frames.end
            self._mid_dropped = frames.mid_frame
        while True:
            head = queue[0] if queue else None
            if head is None:
                frames.capture, frames.rows_of = False, NO_ROWS
            else:
                frames.rows_of = ROWS[head.at]
                if head.rows_before < 0:
                    self._come_to(head)
            kind = frames.next_frame()
            if kind == 0:
                break
            if head is not None and head.notice:
                pieces += (data[run : frames.start], head.notice)
                run = frames.start
                head.notice = b""
            replacement = self._reply(kind, data, head)
            if self._c.phase is Phase.CLOSED:
                break
            if replacement is not None:
                pieces += (data[run : frames.start], replacement)
                run = frames.end
        tail = frames.tail
        if run > len(data):
            self._mid_dropped = True
        if run < tail:
            pieces.append(data if run == 0 and tail == len(data) else data[run:tail])
        passed = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if passed:
            self._c.tell_agent(passed)

    def _come_to(self, head: Reply) -> None:
        """What the server sends next is the first that answers ``head``: have the frames cut accordingly."""
        frames = self._c.server_frames
        head.rows_before, head.bytes_before = frames.rows, frames.row_bytes
        frames.capture = head.exchange is not None
        limits = self._c.limits
        if limits is not None and (head.counted is not None or self._c.muted or head.kind in _RUN):
            self._watch(head, limits)

    def _reply(self, kind: int, data: bytes, head: Reply | None) -> bytes | None:
        """Account for one message of the backend. None lets it pass; bytes (b"" for none) take its place."""
        if (
            head is not None
            and kind != _READY
            and NEXT[head.at].get(kind) is Place.DONE
            and head.exchange is None
            and head.write is None
        ):
            return self._done(kind, data, head)
        frames = self._c.server_frames
        if kind in _ANY_TIME:
            if kind == _PARAMETER:
                self._check_parameter(data[frames.body : frames.end])
            # What a question of ours makes a function say, the statement will make it say again.
            ours = kind == _NOTICE and head is not None and head.exchange is not None
            return DROP if ours else None
        if kind == _ERROR:
            return self._on_error(data[frames.body : frames.end], head)
        if head is not None and head.exchange is not None:
            return self._on_own_answer(kind, data, head, head.exchange)
        if kind == _READY:
            return self._on_ready(data, head)
        return self._on_progress(kind, data, head)

    def _on_progress(self, kind: int, data: bytes, head: Reply | None) -> bytes | None:
        """Any answer but an error and ReadyForQuery."""
        if head is None:
            raise LookupError(f"message {chr(kind)!r} that nothing asked for")
        if kind == self._c.server_frames.rows_of:
            if self._c.muted:
                return DROP
            if head.counted is not None:
                return self._on_row_over(kind, data, head, head.counted)
        self._advance(kind, head)
        if head.write is not None:
            return self._on_write(kind, data, head, head.write)
        self._complete(kind, data, head)
        if self._c.limits is None:
            return None
        return self._when_over(head)

    def _done(self, kind: int, data: bytes, head: Reply) -> bytes | None:
        """The end of an answer that is the agent's own, in the extended protocol."""
        conversation, counted = self._c, head.counted
        over = counted is not None and bool(counted.over)
        head.at = Place.DONE
        if kind == _COMPLETE and head.entry is not None and not over:
            head.entry.command_tag = self._command_tag(data)
        conversation.copy_syncs = 0
        conversation.replies.queue.popleft()
        for change in head.changes:
            change.settle()
        if head.entry is not None:
            self._finish(head)
        return self._when_over(head) if over or conversation.muted else None

    def _advance(self, kind: int, head: Reply) -> None:
        """The answer to ``head`` goes on with a message of type ``kind``, or is none."""
        place = NEXT[head.at].get(kind)
        if place is None:
            raise LookupError(f"message {chr(kind)!r} where the answer has come to: {head.at.value}")
        head.at = place

    def _complete(self, kind: int, data: bytes, head: Reply) -> None:
        if kind == _COMPLETE:
            head.completed += 1
        if kind == _COMPLETE and head.entry is not None and not (head.counted and head.counted.over):
            head.entry.command_tag = self._command_tag(data)
        if head.at is Place.DONE:
            self._c.copy_syncs = 0
            self._c.replies.queue.popleft()
            for change in head.changes:
                change.settle()
            self._finish(head)
        elif head.at in _COPY_IN and kind == _COPY_BEGINS:
            if self._c.replies.queue[-1] is not head:
                raise LookupError("the server copies in what the gate did not take for a COPY")
            self._c.copying = head
            self._c.phase = Phase.COPY_IN
            self._c.copy_syncs = 0

    def _command_tag(self, data: bytes) -> str:
        frames = self._c.server_frames
        return data[frames.body : min(frames.end - 1, frames.body + _TAG_BYTES)].decode("utf-8", "replace")

    def _on_error(self, body: bytes, head: Reply | None) -> bytes | None:
        fields = wire.decode_fields(body)
        if fields.get("severity_plain", fields.get("severity")) in ("FATAL", "PANIC"):
            self._c.fatal_relayed = True
            return None
        if head is None:
            return None
        if head.exchange is not None:
            return self._on_own_error(body, head, head.exchange)
        self._fail(head)
        if self._c.phase is Phase.COPY_IN:
            self._c.phase = Phase.READY
        head.failed = True
        over = head.counted.over if head.counted is not None else b""
        entry = head.entry if head.write is None else head.write.entry
        if entry is not None and not over:
            entry.sqlstate = fields.get("sqlstate")
        turns_left = 0
        if not over:
            turns_left, entry = self._failed(head, fields, entry)
        behind_copy = self._c.copy_syncs if self._c.replies.queue[-1] is head else 0
        self._c.copy_syncs = 0
        if head.kind not in CYCLES:
            self._skip_to_sync(head)
        for _ in range(behind_copy):
            self._c.replies.owe(Reply(Owed.SYNC))
            self._c.forward(wire.SYNC)
        if self._c.muted:
            return DROP
        return head.rejection or over or self._c.enriched(fields, head.ruling, entry, turns_left)

    def _fail(self, head: Reply) -> None:
        """An error answers ``head``: one, and nothing but ReadyForQuery behind it."""
        if head.at is Place.FAILED:
            raise LookupError("a second error in answer to one message")
        head.at = Place.FAILED

    def _failed(
        self, head: Reply, fields: Mapping[str, str], entry: AuditEntry | None
    ) -> tuple[int, AuditEntry | None]:
        """The server refused a statement that the gate had let through: that may be repaired, or was one.

        How many repairs that leaves, and what the audit has of it: a Parse or Bind that fails ends with that.
        """
        ruling = head.ruling
        if ruling is None or head.rejection:
            return 0, entry
        judged, at_bind = head.kind is not Owed.PARSE, head.kind is Owed.BIND
        if entry is not None:
            ran_ms = (self._c.clock() - entry.started) * 1000
            turns_left = self._c.repairs.failed(
                ruling, entry, fields, judged=judged, at_bind=at_bind, ran_ms=ran_ms
            )
            return turns_left, entry
        its_own = self._entry_behind(ruling)
        entry = its_own or self._c.entry(ruling, "extended")
        if its_own is None or at_bind:
            entry.answers(head.repair)
            entry.values = head.values
        # What stands behind a Parse may have been judged before the server said a word to it.
        judged = judged or entry.repair is not None
        entry.sqlstate = fields.get("sqlstate")
        turns_left = self._c.repairs.failed(ruling, entry, fields, judged=judged, at_bind=at_bind)
        self._c.record(entry)
        return turns_left, entry

    def _entry_behind(self, ruling: Ruling) -> AuditEntry | None:
        """What the audit has of a statement whose Parse or Bind has failed, where its Execute stands behind
        or its Bind is held for a question of ours: the server reads past it, and it is no other statement."""
        for reply in self._c.replies.queue:
            if reply.kind is Owed.SYNC:
                return None
            if reply.kind is Owed.EXECUTE and reply.ruling is ruling:
                entry = reply.entry if reply.write is None else reply.write.entry
                reply.entry = None
                return entry
        held = None if self._c.waiting is None else self._c.waiting.entry
        return held if held is not None and held.decision.query.sql == ruling.decision.query.sql else None

    def _skip_to_sync(self, failed: Reply) -> None:
        """The server reads past everything until Sync: names it would have changed are put back."""
        dropped = self._c.replies.fail_head()
        for reply in dropped:
            for change in reply.changes:
                if reply is failed and failed.kind is Owed.PARSE and not failed.name:
                    change.failed_as_unnamed_parse()
                else:
                    change.undo()
        for exchange in dict.fromkeys(reply.exchange for reply in dropped if reply.exchange is not None):
            exchange.finish(skipped=True)
        for write in dict.fromkeys(reply.write for reply in dropped if reply.write is not None):
            write.dropped(failed=write is failed.write)
        self._finish(failed)
        self._c.record_dropped(dropped[1:])

    def _on_ready(self, data: bytes, head: Reply | None) -> bytes | None:
        queue = self._c.replies.queue
        if head is None:
            raise LookupError("ReadyForQuery that nothing asked for")
        self._advance(_READY, head)
        self._c.status = self._status(data)
        if self._c.status != b"T":
            self._c.written = None
        self._c.copy_syncs = 0
        queue.popleft()
        if head.kind is not Owed.SYNC:
            self._settle_names(head)
            self._finish(head)
        if not queue and self._c.status == b"I":
            self._c.names.transaction_ended()
            self._c.paths.transaction_ended()
        if not queue:
            self._c.paths.ready()
        return None if self._c.limits is None else self._ready_under_limits(head)

    def _status(self, data: bytes) -> bytes:
        status = data[self._c.server_frames.body : self._c.server_frames.end]
        if status not in _STATUSES:
            raise LookupError("ReadyForQuery with a transaction status that there is not")
        return status

    def _ready_under_limits(self, head: Reply) -> bytes | None:
        """What the agent reads in the place of ReadyForQuery, where its statement went over a limit."""
        counted, write = head.counted, head.write
        over = counted.over if counted is not None and not head.failed else b""
        if write is None and not over and not self._c.muted:
            return None
        ready = wire.encode_ready(self._c.status)
        if write is not None:
            return write.ready(failed=head.failed) + ready
        self._c.muted = False
        if self._c.status != b"T":
            return over + ready
        # To the server nothing has failed. What does not parse fails the transaction, as the agent was told.
        exchange = Exchange(lambda answer: wire.encode_ready(answer.ready or b"E"))
        failure = Reply(Owed.QUERY, exchange=exchange, must_fail=True)
        self._c.replies.owe(failure)
        self._c.awaited = Unanswered(self._c.replies.queue, failure)
        self._c.forward(wire.simple_query(self._c.refused_text))
        return over

    def _watch(self, head: Reply, limits: RunLimits) -> None:
        """Have the row given that makes the result which comes next too long."""
        frames, counted = self._c.server_frames, head.counted
        if self._c.muted:
            frames.watch(frames.rows, None)
            return
        if counted is None:
            frames.watch(None, None)
            return
        rows, size = limits.result_rows, limits.result_bytes
        given = given_bytes = 0
        for meter in counted.meters:
            given, given_bytes = max(given, meter.rows), max(given_bytes, meter.bytes)
        frames.watch(
            None if rows is None else frames.rows + rows + counted.headers - given,
            None if size is None else frames.row_bytes + size - given_bytes,
        )

    def _on_row_over(self, kind: int, data: bytes, head: Reply, counted: Counted) -> bytes | None:
        """The first row over a limit, or one behind it. The server is told to stop at the first."""
        frames = self._c.server_frames
        entry = head.entry if head.write is None else head.write.entry
        if counted.over or entry is None:
            return DROP
        if kind == COPY_DATA and data[frames.body : frames.end] == _COPY_TRAILER:
            return None
        violation = result_over_limit.exceeded(self._c.gate.policy, by_rows=frames.rows > frames.row_cap)
        counted.over = self._c.exceeded(entry, violation)
        self._c.cancelling = True
        self._c.effects.append(CancelRunning())
        return DROP

    def _when_over(self, head: Reply) -> bytes | None:
        """An answer to a statement that went over its limit, or to one behind such a statement."""
        if self._c.muted:
            return DROP
        over = head.counted.over if head.counted is not None else b""
        if not over:
            return None
        if head.at is not Place.DONE:
            return DROP
        # The server was done before it could be stopped: the error takes the place of its completion, and
        # the rest of the segment has to fail.
        self._c.muted = True
        if all(reply.kind is not Owed.SYNC for reply in self._c.replies.queue):
            self._c.replies.owe(Reply(Owed.BIND, must_fail=True))
            self._c.put_between(wire.bind_message(b"", self._c.refused_text))
            self._c.phase = Phase.DISCARDING
        return over

    def _on_write(self, kind: int, data: bytes, head: Reply, write: HeldWrite) -> bytes | None:
        """An answer to one of the messages that carry out a held write."""
        frames = self._c.server_frames
        if head.kind is Owed.EXECUTE:
            if kind == _COMPLETE:
                write.entry.command_tag = self._command_tag(data)
            self._complete(kind, data, head)
            if head.at is Place.DONE:
                return write.completed(kind, data[frames.start : frames.end])
            return DROP if head.counted is not None and head.counted.over else None
        self._complete(kind, data, head)
        return None if kind == _DESCRIPTION else DROP

    def _settle_names(self, query: Reply) -> None:
        """A Query has ended: the names it changed stand, or are put back where it failed.

        Of several statements in one string those before the failed one have run, and names of statements
        outlive the transaction that is rolled back.
        """
        if not query.changes:
            # The facts of a text that was judged by another are worked out where somebody asks for them.
            return
        several = query.entry is not None and len(query.entry.decision.query.statements) > 1
        for change in query.changes:
            if not query.failed:
                change.settle()
            elif several and change.place is None:
                change.settle_unseen()
            elif several and change.place is not None and change.place < query.completed:
                change.settle()
            else:
                change.undo()

    def _on_own_answer(self, kind: int, data: bytes, head: Reply, exchange: Exchange) -> bytes:
        """A message that answers a question of ours: the agent sees nothing of it."""
        frames = self._c.server_frames
        if kind == DATA_ROW == frames.rows_of:
            exchange.add_row(data[frames.body : frames.end])
            return DROP
        self._advance(kind, head)
        if kind == _READY:
            self._c.status = exchange.ready = self._status(data)
        if head.at is not Place.DONE:
            return DROP
        self._c.replies.queue.popleft()
        return self._finish_exchange(exchange)

    def _on_own_error(self, body: bytes, head: Reply, exchange: Exchange) -> bytes:
        self._fail(head)
        exchange.error, exchange.at_bind = body, head.kind is Owed.BIND
        if head.kind not in CYCLES:
            self._c.replies.fail_head()
            return self._finish_exchange(exchange)
        return DROP

    def _finish_exchange(self, exchange: Exchange) -> bytes:
        queue = self._c.replies.queue
        return DROP if queue and queue[0].exchange is exchange else exchange.finish()

    def _check_parameter(self, body: bytes) -> None:
        name, value = wire.decode_parameter_status(body)
        if name == "search_path":
            self._c.paths.report(value)
        if _PINNED.get(name, value) != value and not self._c.observes:
            raise LookupError(f"{name} changed to {value}")

    def _finish(self, reply: Reply) -> None:
        """Note what ``reply`` has returned; the outcome of a held write is recorded at its verdict."""
        entry = reply.entry if reply.write is None else reply.write.entry
        if entry is None:
            return
        frames = self._c.server_frames
        rows, size = frames.rows - reply.rows_before, frames.row_bytes - reply.bytes_before
        if reply.counted is not None:
            for meter in reply.counted.meters:
                meter.add(rows, size)
        if reply.write is None:
            entry.rows, entry.bytes = rows, size
            self._c.record(entry)
        elif reply.kind is Owed.EXECUTE:
            entry.rows, entry.bytes = rows, size
