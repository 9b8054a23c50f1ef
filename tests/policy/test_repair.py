"""What a repair must keep: a table a halt and a form of weakening. Random ones: ``test_repair_server``."""

from __future__ import annotations

import pytest

from policy.model import Halt, StatementClass, Violation
from policy.names import PathNames
from policy.parse import parse
from policy.repair import Attempt, Fault, Finding, attempt, compare, finding_of_rejection
from tests.policy.repairing import NAMES, found, judged, made, refused

JOIN = "SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id"


# Spelling: one normal form ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("DELETE FROM t WHERE a = 1", "delete  from T as x where (x.A=1) -- again"),
        ("DELETE FROM t WHERE a = 1", "DELETE FROM public.t WHERE 1 = t.a"),
        ("DELETE FROM t WHERE a = 1 AND b = 2", "DELETE FROM t WHERE b = 2 AND TRUE AND a = 1"),
        ("DELETE FROM t WHERE a = 5", "DELETE FROM t WHERE a = 2 + 3"),
        ("DELETE FROM t WHERE a = 5", "DELETE FROM t WHERE a IN (5)"),
        ("DELETE FROM t WHERE a IN (1, 2)", "DELETE FROM t WHERE a = 2 OR a = 1"),
        ("DELETE FROM t WHERE a IN (1, 2)", "DELETE FROM t WHERE a = ANY (ARRAY[2, 1])"),
        ("DELETE FROM t WHERE a NOT IN (1, 2)", "DELETE FROM t WHERE NOT (a = 1 OR a = 2)"),
        ("DELETE FROM t WHERE a BETWEEN 1 AND 3", "DELETE FROM t WHERE a <= 3 AND NOT a < 1"),
        ("DELETE FROM t WHERE a = 3", "DELETE FROM t WHERE a BETWEEN 3 AND 3"),
        ("DELETE FROM t WHERE NOT (a = 1 AND b = 2)", "DELETE FROM t WHERE b <> 2 OR a != 1"),
        ("DELETE FROM t WHERE f", "DELETE FROM t WHERE f IS TRUE"),
        ("DELETE FROM t WHERE f = false", "DELETE FROM t WHERE NOT f"),
        ("SELECT x.a FROM t x, u WHERE x.i = u.i", "SELECT t.a FROM t JOIN u ON u.i = t.i"),
        ("SELECT t.a FROM t JOIN u USING (i)", "SELECT t.a FROM t, u WHERE u.i = t.i"),
        ("SELECT a.x FROM a LEFT JOIN b ON a.i = b.i", "SELECT a.x FROM b RIGHT JOIN a ON b.i = a.i"),
        ("SELECT 1 FROM (SELECT a FROM t) x", "WITH c AS (SELECT a FROM t) SELECT 1 FROM c"),
    ],
)
def test_one_statement_in_two_spellings_is_unchanged(one: str, other: str) -> None:
    assert judged(one, other) is Halt.UNCHANGED


def test_bound_values_are_constants() -> None:
    first, finding = refused("DELETE FROM t WHERE a = $1 AND b = $2", parameters=(5, "x"), sqlstate="23503")
    assert compare(first, finding, made("DELETE FROM t WHERE a = 5 AND b = 'x'")) is Halt.UNCHANGED
    assert compare(first, finding, made("DELETE FROM t WHERE b = $1 AND a = $2", "x", 5)) is Halt.UNCHANGED
    other = made("DELETE FROM t WHERE a = $1 AND b = $2", 6, "x")
    assert compare(first, finding, other) is Halt.PREDICATE_WEAKENED


def test_what_only_shows_or_orders_is_part_of_a_statement() -> None:
    first, finding = refused("SELECT id FROM t ORDER BY creatd", "creatd", ("created",))
    assert compare(first, finding, made("SELECT id FROM t ORDER BY created")) is None
    first, finding = refused("DELETE FROM t WHERE id = 3 RETURNING idd", "idd", ("id",))
    assert compare(first, finding, made("DELETE FROM t WHERE id = 3 RETURNING id")) is None


