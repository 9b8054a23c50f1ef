"""Constants under casts: what is taken for the value that is passed must be that value."""

from __future__ import annotations

import pytest

from policy.decision import Allow, Reject, Situation, decide
from policy.extract_constants import exact_constant
from policy.loader import load
from policy.names import PathNames
from policy.parse import parse, trees
from tests.support.postgres import Database

KEPT = (
    ("'a b'", "a b"),
    ("'a'::text", "a"),
    ("CAST('a' AS character varying)", "a"),
    ("'abc'::varchar(3)", "abc"),
    ("'äöü'::varchar(3)", "äöü"),
    ("'a'::name::text", "a"),
    ("'a'::pg_catalog.text COLLATE \"C\"", "a"),
    ("10", "10"),
    ("10::bigint", "10"),
    ("'10'::int::text", "10"),
    ("3000000000::oid", "3000000000"),
    ("1.5", "1.5"),
    ("true", "true"),
    ("'on'::bool", "true"),
    ("'F'::boolean::text", "false"),
)
"""What the server has of each, as text."""
CHANGED = (
    "'tenant_10'::varchar(8)",
    "'tenant_10'::char(8)::text",
    "'tenant_10'::char",
    "'tenant_10'::\"char\"",
    f"'{'n' * 64}'::name",
    "'x'::public.text",
    "'x'::shortened",
    "'{a,b}'::text[]",
    "'0x10'::int",
    "'007'::int",
    "' 7 '::int",
    "'+7'::int",
    "7.5::int",
    "1e3::text",
    "B'101'::int",
    "'1'::bit(20)::int",
    "1::bit(8)::text",
    "'12'::varchar(1)::int",
    "'1'::bool::int",
    "'0.4'::numeric(3,0)",
    "'pg_catalog.pg_class'::regclass::text",
    "'\\x41'::bytea",
    "'1 day'::interval",
    "'a' || 'b'",
    "NULL::text",
)
POLICY = load(
    """
version: 1
name: tenants
statements: {select: allow}
relations: {allow: ["tenant_10.*"]}
functions: {allow: [builtin-safe, set_config]}
""",
    "tenants.yaml",
)


def _exact(expression: str) -> str | None:
    (tree,) = trees(f"SELECT {expression}")
    return exact_constant(tree["SelectStmt"]["targetList"][0]["ResTarget"]["val"])


@pytest.mark.parametrize(("expression", "value"), KEPT)
def test_a_constant_is_seen_through_casts_that_keep_it(expression: str, value: str) -> None:
    assert _exact(expression) == value


@pytest.mark.parametrize("expression", CHANGED)
def test_a_constant_that_a_cast_may_change_is_none(expression: str) -> None:
    assert _exact(expression) is None


def test_what_is_seen_is_what_the_server_has(database: Database) -> None:
    asked = ", ".join(f"({expression})::text" for expression, _ in KEPT)
    assert database.execute(f"SELECT {asked}") == [tuple(value for _, value in KEPT)]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("set_config('search_path', 'tenant_10'::text, false)", None),
        ("set_config('search_path', 'tenant_10'::varchar(9), 'f'::bool)", None),
        ("set_config('search_path', 'tenant_10'::varchar(8), false)", "its value must be a constant"),
        ("set_config('search_path', 'tenant_10'::char(8)::text, false)", "its value must be a constant"),
        ("set_config('search_path_x'::varchar(11), 'tenant_1', false)", "whose name is no constant"),
    ],
)
def test_set_config_is_judged_by_what_it_sets(call: str, reason: str | None) -> None:
    decision = decide(POLICY, Situation("agent", PathNames()), parse(f"SELECT {call}"))
    if reason is None:
        assert isinstance(decision, Allow)
        return
    assert isinstance(decision, Reject)
    assert [v.rule for v in decision.violations] == ["setting-not-allowed"]
    assert reason in decision.violations[0].message


@pytest.mark.parametrize(
    ("count", "limit"),
    [
        ("10", 10),
        ("10::bigint", 10),
        ("'10'::int", 10),
        ("'1'::bit(20)::int", None),
        ("'5'::\"char\"::int", None),
    ],
)
def test_a_limit_is_known_where_it_is_what_it_says(count: str, limit: int | None) -> None:
    (facts,) = parse(f"SELECT a FROM t LIMIT {count}").statements
    assert facts.queries[0].limit == limit
