"""Pairs of conditions that are near to one another, for properties that a server is asked to confirm.

The two of a pair are grown side by side: the same tree, with constants, operators, connectives and spelling
that differ here and there, so that many a second condition implies the first, and many seem to. Nothing
generated raises an error on the rows of ``TABLES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

TABLES: Final = """
CREATE TEMP TABLE t AS
  SELECT row_number() OVER () AS id, a, b, s, f, d
  FROM (VALUES (NULL), (0), (1), (2)) AS a (a), (VALUES (NULL), (0), (1)) AS b (b),
       (VALUES (NULL), (''), ('a'), ('A'), ('Ab'), ('b')) AS s (s), (VALUES (NULL), (true), (false)) AS f (f),
       (VALUES (NULL), (date '2025-01-01'), (date '2025-01-02')) AS d (d);
CREATE TEMP TABLE u AS SELECT * FROM (VALUES (0, 0), (1, 0), (1, 2), (NULL, 1), (2, NULL)) AS u (x, y)
"""


class Pick(Protocol):
    """Chooses: a draw of Hypothesis, or any other source of chance."""

    def __call__(self, among: Sequence[T], /) -> T: ...


Pair = tuple[str, str]

_NUMBERS: Final = ("-1", "0", "1", "2", "3")
_TEXTS: Final = ("''", "'a'", "'A'", "'Ab'", "'ab'", "'b'")
_DATES: Final = ("'2025-01-01'", "date '2025-01-01'", "'2025-01-02'", "'2025-01-01 10:00'::timestamp")
_PATTERNS: Final = ("'%'", "'a%'", "'A%'", "'ab%'", "'_'", "''", "'_b'", "'%b'")
_REGEXES: Final = ("''", "'^a'", "'^A'", "'b$'", "'.'", "'a|b'")
_COMPUTED: Final = (
    "a + 1", "1 + a", "abs(a)", "a % 2", "coalesce(a, 1)", "coalesce(b, 0)", "greatest(a, b)", "nullif(a, 1)",
    "length(s)", "a * 2", "-a", "a::numeric", "a::bigint", "(a::text)::int",
)  # fmt: skip
_BOOLEANS: Final = (
    "f", "NOT f", "f IS TRUE", "f IS NOT FALSE", "f IS NOT TRUE", "f = true", "f = false", "f IS UNKNOWN",
    "coalesce(f, true)", "f <> true", "f > false", "f IS NULL", "f IN (true)",
)  # fmt: skip
_OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def pair(pick: Pick, depth: int = 3) -> Pair:
    """Two conditions on the columns of ``t``: a, b (integers), s (text), f (boolean), d (date)."""
    if depth == 0 or pick((True, False)):
        return _atom(pick)
    return pick(_CONNECTIVES)(pick, depth - 1)


def _near(pick: Pick, among: Sequence[T]) -> tuple[T, T]:
    """Two of ``among``, mostly the same one."""
    one = pick(among)
    return one, pick((one, one, one, pick(among)))


# Connectives ----------------------------------------------------------------------------------------------


def _and_or(pick: Pick, depth: int) -> Pair:
    (left, other_left), (right, other_right) = pair(pick, depth), pair(pick, depth)
    word, other = _near(pick, ("AND", "OR"))
    second = pick(
        (
            f"({other_left}) {other} ({other_right})",
            f"({other_left}) {other} ({other_right})",
            f"({other_right}) {other} ({other_left})",
            other_left,
            other_right,
        )
    )
    return f"({left}) {word} ({right})", second


def _added(pick: Pick, depth: int) -> Pair:
    (first, second), (_, new) = pair(pick, depth), pair(pick, depth)
    return first, pick((f"({second}) AND ({new})", f"({new}) AND ({second})", f"({second}) OR ({new})"))


def _wrapped(pick: Pick, depth: int) -> Pair:
    first, second = pair(pick, depth)
    forms = (
        "NOT ({})",
        "({}) IS TRUE",
        "({}) IS NOT FALSE",
        "({}) IS NOT TRUE",
        "({}) IS FALSE",
        "coalesce(({}), false)",
        "coalesce(({}), true)",
        "CASE WHEN {} THEN true ELSE false END",
        "({}) = true",
        "NOT (NOT ({}))",
    )
    form, other = _near(pick, forms)
    return form.format(first), other.format(second)


_CONNECTIVES: Final[tuple[Callable[[Pick, int], Pair], ...]] = (_and_or, _and_or, _and_or, _added, _wrapped)


# Atoms ----------------------------------------------------------------------------------------------------


def _atom(pick: Pick) -> Pair:
    return pick(_ATOMS)(pick)


def _compared(pick: Pick, columns: Sequence[str], values: Sequence[str]) -> Pair:
    (column, other_column), (value, other_value) = _near(pick, columns), _near(pick, values)
    operator, other = _near(pick, _OPERATORS)
    mirrored = f"{other_value} {_MIRRORED[other]} {other_column}"
    return f"{column} {operator} {value}", pick((f"{other_column} {other} {other_value}", mirrored))


def _number(pick: Pick) -> Pair:
    return _compared(pick, ("a", "b"), _NUMBERS)


def _columns(pick: Pick) -> Pair:
    return _compared(pick, ("a", "b"), ("a", "b"))


def _text(pick: Pick) -> Pair:
    return _compared(pick, ("s", "s", "lower(s)", 's COLLATE "C"'), _TEXTS)


def _date(pick: Pick) -> Pair:
    return _compared(pick, ("d", "d", "d::timestamp"), _DATES)


def _computed(pick: Pick) -> Pair:
    return _compared(pick, _COMPUTED, _NUMBERS)


def _cast(pick: Pick) -> Pair:
    return _compared(pick, ("a", "a::text", "(a)::varchar(5)"), ("'0'", "'1'", "'2'"))


def _pattern(pick: Pick) -> Pair:
    operator, other = _near(pick, ("LIKE", "NOT LIKE", "ILIKE"))
    pattern, its = _near(pick, _PATTERNS)
    return f"s {operator} {pattern}", pick((f"s {other} {its}", f"s {other} {its}", f"s = {its}"))


def _regex(pick: Pick) -> Pair:
    (operator, other), (pattern, its) = _near(pick, ("~", "!~", "~*")), _near(pick, _REGEXES)
    return f"s {operator} {pattern}", f"s {other} {its}"


def _listed(pick: Pick) -> Pair:
    column, other = _near(pick, ("a", "b"))
    values = [pick(_NUMBERS) for _ in range(pick((1, 2, 3)))]
    changed = pick((values, values[:1], [*values, pick((*_NUMBERS, "NULL"))], values[::-1]))
    return _list(pick, column, values), _list(pick, other, changed)


def _list(pick: Pick, column: str, values: Sequence[str]) -> str:
    joined = ", ".join(values)
    return pick(
        (
            f"{column} IN ({joined})",
            f"{column} IN ({joined})",
            f"{column} NOT IN ({joined})",
            f"{column} = ANY (ARRAY[{joined}]::int[])",
            f"{column} <> ALL (ARRAY[{joined}]::int[])",
            f"{column} = ANY ('{{{joined}}}')",
            f"{column} < ANY (ARRAY[{joined}]::int[])",
            f"{column} > ALL (ARRAY[{joined}]::int[])",
            " OR ".join(f"{column} = {value}" for value in values),
            " AND ".join(f"{column} <> {value}" for value in values),
        )
    )


def _between(pick: Pick) -> Pair:
    (column, other), (word, its) = _near(pick, ("a", "b")), _near(pick, ("", "NOT ", "", "SYMMETRIC "))
    (low, lower), (high, higher) = _near(pick, _NUMBERS), _near(pick, _NUMBERS)

    def spelt(column: str, word: str, low: str, high: str) -> str:
        if word == "SYMMETRIC ":
            return f"{column} BETWEEN SYMMETRIC {low} AND {high}"
        return f"{column} {word}BETWEEN {low} AND {high}"

    second = (
        spelt(other, its, lower, higher),
        f"{other} >= {lower} AND {other} <= {higher}",
        f"{other} >= {lower}",
    )
    return spelt(column, word, low, high), pick(second)


def _null(pick: Pick) -> Pair:
    column, other = _near(pick, ("a", "b", "s", "f", "d", "a + 1", "(a, b)"))
    test, its = _near(pick, ("IS NULL", "IS NOT NULL"))
    return f"{column} {test}", f"{other} {its}"


def _distinct(pick: Pick) -> Pair:
    (column, other), (value, its) = _near(pick, ("a", "b")), _near(pick, (*_NUMBERS, "NULL", "b"))
    word, another = _near(pick, ("IS DISTINCT FROM", "IS NOT DISTINCT FROM", "="))
    return f"{column} {word} {value}", f"{other} {another} {its}"


def _boolean(pick: Pick) -> Pair:
    return _near(pick, _BOOLEANS)


def _row(pick: Pick) -> Pair:
    (left, its_left), (right, its_right) = _near(pick, _NUMBERS), _near(pick, _NUMBERS)
    operator, other = _near(pick, _OPERATORS)
    forms = (
        f"(a, b) {other} ({its_left}, {its_right})",
        f"(a, b) IN (({its_left}, {its_right}))",
        f"a {other} {its_left} AND b {other} {its_right}",
        f"a {other} {its_left}",
    )
    return f"(a, b) {operator} ({left}, {right})", pick(forms)


def _constant(pick: Pick) -> Pair:
    return _near(
        pick, ("true", "false", "1 = 1", "1 = 2", "NULL::boolean", "a = a", "a = NULL", "a IN (a, b)")
    )


_INNER: Final = ("y = 0", "y > 0", "y >= 0", "y < 2", "y IS NULL", "y IN (0, 2)", "true", "y = 0 OR y = 2")


def _subselect(pick: Pick) -> Pair:
    inner, other = _near(pick, _INNER)
    limit, its = _near(pick, ("", "", "", " ORDER BY 1 LIMIT 1", " LIMIT 0"))
    forms = (
        "a IN (SELECT x FROM u WHERE {}{})",
        "a NOT IN (SELECT x FROM u WHERE {}{})",
        "EXISTS (SELECT 1 FROM u WHERE x = t.a AND ({}){})",
        "NOT EXISTS (SELECT 1 FROM u WHERE x = t.a AND ({}){})",
        "a = ANY (SELECT x FROM u WHERE {}{})",
        "a > ANY (SELECT x FROM u WHERE {}{})",
        "a >= ALL (SELECT x FROM u WHERE {}{})",
        "a = (SELECT max(x) FROM u WHERE {}{})",
        "a <= (SELECT min(x) FROM u WHERE {}{})",
        "(SELECT count(*) FROM u WHERE x = a AND ({}){}) > 0",
        "a IN (SELECT x FROM u WHERE {} GROUP BY x HAVING count(*) > 1{})",
        "a IN (SELECT DISTINCT x FROM u WHERE {}{})",
        "a IN (SELECT x FROM u WHERE {} EXCEPT SELECT y FROM u{})",
        "(a, b) IN (SELECT x, y FROM u WHERE {}{})",
    )
    form, another = _near(pick, forms)
    return form.format(inner, limit), another.format(other, its)


_ATOMS: Final[tuple[Callable[[Pick], Pair], ...]] = (
    _number, _number, _number, _columns, _text, _date, _computed, _cast, _pattern, _regex, _listed, _listed,
    _between, _null, _distinct, _boolean, _row, _constant, _subselect, _subselect,
)  # fmt: skip


# Statements -----------------------------------------------------------------------------------------------


class Near(NamedTuple):
    """Two statements that are near to one another; ``reached`` are queries for what each reads or writes."""

    statements: Pair
    reached: Pair


def statements(pick: Pick) -> Near:
    """Two statements on ``t`` and ``u``, writes among them."""
    return pick(_STATEMENTS)(pick)


def _both(form: str, *parts: Pair) -> Pair:
    return form.format(*(part[0] for part in parts)), form.format(*(part[1] for part in parts))


_WRITES: Final = (
    "DELETE FROM t WHERE {}",
    "UPDATE t SET d = NULL WHERE {}",
    "INSERT INTO u SELECT a, b FROM t WHERE {}",
    "WITH gone AS (DELETE FROM t WHERE {} RETURNING id) SELECT id FROM gone",
)


def _written(pick: Pick) -> Near:
    where = pair(pick, 2)
    return Near(_both(pick(_WRITES), where), _both("SELECT id FROM t WHERE {}", where))


_JOINT: Final = (
    "t.a = u.x", "t.b = u.y", "u.x = t.a AND u.y = 0", "u.y > 0", "t.a > 0", "u.y IN (0, 2)", "1 = 1",
    "t.a = u.x OR t.b = u.y", "u.x IS NULL", "u.y IS NOT NULL", "t.a IS NULL",
)  # fmt: skip
_MERGEABLE: Final = ("t.a = u.x", "t.a = u.x AND t.b = u.y")
"""What a FULL JOIN can join on."""


def _joint(pick: Pick) -> Pair:
    (one, other), (also, another) = _near(pick, _JOINT), _near(pick, _JOINT)
    narrowed, turned = f"{other} AND ({also})", f"({another}) AND {other}"
    return pick(((one, other), (f"{one} AND ({also})", turned), (one, narrowed)))


def _written_by_another(pick: Pick) -> Near:
    where = _joint(pick)
    forms = (
        "DELETE FROM t USING u WHERE {}",
        "UPDATE t SET d = NULL FROM u WHERE {}",
        "MERGE INTO t USING u ON {} WHEN MATCHED THEN DELETE",
    )
    return Near(_both(pick(forms), where), _both("SELECT t.id FROM t, u WHERE {}", where))


def _merged(pick: Pick) -> Near:
    parts = _joint(pick), _joint(pick)
    merge = "MERGE INTO t USING u ON {} WHEN MATCHED AND {} THEN DELETE"
    return Near(_both(merge, *parts), _both("SELECT t.id FROM t, u WHERE ({}) AND ({})", *parts))


def _joined(pick: Pick) -> Near:
    join, other = _near(pick, ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
    (on, its), (where, another) = _joint(pick), _joint(pick)
    on = pick(_MERGEABLE) if join == "FULL JOIN" else on
    its = pick(_MERGEABLE) if other == "FULL JOIN" else its
    text = "SELECT t.id, u.x, u.y FROM t {} u ON {} WHERE {}"
    both = text.format(join, on, where), text.format(other, its, another)
    return Near(both, both)


def _joined_twice(pick: Pick) -> Near:
    (join, other), (second, another) = _near(pick, ("JOIN", "LEFT JOIN")), _near(pick, ("JOIN", "LEFT JOIN"))
    on, also, where = (
        _joint(pick),
        _near(pick, ("v.x = t.b", "v.x = u.y", "v.y = t.a", "v.y = 0")),
        _joint(pick),
    )
    text = "SELECT t.id, u.x, v.y FROM t {} u ON {} {} u v ON {} WHERE {}"
    both = (
        text.format(join, on[0], second, also[0], where[0]),
        text.format(other, on[1], another, also[1], where[1]),
    )
    return Near(both, both)


def _derived(pick: Pick) -> Near:
    inner, outer = pair(pick, 1), pair(pick, 1)
    moved = pick((False, False, False, True))
    second = (outer[1], inner[1]) if moved else (inner[1], outer[1])
    form = pick(
        (
            "SELECT id FROM (SELECT * FROM t WHERE {}) t WHERE {}",
            "WITH c AS (SELECT * FROM t WHERE {}) SELECT id FROM c t WHERE {}",
            "SELECT id FROM t WHERE id IN (SELECT id FROM t WHERE {}) AND ({})",
            "SELECT id FROM t WHERE EXISTS (SELECT FROM t s WHERE s.id = t.id AND ({})) AND ({})",
            "SELECT id FROM (SELECT id, a, b, s, f, d FROM t WHERE {}) t WHERE {}",
        )
    )
    both = form.format(inner[0], outer[0]), form.format(*second)
    return Near(both, both)


_GROUPS: Final = (
    "count(*) > 50", "count(*) > 54", "count(*) >= 54", "max(b) > 0", "a > 0", "a >= 0", "count(*) < 60",
    "bool_and(f)", "a IS NOT NULL", "count(s) > 44 AND a = 1",
)  # fmt: skip


def _grouped(pick: Pick) -> Near:
    # Of other rows a group has another count: only what it is held to may differ.
    where, having = pick(("true", "b = 0", "f", "s <> 'a'")), _near(pick, _GROUPS)
    both = _both(f"SELECT a FROM t WHERE {where} GROUP BY a HAVING {{}}", having)
    return Near(both, both)


def _combined(pick: Pick) -> Near:
    word, other = _near(pick, ("UNION", "UNION ALL", "INTERSECT", "EXCEPT"))
    (left, its_left), (right, its_right) = pair(pick, 1), pair(pick, 1)
    text = "SELECT a, b FROM t WHERE {} {} SELECT a, b FROM t WHERE {}"
    both = text.format(left, word, right), text.format(its_left, other, its_right)
    return Near(both, both)


_STATEMENTS: Final[tuple[Callable[[Pick], Near], ...]] = (
    _written, _written_by_another, _merged, _joined, _joined_twice, _derived, _derived, _grouped, _combined,
)  # fmt: skip
