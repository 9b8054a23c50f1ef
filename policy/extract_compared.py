"""What a query compares without an operator: to sort, to group, to tell duplicates apart.

Owns the reading of ORDER BY, GROUP BY, DISTINCT, windows and set operations for the types of what they
compare, which decide whose comparison functions run (the default operator class's, parse_clause.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policy.extract_operands import operand
from policy.extract_walk import Fields, Walk, strings


def compared_by_select(walk: Walk, fields: Fields) -> None:
    """Note what a SelectStmt compares for itself."""
    targets = [target["ResTarget"] for target in fields.get("targetList", ())]
    for clause in ("sortClause", "groupClause", "distinctClause"):
        for item in fields.get(clause, ()):
            if item:
                _note(walk, *(part for each in _parts(item) for part in _meant(each, targets)))
            else:
                _note(walk, *(target["val"] for target in targets))
    for window in fields.get("windowClause", ()):
        compared_by_window(walk, window["WindowDef"])
    # UNION ALL is the one operation that tells no rows apart.
    tells_none_apart = ("SETOP_NONE", "SETOP_UNION") if fields.get("all") else ("SETOP_NONE",)
    if fields.get("op", "SETOP_NONE") not in tells_none_apart:
        _note(walk, *_given_by_arms(fields))


def compared_by_call(walk: Walk, fields: Fields) -> None:
    """Note what a FuncCall compares: DISTINCT and ORDER BY among its arguments, the window it is over."""
    if fields.get("agg_distinct"):
        _note(walk, *fields.get("args", ()))
    for item in fields.get("agg_order", ()):
        _note(walk, item["SortBy"]["node"])
    if "over" in fields:
        compared_by_window(walk, fields["over"])


def compared_by_window(walk: Walk, fields: Fields) -> None:
    """Note what a WindowDef compares."""
    _note(walk, *fields.get("partitionClause", ()))
    _note(walk, *(item["SortBy"]["node"] for item in fields.get("orderClause", ())))


def _note(walk: Walk, *nodes: Fields) -> None:
    walk.compared.extend(operand(walk, node) for node in nodes)


def _parts(item: Fields) -> Iterator[Fields]:
    """The expressions of an item of ORDER BY or GROUP BY."""
    if "SortBy" in item:
        yield item["SortBy"]["node"]
    elif "GroupingSet" in item:
        for each in item["GroupingSet"].get("content", ()):
            yield from _parts(each)
    elif "RowExpr" in item:
        yield from item["RowExpr"].get("args", ())
    else:
        yield item


def _meant(item: Fields, targets: Sequence[Fields]) -> Iterator[Fields]:
    """``item``, or what it names of the select list by number or name (findTargetlistEntrySQL92)."""
    number = item.get("A_Const", {}).get("ival")
    names = strings(part for part in item.get("ColumnRef", {}).get("fields", ()) if "String" in part)
    named = [t for t in targets if len(names) == 1 and t.get("name") == names[0]]
    if number is not None:
        yield from (target["val"] for target in targets[number.get("ival", 0) - 1 :][:1])
    elif named:
        yield from (target["val"] for target in named)
    else:
        yield item


def _given_by_arms(fields: Fields) -> Iterator[Fields]:
    """What the arms of a set operation give, column by column."""
    for side in ("larg", "rarg"):
        if side in fields:
            yield from _given_by_arms(fields[side])
    for target in fields.get("targetList", ()):
        yield target["ResTarget"]["val"]
    for row in fields.get("valuesLists", ()):
        yield from row["List"].get("items", ())
