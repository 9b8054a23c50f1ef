"""Slices in random order, and what came of them.

Owns the order in which contenders take turns. In a round every load is run once with each of its contenders,
next to each other in time, the loads and the contenders shuffled anew. Knows no workload by name.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.client import ClientError
from bench.contenders import BenchError, Contender, Name, Ring
from bench.figures import FEWEST_SLICES
from bench.loads import Load, Metric


@dataclass(slots=True)
class Slices:
    """Every figure of every slice, by load, metric and contender, in the order of the rounds."""

    rounds: int = 0
    failures: list[str] = field(default_factory=list)
    """Slices that have no figures, and why: the contender hung up, refused, or answered otherwise."""
    taken: dict[str, dict[Metric, dict[Name, list[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )

    def add(self, load: str, contender: Name, measured: Mapping[Metric, float]) -> None:
        for metric, value in measured.items():
            self.taken[load][metric][contender].append(value)

    def of(self, load: str, metric: Metric, contender: Name) -> Sequence[float]:
        """Empty where it was not measured."""
        return self.taken.get(load, {}).get(metric, {}).get(contender, ())


def order(
    loads: Sequence[Load], present: Mapping[Name, Contender], chance: random.Random
) -> list[tuple[Load, list[Contender]]]:
    """One round: every load, and whose turn it is under it."""
    turns = []
    for load in chance.sample(list(loads), len(loads)):
        running = [present[name] for name in load.contenders if name in present]
        turns.append((load, chance.sample(running, len(running))))
    return turns


def measure(
    ring: Ring,
    loads: Sequence[Load],
    *,
    rounds: int,
    seconds: float,
    seed: int,
    within_s: float = math.inf,
    tell: Callable[[str], None] = lambda _: None,
) -> Slices:
    """``rounds`` rounds of slices of ``seconds`` each. ``tell`` hears of each round.

    A round that would end later than ``within_s`` seconds from now is not begun, unless a verdict needs it.
    """
    chance = random.Random(seed)
    slices = Slices()
    begun = time.monotonic()
    for number in range(rounds):
        elapsed = time.monotonic() - begun
        if number >= FEWEST_SLICES and elapsed * (number + 1) / number > within_s:
            tell(f"no time for more than {number} rounds")
            break
        tell(f"round {number + 1} of {rounds}")
        for load, contenders in order(loads, ring.contenders, chance):
            measured = {}
            for contender in contenders:
                try:
                    measured[contender.name] = load.run(ring, contender, seconds)
                except (BenchError, ClientError, OSError) as error:
                    slices.failures.append(f"{load.name}, {contender.name}, round {number + 1}: {error}")
                    tell(slices.failures[-1])
                    break
            else:  # figures are compared within a round, so a round counts for all of a load's contenders
                for name, values in measured.items():
                    slices.add(load.name, name, values)
        slices.rounds += 1
    return slices