# Kept -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a = 1", "a = 1 AND b = 2"),
        ("a IN (1, 2, 3)", "a = 2"),
        ("a IN (1, 2, 3)", "a IN (1, 3)"),
        ("a > 5", "a > 6"),
        ("a > 5", "a >= 6"),
        ("a > 5", "a = 7"),
        ("a > 5", "a IN (6, 7)"),
        ("a <> 3", "a > 3"),
        ("a <> 3", "a = 4"),
        ("a BETWEEN 1 AND 9", "a BETWEEN 2 AND 3"),
        ("a = 1 OR b = 2", "b = 2"),
        ("a = 1 OR b = 2", "a = 1 AND c > 0"),
        ("a < 9", "(a = 1 AND b = 1) OR (a = 2 AND b = 2)"),
        ("a IS NOT NULL", "a = 1"),
        ("NOT a IS NULL", "a IS NOT NULL"),
        ("d >= '2025-01-01'", "d >= '2025-03-01'"),
        ("d >= '2025-01-01'", "d >= date '2025-01-01'"),
        ("d > '2025-01-01 10:00'", "d > '2025-01-01 11:00'"),
        ("n LIKE 'ab%'", "n LIKE 'abc%'"),
        ("n LIKE 'ab%'", "n = 'abc'"),
        ("a = 5", "a = '5'"),
        ("x IN (SELECT id FROM s)", "x IN (SELECT z.id FROM s z WHERE z.q = 1)"),
        ("EXISTS (SELECT 1 FROM s WHERE s.i = t.i)", "EXISTS (SELECT 1 FROM s WHERE s.i = t.i AND s.k = 2)"),
        (
            "NOT EXISTS (SELECT 1 FROM s WHERE s.i = t.i AND s.k = 2)",
            "NOT EXISTS (SELECT 1 FROM s WHERE s.i = t.i)",
        ),
        ("(a, b) = (1, 2)", "a = 1 AND b = 2 AND c = 3"),
        ("a IS NOT DISTINCT FROM 4", "a = 4 AND b = 1"),
    ],
)
def test_a_condition_that_is_kept_or_narrowed(first: str, second: str) -> None:
    assert judged(f"DELETE FROM t WHERE {first}", f"DELETE FROM t WHERE {second}") is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("SELECT * FROM a LEFT JOIN b ON a.i = b.i", "SELECT * FROM a JOIN b ON a.i = b.i"),
        (JOIN, f"{JOIN} LIMIT 10"),
        (JOIN, f"{JOIN} WHERE o.id = 5"),
        ("SELECT a, count(*) FROM t GROUP BY a", "SELECT a, b, count(*) FROM t GROUP BY a, b"),
        (
            "SELECT g FROM t GROUP BY g HAVING count(*) > 5",
            "SELECT g FROM t GROUP BY g HAVING count(*) > 9",
        ),
        (
            "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
            "MERGE INTO t USING s ON t.a = s.a AND s.b = 1 WHEN MATCHED AND t.c = 2 THEN DELETE",
        ),
        ("INSERT INTO t (a) VALUES (1)", "INSERT INTO t (a) VALUES (1) ON CONFLICT DO NOTHING"),
        (
            "INSERT INTO t (a) SELECT id FROM s WHERE k = 1",
            "INSERT INTO t (a) SELECT id FROM s WHERE k = 1 AND m = 2",
        ),
        (
            "WITH d AS (DELETE FROM t WHERE a = 1 RETURNING b) SELECT b FROM d",
            "WITH d AS (DELETE FROM t WHERE a = 1 AND b = 2 RETURNING b) SELECT b FROM d",
        ),
    ],
)
def test_a_statement_that_keeps_its_bounds(first: str, second: str) -> None:
    assert judged(first, second) is None


