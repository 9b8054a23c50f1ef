"""What the benchmark asks as an agent would: every statement is read, allowed, and runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench import cold
from bench.client import Address, Client, query
from bench.contenders import USER
from bench.policies import strict
from policy.catalog import Catalog
from policy.loader import load
from proxy.embedded import BinariesNotFoundError, EmbeddedPostgres, find_binaries
from tests.support.postgres import skip_or_fail

STATEMENTS = cold.statements()


@pytest.fixture(scope="module")
def agents() -> Iterator[Address]:
    """The agents' database."""
    try:
        binaries = find_binaries()
    except BinariesNotFoundError as error:
        skip_or_fail(str(error))
    files = {"pg_hba.conf": b"host all all 127.0.0.1/32 trust\n"}
    with EmbeddedPostgres(binaries, files=files) as server:
        address = Address(server.port, server.superuser, "postgres")
        with Client(address) as client:
            client.checked(query(f"CREATE ROLE {USER} LOGIN"))
        address = replace(address, user=USER)
        cold.load_agents(address, server.superuser)
        yield replace(address, database=cold.AGENTS_DATABASE)


@pytest.fixture(scope="module")
def catalog(agents: Address) -> Catalog:
    return cold.read_catalog(agents)


def test_there_are_forty() -> None:
    assert len(STATEMENTS) == 40
    assert len({statement.template for statement in STATEMENTS}) == 40


def test_no_text_is_given_twice() -> None:
    texts = [statement.text() for statement in STATEMENTS for _ in range(3)]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.template[:40])
def test_the_gate_allows_and_prices_it_by_the_catalog(statement: cold.Statement, catalog: Catalog) -> None:
    gate = cold.make_gate(strict(), catalog)
    ruling = gate.rule_slowly(statement.text().encode(), gate.names((("public",),)))
    assert ruling.allowed, ruling.decision
    assert ruling.question is not None
    assert ruling.question.text is not None


def test_every_statement_runs(agents: Address) -> None:
    with Client(agents) as client:
        for statement in STATEMENTS:
            assert b"SELECT " in client.checked(query(statement.text()))


def test_figures_of_a_gate_that_refuses_are_no_figures(catalog: Catalog) -> None:
    gate = cold.make_gate(strict(), catalog)
    with pytest.raises(cold.BenchError, match="refuses"):
        cold.gate_us(gate, [cold.Statement("DELETE FROM orders WHERE id = {n}")], 1)


def test_a_gate_is_timed(catalog: Catalog) -> None:
    found = cold.gate_us(cold.make_gate(strict(), catalog), STATEMENTS[:3], 2)
    assert len(found) == 3
    assert all(us > 0 for us in found)


@pytest.mark.parametrize("rows", [0, 7, 1_000])
@pytest.mark.parametrize("cost", [True, False])
def test_the_policies_load_and_have_the_rows(cost: bool, rows: int) -> None:
    policy = load(strict(cost=cost, rows=rows), "bench.yaml")
    assert (policy.cost is not None) == cost
    assert len(policy.relations.allow) - 1 + len(policy.columns) - 1 == rows
