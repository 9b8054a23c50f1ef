"""The rulings that a gate remembers for one meaning of names: by the text, and by what of it matters.

Owns both caches and their bounds: when one is full the oldest entry goes, and the next such statement is
decided again. Which digits and comments do not matter is ``policy.lifting``'s to say. Never keyed by a
fingerprint, which merges different names and values. One thread's, the event loop's.
"""

from __future__ import annotations

from typing import Final, TypeVar

from policy.lifting import COMMENT, Span, shape
from proxy.ruling import LiftedRuling, Ruling

MAX_ENTRIES: Final = 10_000
"""Texts remembered exactly."""
MAX_SHAPES: Final = 2_000
"""Texts remembered but for digits and comments, by what they are where all of those count as the same."""
MAX_OF_SHAPE: Final = 4
"""Texts of one shape: such as differ in the digits of names, or of numbers that matter."""
MAX_TEXT: Final = 4_096
"""Longer texts are decided each time: they rarely recur, and bound the caches' memory. In bytes."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Template:
    """A ruling that also holds where ``spans`` of its text have other digits and ``comments`` say something
    else; ``keyed`` as in LiftedRuling.

    ``unique`` is True where each of those rulings has prices of its own, which are worth keeping.
    """

    __slots__ = ("_comments", "_fixed", "_keyed", "_ruling", "unique")

    def __init__(
        self, ruling: Ruling, spans: tuple[Span, ...], comments: tuple[Span, ...], *, keyed: bool
    ) -> None:
        self._ruling = ruling
        self._keyed = keyed
        self.unique = ruling.priced and not keyed
        self._comments = comments
        edges = (0, *(edge for span in sorted((*spans, *comments)) for edge in span), len(ruling.text))
        self._fixed = tuple((ruling.text[edges[n] : edges[n + 1]], edges[n]) for n in range(0, len(edges), 2))

    def ruling(self, text: bytes) -> Ruling | None:
        """The ruling on ``text``, which has the same shape; None where it differs elsewhere."""
        for piece, at in self._fixed:
            if not text.startswith(piece, at):
                return None
        for start, end in self._comments:
            if COMMENT.fullmatch(text, start, end) is None:
                return None
        return LiftedRuling(self._ruling, text, keyed=self._keyed)


class Lookups:
    """How often a text was looked up: known as it is, known but for digits or comments, or not known."""

    __slots__ = ("exact", "lifted", "missed")

    def __init__(self) -> None:
        self.exact = 0
        self.lifted = 0
        self.missed = 0


class Rulings:
    """What is known under one meaning of names: at most ``entries`` texts, and texts of ``shapes`` shapes.

    ``lookups`` counts what is looked up here and wherever else it was given to.
    """

    __slots__ = ("_entries", "_exact", "_lookups", "_most_shapes", "_shapes")

    def __init__(
        self, entries: int = MAX_ENTRIES, shapes: int = MAX_SHAPES, lookups: Lookups | None = None
    ) -> None:
        self._lookups = Lookups() if lookups is None else lookups
        self._entries = entries
        self._most_shapes = shapes
        self._exact: dict[bytes, Ruling] = {}
        self._shapes: dict[bytes, tuple[Template, ...]] = {}

    def get(self, text: bytes) -> Ruling | None:
        """The ruling on the query string ``text``, if it is known."""
        known = self._exact.get(text)
        if known is not None:
            self._lookups.exact += 1
            return known
        lifted = self._lifted(text)
        if lifted is not None:
            self._lookups.lifted += 1
        else:
            self._lookups.missed += 1
        return lifted

    def keep(
        self,
        ruling: Ruling,
        spans: tuple[Span, ...] = (),
        comments: tuple[Span, ...] = (),
        *,
        keyed: bool = False,
    ) -> None:
        """Remember what the gate allows; ``spans`` are digits of its text that do not matter to it, and
        ``comments`` what comments hold that do not."""
        if len(ruling.text) > MAX_TEXT:
            return
        _put(self._exact, ruling.text, ruling, self._entries)
        if spans or comments:
            alike = shape(ruling.text)
            others = self._shapes.pop(alike, ())
            template = Template(ruling, spans, comments, keyed=keyed)
            _put(self._shapes, alike, (template, *others)[:MAX_OF_SHAPE], self._most_shapes)

    def _lifted(self, text: bytes) -> Ruling | None:
        if len(text) > MAX_TEXT:
            return None
        for template in self._shapes.get(shape(text), ()):
            ruling = template.ruling(text)
            if ruling is not None:
                if template.unique:
                    _put(self._exact, text, ruling, self._entries)
                return ruling
        return None


def _put(cache: dict[Key, Value], key: Key, value: Value, limit: int) -> None:
    while len(cache) >= limit:
        del cache[next(iter(cache))]
    cache[key] = value
