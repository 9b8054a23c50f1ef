"""DuckDB's PostgreSQL scanner: parallel binary COPY, pushdown, writes. Prints under `== step`.

Arguments: the file of the extension.
"""

import os
import sys

import duckdb

duck = duckdb.connect(config={"allow_unsigned_extensions": "true"})
duck.execute(f"LOAD '{sys.argv[1]}'")
place = "host={PGHOST} port={PGPORT} dbname={PGDATABASE} user={PGUSER} password={PGPASSWORD}".format(
    **os.environ
)
print("== attach")
duck.execute(f"ATTACH '{place}' AS pg (TYPE postgres)")
print(duck.execute("SELECT current_database()").fetchall())
print("== write")
duck.execute("CREATE TABLE pg.public.grain (id int PRIMARY KEY, name text, weight double, day date)")
duck.execute(
    "INSERT INTO pg.public.grain SELECT i, 'g' || i, i / 7, DATE '2024-02-29' FROM range(50000) t(i)"
)
duck.execute("UPDATE pg.public.grain SET name = 'changed' WHERE id < 10")
duck.execute("DELETE FROM pg.public.grain WHERE id = 0")
print("== read")
print(duck.execute("SELECT count(*), sum(id), min(name), max(day) FROM pg.public.grain").fetchall())
print(duck.execute("SELECT id, name FROM pg.public.grain WHERE id BETWEEN 7 AND 12 ORDER BY id").fetchall())
print(
    duck.execute(
        "SELECT * FROM postgres_query('pg', 'SELECT name, weight FROM grain WHERE id = 70')"
    ).fetchall()
)
duck.execute("CALL postgres_execute('pg', 'CREATE TABLE extra AS SELECT 1 AS a')")
print(duck.execute("SELECT * FROM pg.public.extra").fetchall())
print("== several at once")
duck.execute("SET threads = 4; SET pg_pages_per_task = 10")
print(duck.execute("SELECT count(*), sum(weight) > 0 FROM pg.public.grain").fetchall())
print("== transaction")
duck.execute("BEGIN; DELETE FROM pg.public.grain WHERE id > 100; ROLLBACK")
print(duck.execute("SELECT count(*) FROM pg.public.grain").fetchall())
print("== copy and errors")
duck.execute("CREATE TABLE pg.public.other AS SELECT id, name FROM pg.public.grain WHERE id < 1000")
print(duck.execute("SELECT count(*) FROM pg.public.other").fetchall())
try:
    duck.execute("INSERT INTO pg.public.grain VALUES (1, 'again', 0, NULL)")
except duckdb.Error as error:
    print(str(error).replace("\n", " "))
print(
    sorted(
        duck.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'pg' AND schema_name = 'public'"
        ).fetchall()
    )
)
