"""Values in libpg_query's tree: what is constant, what is the same expression, what belongs to a write's
target.

Owns the small algebra that ``predicates`` reasons with. Pure, knows no catalog and no policy: a column is
known by its name alone, and is the target's unless whoever asks says what columns that has. Every walk counts
the nodes it visits against one budget, so no text can make it slow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from enum import Enum
from fractions import Fraction
from typing import Any

from policy import builtin

Node = Mapping[str, Any]
"""``{"NodeType": {fields}}``"""
Key = Hashable
"""Equal for expressions that are the same but for places, a target's qualifier and casts to text."""

PLACES = frozenset(
    {"location", "list_start", "list_end", "rexpr_list_start", "rexpr_list_end", "stmt_location", "stmt_len"}
)
_TEXT_TYPES = frozenset({"text", "varchar"})
_BOOLEAN_TYPES = frozenset({"bool"})
_NUMBER_TYPES = frozenset({"int2", "int4", "int8", "numeric", "float4", "float8"})
_TRUE_WORDS = frozenset({"t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"})
_FALSE_WORDS = frozenset({"f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"})
"""What boolin reads (parse_bool_with_len in bool.c)."""
_MAX_DIGITS = 60
"""Longer numbers are left alone: arithmetic on them would not be cheap."""


class TooLarge(Exception):  # noqa: N818 - a limit reached, no fault
    """The budget of nodes is spent."""


class Budget:
    """How many nodes may still be visited."""

    __slots__ = ("left",)

    def __init__(self, nodes: int) -> None:
        self.left = nodes

    def spend(self, nodes: int = 1) -> None:
        self.left -= nodes
        if self.left < 0:
            raise TooLarge


class Owner(Enum):
    """Whose column a name is."""

    TARGET = "target"
    OTHER = "other"
    INNER = "inner"
    """Unqualified within a sub-select that has sources of its own: theirs, unless it is compared to a
    column."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean at one level of a predicate. ``target`` are the names that qualify the written row,
    ``columns`` those of its columns where they are known."""

    target: frozenset[str]
    inner: bool = False
    columns: frozenset[str] | None = None

    def within(self, sources: frozenset[str]) -> Scope:
        """The scope of a sub-select whose FROM offers ``sources``: they hide a target of the same name."""
        if not sources:
            return self
        return replace(self, target=self.target - sources, inner=True)

    def owner(self, column: Mapping[str, Any]) -> Owner:
        """Whose the ColumnRef with the bare fields ``column`` is."""
        names = names_of(column.get("fields", ()))
        if len(names) > 1:
            return Owner.TARGET if names[-2] in self.target else Owner.OTHER
        if names and names[0] in self.target:
            return Owner.TARGET
        if self.columns is not None and names and names[0] not in self.columns:
            return Owner.OTHER
        return Owner.INNER if self.inner else Owner.TARGET


@dataclass(frozen=True, slots=True)
class Constant:
    """A value the text spells out. ``value`` None is NULL; ``typed`` a type that gives a text its meaning."""

    value: bool | Fraction | str | None
    typed: str | None = None


def names_of(fields: Sequence[Node]) -> tuple[str, ...]:
    """The parts of a dotted name; ``*`` for a star."""
    return tuple(field["String"].get("sval", "") if "String" in field else "*" for field in fields)


def kind_of(node: Node) -> tuple[str, Mapping[str, Any]]:
    """The type of a node and its bare fields."""
    for kind, fields in node.items():
        return kind, fields
    return "", {}


def bare(node: Any) -> Any:
    """``node`` without places in the text: equal for trees that say the same."""
    if isinstance(node, Mapping):
        return {name: bare(value) for name, value in node.items() if name not in PLACES}
    return [bare(item) for item in node] if isinstance(node, list | tuple) else node


def type_name(cast: Mapping[str, Any]) -> str | None:
    """The plain type that a TypeCast casts to; None for arrays and for types with a length."""
    spelt = cast.get("typeName", {})
    if spelt.get("arrayBounds") or spelt.get("typmods"):
        return None
    names = names_of(spelt.get("names", ()))
    return names[-1] if names else None


def plain(node: Node) -> Node:
    """``node`` without what does not change its value: COLLATE, casts to text, a sub-select of nothing
    else."""
    while True:
        kind, fields = kind_of(node)
        inner: Node | None = None
        if kind == "CollateClause" or (kind == "TypeCast" and type_name(fields) in _TEXT_TYPES):
            inner = fields.get("arg")
        elif kind == "SubLink" and fields.get("subLinkType") == "EXPR_SUBLINK":
            inner = selected_value(fields.get("subselect", {}))
        elif kind == "CoalesceExpr":
            # Equal to its first argument for every row where that is not null.
            inner = next((arg for arg in fields["args"] if constant(arg) != Constant(None)), None)
        if inner is None:
            return node
        node = inner


