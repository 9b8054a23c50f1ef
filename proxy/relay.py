"""Two transports round one Session: backpressure both ways, what happens seldom, and the end.

Owns the life of a connection after its handshake, and how it ends; what every chunk goes through is the
``carrier``'s. Knows nothing of frames and rules: what a chunk means is the Session's to say. asyncio's
streams are never used here: they cost more than the rest of the proxy together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from policy.catalog_names import SessionNames
from proxy import backend
from proxy.audit_line import ConnectionIdentity
from proxy.carrier import AuditSink, Carrier
from proxy.clone import Clone
from proxy.effects import CancelRunning, Close, Consult, Decide, Effect, JudgedAnew, Tell, TryOut, Weigh
from proxy.gate import Gate
from proxy.judges import Judges
from proxy.ruling import Ruling
from proxy.session import Session
from proxy.stream import StreamClosedError, TransportStream
from proxy.turns import BYTES, FEW, Turns, share

_TERMINATE: Final = b"X\0\0\0\x04"
_LINGER_S: Final = 5.0
"""How long what was written last may take to leave before a connection is cut."""
_LOOK_S: Final = 0.25
"""How often a busy session is looked at, in seconds."""
_CANCEL_S: Final = 10.0
"""How long PostgreSQL may take to deal with a CancelRequest."""

# Why the agent's side is not read; bits, because several may hold at once.
_OVERFULL: Final = 1
_BACKEND_FULL: Final = 2
_CANCELLING: Final = 4
_TELLING: Final = 8
_PARTING: Final = 16
_OTHERS_TURN: Final = 32

log = structlog.get_logger("pgturnstile.relay")

T = TypeVar("T")


class Parting(NamedTuple):
    """Why a connection ends as soon as it can, in the words of its FATAL error. ``at_once`` lets only what
    PostgreSQL works at finish, else an open transaction may go on to its end."""

    message: str
    sqlstate: str
    at_once: bool = False


ADMIN_SHUTDOWN: Final = Parting("terminating connection due to administrator command", "57P01")


class BackendKey(NamedTuple):
    """What cancels the session's work in the server."""

    endpoint: backend.Endpoint
    pid: int
    secret: bytes


