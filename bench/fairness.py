"""``python -m bench.fairness``: what one agent's worst statements make another one wait.

Owns the hostile loads and the comparison. A neighbour runs a prepared point select; its waits with and
without the hostile agent are taken in slices next to each other in time, because on a shared machine only
their ratio means anything. The hostile agent has processes of its own, and every text it sends is new. Exit
code 0 whatever the ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench.client import SYNC, Address, Client, ClientError, parse, query, run_prepared
from bench.contenders import DATABASE, USER, run_proxy
from bench.policies import strict
from proxy.embedded import EmbeddedPostgres

HOSTILE: Final = "hostile"
LIMIT: Final = 10.0
"""How many times longer than when it is quiet a neighbour may wait, at the 99th percentile."""
_CONNECTIONS: Final = 2
_QUIET: Final = "quiet"
_ROWS: Final = (
    "CREATE TABLE ten (n int PRIMARY KEY, m int)",
    "INSERT INTO ten SELECT g, g FROM generate_series(1, 10) g",
)


def _or(terms: int) -> Callable[[int], bytes]:
    return lambda n: query(f"SELECT {n} WHERE " + " OR ".join(f"m={k}" for k in range(n, n + terms)))


def _in(terms: int) -> Callable[[int], bytes]:
    return lambda n: query(f"SELECT n FROM ten WHERE m IN ({', '.join(map(str, range(n, n + terms)))})")


def _joins(count: int) -> Callable[[int], bytes]:
    tables = ", ".join(f"ten t{k}" for k in range(count))
    pairs = " AND ".join(f"t{k}.n = t{k + 1}.n" for k in range(count - 1))
    return lambda n: query(f"SELECT t0.n FROM {tables} WHERE {pairs} AND t0.m = {n}")


def _unknown(count: int) -> Callable[[int], bytes]:
    tables = ", ".join(f"ten t{k}" for k in range(count))
    columns = ", ".join(f"t{k}.mm" for k in range(count))
    return lambda n: query(f"SELECT {columns} FROM {tables} WHERE t0.m = {n}")


def _calls(count: int) -> Callable[[int], bytes]:
    return lambda n: query("SELECT " + "length(" * count + f"'{n}'" + "::text)" * count)


HOSTILE_LOADS: Final[Mapping[str, Callable[[int], bytes]]] = {
    # As long as what is judged on the event loop may be.
    "an OR of 15 KiB": _or(1_200),
    "a list of 15 KiB": _in(1_900),
    "forty joins": _joins(40),
    "three hundred joins": _joins(300),
    "three hundred unknown columns": _unknown(300),
    "four hundred nested calls": _calls(400),
    "what does not parse, 15 KiB": lambda n: query("SELECT (" * 1_800 + str(n)),
    # Judged in a process of its own.
    "a list of 900 KiB": _in(130_000),
    "an OR of 900 KiB": _or(100_000),
    "parentheses, 20,000 deep": lambda n: query("SELECT " + "(" * 20_000 + str(n) + ")" * 20_000),
    "a text over the limit": lambda n: query(f"SELECT '{n}{'x' * 1_100_000}'"),
    # Nothing to judge: bytes.
    "a thousand empty pipelines": lambda _: SYNC * 1_000,
    "values of 8 MiB": lambda n: (
        parse("", f"SELECT length($1) + {n}") + run_prepared("", ["x" * (8 << 20)]) + SYNC
    ),
    "results of 20 MB": lambda n: query(f"SELECT repeat('x', 10000), {n} FROM generate_series(1, 2000)"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a slice; default: 2")
    parser.add_argument("--rounds", type=int, default=3, help="slices of each; default: 3")
    parser.add_argument("--only", default="", metavar="TEXT", help="loads whose name holds TEXT")
    options = parser.parse_args(arguments)
    chosen = {name: load for name, load in HOSTILE_LOADS.items() if options.only in name}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    files = {"pg_hba.conf": b"host all all 127.0.0.1/32 trust\n"}
    with tempfile.TemporaryDirectory(prefix="fairness-") as folder, EmbeddedPostgres(files=files) as server:
        with Client(Address(server.port, server.superuser, "postgres")) as maintenance:
            for statement in (f"CREATE ROLE {USER} LOGIN", f"CREATE DATABASE {DATABASE} OWNER {USER}"):
                maintenance.checked(query(statement))
        with Client(Address(server.port, USER, DATABASE)) as owner:
            for statement in _ROWS:
                owner.checked(query(statement))
        with run_proxy(Path(folder), server.port, strict(), further=(HOSTILE,)) as (_, port):
            print(f"{'':<28} {'quiet p99':>10} {'p99':>10} {'ratio':>7} {'longest':>10} {'sent/s':>8}")
            for name, load in chosen.items():
                print(_row(name, load, port, options.seconds, options.rounds), flush=True)
    return 0


def _row(name: str, load: Callable[[int], bytes], port: int, seconds: float, rounds: int) -> str:
    ratios, quiet_p99, hostile_p99, longest, sent = [], [], [], 0.0, 0
    for _ in range(rounds):
        quiet = _waits(port, seconds)
        count = multiprocessing.Value("l", 0)
        senders = [
            multiprocessing.Process(target=_send, args=(load, port, count), daemon=True)
            for _ in range(_CONNECTIONS)
        ]
        for sender in senders:
            sender.start()
        time.sleep(0.3)
        begun = count.value
        waits = _waits(port, seconds)
        sent += count.value - begun
        for sender in senders:
            sender.terminate()
            sender.join()
        quiet_p99.append(_p99(quiet))
        hostile_p99.append(_p99(waits))
        ratios.append(hostile_p99[-1] / quiet_p99[-1])
        longest = max(longest, *waits)
    ratio = statistics.median(ratios)
    verdict = "" if ratio <= LIMIT else f"  over {LIMIT:g}"
    before, after = statistics.median(quiet_p99) * 1e3, statistics.median(hostile_p99) * 1e3
    return (
        f"{name:<28} {before:>7.2f} ms {after:>7.2f} ms {ratio:>6.1f}x {longest * 1e3:>7.1f} ms"
        f" {sent / rounds / seconds:>8.1f}{verdict}"
    )


def _waits(port: int, seconds: float) -> list[float]:
    """How long each point select took, in seconds."""
    waits = []
    with Client(Address(port, USER, DATABASE)) as client:
        client.checked(parse("s", "SELECT m FROM ten WHERE n = $1") + SYNC)
        asked = run_prepared("s", ["7"]) + SYNC
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            client.ask(asked)
            waits.append(time.perf_counter() - began)
    return waits


def _p99(waits: Sequence[float]) -> float:
    return sorted(waits)[int(len(waits) * 0.99)]


def _send(load: Callable[[int], bytes], port: int, count: Sequence[int]) -> None:
    """Send new texts of ``load`` for as long as this process lives; a refusal is an answer like any other."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    chosen = random.Random()
    while True:
        with suppress(ClientError, OSError), Client(Address(port, HOSTILE, DATABASE)) as client:
            while True:
                client.socket.sendall(load(chosen.randrange(10**6)))
                with suppress(ClientError):
                    client.drain()
                count.value += 1  # type: ignore[attr-defined]  # a shared number


if __name__ == "__main__":
    sys.exit(main())
