"""What asking the price of SQL EXECUTE would run: volatile functions among its arguments, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import Volatility
from policy.evaluated import Volatile, volatile_argument
from policy.names import Names, PathNames
from policy.parse import parse

HARMLESS = [
    "EXECUTE p",
    "EXECUTE p(1, 'x', NULL, -5, ARRAY[1, 2], '2020-01-01'::date, 'x' || 'y', B'1')",
    "EXECUTE p(now() - interval '1 day', current_date, current_user)",
    "EXECUTE p(lower('X'), coalesce(NULL, 1), greatest(1, 2), CASE WHEN true THEN 1 END, 1 IN (2, 3))",
]
VOLATILE = [
    ("EXECUTE p(random())", "random"),
    ("EXECUTE p(1, abs(random()))", "random"),
    ("EXECUTE p(CASE WHEN false THEN clock_timestamp() END)", "clock_timestamp"),
    ("EXECUTE p(nextval('orders_id_seq') + 1)", "nextval"),
    ("EXECUTE p(set_config('search_path', 'x', false))", "set_config"),
    ("CREATE TABLE t AS EXECUTE p(gen_random_uuid())", "gen_random_uuid"),
    ("EXPLAIN ANALYZE EXECUTE p(random())", "random"),
]


def found(sql: str, names: Names) -> Volatile | None:
    (facts,) = parse(sql).statements
    return volatile_argument(facts, names)


@pytest.fixture(scope="module", params=["by a catalog", "by the path alone"])
def names(request: pytest.FixtureRequest, shop_catalog: Catalog) -> Names:
    return CatalogNames(shop_catalog, (("public",),)) if request.param == "by a catalog" else PathNames()


@pytest.mark.parametrize("sql", HARMLESS)
def test_constants_and_what_planning_may_run(names: Names, sql: str) -> None:
    assert found(sql, names) is None


@pytest.mark.parametrize(("sql", "name"), VOLATILE)
def test_volatile_functions(names: Names, sql: str, name: str) -> None:
    assert found(sql, names) == Volatile(name, sql.index(name) + 1)


@pytest.mark.parametrize("volatility", Volatility)
def test_functions_of_users_are_what_the_catalog_says(shop_catalog: Catalog, volatility: Volatility) -> None:
    sql = "EXECUTE p(reporting.spent_by(1))"
    functions = tuple(
        replace(f, volatility=volatility) if f.name == "spent_by" else f
        for f in shop_catalog.content.functions
    )
    catalog = Catalog(replace(shop_catalog.content, functions=functions))
    expected = Volatile("spent_by", 11) if volatility is Volatility.VOLATILE else None
    assert found(sql, CatalogNames(catalog, (("public",),))) == expected


def test_nobody_vouches_for_what_no_catalog_shows(shop_catalog: Catalog) -> None:
    sql = "EXECUTE p(reporting.spent_by(1))"
    for names in (PathNames(), CatalogNames(shop_catalog, (("public",),), unsettled=True)):
        assert found(sql, names) == Volatile("spent_by", 11)
