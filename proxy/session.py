"""One connection's steady state, without I/O: chunks in, effects out.

What the relay sees of a conversation between an agent and PostgreSQL. A refusal is made to look exactly like
a failed statement of PostgreSQL's own: the refused message is replaced by one of the same kind that the
server must fail, and the server's error is rewritten into ours, so that the transaction status is always the
server's.

Invariants: nothing reaches the backend undecided; what is allowed passes byte for byte; any split of the
bytes gives the same result; any surprise closes both connections.
"""

from __future__ import annotations

from collections.abc import Callable

from policy.catalog_names import UnreadCatalog
from policy.dialogue import Judged
from policy.sandbox import Tried
from proxy.agent_side import AgentSide
from proxy.answers import CYCLES
from proxy.conversation import Conversation, Identity, Late
from proxy.effects import Effect
from proxy.gate import Gate
from proxy.phase import Phase
from proxy.prepared import NamesError
from proxy.ruling import Priced, Ruling
from proxy.server_side import ServerSide
from proxy.turns import MESSAGES
from proxy.watchdog import Watchdog
from proxy.wire.frames import FramingError
from proxy.wire.frontend import MalformedMessage


class Session:
    """The two directions of one connection after the handshake; see ``Conversation`` for the arguments."""

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
        self._c = Conversation(
            gate,
            identity,
            path,
            nonce=nonce,
            clock=clock,
            message_bytes=message_bytes,
            listed=listed,
            reports_path=reports_path,
        )
        self._agent = AgentSide(self._c)
        self._server = ServerSide(self._c)
        self._watchdog = Watchdog(self._c)
        self._succession = self._agent.succession

    @property
    def status(self) -> bytes:
        """Transaction status as the server last gave it."""
        return self._c.status

    @property
    def held(self) -> bool:
        """True while the agent's messages wait: for a ruling, a price, a COPY or what a name stands for."""
        return self._c.held

    @property
    def overfull(self) -> bool:
        """True while the agent should not be read: too much of its waits already, here or in the server."""
        return self._c.overfull

    @property
    def expected(self) -> int:
        """Bytes that the agent's last message still lacks."""
        return self._c.agent_frames.expected

    @property
    def crowded(self) -> bool:
        """True while the server owes so many replies that they may take long to deal with."""
        return len(self._c.replies.queue) > MESSAGES

    @property
    def in_flight(self) -> bool:
        """True while the server works for the agent: a cancel request may be passed on."""
        return self._c.in_flight

    @property
    def busy(self) -> bool:
        """True while the server owes a reply to anybody, ourselves included."""
        return bool(self._c.replies.queue)

    @property
    def concluding(self) -> bool:
        """True where the server owes something and will send all of it without another message of the
        agent: no pipeline waits for its Sync, no COPY for its data."""
        queue = self._c.replies.queue
        return bool(queue) and queue[-1].kind in CYCLES and self._c.phase is not Phase.COPY_IN

    @property
    def watched(self) -> bool:
        """True where ``look`` should be called every now and then while the session is busy."""
        return self._watchdog.watches

    @property
    def has_altered(self) -> bool:
        """True where the session may have made relations that no catalog shows, and still have them."""
        return self._c.has_altered

    @property
    def gate(self) -> Gate:
        """What the session judges by now."""
        return self._c.gate

    @property
    def cancellable(self) -> bool:
        """True when all that runs would fail as one if it were cancelled."""
        return self._c.cancellable

    @property
    def idle(self) -> bool:
        """True when nothing is owed, asked or half sent, and no transaction is open."""
        return self._c.idle

    @property
    def closed(self) -> bool:
        return self._c.closed

    def from_frontend(self, chunk: bytes) -> list[Effect]:
        """Bytes of the agent, in any split."""
        if self._c.phase is Phase.CLOSED:
            return []
        self._c.begin()
        self._c.agent_frames.feed(chunk)
        self._agent.advance()
        return self._c.effects

    def from_backend(self, chunk: bytes) -> list[Effect]:
        """Bytes of PostgreSQL, in any split."""
        if self._c.phase is Phase.CLOSED:
            return []
        self._c.begin()
        was_held = self._c.may_be_held
        # What is relayed before a breach is noticed ends with a message.
        room = not self._c.server_frames.mid_frame
        try:
            self._server.relay(chunk)
        except (FramingError, MalformedMessage, LookupError) as surprise:
            self._c.breached(f"backend: {surprise}", room=room)
            return self._c.effects
        except NamesError as error:
            self._c.end(str(error), error.sqlstate)
            return self._c.effects
        if self._succession.pending:
            self._succession.attempt()
        if was_held and not self._c.held and not self._c.closed:
            self._agent.resume()
        return self._c.effects

    def adopt(self, gate: Gate) -> list[Effect]:
        """Judge by ``gate`` as soon as nothing is half-way; the effect ``JudgedAnew`` says when."""
        self._c.begin()
        if not self._c.closed:
            self._succession.propose(gate)
        return self._c.effects

    def dismiss(self, reason: str, *, at_once: bool) -> list[Effect]:
        """End the session with ``reason`` as soon as nothing runs: with ``at_once`` inside a transaction too,
        which is rolled back."""
        self._c.begin()
        if not self._c.closed:
            self._succession.dismiss(reason, at_once=at_once)
        return self._c.effects

    def decided(self, ruling: Ruling) -> list[Effect]:
        """The ruling that a Decide effect asked for."""
        self._c.begin()
        held, self._c.waiting = self._c.waiting, None
        if held is None or held.complete is None or self._c.phase is Phase.CLOSED:
            return []
        if ruling.text != held.text:
            self._c.surprised("a ruling on another statement than the one that waits")
            return self._c.effects
        if ruling.policy is not self._c.gate.policy:
            self._c.surprised("a ruling by another policy than the one in force")
            return self._c.effects
        if isinstance(ruling.names, UnreadCatalog):
            # Until the schema as it is now has been read, every statement asks for it anew.
            self._c.altered = True
        # The ruling may rest on a newer schema: what else is judged with it must do so too.
        self._c.keep_up()
        complete = held.complete
        self._resume(held.frame, lambda: complete(ruling))
        return self._c.effects

    def consulted(self, judged: Judged) -> list[Effect]:
        """What the store of repairs says, which a Consult effect asked for."""
        self._c.begin()
        held, self._c.waiting = self._c.waiting, None
        if held is None or held.consulted is None or self._c.phase is Phase.CLOSED:
            self._c.repairs.give_back(judged)
            return self._c.effects
        consulted = held.consulted
        self._resume(held.frame, lambda: consulted(judged))
        return self._c.effects

    def weighed(self, priced: Priced) -> list[Effect]:
        """What a price means, which a Weigh effect asked for."""
        self._c.begin()
        go_on, self._c.weighing = self._c.weighing, None
        if go_on is None or self._c.phase is Phase.CLOSED:
            return self._c.effects
        try:
            self._c.forward(go_on(priced))
        except NamesError as error:
            self._c.end(str(error), error.sqlstate)
            return self._c.effects
        if not self._c.held and not self._c.closed:
            self._agent.resume()
        self._succession.attempt()
        return self._c.effects

    def _resume(self, frame: bytes, complete: Callable[[], bytes | None]) -> None:
        """Go on with the message that was held, by what ``complete`` makes of it."""
        self._c.late = Late(frame, complete)
        self._agent.advance()
        self._succession.attempt()

    def tried(self, outcome: Tried) -> list[Effect]:
        """What came of the trial that a TryOut effect asked for."""
        self._c.begin()
        if self._c.phase is Phase.CLOSED:
            return []
        self._agent.tried(outcome)
        if not self._c.held and not self._c.closed:
            self._agent.advance()
        self._succession.attempt()
        return self._c.effects

    def look(self, *, flowing: bool) -> list[Effect]:
        """See whether the server takes too long; ``flowing`` is False while the agent does not read."""
        self._c.begin()
        if not self._c.closed:
            self._watchdog.look(flowing=flowing)
        return self._c.effects

    def cancelling(self) -> None:
        """A cancel request is under way: what it could hit is what was forwarded, and nothing more is."""
        self._c.cancelling = True

    def cancelled(self) -> list[Effect]:
        """Every cancel request has been dealt with."""
        self._c.begin()
        self._c.cancelling = False
        if not self._c.held and not self._c.closed:
            self._agent.advance()
        return self._c.effects

    def lost(self) -> list[Effect]:
        """One of the connections is gone: what is still owed is recorded as unknown."""
        self._c.begin()
        self._c.phase = Phase.CLOSED
        self._c.record_lost()
        return self._c.effects

    def refuse(self, message: str, sqlstate: str) -> list[Effect]:
        """End the session from our side with a FATAL error (drain, failure of the proxy)."""
        self._c.begin()
        self._c.end(message, sqlstate)
        return self._c.effects
