"""``python -m bench``: the command line.

Owns what is run in which order and where the results go. Exit code 0 whatever the speed: a benchmark that
fails on slowness would measure the neighbours. 1 where a contender failed in a slice, 2 where nothing could
be run, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import loads as workloads
from bench import report
from bench.client import ClientError
from bench.cold import load_agents, measure_cold
from bench.contenders import BenchError, Name, Ring, run_ring
from bench.curves import CURVES, idle_memory
from bench.loads import LOADS, QUICK, Load
from bench.processes import supported
from bench.publish import publish
from bench.run import measure
from proxy.embedded import EmbeddedPostgresError

_SLICE_S: Final = 2.0
_ROUNDS: Final = 7
_QUICK_ROUNDS: Final = 2
_ROUNDS_S: Final = 16 * 60.0
_SEED_BELOW: Final = 10**6


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    try:
        told = _run(options)
    except KeyboardInterrupt:
        return 130
    except (BenchError, ClientError, EmbeddedPostgresError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print("\n".join(report.render(told)))
    if options.publish and not told["failures"]:
        publish(told)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if told["failures"] else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Direct, PgBouncer and the proxy side by side."
    )
    parser.add_argument(
        "--quick", action="store_true", help="the main figures in a minute; too few for a verdict"
    )
    parser.add_argument("--only", metavar="TEXT", action="append", help="workloads whose name holds TEXT")
    parser.add_argument("--rounds", type=_positive, help=f"default {_ROUNDS}, quick {_QUICK_ROUNDS}")
    parser.add_argument(
        "--seconds", type=float, default=_SLICE_S, help="measured seconds a slice (default 2)"
    )
    parser.add_argument("--seed", type=int, help="of the order of slices; printed, else drawn")
    parser.add_argument("--no-curves", action="store_true", help="leave out how the cost grows")
    parser.add_argument(
        "--publish", action="store_true", help="keep the report in bench/results and README.md"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _run(options: argparse.Namespace) -> dict[str, Any]:
    if options.publish and (options.quick or options.only or options.no_curves):
        raise BenchError("--publish keeps whole reports: leave out --quick, --only and --no-curves")
    if not supported():
        raise BenchError("CPU time and memory are read from Linux's /proc, which is not here")
    chosen = _chosen(options)
    seed = options.seed if options.seed is not None else secrets.randbelow(_SEED_BELOW)
    rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    begun = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="pgturnstile-bench-") as scratch, _ring(Path(scratch)) as ring:
        told: dict[str, Any] = {
            "version": report.VERSION,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": seed,
            "rounds": rounds,
            "seconds": options.seconds,
            "configuration": report.configuration(ring),
        }
        for contender in ring.contenders.values():
            if contender.pid is not None and contender.address.tls is None:
                tell(f"{contender.name}: process {contender.pid}, port {contender.address.port}")
        tell(f"seed {seed}; loading rows")
        workloads.prepare(ring, chosen)
        chosen = [load for load in chosen if ring.pgbench is not None or not load.name.startswith("pgbench")]
        slices = measure(
            ring, chosen, rounds=rounds, seconds=options.seconds, seed=seed, within_s=_ROUNDS_S, tell=tell
        )
        told["rounds"] = slices.rounds
        told["failures"] = slices.failures
        told["loads"] = report.loads_of(slices, chosen)
        told["targets"] = report.targets_of(slices)
        if not (options.quick or options.only):
            told |= _beyond_slices(ring, curves=not options.no_curves, tell=tell)
        tell("done")
    return told


def _beyond_slices(ring: Ring, *, curves: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """What is not measured turn about."""
    tell("statements never seen before")
    load_agents(ring.direct(), ring.server.superuser)
    told: dict[str, Any] = {"cold": measure_cold(ring), "idle_memory": {}, "curves": []}
    tell(f"memory of {report.IDLE} idle connections")
    for name in (Name.PGBOUNCER, Name.PROXY):
        if name in ring.contenders:
            told["idle_memory"][name] = idle_memory(ring.contenders[name], report.IDLE)
    for curve in CURVES if curves else ():
        tell(f"growth: {curve.__name__.replace('_', ' ')}")
        told["curves"].append(curve(ring).as_json())
    return told


def _ring(folder: Path) -> Any:
    folder.chmod(0o755)  # PgBouncer steps down from root and reads its certificate as nobody
    return run_ring(folder)


def _chosen(options: argparse.Namespace) -> Sequence[Load]:
    if options.only:
        found = [load for load in LOADS if any(text in load.name for text in options.only)]
        if not found:
            names = "\n  ".join(load.name for load in LOADS)
            raise BenchError(f"no workload's name holds {' or '.join(options.only)}; there are\n  {names}")
        return found
    return QUICK if options.quick else LOADS


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    sys.exit(main())