# Weakened ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        ("range widened", "a > 5", "a > 4"),
        ("strict bound loosened", "a > 5", "a >= 5"),
        ("BETWEEN widened", "a BETWEEN 2 AND 3", "a BETWEEN 1 AND 3"),
        ("upper bound dropped", "a BETWEEN 2 AND 3", "a >= 2"),
        ("IN list grown", "a IN (1, 2)", "a IN (1, 2, 3)"),
        ("= to IN", "a = 1", "a IN (1, 2)"),
        ("a range to a list that leaves it", "a > 5", "a IN (4, 6)"),
        ("a number to another as text", "a = 5", "a = '6'"),
        ("= to LIKE", "n = 'abc'", "n LIKE 'abc'"),
        ("= to a prefix", "n = 'abc'", "n LIKE 'abc%'"),
        ("= to IS NOT NULL", "a = 1", "a IS NOT NULL"),
        ("= to <=", "a = 1", "a <= 1"),
        ("prefix shortened", "n LIKE 'abc%'", "n LIKE 'ab%'"),
        ("LIKE to ILIKE", "n LIKE 'abc%'", "n ILIKE 'abc%'"),
        ("AND to OR", "a = 1 AND b = 2", "a = 1 OR b = 2"),
        ("a term added by OR", "a = 1", "a = 1 OR b = 2"),
        ("a sub-select's filter dropped", "x IN (SELECT id FROM s WHERE q = 1)", "x IN (SELECT id FROM s)"),
        (
            "a sub-select's condition widened",
            "EXISTS (SELECT 1 FROM s WHERE s.i = t.i AND s.q > 2)",
            "EXISTS (SELECT 1 FROM s WHERE s.i = t.i AND s.q > 1)",
        ),
        (
            "an exclusion made rarer",
            "NOT EXISTS (SELECT 1 FROM s WHERE s.i = t.i)",
            "NOT EXISTS (SELECT 1 FROM s WHERE s.i = t.i AND s.k = 1)",
        ),
        ("a LIMIT in a sub-select dropped", "x IN (SELECT i FROM s LIMIT 5)", "x IN (SELECT i FROM s)"),
        (
            "an aggregate over other rows",
            "a > (SELECT max(i) FROM s)",
            "a > (SELECT max(i) FROM s WHERE k = 1)",
        ),
        ("an aggregate in a list", "x IN (SELECT max(i) FROM s)", "x IN (SELECT max(i) FROM s WHERE k = 1)"),
        (
            "others within a LIMIT",
            "x IN (SELECT i FROM s ORDER BY i LIMIT 5)",
            "x IN (SELECT i FROM s WHERE k = 1 ORDER BY i LIMIT 5)",
        ),
        ("NULL within a value", "coalesce((a = 1) IS TRUE, true)", "coalesce(a = 1, true)"),
        ("COALESCE swallows nulls", "a = 1", "COALESCE(a, 1) = 1"),
        ("IS NOT FALSE", "f", "f IS NOT FALSE"),
        ("IS DISTINCT FROM", "a <> 1", "a IS DISTINCT FROM 1"),
        ("a cast", "a = 1", "a::text = '1'"),
        ("a cast that rounds", "a > 1.5", "a::int > 1"),
        ("a function", "n = 'abc'", "lower(n) = 'abc'"),
        ("arithmetic", "a = 1", "a / 2 = 0"),
        ("a padded number is another text", "n = '007'", "n = '7'"),
        ("numbers as texts have no one order", "n > '10'", "n > '5'"),
        ("a date column drops the time", "d > '2025-01-01 10:00'", "d >= '2025-01-01 11:00'"),
        ("a collation", "n > 'a'", "n > 'a' COLLATE \"C\""),
        ("NOT IN shortened", "a NOT IN (1, 2)", "a NOT IN (1)"),
        ("= ANY (NULL-proof)", "a = 1", "NOT (a <> 1) IS FALSE"),
        ("another column", "a = 1", "b = 1 AND a > 0"),
        ("another value", "a = 1", "a = 2"),
        ("a case-insensitive pattern", "n ~ '^ab'", "n ~* '^ab'"),
    ],
)
def test_a_weakened_condition(form: str, first: str, second: str) -> None:
    halt = judged(f"DELETE FROM t WHERE {first} AND z = 9", f"DELETE FROM t WHERE {second} AND z = 9")
    assert halt is Halt.PREDICATE_WEAKENED, form


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "SELECT * FROM a JOIN b ON a.i = b.i WHERE b.k = 1",
            "SELECT * FROM a LEFT JOIN b ON a.i = b.i AND b.k = 1",
        ),
        ("SELECT * FROM a JOIN b ON a.i = b.i", "SELECT * FROM a LEFT JOIN b ON a.i = b.i"),
        ("SELECT * FROM a CROSS JOIN b", "SELECT * FROM a LEFT JOIN b ON true"),
        ("SELECT * FROM a LEFT JOIN b ON a.i = b.i", "SELECT * FROM a FULL JOIN b ON a.i = b.i"),
        (
            "SELECT * FROM a LEFT JOIN b ON a.i = b.i AND b.k = 1",
            "SELECT * FROM a LEFT JOIN b ON a.i = b.i",
        ),
        (
            "SELECT a.i FROM a LEFT JOIN b ON a.i = b.i WHERE b.i IS NULL",
            "SELECT a.i FROM a LEFT JOIN b ON a.i = b.i AND b.k = 1 WHERE b.i IS NULL",
        ),
        ("SELECT * FROM a LEFT JOIN b ON a.i = b.i", "SELECT * FROM a CROSS JOIN b"),
        (
            "SELECT g, count(*) FROM t WHERE g > 5 GROUP BY g",
            "SELECT g, count(*) FROM t GROUP BY g HAVING g > 5",
        ),
        (
            "SELECT * FROM (SELECT a FROM t WHERE b = 1) x WHERE a = 2",
            "SELECT * FROM (SELECT a FROM t) x WHERE a = 2",
        ),
        ("SELECT a FROM t WHERE b = 1 UNION SELECT a FROM u", "SELECT a FROM t UNION SELECT a FROM u"),
        (
            "SELECT a FROM t EXCEPT SELECT a FROM u",
            "SELECT a FROM t EXCEPT SELECT a FROM u WHERE b = 1",
        ),
        (
            "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED AND s.b = 1 THEN DELETE",
            "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
        ),
        (
            "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 1 WHERE t.c = 2",
            "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 1",
        ),
        (
            "WITH d AS (DELETE FROM t WHERE a = 1 RETURNING b) SELECT b FROM d",
            "WITH d AS (DELETE FROM t WHERE a >= 1 RETURNING b) SELECT b FROM d",
        ),
        ("SELECT * FROM t a, t b WHERE a.i = b.j", "SELECT * FROM t a WHERE a.i = a.j"),
    ],
)
def test_a_statement_that_lost_a_bound(first: str, second: str) -> None:
    assert judged(first, second) in (Halt.PREDICATE_WEAKENED, Halt.PREDICATE_REMOVED)


