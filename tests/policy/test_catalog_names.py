"""Names by a snapshot: what PostgreSQL would find, and keys of a cache."""

from __future__ import annotations

from dataclasses import replace

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, UnreadCatalog
from policy.facts import FunctionRef, RelationRef
from policy.names import PathNames, QualifiedName
from policy.parse import parse
from tests.policy.rules.schema import CATALOG, CONTENT, names, relation


def test_relations_are_the_first_the_path_finds() -> None:
    known = CatalogNames(CATALOG, (("billing", "public"), ("public",)))
    assert known.relations(RelationRef("cards")) == (QualifiedName("billing", "cards"),)
    assert known.relations(RelationRef("orders")) == (QualifiedName("public", "orders"),)
    assert known.relations(RelationRef("pg_class")) == (QualifiedName("pg_catalog", "pg_class"),)
    assert known.relations(RelationRef("nothing")) == ()
    assert known.relations(RelationRef("cards", "public")) == ()
    assert known.relations(RelationRef("cards", "billing")) == (QualifiedName("billing", "cards"),)


def test_several_paths_give_what_any_of_them_finds() -> None:
    tables = (relation("billing.t", "id int4"), relation("public.t", "id int4"))
    twice = Catalog(replace(CONTENT, relations=tables))
    known = CatalogNames(twice, (("public", "billing"), ("billing", "public")))
    assert set(known.relations(RelationRef("t"))) == {table.qualified for table in tables}


def test_functions_are_those_of_the_path_that_exist() -> None:
    known = names("public")
    assert known.functions(FunctionRef("secret_sum")) == ()
    assert known.functions(FunctionRef("secret_sum", "billing")) == (QualifiedName("billing", "secret_sum"),)
    assert known.functions(FunctionRef("bump")) == (QualifiedName("public", "bump"),)


def test_equal_snapshots_and_paths_are_one_key() -> None:
    again = CatalogNames(Catalog(CONTENT), (("public",),), temporary=False)
    assert again == names()
    assert hash(again) == hash(names())
    others = [names("billing"), names(temporary=True), PathNames()]
    others.append(UnreadCatalog((("public",),), "shop"))
    assert all(other != names() for other in others)
    assert UnreadCatalog((("public",),), "shop") != PathNames((("public",),))


def test_what_is_learnt_of_a_statement_is_learnt_once() -> None:
    learnt: list[str] = []
    known = names()
    one, other = parse("SELECT 1").statements[0], parse("SELECT 2").statements[0]

    def learn(facts: object, _: CatalogNames) -> int:
        learnt.append("x")
        return len(learnt)

    assert [known.shared(f, learn) for f in (one, one, other, one)] == [1, 1, 2, 3]
    assert known.resolve(one) is known.resolve(one)
