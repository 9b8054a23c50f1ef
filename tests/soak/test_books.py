"""The balance of a soak: what fits, and what does not and is said."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.agents import Sent, Told
from tests.soak.books import amiss


def line(decision: str = "allow", sqlstate: str | None = None, *, known: bool = True) -> dict[str, Any]:
    outcome = {"command_tag": None, "sqlstate": sqlstate, "known": known}
    return {
        "decision": decision,
        "outcome": outcome,
        "rule": "r" * (decision == "reject"),
        "catalog_sha256": "0",
    }


BLIND = {name: value for name, value in line("reject", "42501").items() if name != "catalog_sha256"}
DONE, UNKNOWN, FAILED, REFUSED = line(), line(known=False), line(sqlstate="22012"), line("reject", "42501")
CASES: dict[str, tuple[Told, Told, bool, list[dict[str, Any]], bool, str]] = {
    # name: meant, told, writes, lines, row there, what is said
    "answered": (Told.ANSWERED, Told.ANSWERED, False, [DONE], False, ""),
    "written": (Told.ANSWERED, Told.ANSWERED, True, [DONE], True, ""),
    "refused": (Told.REFUSED, Told.REFUSED, False, [REFUSED], False, ""),
    "failed": (Told.FAILED, Told.FAILED, False, [FAILED], False, ""),
    "cancelled": (Told.ANSWERED, Told.FAILED, False, [FAILED], False, ""),
    "lost before it was decided": (Told.ANSWERED, Told.UNKNOWN, True, [], False, ""),
    "lost and not committed": (Told.ANSWERED, Told.UNKNOWN, True, [DONE], False, ""),
    "lost and committed": (Told.ANSWERED, Told.UNKNOWN, True, [UNKNOWN], True, ""),
    "refused without a catalog": (Told.ANSWERED, Told.REFUSED, False, [BLIND], False, ""),
    "not audited": (Told.ANSWERED, Told.ANSWERED, False, [], False, "no audit line"),
    "written and not audited": (Told.ANSWERED, Told.UNKNOWN, True, [], True, "written and not audited"),
    "audited twice": (Told.ANSWERED, Told.ANSWERED, False, [DONE, UNKNOWN], False, "2 audit lines"),
    "told otherwise": (Told.ANSWERED, Told.ANSWERED, False, [UNKNOWN], False, "audited as unknown"),
    "answered and not there": (Told.ANSWERED, Told.ANSWERED, True, [DONE], False, "answered, and no row"),
    "refused and there": (
        Told.ANSWERED,
        Told.UNKNOWN,
        True,
        [REFUSED],
        True,
        "audited as refused, and a row",
    ),
    "let through": (Told.REFUSED, Told.ANSWERED, False, [DONE], False, "meant to be refused"),
    "refused for nothing": (Told.ANSWERED, Told.REFUSED, False, [REFUSED], False, "meant to be answered"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_fits_and_what_does_not(name: str) -> None:
    meant, told, writes, lines, row, said = CASES[name]
    found = list(amiss(Sent("soak-0-0", meant, told, writes), lines, {"soak-0-0"} if row else set()))
    assert bool(found) is bool(said)
    assert said in " ".join(found)
