"""What a sub-select's tree says of the rows it yields.

Owns the readings of a SelectStmt (bare fields) that ``predicates`` needs. Pure; knows no catalog and no
policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from policy import builtin
from policy.comparisons import calls, is_certain_call
from policy.expressions import Node, Owner, Scope, constant, kind_of, names_of, plain

Select = Mapping[str, Any]

_BOUNDING = frozenset(
    {
        "groupClause",
        "havingClause",
        "limitCount",
        "limitOffset",
        "valuesLists",
        "withClause",
    }
)


def is_set_operation(select: Select) -> bool:
    return bool(select.get("op", "SETOP_NONE") != "SETOP_NONE")


def yields_nothing(select: Select) -> bool:
    """LIMIT 0."""
    count = constant(select["limitCount"]) if "limitCount" in select else None
    return count is not None and count.value == 0


def yields_one_row(select: Select) -> bool:
    """An aggregate without GROUP BY or HAVING: one row, whatever there is to aggregate."""
    if "groupClause" in select or "havingClause" in select or "limitOffset" in select:
        return False
    return any(
        builtin.is_aggregate(names_of(call.get("funcname", ()))[-1]) and "over" not in call
        for call in calls(select.get("targetList", []))
    )


def may_drop_rows(select: Select) -> bool:
    """OFFSET, HAVING, or a function in the select list that may give no row for one."""
    if "limitOffset" in select or "havingClause" in select:
        return True
    return any(not is_certain_call(call) for call in calls(select.get("targetList", [])))


def own_rows(select: Select, relation: str | None) -> str | None:
    """The name under which ``select`` reads ``relation``, if it reads that alone and nothing bounds it."""
    if relation is None or is_set_operation(select) or select.keys() & _BOUNDING:
        return None
    if select.get("distinctClause", [{}]) != [{}]:
        # DISTINCT ON takes one row of several; plain DISTINCT leaves every value.
        return None
    items = select.get("fromClause", ())
    if len(items) != 1 or "RangeVar" not in items[0]:
        return None
    table = items[0]["RangeVar"]
    if table.get("relname") != relation:
        return None
    return str(table.get("alias", {}).get("aliasname", relation))


def selects_same(tested: Node, select: Select, own: str, scope: Scope) -> bool:
    """True when ``tested IN (select)`` tests columns of the target against the very same columns of
    ``own``."""
    targets = select.get("targetList", ())
    chosen = [target.get("ResTarget", {}).get("val", {}) for target in targets]
    kind, row = kind_of(tested)
    members = row.get("args", []) if kind == "RowExpr" else [tested]
    return len(members) == len(chosen) and all(
        _column(member, scope.target) is not None
        and _column(member, scope.target) == _column(value, frozenset({own}))
        for member, value in zip(members, chosen, strict=True)
    )


def ties_to_itself(condition: Node, own: str, inner: Scope) -> bool:
    """``u.id = t.id`` between a relation read as ``own`` and the same relation as the target."""
    kind, fields = kind_of(condition)
    if kind != "A_Expr" or fields.get("kind") != "AEXPR_OP" or names_of(fields.get("name", ())) != ("=",):
        return False
    sides = [_owned(fields.get(side, {}), own, inner) for side in ("lexpr", "rexpr")]
    names = {name for _, name in sides}
    return {owner for owner, _ in sides} == {"own", "target"} and len(names) == 1


def _owned(node: Node, own: str, inner: Scope) -> tuple[str, str]:
    kind, fields = kind_of(plain(node)) if node else ("", {})
    if kind != "ColumnRef":
        return "", ""
    names = names_of(fields.get("fields", ()))
    if inner.owner(fields) is Owner.TARGET:
        return "target", names[-1]
    if len(names) == 1 or names[-2] == own:
        return "own", names[-1]
    return "", ""


def _column(node: Node, qualifiers: frozenset[str]) -> str | None:
    """The name of a column, unqualified or under one of ``qualifiers``."""
    kind, fields = kind_of(plain(node)) if node else ("", {})
    if kind != "ColumnRef":
        return None
    names = names_of(fields.get("fields", ()))
    return names[-1] if len(names) == 1 or names[-2] in qualifiers else None


def conjuncts(condition: Node) -> Iterator[Node]:
    """The conditions that AND joins at the top of ``condition``."""
    kind, fields = kind_of(condition)
    if kind == "BoolExpr" and fields.get("boolop") == "AND_EXPR":
        for arg in fields.get("args", ()):
            yield from conjuncts(arg)
    else:
        yield condition


def join_conditions(select: Select) -> Iterator[Node]:
    """The ON conditions of inner joins in FROM, which filter as WHERE does."""
    for item in select.get("fromClause", ()):
        yield from _join_conditions(item)


def _join_conditions(item: Node) -> Iterator[Node]:
    kind, fields = kind_of(item)
    if kind == "JoinExpr" and fields.get("jointype", "JOIN_INNER") == "JOIN_INNER":
        if "quals" in fields:
            yield fields["quals"]
        yield from _join_conditions(fields.get("larg", {}))
        yield from _join_conditions(fields.get("rarg", {}))
