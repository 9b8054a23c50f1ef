"""Comparison functions of somebody's own types, which run unnamed: whatever runs one is refused.

Their functions raise, so that the server itself says which statements call one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psycopg
import pytest

from policy.calls import COMPARING_FUNCTIONS, COMPARING_OPERATORS
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.decision import Reject, Situation, decide
from policy.parse import parse
from tests.policy.conftest import read_catalog
from tests.policy.rules.judging import policy_of
from tests.support.postgres import Database, Server

SCHEMA: Final = """
CREATE TYPE hue AS ENUM ('red', 'green', 'blue');
CREATE FUNCTION hue_cmp(hue, hue) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RAISE 'called'; END$$;
CREATE FUNCTION hue_hash(hue) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RAISE 'called'; END$$;
CREATE FUNCTION hue_lt(hue, hue) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RAISE 'called'; END$$;
CREATE FUNCTION hue_eq(hue, hue) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RAISE 'called'; END$$;
CREATE OPERATOR <# (LEFTARG = hue, RIGHTARG = hue, FUNCTION = hue_lt);
CREATE OPERATOR =# (LEFTARG = hue, RIGHTARG = hue, FUNCTION = hue_eq, HASHES, MERGES);
CREATE OPERATOR CLASS hue_btree DEFAULT FOR TYPE hue USING btree AS
  OPERATOR 1 <#, OPERATOR 3 =#, FUNCTION 1 hue_cmp(hue, hue);
CREATE OPERATOR CLASS hue_hash DEFAULT FOR TYPE hue USING hash AS OPERATOR 1 =#, FUNCTION 1 hue_hash(hue);
CREATE TYPE hues AS RANGE (SUBTYPE = hue, SUBTYPE_OPCLASS = hue_btree);
CREATE DOMAIN warm AS hue;
CREATE TYPE painted AS (id int, of hue);
CREATE TABLE paint (id int, name text, tone hue, warmth warm, tones hue[], whole painted);
INSERT INTO paint SELECT n, 'n' || n % 2, e, e, ARRAY[e, 'blue'], ROW(n, e)::painted
  FROM generate_series(1, 4) n, LATERAL (SELECT (ARRAY['red', 'green', 'blue', 'red'])[n]::hue) t(e);
