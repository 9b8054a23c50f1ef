"""What is offered for an unknown name: only what exists, is near, and may be shown."""

from __future__ import annotations

import pytest

from policy import parse
from policy.catalog import Catalog
from policy.catalog_values import ColumnId
from policy.names import QualifiedName
from policy.resolve import Answer, ColumnAnswer, Resolution, resolve
from policy.suggest import (
    ColumnSuggestions,
    Neighbour,
    Place,
    Shown,
    Suggestions,
    suggest_columns,
    suggest_relations,
)

STOCK = QualifiedName("app", "stock")
MOVES = QualifiedName("app", "moves")
PEOPLE = QualifiedName("app", "people")


def resolved(sql: str, catalog: Catalog) -> Resolution:
    (statement,) = parse.parse(sql).statements
    return resolve(statement, catalog, (("app", "public"),), temporary=False)


def everything(_: ColumnId) -> bool:
    return True


def all_but(*hidden: str) -> Shown:
    return lambda column: str(column) not in hidden


def suggestions(sql: str, catalog: Catalog, shown: Shown = everything) -> Suggestions:
    resolution = resolved(sql, catalog)
    (answer,) = (column for column in resolution.columns if column.answer is Answer.UNKNOWN)
    return suggest_columns(answer, resolution, shown)


@pytest.fixture(scope="module")
def catalog(postgres18_rich: Catalog) -> Catalog:
    return postgres18_rich


