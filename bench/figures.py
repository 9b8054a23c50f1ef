"""What slices add up to: medians, spreads, ratios of pairs, growth, and when there is nothing to say.

Pure arithmetic over numbers. Knows no process, no workload and no target.

A machine that others use drifts from minute to minute, so figures of two contenders are compared within a
round, where their slices stand next to each other, and the ratios of the rounds are what is summed up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

FEWEST_SLICES: Final = 3
"""Below this many rounds no verdict is given."""
NOISE_LIMIT: Final = 0.15
"""Spread of the direct slices above which the machine was too noisy for a verdict."""


class Better(StrEnum):
    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure of one contender over its slices.

    ``best_quartile`` is the quartile on the better side. ``spread`` is the distance between the quartiles
    as a share of the median.
    """

    median: float
    best_quartile: float
    spread: float
    slices: int


class Verdict(StrEnum):
    """``TOO_CLOSE``: the limit lies between the quartiles of the rounds' ratios."""

    MET = "met"
    MISSED = "missed"
    TOO_CLOSE = "too close to tell"
    TOO_NOISY = "too noisy to tell"
    TOO_FEW = "too few slices to tell"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile, by linear interpolation. ``values`` is not empty."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def summarise(values: Sequence[float], better: Better) -> Summary:
    """``values`` is not empty, one figure a slice."""
    low, middle, high = quartiles(values)
    return Summary(
        median=middle,
        best_quartile=low if better is Better.LOWER else high,
        spread=(high - low) / abs(middle) if middle else math.inf,
        slices=len(values),
    )


def ratios(
    ours: Sequence[float], theirs: Sequence[float], less: Sequence[float] | None = None
) -> tuple[float, ...]:
    """``ours`` / ``theirs`` of each round. With ``less`` both are what they add to it.

    A round in which the divisor is not positive says nothing and is left out: a proxy that seems to add
    nothing was measured in noise.
    """
    base = less if less is not None else [0.0] * len(ours)
    rounds = zip(ours, theirs, base, strict=True)
    return tuple((our - zero) / (their - zero) for our, their, zero in rounds if their > zero)


def judge(found: Sequence[float], limit: float, better: Better, noise: float) -> Verdict:
    """Whether ratios ``found``, one a round, keep ``limit``. ``noise`` is the spread of the direct slices."""
    if len(found) < FEWEST_SLICES:
        return Verdict.TOO_FEW
    if noise > NOISE_LIMIT:
        return Verdict.TOO_NOISY
    low, _, high = quartiles(found)
    if better is Better.HIGHER:
        low, high, limit = -high, -low, -limit
    if high <= limit:
        return Verdict.MET
    return Verdict.MISSED if low > limit else Verdict.TOO_CLOSE


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent by which ``costs`` grow with ``sizes`` where they grow fastest: 1 is linear.

    Both are positive, in order of size, and there are two at least. Between neighbours, because a fixed cost
    hides growth in a line drawn through all; so the sizes should be a factor of three apart or more, or noise
    makes an exponent of its own.
    """
    points = [(math.log(size), math.log(cost)) for size, cost in zip(sizes, costs, strict=True)]
    return max((after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(points))


def steepness(costs: Sequence[float]) -> float:
    """How much dearer the dearest point of a curve is than its first: 1 is flat."""
    return max(costs) / costs[0]
