"""What workers have in common: counts, configurations, one page. Real processes are in tests/e2e."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.model import ClassRow, Policy, RepairRules, RepairScope, StatementClass, Verdict
from proxy import crew as crew_module
from proxy import server as server_module
from proxy.agents import AgentConfig, Login, TrustLoopback
from proxy.channel import Channel, GoneError, OtherEndError, dumped
from proxy.cli import main
from proxy.config import Backend, Config, Listen, ServerLimits
from proxy.config_reading import read_config, unshared_repairs
from proxy.crew import Crew, Pauses
from proxy.dsn import CloneTarget
from proxy.handshake import RefusedError
from proxy.health import AuditState, Health, TurnedAway
from proxy.ledgers import LedgerStore
from proxy.listeners import Address, handed
from proxy.logs import Logs
from proxy.meters import Meters
from proxy.peers import Counts
from proxy.process import CrewError
from proxy.recent import Told
from proxy.reloads import NotTakenError
from proxy.server import Server
from proxy.totals import counted, facts_of, gauges_of
from proxy.wire import startup
from proxy.worker import AskedPeers, Figures
from tests.support.certificates import Certificates

READS: Final = Policy("reads", "reads.yaml", "0" * 64)
SCRIPT = Callable[[], Awaitable[None]]


def run(script: SCRIPT) -> None:
    asyncio.run(asyncio.wait_for(script(), 60))  # type: ignore[arg-type] - a coroutine function's


def config(policy: Policy = READS, workers: int = 2, store: str = "memory", **limits: int) -> Config:
    return Config(
        "test",
        Listen("127.0.0.1", 0),
        Backend("127.0.0.1", 1),
        MappingProxyType({"bot": AgentConfig("bot", TrustLoopback(), Login("ro"), None, policy)}),
        limits=ServerLimits(**limits),
        ledger=LedgerStore(store),
        workers=workers,
    )


# --- what two processes say to each other ---


class Pair:
    """Both ends of a channel. ``heard`` is what the one was told."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.held = asyncio.Event()
        self.one: Channel
        self.other: Channel

    async def open(self) -> None:
        ours, theirs = socket.socketpair()
        handlers: Mapping[str, Callable[..., Any]] = {
            "say": self.heard.append,
            "double": lambda value: value * 2,
            "wait": self.held.wait,
            "fail": lambda: 1 / 0,
            "fail later": self._fail,
        }
        self.one = await Channel.over(ours, handlers)
        self.other = await Channel.over(theirs, {})

    async def _fail(self) -> None:
        raise ValueError("no such thing")


def paired(use: Callable[[Pair], Awaitable[None]]) -> None:
    async def script() -> None:
        pair = Pair()
        await pair.open()
        try:
            await use(pair)
        finally:
            pair.one.close()
            pair.other.close()

    run(script)


def test_what_is_told_and_asked_arrives_in_its_order() -> None:
    async def use(pair: Pair) -> None:
        waiting = pair.other.ask("wait")
        for n in range(100):
            pair.other.tell("say", n)
        assert await pair.other.ask("double", "x" * 1_000_000) == "x" * 2_000_000
        assert pair.heard == list(range(100))
        assert not waiting.done()
        pair.held.set()
        assert await waiting is True

    paired(use)


@pytest.mark.parametrize(
    ("name", "said"), [("fail", "division by zero"), ("fail later", "no such thing"), ("unknown", "unknown")]
)
def test_what_fails_at_one_end_is_the_other_ends_to_deal_with(name: str, said: str) -> None:
    async def use(pair: Pair) -> None:
        pair.other.tell(name)
        with pytest.raises(OtherEndError, match=said):
            await pair.other.ask(name)
        assert await pair.other.ask("double", 2) == 4

    paired(use)


def test_nobody_waits_for_one_that_is_gone() -> None:
    async def use(pair: Pair) -> None:
        waiting = pair.other.ask("wait")
        pair.one.close()
        with pytest.raises(GoneError):
            await waiting
        with pytest.raises(GoneError):
            await pair.other.ask("double", 2)
        pair.other.tell("say", 1)
        await pair.other.gone.wait()

    paired(use)


def test_frames_arrive_in_any_pieces() -> None:
    async def use(pair: Pair) -> None:
        message = dumped((None, "say", ("whole",)))
        for byte in (struct.pack("!I", len(message)) + message) * 2:
            pair.one.data_received(bytes([byte]))
        assert pair.heard == ["whole", "whole"]

    paired(use)


