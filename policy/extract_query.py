"""What the nodes of queries mean: SELECT, VALUES, TABLE and set operations, FROM, WITH.

Handlers for ``extract_walk``; ``HANDLERS`` is the table. Owns how PostgreSQL's scopes nest (parse_clause.c,
parse_cte.c) and what is certain of a query's size without a catalog. Statements that write are
``extract_write``'s, all others ``extract_utility``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from policy.extract_compared import compared_by_select
from policy.extract_constants import exact_constant
from policy.extract_expression import func_call
from policy.extract_names import output
from policy.extract_operands import selected
from policy.extract_walk import (
    CteInfo,
    Environment,
    Fields,
    Handler,
    NotUnderstoodError,
    Scope,
    Walk,
    inner_nodes,
    strings,
)
from policy.facts import ColumnRef, Join, Operand, OperandKind, OperatorRef, SourceKind, Use
from policy.model import StatementClass

# SELECT


def select(walk: Walk, fields: Fields, parent: Scope | None, only_values: bool = False) -> Scope:
    """One SELECT, VALUES, TABLE or set operation as a new query level under ``parent``; gives that level.

    ``only_values`` marks the VALUES of an INSERT, which read nothing and add no class ``select``.
    """
    if not only_values:
        walk.add_class(StatementClass.SELECT)
    before, clause, environment, inside = walk.scope, walk.clause, walk.environment, walk.in_aggregate
    walk.deeper()
    scope = walk.open_scope(parent)
    walk.in_aggregate = False
    if "withClause" in fields:
        with_clause(walk, fields["withClause"], parent)
    if "intoClause" in fields:
        walk.add_class(StatementClass.DDL)
        walk.visit({"IntoClause": fields["intoClause"]})
    if fields.get("op", "SETOP_NONE") != "SETOP_NONE":
        walk.scope = parent
        scope.arms = tuple(select(walk, fields[side], parent).index for side in ("larg", "rarg"))
        walk.scope = scope
    for item in fields.get("fromClause", ()):
        from_item(walk, item, scope, None)
    scope.where = fields.get("whereClause", scope.where)
    for field, name in _SELECT_CLAUSES:
        if field in fields:
            value = fields[field]
            (walk.all_in_clause if isinstance(value, list) else walk.in_clause)(name, value)
    for target in fields.get("targetList", ())[:1]:
        scope.position = walk.position(target["ResTarget"])
    _size(scope, fields)
    compared_by_select(walk, fields)
    if not scope.final:
        scope.outputs = tuple(
            replace(known, operand=selected(walk, target["ResTarget"]))
            for known, target in zip(scope.outputs, fields.get("targetList", ()), strict=True)
        )
    walk.rest("SelectStmt", fields, _SELECT_DONE)
    walk.depth -= 1
    walk.scope, walk.clause, walk.environment, walk.in_aggregate = before, clause, environment, inside
    return scope


def _size(scope: Scope, fields: Fields) -> None:
    """What is certain of the number of rows and the names of the columns."""
    targets = fields.get("targetList", ())
    scope.outputs = tuple(output(target["ResTarget"]) for target in targets)
    scope.distinct = "distinctClause" in fields
    scope.values_rows = len(fields.get("valuesLists", ()))
    if "limitCount" in fields:
        _limit(scope, fields)
    if scope.arms or scope.may_return_set:
        return
    aggregates = (scope.aggregates or "havingClause" in fields) and "groupClause" not in fields
    scope.one_row = scope.values_rows == 1 if scope.values_rows else aggregates or "fromClause" not in fields


def _limit(scope: Scope, fields: Fields) -> None:
    count = fields["limitCount"]
    parameters = {node["ParamRef"]["number"] for node in inner_nodes(count) if "ParamRef" in node}
    ties = fields.get("limitOption") == "LIMIT_OPTION_WITH_TIES"
    scope.limit = _whole_number(exact_constant(count))
    scope.limited = (
        _surely_not_null(count) and len(parameters) <= 1 and not (ties and _orders_nothing(fields))
    )
    if scope.limited:
        scope.limit_parameter = next(iter(parameters), None)


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _surely_not_null(node: Fields) -> bool:
    """A number, a parameter, a cast of one, or arithmetic on such."""
    for name, fields in node.items():
        if name == "A_Const":
            return not fields.get("isnull")
        if name == "ParamRef":
            return True
        if name == "TypeCast":
            return _surely_not_null(fields["arg"])
        if name == "A_Expr" and fields["kind"] == "AEXPR_OP":
            return strings(fields["name"])[-1] in _ARITHMETIC and all(
                _surely_not_null(fields[side]) for side in ("lexpr", "rexpr") if side in fields
            )
    return False


def _orders_nothing(fields: Fields) -> bool:
    """ORDER BY that tells no rows apart (``ORDER BY true``), so that WITH TIES returns them all."""
    return not any(_holds_column(item) or _is_output_number(item) for item in fields.get("sortClause", ()))


def _is_output_number(item: Fields) -> bool:
    return "ival" in item.get("SortBy", {}).get("node", {}).get("A_Const", ())


def _holds_column(node: Fields) -> bool:
    return any("ColumnRef" in inner for inner in inner_nodes(node))


def _select_stmt(walk: Walk, fields: Fields) -> None:
    select(walk, fields, walk.scope)


def _locking_clause(walk: Walk, fields: Fields) -> None:
    walk.add_class(StatementClass.LOCK)
    if walk.scope is not None:
        walk.scope.locking = True
    # OF names sources of this query by their alias; it mentions no relation.
    walk.rest("LockingClause", fields, _LOCKED)


# FROM


def from_item(walk: Walk, node: Fields, scope: Scope, join: int | None) -> None:
    """One item of FROM, USING or a join, added to ``scope``."""
    for name, fields in node.items():
        handler = _FROM_ITEMS.get(name)
        if handler is None:
            raise NotUnderstoodError(f"{name} in FROM", walk.position(fields))
        handler(walk, fields, scope, join)


def _from_relation(walk: Walk, fields: Fields, scope: Scope, join: int | None) -> None:
    alias, position = fields.get("alias"), walk.position(fields)
    info = walk.cte(fields)
    if info is None:
        relation = walk.relation(fields, Use.READ, scope.index)
        scope.relation_count += 1
        walk.source(
            scope,
            SourceKind.RELATION,
            alias,
            name=fields["relname"],
            relation=relation,
            join=join,
            position=position,
        )
        return
    if info.entered:
        info.recursive = True
    scope.cte_sources.append((len(scope.sources), info))
    walk.source(
        scope,
        SourceKind.CTE,
        alias,
        name=info.name,
        column_aliases=info.column_aliases,
        join=join,
        position=position,
    )


def _from_subselect(walk: Walk, fields: Fields, scope: Scope, join: int | None) -> None:
    lateral = bool(fields.get("lateral"))
    parent = scope if lateral else scope.parent
    walk.scope = parent
    inner = select(walk, fields["subquery"]["SelectStmt"], parent)
    walk.scope = scope
    inner.lateral = lateral
    walk.source(
        scope, SourceKind.SUBQUERY, fields.get("alias"), query=inner.index, lateral=lateral, join=join
    )
    walk.rest("RangeSubselect", fields, _SUBSELECT_DONE)


def _from_function(walk: Walk, fields: Fields, scope: Scope, join: int | None) -> None:
    called: list[str] = []
    columns = _column_names(fields.get("coldeflist"))
    before, walk.clause = walk.clause, "from"
    for item in fields["functions"]:
        expression, *definitions = item["List"]["items"]
        call = expression.get("FuncCall")
        if call is None:
            called.append("")
            walk.visit(expression)
        else:
            called.append(".".join(strings(call["funcname"])))
            func_call(walk, call, in_from=True)
        walk.visit_all(definitions)
        for definition in definitions:
            columns += _column_names(definition.get("List", {}).get("items"))
    walk.source(
        scope,
        SourceKind.FUNCTION,
        fields.get("alias"),
        # Without an alias the first function's own name qualifies.
        name=output({"val": fields["functions"][0]["List"]["items"][0]}).name,
        column_aliases=tuple(columns),
        functions=tuple(called),
        lateral=bool(fields.get("lateral")),
        join=join,
    )
    walk.rest("RangeFunction", fields, _FUNCTION_DONE)
    walk.clause = before


def _column_names(definitions: list[Fields] | None) -> list[str]:
    return [item["ColumnDef"]["colname"] for item in definitions or () if "ColumnDef" in item]


def _from_table_function(node: str, name: str) -> Callable[[Walk, Fields, Scope, int | None], None]:
    def handler(walk: Walk, fields: Fields, scope: Scope, join: int | None) -> None:
        walk.source(
            scope,
            SourceKind.TABLE_FUNCTION,
            fields.get("alias"),
            name=name,
            column_aliases=tuple(_table_function_columns(fields["columns"])),
            lateral=bool(fields.get("lateral")),
            join=join,
            position=walk.position(fields),
        )
        before, walk.clause = walk.clause, "from"
        walk.rest(node, fields)
        walk.clause = before

    return handler


def _table_function_columns(columns: list[Fields]) -> list[str]:
    names: list[str] = []
    for item in columns:
        for fields in item.values():
            if "columns" in fields:
                names += _table_function_columns(fields["columns"])
            elif "colname" in fields or "name" in fields:
                names.append(fields.get("colname") or fields["name"])
    return names


def _from_sample(walk: Walk, fields: Fields, scope: Scope, join: int | None) -> None:
    from_item(walk, fields["relation"], scope, join)
    arguments = fields.get("args", ())
    walk.function(
        strings(fields["method"]),
        fields,
        len(arguments),
        tuple(exact_constant(argument) for argument in arguments),
        in_from=True,
    )
    before, walk.clause = walk.clause, "from"
    walk.rest("RangeTableSample", fields, _SAMPLE_DONE)
    walk.clause = before


def _from_join(walk: Walk, fields: Fields, scope: Scope, join: int | None) -> None:
    kind = _JOIN_KINDS.get(fields["jointype"])
    if kind is None:
        raise NotUnderstoodError(f"a join of kind {fields['jointype']}")
    walk.deeper()
    index = len(walk.joins)
    walk.joins.append(None)
    first = len(scope.sources)
    from_item(walk, fields["larg"], scope, index)
    middle = len(scope.sources)
    from_item(walk, fields["rarg"], scope, index)
    using = strings(fields.get("usingClause", ()))
    natural, condition = bool(fields.get("isNatural")), fields.get("quals")
    for name in using:
        walk.columns.append(ColumnRef(name, (), Use.READ, None, scope.index, None, "using"))
        merged = Operand(OperandKind.COLUMN, name)
        walk.operators.append(OperatorRef("=", implied=True, operands=(merged, merged)))
    if natural:
        walk.operators.append(OperatorRef("=", implied=True))
    walk.in_clause("on", condition)
    alias, using_alias = fields.get("alias"), fields.get("join_using_alias")
    plain = kind == "inner" and not using and not natural and condition is None
    walk.joins[index] = Join(
        "cross" if plain else kind,
        natural,
        tuple(using),
        None if alias is None else alias["aliasname"],
        condition is not None,
        scope.index,
        join,
        None,
        () if alias is None else tuple(strings(alias.get("colnames", ()))),
        None if using_alias is None else using_alias["aliasname"],
        first,
        middle,
        len(scope.sources),
    )
    walk.rest("JoinExpr", fields, _JOIN_DONE)
    walk.depth -= 1


_JOIN_KINDS: Final[Mapping[str, str]] = {
    "JOIN_INNER": "inner",
    "JOIN_LEFT": "left",
    "JOIN_RIGHT": "right",
    "JOIN_FULL": "full",
}
_FROM_ITEMS: Final[Mapping[str, Callable[[Walk, Fields, Scope, int | None], None]]] = {
    "JoinExpr": _from_join,
    "JsonTable": _from_table_function("JsonTable", "json_table"),
    "RangeFunction": _from_function,
    "RangeSubselect": _from_subselect,
    "RangeTableFunc": _from_table_function("RangeTableFunc", "xmltable"),
    "RangeTableSample": _from_sample,
    "RangeVar": _from_relation,
}


# WITH


def with_clause(walk: Walk, fields: Fields, parent: Scope | None) -> None:
    """Walk the CTEs of a query whose enclosing scope is ``parent``, and leave their names in sight.

    Without RECURSIVE a CTE sees only those before it, so that ``WITH t AS (SELECT * FROM t)`` reads the table
    (parse_cte.c). A body never sees the FROM of the query that its WITH belongs to.
    """
    environment = Environment(walk.environment)
    walk.environment = environment
    infos: list[CteInfo] = []
    recursive = bool(fields.get("recursive"))
    for item in fields["ctes"]:
        cte = item["CommonTableExpr"]
        info = CteInfo(
            cte["ctename"],
            tuple(strings(cte.get("aliascolnames", ()))),
            _MATERIALIZED[cte.get("ctematerialized", "CTEMaterializeDefault")],
            tuple(cte[clause][column] for clause, column in _ADDED_COLUMNS if column in cte.get(clause, {})),
        )
        infos.append(info)
        if recursive:
            environment.names.setdefault(info.name, info)
    before = walk.scope
    for item, info in zip(fields["ctes"], infos, strict=True):
        cte = item["CommonTableExpr"]
        walk.deeper()
        walk.ctes.append(info)
        walk.scope = parent
        info.query, info.entered = len(walk.scopes), True
        final, walk.final = walk.final, False
        walk.visit(cte["ctequery"])
        walk.final = final
        info.entered = False
        walk.scope = walk.scopes[info.query]
        walk.rest("CommonTableExpr", cte, _CTE_DONE)
        walk.depth -= 1
        environment.names.setdefault(info.name, info)
    walk.scope = before
    walk.rest("WithClause", fields, _CTES)


_ADDED_COLUMNS: Final = (
    ("search_clause", "search_seq_column"),
    ("cycle_clause", "cycle_mark_column"),
    ("cycle_clause", "cycle_path_column"),
)
_MATERIALIZED: Final[Mapping[str, bool | None]] = {
    "CTEMaterializeDefault": None,
    "CTEMaterializeAlways": True,
    "CTEMaterializeNever": False,
}


_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%"})
_SELECT_CLAUSES: Final = (
    ("distinctClause", "distinct"),
    ("targetList", "target"),
    ("whereClause", "where"),
    ("groupClause", "group"),
    ("havingClause", "having"),
    ("windowClause", "window"),
    ("sortClause", "order"),
    ("limitOffset", "limit"),
    ("limitCount", "limit"),
    ("valuesLists", "values"),
    ("lockingClause", ""),
)
_SELECT_DONE: Final = frozenset(
    {"withClause", "intoClause", "larg", "rarg", "fromClause", *(field for field, _ in _SELECT_CLAUSES)}
)
_LOCKED: Final = frozenset({"lockedRels"})
_SUBSELECT_DONE: Final = frozenset({"subquery", "alias"})
_FUNCTION_DONE: Final = frozenset({"functions", "alias"})
_SAMPLE_DONE: Final = frozenset({"relation", "method"})
_JOIN_DONE: Final = frozenset({"larg", "rarg", "usingClause", "join_using_alias", "quals", "alias"})
_CTE_DONE: Final = frozenset({"ctequery", "aliascolnames"})
_CTES: Final = frozenset({"ctes"})
HANDLERS: Final[Mapping[str, Handler]] = {
    "LockingClause": _locking_clause,
    "SelectStmt": _select_stmt,
}
