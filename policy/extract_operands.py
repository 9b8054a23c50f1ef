"""What the text tells of the type of an argument or operand.

Owns the reading of one expression node for its type alone: constants, casts, parameters, columns, calls. No
catalog is asked; what a column's or a cast's name means is for whoever has one (``operands``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policy.builtin import PG_CATALOG
from policy.extract_walk import Fields, Walk, strings
from policy.facts import Operand, OperandKind

_OTHER: Final = Operand(OperandKind.OTHER)
_UNTYPED: Final = Operand(OperandKind.UNTYPED)
_PARAMETER: Final = Operand(OperandKind.PARAMETER)
_INT4, _INT8, _NUMERIC, _BOOL = (
    Operand(OperandKind.TYPED, name, PG_CATALOG) for name in ("int4", "int8", "numeric", "bool")
)
_MOST_INT8: Final = 2**63
_WRAPPERS: Final = 8
"""How many COALESCE, lists and the like a value is looked for under."""


def operand(walk: Walk, node: Fields, within: int = _WRAPPERS) -> Operand:
    """What is certain of the value of ``node``, an expression in its wrapper, ``within`` so many others."""
    if not within:
        return _OTHER
    for kind, fields in node.items():
        match kind:
            case "A_Const":
                return _constant(fields)
            case "ColumnRef":
                if "A_Star" in fields["fields"][-1]:
                    return _OTHER
                return Operand(OperandKind.COLUMN, position=walk.position(fields))
            case "ParamRef":
                return _PARAMETER
            case "TypeCast":
                return _cast(fields["typeName"])
            case "FuncCall":
                names = strings(fields["funcname"])
                return Operand(OperandKind.CALL, names[-1], names[-2] if len(names) > 1 else None)
            case "CollateClause" | "NamedArgExpr":
                return operand(walk, fields["arg"], within - 1)
            case "CoalesceExpr":
                return _common(walk, fields.get("args", ()), within - 1)
            case "BoolExpr" | "NullTest" | "BooleanTest":
                return _BOOL
            case "List":
                return _common(walk, fields.get("items", ()), within - 1)
            case _:
                pass
    return _OTHER


def _common(walk: Walk, nodes: Sequence[Fields], within: int) -> Operand:
    """The one that all of ``nodes`` come to, where those that have a type are alike in it."""
    told = {operand(walk, node, within) for node in nodes}
    typed = told - {_UNTYPED}
    if len(typed) > 1:
        return _OTHER
    return next(iter(typed or told), _OTHER)


def _constant(fields: Fields) -> Operand:
    """make_const of parse_node.c."""
    if "ival" in fields:
        return _INT4
    if "fval" in fields:
        digits = str(fields["fval"].get("fval", ""))
        return _INT8 if digits.isdecimal() and int(digits) < _MOST_INT8 else _NUMERIC
    if "boolval" in fields:
        return _BOOL
    return _UNTYPED if "sval" in fields or "isnull" in fields else _OTHER


def _cast(fields: Fields) -> Operand:
    names = strings(fields.get("names", ()))
    if not names or "arrayBounds" in fields or fields.get("setof") or fields.get("pct_type"):
        return _OTHER
    return Operand(OperandKind.TYPED, names[-1], names[-2] if len(names) > 1 else None)
