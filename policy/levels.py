"""Which rules a policy may set the level of, and what governs the others.

Owns the sentences about rules that are governed elsewhere; the registry (``policy.rules``) says which can be
set and what holds where a policy is silent. Knows no YAML and runs no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policy import rules
from policy.model import RuleLevel

_ALWAYS = "always holds; to try a policy without refusing anything, set mode: observe"
GOVERNED_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "class-not-allowed": "is governed by statements:",
        "access-read-only": "is governed by access:",
        "multiple-statements": "is governed by multiple:",
        "relation-not-allowed": "is governed by relations:",
        "column-not-allowed": "is governed by columns:",
        "function-not-allowed": "is governed by functions:",
        "setting-not-allowed": "is governed by settings:",
        "cost-over-limit": "is governed by the limits under cost:",
        "unpriceable": "is governed by cost.unpriceable",
        "affected-rows-over-limit": "is governed by limits.affected_rows",
        "result-over-limit": "is governed by limits.result_rows and limits.result_bytes",
        "repair-halted": "is governed by repair: and the repair of each row of statements:",
        "dummy-literal": "is governed by repair: and the repair of each row of statements:",
        "sandbox-stale": "is governed by sandbox:",
        "statement-too-large": "is governed by limits.statement_bytes of the server's configuration",
        "unparsable": _ALWAYS,
        "not-understood": _ALWAYS,
        "server-file": _ALWAYS,
        "protocol-not-offered": _ALWAYS,
        "unknown-relation": "is governed by relations: and the catalog",
        "unknown-column": "is governed by columns: and the catalog",
        "unknown-function": "is governed by functions: and the catalog",
    }
)
"""Rules of the contract that ``rules:`` cannot set, each with what governs it instead."""


def default_levels() -> dict[str, RuleLevel]:
    """The rules that ``rules:`` may set, each with its level where a policy says nothing."""
    return {name: rules.BY_NAME[name].DEFAULT for name in sorted(rules.CONFIGURABLE)}
