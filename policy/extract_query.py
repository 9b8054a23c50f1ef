"""What the nodes of queries mean: SELECT and its arms, FROM, WITH, INSERT, UPDATE, DELETE, MERGE.

Handlers for ``extract_walk``; ``HANDLERS`` is the table. Owns how PostgreSQL's scopes nest (parse_clause.c,
parse_cte.c) and what is certain of a query without a catalog: its size, its output names. Utility statements
are ``extract_utility``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from policy import builtin
from policy.extract_expression import func_call
from policy.extract_names import output
from policy.extract_walk import (
    CteInfo,
    Environment,
    Fields,
    Handler,
    NotUnderstoodError,
    Scope,
    Walk,
    constant,
    is_null,
    strings,
)
from policy.facts import ColumnRef, Join, OperatorRef, SourceKind, Use, Write
from policy.model import StatementClass

# SELECT


def select(walk: Walk, fields: Fields, parent: Scope | None, only_values: bool = False) -> Scope:
    """One SELECT, VALUES, TABLE or set operation as a new query level under ``parent``; gives that level.

    ``only_values`` marks the VALUES of an INSERT, which read nothing and add no class ``select``.
    """
    if not only_values:
        walk.add_class(StatementClass.SELECT)
    before, clause, environment = walk.scope, walk.clause, walk.environment
    scope = walk.open_scope(parent)
    if "withClause" in fields:
        with_clause(walk, fields["withClause"], parent)
    if "intoClause" in fields:
        walk.add_class(StatementClass.DDL)
        walk.enter("IntoClause", fields["intoClause"])
    if fields.get("op", "SETOP_NONE") != "SETOP_NONE":
        scope.arms = tuple(_arm(walk, fields[side], parent).index for side in ("larg", "rarg"))
        walk.scope = scope
    for item in fields.get("fromClause", ()):
        from_item(walk, item, scope, None)
    for field, name in _SELECT_CLAUSES:
        if field in fields:
            value = fields[field]
            (walk.all_in_clause if isinstance(value, list) else walk.in_clause)(name, value)
    _size(scope, fields)
    walk.rest("SelectStmt", fields, _SELECT_DONE)
    walk.scope, walk.clause, walk.environment = before, clause, environment
    return scope


def _arm(walk: Walk, fields: Fields, parent: Scope | None) -> Scope:
    # Bare SelectStmt fields; counted as a level so that a long chain of UNIONs is bounded like any nesting.
    walk.scope = parent
    walk.depth += 1
    scope = select(walk, fields, parent)
    walk.depth -= 1
    return scope


def _size(scope: Scope, fields: Fields) -> None:
    """What is certain of the number of rows and the names of the columns."""
    targets = fields.get("targetList", ())
    scope.outputs = tuple(output(target["ResTarget"]) for target in targets)
    scope.distinct = "distinctClause" in fields
    scope.values_rows = len(fields.get("valuesLists", ()))
    scope.position = None
    if "limitCount" in fields:
        count = fields["limitCount"]
        scope.limit = _whole_number(constant(count))
        scope.limit_parameter = count.get("ParamRef", {}).get("number")
        ties = fields.get("limitOption") == "LIMIT_OPTION_WITH_TIES"
        scope.limited = _surely_not_null(count) and not (ties and _orders_nothing(fields))
    if scope.arms:
        return
    if scope.values_rows:
        scope.one_row = scope.values_rows == 1 and not any(
            _may_return_set(row) for row in fields["valuesLists"]
        )
        return
    aggregates = "havingClause" in fields or any(_aggregates(target) for target in targets)
    single = "fromClause" not in fields or (aggregates and "groupClause" not in fields)
    scope.one_row = single and not any(_may_return_set(target) for target in targets)


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
    return any("ColumnRef" in inner for inner in _inner_nodes(node))


def _aggregates(node: Fields) -> bool:
    """An aggregate of PostgreSQL's own stands in ``node`` at this level, not as a window function."""
    return any(
        "over" not in call and _is_builtin(call, builtin.is_aggregate) for call in _calls(node, _is_aggregate)
    ) or any("JsonObjectAgg" in inner or "JsonArrayAgg" in inner for inner in _inner_nodes(node))


