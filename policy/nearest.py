"""Names that look like a given name.

Owns the measure of likeness behind "did you mean". Knows no catalog and no policy. Made for one unknown word
against some ten thousand known ones: two cheap bounds discard nearly all of them before any distance is
counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

LONGEST = 63
"""PostgreSQL's names end here; longer text is cut before it is compared."""
_SHAPES: Final = 16_384
"""Names whose shape is remembered: every word is compared with the same ones."""


def nearest(word: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """At most ``limit`` of ``known`` that are like ``word``, the nearest first, ties in alphabetical order.

    A name equal but for case and underscores comes before every other; beyond some edits for its length a
    name counts as another word, unless one of both is the other with words added (``customer``,
    ``customer_name``).
    """
    plain, letters = _shape(word)
    allowed = _allowed(plain)
    ranked: list[tuple[int, str]] = []
    for name in known:
        other, others = _shape(name)
        if abs(len(other) - len(plain)) <= allowed and (letters ^ others).bit_count() <= 2 * allowed:
            edits = distance(plain, other, allowed)
            if edits is not None:
                ranked.append((edits, name))
                continue
        if _extends(word, name):
            ranked.append((allowed + 1 + abs(len(other) - len(plain)), name))
    ranked.sort()
    return tuple(name for _, name in ranked[:limit])


def distance(left: str, right: str, bound: int) -> int | None:
    """Insertions, deletions, substitutions and swaps of neighbours that turn ``left`` into ``right``.

    None where more than ``bound`` are needed.
    """
    before_last: list[int] = []
    last = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        row = [i]
        for j, b in enumerate(right, 1):
            edits = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                edits = min(edits, before_last[j - 2] + 1)
            row.append(edits)
        if min(row) > bound:
            return None
        before_last, last = last, row
    return last[-1] if last[-1] <= bound else None


def _allowed(plain: str) -> int:
    return max(1, min(4, len(plain) // 3))


@lru_cache(_SHAPES)
def _shape(name: str) -> tuple[str, int]:
    """``name`` without case and underscores, and the set of its characters as bits, of which one edit changes
    at most two."""
    plain = name[:LONGEST].casefold().replace("_", "")
    bits = 0
    for character in plain:
        bits |= 1 << (ord(character) & 63)
    return plain, bits


def _extends(word: str, name: str) -> bool:
    """Whether one is the other with whole words added before or after it."""
    short, long = word.casefold(), name.casefold()
    if len(short) > len(long):
        short, long = long, short
    return len(short) > 2 and (long.startswith(short + "_") or long.endswith("_" + short))
