"""Who judges away from the event loop: what large texts cost others, and what ends them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from policy import loader
from policy.catalog_names import SessionNames
from policy.decision import Allow, Reject
from policy.names import PathNames
from proxy import judge, judges
from proxy.gate import Gate
from proxy.judge import TIRED_KIB, Asked, Shared
from proxy.judges import LARGE, PROCESSES, Judges
from proxy.ruling import Ruling
from tests.policy.rules.schema import CATALOG, WRITER, names

POLICY = loader.load(WRITER, "writer.yaml")
PAD = " " * LARGE
ENDLESS = "SELECT 1 FROM orders WHERE " + " OR ".join(f"id = {n}" for n in range(60_000))


def gate(agent: str = "agent") -> Gate:
    return Gate(POLICY, agent, 1 << 20)


def play(scenario: Callable[[Judges], Awaitable[None]], seconds: float = 30.0) -> None:
    async def main() -> None:
        bench = Judges(seconds)
        try:
            await scenario(bench)
        finally:
            bench.close()
        assert not any(worker.alive for worker in bench.workers)

    asyncio.run(main())


STATEMENTS = [
    "SELECT id, total FROM orders WHERE id IN (1, 2, 3)",
    "SELECT o.*, c.name FROM orders o JOIN customers c ON c.id = o.customer_id ORDER BY 1 LIMIT 5",
    "WITH q AS (SELECT count(*) AS n FROM orders GROUP BY customer_id) SELECT max(n) FROM q",
    "DELETE FROM orders",
    "DELETE FROM orders WHERE id = 1",
    "SELECT pg_sleep(1), no_such_function(1), no_such_column FROM orders",
    "INSERT INTO orders (id) VALUES (1)",
    "SELEC 1",
    "SELECT 1; DROP TABLE orders",
    "COPY orders TO STDOUT",
    "PREPARE p AS SELECT 1",
    "SET search_path = public",
    "SELECT U&'\\0441', '😀'",
    "",
]


@pytest.mark.parametrize("known", [names("public"), PathNames((("public",),))], ids=["catalog", "paths"])
@pytest.mark.parametrize("sql", STATEMENTS)
def test_a_process_decides_as_a_thread_does(sql: str, known: SessionNames) -> None:
    """Through both pipes and back, without a process between."""
    text = sql.encode()
    ours, theirs = Shared(), Shared()
    asked = _carried(ours, theirs, Asked(POLICY, "agent", text, 1 << 20, known, 1.0))
    assert asked.names == known
    judged = _carried(theirs, ours, judge.judge(asked))
    assert judged.decision == gate().rule_slowly(text, known).decision
    assert judged.question == gate().rule_slowly(text, known).question
    assert len(ours) == len(theirs)


def _carried(sender: Shared, taker: Shared, message: object) -> object:
    sent = sender.dump(message)

    def read(size: int) -> bytes:
        nonlocal sent
        part, sent = sent[:size], sent[size:]
        return part

    found = taker.load(read)
    assert sent == b""
    return found


def test_policies_and_catalogs_travel_once() -> None:
    ours, theirs = Shared(), Shared()
    asked = Asked(POLICY, "agent", b"SELECT 1", 1 << 20, names("public"), 1.0)
    first = len(ours.dump(asked))
    assert len(ours.dump(asked)) < first / 10
    assert len(ours) == 2
    assert names("public").catalog is CATALOG
    assert len(theirs) == 0


def test_where_no_process_can_be_started_the_statement_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Judges) -> None:
        with monkeypatch.context() as full:
            full.setattr(judges.sys, "executable", "/no/such/program")
            refused = await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))
        assert isinstance(refused.decision, Reject)
        assert "no process can be started to judge it" in refused.decision.violations[0].message
        assert isinstance(
            (await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))).decision, Allow
        )

    play(scenario)


@pytest.mark.parametrize("unlike", [TypeError, AttributeError, ImportError, pickle.UnpicklingError])
def test_an_answer_of_another_version_refuses_its_statement_and_ends_its_worker(
    monkeypatch: pytest.MonkeyPatch, unlike: type[Exception]
) -> None:
    def load(_shared: Shared, read: Callable[[int], bytes]) -> object:
        read(1)
        raise unlike("no such thing here")

    async def scenario(bench: Judges) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Shared, "load", load)
            refused = await bench.rule(gate(), f"SELECT 1{PAD}".encode(), PathNames())
        assert isinstance(refused.decision, Reject)
        assert "another version" in refused.decision.violations[0].message
        assert not bench.workers
        assert (await bench.rule(gate(), f"SELECT 1{PAD}".encode(), PathNames())).allowed

    play(scenario)


def test_a_large_text_is_judged_by_a_process_that_is_used_again() -> None:
    async def scenario(bench: Judges) -> None:
        for _ in range(2):
            refused = await bench.rule(gate(), ("DELETE FROM orders" + PAD).encode(), names("public"))
            assert isinstance(refused.decision, Reject)
            assert refused.decision.violations[0].rule == "delete-without-where"
            allowed = await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))
            assert isinstance(allowed.decision, Allow)
            assert len(bench.workers) == 1

    play(scenario)


def test_a_small_text_needs_no_process() -> None:
    async def scenario(bench: Judges) -> None:
        assert (await bench.rule(gate(), b"SELECT 1", names("public"))).allowed
        assert not bench.workers

    play(scenario)


def test_what_the_parent_holds_does_not_tire_a_worker() -> None:
    async def scenario(bench: Judges) -> None:
        ballast = bytearray(2 * TIRED_KIB * 1024)
        ballast[::4096] = b"x" * len(ballast[::4096])
        await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))
        assert len(bench.workers) == 1

    play(scenario)


def test_what_takes_too_long_is_refused_and_ends_its_worker_alone() -> None:
    async def scenario(bench: Judges) -> None:
        await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))
        [worker] = bench.workers
        bench.seconds = 0.05
        refused = await bench.rule(gate(), ENDLESS.encode(), names("public"))
        _assert_unjudged(refused, "longer than 0.05 s")
        assert not worker.alive
        bench.seconds = 30.0
        assert (await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))).allowed

    play(scenario)


def test_a_worker_that_dies_refuses_its_statement_and_no_other() -> None:
    async def scenario(bench: Judges) -> None:
        await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))
        [worker] = bench.workers
        os.kill(worker.pid, signal.SIGKILL)
        _assert_unjudged(await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public")), "failed")
        assert (await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))).allowed

    play(scenario)


def _assert_unjudged(ruling: Ruling, why: str) -> None:
    assert isinstance(ruling.decision, Reject)
    [violation] = ruling.decision.violations
    assert violation.rule == "not-understood"
    assert violation.sqlstate == "54001"
    assert why in violation.message


def test_one_agent_does_not_take_every_worker() -> None:
    """However many large statements it sends: another's is judged while the first of them still are."""

    async def scenario(bench: Judges) -> None:
        greedy = gate("greedy")
        flood = [
            asyncio.create_task(bench.rule(greedy, ENDLESS.encode(), names("public")))
            for _ in range(4 * PROCESSES)
        ]
        await asyncio.sleep(0)
        allowed = await bench.rule(gate("modest"), ("SELECT 1" + PAD).encode(), names("public"))
        assert allowed.allowed
        assert sum(task.done() for task in flood) <= 1
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)

    play(scenario)


def test_the_judges_can_be_closed_while_they_judge() -> None:
    async def main() -> None:
        bench = Judges(30.0)
        task = asyncio.create_task(bench.rule(gate(), ENDLESS.encode(), names("public")))
        while not bench.workers:
            await asyncio.sleep(0.01)
        before = time.monotonic()
        bench.close()
        assert time.monotonic() - before < 20
        _assert_unjudged(await task, "failed")
        _assert_unjudged(await bench.rule(gate(), ENDLESS.encode(), names("public")), "shutting down")

    asyncio.run(main())


def test_a_worker_has_none_of_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hush")

    async def scenario(bench: Judges) -> None:
        await bench.rule(gate(), ("SELECT 1" + PAD).encode(), names("public"))
        [worker] = bench.workers
        with open(f"/proc/{worker.pid}/environ", "rb") as environment:  # noqa: PTH123
            assert b"hush" not in environment.read()

    play(scenario)


def test_there_is_a_worker_for_whoever_did_not_take_the_first() -> None:
    assert judges.PROCESSES >= 2
