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


_ONLY_ENFORCED: Final = (Road.ENFORCE,)
_REFUSAL: Final = "a name that does not exist is the gate's to answer: its message, hint and Detail"
_DUMP: Final = "pg_dump calls set_config with a name that it reads from pg_settings"
_NAMELESS_SETTING: Final = (
    "tests/policy/rules/test_setting_not_allowed.py::test_settings_outside_the_list_are_refused"
)
_UNKNOWN_COLUMN: Final = "tests/policy/rules/test_catalog_rules.py::test_one_repair_is_open"
_FUNCTION_CALL: Final = "tests/e2e/test_transparency.py::test_large_objects_where_the_policy_is_enforced"

ACCEPTED: Final[tuple[Accepted, ...]] = (
    Accepted("psql", "SELECT nothing FROM app.people;", _ONLY_ENFORCED, _REFUSAL, _UNKNOWN_COLUMN),
    *(
        Accepted("pg_dump", test, _ONLY_ENFORCED, _DUMP, _NAMELESS_SETTING)
        for test in ("plain", "inserts", "custom", "tar", "directory")
    ),
    Accepted(
        "pg_dump",
        "large-objects",
        _ONLY_ENFORCED,
        "libpq reads and writes large objects by FunctionCall, which carries no SQL to judge",
        _FUNCTION_CALL,
    ),
)
