"""Whether a session can hold what no snapshot shows."""

from __future__ import annotations

import pytest

from policy.model import Policy
from policy.temporary import may_hold_temporary
from tests.policy.rules.schema import CATALOG, reader, writer


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (reader(), False),
        (reader(mode="observe"), True),
        (reader(functions="{allow: [public.bump]}"), False),
        (writer(), False),
        (writer(statements="{select: allow, ddl: allow}"), True),
        (writer(statements="{select: allow, do: allow}"), True),
        (writer(functions="{allow: [builtin-safe, public.bump]}"), True),
        (writer(functions="{allow: [builtin-safe, 'public.*'], deny: [public.bump]}"), True),
        (writer(functions="{allow: [builtin-safe, {language: sql, volatility: stable}]}"), False),
    ],
)
def test_what_can_make_a_temporary_relation(policy: Policy, expected: bool) -> None:
    assert may_hold_temporary(policy, CATALOG) is expected