class TestColumns:
    def test_what_many_unknown_columns_have_in_common_is_looked_up_once(self, catalog: Catalog) -> None:
        """The work grows with the tables and the columns, not with their product."""
        asked: list[ColumnId] = []

        def shown(column: ColumnId) -> bool:
            asked.append(column)
            return True

        sources = range(60)
        columns = ", ".join(f"p{n}.nme" for n in sources)
        resolution = resolved(f"SELECT {columns} FROM {', '.join(f'people p{n}' for n in sources)}", catalog)
        suggestions = ColumnSuggestions(resolution, shown)
        found = [suggestions.of(answer) for answer in resolution.columns if answer.answer is Answer.UNKNOWN]
        assert [each.nearest for each in found] == [(Place("name", f"p{n}", PEOPLE),) for n in sources]
        assert len(asked) < 100

    def test_nearest_where_it_was_looked_for(self, catalog: Catalog) -> None:
        found = suggestions("SELECT p.nme FROM people p, stock s", catalog)
        assert found.nearest == (Place("name", "p", PEOPLE),)
        assert not (found.present or found.neighbours or found.elsewhere)

    def test_nearest_of_all_sources_where_nothing_qualifies(self, catalog: Catalog) -> None:
        found = suggestions("SELECT onhand FROM people p JOIN stock s ON s.keeper_id = p.id", catalog)
        assert found.nearest == (Place("on_hand", "s", STOCK),)

    def test_present_in_the_query_already(self, catalog: Catalog) -> None:
        found = suggestions("SELECT p.on_hand FROM people p JOIN stock s ON s.keeper_id = p.id", catalog)
        assert found.present == (Place("on_hand", "s", STOCK),)
        assert STOCK not in {place.relation for place in found.elsewhere}

    def test_neighbours_along_foreign_keys_in_both_directions(self, catalog: Catalog) -> None:
        found = suggestions("SELECT m.on_hand FROM moves m", catalog)
        assert found.neighbours == (
            Neighbour("on_hand", STOCK, "m", (("product_id", "product_id"), ("place", "place"))),
        )
        found = suggestions("SELECT on_hand FROM people", catalog)
        assert found.neighbours == (Neighbour("on_hand", STOCK, "people", (("id", "keeper_id"),)),)
        found = suggestions("SELECT salary FROM stock s", catalog)
        assert found.neighbours == (Neighbour("salary", PEOPLE, "s", (("keeper_id", "id"),)),)

    def test_elsewhere_in_the_schema(self, catalog: Catalog) -> None:
        found = suggestions("SELECT tenant FROM people", catalog)
        assert found.elsewhere == (Place("tenant", None, QualifiedName("app", "note")),)

    def test_partitions_and_catalogs_are_not_offered(self, catalog: Catalog) -> None:
        found = suggestions("SELECT note FROM people", catalog)
        assert MOVES in {place.relation for place in found.elsewhere}
        assert not any(p.relation and p.relation.name.startswith("moves_") for p in found.elsewhere)
        assert suggestions("SELECT relname FROM people", catalog).elsewhere == ()

    def test_columns_of_a_sub_select(self, catalog: Catalog) -> None:
        found = suggestions("SELECT x.called FROM (SELECT name AS caller FROM people) x", catalog)
        assert found.nearest == (Place("caller", "x", None),)

    def test_a_written_column_is_the_targets(self, catalog: Catalog) -> None:
        found = suggestions("UPDATE people p SET salry = 1 FROM public.pay WHERE p.id = pay_id", catalog)
        assert found.nearest == (Place("salary", "p", PEOPLE),)

    @pytest.mark.parametrize(
        ("sql", "sources"),
        [
            ("SELECT people.name FROM people p", ("p",)),
            ("SELECT app.people.name FROM people p", ("p",)),
            ("SELECT pp.name FROM people p", ("p",)),
            ("SELECT stok.* FROM stock", ("stock",)),
            ("SELECT moves.* FROM stock", ()),
        ],
    )
    def test_sources_for_an_unknown_qualifier(
        self, catalog: Catalog, sql: str, sources: tuple[str, ...]
    ) -> None:
        assert suggestions(sql, catalog).sources == sources

    @pytest.mark.parametrize(
        ("sql", "hidden"),
        [
            ("SELECT p.salry FROM people p", "app.people.salary"),
            ("SELECT s.salary FROM stock s", "app.people.salary"),
            ("SELECT s.salary FROM stock s", "app.people"),
            ("SELECT m.on_hand FROM moves m", "app.stock.place"),
            ("SELECT p.on_hand FROM people p JOIN stock s ON s.keeper_id = p.id", "app.stock.on_hand"),
            ("SELECT tenant FROM people", "app.note.tenant"),
        ],
    )
    def test_what_is_hidden_is_never_named(self, catalog: Catalog, sql: str, hidden: str) -> None:
        before = suggestions(sql, catalog)
        after = suggestions(sql, catalog, all_but(hidden))
        assert before != after
        named = {f"{p.relation}.{p.column}" for p in (*after.nearest, *after.present, *after.elsewhere)}
        for neighbour in after.neighbours:
            named |= {
                f"{neighbour.relation}.{c}" for c in (neighbour.column, *dict(neighbour.pairs).values())
            }
        assert not any(f"{name}.".startswith(f"{hidden}.") for name in named)


class TestRelations:
    def test_like_names_and_other_schemas(self, catalog: Catalog) -> None:
        (answer,) = resolved("SELECT 1 FROM peple", catalog).relations
        assert suggest_relations(answer, catalog, everything) == (PEOPLE, QualifiedName("public", "people"))
        (answer,) = resolved("SELECT 1 FROM public.stock", catalog).relations
        assert suggest_relations(answer, catalog, everything)[0] == STOCK

    def test_hidden_ones_are_never_named(self, catalog: Catalog) -> None:
        (answer,) = resolved("SELECT 1 FROM peple", catalog).relations
        assert suggest_relations(answer, catalog, all_but("app.people")) == (
            QualifiedName("public", "people"),
        )


def test_an_answer_outside_any_query_has_no_places(catalog: Catalog) -> None:
    resolution = resolved("SELECT nme FROM people", catalog)
    (answer,) = resolution.columns
    assert isinstance(answer, ColumnAnswer)
    assert suggest_columns(answer, resolution, lambda _: False) == Suggestions()
