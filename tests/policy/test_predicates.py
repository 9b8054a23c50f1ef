"""What a WHERE leaves: tables of conditions. Random ones are ``test_predicates_server``'s."""

from __future__ import annotations

import pytest

from policy.facts import Write
from policy.parse import parse
from policy.predicates import Narrowing, has_alternatives, narrowing

ALWAYS, WEAK, UNTIED, NARROWS, NEVER = (
    Narrowing.ALWAYS,
    Narrowing.WEAK,
    Narrowing.UNTIED,
    Narrowing.NARROWS,
    Narrowing.NEVER,
)


def write_of(statement: str) -> tuple[Write, str, str]:
    """The one write of ``statement``, the name of its target, and what qualifies its columns."""
    facts = parse(statement).statements[0]
    (write,) = facts.writes
    target = facts.relations[write.target]
    return write, target.name, target.alias or target.name


def judge(statement: str) -> Narrowing:
    write, name, called = write_of(statement)
    return narrowing(write.where, (called,), name)


def judge_where(condition: str) -> Narrowing:
    return judge(f"DELETE FROM t WHERE {condition}")


@pytest.mark.parametrize(
    "condition",
    [
        "true",
        "NOT false",
        "'t'::bool",
        "'yes'::text::boolean",
        "1::boolean",
        "1 = 1",
        "1 < 2",
        "2 > 1 AND 'a' = 'a'",
        "1.50 = 1.5",
        "'1' = 1",
        "'a' <> 'b'",
        "NOT 1 = 2",
        "a = a",
        "t.a = a",
        "a <= a",
        "a >= t.a",
        "a IS NOT DISTINCT FROM a",
        "a + 0 = a",
        "a * 1 = a",
        "2 * a = a + a",
        "a < a + 1",
        "a - a = 0",
        "a * 0 = 0",
        "a::text = a::text",
        "lower(a) = lower(a)",
        "a IN (a)",
        "a IN (1, a)",
        "a = ANY (ARRAY[a])",
        "1 IN (1, 2)",
        "3 NOT IN (1, 2)",
        "a BETWEEN a AND a",
        "1 BETWEEN 0 AND 2",
        "a = 1 OR true",
        "a = 1 OR 2 > 1",
        "true OR a = 1",
        "a = 1 OR a <> 1",
        "a > 0 OR a <= 0",
        "0 < a OR a <= 0",
        "a < 5 OR a > 3",
        "a < 5 OR a > 5 OR a = 5",
        "a <> 1 OR a <> 2",
        "a <> 'new' OR a <> 'paid'",
        "NOT (a = 1 AND a = 2)",
        "a <> ANY (ARRAY[1, 2])",
        "a <> ANY ('{1,2}')",
        "a IS NULL OR a IS NOT NULL",
        "a IS TRUE OR a IS NOT TRUE",
        "a OR NOT a",
        "a = true OR a = false",
        "a OR a = false",
        "a IN (1, 2) OR a NOT IN (1, 2)",
        "a LIKE 'x%' OR a NOT LIKE 'x%'",
        "a BETWEEN 1 AND 2 OR a NOT BETWEEN 1 AND 2",
        "(a = 1 AND b = 2) OR NOT (a = 1 AND b = 2)",
        "NOT (a = 1) OR a = 1",
        "a <> ALL ('{}')",
        "a = ALL (ARRAY[]::int[])",
        "coalesce(true, a = 1)",
        "coalesce(null, true)",
        "coalesce(a, 1) = coalesce(a, 1)",
        "coalesce(a, 1) IS NOT NULL",
        "CASE WHEN a = 1 THEN true ELSE true END",
        "(a = a)::boolean",
        "(a = a) IS TRUE",
        "(a <> a) IS NOT TRUE",
        "NULL IS NOT TRUE",
        "NULL IS NULL",
        "NULL::boolean IS UNKNOWN",
        "(a = NULL) IS NOT TRUE",
        "(a = NULL) IS UNKNOWN",
        "(a = NULL) IS NULL",
        "(a AND NULL) IS NULL OR true",
        "coalesce(a = NULL, true)",
        "coalesce(NULL, a) = a",
        "a + NULL IS NULL",
        "(SELECT true)",
        "(SELECT a) = a",
        "(a = a) = true",
        "true = (a = a)",
        "'t' = (a = a)",
        "(a = a) <> false",
        "(a <> a) = false",
        "(a <> a) < true",
        "(a = a) IS DISTINCT FROM false",
        "(a = 1 OR true) IS NOT FALSE",
        "(a = a)::int = 1",
        "(a = a)::int > 0",
        "((a = a)::int)::boolean",
        "(a = a)::text = 'true'",
        "CASE WHEN a = a THEN true END",
        "CASE WHEN a = a THEN true ELSE false END",
        "CASE WHEN a <> a THEN false ELSE true END",
        "CASE a WHEN a THEN true ELSE false END",
        "CASE WHEN a = 1 THEN 2 ELSE 2 END = 2",
        "1 = CASE WHEN a = a THEN 1 ELSE 0 END",
        "a IN (SELECT DISTINCT a FROM t)",
        "nullif(a, a) IS NULL",
        "coalesce(CASE WHEN a <> a THEN false END, true)",
        "(a, b) = (a, b)",
        "EXISTS (SELECT 1)",
        "EXISTS (VALUES (1))",
        "EXISTS (SELECT count(*) FROM u WHERE false)",
        "EXISTS (SELECT 1 WHERE 1 = 1)",
        "EXISTS (SELECT 1 FROM u WHERE u.x = t.a UNION SELECT 1)",
        "NOT EXISTS (SELECT 1 FROM u WHERE false)",
        "NOT EXISTS (SELECT 1 FROM u WHERE u.x = t.a LIMIT 0)",
        "a NOT IN (SELECT x FROM u WHERE false)",
        "a IN (SELECT a FROM t)",
        "a IN (SELECT s.a FROM t AS s)",
        "t.a IN (SELECT a FROM t WHERE true)",
        "a = ANY (ARRAY(SELECT a FROM t))",
        "(a, b) IN (SELECT a, b FROM t)",
        "a IN (SELECT s.a FROM t AS s WHERE s.a = t.a)",
        "EXISTS (SELECT 1 FROM t AS s WHERE s.a = t.a)",
        "EXISTS (SELECT FROM t s WHERE t.a = s.a AND s.b = t.b)",
    ],
)
def test_always(condition: str) -> None:
    assert judge_where(condition) is ALWAYS


