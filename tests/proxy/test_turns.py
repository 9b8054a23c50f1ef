"""Shares of the event loop: how much of a chunk is dealt with at once, and who is next."""

from __future__ import annotations

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.turns import FEW, MESSAGES, Turns, share

LEAST = 1024
SYNC = b"S\0\0\0\x04"


def message(size: int) -> bytes:
    return b"Q" + size.to_bytes(4, "big") + b"x" * (size - 4)


def messages_of(data: bytes) -> int:
    count = at = 0
    while at < len(data):
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        count += 1
    return count


@given(st.integers(4, 100_000), st.integers(1, 3_000))
@example(4, 10_000)
@example(255, 2 * MESSAGES)
@example(256, 2 * MESSAGES)
@example(65_536, MESSAGES // 2)
def test_a_share_holds_about_as_many_messages_as_are_dealt_with_at_once(size: int, count: int) -> None:
    data = message(size) * min(count, 1 + 4_000_000 // size)
    taken = share(data)
    assert 0 < taken <= len(data)
    assert taken // (size + 1) <= max(MESSAGES, LEAST // 5)
    if messages_of(data) <= MESSAGES // 2 and len(data) < MESSAGES // 2 * 65_536:
        assert taken == len(data), "whole, where it is little"


def test_what_is_small_is_never_cut() -> None:
    assert share(SYNC * (FEW // 5)) == FEW


def test_the_end_of_a_long_message_counts_as_one() -> None:
    data = b"\0" * 50_000 + SYNC * 1_000
    assert share(data, expected=50_000) >= 50_000
    assert share(data) <= LEAST


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_each_agent_has_one_share_in_each_turn_and_its_own_are_kept_in_order(agents: list[str]) -> None:
    done: list[tuple[str, int]] = []
    loops = 0

    async def main() -> None:
        nonlocal loops
        turns = Turns()
        for n, agent in enumerate(agents):
            turns.later(agent, lambda agent=agent, n=n: done.append((agent, n)))  # type: ignore[misc]
        while len(done) < len(agents):
            before = len(done)
            await asyncio.sleep(0)
            loops += 1
            served = [agent for agent, _ in done[before:]]
            assert len(served) == len(set(served))

    asyncio.run(main())
    assert loops == max(map(agents.count, "abc"))
    for agent in "abc":
        assert [n for name, n in done if name == agent] == [
            n for n, each in enumerate(agents) if each == agent
        ]


def test_what_comes_up_in_its_turn_goes_behind_what_waits() -> None:
    done: list[str] = []

    async def main() -> None:
        turns = Turns()

        def first() -> None:
            done.append("first")
            turns.later("a", lambda: done.append("more"))

        turns.later("a", first)
        turns.later("a", lambda: done.append("second"))
        for _ in range(4):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert done == ["first", "second", "more"]
