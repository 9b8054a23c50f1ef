"""What another grammar would read otherwise, and what no walk knows: refused as not understood."""
# ruff: noqa: E501  (a statement of a table stays on its line)

from __future__ import annotations

import pytest

from policy.extract import SourceText, extract
from policy.parse import parse
from tests.policy.extracting import calls, facts, relations


def test_a_dollar_quote_after_by_hides_nothing() -> None:
    sql = (
        "WITH q AS (SELECT sort BY$$ FROM (SELECT 1 AS sort) z), d AS (DELETE FROM t RETURNING *)"
        " SELECT count(*) FROM d --$$) SELECT 1"
    )
    found = facts(sql)
    assert relations(found) == {"delete:t"}
    assert found.statement_class == "delete"
    assert len(found.writes) == 1


UNICODE_SPACES = "\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


@pytest.mark.parametrize("space", UNICODE_SPACES)
def test_unicode_spaces_are_part_of_a_name_and_begin_no_dollar_quote(space: str) -> None:
    select, delete = parse(f"SELECT 1 a{space}$$; DELETE FROM t --$$").statements
    assert select.queries[0].outputs[0].name == f"a{space}$$"
    assert delete.statement_class == "delete"


def test_names_are_cut_at_63_bytes() -> None:
    assert calls(facts(f"SELECT {'f' * 70}(1)")) == {f"{'f' * 63}/1"}
    assert relations(facts(f"TABLE {'é' * 40}")) == {f"read:{'é' * 31}"}


def test_literals_are_text() -> None:
    found = facts("SELECT $$); DELETE FROM orders; --$$ AS delete")
    assert (found.classes, found.relations) == (frozenset({"select"}), ())
    statements = parse("SELECT E'it\\'s'; DROP TABLE orders; --'").statements
    assert [statement.node for statement in statements] == ["SelectStmt", "DropStmt"]


# Every node and field


def test_an_unknown_node_or_field_is_not_understood() -> None:
    text = SourceText("SELECT 1", b"SELECT 1")
    select = {"targetList": [{"ResTarget": {"val": {"NewExpr": {"arg": {}, "location": 7}}}}]}
    found = extract({"stmt": {"SelectStmt": select}}, text)
    assert found.not_understood is not None
    assert (found.not_understood.what, found.not_understood.position) == ("the node NewExpr", 8)
    assert found.classes == {"select"}
    found = extract({"stmt": {"NewStmt": {}}}, text)
    assert found.not_understood is not None
    assert found.classes == {"other"}
    for tree, what in [
        ({"SelectStmt": {"newClause": []}}, "SelectStmt.newClause"),
        ({"SelectStmt": {"targetList": [{"ResTarget": {"val": {"A_Const": {"nval": {}}}}}]}}, "A_Const.nval"),
        ({"SelectStmt": {"fromClause": [{"NewItem": {}}]}}, "NewItem"),
        ({"SelectStmt": {"fromClause": [{"RangeVar": {"relname": "t", "version": {}}}]}}, "RangeVar.version"),
    ]:
        found = extract({"stmt": tree}, text)
        assert found.not_understood is not None
        assert what in found.not_understood.what


@pytest.mark.parametrize(
    "tree",
    [
        {"SelectStmt": {"fromClause": [{"JoinExpr": {"jointype": "JOIN_NEW", "larg": {}, "rarg": {}}}]}},
        {"SelectStmt": {"whereClause": {"A_Expr": {"kind": "AEXPR_NEW", "name": []}}}},
        {"VariableSetStmt": {"kind": "VAR_NEW", "name": "a"}},
        {"VariableSetStmt": {"kind": "VAR_SET_MULTI", "name": "NEW"}},
        {"TransactionStmt": {"kind": "TRANS_STMT_NEW"}},
        {
            "TransactionStmt": {
                "kind": "TRANS_STMT_BEGIN",
                "options": [{"DefElem": {"defname": "new", "arg": {}}}],
            }
        },
        {"SelectStmt": {"whereClause": {"FuncCall": {"funcname": [{"NewName": {}}]}}}},
        {
            "SelectStmt": {
                "whereClause": {"FuncCall": {"funcname": [{"String": {"sval": "f"}}, {"NewName": {}}]}}
            }
        },
        {"MergeStmt": {}},
        {"SelectStmt": {"targetList": [{"NewTarget": {}}]}},
        {"SelectStmt": {"targetList": 3}},
    ],
)
def test_unknown_kinds_and_shapes_are_not_understood(tree: dict[str, object]) -> None:
    assert extract({"stmt": tree}, SourceText("x", b"x")).not_understood is not None


def test_a_new_field_of_a_raw_statement_is_not_understood() -> None:
    found = extract({"stmt": {"SelectStmt": {}}, "hidden": {}}, SourceText("x", b"x"))
    assert found.not_understood is not None
