"""How the cost grows: with connections, statements, their size, the policy, the catalog, the result.

Owns one function a curve, and the table of them. A curve is measured on proxies of its own where it changes
what a proxy is started with. CPU time is what is compared, since on a shared machine it is what holds still.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bench import cold
from bench.client import SYNC, Address, Client, parse, query, run_prepared
from bench.contenders import Contender, Name, Ring, run_proxy
from bench.figures import NOISE_LIMIT, growth, quartiles, steepness
from bench.loads import ACCOUNTS, POINT
from bench.policies import strict
from bench.processes import cpu_ns, resident_bytes
from bench.trips import count_trips
from policy.loader import load

LINEAR_LIMIT: Final = 1.2
"""The exponent up to which growth is called linear; its tenths are noise."""
FLAT_LIMIT: Final = 1.25
"""How much dearer than at its first point a curve may be and still be called flat."""
_SLICES: Final = 3
_SLICE_S: Final = 1.0
_MIB: Final = 1 << 20
_TABLES_AT_A_TIME: Final = 50


@dataclass(slots=True)
class Curve:
    """``series`` by name, one value a size. A unit is part of a series' name."""

    name: str
    size: str
    sizes: list[int] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    noise: float = 0.0
    """The widest spread of the repeated slices of one point."""

    def add(self, size: int, values: Mapping[str, float]) -> None:
        self.sizes.append(size)
        for name, value in values.items():
            self.series.setdefault(name, []).append(value)

    def steady(self, values: Sequence[float]) -> float:
        """The median of a point's slices; their spread is the curve's noise."""
        low, middle, high = quartiles(values)
        self.noise = max(self.noise, (high - low) / middle)
        return middle

    def check_linear(self, name: str, costs: Sequence[float]) -> None:
        """``costs`` are of a whole point, not of one unit of its size."""
        self._check(f"{name} grows no worse than linearly", growth(self.sizes, costs), LINEAR_LIMIT)

    def check_flat(self, name: str, costs: Sequence[float]) -> None:
        self._check(f"{name} is flat", steepness(costs), FLAT_LIMIT)

    def _check(self, what: str, found: float, limit: float) -> None:
        kept = "met" if found <= limit else "missed"
        verdict = "too noisy to tell" if self.noise > NOISE_LIMIT else kept
        self.checks.append({"what": what, "found": found, "limit": limit, "verdict": verdict})

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "size": self.size,
            "sizes": self.sizes,
            "series": self.series,
            "checks": self.checks,
            "noise": self.noise,
        }


def connections(ring: Ring) -> Curve:
    """Open connections, idle, then all of them asking at once."""
    curve = Curve("connections", "open connections")
    with _proxy(ring, strict()) as proxy:
        for count in (1, 10, 100, 300, 1000):
            with ExitStack() as stack:
                clients = [stack.enter_context(Client(proxy.address)) for _ in range(count)]
                idle = resident_bytes(_pid(proxy))
                for client in clients:
                    client.checked(parse("point", POINT) + SYNC)
                cpu = curve.steady([_all_at_once(proxy, clients) for _ in range(_SLICES)])
                curve.add(
                    count,
                    {
                        "CPU a statement, µs": cpu,
                        "memory, idle, MiB": idle / _MIB,
                        "memory, used, MiB": resident_bytes(_pid(proxy)) / _MIB,
                    },
                )
    curve.check_flat("CPU a statement", curve.series["CPU a statement, µs"])
    curve.check_linear("memory", curve.series["memory, used, MiB"])
    return curve


def _all_at_once(proxy: Contender, clients: Sequence[Client]) -> float:
    """µs of the proxy's CPU a statement while every client has one under way."""
    done = 0
    spent, end = cpu_ns(_pid(proxy)), time.monotonic() + _SLICE_S
    while not done or time.monotonic() < end:
        for client in clients:
            client.socket.sendall(run_prepared("point", [str(random.randint(1, ACCOUNTS))]) + SYNC)
        for client in clients:
            client.drain()
        done += len(clients)
    return (cpu_ns(_pid(proxy)) - spent) / 1e3 / done


