"""Holding what a statement wrote uncommitted until it is known how many rows it wrote.

Owns the messages that take the place of a Query or Execute which writes, and the verdict: its completion is
passed on, or all of it is undone by a Bind that the server must refuse. A Query is carried out by its
extended equivalent, so that the commit waits for a Sync of ours in every state of the transaction.

What counts is what was written: the server's own counters of the transaction, before and after, or what the
command tag says, whichever is more. Writing CTEs, cascades and triggers show in the first alone, and the
first shows nothing where ``track_counts`` is off. The counters are asked in the statement's own round trip,
and before it only where something may have written since they were asked last: what a transaction begins with
is not zero, because the server adds its counters up between transactions, and not always.

Source: PostgreSQL documentation, "Extended Query"; pg_stat_xact_user_tables in "The Cumulative Statistics
System".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policy.rules import affected_rows_over_limit
from proxy.answers import CYCLES, Owed
from proxy.conversation import DROP, Conversation, Held
from proxy.effects import AuditEntry
from proxy.exchange import Answer, Exchange, read_number
from proxy.limits import Meter
from proxy.phase import Phase
from proxy.prepared import AnyChange, Portal
from proxy.replies import Counted, Reply
from proxy.ruling import Ruling
from proxy.wire import backend as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COUNT: Final = (
    b"SELECT pg_catalog.sum(n_tup_ins OPERATOR(pg_catalog.+) n_tup_upd OPERATOR(pg_catalog.+) n_tup_del) "
    b"FROM pg_catalog.pg_stat_xact_user_tables /* pgturnstile */"
)
_COUNTING_TAGS: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"})
"""Command tags whose last word is a number of rows written; SELECT's is a number of rows returned."""
_SUSPENDED: Final = ord("s")


