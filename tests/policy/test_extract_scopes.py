"""Columns, and what their names may reach: queries, sources, joins, outputs."""
# ruff: noqa: E501  (a statement of a table stays on its line)

from __future__ import annotations

import pytest

from policy.facts import SourceKind
from tests.policy.extracting import columns, facts, scope

COLUMNS = [
    (
        "SELECT a, t.b, s.t.c, t.*, * FROM s.t",
        "read target a; read target t.b; read target s.t.c; read target t.*; read target *",
    ),
    (
        "SELECT 1 FROM t WHERE a GROUP BY b HAVING c ORDER BY d LIMIT e",
        "read where a; read group b; read having c; read order d; read limit e",
    ),
    (
        "SELECT DISTINCT ON (a) 1 FROM t JOIN u USING (b) JOIN v ON c, f(d) WINDOW w AS (PARTITION BY e)",
        "read distinct a; read using b; read on c; read from d; read window e",
    ),
    ("SELECT u FROM users u", "read target u"),
    ("VALUES (a)", "read values a"),
    ("TABLE t", "read target *"),
    (
        "INSERT INTO t (a, b[c]) SELECT d FROM u ON CONFLICT (e) DO UPDATE SET f = excluded.g WHERE h RETURNING i",
        "insert insert a; insert insert b; read  c; read target d; read conflict e; update set f; read set excluded.g; read where h; read returning i",
    ),
    (
        "UPDATE t SET a = b, (c, d) = (e, f) WHERE g RETURNING h",
        "update set a; read set b; update set c; update set d; read set e; read set f; read where g; read returning h",
    ),
    ("DELETE FROM t WHERE t.a RETURNING *", "read where t.a; read returning *"),
    (
        "MERGE INTO t USING s ON a WHEN MATCHED AND b THEN UPDATE SET c = d WHEN NOT MATCHED THEN INSERT (e) VALUES (f)",
        "read on a; read when b; update set c; read set d; insert insert e; read values f",
    ),
    ("COPY t (a, b) TO STDOUT", "read copy a; read copy b"),
    ("COPY t TO STDOUT", "read copy *"),
    ("COPY t (a) FROM STDIN WHERE b", "insert insert a; read where b"),
    ("SELECT @ salary FROM t", "read target salary"),
]


@pytest.mark.parametrize(("sql", "expected"), COLUMNS)
def test_columns(sql: str, expected: str) -> None:
    assert columns(facts(sql)) == set(expected.split("; "))


def test_what_is_selected_of_a_row() -> None:
    found = facts("SELECT (u).ssn, (t.c).x.y, (u).*, (a[1]).z")
    assert [(c.qualifier, c.name, c.fields) for c in found.columns] == [
        ((), "u", ("ssn",)),
        (("t",), "c", ("x", "y")),
        ((), "u", (None,)),
        ((), "a", ()),
    ]


def test_written_columns_point_at_their_relation() -> None:
    found = facts("WITH x AS (UPDATE a SET p = 1 RETURNING 1) INSERT INTO b (q) SELECT * FROM x")
    written = {c.name: found.relations[c.target].name for c in found.columns if c.target is not None}
    assert written == {"p": "a", "q": "b"}


def test_parents_are_what_correlated_names_may_reach() -> None:
    found = facts(
        "WITH c AS (SELECT 'cte' FROM c0)"
        " SELECT (SELECT 'sublink' FROM s0) FROM t0, (SELECT 'plain' FROM p0) p,"
        " LATERAL (SELECT 'lateral' FROM l0) l WHERE EXISTS (SELECT FROM (SELECT 'deep' FROM d0) d)"
    )
    by_relation = {r.name: scope(found, r.query) for r in found.relations if r.query is not None}
    top = by_relation["t0"].index
    assert by_relation["t0"].parent is None
    assert by_relation["c0"].parent is None
    assert by_relation["p0"].parent is None
    assert by_relation["s0"].parent == top
    assert (by_relation["l0"].parent, by_relation["l0"].lateral) == (top, True)
    exists = next(q for q in found.queries if any(s.name == "d" for s in q.sources))
    assert exists.parent == top
    assert by_relation["d0"].parent == top


def test_sources_are_named_as_their_columns_are_qualified() -> None:
    found = facts(
        "WITH c(x) AS (SELECT 1) SELECT * FROM s.a, b AS bb (p, q), c, c AS cc (y), (SELECT 2) AS d (z),"
        " f(1), g(1) AS gg, h(1) AS (i int), XMLTABLE('a' PASSING b COLUMNS k int, l int) AS m (n),"
        " JSON_TABLE(j, '$' COLUMNS (o int, NESTED '$' COLUMNS (r int)))"
    )
    assert [(s.kind, s.name, s.column_aliases, s.aliased) for s in found.queries[0].sources] == [
        (SourceKind.RELATION, "a", (), False),
        (SourceKind.RELATION, "bb", ("p", "q"), True),
        (SourceKind.CTE, "c", ("x",), False),
        (SourceKind.CTE, "cc", ("y",), True),
        (SourceKind.SUBQUERY, "d", ("z",), True),
        (SourceKind.FUNCTION, "f", (), False),
        (SourceKind.FUNCTION, "gg", (), True),
        (SourceKind.FUNCTION, "h", ("i",), False),
        (SourceKind.TABLE_FUNCTION, "m", ("n", "l"), True),
        (SourceKind.TABLE_FUNCTION, "json_table", ("o", "r"), False),
    ]
    assert found.queries[0].sources[5].functions == ("f",)
    assert found.queries[0].sources[2].query == found.ctes[0].query
    assert found.queries[0].relation_count == 2


