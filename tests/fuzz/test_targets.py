"""What the fuzzers begin with, and what they have found, as tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import targets
from tests.fuzz.run import mutate
from tests.fuzz.targets import TARGETS, found


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_former_findings_hold(name: str) -> None:
    for data in [*TARGETS[name].seeds, *found(name)]:
        TARGETS[name].check(data)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_find_nothing(name: str, tmp_path: Path) -> None:
    assert mutate(name, 0.3, tmp_path) == 0


def test_a_finding_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(data: bytes) -> None:
        raise AssertionError(data)

    monkeypatch.setattr(targets, "TARGETS", {"frames": targets.Target(fails, (b"seed",))})
    with pytest.raises(AssertionError):
        mutate("frames", 1, tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("crash-")