def _may_return_set(node: Fields) -> bool:
    """A call that is not certain to return one value, outside the arguments of aggregates."""
    return any(not _is_builtin(call, _returns_one) for call in _calls(node, _is_aggregate))


def _is_aggregate(call: Fields) -> bool:
    return _is_builtin(call, builtin.is_aggregate)


def _is_builtin(call: Fields, test: Callable[[str], bool]) -> bool:
    *schema, name = strings(call["funcname"])
    return (not schema or schema == [builtin.PG_CATALOG]) and builtin.is_builtin(name) and test(name)


def _returns_one(name: str) -> bool:
    return not builtin.returns_set(name)


def _calls(node: Fields, closed: Callable[[Fields], bool]) -> list[Fields]:
    """The FuncCalls in ``node``, not in its sub-selects and not in the arguments of those ``closed``
    names."""
    calls = []
    for inner in _inner_nodes(node, closed):
        call = inner.get("FuncCall")
        if call is not None:
            calls.append(call)
    return calls


def _inner_nodes(node: Any, closed: Callable[[Fields], bool] | None = None) -> list[Fields]:
    """``node`` and every dict in it, in no order, less sub-selects and what is in a ``closed`` call."""
    found: list[Fields] = []
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            found.append(item)
            call = item.get("FuncCall")
            if closed is not None and call is not None and closed(call):
                continue
            waiting.extend(value for name, value in item.items() if name != "SelectStmt")
    return found


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
        walk.nodes += 1
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
    for item in fields.get("functions", ()):
        expression, *definitions = item["List"]["items"]
        call = expression.get("FuncCall")
        if call is None:
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
        # Without an alias the function's own name qualifies.
        name=called[0].rpartition(".")[2] if called else None,
        column_aliases=tuple(columns),
        functions=tuple(called),
        lateral=bool(fields.get("lateral")),
        join=join,
    )
    walk.rest("RangeFunction", fields, _FUNCTION_DONE)
    walk.clause = before


def _column_names(definitions: list[Fields] | None) -> list[str]:
    return [item["ColumnDef"]["colname"] for item in definitions or () if "ColumnDef" in item]


def _from_table_function(node: str) -> Callable[[Walk, Fields, Scope, int | None], None]:
    def handler(walk: Walk, fields: Fields, scope: Scope, join: int | None) -> None:
        walk.source(
            scope,
            SourceKind.TABLE_FUNCTION,
            fields.get("alias"),
            name=node.lower() if node == "JsonTable" else "xmltable",
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
        tuple(constant(argument) for argument in arguments),
        in_from=True,
    )
    before, walk.clause = walk.clause, "from"
    walk.rest("RangeTableSample", fields, _SAMPLE_DONE)
    walk.clause = before


def _from_join(walk: Walk, fields: Fields, scope: Scope, join: int | None) -> None:
    kind = _JOIN_KINDS.get(fields["jointype"])
    if kind is None:
        raise NotUnderstoodError(f"a join of kind {fields['jointype']}")
    walk.depth += 1
    index = len(walk.joins)
    walk.joins.append(None)
    first = len(scope.sources)
    from_item(walk, fields["larg"], scope, index)
    middle = len(scope.sources)
    from_item(walk, fields["rarg"], scope, index)
    using = strings(fields.get("usingClause"))
    natural, condition = bool(fields.get("isNatural")), fields.get("quals")
    for name in using:
        walk.columns.append(ColumnRef(name, (), Use.READ, None, scope.index, None, "using"))
    if using or natural:
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
        () if alias is None else tuple(strings(alias.get("colnames"))),
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
    "JsonTable": _from_table_function("JsonTable"),
    "RangeFunction": _from_function,
    "RangeSubselect": _from_subselect,
    "RangeTableFunc": _from_table_function("RangeTableFunc"),
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
            tuple(strings(cte.get("aliascolnames"))),
            _MATERIALIZED[cte.get("ctematerialized", "CTEMaterializeDefault")],
        )
        infos.append(info)
        if recursive:
            environment.names.setdefault(info.name, info)
    before = walk.scope
    for item, info in zip(fields["ctes"], infos, strict=True):
        cte = item["CommonTableExpr"]
        walk.nodes += 1
        walk.ctes.append(info)
        walk.scope = parent
        info.query, info.entered = len(walk.scopes), True
        final, walk.final = walk.final, False
        walk.visit(cte["ctequery"])
        walk.final = final
        info.entered = False
        walk.scope = walk.scopes[info.query]
        walk.rest("CommonTableExpr", cte, _CTE_DONE)
        environment.names.setdefault(info.name, info)
    walk.scope = before
    walk.rest("WithClause", fields, _CTES)


