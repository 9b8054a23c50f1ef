"""Functions, operators and types that a statement names, and what may be a call without looking like one."""
# ruff: noqa: E501  (a statement of a table stays on its line)

from __future__ import annotations

import pytest

from policy.facts import CallKind
from tests.policy.extracting import attributes, calls, dotted, facts, words

CALLS = [
    ("SELECT f(1, 2), s.g(), pg_catalog.now()", "f/2 s.g/0 pg_catalog.now/0"),
    (
        "SELECT count(*) FILTER (WHERE f(a)) OVER (PARTITION BY g(b) ORDER BY h(c)) FROM t",
        "count/0 f/1 g/1 h/1",
    ),
    (
        "SELECT string_agg(a, b ORDER BY f(c)), mode() WITHIN GROUP (ORDER BY g(d)) FROM t",
        "string_agg/2 f/1 mode/0 g/1",
    ),
    (
        "SELECT 1 FROM t WINDOW w AS (PARTITION BY f(1) ROWS BETWEEN g(1) PRECEDING AND h(2) FOLLOWING)",
        "f/1 g/1 h/1",
    ),
    (
        "SELECT * FROM f(1), LATERAL s.g(2) WITH ORDINALITY, ROWS FROM (h(3) AS (x int), i(4)) AS r",
        "f/1 s.g/1 h/1 i/1",
    ),
    (
        "SELECT 1 FROM t TABLESAMPLE system (length(pg_read_file('PG_VERSION'))) REPEATABLE (f(1))",
        "system/1 length/1 pg_read_file/1 f/1",
    ),
    ("VALUES (length(pg_read_file('PG_VERSION')))", "length/1 pg_read_file/1"),
    ('SELECT U&"pg\\005fsleep"(5)', "pg_sleep/1"),
    (
        "SELECT a LIKE b ESCAPE c, a SIMILAR TO b, a NOT SIMILAR TO b ESCAPE c",
        "pg_catalog.like_escape/2 pg_catalog.similar_to_escape/1 pg_catalog.similar_to_escape/2",
    ),
    (
        "SELECT (a, b) OVERLAPS (c, d), a AT TIME ZONE 'x', EXTRACT(year FROM a), COLLATION FOR (a)",
        "pg_catalog.overlaps/4 pg_catalog.timezone/2 pg_catalog.extract/2 pg_catalog.pg_collation_for/1",
    ),
    (
        "SELECT SUBSTRING(a FROM 1 FOR 2), POSITION(a IN b), TRIM(a), OVERLAY(a PLACING b FROM 1)",
        "pg_catalog.substring/3 pg_catalog.position/2 pg_catalog.btrim/1 pg_catalog.overlay/3",
    ),
    (
        "SELECT current_user, current_timestamp, localtime(2), COALESCE(a, 1), GREATEST(a, 2), NULLIF(a, 3)",
        "",
    ),
    ("SELECT CASE f(a) WHEN g(b) THEN h(c) ELSE i(d) END", "f/1 g/1 h/1 i/1"),
    ("SELECT ARRAY[f(1)], ROW(g(1)), (h(1)).x, a[i(1):j(1)]", "f/1 g/1 h/1 i/1 j/1"),
    ('SELECT f(1)::numeric(3, 2) COLLATE "C" IS NULL, NOT g(1) IS TRUE', "f/1 g/1"),
    ("SELECT * FROM XMLTABLE('/a' PASSING f(1) COLUMNS b int PATH g(2) DEFAULT h(3))", "f/1 g/1 h/1"),
    (
        "SELECT xmlelement(name a, xmlattributes(f(1) AS b), g(2)), xmlforest(h(3)), xmlserialize(content i(4) AS text)",
        "f/1 g/1 h/1 i/1",
    ),
    (
        "SELECT * FROM JSON_TABLE(f(1), '$' PASSING g(2) AS x COLUMNS (a int PATH '$.a' DEFAULT h(3) ON EMPTY, NESTED '$.b' COLUMNS (c int DEFAULT i(4) ON ERROR)))",
        "f/1 g/1 h/1 i/1",
    ),
    (
        "SELECT JSON_OBJECT('a': f(1)), JSON_ARRAY(g(1), h(2)), JSON_ARRAYAGG(i(3) ORDER BY j(4)), JSON_OBJECTAGG(k(5): l(6))",
        "f/1 g/1 h/1 i/1 j/1 k/1 l/1",
    ),
    (
        "SELECT JSON_VALUE(f(1), '$' DEFAULT g(2) ON EMPTY), JSON_QUERY(h(3), '$' PASSING i(4) AS y), JSON_EXISTS(j(5), '$')",
        "f/1 g/1 h/1 i/1 j/1",
    ),
    (
        "SELECT JSON(f(1)), JSON_SCALAR(g(2)), JSON_SERIALIZE(h(3)), i(4) IS JSON, JSON_ARRAY(SELECT j(5))",
        "f/1 g/1 h/1 i/1 j/1",
    ),
    (
        "SELECT DISTINCT ON (f(1)) 1 FROM t GROUP BY GROUPING SETS ((g(2)), ROLLUP (h(3)), CUBE (i(4))) HAVING j(5)",
        "f/1 g/1 h/1 i/1 j/1",
    ),
    ("SELECT 1 FROM t ORDER BY f(1) LIMIT g(2) OFFSET h(3)", "f/1 g/1 h/1"),
    ("SELECT 1 FROM a JOIN b ON f(1)", "f/1"),
    (
        "INSERT INTO t (a[f(1)]) VALUES (g(2)) ON CONFLICT (h(3)) WHERE i(4) DO UPDATE SET a[j(5)] = k(6) WHERE l(7) RETURNING m(8)",
        "f/1 g/1 h/1 i/1 j/1 k/1 l/1 m/1",
    ),
    (
        "UPDATE t SET a[f(1)] = g(2), (b, c) = (h(3), i(4)), (d, e) = (SELECT j(5), 1) FROM k(6) WHERE l(7) RETURNING m(8)",
        "f/1 g/1 h/1 i/1 j/1 k/1 l/1 m/1",
    ),
    ("DELETE FROM t USING f(1) WHERE g(2) RETURNING h(3)", "f/1 g/1 h/1"),
    (
        "MERGE INTO t USING f(1) s ON g(2) WHEN MATCHED AND h(3) THEN UPDATE SET a = i(4) WHEN NOT MATCHED AND j(5) THEN INSERT VALUES (k(6)) RETURNING l(7)",
        "f/1 g/1 h/1 i/1 j/1 k/1 l/1",
    ),
    ("EXECUTE p(pg_read_file('x'))", "pg_read_file/1"),
    ("CALL s.p(f(1))", "s.p/1 f/1"),
    ("COPY t FROM STDIN WHERE f(a)", "f/1"),
    (
        "CREATE TABLE t (a int DEFAULT f(1) CHECK (g(2)), b int GENERATED ALWAYS AS (h(3)) STORED, EXCLUDE USING gist (i(4) WITH =) WHERE (j(5)))",
        "f/1 g/1 h/1 i/1 j/1",
    ),
    ("CREATE TABLE t PARTITION OF p FOR VALUES FROM (f(1)) TO (g(2))", "f/1 g/1"),
    ("CREATE TABLE t (a int) PARTITION BY RANGE (f(a))", "f/1"),
    ("CREATE FUNCTION f(a int DEFAULT g(1)) RETURNS int RETURN h(2)", "g/1 h/1"),
    ("CREATE TRIGGER t BEFORE UPDATE ON u WHEN (f(1)) EXECUTE FUNCTION s.g('x')", "f/1 s.g/1"),
    ("CREATE POLICY p ON t USING (f(1)) WITH CHECK (g(2))", "f/1 g/1"),
    ("CREATE STATISTICS s ON (f(a)), (g(a)) FROM t", "f/1 g/1"),
    ("CREATE DOMAIN d AS int DEFAULT f(1) CHECK (g(VALUE))", "f/1 g/1"),
    ("ALTER TABLE t ALTER a TYPE int USING f(a), ALTER b SET DEFAULT g(1)", "f/1 g/1"),
    ("SELECT merge_action(), GROUPING(f(a))", "f/1"),
]