@pytest.mark.parametrize(
    "condition",
    [
        "a IS NOT NULL",
        "NOT a IS NULL",
        "a IS DISTINCT FROM NULL",
        "(a, b) IS NOT NULL",
        "a + 1 IS NOT NULL",
        "lower(a) IS NOT NULL",
        "a IS NOT UNKNOWN",
        "(a > 5) IS NOT UNKNOWN",
        "(a > 5) IS NOT NULL",
        "(a > 5) IS DISTINCT FROM NULL",
        "(a > 5 OR b > 5) IS NOT NULL",
        "(a > 5) >= false",
        "a <= true",
        "(a IS NOT NULL) = true",
        "(a IS NULL) = false",
        "(a IS NULL) < true",
        "(a IS NOT NULL) IS NOT FALSE",
        "(a IS NULL) IS NOT TRUE",
        "(a IS NOT NULL)::int = 1",
        "CASE WHEN a IS NOT NULL THEN true ELSE false END",
        "a LIKE '%' || '%'",
        "num_nonnulls(a) >= 0",
        "a LIKE '%'",
        "a LIKE '%%'",
        "a ILIKE '%'",
        "NOT a NOT LIKE '%'",
        "a SIMILAR TO '%'",
        "a ~ ''",
        "a ~* '.*'",
        "a LIKE a",
        "char_length(a) >= 0",
        "length(a) > -1",
        "0 <= length(a)",
        "abs(a) >= 0",
        "a >= ''",
        "(SELECT count(*) FROM u WHERE u.x = t.a) >= 0",
        "a @> '{}'",
        "a IS NOT NULL OR a = 5",
        "a IS NOT NULL AND now() > '2001-01-01'::timestamptz",
        "a = a + 1",
        "a IN (SELECT a FROM t WHERE a IS NOT NULL)",
    ],
)
def test_weak(condition: str) -> None:
    assert judge_where(condition) is WEAK