def test_a_configuration_travels_whole(tmp_path: Path, certificates: Certificates) -> None:
    (tmp_path / "password").write_text("a password")
    (tmp_path / "policy.yaml").write_text(
        "version: 1\nname: tried\nstatements: {select: allow}\n"
        "sandbox: {dsn_env: CLONE, classes: [select]}\ncost: {max_rows: 10}\n"
    )
    text = (
        "version: 1\nbackend: {port: 1}\nworkers: 3\nagents:\n"
        "  bot: {auth: {password_file: password}, login: {user: ro, password_file: password}, "
        "policy: policy.yaml, networks: [10.0.0.0/8]}\n"
        "  other: {auth: {password_env: WORD}, login: {user: ro}, policy: policy.yaml}\n"
    )
    dsn = f"postgresql://ro:word@localhost/shop?sslmode=verify-full&sslrootcert={certificates.ca}"
    sent = read_config(text, "c.yaml", tmp_path, {"CLONE": dsn, "WORD": "another word"})
    taken: Config = pickle.loads(dumped(sent))
    assert taken.workers == 3
    assert taken.agents["other"].auth == sent.agents["other"].auth
    assert taken.agents["bot"].networks == sent.agents["bot"].networks
    assert [agent.policy for agent in taken.agents.values()] == [sent.agents["bot"].policy] * 2
    # The very same, so that the two share what is known of it.
    assert taken.agents["bot"].policy is taken.agents["other"].policy
    login = taken.agents["bot"].login
    assert login is not None
    assert login.password() == "a password"
    clone = taken.agents["bot"].clone
    assert isinstance(clone, CloneTarget)
    assert clone.tls is not None
    assert clone.tls.get_ca_certs() == sent.agents["bot"].clone.tls.get_ca_certs()  # type: ignore[union-attr]


# --- what is counted over all ---


class Workers:
    """The supervisor's side without processes, and what two workers ask it by."""

    def __init__(self, config: Config) -> None:
        self.crew = Crew(config, Logs(), list)
        self.channels: list[tuple[Channel, Channel]] = []
        self.peers: list[AskedPeers] = []

    async def open(self) -> None:
        for post in self.crew.posts:
            ours, theirs = socket.socketpair()
            above = await Channel.over(ours, self.crew._handlers(post))
            below = await Channel.over(theirs, {"holds": lambda pid, secret: False})
            post.channel, post.serving = above, True
            self.channels.append((above, below))
            self.peers.append(AskedPeers(below))


def shared(use: Callable[[Workers], Awaitable[None]], **limits: int) -> None:
    async def script() -> None:
        workers = Workers(config(**limits))
        await workers.open()
        try:
            await use(workers)
        finally:
            for pair in workers.channels:
                for end in pair:
                    end.close()

    run(script)


def test_places_are_taken_once_whoever_asks() -> None:
    async def use(workers: Workers) -> None:
        one, other = workers.peers
        taken = await asyncio.gather(*(peers.take_place("bot", 7) for peers in [one, other] * 10))
        assert sum(taken) == 7
        assert await other.take_place("another", 7)
        one.leave_place("bot")
        assert await one.take_place("bot", 7)
        assert not await other.take_place("bot", 7)
        # Its places are free as soon as a worker is gone.
        workers.crew._counts.forget(1)
        assert await other.take_place("bot", 7)

    shared(use)


STEPS: Final = st.lists(
    st.tuples(st.sampled_from(["take", "leave", "forget"]), st.integers(0, 2), st.sampled_from("ab")),
    max_size=60,
)


@given(STEPS, st.integers(1, 4))
def test_no_order_of_events_gives_more_places_than_there_are(
    steps: list[tuple[str, int, str]], most: int
) -> None:
    counts = Counts()
    held: list[tuple[int, str]] = []
    for what, process, agent in steps:
        if what == "take":
            free = sum(each[1] == agent for each in held) < most
            assert counts.take_place(process, agent, most) is free
            held += [(process, agent)] * free
        elif what == "forget":
            counts.forget(process)
            held = [each for each in held if each[0] != process]
        elif (process, agent) in held:
            counts.leave_place(process, agent)
            held.remove((process, agent))
    assert all(sum(each[1] == agent for each in held) <= most for agent in "ab")


def test_a_house_is_as_full_as_all_its_rooms() -> None:
    async def use(workers: Workers) -> None:
        one, other = workers.peers
        for peers in (one, other, other):
            peers.entered()
        assert not await other.crowded(3)
        one.entered()
        assert await other.crowded(3)
        assert await one.crowded(3)
        other.left()
        assert not await one.crowded(3)

    shared(use)