class Relay:
    """One connection in its steady state.

    ``start`` begins it; ``on_ended`` is called once, when both transports are gone.
    """

    def __init__(
        self,
        session: Session,
        *,
        gate: Gate,
        audit: AuditSink,
        identity: ConnectionIdentity,
        key: BackendKey,
        judges: Judges,
        stores: Executor,
        turns: Turns,
        on_ended: Callable[[Relay], None],
    ) -> None:
        self._session = session
        self._gate = gate
        self._carrier = Carrier(session, audit, identity, self)
        self._key = key
        self._judges = judges
        self._stores = stores
        self._turns = turns
        self._agent_left: bytes | None = None
        self._backend_left: bytes | None = None
        """What either has sent and is dealt with when it is this connection's turn again; None while that is
        not waited for."""
        self._on_ended = on_ended
        self._clone = Clone(identity.connection)
        self._frontend = _FrontendSide(self, self.frontend_received)
        self._backend = _BackendSide(self, self.backend_received)
        self._unread = 0
        self._cancels = 0
        self._goodbye = b""
        self._parting: Parting | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._carrier.idle_watch = session.watched
        self._agent_full = False

    def start(self, frontend: TransportStream, backend_stream: TransportStream, greeting: bytes) -> None:
        """Take both connections over from the handshake; ``greeting`` ends it towards the agent.

        Raises StreamClosedError where one has ended meanwhile; the caller then closes what it holds.
        """
        if frontend.ended or backend_stream.ended:
            raise StreamClosedError("connection ended at the end of the handshake")
        from_backend = backend_stream.hand_over(self._backend)
        from_frontend = frontend.hand_over(self._frontend)
        self._backend.transport = self._carrier.to_server = backend_stream.transport
        self._frontend.transport = self._carrier.to_agent = frontend.transport
        self._frontend.transport.write(greeting)
        self._backend.transport.resume_reading()
        self._frontend.transport.resume_reading()
        if from_backend:
            self.backend_received(from_backend)
        if from_frontend:
            self.frontend_received(from_frontend)

    # --- what the two sides report ---

    def frontend_received(self, data: bytes) -> None:
        if self._agent_left is not None:
            self._agent_left += data
            return
        size = share(data, self._session.expected) if len(data) > FEW else len(data)
        self._carrier.from_agent(data if size == len(data) else data[:size])
        if size < len(data) or self._frontend.has_had_its_share(size):
            self._agent_left = data[size:]
            self._set_unread(_OTHERS_TURN, True)
            self._turns.later(self._carrier.identity.agent, self._frontend_again)

    def _frontend_again(self) -> None:
        """It is this connection's turn again."""
        left, self._agent_left = self._agent_left, None
        if left:
            self.frontend_received(left)
        if self._agent_left is None:
            self._set_unread(_OTHERS_TURN, False)

    def backend_received(self, data: bytes) -> None:
        if self._backend_left is not None:
            self._backend_left += data
            return
        size = share(data) if len(data) > FEW and self._session.crowded else len(data)
        self._carrier.from_server(data if size == len(data) else data[:size])
        if size < len(data) or self._backend.has_had_its_share(size):
            self._backend_left = data[size:]
            self._backend.pause()
            self._turns.later(self._carrier.identity.agent, self._backend_again)

    def _backend_again(self) -> None:
        """It is this connection's turn again."""
        left, self._backend_left = self._backend_left, None
        if left:
            self.backend_received(left)
        self._read_backend()

    def frontend_lost(self) -> None:
        if not self._carrier.ended:
            self._conclude(self._session.lost, "agent gone")
        self.side_lost()

    def backend_lost(self) -> None:
        # What it said last says why.
        left, self._backend_left = self._backend_left, None
        if left:
            self._carrier.from_server(left)
        if not self._carrier.ended:
            self.end("terminating connection because the database server closed it", "57P01")
        self.side_lost()

    def frontend_full(self, full: bool) -> None:
        """The agent reads more slowly than the server sends (or has caught up)."""
        self._agent_full = full
        if self._carrier.ended:
            return
        if full:
            self._backend.pause()
        else:
            self._read_backend()

    def _read_backend(self) -> None:
        """Read from the server, where nothing keeps us from it."""
        held = self._agent_full or self._carrier.behind is not None or self._backend_left is not None
        if not held and not self._carrier.ended:
            self._backend.resume()

    def backend_full(self, full: bool) -> None:
        self._set_unread(_BACKEND_FULL, full)

    # --- what others ask ---

    def drain(self, parting: Parting = ADMIN_SHUTDOWN) -> None:
        """End as soon as nothing is under way."""
        self._parting = parting
        self._carrier.parting = True
        if parting.at_once:
            self._set_unread(_PARTING, True)
        self.part()

    def part(self) -> None:
        """End if nothing is under way any more."""
        parting = self._parting
        if parting is None:
            return
        over = not self._session.concluding if parting.at_once else self._session.idle
        if over and not self._carrier.ended:
            self.end(parting.message, parting.sqlstate)

    def end(self, message: str, sqlstate: str) -> None:
        """End now with a FATAL error, where the agent's stream has room for one."""
        if not self._carrier.ended:
            self._conclude(lambda: self._session.refuse(message, sqlstate), message)

    def abort(self) -> None:
        """End now and cut both connections, whatever has not left yet."""
        self.end(ADMIN_SHUTDOWN.message, ADMIN_SHUTDOWN.sqlstate)
        for side in (self._frontend, self._backend):
            side.transport.abort()

    @property
    def has_altered(self) -> bool:
        """As of its session."""
        return self._session.has_altered

    def adopt(self, gate: Gate) -> None:
        """Have what the agent sends from now on judged by ``gate``; what is under way ends as it began."""
        self._change_session(lambda: self._session.adopt(gate))

    def dismiss(self, reason: str, *, at_once: bool) -> None:
        """End with ``reason`` as soon as nothing runs, with ``at_once`` even inside a transaction."""
        self._change_session(lambda: self._session.dismiss(reason, at_once=at_once))

    def _change_session(self, change: Callable[[], list[Effect]]) -> None:
        if self._carrier.ended:
            return
        try:
            self._carrier.carry_out(change())
            self.heed_overfull()
        except Exception as error:
            self.surprised(error)

    def _judge_by(self, gate: Gate) -> None:
        self._gate = gate
        self._carrier.identity = self._carrier.identity._replace(
            policy_name=gate.policy.name, policy_sha256=gate.policy.sha256
        )
        self._carrier.idle_watch = self._session.watched and self._watch is None

    async def cancel(self) -> None:
        """Cancel the query that runs, if one does. Meanwhile the agent is not read and the backend kept.

        So a cancel can hit neither a later query nor another session that got the same process id.
        """
        if self._carrier.ended:
            return
        if self._clone.running:
            await self._clone.cancel()
        elif self._session.in_flight:
            await self._cancel_now()

    async def _cancel_running(self) -> None:
        """What the session asked for, unless there is nothing left to cancel by now."""
        if self._carrier.ended:
            return
        if self._session.busy:
            await self._cancel_now()
        elif not self._cancels:
            self._cancel_dealt_with()

    async def _cancel_now(self) -> None:
        self._cancels += 1
        self._session.cancelling()
        self._set_unread(_CANCELLING, True)
        try:
            await self._cancel_backend()
        finally:
            self._cancels -= 1
            if not self._cancels:
                self._cancel_dealt_with()

    def _cancel_dealt_with(self) -> None:
        self._set_unread(_CANCELLING, False)
        if self._carrier.ended:
            self._close_backend()
            return
        try:
            self._carrier.carry_out(self._session.cancelled())
            self.heed_overfull()
        except Exception as error:
            self.surprised(error)

    # --- what the carrier leaves to us ---

    def take(self, effect: Effect, rest: Sequence[Effect]) -> bool:
        """Carry out ``effect``; True where ``rest``, the effects behind it, waits for that."""
        if isinstance(effect, Decide | TryOut | Consult | Weigh):
            self._spawn(self._ask_elsewhere(effect))
        elif isinstance(effect, CancelRunning):
            self._spawn(self._cancel_running())
        elif isinstance(effect, JudgedAnew):
            self._judge_by(self._session.gate)
        elif isinstance(effect, Tell):
            return self._tell(effect, rest)
        elif isinstance(effect, Close):
            self._close(effect.reason, abandoned=effect.abandoned)
        else:
            raise TypeError(f"an effect that nobody carries out: {effect!r}")
        return False

    def heed_overfull(self) -> None:
        """Read the agent while the session has room for what it sends."""
        self._carrier.overfull = self._session.overfull
        self._set_unread(_OVERFULL, self._carrier.overfull)

    def watch(self) -> None:
        """Look at the session before long, and then while it is busy."""
        self._carrier.idle_watch = False
        self._watch = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _ask_elsewhere(self, effect: Decide | TryOut | Consult | Weigh) -> Coroutine[Any, Any, None]:
        """The work that ``effect`` asks for; what the agent sends meanwhile waits."""
        match effect:
            case Decide():
                return self._judge(effect)
            case TryOut():
                return self._try_out(effect)
            case Consult():
                return self._consult(effect)
            case Weigh():
                return self._weigh(effect)

    async def _weigh(self, effect: Weigh) -> None:
        """Have a price weighed in another thread; what the agent sends meanwhile waits."""
        try:
            priced = await self._judges.work(self._gate.agent, effect.weigh)
            if not self._carrier.ended:
                self._carrier.carry_out(self._session.weighed(priced))
                self.heed_overfull()
        except Exception as error:
            self.surprised(error)

    async def _consult(self, effect: Consult) -> None:
        """Ask the ledger of repairs in another thread; what the agent sends meanwhile waits."""
        try:
            judged = await self._of_ledger(effect.ask)
            self._carrier.carry_out(self._session.consulted(judged))
            if not self._carrier.ended:
                self.heed_overfull()
        except Exception as error:
            self.surprised(error)

    async def _of_ledger(self, call: Callable[[], T]) -> T:
        """What ``call`` returns, in another thread: it waits for a store, or reckons on what is here."""
        if self._gate.ledger.waits:
            return await asyncio.get_running_loop().run_in_executor(self._stores, call)
        return await self._judges.work(self._gate.agent, call)

    def _tell(self, effect: Tell, rest: Sequence[Effect]) -> bool:
        """Tell the ledger of repairs in another thread; ``rest`` and all that follows waits, which is True,
        unless the connection has ended."""
        if self._goodbye or self._carrier.ended:
            self._spawn(self._tell_aside(effect))
            return False
        self._carrier.behind = list(rest)
        self._set_unread(_TELLING, True)
        self._backend.pause()
        self._spawn(self._tell_first(effect))
        return True

    async def _tell_first(self, effect: Tell) -> None:
        try:
            await self._of_ledger(effect.tell)
            behind = self._carrier.behind
            if behind is None:
                return
            self._carrier.behind = None
            self._carrier.carry_out(behind)
            if self._carrier.behind is None and not self._carrier.ended:
                self._set_unread(_TELLING, False)
                self._read_backend()
        except Exception as error:
            self.surprised(error)

    async def _tell_aside(self, effect: Tell) -> None:
        try:
            await self._of_ledger(effect.tell)
        except Exception as error:
            log.error("the ledger was not told", connection=self._carrier.identity.connection, exc_info=error)

    def _look(self) -> None:
        """Have the session see whether the server takes too long, and again while it is busy."""
        self._watch = None
        if self._carrier.ended:
            return
        self._carrier.idle_watch = self._session.watched
        try:
            self._carrier.carry_out(self._session.look(flowing=not self._agent_full))
        except Exception as error:
            self.surprised(error)
            return
        if self._session.busy and self._watch is None:
            self.watch()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _judge(self, effect: Decide) -> None:
        """Have the gate judge away from the loop; what the agent sends meanwhile waits."""
        try:
            ruling = await self._gate.rule_surely(
                effect.text,
                effect.names,
                self._judge_apart,
                renew=effect.renew,
                temporary=effect.temporary,
            )
            if not self._carrier.ended:
                self._carrier.carry_out(self._session.decided(ruling))
                self.heed_overfull()
        except Exception as error:
            self.surprised(error)

    async def _try_out(self, effect: TryOut) -> None:
        """Have a statement tried on the clone; what the agent sends meanwhile waits."""
        try:
            outcome = await self._clone.run(effect.target, effect.trial)
            if not self._carrier.ended:
                self._carrier.carry_out(self._session.tried(outcome))
                self.heed_overfull()
        except Exception as error:
            self.surprised(error)
        finally:
            if self._carrier.ended:
                self._clone.close()

    async def _judge_apart(self, text: bytes, names: SessionNames) -> Ruling:
        return await self._judges.rule(self._gate, text, names)

    # --- ending ---

    def surprised(self, error: Exception) -> None:
        """Whatever went wrong, nothing more passes: both connections end."""
        if self._frontend.transport.is_closing():
            # Written to in the moment between its end and the news of it.
            self.frontend_lost()
            return
        if self._backend.transport.is_closing():
            self.backend_lost()
            return
        log.error(
            "connection ended by a failure", connection=self._carrier.identity.connection, exc_info=error
        )
        self.end("the proxy failed; the connection is closed", "XX000")

    def _conclude(self, conclude: Callable[[], list[Effect]], reason: str) -> None:
        """End the session and carry out what it still has to say, come what may."""
        abandoned = self._session.cancellable
        self._goodbye = _TERMINATE
        behind, self._carrier.behind = self._carrier.behind or [], None
        try:
            for effect in [*behind, *conclude()]:
                if not isinstance(effect, Close):
                    self._carrier.carry_out([effect])
        except Exception as error:
            log.error("last words were lost", connection=self._carrier.identity.connection, exc_info=error)
        self._close(reason, abandoned=abandoned)

    def _close(self, reason: str, *, abandoned: bool) -> None:
        if self._carrier.ended:
            return
        self._carrier.ended = True
        self._clone.close()
        log.info("connection closed", connection=self._carrier.identity.connection, reason=reason)
        self._frontend.close()
        if abandoned and not self._cancels and not self._backend.lost:
            # What still runs for an agent that is gone holds its locks until it is told to stop.
            self._spawn(self._cancel_then_close())
        elif not self._cancels:
            self._close_backend()

    async def _cancel_then_close(self) -> None:
        # A server that is blocked sending rows hears of the cancel only once they are read.
        self._backend.resume()
        await self._cancel_backend()
        self._close_backend()

    async def _cancel_backend(self) -> None:
        try:
            async with asyncio.timeout(_CANCEL_S):
                await backend.cancel(self._key.endpoint, self._key.pid, self._key.secret)
        except (backend.BackendError, OSError, TimeoutError) as error:
            log.warning("cancel failed", connection=self._carrier.identity.connection, error=str(error))

    def _close_backend(self) -> None:
        if self._goodbye:
            self._backend.say_last(self._goodbye)
        self._backend.close()

    def _set_unread(self, reason: int, holds: bool) -> None:
        before, self._unread = self._unread, (self._unread | reason) if holds else (self._unread & ~reason)
        if self._carrier.ended or bool(before) is bool(self._unread):
            return
        if self._unread:
            self._frontend.pause()
        else:
            self._frontend.resume()

    def side_lost(self) -> None:
        """One transport is gone for good; once both are, so is the connection."""
        if self._frontend.lost and self._backend.lost:
            self._on_ended(self)