def selected_value(select: Node) -> Node | None:
    """The one expression of ``SELECT expression`` that has nothing else."""
    _, fields = kind_of(select)
    targets = fields.get("targetList", ())
    others = fields.keys() - {"targetList", "limitOption", "op"}
    if len(targets) != 1 or others or fields.get("op", "SETOP_NONE") != "SETOP_NONE":
        return None
    value: Node | None = targets[0].get("ResTarget", {}).get("val")
    return value


def constant(node: Node) -> Constant | None:
    """The value of ``node`` where the text spells it out."""
    kind, fields = kind_of(node)
    if kind == "A_Const":
        return _literal(fields)
    if kind == "TypeCast":
        inner = constant(fields.get("arg", {}))
        return None if inner is None else _cast(inner, type_name(fields))
    if kind == "CollateClause":
        return constant(fields.get("arg", {}))
    return None


def _literal(fields: Mapping[str, Any]) -> Constant | None:
    if fields.get("isnull"):
        return Constant(None)
    if "boolval" in fields:
        return Constant(bool(fields["boolval"].get("boolval", False)))
    if "ival" in fields:
        return Constant(Fraction(fields["ival"].get("ival", 0)))
    if "fval" in fields:
        number = _number(str(fields["fval"].get("fval", "")))
        return None if number is None else Constant(number)
    if "sval" in fields:
        return Constant(str(fields["sval"].get("sval", "")))
    return None


def _cast(value: Constant, to: str | None) -> Constant | None:
    if value.value is None or to is None:
        return value if value.value is None else None
    if to in _BOOLEAN_TYPES:
        return _as_boolean(value.value)
    if to in _NUMBER_TYPES:
        number = as_number(value)
        exact = number is not None and (not to.startswith("int") or number.denominator == 1)
        return Constant(number) if exact else None
    if isinstance(value.value, str):
        return value if to in _TEXT_TYPES else Constant(value.value, to)
    return None


def as_boolean(value: Constant) -> bool | None:
    """The boolean that ``value`` is read as; None where it is none, or NULL."""
    read = None if value.value is None or value.typed is not None else _as_boolean(value.value)
    return read.value if read is not None and isinstance(read.value, bool) else None


def _as_boolean(value: bool | Fraction | str) -> Constant | None:
    if isinstance(value, bool):
        return Constant(value)
    if isinstance(value, Fraction):
        return Constant(value != 0)
    word = value.strip().lower()
    if word in _TRUE_WORDS or word in _FALSE_WORDS:
        return Constant(word in _TRUE_WORDS)
    return None


def as_number(value: Constant) -> Fraction | None:
    """The number a constant is, or that a text compared to a number would be read as."""
    if isinstance(value.value, Fraction):
        return value.value
    if isinstance(value.value, str) and value.typed is None:
        return _number(value.value.strip())
    return None


def _number(text: str) -> Fraction | None:
    try:
        number = Decimal(text.replace("_", "")) if len(text) <= _MAX_DIGITS else None
    except InvalidOperation:
        return None
    if number is None or not number.is_finite() or abs(number.adjusted()) > _MAX_DIGITS:
        return None
    return Fraction(number)


def key(node: Any, scope: Scope, budget: Budget) -> Key:
    """What makes two expressions the same."""
    budget.spend()
    if isinstance(node, Mapping):
        if len(node) == 1:
            node = plain(node)
            kind, fields = kind_of(node)
            if kind == "ColumnRef":
                return _column_key(fields, scope)
            if kind == "FuncCall" and _is_volatile(fields):
                # Two calls of it are not the same value.
                return object()
        return tuple((name, key(value, scope, budget)) for name, value in node.items() if name not in PLACES)
    if isinstance(node, list):
        return tuple(key(item, scope, budget) for item in node)
    return node  # type: ignore[no-any-return]


def _is_volatile(call: Mapping[str, Any]) -> bool:
    return builtin.volatility(names_of(call["funcname"])[-1]) is builtin.Volatility.VOLATILE


def _column_key(fields: Mapping[str, Any], scope: Scope) -> Key:
    names = names_of(fields.get("fields", ()))
    owner = scope.owner(fields)
    return ("column", owner, names[-1:] if owner is Owner.TARGET else names)


Linear = tuple[Mapping[Key, Fraction], Fraction]
"""A sum of multiples of expressions, and a number."""


