"""What the text tells of the type of an argument or operand.

Owns the reading of one expression node for its type alone: constants, casts, parameters, columns, calls. No
catalog is asked; what a column's or a cast's name means is for whoever has one (``operands``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from policy.builtin import PG_CATALOG
from policy.extract_walk import Fields, Walk, strings
from policy.facts import Operand, OperandKind

_Reader = Callable[[Walk, Fields, int], Operand]

_OTHER: Final = Operand(OperandKind.OTHER)
_UNTYPED: Final = Operand(OperandKind.UNTYPED)
_INT4, _INT8, _NUMERIC, _BOOL = (
    Operand(OperandKind.TYPED, name, PG_CATALOG) for name in ("int4", "int8", "numeric", "bool")
)
_MOST_INT8: Final = 2**63
_WRAPPERS: Final = 8
"""How many COALESCE, lists and the like a value is looked for under."""


def operand(walk: Walk, node: Fields, within: int = _WRAPPERS) -> Operand:
    """What is certain of the value of ``node``, an expression in its wrapper, ``within`` so many others."""
    for kind, fields in node.items():
        reader = _READERS.get(kind)
        if reader is not None and within:
            return reader(walk, fields, within - 1)
    return _OTHER


def _common(walk: Walk, nodes: Sequence[Fields], within: int) -> Operand:
    """The one that all of ``nodes`` come to, where those that have a type are alike in it."""
    told = {operand(walk, node, within) for node in nodes}
    typed = told - {_UNTYPED}
    if len(typed) > 1:
        return _OTHER
    return next(iter(typed or told), _OTHER)


def _constant(_: Walk, fields: Fields, __: int) -> Operand:
    """make_const of parse_node.c."""
    if "fval" in fields:
        digits = str(fields["fval"].get("fval", ""))
        return _INT8 if digits.isdecimal() and int(digits) < _MOST_INT8 else _NUMERIC
    return next((known for field, known in _CONSTANTS.items() if field in fields), _OTHER)


def _column(walk: Walk, fields: Fields, _: int) -> Operand:
    if "A_Star" in fields["fields"][-1]:
        return _OTHER
    return Operand(OperandKind.COLUMN, position=walk.position(fields))


def _cast(_: Walk, fields: Fields, __: int) -> Operand:
    target = fields["typeName"]
    names = strings(target.get("names", ()))
    if not names or "arrayBounds" in target or target.get("setof") or target.get("pct_type"):
        return _OTHER
    return Operand(OperandKind.TYPED, names[-1], names[-2] if len(names) > 1 else None)


def _call(_: Walk, fields: Fields, __: int) -> Operand:
    names = strings(fields["funcname"])
    return Operand(OperandKind.CALL, names[-1], names[-2] if len(names) > 1 else None)


def _operation(walk: Walk, fields: Fields, within: int) -> Operand:
    if fields["kind"] not in _ONE_VALUE_EACH:
        return _OTHER
    names = strings(fields["name"])
    sides = [operand(walk, fields[side], within) for side in ("lexpr", "rexpr") if side in fields]
    return Operand(
        OperandKind.OPERATION, names[-1], names[-2] if len(names) > 1 else None, sides=tuple(sides)
    )


def _same(known: Operand) -> _Reader:
    return lambda *_: known


def _argument(walk: Walk, fields: Fields, within: int) -> Operand:
    return operand(walk, fields["arg"], within)


def _one_of(field: str) -> _Reader:
    return lambda walk, fields, within: _common(walk, fields.get(field, ()), within)


_CONSTANTS: Final[Mapping[str, Operand]] = {
    "ival": _INT4,
    "boolval": _BOOL,
    "sval": _UNTYPED,
    "isnull": _UNTYPED,
}
_ONE_VALUE_EACH: Final = frozenset({"AEXPR_OP", "AEXPR_LIKE", "AEXPR_ILIKE"})
"""Kinds of A_Expr whose value is what the operator named gives."""
_READERS: Final[Mapping[str, _Reader]] = {
    "A_Const": _constant,
    "A_Expr": _operation,
    "BoolExpr": _same(_BOOL),
    "BooleanTest": _same(_BOOL),
    "CoalesceExpr": _one_of("args"),
    "CollateClause": _argument,
    "ColumnRef": _column,
    "FuncCall": _call,
    "List": _one_of("items"),
    "NullTest": _same(_BOOL),
    "ParamRef": _same(Operand(OperandKind.PARAMETER)),
    "TypeCast": _cast,
}
