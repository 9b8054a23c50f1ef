"""The benchmark's arithmetic: what it calls a median, a ratio, growth, and when it keeps silent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import (
    FEWEST_SLICES,
    NOISE_LIMIT,
    Better,
    Verdict,
    growth,
    judge,
    quartiles,
    ratios,
    steepness,
    summarise,
)

POSITIVE = st.floats(min_value=1e-3, max_value=1e9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [((7.0,), (7, 7, 7)), ((1.0, 3.0), (1.5, 2, 2.5)), ((5.0, 1.0, 3.0, 2.0, 4.0), (2, 3, 4))],
)
def test_quartiles(values: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert quartiles(values) == expected


@pytest.mark.parametrize(("better", "best"), [(Better.LOWER, 2.0), (Better.HIGHER, 4.0)])
def test_the_best_quartile_is_on_the_better_side(better: Better, best: float) -> None:
    told = summarise((5.0, 1.0, 3.0, 2.0, 4.0), better)
    assert (told.median, told.best_quartile, told.slices) == (3, best, 5)
    assert told.spread == pytest.approx(2 / 3)


@given(st.lists(POSITIVE, min_size=1), POSITIVE)
def test_spread_does_not_depend_on_the_unit(values: list[float], unit: float) -> None:
    there = summarise(values, Better.LOWER).spread
    assert summarise([value * unit for value in values], Better.LOWER).spread == pytest.approx(
        there, rel=1e-9, abs=1e-6
    )


def test_ratios_are_made_within_a_round() -> None:
    # The machine is ten times slower in the second round; the ratio does not see it.
    assert ratios((2.0, 20.0), (1.0, 10.0)) == (2, 2)


def test_ratios_of_what_is_added() -> None:
    assert ratios((50.0, 60.0), (40.0, 45.0), (30.0, 30.0)) == (2, 2)


def test_a_round_in_which_the_reference_adds_nothing_is_left_out() -> None:
    assert ratios((50.0, 60.0), (29.0, 45.0), (30.0, 30.0)) == (2,)


def test_rounds_of_different_number_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratios((1.0, 2.0), (1.0,), (0.0, 0.0))


@pytest.mark.parametrize(
    ("found", "limit", "better", "noise", "verdict"),
    [
        ((1.0, 1.05, 1.1), 1.1, Better.LOWER, 0.02, Verdict.MET),
        ((1.2, 1.3, 1.4), 1.1, Better.LOWER, 0.02, Verdict.MISSED),
        ((1.0, 1.05, 1.3), 1.1, Better.LOWER, 0.02, Verdict.TOO_CLOSE),
        ((0.9, 0.95, 1.0), 0.85, Better.HIGHER, 0.02, Verdict.MET),
        ((0.5, 0.6, 0.7), 0.85, Better.HIGHER, 0.02, Verdict.MISSED),
        ((0.8, 0.84, 0.9), 0.85, Better.HIGHER, 0.02, Verdict.TOO_CLOSE),
        ((1.0, 1.0, 1.0), 1.1, Better.LOWER, NOISE_LIMIT + 0.01, Verdict.TOO_NOISY),
        ((9.0, 9.0, 9.0), 1.1, Better.LOWER, NOISE_LIMIT + 0.01, Verdict.TOO_NOISY),
        ((1.0, 1.0, 1.0), 1.1, Better.LOWER, math.inf, Verdict.TOO_NOISY),
        ((1.0,) * (FEWEST_SLICES - 1), 1.1, Better.LOWER, 0.0, Verdict.TOO_FEW),
        ((), 1.1, Better.LOWER, 0.0, Verdict.TOO_FEW),
    ],
)
def test_verdicts(
    found: tuple[float, ...], limit: float, better: Better, noise: float, verdict: Verdict
) -> None:
    assert judge(found, limit, better, noise) is verdict


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_growth_finds_the_exponent(exponent: float) -> None:
    sizes = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
    assert growth(sizes, [3 * size**exponent for size in sizes]) == pytest.approx(exponent)


def test_growth_is_not_hidden_by_a_fixed_cost() -> None:
    sizes = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
    assert growth(sizes, [1e6 + size**2 for size in sizes]) > 1.5


def test_growth_of_two_points() -> None:
    assert growth((10.0, 20.0), (5.0, 20.0)) == pytest.approx(2)


def test_steepness() -> None:
    assert steepness((4.0, 5.0, 3.0)) == 1.25
