"""What takes too long: whose time counts, and what becomes of a question that is answered late."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from policy.loader import load
from proxy.conversation import Identity
from proxy.effects import CancelRunning, Effect, ToBackend, ToFrontend
from proxy.gate import Gate
from proxy.session import Session
from proxy.wire import backend as wire
from tests.proxy.test_session import (
    BOUND,
    CLOSED,
    DESCRIPTION,
    FLUSH,
    PARSED,
    SYNC,
    bind,
    complete,
    cut,
    error,
    execute,
    parse,
    query,
    ready,
    row,
)

POLICY = """
version: 1
name: watched
access: read_write
statements: {select: allow, copy_in: allow, insert: allow, transaction: allow}
relations: {allow: ["public.*"]}
functions: {allow: [builtin-safe]}
rules: {unbounded-select: "off"}
"""
TIMED = POLICY + "limits: {statement_timeout: 10s}\n"
PRICED = POLICY + "cost: {max_total_cost: 100}\n"
READ = "SELECT id FROM orders"
PLAN = row(
    b'[{"Plan": {"Node Type": "Result", "Startup Cost": 0, "Total Cost": 1, "Plan Rows": 1,'
    b' "Plan Width": 4}}]'
)


class Bench:
    """A session with a clock of its own."""

    def __init__(self, policy: str) -> None:
        self.now = 100.0
        self.to_backend = self.to_frontend = b""
        self.cancels = 0
        self.session = Session(
            Gate(load(policy, "watched.yaml"), "agent", 1 << 20),
            Identity("c1", "shop"),
            ("public",),
            nonce="nonce",
            clock=lambda: self.now,
            message_bytes=1 << 20,
        )

    def take(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ToBackend):
                self.to_backend += effect.data
            elif isinstance(effect, ToFrontend):
                self.to_frontend += effect.data
            self.cancels += isinstance(effect, CancelRunning)

    def agent(self, data: bytes) -> None:
        self.take(self.session.from_frontend(data))

    def server(self, data: bytes) -> None:
        self.take(self.session.from_backend(data))

    def wait(self, seconds: float, *, flowing: bool = True) -> None:
        """Pass the time, looking on as the relay does."""
        for _ in range(round(seconds * 4)):
            self.take(self.session.look(flowing=flowing))
            self.now += 0.25
        self.take(self.session.look(flowing=flowing))

    def told(self) -> list[tuple[str, str]]:
        """Of each error: its SQLSTATE and its rule, or what PostgreSQL's routine would be."""
        fields = [wire.decode_fields(body) for kind, body in cut(self.to_frontend) if kind == "E"]
        return [(said["sqlstate"], said.get("routine", "")) for said in fields]


@pytest.mark.parametrize(("policy", "watched"), [(POLICY, False), (TIMED, True), (PRICED, True)])
def test_what_has_no_limit_is_not_watched(policy: str, watched: bool) -> None:
    assert Bench(policy).session.watched is watched
    assert not Bench(policy + "mode: observe\n").session.watched


def test_a_statement_is_cancelled_once_past_its_timeout_by_a_margin() -> None:
    bench = Bench(TIMED)
    bench.agent(query(READ) + query("SELECT 1"))
    bench.wait(11.75)
    assert bench.cancels == 0
    bench.wait(20)
    assert bench.cancels == 1
    bench.take(bench.session.cancelled())
    bench.wait(20)
    assert bench.cancels == 1
    assert not bench.session.closed
    bench.server(error("57014") + ready())
    assert bench.to_frontend == error("57014") + ready()
    bench.wait(13)
    assert bench.cancels == 2


@pytest.mark.parametrize("policy", [TIMED, PRICED])
def test_a_server_that_does_not_answer_a_cancel_either_is_given_up(policy: str) -> None:
    """Gone without a word, perhaps: nobody waits for it as long as TCP would."""
    bench = Bench(policy)
    bench.agent(query(READ))
    bench.wait(20)
    assert bench.cancels == 1
    bench.wait(100)
    assert not bench.session.closed  # the cancel request itself is still under way
    bench.take(bench.session.cancelled())
    bench.wait(100)
    assert bench.session.closed
    assert bench.told() == [("08006", "")]


def test_time_in_which_the_server_waits_for_the_agent_does_not_count() -> None:
    bench = Bench(TIMED)
    bench.agent(query("COPY orders FROM STDIN"))
    bench.server(b"G\0\0\0\x07\0\0\0")
    bench.wait(30)
    assert bench.cancels == 0
    slow = Bench(TIMED)
    slow.agent(query(READ))
    slow.wait(30, flowing=False)
    assert slow.cancels == 0
    slow.wait(13)
    assert slow.cancels == 1


def test_an_idle_session_is_left_alone() -> None:
    bench = Bench(TIMED)
    bench.wait(30)
    bench.agent(parse(READ))  # without Flush or Sync: the server has answered, and keeps it
    bench.wait(30)
    assert bench.cancels == 0


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_a_query_that_is_not_planned_in_time_is_refused(cancelled_first: bool) -> None:
    bench = Bench(PRICED)
    bench.agent(query(READ) + query("SELECT 1"))
    bench.wait(0.75)
    assert bench.cancels == 0
    bench.wait(0.5)
    assert bench.cancels == 1
    if cancelled_first:
        bench.take(bench.session.cancelled())
    bench.server(PARSED + BOUND + error("57014") + ready("E"))
    bench.server(CLOSED + ready("E"))
    assert (bench.told(), bench.to_frontend[-6:]) == ([("54001", "unpriceable")], ready("E"))
    assert (query("SELECT 1") in bench.to_backend) is cancelled_first
    bench.take(bench.session.cancelled())
    assert query("SELECT 1") in bench.to_backend
    assert query(READ) not in bench.to_backend


def test_a_plan_that_comes_late_lets_nothing_pass() -> None:
    bench = Bench(PRICED)
    bench.agent(query(READ))
    bench.wait(1.25)
    bench.server(PARSED + BOUND + PLAN + complete("EXPLAIN") + ready())
    bench.take(bench.session.cancelled())
    assert bench.to_backend.endswith(query("pgturnstile_refused_nonce"))
    bench.server(error("42601") + ready())
    assert bench.told() == [("54001", "unpriceable")]
    assert query(READ) not in bench.to_backend


def test_a_bind_that_is_not_planned_in_time_is_refused_with_its_segment() -> None:
    bench = Bench(PRICED)
    bench.agent(parse(READ) + bind() + execute() + SYNC)
    bench.wait(1.25)
    assert bench.cancels == 1
    bench.server(PARSED + CLOSED + PARSED + BOUND + error("57014"))
    bench.take(bench.session.cancelled())
    assert bench.to_backend.endswith(FLUSH + SYNC)
    bench.server(ready())
    assert bench.told() == [("54001", "unpriceable")]


def test_an_error_of_its_own_is_the_statements_even_when_late() -> None:
    bench = Bench(PRICED)
    bench.agent(query(READ))
    bench.wait(1.25)
    bench.server(PARSED + error("42P01") + ready())
    assert bench.told() == [("42P01", "")]


def test_planning_is_timed_from_its_turn() -> None:
    bench = Bench(PRICED)
    bench.agent(query("SELECT 1 FROM orders"))
    bench.server(PARSED + BOUND + PLAN + complete("EXPLAIN") + ready())
    bench.agent(query(READ))
    bench.wait(5)
    assert bench.cancels == 0
    bench.server(DESCRIPTION + complete("SELECT 0") + ready())
    bench.wait(1.25)
    assert bench.cancels == 1
