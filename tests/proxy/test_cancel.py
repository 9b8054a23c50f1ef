"""Cancel keys: whose query a request stops, and how little guessing gets anybody."""

from __future__ import annotations

import asyncio

import pytest

from proxy.cancel import CancelRegistry
from proxy.wire.startup import V3_0, V3_2, ProtocolVersion


class Connection:
    """Counts the cancels that reached it."""

    def __init__(self) -> None:
        self.cancels = 0

    async def cancel(self) -> None:
        self.cancels += 1


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(registry: CancelRegistry, pid: int, secret: bytes, source: str = "10.0.0.1") -> bool:
    return asyncio.run(registry.request(pid, secret, source))


@pytest.mark.parametrize(("version", "size"), [(V3_0, 4), (ProtocolVersion(3, 1), 4), (V3_2, 32)])
def test_secrets_are_as_long_as_the_version_allows(version: ProtocolVersion, size: int) -> None:
    registry = CancelRegistry()
    secrets = {registry.register(1, version, Connection()) for _ in range(20)}
    assert {len(secret) for secret in secrets} == {size}
    assert len(secrets) == 20


def test_a_request_reaches_the_connection_it_names_and_no_other() -> None:
    registry = CancelRegistry()
    one, two = Connection(), Connection()
    first, second = registry.register(7, V3_0, one), registry.register(7, V3_2, two)
    assert request(registry, 7, second)
    assert (one.cancels, two.cancels) == (0, 1)
    assert request(registry, 7, first)
    assert (one.cancels, two.cancels) == (1, 1)


@pytest.mark.parametrize(
    "mangle", [lambda s: b"", lambda s: s[:-1], lambda s: s + b"\0", lambda s: s[::-1] + b"x"]
)
def test_a_wrong_secret_reaches_nothing(mangle: object) -> None:
    registry, connection = CancelRegistry(), Connection()
    secret = registry.register(7, V3_2, connection)
    assert callable(mangle)
    assert not request(registry, 7, mangle(secret))
    assert not request(registry, 8, secret)
    assert connection.cancels == 0


def test_a_connection_that_ended_cannot_be_named() -> None:
    registry, gone, there = CancelRegistry(), Connection(), Connection()
    old, new = registry.register(7, V3_0, gone), registry.register(7, V3_0, there)
    registry.forget(7, old)
    assert not request(registry, 7, old)
    assert request(registry, 7, new)
    registry.forget(7, new)
    registry.forget(7, new)
    assert not request(registry, 7, new)
    assert (gone.cancels, there.cancels) == (0, 1)


def test_a_source_that_guesses_is_silenced_and_forgiven_with_time() -> None:
    clock = Clock()
    registry, connection = CancelRegistry(clock), Connection()
    secret = registry.register(7, V3_0, connection)
    for _ in range(50):
        assert not request(registry, 7, b"bad!")
    assert not request(registry, 7, secret)
    assert request(registry, 7, secret, "10.0.0.2")
    clock.now += 1
    assert request(registry, 7, secret)
    assert connection.cancels == 2


def test_the_memory_of_sources_is_bounded() -> None:
    registry = CancelRegistry(Clock())
    for n in range(5000):
        assert not request_quickly(registry, f"source {n}")
    assert len(registry._misses) == 4096


def request_quickly(registry: CancelRegistry, source: str) -> bool:
    """A request that finds nothing never suspends, so it needs no event loop."""
    coroutine = registry.request(1, b"x", source)
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return bool(ended.value)
    raise AssertionError("a request that finds nothing waited")
