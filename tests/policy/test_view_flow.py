"""What the columns of views tell of, by real servers' stored queries, and what a policy makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from policy.catalog import Catalog
from policy.catalog_json import dump, load
from policy.catalog_names import CatalogNames
from policy.decision import Reject, Situation, decide
from policy.model import Policy, Violation
from policy.node_tree import NodeTreeError, read
from policy.parse import parse
from policy.view_flow import flow_of
from tests.policy.conftest import read_catalog
from tests.policy.rules.judging import policy_of
from tests.support.postgres import Database, Server

TABLES: Final = """
CREATE SCHEMA hr;
CREATE TABLE hr.emp (id int PRIMARY KEY, name text, boss int, salary int, ssn text, tags text[]);
INSERT INTO hr.emp
  SELECT n, 'n' || n, n / 2, 7 * n % 5, 'c' || 3 * n % 7, ARRAY['1', '2'] FROM generate_series(1, 9) n;
CREATE TABLE hr.codes (code text, label text);
INSERT INTO hr.codes SELECT 'c' || n, 'l' || n FROM generate_series(0, 6) n;
CREATE FUNCTION hr.pairs(int, text) RETURNS TABLE (a int, b text) LANGUAGE sql IMMUTABLE AS 'SELECT $1, $2';
"""

ALL: Final = "boss id name salary ssn tags"

VIEWS: Final[dict[str, tuple[str, dict[str, str], str]]] = {
    # name: (query, column -> what it tells of, what the rows tell of); of hr.emp unless said otherwise
    "plain": (
        "SELECT * FROM emp",
        {"id": "id", "name": "name", "boss": "boss", "salary": "salary", "ssn": "ssn", "tags": "tags"},
        "",
    ),
    "reckoned": ("SELECT name, -(salary + id) AS x FROM emp", {"name": "name", "x": "id salary"}, ""),
    "banded": (
        "SELECT name, CASE WHEN salary > 3 THEN 1 END AS band FROM emp",
        {"name": "name", "band": "salary"},
        "",
    ),
    "aggregated": (
        "SELECT boss, count(*) AS n, max(salary) AS top, count(*) FILTER (WHERE ssn IS NULL) AS f,"
        " array_agg(name ORDER BY salary) AS who, percentile_disc(0.5) WITHIN GROUP (ORDER BY salary) AS mid"
        " FROM emp GROUP BY boss",
        {"boss": "boss", "n": "", "top": "salary", "f": "ssn", "who": "name salary", "mid": "salary"},
        "",
    ),
    "grouped": (
        "SELECT id, ssn, count(*) AS n, grouping(ssn) AS g FROM emp GROUP BY ROLLUP (id, ssn)",
        {"id": "id", "ssn": "ssn", "n": "", "g": "ssn"},
        "",
    ),
    "ranked": (
        "SELECT name, rank() OVER (PARTITION BY boss ORDER BY salary) AS r, lag(id) OVER w AS l,"
        " count(*) OVER () AS n FROM emp WINDOW w AS (ORDER BY ssn)",
        {"name": "name", "r": "boss salary", "l": "id ssn", "n": ""},
        "",
    ),
    "filtered": ("SELECT name FROM emp WHERE salary > 2 AND ssn IS NOT NULL", {"name": "name"}, ""),
    "had": ("SELECT boss FROM emp GROUP BY boss HAVING max(salary) > 1", {"boss": "boss"}, ""),
    "joined": (
        "SELECT e.name, c.code, c.label FROM emp e JOIN codes c ON c.code = e.ssn",
        {"name": "name", "code": "ssn codes.code", "label": "codes.label"},
        "",
    ),
    "compared": (
        "SELECT e.id, e.name, b.boss FROM emp e, emp b"
        " WHERE NOT (e.id <> b.salary AND b.name = 'x') OR b.boss = e.id",
        {"id": "boss id salary", "name": "name", "boss": "boss id salary"},
        "",
    ),
    "merged": (
        "SELECT id, e.name, salary FROM emp e FULL JOIN (SELECT id, salary FROM emp) b USING (id, salary)",
        {"id": "id", "name": "name", "salary": "salary"},
        "",
    ),
    "natured": (
        "SELECT code, name FROM (SELECT ssn AS code, name FROM emp) e NATURAL LEFT JOIN codes",
        {"code": "ssn codes.code", "name": "name"},
        "",
    ),
    "renamed": (
        "SELECT j.a, j.d FROM (emp e CROSS JOIN codes) AS j(a, b, c, d)",
        {"a": "id", "d": "salary"},
        "",
    ),
    "sorted": ("SELECT name FROM emp ORDER BY salary LIMIT 3", {"name": "name"}, "salary"),
    "sorted_inside": ("SELECT name FROM (SELECT * FROM emp ORDER BY ssn) e", {"name": "name"}, "ssn"),
    "first_of": ("SELECT DISTINCT ON (salary) name FROM emp", {"name": "name"}, "salary"),
    "limited": ("SELECT name FROM emp LIMIT (SELECT max(salary) FROM emp)", {"name": "name"}, "salary"),
    "uniques": ("SELECT DISTINCT name, ssn FROM emp", {"name": "name", "ssn": "ssn"}, ""),
    "as_many": (
        "SELECT e.name, g FROM emp e, generate_series(1, e.salary) g",
        {"name": "name", "g": "salary"},
        "salary",
    ),
    "unnested": ("SELECT name, unnest(tags) AS tag FROM emp", {"name": "name", "tag": "tags"}, "tags"),
    "paired": (
        "SELECT p.a, p.b, e.name FROM emp e, hr.pairs(e.id, e.ssn) p",
        {"a": "id ssn", "b": "id ssn", "name": "name"},
        "id ssn",
    ),
    "valued": (
        "SELECT v.a, v.b FROM emp e, LATERAL (VALUES (e.name, e.ssn), ('a', 'b')) v(a, b)",
        {"a": "name", "b": "ssn"},
        "",
    ),
    "whole": ("SELECT e, id FROM emp e", {"e": ALL, "id": "id"}, ""),
    "as_json": ("SELECT to_jsonb(e) AS j, name FROM emp e", {"j": ALL, "name": "name"}, ""),
    "of_subselect": (
        "SELECT id, (SELECT max(x.salary) FROM emp x WHERE x.boss = e.id) AS m,"
        " EXISTS (SELECT FROM emp y WHERE y.ssn = 'a') AS x FROM emp e",
        {"id": "id", "m": "boss id salary", "x": "ssn"},
        "",
    ),
    "by_subselect": (
        "SELECT e.id, e.name FROM emp e WHERE EXISTS (SELECT FROM emp x WHERE x.boss = e.id AND x.salary > 3)"
        " AND e.name IN (SELECT ssn FROM emp)",
        {"id": "boss id", "name": "name ssn"},
        "",
    ),
    "united": (
        "SELECT name, ssn FROM emp UNION ALL (SELECT label, code FROM codes EXCEPT SELECT 'a', ssn FROM emp)",
        {"name": "name codes.label", "ssn": "ssn codes.code"},
        "",
    ),
    "except_for": ("SELECT name FROM emp EXCEPT SELECT ssn FROM emp", {"name": "name ssn"}, ""),
    "common": (
        "WITH a AS (SELECT id, ssn FROM emp), b AS (SELECT * FROM a) SELECT b.id, x.ssn FROM b, a x",
        {"id": "id", "ssn": "ssn"},
        "",
    ),
    "recursive": (
        "WITH RECURSIVE t(a, b) AS (SELECT id, name FROM emp UNION ALL"
        " SELECT e.id, t.b FROM emp e, t WHERE e.boss = t.a AND e.id > 900) SELECT a, b FROM t",
        {"a": "boss id", "b": "name"},
        "",
    ),
    "swapped": (
        "WITH RECURSIVE t(a, b, c) AS (SELECT name, name, name FROM emp UNION"
        " SELECT t.b, t.c, e.ssn FROM emp e, t WHERE e.id > 900) SELECT a, b, c FROM t",
        {"a": "name ssn", "b": "name ssn", "c": "name ssn"},
        "",
    ),
    "listed": (
        "SELECT e.name, v.b, g FROM emp e JOIN (VALUES (1), (2)) v(b) ON v.b = e.salary"
        " JOIN generate_series(1, 9) g ON g = e.id",
        {"name": "name", "b": "salary", "g": "id"},
        "",
    ),
    "constant": (
        "WITH q AS (SELECT 2 AS y) SELECT e.name, c.x, q.y, 3 AS z FROM emp e"
        " JOIN (SELECT 1 AS x UNION ALL SELECT 2) c ON c.x = e.salary, q WHERE e.id > q.y",
        {"name": "name", "x": "salary", "y": "id", "z": ""},
        "",
    ),
    "sampled": (
        "SELECT e.name FROM emp e TABLESAMPLE bernoulli (100) WHERE e.id = ANY (e.tags::int[])",
        {"name": "name"},
        "",
    ),
    "nested": ("SELECT name, salary + 1 AS more FROM hr.plain", {"name": "name", "more": "salary"}, ""),
    "nested_twice": ("SELECT more FROM hr.nested WHERE name > 'a'", {"more": "salary"}, ""),
    "over_sorted": ("SELECT name FROM hr.sorted", {"name": "name"}, "salary"),
    "over_joined": (
        "SELECT label, code FROM hr.joined",
        {"label": "codes.label", "code": "ssn codes.code"},
        "",
    ),
}  # fmt: skip

POLICY: Final = """\
version: 1
name: staff
access: read_write
statements: {select: allow, insert: allow, update: allow, copy_out: allow}
relations: {allow: ["hr.*"]}
columns: {hr.emp: {deny: [salary, ssn]}}
functions: {allow: [builtin-safe, hr.pairs]}
"""


@pytest.fixture(scope="module")
def staff(postgres: Server) -> Iterator[Database]:
    with postgres.database("template0") as database:
        database.execute(TABLES)
        for name, (query, _, _) in VIEWS.items():
            database.execute(f"SET search_path = hr; CREATE VIEW {name} AS {query}")
        database.execute("CREATE MATERIALIZED VIEW hr.kept AS SELECT name, salary AS pay FROM hr.emp")
        yield database


@pytest.fixture(scope="module")
def catalog(staff: Database) -> Catalog:
    return read_catalog(staff.dsn())


def told_of(catalog: Catalog, name: str) -> tuple[dict[str, set[str]], set[str]]:
    """What columns and rows of the view tell of, columns of views between left out."""
    relation = catalog.relation("hr", name)
    assert relation is not None
    sources = catalog.view_sources(relation)
    assert sources is not None, "not understood"
    columns, rows = (
        [{f"{c.relation}.{c.column}" for c in each if c.relation in ("emp", "codes")} for each in part]
        for part in (sources.columns.values(), [sources.rows])
    )
    return dict(zip(sources.columns, columns, strict=True)), rows[0]


def full(names: str) -> set[str]:
    return {name if "." in name else f"emp.{name}" for name in names.split()}


class TestFlow:
    @pytest.mark.parametrize("name", VIEWS)
    def test_what_a_view_tells_of(self, catalog: Catalog, name: str) -> None:
        _, columns, rows = VIEWS[name]
        assert told_of(catalog, name) == ({c: full(of) for c, of in columns.items()}, full(rows))

    def test_a_materialised_view_is_one_too(self, catalog: Catalog) -> None:
        assert told_of(catalog, "kept")[0] == {"name": {"emp.name"}, "pay": {"emp.salary"}}

    def test_it_is_part_of_a_dump(self, catalog: Catalog) -> None:
        content = load(dump(catalog.content))
        assert told_of(Catalog(content), "joined") == told_of(catalog, "joined")
        assert Catalog(content) == catalog

    @pytest.mark.parametrize("column", ["salary", "ssn"])
    def test_other_values_change_no_column_that_does_not_tell_of_them(
        self, postgres: Server, staff: Database, catalog: Catalog, column: str
    ) -> None:
        """Where no condition rests on the column either: which rows there are is the view's own business."""
        conditional = {"filtered", "had", "joined", "compared", "merged", "natured", "by_subselect"}
        conditional |= {
            "listed",
            "constant",
            "united",
            "except_for",
            "over_joined",
            "first_of",
            "uniques",
            "grouped",
        }
        quiet = [
            (view, output)
            for view, (_, columns, rows) in VIEWS.items()
            for output, of in columns.items()
            if column not in of.split() + rows.split() and view not in conditional
        ]
        assert len(quiet) > 20
        question = "; ".join(f"SELECT {output}::text FROM hr.{view} ORDER BY 1" for view, output in quiet)
        other = {"salary": "salary + 2 * id", "ssn": "ssn || salary"}[column]
        with postgres.database(staff.name) as changed:
            changed.execute(f"UPDATE hr.emp SET {column} = {other}")
            for one in question.split("; "):
                assert changed.execute(one) == staff.execute(one), one

    @pytest.mark.parametrize(
        "text",
        [
            *(
                "",
                "(",
                ")",
                "{QUERY",
                "({QUERY})",
                "({QUERY :commandType 1",
                "({QUERY 1})",
                "<> <>",
                "({X :a})",
            ),
            "({QUERY :commandType 2 :targetList <> :jointree <>})",
            "({QUERY :commandType 1 :jointree {NEW :a 1} :targetList <>})",
            "({QUERY :commandType 1 :targetList ({TARGETENTRY :resjunk false :expr {VAR :varno 1 :varattno 1"
            " :varlevelsup 0}}) :rtable <> :jointree <>})",
            "({QUERY :commandType 1 :targetList ({TARGETENTRY :resjunk false :expr {VAR :varno 1 :varattno 1"
            " :varlevelsup 1}}) :rtable ({RANGETBLENTRY :rtekind 0 :relid 1}) :jointree <>})",
            "({QUERY :commandType 1 :targetList ({TARGETENTRY :resjunk false :expr {VAR :varno 1 :varattno 1"
            " :varlevelsup 0}}) :rtable ({RANGETBLENTRY :rtekind 77}) :jointree <>})",
            "(" * 100_000,
        ],
    )
    def test_what_is_not_understood_has_none(self, text: str) -> None:
        assert flow_of(text) is None

    def test_a_tree_is_read_as_it_was_written(self) -> None:
        node = read('{A :x {B :y :z} :bytes 4 [ 1 0 -3 ] :list (i 1 2) :none <> :name "a\\ b" :empty ()}')
        assert node.get("x").get("y") == ":z"
        assert (node.number("bytes"), node.get("none"), node.items("none")) == (4, None, [])
        assert (node.get("list"), node.get("name"), node.items("empty")) == (["i", "1", "2"], '"a\\ b"', [])
        with pytest.raises(NodeTreeError, match="A has no number name"):
            node.number("name")