def test_a_place_that_nobody_waits_for_any_more_is_given_back() -> None:
    async def use(workers: Workers) -> None:
        one, other = workers.peers
        asking = asyncio.ensure_future(one.take_place("bot", 1))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        # The answer to this one comes after that, and so does what was given back.
        await one.crowded(1)
        assert await other.take_place("bot", 1)
        refused = asyncio.ensure_future(one.take_place("bot", 1))
        await asyncio.sleep(0)
        refused.cancel()
        await asyncio.wait({refused})
        await one.crowded(1)
        assert not await one.take_place("bot", 1), "a place that was not had cannot be given back"

    shared(use)


def test_failed_logins_are_counted_together() -> None:
    async def use(workers: Workers) -> None:
        waits = [await peers.begin_login("10.0.0.1", "bot") for peers in workers.peers * 53]
        # A hundred, and the connections that an agent may have at once.
        assert waits[:103] == [0.0] * 103
        assert waits[-1] > 0
        one, other = workers.peers
        assert await one.begin_login("10.0.0.1", "another") == 0
        before = await one.begin_login("10.0.0.2", "bot")
        other.login_over("10.0.0.2", "bot")
        assert before == await other.begin_login("10.0.0.2", "bot") == 0

    shared(use, connections_per_agent=3)


def test_wrong_cancel_requests_are_counted_together_and_reach_every_worker() -> None:
    async def use(workers: Workers) -> None:
        one, other = workers.peers
        for _ in range(25):
            assert not await one.cancel(7, b"bad!", "10.0.0.1")
            assert not await other.cancel(7, b"bad!", "10.0.0.1")
        cancelled: list[tuple[int, bytes]] = []

        async def cancel(pid: int, secret: bytes) -> None:
            cancelled.append((pid, secret))

        below = workers.channels[1][1]
        below._handlers = {"holds": lambda pid, secret: (pid, secret) == (7, b"good"), "cancel": cancel}
        assert not await one.cancel(7, b"good", "10.0.0.1"), "a source that guesses is not heard"
        assert await one.cancel(7, b"good", "10.0.0.2")
        assert await other.cancel(7, b"good", "10.0.0.2")
        assert cancelled == [(7, b"good")] * 2

    shared(use)


def test_without_a_supervisor_nobody_is_let_in() -> None:
    async def use(workers: Workers) -> None:
        one = workers.peers[0]
        workers.channels[0][0].close()
        for asked in (one.take_place("bot", 1), one.crowded(1), one.begin_login("10.0.0.1", "bot")):
            with pytest.raises(RefusedError) as refused:
                await asked
            assert refused.value.fields["sqlstate"] == "57P03"
        assert not await one.cancel(1, b"abcd", "10.0.0.1")

    shared(use)


# --- one configuration ---

REPAIRS: Final = {StatementClass.SELECT: ClassRow(Verdict.ALLOW, repair_once=True)}


@pytest.mark.parametrize(
    ("rules", "statements", "workers", "store", "refused"),
    [
        (RepairRules(scope=RepairScope.AGENT), REPAIRS, 2, "memory", True),
        (RepairRules(scope=RepairScope.APPLICATION), REPAIRS, 64, "memory", True),
        (RepairRules(scope=RepairScope.CONNECTION), REPAIRS, 2, "memory", False),
        (RepairRules(scope=RepairScope.AGENT), REPAIRS, 1, "memory", False),
        (RepairRules(scope=RepairScope.AGENT), REPAIRS, 2, "sqlite:/tmp/x", False),
        (RepairRules(scope=RepairScope.AGENT), REPAIRS, 2, "redis://127.0.0.1:6379/0", False),
        (RepairRules(scope=RepairScope.AGENT, turns=0), REPAIRS, 2, "memory", False),
        (RepairRules(scope=RepairScope.AGENT), {}, 2, "memory", False),
    ],
)
def test_turns_that_each_worker_would_count_by_itself(
    rules: RepairRules, statements: Any, workers: int, store: str, refused: bool
) -> None:
    policy = Policy("counting", "c.yaml", "0" * 64, repair=rules, statements=statements)
    why_not = unshared_repairs(config(policy, store=store), workers)
    assert (why_not is not None) is refused
    if why_not is not None:
        assert "policy counting" in why_not
        assert "sqlite:PATH or redis://" in why_not


