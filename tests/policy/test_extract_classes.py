"""Which class a statement has, of all that it holds."""
# ruff: noqa: E501  (a statement of a table stays on its line)

from __future__ import annotations

import pytest

from tests.policy.extracting import calls, columns, facts, relations, words

CLASSES = [
    ("SELECT 1", "select"),
    ("TABLE t", "select"),
    ("VALUES (1), (2)", "select"),
    ("(SELECT 1) UNION (VALUES (2)) EXCEPT TABLE t", "select"),
    ("SELECT 1 FROM t FOR UPDATE", "select lock"),
    ("SELECT 1 FROM t FOR NO KEY UPDATE SKIP LOCKED", "select lock"),
    ("SELECT 1 FROM (SELECT * FROM t FOR KEY SHARE) x", "select lock"),
    ("SELECT (SELECT 1 FROM t FOR SHARE OF t NOWAIT)", "select lock"),
    ("SELECT * INTO x FROM t", "select ddl"),
    ("SELECT * INTO TEMP x FROM t", "select ddl"),
    ("WITH a AS (SELECT * INTO x FROM t) SELECT 1", "select ddl"),
    ("INSERT INTO t VALUES (1)", "insert"),
    ("INSERT INTO t DEFAULT VALUES", "insert"),
    ("INSERT INTO t VALUES ((SELECT 1))", "insert select"),
    ("INSERT INTO t SELECT 1", "insert select"),
    ("INSERT INTO t TABLE u", "insert select"),
    ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "insert"),
    ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 1", "insert update"),
    ("UPDATE t SET a = 1", "update"),
    ("DELETE FROM t USING u", "delete"),
    ("DELETE FROM t WHERE a IN (SELECT 1)", "delete select"),
    ("MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE", "merge delete"),
    ("MERGE INTO t USING s ON true WHEN MATCHED THEN UPDATE SET a = 1", "merge update"),
    ("MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT VALUES (1)", "merge insert"),
    ("MERGE INTO t USING s ON true WHEN MATCHED THEN DO NOTHING", "merge"),
    ("MERGE INTO t USING (SELECT 1 AS a) s ON true WHEN MATCHED THEN DELETE", "merge delete select"),
    ("WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone", "delete select"),
    ("WITH a AS (UPDATE t SET x = 0 RETURNING 1) INSERT INTO u SELECT * FROM a", "update insert select"),
    ("WITH a AS (WITH b AS (DELETE FROM t RETURNING 1) SELECT * FROM b) SELECT * FROM a", "delete select"),
    (
        "WITH m AS (MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE RETURNING 1) TABLE m",
        "merge delete select",
    ),
    (
        "WITH RECURSIVE a(n) AS (SELECT 1 UNION SELECT n FROM a)"
        " SEARCH DEPTH FIRST BY n SET o CYCLE n SET c TO 'y' DEFAULT 'n' USING p TABLE a",
        "select",
    ),
    ("EXPLAIN DELETE FROM t", "explain"),
    ("EXPLAIN VERBOSE SELECT 1 FROM t FOR UPDATE", "explain"),
    ("EXPLAIN (ANALYZE off) DELETE FROM t", "explain"),
    ("EXPLAIN (ANALYZE 0) DELETE FROM t", "explain"),
    ("EXPLAIN (ANALYZE false) DELETE FROM t", "explain"),
    ("EXPLAIN (ANALYZE 'OFF') DELETE FROM t", "explain"),
    ("EXPLAIN (ANALYZE, ANALYZE off) DELETE FROM t", "explain"),
    ("EXPLAIN (GENERIC_PLAN, COSTS off) DELETE FROM t WHERE id = $1", "explain"),
    ("EXPLAIN CREATE TABLE x AS SELECT 1", "explain"),
    ("EXPLAIN EXECUTE p", "explain"),
    ("EXPLAIN ANALYZE DELETE FROM t", "explain delete"),
    ("EXPLAIN ANALYSE DELETE FROM t", "explain delete"),
    ("EXPLAIN ANALYZE VERBOSE DELETE FROM t", "explain delete"),
    ("EXPLAIN (ANALYZE) DELETE FROM t", "explain delete"),
    ("EXPLAIN (ANALYSE) DELETE FROM t", "explain delete"),
    ("EXPLAIN (ANALYZE 1) DELETE FROM t", "explain delete"),
    ("EXPLAIN (ANALYZE true) DELETE FROM t", "explain delete"),
    ("EXPLAIN (ANALYZE on) DELETE FROM t", "explain delete"),
    ("EXPLAIN (ANALYZE 'TRUE') DELETE FROM t", "explain delete"),
    ("EXPLAIN (ANALYZE off, COSTS off, ANALYZE) DELETE FROM t", "explain delete"),
    ("EXPLAIN (COSTS off, ANALYZE, SERIALIZE text) SELECT 1", "explain select"),
    ("EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1", "explain ddl select"),
    ("EXPLAIN ANALYZE EXECUTE p", "explain prepare"),
    ("COPY t TO STDOUT", "copy_out select"),
    ("COPY (SELECT 1) TO STDOUT", "copy_out select"),
    ("COPY (DELETE FROM orders RETURNING id) TO STDOUT", "copy_out delete"),
    ("COPY t FROM STDIN", "copy_in insert"),
    ("COPY t FROM PROGRAM 'x'", "copy_in insert"),
    ("CREATE TABLE x AS SELECT 1", "ddl select"),
    ("CREATE TABLE x AS EXECUTE p", "ddl prepare"),
    ("CREATE MATERIALIZED VIEW x AS SELECT 1", "ddl select"),
    ("CREATE VIEW x AS SELECT 1", "ddl select"),
    ("CREATE RECURSIVE VIEW v (n) AS SELECT 1", "ddl select"),
    ("CREATE RULE r AS ON INSERT TO t DO ALSO DELETE FROM u", "ddl delete"),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'DELETE FROM t'", "ddl"),
    ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC DELETE FROM t; SELECT 1; END", "ddl delete select"),
    ("CREATE SCHEMA s CREATE TABLE t (a int) CREATE VIEW v AS SELECT 1", "ddl select"),
    ("CREATE TABLE t (a int)", "ddl"),
    ("CREATE TABLE t PARTITION OF p FOR VALUES IN (1)", "ddl"),
    ("CREATE EXTENSION file_fdw", "ddl"),
    ("CREATE SERVER s FOREIGN DATA WRAPPER w", "ddl"),
    ("CREATE PUBLICATION p FOR ALL TABLES", "ddl"),
    ("CREATE SUBSCRIPTION s CONNECTION 'x' PUBLICATION p", "ddl"),
    ("IMPORT FOREIGN SCHEMA a FROM SERVER s INTO b", "ddl"),
    ("ALTER TABLE t ADD COLUMN a int", "ddl"),
    ("ALTER TABLE t RENAME TO u", "ddl"),
    ("ALTER TABLE t OWNER TO u", "ddl"),
    ("ALTER FUNCTION f() OWNER TO u", "ddl"),
    ("ALTER DATABASE d SET a = 1", "ddl"),
    ("DROP TABLE t", "ddl"),
    ("DROP DATABASE d", "ddl"),
    ("TRUNCATE t", "ddl"),
    ("COMMENT ON TABLE t IS 'x'", "ddl"),
    ("SECURITY LABEL ON TABLE t IS 'x'", "ddl"),
    ("GRANT SELECT ON t TO u", "role"),
    ("REVOKE ALL ON t FROM u", "role"),
    ("GRANT a TO b", "role"),
    ("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO u", "role"),
    ("CREATE ROLE r", "role"),
    ("CREATE USER r SUPERUSER", "role"),
    ("ALTER ROLE r PASSWORD 'x'", "role"),
    ("ALTER ROLE r SET work_mem = '1GB'", "role"),
    ("ALTER GROUP g ADD USER u", "role"),
    ("DROP ROLE r", "role"),
    ("REASSIGN OWNED BY a TO b", "role"),
    ("DROP OWNED BY a", "role"),
    ("VACUUM", "maintenance"),
    ("VACUUM (FULL) t", "maintenance"),
    ("ANALYZE t (a)", "maintenance"),
    ("REINDEX TABLE t", "maintenance"),
    ("CLUSTER t", "maintenance"),
    ("CHECKPOINT", "maintenance"),
    ("REFRESH MATERIALIZED VIEW m", "maintenance"),
    ("ALTER SYSTEM SET a = 1", "maintenance"),
    ("LOAD 'x'", "other"),
    ("PREPARE TRANSACTION 'x'", "other"),
    ("COMMIT PREPARED 'x'", "other"),
    ("ROLLBACK PREPARED 'x'", "other"),
    ("LOCK TABLE t IN ACCESS EXCLUSIVE MODE", "lock"),
    ("LISTEN x", "notify"),
    ("UNLISTEN *", "notify"),
    ("NOTIFY x, 'y'", "notify"),
    ("DO $$BEGIN EXECUTE 'DEL' || 'ETE FROM users'; END$$", "do"),
    ("CALL p(1)", "call"),
    ("SET a = 1", "set"),
    ("RESET ALL", "set"),
    ("DISCARD ALL", "set"),
    ("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "set"),
    ("SET TRANSACTION READ WRITE", "transaction"),
    ("SET TRANSACTION SNAPSHOT 'x'", "transaction"),
    ("SET CONSTRAINTS ALL DEFERRED", "transaction"),
    ("BEGIN", "transaction"),
    ("START TRANSACTION READ ONLY", "transaction"),
    ("COMMIT AND CHAIN", "transaction"),
    ("END", "transaction"),
    ("ABORT", "transaction"),
    ("SAVEPOINT a", "transaction"),
    ("RELEASE a", "transaction"),
    ("ROLLBACK TO a", "transaction"),
    ("SHOW work_mem", "show"),
    ("SHOW ALL", "show"),
    ("PREPARE p AS DELETE FROM orders", "prepare delete"),
    ("PREPARE p AS SELECT 1", "prepare select"),
    ("EXECUTE p", "prepare"),
    ("DEALLOCATE ALL", "prepare"),
    ("DECLARE c CURSOR FOR SELECT 1", "cursor select"),
    ("FETCH ALL FROM c", "cursor"),
    ("MOVE 3 IN c", "cursor"),
    ("CLOSE ALL", "cursor"),
]


