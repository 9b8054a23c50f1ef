"""How much a statement's own arithmetic can make of little: ``repeat``, ``lpad``, ``generate_series``.

Owns upper bounds on values and sizes, from expressions alone. The planner folds constants as it plans, so
that EXPLAIN of ``repeat('x', 1000000000)`` makes that gigabyte: sizes are judged on the text, before anything
is asked. Series are judged on the call that EXPLAIN VERBOSE prints, where bound values and constants stand
folded (``series``).

Upper bounds are guesses where data decides: a column's number is taken for at most ``COLUMN_NUMBER`` and its
text for ``COLUMN_BYTES``, because an agent that reads does not choose them. What an agent can choose freely
and the text does not bound (a parameter, a column of VALUES or of a function) has no bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from policy.expressions import Node, as_number, constant, kind_of, names_of
from policy.facts import Facts, SourceKind
from policy.parse import trees

COLUMN_NUMBER: Final = 1000.0
COLUMN_BYTES: Final = 64.0
GROWING: Final = frozenset({"repeat", "lpad", "rpad", "array_fill", "format", "replace", "regexp_replace"})
"""Functions of pg_catalog whose result may be longer than all they are given."""
_PADDED_TYPES: Final = {"bpchar": 1.0, "bit": 1 / 8}
"""Types whose casts fill up to the length they name, with bytes a unit of it."""
_TRACEABLE: Final = frozenset({SourceKind.RELATION, SourceKind.SUBQUERY, SourceKind.CTE})
_LISTS: Final = frozenset(
    {"distinctClause", "groupClause", "havingClause", "limitCount", "limitOffset", "sortClause", "targetList"}
    | {"valuesLists", "whereClause", "windowClause"}
)
"""Fields of a SelectStmt that hold expressions over what its FROM gives."""
_PASSES: Final = 8
_MAX_TRACE: Final = 64
"""Columns through which one number is traced to where it is made."""
_ELEMENT_BYTES: Final = 8.0
_FORMAT_WIDTH: Final = re.compile(r"%(?:\d+\$)?-?(\d+|\*)")

NumberOf = Callable[[tuple[str, ...]], float]
"""At most how large the number in a column is, by the parts of its name; inf where nothing bounds it."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The largest value a statement makes of its own arithmetic. ``bytes`` is inf where nothing bounds it.

    ``location`` in bytes of the statement's text, from 0; None where the grammar keeps none.
    """

    function: str
    bytes: float
    location: int | None


def may_grow(facts: Facts) -> bool:
    """A cheap look at whether ``growth`` could find anything."""
    return any(ref.name in GROWING for ref in facts.functions) or any(
        ref.name in _PADDED_TYPES for ref in facts.types
    )


def growth(facts: Facts) -> Growth | None:
    """The largest growth in ``facts``'s statement; None where there is none."""
    read = trees(facts.sql)
    if not read:
        return Growth("a statement of this size", math.inf, None)
    derived = any(s.kind is not SourceKind.RELATION for query in facts.queries for s in query.sources)
    columns = _Columns(facts, read)
    largest: Growth | None = None
    text, passes = COLUMN_BYTES, 1
    while passes:
        sizes = _Sizes(columns.number, text)
        sizes.below(list(read))
        found = sizes.found
        if not found:
            break
        if largest is None and derived:
            # Values may pass through sub-selects from one growth into the next: a pass for each of them.
            passes = min(sum(_links(list(read))), _PASSES)
        largest = max(found, key=lambda each: each.bytes)
        text = max(text, largest.bytes)
        passes -= 1
    return largest


def _links(node: Any) -> tuple[int, int]:
    """How many growths a value may pass through one after the other: in ``node`` itself, and in sub-selects.

    What is nested counts as one, being worked out at once; so do all that the lists of one SELECT hold, since
    none of them reads what another makes. What stands in FROM may.
    """
    if isinstance(node, list):
        parts = [_links(item) for item in node]
        return sum(own for own, _ in parts), sum(below for _, below in parts)
    if not isinstance(node, Mapping):
        return 0, 0
    own = below = 0
    for kind, fields in node.items():
        if kind == "SelectStmt":
            below += _links_of_select(fields)
            continue
        inside, deeper = _links(fields)
        own += 1 if _grows(kind, fields) else inside
        below += deeper
    return own, below


def _links_of_select(fields: Mapping[str, Any]) -> int:
    lists = _links({key: value for key, value in fields.items() if key in _LISTS})
    others = _links({key: value for key, value in fields.items() if key not in _LISTS})
    return min(lists[0], 1) + lists[1] + sum(others)


def _grows(kind: str, fields: Any) -> bool:
    """Whether it may be a call or a cast that makes much of little."""
    if kind == "FuncCall":
        return names_of(fields.get("funcname", ()))[-1] in GROWING
    return kind == "TypeCast" and names_of(fields["typeName"].get("names", ("",)))[-1] in _PADDED_TYPES


