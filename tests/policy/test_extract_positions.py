"""No position hides a call or a sub-select from the walk.

Every expression node of every statement of a corpus is replaced in turn by a call and by a sub-select; the
walk must report both, whatever the position. Replacing nodes of the tree reaches positions that text cannot
easily.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from policy import parse as parse_module
from policy.extract import SourceText, extract
from tests.policy.test_extract_calls import CALLS
from tests.policy.test_extract_classes import CLASSES
from tests.policy.test_extract_relations import RELATIONS
from tests.policy.test_extract_scopes import COLUMNS
from tests.policy.test_extract_session import SETTINGS

CORPUS = sorted({case[0] for table in (CALLS, CLASSES, COLUMNS, RELATIONS, SETTINGS) for case in table})
EXPRESSIONS = """
    A_ArrayExpr A_Const A_Expr A_Indirection BoolExpr BooleanTest CaseExpr CoalesceExpr CollateClause
    ColumnRef FuncCall GroupingFunc JsonArrayAgg JsonArrayConstructor JsonArrayQueryConstructor JsonFuncExpr
    JsonIsPredicate JsonObjectAgg JsonObjectConstructor JsonParseExpr JsonScalarExpr JsonSerializeExpr
    MergeSupportFunc MinMaxExpr NullTest ParamRef RowExpr SQLValueFunction SetToDefault SubLink TypeCast
    XmlExpr XmlSerialize
"""
EXPRESSION_NODES = frozenset(EXPRESSIONS.split())
PROBE_CALL = {"FuncCall": {"funcname": [{"String": {"sval": "pgt_probe"}}], "location": 0}}
PROBE_SELECT = {
    "SubLink": {
        "subLinkType": "EXPR_SUBLINK",
        "subselect": {
            "SelectStmt": {
                "targetList": [{"ResTarget": {"val": {"A_Const": {"ival": {"ival": 1}}}}}],
                "fromClause": [{"RangeVar": {"relname": "pgt_probe", "inh": True, "relpersistence": "p"}}],
                "op": "SETOP_NONE",
            }
        },
    }
}


def expressions(tree: Any) -> Iterator[dict[str, Any]]:
    """Every wrapper of an expression node, to be changed in place."""
    if isinstance(tree, list):
        for item in tree:
            yield from expressions(item)
    elif isinstance(tree, dict):
        if len(tree) == 1 and next(iter(tree)) in EXPRESSION_NODES:
            yield tree
        for value in list(tree.values()):
            yield from expressions(value)


@pytest.mark.parametrize("sql", CORPUS)
def test_a_probe_is_found_wherever_it_stands(sql: str) -> None:
    data = sql.encode()
    text = SourceText(sql, data)
    for raw in parse_module._parse_tree(data):
        for number, _ in enumerate(expressions(raw)):
            for probe in (PROBE_CALL, PROBE_SELECT):
                changed = copy.deepcopy(raw)
                place = next(node for at, node in enumerate(expressions(changed)) if at == number)
                was = next(iter(place))
                place.clear()
                place.update(copy.deepcopy(probe))
                found = extract(changed, text)
                assert found.not_understood is None, found.not_understood
                names = {call.name for call in found.functions} | {r.name for r in found.relations}
                assert "pgt_probe" in names, f"{was} number {number} of {changed}"