_MATERIALIZED: Final[Mapping[str, bool | None]] = {
    "CTEMaterializeDefault": None,
    "CTEMaterializeAlways": True,
    "CTEMaterializeNever": False,
}


# INSERT, UPDATE, DELETE, MERGE


def _insert(walk: Walk, fields: Fields) -> None:
    before, environment, parent = walk.scope, walk.environment, walk.scope
    scope, target, nested = _open_write(walk, fields, StatementClass.INSERT, Use.INSERT)
    columns = _written(walk, fields.get("cols"), Use.INSERT, target, "insert")
    source = "default"
    values: tuple[tuple[str, ...], ...] = ()
    if "selectStmt" in fields:
        query = fields["selectStmt"]["SelectStmt"]
        only_values = "valuesLists" in query
        source = "values" if only_values else "select"
        values = tuple(_row(row) for row in query["valuesLists"]) if only_values else ()
        walk.scope = parent
        select(walk, query, parent, only_values)
        walk.scope = scope
    conflict = fields.get("onConflictClause")
    if conflict is not None:
        _on_conflict(walk, conflict, scope, target)
    _returning(walk, fields, scope, target)
    walk.add_write(
        Write(
            StatementClass.INSERT,
            target,
            scope.index,
            columns=columns,
            has_columns="cols" in fields,
            source=source,
            values=values,
            on_conflict=None if conflict is None else _CONFLICT_ACTIONS[conflict["action"]],
            position=nested,
        )
    )
    walk.rest("InsertStmt", fields, _INSERT_DONE)
    walk.scope, walk.environment = before, environment


def _row(row: Fields) -> tuple[str, ...]:
    return tuple(_item(item) for item in row["List"]["items"])


def _item(node: Fields) -> str:
    if "SetToDefault" in node:
        return "default"
    if is_null(node):
        return "null"
    value = constant(node)
    return "expr" if value is None else f"const:{value}"


_CONFLICT_ACTIONS: Final[Mapping[str, str]] = {
    "ONCONFLICT_NOTHING": "nothing",
    "ONCONFLICT_UPDATE": "update",
}


def _on_conflict(walk: Walk, fields: Fields, scope: Scope, target: int) -> None:
    before, walk.clause = walk.clause, "conflict"
    walk.nodes += 1
    if fields["action"] == "ONCONFLICT_UPDATE":
        walk.add_class(StatementClass.UPDATE)
    infer = fields.get("infer")
    if infer is not None:
        for element in infer.get("indexElems", ()):
            name = element["IndexElem"].get("name")
            if name is not None:
                walk.columns.append(
                    ColumnRef(name, (), Use.READ, walk.position(infer), scope.index, None, "conflict")
                )
        walk.enter("InferClause", infer)
    if fields["action"] == "ONCONFLICT_UPDATE":
        walk.source(scope, SourceKind.EXCLUDED, None, name="excluded", relation=target)
    _assignments(walk, fields.get("targetList"), target)
    walk.in_clause("where", fields.get("whereClause"))
    walk.rest("OnConflictClause", fields, _CONFLICT_DONE)
    walk.clause = before


