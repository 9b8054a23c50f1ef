"""Which relations a statement names, how it uses each, and where."""

from __future__ import annotations

import pytest

from policy.facts import RenameRef, SchemaRef
from tests.policy.extracting import facts, relations, words

RELATIONS = [
    ("SELECT * FROM a, b.c, d.e.f", "read:a read:b.c read:d.e.f"),
    ("SELECT * FROM ONLY a TABLESAMPLE system (1)", "read:a"),
    ('SELECT * FROM U&"api\\005fkeys"', "read:api_keys"),
    ('TABLE "Ünïcode"', "read:Ünïcode"),
    ("SELECT 1 FROM a JOIN (b CROSS JOIN c) ON true NATURAL JOIN d", "read:a read:b read:c read:d"),
    ("SELECT 1 ORDER BY (SELECT key FROM api_keys LIMIT 1)", "read:api_keys"),
    ("SELECT 1 LIMIT (SELECT 1 FROM a) OFFSET (SELECT 1 FROM b)", "read:a read:b"),
    (
        "SELECT EXISTS (SELECT FROM a), ARRAY(SELECT 1 FROM b), 1 = ANY (SELECT 1 FROM c)",
        "read:a read:b read:c",
    ),
    ("VALUES ((SELECT 1 FROM a))", "read:a"),
    ("(SELECT 1 FROM a UNION SELECT 1 FROM b) EXCEPT TABLE c", "read:a read:b read:c"),
    ("SELECT 1 FROM a FOR UPDATE OF a", "read:a"),
    # CTE scoping (parse_cte.c, parse_relation.c)
    ("WITH a AS (SELECT 1) SELECT * FROM a", ""),
    ("WITH secrets AS (SELECT * FROM secrets) SELECT * FROM secrets", "read:secrets"),
    ("WITH a AS (SELECT 1) SELECT * FROM public.a", "read:public.a"),
    ("WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a, b", "read:b"),
    ("WITH RECURSIVE a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a, b", ""),
    ("WITH RECURSIVE a AS (SELECT 1 UNION SELECT * FROM a) SELECT * FROM a", ""),
    ("WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b", ""),
    ("WITH a AS (SELECT 1) SELECT (SELECT 1 FROM (SELECT * FROM a) x)", ""),
    ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) x, a", "read:a"),
    ("SELECT (WITH a AS (SELECT 1) SELECT * FROM a), (SELECT 1 FROM a)", "read:a"),
    ("WITH a AS (WITH b AS (SELECT 1) SELECT * FROM b) SELECT * FROM a, b", "read:b"),
    ("WITH a AS (SELECT 1) (SELECT * FROM a UNION SELECT * FROM b)", "read:b"),
    ("(WITH a AS (SELECT 1) SELECT * FROM a) UNION SELECT * FROM a", "read:a"),
    ("WITH t AS (SELECT 1) DELETE FROM t", "delete:t"),
    ("WITH t AS (SELECT 1) INSERT INTO t SELECT * FROM t", "insert:t"),
    ("WITH t AS (SELECT 1) UPDATE t SET a = 1 FROM t AS x", "update:t"),
    ("WITH t AS (SELECT 1) MERGE INTO t USING t AS s ON true WHEN MATCHED THEN DELETE", "delete:t"),
    ("INSERT INTO t WITH a AS (SELECT 1) SELECT * FROM a", "insert:t"),
    ("WITH a AS (SELECT 1) SELECT * FROM t, LATERAL (SELECT * FROM a, b) x", "read:t read:b"),
    ('WITH A AS (SELECT 1) SELECT * FROM "A"', "read:A"),
    # Writing
    (
        "UPDATE a SET x = (SELECT 1 FROM b) FROM c WHERE EXISTS (SELECT FROM d)",
        "update:a read:b read:c read:d",
    ),
    ("DELETE FROM a USING b, c WHERE a.x = b.x RETURNING (SELECT 1 FROM d)", "delete:a read:b read:c read:d"),
    (
        "INSERT INTO a SELECT * FROM b ON CONFLICT (x) DO UPDATE SET y = (SELECT 1 FROM c)",
        "insert:a read:b read:c",
    ),
    (
        "MERGE INTO a USING b ON a.x = b.x WHEN MATCHED AND (SELECT true FROM c) THEN DO NOTHING",
        "read:a read:b read:c",
    ),
    # Utility
    ("COPY s.t TO STDOUT", "read:s.t"),
    ("COPY t FROM STDIN", "insert:t"),
    ("COPY (SELECT * FROM t) TO STDOUT", "read:t"),
    ("LOCK a, ONLY b.c", "lock:a lock:b.c"),
    ("CREATE TABLE a AS SELECT * FROM b", "define:a read:b"),
    ("SELECT * INTO a FROM b", "define:a read:b"),
    ("CREATE VIEW a AS SELECT * FROM b", "define:a read:b"),
    ("CREATE TABLE a (LIKE b, x int REFERENCES c) INHERITS (d)", "define:a define:b define:c define:d"),
    ("CREATE INDEX ON a (f(x)) WHERE y > (SELECT 1 FROM b)", "define:a read:b"),
    ("CREATE TRIGGER t AFTER INSERT ON a EXECUTE FUNCTION f()", "define:a"),
    ("CREATE RULE r AS ON SELECT TO a DO INSTEAD SELECT * FROM b", "define:a read:b"),
    ("CREATE FUNCTION f(a.x%TYPE) RETURNS s.b.y%TYPE LANGUAGE sql AS ''", "define:a define:s.b"),
    ("ALTER TABLE a ATTACH PARTITION b DEFAULT", "define:a define:b"),
    ("DROP TABLE a, b.c, d.e.f", "define:a define:b.c define:d.e.f"),
    ("DROP VIEW a", "define:a"),
    ("DROP POLICY p ON a.b", "define:a.b"),
    ("COMMENT ON COLUMN a.b.c IS ''", "define:a.b"),
    ("COMMENT ON CONSTRAINT x ON a IS ''", "define:a"),
    ("ALTER TABLE a SET SCHEMA b", "define:a"),
    ("TRUNCATE a, b", "define:a define:b"),
    ("VACUUM a", "define:a"),
    ("GRANT SELECT (x) ON a TO b", "define:a"),
    ("REFRESH MATERIALIZED VIEW a", "define:a"),
    ("CREATE PUBLICATION p FOR TABLE a WHERE (x > 1)", "define:a"),
    ("EXECUTE p ((SELECT x FROM a))", "read:a"),
    ("DECLARE c CURSOR FOR SELECT * FROM a", "read:a"),
    ("CALL p((SELECT 1 FROM a))", "read:a"),
    ("DROP FUNCTION f(int)", ""),
    ("SET CONSTRAINTS a.b DEFERRED", ""),
]


