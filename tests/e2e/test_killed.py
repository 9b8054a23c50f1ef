"""Workers that are killed one after the other while agents are at work, the audit rotated in between.

What is held against each other afterwards is what a soak holds (``tests.soak.books``): what agents sent and
were told, what the audit has, and what the database holds. A killed process may lack the lines of its last
moment, of the connections that it took along, and no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.audit_chain import verify
from tests.e2e.test_workers import children, sample
from tests.soak.agents import Agent, Sent, Told
from tests.soak.books import amiss, tag_of
from tests.soak.ground import AGENT, POLICY, SCHEMA
from tests.support.drivers import DRIVERS
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, free_port, run_proxy, wait_for

pytestmark = pytest.mark.slow

KILLS: Final = 6
"""In turns, since one that dies again and again is started after ever longer pauses."""
LAST_MOMENT: Final = 60
"""Statements before the loss of a connection whose lines may be lost with it: more than are answered in
the few hundredths of a second for which lines wait (proxy/audit.py)."""


@contextlib.contextmanager
def agents_at_work(proxy: RunningProxy, seed: int) -> Iterator[list[Agent]]:
    stop = threading.Event()
    agents = [
        Agent(n, driver, proxy.parameters(AGENT), stop, random.Random(f"{seed}-{n}"))
        for n, driver in enumerate(DRIVERS)
    ]
    for agent in agents:
        agent.start()
    try:
        yield agents
    finally:
        stop.set()
        for agent in agents:
            agent.join(60)


def test_workers_killed_under_load_take_their_last_moment_alone(postgres18: Server, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    audit = tmp_path / "audit.jsonl"
    files: list[Path] = []
    with postgres18.database() as database:
        database.execute(SCHEMA)
        with run_proxy(
            database,
            tmp_path,
            {AGENT: POLICY.format(turn=0)},
            workers=2,
            audit={"path": str(audit)},
            admin={"port": free_port()},
            limits={"connections": 200, "connections_per_agent": 100},
        ) as proxy:
            with agents_at_work(proxy, seed) as agents:
                for turn in range(KILLS):
                    time.sleep(chosen.uniform(0.2, 0.8))
                    longest_there, _ = children(proxy.process.pid)
                    os.kill(longest_there, signal.SIGKILL)
                    if turn % 2:
                        files.append(tmp_path / f"audit.{turn}.jsonl")
                        audit.rename(files[-1])
                        proxy.process.send_signal(signal.SIGUSR1)
                        wait_for(audit.exists)
                    wait_for(lambda turn=turn: restarts(proxy) == turn + 1)
                    wait_for(lambda: len(children(proxy.process.pid)) == 2)
                wait_for(lambda: all(answered_last(agent) for agent in agents))
            wait_for(lambda: backends(proxy) == [])
        written = {tag for (tag,) in database.execute("SELECT tag FROM written")}
    files.append(audit)
    assert verify(files).holds, verify(files).breaks
    assert sum(each.told is Told.UNKNOWN for agent in agents for each in agent.sent) >= KILLS / 2
    assert faults(agents, files, written) == []


def restarts(proxy: RunningProxy) -> float:
    return sample(proxy, "pgturnstile_worker_restarts_total")


def answered_last(agent: Agent) -> bool:
    """It has a connection again, and got something said on it."""
    return len(agent.sent) > LAST_MOMENT and agent.sent[-1].told is not Told.UNKNOWN


def backends(proxy: RunningProxy) -> list[tuple[Any, ...]]:
    return proxy.database.execute(
        f"SELECT pid FROM pg_stat_activity WHERE datname = '{proxy.database.name}' AND usename = 'shop_app'"
        " AND application_name <> 'pgturnstile catalog'"
    )


def faults(agents: Iterable[Agent], files: Iterable[Path], written: set[str]) -> list[str]:
    """Every statement whose books do not fit, but for lines that a killed worker took along."""
    lines: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in (json.loads(text) for path in files for text in path.read_text().splitlines()):
        tag = tag_of(line.get("statement", ""))
        if tag is not None:
            lines[tag].append(line)
    found = []
    for agent in agents:
        for nth, each in enumerate(agent.sent):
            own = lines.pop(each.tag, [])
            if own or not lost_with_its_worker(agent.sent[nth : nth + LAST_MOMENT]):
                found += [f"{each.tag} ({each.told}): {fault}" for fault in amiss(each, own, written)]
    return found + [f"{tag}: audited and never sent" for tag in lines]


def lost_with_its_worker(following: Iterable[Sent]) -> bool:
    return any(each.told is Told.UNKNOWN for each in following)
