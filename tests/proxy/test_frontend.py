"""Decoding what an agent sends: exactly, wherever in the bytes at hand it stands, or not at all."""

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.frontend import MalformedMessage, decode_bind


class Sent(NamedTuple):
    portal: bytes
    statement: bytes
    formats: list[int]
    values: list[bytes | None]
    results: list[int]

    @property
    def body(self) -> bytes:
        formats, results = (
            struct.pack(f"!H{len(codes)}H", len(codes), *codes) for codes in (self.formats, self.results)
        )
        given_ = [b"\xff\xff\xff\xff" if v is None else struct.pack("!i", len(v)) + v for v in self.values]
        values = struct.pack("!H", len(self.values)) + b"".join(given_)
        return b"\0".join((self.portal, self.statement, formats + values + results))


NAMES = st.binary(max_size=5).map(lambda name: name.replace(b"\0", b"x"))
FORMATS = st.lists(st.integers(0, 1), max_size=4)
BINDS = st.builds(
    Sent, NAMES, NAMES, FORMATS, st.lists(st.none() | st.binary(max_size=6), max_size=4), FORMATS
)


@given(BINDS, st.binary(max_size=9), st.binary(max_size=9))
def test_a_bind_is_read_in_place(sent: Sent, before: bytes, behind: bytes) -> None:
    start, end = len(before), len(before) + len(sent.body)
    found = decode_bind(before + sent.body + behind, start, end)
    assert (found.portal, found.statement) == (sent.portal, sent.statement)
    assert (found.formats, found.values) == (tuple(sent.formats), tuple(sent.values))


@given(BINDS, st.binary(min_size=1, max_size=20), st.data())
def test_what_is_around_a_bind_does_not_complete_it(sent: Sent, around: bytes, data: st.DataObject) -> None:
    """A frame that ends too early or too late, with the bytes that it lacks right behind it."""
    whole, right = around + sent.body + around, len(around) + len(sent.body)
    end = data.draw(st.integers(len(around), len(whole)).filter(lambda at: at != right))
    with pytest.raises(MalformedMessage):
        decode_bind(whole, len(around), end)


@given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_any_bytes_give_a_bind_that_keeps_within_them_or_none(data: bytes, start: int, end: int) -> None:
    start, end = sorted((min(start, len(data)), min(end, len(data))))
    with contextlib.suppress(MalformedMessage):
        found = decode_bind(data, start, end)
        assert start < end
        assert all(start <= span[0] <= span[1] <= end for span in found.spans if span is not None)
