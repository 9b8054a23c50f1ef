"""psqlpy (tokio-postgres): pool, typed parameters, cursors, pipelines. Prints under `== step`."""

import asyncio
import os

import psqlpy


def dsn() -> str:
    place = "{PGHOST}:{PGPORT}/{PGDATABASE}".format(**os.environ)
    return f"postgres://{os.environ['PGUSER']}:{os.environ['PGPASSWORD']}@{place}"


async def failing(connection: psqlpy.Connection, statement: str, values: list[object] | None = None) -> None:
    try:
        print("no error", (await connection.execute(statement, values)).result())
    except Exception as error:
        print(type(error).__name__, error)


async def main() -> None:
    pool = psqlpy.ConnectionPool(dsn=dsn(), max_db_pool_size=3)
    connection = await pool.connection()
    print("== statements")
    await connection.execute(
        "CREATE TABLE bolt (id serial PRIMARY KEY, name text UNIQUE, size float8, tags text[])"
    )
    for n in range(6):
        made = await connection.execute(
            "INSERT INTO bolt (name, size, tags) VALUES ($1, $2, $3) RETURNING id, name, tags",
            [f"b'{n}", n / 2, ["x", "y,z"]],
        )
        print(made.result())
    print(
        (await connection.execute("SELECT name FROM bolt WHERE id = ANY($1) ORDER BY id", [[1, 2]])).result()
    )
    print(await connection.fetch_val("SELECT count(*) FROM bolt"))
    await connection.execute_batch("SELECT 1; UPDATE bolt SET size = 0 WHERE id = 1")
    await connection.execute_many("INSERT INTO bolt (name) VALUES ($1)", [[f"many {n}"] for n in range(40)])

    print("== errors of syntax and names")
    await failing(connection, "SELEC 1")
    await failing(connection, "SELECT nam FROM bolt WHERE id = $1", [1])

    print("== errors")
    await failing(connection, "INSERT INTO bolt (name) VALUES ($1)", ["many 1"])
    await failing(connection, "SELECT 10 / (3 - i) FROM generate_series(1, 5) AS i")

    print("== transactions")
    async with connection.transaction() as transaction:
        await transaction.create_savepoint("kept")
        await transaction.execute("DELETE FROM bolt WHERE id = 1")
        await transaction.rollback_savepoint("kept")
    print((await connection.execute("SELECT count(*) AS n FROM bolt")).result())

    print("== pipelined")
    async with connection.transaction() as transaction:
        results = await transaction.pipeline([("SELECT $1::int4 AS v", [n]) for n in range(8)])
        print([r.result() for r in results])

    print("== cursor")
    async with connection.transaction() as transaction:
        cursor = transaction.cursor("SELECT i FROM generate_series(1, 23) AS i", array_size=10)
        await cursor.start()
        for _ in range(3):
            print([row["i"] for row in (await cursor.fetchmany(10)).result()])
        cursor.close()

    print("== parallel")

    async def one(n: int) -> object:
        other = await pool.connection()
        return await other.fetch_val("SELECT $1::int4 * 2", [n])

    print(await asyncio.gather(*(one(n) for n in range(20))))
    pool.close()


asyncio.run(main())
