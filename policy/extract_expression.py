"""What the nodes of expressions mean: calls, operators, casts, columns, parameters.

Handlers for ``extract_walk``; ``HANDLERS`` is the table. Knows nothing of query levels beyond the current
one, and nothing of statements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from policy import builtin
from policy.extract_compared import compared_by_call
from policy.extract_constants import exact_constant
from policy.extract_operands import element, operand
from policy.extract_pinned import pinned_name
from policy.extract_walk import (
    NOTHING,
    Fields,
    Handler,
    NotUnderstoodError,
    Walk,
    qualifiers,
    setting_name,
    strings,
)
from policy.facts import ColumnRef, Operand, RelationRef, SettingHow, SettingRef, TypeRef, Use
from policy.nodes import FIELDS

_TRUE_WORDS: Final = frozenset({"true", "t", "yes", "y", "on", "1"})
"""What PostgreSQL's boolean input takes for true, short of abbreviations that nobody writes."""
_SET_CONFIG_ARGUMENTS: Final = ("setting_name", "new_value", "is_local")

_IMPLIED_OPERATORS: Final[Mapping[str, tuple[str, ...]]] = {
    "AEXPR_BETWEEN": (">=", "<="),
    "AEXPR_NOT_BETWEEN": ("<", ">"),
    "AEXPR_BETWEEN_SYM": (">=", "<="),
    "AEXPR_NOT_BETWEEN_SYM": ("<", ">"),
}
"""Kinds of A_Expr whose name is a keyword; transformAExprBetween in parse_expr.c supplies these."""
_NAMED_OPERATORS: Final[Mapping[str, bool]] = {
    "AEXPR_OP": False,
    "AEXPR_OP_ANY": False,
    "AEXPR_OP_ALL": False,
    "AEXPR_DISTINCT": True,
    "AEXPR_NOT_DISTINCT": True,
    "AEXPR_NULLIF": True,
    "AEXPR_IN": True,
    "AEXPR_LIKE": True,
    "AEXPR_ILIKE": True,
    "AEXPR_SIMILAR": True,
}
"""Kinds of A_Expr whose name is the operator; True where the grammar, not the text, gave it."""


def _a_expr(walk: Walk, fields: Fields) -> None:
    kind = fields["kind"]
    position = walk.position(fields)
    implied = _NAMED_OPERATORS.get(kind)
    if implied is not None:
        names, left, right = strings(fields["name"]), "lexpr" in fields, "rexpr" in fields
        for sides in _compared(walk, kind, fields):
            walk.operator(names, position, implied, left, right, operands=sides)
    elif kind in _IMPLIED_OPERATORS:
        sides = _sides(walk, fields)
        for symbol in _IMPLIED_OPERATORS[kind]:
            walk.operator([symbol], position, implied=True, operands=sides)
    else:
        raise NotUnderstoodError(f"an expression of kind {kind}", position)
    walk.rest("A_Expr", fields, _NAME)


def _compared(walk: Walk, kind: str, fields: Fields) -> list[tuple[Operand, ...]]:
    """What the operator is given; of rows, member by member (make_row_comparison_op in parse_expr.c)."""
    if kind in _OF_ARRAYS:
        return [(operand(walk, fields["lexpr"]), element(walk, fields["rexpr"]))]
    rows = _rows(fields.get("lexpr", _NO_NODE)), _rows(fields.get("rexpr", _NO_NODE))
    pairs = [pair for one in rows[0] for other in rows[1] for pair in zip(one, other, strict=False)]
    if not pairs or len({len(row) for row in (*rows[0], *rows[1])}) != 1:
        return [_sides(walk, fields)]
    return list(dict.fromkeys((operand(walk, one), operand(walk, other)) for one, other in pairs))


def _rows(node: Fields) -> list[list[Fields]]:
    """The members of a row, or of each row of a list of nothing else."""
    items = node["List"]["items"] if "List" in node else [node]
    rows = [item["RowExpr"].get("args", []) for item in items if "RowExpr" in item]
    return rows if len(rows) == len(items) else []


def _sides(walk: Walk, fields: Fields) -> tuple[Operand, ...]:
    return tuple([operand(walk, fields[side]) for side in ("lexpr", "rexpr") if side in fields])


_OF_ARRAYS: Final = frozenset({"AEXPR_OP_ANY", "AEXPR_OP_ALL"})
"""What is compared are elements of the right side."""