class _Columns:
    """What bounds the numbers in the columns of one statement.

    A column that a relation's own name qualifies is stored. So is any other where there are but relations
    and sub-selects, unless a select list of the statement gives an item that name: then the largest of those
    items bounds it. Lists that rename columns, VALUES and functions leave a name without a bound.
    """

    __slots__ = ("_depth", "_known", "_outputs", "_relations", "_traceable")

    def __init__(self, facts: Facts, read: Sequence[Node]) -> None:
        sources = [source for query in facts.queries for source in query.sources]
        others = {source.name for source in sources if source.kind is not SourceKind.RELATION}
        self._relations = {source.name for source in sources} - others
        self._traceable = all(
            source.kind in _TRACEABLE and not source.column_aliases for source in sources
        ) and not any(query.values_rows for query in facts.queries)
        self._outputs: dict[str, list[Node]] = {}
        self._known: dict[str, float] = {}
        self._depth = 0
        if self._traceable and others:
            self._collect(read)

    def number(self, names: tuple[str, ...]) -> float:
        if len(names) > 1 and names[-2] in self._relations:
            return COLUMN_NUMBER
        return self._traced(names[-1]) if self._traceable else math.inf

    def _traced(self, name: str) -> float:
        if name not in self._known:
            if self._depth == _MAX_TRACE:
                return math.inf
            self._known[name] = COLUMN_NUMBER  # a column that passes under its own name
            self._depth += 1
            outputs = self._outputs.get(name, ())
            self._known[name] = max((magnitude(o, self.number) for o in outputs), default=COLUMN_NUMBER)
            self._depth -= 1
        return self._known[name]

    def _collect(self, node: Any) -> None:
        if isinstance(node, list | tuple):
            for item in node:
                self._collect(item)
        elif isinstance(node, Mapping):
            for target in node.get("targetList", ()):
                fields = target.get("ResTarget", {})
                if "val" in fields:
                    name = fields.get("name") or _natural_name(fields["val"])
                    self._outputs.setdefault(name, []).append(fields["val"])
            for value in node.values():
                self._collect(value)


def _natural_name(value: Node) -> str:
    """What PostgreSQL calls an output without AS (FigureColname in parse_target.c), as far as it matters."""
    kind, fields = kind_of(value)
    if kind in ("TypeCast", "CollateClause"):
        return _natural_name(fields.get("arg", {}))
    names = names_of(fields.get("fields" if kind == "ColumnRef" else "funcname", ()))
    return names[-1] if names else kind


class _Sizes:
    """Upper bounds on the sizes of values, given what is known of columns. ``found`` fills as it is asked."""

    __slots__ = ("_below", "_made", "_number_of", "_text", "found")

    def __init__(self, number_of: NumberOf, column_bytes: float) -> None:
        self._number_of = number_of
        self._text = column_bytes
        # By the identity of nodes: each is looked at once, however deep what asks for it.
        self._below: dict[int, float] = {}
        self._made: dict[int, float] = {}
        self.found: list[Growth] = []

    def below(self, node: Any) -> float:
        """The bytes that the calls and casts in ``node`` make which make much of little, the outermost ones
        added up."""
        if isinstance(node, list):
            return sum(map(self.below, node))
        if not isinstance(node, Mapping):
            return 0.0
        at = id(node)
        if at not in self._below:
            self._below[at] = sum(self._part(kind, fields) for kind, fields in node.items())
        return self._below[at]

    def _part(self, kind: str, fields: Any) -> float:
        inner = self.below(fields)
        size = self._grow(kind, fields) if kind in ("FuncCall", "TypeCast") else None
        if size is None:
            return inner
        self._made[id(fields)] = size
        name = names_of(fields["funcname"])[-1] if kind == "FuncCall" else "a cast"
        self.found.append(Growth(name, size, fields.get("location")))
        return size

    def _number(self, node: Node) -> float:
        return magnitude(node, self._number_of)

    def _size(self, node: Node) -> float:
        """At most how many bytes the value has."""
        value = constant(node)
        if value is not None:
            return float(len(str(value.value).encode()))
        _, fields = kind_of(node)
        made = self._made.get(id(fields))
        return made if made is not None else max(self._text, self.below(node))

    def _grow(self, kind: str, fields: Mapping[str, Any]) -> float | None:
        if kind == "TypeCast":
            return self._padded(fields)
        names = names_of(fields.get("funcname", ()))
        if names[-1] not in GROWING or names[0] not in (names[-1], "pg_catalog"):
            return None
        return self._made_by(names[-1], fields.get("args", ()))

    def _padded(self, cast: Mapping[str, Any]) -> float | None:
        spelt = cast.get("typeName", {})
        names = names_of(spelt.get("names", ()))
        unit = _PADDED_TYPES.get(names[-1]) if names else None
        length = next(iter(spelt.get("typmods", ())), None)
        return None if unit is None or length is None else unit * self._number(length)

    def _made_by(self, name: str, args: list[Node]) -> float | None:  # noqa: PLR0911 - a table of functions
        match name, args:
            case "repeat", [text, count]:
                return self._size(text) * self._number(count)
            case (("lpad" | "rpad"), [_, length, *_]):
                return self._number(length)
            case "array_fill", [_, dimensions, *_]:
                kind, fields = kind_of(dimensions)
                if kind != "A_ArrayExpr":
                    return math.inf
                return _ELEMENT_BYTES * math.prod(self._number(each) for each in fields.get("elements", ()))
            case "format", [pattern, *values]:
                return self._formatted(pattern, values)
            case (("replace" | "regexp_replace"), [text, old, new, *_]):
                least = max(1.0, self._size(old)) if name == "replace" and constant(old) else 1.0
                return self._size(text) * max(1.0, self._size(new) / least)
        return None

    def _formatted(self, pattern: Node, values: list[Node]) -> float:
        text = constant(pattern)
        if text is None or not isinstance(text.value, str):
            return math.inf
        total = float(len(text.value)) + sum(self._size(value) for value in values)
        named = max((self._number(value) for value in values if not _is_word(value)), default=0.0)
        for width in _FORMAT_WIDTH.findall(text.value):
            total += named if width == "*" else float(width)
        return total