def objections(sql: str, catalog: Catalog, policy: Policy) -> list[Violation]:
    known = CatalogNames(catalog, (("hr",),), temporary=False)
    decision = decide(policy, Situation("agent", known), parse(sql))
    assert decision.failures == ()
    return list(decision.violations) if isinstance(decision, Reject) else []


class TestPolicy:
    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT id, name, boss FROM plain WHERE name > 'a' ORDER BY id",
            "SELECT count(*) FROM plain",
            "SELECT p.name, e.name FROM plain p JOIN emp e USING (id)",
            "SELECT name FROM kept",
            "SELECT name FROM nested",
            "SELECT name FROM filtered",
            "SELECT * FROM filtered",
            "SELECT name, label FROM joined",
            "SELECT name, n FROM ranked",
            "WITH x AS (SELECT id, name FROM plain) SELECT * FROM x",
            "INSERT INTO plain (id, name) VALUES (100, 'x') RETURNING id",
            "UPDATE plain SET name = 'x' WHERE id = 1",
        ],
    )
    def test_what_tells_of_nothing_hidden_passes(self, catalog: Catalog, sql: str) -> None:
        assert objections(sql, catalog, policy_of(POLICY)) == []

    @pytest.mark.parametrize(
        ("sql", "object_"),
        [
            ("SELECT salary FROM plain", "hr.plain.salary"),
            ("SELECT name FROM plain ORDER BY salary", "hr.plain.salary"),
            ("SELECT p.name FROM plain p JOIN codes c ON c.code = p.ssn", "hr.plain.ssn"),
            ("SELECT 1 FROM plain JOIN codes c(ssn) USING (ssn)", "hr.plain.ssn"),
            ("SELECT x.name FROM nested x WHERE more > 3", "hr.nested.more"),
            ("SELECT more FROM nested_twice", "hr.nested_twice.more"),
            ("SELECT code FROM joined", "hr.joined.code"),
            ("SELECT pay FROM kept", "hr.kept.pay"),
            ("SELECT (p).salary FROM plain p", "hr.plain.salary"),
            ("UPDATE plain SET salary = 1 WHERE id = 1", "hr.plain.salary"),
            ("UPDATE plain SET name = 'x' WHERE salary > 1", "hr.plain.salary"),
            ("INSERT INTO plain (id, ssn) VALUES (1, 'a')", "hr.plain.ssn"),
        ],
    )
    def test_a_column_that_tells_of_a_hidden_one_is_hidden(
        self, catalog: Catalog, sql: str, object_: str
    ) -> None:
        found = objections(sql, catalog, policy_of(POLICY))
        assert [(v.rule, v.object) for v in found] == [("column-not-allowed", object_)]

    @pytest.mark.parametrize(
        "sql",
        [
            *(
                "SELECT * FROM plain",
                "SELECT p FROM plain p",
                "SELECT to_jsonb(p) FROM plain p",
                "TABLE plain",
            ),
            *("SELECT p.* FROM plain p", "SELECT 1 FROM plain NATURAL JOIN kept NATURAL JOIN emp"),
            "SELECT a FROM plain p(a, b, c, d) WHERE d > 1",
            "INSERT INTO plain VALUES (1, 'a', 2, 3, 'b')",
            "UPDATE plain SET name = 'x' WHERE id = 1 RETURNING *",
        ],
    )
    def test_what_takes_in_such_a_column_unnamed_names_none(self, catalog: Catalog, sql: str) -> None:
        found = objections(sql, catalog, policy_of(POLICY))
        assert {v.rule for v in found} == {"column-not-allowed"}
        told = " ".join(v.message + v.hint for v in found)
        assert "salary" not in told
        assert "ssn" not in told

    @pytest.mark.parametrize(
        "view", ["sorted", "sorted_inside", "first_of", "limited", "as_many", "paired", "over_sorted"]
    )
    def test_a_view_whose_rows_tell_of_one_is_hidden_whole(self, catalog: Catalog, view: str) -> None:
        (found,) = objections(f"SELECT name FROM {view}", catalog, policy_of(POLICY))
        assert (found.rule, found.object) == ("column-not-allowed", f"hr.{view}")
        assert "salary" not in found.message + found.hint
        assert "ssn" not in found.message + found.hint

    def test_the_hint_of_a_view_lists_what_may_be_used_of_it(self, catalog: Catalog) -> None:
        (found,) = objections("SELECT * FROM joined", catalog, policy_of(POLICY))
        assert found.hint.endswith("Columns of hr.joined that you may use: name, label.")

    def test_a_view_may_answer_for_itself(self, catalog: Catalog) -> None:
        policy = policy_of(POLICY.replace('["hr.*"]', '["hr.*"], views: own'))
        for sql in ("SELECT * FROM plain", "SELECT name FROM sorted", "SELECT more FROM nested_twice"):
            assert objections(sql, catalog, policy) == []

    def test_an_unknown_column_is_not_told_of_a_hidden_one(self, catalog: Catalog) -> None:
        (found,) = objections("SELECT salry FROM plain", catalog, policy_of(POLICY))
        assert found.rule == "unknown-column"
        assert "salary" not in found.message + found.hint
