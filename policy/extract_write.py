"""What the nodes that write mean: INSERT with ON CONFLICT, UPDATE, DELETE, MERGE, and their RETURNING.

Handlers for ``extract_walk``; ``HANDLERS`` is the table. Each statement, or action of a MERGE, becomes a
``facts.Write`` and a query level of its own, whose first source is the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from policy.extract_constants import constant, is_null, parameter
from policy.extract_names import output
from policy.extract_query import from_item, select, with_clause
from policy.extract_walk import Fields, Handler, Scope, Walk, inner_nodes
from policy.facts import ColumnRef, SourceKind, Use, Write
from policy.model import StatementClass


def _insert(walk: Walk, fields: Fields) -> None:
    before, environment, parent = walk.scope, walk.environment, walk.scope
    scope, target, nested = _open_write(walk, fields, StatementClass.INSERT, Use.INSERT)
    columns = _written(walk, fields.get("cols"), Use.INSERT, target, "insert")
    source = "default"
    values: tuple[tuple[str, ...], ...] = ()
    typed: frozenset[int] | None = frozenset()
    selected: tuple[str, ...] = ()
    if "selectStmt" in fields:
        query = fields["selectStmt"]["SelectStmt"]
        only_values = "valuesLists" in query
        source = "values" if only_values else "select"
        walk.scope = parent
        selected = _selected(query, select(walk, query, parent, only_values))
        walk.scope = scope
        if only_values:
            rows = [row["List"]["items"] for row in query["valuesLists"]]
            values, typed = tuple(map(_row, rows)), _typed(rows)
        else:
            typed = frozenset(range(len(selected))) if selected else None
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
            selected=selected,
            typed=typed,
            assigned=_assigned((conflict or {}).get("targetList")),
            on_conflict=None if conflict is None else _CONFLICT_ACTIONS[conflict["action"]],
            position=nested,
        )
    )
    walk.rest("InsertStmt", fields, _INSERT_DONE)
    walk.scope, walk.environment = before, environment


def _row(items: Sequence[Fields]) -> tuple[str, ...]:
    return tuple(map(_item, items))


def _item(node: Fields) -> str:
    if "SetToDefault" in node:
        return "default"
    if is_null(node):
        return "null"
    value = constant(node)
    if value is not None:
        return f"const:{value}"
    number = parameter(node)
    return "expr" if number is None else f"param:{number}"


def _selected(query: Fields, scope: Scope) -> tuple[str, ...]:
    """See ``Write.selected``. A set operation's rows are of either side, and have no list."""
    if any(output.star or output.composite for output in scope.outputs):
        return ()
    return _row([target["ResTarget"]["val"] for target in query.get("targetList", ())])


def _typed(rows: Iterable[Sequence[Fields]]) -> frozenset[int]:
    """See ``Write.typed``."""
    return frozenset(at for row in rows for at, item in enumerate(row) if _has_type(item))


def _assigned(targets: Iterable[Fields] | None) -> frozenset[str]:
    """See ``Write.assigned``."""
    items = (item["ResTarget"] for item in targets or ())
    return frozenset(item["name"] for item in items if _has_type(item["val"]))


def _has_type(node: Fields) -> bool:
    """Whether a value has a type before one is wanted of it: all but unknown literals and DEFAULT
    (make_const in parse_node.c)."""
    value = node.get("A_Const")
    if value is None:
        return "SetToDefault" not in node
    return "sval" not in value and not value.get("isnull")


_CONFLICT_ACTIONS: Final[Mapping[str, str]] = {
    "ONCONFLICT_NOTHING": "nothing",
    "ONCONFLICT_UPDATE": "update",
}


def _on_conflict(walk: Walk, fields: Fields, scope: Scope, target: int) -> None:
    before, walk.clause = walk.clause, "conflict"
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
        walk.visit({"InferClause": infer})
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
            where_position=None if where is None else _leftmost(walk, where),
            columns=columns,
            has_columns=bool(columns),
            assigned=_assigned(fields.get("targetList")),
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
            where_position=_leftmost(walk, on),
            columns=columns,
            has_columns=bool(columns),
            source="" if use is not Use.INSERT else "default" if values is None else "values",
            values=() if values is None else (_row(values),),
            typed=_typed(() if values is None else [values]),
            assigned=_assigned(fields.get("targetList")) if use is Use.UPDATE else frozenset(),
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
    scope.position = walk.position(relation)
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


def _leftmost(walk: Walk, node: Fields) -> int | None:
    """Position of the first thing in an expression: an operator's own location is its symbol's."""
    best: int | None = None
    for inner in inner_nodes(node):
        position = walk.position(inner)
        if position is not None and (best is None or position < best):
            best = position
    return best


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
    "MergeStmt": _merge,
    "UpdateStmt": _update,
}
