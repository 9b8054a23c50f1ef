"""The workloads: what a slice does with one contender, and what it measures.

Owns the table ``LOADS`` and the rows that it needs. A slice lasts ``seconds`` of measured time after a
warm-up on the same connections; what it returns is one number a metric. Knows no statistics.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final, TypeVar

from bench.client import SYNC, Client, parse, query, run_prepared
from bench.contenders import DATABASE, USER, BenchError, Contender, Name, Ring
from bench.figures import Better
from bench.processes import cpu_ns

SCALE: Final = 10
ACCOUNTS: Final = SCALE * 100_000
WIDE_ROWS: Final = 25_000
WIDE_BYTES: Final = 8_000
"""A value that stays in its row: a page holds one."""
PIPELINE: Final = 100
POINT: Final = "SELECT abalance FROM pgbench_accounts WHERE aid = $1"
_WARM_S: Final = 0.3
_PGBENCH_THREADS: Final = 2


class Metric(StrEnum):
    P50 = "p50"
    CPU = "cpu"
    RATE = "rate"


UNITS: Final[Mapping[Metric, str]] = {Metric.P50: "µs", Metric.CPU: "µs", Metric.RATE: "per s"}
BETTER: Final[Mapping[Metric, Better]] = {
    Metric.P50: Better.LOWER,
    Metric.CPU: Better.LOWER,
    Metric.RATE: Better.HIGHER,
}
T = TypeVar("T")
Measured = Mapping[Metric, float]
"""P50 in µs; CPU of the process between, in µs a unit of work; RATE in units of work a second."""


_ACCOUNT_ROWS: Final = (
    "CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88))",
    f"INSERT INTO pgbench_branches SELECT g, 0, '' FROM generate_series(1, {SCALE}) g",
    "CREATE TABLE pgbench_accounts (aid int NOT NULL, bid int, abalance int, filler char(84))",
    "INSERT INTO pgbench_accounts SELECT g, (g - 1) / 100000 + 1, 0, ''"
    f" FROM generate_series(1, {ACCOUNTS}) g",
    "ALTER TABLE pgbench_accounts ADD PRIMARY KEY (aid)",
    "CREATE TABLE ten (n int PRIMARY KEY)",
    "INSERT INTO ten SELECT generate_series(1, 10)",
)
_WIDE_ROWS: Final = (
    "CREATE TABLE wide (id int PRIMARY KEY, body text NOT NULL)",
    "ALTER TABLE wide ALTER body SET STORAGE PLAIN",
    f"INSERT INTO wide SELECT g, repeat('x', {WIDE_BYTES}) FROM generate_series(1, {WIDE_ROWS}) g",
)


@dataclass(frozen=True, slots=True)
class Load:
    """``run(ring, contender, seconds)`` is one slice. ``work`` is what is counted; ``rows`` are the
    statements that make what it reads."""

    name: str
    work: str
    run: Callable[[Ring, Contender, float], Measured]
    contenders: tuple[Name, ...]
    rows: tuple[str, ...] = _ACCOUNT_ROWS


def prepare(ring: Ring, loads: Sequence[Load]) -> None:
    """The rows that ``loads`` read, each made once."""
    made = dict.fromkeys(statement for load in loads for statement in load.rows)
    with Client(ring.direct()) as client:
        for statement in (*made, "VACUUM ANALYZE"):
            client.checked(query(statement))


def _latency(
    sent: Callable[[Client], Iterator[bytes]], _: Ring, contender: Contender, seconds: float
) -> Measured:
    """One client that waits for each answer."""
    with Client(contender.address) as client:
        messages = sent(client)
        length = len(client.checked(next(messages)))
        _for(_WARM_S, lambda: client.ask(next(messages)))
        times: list[int] = []
        clock = time.perf_counter_ns
        with _undisturbed(), _cpu_of(contender) as cpu:
            end = clock() + int(seconds * 1e9)
            while (begun := clock()) < end:
                data = next(messages)
                begun = clock()
                answer = client.ask(data)
                times.append(clock() - begun)
                if len(answer) != length:
                    raise BenchError(f"an answer was not as the one before: {answer[:200]!r}")
    return {Metric.P50: statistics.median(times) / 1e3, **cpu.per(len(times))}


def _select_one(_: Client) -> Iterator[bytes]:
    data = query("SELECT 1")
    while True:
        yield data


def _prepared_point(client: Client) -> Iterator[bytes]:
    client.checked(parse("point", POINT) + SYNC)
    while True:
        yield run_prepared("point", [str(random.randint(1, ACCOUNTS))]) + SYNC


def _distinct_point(_: Client) -> Iterator[bytes]:
    """Never the same text twice: the name of the column alone would make it another."""
    base = random.randrange(10**11, 9 * 10**11)
    while True:
        base += 1
        yield query(f"SELECT abalance AS a{base} FROM pgbench_accounts WHERE aid = {base % ACCOUNTS + 1}")


def _numbered_point(_: Client) -> Iterator[bytes]:
    """Never the same text twice until all accounts have been asked for; nothing is new but the number."""
    number = random.randrange(ACCOUNTS)
    while True:
        number = (number + 1) % ACCOUNTS
        yield query(f"SELECT abalance FROM pgbench_accounts WHERE aid = {number + 1}")


def _pgbench(mode: str, clients: int, ring: Ring, contender: Contender, seconds: float) -> Measured:
    """pgbench's own select-only script. Its rate leaves out the time to connect."""
    if ring.pgbench is None:
        raise BenchError("pgbench is missing: install PostgreSQL's contrib programs")
    command = [
        *(str(ring.pgbench), "--no-vacuum", "--select-only", f"--protocol={mode}", f"--client={clients}"),
        *(f"--jobs={min(_PGBENCH_THREADS, clients)}", f"--time={max(1, round(seconds))}"),
        *("--host=127.0.0.1", f"--port={contender.address.port}", f"--username={USER}", DATABASE),
    ]
    secure = contender.address.tls is not None
    env = {**os.environ, "PGSSLMODE": "require" if secure else "disable", "LC_ALL": "C"}
    with _cpu_of(contender) as cpu:
        told = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    done = re.search(r"^number of transactions actually processed: (\d+)", told.stdout, re.MULTILINE)
    rate = re.search(r"^tps = ([\d.]+) \(without initial", told.stdout, re.MULTILINE)
    if told.returncode != 0 or done is None or rate is None:
        said = f"{told.stderr.strip()[-400:]} {told.stdout.strip()[-400:]}"
        raise BenchError(f"pgbench ended with {told.returncode}: {said}")
    return {Metric.RATE: float(rate[1]), **cpu.per(int(done[1]))}