CREATE TABLE plain (id int, name text);
INSERT INTO plain VALUES (1, 'n1'), (2, 'n0');
"""

CALLING: Final = (
    "SELECT id FROM paint ORDER BY tone",
    "SELECT tone FROM paint ORDER BY 1",
    "SELECT tone AS t FROM paint ORDER BY t",
    "SELECT id FROM paint ORDER BY CASE WHEN id > 1 THEN tone END",
    "SELECT id FROM paint ORDER BY coalesce(tone, 'red')",
    "SELECT id FROM paint ORDER BY warmth",
    "SELECT id FROM paint ORDER BY tones",
    "SELECT id FROM paint ORDER BY ROW(1, tone)",
    "SELECT id FROM paint ORDER BY whole",
    "SELECT id FROM paint ORDER BY (whole).of",
    "SELECT id FROM paint ORDER BY tones[1]",
    "SELECT p.id FROM paint p ORDER BY p",
    "SELECT tone, count(*) FROM paint GROUP BY tone",
    "SELECT count(*) FROM paint GROUP BY ROLLUP (tone, name)",
    "SELECT tone AS x, count(*) FROM paint GROUP BY x",
    "SELECT DISTINCT tone FROM paint",
    "SELECT DISTINCT * FROM (SELECT tone FROM paint) s",
    "SELECT DISTINCT ON (tone) id FROM paint",
    "SELECT tone FROM paint UNION SELECT tone FROM paint",
    "SELECT tone FROM paint INTERSECT SELECT 'red'",
    "SELECT tone FROM paint EXCEPT ALL SELECT 'red'::hue",
    "SELECT rank() OVER (ORDER BY tone) FROM paint",
    "SELECT rank() OVER (PARTITION BY tone ORDER BY id) FROM paint",
    "SELECT rank() OVER w FROM paint WINDOW w AS (PARTITION BY tone)",
    "SELECT count(DISTINCT tone) FROM paint",
    "SELECT array_agg(id ORDER BY tone) FROM paint",
    "SELECT mode() WITHIN GROUP (ORDER BY tone) FROM paint",
    "SELECT greatest(tone, 'red') FROM paint",
    "SELECT max(tones) FROM paint",
    "SELECT id FROM paint WHERE tones = ARRAY['red', 'blue']::hue[]",
    "SELECT id FROM paint WHERE whole = ROW(1, 'red')::painted",
    "SELECT id FROM paint WHERE tones @> ARRAY['red']::hue[]",
    "SELECT array_position(tones, 'blue') FROM paint",
    "SELECT id FROM paint WHERE tone =# 'red'",
    "SELECT hues('red', 'blue')",
    "SELECT '[red,blue]'::hues",
    "SELECT id FROM paint p WHERE record_eq(p, p)",
    "SELECT btrecordcmp(p, p) FROM paint p",
    "SELECT hash_record(p) FROM paint p",
    "SELECT array_eq(tones, tones), arraycontains(tones, tones) FROM paint",
    "SELECT pg_catalog.btarraycmp(tones, tones) FROM paint",
    "SELECT hash_array(tones) FROM paint",
    "WITH s AS (SELECT tone AS x FROM paint) SELECT x FROM s ORDER BY x",
    "SELECT s.x FROM (SELECT id, tone AS x FROM paint) s GROUP BY s.x",
    "WITH RECURSIVE t(x) AS (SELECT tone FROM paint UNION SELECT x FROM t) SELECT count(*) FROM t",
)

QUIET: Final = (
    "SELECT id, tone FROM paint WHERE id = 3",
    "SELECT * FROM paint WHERE name = 'n1' ORDER BY id DESC",
    "SELECT tone FROM paint ORDER BY name, id",
    "SELECT name, count(tone) FROM paint GROUP BY name ORDER BY 2",
    "SELECT DISTINCT name FROM paint",
    "SELECT id FROM paint WHERE tone IS NOT NULL",
    "SELECT tone FROM paint UNION ALL SELECT tone FROM paint",
    "SELECT p.tone FROM paint p JOIN plain q USING (id)",
    "SELECT tone::text FROM paint ORDER BY tone::text",
    "SELECT row_number() OVER (ORDER BY id), tone FROM paint",
    "SELECT array_agg(tone ORDER BY id) FROM paint",
    "SELECT s.id FROM (SELECT id, tone FROM paint) s ORDER BY s.id",
    "SELECT max(id), min(name) FROM paint",
    "SELECT name FROM plain ORDER BY name",
    "SELECT array_length(tones, 1) FROM paint ORDER BY 1",
)

POLICY: Final = """\
version: 1
name: reader
access: read_only
statements: {select: allow}
relations: {allow: ["public.*"]}
functions: {allow: [builtin-safe]}
"""


@pytest.fixture(scope="module")
def paint(postgres: Server) -> Iterator[Database]:
    with postgres.database("template0") as database:
        database.execute(SCHEMA)
        yield database


@pytest.fixture(scope="module")
def catalog(paint: Database) -> Catalog:
    return read_catalog(paint.dsn())


def refused(sql: str, catalog: Catalog, policy: str = POLICY) -> set[str]:
    names = CatalogNames(catalog, (("public",),), temporary=False)
    decision = decide(policy_of(policy), Situation("agent", names), parse(sql.encode()))
    assert decision.failures == ()
    return {v.rule for v in decision.violations} if isinstance(decision, Reject) else set()


def calls_one(sql: str, paint: Database) -> bool:
    """Whether running ``sql`` calls one of the type's functions; any other error is the test's."""
    try:
        paint.execute(sql)
    except psycopg.errors.RaiseException:
        return True
    return False


@pytest.mark.parametrize("sql", CALLING)
def test_what_compares_is_refused(catalog: Catalog, sql: str) -> None:
    assert refused(sql, catalog) == {"function-not-allowed"}


@pytest.mark.parametrize("sql", QUIET)
def test_what_does_not_passes(catalog: Catalog, sql: str) -> None:
    assert refused(sql, catalog) == set()


def test_the_server_calls_none_in_what_passes_and_does_in_most_of_the_rest(paint: Database) -> None:
    assert [sql for sql in QUIET if calls_one(sql, paint)] == []
    assert sum(calls_one(sql, paint) for sql in CALLING) > len(CALLING) * 3 // 4


def test_whatever_stands_behind_a_comparison_is_known_by_name(paint: Database) -> None:
    """Operators and operator classes of arrays, records and ranges, of which the functions can be called."""
    symbols = ", ".join(f"'{symbol}'" for symbol in sorted(COMPARING_OPERATORS))
    of = "('anyarray'::regtype, 'anyrange'::regtype, 'anymultirange'::regtype, 'record'::regtype)"
    rows = paint.execute(f"""
        SELECT DISTINCT p.proname FROM pg_proc p JOIN pg_operator o ON o.oprcode = p.oid
        WHERE o.oid < 16384 AND o.oprname IN ({symbols}) AND (o.oprleft IN {of} OR o.oprright IN {of})
        UNION SELECT p.proname FROM pg_proc p JOIN pg_amproc a ON a.amproc = p.oid
        JOIN pg_opfamily f ON f.oid = a.amprocfamily JOIN pg_am m ON m.oid = f.opfmethod
        WHERE a.amproclefttype IN {of} AND m.amname IN ('btree', 'hash') AND f.opfname NOT LIKE '%image%'
          AND 'internal'::regtype <> ALL (p.proargtypes::oid[])
        UNION SELECT p.proname FROM pg_proc p JOIN pg_aggregate a ON a.aggtransfn = p.oid
        WHERE p.proargtypes[0] IN {of} AND p.proname ~ 'larger|smaller|intersect'""")
    found = {name for (name,) in rows} - {"btequalimage"}
    assert len(found) > 60
    assert found <= COMPARING_FUNCTIONS


def test_where_the_functions_are_open_so_is_comparing(catalog: Catalog) -> None:
    policy = POLICY.replace("[builtin-safe]", '[builtin-safe, "public.hue_*"]')
    assert refused("SELECT id FROM paint ORDER BY tone", catalog, policy) == set()


def test_the_snapshot_holds_them(catalog: Catalog) -> None:
    held = {c.type.name: {f.name for f in c.functions} for c in catalog.content.comparisons}
    assert held == {
        "hue": {"hue_cmp", "hue_hash", "hue_lt", "hue_eq"},
        "hues": {"hue_cmp", "hue_lt", "hue_eq"},
    }
