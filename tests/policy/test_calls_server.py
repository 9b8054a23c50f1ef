"""What a call may mean, held to what PostgreSQL makes of it.

A view is made of each expression: the server's dependencies then say which functions it chose, and none of
them may be missing from what ``calls`` found.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from policy.calls import find_calls
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.parse import parse
from tests.policy.conftest import read_catalog
from tests.support.postgres import Database, Server

SCHEMA = """
CREATE DOMAIN short AS text;
CREATE DOMAIN small AS int4;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int4, b text);
CREATE TABLE t (i2 int2, i4 int4, i8 int8, num numeric, f8 float8, txt text, vc varchar(9), bp char(3),
  nam name, dat date, ts timestamp, tim time, flag bool, js jsonb, by bytea, arr int4[], vcs varchar[],
  short short, small small, mood mood, pair pair, rng int4range);
CREATE FUNCTION mood_number(mood) RETURNS int4 LANGUAGE sql AS 'SELECT 1';
CREATE CAST (mood AS int4) WITH FUNCTION mood_number(mood) AS IMPLICIT;
CREATE FUNCTION pair_text(pair) RETURNS text LANGUAGE sql AS 'SELECT ''''';
CREATE CAST (pair AS text) WITH FUNCTION pair_text(pair) AS IMPLICIT;
"""
OVERLOADS = (
    "length(int4)",
    "length(mood)",
    "length(date)",
    "upper(varchar)",
    "upper(int8)",
    "lower(short)",
    "abs(int4)",
    "abs(text)",
    "left(text, numeric)",
    "left(int4, int4)",
    "round(float8, int4)",
    "round(small)",
    "replace(text, text, int4)",
    "replace(short, text, text)",
    "substr(varchar, int8)",
    "date_trunc(varchar, date)",
    "concat(int4, int4)",
    "concat(text, VARIADIC int4[])",
    "sum_up(mood)",
    "sum_up(anyelement)",
    "array_length(int4[])",
    "array_length(anyarray)",
    "to_char(mood, text)",
    "md5(json)",
)
OPERATORS = (
    ("+", "text", "int4"),
    ("+", "date", "text"),
    ("=", "varchar", "varchar"),
    ("=", "text", "int4"),
    ("=", "mood", "text"),
    ("||", "int4", "int4"),
    ("||", "varchar", "date"),
    ("~~", "int4", "text"),
    ("<", "small", "small"),
    ("<", "short", "text"),
    ("@@@@", "int4", "int4"),
)
COLUMNS = (
    "i2 i4 i8 num f8 txt vc bp nam dat ts tim flag js by arr vcs short small mood pair rng".split()  # noqa: SIM905
)
OPERANDS = (
    *COLUMNS,
    "1",
    "5000000000",
    "1.5",
    "true",
    "'1'",
    "NULL",
    "'x'::varchar",
    "'2026-01-01'::date",
    "'sad'::mood",
    "1::small",
    "'a'::short",
    "1::numeric",
    "coalesce(txt, '')",
    "coalesce(i4, 0)",
    "coalesce(mood, 'ok')",
    "replace(txt, 'a', 'b')",
    "btrim(txt)",
    "lower(txt)",
    "(SELECT i4 FROM t LIMIT 1)",
    "s.sub",
    "s.subm",
    "(i4 + 1)",
    "(i4 IS NULL)",
    "(i4 * num)",
    "(i4 - (i8 * 2))",
    "(dat - dat)",
    "(dat - 1)",
    "(nam >= 'a')",
    "(txt ^@ 'a')",
    "t",
    "s.mixed",
    "s.literal",
    "s.made",
    "both_ways.number",
    "both_ways.word",
    "listed.n",
    "cte.renamed",
    "again.n",
    "each.k",
    "g",
    "item",
    "(CASE WHEN flag THEN vc ELSE txt END)",
    "(CASE WHEN flag THEN i4 ELSE num END)",
    "(CASE WHEN flag THEN short ELSE 'x' END)",
    "greatest(i2, i8)",
    "nullif(vc, txt)",
    "nullif(mood, 'ok')",
    "arr[1]",
    "vcs[1]",
    "(js ->> 'a')",
    "(js -> 'a')",
    "js['a']",
    "(SELECT max(vc) FROM t)",
    "(SELECT min(mood) FROM t)",
    "(SELECT sum(i4) FROM t)",
    "(SELECT 'x')",
    "lag(bp) OVER ()",
    "first_value(short) OVER ()",
    "current_user",
    "(now() - ts)",
    "lower(rng)",
    "round(num)",
)
WITH = """
WITH RECURSIVE cte (renamed) AS (SELECT vc FROM t), again (n) AS (SELECT 1 UNION ALL SELECT n FROM again)
"""
SOURCES = """
t, (SELECT txt AS sub, mood AS subm, coalesce(vc, short) AS mixed, 'x' AS literal, btrim(txt) AS made
    FROM t) s,
(SELECT i4 AS number, vc AS word FROM t UNION SELECT i8, txt FROM t) both_ways, (VALUES (1), (2)) listed (n),
cte, again, jsonb_each_text('{}') each (k, v), generate_series(1, 2) g, unnest(t.vcs) item
"""


def calls_of_functions() -> Iterator[str]:
    chosen = random.Random(7)
    by_name: dict[str, set[int]] = {}
    for overload in OVERLOADS:
        name, _, arguments = overload.rstrip(")").partition("(")
        by_name.setdefault(name, set()).add(len(arguments.split(",")))
    for name, counts in by_name.items():
        for count in sorted(counts):
            every = list(itertools.product(OPERANDS, repeat=count))
            for operands in every if count == 1 else chosen.sample(every, 60):
                yield f"{name}({', '.join(operands)})"


def uses_of_operators() -> Iterator[str]:
    chosen = random.Random(11)
    every = list(itertools.product(OPERANDS, repeat=2))
    for symbol in sorted({symbol for symbol, _, _ in OPERATORS}):
        for left, right in chosen.sample(every, 80):
            yield f"{left} {symbol} {right}"
    for left, right in chosen.sample(every, 50):
        yield f"{left} IN ({right}, {right})"
        yield f"{left} BETWEEN {right} AND {right}"
        yield f"{left} = ANY (ARRAY[{right}, {right}])"
        yield f"({left}, {right}) < ({right}, {left})"
        yield f"{left} IN (SELECT {right})"
        yield f"{left} < ALL (SELECT {right} FROM t)"
        yield f"CASE {left} WHEN {right} THEN 1 WHEN {left} THEN 2 END"
        yield f"({left}, 1) IN (({right}, 2), (NULL, '3'))"
    for left in OPERANDS:
        for array in (
            "arr",
            "vcs",
            "'{}'",
            "'{}'::mood[]",
            "'{}'::short[]",
            "ARRAY[mood]",
            "string_to_array(txt, ',')",
        ):
            yield f"{left} = ANY ({array})"


@pytest.fixture(scope="module")
def database(postgres: Server) -> Iterator[Database]:
    with postgres.database("template0") as database:
        database.execute(SCHEMA)
        for overload in OVERLOADS:
            body = "LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1; END'"
            database.execute(f"CREATE FUNCTION {overload} RETURNS int4 {body}")
        for number, (symbol, left, right) in enumerate(OPERATORS):
            body = "LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END'"
            database.execute(
                f"CREATE FUNCTION op{number}({left}, {right}) RETURNS bool {body};"
                f"CREATE OPERATOR {symbol} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = op{number})"
            )
        yield database


@pytest.fixture(scope="module")
def catalog(database: Database) -> Catalog:
    return read_catalog(database.dsn())


def chosen_by_the_server(connection: psycopg.Connection[Any], expression: str) -> set[str] | None:
    """The functions outside pg_catalog that the expression calls; None where it is an error."""
    try:
        connection.execute(f"CREATE VIEW v AS {WITH} SELECT {expression} AS x FROM {SOURCES}".encode())
        return {name for (name,) in connection.execute(CHOSEN)}
    except psycopg.Error:
        return None
    finally:
        connection.rollback()


CHOSEN = """
SELECT p.proname FROM pg_rewrite r
JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
JOIN pg_proc p ON p.oid = CASE WHEN d.refclassid = 'pg_proc'::regclass THEN d.refobjid ELSE o.oprcode END
WHERE r.ev_class = 'v'::regclass AND p.pronamespace = 'public'::regnamespace
"""


@pytest.mark.parametrize("expressions", [calls_of_functions, uses_of_operators])
def test_nothing_that_the_server_chooses_is_missed(
    database: Database, catalog: Catalog, expressions: Any
) -> None:
    names = CatalogNames(catalog, (("public",),), temporary=False)
    ran = spared = hit = 0
    with psycopg.connect(database.dsn()) as connection:
        for expression in expressions():
            chosen = chosen_by_the_server(connection, expression)
            if chosen is None:
                continue
            ran += 1
            hit += bool(chosen)
            (facts,) = parse(f"{WITH} SELECT {expression} AS x FROM {SOURCES}").statements
            found = {
                call.name.name for call in find_calls(facts, names).calls if call.name.schema == "public"
            }
            assert chosen <= found, expression
            spared += not found
    assert ran > 100
    assert hit > 50
    assert spared > 20, "a search that finds everything everywhere would pass as well"