def idle_memory(contender: Contender, count: int) -> float:
    """MiB of the process between while ``count`` connections are open and have asked nothing."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(Client(contender.address))
        return resident_bytes(_pid(contender)) / _MIB


def distinct_statements(ring: Ring) -> Curve:
    """Texts drawn at random out of so many, after enough of them to fill any cache.

    A hit is a statement for which PostgreSQL was not asked beforehand.
    """
    curve = Curve("distinct statements", "distinct statements in use")
    with (
        count_trips(ring.server.port) as counter,
        _proxy(ring, strict(), server_port=counter.port) as proxy,
        Client(proxy.address) as client,
    ):
        client.checked(query("SELECT 1"))
        chance = random.Random(1)
        for count in (10, 100, 1_000, 10_000, 100_000):
            texts = [
                query(f"SELECT abalance AS a{n}_{count} FROM pgbench_accounts WHERE aid = {n + 1}")
                for n in range(count)
            ]
            first = texts[: min(count, 12_000)]
            cold_us = _cpu_of_all(proxy, client, first)
            before = counter.trips()
            drawn = chance.choices(texts, k=3_000)
            cpu = curve.steady([_cpu_of_all(proxy, client, drawn[n::_SLICES]) for n in range(_SLICES)])
            curve.add(
                count,
                {
                    "CPU a statement, µs": cpu,
                    "CPU a statement at first sight, µs": cold_us,
                    "hit rate": 2 - counter.busiest(before) / len(drawn),
                    "memory, MiB": resident_bytes(_pid(proxy)) / _MIB,
                },
            )
    series = curve.series
    curve.check_flat(
        "CPU of a statement beyond the caches, against one at first sight",
        [series["CPU a statement at first sight, µs"][-1], series["CPU a statement, µs"][-1]],
    )
    curve.check_flat("memory beyond the caches' bound", series["memory, MiB"][-2:])
    return curve


def _cpu_of_all(proxy: Contender, client: Client, messages: Sequence[bytes]) -> float:
    spent = cpu_ns(_pid(proxy))
    for data in messages:
        client.ask(data)
    return (cpu_ns(_pid(proxy)) - spent) / 1e3 / len(messages)


def statement_size(ring: Ring) -> Curve:
    """One statement with ever more values in its IN list, each text new."""
    curve = Curve("statement size", "statement, KiB")
    with Client(_agents(ring)) as client:
        proxy = ring.contenders[Name.PROXY]
        for kib in (1, 4, 16, 64, 256, 1000):
            texts = [_of_size(kib << 10, number) for number in range(_SLICES * 2)]
            client.checked(query(texts[0]))
            cpu = curve.steady([_cpu_of_all(proxy, client, [query(text)]) for text in texts[1:]])
            curve.add(kib, {"CPU a statement, ms": cpu / 1e3})
    curve.check_linear("CPU a statement", curve.series["CPU a statement, ms"])
    return curve


def _of_size(length: int, number: int) -> str:
    head = f"SELECT id, total FROM orders WHERE customer_id = {number} AND id IN (0"
    values = (f", {1_000_000 + n}" for n in range((length - len(head) - 1) // 9))
    return head + "".join(values) + ")"


def policy_rows(ring: Ring) -> Curve:
    """Rows of a policy that name what no statement touches."""
    curve = Curve("policy size", "policy rows")
    asked = cold.statements()
    catalog = cold.read_catalog(ring.direct(cold.AGENTS_DATABASE))
    for rows in (10, 100, 1_000, 5_000):
        text = strict(rows=rows)
        begun = time.process_time()
        load(text, "bench.yaml")
        loading = time.process_time() - begun
        gate = cold.make_gate(text, catalog)
        with _proxy(ring, text) as proxy:
            hot = curve.steady([_hot_us(proxy) for _ in range(_SLICES)])
        curve.add(
            rows,
            {
                "CPU a cached statement, µs": hot,
                "gate, new statement, µs": statistics.median(cold.gate_us(gate, asked, 3)),
                "loading, ms": loading * 1e3,
            },
        )
    curve.check_flat("CPU of a cached statement", curve.series["CPU a cached statement, µs"])
    curve.check_linear("the gate", curve.series["gate, new statement, µs"])
    curve.check_linear("loading", curve.series["loading, ms"])
    return curve


def catalog_size(ring: Ring) -> Curve:
    """Relations of ten columns beside the agents' own."""
    curve = Curve("catalog size", "relations")
    asked = cold.statements()
    server = ring.direct(cold.AGENTS_DATABASE)
    made = len(cold.read_catalog(server).content.relations)
    for relations in (100, 1_000, 10_000):
        _add_relations(server, range(made, relations))
        made = relations
        begun = time.process_time()
        catalog = cold.read_catalog(server)
        reading = time.process_time() - begun
        gate = cold.make_gate(strict(), catalog)
        cold_us = statistics.median(cold.gate_us(gate, asked, 3))
        del gate, catalog
        gc.collect()
        with _proxy(ring, strict(), cold.AGENTS_DATABASE) as proxy:
            hot = curve.steady(
                [_hot_us(proxy, "SELECT email FROM customers WHERE id = $1") for _ in range(_SLICES)]
            )
            memory = resident_bytes(_pid(proxy))
        curve.add(
            relations,
            {
                "CPU a cached statement, µs": hot,
                "gate, new statement, µs": cold_us,
                "reading the catalog, s of CPU": reading,
                "memory, MiB": memory / _MIB,
            },
        )
    series = curve.series
    curve.check_flat("CPU of a cached statement", series["CPU a cached statement, µs"])
    curve.check_linear("the gate", series["gate, new statement, µs"])
    curve.check_linear("reading the catalog", series["reading the catalog, s of CPU"])
    curve.check_linear("memory", series["memory, MiB"])
    return curve