class _Side(asyncio.Protocol):
    """What both transports have in common; a transport that has been lost takes no more orders."""

    transport: asyncio.Transport

    def __init__(self, relay: Relay, take: Callable[[bytes], None]) -> None:
        self.relay = relay
        self._take = take
        self.lost = False
        self._linger: asyncio.TimerHandle | None = None
        self._brought = 0

    def has_had_its_share(self, size: int) -> bool:
        """True where others should be looked at, after ``size`` bytes more."""
        self._brought += size
        if self._brought < BYTES:
            return False
        self._brought = 0
        return True

    @property
    def data_received(self) -> Callable[[bytes], None]:
        """What uvloop asks for once, and then calls itself with every chunk."""
        return self._take

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.lost = True
        if self._linger is not None:
            self._linger.cancel()

    def pause(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def say_last(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Close once everything written has left, or after ``_LINGER_S`` whatever has not."""
        if self.lost:
            return
        self.transport.close()
        self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self.transport.abort)


class _FrontendSide(_Side):
    def pause_writing(self) -> None:
        self.relay.frontend_full(True)

    def resume_writing(self) -> None:
        self.relay.frontend_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.relay.frontend_lost()


class _BackendSide(_Side):
    def pause_writing(self) -> None:
        self.relay.backend_full(True)

    def resume_writing(self) -> None:
        self.relay.backend_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.relay.backend_lost()
