"""What a query compares without an operator: to sort, to group, to tell duplicates apart.

Owns the reading of ORDER BY, GROUP BY, DISTINCT, windows and set operations for the types of what they
compare, which decide whose comparison functions run (the default operator class's, parse_clause.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from policy.extract_operands import operand
from policy.extract_walk import Fields, Walk, strings


class _Targets:
    """A select list as ORDER BY, GROUP BY and DISTINCT ON look into it (findTargetlistEntrySQL92)."""

    __slots__ = ("_named", "values")

    def __init__(self, target_list: Sequence[Fields]) -> None:
        self.values = [target["ResTarget"]["val"] for target in target_list]
        self._named: dict[str, list[Fields]] = {}
        for target in target_list:
            if "name" in target["ResTarget"]:
                self._named.setdefault(target["ResTarget"]["name"], []).append(target["ResTarget"]["val"])

    def meant(self, item: Fields) -> Sequence[Fields]:
        """``item``, or what it names of the list by number or name."""
        number = item.get("A_Const", {}).get("ival")
        if number is not None:
            return self.values[number.get("ival", 0) - 1 :][:1]
        names = strings(part for part in item.get("ColumnRef", {}).get("fields", ()) if "String" in part)
        return (self._named.get(names[0]) if len(names) == 1 else None) or (item,)


def compared_by_select(walk: Walk, fields: Fields) -> None:
    """Note what a SelectStmt compares for itself."""
    clauses = [clause for clause in ("sortClause", "groupClause", "distinctClause") if clause in fields]
    if clauses:
        targets = _Targets(fields.get("targetList", ()))
        for item in (item for clause in clauses for item in fields[clause]):
            _note(
                walk, *(targets.values if not item else chain.from_iterable(map(targets.meant, _parts(item))))
            )
    for window in fields.get("windowClause", ()):
        compared_by_window(walk, window["WindowDef"])
    if _tells_rows_apart(fields):
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


def _tells_rows_apart(fields: Fields) -> bool:
    """UNION ALL is the one set operation that does not."""
    operation = fields.get("op", "SETOP_NONE")
    return operation != "SETOP_NONE" and not (operation == "SETOP_UNION" and fields.get("all"))


def _given_by_arms(fields: Fields) -> Iterator[Fields]:
    """What the arms of a set operation give, column by column.

    An arm that is such an operation itself has been noted with its own arms: telling it again at each level
    would be quadratic in their number.
    """
    for side in ("larg", "rarg"):
        if side in fields and not _tells_rows_apart(fields[side]):
            yield from _given_by_arms(fields[side])
    for target in fields.get("targetList", ()):
        yield target["ResTarget"]["val"]
    for row in fields.get("valuesLists", ()):
        yield from row["List"].get("items", ())
