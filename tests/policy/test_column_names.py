"""What a column of a result is called: as PostgreSQL says itself."""

from __future__ import annotations

import psycopg
import pytest

from policy.column_names import column_name
from policy.parse import trees
from tests.support.postgres import Server

EXPRESSIONS = (
    *("1", "'a'", "1 + 1", "NULL", "true AND false", "NOT true", "'a' LIKE 'b'", "1 IS NULL"),
    *(
        "relname",
        "c.relname",
        "(c).relname",
        "c",
        "(c.relname)",
        "(c.relnamespace)::text",
        "relname::text::bytea",
    ),
    *(
        "lower('a')",
        "pg_catalog.lower('a')",
        "lower('a')::text",
        "count(*) OVER ()",
        "1::text",
        "'a'::pg_catalog.name",
    ),
    *(
        "CAST(1 AS int)",
        "int '1'",
        "'{1}'::int[]",
        "ARRAY[1]",
        "ARRAY[1]::oid[]",
        "(ARRAY[1])[1]",
        "(ARRAY[1])[1]::text",
    ),
    *(
        "COALESCE(1, 2)",
        "COALESCE(1, 2)::text",
        "NULLIF(1, 2)",
        "NULLIF(1, 2)::text",
        "GREATEST(1, 2)",
        "LEAST(1)",
    ),
    *("CASE WHEN true THEN 1 END", "CASE WHEN true THEN 1 ELSE oid END", "CASE WHEN true THEN 1 END::text"),
    *(
        "CASE WHEN true THEN 1 ELSE 2::oid END",
        "ROW(1, 2)",
        "(1, 2)",
        "'a' COLLATE \"C\"",
        'relname COLLATE "C"',
    ),
    *(
        "(SELECT 1)",
        "(SELECT 1)::text",
        "(SELECT 1 AS a)",
        "(SELECT 1 AS a)::text",
        "(SELECT oid LIMIT 1)::text",
    ),
    *("(SELECT 'a'::name)::text", "(SELECT 1 UNION SELECT 2 LIMIT 1)", "(VALUES (1))", "(VALUES (1))::text"),
    *(
        "EXISTS (SELECT 1)",
        "EXISTS (SELECT 1)::text",
        "ARRAY(SELECT 1)",
        "ARRAY(SELECT 1)::text",
        "1 IN (SELECT 1)",
    ),
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_column_is_called_as_postgresql_calls_it(postgres15: Server, expression: str) -> None:
    sql = f"SELECT {expression} FROM pg_class c WHERE relname = 'pg_class' LIMIT 1"
    with psycopg.connect(postgres15.shop.dsn()) as connection:
        described = connection.execute(sql.encode()).description
    assert described is not None
    (tree,) = trees(sql)
    name, _ = column_name(tree["SelectStmt"]["targetList"][0]["ResTarget"]["val"])
    assert (name or "?column?") == described[0].name
