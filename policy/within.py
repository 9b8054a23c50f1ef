"""The selects within a statement, each as if it stood by itself.

Owns how a read that is wrapped is found again: in a CTE, a sub-select, an arm of a UNION, the source of an
INSERT. Pure; which of them answers a refusal is ``lineage``'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from policy.facts import Use
from policy.implication import OF_NO_RELATION, relation_of
from policy.normal import Level
from policy.repair import Attempt
from policy.terms import subforms

MAX_WITHIN: Final = 16
"""Selects of a statement that are looked at."""
_LABEL: Final = re.compile(r"(\??)(\d+)(:.*)?", re.DOTALL)


def selects_within(made: Attempt) -> Iterator[Attempt]:
    """The selects of ``made``, less itself, that read relations. At most ``MAX_WITHIN``.

    Each has the class of the whole: what a CREATE TABLE AS runs creates a table.
    """
    levels = (form for form in subforms(made.levels) if isinstance(form, Level) and form.action == "select")
    nested = (level for level in levels if _depth(level) is not None and level not in made.levels)
    for level in islice(dict.fromkeys(nested), MAX_WITHIN):
        relations = frozenset((name, Use.READ) for name in _relations(level))
        alone = _lifted(level, _depth(level) or 0)
        yield replace(
            made, levels=(alone,), relations=relations, targets=frozenset(), limited=bool(level.bound)
        )


def _depth(level: Level) -> int | None:
    """How deep in its statement a level stands, by the labels of its sources; None where it has none."""
    return next((int(source[1].partition(":")[0]) for source in level.sources if ":" in source[1]), None)


def _relations(level: Level) -> set[str]:
    labels = (form[1] for form in subforms(level) if form[:1] == ("relation",))
    return {relation_of(label) for label in labels} - {OF_NO_RELATION}


def _lifted(item: Any, depth: int) -> Any:
    """``item`` with labels that count their depth from ``depth`` on."""
    if isinstance(item, str):
        label = _LABEL.fullmatch(item)
        if label is None or (not label[1] and not label[3]):
            return item
        return f"{label[1]}{int(label[2]) - depth}{label[3] or ''}" if int(label[2]) >= depth else item
    if not isinstance(item, tuple) or item[:1] in (("text",), ("typed",), ("num",)):
        return item
    parts = tuple(_lifted(each, depth) for each in item)
    return Level(*parts) if isinstance(item, Level) else parts