@pytest.mark.parametrize(
    ("first", "second", "halt"),
    [
        ("DELETE FROM t WHERE a = 1 AND b = 2", "DELETE FROM t WHERE a = 1", Halt.PREDICATE_REMOVED),
        ("DELETE FROM t WHERE a = 1", "DELETE FROM t", Halt.PREDICATE_REMOVED),
        ("DELETE FROM t WHERE a = 1", "DELETE FROM t WHERE 1 = 1", Halt.TAUTOLOGY),
        ("DELETE FROM t WHERE a = 1", "DELETE FROM t WHERE a = a", Halt.TAUTOLOGY),
        ("DELETE FROM t WHERE a = 1", "DELETE FROM t WHERE a = 1 OR true", Halt.TAUTOLOGY),
        ("DELETE FROM t WHERE a = 1", "UPDATE t SET b = 2 WHERE a = 1", Halt.CLASS_CHANGED),
        (
            "SELECT b FROM t WHERE a = 1",
            "WITH d AS (DELETE FROM t WHERE a = 1 RETURNING b) SELECT b FROM d",
            Halt.CLASS_CHANGED,
        ),
        (
            "INSERT INTO t (a) VALUES (1)",
            "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2",
            Halt.CLASS_CHANGED,
        ),
        (
            "DELETE FROM t WHERE a = 1",
            "WITH u AS (UPDATE t SET b = 1 WHERE a = 1) DELETE FROM t WHERE a = 1",
            Halt.CLASS_CHANGED,
        ),
        ("DELETE FROM t WHERE a = 1", "DELETE FROM u WHERE a = 1", Halt.RELATIONS_CHANGED),
        (JOIN, "SELECT o.id FROM orders o LIMIT 10", Halt.RELATIONS_CHANGED),
        ("SELECT a FROM t", "SELECT a FROM t, u", Halt.RELATIONS_CHANGED),
        ("DELETE FROM t WHERE a = 1", "DELETE FROM billing.t WHERE a = 1", Halt.RELATIONS_CHANGED),
    ],
)
def test_other_halts(first: str, second: str, halt: Halt) -> None:
    assert judged(first, second) is halt


def test_what_is_too_large_is_undecided() -> None:
    terms = " OR ".join(f"(a = {n} AND b = {n})" for n in range(9_000))
    first, second = made(f"DELETE FROM t WHERE {terms}"), made(f"DELETE FROM t WHERE {terms} AND c = 1")
    assert not first.decided
    assert compare(first, Finding(("42703",)), second) is Halt.PREDICATE_WEAKENED
    cases = " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(40))
    assert judged(f"DELETE FROM t WHERE x = 1 AND {cases}", f"DELETE FROM t WHERE y = 1 AND {cases}") in (
        Halt.PREDICATE_WEAKENED,
        Halt.PREDICATE_REMOVED,
    )


def test_a_cte_named_many_times_does_not_grow() -> None:
    ctes = ["c0 AS (SELECT a FROM t)"]
    ctes += [f"c{n} AS (SELECT x.a FROM c{n - 1} x, c{n - 1} y)" for n in range(1, 30)]
    assert not made(f"WITH {', '.join(ctes)} SELECT a FROM c29").decided


# Faults -----------------------------------------------------------------------------------------------------


def test_a_misspelt_column_is_renamed_alike_everywhere() -> None:
    sql = "DELETE FROM coupons WHERE cod > 'A' AND cod < 'F'"
    first, finding = refused(sql, "cod >", ("code",))
    assert finding.columns == (Fault("cod", ("code",)),)
    assert compare(first, finding, made("DELETE FROM coupons WHERE code > 'A' AND code < 'F'")) is None
    mixed = made("DELETE FROM coupons WHERE code > 'A' AND kind < 'F'")
    assert compare(first, finding, mixed) is Halt.PREDICATE_WEAKENED
    gone = made("DELETE FROM coupons WHERE code < 'F'")
    assert compare(first, finding, gone) is Halt.PREDICATE_WEAKENED


def test_a_misspelt_column_keeps_its_condition() -> None:
    first, finding = refused("UPDATE t SET x = 1 WHERE cod = 'A' AND k = 2", "cod", ("code",))
    kept = "UPDATE t SET x = 1 WHERE t.code = 'A' AND k = 2"
    assert compare(first, finding, made(kept)) is None
    assert compare(first, finding, made(kept.replace("= 'A'", "LIKE 'A%'"))) is Halt.PREDICATE_WEAKENED
    assert compare(first, finding, made("UPDATE t SET x = 1 WHERE k = 2")) is Halt.PREDICATE_REMOVED


def test_a_column_may_be_read_from_the_relation_that_has_it() -> None:
    sql = "SELECT id FROM orders WHERE country = 'NL'"
    first, finding = refused(sql, "country")
    joined = "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.country = 'NL'"
    assert compare(first, finding, made(joined)) is None
    aside = "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.land = 'NL'"
    assert compare(first, finding, made(aside)) is Halt.RELATIONS_CHANGED


