"""Which statements run code that their text does not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import Volatility
from policy.decision import Allow, Reject
from policy.hidden_code import hides, runs_hidden_code
from policy.model import RepairTerms, StatementClass
from policy.names import PathNames
from policy.parse import parse

CALLS = "SELECT reporting.spent_by(1)"


def names(shop: Catalog, volatility: Volatility, language: str, *, unsettled: bool = False) -> CatalogNames:
    functions = tuple(
        replace(f, volatility=volatility, language=language) if f.name == "spent_by" else f
        for f in shop.content.functions
    )
    return CatalogNames(Catalog(replace(shop.content, functions=functions)), ((),), unsettled=unsettled)


@pytest.mark.parametrize(
    ("sql", "hidden"),
    [
        ("DO 'BEGIN END'", True),
        ("CALL reporting.tidy()", True),
        (CALLS, True),
        ("SELECT 1 FROM orders WHERE id = reporting.spent_by(1)", True),
        ("DECLARE c CURSOR FOR " + CALLS, True),
        ("EXPLAIN " + CALLS, False),
        ("EXPLAIN ANALYZE " + CALLS, True),
        ("SELECT random(), now(), lower('X'), nextval('orders_id_seq')", False),
        ("CREATE TABLE t (id int)", False),
        ("SET search_path = public", False),
    ],
)
def test_what_runs_code_that_is_not_shown(shop_catalog: Catalog, sql: str, hidden: bool) -> None:
    (facts,) = parse(sql).statements
    assert runs_hidden_code(facts, names(shop_catalog, Volatility.VOLATILE, "plpgsql")) is hidden


@pytest.mark.parametrize(
    ("volatility", "language", "hidden"),
    [
        (Volatility.VOLATILE, "sql", True),
        (Volatility.VOLATILE, "plpython3u", True),
        (Volatility.VOLATILE, "c", False),
        (Volatility.STABLE, "plpgsql", False),
        (Volatility.IMMUTABLE, "sql", False),
    ],
)
def test_which_functions_may_set_what_their_caller_has(
    shop_catalog: Catalog, volatility: Volatility, language: str, hidden: bool
) -> None:
    (facts,) = parse(CALLS).statements
    assert runs_hidden_code(facts, names(shop_catalog, volatility, language)) is hidden
    assert runs_hidden_code(facts, names(shop_catalog, volatility, language, unsettled=True))


def test_of_a_string_any_statement_will_do_and_a_refusal_runs_nothing(shop_catalog: Catalog) -> None:
    query = parse(f"SELECT 1; {CALLS}; SELECT 2")
    known = names(shop_catalog, Volatility.VOLATILE, "plpgsql")
    assert hides(Allow(query, StatementClass.SELECT), known)
    assert not hides(Allow(parse("SELECT 1; SELECT 2"), StatementClass.SELECT), known)
    assert not hides(Reject(query, StatementClass.SELECT, (), RepairTerms(), None), known)


def test_by_the_paths_alone_only_what_never_shows_its_code() -> None:
    assert hides(Allow(parse("DO 'BEGIN END'"), StatementClass.DO), PathNames())
    assert not hides(Allow(parse(CALLS), StatementClass.SELECT), PathNames())


def test_what_cannot_be_told_may(shop_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("policy.hidden_code.find_calls", fail)
    assert hides(Allow(parse("SELECT 1"), StatementClass.SELECT), CatalogNames(shop_catalog, ((),)))