def test_a_reload_asks_for_what_runs_and_not_for_what_the_file_says() -> None:
    async def use(workers: Workers) -> None:
        policy = Policy("counting", "c.yaml", "0" * 64, statements=REPAIRS)
        before = workers.crew.config
        with pytest.raises(NotTakenError, match="policy counting counts repairs"):
            await workers.crew.take(config(policy, workers=1))
        assert workers.crew.config is before

    shared(use)


@pytest.mark.parametrize("fails", [True, False])
def test_a_configuration_is_every_workers_or_none(fails: bool) -> None:
    async def use(workers: Workers) -> None:
        serving: dict[int, list[Config]] = {0: [], 1: []}
        ready: dict[int, Config] = {}

        def handlers(n: int) -> dict[str, Callable[..., Any]]:
            def prepare(config: Config) -> None:
                if fails and n == 1:
                    raise OSError("no certificate there")
                ready[n] = config

            return {"prepare": prepare, "commit": lambda: serving[n].append(ready.pop(n))}

        for n, (_, below) in enumerate(workers.channels):
            below._handlers = handlers(n)
        before, after = workers.crew.config, config(connections=7)
        if fails:
            with pytest.raises(NotTakenError, match="worker 2: no certificate there"):
                await workers.crew.take(after)
        else:
            await workers.crew.take(after)
        assert workers.crew.config is (before if fails else after)
        assert {n: len(taken) for n, taken in serving.items()} == ({0: 0, 1: 0} if fails else {0: 1, 1: 1})
        assert all(taken.limits.connections == 7 for each in serving.values() for taken in each)

    shared(use)


# --- one page ---


AWAY = TurnedAway("shop_ro", "shop")


def figures(
    agent: str, decisions: int, audit: AuditState | None = None, turned_away: TurnedAway | None = None
) -> Figures:
    meters = Meters()
    meters.know([agent])
    meters.of(agent).decisions["select", "allow", ""] = decisions
    meters.of(agent).statement_s.observe(0.3)
    meters.gate.lookups.exact = decisions
    meters.gate.judged(0.2)
    meters.refused["53300"] += 1
    meters.repairs["unknown-column", "repaired"] += 2
    meters.backend_failures = 1
    made = Figures(meters, {agent: 2}, {"shop": audit is None}, audit, turned_away)
    taken: Figures = pickle.loads(dumped(made))
    return taken


def test_figures_add_up_and_what_a_worker_counted_outlives_it() -> None:
    async def use(workers: Workers) -> None:
        crew = workers.crew
        one, other = crew.posts
        one.figures, other.figures = figures("bot", 3), figures("bot", 4)
        total = counted(crew)
        assert total.of("bot").decisions == {("select", "allow", ""): 7}
        assert (total.of("bot").statement_s.total, sum(total.gate.judged_s.counts)) == (0.6, 2)
        assert (total.gate.lookups.exact, total.refused["53300"], total.backend_failures) == (7, 2, 2)
        assert total.repairs["unknown-column", "repaired"] == 4
        crew.departed.add(one.figures.meters)
        one.figures = None
        assert counted(crew).of("bot").decisions == {("select", "allow", ""): 7}
        assert gauges_of(crew, None).connections == {"bot": 2}

    shared(use)


def test_a_worker_that_cannot_tell_is_shown_as_it_was() -> None:
    async def use(workers: Workers) -> None:
        crew = workers.crew
        one, other = workers.channels
        one[1]._handlers = {"figures": lambda: 1 / 0, "decisions": lambda limit: 1 / 0}
        other[1]._handlers = {
            "figures": lambda: figures("bot", 4),
            "decisions": lambda limit: [Told(2.0, "later"), Told(1.0, "sooner")],
        }
        crew.posts[0].figures = figures("bot", 3)
        await crew.look()
        assert counted(crew).of("bot").decisions == {("select", "allow", ""): 7}
        assert await crew.decisions(10) == ["later", "sooner"]
        one[1]._handlers = {"decisions": lambda limit: [Told(3.0, "last"), Told(1.5, "between")]}
        assert await crew.decisions(3) == ["last", "later", "between"]
        other[0].close()
        assert await crew.decisions(3) == ["last", "between"]

    shared(use)


FAILING: Final = AuditState("No space left on device", True, 10, 1)
FINE: Final = AuditState(None, True, 5, 0)


