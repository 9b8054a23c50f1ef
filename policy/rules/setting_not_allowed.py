"""setting-not-allowed: a change of a setting that agents may not change.

What it refuses
    SET, SET LOCAL, RESET, ``set_config(…)`` and ALTER … SET of a setting outside the base set and
    ``settings.allow``; a held setting (client_encoding, standard_conforming_strings, search_path) set to a
    value that is not accepted; a setting whose name is no constant.
Why
    Settings lift limits, bend prices, change who the session is or what a name or literal means.
Refused
    ``SET statement_timeout = 0`` · ``RESET statement_timeout`` · ``SET ROLE admin`` ·
    ``SELECT set_config('shop.tenant', '2', false)``
Allowed
    ``SET timezone = 'UTC'`` · ``SHOW work_mem`` (reading is free) · ``RESET ALL`` and ``DISCARD ALL``: every
    pin travels in the startup packet, so they bring the pins back
Settings
    ``settings.allow``, beside the base set that drivers need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from policy.facts import Facts, SettingHow
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names
from policy.settings import judge_name

NAME = "setting-not-allowed"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "settings"

_ELSEWHERE = frozenset({SettingHow.RESET_ALL, SettingHow.TRANSACTION})
"""RESET ALL is always allowed; transaction modes are the business of access-read-only."""


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:  # noqa: ARG001 - a rule's seam
    for ref in facts.settings:
        if ref.how in _ELSEWHERE:
            continue
        violation = judge_name(ref, policy)
        if violation is not None:
            yield violation if violation.position else replace(violation, position=facts.start)
