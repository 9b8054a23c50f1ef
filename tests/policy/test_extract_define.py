"""What definitions name: functions that something else will call, and types that nothing is cast to."""

# ruff: noqa: E501 - one statement a line

from __future__ import annotations

import pytest

from policy.facts import CallKind, Facts
from policy.parse import parse
from tests.policy.rules.schema import names, objections, reader


def facts_of(sql: str) -> Facts:
    (facts,) = parse(sql.encode()).statements
    assert facts.not_understood is None
    return facts


def named(sql: str) -> str:
    found = [f for f in facts_of(sql).functions if f.kind is CallKind.NAMED]
    return " ".join(f.name if f.schema is None else f"{f.schema}.{f.name}" for f in found)


@pytest.mark.parametrize(
    ("sql", "functions"),
    [
        ("CREATE CAST (int4 AS text) WITH FUNCTION s.evil(int4) AS IMPLICIT", "s.evil"),
        ("CREATE CAST (int4 AS s.t) WITHOUT FUNCTION", ""),
        (
            "CREATE OPERATOR s.<~ (FUNCTION = s.evil, LEFTARG = int4, RIGHTARG = NONE, RESTRICT = eqsel,"
            " JOIN = s.j, COMMUTATOR = OPERATOR(s.~>), HASHES)",
            "s.evil eqsel s.j",
        ),
        ("CREATE OPERATOR <~ (PROCEDURE = evil, RIGHTARG = s.t)", "evil"),
        ("ALTER OPERATOR <~ (int4, text) SET (RESTRICT = s.e, JOIN = NONE)", "s.e"),
        (
            "CREATE AGGREGATE s.a(int4) (SFUNC = evil, STYPE = s.t, FINALFUNC = s.fin, COMBINEFUNC = c, MSFUNC = m,"
            " MINVFUNC = i, MSTYPE = s.t, SORTOP = <, PARALLEL = safe, INITCOND = 'f')",
            "evil s.fin c m i",
        ),
        ("CREATE AGGREGATE old (BASETYPE = int4, SFUNC = evil, STYPE = s.t)", "evil"),
        (
            "CREATE TYPE t (INPUT = i, OUTPUT = o, RECEIVE = s.r, SEND = s, TYPMOD_IN = m, TYPMOD_OUT = n, ANALYZE = a,"
            " SUBSCRIPT = u, LIKE = int4, ALIGNMENT = double, STORAGE = plain, ELEMENT = s.e)",
            "i o s.r s m n a u",
        ),
        ("ALTER TYPE s.t SET (SEND = s.x, STORAGE = plain, SUBSCRIPT = y)", "s.x y"),
        (
            'CREATE TYPE r AS RANGE (SUBTYPE = s.x, SUBTYPE_DIFF = s.d, CANONICAL = s.c, COLLATION = "C",'
            " MULTIRANGE_TYPE_NAME = s.m, SUBTYPE_OPCLASS = s.o)",
            "s.d s.c",
        ),
        (
            "CREATE OPERATOR CLASS c DEFAULT FOR TYPE s.x USING btree AS OPERATOR 1 s.<, FUNCTION 1 s.cmp(s.x, s.x)",
            "s.cmp",
        ),
        ("ALTER OPERATOR FAMILY s.f USING btree ADD FUNCTION 1 (s.x, s.x) s.cmp(s.x, s.x)", "s.cmp"),
        ("ALTER OPERATOR FAMILY s.f USING btree DROP FUNCTION 1 (s.x, s.x)", ""),
        ("CREATE CONVERSION c FOR 'UTF8' TO 'LATIN1' FROM s.f", "s.f"),
        ("CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION s.f()", "s.f"),
        (
            "CREATE TRANSFORM FOR s.t LANGUAGE plpgsql (FROM SQL WITH FUNCTION s.a(internal),"
            " TO SQL WITH FUNCTION s.b(internal))",
            "s.a s.b",
        ),
        ("CREATE LANGUAGE l HANDLER s.h INLINE s.i VALIDATOR s.v", "s.h s.i s.v"),
        ("CREATE ACCESS METHOD m TYPE INDEX HANDLER s.h", "s.h"),
        ("CREATE FOREIGN DATA WRAPPER w HANDLER s.h VALIDATOR s.v OPTIONS (a 'b')", "s.h s.v"),
        ("ALTER FOREIGN DATA WRAPPER w HANDLER s.h NO VALIDATOR", "s.h"),
        ("CREATE FUNCTION f(a s.t) RETURNS s.u LANGUAGE c SUPPORT s.sup AS 'x'", "s.sup"),
        ("ALTER FUNCTION f(s.t) SUPPORT s.sup", "s.sup"),
        (
            "CREATE TEXT SEARCH PARSER p (START = s.a, GETTOKEN = b, END = c, LEXTYPES = d, HEADLINE = e)",
            "s.a b c d e",
        ),
        ("CREATE TEXT SEARCH TEMPLATE d (INIT = s.i, LEXIZE = s.l)", "s.i s.l"),
        ("CREATE TEXT SEARCH DICTIONARY d (TEMPLATE = simple, Language = english)", ""),
        ("CREATE COLLATION c (PROVIDER = icu, LOCALE = 'x')", ""),
        ("DROP FUNCTION s.f(s.t)", ""),
        ("DROP AGGREGATE IF EXISTS s.a(s.t)", ""),
        ("DROP TYPE IF EXISTS s.t", ""),
        ("DROP DOMAIN s.t CASCADE", ""),
        ("DROP CAST (s.t AS int)", ""),
        ("COMMENT ON TYPE s.t IS 'x'", ""),
        ("CREATE DOMAIN d AS s.t", ""),
        ("CREATE SEQUENCE q AS s.t", ""),
        ("CREATE TABLE t (a int) WITH (autovacuum_enabled = off, fillfactor = 70)", ""),
        ("ALTER TABLE t SET (autovacuum_enabled = off)", ""),
        ("CREATE INDEX ON t USING gist (a) WITH (buffering = auto)", ""),
        ("ALTER VIEW v SET (check_option = local)", ""),
        ("COMMENT ON OPERATOR s.< (s.t, NONE) IS 'x'", ""),
    ],
)
def test_functions_are_named_and_nothing_is_cast(sql: str, functions: str) -> None:
    assert named(sql) == functions
    assert [t for t in facts_of(sql).types if t.cast] == []


