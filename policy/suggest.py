"""What an unknown name may have been meant to be.

Owns the search for real alternatives: in the statement itself, along foreign keys, in the schema. Words
nothing and knows no policy: ``shown`` says what may be named to the agent, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from policy.catalog import Catalog
from policy.catalog_values import PG_CATALOG, ColumnId, ForeignKey, Relation
from policy.names import QualifiedName
from policy.nearest import nearest
from policy.resolve import ColumnAnswer, Fault, RelationAnswer, Resolution
from policy.resolve_scope import Item

Shown = Callable[[ColumnId], bool]
"""Whether a column, or with ``column`` None a relation, may be named to the agent."""

LIMIT: Final = 3
"""The most of one kind that is offered: a hint that lists everything is no hint."""

_T = TypeVar("_T")
_NO_NEIGHBOURS: Final = frozenset({PG_CATALOG, "information_schema"})


@dataclass(frozen=True, slots=True)
class Place:
    """A column that exists. ``source`` is what qualifies it in the statement, None where it is not in it;
    ``relation`` None for what a sub-select, CTE or function gives."""

    column: str
    source: str | None
    relation: QualifiedName | None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """``relation`` has the column and could be joined: ``pairs`` are (column of ``source``, column of it)."""

    column: str
    relation: QualifiedName
    source: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Alternatives for one unknown column, each list the best first.

    ``nearest``: columns of a like name where the column was looked for. ``present``: the very name, elsewhere
    in the statement. ``neighbours``: the very name, one foreign key away. ``elsewhere``: the very name,
    anywhere in the schema. ``sources``: for an unknown qualifier, what does qualify.
    """

    nearest: tuple[Place, ...] = ()
    present: tuple[Place, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    elsewhere: tuple[Place, ...] = ()
    sources: tuple[str, ...] = ()


def suggest_relations(
    answer: RelationAnswer, catalog: Catalog, shown: Shown, limit: int = LIMIT
) -> tuple[QualifiedName, ...]:
    """Relations that ``answer``'s unknown name may have meant: of that name in another schema, or like it."""
    return catalog.nearest_relations(
        answer.ref.name, lambda name: shown(ColumnId(name.schema, name.name, None)), limit
    )


def suggest_columns(
    answer: ColumnAnswer, resolution: Resolution, shown: Shown, limit: int = LIMIT
) -> Suggestions:
    """Alternatives for ``answer``, an unknown column of ``resolution``."""
    return _Suggesting(answer, resolution, shown, limit).all()


class _Suggesting:
    def __init__(self, answer: ColumnAnswer, resolution: Resolution, shown: Shown, limit: int) -> None:
        self.answer = answer
        self.ref = answer.ref
        self.scopes = resolution.scopes
        self.catalog = resolution.scopes.catalog
        self.shown = shown
        self.limit = limit
        levels = [] if self.ref.query is None else list(self.scopes.outwards(self.ref.query))
        self.items = [item for level in levels for item in level.items if not item.hidden]

    def all(self) -> Suggestions:
        name = self.ref.name
        if name is None:
            return Suggestions(sources=self._sources())
        places = list(self._places())
        present = [place for place in places if place.column == name]
        neighbours = self._first(self._neighbours(name))
        return Suggestions(
            nearest=self._nearest(name, places),
            present=self._first(present),
            neighbours=neighbours,
            elsewhere=self._elsewhere(name, present, neighbours),
            sources=self._sources(),
        )

    def _first(self, found: Iterable[_T]) -> tuple[_T, ...]:
        kept: dict[_T, None] = {}
        for each in found:
            kept[each] = None
            if len(kept) == self.limit:
                break  # what is not asked for is not looked at
        return tuple(kept)

    def _places(self) -> Iterator[Place]:
        """Every column the statement's sources have, as far as it may be shown: the innermost first."""
        for item in self._written_target() or self.items:
            for column in item.offer.columns:
                if not all(map(self._shows, column.reads)):
                    continue
                relation = next((QualifiedName(read.schema, read.relation) for read in column.reads), None)
                yield Place(column.name, item.name, relation)

    def _written_target(self) -> list[Item]:
        """For a column that is written: its target alone."""
        target = self.ref.target
        if target is None or self.ref.query is None:
            return []
        sources = self.scopes.facts.queries[self.ref.query].sources
        items = self.scopes.level(self.ref.query).items
        return [item for item, source in zip(items, sources, strict=False) if source.relation == target][:1]

    def _nearest(self, name: str, places: list[Place]) -> tuple[Place, ...]:
        """Of the qualifier's own columns where that is known."""
        qualifier = self.ref.qualifier[-1] if self.ref.qualifier else None
        if qualifier is not None and self.answer.fault is Fault.COLUMN:
            places = [place for place in places if place.source == qualifier]
        by_name: dict[str, list[Place]] = {}
        for place in places:
            if place.column != name:
                by_name.setdefault(place.column, []).append(place)
        return self._first(place for like in nearest(name, by_name, self.limit) for place in by_name[like])

    def _neighbours(self, name: str) -> Iterator[Neighbour]:
        for item in self.items:
            for relation in item.relations:
                if relation.schema in _NO_NEIGHBOURS or item.name is None:
                    continue
                for other, key in self.catalog.neighbours(relation):
                    pairs = _pairs(key, relation, other)
                    if self._has(other, name) and self._joinable(relation, other, pairs):
                        yield Neighbour(name, other.qualified, item.name, pairs)

    def _has(self, relation: Relation, column: str) -> bool:
        return relation.column(column) is not None and self._shows(_column_id(relation, column))

    def _joinable(self, here: Relation, there: Relation, pairs: tuple[tuple[str, str], ...]) -> bool:
        return all(
            self._shows(_column_id(here, mine)) and self._shows(_column_id(there, theirs))
            for mine, theirs in pairs
        )

    def _shows(self, column: ColumnId) -> bool:
        return self.shown(column._replace(column=None)) and self.shown(column)

    def _elsewhere(
        self, name: str, present: list[Place], neighbours: tuple[Neighbour, ...]
    ) -> tuple[Place, ...]:
        told = {place.relation for place in present} | {neighbour.relation for neighbour in neighbours}
        return self._first(
            Place(name, None, relation.qualified)
            for relation in self.catalog.columns_named(name)
            if relation.qualified not in told
            and relation.schema not in _NO_NEIGHBOURS
            and not relation.partition
            and self._shows(_column_id(relation, name))
        )

    def _sources(self) -> tuple[str, ...]:
        """For an unknown qualifier: the alias its relation goes by here, else names like it."""
        if self.answer.fault is not Fault.SOURCE:
            return ()
        wanted = self.ref.qualifier[-1]
        named = [item for item in self.items if item.name is not None]
        aliases = [i.name for i in named if i.name and any(r.name == wanted for r in i.relations)]
        return self._first(aliases or nearest(wanted, {i.name for i in named if i.name}, self.limit))


def _column_id(relation: Relation, column: str) -> ColumnId:
    return ColumnId(relation.schema, relation.name, column)


def _pairs(key: ForeignKey, here: Relation, there: Relation) -> tuple[tuple[str, str], ...]:
    if key in here.foreign_keys and key.target == there.qualified:
        return tuple(zip(key.columns, key.target_columns, strict=True))
    return tuple(zip(key.target_columns, key.columns, strict=True))
