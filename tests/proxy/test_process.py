"""What a process is set to before it serves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from proxy.process import spare_the_collector


class _Node:
    other: _Node


@pytest.fixture
def _collector_as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_collector_as_before")
def test_the_collector_passes_over_what_stays_and_still_finds_cycles() -> None:
    stays = _Node()
    spare_the_collector()
    assert not any(each is stays for each in gc.get_objects())

    ended, other = _Node(), _Node()
    ended.other, other.other = other, ended
    gone = weakref.ref(ended)
    del ended, other
    # More than a pipeline of a hundred statements holds at once, and few enough to be looked at often.
    crowd: list[list[object]] = []
    while gone() is not None and len(crowd) < 100_000:
        crowd.append([])
    assert 2_000 < len(crowd) < 100_000
