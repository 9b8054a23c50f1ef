from __future__ import annotations

import pytest

from tests.policy.rules.judging import passes, policy_of, violations

RULE = "function-not-allowed"


@pytest.mark.parametrize(
    ("sql", "object_", "why"),
    [
        ("SELECT pg_sleep(6)", "pg_catalog.pg_sleep", "the policy denies it"),
        ('SELECT "pg_catalog"."pg_sleep"(6)', "pg_catalog.pg_sleep", "the policy denies it"),
        ('SELECT U&"pg\\005fsleep"(6)', "pg_catalog.pg_sleep", "the policy denies it"),
        ("SELECT lower('A')", "pg_catalog.lower", "the policy denies it"),
        ("SELECT pg_read_file('x')", "pg_catalog.pg_read_file", "it reads files of the server"),
        ("VALUES (length(pg_read_file('x')))", "pg_catalog.pg_read_file", "it reads files of the server"),
        ("SELECT query_to_xml('x', true, false, '')", "pg_catalog.query_to_xml", "it runs SQL given as text"),
        ("SELECT nextval('s')", "pg_catalog.nextval", "it moves a sequence"),
        ("SELECT bump('x')", "public.bump", "policy reader does not list it"),
        ("SELECT bump('x') NOT IN (SELECT 2)", "public.bump", "does not list it"),
        ("SELECT * FROM bump('x') AS b", "public.bump", "does not list it"),
        ("SELECT 1 FROM orders ORDER BY bump(id)", "public.bump", "does not list it"),
        ("SELECT 1 FROM orders TABLESAMPLE bernoulli (bump('t'))", "public.bump", "does not list it"),
        ("SELECT 1 FROM orders TABLESAMPLE system_rows (1)", "public.system_rows", "does not list it"),
        ("EXECUTE p (bump('x'))", "public.bump", "does not list it"),
        ("EXPLAIN SELECT bump('x')", "public.bump", "does not list it"),
        ("SELECT evil.lower('A')", "evil.lower", "the policy denies it"),
        ("SELECT evil.upper('A')", "evil.upper", "does not list it"),
        ("SELECT evil.set_config('a', 'b', true)", "evil.set_config", "does not list it"),
        ("SELECT noisy_sum(id) FROM orders", "public.noisy_sum", "does not list it"),
        ("SELECT (total::float8).pg_sleep FROM orders", "pg_catalog.pg_sleep", "the policy denies it"),
        ("SELECT o.pg_sleep FROM orders o", "pg_catalog.pg_sleep", "the policy denies it"),
        ("SELECT o.nextval FROM orders o", "pg_catalog.nextval", "it moves a sequence"),
    ],
)
def test_calls_outside_the_policy_are_refused(sql: str, object_: str, why: str) -> None:
    (found,) = violations(sql, policy_of(), RULE)
    assert found.object == object_
    assert why in found.message
    assert found.position
    assert not found.repairable


