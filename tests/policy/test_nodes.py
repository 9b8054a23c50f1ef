"""The table of nodes against the parser that is installed."""

from __future__ import annotations

import pytest

from policy.extract import HANDLERS
from policy.nodes import FIELDS, LIST, NODE, SCALAR, UNDERSTOOD
from tests.policy.derive_nodes import fields_of, known_messages

OLDER_FIELDS = {(node, "returningList") for node in ("DeleteStmt", "InsertStmt", "MergeStmt", "UpdateStmt")}


@pytest.mark.parametrize("node", sorted(UNDERSTOOD))
def test_a_node_has_exactly_the_fields_of_the_installed_parser(node: str) -> None:
    older = {field: LIST for owner, field in OLDER_FIELDS if owner == node}
    assert dict(FIELDS[node]) == dict(fields_of(node)) | older


def test_every_understood_node_exists_in_the_installed_parser() -> None:
    assert known_messages() >= UNDERSTOOD
    assert set(FIELDS) == UNDERSTOOD


def test_typed_positions_lead_to_understood_nodes() -> None:
    kinds = {kind for fields in FIELDS.values() for kind in fields.values()}
    assert kinds - {SCALAR, NODE, LIST} <= UNDERSTOOD


def test_handlers_are_for_understood_nodes() -> None:
    assert set(HANDLERS) <= UNDERSTOOD


def test_every_statement_has_a_handler_that_gives_it_a_class() -> None:
    parts = {"RawStmt", "ReturnStmt", "ReplicaIdentityStmt"}
    statements = {node for node in UNDERSTOOD if node.endswith("Stmt")} - parts
    assert statements <= set(HANDLERS)


@pytest.mark.parametrize(
    "node", ["Var", "Query", "OpExpr", "FuncExpr", "SubPlan", "TargetEntry", "RangeTblEntry", "PLAssignStmt"]
)
def test_what_parse_analysis_makes_is_not_understood(node: str) -> None:
    assert node in known_messages()
    assert node not in FIELDS
