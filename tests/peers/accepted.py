"""The differences between direct and through that remain, each with its reason and the test that pins it.

A name listed here that no longer differs is a fault too: the list only ever says what is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.peers.suite import Road


@dataclass(frozen=True, slots=True)
class Accepted:
    """``pinned_by`` is a test of the ordinary suite, as ``tests/…py::test_name``."""

    suite: str
    test: str
    roads: tuple[Road, ...]
    reason: str
    pinned_by: str


ACCEPTED: Final[tuple[Accepted, ...]] = ()
