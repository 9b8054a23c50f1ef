"""Comparison operators, and which comparisons of one expression with constants leave no value out.

Owns the tables of PostgreSQL's comparison operators and the reasoning over constants that ``predicates``
uses. Pure; knows no scope, no catalog and no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from policy import builtin
from policy.expressions import Constant, Node, as_number, constant, kind_of, names_of, plain

NEGATED: Mapping[str, str] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "~~": "!~~",
    "!~~": "~~",
    "~~*": "!~~*",
    "!~~*": "~~*",
    "~": "!~",
    "!~": "~",
    "~*": "!~*",
    "!~*": "~*",
}
"""The operator that holds exactly where the other does not, nulls aside (pg_operator.oprnegate)."""
MIRRORED: Mapping[str, str] = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""The operator with its sides changed (pg_operator.oprcom)."""
HOLDS: Mapping[str, Callable[[Fraction], bool]] = {
    "=": lambda gap: gap == 0,
    "<>": lambda gap: gap != 0,
    "<": lambda gap: gap < 0,
    ">": lambda gap: gap > 0,
    "<=": lambda gap: gap <= 0,
    ">=": lambda gap: gap >= 0,
}
"""Whether ``left operator right`` holds, by left - right."""

_ALL_MATCHING = frozenset({"", ".*", "^.*", ".*$", "^.*$", "^", "$", "(.*)", "^(.*)$"})
"""Regular expressions that every text matches."""
_NEVER_NEGATIVE = frozenset(
    {
        "abs",
        "array_length",
        "bit_length",
        "cardinality",
        "char_length",
        "character_length",
        "count",
        "json_array_length",
        "jsonb_array_length",
        "length",
        "num_nonnulls",
        "num_nulls",
        "octet_length",
        "position",
        "sqrt",
        "strpos",
    }
)
_NULL_ONLY_FOR_NULL = frozenset(
    {
        "abs",
        "btrim",
        "char_length",
        "character_length",
        "length",
        "lower",
        "ltrim",
        "md5",
        "octet_length",
        "rtrim",
        "upper",
    }
)
_EMPTY_LISTS = frozenset({"{}", "[]"})
_AMBIGUOUS_WORDS = frozenset(
    {"t", "true", "y", "yes", "on", "f", "false", "n", "no", "off"}
    | {"infinity", "inf", "nan", "now", "today", "tomorrow", "yesterday", "epoch", "allballs"}
)
"""Words that some types read as a value that other words mean too."""


def folded(left: Constant | None, symbol: str, right: Constant | None) -> bool | None:
    """What a comparison of two constants says; None where that depends on their types or collation."""
    if left is None or right is None or left.value is None or right.value is None or symbol not in HOLDS:
        return None
    if isinstance(left.value, bool) and isinstance(right.value, bool):
        return HOLDS[symbol](Fraction(int(left.value) - int(right.value)))
    if isinstance(left.value, Fraction) or isinstance(right.value, Fraction):
        one, other = as_number(left), as_number(right)
        return None if one is None or other is None else HOLDS[symbol](one - other)
    if left == right:
        return HOLDS[symbol](Fraction(0))
    if symbol in ("=", "<>") and _surely_differ(left, right):
        return symbol == "<>"
    return None


def covers(atoms: Sequence[tuple[str, Constant]]) -> bool:
    """True when every value satisfies one of ``value operator constant``."""
    numbers = [(symbol, number) for symbol, value in atoms if (number := as_number(value)) is not None]
    if len(numbers) > 1 and _cover_the_line(numbers):
        return True
    booleans = {
        (value.value if symbol == "=" else not value.value)
        for symbol, value in atoms
        if isinstance(value.value, bool) and symbol in ("=", "<>")
    }
    if len(booleans) > 1:
        return True
    signs: dict[Constant, set[int]] = {}
    for symbol, value in atoms:
        reached = signs.setdefault(value, set())
        reached.update(sign for sign in (-1, 0, 1) if HOLDS[symbol](Fraction(sign)))
        if len(reached) == 3:
            return True
    others = [value for symbol, value in atoms if symbol == "<>"]
    return any(_surely_differ(others[0], value) for value in others[1:])


