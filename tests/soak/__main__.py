"""``python -m tests.soak --minutes N``: agents at work, faults at random, and the books balanced at the end.

Exits with 0 where every statement that was sent is accounted for, 1 otherwise, 2 for wrong usage. The seed
that is printed makes the same choices again, at other moments.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.soak.agents import Agent
from tests.soak.books import balance
from tests.soak.faults import FAULTS, Field
from tests.soak.ground import prepared_ground
from tests.support.drivers import DRIVERS


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # A run that is cancelled stops its servers, as by Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"{options.agents} agents, {options.minutes:g} min, a fault every {options.every:g} s, seed {seed}")
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        prepared_ground(options.pg, Path(folder)) as ground,
    ):
        stop = threading.Event()
        agents = [
            Agent(n, DRIVERS[n % len(DRIVERS)], ground.parameters, stop, random.Random(f"{seed}-{n}"))
            for n in range(options.agents)
        ]
        for agent in agents:
            agent.start()
        field = Field(ground, random.Random(seed))
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end and all(agent.is_alive() for agent in agents):
            field.strike()
            time.sleep(options.every)
        stop.set()
        for agent in agents:
            agent.join(120)
        field.close()
        print(
            "faults: "
            + ", ".join(f"{fault.__name__} {field.struck[fault]}" for fault in dict.fromkeys(FAULTS))
        )
        verdict = balance(ground, agents)
    print("\n".join(verdict.table))
    for fault in verdict.faults[:40]:
        print(f"  {fault}")
    print("the books balance" if not verdict.faults else f"{len(verdict.faults)} entries do not fit")
    return 1 if verdict.faults else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="default: two hours")
    parser.add_argument("--agents", type=int, default=8, help="over all drivers in turn; default: 8")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two faults; default: 1")
    parser.add_argument("--pg", type=int, default=18, help="major version of the server; default: 18")
    parser.add_argument("--seed", type=int, help="of an earlier run; default: another each time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