def _update(walk: Walk, fields: Fields) -> None:
    _change(walk, fields, "UpdateStmt", Use.UPDATE, "fromClause")


def _delete(walk: Walk, fields: Fields) -> None:
    _change(walk, fields, "DeleteStmt", Use.DELETE, "usingClause")


def _change(walk: Walk, fields: Fields, node: str, use: Use, from_field: str) -> None:
    action = StatementClass(use.value)
    before, environment = walk.scope, walk.environment
    scope, target, nested = _open_write(walk, fields, action, use)
    for item in fields.get(from_field, ()):
        from_item(walk, item, scope, None)
    columns = _assignments(walk, fields.get("targetList"), target)
    where = fields.get("whereClause")
    walk.in_clause("where", where)
    _returning(walk, fields, scope, target)
    current_of = None if where is None else where.get("CurrentOfExpr")
    walk.add_write(
        Write(
            action,
            target,
            scope.index,
            where=where,
            where_position=None if where is None else leftmost(walk, where),
            columns=columns,
            has_columns=bool(columns),
            from_sources=from_field in fields,
            current_of=None if current_of is None else current_of.get("cursor_name", ""),
            position=nested,
        )
    )
    walk.rest(node, fields, _CHANGE_DONE)
    walk.scope, walk.environment = before, environment


def _merge(walk: Walk, fields: Fields) -> None:
    before, environment = walk.scope, walk.environment
    condition = fields["joinCondition"]
    actions = [clause["MergeWhenClause"] for clause in fields["mergeWhenClauses"]]
    uses = {_MERGE_USES[action["commandType"]] for action in actions} - {None}
    # One mention of the target, under the most that is done to it.
    use = next((use for use in (Use.DELETE, Use.UPDATE, Use.INSERT) if use in uses), Use.READ)
    scope, target, nested = _open_write(walk, fields, StatementClass.MERGE, use)
    from_item(walk, fields["sourceRelation"], scope, None)
    walk.in_clause("on", condition)
    for action in actions:
        _merge_action(walk, action, scope, on=condition, target=target, position=nested)
    _returning(walk, fields, scope, target)
    walk.rest("MergeStmt", fields, _MERGE_DONE)
    walk.scope, walk.environment = before, environment


_MERGE_USES: Final[Mapping[str, Use | None]] = {
    "CMD_INSERT": Use.INSERT,
    "CMD_UPDATE": Use.UPDATE,
    "CMD_DELETE": Use.DELETE,
    "CMD_NOTHING": None,
}
_MATCH_KINDS: Final[Mapping[str, str]] = {
    "MERGE_WHEN_MATCHED": "matched",
    "MERGE_WHEN_NOT_MATCHED_BY_SOURCE": "not_matched_by_source",
    "MERGE_WHEN_NOT_MATCHED_BY_TARGET": "not_matched_by_target",
}


def _merge_action(
    walk: Walk, fields: Fields, scope: Scope, *, on: Fields, target: int, position: int | None
) -> None:
    walk.nodes += 1
    use, match = _MERGE_USES[fields["commandType"]], _MATCH_KINDS[fields["matchKind"]]
    condition = fields.get("condition")
    walk.in_clause("when", condition)
    if use is Use.INSERT:
        columns = _written(walk, fields.get("targetList"), Use.INSERT, target, "insert")
        walk.all_in_clause("values", fields.get("values"))
    else:
        columns = _assignments(walk, fields.get("targetList"), target)
    walk.rest("MergeWhenClause", fields, _WHEN_DONE)
    if use is None:
        return
    statement_class = StatementClass(use.value)
    walk.add_class(statement_class, position)
    values = fields.get("values")
    walk.add_write(
        Write(
            statement_class,
            target,
            scope.index,
            where=on if match == "matched" else None,
            action_condition=condition,
            where_position=leftmost(walk, on),
            columns=columns,
            has_columns=bool(columns),
            source="" if use is not Use.INSERT else "default" if values is None else "values",
            values=() if values is None else (tuple(_item(item) for item in values),),
            from_sources=True,
            merge=True,
            match=match,
            position=position,
        )
    )