def _cover_the_line(atoms: Sequence[tuple[str, Fraction]]) -> bool:
    """Whether rays, points and all-but-points leave no number out; between two numbers there are others."""
    bounds: dict[str, set[Fraction]] = {symbol: set() for symbol in HOLDS}
    for symbol, bound in atoms:
        bounds[symbol].add(bound)
    spared = bounds["<>"]
    if len(spared) > 1:
        return True
    for number in spared:
        return any(HOLDS[symbol](number - bound) for symbol, bound in atoms)
    below, above = bounds["<"] | bounds["<="], bounds[">"] | bounds[">="]
    if not below or not above:
        return False
    last, first = max(below), min(above)
    return first < last or (first == last and last in bounds["<="] | bounds[">="] | bounds["="])


def _surely_differ(one: Constant, other: Constant) -> bool:
    """True for two texts that no type and no collation takes for the same value."""
    if one.typed is not None or other.typed is not None:
        return False
    if not isinstance(one.value, str) or not isinstance(other.value, str):
        return False
    left, right = one.value.strip().casefold(), other.value.strip().casefold()
    return left != right and all(_is_plain_word(word) for word in (left, right))


def _is_plain_word(word: str) -> bool:
    return word[:1].isalpha() and word.isascii() and word not in _AMBIGUOUS_WORDS


def matches_everything(symbol: str, right: Node) -> bool:
    """``x LIKE '%'``, ``x ~ '.*'``, ``x @> '{}'``: every value that is not null satisfies it."""
    pattern = _spelt(plain(right))
    if pattern is None:
        return False
    if symbol in ("~~", "~~*"):
        return pattern != "" and not pattern.strip("%")
    if symbol in ("~", "~*"):
        return pattern in _ALL_MATCHING
    return (symbol == "^@" and pattern == "") or (symbol == "@>" and pattern in _EMPTY_LISTS)


def _spelt(node: Node) -> str | None:
    """The text that ``node`` is, put together or not."""
    kind, fields = kind_of(node)
    if kind == "A_Expr" and names_of(fields.get("name", ())) == ("||",) and "lexpr" in fields:
        left, right = _spelt(fields["lexpr"]), _spelt(fields["rexpr"])
        return None if left is None or right is None else left + right
    value = constant(node)
    return value.value if value is not None and isinstance(value.value, str) else None


def above_least(node: Node, symbol: str, bound: Constant | None) -> bool:
    """``length(x) >= 0``, ``x >= ''``: the bound is at or below the least value there is."""
    if bound is None:
        return False
    if bound.value == "" and bound.typed is None:
        return symbol == ">="
    number = as_number(bound) if _is_never_negative(node) else None
    if number is None:
        return False
    return (symbol == ">=" and number <= 0) or (symbol in (">", "<>") and number < 0)


def _is_never_negative(node: Node) -> bool:
    kind, fields = kind_of(plain(node))
    if kind == "SubLink" and fields.get("subLinkType") == "EXPR_SUBLINK":
        targets = fields["subselect"]["SelectStmt"].get("targetList", ())
        kind, fields = kind_of(targets[0]["ResTarget"]["val"]) if len(targets) == 1 else ("", {})
    return kind == "FuncCall" and names_of(fields["funcname"])[-1] in _NEVER_NEGATIVE


def null_only_for_null(node: Node) -> bool:
    """True when ``node`` is null only where a column in it is."""
    node = plain(node)
    value = constant(node)
    if value is not None:
        return value.value is not None
    kind, fields = kind_of(node)
    parts = _STRICT_PARTS.get(kind, _none)(fields)
    return parts is not None and all(null_only_for_null(part) for part in parts)


