"""What a statement costs that was never seen before: the gate without a catalog, with one, and EXPLAIN.

Owns the agents' database (``agent_schema.sql``) and what agents ask of it (``agent_statements.sql``). The
gate is timed in this process, by the CPU time it takes, so that neighbours do not count; each text is new.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench.client import SYNC, Address, Client, ClientError, parse, query, run_prepared
from bench.contenders import USER, BenchError, Name, Ring, run_proxy
from bench.loads import ACCOUNTS
from bench.policies import strict
from bench.trips import count_trips
from policy import catalog_source
from policy.catalog import Catalog
from policy.loader import load
from policy.parse import parse as parse_sql
from proxy.gate import Gate

AGENTS_DATABASE: Final = "agents"
_HERE: Final = Path(__file__).parent
_PATHS: Final = (("public",),)
_STATEMENT_BYTES: Final = 1 << 20
_REPEATS: Final = 15
_ASKED: Final = 7
_TRIPS: Final = 200
_FRESH: Final = count(1)
"""Numbers that make a text another; never given twice."""


class StillCatalog:
    """A catalog that never changes, as a gate looks at one."""

    def __init__(self, catalog: Catalog) -> None:
        self.database: Final = AGENTS_DATABASE
        self.current: Final[Catalog | None] = catalog

    async def renew(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing agents ask; ``text()`` is new each time."""

    template: str

    def text(self) -> str:
        return self.template.replace("{n}", str(next(_FRESH)))


def statements() -> list[Statement]:
    told = (_HERE / "agent_statements.sql").read_text(encoding="utf-8")
    body = re.sub(r"^--.*\n", "", told, flags=re.MULTILINE)
    return [Statement(part.strip()) for part in body.split("\n\n") if part.strip()]


def load_agents(server: Address, superuser: str) -> None:
    """The agents' database, owned by the benchmark's role."""
    with Client(replace(server, user=superuser, database="postgres")) as client:
        client.checked(query(f"CREATE DATABASE {AGENTS_DATABASE} OWNER {USER}"))
    with Client(replace(server, database=AGENTS_DATABASE)) as client:
        client.checked(query((_HERE / "agent_schema.sql").read_text(encoding="utf-8")))
        client.checked(query("VACUUM ANALYZE"))


def read_catalog(server: Address) -> Catalog:
    """The snapshot of the database of ``server``."""

    async def read() -> Catalog:
        connection = await asyncpg.connect(
            host=server.host, port=server.port, user=server.user, database=server.database, ssl=False
        )
        try:
            return await catalog_source.read(connection)
        finally:
            await connection.close()

    return asyncio.run(read())


def make_gate(policy_text: str, catalog: Catalog | None) -> Gate:
    """A gate as the server makes one; without ``catalog`` names are taken as the text gives them."""
    policy = load(policy_text, "bench.yaml")
    view = StillCatalog(catalog) if catalog is not None else None
    return Gate(policy, USER, _STATEMENT_BYTES, view)


def gate_us(gate: Gate, asked: Sequence[Statement], repeats: int = _REPEATS) -> list[float]:
    """µs of CPU that a decision on each statement takes, the median of ``repeats`` new texts. Raises
    BenchError where the gate refuses one: a figure of refusals would flatter it."""
    names = gate.names(_PATHS)

    def decide(text: str) -> None:
        ruling = gate.rule_slowly(text.encode(), names)
        if not ruling.allowed:
            raise BenchError(f"the gate refuses what the benchmark asks: {text}")

    return [_cpu_us(decide, statement, repeats) for statement in asked]


def parse_us(asked: Sequence[Statement]) -> list[float]:
    """The same for reading the text alone: PostgreSQL's grammar and the walk over its tree."""

    def read(text: str) -> None:
        parse_sql(text.encode())

    return [_cpu_us(read, statement, _REPEATS) for statement in asked]


def explain_us(client: Client, gate: Gate, asked: Sequence[Statement]) -> list[float]:
    """µs that PostgreSQL takes to answer what the gate would ask it, as it is asked: the best of some, since
    a wait for the neighbours is no part of it."""
    names = gate.names(_PATHS)

    def one(statement: Statement) -> float:
        question = gate.rule_slowly(statement.text().encode(), names).question
        if question is None or question.text is None:
            raise BenchError(f"the gate asks no price of {statement.template}")
        return _elapsed_us(client, parse("", question.text) + run_prepared("") + SYNC)

    return [min(one(statement) for _ in range(_ASKED)) for statement in asked]


def added_us(direct: Client, through: Client, asked: Sequence[Statement]) -> list[float]:
    """µs that a statement's first run takes longer through the proxy; the best of some of each, by turns."""
    added = []
    for statement in asked:
        straight, proxied = zip(
            *(
                (
                    _elapsed_us(direct, query(statement.text())),
                    _elapsed_us(through, query(statement.text())),
                )
                for _ in range(_ASKED)
            ),
            strict=True,
        )
        added.append(min(proxied) - min(straight))
    return added


def extra_trips(ring: Ring) -> Mapping[str, float]:
    """Round trips to PostgreSQL beyond the statement's own, a point select never seen before, by protocol."""
    found = {}
    with (
        count_trips(ring.server.port) as counter,
        run_proxy(ring.folder, counter.port, strict()) as (_, port),
        Client(replace(ring.direct(), port=port)) as client,
    ):
        for protocol, message in _DISTINCT.items():
            client.checked(message(next(_FRESH)))
            before = counter.trips()
            for _ in range(_TRIPS):
                client.checked(message(next(_FRESH)))
            found[protocol] = counter.busiest(before) / _TRIPS - 1
    return found


def _point(number: int) -> str:
    return f"SELECT abalance AS a{number} FROM pgbench_accounts WHERE aid = {number % ACCOUNTS + 1}"


_DISTINCT: Final[Mapping[str, Callable[[int], bytes]]] = {
    "simple": lambda n: query(_point(n)),
    "extended": lambda n: parse("", _point(n)) + run_prepared("") + SYNC,
}


def measure_cold(ring: Ring) -> dict[str, Any]:
    """Every cold figure, each by statement; the agents' database is loaded beforehand."""
    asked = statements()
    server = ring.direct(AGENTS_DATABASE)
    catalog = read_catalog(server)
    with_catalog = make_gate(strict(), catalog)
    through = replace(ring.contenders[Name.PROXY].address, database=AGENTS_DATABASE)
    with Client(server) as direct, Client(through) as proxied:
        for statement in asked:
            try:
                proxied.checked(query(statement.text()))
            except ClientError as error:
                raise BenchError(f"refused through the proxy: {statement.template}: {error}") from error
        return {
            "statements": len(asked),
            "parse_us": parse_us(asked),
            "gate_without_catalog_us": gate_us(make_gate(strict(), None), asked),
            "gate_with_catalog_us": gate_us(with_catalog, asked),
            "explain_us": explain_us(direct, with_catalog, asked),
            "added_us": added_us(direct, proxied, asked),
            "extra_trips": extra_trips(ring),
        }


def _cpu_us(step: Callable[[str], None], statement: Statement, repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        text = statement.text()
        begun = time.process_time_ns()
        step(text)
        taken.append(time.process_time_ns() - begun)
    return statistics.median(taken) / 1e3


def _elapsed_us(client: Client, data: bytes) -> float:
    begun = time.perf_counter_ns()
    client.socket.sendall(data)
    client.drain()
    return (time.perf_counter_ns() - begun) / 1e3