@pytest.mark.parametrize(
    ("sql", "object_"),
    [
        ("SELECT 5 <~> 3", "<~>"),
        ("SELECT 1 OPERATOR(public.<~>) 2", "OPERATOR(public.<~>)"),
        ("SELECT 1 OPERATOR(public.+) 2", "OPERATOR(public.+)"),
        ("SELECT 1 OPERATOR(pg_catalog.<~>) 2", "OPERATOR(pg_catalog.<~>)"),
        ("SELECT 1 FROM orders ORDER BY id USING <~>", "<~>"),
        ("SELECT 1 <~> ANY (ARRAY[1])", "<~>"),
        ("SELECT name::sku_code FROM orders", "sku_code"),
        ("SELECT 7::small_qty", "small_qty"),
        ("SELECT '7'::small_qty", "small_qty"),
        ("SELECT CAST(7 AS public.small_qty)", "public.small_qty"),
        ("SELECT small_qty '7'", "small_qty"),
        ("SELECT 7::information_schema.small_qty", "information_schema.small_qty"),
        ("SELECT '{7}'::small_qty[]", "small_qty"),
        ("SELECT * FROM json_to_record('{}') AS r(x small_qty)", "small_qty"),
        ("SELECT * INTO t FROM json_to_record('{}') AS r(x small_qty)", "small_qty"),
        ("CREATE TABLE t AS SELECT * FROM ROWS FROM (json_to_record('{}') AS (x small_qty)) r", "small_qty"),
        ("CREATE VIEW v AS SELECT * FROM json_to_record('{}') AS (x small_qty)", "small_qty"),
        ("PREPARE p (small_qty) AS SELECT $1", "small_qty"),
        ("SELECT * FROM xmltable('/a' PASSING '<a/>' COLUMNS x small_qty)", "small_qty"),
    ],
)
def test_what_may_call_a_function_unseen_is_refused(sql: str, object_: str) -> None:
    found = violations(sql, policy_of(), RULE)
    assert [v.object for v in found] == [object_]
    assert "may call any function" in found[0].message


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*), upper(name) FROM orders GROUP BY 2",
        "SELECT pg_catalog.upper('a')",
        "SELECT order_total(id), public.order_total(id) FROM orders",
        "SELECT '7'::int + 1, CAST(total AS integer), numeric '3.50', total::float8 FROM orders",
        "SELECT '{1}'::int[], '{1}'::_int4, 'a'::\"char\", 'x'::varchar(3)",
        "SELECT 'new'::order_status",
        "SELECT 1::information_schema.cardinal_number",
        "SELECT extract(isodow FROM placed_at AT TIME ZONE 'Europe/Berlin') FROM orders",
        "SELECT 1 BETWEEN 0 AND 2, 'a' LIKE 'b', 1 IN (1, 2), 1 OPERATOR(pg_catalog.+) 2",
        "SELECT name SIMILAR TO 'x' ESCAPE '\\' FROM orders",
        "SELECT o.total, o.id, (o).id FROM orders o",
        "SELECT count(*) FROM orders TABLESAMPLE SYSTEM (10) REPEATABLE (4)",
        "SELECT pg_advisory_unlock_all()",
        "SELECT a || b, a -> 'k', a @> b, a && b, a ~ 'x', a <-> b FROM orders",
        "SELECT * FROM generate_series(1, 10) WITH ORDINALITY AS g(n, o)",
        "SELECT current_user, current_date, now(), version()",
    ],
)
def test_ordinary_calls_pass(sql: str) -> None:
    passes(sql, policy_of())


def test_a_function_must_be_allowed_in_every_schema_it_could_be_in() -> None:
    policy = policy_of(functions='{allow: ["b.*"]}')
    assert violations("SELECT f(1)", policy, RULE, ("a", "b"))
    assert violations("SELECT f(1)", policy, RULE, ("b",)) == []
    assert violations("SELECT b.f(1)", policy, RULE, ("a", "b")) == []


def test_deny_wins_over_builtin_safe_and_wildcards() -> None:
    policy = policy_of(functions='{allow: [builtin-safe, "public.*"], deny: [public.bump, upper]}')
    assert violations("SELECT bump(1)", policy, RULE)
    assert violations("SELECT upper('a')", policy, RULE)
    assert violations("SELECT other(1)", policy, RULE) == []


def test_a_wildcard_over_all_schemas_opens_no_unsafe_builtin() -> None:
    policy = policy_of(functions='{allow: ["*.*"]}')
    assert violations("SELECT pg_read_file('x')", policy, RULE)
    assert violations("SELECT anything(1)", policy, RULE) == []
    assert (
        violations(
            "SELECT pg_read_file('x')", policy_of(functions="{allow: [pg_catalog.pg_read_file]}"), RULE
        )
        == []
    )


def test_without_builtin_safe_a_builtin_must_be_listed() -> None:
    policy = policy_of(functions="{allow: [upper]}")
    assert violations("SELECT upper('a')", policy, RULE) == []
    assert violations("SELECT left('a', 1)", policy, RULE)


def test_a_wildcard_deny_is_not_held_against_plain_columns() -> None:
    policy = policy_of(functions='{allow: [builtin-safe], deny: ["public.*"]}')
    assert violations("SELECT o.total FROM orders o", policy, RULE) == []


def test_only_some_forms_of_a_function_may_be_safe() -> None:
    policy = policy_of()
    assert violations("SELECT ts_rewrite('a'::tsquery, 'SELECT t, s FROM x')", policy, RULE)
    assert violations("SELECT ts_rewrite('a'::tsquery, 'a'::tsquery, 'b'::tsquery)", policy, RULE) == []


def test_the_hint_says_what_may_be_used() -> None:
    (found,) = violations("SELECT bump(1)", policy_of(), RULE)
    assert "PostgreSQL's own functions that have no effect" in found.hint
    assert "public.order_total" in found.hint
    (found,) = violations("SELECT bump(1)", policy_of(functions="{}"), RULE)
    assert "allows no function" in found.hint


def test_the_hint_does_not_offer_what_a_star_does_not_open() -> None:
    (found,) = violations("SELECT pg_read_file('x')", policy_of(functions='{allow: ["*.*"]}'), RULE)
    assert found.hint == "Leave the call out, or use *.* (none of pg_catalog)."
