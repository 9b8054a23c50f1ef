"""What PostgreSQL calls a column of a result that nobody has named.

Owns the names and how sure PostgreSQL is of each, which decides whether a cast names the column instead. A
rewritten expression must be called as the one that was written. Knows no catalog and no rewriting.

Source: FigureColnameInternal in src/backend/parser/parse_target.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

Node = Any
Fields = Mapping[str, Any]

SURE: Final = 2
"""Of a name that a cast leaves as it is."""
_GUESSED: Final = 1
_NONE: Final = ("", 0)
_NAMELESS: Final = "?column?"


def column_name(node: Node) -> tuple[str, int]:
    """The name of a column that is this expression, and how sure it is; "" and 0 where it has none."""
    if not isinstance(node, Mapping) or len(node) != 1:
        return _NONE
    ((kind, fields),) = node.items()
    named = _NAMES.get(kind)
    return _NONE if named is None else named(fields)


def _column(fields: Fields) -> tuple[str, int]:
    names = _strings(fields["fields"])
    return (names[-1], SURE) if names else _NONE


def _call(fields: Fields) -> tuple[str, int]:
    return _strings(fields["funcname"])[-1], SURE


def _cast(fields: Fields) -> tuple[str, int]:
    name, sure = column_name(fields["arg"])
    types = _strings(fields["typeName"].get("names", ()))
    return (types[-1], _GUESSED) if sure < SURE and types else (name, sure)


def _case(fields: Fields) -> tuple[str, int]:
    name, sure = column_name(fields.get("defresult"))
    return (name, sure) if sure == SURE else ("case", _GUESSED)


def _operation(fields: Fields) -> tuple[str, int]:
    return ("nullif", SURE) if fields["kind"] == "AEXPR_NULLIF" else _NONE


def _extreme(fields: Fields) -> tuple[str, int]:
    return ("greatest" if fields["op"] == "IS_GREATEST" else "least"), SURE


def _part(fields: Fields) -> tuple[str, int]:
    names = _strings(fields.get("indirection", ()))
    return (names[-1], SURE) if names else column_name(fields["arg"])


def _sub_select(fields: Fields) -> tuple[str, int]:
    """One that gives a value is called as the column of its first arm."""
    kind = fields["subLinkType"]
    if kind != "EXPR_SUBLINK":
        return _SUB_SELECTS.get(kind, _NONE)
    arm = fields["subselect"].get("SelectStmt", {})
    while "larg" in arm:
        arm = arm["larg"]
    if "valuesLists" in arm:
        return "column1", SURE
    target = arm.get("targetList", [{}])[0].get("ResTarget", {})
    return target.get("name") or column_name(target.get("val"))[0] or _NAMELESS, SURE


def _fixed(name: str) -> Callable[[Fields], tuple[str, int]]:
    return lambda _: (name, SURE)


def _strings(nodes: Any) -> list[str]:
    return [text for node in nodes if (text := node.get("String", {}).get("sval")) is not None]


_SUB_SELECTS: Final = MappingProxyType({"EXISTS_SUBLINK": ("exists", SURE), "ARRAY_SUBLINK": ("array", SURE)})
_NAMES: Final[Mapping[str, Callable[[Fields], tuple[str, int]]]] = MappingProxyType(
    {
        "A_ArrayExpr": _fixed("array"),
        "A_Expr": _operation,
        "A_Indirection": _part,
        "CaseExpr": _case,
        "CoalesceExpr": _fixed("coalesce"),
        "CollateClause": lambda fields: column_name(fields["arg"]),
        "ColumnRef": _column,
        "FuncCall": _call,
        "GroupingFunc": _fixed("grouping"),
        "MinMaxExpr": _extreme,
        "RowExpr": _fixed("row"),
        "SubLink": _sub_select,
        "TypeCast": _cast,
    }
)