def test_a_column_under_the_wrong_qualifier() -> None:
    sql = f"{JOIN} WHERE o.country = 'NL'"
    first, finding = refused(sql, "o.country", ("c.country",))
    assert compare(first, finding, made(f"{JOIN} WHERE c.country = 'NL'")) is None
    assert compare(first, finding, made(f"{JOIN} WHERE c.country <> 'NL'")) is Halt.PREDICATE_WEAKENED


def test_an_ambiguous_column_is_qualified() -> None:
    sql = "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id WHERE id = 5"
    first, finding = refused(sql, "id = 5", sqlstate="42702")
    assert compare(first, finding, made(sql.replace("WHERE id", "WHERE o.id"))) is None


MISSPELT = "SELECT a.b FROM aa JOIN c ON a.id = c.id WHERE a.year = 3"


@pytest.mark.parametrize(
    ("second", "halt"),
    [
        (MISSPELT.replace("aa", "a"), None),
        (MISSPELT.replace("aa", "a").replace("a.id = c.id", "c.id = a.id"), None),
        (MISSPELT.replace("aa", "a").replace("= 3", "= 3 AND c.id > 1"), None),
        (MISSPELT.replace("aa", "a").replace("= 3", ">= 3"), Halt.PREDICATE_WEAKENED),
        (MISSPELT.replace("aa", "a").replace("WHERE a.year", "WHERE c.year"), Halt.PREDICATE_WEAKENED),
        (MISSPELT.replace("aa", "a").replace(" WHERE a.year = 3", ""), Halt.PREDICATE_REMOVED),
        # Two of the name: which one the qualifier meant nobody can say.
        (
            MISSPELT.replace("aa", "a AS x JOIN a AS y ON x.id = y.id").replace("a.", "x."),
            Halt.PREDICATE_WEAKENED,
        ),
    ],
)
def test_a_qualifier_without_its_relation_means_the_one_that_is_there_now(
    second: str, halt: Halt | None
) -> None:
    first, finding = refused(MISSPELT, "aa", sqlstate="42P01")
    assert compare(first, finding, made(second)) is halt


def test_a_qualifier_that_an_alias_hides_is_the_alias() -> None:
    sql = "UPDATE orders AS o SET total = 1 WHERE orders.id = 3"
    first, finding = refused(sql, "orders.id", sqlstate="42P01")
    assert compare(first, finding, made(sql.replace("orders.id", "o.id"))) is None
    assert compare(first, finding, made(sql.replace("orders.id = 3", "o.id > 3"))) is Halt.PREDICATE_WEAKENED


LACKS = "SELECT c.name FROM c WHERE t.kind = 'x' AND c.city = 'York'"
GROUPED = "WITH g AS (SELECT c.city, count(t.id) AS n FROM c GROUP BY c.city) SELECT city FROM g WHERE n > 5"
UNREAD = "WITH g AS (SELECT k FROM t) SELECT c.id FROM c WHERE g.k = 1 AND c.city = 'York'"
TWICE = "WITH g AS (SELECT c.id FROM c WHERE t.k = 1) SELECT g.id FROM g JOIN trips t ON t.c_id = g.id"


def joining(first: str, join: str, was: str = "", now: str = "") -> str:
    return first.replace("FROM c", f"FROM c {join}").replace(was, now)


@pytest.mark.parametrize(
    ("first", "at", "second", "halt"),
    [
        (LACKS, "t.kind", joining(LACKS, "JOIN trips t ON t.c_id = c.id"), None),
        (LACKS, "t.kind", joining(LACKS, "LEFT JOIN trips t ON t.c_id = c.id"), None),
        (LACKS, "t.kind", joining(LACKS, ", trips t"), None),
        (
            LACKS,
            "t.kind",
            joining(LACKS, "LEFT JOIN trips t ON t.k", "t.k WHERE t.kind = 'x' AND", "t.kind = 'x' WHERE"),
            Halt.PREDICATE_WEAKENED,
        ),
        (LACKS, "t.kind", joining(LACKS, "RIGHT JOIN trips t ON t.c_id = c.id"), Halt.PREDICATE_WEAKENED),
        (
            LACKS,
            "t.kind",
            joining(LACKS, "JOIN trips t ON t.c_id = c.id", " AND c.city = 'York'", ""),
            Halt.PREDICATE_REMOVED,
        ),
        (
            LACKS,
            "t.kind",
            joining(LACKS, "JOIN trips t ON t.c_id = c.id", "= 'x'", "<> 'x'"),
            Halt.PREDICATE_WEAKENED,
        ),
        # Within a sub-select, whose aggregates are of other rows.
        (GROUPED, "t.id", joining(GROUPED, "JOIN trips t ON t.c_id = c.id"), None),
        (GROUPED, "t.id", joining(GROUPED, "LEFT JOIN trips t ON t.c_id = c.id"), None),
        (
            GROUPED,
            "t.id",
            joining(GROUPED, "JOIN trips t ON t.c_id = c.id AND t.k = 1"),
            Halt.PREDICATE_WEAKENED,
        ),
        (
            GROUPED,
            "t.id",
            joining(GROUPED, "JOIN trips t ON t.c_id = c.id", "n > 5", "n > 4"),
            Halt.PREDICATE_WEAKENED,
        ),
        # A relation that stands elsewhere already, and a CTE that was not read.
        (TWICE, "t.k", joining(TWICE, "JOIN trips t ON t.c_id = c.id"), None),
        (UNREAD, "g.k", joining(UNREAD, "JOIN g ON g.k = c.k"), None),
        (
            UNREAD,
            "g.k",
            joining(UNREAD, "JOIN g ON g.k = c.k", " AND c.city = 'York'", ""),
            Halt.PREDICATE_REMOVED,
        ),
    ],
)
def test_a_relation_that_was_missing_may_be_joined(
    first: str, at: str, second: str, halt: Halt | None
) -> None:
    before, finding = refused(first, at)
    assert compare(before, finding, made(second)) is halt


