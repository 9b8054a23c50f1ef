"""The catalog's look-ups and its dump, on contents made by hand."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tracemalloc

import pytest

from policy.catalog import Catalog, effective_path
from policy.catalog_json import CatalogFormatError
from policy.catalog_values import (
    NOTHING_USED,
    Cast,
    CastContext,
    CastMethod,
    Column,
    ColumnId,
    Content,
    ForeignKey,
    Function,
    FunctionKind,
    Index,
    Operator,
    Read,
    Relation,
    RelationKind,
    RewriteRule,
    RuleEvent,
    Type,
    TypeKind,
    Uses,
    Volatility,
)
from policy.names import QualifiedName

TEXT = QualifiedName("pg_catalog", "text")
INTEGER = QualifiedName("pg_catalog", "int4")


def q(name: str) -> QualifiedName:
    schema, _, rest = name.partition(".")
    return QualifiedName(schema, rest)


def columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, number, TEXT) for number, name in enumerate(names, 1))


def relation(name: str, *names: str, kind: RelationKind = RelationKind.TABLE, **more: object) -> Relation:
    return Relation(*q(name), kind=kind, owner="owner", columns=columns(*names), **more)  # type: ignore[arg-type]


def view(name: str, *names: str, reads: tuple[Read, ...], uses: Uses = NOTHING_USED) -> Relation:
    rule = RewriteRule("_RETURN", RuleEvent.SELECT, True, reads, uses)
    return relation(name, *names, kind=RelationKind.VIEW, rules=(rule,))


def function(name: str, *arguments: QualifiedName, **more: object) -> Function:
    return Function(
        *q(name),
        kind=FunctionKind.FUNCTION,
        volatility=Volatility.VOLATILE,
        security_definer=False,
        language="sql",
        owner="owner",
        arguments=arguments,
        result=INTEGER,
        **more,  # type: ignore[arg-type]
    )


CONTENT = Content(
    version=180006,
    database="shop",
    login="reader",
    search_path=("public",),
    schemas=("app", "pg_catalog", "public"),
    relations=(
        relation("app.customers", "id", "name", "tax_id", rows=7.0),
        relation(
            "app.orders",
            "id",
            "customer_id",
            "total",
            foreign_keys=(ForeignKey("fk", ("customer_id",), q("app.customers"), ("id",)),),
            indexes=(
                Index("by_total", ("total",)),
                Index("expr", (None,), unique=True),
                Index("part", ("total",), unique=True, partial=True),
                Index("two", ("customer_id", "total"), unique=True),
                Index("pk", ("id",), unique=True, primary=True),
            ),
        ),
        relation("app.logs", "at", children=(q("app.logs_1"),), kind=RelationKind.PARTITIONED),
        relation("app.logs_1", "at", children=(q("app.logs_2"),), kind=RelationKind.PARTITIONED),
        relation("app.logs_2", "at"),
        view("app.names", "called", reads=(Read(q("app.customers"), ("name",)),), uses=Uses((q("app.f"),))),
        view("app.again", "called", reads=(Read(q("app.names"), ("called",)), Read(q("app.gone")))),
        view("app.whole", "doc", reads=(Read(q("app.customers"), whole=True),)),
        view("app.loop", "x", reads=(Read(q("app.loop"), ("x",)),)),
        view("app.typed", "x", reads=(), uses=Uses(types=(q("app.mail"), q("app._mail")))),
        relation("app.pair", "a", "b", kind=RelationKind.COMPOSITE),
        relation("app.receipts_seq", "last_value", kind=RelationKind.SEQUENCE),
        relation("pg_catalog.pg_class", "oid", "relname"),
        relation("public.customers", "id"),
        relation("public.pg_class", "mine"),
    ),
    functions=(
        function("app.f", INTEGER, uses=Uses((q("app.g"),))),
        function("app.f", TEXT, uses=Uses((q("app.f"), q("app.h")))),
        function("app.g", INTEGER, INTEGER, defaults=1),
        function("pg_catalog.f", TEXT),
        function("public.many", INTEGER, QualifiedName("pg_catalog", "_text"), variadic=True),
    ),
    operators=(Operator("app", "<~>", None, INTEGER, INTEGER, q("app.f")),),
    casts=(Cast(TEXT, q("app.mail"), q("app.f"), CastContext.IMPLICIT, CastMethod.FUNCTION),),
    types=(
        Type("app", "mail", TypeKind.DOMAIN, "S", base=q("app.inner")),
        Type("app", "inner", TypeKind.DOMAIN, "S", base=TEXT, uses=Uses((q("app.check"),))),
    ),
    row_functions=("to_json",),
)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog(CONTENT)


def everything(_: QualifiedName) -> bool:
    return True


class TestRelations:
    def test_by_name(self, catalog: Catalog) -> None:
        found = catalog.relation("app", "orders")
        assert found is not None
        assert found.qualified == q("app.orders")
        assert catalog.relation("public", "orders") is None
        assert [r.schema for r in catalog.relations_named("customers")] == ["app", "public"]
        assert catalog.relations_named("nothing") == ()

    @pytest.mark.parametrize(
        ("name", "path", "schema"),
        [
            ("customers", ("public", "app"), "public"),
            ("customers", ("app", "public"), "app"),
            ("customers", ("nowhere",), None),
            ("pg_class", ("public",), "pg_catalog"),
            ("pg_class", ("public", "pg_catalog"), "public"),
            ("orders", (), None),
        ],
    )
    def test_along_a_path(
        self, catalog: Catalog, name: str, path: tuple[str, ...], schema: str | None
    ) -> None:
        found = catalog.resolve(name, path)
        assert (found.schema if found else None) == schema

    def test_effective_path(self) -> None:
        assert effective_path(("a", "b")) == ("pg_catalog", "a", "b")
        assert effective_path(("a", "pg_catalog")) == ("a", "pg_catalog")

    def test_unique_keys_are_whole_and_the_primary_one_is_first(self, catalog: Catalog) -> None:
        orders = catalog.relation("app", "orders")
        assert orders is not None
        assert orders.unique_keys == (("id",), ("customer_id", "total"))

    def test_descendants(self, catalog: Catalog) -> None:
        logs = catalog.relation("app", "logs")
        assert logs is not None
        assert catalog.descendants(logs) == {q("app.logs_1"), q("app.logs_2")}

    def test_neighbours_in_both_directions(self, catalog: Catalog) -> None:
        for name, neighbour in (("customers", "orders"), ("orders", "customers")):
            here = catalog.relation("app", name)
            assert here is not None
            ((other, key),) = catalog.neighbours(here)
            assert (other.name, key.name) == (neighbour, "fk")


class TestLikeness:
    def test_columns_named(self, catalog: Catalog) -> None:
        assert [str(r.qualified) for r in catalog.columns_named("id")] == [
            "app.customers",
            "app.orders",
            "public.customers",
        ]
        assert catalog.columns_named("b") == (), "a composite type cannot be read"

    def test_nearest_relations(self, catalog: Catalog) -> None:
        assert catalog.nearest_relations("custmers", everything) == (
            q("app.customers"),
            q("public.customers"),
        )

    def test_nearest_relations_are_visible_ones(self, catalog: Catalog) -> None:
        found = catalog.nearest_relations("customers", lambda name: name.schema == "public")
        assert found == (q("public.customers"),)
        assert catalog.nearest_relations("pair", everything) == ()

    def test_nobody_means_a_sequence(self, catalog: Catalog) -> None:
        assert catalog.nearest_relations("receipts_sq", everything) == ()
        assert catalog.columns_named("last_value") == ()

    def test_nearest_columns(self, catalog: Catalog) -> None:
        orders = catalog.relations_named("orders")
        assert catalog.nearest_columns("totl", orders) == (ColumnId("app", "orders", "total"),)
        assert catalog.nearest_columns("tax", orders) == ()


class TestFunctionsAndTypes:
    def test_functions(self, catalog: Catalog) -> None:
        assert [f.arguments for f in catalog.functions("app", "f")] == [(INTEGER,), (TEXT,)]
        assert catalog.functions("app", "none") == ()
        assert [f.schema for f in catalog.functions_named("f")] == ["app", "app", "pg_catalog"]

    @pytest.mark.parametrize(
        ("name", "accepted"), [("app.f", {1}), ("app.g", {1, 2}), ("public.many", {1, 2, 3, 4})]
    )
    def test_accepts(self, catalog: Catalog, name: str, accepted: set[int]) -> None:
        overload = catalog.functions(*q(name))[0]
        assert {count for count in range(5) if overload.accepts(count)} == accepted

    def test_operators_and_casts(self, catalog: Catalog) -> None:
        assert [o.function for o in catalog.operators("<~>")] == [q("app.f")]
        assert [c.source for c in catalog.casts(q("app.mail"))] == [TEXT]
        assert catalog.operators("+") == ()
        assert catalog.casts(TEXT) == ()

    @pytest.mark.parametrize(
        ("name", "kind", "relation", "element"),
        [
            ("mail", TypeKind.DOMAIN, None, None),
            ("_mail", TypeKind.BASE, None, q("app.mail")),
            ("orders", TypeKind.COMPOSITE, q("app.orders"), None),
            ("_orders", TypeKind.BASE, None, q("app.orders")),
            ("names", TypeKind.COMPOSITE, q("app.names"), None),
        ],
    )
    def test_types(
        self,
        catalog: Catalog,
        name: str,
        kind: TypeKind,
        relation: QualifiedName | None,
        element: QualifiedName | None,
    ) -> None:
        found = catalog.type("app", name)
        assert found is not None
        assert (found.kind, found.relation, found.element) == (kind, relation, element)

    def test_types_it_does_not_know(self, catalog: Catalog) -> None:
        assert catalog.type("app", "_none") is catalog.type("pg_catalog", "text") is None


class TestReach:
    def reach(self, catalog: Catalog, name: str) -> set[str]:
        found = catalog.relation("app", name)
        assert found is not None
        return {str(column) for column in catalog.reach(found)}

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("customers", set[str]()),
            ("names", {"app.customers", "app.customers.name"}),
            (
                "again",
                {"app.names", "app.names.called", "app.customers", "app.customers.name", "app.gone"},
            ),
            (
                "whole",
                {"app.customers", "app.customers.id", "app.customers.name", "app.customers.tax_id"},
            ),
            ("loop", {"app.loop", "app.loop.x"}),
        ],
    )
    def test_reach(self, catalog: Catalog, name: str, expected: set[str]) -> None:
        assert self.reach(catalog, name) == expected
        assert self.reach(catalog, name) == expected, "the remembered answer is the same"

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("customers", set[str]()),
            ("again", {"app.f", "app.g", "app.h"}),
            ("typed", {"app.check"}),
        ],
    )
    def test_functions(self, catalog: Catalog, name: str, expected: set[str]) -> None:
        found = catalog.relation("app", name)
        assert found is not None
        assert {str(f) for f in catalog.functions_reached(found)} == expected

    def test_a_rule_of_another_event_is_not_read(self) -> None:
        rule = RewriteRule(
            "r", RuleEvent.DELETE, False, (Read(q("app.customers"), ("id",)),), Uses((q("a.f"),))
        )
        table = relation("app.t", "x", rules=(rule,))
        catalog = Catalog(dataclasses.replace(CONTENT, relations=(table,)))
        assert not catalog.reach(table)
        assert not catalog.functions_reached(table)


class TestDump:
    def test_round_trip(self, catalog: Catalog) -> None:
        text = catalog.to_json()
        copy = Catalog.from_json(text)
        assert copy.content == catalog.content
        assert copy.to_json() == text
        assert (copy, copy.sha256, hash(copy)) == (catalog, catalog.sha256, hash(catalog))
        restored = copy.relation("app", "customers")
        assert restored is not None
        assert restored.rows == 7.0

    def test_the_digest_is_of_the_schema(self, catalog: Catalog) -> None:
        counted = tuple(dataclasses.replace(r, rows=1.0) for r in CONTENT.relations)
        elsewhere = dataclasses.replace(
            CONTENT, version=150001, database="clone", login="x", search_path=(), relations=counted
        )
        assert Catalog(elsewhere) == catalog

    @pytest.mark.parametrize(
        "changed",
        [
            {"relations": CONTENT.relations[1:]},
            {
                "relations": (
                    dataclasses.replace(CONTENT.relations[0], row_security=True),
                    *CONTENT.relations[1:],
                )
            },
            {"functions": CONTENT.functions[:-1]},
            {"operators": ()},
            {"casts": ()},
            {"types": CONTENT.types[:1]},
            {"schemas": ("public",)},
            {"row_functions": ()},
        ],
        ids=lambda changed: next(iter(changed)),
    )
    def test_every_part_counts(self, catalog: Catalog, changed: dict[str, object]) -> None:
        other = Catalog(dataclasses.replace(CONTENT, **changed))  # type: ignore[arg-type]
        assert other != catalog

    def test_no_other_text_is_read(self, catalog: Catalog) -> None:
        good = json.loads(catalog.to_json())
        bad: list[str] = [
            "",
            "nonsense",
            "[]",
            "{}",
            '{"format":0,"content":[]}',
            '{"format":1}',
            "[" * 100_000,
        ]
        for at, wrong in (
            (0, "18"),
            (0, True),
            (1, 5),
            (3, [1]),
            (5, [["a"]]),
            (5, 1),
            (9, [["a", "b", "z"]]),
        ):
            content = [*good["content"][:at], wrong, *good["content"][at + 1 :]]
            bad.append(json.dumps({"format": 1, "content": content}))
        for text in bad:
            with pytest.raises(CatalogFormatError):
                Catalog.from_json(text)


@pytest.mark.slow
def test_a_large_schema_is_small_in_memory() -> None:
    """10,000 relations with 200,000 columns of different names stay under 150 MB, the look-ups included."""
    tracemalloc.start()
    try:
        numbers = itertools.count()
        relations = tuple(
            relation(f"app.relation_{n:05}", *(f"column_{next(numbers)}" for _ in range(20)))
            for n in range(10_000)
        )
        catalog = Catalog(dataclasses.replace(CONTENT, relations=relations))
        assert [r.name for r in catalog.columns_named("column_199999")] == ["relation_09999"]
        assert catalog.nearest_relations("relation_0999", everything, 1)
        assert tracemalloc.get_traced_memory()[0] < 150_000_000
    finally:
        tracemalloc.stop()