def _none(fields: Mapping[str, Any]) -> None:  # noqa: ARG001 - one of a table
    return None


_STRICT_SYMBOLS = frozenset((symbol,) for symbol in (*HOLDS, "+", "-", "*", "||"))


def _strict_operands(fields: Mapping[str, Any]) -> list[Node] | None:
    if fields["kind"] != "AEXPR_OP" or names_of(fields["name"]) not in _STRICT_SYMBOLS:
        return None
    return [fields[side] for side in ("lexpr", "rexpr") if side in fields]


def _strict_arguments(fields: Mapping[str, Any]) -> list[Node] | None:
    name = names_of(fields["funcname"])[-1]
    return list(fields.get("args", ())) if name in _NULL_ONLY_FOR_NULL else None


_STRICT_PARTS: Mapping[str, Callable[[Mapping[str, Any]], list[Node] | None]] = {
    "ColumnRef": lambda fields: [],  # noqa: ARG005 - one of a table
    "RowExpr": lambda fields: list(fields.get("args", ())),
    "NullTest": lambda fields: [],  # noqa: ARG005 - one of a table
    "BooleanTest": lambda fields: [],  # noqa: ARG005 - one of a table
    "BoolExpr": lambda fields: list(fields["args"]),
    "TypeCast": lambda fields: [fields["arg"]],
    "A_Expr": _strict_operands,
    "FuncCall": _strict_arguments,
}
"""Node type -> the parts one of which is null where the whole is; None where the whole may be for other
reasons."""


def paired(left: Node, right: Node) -> list[tuple[Node, Node]] | None:
    """The members of two rows of equal length, side by side."""
    one, other = (kind_of(node) for node in (left, right))
    if one[0] != "RowExpr" or other[0] != "RowExpr":
        return None
    lefts, rights = one[1].get("args", []), other[1].get("args", [])
    return list(zip(lefts, rights, strict=True)) if len(lefts) == len(rights) else None


def elements(array: Node) -> Sequence[Node] | None:
    """The members of ``ARRAY[…]`` or of a simple array constant; None where they are not in the text."""
    kind, fields = kind_of(array)
    if kind == "TypeCast":
        return elements(fields.get("arg", {}))
    if kind == "A_ArrayExpr":
        members: Sequence[Node] = fields.get("elements", [])
        return members
    value = constant(array)
    if value is None or not isinstance(value.value, str):
        return None
    text = value.value.strip()
    if not (text.startswith("{") and text.endswith("}")) or any(c in text[1:-1] for c in '{}"\\'):
        return None
    body = text[1:-1].strip()
    return [_text_constant(item.strip()) for item in body.split(",")] if body else []


def _text_constant(text: str) -> Node:
    if text.upper() == "NULL":
        return {"A_Const": {"isnull": True}}
    return {"A_Const": {"sval": {"sval": text}}}


def comparison(left: Node, symbol: str, right: Node) -> Node:
    """``left symbol right`` as the grammar would write it."""
    name = [{"String": {"sval": symbol}}]
    return {"A_Expr": {"kind": "AEXPR_OP", "name": name, "lexpr": left, "rexpr": right}}


def is_certain_call(fields: Mapping[str, Any]) -> bool:
    """True for a call of a built-in that gives exactly one value."""
    name = names_of(fields.get("funcname", ()))[-1:]
    return bool(name) and builtin.is_builtin(name[0]) and not builtin.returns_set(name[0])


def calls(node: object) -> Iterator[Mapping[str, Any]]:
    """The bare fields of every FuncCall in ``node``, less those within a sub-select."""
    if isinstance(node, list):
        for item in node:
            yield from calls(item)
    elif isinstance(node, Mapping):
        for kind, value in node.items():
            if kind == "SubLink":
                continue
            if kind == "FuncCall" and len(node) == 1:
                yield value
            yield from calls(value)