@pytest.mark.parametrize(("sql", "expected"), CALLS)
def test_calls(sql: str, expected: str) -> None:
    assert calls(facts(sql)) == words(expected)


def test_a_call_says_how_it_is_called() -> None:
    found = facts("SELECT f('a', 2, NULL, b, -3, '5'::int, true), count(*), g(x => 'y', z => $1) FROM h(1)")
    f, count, g, h = sorted(
        (call for call in found.functions if call.kind is CallKind.CALL), key=lambda call: call.position or 0
    )
    assert f.literals == ("a", "2", None, None, "-3", "5", "true")
    assert (f.arguments, f.argument_names, f.star, f.in_from, f.position) == (7, (), False, False, 8)
    assert (count.star, count.arguments) == (True, 0)
    assert (g.argument_names, g.literals) == (("x", "z"), ("y", None))
    assert (h.in_from, h.literals) == (True, ("1",))
    assert found.parameters == 1


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT (total::float8).pg_sleep FROM orders", "pg_sleep"),
        ("SELECT o.evil FROM orders o", "evil"),
        ("SELECT public.orders.evil FROM public.orders", "evil"),
        ("SELECT (o).evil, ((o).a).b, (f(1)).c, ($1).d, (ARRAY[1])[1].e", "evil a b c d e"),
        ("SELECT o.*, (o).*, x", ""),
        ("SELECT 1 ORDER BY o.evil", "evil"),
        ("UPDATE t SET a.b = 1", ""),
    ],
)
def test_names_that_may_be_calls_without_parentheses(sql: str, expected: str) -> None:
    assert attributes(facts(sql)) == words(expected)