def _is_word(node: Node) -> bool:
    """A constant that is no number."""
    value = constant(node)
    return value is not None and as_number(value) is None


_NUMBER_TYPES: Final = frozenset({"int2", "int4", "int8", "numeric", "float4", "float8"})
_TEXT_TYPES: Final = frozenset({"text", "varchar"})
_SAME: Final = frozenset(
    {"round", "floor", "ceil", "ceiling", "trunc", "abs", "min", "max", "avg", "coalesce"}
)
_COUNTS: Final = frozenset(
    {"count", "length", "char_length", "octet_length", "array_length", "cardinality", "jsonb_array_length"}
    | {"json_array_length", "array_upper", "row_number", "rank", "dense_rank", "ntile"}
)


def magnitude(node: Node, number_of: NumberOf) -> float:  # noqa: PLR0911 - a table of node types
    """At most how large the number ``node`` is, its sign aside; inf where nothing bounds it."""
    kind, fields = kind_of(node)
    match kind:
        case "A_Const":
            value = constant(node)
            number = None if value is None else as_number(value)
            if value is not None and value.value is None:
                return 0.0
            return math.inf if number is None else abs(float(number))
        case "ColumnRef":
            return number_of(names_of(fields.get("fields", ())))
        case "TypeCast" if not _keeps_number(fields):
            return math.inf
        case "TypeCast" | "CollateClause":
            return magnitude(fields.get("arg", {}), number_of)
        case "A_Expr":
            return _arithmetic(fields, number_of)
        case "FuncCall":
            return _call(fields, number_of)
        case "CoalesceExpr":
            return max(magnitude(arg, number_of) for arg in fields.get("args", ()))
        case "MinMaxExpr":
            bounds = [magnitude(arg, number_of) for arg in fields.get("args", ())]
            return min(bounds) if fields.get("op") == "IS_LEAST" else max(bounds)
        case "CaseExpr":
            results = [each["CaseWhen"]["result"] for each in fields.get("args", ())]
            default = [fields["defresult"]] if "defresult" in fields else []
            return max(magnitude(result, number_of) for result in results + default)
    return math.inf


def _keeps_number(cast: Mapping[str, Any]) -> bool:
    """Whether a number is no larger behind the cast, but for what rounding adds.

    As bits, "char" or an oid digits count for something else, and a length may cut an exponent off.
    """
    spelt = cast.get("typeName", {})
    names = names_of(spelt.get("names", ()))
    if "arrayBounds" in spelt or not names or names[0] not in (names[-1], "pg_catalog"):
        return False
    return names[-1] in _NUMBER_TYPES or (names[-1] in _TEXT_TYPES and "typmods" not in spelt)


def _arithmetic(fields: Mapping[str, Any], number_of: NumberOf) -> float:
    symbol = names_of(fields.get("name", ()))[-1]
    right = magnitude(fields.get("rexpr", {}), number_of)
    if fields.get("kind") != "AEXPR_OP" or "lexpr" not in fields:
        return right if fields.get("kind") == "AEXPR_OP" and symbol in "+-" else math.inf
    left = magnitude(fields["lexpr"], number_of)
    match symbol:
        case "+" | "-":
            return left + right
        case "*":
            return left * right
        case "/":
            divisor = constant(fields["rexpr"])
            return left / right if divisor is not None and right else math.inf
        case "%":
            return min(left, right)
    return math.inf


def _call(fields: Mapping[str, Any], number_of: NumberOf) -> float:
    names = names_of(fields.get("funcname", ()))
    args = fields.get("args", ())
    if names[0] not in (names[-1], "pg_catalog"):
        return math.inf
    if names[-1] in _COUNTS:
        return COLUMN_NUMBER
    if names[-1] == "sum" and args:
        return COLUMN_NUMBER * magnitude(args[0], number_of)
    return magnitude(args[0], number_of) if names[-1] in _SAME and args else math.inf
