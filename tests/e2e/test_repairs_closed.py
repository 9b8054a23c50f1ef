"""How repairs ended, in the audit file: one line each, whichever process ended it and whatever the driver."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_repairs import REPAIRING, Agent, both, ran
from tests.support.postgres import Database, Server
from tests.support.proxy import RunningProxy, run_proxy, wait_for

WRONG = "UPDATE products SET stok = 5 WHERE id = 3 AND sku = 'TEA-003'"
RIGHT = WRONG.replace("stok", "stock")
POLICIES = {"repairing": REPAIRING, "hasty": REPAIRING.replace("window: 10m", "window: 1s")}


def endings(*proxies: RunningProxy) -> list[dict[str, Any]]:
    """The lines without a decision."""
    texts = [(proxy.folder / "audit.jsonl").read_text("ascii") for proxy in proxies]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return [line for line in lines if "event" in line]


@pytest.fixture(scope="module")
def database(postgres: Server) -> Iterator[Database]:
    with postgres.database() as database:
        yield database


@pytest.fixture
def proxy(database: Database, tmp_path: Path) -> Iterator[RunningProxy]:
    with run_proxy(database, tmp_path, POLICIES, audit={"path": "audit.jsonl"}) as running:
        yield running


@both
def test_each_ending_is_one_line(proxy: RunningProxy, extended: bool) -> None:
    for statements in (
        (WRONG, RIGHT),
        (WRONG, RIGHT.replace("id = 3", "id > 3"), RIGHT),
        ("UPDATE products SET price = -1 WHERE id = 7", "UPDATE products SET price = -2 WHERE id = 7"),
        ("UPDATE products SET stok = 5", "SELECT 1"),
    ):
        agent = Agent(proxy)
        for sql in statements:
            agent.send(sql, extended)
        agent.close()
    wait_for(lambda: len(endings(proxy)) == 3)
    told = [{key: line[key] for key in ("rule", "turns", "halt", "outcome")} for line in endings(proxy)]
    assert told == [
        {"rule": "unknown-column", "turns": 1, "halt": None, "outcome": "repaired"},
        {"rule": "unknown-column", "turns": 1, "halt": "predicate_weakened", "outcome": "halted"},
        {"rule": "23514", "turns": 1, "halt": "repair_budget_exhausted", "outcome": "halted"},
    ]
    first = endings(proxy)[0]
    assert (first["event"], first["agent"], first["database"], first["class"], first["reasons"]) == (
        "repair_closed",
        "repairing",
        proxy.database.name,
        "update",
        ["unknown-column"],
    )
    assert first["opened"] < first["ts"]

    def said() -> list[tuple[str, dict[str, Any]]]:
        # Whole lines alone: the writer may be at work on the next.
        text = (proxy.folder / "audit.jsonl").read_text("ascii").rpartition("\n")[0]
        lines = [line for line in map(json.loads, text.splitlines()) if "statement" in line]
        return [(line["statement"], line["repair"]) for line in lines if "repair" in line]

    wait_for(lambda: len(said()) == 7)
    wider = RIGHT.replace("id = 3", "id > 3")
    failing = "UPDATE products SET price = {} WHERE id = 7"
    spent = "repair_budget_exhausted"
    assert [(sql, each["turn"], each["halt"]) for sql, each in said()] == [
        (WRONG, 0, None),
        (RIGHT, 1, None),
        (WRONG, 0, None),
        (wider, 1, "predicate_weakened"),
        (RIGHT, None, spent),
        (failing.format(-1), 0, None),
        (failing.format(-2), 1, None),
    ]
    ended = [line["lineage"] for line in endings(proxy)]
    expected = [ended[0]] * 2 + [ended[1]] * 3 + [ended[2]] * 2
    assert [each["lineage"] for _, each in said()] == expected
    assert {line["sandbox"] for line in endings(proxy)} == {None}


def test_a_window_that_ended_is_told_at_the_next_look(proxy: RunningProxy) -> None:
    agent = Agent(proxy, name="hasty")
    agent.send(WRONG, False)
    time.sleep(1.1)
    assert ran(agent.send(RIGHT, False))
    agent.close()
    wait_for(lambda: len(endings(proxy)) == 1)
    assert (endings(proxy)[0]["outcome"], endings(proxy)[0]["turns"]) == ("abandoned", 0)


def test_a_process_that_ends_tells_of_what_it_alone_knew(database: Database, tmp_path: Path) -> None:
    with run_proxy(database, tmp_path, POLICIES, audit={"path": "audit.jsonl"}) as proxy:
        agent = Agent(proxy)
        agent.send(WRONG, False)
        agent.close()
        assert endings(proxy) == []
    assert [line["outcome"] for line in endings(proxy)] == ["abandoned"]


def run_two(database: Database, folder: Path) -> Iterator[tuple[RunningProxy, RunningProxy]]:
    shared: dict[str, Any] = {
        "audit": {"path": "audit.jsonl"},
        "ledger": {"store": f"sqlite:{folder / 'ledger.db'}"},
    }
    for name in ("one", "other"):
        (folder / name).mkdir()
    with (
        run_proxy(database, folder / "one", POLICIES, **shared) as one,
        run_proxy(database, folder / "other", POLICIES, **shared) as other,
    ):
        yield one, other


@pytest.fixture
def two(database: Database, tmp_path: Path) -> Iterator[tuple[RunningProxy, RunningProxy]]:
    yield from run_two(database, tmp_path)


def test_of_two_processes_the_one_that_ended_it_tells(two: tuple[RunningProxy, RunningProxy]) -> None:
    agent = Agent(two[0])
    elsewhere = Agent(two[1], agent.application)
    agent.send(WRONG, False)
    assert ran(elsewhere.send(RIGHT, True))
    agent.close()
    elsewhere.close()
    wait_for(lambda: len(endings(*two)) == 1)
    assert [line["outcome"] for line in endings(two[1])] == ["repaired"]


@pytest.mark.slow
def test_a_window_that_ended_is_found_by_one_of_two(two: tuple[RunningProxy, RunningProxy]) -> None:
    """Without anybody who looks; longer than each takes to look for itself."""
    agent = Agent(two[0], name="hasty")
    agent.send(WRONG, False)
    agent.close()
    time.sleep(32)
    assert [line["outcome"] for line in endings(*two)] == ["abandoned"]