@pytest.mark.parametrize(
    "condition",
    [
        "now() > timestamptz '2001-01-01'",
        "random() < 0.5",
        "random() = random()",
        "$1",
        "$1::boolean",
        "$1::int = $2::int",
        "current_user = 'x'",
        "a = 5 OR $1",
        "$1 IS NULL OR a = $1",
        "5 IN (SELECT x FROM u)",
        "(SELECT count(*) FROM u) > 0",
        "(SELECT max(x) FROM u) = 5",
        "EXISTS (SELECT 1 FROM u)",
        "EXISTS (SELECT 1 FROM u WHERE u.x = 5)",
        "EXISTS (SELECT 1 FROM u WHERE x = 5)",
        "EXISTS (SELECT 1 FROM t WHERE t.a = 5)",
        "EXISTS (SELECT 1 FROM u WHERE t.a = t.a)",
        "EXISTS (SELECT 1 FROM u JOIN v ON u.x = v.x)",
        "CASE WHEN now() > '2001-01-01' THEN true ELSE false END",
    ],
)
def test_untied(condition: str) -> None:
    assert judge_where(condition) is UNTIED


@pytest.mark.parametrize(
    "condition",
    [
        "a = 1",
        "t.a = 1",
        "a",
        "NOT a",
        "a > 0",
        "a IS NULL",
        "a IS NOT TRUE",
        "a = true",
        "a <> false",
        "(a = 1) = true",
        "(a = 1)::int = 1",
        "(a = 1) IS NOT FALSE",
        "(a IS NULL) = true",
        "CASE WHEN a = 1 THEN true WHEN b = 2 THEN false ELSE a = 3 END",
        "CASE a WHEN 1 THEN true ELSE false END",
        "CASE WHEN a = 1 THEN 'x' ELSE 'y' END = 'x'",
        "coalesce(a, b) = true",
        "coalesce(CASE WHEN a = 1 THEN false END, true)",
        "coalesce(CASE WHEN a = 1 THEN 1 END = 5, true)",
        "(CASE WHEN a = 1 THEN 1 END = 5) IS NOT NULL",
        "a IN (SELECT DISTINCT ON (b) a FROM t)",
        "a LIKE '%' || 'x' || '%'",
        "a IS NOT NULL AND b = 5",
        "1 = 1 AND a = 5",
        "1 = 0 OR a = 5",
        "$1 AND a = $2",
        "a = $1",
        "a = ANY ($1)",
        "a <> ALL ($1)",
        "a = ANY ('{1,2}')",
        "a IN ('x', 'y')",
        "a NOT IN (1, 2)",
        "a < b",
        "a = b + 1",
        "a <> lower(a)",
        "a = upper(a)",
        "a <> trim(a)",
        "a::date = a",
        "a = a::int",
        "a <> ''",
        "a LIKE 'x%'",
        "a NOT LIKE '%x%'",
        "a LIKE '_%'",
        "a ~ '^x'",
        "a ->> 'k' IS NOT NULL",
        "nullif(a, '') IS NOT NULL",
        "a = 1 OR a = 2",
        "a = 1 OR a <> 2",
        "a < 3 OR a > 5",
        "a = 'x' OR b <> 'x'",
        "a <> 't' OR a <> 'true'",
        "a <> '1' OR a <> '01'",
        "a IS NULL OR a <> 3",
        "NOT (a = 1 OR b = 2)",
        "coalesce(a, 0) = 0",
        "coalesce(a, false)",
        "length(a) > 3",
        "length(a) >= 1",
        "(a, b) IN ((1, 2), (3, 4))",
        "(a, b) > ('2025-03-01', 7)",
        "a BETWEEN 1 AND 5",
        "a NOT BETWEEN 1 AND 5",
        "a @> '{1}'",
        "a && ARRAY[1]",
        "upper(a) || '' = 'PAID'",
        "CASE WHEN a = 1 THEN true ELSE false END",
        "a IN (SELECT x FROM u)",
        "a NOT IN (SELECT x FROM u)",
        "a IN (SELECT a FROM t WHERE b = 5)",
        "a IN (SELECT s.a FROM t AS s WHERE s.a = t.a AND s.b = 5)",
        "a IN (SELECT a FROM t ORDER BY b LIMIT 1)",
        "a NOT IN (SELECT min(a) FROM t GROUP BY b)",
        "(a, b) IN (SELECT a, b FROM t WHERE a = 11 ORDER BY b DESC LIMIT 1)",
        "a < (SELECT max(a) FROM t AS s WHERE s.b = t.b)",
        "a = (SELECT max(x) FROM u)",
        "(SELECT count(*) FROM u WHERE u.x = t.a) > 3",
        "(SELECT count(*) FROM u WHERE x = a) = 0",
        "EXISTS (SELECT 1 FROM u WHERE u.x = t.a)",
        "EXISTS (SELECT 1 FROM u WHERE x = a)",
        "NOT EXISTS (SELECT 1 FROM u WHERE u.x = t.a)",
        "EXISTS (SELECT 1 FROM t AS s WHERE s.a = t.a AND s.b > 7)",
        "EXISTS (SELECT 1 FROM t AS s WHERE s.a = t.a AND s.b < t.b)",
        "EXISTS (SELECT 1 FROM unnest(t.tags) AS tag WHERE tag = 'x')",
        "EXISTS (SELECT 1 FROM u JOIN v ON v.x = t.a)",
        "EXISTS (SELECT 1 FROM u WHERE u.x = t.a AND u.y = $1)",
        "EXISTS (SELECT unnest(t.tags))",
        "EXISTS (SELECT 1 FROM u GROUP BY y HAVING max(x) > t.a)",
    ],
)
def test_narrows(condition: str) -> None:
    assert judge_where(condition) is NARROWS


