"""psqlODBC through pyodbc: catalog functions, parameters, cursors, errors. Prints under `== step`.

Arguments: the file of the driver.
"""

import os
import sys

import pyodbc


def connect(**more: object) -> pyodbc.Connection:
    given = {
        "Driver": sys.argv[1],
        "Servername": os.environ["PGHOST"],
        "Port": os.environ["PGPORT"],
        "Database": os.environ["PGDATABASE"],
        "Username": os.environ["PGUSER"],
        "Password": os.environ["PGPASSWORD"],
        **more,
    }
    return pyodbc.connect(";".join(f"{k}={v}" for k, v in given.items()), autocommit=True)


def failing(cursor: pyodbc.Cursor, statement: str, *values: object) -> None:
    try:
        print("no error", cursor.execute(statement, *values).fetchall())
    except pyodbc.Error as error:
        print(type(error).__name__, error)


for options in ({}, {"UseServerSidePrepare": 0}, {"UseDeclareFetch": 1, "Fetch": 7}, {"Protocol": "7.4-2"}):
    print(f"== statements, {options}")
    connection = connect(**options)
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS part")
    cursor.execute(
        "CREATE TABLE part (id serial PRIMARY KEY, name varchar(50) UNIQUE, price numeric(8,2), made date)"
    )
    for n in range(1, 25):
        cursor.execute("INSERT INTO part (name, price) VALUES (?, ?)", f"part '{n}", n / 4)
    cursor.executemany("INSERT INTO part (name) VALUES (?)", [(f"many {n}",) for n in range(30)])
    print(cursor.execute("SELECT id, name, price FROM part WHERE id < ? ORDER BY id", 4).fetchall())
    cursor.execute("SELECT i, repeat('x', i) FROM generate_series(1, 50) AS i")
    while rows := cursor.fetchmany(8):
        print([row[0] for row in rows])
    print(cursor.execute("SELECT 1; SELECT 2").fetchall(), cursor.nextset() and cursor.fetchall())
    print(f"== errors of syntax and names, {options}")
    failing(cursor, "SELEC 1")
    failing(cursor, "SELECT nam FROM part WHERE id = ?", 1)
    print(f"== errors, {options}")
    failing(cursor, "INSERT INTO part (name) VALUES (?)", "many 1")
    failing(cursor, "SELECT 10 / (3 - i) FROM generate_series(1, 5) AS i")
    print(f"== transactions and catalog functions, {options}")
    connection.autocommit = False
    cursor.execute("DELETE FROM part WHERE id = 1")
    failing(cursor, "SELECT 1 / 0")
    connection.rollback()
    print(cursor.execute("SELECT count(*) FROM part").fetchval())
    connection.commit()
    connection.autocommit = True
    print([tuple(r)[2:4] for r in cursor.tables(schema="public")])
    print([tuple(r)[2:7] for r in cursor.columns(table="part")])
    print([tuple(r)[2:6] for r in cursor.primaryKeys("part")])
    print([tuple(r)[2:9] for r in cursor.statistics("part")])
    print([tuple(r)[:2] for r in cursor.getTypeInfo()][:10])
    print(connection.getinfo(pyodbc.SQL_DBMS_NAME))
    connection.close()