def _open_write(
    walk: Walk, fields: Fields, action: StatementClass, use: Use
) -> tuple[Scope, int, int | None]:
    """Enter a writing statement: its class, level, WITH and target. Gives level, target and position."""
    parent, top = walk.scope, not walk.scopes
    scope = walk.open_scope(parent)
    scope.final = scope.final and ("returningClause" in fields or "returningList" in fields)
    relation = fields["relation"]
    position = walk.start if top else walk.position(relation)
    walk.add_class(action, position)
    if "withClause" in fields:
        with_clause(walk, fields["withClause"], parent)
    target = walk.relation(relation, use, scope.index)
    scope.relation_count = 1
    walk.source(
        scope,
        SourceKind.RELATION,
        relation.get("alias"),
        name=relation["relname"],
        relation=target,
        position=walk.position(relation),
    )
    return scope, target, position


def _written(walk: Walk, targets: list[Fields] | None, use: Use, target: int, clause: str) -> tuple[str, ...]:
    """The columns named by INSERT, with the subscripts they carry."""
    names = []
    for item in targets or ():
        fields = item["ResTarget"]
        names.append(walk.written_column(fields, use, target, clause))
        walk.rest("ResTarget", fields)
    return tuple(names)


def _assignments(walk: Walk, targets: list[Fields] | None, target: int) -> tuple[str, ...]:
    """The columns that SET names; the values assigned are walked in clause ``set``."""
    before, walk.clause = walk.clause, "set"
    names = _written(walk, targets, Use.UPDATE, target, "set")
    walk.clause = before
    return names


def _returning(walk: Walk, fields: Fields, scope: Scope, target: int) -> None:
    """RETURNING as PostgreSQL 18 (a clause of its own) or older grammars (a list) give it."""
    clause = fields.get("returningClause", {})
    targets = clause.get("exprs") or fields.get("returningList")
    if not targets:
        return
    names = {"RETURNING_OPTION_OLD": "old", "RETURNING_OPTION_NEW": "new"}
    for item in clause.get("options", ()):
        option = item["ReturningOption"]
        names[option["option"]] = option["value"]
        walk.rest("ReturningOption", option)
    taken = {source.name for source in scope.sources}
    for name in names.values():
        if name not in taken:
            walk.source(scope, SourceKind.OLD_NEW, None, name=name, relation=target)
    scope.outputs = tuple(output(item["ResTarget"]) for item in targets)
    walk.all_in_clause("returning", targets)
    if clause:
        walk.rest("ReturningClause", clause, _RETURNING_DONE)


def leftmost(walk: Walk, node: Fields) -> int | None:
    """Position of the first thing in an expression: an operator's own location is its symbol's."""
    best: int | None = None
    for inner in _inner_nodes(node):
        position = walk.position(inner)
        if position is not None and (best is None or position < best):
            best = position
    return best


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
_INSERT_DONE: Final = frozenset(
    {"relation", "cols", "selectStmt", "onConflictClause", "returningClause", "returningList", "withClause"}
)
_CONFLICT_DONE: Final = frozenset({"infer", "targetList", "whereClause"})
_CHANGE_DONE: Final = frozenset(
    {
        "relation",
        "targetList",
        "whereClause",
        "fromClause",
        "usingClause",
        "returningClause",
        "returningList",
        "withClause",
    }
)
_MERGE_DONE: Final = frozenset(
    {
        "relation",
        "sourceRelation",
        "joinCondition",
        "mergeWhenClauses",
        "returningClause",
        "returningList",
        "withClause",
    }
)
_WHEN_DONE: Final = frozenset({"condition", "targetList", "values"})
_RETURNING_DONE: Final = frozenset({"options", "exprs"})

HANDLERS: Final[Mapping[str, Handler]] = {
    "DeleteStmt": _delete,
    "InsertStmt": _insert,
    "LockingClause": _locking_clause,
    "MergeStmt": _merge,
    "SelectStmt": _select_stmt,
    "UpdateStmt": _update,
}