def linear(node: Node, scope: Scope, budget: Budget) -> Linear:
    """``node`` as a sum, as far as it is made of ``+``, ``-`` and multiplication by a number."""
    node = plain(node)
    value = constant(node)
    if value is not None and isinstance(value.value, Fraction):
        return {}, value.value
    kind, fields = kind_of(node)
    if kind == "A_Expr" and fields.get("kind") == "AEXPR_OP":
        total = _arithmetic(fields, scope, budget)
        if total is not None:
            return total
    return {key(node, scope, budget): Fraction(1)}, Fraction(0)


def _arithmetic(fields: Mapping[str, Any], scope: Scope, budget: Budget) -> Linear | None:
    symbol = names_of(fields.get("name", ()))
    right = linear(fields["rexpr"], scope, budget) if "rexpr" in fields else None
    if right is None or symbol not in (("+",), ("-",), ("*",)):
        return None
    if "lexpr" not in fields:
        return _scaled(right, Fraction(-1)) if symbol == ("-",) else None
    left = linear(fields["lexpr"], scope, budget)
    if symbol == ("*",):
        if not right[0]:
            return _scaled(left, right[1])
        return _scaled(right, left[1]) if not left[0] else None
    return _sum(left, right if symbol == ("+",) else _scaled(right, Fraction(-1)))


def difference(left: Linear, right: Linear) -> Fraction | None:
    """``left - right`` where it is one number for every row."""
    terms, number = _sum(left, _scaled(right, Fraction(-1)))
    return None if terms else number


def _sum(left: Linear, right: Linear) -> Linear:
    terms = dict(left[0])
    for term, factor in right[0].items():
        terms[term] = terms.get(term, Fraction(0)) + factor
    return {term: factor for term, factor in terms.items() if factor}, left[1] + right[1]


def _scaled(value: Linear, factor: Fraction) -> Linear:
    if not factor:
        return {}, Fraction(0)
    return {term: each * factor for term, each in value[0].items()}, value[1] * factor


def mentions_target(node: Any, scope: Scope, budget: Budget) -> bool:
    """True where a column of the target stands anywhere in ``node``, however deeply nested.

    Within a sub-select an unqualified name counts only where a condition compares it to another column, which
    is how correlated sub-selects are tied to their target.
    """
    if isinstance(node, list):
        return any(mentions_target(item, scope, budget) for item in node)
    if not isinstance(node, Mapping):
        return False
    budget.spend()
    kind, fields = kind_of(node)
    if kind == "ColumnRef" and len(node) == 1:
        return scope.owner(fields) is Owner.TARGET
    if kind == "SelectStmt" and len(node) == 1:
        return _select_mentions(fields, scope, budget)
    if kind == "A_Expr" and scope.inner and _compares_columns(fields, scope):
        return True
    return any(mentions_target(value, scope, budget) for value in node.values())


def _select_mentions(select: Mapping[str, Any], scope: Scope, budget: Budget) -> bool:
    inner = scope.within(sources(select))
    for name, value in select.items():
        if name in ("larg", "rarg"):
            if _select_mentions(value, scope, budget):
                return True
        elif mentions_target(value, inner, budget):
            return True
    return False


def _compares_columns(expression: Mapping[str, Any], scope: Scope) -> bool:
    """``a = b`` of two columns, one of which could be the target's."""
    left, right = (_bare_column(expression.get(side, {})) for side in ("lexpr", "rexpr"))
    if left is None or right is None or names_of(left["fields"]) == names_of(right["fields"]):
        return False
    return Owner.INNER in (scope.owner(left), scope.owner(right))


def _bare_column(node: Any) -> Mapping[str, Any] | None:
    if not isinstance(node, Mapping) or not node:
        return None
    kind, fields = kind_of(plain(node))
    return fields if kind == "ColumnRef" else None


def sources(select: Mapping[str, Any]) -> frozenset[str]:
    """The names that the FROM of a SelectStmt (bare fields) offers; "" for those that have none."""
    return frozenset(name for item in select.get("fromClause", ()) for name in _source_names(item))


def _source_names(item: Node) -> Iterator[str]:
    kind, fields = kind_of(item)
    alias = fields.get("alias", {}).get("aliasname")
    if alias is not None:
        yield alias
    elif kind == "RangeVar":
        yield fields.get("relname", "")
    elif kind == "RangeTableSample":
        yield from _source_names(fields.get("relation", {}))
    elif kind == "RangeFunction":
        yield from _function_names(fields.get("functions", ()))
    elif kind != "JoinExpr":
        yield ""
    if kind == "JoinExpr":
        yield from _source_names(fields.get("larg", {}))
        yield from _source_names(fields.get("rarg", {}))


def _function_names(functions: Sequence[Node]) -> Iterator[str]:
    yield ""
    for each in functions:
        for part in each.get("List", {}).get("items", ()):
            kind, fields = kind_of(part)
            if kind == "FuncCall":
                yield names_of(fields.get("funcname", ()))[-1]
