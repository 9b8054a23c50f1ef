"""From the server to the agent: every message accounted for, what answers ourselves kept back.

Owns the matching of answers to the replies owed. A message that answers nothing, or answers what had to
fail, is a surprise (LookupError). Knows no sockets and no policy.
"""

from __future__ import annotations

from typing import Final

from proxy.conversation import DROP, Conversation
from proxy.effects import ToFrontend
from proxy.exchange import Exchange
from proxy.phase import Phase
from proxy.replies import Owed, Reply
from proxy.wire import backend as wire

_PINNED: Final = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}
"""Parameters whose change would make the server read texts otherwise than the gate did."""
_ERROR: Final = ord("E")
_READY: Final = ord("Z")
_COMPLETE: Final = ord("C")
_DATA_ROW: Final = ord("D")
_PARAMETER: Final = ord("S")
_ANY_TIME: Final = frozenset(b"SNA")
"""ParameterStatus, NoticeResponse, NotificationResponse: answers to nothing."""

_STEPS: Final = {
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


class ServerSide:
    """The messages of the server, one by one, in a connection's steady state."""

    def __init__(self, conversation: Conversation) -> None:
        self._c = conversation

    def relay(self, chunk: bytes) -> None:
        """Pass the chunk on, less what answers ourselves, with errors of our substitutes rewritten."""
        frames = self._c.server_frames
        queue = self._c.replies.queue
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
            if self._c.phase is Phase.CLOSED:
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
            self._c.effects.insert(0, ToFrontend(passed))

    def _reply(self, kind: int, data: bytes, head: Reply | None) -> bytes | None:
        """Account for one message of the backend. None lets it pass; bytes (b"" for none) take its place."""
        frames = self._c.server_frames
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
        step = _STEPS.get((head.kind, kind))
        if step is None:
            raise LookupError(f"message {chr(kind)!r} does not answer {head.kind.value}")
        self._complete(step, kind, data, head)

    def _complete(self, step: str, kind: int, data: bytes, head: Reply) -> None:
        frames = self._c.server_frames
        if kind == _COMPLETE and head.entry is not None:
            head.entry.command_tag = data[frames.body : frames.end - 1].decode("utf-8", "replace")
        if step == "done":
            self._c.copy_syncs = 0
            self._c.replies.queue.popleft()
            for change in head.changes:
                change.settle()
            self._finish(head)
        elif step == "copy_in":
            if self._c.replies.queue[-1] is not head:
                raise LookupError("the server copies in what the gate did not take for a COPY")
            self._c.copying = head
            self._c.phase = Phase.COPY_IN
            self._c.copy_syncs = 0

    def _on_error(self, body: bytes, head: Reply | None) -> bytes | None:
        fields = wire.decode_fields(body)
        if fields.get("severity_plain", fields.get("severity")) in ("FATAL", "PANIC"):
            self._c.fatal_relayed = True
            return None
        if head is None:
            return None
        if head.exchange is not None:
            return self._on_own_error(body, head, head.exchange)
        if self._c.phase is Phase.COPY_IN:
            self._c.phase = Phase.READY
        head.failed = True
        if head.entry is not None:
            head.entry.sqlstate = fields.get("sqlstate")
        behind_copy = self._c.copy_syncs if self._c.replies.queue[-1] is head else 0
        self._c.copy_syncs = 0
        if head.kind not in (Owed.QUERY, Owed.SYNC):
            self._skip_to_sync(head)
        for _ in range(behind_copy):
            self._c.replies.owe(Reply(Owed.SYNC))
            self._c.forward(wire.SYNC)
        return head.rejection or None

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
        self._finish(failed)
        self._c.record_dropped(dropped[1:])

    def _on_ready(self, data: bytes, head: Reply | None) -> None:
        queue = self._c.replies.queue
        self._c.status = data[self._c.server_frames.body : self._c.server_frames.end]
        if head is None or head.kind not in (Owed.QUERY, Owed.SYNC):
            raise LookupError("ReadyForQuery before its Sync")
        if head.rejection and not head.failed:
            raise LookupError("the server ran what it had to refuse")
        self._c.copy_syncs = 0
        queue.popleft()
        if head.kind is Owed.QUERY:
            self._settle_names(head)
            self._finish(head)
        if not queue and self._c.status == b"I":
            self._c.names.transaction_ended()
            if self._c.path_unsettled and not self._c.agent_frames.mid_copy_data:
                self._c.ask_path()

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
        frames = self._c.server_frames
        if kind == _DATA_ROW:
            exchange.rows.append(data[frames.body : frames.end])
            return DROP
        if kind == _READY and head.kind in (Owed.QUERY, Owed.SYNC):
            self._c.status = exchange.ready = data[frames.body : frames.end]
        else:
            step = _STEPS.get((head.kind, kind))
            if step is None:
                raise LookupError(f"message {chr(kind)!r} does not answer our {head.kind.value}")
            if step != "done":
                return DROP
        self._c.replies.queue.popleft()
        return self._finish_exchange(exchange)

    def _on_own_error(self, body: bytes, head: Reply, exchange: Exchange) -> bytes:
        exchange.error = body
        if head.kind not in (Owed.QUERY, Owed.SYNC):
            self._c.replies.fail_head()
            return self._finish_exchange(exchange)
        return DROP

    def _finish_exchange(self, exchange: Exchange) -> bytes:
        queue = self._c.replies.queue
        return DROP if queue and queue[0].exchange is exchange else exchange.finish()

    def _check_parameter(self, body: bytes) -> None:
        name, value = wire.decode_parameter_status(body)
        if _PINNED.get(name, value) != value and not self._c.observes:
            raise LookupError(f"{name} changed to {value}")

    def _finish(self, reply: Reply) -> None:
        entry = reply.entry
        if entry is None:
            return
        frames = self._c.server_frames
        entry.rows = frames.rows - reply.rows_before
        entry.bytes = frames.row_bytes - reply.bytes_before
        self._c.record(entry)
