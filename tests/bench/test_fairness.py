"""The hostile loads are what they are called: whole messages, new each time, of the size that is told."""

from __future__ import annotations

import pytest

from bench.fairness import HOSTILE_LOADS
from policy.parse import parse
from proxy.judges import LARGE
from proxy.wire.frames import FrontendFrames
from proxy.wire.frontend import decode_query


@pytest.mark.parametrize("name", HOSTILE_LOADS)
def test_every_send_is_whole_and_new(name: str) -> None:
    first, second = HOSTILE_LOADS[name](700_007), HOSTILE_LOADS[name](700_008)
    assert first != second or name == "a thousand empty pipelines"
    frames, kinds = FrontendFrames(1 << 24), ""
    frames.feed(first)
    while kind := frames.next_frame():
        kinds += chr(kind)
    assert not frames.pending
    assert kinds[-1] in "QS"


@pytest.mark.parametrize("name", [name for name, load in HOSTILE_LOADS.items() if load(7)[:1] == b"Q"])
def test_what_is_judged_where(name: str) -> None:
    text = decode_query(HOSTILE_LOADS[name](700_007)[5:])
    small = "bytes" in name or "forty joins" in name or "results" in name
    assert (len(text) <= LARGE) is small
    if len(text) < 1 << 16:
        assert (parse(text).failure is not None) is ("does not parse" in name or "20,000" in name)