@pytest.mark.parametrize(
    ("states", "serving", "problems"),
    [
        ((FINE, FINE), 2, []),
        ((FINE, FINE), 1, []),
        ((FINE, FINE), 0, ["no worker serves"]),
        ((FINE, FAILING), 2, ["audit: No space left on device"]),
        ((None, None), 2, []),
    ],
)
def test_the_proxy_is_ready_while_one_worker_serves(
    states: tuple[AuditState | None, ...], serving: int, problems: list[str]
) -> None:
    async def use(workers: Workers) -> None:
        crew, asked = workers.crew, list[TurnedAway | None]()
        for n, (post, state) in enumerate(zip(crew.posts, states, strict=True)):
            post.figures, post.serving = figures("bot", 1, state, AWAY if n else None), n < serving

        async def facts() -> Any:
            return facts_of(crew, None)

        async def reach(_endpoint: object, turned_away: TurnedAway | None) -> None:
            asked.append(turned_away)

        found = await Health(facts, lambda: crew.endpoint, reach=reach).readiness()
        assert asked == [AWAY]
        assert list(found.problems) == problems
        assert found.detail["workers"] == {"serving": serving, "of": 2}
        gauges = gauges_of(crew, None)
        if states[0] is not None and states[1] is not None:
            assert gauges.audit_waiting_bytes == states[0].waiting + states[1].waiting

    shared(use)


# --- processes ---


@pytest.mark.parametrize(
    ("served_s", "pauses_s"),
    [
        ([1000.0, 1000.0, 1000.0], [0, 0, 0]),
        ([0.0] * 9, [0, 1, 2, 4, 8, 16, 30, 30, 30]),
        ([0.0, 0.0, 11.0, 0.0, 0.0], [0, 1, 0, 1, 2]),
    ],
)
def test_one_that_keeps_dying_is_waited_with(served_s: list[float], pauses_s: list[float]) -> None:
    pauses = Pauses()
    assert [pauses.after(each) for each in served_s] == pauses_s


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_every_process_has_a_socket_of_its_own_at_one_port(host: str, sockets: list[socket.socket]) -> None:
    try:
        address = Address(host, 0)
        sockets += address.bind()
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    sockets += address.bind()
    assert len({each.getsockname()[1] for each in sockets}) == 1
    for each in sockets:
        each.listen()
    # Not one that does not share, and no one but who asks to.
    with pytest.raises(OSError, match="Address already in use"):
        sockets.append(socket.create_server(sockets[0].getsockname()[:2], family=sockets[0].family))


def test_a_socket_that_was_handed_over_is_everybodys(sockets: list[socket.socket]) -> None:
    sockets.append(socket.create_server(("127.0.0.1", 0)))
    bind = handed(sockets[0])
    sockets += [*bind(), *bind()]
    assert len({each.getsockname() for each in sockets}) == 1


@pytest.mark.parametrize("own", [True, False])
def test_who_has_connected_is_not_cut_off_by_the_end(
    monkeypatch: pytest.MonkeyPatch, sockets: list[socket.socket], own: bool
) -> None:
    """It is let in where nobody else would be, and left where others listen at the same socket."""
    monkeypatch.setattr(server_module, "_SHAKING_S", 0.1)
    if own:
        sockets += Address("127.0.0.1", 0).bind()
    else:
        sockets.append(socket.create_server(("127.0.0.1", 0)))
    sockets.append(sockets[0].dup())

    async def script() -> None:
        server = Server(config())
        _, port = await server.start(sockets[1:])
        # The loop does not turn meanwhile: the kernel alone has accepted it.
        sockets.append(socket.create_connection(("127.0.0.1", port)))
        sockets[-1].sendall(startup.encode_ssl_request())
        await server.hand_over(5)

    run(script)
    sockets[-1].settimeout(10)
    if own:
        # The handshake has begun, and is told that it goes no further.
        assert sockets[-1].recv(1) == b"N"
        assert b"C57P03\0" in sockets[-1].recv(1000)
    else:
        accepted, _ = sockets[0].accept()
        sockets.append(accepted)
        assert accepted.recv(8) == startup.encode_ssl_request()


def test_an_audit_file_that_cannot_be_opened_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text("version: 1\nname: reads\nstatements: {select: allow}\n")
    (tmp_path / "c.yaml").write_text(
        "version: 1\nworkers: 2\nbackend: {port: 1}\naudit: {path: no/such/folder/audit.jsonl}\n"
        "agents: {bot: {auth: {trust: loopback}, login: {user: ro}, policy: p.yaml}}\n"
    )
    assert main(["serve", "--config", str(tmp_path / "c.yaml")]) == 2
    told = capsys.readouterr().err
    assert told.count("pgturnstile: The audit file ") == 1
    assert "audit.jsonl cannot be opened: No such file or directory." in told


