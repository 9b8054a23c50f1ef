"""Every rule can be set under ``rules:``, or a sentence says what governs it instead."""

from __future__ import annotations

from policy import rules
from policy.levels import GOVERNED_ELSEWHERE, default_levels
from policy.model import RuleLevel


def test_each_registered_rule_is_settable_or_governed_elsewhere() -> None:
    settable = set(default_levels())

    assert settable & set(GOVERNED_ELSEWHERE) == set()
    assert set(rules.BY_NAME) - settable - set(GOVERNED_ELSEWHERE) == set()


def test_silence_means_each_rules_own_default() -> None:
    levels = default_levels()

    assert {name: levels[name] for name in rules.CONFIGURABLE} == {
        name: rules.BY_NAME[name].DEFAULT for name in rules.CONFIGURABLE
    }
    assert levels["insert-missing-not-null"] is RuleLevel.REJECT