_ITEM_DEPTH: Final[Mapping[str, int]] = {"order": 1, "group": 0, "distinct": 0}
"""How far below its clause an item stands that may name an output: ORDER BY's are wrapped in a SortBy."""


def _column_ref(walk: Walk, fields: Fields) -> None:
    column_ref(walk, fields, (), walk.depth - walk.clause_depth == _ITEM_DEPTH.get(walk.clause, -1))


def column_ref(walk: Walk, fields: Fields, selected: tuple[str | None, ...], alone: bool = False) -> None:
    """Record a ColumnRef, of whose value ``selected`` is taken: ``(name).selected``."""
    # The commonest node of all: no call that can be spared.
    parts = fields["fields"]
    if len(fields) == 2 and "location" in fields:
        walk.nodes += 1
    else:
        walk.leaf("ColumnRef", fields)
    position = walk.position(fields)
    scope = walk.scope
    query = None if scope is None else scope.index
    name = None if "A_Star" in parts[-1] else parts[-1]["String"]["sval"]
    qualifier = tuple([part["String"]["sval"] for part in parts[:-1]])
    walk.columns.append(
        ColumnRef(name, qualifier, Use.READ, position, query, None, walk.clause, selected, alone)
    )
    if qualifier and name is not None:
        walk.attribute(name, position, (*qualifier, name))


def _a_indirection(walk: Walk, fields: Fields) -> None:
    indirection = fields["indirection"]
    column = fields["arg"].get("ColumnRef")
    selected: list[str | None] = []
    for step in indirection:
        if "String" not in step and "A_Star" not in step:
            break
        selected.append(step["String"]["sval"] if "String" in step else None)
    if column is None:
        walk.visit(fields["arg"])
    else:
        column_ref(walk, column, tuple(selected))
    if (
        column is None
        and walk.scope is not None
        and not walk.in_aggregate
        and any("String" in step for step in indirection)
    ):
        # ``(aggregate).f`` may be a call, of a function that returns a set.
        walk.scope.may_return_set = True
    position = _place(walk, fields)
    for step in indirection:
        if "String" in step:
            walk.attribute(step["String"]["sval"], position)
    walk.rest("A_Indirection", fields, _ARG)


def _place(walk: Walk, fields: Fields) -> int | None:
    """Position of the value that an A_Indirection, which has none itself, takes a part of."""
    while "location" not in fields and "arg" in fields:
        fields = next(iter(fields["arg"].values()), {})
    return walk.position(fields)


def func_call(walk: Walk, fields: Fields, in_from: bool = False) -> None:
    """Record a FuncCall and what it changes where it is set_config, then walk its arguments."""
    names = strings(fields["funcname"])
    arguments = fields.get("args", ())
    literals = tuple(exact_constant(argument) for argument in arguments)
    argument_names: tuple[str | None, ...] = ()
    if any("NamedArgExpr" in argument for argument in arguments):
        argument_names = tuple(argument.get("NamedArgExpr", {}).get("name") for argument in arguments)
    inside = walk.in_aggregate
    walk.in_aggregate = _shapes_rows(walk, names, fields)
    walk.function(
        names,
        fields,
        len(arguments),
        literals,
        argument_names=argument_names,
        in_from=in_from,
        operands=() if argument_names or "func_variadic" in fields else _operands(walk, arguments),
    )
    if names[-1] == "set_config":
        _set_config(walk, fields, literals, argument_names)
    compared_by_call(walk, fields)
    if "agg_filter" in fields:
        walk.coerced(fields["agg_filter"], "bool")
    walk.rest("FuncCall", fields, _FUNCNAME)
    walk.in_aggregate = inside


def _operands(walk: Walk, arguments: Sequence[Fields]) -> tuple[Operand, ...]:
    return tuple([operand(walk, argument) for argument in arguments])


def _shapes_rows(walk: Walk, names: list[str], fields: Fields) -> bool:
    """Note what a call says of its query's number of rows; gives whether its arguments are an aggregate's."""
    scope = walk.scope
    if scope is None or walk.in_aggregate or walk.clause not in _ROW_CLAUSES:
        return walk.in_aggregate
    name = names[-1]
    if names[:-1] in ([], [builtin.PG_CATALOG]) and builtin.is_builtin(name):
        if "over" in fields:
            return False
        if builtin.is_aggregate(name):
            scope.aggregates = True
            return True
        if not builtin.returns_set(name):
            return False
    # A function of the user's may be an aggregate, or return a set.
    scope.may_return_set = True
    return False