def test_joins_say_what_they_join() -> None:
    found = facts(
        "SELECT 1 FROM (a NATURAL LEFT JOIN b) JOIN (c JOIN d USING (k) AS kk) AS cd (x) ON true, e CROSS JOIN f"
    )
    outer, left, right, cross = found.joins
    assert (outer.kind, outer.first, outer.middle, outer.last, outer.parent) == ("inner", 0, 2, 4, None)
    assert (left.kind, left.natural, left.first, left.middle, left.last, left.parent) == (
        "left",
        True,
        0,
        1,
        2,
        0,
    )
    assert (right.using, right.alias, right.column_aliases, right.using_alias) == (("k",), "cd", ("x",), "kk")
    assert (cross.kind, cross.has_condition, cross.first, cross.middle, cross.last) == (
        "cross",
        False,
        4,
        5,
        6,
    )
    assert outer.has_condition
    assert [source.join for source in found.queries[0].sources] == [1, 1, 2, 2, 3, 3]


def test_on_conflict_and_returning_bring_sources() -> None:
    found = facts(
        "INSERT INTO t AS x VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 1 RETURNING WITH (OLD AS o) a"
    )
    assert [(s.kind, s.name, s.relation) for s in found.queries[0].sources] == [
        (SourceKind.RELATION, "x", 0),
        (SourceKind.EXCLUDED, "excluded", 0),
        (SourceKind.OLD_NEW, "o", 0),
        (SourceKind.OLD_NEW, "new", 0),
    ]
    assert [s.name for s in facts("DELETE FROM old RETURNING 1").queries[0].sources] == ["old", "new"]


def test_set_operations_have_arms() -> None:
    found = facts("SELECT 1 FROM a UNION SELECT 2 FROM b ORDER BY 1 LIMIT 3")
    top = found.queries[0]
    assert (top.final, top.limited, top.limit, top.sources) == (True, True, 3, ())
    assert [(scope(found, arm).sources[0].name, scope(found, arm).final) for arm in top.arms] == [
        ("a", False),
        ("b", False),
    ]


def test_ctes() -> None:
    found = facts(
        "WITH RECURSIVE a(n) AS NOT MATERIALIZED (SELECT 1 UNION SELECT n + 1 FROM a), b AS MATERIALIZED (SELECT 2)"
        " SELECT * FROM a, b"
    )
    a, b = found.ctes
    assert (a.name, a.recursive, a.materialized, a.column_aliases) == ("a", True, False, ("n",))
    assert (b.name, b.recursive, b.materialized) == ("b", False, True)
    assert scope(found, a.query).recursive
    assert not scope(found, b.query).recursive
    assert found.queries[0].relation_count == 0


@pytest.mark.parametrize(
    ("select_list", "names"),
    [
        ("a, t.b, a AS c, f(1), s.g()", "a b c f g"),
        ("1, a + 1, 'x'", "?column? ?column? ?column?"),
        ('a::int, 1::int, f(1)::text, a COLLATE "C"', "a int4 f a"),
        ("(u).x, (u).x[1], a[1]", "x x a"),
        (
            "CASE WHEN a THEN b END, CASE WHEN a THEN b ELSE c END, COALESCE(a, b), GREATEST(a, b), LEAST(a, b)",
            "case c coalesce greatest least",
        ),
        ("NULLIF(a, b), ARRAY[1], ROW(1), GROUPING(a)", "nullif array row grouping"),
        (
            "EXISTS (SELECT 1), ARRAY(SELECT 1), (SELECT a AS z), (SELECT b), (SELECT 1), 1 = ANY (SELECT 1)",
            "exists array z b ?column? ?column?",
        ),
        (
            "current_date, current_timestamp(3), current_user, session_user, CAST(a AS s.d)",
            "current_date current_timestamp current_user session_user a",
        ),
        (
            "xmlelement(name a), xmlconcat(b), b IS DOCUMENT, xmlserialize(content b AS text)",
            "xmlelement xmlconcat ?column? xmlserialize",
        ),
        (
            "JSON_OBJECT('a': 1), JSON_ARRAY(1), JSON_VALUE(a, '$'), JSON_QUERY(a, '$'), JSON_EXISTS(a, '$')",
            "json_object json_array json_value json_query json_exists",
        ),
    ],
)
def test_outputs_are_named_as_postgresql_names_them(select_list: str, names: str) -> None:
    found = facts(f"SELECT {select_list} FROM t").queries[0]
    assert [output.name for output in found.outputs] == names.split()


def test_stars_are_outputs() -> None:
    plain, qualified, composite = facts("SELECT *, s.t.*, (f(1)).*").queries[0].outputs
    assert (plain.star, plain.qualifier, plain.composite) == (True, (), False)
    assert (qualified.star, qualified.qualifier) == (True, ("s", "t"))
    assert (composite.star, composite.composite) == (True, True)