TELL: Final = """
import pickle, socket, struct, sys
end = socket.socket(fileno=int(sys.argv[1]))
def tell(*message):
    body = pickle.dumps((None, *message))
    end.sendall(struct.pack("!I", len(body)) + body)
"""
SERVES: Final = "tell('serving', ('127.0.0.1', 7))\n"
UNTIL_TOLD: Final = "while b'stop' not in end.recv(65536): pass\n"


def manned(
    monkeypatch: pytest.MonkeyPatch, program: str, use: Callable[[Crew], Awaitable[None]], workers: int = 2
) -> None:
    """``use`` a crew whose workers run ``program``; what it leaves is ended."""
    monkeypatch.setattr(crew_module, "_PROGRAM", TELL + program)

    async def script() -> None:
        crew = Crew(config(workers=workers), Logs(), list)
        try:
            await use(crew)
        finally:
            crew.stop()
            crew.kill()
            with contextlib.suppress(CrewError):
                await crew.wait(20)
            assert crew.pids == []

    run(script)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("sys.exit(3)", r"Worker [12] ended with exit code 3\."),
        ("tell('failed', ('no certificate there',)); sys.exit(1)", "cannot start: no certificate there"),
        ("end.close(); sys.exit(0)", r"Worker [12] ended with exit code 0\."),
    ],
)
def test_a_crew_that_cannot_serve_says_so_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    async def use(crew: Crew) -> None:
        with pytest.raises(CrewError, match=said):
            await crew.start()
        assert crew.pids == []
        assert all(post.process is not None for post in crew.posts)

    manned(monkeypatch, program, use)


def test_a_worker_that_dies_has_a_successor_and_one_that_serves_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use(crew: Crew) -> None:
        assert await crew.start() == ("127.0.0.1", 7)
        assert all(post.serving for post in crew.posts)
        one, other = crew.pids
        crew.posts[0].kill()
        while len(crew.pids) < 2 or one in crew.pids or not crew.posts[0].serving:
            await asyncio.sleep(0.01)
        assert other in crew.pids
        assert crew.restarts == 1
        # It is given the configuration that is in force, and has nothing of its predecessor's.
        assert crew.posts[0].config is crew.config
        crew.stop()
        assert await crew.wait(20)
        assert crew.pids == []

    manned(monkeypatch, SERVES + UNTIL_TOLD, use)


def test_a_worker_that_was_started_by_an_old_configuration_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A reload that came while it was starting: it is no death, and not waited with."""

    async def use(crew: Crew) -> None:
        starting = asyncio.ensure_future(crew.start())
        while crew.posts[0].config is None or not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        [old] = crew.pids
        after = config(connections=7, workers=1)
        await crew.take(after)
        await starting
        assert old not in crew.pids
        assert (crew.posts[0].config is after, crew.restarts) == (True, 0)

    # The first one never comes to serve.
    begun = f"import os, time\nfirst = not os.path.exists({str(tmp_path / 'begun')!r})\n"
    waits = f"open({str(tmp_path / 'begun')!r}, 'w').close()\nif first: time.sleep(60)\n"
    manned(monkeypatch, begun + waits + SERVES + UNTIL_TOLD, use, workers=1)


def test_a_worker_that_does_not_end_in_good_order_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(crew: Crew) -> None:
        await crew.start()
        crew.stop()
        with pytest.raises(CrewError, match=r"Worker 1 ended with exit code 1\."):
            await crew.wait(20)

    manned(monkeypatch, SERVES + UNTIL_TOLD + "sys.exit(1)", use, workers=1)


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_a_worker_that_is_stuck_is_killed(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    """One that answers the second time was stopped, with all others, or busy."""

    async def use(crew: Crew) -> None:
        await crew.start()
        [worker] = crew.pids
        asked = 0

        def ask(name: str) -> asyncio.Future[None]:
            nonlocal asked
            asked += 1
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if asked >= answers > 0:
                answer.set_result(None)
            return answer

        assert crew.posts[0].channel is not None
        monkeypatch.setattr(crew.posts[0].channel, "ask", ask)
        await crew.end_the_stuck(0.02)
        assert asked == (answers or 2)
        if answers:
            assert crew.pids == [worker]
        while not answers and worker in crew.pids:
            await asyncio.sleep(0.01)

    manned(monkeypatch, SERVES + UNTIL_TOLD, use, workers=1)