def _drained(statement: str, units: float, _: Ring, contender: Contender, seconds: float) -> Measured:
    """A whole result, again and again; ``units`` of work each."""
    data = query(statement)
    with Client(contender.address) as client:

        def once() -> int:
            client.socket.sendall(data)
            return client.drain()

        length = once()
        with _undisturbed(), _cpu_of(contender) as cpu:
            lengths, elapsed = _for(seconds, once)
        if set(lengths) != {length}:
            raise BenchError("a result was not as long as the one before")
    return {Metric.RATE: len(lengths) * units / elapsed, **cpu.per(len(lengths) * units)}


def _pipelined(_: Ring, contender: Contender, seconds: float) -> Measured:
    with Client(contender.address) as client:
        client.checked(parse("point", POINT) + SYNC)
        batches = [
            b"".join(run_prepared("point", [str(random.randint(1, ACCOUNTS))]) for _ in range(PIPELINE))
            + SYNC
            for _ in range(64)
        ]
        numbers = iter(range(1 << 62))

        def once() -> int:
            return len(client.ask(batches[next(numbers) % len(batches)]))

        length = len(client.checked(batches[0]))
        _for(_WARM_S, once)
        with _undisturbed(), _cpu_of(contender) as cpu:
            lengths, elapsed = _for(seconds, once)
        if set(lengths) != {length}:
            raise BenchError("not every statement of a pipeline was answered")
    return {Metric.RATE: len(lengths) / elapsed, **cpu.per(len(lengths))}


