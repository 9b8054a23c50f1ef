"""The effect oracle: what passes a reading policy has no effect, and what would have one never arrives.

The backend role may write everything, so that nothing but the gate stands between a statement and its
harm. Each accepted read runs on real servers in a transaction of its own, which must then hold no lock above
ACCESS SHARE and no transaction id, and must have answered with nothing hidden. A refused statement must not
have reached the server at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest

from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy

Connection = psycopg.Connection[Any]
Rows = list[tuple[Any, ...]]

RELATION, COLUMN, FUNCTION = "relation-not-allowed", "column-not-allowed", "function-not-allowed"
CLASS, READ_ONLY, SETTING = "class-not-allowed", "access-read-only", "setting-not-allowed"

POLICY = """
version: 1
name: watched
access: read_only
statements: {select: allow, explain: allow, show: allow, set: allow, transaction: allow, cursor: allow,
  prepare: allow, copy_out: allow}
relations: {allow: ["public.*"], deny: [public.secrets, public.vault, public.closed_part], catalogs: filtered}
columns: {public.people: {deny: [ssn]}, public.base: {deny: [hush]}}
functions: {allow: [builtin-safe, "public.open_*"]}
rules: {unbounded-join: "off"}
"""
SCHEMA = """
CREATE SCHEMA hidden;
CREATE SEQUENCE ticks;
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TYPE pair AS (number int, word text);
CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL, mood mood, tags text[], doc jsonb,
  span int4range, born date, boss int, ssn text);
INSERT INTO people SELECT g, 'P' || g, 'good', '{a,b}', '{"k": "v", "list": [1, 2]}', int4range(g, g + 3),
  date '1990-01-01' + g, nullif(1, g), 'CANARY-' || g FROM generate_series(1, 20) g;
