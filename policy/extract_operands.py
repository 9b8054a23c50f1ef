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
_INT4, _INT8, _NUMERIC, _BOOL, _TEXT, _NAME = (
    Operand(OperandKind.TYPED, name, PG_CATALOG)
    for name in ("int4", "int8", "numeric", "bool", "text", "name")
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


def element(walk: Walk, node: Fields) -> Operand:
    """What is certain of the elements of the array ``node``, which ANY and ALL compare one by one."""
    if "A_ArrayExpr" in node:
        return _common(walk, node["A_ArrayExpr"].get("elements", ()), _WRAPPERS)
    if "TypeCast" in node and "arrayBounds" in node["TypeCast"]["typeName"]:
        names = strings(node["TypeCast"]["typeName"].get("names", ()))
        return Operand(OperandKind.TYPED, names[-1], names[-2] if len(names) > 1 else None)
    of = operand(walk, node)
    if of in (_OTHER, _UNTYPED) or of.kind is OperandKind.PARAMETER:
        # A constant or parameter becomes an array of the other side's type (make_scalar_array_op).
        return of
    return Operand(OperandKind.ELEMENT, sides=(of,))


def _common(walk: Walk, nodes: Sequence[Fields], within: int) -> Operand:
    """What all of ``nodes`` come to: the one of them that has a type, or those that have."""
    told = dict.fromkeys(operand(walk, node, within) for node in nodes)
    typed = tuple(each for each in told if each != _UNTYPED)
    if len(typed) > 1:
        return _OTHER if _OTHER in typed else Operand(OperandKind.COMMON, sides=typed)
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


def _call(walk: Walk, fields: Fields, within: int) -> Operand:
    names = strings(fields["funcname"])
    given: Sequence[Fields] = () if "agg_within_group" in fields else fields.get("args", ())
    sides = tuple([operand(walk, argument, within) for argument in given])
    return Operand(OperandKind.CALL, names[-1], names[-2] if len(names) > 1 else None, sides=sides)


def _operation(walk: Walk, fields: Fields, within: int) -> Operand:
    if fields["kind"] == "AEXPR_NULLIF":
        return _common(walk, (fields["lexpr"], fields["rexpr"]), within)
    if fields["kind"] not in _ONE_VALUE_EACH:
        return _OTHER
    names = strings(fields["name"])
    sides = [operand(walk, fields[side], within) for side in ("lexpr", "rexpr") if side in fields]
    return Operand(
        OperandKind.OPERATION, names[-1], names[-2] if len(names) > 1 else None, sides=tuple(sides)
    )


def _case(walk: Walk, fields: Fields, within: int) -> Operand:
    results = [when["CaseWhen"]["result"] for when in fields["args"]]
    return _common(walk, [*results, *filter(None, (fields.get("defresult"),))], within)


def _sub_link(walk: Walk, fields: Fields, within: int) -> Operand:
    if fields.get("subLinkType") == "EXISTS_SUBLINK":
        return _BOOL
    query = fields["subselect"].get("SelectStmt", {})
    targets = query.get("targetList", ())
    if fields.get("subLinkType") != "EXPR_SUBLINK" or len(targets) != 1:
        return _OTHER
    return selected(walk, targets[0]["ResTarget"], within)


def selected(walk: Walk, target: Fields, within: int = _WRAPPERS) -> Operand:
    """An item of a select list, by its ResTarget's fields: what has no type becomes text there."""
    value = operand(walk, target.get("val", {}), within)
    return _TEXT if value == _UNTYPED else value


def _indirection(walk: Walk, fields: Fields, within: int) -> Operand:
    if not all("A_Indices" in step and "is_slice" not in step["A_Indices"] for step in fields["indirection"]):
        return _OTHER
    of = operand(walk, fields["arg"], within)
    return _OTHER if of == _OTHER else Operand(OperandKind.ELEMENT, sides=(of,))


def _value_function(_: Walk, fields: Fields, __: int) -> Operand:
    return _NAME if fields["op"] in _NAMES_OF_THE_SESSION else _OTHER


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
_NAMES_OF_THE_SESSION: Final = frozenset(
    {
        "SVFOP_CURRENT_CATALOG",
        "SVFOP_CURRENT_ROLE",
        "SVFOP_CURRENT_SCHEMA",
        "SVFOP_CURRENT_USER",
        "SVFOP_SESSION_USER",
        "SVFOP_USER",
    }
)
_ONE_VALUE_EACH: Final = frozenset({"AEXPR_OP", "AEXPR_LIKE", "AEXPR_ILIKE"})
"""Kinds of A_Expr whose value is what the operator named gives."""
_READERS: Final[Mapping[str, _Reader]] = {
    "A_Const": _constant,
    "A_Expr": _operation,
    "A_Indirection": _indirection,
    "BoolExpr": _same(_BOOL),
    "BooleanTest": _same(_BOOL),
    "CaseExpr": _case,
    "CoalesceExpr": _one_of("args"),
    "CollateClause": _argument,
    "ColumnRef": _column,
    "FuncCall": _call,
    "List": _one_of("items"),
    "MinMaxExpr": _one_of("args"),
    "NullTest": _same(_BOOL),
    "ParamRef": _same(Operand(OperandKind.PARAMETER)),
    "SQLValueFunction": _value_function,
    "SubLink": _sub_link,
    "TypeCast": _cast,
}