@pytest.mark.parametrize(("sql", "expected"), RELATIONS)
def test_relations(sql: str, expected: str) -> None:
    assert relations(facts(sql)) == words(expected)


def test_a_relation_keeps_its_alias_place_and_scope() -> None:
    sql = "SELECT 'é', (SELECT 1 FROM b.c AS x) FROM ONLY a"
    found = facts(sql)
    a, c = sorted(found.relations, key=lambda relation: relation.name)
    assert (a.alias, a.only, a.position) == (None, True, len(sql))
    assert (c.alias, c.only, c.position) == ("x", False, sql.index("b.c") + 1)
    assert found.queries[c.query or 0].parent == a.query == 0


@pytest.mark.parametrize(
    ("sql", "renames", "schemas"),
    [
        ("ALTER TABLE a.b RENAME TO c", [RenameRef(0, name="c")], []),
        ("ALTER TABLE b RENAME COLUMN c TO d", [RenameRef(0, "c")], []),
        ("ALTER TYPE b RENAME ATTRIBUTE c TO d", [RenameRef(0, "c")], []),
        ("ALTER VIEW b SET SCHEMA c", [RenameRef(0, schema="c")], []),
        ("ALTER TABLE b RENAME CONSTRAINT c TO d", [], []),
        ("ALTER TRIGGER c ON b RENAME TO d", [], []),
        ("ALTER FUNCTION f(int) SET SCHEMA c", [], []),
        ("ALTER SCHEMA a RENAME TO b", [], [SchemaRef("a", "b")]),
        ("DROP SCHEMA a, b CASCADE", [], [SchemaRef("a"), SchemaRef("b")]),
        ("DROP TABLE a", [], []),
        ("GRANT SELECT ON ALL TABLES IN SCHEMA a TO x", [], [SchemaRef("a")]),
        ("CREATE PUBLICATION p FOR TABLES IN SCHEMA a, TABLE b", [], [SchemaRef("a")]),
    ],
)
def test_new_names_and_whole_schemas(sql: str, renames: list[RenameRef], schemas: list[SchemaRef]) -> None:
    found = facts(sql)
    assert found.not_understood is None
    assert (list(found.renames), list(found.schemas)) == (renames, schemas)