def _add_relations(server: Address, numbers: range) -> None:
    columns = ", ".join(f"c{n} text" for n in range(9))
    with Client(server) as client:
        made = [f"CREATE TABLE filler_{number} (id int PRIMARY KEY, {columns})" for number in numbers]
        for at in range(0, len(made), _TABLES_AT_A_TIME):
            client.checked(query(";".join(made[at : at + _TABLES_AT_A_TIME])))


def result_rows(ring: Ring) -> Curve:
    """Rows of one number each."""
    curve = Curve("result size", "rows")
    with _proxy(ring, strict()) as proxy, Client(proxy.address) as client:
        for rows in (1, 10, 1_000, 100_000, 1_000_000, 10_000_000):
            text = f"SELECT a.aid FROM pgbench_accounts a CROSS JOIN ten LIMIT {rows}"
            client.socket.sendall(query(text))
            client.drain()
            slices = 1 if rows > 1_000_000 else _SLICES
            cpu = curve.steady([_drained_ms(proxy, client, query(text), rows) for _ in range(slices)])
            memory = resident_bytes(_pid(proxy)) / _MIB
            curve.add(rows, {"CPU a result, ms": cpu, "memory, MiB": memory})
    curve.check_linear("CPU a result", curve.series["CPU a result, ms"])
    curve.check_flat("memory", curve.series["memory, MiB"])
    return curve


def _drained_ms(proxy: Contender, client: Client, data: bytes, rows: int) -> float:
    """ms of the proxy's CPU a result; small ones are asked for often enough to be seen."""
    repeats = max(1, min(500, 100_000 // rows))
    spent = cpu_ns(_pid(proxy))
    for _ in range(repeats):
        client.socket.sendall(data)
        client.drain()
    return (cpu_ns(_pid(proxy)) - spent) / 1e6 / repeats


def _hot_us(proxy: Contender, statement: str = POINT) -> float:
    """µs of the proxy's CPU for a prepared statement that it knows."""
    with Client(proxy.address) as client:
        client.checked(parse("hot", statement) + SYNC)
        messages = [run_prepared("hot", [str(random.randint(1, 2_000))]) + SYNC for _ in range(500)]
        for data in messages:
            client.ask(data)
        done, spent, end = 0, cpu_ns(_pid(proxy)), time.monotonic() + _SLICE_S
        while time.monotonic() < end:
            for data in messages:
                client.ask(data)
            done += len(messages)
        return (cpu_ns(_pid(proxy)) - spent) / 1e3 / done


@contextmanager
def _proxy(
    ring: Ring, policy: str, database: str | None = None, *, server_port: int | None = None
) -> Iterator[Contender]:
    """A proxy of the curve's own."""
    server = ring.direct() if database is None else ring.direct(database)
    with run_proxy(ring.folder, server_port or server.port, policy) as (pid, port):
        proxy = Contender(Name.PROXY, replace(server, port=port), pid)
        with closing(Client(proxy.address)) as first:  # the catalog is read before anything is measured
            first.checked(query("SELECT 1"))
        yield proxy


def _agents(ring: Ring) -> Address:
    return replace(ring.contenders[Name.PROXY].address, database=cold.AGENTS_DATABASE)


def _pid(proxy: Contender) -> int:
    assert proxy.pid is not None
    return proxy.pid


CURVES: Final[Sequence[Callable[[Ring], Curve]]] = (
    connections,
    distinct_statements,
    statement_size,
    policy_rows,
    catalog_size,
    result_rows,
)
"""In this order: the catalog's leaves ten thousand relations behind in the agents' database."""
