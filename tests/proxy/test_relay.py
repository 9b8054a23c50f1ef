"""How a connection is carried and how it ends, with a scripted session between two fake transports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from policy.ledger import MemoryLedger
from policy.names import PathNames
from proxy import backend
from proxy.audit_line import ConnectionIdentity
from proxy.backend import BackendError, Endpoint
from proxy.effects import (
    AuditEntry,
    CancelRunning,
    Close,
    Decide,
    Effect,
    Record,
    ToBackend,
    ToFrontend,
    Weigh,
)
from proxy.gate import Gate
from proxy.judges import Judges
from proxy.relay import BackendKey, Relay
from proxy.session import Session
from proxy.stream import StreamClosedError, TransportStream
from proxy.turns import BYTES, FEW, MESSAGES, Turns

IDENTITY = ConnectionIdentity("bot", "shop", "shop_ro", None, "127.0.0.1:1", "c1", "analytics", "0")
TERMINATE = b"X\0\0\0\x04"
NAMES = PathNames((("public",),))


class Transport:
    """Records orders; ``drop`` is the other side going away."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reading = False
        self.state = "open"
        self.protocol: asyncio.Protocol | None = None

    def write(self, data: bytes) -> None:
        assert self.state == "open"
        self.written.append(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.state != "open"

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def drop(self) -> None:
        self._end("dropped")

    def receive(self, data: bytes) -> None:
        assert self.protocol is not None
        self.protocol.data_received(data)

    def _end(self, state: str) -> None:
        if self.state == "open":
            self.state = state
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Stream:
    """As a TransportStream at the end of its handshake; ``left`` had arrived already."""

    def __init__(self, left: bytes = b"", *, ended: bool = False) -> None:
        self.transport = Transport()
        self.left = left
        self.ended = ended

    def hand_over(self, protocol: asyncio.Protocol) -> bytes:
        self.transport.protocol = protocol
        return self.left


class ScriptedSession:
    """Answers each chunk with the effects written down for it, or raises what is."""

    def __init__(self, script: dict[bytes, list[Effect] | Exception]) -> None:
        self.script = script
        self.seen: list[bytes] = []
        self.idle = True
        self.expected = 0
        self.crowded = False
        self.overfull = False
        self.in_flight = False
        self.busy = False
        self.watched = False
        self.waits = False
        self.cancellable = False
        self.was_lost = False

    def _answer(self, data: bytes) -> list[Effect]:
        self.seen.append(data)
        answer = self.script.get(data, [])
        if isinstance(answer, Exception):
            raise answer
        return answer

    from_frontend = from_backend = _answer

    def decided(self, ruling: object) -> list[Effect]:
        return self._answer(b"decided:" + cast("bytes", ruling))

    def weighed(self, priced: object) -> list[Effect]:
        return self._answer(b"weighed:" + cast("bytes", priced))

    def look(self, *, flowing: bool) -> list[Effect]:
        return self._answer(b"look" if flowing else b"look: blocked")

    def cancelling(self) -> None:
        self.waits = True

    def cancelled(self) -> list[Effect]:
        self.waits = False
        return self._answer(b"cancelled")

    def lost(self) -> list[Effect]:
        self.was_lost = True
        return self._answer(b"lost")

    def refuse(self, message: str, sqlstate: str) -> list[Effect]:
        self._answer(b"refuse")
        return [ToFrontend(f"FATAL {sqlstate}".encode()), Close(message)]


class ScriptedGate:
    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.agent = "bot"
        self.ledger = MemoryLedger()
        self.renewed: list[bool] = []

    async def rule_surely(
        self,
        text: bytes,
        names: PathNames,
        judge_apart: Callable[[bytes, PathNames], Awaitable[bytes]],
        *,
        renew: bool,
        temporary: bool,
    ) -> bytes:
        assert not temporary
        self.renewed.append(renew)
        return await judge_apart(text, names)

    def rule_slowly(self, text: bytes, names: PathNames) -> bytes:
        assert names is NAMES
        if self.fails:
            raise RuntimeError("the gate broke")
        return text


class Audit:
    def __init__(self) -> None:
        self.records: list[tuple[AuditEntry, ConnectionIdentity]] = []
        self.fails = False

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        if self.fails:
            raise RuntimeError("the disk is full")
        self.records.append((entry, identity))


class Bench:
    """One relay with everything round it in sight."""

    def __init__(
        self,
        script: dict[bytes, list[Effect] | Exception] | None = None,
        *,
        gate_fails: bool = False,
        watched: bool = False,
        frontend: Stream | None = None,
        backend_stream: Stream | None = None,
    ) -> None:
        self.session = ScriptedSession(script or {})
        self.session.watched = watched
        self.audit = Audit()
        self.ended: list[Relay] = []
        self.cancels: list[tuple[int, bytes]] = []
        self.cancel_gate = asyncio.Event()
        self.cancel_gate.set()
        frontend, backend_stream = frontend or Stream(), backend_stream or Stream()
        self.agent, self.server = frontend.transport, backend_stream.transport
        self.judges, self.stores = Judges(10.0), ThreadPoolExecutor(1)
        self.gate = ScriptedGate(gate_fails)
        self.relay = Relay(
            cast("Session", self.session),
            gate=cast("Gate", self.gate),
            audit=self.audit,
            identity=IDENTITY,
            key=BackendKey(Endpoint("127.0.0.1", 5432), 4711, b"real"),
            judges=self.judges,
            stores=self.stores,
            turns=Turns(),
            on_ended=self.ended.append,
        )
        self.streams = cast("TransportStream", frontend), cast("TransportStream", backend_stream)

    def start(self) -> None:
        self.relay.start(*self.streams, b"greeting")

    async def cancel(self, endpoint: Endpoint, pid: int, secret: bytes) -> None:
        self.cancels.append((pid, secret))
        assert self.server.state == "open"  # the process id is still that of this session
        await self.cancel_gate.wait()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)