def _churn(_: Ring, contender: Contender, seconds: float) -> Measured:
    data = query("SELECT 1")

    def once() -> None:
        with Client(contender.address) as client:
            client.ask(data)

    _for(_WARM_S, once)
    with _cpu_of(contender) as cpu:
        done, elapsed = _for(seconds, once)
    return {Metric.RATE: len(done) / elapsed, **cpu.per(len(done))}


def _for(seconds: float, step: Callable[[], T]) -> tuple[list[T], float]:
    """``step`` over and over for so long: its results, and the seconds it took in all."""
    begun = time.perf_counter()
    results = [step()]
    while (elapsed := time.perf_counter() - begun) < seconds:
        results.append(step())
    return results, elapsed


class _Cpu:
    """CPU time of the process between, over the body of ``_cpu_of``."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._begun = cpu_ns(pid) if pid is not None else 0
        self._spent = 0

    def stop(self) -> None:
        if self._pid is not None:
            self._spent = cpu_ns(self._pid) - self._begun

    def per(self, units: float) -> Measured:
        return {Metric.CPU: self._spent / 1e3 / units} if self._pid is not None and units else {}


@contextlib.contextmanager
def _cpu_of(contender: Contender) -> Iterator[_Cpu]:
    cpu = _Cpu(contender.pid)
    yield cpu
    cpu.stop()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection in the client while it measures."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_PLAIN: Final = (Name.DIRECT, Name.PGBOUNCER, Name.PROXY)
_WITH_UNPRICED: Final = (*_PLAIN, Name.UNPRICED)
_WITH_64K: Final = (Name.DIRECT, Name.PGBOUNCER, Name.PGBOUNCER_64K, Name.PROXY)
_TLS: Final = (Name.DIRECT_TLS, Name.PGBOUNCER_TLS, Name.PROXY_TLS)
MODES: Final = ("simple", "extended", "prepared")

SELECT_1: Final = "SELECT 1"
PREPARED_POINT: Final = "prepared point select"
DISTINCT_POINT: Final = "distinct point select"
NUMBERED_POINT: Final = "point select by another number"
PIPELINE_OF_100: Final = "pipeline of 100"
WIDE: Final = "200 MB wide result"
NARROW: Final = "1 M narrow rows"
CHURN: Final = "connect, SELECT 1, leave"


def pgbench_name(mode: str, clients: int) -> str:
    return f"pgbench -S, {mode}, {clients} clients"


LOADS: Final[Sequence[Load]] = (
    Load(SELECT_1, "statement", partial(_latency, _select_one), _WITH_UNPRICED, rows=()),
    Load(PREPARED_POINT, "statement", partial(_latency, _prepared_point), _WITH_UNPRICED),
    Load(DISTINCT_POINT, "statement", partial(_latency, _distinct_point), _WITH_UNPRICED),
    Load(NUMBERED_POINT, "statement", partial(_latency, _numbered_point), _PLAIN),
    *(
        Load(pgbench_name(mode, 8), "transaction", partial(_pgbench, mode, 8), _WITH_UNPRICED)
        for mode in MODES
    ),
    *(Load(pgbench_name(mode, 32), "transaction", partial(_pgbench, mode, 32), _PLAIN) for mode in MODES),
    Load(PIPELINE_OF_100, "pipeline", _pipelined, _WITH_64K),
    Load(
        WIDE,
        "MB",
        partial(_drained, "SELECT body FROM wide", WIDE_ROWS * WIDE_BYTES / 1e6),
        _WITH_64K,
        rows=_WIDE_ROWS,
    ),
    Load(NARROW, "row", partial(_drained, "SELECT aid FROM pgbench_accounts", ACCOUNTS), _WITH_64K),
    Load(CHURN, "connection", _churn, _PLAIN, rows=()),
    Load("SELECT 1, TLS", "statement", partial(_latency, _select_one), _TLS, rows=()),
    Load("pgbench -S, prepared, 8 clients, TLS", "transaction", partial(_pgbench, "prepared", 8), _TLS),
)
_IN_A_MINUTE: Final = (SELECT_1, PREPARED_POINT, *(pgbench_name(mode, 8) for mode in ("simple", "prepared")))
QUICK: Final[Sequence[Load]] = tuple(
    replace(load, contenders=_PLAIN) for load in LOADS if load.name in _IN_A_MINUTE
)
