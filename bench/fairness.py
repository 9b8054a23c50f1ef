"""``python -m bench.fairness``: what one agent's worst statements make another one wait.

Owns the hostile loads and the comparison. A neighbour runs a prepared point select through the proxy; its
waits with and without the hostile agent are taken in slices next to each other in time, because on a shared
machine only their ratio means anything. In a third slice the hostile agent sends the same straight to
PostgreSQL: what the neighbour waits then is the machine's doing and PostgreSQL's, which no proxy could spare
it. The hostile agent has processes of its own, and every text it sends is new. Exit code 0 whatever the
ratios.
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
from typing import Final, NamedTuple

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
    "GRANT SELECT ON ten TO PUBLIC",
)
_END_HOSTILE: Final = f"""
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = '{HOSTILE}'
"""
"""A server that plans hundreds of joins does not notice that nobody waits for it any more."""


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
    # Judged on the event loop, until they are found to take long; then in a thread.
    "an OR of 400 bytes": _or(38),
    "an OR of 4,000 bytes": _or(330),
    # Judged in a process of its own.
    "an OR of 15 KiB": _or(1_200),
    "a list of 15 KiB": _in(1_900),
    "forty joins": _joins(40),
    "three hundred joins": _joins(300),
    "three hundred unknown columns": _unknown(300),
    "four hundred nested calls": _calls(400),
    "what does not parse, 15 KiB": lambda n: query("SELECT (" * 1_800 + str(n)),
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
            for statement in (
                f"CREATE ROLE {USER} LOGIN",
                f"CREATE ROLE {HOSTILE} LOGIN",
                f"CREATE DATABASE {DATABASE} OWNER {USER}",
            ):
                maintenance.checked(query(statement))
        with Client(Address(server.port, USER, DATABASE)) as owner:
            for statement in _ROWS:
                owner.checked(query(statement))
        with run_proxy(Path(folder), server.port, strict(), further=(HOSTILE,)) as (_, port):
            print(
                f"{'':<28} {'quiet p99':>10} {'p99':>10} {'ratio':>7} {'longest':>10} {'sent/s':>8}"
                f" {'machine p99':>12} {'ratio':>7}"
            )
            ports = _Ports(port, server.port, Address(server.port, server.superuser, "postgres"))
            for name, load in chosen.items():
                print(_row(name, load, ports, options.seconds, options.rounds), flush=True)
    return 0


class _Slice(NamedTuple):
    """The neighbour's waits beside a hostile load, in seconds, and how much of that was answered."""

    waits: list[float]
    sent: int


class _Ports(NamedTuple):
    """Where the loads go; ``maintenance`` is for whoever may end what they leave running in the server."""

    proxy: int
    server: int
    maintenance: Address


def _row(name: str, load: Callable[[int], bytes], ports: _Ports, seconds: float, rounds: int) -> str:
    quiet, hostile, machine = [], [], []
    for _ in range(rounds):
        quiet.append(_p99(_waits(ports.proxy, seconds)))
        hostile.append(_beside(load, Address(ports.proxy, HOSTILE, DATABASE), ports.proxy, seconds))
        machine.append(_beside(load, Address(ports.server, HOSTILE, DATABASE), ports.proxy, seconds))
        with Client(ports.maintenance) as maintenance:
            maintenance.checked(query(_END_HOSTILE))
    ratio = _ratio(hostile, quiet)
    alone = _ratio(machine, quiet)
    longest = max(wait for each in hostile for wait in each.waits)
    sent = sum(each.sent for each in hostile) / rounds / seconds
    if ratio <= LIMIT:
        verdict = ""
    else:
        verdict = f"  over {LIMIT:g}" + (", and so it is without the proxy" if alone > LIMIT else "")
    return (
        f"{name:<28} {statistics.median(quiet) * 1e3:>7.2f} ms {_median_p99(hostile) * 1e3:>7.2f} ms"
        f" {ratio:>6.1f}x {longest * 1e3:>7.1f} ms {sent:>8.1f}"
        f" {_median_p99(machine) * 1e3:>9.2f} ms {alone:>6.1f}x{verdict}"
    )


def _ratio(slices: Sequence[_Slice], quiet: Sequence[float]) -> float:
    return statistics.median(_p99(each.waits) / p99 for each, p99 in zip(slices, quiet, strict=True))


def _median_p99(slices: Sequence[_Slice]) -> float:
    return statistics.median(_p99(each.waits) for each in slices)


def _beside(load: Callable[[int], bytes], address: Address, port: int, seconds: float) -> _Slice:
    """A slice of the neighbour at ``port`` while ``load`` is sent to ``address``."""
    count = multiprocessing.Value("l", 0)
    senders = [
        multiprocessing.Process(target=_send, args=(load, address, count), daemon=True)
        for _ in range(_CONNECTIONS)
    ]
    for sender in senders:
        sender.start()
    time.sleep(0.3)
    begun = count.value
    waits = _waits(port, seconds)
    sent = count.value - begun
    for sender in senders:
        sender.terminate()
        sender.join()
    return _Slice(waits, sent)


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


def _send(load: Callable[[int], bytes], address: Address, count: Sequence[int]) -> None:
    """Send new texts of ``load`` for as long as this process lives; a refusal is an answer like any other."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    chosen = random.Random()
    while True:
        with suppress(ClientError, OSError), Client(address) as client:
            while True:
                client.socket.sendall(load(chosen.randrange(10**6)))
                with suppress(ClientError):
                    client.drain()
                count.value += 1  # type: ignore[attr-defined]  # a shared number


if __name__ == "__main__":
    sys.exit(main())