@pytest.mark.parametrize(
    "condition",
    [
        "false",
        "NULL",
        "1 = 2",
        "a = NULL",
        "NOT a = NULL",
        "NOT a @> NULL",
        "NULL IS NOT NULL",
        "a <> a",
        "a < a",
        "a = 1 AND false",
        "a IN (NULL)",
        "NOT true",
        "EXISTS (SELECT 1 FROM u WHERE false)",
        "a = ANY ('{}')",
        "a IN (SELECT x FROM u WHERE 1 = 2)",
    ],
)
def test_never(condition: str) -> None:
    assert judge_where(condition) is NEVER


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE t AS c SET x = 0 WHERE c.a = 1", NARROWS),
        ("UPDATE t AS c SET x = 0 WHERE t.a = 1", UNTIED),
        ("UPDATE s.t SET x = 0 WHERE s.t.a = 1", NARROWS),
        ("UPDATE t SET x = 0 FROM u WHERE u.x = 3", UNTIED),
        ("UPDATE t SET x = 0 FROM u WHERE u.x = t.a", NARROWS),
        ("UPDATE t SET x = 0 FROM u WHERE u.x = a", NARROWS),
        ("DELETE FROM t USING u WHERE u.x = 17", UNTIED),
        ("DELETE FROM t USING u WHERE u.x = t.a AND u.x = 20", NARROWS),
        ("DELETE FROM t c WHERE EXISTS (SELECT 1 FROM t WHERE t.a = c.a)", ALWAYS),
        ("DELETE FROM t c WHERE EXISTS (SELECT 1 FROM t WHERE t.a = 1)", UNTIED),
    ],
)
def test_the_target_is_known_by_its_qualifier(statement: str, expected: Narrowing) -> None:
    assert judge(statement) is expected


def test_no_condition_is_always() -> None:
    assert narrowing(None, ("t",)) is ALWAYS


def test_a_long_list_is_judged_as_a_whole() -> None:
    items = ", ".join(map(str, range(10_000)))
    assert judge_where(f"a IN ({items})") is NARROWS
    assert judge_where(f"5 IN ({items})") is UNTIED


def test_a_long_chain_is_judged() -> None:
    chain = " OR ".join(f"a = {n}" for n in range(1000))
    assert judge_where(chain) is NARROWS
    assert judge_where(f"{chain} OR a <> 3") is ALWAYS


def test_too_large_a_condition_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy.predicates.MAX_NODES", 50)
    assert judge_where(" OR ".join(f"a = {n}" for n in range(100))) is Narrowing.UNDECIDED


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("a = 1 AND b > 2", False),
        ("a = 1 OR b > 2", True),
        ("NOT a = 1", True),
        ("a = 1 AND coalesce(b, true)", True),
        ("a IN (SELECT x FROM u)", True),
        (" OR ".join(f"a = {n}" for n in range(100)), False),
    ],
)
def test_small_conditions_with_alternatives(condition: str, expected: bool) -> None:
    write, _, _ = write_of(f"DELETE FROM t WHERE {condition}")
    assert write.where is not None
    assert has_alternatives(write.where, 120) is expected
