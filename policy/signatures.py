"""What two forms must have in common to be the same: found by a look-up instead of by comparing each pair.

Owns ``signature`` and ``Index``. What is the same is ``implication.Reasoning.same``'s to say, and asked of
every candidate; here is only what that cannot be true without. Two lists of a thousand constants have a
million pairs, which took a second to compare. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final

from policy.comparisons import MIRRORED
from policy.terms import CONSTANTS, Form

ANY: Final = "*"
"""Owner or name of a column that may be any."""
_STAND_INS: Final = frozenset({"fault", "param"})


class _LooseError(Exception):
    """Something in the form may stand for what looks otherwise."""


def signature(form: Any) -> Hashable | None:
    """Equal for any two forms that are the same; None for one that may be the same as anything.

    As ``same`` has it: a constant is told by what it says and not by its type, a column by its name and not
    by its owner, a comparison is itself with its sides changed.
    """
    try:
        return _signed(form)
    except _LooseError:
        return None


def _signed(form: Any) -> Hashable:
    if not isinstance(form, tuple) or not form:
        plain: Hashable = form
        return plain
    kind = form[0]
    if kind in _STAND_INS:
        raise _LooseError
    if kind in CONSTANTS:
        return ("constant", form[-1])
    if kind == "col":
        if form[2] == ANY:
            raise _LooseError
        return ("col", form[2])
    if kind == "op" and len(form) == len(("op", "=", "left", "right")) and form[1] in MIRRORED:
        symbol = min(form[1], MIRRORED[form[1]])
        return ("op", symbol, frozenset((_signed(form[2]), _signed(form[3]))))
    return tuple(map(_signed, form))


class Index:
    """Forms by what they may be the same as. ``same`` says whether the one that is looked for, named first,
    is the same as one of these."""

    def __init__(self, forms: Iterable[Form], same: Callable[[Form, Form], bool]) -> None:
        self._forms = list(forms)
        self._same = same
        self._places: dict[Hashable, list[int]] = {}
        self._loose: list[int] = []
        for place, form in enumerate(self._forms):
            signed = signature(form)
            (self._loose if signed is None else self._places.setdefault(signed, [])).append(place)

    def holds(self, form: Form) -> bool:
        """Whether one of them is the same as ``form``."""
        return any(self._same(form, self._forms[place]) for place in self._candidates(form))

    def take(self, form: Form) -> bool:
        """The same, and the one that is found is not found again."""
        for place in self._candidates(form):
            if self._same(form, self._forms[place]):
                self._forget(place)
                return True
        return False

    def _candidates(self, form: Form) -> Iterator[int]:
        """Places of those that may be the same as ``form``, the likeliest first."""
        signed = signature(form)
        if signed is None:
            for places in self._places.values():
                yield from places
        else:
            yield from self._places.get(signed, ())
        yield from self._loose

    def _forget(self, place: int) -> None:
        signed = signature(self._forms[place])
        places = self._loose if signed is None else self._places[signed]
        places.remove(place)
