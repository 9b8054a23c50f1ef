"""Statements over ``tests/support/rich_schema.sql`` for the resolver's tests, with search_path app, public.

PostgreSQL accepts every one of them; ``REFUSED`` it does not. ``SINCE_18`` needs that version.
"""

# ruff: noqa: E501 - one statement a line

from __future__ import annotations

from typing import Final

ACCEPTED: Final = tuple(
    statement.strip()
    for statement in r"""
SELECT 1
SELECT id, name FROM people
SELECT people.id, p2.name FROM people, app.people p2
SELECT app.people.name FROM people
SELECT app.people.name FROM app.people
SELECT "people"."name" FROM people
SELECT p.* FROM people p
SELECT * FROM people
SELECT app.people.* FROM app.people
SELECT nickname FROM public.people
SELECT q.nickname, app.people.name FROM public.people q, app.people
SELECT p FROM people p
SELECT people FROM people
SELECT to_jsonb(p) FROM people p
SELECT row_to_json(people.*) FROM people
SELECT (p).name FROM people p
SELECT (p).* FROM people p
SELECT (p.home).street FROM people p
SELECT (home).* FROM people
SELECT (p.home).* FROM people p
SELECT p.to_jsonb FROM people p
SELECT p.label FROM people p, lateral (SELECT 1) q
SELECT ctid, xmin, tableoid::regclass, cmax FROM people
SELECT p.ctid FROM people p
SELECT m.tableoid FROM moves m
SELECT kept.ctid FROM kept
SELECT last_value, is_called FROM counter
SELECT "Some Column", m."from" FROM "Odd Names"."Mixed Case" m
SELECT relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = 'app'
SELECT column_name FROM information_schema.columns WHERE table_name = 'people'
SELECT count(*) FROM people
SELECT count(p) FROM people p
SELECT name AS n FROM people ORDER BY n
SELECT name AS n FROM people ORDER BY salary
SELECT name FROM people ORDER BY people.salary + 1
SELECT salary * 2 AS id, id AS salary FROM people ORDER BY id, salary
SELECT date_trunc('month', since) AS month, count(*) FROM people GROUP BY month ORDER BY month
SELECT name AS mood, count(*) FROM people GROUP BY name ORDER BY mood
SELECT upper(name) FROM people GROUP BY upper ORDER BY upper
SELECT DISTINCT ON (n) name AS n, id FROM people ORDER BY n, id
SELECT count(*) FROM people GROUP BY ROLLUP (mood, boss_id)
SELECT mood AS m, boss_id AS b, count(*) FROM people GROUP BY GROUPING SETS ((m), (m, b), ())
SELECT mood, count(*) FROM people GROUP BY mood HAVING count(salary) > 1 AND max(folded) > 'a'
SELECT name, rank() OVER (PARTITION BY boss_id ORDER BY salary) FROM people
SELECT name, rank() OVER w FROM people WINDOW w AS (PARTITION BY boss_id ORDER BY salary)
SELECT count(*) FILTER (WHERE salary > 1) FROM people
SELECT p.name FROM people p WHERE EXISTS (SELECT 1 FROM stock WHERE keeper_id = p.id)
SELECT name FROM people WHERE id IN (SELECT keeper_id FROM stock WHERE on_hand > salary)
SELECT name, (SELECT max(on_hand) FROM stock s WHERE s.keeper_id = people.id) FROM people
SELECT (SELECT name) FROM people
SELECT (SELECT p) FROM people p
SELECT (SELECT count(*) FROM stock WHERE place = name) FROM people
SELECT ARRAY(SELECT id FROM people p WHERE p.boss_id = q.id) FROM people q
SELECT name FROM people WHERE salary > ALL (SELECT on_hand FROM stock WHERE place = folded)
SELECT x.b FROM (SELECT name, salary FROM people) AS x(a, b)
SELECT x.name, b FROM (SELECT name, salary, id FROM people) AS x(name, b)
SELECT x.id FROM (SELECT name, salary, id FROM people) AS x(a)
SELECT name FROM (SELECT * FROM people) x
SELECT x.count FROM (SELECT count(*) FROM people) x
SELECT "?column?" FROM (SELECT 1 + 1) x
SELECT x.int4 FROM (SELECT 1::int) x
SELECT x.since, x.case, x.coalesce FROM (SELECT since::date, CASE WHEN true THEN 1 END, coalesce(1, 2) FROM people) x
SELECT x.name FROM (SELECT name::text FROM people) x
SELECT x.array, x.row, x.exists FROM (SELECT ARRAY[1], ROW(1, 2), EXISTS (SELECT 1)) x
SELECT x.max FROM (SELECT (SELECT max(id) FROM people)) x
SELECT x.city FROM (SELECT (home).city FROM people) x
SELECT x.nullif, x.greatest, x.current_date FROM (SELECT nullif(1, 2), greatest(1, 2), current_date) x
SELECT x.extract, x.bool FROM (SELECT extract(year FROM now()), true::bool) x
SELECT x FROM (SELECT id FROM people) x
SELECT x.* FROM (SELECT id, name FROM people) x WHERE x.id = 1
SELECT (x).name FROM (SELECT id, name FROM people) x
SELECT column1, column2 FROM (VALUES (1, 'a'), (2, 'b')) v
SELECT v.n, v.column2 FROM (VALUES (1, 'a')) v(n)
SELECT v.n, m FROM (VALUES (1, 'a')) v(n, m)
VALUES (1, 2), (3, 4) ORDER BY column2
TABLE people
SELECT name FROM people UNION ALL SELECT place FROM stock ORDER BY name
SELECT name AS x FROM people UNION SELECT place FROM stock ORDER BY x
(SELECT id FROM people ORDER BY salary LIMIT 1) UNION ALL (SELECT product_id FROM stock ORDER BY on_hand LIMIT 1)
SELECT u.a FROM (SELECT 1 AS a UNION SELECT 2) u
SELECT u.name FROM (SELECT * FROM public.people UNION ALL SELECT id, name FROM app.people) u(id, name)
SELECT * FROM (VALUES (1) UNION ALL SELECT id FROM people) v WHERE column1 > 1
SELECT s.place, m.note FROM stock s JOIN moves m ON m.product_id = s.product_id AND m.place = s.place
SELECT product_id, place, note, on_hand FROM stock JOIN moves USING (product_id, place)
SELECT stock.place, moves.place FROM stock FULL JOIN moves USING (product_id, place)
SELECT place, on_hand, amount FROM stock NATURAL JOIN moves
SELECT j.product_id, j.note FROM (stock JOIN moves USING (product_id, place)) AS j
SELECT j.a, j.b, note, j.c FROM (stock JOIN moves USING (product_id, place)) AS j(a, b, c)
SELECT x.product_id, stock.on_hand FROM stock JOIN moves USING (product_id) AS x
SELECT j FROM (stock CROSS JOIN kept) AS j
SELECT j.a FROM (stock s JOIN kept k ON k.place = s.place AND on_hand > 1) AS j(a, b, c)
SELECT j.a FROM (stock s JOIN kept k ON EXISTS (SELECT 1 FROM note WHERE id = on_hand AND s.place = k.place)) AS j(a, b, c)
SELECT j.id FROM (people p JOIN LATERAL generate_series(1, p.id) g ON g > boss_id) AS j
SELECT a.name, b.name, c.name FROM people a LEFT JOIN people b ON b.id = a.boss_id RIGHT JOIN people c ON c.id = b.boss_id
SELECT a.name FROM people a JOIN (people b JOIN people c ON c.id = b.boss_id) ON b.id = a.boss_id
SELECT s.on_hand FROM people p JOIN stock s ON s.keeper_id = p.id AND EXISTS (SELECT 1 FROM moves WHERE moves.place = s.place AND amount > p.salary)
SELECT id FROM people p LEFT JOIN LATERAL (SELECT on_hand FROM stock WHERE keeper_id = p.id LIMIT 1) q ON true WHERE q.on_hand > 1
SELECT q.k FROM people p, LATERAL (SELECT p.id + on_hand AS k FROM stock) q
SELECT q.k FROM people p CROSS JOIN LATERAL (VALUES (p.id), (p.boss_id)) q(k)
SELECT t FROM people p, unnest(p.tags) t
SELECT t.tag, t.ord FROM people p, unnest(tags) WITH ORDINALITY t(tag, ord)
SELECT u.a, u.c FROM unnest(ARRAY[1], ARRAY[2], ARRAY[3]) AS u(a, b, c)
SELECT g, g.g FROM generate_series(1, 3) g
SELECT g.text, g.name, g.abs FROM generate_series(1, 3) g
SELECT o.name FROM lab.one_out() o
SELECT (SELECT max(ctid::text) FROM stock JOIN kept ON true) FROM people
SELECT people.ctid, s.xmin FROM people JOIN stock s ON s.ctid IS NOT NULL
SELECT generate_series FROM generate_series(1, 3)
SELECT g.n, ordinality FROM generate_series(1, 3) WITH ORDINALITY g(n)
SELECT key, value FROM json_each('{}')
SELECT e.key, e.value FROM people p, jsonb_each(to_jsonb(p)) e
SELECT v.x FROM json_to_recordset('[]') AS v(x int, y text)
SELECT left_part, p.right_part FROM lab.pairs(1) p
SELECT p.a, right_part FROM lab.pairs(1) p(a)
SELECT first_col, second_col FROM lab.table_of(1)
SELECT numbers FROM lab.numbers(1)
SELECT n FROM lab.numbers(1) n
SELECT n.x FROM lab.numbers(1) n(x)
SELECT answer FROM lab.one_out()
SELECT o.answer FROM lab.one_out() o
SELECT e.name, e.salary FROM lab.everybody() e
SELECT l.a FROM lab.loose(1) AS l(a int, b text)
SELECT a, b FROM ROWS FROM (generate_series(1, 2), lab.numbers(2)) AS r(a, b)
SELECT now FROM now()
SELECT d FROM current_date d
SELECT h.street FROM lab.home() h
SELECT r.generate_series FROM ROWS FROM (current_date, generate_series(1, 2)) AS r
SELECT now.now FROM CAST(now() AS date)
SELECT "current_date"."current_date" FROM current_date
SELECT s.name FROM lab.same((SELECT p FROM people p LIMIT 1)) s
SELECT l.c FROM lab.loose(1) AS l(a int, b text, c text)
SELECT l.b, ordinality FROM ROWS FROM (lab.loose(1) AS (a int, b text)) WITH ORDINALITY l
SELECT x.first, x.other FROM XMLTABLE('/a' PASSING (NULL::xml) COLUMNS id int PATH '@id', other text) x(first)
SELECT j.place FROM ((stock JOIN kept USING (place)) AS x CROSS JOIN counter) AS j
SELECT x.id FROM XMLTABLE('/a' PASSING (NULL::xml) COLUMNS id int PATH '@id', other text) x
WITH q AS (SELECT id, name FROM people) SELECT q.id, name FROM q
WITH q(a, b) AS (SELECT id, name FROM people) SELECT a, x.b FROM q x
WITH q(a, b) AS (SELECT id, name FROM people) SELECT z, b FROM q AS x(z)
WITH q AS (SELECT id FROM people), r AS (SELECT id AS rid FROM q) SELECT rid FROM r JOIN q ON q.id = rid
WITH people AS (SELECT id AS number FROM people) SELECT number FROM people
WITH RECURSIVE t(n, up) AS (SELECT id, boss_id FROM people WHERE boss_id IS NULL UNION ALL SELECT p.id, p.boss_id FROM people p JOIN t ON t.n = p.boss_id) SELECT n, up FROM t
WITH RECURSIVE t AS (SELECT id, boss_id FROM people UNION ALL SELECT people.id, t.id FROM people, t WHERE people.boss_id = t.id) SELECT id FROM t
WITH RECURSIVE t AS (SELECT id, boss_id FROM people UNION ALL SELECT p.id, p.boss_id FROM people p, t WHERE p.boss_id = t.id) SEARCH DEPTH FIRST BY id SET ordering SELECT id FROM t ORDER BY ordering
WITH RECURSIVE t AS (SELECT id, boss_id FROM people UNION ALL SELECT p.id, p.boss_id FROM people p, t WHERE p.boss_id = t.id) CYCLE id SET looped USING trail SELECT id, looped, trail FROM t
WITH q AS (SELECT 1 AS a) SELECT (SELECT a FROM q) FROM people
SELECT name FROM people WHERE id = (WITH q AS (SELECT max(product_id) AS m FROM stock WHERE keeper_id = people.id) SELECT m FROM q)
WITH gone AS (DELETE FROM stock WHERE on_hand = 0 RETURNING product_id, place AS p) SELECT product_id, p FROM gone
WITH new AS (INSERT INTO stock (product_id, place) VALUES (1, 'x') RETURNING *) SELECT new.product_id, keeper_id FROM new
INSERT INTO stock VALUES (1, 'x', 2, 3)
INSERT INTO stock (product_id, place) VALUES (1, 'x') RETURNING on_hand, stock.place
INSERT INTO stock AS s (product_id, place) VALUES (1, 'x') RETURNING s.on_hand
INSERT INTO stock (product_id, place, on_hand) SELECT product_id, place, amount FROM moves WHERE amount > 1
INSERT INTO stock SELECT product_id FROM moves
INSERT INTO stock AS s (product_id, place, on_hand) VALUES (1, 'x', 1) ON CONFLICT (product_id, place) DO UPDATE SET on_hand = s.on_hand + excluded.on_hand WHERE s.keeper_id > excluded.product_id RETURNING s.product_id
INSERT INTO stock (product_id, place) VALUES (1, 'x') ON CONFLICT ON CONSTRAINT stock_pkey DO UPDATE SET on_hand = stock.on_hand + 1
INSERT INTO stock (product_id, place) VALUES (1, 'x') ON CONFLICT DO NOTHING
INSERT INTO people (name, email, home.street) VALUES ('x', 'y', 'z')
INSERT INTO people (name, email, tags[1]) VALUES ('x', 'y', 'z')
INSERT INTO people DEFAULT VALUES RETURNING (SELECT count(*) FROM stock WHERE keeper_id = people.id)
INSERT INTO "Odd Names"."Mixed Case" ("Some Column") SELECT id FROM people
WITH q AS (SELECT 1 AS a) INSERT INTO stock (product_id, place) SELECT a, 'x' FROM q
UPDATE people SET salary = salary + 1 WHERE id = 1
UPDATE people AS p SET salary = p.salary + 1, name = upper(name) WHERE p.id = 1 RETURNING p.name, salary
UPDATE people SET (name, email) = (SELECT place, place FROM stock WHERE keeper_id = people.id) WHERE id = 1
UPDATE people p SET salary = s.on_hand FROM stock s WHERE s.keeper_id = p.id RETURNING p.id, s.place
UPDATE people SET salary = s.on_hand FROM stock s JOIN moves m USING (product_id, place) WHERE keeper_id = people.id AND m.amount > 1
UPDATE people SET home.city = 'x' WHERE ctid = '(0,1)'
UPDATE people SET tags[1] = 'x' WHERE name = 'x'
UPDATE people SET name = DEFAULT WHERE id = 1
UPDATE ONLY moves SET note = 'x' WHERE move_id = 1 RETURNING *
DELETE FROM moves WHERE note = 'x'
DELETE FROM moves m USING stock s WHERE s.product_id = m.product_id AND on_hand = 0 RETURNING m.note, s.place, on_hand
DELETE FROM moves WHERE product_id IN (SELECT product_id FROM stock WHERE stock.place = moves.place) RETURNING *
MERGE INTO stock s USING moves m ON s.product_id = m.product_id AND s.place = m.place WHEN MATCHED AND s.on_hand > m.amount THEN UPDATE SET on_hand = s.on_hand - amount WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (product_id, place, on_hand) VALUES (m.product_id, m.place, amount)
MERGE INTO stock USING (SELECT product_id AS pid, sum(amount) AS total FROM moves GROUP BY product_id) q ON product_id = pid WHEN MATCHED THEN UPDATE SET on_hand = total
SELECT name FROM people FOR UPDATE OF people
SELECT p.name FROM people p, stock s FOR SHARE OF s
SELECT called FROM names
SELECT n.id FROM names n JOIN people p USING (id) WHERE p.salary > 1
SELECT s FROM kept k WHERE k.s > 1
SELECT p.name FROM people p TABLESAMPLE system (10) WHERE p.id = 1
SELECT name FROM ONLY people
SELECT name FROM ONLY (people)
SELECT a.x, a.name, a.ctid, y FROM people a(x), stock b(y)
SELECT a.x, place FROM people AS a(x) JOIN stock AS b(x) USING (x)
WITH q AS (SELECT 1 AS a) UPDATE people SET salary = a FROM q WHERE id = q.a RETURNING q.a, salary
WITH q AS (SELECT id FROM people) DELETE FROM stock USING q WHERE keeper_id = q.id
SELECT name FROM people WHERE (SELECT bool_and(on_hand > 0) FROM stock WHERE keeper_id = id)
SELECT sum(on_hand) OVER (ORDER BY place ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM stock
SELECT p.name FROM people p, LATERAL (SELECT FROM stock s, LATERAL (SELECT p.id + s.on_hand) r(x) WHERE r.x > 1) q
SELECT name, count(*) AS c FROM people GROUP BY 1 HAVING count(*) > 1 ORDER BY c DESC, 1
SELECT (SELECT string_agg(x.place, ',') FROM (SELECT place FROM stock WHERE keeper_id = p.id ORDER BY on_hand) x) FROM people p
SELECT name FROM people UNION ALL (SELECT place FROM stock ORDER BY on_hand LIMIT 1) ORDER BY 1
SELECT f.name FROM people f INTERSECT SELECT g.name FROM people g EXCEPT SELECT place FROM stock
SELECT a.n, b.n FROM (VALUES (1)) a(n) LEFT JOIN (SELECT id AS n FROM people) b USING (n)
SELECT id, body FROM note NATURAL LEFT JOIN (SELECT id, name FROM people) q WHERE name IS NULL
SELECT c.relname, a.attname FROM pg_catalog.pg_class c, pg_attribute a WHERE a.attrelid = c.oid AND c.oid = 'app.people'::regclass
SELECT t.table_name FROM information_schema.tables t WHERE t.table_schema NOT IN ('pg_catalog')
SELECT moves_old.note FROM moves_old
SELECT amount FROM moves_new_rest
SELECT id FROM people ORDER BY 1
SELECT p.salary::text || p.name COLLATE "C" AS joined FROM people p ORDER BY joined
SELECT name FROM people LIMIT (SELECT max(on_hand) FROM stock)
SELECT $1::int + id FROM people WHERE name = $2
SELECT a.id FROM people a, people b WHERE (a.id, a.name) = (b.id, b.name)
SELECT grouping(mood), mood FROM people GROUP BY CUBE (mood)
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY salary) FROM people
SELECT array_agg(name ORDER BY salary DESC) FROM people
SELECT string_agg(p.name, ',' ORDER BY p.id) FROM people p GROUP BY p.boss_id
SELECT name FROM people p WHERE p.* IS NOT NULL
SELECT name FROM people p WHERE p IS DISTINCT FROM NULL
SELECT count(DISTINCT p.*) FROM people p
SELECT jsonb_build_object('a', p.id, 'b', (SELECT jsonb_agg(s) FROM stock s WHERE s.keeper_id = p.id)) FROM people p
SELECT CASE mood WHEN 'good' THEN name ELSE folded END FROM people
SELECT name FROM people WHERE since BETWEEN now() - interval '1 day' AND now() AND mood IN ('good', 'bad')
SELECT unnest(tags) AS tag FROM people ORDER BY tag
SELECT a.tag FROM (SELECT unnest(tags) AS tag FROM people) a
SELECT (SELECT count(*) FROM stock s JOIN moves m ON (SELECT salary > 1), kept k) FROM people
SELECT (SELECT max(x) FROM generate_series(1, boss_id) x, stock) FROM people
SELECT 1 FROM people p JOIN stock s ON p.id = s.keeper_id JOIN LATERAL generate_series(1, s.on_hand) g ON g > p.id
SELECT ((p.home).street).lower FROM people p
SELECT EXISTS (SELECT FROM people WHERE people.name = 'x')
SELECT * FROM people p JOIN stock s ON s.keeper_id = p.id ORDER BY p.name, on_hand
EXPLAIN SELECT name FROM people WHERE salary > 1
EXPLAIN (FORMAT JSON) UPDATE people SET name = 'x' WHERE id = 1
DECLARE c CURSOR FOR SELECT name FROM people
COPY (SELECT name FROM people) TO STDOUT
COPY people (id, name) TO STDOUT
COPY people TO STDOUT
PREPARE s (int) AS SELECT name FROM people WHERE id = $1
CREATE TABLE copied AS SELECT name, salary AS s FROM people ORDER BY s
CREATE VIEW seen (a) AS SELECT name FROM people p WHERE p.salary > 1
SELECT name INTO copied FROM people
CREATE TABLE fresh (a int DEFAULT 1, b int CHECK (b > a), LIKE people)
CREATE INDEX ON people (lower(name)) WHERE salary > 1
""".strip().splitlines()
)