@pytest.mark.parametrize(("sql", "expected"), CLASSES)
def test_classes(sql: str, expected: str) -> None:
    assert {c.value for c in facts(sql).classes} == words(expected)


@pytest.mark.parametrize(
    ("sql", "worst", "position"),
    [
        ("  SELECT 1", "select", 3),
        ("/* x */ UPDATE t SET a = 1", "update", 9),
        ("WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone", "delete", 27),
        ("EXPLAIN ANALYZE SELECT * INTO x FROM t", "ddl", 1),
        ("PREPARE p AS INSERT INTO t VALUES (1)", "insert", 1),
    ],
)
def test_the_most_dangerous_class_and_its_place(sql: str, worst: str, position: int) -> None:
    found = facts(sql)
    assert found.statement_class == worst
    assert found.class_positions[found.statement_class] == position


def test_explain_that_only_plans_names_everything_and_writes_nothing() -> None:
    sql = "EXPLAIN WITH d AS (DELETE FROM t WHERE a = f(1) RETURNING b) SELECT set_config('x', 'y', true) FROM d"
    planned, run = facts(sql), facts(sql.replace("EXPLAIN", "EXPLAIN ANALYZE"))
    assert (planned.runs, planned.explain_analyze, planned.writes) == (False, False, ())
    assert (run.runs, run.explain_analyze, len(run.writes)) == (True, True, 1)
    assert not any(query.final for query in planned.queries)
    assert any(query.final for query in run.queries)
    for found in (planned, run):
        assert relations(found) == {"delete:t"}
        assert calls(found) == {"f/1", "set_config/3"}
        assert [setting.name for setting in found.settings] == ["x"]
        assert "read where a" in columns(found)
