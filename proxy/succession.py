"""The change from one gate to the next in a session that lives on, and the end of one that may not.

Owns the moment: where the server owes nothing and no message waits, so that whatever was decided by the old
gate has been carried out and recorded, and whatever comes is decided by the new one alone. An agent cannot
put the moment off: once a change is due, no message that is judged passes before it, and what the server may
keep back until a Flush is asked for. A COPY that runs, like any statement that runs, ends as it began.

An Execute belongs to its Bind: where that is not answered yet when the Execute comes, both are one statement
to the agent, decided at the Bind, and stay together, also while the Execute is put back to wait for an
earlier reply. Knows no sockets.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from proxy.answers import CYCLES, Owed
from proxy.conversation import Conversation
from proxy.gate import Gate
from proxy.phase import Action, Phase
from proxy.prepared import Portal
from proxy.replies import Reply
from proxy.waiting import NotYetError, Unanswered
from proxy.wire import backend as wire
from proxy.wire import frontend

JUDGED: Final = frozenset({Action.QUERY, Action.PARSE, Action.BIND, Action.EXECUTE, Action.FUNCTION_CALL})
"""The messages that carry something to be judged."""


class DismissedError(Exception):
    """The session ends here, by a change of the configuration."""

    sqlstate: ClassVar[str] = "57P01"


class _Dismissal(NamedTuple):
    """``at_once`` ends an open transaction as well."""

    reason: str
    at_once: bool


class Succession:
    """What one session is to be judged by next, if that is another gate. ``pending`` while there is anything
    to be done."""

    def __init__(self, conversation: Conversation) -> None:
        self._c = conversation
        self._next: Gate | None = None
        self._dismissal: _Dismissal | None = None
        self._hastened: Reply | None = None
        self._put_back: Portal | None = None
        """Whose Execute waits, having come before its Bind was answered."""
        self.pending = False

    def propose(self, gate: Gate) -> None:
        """Change to ``gate`` as soon as may be; the newest proposal counts."""
        self._next = None if gate is self._c.gate else gate
        self.pending = self._next is not None or self._dismissal is not None
        self.attempt()
        self.hasten()

    def dismiss(self, reason: str, *, at_once: bool) -> None:
        """End the session as soon as nothing runs, where not ``at_once`` outside a transaction too."""
        self._dismissal = _Dismissal(reason, at_once)
        self.pending = True
        self.attempt()
        self.hasten()

    def attempt(self) -> None:
        """Do what is due, if this is the moment."""
        if not self.pending or self._c.closed or not self._quiet:
            return
        dismissal = self._due
        if dismissal is not None:
            self._c.end(dismissal.reason, DismissedError.sqlstate)
            return
        self._change()

    def before(self, action: Action, body: bytes) -> None:
        """A message is at hand that is judged: what is due comes first. Raises NotYetError where the server
        has to answer before that, and DismissedError where this is the end."""
        queue = self._c.replies.queue
        if action is Action.EXECUTE and self._completes_bind(frontend.decode_execute(body, 0, len(body))):
            return
        if queue:
            raise NotYetError(Unanswered(queue, queue[-1]))
        dismissal = self._due
        if dismissal is not None:
            raise DismissedError(dismissal.reason)
        self._change()

    def put_back(self, action: Action, body: bytes) -> None:
        """The message at hand has to wait, and is the next to be taken."""
        name = frontend.decode_execute(body, 0, len(body)) if action is Action.EXECUTE else None
        together = name is not None and self._completes_bind(name)
        self._put_back = self._c.names.portal(name) if name is not None and together else None

    def taken(self) -> None:
        """An Execute waits no longer."""
        self._put_back = None

    def hasten(self) -> None:
        """Have the server answer what the moment waits for."""
        queue = self._c.replies.queue
        # Behind what ends with ReadyForQuery the server keeps nothing back.
        if not self.pending or not queue or queue[-1].kind in CYCLES or self._c.closed:
            return
        if self._c.phase is not Phase.READY or self._c.waits_for_copy or self._c.agent_frames.mid_copy_data:
            return
        if self._hastened is not queue[-1]:
            self._hastened = queue[-1]
            self._c.forward(wire.FLUSH)

    @property
    def _quiet(self) -> bool:
        """True where nothing is half-way."""
        conversation = self._c
        if self._put_back is not None and conversation.agent_frames.pending:
            return False
        return not (conversation.replies.queue or conversation.waiting or conversation.muted)

    @property
    def _due(self) -> _Dismissal | None:
        """The dismissal, where the session has come to where it ends."""
        dismissal = self._dismissal
        if dismissal is None or dismissal.at_once:
            return dismissal
        in_transaction = self._c.status != b"I" or self._c.pipeline_open
        return None if in_transaction else dismissal

    def _change(self) -> None:
        gate, self._next = self._next, None
        self.pending = self._dismissal is not None
        if gate is not None:
            self._c.change_gate(gate)

    def _completes_bind(self, portal: bytes) -> bool:
        """True where the Bind of ``portal`` is yet to be answered, or was when its Execute came."""
        opened = self._c.names.portal(portal)
        if opened is None:
            return False
        return opened is self._put_back or any(
            reply.kind is Owed.BIND and any(change.value is opened for change in reply.changes)
            for reply in reversed(self._c.replies.queue)
        )