def _sql_json_aggregate(node: str) -> Handler:
    def handler(walk: Walk, fields: Fields) -> None:
        inside = walk.in_aggregate
        walk.makes_json = True
        if walk.scope is not None and "over" not in fields["constructor"]:
            walk.scope.aggregates, walk.in_aggregate = True, True
        walk.rest(node, fields)
        walk.in_aggregate = inside

    return handler


def _sql_json_constructor(node: str) -> Handler:
    def handler(walk: Walk, fields: Fields) -> None:
        walk.makes_json = True
        walk.rest(node, fields)

    return handler


def _func_call(walk: Walk, fields: Fields) -> None:
    func_call(walk, fields)


def _set_config(
    walk: Walk, fields: Fields, literals: tuple[str | None, ...], argument_names: tuple[str | None, ...]
) -> None:
    by_name = {
        name or _SET_CONFIG_ARGUMENTS[number]: literal
        for number, (name, literal) in enumerate(
            zip(argument_names or (None,) * len(literals), literals, strict=True)
        )
        if name or number < len(_SET_CONFIG_ARGUMENTS)
    }
    setting, value, local = (by_name.get(name) for name in _SET_CONFIG_ARGUMENTS)
    variadic = bool(fields.get("func_variadic"))
    plain = not variadic and not argument_names
    walk.settings.append(
        SettingRef(
            None if setting is None or variadic else setting_name(setting),
            SettingHow.SET_CONFIG,
            None if value is None else (value,),
            local is not None and local.lower() in _TRUE_WORDS,
            walk.position(fields),
            pinned_name(walk, fields.get("args", ())) if plain and setting is None else None,
        )
    )


def _type_cast(walk: Walk, fields: Fields) -> None:
    argument = fields.get("arg", {})
    is_literal = "sval" in argument.get("A_Const", ())
    before = len(walk.types)
    type_name(walk, fields["typeName"], True, is_literal, exact_constant(argument))
    # The type itself comes first; what its modifiers name follows.
    walk.types[before : before + 1] = [
        replace(named, operand=operand(walk, argument)) for named in walk.types[before : before + 1]
    ]
    walk.rest("TypeCast", fields, _TYPE_NAME)


def _type_name(walk: Walk, fields: Fields) -> None:
    type_name(walk, fields, cast=not walk.only_names)


def type_name(
    walk: Walk, fields: Fields, cast: bool, literal: bool = False, literal_value: str | None = None
) -> None:
    """Record a TypeName. ``relation.column%TYPE`` mentions a relation instead."""
    names = strings(fields.get("names", ()))
    position = walk.position(fields)
    if fields.get("pct_type"):
        *of, column = names
        if of:
            catalog, schema = qualifiers(of)
            walk.relations.append(
                RelationRef(of[-1], schema, catalog, None, Use.DEFINE, position, walk.query)
            )
            walk.columns.append(ColumnRef(column, tuple(of), position=position, query=walk.query))
    elif names:
        schema = names[-2] if len(names) > 1 else None
        walk.types.append(
            TypeRef(names[-1], schema, cast, literal, literal_value, position, array="arrayBounds" in fields)
        )
    walk.rest("TypeName", fields, _NAMES)


def _function_parameter(walk: Walk, fields: Fields) -> None:
    if "argType" in fields:
        type_name(walk, fields["argType"], cast=False)
    walk.rest("FunctionParameter", fields, _ARGUMENT_TYPE)


def _column_def(walk: Walk, fields: Fields) -> None:
    """A column that a table is to have; in FROM, one that a function's rows are read into."""
    if "typeName" in fields:
        type_name(walk, fields["typeName"], cast=walk.clause == "from")
    walk.rest("ColumnDef", fields, _TYPE_NAME)


def _sub_link(walk: Walk, fields: Fields) -> None:
    position = walk.position(fields)
    if "operName" in fields:
        walk.operator(strings(fields["operName"]), position, operands=_with_selected(walk, fields))
    elif fields.get("subLinkType") == "ANY_SUBLINK":
        walk.operator(["="], position, implied=True, operands=_with_selected(walk, fields))
    walk.rest("SubLink", fields, _OPER_NAME)


def _with_selected(walk: Walk, fields: Fields) -> tuple[Operand, ...]:
    """What ``value operator ANY (SELECT …)`` compares: the value, and the select list's one item."""
    return operand(walk, fields["testexpr"]), operand(walk, {"SubLink": {**fields, **_ONE_VALUE}})


_ONE_VALUE: Final = {"subLinkType": "EXPR_SUBLINK"}