@pytest.mark.parametrize(
    ("offered", "second", "halt"),
    [
        (("shipments",), "DELETE FROM shipments WHERE id = 3", None),
        (("public.shipments",), "DELETE FROM shipments s WHERE s.id = 3", None),
        (("shipments",), "DELETE FROM shipments WHERE id >= 3", Halt.PREDICATE_WEAKENED),
        (("shipments",), "DELETE FROM coupons WHERE id = 3", Halt.RELATIONS_CHANGED),
        ((), "DELETE FROM shipments WHERE id = 3", None),
        ((), "DELETE FROM coupons WHERE id = 3", Halt.RELATIONS_CHANGED),
        (("shipments",), "DELETE FROM shipment WHERE id = 3", Halt.UNCHANGED),
        (("shipments",), "DELETE FROM shipments USING coupons c WHERE id = 3", Halt.RELATIONS_CHANGED),
    ],
)
def test_an_unknown_relation(offered: tuple[str, ...], second: str, halt: Halt | None) -> None:
    first, finding = refused("DELETE FROM shipment WHERE id = 3", "shipment", offered, sqlstate="42P01")
    assert compare(first, finding, made(second)) is halt


@pytest.mark.parametrize(
    ("sqlstate", "first", "at", "kept", "weakened"),
    [
        ("22P02", "id = 'twelve' AND k = 1", "'twelve'", "id = 12 AND k = 1", "id > 12 AND k = 1"),
        ("22007", "d >= '2025-13-01'", "'2025", "d >= '2025-12-01'", "d <= '2025-12-01'"),
        ("22008", "d = '2025-02-30'", "'2025", "d = current_date - 1", "d = d"),
        ("42883", "ifnull(n, '') = 'a'", "ifnull", "coalesce(n, '') = 'a'", "coalesce(n, '') <> 'a'"),
        ("42883", "id = code", "= code", "id::text = code", "id::text <= code"),
        ("42883", "code = 10", "= 10", "code = '10'", "code::varchar(2) = '10'"),
        ("42883", "code = 10", "= 10", "code::int = 10", "code::\"char\" = '10'"),
        ("42883", "n = '1'::text", "= '1'", "n::text = '1'", "n::bool = '1'"),
        ("42883", "n IN ('1'::text)", "IN", "n IN (1)", "n::numeric(9,-3) IN (1)"),
        ("22P02", "id IN (1, 'x')", "'x'", "id IN (1, 2)", "id IN (1, 2, 3)"),
    ],
)
def test_a_fault_in_place(sqlstate: str, first: str, at: str, kept: str, weakened: str) -> None:
    before, finding = refused(f"UPDATE t SET z = 1 WHERE {first}", at, sqlstate=sqlstate)
    assert compare(before, finding, made(f"UPDATE t SET z = 1 WHERE {kept}")) is None
    halted = compare(before, finding, made(f"UPDATE t SET z = 1 WHERE {weakened}"))
    assert halted in (Halt.PREDICATE_WEAKENED, Halt.TAUTOLOGY)


