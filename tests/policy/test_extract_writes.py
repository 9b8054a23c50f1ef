"""What a statement writes: columns, values, conflicts, MERGE's actions."""

from __future__ import annotations

import pytest

from tests.policy.extracting import facts, relations


def test_update() -> None:
    sql = "UPDATE s.t AS x SET a = 1, b = 2 FROM u WHERE x.id = u.id"
    (write,) = facts(sql).writes
    assert (write.action, write.columns, write.from_sources, write.position) == (
        "update",
        ("a", "b"),
        True,
        1,
    )
    assert write.where is not None
    assert write.where_position == sql.index("x.id") + 1
    assert (write.current_of, write.merge) == (None, False)


def test_a_write_without_where() -> None:
    (write,) = facts("WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone").writes
    assert (write.action, write.where, write.where_position, write.position) == ("delete", None, None, 27)


def test_current_of() -> None:
    (write,) = facts("DELETE FROM t WHERE CURRENT OF c").writes
    assert write.current_of == "c"
    assert write.where is not None


@pytest.mark.parametrize(
    ("sql", "source", "values", "conflict"),
    [
        (
            "INSERT INTO t (a, b) VALUES (1, DEFAULT), (NULL::int, f()), ('x'::text, $1)",
            "values",
            (("const:1", "default"), ("null", "expr"), ("const:x", "param:1")),
            None,
        ),
        ("INSERT INTO t (a, b) SELECT 1, 2", "select", (), None),
        ("INSERT INTO t DEFAULT VALUES", "default", (), None),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "values", (("const:1",),), "nothing"),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 1", "values", (("const:1",),), "update"),
        ("COPY t (a, b) FROM STDIN", "copy", (), None),
    ],
)
def test_insert(sql: str, source: str, values: tuple[tuple[str, ...], ...], conflict: str | None) -> None:
    found = facts(sql)
    (write,) = found.writes
    assert (write.action, write.source, write.values, write.on_conflict) == (
        "insert",
        source,
        values,
        conflict,
    )
    assert write.columns == (("a", "b") if "(a, b)" in sql else ())
    assert write.has_columns == ("(a, b)" in sql)
    assert found.relations[write.target].name == "t"


@pytest.mark.parametrize(
    ("sql", "selected"),
    [
        ("INSERT INTO t SELECT 1, NULL, NULL::int, a FROM s", ("const:1", "null", "null", "expr")),
        ("WITH s AS (SELECT 1 AS a) INSERT INTO t SELECT a FROM s", ("expr",)),
        ("INSERT INTO t SELECT 1, s.* FROM s", ()),
        ("INSERT INTO t SELECT (s).* FROM s", ()),
        ("INSERT INTO t SELECT NULL UNION ALL SELECT 1", ()),
        ("INSERT INTO t TABLE s", ()),
        ("INSERT INTO t VALUES (NULL)", ()),
    ],
)
def test_what_an_insert_selects(sql: str, selected: tuple[str, ...]) -> None:
    (write,) = facts(sql).writes
    assert write.selected == selected


@pytest.mark.parametrize(
    ("sql", "typed", "assigned"),
    [
        ("INSERT INTO t VALUES ('x', NULL, DEFAULT, 1, 'x'::text, $1)", {3, 4, 5}, set()),
        ("INSERT INTO t VALUES ('x', 'y'), ('x', NULL::text)", {1}, set()),
        ("INSERT INTO t VALUES (true, B'1', 1.5, text 'x', ('x'))", {0, 1, 2, 3}, set()),
        ("INSERT INTO t SELECT 'x', s.b FROM s", {0, 1}, set()),
        ("INSERT INTO t SELECT * FROM s", None, set()),
        ("INSERT INTO t DEFAULT VALUES", set(), set()),
        ("INSERT INTO t VALUES ('x') ON CONFLICT (a) DO UPDATE SET a = 'x', b = 'y'::text", set(), {"b"}),
        ("INSERT INTO t VALUES ('x') ON CONFLICT (a) DO UPDATE SET (a, b) = ('x', 'y')", set(), {"a", "b"}),
        ("UPDATE t SET a = 'x', b = NULL, c = DEFAULT, d = 1, e = a", None, {"d", "e"}),
        ("MERGE INTO t USING s ON true WHEN MATCHED THEN UPDATE SET a = 'x', b = s.b", set(), {"b"}),
        ("MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT VALUES ('x', s.b)", {1}, set()),
        ("MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT DEFAULT VALUES", set(), set()),
        ("COPY t FROM STDIN", None, set()),
    ],
)
def test_what_is_cast_to_a_columns_type(sql: str, typed: set[int] | None, assigned: set[str]) -> None:
    (write,) = facts(sql).writes
    assert (write.typed, write.assigned) == (typed, assigned)


def test_merge() -> None:
    found = facts(
        "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED AND s.b THEN UPDATE SET c = 1"
        " WHEN NOT MATCHED THEN INSERT (a, d) VALUES (NULL, 2) WHEN NOT MATCHED BY SOURCE THEN DELETE"
        " WHEN MATCHED THEN DO NOTHING"
    )
    update, insert, delete = found.writes
    assert all(write.merge and write.from_sources for write in found.writes)
    assert [write.match for write in found.writes] == [
        "matched",
        "not_matched_by_target",
        "not_matched_by_source",
    ]
    assert (update.action, update.columns) == ("update", ("c",))
    assert update.where is not None
    assert update.action_condition is not None
    assert (insert.action, insert.columns, insert.values) == ("insert", ("a", "d"), (("null", "const:2"),))
    assert insert.where is None
    # ON says nothing of the rows that no source row matched.
    assert (delete.action, delete.where, delete.action_condition) == ("delete", None, None)
    assert relations(found) == {"delete:t", "read:s"}
