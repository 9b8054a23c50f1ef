"""What the text tells of the types of arguments and operands."""

from __future__ import annotations

import sys

import pytest

from policy.facts import Operand, OperandKind
from policy.parse import parse

OTHER = Operand(OperandKind.OTHER)
UNTYPED = Operand(OperandKind.UNTYPED)
PARAMETER = Operand(OperandKind.PARAMETER)


def typed(name: str, schema: str | None = "pg_catalog") -> Operand:
    return Operand(OperandKind.TYPED, name, schema)


def common(*sides: Operand) -> Operand:
    return Operand(OperandKind.COMMON, sides=sides)


def column(position: int) -> Operand:
    return Operand(OperandKind.COLUMN, position=position)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("1", typed("int4")),
        ("0", typed("int4")),
        ("2147483648", typed("int8")),
        ("9223372036854775808", typed("numeric")),
        ("1.5", typed("numeric")),
        ("1e3", typed("numeric")),
        ("true", typed("bool")),
        ("a IS NULL", typed("bool")),
        ("a AND b", typed("bool")),
        ("'x'", UNTYPED),
        ("''", UNTYPED),
        ("NULL", UNTYPED),
        ("$1", PARAMETER),
        ("$1::text", typed("text", None)),
        ("'1'::int", typed("int4")),
        ("x::public.mood", typed("mood", "public")),
        ("'{1}'::int[]", OTHER),
        ("b'1'", OTHER),
        ("a", column(10)),
        ("(t.a)", column(11)),
        ('a COLLATE "C"', column(10)),
        ("t.*", OTHER),
        ("(a).b", OTHER),
        ("a + 1", Operand(OperandKind.OPERATION, "+", sides=(column(10), typed("int4")))),
        ("- $1", Operand(OperandKind.OPERATION, "-", sides=(PARAMETER,))),
        ("a OPERATOR(s.+) 1", Operand(OperandKind.OPERATION, "+", "s", sides=(column(10), typed("int4")))),
        ("a = ANY (b)", OTHER),
        ("a IN (1)", OTHER),
        ("(SELECT 1)", typed("int4")),
        ("(SELECT 'x')", typed("text")),
        ("(SELECT 1, 2)", OTHER),
        ("(VALUES (1))", OTHER),
        ("ARRAY(SELECT 1)", OTHER),
        ("EXISTS (SELECT 1)", typed("bool")),
        ("lower(a)", Operand(OperandKind.CALL, "lower", sides=(column(16),))),
        ("s.lower('x')", Operand(OperandKind.CALL, "lower", "s", sides=(UNTYPED,))),
        ("mode() WITHIN GROUP (ORDER BY a)", Operand(OperandKind.CALL, "mode")),
        ("a[1]", Operand(OperandKind.ELEMENT, sides=(column(10),))),
        ("a[1][2]", Operand(OperandKind.ELEMENT, sides=(column(10),))),
        ("a[1:2]", OTHER),
        ("(a)[1].b", OTHER),
        ("CASE WHEN a THEN 1 ELSE 2 END", typed("int4")),
        ("CASE WHEN a THEN 1 END", typed("int4")),
        ("CASE WHEN a THEN 1 ELSE 1.5 END", common(typed("int4"), typed("numeric"))),
        ("CASE WHEN a THEN 1 ELSE ROW(1) END", OTHER),
        ("greatest(1, 'x')", typed("int4")),
        ("nullif(1, 1.5)", common(typed("int4"), typed("numeric"))),
        ("current_user", typed("name")),
        ("current_date", OTHER),
        ("coalesce(a, '', NULL)", column(19)),
        ("coalesce('', '')", UNTYPED),
        ("coalesce(a, 1)", common(column(19), typed("int4"))),
        ("coalesce(1, 2)", typed("int4")),
    ],
)
def test_arguments(argument: str, expected: Operand) -> None:
    (facts,) = parse(f"SELECT f({argument})").statements
    call = next(ref for ref in facts.functions if ref.name == "f")
    assert call.operands == (expected,)


