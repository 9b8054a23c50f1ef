"""What PostgreSQL calls the columns of a select list.

Owns FigureColname (parse_target.c): the name of an output that has no AS. Knows nothing of scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from policy.extract_walk import Fields, dotted, strings
from policy.facts import Output

UNNAMED: Final = "?column?"
_STRONG, _WEAK, _NONE = 2, 1, 0
_Name = tuple[int, str]


def output(target: Fields) -> Output:
    """One item of a select list, by its ResTarget's fields."""
    if "name" in target:
        return Output(target["name"])
    value: Fields = target.get("val", {})
    column = value.get("ColumnRef")
    if column is not None:
        names, star = dotted(column["fields"])
        return Output(None, star=True, qualifier=tuple(names)) if star else Output(names[-1])
    indirection = value.get("A_Indirection")
    if indirection is not None and "A_Star" in indirection["indirection"][-1]:
        return Output(None, star=True, composite=True)
    strength, name = _figure(value)
    return Output(name if strength else UNNAMED)


def _figure(node: Fields) -> _Name:
    """How strongly a node names the output it is, and how: a cast's type gives way to its argument's name."""
    for name, fields in node.items():
        namer = _NAMERS.get(name)
        if namer is not None:
            return namer(fields)
    return _NONE, UNNAMED


def _column_ref(fields: Fields) -> _Name:
    names, star = dotted(fields["fields"])
    return (_NONE, UNNAMED) if star else (_STRONG, names[-1])


def _indirection(fields: Fields) -> _Name:
    for step in reversed(fields["indirection"]):
        if "String" in step:
            return _STRONG, step["String"]["sval"]
    return _figure(fields["arg"])


def _type_cast(fields: Fields) -> _Name:
    strength, name = _figure(fields["arg"])
    names = strings(fields["typeName"].get("names", ()))
    return (strength, name) if strength > _WEAK or not names else (_WEAK, names[-1])


def _case(fields: Fields) -> _Name:
    strength, name = _figure(fields.get("defresult", {}))
    return (strength, name) if strength > _WEAK else (_WEAK, "case")


def _a_expr(fields: Fields) -> _Name:
    return (_STRONG, "nullif") if fields["kind"] == "AEXPR_NULLIF" else (_NONE, UNNAMED)


def _sub_link(fields: Fields) -> _Name:
    kind = fields.get("subLinkType")
    if kind in ("EXISTS_SUBLINK", "ARRAY_SUBLINK"):
        return _STRONG, kind.partition("_")[0].lower()
    if kind != "EXPR_SUBLINK":
        return _NONE, UNNAMED
    query = fields["subselect"].get("SelectStmt", {})
    while "larg" in query:
        query = query["larg"]
    for target in query.get("targetList", ())[:1]:
        named = target["ResTarget"]
        return (_STRONG, named["name"]) if "name" in named else _figure(named.get("val", {}))
    return _NONE, UNNAMED


def _value_function(fields: Fields) -> _Name:
    # SVFOP_CURRENT_TIMESTAMP_N is current_timestamp; the first of the enum is left out of the tree.
    words = fields.get("op", "SVFOP_CURRENT_DATE").removeprefix("SVFOP_").removesuffix("_N")
    return _STRONG, words.lower()


def _xml(fields: Fields) -> _Name:
    # IS DOCUMENT alone has no name.
    operation = fields.get("op", "IS_XMLCONCAT")
    return (
        (_NONE, UNNAMED) if operation == "IS_DOCUMENT" else (_STRONG, operation.removeprefix("IS_").lower())
    )


def _json_function(fields: Fields) -> _Name:
    return _STRONG, fields.get("op", "JSON_EXISTS_OP").removesuffix("_OP").lower()


def _always(name: str) -> Callable[[Fields], _Name]:
    return lambda _: (_STRONG, name)


_NAMERS: Final[Mapping[str, Callable[[Fields], _Name]]] = {
    "A_ArrayExpr": _always("array"),
    "A_Expr": _a_expr,
    "A_Indirection": _indirection,
    "CaseExpr": _case,
    "CoalesceExpr": _always("coalesce"),
    "CollateClause": lambda fields: _figure(fields["arg"]),
    "ColumnRef": _column_ref,
    "FuncCall": lambda fields: (_STRONG, strings(fields["funcname"])[-1]),
    "GroupingFunc": _always("grouping"),
    "JsonArrayAgg": _always("json_arrayagg"),
    "JsonArrayConstructor": _always("json_array"),
    "JsonArrayQueryConstructor": _always("json_array"),
    "JsonFuncExpr": _json_function,
    "JsonObjectAgg": _always("json_objectagg"),
    "JsonObjectConstructor": _always("json_object"),
    "JsonParseExpr": _always("json"),
    "JsonScalarExpr": _always("json_scalar"),
    "JsonSerializeExpr": _always("json_serialize"),
    "MergeSupportFunc": _always("merge_action"),
    "MinMaxExpr": lambda fields: (_STRONG, "least" if fields.get("op") == "IS_LEAST" else "greatest"),
    "RowExpr": _always("row"),
    "SQLValueFunction": _value_function,
    "SubLink": _sub_link,
    "TypeCast": _type_cast,
    "XmlExpr": _xml,
    "XmlSerialize": _always("xmlserialize"),
}