@pytest.mark.parametrize(
    ("first", "kept", "lost"),
    [
        ("datediff(a, b) > 1", "a - b > interval '1 day'", "a > date '2025-01-01'"),
        ("datediff(a, b) > 1", "a::date - b::date > 1", "a::date - b::date > 0"),
        ("datediff(now(), d) > 30", "d < now() - interval '30 days'", "now() > '2025-01-01'"),
        ("year(d) = 2025", "extract(year FROM d) = 2025", "extract(year FROM d) > 2024"),
        ("year(d) = 2025", "d >= '2025-01-01' AND d < '2026-01-01'", "d >= '2025-01-01'"),
        ("year(d) = 2025", "d BETWEEN '2025-01-01' AND '2025-12-31'", "d < '2026-01-01'"),
        ("year(d) = 2025", "date_trunc('year', d) = '2025-01-01'", "date_trunc('year', d) > '2025-01-01'"),
        ("year(d) = 2025", "to_char(d, 'YYYY') = '2025'", "to_char(now(), 'YYYY') = '2025'"),
        ("year(d) = 2025 AND d > '2020-01-01' AND d < '2030-01-01'", "d = '2025-07-01'", "d > '2020-01-01'"),
        ("date_format(d, '%Y') = '2025'", "d >= '2025-01-01' AND d < '2026-01-01'", "d <> '2025-01-01'"),
        ("ifnull(n, 0) = 5", "coalesce(n, 0) = 5", "coalesce(n, 0) >= 5 AND coalesce(n, 0) <= 9"),
        ("nvl(n, 0) > 5", "coalesce(n, 0) > 5", "coalesce(n, 0) > 4"),
    ],
)
def test_a_condition_said_without_the_function_that_does_not_exist(first: str, kept: str, lost: str) -> None:
    called = first.partition("(")[0]
    before, finding = refused(f"UPDATE t SET z = 1 WHERE {first}", called, sqlstate="42883")
    assert compare(before, finding, made(f"UPDATE t SET z = 1 WHERE {kept}")) is None
    halted = compare(before, finding, made(f"UPDATE t SET z = 1 WHERE {lost}"))
    assert halted in (Halt.PREDICATE_WEAKENED, Halt.PREDICATE_REMOVED, Halt.TAUTOLOGY)


@pytest.mark.parametrize("around", ["", "PREPARE p AS ", "EXPLAIN ANALYZE "])
@pytest.mark.parametrize("again", ["", "PREPARE q AS ", "EXPLAIN (ANALYZE, COSTS off) "])
def test_what_is_wrapped_around_a_statement_is_none_of_its_conditions(around: str, again: str) -> None:
    before, finding = refused(f"{around}UPDATE t SET zz = 1 WHERE id = 5 AND k = 1", "zz", ("z",))
    assert compare(before, finding, made(f"{again}UPDATE t SET z = 1 WHERE id = 5 AND k = 1")) is None
    halted = compare(before, finding, made(f"{again}UPDATE t SET z = 1 WHERE id = 5"))
    assert halted is Halt.PREDICATE_REMOVED


def test_values_that_were_refused_at_bind() -> None:
    sql = "UPDATE t SET z = 1 WHERE id = $1 AND k = 7"
    first, finding = refused(sql, sqlstate="22P02", parameters=("twelve",), at_bind=True)
    assert compare(first, finding, made(sql)) is None
    assert compare(first, finding, made(sql, 12)) is None
    assert compare(first, finding, made(sql, "twelve")) is Halt.UNCHANGED
    assert compare(first, finding, made("UPDATE t SET z = 1 WHERE k = 7")) is Halt.PREDICATE_REMOVED


def test_unbound_values_are_compared_once_they_are_bound() -> None:
    first, finding = refused("UPDATE t SET zz = 1 WHERE id = 5", "zz", ("z",))
    second = "UPDATE t SET z = 1 WHERE id = $1"
    assert compare(first, finding, made(second)) is None
    assert compare(first, finding, made(second, 5)) is None
    assert compare(first, finding, made(second, "5")) is None
    assert compare(first, finding, made(second, 6)) is Halt.PREDICATE_WEAKENED


def test_a_finding_of_the_gate() -> None:
    query = parse("DELETE FROM shipment WHERE idd = 3")
    violations = [
        Violation("unknown-relation", "", "", position=13, suggestion="shipments"),
        Violation("unknown-column", "", "", position=28, suggestion="id"),
    ]
    finding = finding_of_rejection(query, NAMES, violations)
    assert finding.reasons == ("unknown-relation", "unknown-column")
    assert finding.relations == (Fault("public.shipment", ("shipments",)),)
    assert finding.columns == (Fault("idd", ("id",)),)
    first = attempt(query, NAMES, (), finding)
    assert compare(first, finding, made("DELETE FROM shipments WHERE id = 3")) is None


# DISTINCT, placeholders, unreadable texts -------------------------------------------------------------------


def test_distinct_is_no_bound() -> None:
    finding = found("unbounded-join")
    distinct = JOIN.replace("SELECT", "SELECT DISTINCT")
    assert judged(JOIN, distinct, finding) is Halt.DISTINCT_FOR_LIMIT
    assert judged(JOIN, f"{distinct} LIMIT 10", finding) is None
    assert judged(distinct, f"{distinct} WHERE o.id = 1", finding) is None
    assert judged(JOIN, distinct, found("cost-over-limit")) is None


