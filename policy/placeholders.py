"""Values that stand for a value one does not have.

Owns the table behind the rule dummy-literal: what agents write into a column that wants a value when they
were told that one is missing. A considered list, not a judgement of meaning: a repair that is refused for it
costs the agent one question to whoever knows the value. Pure.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final

from policy.terms import Form, subforms

_WORDS: Final = frozenset(
    {
        "",
        "abc",
        "asdf",
        "blank",
        "bar",
        "baz",
        "changeme",
        "default",
        "dummy",
        "empty",
        "example",
        "fake",
        "filler",
        "fixme",
        "foo",
        "foobar",
        "lorem",
        "loremipsum",
        "missing",
        "mock",
        "na",
        "nan",
        "nil",
        "none",
        "notapplicable",
        "notavailable",
        "notprovided",
        "notset",
        "null",
        "pending",
        "placeholder",
        "qwerty",
        "sample",
        "string",
        "tba",
        "tbc",
        "tbd",
        "temp",
        "temporary",
        "test",
        "testing",
        "text",
        "tmp",
        "tobedetermined",
        "todo",
        "undefined",
        "unknown",
        "unspecified",
        "value",
    }
)
"""Compared without case, spaces and punctuation, and without a number at the end."""
_OPENING: Final = frozenset({"changeme", "dummy", "fixme", "placeholder", "tbd", "todo", "unknown"})
"""Words that make a placeholder of whatever follows: ``TODO: ask``, ``unknown-1``."""
_NUMBERS: Final = frozenset(
    Fraction(n) for n in (0, -1, -99, -999, -9999, 999, 9999, 99999, 999999, 123456789)
)
_DATES: Final = frozenset(
    {"00000000", "00010101", "19000101", "19700101", "19691231", "20000101", "99991231", "99990101"}
)
"""The first eight digits of a point of time."""
_WORDS_FOR_TIMES: Final = frozenset({"epoch", "infinity", "-infinity"})
_EMPTY_VALUES: Final = frozenset({"{}", "[]", "empty"})
_REPEATS: Final = 2
"""One character this often or more, and nothing else: ``xx``, ``---``, ``000``."""


def is_placeholder(value: Form) -> bool:
    """True when the value that a form spells out is a placeholder, or is built of nothing but one.

    An expression counts where it is made of constants alone: ``upper('todo')``, ``coalesce(NULL, 'N/A')``.
    NULL counts too: for a column that wants a value it is none.
    """
    parts = list(subforms(value))
    if any(part[:1] in (("col",), ("sublink",), ("param",)) for part in parts):
        return False
    # What is put together of pieces, concat('TO', 'DO'); subforms come last first.
    texts = [part[-1] for part in reversed(parts) if part[:1] in (("text",), ("typed",))]
    return any(map(_is_dummy, parts)) or (len(texts) > 1 and _is_dummy_text("".join(map(str, texts))))


def _is_dummy(form: Form) -> bool:
    match form:
        case ("null",) | ("node", "SetToDefault", *_):
            return True
        case ("num", number):
            return Fraction(number) in _NUMBERS
        case ("text", text) | ("typed", _, text):
            return _is_dummy_text(text)
        case _:
            return False


def _is_dummy_text(text: Any) -> bool:
    plain = str(text).strip().casefold()
    word = "".join(filter(str.isalnum, plain))
    digits = "".join(filter(str.isdigit, plain))
    opening = re.match(r"[^\W\d_]+", plain)
    return (
        word.rstrip("0123456789") in _WORDS - {""}
        or not word
        or (opening is not None and opening[0] in _OPENING)
        or plain in _WORDS_FOR_TIMES | _EMPTY_VALUES
        or (len(plain) >= _REPEATS and len(set(word)) == 1 and not plain.isdigit())
        or (plain.isdigit() and set(plain) <= {"0"})
        or (len(digits) >= 8 and digits[:8] in _DATES and plain[:4].isdigit())
        or plain in ("-1", "-1.0", "0.0")
    )