class HeldWrite:
    """One statement from its start to its verdict; the agent's messages wait meanwhile.

    ``counted`` is its result's account, where it has one; ``takes`` says that it asks for copy data.
    """

    def __init__(
        self,
        conversation: Conversation,
        ruling: Ruling,
        entry: AuditEntry,
        counted: Counted | None,
        *,
        takes: bool,
    ) -> None:
        self._c = conversation
        self._ruling = ruling
        self.entry = entry
        self._counted = counted
        self._takes = takes
        self._counts = conversation.limits is not None and conversation.limits.affected_rows is not None
        self._simple = False
        self._meter: Meter | None = None
        self._prepared = False
        self._before = 0
        self._written = 0
        self._suspended = False
        self._completion = b""

    # --- what takes the statement's place ---

    def query(self, notice: bytes, changes: Sequence[AnyChange]) -> bytes:
        """The messages in the place of a Query; ``notice`` is what the agent reads first."""
        self._simple = True
        self._owe(Owed.PARSE).notice = notice
        self._owe(Owed.BIND)
        self._owe(Owed.DESCRIBE_PORTAL)
        opening = (
            wire.parse_message(b"", self._ruling.sent)
            + wire.bind_message(b"", b"")
            + wire.describe_portal(b"")
        )
        return opening + self._run(wire.execute_message(b""), changes)

    def execute(self, frame: bytes, portal: Portal, changes: Sequence[AnyChange]) -> bytes:
        """The messages in the place of the Execute ``frame``."""
        self._meter = portal.meter
        return self._run(frame, changes)

    def copied(self) -> bytes:
        """What to send behind the end of the copy data."""
        self._c.waiting = Held(DROP, entry=self.entry)
        return self._count_after() + wire.FLUSH

    def copy_failed(self) -> None:
        """The agent ends its data with a failure. What it sends behind a Query waits for our Sync: the server
        would read past it."""
        if self._simple:
            self._c.waiting = Held(DROP, entry=self.entry)

    def _run(self, frame: bytes, changes: Sequence[AnyChange]) -> bytes:
        messages = self._count_before() + frame
        reply = self._owe(Owed.EXECUTE)
        reply.changes = changes
        reply.counted = self._counted
        if self._takes:
            # The server reads data next: the agent's, and no question of ours.
            self._c.copying = reply
            return messages + wire.FLUSH
        self._c.waiting = Held(DROP, entry=self.entry)
        return messages + self._count_after() + wire.FLUSH

    def _owe(self, kind: Owed) -> Reply:
        reply = Reply(kind, ruling=self._ruling)
        reply.write = self
        self._c.replies.owe(reply)
        return reply

    def _count_before(self) -> bytes:
        if not self._counts:
            return b""
        known = self._known()
        if known is not None:
            self._before = known
            return b""
        self._prepared = True
        name = self._c.count_name
        self._ask(self._counted_before, (Owed.CLOSE, Owed.PARSE, Owed.BIND, Owed.EXECUTE, Owed.CLOSE))
        return _prepare(name) + _ask_once(name)

    def _known(self) -> int | None:
        """What was written before it in its transaction; None where the counters are to be asked.

        Behind a Sync or Query that is not answered yet another transaction may have begun.
        """
        if any(reply.kind in CYCLES for reply in self._c.replies.queue):
            return None
        return self._c.written

    def _count_after(self) -> bytes:
        if not self._counts:
            return b""
        name = self._c.count_name
        preparing = () if self._prepared else (Owed.CLOSE, Owed.PARSE)
        self._ask(self._counted_after, (*preparing, Owed.BIND, Owed.EXECUTE, Owed.CLOSE, Owed.CLOSE))
        opening = b"" if self._prepared else _prepare(name)
        return opening + _ask_once(name) + wire.close_message(b"S", name)

    def _ask(self, done: Callable[[Answer], bytes], owed: tuple[Owed, ...]) -> None:
        exchange = Exchange(done)
        for kind in owed:
            self._c.replies.owe(Reply(kind, exchange=exchange))

    # --- what the server says ---

    def completed(self, kind: int, message: bytes) -> bytes:
        """The statement has ended; ``message`` says so and is withheld. Returns what the agent reads."""
        self._completion = message
        self._suspended = kind == _SUSPENDED
        return DROP if self._counts else self._verdict()

    def dropped(self, *, failed: bool) -> None:
        """It will not end: it has ``failed`` itself, or the server reads past it."""
        self._c.waiting = None
        self._c.written = None
        if not failed:
            if not self.entry.outcome_known:
                self._c.record_unknown(self.entry)
            return
        self._c.record(self.entry)
        if self._simple:
            self._c.end_failed_query(discarding=True)

    def not_ended(self, body: bytes) -> bytes:
        """What was to end it has failed, as when it is cancelled at that moment, and all of it is undone."""
        self.entry.sqlstate = wire.decode_fields(body).get("sqlstate")
        queue = self._c.replies.queue
        if not queue:
            # The server reads past a Query that was to end it.
            self._c.pipeline_open = self._c.unsynced = False
            self._c.segment_reads = True
            self._owe(Owed.SYNC)
            self._c.put_between(wire.SYNC)
        queue[0].failed = True
        return wire.frame(b"E", body)

    def ready(self, *, failed: bool) -> bytes:
        """What ends it is answered: what stands before its ReadyForQuery."""
        self._c.record(self.entry)
        return DROP if failed else self._completion

    def _counted_before(self, answer: Answer) -> bytes:
        if answer.error is not None:
            return self._broken(answer.error)
        if not answer.skipped:
            self._before = read_number(answer)
        return DROP

    def _counted_after(self, answer: Answer) -> bytes:
        if answer.error is not None:
            return self._broken(answer.error)
        if answer.skipped:
            return DROP
        self._c.written = read_number(answer)
        self._written = self._c.written - self._before
        return self._verdict()

    def _broken(self, body: bytes) -> bytes:
        """A count failed, and with it the transaction: to the agent its statement did."""
        over = self._counted.over if self._counted is not None else b""
        if not over:
            self.entry.sqlstate = wire.decode_fields(body).get("sqlstate")
        self.dropped(failed=True)
        if not self._simple:
            self._c.phase = Phase.DISCARDING
        return over or wire.frame(b"E", body)

    # --- the verdict ---

    def _verdict(self) -> bytes:
        self._c.waiting = None
        error = self._objection()
        if error:
            self._undo(error)
            return DROP
        if not self._simple:
            self._c.record(self.entry)
            return self._completion
        closed = ((Owed.CLOSE, wire.close_message(kind, b"")) for kind in (b"S", b"P"))
        self._c.end_query(*closed, write=self)
        return DROP

    def _objection(self) -> bytes:
        """The ErrorResponse that the statement is undone with; empty where it stays."""
        if self._counted is not None and self._counted.over:
            return self._counted.over
        limits, policy = self._c.limits, self._c.gate.policy
        if limits is None or limits.affected_rows is None:
            return b""
        counted = self._written > 0 or (self._meter is not None and self._meter.written)
        if self._suspended and not counted:
            return self._c.exceeded(self.entry, affected_rows_over_limit.uncounted(policy))
        if self._meter is not None:
            self._meter.written = True
        written = max(self._written, _told(self.entry.command_tag))
        if written <= limits.affected_rows:
            return b""
        return self._c.exceeded(self.entry, affected_rows_over_limit.exceeded(policy, written))

    def _undo(self, error: bytes) -> None:
        self._c.record(self.entry)
        self._c.replies.owe(Reply(Owed.BIND, rejection=error))
        self._c.forward(wire.bind_message(b"", self._c.refused_text))
        if self._simple:
            self._c.end_failed_query(discarding=True)
        else:
            self._c.phase = Phase.DISCARDING


def _prepare(name: bytes) -> bytes:
    """Closed beforehand as well: a count that failed has left it behind."""
    return wire.close_message(b"S", name) + wire.parse_message(name, _COUNT)


def _ask_once(name: bytes) -> bytes:
    """Run the prepared question ``name`` through a portal of the same name, and drop that."""
    return wire.bind_message(name, name) + wire.execute_message(name) + wire.close_message(b"P", name)


def _told(tag: str | None) -> int:
    """The rows written, by the command tag."""
    words = (tag or "").split()
    return int(words[-1]) if words and words[0] in _COUNTING_TAGS and words[-1].isdecimal() else 0
