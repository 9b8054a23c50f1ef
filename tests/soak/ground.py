"""What a soak runs on: a server, a line before it that can fail, and the proxy, with the policy it reloads.

Owns the schema and the policy, and what can be read of the proxy while it runs.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.line import Line, failing_line
from tests.support.postgres import Database, run_server
from tests.support.proxy import RunningProxy, free_port, run_proxy, wait_for
from tests.support.restarts import RestartableEngine, Shutdown

AGENT: Final = "soaked"
_AUDIT: Final = "audit.jsonl"
POLICY: Final = """
version: 1
name: soaked-{turn}
mode: enforce
access: read_write
statements: {{select: allow, insert: allow, update: allow, transaction: allow, set: allow, show: allow}}
relations: {{allow: ["public.*"], catalogs: filtered}}
functions: {{allow: [builtin-safe, pg_catalog.pg_sleep]}}
limits: {{statement_timeout: 20s, affected_rows: 50, result_rows: 100000}}
cost: {{max_total_cost: 1000000}}
"""
SCHEMA: Final = """
CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, body text NOT NULL);
INSERT INTO items SELECT g, g % 7, repeat('x', 300) FROM generate_series(1, 20000) g;
CREATE TABLE written (tag text PRIMARY KEY);
GRANT SELECT, INSERT, UPDATE ON items, written TO shop_app;
"""


@dataclass(frozen=True, slots=True)
class Ground:
    """The parts, running. ``parameters`` are a connection's by libpq's names."""

    database: Database
    line: Line
    proxy: RunningProxy
    parameters: Mapping[str, Any]

    @property
    def audits(self) -> list[Path]:
        """The audit's files, the oldest first."""
        rotated = sorted(self.proxy.folder.glob("audit.*.jsonl"))
        return [*rotated, self.proxy.folder / _AUDIT]

    def rotate(self, turn: int) -> None:
        """Move the audit's file away, as logrotate does, and have another begun."""
        (self.proxy.folder / _AUDIT).rename(self.proxy.folder / f"audit.{turn:06}.jsonl")
        self.proxy.process.send_signal(signal.SIGUSR1)
        wait_for((self.proxy.folder / _AUDIT).exists)

    def restart(self) -> None:
        """Stop the server, as an operator would, and start it again."""
        engine = self.database.server.engine
        assert isinstance(engine, RestartableEngine)
        engine.ask_to_end(Shutdown.FAST)
        engine.wait_for_end()
        engine.start_again()

    def reload(self, turn: int) -> None:
        """Have the proxy judge by another file of the same content."""
        (self.proxy.folder / f"{AGENT}.yaml").write_text(POLICY.format(turn=turn))
        self.proxy.process.send_signal(signal.SIGHUP)

    def sessions(self) -> dict[int, str]:
        """What the agents' backends do, by their process ids."""
        rows = self.database.execute(
            "SELECT pid, concat_ws(' ', state, wait_event, query) FROM pg_stat_activity"
            f" WHERE usename = 'shop_app' AND datname = '{self.database.name}'"
            " AND application_name <> 'pgturnstile catalog'"
        )
        return dict(rows)

    def decisions(self) -> int:
        """How many the proxy says that it has taken."""
        url = f"http://127.0.0.1:{self.proxy.config['admin']['port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        counts = re.findall(r"^pgturnstile_decisions_total\{.*\} ([\d.e+]+)$", text, re.MULTILINE)
        return sum(int(float(count)) for count in counts)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for path in self.audits for line in path.read_text().splitlines()]


@contextlib.contextmanager
def prepared_ground(major: int, folder: Path) -> Iterator[Ground]:
    """Everything started, and stopped afterwards."""
    with (
        run_server(major, kind=RestartableEngine) as server,
        server.database() as database,
        failing_line(server.host, server.port) as line,
    ):
        database.execute(SCHEMA)
        with run_proxy(
            database,
            folder,
            {AGENT: POLICY.format(turn=0)},
            backend={"host": "127.0.0.1", "port": line.port},
            audit={"path": str(folder / _AUDIT)},
            admin={"port": free_port()},
            limits={"connections": 200, "connections_per_agent": 100},
        ) as proxy:
            yield Ground(database, line, proxy, proxy.parameters(AGENT))
