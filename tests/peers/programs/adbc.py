"""ADBC: binary COPY in both directions, Arrow types, metadata. Prints what each step saw under `== step`."""

import os

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

DSN = "postgresql://{PGUSER}:{PGPASSWORD}@{PGHOST}:{PGPORT}/{PGDATABASE}".format(**os.environ)


def failing(cursor: adbc.Cursor, statement: str) -> None:
    try:
        cursor.execute(statement)
        print("no error", cursor.fetchall())
    except Exception as error:
        print(type(error).__name__, getattr(error, "sqlstate", None), error)


with adbc.connect(DSN, autocommit=True) as connection, connection.cursor() as cursor:
    print("== ingest")
    table = pa.table(
        {
            "id": list(range(5000)),
            "name": [f"n'{n}" for n in range(5000)],
            "price": [n / 3 for n in range(5000)],
            "gone": [None, "x"] * 2500,
        }
    )
    print(cursor.adbc_ingest("nut", table, mode="create"))
    print(cursor.adbc_ingest("nut", table.slice(0, 10), mode="append"))

    print("== query")
    cursor.execute("SELECT id, name, price, gone FROM nut ORDER BY id LIMIT 5")
    print(cursor.fetch_arrow_table().to_pylist())
    cursor.execute("SELECT count(*), sum(id) FROM nut")
    print(cursor.fetchall())
    cursor.execute("SELECT name FROM nut WHERE id = $1", parameters=(7,))
    print(cursor.fetchall())
    cursor.executemany("INSERT INTO nut (id, name) VALUES ($1, $2)", [(9000 + n, "many") for n in range(20)])
    cursor.execute(
        "SELECT true, 1::int2, 1.5::float4, '2024-02-29'::date, '\\x00ff'::bytea, "
        "ARRAY[1, 2], 12.5::numeric, NULL::text"
    )
    print(cursor.fetch_arrow_table().to_pylist())
    cursor.execute("SELECT i FROM generate_series(1, 200000) AS i")
    print(sum(len(batch) for batch in cursor.fetch_record_batch()))
    cursor.execute("SET work_mem = '8MB'")
    cursor.execute("SELECT current_setting('work_mem')")
    print(cursor.fetchall())

    print("== errors of syntax and names")
    failing(cursor, "SELEC 1")
    failing(cursor, "SELECT nam FROM nut")
    try:
        cursor.adbc_ingest("nut", table, mode="create")
    except Exception as error:
        print(type(error).__name__, error)

    print("== errors")
    failing(cursor, "SELECT 10 / (3 - i) FROM generate_series(1, 5) AS i")

    print("== metadata")
    print(connection.adbc_get_table_schema("nut"))
    objects = connection.adbc_get_objects(
        depth="all", db_schema_filter="public", table_name_filter="nut"
    ).read_all()
    print([len(catalog["catalog_db_schemas"] or []) for catalog in objects.to_pylist()])
    print(connection.adbc_get_table_types())

print("== transaction")
with adbc.connect(DSN) as connection, connection.cursor() as cursor:
    cursor.execute("DELETE FROM nut WHERE id < 100")
    connection.rollback()
    cursor.execute("SELECT count(*) FROM nut")
    print(cursor.fetchall())
