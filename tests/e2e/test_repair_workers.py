"""Fifty workers of one agent on the same tables at once: each has its turn, and no look around costs one."""

from __future__ import annotations

import json
import random
import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from policy.model import Halt
from tests.e2e.test_repairs import REPAIRING, Agent, ran, told
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy, wait_for

WORKERS = 50
BINS = """
CREATE TABLE bins (id int PRIMARY KEY, site text NOT NULL, on_hand int CHECK (on_hand < 100), note text);
INSERT INTO bins SELECT n, 'site ' || n % 3, 0, NULL FROM generate_series(1, 50) n;
CREATE TABLE notes (bin int, body text);
GRANT ALL ON bins, notes TO shop_app;
"""
READING = REPAIRING.replace("select: allow", "select: {decide: allow, repair: once}").replace(
    "name: repairing", "name: worker"
)
POLICIES = {
    "worker": READING,
    "group": READING.replace("name: worker", "name: group").replace("scope: application", "scope: agent"),
}

LOOKS = (
    "SELECT * FROM bins LIMIT 5",
    "SELECT * FROM bins WHERE id = {n}",
    "SELECT site, note FROM bins WHERE id = {n}",
    "SELECT count(*) FROM bins",
    "SELECT DISTINCT site FROM bins",
    "SELECT min(on_hand), max(on_hand) FROM bins WHERE site = 'site {site}'",
    "SELECT b.id, n.body FROM bins b LEFT JOIN notes n ON n.bin = b.id WHERE b.id = {n}",
    "SELECT column_name FROM information_schema.columns WHERE table_name = 'bins'",
    "EXPLAIN UPDATE bins SET on_hand = {n} WHERE id = {n} AND site = 'site {site}'",
    "INSERT INTO notes (bin, body) VALUES ({n}, 'looked')",
    "SHOW search_path",
)
WRONG = "UPDATE bins SET onhand = {n} WHERE id = {n} AND site = 'site {site}'"
RIGHT = WRONG.replace("onhand", "on_hand")
WIDER = RIGHT.replace("id = {n}", "id >= {n}")
ASKED = "SELECT b.id, b.onhand FROM bins b WHERE b.id = {n} AND b.site = 'site {site}'"
TOLD = ASKED.replace("onhand", "on_hand")


@pytest.fixture(scope="module")
def proxy(postgres15: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("workers")
    limits = {"connections_per_agent": 2 * WORKERS}
    audit = {"path": "audit.jsonl"}
    with postgres15.database() as database:
        database.execute(BINS)
        with run_proxy(database, folder, POLICIES, audit=audit, limits=limits) as running:
            yield running


class Worker:
    """One connection that is refused, looks around and answers, one time in two by something wider."""

    def __init__(self, proxy: RunningProxy, name: str, application: str, number: int) -> None:
        self.agent = Agent(proxy, application, name=name)
        self.number = number
        self.honest = number % 2 == 0
        self.chance = random.Random(number)

    def send(self, text: str, number: int | None = None) -> Any:
        n = number or self.number
        return self.agent.send(text.format(n=n, site=n % 3), self.chance.random() < 0.5)

    def look(self) -> None:
        for text in self.chance.sample(LOOKS, 2):
            assert ran(self.send(text)), text

    def work(self) -> None:
        for wrong in (WRONG, ASKED):
            refused = told(self.send(wrong))
            assert (refused["rule"], refused["repair"]["turns_left"]) == ("unknown-column", 1)
            self.look()
        assert ran(self.send(TOLD))
        self.look()
        if self.honest:
            assert ran(self.send(RIGHT))
            return
        wider = told(self.send(WIDER))
        assert wider["halt"] == Halt.PREDICATE_WEAKENED
        self.look()

    def gain_a_turn(self) -> None:
        """On its own connection, and for the row of a worker whose turn is spent as well."""
        for number in (self.number, self.number % WORKERS + 1):
            answer = told(self.send(RIGHT, number))
            # A repair that passed leaves nothing open: the same again is a statement of its own.
            spent = not self.honest or number % 2 == 1
            assert answer.get("halt") == (Halt.REPAIR_BUDGET_EXHAUSTED if spent else None), number


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_each_has_its_turn_and_no_look_is_taken_for_one(proxy: RunningProxy, name: str) -> None:
    application = secrets.token_hex(8)
    proxy.database.execute("UPDATE bins SET on_hand = 0")
    with ThreadPoolExecutor(WORKERS) as pool:
        workers = list(pool.map(lambda n: Worker(proxy, name, application, n + 1), range(WORKERS)))
        try:
            list(pool.map(Worker.work, workers))
            # One after the other, so that what one repairs is not open at the next.
            for worker in workers[:6]:
                worker.gain_a_turn()
        finally:
            for worker in workers:
                worker.agent.close()
    honest = [(n, n) for n in range(1, WORKERS + 1) if n % 2 == 0]
    assert proxy.database.execute("SELECT id, on_hand FROM bins WHERE on_hand > 0 ORDER BY id") == honest

    def closed() -> list[dict[str, Any]]:
        # Whole lines alone: the writer may be at work on the next.
        text = (proxy.folder / "audit.jsonl").read_text("ascii").rpartition("\n")[0]
        return [line for line in map(json.loads, text.splitlines()) if line.get("agent") == name]

    wait_for(lambda: sum("event" in line for line in closed()) == 2 * WORKERS)
    lines = closed()
    ends = Counter((line["class"], line["outcome"]) for line in lines if "event" in line)
    half = WORKERS // 2
    assert ends == {("select", "repaired"): WORKERS, ("update", "repaired"): half, ("update", "halted"): half}
    answers = Counter(
        (line["class"], line["repair"]["halt"])
        for line in lines
        if "repair" in line and line["repair"]["turn"] == 1
    )
    weakened = "predicate_weakened"
    assert answers == {("select", None): WORKERS, ("update", None): half, ("update", weakened): half}