CREATE TABLE orders (id int PRIMARY KEY, person int REFERENCES people, total numeric);
INSERT INTO orders SELECT g, 1 + g % 20, g * 3 FROM generate_series(1, 60) g;
CREATE TABLE secrets (id int, word text);
INSERT INTO secrets VALUES (1, 'CANARY-SECRET');
CREATE TABLE hidden.cards (id int, pan text);
CREATE TABLE vault (id int, word text) PARTITION BY LIST (id);
CREATE TABLE vault_rest PARTITION OF vault DEFAULT;
CREATE TABLE base (id int, hush text);
CREATE TABLE derived (more text) INHERITS (base);
INSERT INTO derived VALUES (1, 'CANARY-HUSH', 'm');
CREATE TABLE whole (id int, word text);
CREATE TABLE closed_part () INHERITS (whole);
INSERT INTO closed_part VALUES (1, 'CANARY-PART');
CREATE TABLE log (id int, day date) PARTITION BY RANGE (day);
CREATE TABLE log_rest PARTITION OF log DEFAULT;
CREATE VIEW staff AS SELECT id, name, mood FROM people;
CREATE VIEW renamed AS SELECT id, ssn AS label FROM people;
CREATE VIEW again AS SELECT label FROM renamed;
CREATE VIEW as_rows AS SELECT to_jsonb(p) AS doc FROM people p;
CREATE VIEW words AS SELECT (SELECT word FROM secrets LIMIT 1) AS w;
CREATE MATERIALIZED VIEW kept AS SELECT ssn AS x FROM people;
CREATE FUNCTION tick(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''ticks''); RETURN $1; END';
CREATE FUNCTION claims(text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN public.tick(1); END';
CREATE FUNCTION length(int) RETURNS int LANGUAGE sql AS 'SELECT public.tick($1)';
CREATE FUNCTION of_row(people) RETURNS int LANGUAGE sql AS 'SELECT public.tick(1)';
CREATE FUNCTION open_double(int) RETURNS int LANGUAGE sql AS 'SELECT $1 * 2';
CREATE FUNCTION open_people() RETURNS SETOF people LANGUAGE sql STABLE AS 'SELECT * FROM public.people';
CREATE FUNCTION checks(int) RETURNS bool LANGUAGE sql AS 'SELECT public.tick($1) > 0';
CREATE DOMAIN checked AS int CHECK (checks(VALUE));
CREATE TYPE nested AS (inner_ones checked[]);
CREATE FUNCTION either(int, int) RETURNS bool LANGUAGE sql AS 'SELECT public.tick($1) > $2';
CREATE OPERATOR <~> (LEFTARG = int, RIGHTARG = int, FUNCTION = either);
CREATE OPERATOR hidden.= (LEFTARG = int, RIGHTARG = int, FUNCTION = either);
CREATE FUNCTION number_of(mood) RETURNS int LANGUAGE sql AS 'SELECT public.tick(1)';
CREATE CAST (mood AS int) WITH FUNCTION number_of(mood) AS ASSIGNMENT;
CREATE FUNCTION add_up(int, int) RETURNS int LANGUAGE sql AS 'SELECT public.tick($1)';
CREATE AGGREGATE noisy(int) (SFUNC = add_up, STYPE = int, INITCOND = '0');
CREATE VIEW ticking AS SELECT tick(id) AS t FROM people;
ALTER TABLE people OWNER TO shop_app; ALTER TABLE orders OWNER TO shop_app;
GRANT ALL ON SCHEMA hidden, public TO shop_app;
GRANT ALL ON ALL TABLES IN SCHEMA hidden, public TO shop_app;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO shop_app;
"""

ACCEPTED: Mapping[str, tuple[str, ...]] = {
    "plain": (
        "SELECT id, name FROM people WHERE id = 3",
        "SELECT count(*), max(total), avg(total) FROM orders",
        "SELECT * FROM orders ORDER BY id LIMIT 3",
        "TABLE orders",
        "VALUES (1, 'a'), (2, 'b')",
        'SELECT $$; DELETE FROM orders$$ AS "delete"',
        'SELECT U&"n\\0061me" FROM U&"peopl\\0065"',
        "SELECT name FROM people WHERE (born, id) > ('1990-01-05', 0) ORDER BY born, id",
        "SELECT id FROM people WHERE id = ANY ('{1,2}') AND name = ANY (ARRAY['P1'])",
    ),
    "joins": (
        "SELECT p.name, o.total FROM people p JOIN orders o ON o.person = p.id",
        "SELECT p.id, q.total FROM people p"
        " LEFT JOIN LATERAL (SELECT total FROM orders o WHERE o.person = p.id LIMIT 1) q ON true",
        "SELECT a.id FROM orders a JOIN orders b USING (id)",
        "SELECT id FROM people WHERE EXISTS (SELECT FROM orders WHERE person = people.id)",
    ),
    "shapes": (
        "WITH secrets AS (SELECT 1 AS x) SELECT x FROM secrets",
        "WITH RECURSIVE c AS (SELECT id FROM people WHERE id = 1 UNION ALL"
        " SELECT p.id FROM people p JOIN c ON p.boss = c.id AND p.id <> c.id) SELECT id FROM c",
        "SELECT sum(total) OVER (PARTITION BY person ORDER BY id ROWS 2 PRECEDING) FROM orders",
        "SELECT person, sum(total) FROM orders GROUP BY ROLLUP (person)",
        "SELECT DISTINCT ON (person) person, total FROM orders ORDER BY person, total DESC",
        "SELECT id FROM people EXCEPT SELECT person FROM orders",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY total) FROM orders",
        "SELECT id FROM orders TABLESAMPLE system (50)",
    ),
    "types": (
        "SELECT mood, count(*) FROM people GROUP BY mood ORDER BY mood",
        "SELECT mood::text, 'bad'::mood FROM people",
        "SELECT ROW(id, name)::pair FROM orders, (SELECT 'a' AS name) q",
        "SELECT tags[1], cardinality(tags), tags @> ARRAY['a'] FROM people",
        "SELECT t FROM people, unnest(tags) t",
        "SELECT doc -> 'list' -> 0, doc ->> 'k', doc @> '{}', doc['list'][0] FROM people",
        "SELECT e.value FROM people, jsonb_each(doc) e",
        "SELECT to_jsonb(q) FROM (SELECT id, name FROM people) q",
        "SELECT lower(span), span @> 2, span * int4range(1, 5) FROM people",
        "SELECT extract(year FROM born), date_trunc('month', born), age(born), born + 1 FROM people",
        "SELECT to_tsvector('english', name) @@ plainto_tsquery('x') FROM people",
    ),
    "calls": (
        "SELECT upper(name), length(name || 'x'), length(doc ->> 'k'), length(tags[1]) FROM people",
        "SELECT length(n) FROM (SELECT name AS n FROM people) q",
        "SELECT length(CASE WHEN id > 1 THEN name ELSE 'x' END), length(max(name)) FROM people GROUP BY id",
        "SELECT open_double(id) FROM people",
        "SELECT id, name FROM open_people()",
        "SELECT now(), current_user, current_database(), version(), gen_random_uuid()",
    ),
    "relations": (
        "SELECT * FROM staff",
        "SELECT id FROM log",
        "SELECT id FROM log_rest",
        "SELECT word FROM ONLY whole",
        "SELECT id, more FROM derived",
        "SELECT id, tableoid::regclass FROM base",
        "SELECT relname FROM pg_class WHERE oid = 'people'::regclass",
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'orders'::regclass",
        "SELECT table_name FROM information_schema.tables",
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint",
    ),
    "utility": (
        "EXPLAIN SELECT id FROM people",
        "EXPLAIN (ANALYZE, FORMAT JSON) SELECT id FROM people",
        "SHOW search_path",
        "DECLARE c CURSOR FOR SELECT id FROM people",
        "SET LOCAL application_name = 'x'",
        "SELECT set_config('application_name', 'x', true)",
    ),
}

REFUSED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "relations": (
        (RELATION, "SELECT word FROM secrets"),
        (RELATION, "SELECT 1 ORDER BY (SELECT word FROM secrets LIMIT 1)"),
        (RELATION, "SELECT sum(id) OVER (ROWS (SELECT max(id) FROM secrets) PRECEDING) FROM people"),
        (RELATION, "SELECT id FROM orders TABLESAMPLE bernoulli ((SELECT max(id) FROM secrets))"),
        (RELATION, "WITH secrets AS (SELECT * FROM secrets) SELECT * FROM secrets"),
        (RELATION, "SELECT pan FROM hidden.cards"),
        (RELATION, "SELECT w FROM words"),
        (RELATION, "SELECT id FROM vault_rest"),
        (RELATION, "SELECT word FROM whole"),
        (RELATION, "SELECT 'secrets'::regclass"),
        (RELATION, "SELECT rolpassword FROM pg_authid"),
        (RELATION, "SELECT most_common_vals FROM pg_stats"),
        (RELATION, "COPY secrets TO STDOUT"),
        (RELATION, "EXPLAIN SELECT * FROM secrets"),
    ),
    "columns": (
        (COLUMN, "SELECT ssn FROM people"),
        (COLUMN, "SELECT * FROM people"),
        (COLUMN, "SELECT p FROM people p"),
        (COLUMN, "SELECT (p).ssn FROM people p"),
        (COLUMN, "SELECT to_jsonb(p) FROM people p"),
        (COLUMN, "SELECT p.row_to_json FROM people p"),
        (COLUMN, "SELECT count(*) FROM people WHERE ssn LIKE 'C_'"),
        (COLUMN, "SELECT z FROM people AS p(a, b, c, d, e, f, g, h, z)"),
        (COLUMN, "SELECT 1 FROM people a JOIN people b USING (ssn)"),
        (COLUMN, "SELECT 1 FROM people a NATURAL JOIN people b"),
        (COLUMN, "SELECT (r).ssn FROM (SELECT p AS r FROM people p) q"),
        (COLUMN, "SELECT (open_people()).ssn"),
        (COLUMN, "SELECT open_people()"),
        (COLUMN, "SELECT name FROM ROWS FROM (open_people(), generate_series(1, 2)) q"),
        (COLUMN, "SELECT label FROM renamed"),
        (COLUMN, "SELECT label FROM again"),
        (COLUMN, "SELECT doc FROM as_rows"),
        (COLUMN, "SELECT x FROM kept"),
        (COLUMN, "SELECT hush FROM derived"),
        (COLUMN, "COPY people TO STDOUT"),
    ),
    "calls": (
        (FUNCTION, "SELECT tick(1)"),
        (FUNCTION, "EXPLAIN SELECT id FROM people WHERE id = claims(name)"),
        (FUNCTION, "SELECT length(id) FROM people"),
        (FUNCTION, "SELECT length(n) FROM (SELECT id AS n FROM people) q"),
        (FUNCTION, "SELECT length((ARRAY[1])[1])"),
        (FUNCTION, "SELECT p.of_row FROM people p"),
        (FUNCTION, "SELECT (NULL::people).of_row"),
        (FUNCTION, "SELECT 1 <~> 2"),
        (FUNCTION, "SELECT id FROM people WHERE id OPERATOR(hidden.=) ANY ('{1}')"),
        (FUNCTION, "SELECT (1, 2) OPERATOR(hidden.=) (1, 2)"),
        (FUNCTION, "SELECT mood::int FROM people"),
        (FUNCTION, "SELECT (ARRAY[1, 2])[mood] FROM people"),
        (FUNCTION, "SELECT ARRAY[mood]::int[] FROM people"),
        (FUNCTION, "SELECT 5::checked"),
        (FUNCTION, "SELECT '({5})'::nested"),
        (FUNCTION, "SELECT * FROM jsonb_to_record('{\"a\": 5}') AS x(a checked)"),
        (FUNCTION, "SELECT noisy(id) FROM people"),
        (FUNCTION, "SELECT t FROM ticking"),
        (FUNCTION, "SELECT id FROM orders LIMIT tick(1)"),
        (FUNCTION, "SELECT pg_read_file('PG_VERSION')"),
        (FUNCTION, "SELECT query_to_xml('TABLE secrets', true, false, '')"),
        (FUNCTION, "SELECT pg_advisory_lock(1)"),
        (FUNCTION, "SELECT nextval('ticks')"),
        (FUNCTION, "SELECT lo_create(0)"),
    ),
    "writes": (
        (CLASS, "DELETE FROM orders WHERE id = 1"),
        (CLASS, "WITH gone AS (DELETE FROM orders WHERE id = 1 RETURNING id) SELECT * FROM gone"),
        (CLASS, "EXPLAIN ANALYZE UPDATE orders SET total = 0 WHERE id = 1"),
        (CLASS, "MERGE INTO orders o USING people p ON o.id = p.id WHEN MATCHED THEN DELETE"),
        (CLASS, "SELECT id INTO TEMP t FROM orders"),
        (CLASS, "SELECT id FROM orders FOR UPDATE"),
        (CLASS, "WITH q AS (SELECT id FROM orders FOR KEY SHARE) SELECT * FROM q"),
        (CLASS, "LOCK TABLE orders"),
        (CLASS, "COPY (DELETE FROM orders WHERE id = 1 RETURNING id) TO STDOUT"),
        (CLASS, "PREPARE p AS DELETE FROM orders WHERE id = 1"),
        (CLASS, "DO $$BEGIN END$$"),
        (CLASS, "NOTIFY x"),
    ),
    "settings": (
        (SETTING, "SET search_path = hidden"),
        (SETTING, "SET LOCAL statement_timeout = 0"),
        (SETTING, "SELECT set_config('role', 'shop_ro', true)"),
        (READ_ONLY, "BEGIN READ WRITE"),
        (READ_ONLY, "SET TRANSACTION READ WRITE"),
    ),
}


def by_simple_query(connection: Connection, sql: str) -> Rows:
    cursor = connection.execute(sql.encode())
    return cursor.fetchall() if cursor.description else []


def by_extended_query(connection: Connection, sql: str) -> Rows:
    cursor = connection.execute(sql.encode(), (), prepare=True)
    return cursor.fetchall() if cursor.description else []


PROTOCOLS: tuple[Callable[[Connection, str], Rows], ...] = (by_simple_query, by_extended_query)


@pytest.fixture(scope="module")
def watched(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with postgres.database("template0") as database:
        database.execute(SCHEMA)
        with run_proxy(database, tmp_path_factory.mktemp("effects"), {"watched": POLICY}) as running:
            yield running


@pytest.fixture(scope="module")
def observer(watched: RunningProxy) -> Iterator[Connection]:
    """A superuser's connection past the proxy."""
    with psycopg.connect(watched.database.dsn(), autocommit=True) as connection:
        yield connection


TRACES = """
SELECT ARRAY(SELECT DISTINCT l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE a.datname = current_database() AND a.usename = 'shop_app'
               AND l.mode <> 'AccessShareLock' AND l.locktype <> 'virtualxid'),
       ARRAY(SELECT backend_xid FROM pg_stat_activity
             WHERE datname = current_database() AND usename = 'shop_app' AND backend_xid IS NOT NULL),
       (SELECT is_called FROM ticks), (SELECT count(*) FROM pg_class), (SELECT count(*) FROM orders)
"""


@pytest.mark.parametrize("kind", ACCEPTED)
def test_an_accepted_read_has_no_effect(watched: RunningProxy, observer: Connection, kind: str) -> None:
    before = observer.execute(TRACES).fetchone()
    assert before is not None
    assert before[:3] == ([], [], False)
    with psycopg.connect(**watched.parameters("watched")) as connection:
        for run in PROTOCOLS:
            for sql in ACCEPTED[kind]:
                rows = run(connection, sql)
                assert observer.execute(TRACES).fetchone() == before, sql
                assert "CANARY" not in repr(rows), sql
                connection.rollback()


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_statement_never_arrives(watched: RunningProxy, observer: Connection, kind: str) -> None:
    before = observer.execute(TRACES).fetchone()
    with psycopg.connect(**watched.parameters("watched"), autocommit=True) as connection:
        for run in PROTOCOLS:
            for rule, sql in REFUSED[kind]:
                with pytest.raises(psycopg.Error) as caught:
                    run(connection, sql)
                told = caught.value.diag
                found = json.loads(told.message_detail or "{}").get("violations", ())
                assert rule in {violation["rule"] for violation in found}, sql
                assert "CANARY" not in f"{told.message_primary}{told.message_hint}{told.message_detail}"
        assert connection.execute("SELECT 1").fetchone() == (1,)
    arrived = {*watched.database.executed("shop_app"), *watched.database.parsed("shop_app")}
    assert arrived.isdisjoint(sql for _, sql in REFUSED[kind])
    assert observer.execute(TRACES).fetchone() == before