def test_the_same_attribute_of_two_values_is_two_mentions() -> None:
    found = facts("SELECT a.f, b.f, a.f, (x[1]).f, (y[1]).f FROM a, b")
    assert len([call for call in found.functions if call.name == "f"]) == 4


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a + b, @ c, a OPERATOR(s.<~>) b", "+ @ s.<~>"),
        ("SELECT a = ANY (b), a OPERATOR(s.=) ALL (SELECT 1), (a, b) < (c, d)", "= s.= <"),
        ("SELECT a IN (1), a NOT IN (2)", "=? <>?"),
        ("SELECT a IN (SELECT 1)", "=?"),
        ("SELECT a BETWEEN 1 AND 2", ">=? <=?"),
        ("SELECT a NOT BETWEEN SYMMETRIC 1 AND 2", "<? >?"),
        ("SELECT a LIKE b, a NOT LIKE b, a ILIKE b, a NOT ILIKE b", "~~? !~~? ~~*? !~~*?"),
        ("SELECT a SIMILAR TO b, a NOT SIMILAR TO b", "~? !~?"),
        ("SELECT a IS DISTINCT FROM b, NULLIF(a, b)", "=?"),
        ("SELECT CASE a WHEN 1 THEN 2 END, CASE WHEN a THEN 1 END", "=?"),
        ("SELECT 1 FROM a JOIN b USING (x)", "=?"),
        ("SELECT 1 FROM a NATURAL JOIN b", "=?"),
        ("SELECT 1 FROM a ORDER BY x USING OPERATOR(s.<)", "s.<"),
        ("SELECT NOT a AND b OR c IS NULL", ""),
    ],
)
def test_operators(sql: str, expected: str) -> None:
    found = {f"{dotted(o.schema, o.symbol)}{'?' if o.implied else ''}" for o in facts(sql).operators}
    assert found == words(expected)


def test_an_operator_says_which_sides_it_has() -> None:
    prefix, infix = facts("SELECT - a, a - b").operators
    assert (prefix.left, prefix.right, infix.left, infix.right) == (False, True, True, True)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a::s.t, CAST(b AS int[])", "s.t! pg_catalog.int4!"),
        ("SELECT 'x'::regclass, date '2020-01-01'", "regclass='x' date='2020-01-01'"),
        ("SELECT 'x'::text::regclass", "text='x' regclass!"),
        ("CREATE TABLE t (a s.d, b text[])", "s.d text"),
        ("SELECT * FROM f() AS (a int)", "pg_catalog.int4!"),
        ("SELECT * FROM XMLTABLE('a' PASSING b COLUMNS c s.d)", "s.d!"),
        ("SELECT JSON_VALUE(a, '$' RETURNING s.d)", "s.d!"),
        ("PREPARE p (s.d) AS SELECT $1", "s.d!"),
    ],
)
def test_types(sql: str, expected: str) -> None:
    found = {
        dotted(t.schema, t.name) + (f"='{t.literal_value}'" if t.literal else "!" if t.cast else "")
        for t in facts(sql).types
    }
    assert found == words(expected)


def test_a_constant_is_known_through_a_second_cast() -> None:
    assert [t.literal_value for t in facts("SELECT 'x'::text::regclass").types] == ["x", "x"]