def test_what_a_definition_computes_is_read_as_ever() -> None:
    facts = facts_of("CREATE FUNCTION f(a s.t DEFAULT s.g()) RETURNS s.u LANGUAGE sql RETURN s.q(a)::s.v")
    assert {(f.name, f.kind) for f in facts.functions} == {("g", CallKind.CALL), ("q", CallKind.CALL)}
    assert [t.name for t in facts.types if t.cast] == ["v"]


DEFINER = reader(
    access="read_write",
    statements="{select: allow, ddl: allow}",
    functions="{allow: [builtin-safe, public.order_total]}",
)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE OPERATOR public.<~~ (FUNCTION = public.bump, RIGHTARG = int4)",
        "CREATE CAST (public.small_qty AS text) WITH FUNCTION public.bump(public.small_qty)",
        "CREATE AGGREGATE public.a(int4) (SFUNC = bump, STYPE = int4)",
        "CREATE AGGREGATE public.a(int4) (SFUNC = pg_sleep, STYPE = int4)",
        "CREATE TRIGGER t BEFORE INSERT ON orders EXECUTE FUNCTION bump()",
    ],
)
def test_a_function_that_may_not_be_called_may_not_be_named(sql: str) -> None:
    for known in (names(), names(temporary=True)):
        assert "function-not-allowed" in {v.rule for v in objections(sql, DEFINER, known)}


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE OPERATOR public.<~~ (FUNCTION = public.order_total, RIGHTARG = int4, RESTRICT = eqsel)",
        "CREATE AGGREGATE public.a(int4) (SFUNC = int4pl, STYPE = int4, INITCOND = '0')",
        'CREATE TYPE public.r AS RANGE (SUBTYPE = text, COLLATION = "C")',
        "CREATE FUNCTION public.f(public.not_yet) RETURNS public.not_yet LANGUAGE sql AS 'SELECT $1'",
    ],
)
def test_others_may(sql: str) -> None:
    assert objections(sql, DEFINER) == []