@pytest.mark.parametrize(
    ("expression", "symbol", "expected"),
    [
        ("1 <~> 'x'", "<~>", (typed("int4"), UNTYPED)),
        ("- $1", "-", (PARAMETER,)),
        ("$1 IN (1, 2)", "=", (PARAMETER, typed("int4"))),
        ("$1 IN (1, 1.5)", "=", (PARAMETER, common(typed("int4"), typed("numeric")))),
        ("$1 BETWEEN 1 AND 2", ">=", (PARAMETER, typed("int4"))),
        ("$1 LIKE 'a%'", "~~", (PARAMETER, UNTYPED)),
        ("$1 = ANY ('{1}')", "=", (PARAMETER, UNTYPED)),
        ("1 = ANY ($1)", "=", (typed("int4"), PARAMETER)),
        ("$1 = ALL (ARRAY[1, 2])", "=", (PARAMETER, typed("int4"))),
        ("$1 = ANY ('{1}'::int[])", "=", (PARAMETER, typed("int4"))),
        ("$1 = ANY (a)", "=", (PARAMETER, Operand(OperandKind.ELEMENT, sides=(column(18),)))),
        ("$1 = ANY (ARRAY[ARRAY[1]])", "=", (PARAMETER, OTHER)),
        ("ROW(1) = ROW('x')", "=", (typed("int4"), UNTYPED)),
        ("(1, 2) = (SELECT 1, 2)", "=", (OTHER, OTHER)),
        ("$1 IN (SELECT 1)", "=", (PARAMETER, typed("int4"))),
        ("($1, 2) IN (SELECT 1, 2)", "=", (OTHER, OTHER)),
        ("$1 < ANY (SELECT 'x')", "<", (PARAMETER, typed("text"))),
        ("CASE $1 WHEN 1 THEN 'x' END", "=", (PARAMETER, typed("int4"))),
    ],
)
def test_sides_of_operators(expression: str, symbol: str, expected: tuple[Operand, ...]) -> None:
    (facts,) = parse(f"SELECT {expression}").statements
    assert [ref.operands for ref in facts.operators if ref.symbol == symbol][:1] == [expected]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(1, 'x') < (1.5, $1)", [(typed("int4"), typed("numeric")), (UNTYPED, PARAMETER)]),
        (
            "(1, true) IN ((1, true), (2, false))",
            [(typed("int4"), typed("int4")), (typed("bool"), typed("bool"))],
        ),
        ("(1, 2) = (1, 2, 3)", [(OTHER, OTHER)]),
        ("(1, 2) IN ((1, 2), $1)", [(OTHER, OTHER)]),
    ],
)
def test_rows_are_compared_member_by_member(expression: str, expected: list[tuple[Operand, ...]]) -> None:
    assert [ref.operands for ref in parse(f"SELECT {expression}").statements[0].operators] == expected


def test_named_and_variadic_arguments_tell_nothing() -> None:
    for sql in ("SELECT f(a => 1)", "SELECT f(VARIADIC ARRAY[1])"):
        assert parse(sql).statements[0].functions[0].operands == ()


def test_what_is_nested_deeply_tells_nothing() -> None:
    nested = "coalesce(" * 300 + "1" + ")" * 300
    assert parse(f"SELECT f({nested})").statements[0].functions[0].operands == (OTHER,)


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SELECT a[b]", ["int4"]),
        ("SELECT a[1:f(b)]", ["int4"]),
        ("SELECT a[1]", []),
        ("SELECT 1 FROM t WHERE a", ["bool"]),
        ("SELECT 1 FROM t WHERE a = 1", []),
        ("SELECT 1 FROM t WHERE NOT a OR b = 1", ["bool"]),
        ("SELECT a IS TRUE", ["bool"]),
        ("SELECT CASE WHEN a THEN 1 END", ["bool"]),
        ("SELECT CASE a WHEN b THEN 1 END", []),
        ("SELECT count(*) FILTER (WHERE a)", ["bool"]),
        ("SELECT 1 FROM t HAVING bool_or(a)", ["bool"]),
        ("SELECT 1 FROM t JOIN u ON t.a", ["bool"]),
        ("SELECT 1 LIMIT (SELECT a) OFFSET f()", ["int8", "int8"]),
        ("SELECT 1 LIMIT 1 OFFSET $1", []),
        ("SELECT sum(a) OVER (ROWS f() PRECEDING)", ["int8"]),
    ],
)
def test_where_the_server_wants_a_type_of_its_own_a_cast_is_noted(sql: str, wanted: list[str]) -> None:
    types = parse(sql).statements[0].types
    assert [(ref.name, ref.schema, ref.cast) for ref in types] == [(t, "pg_catalog", True) for t in wanted]


@pytest.mark.parametrize(
    ("expression", "makes"),
    [
        ("JSON_OBJECT('a': 1)", True),
        ("JSON_ARRAY(1)", True),
        ("JSON_ARRAY(SELECT 1)", True),
        ("JSON_OBJECTAGG('a': 1)", True),
        ("JSON_ARRAYAGG(1)", True),
        ("JSON_SCALAR(1)", True),
        ("to_json(1)", False),
    ],
)
def test_constructors_of_json_are_noted(expression: str, makes: bool) -> None:
    assert parse(f"SELECT {expression}").statements[0].makes_json is makes


@pytest.mark.parametrize(
    ("small", "large"),
    [
        tuple("SELECT 1 UNION (" * n + "SELECT 1" + ")" * n for n in (20, 320)),
        tuple(
            f"SELECT {', '.join(f'a{k} AS b{k}' for k in range(n))} FROM t"
            f" ORDER BY {', '.join(f'b{k}' for k in range(n))}"
            for n in (100, 1600)
        ),
    ],
    ids=["set operations in one another", "a long select list to sort by"],
)
def test_reading_what_is_compared_takes_steps_in_proportion(small: str, large: str) -> None:
    """Sixteen times the text: sixteen times the steps, where each level or item once looked at all others."""
    assert _steps(large) < 24 * _steps(small)


def _steps(sql: str) -> int:
    """Lines of Python that run while the facts of ``sql`` are read."""
    count = 0

    def trace(*_: object) -> object:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        parse(sql)
    finally:
        sys.settrace(None)
    return count


def test_an_arm_that_is_a_set_operation_is_compared_as_well() -> None:
    sql = "SELECT a FROM t UNION (SELECT 1.5 UNION ALL (SELECT 2 INTERSECT SELECT c FROM t))"
    (facts,) = parse(sql).statements
    columns = {column(sql.index(f"{name} FROM") + 1) for name in "ac"}
    assert set(facts.compared) == {*columns, typed("numeric"), typed("int4")}
