"""Counting who does a thing how often, by a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.throttle import Lines, Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_so_many_at_once_then_so_many_a_second() -> None:
    clock = Clock()
    throttle = Throttle(3, 0.5, clock=clock)
    waits = []
    for _ in range(5):
        waits.append(throttle.wait_s("a"))
        throttle.add("a")
    assert waits == [0, 0, 0, 2, 4]
    assert throttle.wait_s("b") == 0
    clock.now += 6
    assert throttle.wait_s("a") == 0
    throttle.add("a")
    assert throttle.wait_s("a") == 2


def test_what_is_taken_back_does_not_count() -> None:
    throttle = Throttle(1, 1, clock=Clock())
    throttle.add("a")
    assert throttle.wait_s("a") == 1
    throttle.add("a", -1)
    assert throttle.wait_s("a") == 0
    assert len(throttle) == 0


def test_only_so_many_are_remembered_the_latest() -> None:
    throttle = Throttle(1, 1, keys=10, clock=Clock())
    for n in range(100):
        throttle.add("victim" if n == 95 else n)
    assert len(throttle) == 10
    assert throttle.wait_s("victim") == 1
    assert throttle.wait_s(1) == 0


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=60))
def test_over_any_time_no_more_than_the_rate_gets_through(steps: list[tuple[float, bool]]) -> None:
    clock, done = Clock(), 0
    throttle = Throttle(5, 2, clock=clock)
    for pause, tries in steps:
        clock.now += pause
        if tries and throttle.wait_s("a") == 0:
            throttle.add("a")
            done += 1
    assert done <= 5 + 2 * (clock.now - 1000) + 1e-6


def test_a_line_for_a_burst_and_how_many_it_stands_for() -> None:
    clock = Clock()
    lines = Lines(1, 1 / 60, clock=clock)
    assert [lines.admit("a") for _ in range(4)] == [0, None, None, None]
    assert lines.admit("b") == 0
    clock.now += 61
    assert lines.admit("a") == 3
    clock.now += 61
    assert lines.admit("a") == 0


@pytest.mark.parametrize("key", ["a", ("a", "b")])
def test_left_out_lines_are_counted_in_bounded_memory(key: object) -> None:
    lines = Lines(1, 1 / 60, clock=Clock())
    for n in range(10_000):
        lines.admit(n)
        lines.admit(n)
    assert len(lines._left_out) == 4096