def _case_expr(walk: Walk, fields: Fields) -> None:
    position = walk.position(fields)
    conditions = [when["CaseWhen"]["expr"] for when in fields["args"]]
    if "arg" in fields:
        of = operand(walk, fields["arg"])
        for sides in dict.fromkeys((of, operand(walk, condition)) for condition in conditions):
            walk.operator(["="], position, implied=True, operands=sides)
    else:
        for condition in conditions:
            walk.coerced(condition, "bool")
    walk.rest("CaseExpr", fields)


def _coercing(node: str, wanted: str, *names: str) -> Handler:
    """A handler for a node that takes values of the server's type ``wanted`` in the fields ``names``."""

    def handler(walk: Walk, fields: Fields) -> None:
        for name in names:
            value = fields.get(name, _NO_NODE)
            for each in value if isinstance(value, list) else (value,):
                walk.coerced(each, wanted)
        walk.rest(node, fields)

    return handler


def _sort_by(walk: Walk, fields: Fields) -> None:
    if "useOp" in fields:
        walk.operator(strings(fields["useOp"]), walk.position(fields))
    walk.rest("SortBy", fields, _USE_OP)


def _min_max_expr(walk: Walk, fields: Fields) -> None:
    walk.compared.extend(operand(walk, each) for each in fields.get("args", ()))
    walk.rest("MinMaxExpr", fields)


def _param_ref(walk: Walk, fields: Fields) -> None:
    walk.parameters = max(walk.parameters, fields.get("number", 0))
    walk.rest("ParamRef", fields)


def _multi_assign_ref(walk: Walk, fields: Fields) -> None:
    # ``(a, b) = source``: the tree repeats the one source under each column.
    again = fields["source"] == walk.assigned
    walk.assigned = fields["source"]
    walk.rest("MultiAssignRef", fields, _SOURCE if again else NOTHING)


_NO_NODE: Final[Fields] = {}
_ARG: Final = frozenset({"arg"})
_ARGUMENT_TYPE: Final = frozenset({"argType"})
_FUNCNAME: Final = frozenset({"funcname"})
_NAME: Final = frozenset({"name"})
_NAMES: Final = frozenset({"names"})
_OPER_NAME: Final = frozenset({"operName"})
_SOURCE: Final = frozenset({"source"})
_ROW_CLAUSES: Final = frozenset({"target", "distinct", "group", "having", "order", "values"})
"""Where a set-returning function multiplies rows, or an aggregate makes one of them."""
_TYPE_NAME: Final = frozenset({"typeName"})
_USE_OP: Final = frozenset({"useOp"})


def _leaf(node: str) -> Handler:
    """A handler for a node that holds nothing but constants."""
    known = FIELDS[node].keys()

    def handler(walk: Walk, fields: Fields) -> None:
        if fields.keys() <= known:
            walk.nodes += 1
        else:
            walk.leaf(node, fields)

    return handler


HANDLERS: Final[Mapping[str, Handler]] = {
    "A_Const": _leaf("A_Const"),
    "A_Expr": _a_expr,
    "A_Indices": _coercing("A_Indices", "int4", "lidx", "uidx"),
    "A_Indirection": _a_indirection,
    "A_Star": _leaf("A_Star"),
    "BoolExpr": _coercing("BoolExpr", "bool", "args"),
    "BooleanTest": _coercing("BooleanTest", "bool", "arg"),
    "CaseExpr": _case_expr,
    "ColumnDef": _column_def,
    "ColumnRef": _column_ref,
    "FuncCall": _func_call,
    "FunctionParameter": _function_parameter,
    "JsonArrayAgg": _sql_json_aggregate("JsonArrayAgg"),
    "JsonArrayConstructor": _sql_json_constructor("JsonArrayConstructor"),
    "JsonArrayQueryConstructor": _sql_json_constructor("JsonArrayQueryConstructor"),
    "JsonObjectAgg": _sql_json_aggregate("JsonObjectAgg"),
    "JsonObjectConstructor": _sql_json_constructor("JsonObjectConstructor"),
    "JsonScalarExpr": _sql_json_constructor("JsonScalarExpr"),
    "MultiAssignRef": _multi_assign_ref,
    "ParamRef": _param_ref,
    "MinMaxExpr": _min_max_expr,
    "SortBy": _sort_by,
    "String": _leaf("String"),
    "SubLink": _sub_link,
    "TypeCast": _type_cast,
    "TypeName": _type_name,
    "WindowDef": _coercing("WindowDef", "int8", "startOffset", "endOffset"),
}
