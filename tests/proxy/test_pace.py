"""What may be judged on the event loop, by how long an agent's texts take."""

from __future__ import annotations

import pytest

from policy import loader
from proxy import gate as gates
from proxy.gate import Gate
from proxy.pace import AT_ONCE_S, Pace
from tests.policy.rules.schema import WRITER, names

POLICY = loader.load(WRITER, "writer.yaml")


def largest(pace: Pace) -> int:
    return next(size for size in range(10_000) if not pace.allows(size + 1))


def test_texts_that_take_little_may_be_larger() -> None:
    pace = Pace()
    at_first = largest(pace)
    assert 400 <= at_first <= 500
    for _ in range(40):
        pace.took(200, 0.000_3)
    assert largest(pace) > 1.5 * at_first
    for _ in range(40):
        pace.took(200, 0.002)
    assert 80 < largest(pace) < 120
    for _ in range(40):
        pace.took(20, 1_000 * AT_ONCE_S)
    assert pace.allows(80), "a small one is judged at once whatever the others took"


def test_one_that_takes_long_does_not_change_everything() -> None:
    pace = Pace()
    pace.took(8, 1_000 * AT_ONCE_S)
    assert pace.allows(300)


def test_an_agent_whose_texts_take_long_is_judged_elsewhere_and_no_other_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = iter(n * 0.004 for n in range(1_000))
    slow, other = Gate(POLICY, "slow", 1 << 20), Gate(POLICY, "other", 1 << 20)
    text = b"SELECT id, total FROM orders WHERE id IN (" + b", ".join(b"%d" % n for n in range(60)) + b")"
    monkeypatch.setattr(gates.time, "thread_time", lambda: next(cpu))
    ruled = 0
    while slow.rule(text, names("public")) is not None:
        ruled += 1
        assert ruled < 10
    monkeypatch.setattr(gates.time, "thread_time", lambda: 0.0)
    assert other.rule(text, names("public")) is not None
    while slow.rule(text, names("public")) is None:
        assert slow.rule_slowly(text, names("public")).allowed, "and where they take little again, here"
        ruled += 1
        assert ruled < 40
