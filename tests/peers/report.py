"""Direct against through: what differs, whether that is accepted, and the table that says so.

Pure: outcomes in, lines and values out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.peers.accepted import Accepted
from tests.peers.suite import Outcome, Road, Verdict

_SHOWN_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """One test that is not the same through the proxy. ``how`` is what is seen of it, for a person."""

    test: str
    how: str
    accepted: Accepted | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One suite on one road beside its direct run, or why there was no such run."""

    suite: str
    version: str
    road: Road
    direct: Outcome | None = None
    through: Outcome | None = None
    differences: Sequence[Difference] = ()
    stale: Sequence[Accepted] = ()
    unavailable: str = ""
    broken: str = ""

    @property
    def faults(self) -> list[str]:
        """What makes the run fail: a difference not accepted, an acceptance without one, a broken run."""
        differing = [f"{d.test}: {d.how}" for d in self.differences if d.accepted is None]
        stale = [f"{a.test}: listed as accepted, and does not differ" for a in self.stale]
        return differing + stale + ([self.broken] if self.broken else [])


def compare(
    suite: str, road: Road, direct: Outcome, through: Outcome, accepted: Iterable[Accepted]
) -> tuple[list[Difference], list[Accepted]]:
    """The tests that pass directly and not through, or look different; and acceptances that say nothing.

    A test that fails directly as well says nothing of the proxy, unless what was seen of it is kept.
    """
    reviewed = {a.test: a for a in accepted if a.suite == suite and road in a.roads}
    differences = []
    for test, verdict in direct.verdicts.items():
        how = _differs(test, verdict, direct, through)
        if how:
            differences.append(Difference(test, how, reviewed.get(test)))
    differing = {difference.test for difference in differences}
    ran = direct.verdicts.keys() | through.verdicts.keys()
    return differences, [a for test, a in reviewed.items() if test in ran and test not in differing]


def _differs(test: str, verdict: Verdict, direct: Outcome, through: Outcome) -> str:
    got = through.verdicts.get(test)
    if verdict is Verdict.PASSED and got is not Verdict.PASSED:
        return f"{verdict} direct, {got or 'not run'} through"
    ours, theirs = through.seen.get(test), direct.seen.get(test)
    if ours == theirs:
        return ""
    lines = difflib.unified_diff(
        (theirs or "").splitlines(), (ours or "").splitlines(), "direct", "through", lineterm="", n=1
    )
    shown = list(lines)
    more = [f"… {len(shown) - _SHOWN_LINES} lines more"] if len(shown) > _SHOWN_LINES else []
    return "\n".join(["the client saw something else:", *shown[:_SHOWN_LINES], *more])


_HEAD: Final = ("suite", "version", "road", "direct", "through", "differences")


def table(rows: Iterable[Row]) -> str:
    """The rows as a table of Markdown, which also reads well on a terminal."""
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(_HEAD))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    if row.direct is None or row.through is None:
        why = f"not available: {row.unavailable}" if row.unavailable else f"broke: {row.broken}"
        direct = _passed(row.direct) if row.direct else "-"
        return (row.suite, row.version or "-", row.road, direct, "-", why.splitlines()[0])
    named = [d.test + (" (accepted)" if d.accepted else "") for d in row.differences]
    named += [f"{a.test} (accepted, but the same)" for a in row.stale]
    return (
        row.suite,
        row.version,
        row.road,
        _passed(row.direct),
        _passed(row.through),
        ", ".join(named) or "none",
    )


def _passed(outcome: Outcome) -> str:
    skipped = outcome.count(Verdict.SKIPPED)
    return f"{outcome.count(Verdict.PASSED)}/{len(outcome.verdicts) - skipped}" + (
        f", {skipped} skipped" if skipped else ""
    )


def as_json(row: Row) -> dict[str, Any]:
    """The row for a program to read: verdicts by name, every difference whole."""
    return {
        "suite": row.suite,
        "version": row.version,
        "road": row.road,
        "unavailable": row.unavailable or None,
        "broken": row.broken or None,
        "direct": dict(row.direct.verdicts) if row.direct else None,
        "through": dict(row.through.verdicts) if row.through else None,
        "notes": [o.note for o in (row.direct, row.through) if o and o.note],
        "differences": [
            {"test": d.test, "how": d.how, "accepted": d.accepted.reason if d.accepted else None}
            for d in row.differences
        ],
        "stale": [a.test for a in row.stale],
    }
