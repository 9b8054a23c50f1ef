"""Attempts to log in: guesses are slowed down, the right password is not kept out, the log is not flooded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from proxy import logins
from proxy.handshake import DisprovedError, RefusedError
from proxy.logins import Attempts, Logins
from proxy.peers import Alone

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(logins.asyncio, "sleep", self._sleep)

    def __call__(self) -> float:
        return self.now

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def guarding(clock: Callable[[], float] = time.monotonic) -> Logins:
    return Logins(Alone(lambda pid, secret, source: asyncio.sleep(0, False), clock), clock)


def counts(guard: Logins) -> Attempts:
    assert isinstance(guard._counting, Alone)
    return guard._counting._counts.attempts


def wrong(user: str = "bot") -> DisprovedError:
    return DisprovedError("password authentication failed", "28P01", user=user)


async def fails(guard: Logins, source: str = HERE, user: str = "bot", error: Exception | None = None) -> None:
    error = error or wrong(user)
    with pytest.raises(type(error)):
        async with guard.attempt(source, user):
            raise error


def run(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script())


def test_guesses_wait_and_then_are_refused(clock: Clock) -> None:
    async def script() -> None:
        guard = guarding(clock)
        counts(guard).allow(50)
        for _ in range(150):
            await fails(guard)
        assert clock.now == 0
        for _ in range(20):
            await fails(guard)
        assert clock.now == 20  # one a second, each after the one before
        assert counts(guard).throttle.wait_s((HERE, "bot")) == 1

    run(script)


def test_who_is_not_the_guesser_does_not_wait(clock: Clock) -> None:
    async def script() -> None:
        guard = guarding(clock)
        for _ in range(101):
            await fails(guard)
        before = clock.now
        for source, user in ((HERE, "other"), (THERE, "bot")):
            async with guard.attempt(source, user):
                assert clock.now == before

    run(script)


def test_the_right_password_gets_in_among_guesses(clock: Clock) -> None:
    async def script() -> None:
        guard = guarding(clock)
        for _ in range(120):
            await fails(guard)
        async with guard.attempt(HERE, "bot"):
            pass

    run(script)


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("the database server cannot be reached", "57P03"),
        RefusedError("too many connections", "53300"),
        ConnectionResetError(),
        None,
    ],
    ids=["no backend", "no place", "gone", "let in"],
)
def test_what_disproves_nothing_is_not_counted(clock: Clock, error: Exception | None) -> None:
    async def script() -> None:
        guard = guarding(clock)
        for _ in range(1000):
            if error is not None:
                await fails(guard, error=error)
                continue
            async with guard.attempt(HERE, "bot"):
                pass
        assert clock.now == 0
        assert len(counts(guard).throttle) == 0

    run(script)


def test_a_thousand_at_once_are_not_all_the_first() -> None:
    async def script() -> None:
        guard = guarding()
        counts(guard).allow(50)
        inside = refused = 0

        async def guess() -> None:
            nonlocal inside, refused
            try:
                async with guard.attempt(HERE, "bot"):
                    inside += 1
                    await asyncio.Event().wait()
            except RefusedError as error:
                assert error.fields["sqlstate"] == "53300"
                assert not isinstance(error, DisprovedError)
                refused += 1

        tasks = [asyncio.create_task(guess()) for _ in range(1000)]
        await asyncio.sleep(0.05)
        assert inside == 150
        assert refused == 1000 - 150 - 5
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(counts(guard).throttle) == 0

    run(script)


def test_a_name_without_end_is_not_remembered_whole(clock: Clock) -> None:
    async def script() -> None:
        guard = guarding(clock)
        await fails(guard, user="u" * 9000)
        assert [key[1] for key in counts(guard).throttle._counts] == ["u" * 63]  # type: ignore[index]

    run(script)


def test_a_burst_of_failures_is_one_line(clock: Clock) -> None:
    guard = guarding(clock)
    told = [guard.to_tell(HERE, wrong()) for _ in range(50)]
    assert told == [{}] + [None] * 49
    assert guard.to_tell(HERE, wrong("other")) == {}
    assert guard.to_tell(HERE, DisprovedError("no", "28P01", user="bot", reason="another")) == {}
    assert guard.to_tell(THERE, wrong()) == {}
    clock.now += 61
    assert guard.to_tell(HERE, wrong()) == {"left_out": 49}


def test_no_address_floods_the_log_by_making_up_names(clock: Clock) -> None:
    guard = guarding(clock)
    lines = [guard.to_tell(HERE, wrong(f"user{n}")) for n in range(1000)]
    assert sum(line is not None for line in lines) == 100
    clock.now += 2
    assert guard.to_tell(HERE) == {"left_out": 900}
    assert guard.to_tell(THERE) == {}