Scenario = Callable[[Bench], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a scenario on a bench whose relay has started."""

    def run(scenario: Scenario, **made_of: Any) -> None:
        async def main() -> None:
            bench = Bench(**made_of)
            monkeypatch.setattr(backend, "cancel", bench.cancel)
            bench.start()
            try:
                await scenario(bench)
            finally:
                bench.judges.close()
                bench.stores.shutdown()

        asyncio.run(main())

    return run


def entry() -> AuditEntry:
    return AuditEntry("id", cast("Any", None), "simple", 0.0)


def test_effects_are_carried_out_in_order(play: Callable[..., None]) -> None:
    record = entry()

    async def scenario(bench: Bench) -> None:
        bench.agent.receive(b"ask")
        bench.server.receive(b"answer")
        assert bench.server.written == [b"one", b"two"]
        assert bench.agent.written == [b"greeting", b"row", b"done"]
        assert bench.audit.records == [(record, IDENTITY)]

    play(
        scenario,
        script={
            b"ask": [ToBackend(b"one"), ToBackend(b"two")],
            b"answer": [ToFrontend(b"row"), Record(record), ToFrontend(b"done")],
        },
    )


def test_an_effect_that_nobody_knows_ends_the_connection(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.agent.receive(b"ask")
        assert bench.server.written == [b"one", b"X\0\0\0\x04"]
        assert bench.agent.written == [b"greeting", b"FATAL XX000"]
        assert (bench.agent.state, bench.server.state) != ("open", "open")

    script = {b"ask": [ToBackend(b"one"), cast("Effect", object()), ToBackend(b"two")]}
    play(scenario, script=script)


def test_what_came_during_the_handshake_is_not_lost(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.session.seen == [b"notice", b"ask"]
        assert bench.agent.reading
        assert bench.server.reading

    play(scenario, frontend=Stream(b"ask"), backend_stream=Stream(b"notice"))


@pytest.mark.parametrize("which", ["frontend", "backend_stream"])
def test_a_connection_that_ended_in_between_is_not_taken_over(which: str) -> None:
    async def main() -> None:
        bench = Bench(**{which: Stream(ended=True)})  # type: ignore[arg-type]
        with pytest.raises(StreamClosedError):
            bench.start()
        assert bench.agent.protocol is None
        assert bench.server.protocol is None

    asyncio.run(main())


def test_a_slow_side_stops_the_other_from_being_read(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.agent.protocol is not None
        assert bench.server.protocol is not None
        bench.agent.protocol.pause_writing()
        assert (bench.agent.reading, bench.server.reading) == (True, False)
        bench.server.protocol.pause_writing()
        assert (bench.agent.reading, bench.server.reading) == (False, False)
        bench.agent.protocol.resume_writing()
        assert (bench.agent.reading, bench.server.reading) == (False, True)
        bench.server.protocol.resume_writing()
        assert (bench.agent.reading, bench.server.reading) == (True, True)

    play(scenario)


def test_the_gate_judges_what_a_decide_asks_for(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.agent.receive(b"ask")
        await bench.settle()
        assert bench.session.seen == [b"ask", b"decided:text", b"decided:more"]
        assert bench.server.written == [b"text"]
        assert bench.gate.renewed == [False, True]

    script = {
        b"ask": [Decide(b"text", NAMES)],
        b"decided:text": [ToBackend(b"text"), Decide(b"more", NAMES, renew=True)],
    }
    play(scenario, script=script)


def test_an_agent_is_not_read_while_the_session_is_full(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.overfull = True
        bench.agent.receive(b"much")
        assert not bench.agent.reading
        bench.server.receive(b"answer")
        assert not bench.agent.reading
        bench.session.overfull = False
        bench.server.receive(b"answer")
        assert bench.agent.reading

    play(scenario)


def test_a_ruling_makes_room(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.overfull = True
        bench.agent.receive(b"ask")
        assert not bench.agent.reading
        bench.session.overfull = False
        await bench.settle()
        assert bench.agent.reading

    play(scenario, script={b"ask": [Decide(b"text", NAMES)]})


def test_both_reasons_to_wait_must_go(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.server.protocol is not None
        bench.session.overfull = True
        bench.agent.receive(b"much")
        bench.server.protocol.pause_writing()
        bench.session.overfull = False
        bench.server.receive(b"answer")
        assert not bench.agent.reading
        bench.server.protocol.resume_writing()
        assert bench.agent.reading

    play(scenario)


def closed_by(bench: Bench, sqlstate: str) -> None:
    assert bench.agent.written[-1] == f"FATAL {sqlstate}".encode()
    assert bench.server.written[-1] == TERMINATE
    assert (bench.agent.state, bench.server.state) == ("closed", "closed")


@pytest.mark.parametrize("side", ["agent", "server"])
def test_a_failure_in_the_session_closes_both(play: Callable[..., None], side: str) -> None:
    async def scenario(bench: Bench) -> None:
        getattr(bench, side).receive(b"ask")
        closed_by(bench, "XX000")
        getattr(bench, side).protocol.data_received(b"more")
        assert b"more" not in bench.session.seen
        await bench.settle()
        assert bench.ended == [bench.relay]

    play(scenario, script={b"ask": RuntimeError("a bug")})


def test_a_gate_that_fails_lets_nothing_through(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.agent.receive(b"ask")
        await bench.settle()
        assert bench.server.written == [TERMINATE]
        closed_by(bench, "XX000")

    play(scenario, script={b"ask": [Decide(b"text", NAMES)]}, gate_fails=True)


def test_an_audit_that_fails_ends_the_connection(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.audit.fails = True
        bench.server.receive(b"answer")
        closed_by(bench, "XX000")

    play(scenario, script={b"answer": [Record(entry()), ToFrontend(b"never")]})


def test_an_audit_that_fails_to_the_end_still_ends_it(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.audit.fails = True
        bench.agent.drop()
        await bench.settle()
        assert bench.server.state == "closed"
        assert bench.ended == [bench.relay]

    play(scenario, script={b"lost": [Record(entry())]})


def test_the_session_closes(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.agent.receive(b"bye")
        assert bench.server.written == [b"last"]
        assert (bench.agent.state, bench.server.state) == ("closed", "closed")
        await bench.settle()
        assert bench.cancels == []
        assert bench.ended == [bench.relay]
        assert not bench.session.was_lost

    play(scenario, script={b"bye": [ToBackend(b"last"), Close("terminated by the agent")]})


@pytest.mark.parametrize("cancellable", [True, False])
def test_what_runs_for_a_lost_agent_is_cancelled_where_that_is_safe(
    play: Callable[..., None], cancellable: bool
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.cancellable = cancellable
        bench.server.pause_reading()
        bench.cancel_gate.clear()
        bench.agent.drop()
        await bench.settle()
        assert bench.session.was_lost
        if cancellable:
            assert (bench.server.state, bench.server.reading) == ("open", True)
            bench.server.receive(b"row")
            bench.cancel_gate.set()
            await bench.settle()
        assert bench.cancels == ([(4711, b"real")] if cancellable else [])
        assert b"row" not in bench.session.seen
        assert (bench.server.state, bench.server.written) == ("closed", [TERMINATE])
        assert bench.ended == [bench.relay]

    play(scenario)


def test_a_cancel_that_fails_does_not_keep_the_server(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(endpoint: Endpoint, pid: int, secret: bytes) -> None:
        raise BackendError("gone", "57P03")

    async def scenario(bench: Bench) -> None:
        monkeypatch.setattr(backend, "cancel", refuses)
        bench.session.cancellable = True
        bench.agent.drop()
        await bench.settle()
        assert bench.server.state == "closed"

    play(scenario)


def test_a_lost_server_is_told_to_the_agent(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.cancellable = True
        bench.server.drop()
        await bench.settle()
        assert bench.agent.written[-1] == b"FATAL 57P01"
        assert bench.agent.state == "closed"
        assert bench.cancels == []
        assert bench.ended == [bench.relay]

    play(scenario)


def test_draining_waits_for_what_is_under_way(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.idle = False
        bench.relay.drain()
        bench.server.receive(b"row")
        assert bench.agent.state == "open"
        bench.session.idle = True
        bench.server.receive(b"ready")
        closed_by(bench, "57P01")

    play(scenario)


def test_draining_ends_what_is_idle_at_once(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.relay.drain()
        closed_by(bench, "57P01")

    play(scenario)


def test_an_abort_cuts_both(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.relay.abort()
        await bench.settle()
        assert b"refuse" in bench.session.seen
        assert bench.ended == [bench.relay]

    play(scenario)


def test_a_cancel_request_holds_agent_and_server_until_it_is_dealt_with(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.in_flight = True
        bench.cancel_gate.clear()
        request = asyncio.create_task(bench.relay.cancel())
        await bench.settle()
        assert bench.cancels == [(4711, b"real")]
        assert not bench.agent.reading
        bench.session.cancellable = True
        bench.agent.drop()
        await bench.settle()
        assert (bench.server.state, len(bench.cancels)) == ("open", 1)
        bench.cancel_gate.set()
        await request
        assert bench.server.state == "closed"

    play(scenario)


def test_a_cancel_request_with_nothing_to_cancel_goes_nowhere(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.relay.cancel()
        bench.session.in_flight = True
        bench.relay.drain()
        await bench.relay.cancel()
        assert bench.cancels == []
        assert bench.agent.state == "closed"

    play(scenario)


def test_what_the_session_cancels_is_cancelled_and_told_back(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.busy = True
        bench.cancel_gate.clear()
        bench.server.receive(b"too much")
        await bench.settle()
        assert bench.cancels == [(4711, b"real")]
        assert (bench.session.waits, bench.agent.reading) == (True, False)
        bench.cancel_gate.set()
        await bench.settle()
        assert (bench.session.waits, bench.agent.reading) == (False, True)
        assert bench.server.written == [b"next"]

    play(scenario, script={b"too much": [CancelRunning()], b"cancelled": [ToBackend(b"next")]})


def test_what_has_ended_meanwhile_is_not_cancelled(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.server.receive(b"too much")
        await bench.settle()
        assert (bench.cancels, bench.server.written) == ([], [b"next"])

    play(scenario, script={b"too much": [CancelRunning()], b"cancelled": [ToBackend(b"next")]})


def test_a_busy_session_is_looked_at_until_it_is_not(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.relay._LOOK_S", 0.001)

    async def scenario(bench: Bench) -> None:
        bench.session.busy = True
        bench.agent.receive(b"ask")
        await bench.settle()
        assert b"look" in bench.session.seen
        bench.relay.frontend_full(True)
        await bench.settle()
        assert bench.session.seen[-1] == b"look: blocked"
        bench.session.busy = False
        await bench.settle()
        looks = len(bench.session.seen)
        await bench.settle()
        assert len(bench.session.seen) == looks

    play(scenario, script={b"ask": [ToBackend(b"ask")]}, watched=True)


# Turns ---------------------------------------------------------------------------------------------------

SYNC = b"S\0\0\0\x04"
FLOOD = SYNC * 50 * MESSAGES


def test_a_flood_of_messages_is_dealt_with_in_shares_while_others_are_served(
    play: Callable[..., None],
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.agent.receive(FLOOD)
        turns = 0
        while b"".join(bench.session.seen) != FLOOD:
            assert not bench.agent.reading, "nothing more is taken in meanwhile"
            assert len(bench.session.seen[-1]) <= 2 * FEW
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 25
        await asyncio.sleep(0)
        assert bench.agent.reading

    play(scenario)


def test_a_flood_of_answers_is_dealt_with_in_shares_while_others_are_served(
    play: Callable[..., None],
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.crowded = True
        bench.server.receive(FLOOD)
        turns = 0
        while b"".join(bench.session.seen) != FLOOD:
            assert not bench.server.reading
            bench.relay.frontend_full(False)
            assert not bench.server.reading, "nor for another reason"
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 25
        assert bench.server.reading

    play(scenario)


def test_what_answers_little_is_dealt_with_whole(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.server.receive(FLOOD[: BYTES - 1])
        assert bench.session.seen == [FLOOD[: BYTES - 1]]
        assert bench.server.reading

    play(scenario)


def test_a_stream_that_always_has_more_rests_after_its_share(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        for transport in (bench.server, bench.agent):
            chunk = b"d" + (1 << 30).to_bytes(4, "big") + b"x" * (BYTES // 2 - 5)
            transport.receive(chunk)
            assert transport.reading
            transport.receive(chunk)
            assert not transport.reading
            await asyncio.sleep(0)
            assert transport.reading

    play(scenario)


def test_what_arrives_all_the_same_waits_behind_what_is_left(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.crowded = True
        for transport in (bench.agent, bench.server):
            bench.session.seen.clear()
            transport.receive(FLOOD)
            transport.receive(b"more")
            for _ in range(60):
                await asyncio.sleep(0)
            assert b"".join(bench.session.seen) == FLOOD + b"more"

    play(scenario)


def test_what_the_server_said_last_is_heard_before_its_end(play: Callable[..., None]) -> None:
    async def scenario(bench: Bench) -> None:
        bench.session.crowded = True
        bench.server.receive(FLOOD)
        bench.server.drop()
        await bench.settle()
        assert b"".join(bench.session.seen) == FLOOD + b"refuse"

    play(scenario)


def test_a_price_is_weighed_in_a_thread_while_the_loop_goes_on(play: Callable[..., None]) -> None:
    go_on = threading.Event()

    def weigh() -> Any:
        assert go_on.wait(30)
        return b"cheap"

    async def scenario(bench: Bench) -> None:
        bench.server.receive(b"plan")
        # The loop is here while the other thread still weighs.
        go_on.set()
        while len(bench.session.seen) < 2:
            await asyncio.sleep(0.001)
        assert bench.session.seen == [b"plan", b"weighed:cheap"]
        await bench.settle()
        assert bench.server.written == [b"statement"]

    play(scenario, script={b"plan": [Weigh(weigh)], b"weighed:cheap": [ToBackend(b"statement")]})