SHIPMENT = "INSERT INTO shipments (order_id, carrier, weight_g) VALUES (21, 'express', 900)"
MISSING = found("insert-missing-not-null", ("tracking_code",))
PLACEHOLDERS = (
    "'TODO' | 'todo: ask' | 'N/A' | 'unknown' | 'Unknown-1' | 'xxx' | '' | ' ' | '-' | '--' | '???' | "
    "'test' | 'test1' | 'placeholder' | 'none' | '00000' | 0 | -1 | 0.0 | 999999 | NULL | DEFAULT | "
    "'1970-01-01' | timestamp '1970-01-01 00:00' | 'epoch' | upper('todo') | 'TO' || 'DO' | "
    "concat('TO', 'DO') | coalesce(NULL, 'N/A') | 'tbd'::varchar(10) | (SELECT 'TBD') | '{}'"
)
VALUES = (
    "'TR-5-A' | 'TR000021' | $1 | now() | current_date | 7 | '7' | '2025-05-05' | 'NL' | 'Ada' | "
    "(SELECT code FROM t WHERE k = 0) | 'Testarossa' | 'NaN-nan Ltd' | 42.5"
)


@pytest.mark.parametrize("value", PLACEHOLDERS.split(" | "))
def test_a_placeholder_is_no_value(value: str) -> None:
    second = (
        "INSERT INTO shipments (order_id, carrier, tracking_code, weight_g) "
        f"VALUES (21, 'express', {value}, 900)"
    )
    assert judged(SHIPMENT, second, MISSING) is Halt.DUMMY_LITERAL


@pytest.mark.parametrize("value", VALUES.split(" | "))
def test_a_value_is_no_placeholder(value: str) -> None:
    second = (
        "INSERT INTO shipments (order_id, carrier, tracking_code, weight_g) "
        f"VALUES (21, 'express', {value}, 900)"
    )
    assert judged(SHIPMENT, second, MISSING) is not Halt.DUMMY_LITERAL


def test_placeholders_wherever_values_come_from() -> None:
    select = "INSERT INTO t (a, code) SELECT id, 'TODO' FROM s WHERE k = 1"
    finding = found("insert-missing-not-null", ("code",))
    assert judged("INSERT INTO t (a) SELECT id FROM s WHERE k = 1", select, finding) is Halt.DUMMY_LITERAL
    by_place = found("insert-missing-not-null")
    positional = judged("INSERT INTO t VALUES (1, 'york')", "INSERT INTO t VALUES (1, 'york', 0)", by_place)
    assert positional is Halt.DUMMY_LITERAL
    null = judged("INSERT INTO t (a, b) VALUES (1, NULL)", "INSERT INTO t (a, b) VALUES (1, 'n/a')", by_place)
    assert null is Halt.DUMMY_LITERAL
    # A zero that was there before is not made up now.
    assert judged("INSERT INTO t (a) VALUES (0)", "INSERT INTO t (a, b) VALUES (0, 'x1')", by_place) is None
    update, refusal = refused("UPDATE t SET a = NULL WHERE i = 1", sqlstate="23502", column="a")
    assert compare(update, refusal, made("UPDATE t SET a = 'TBD' WHERE i = 1")) is Halt.DUMMY_LITERAL


def test_text_that_no_grammar_accepts() -> None:
    first, finding = refused("SELEC id FROM orders WHERE id = 5", sqlstate="42601")
    assert not first.readable
    assert first.statement_class is StatementClass.OTHER
    assert compare(first, finding, made("SELECT id FROM orders WHERE id = 5")) is None
    assert compare(first, finding, made("SELEC  id FROM orders\nWHERE id = 5")) is Halt.UNCHANGED


def test_an_attempt_knows_what_it_is() -> None:
    update = made("UPDATE t SET a = 1 FROM u WHERE t.i = u.i AND t.k = 5")
    assert isinstance(update, Attempt)
    assert update.targets == {"public.t"}
    assert update.writes
    assert not update.untied
    assert made("UPDATE t SET a = 1 WHERE true").untied
    assert not made("EXPLAIN DELETE FROM t WHERE a = 1").runs
    assert attempt(parse("DELETE FROM t"), PathNames((("sales",),))).targets == {"sales.t"}


@pytest.mark.parametrize("word", ["col", "call", "set", "relation", "rows", "op", "param", "fault", "level"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM unnest(a) AS _({}, place), t WHERE t.custmer = 1",
        "WITH x({}) AS (SELECT 1) SELECT * FROM x, t WHERE t.custmer = 1",
        "SELECT 1 FROM (SELECT 1, 2) AS x({}, b), t WHERE t.custmer = 1",
        "SELECT 1 FROM t AS x({}) WHERE x.custmer = 1",
        'COPY t ("{}") FROM STDIN WHERE custmer = 1',
        'COPY "{}" FROM STDIN WHERE custmer = 1',
        'SELECT t."{}" FROM t WHERE custmer = 1 FOR UPDATE OF t',
    ],
)
def test_no_name_is_taken_for_a_form(sql: str, word: str) -> None:
    """A normal form is tuples that begin with what they are: the names in a statement are none of them."""
    assert _answers(sql.format(word)) == _answers(sql.format("plain"))


def _answers(sql: str) -> list[Halt | None]:
    first, finding = refused(sql, "custmer", ("customer",))
    mended, gone = sql.replace("custmer", "customer"), sql.replace("custmer = 1", "true")
    return [compare(first, finding, made(text)) for text in (sql, mended, gone)]