SINCE_18: Final = (
    "UPDATE people SET salary = 1 WHERE id = 1 RETURNING old.salary, new.salary, id, old, new.*",
    "DELETE FROM moves RETURNING old.note, *",
    "INSERT INTO stock VALUES (1, 'x') ON CONFLICT (product_id, place) DO UPDATE SET on_hand = 1 RETURNING old.on_hand",
    "UPDATE people SET name = 'x' RETURNING WITH (OLD AS o, NEW AS n) o.name, n.name",
    "MERGE INTO stock s USING moves m ON s.product_id = m.product_id WHEN MATCHED THEN DELETE RETURNING merge_action(), s.on_hand, m.note",
    "SELECT id FROM (SELECT id FROM people)",
    "SELECT j.id FROM JSON_TABLE('[]', '$[*]' COLUMNS (id int, NESTED PATH '$.x' COLUMNS (deep text))) j WHERE j.deep = 'x'",
    "SELECT j.first, j.deep FROM JSON_TABLE('[]', '$[*]' COLUMNS (id int, deep text)) j(first)",
    "SELECT x.json_value FROM (SELECT JSON_VALUE('{}', '$.a')) x",
)

REFUSED: Final = tuple(
    statement.strip()
    for statement in r"""
SELECT nme FROM people
SELECT p.nme FROM people p
SELECT name FROM peple
SELECT name FROM app.peple
SELECT name FROM nowhere.people
SELECT people.name FROM people p
SELECT p.name FROM people
SELECT q.* FROM people p
SELECT app.people.name FROM people p
SELECT public.people.name FROM app.people
SELECT nickname FROM people
SELECT on_hand FROM people WHERE id IN (SELECT keeper_id FROM stock)
SELECT name FROM people WHERE id IN (SELECT nothing FROM stock)
SELECT x.salary FROM (SELECT name FROM people) x
SELECT salary FROM (SELECT name FROM people) x
SELECT x.name FROM (SELECT name FROM people) AS x(a)
SELECT x.ctid FROM (SELECT name FROM people) x
SELECT ctid FROM names
SELECT v.c FROM (VALUES (1, 2)) v(a, b)
SELECT column0 FROM (VALUES (1, 2)) v
WITH q AS (SELECT id FROM people) SELECT name FROM q
WITH q(a) AS (SELECT id FROM people) SELECT id FROM q
WITH q AS (SELECT r.id FROM r), r AS (SELECT id FROM people) SELECT 1 FROM q
SELECT name FROM people ORDER BY nothing
SELECT name AS n FROM people WHERE n = 'x'
SELECT name AS n FROM people GROUP BY name HAVING n > 'x'
SELECT name FROM people UNION SELECT place FROM stock ORDER BY place
SELECT (SELECT s.x FROM stock s) FROM people
SELECT q.k FROM people p, (SELECT p.id AS k) q
SELECT x FROM generate_series(1, 2) g
SELECT ctid FROM people JOIN stock ON keeper_id = id
SELECT e.nothing FROM lab.everybody() e
SELECT p.middle FROM lab.pairs(1) p
SELECT x.name FROM stock JOIN moves USING (product_id) AS x
SELECT moves.product_id FROM (stock JOIN moves USING (product_id, place)) AS j
SELECT on_hand FROM stock JOIN moves USING (product_id, nothing)
SELECT on_hand FROM stock JOIN moves USING (on_hand)
SELECT k.nothing FROM stock s, kept k
SELECT x.place FROM ((stock JOIN kept USING (place)) AS x CROSS JOIN counter) AS j
SELECT l.x FROM lab.loose(1) AS l(a int, b text)
SELECT x.id FROM XMLTABLE('/a' PASSING (NULL::xml) COLUMNS id int PATH '@id', other text) x(first)
INSERT INTO stock (product_id, where_it_is) VALUES (1, 'x')
INSERT INTO stok (product_id) VALUES (1)
INSERT INTO stock (product_id, place) VALUES (1, 'x') RETURNING total
INSERT INTO stock (product_id, place) VALUES (1, 'x') ON CONFLICT (nothing) DO NOTHING
INSERT INTO stock (product_id, place) VALUES (1, 'x') ON CONFLICT (product_id, place) DO UPDATE SET on_hand = excluded.nothing
INSERT INTO stock (product_id, place) SELECT product_id, place FROM moves RETURNING moves.note
INSERT INTO stock (product_id, place) SELECT stock.product_id, 'x' FROM moves
UPDATE people SET wages = 1 WHERE id = 1
UPDATE people SET salary = wages WHERE id = 1
UPDATE people p SET salary = 1 WHERE people.id = 1
UPDATE people SET salary = 1 WHERE stock.on_hand = 1
DELETE FROM moves WHERE amout = 1
DELETE FROM moves USING stock s WHERE s.amount = 1
MERGE INTO stock s USING moves m ON s.product_id = m.nothing WHEN MATCHED THEN DELETE
MERGE INTO stock s USING moves m ON s.product_id = m.product_id WHEN MATCHED THEN UPDATE SET nothing = 1
EXPLAIN SELECT nme FROM people
COPY (SELECT nme FROM people) TO STDOUT
COPY people (nme) TO STDOUT
PREPARE s (int) AS SELECT nme FROM people WHERE id = $1
CREATE TABLE copied AS SELECT nme FROM people
CREATE VIEW seen AS SELECT p.nme FROM people p
SELECT a.id FROM people a(x)
SELECT x FROM people a(x) JOIN stock b(y) USING (x)
WITH q AS (SELECT 1 AS a) UPDATE people SET salary = b FROM q WHERE id = q.a
SELECT name FROM people p JOIN (SELECT id FROM note) n ON n.body = p.name
SELECT a.m FROM (VALUES (1)) a(n)
SELECT "Name" FROM people
SELECT a.id FROM people a JOIN people b ON b.id = c.id
SELECT name FROM people p WHERE EXISTS (SELECT 1 FROM stock s WHERE s.keeper_id = pp.id)
SELECT count(*) FROM people GROUP BY nothing
SELECT name AS n FROM people ORDER BY n || 'x'
SELECT DISTINCT ON (lower(n)) name AS n FROM people
SELECT rank() OVER (ORDER BY nothing) FROM people
SELECT rank() OVER (ORDER BY r) AS r FROM people
SELECT DISTINCT ON (nothing) name FROM people
""".strip().splitlines()
)
