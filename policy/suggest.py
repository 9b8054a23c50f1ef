"""What an unknown name may have been meant to be.

Owns the search for real alternatives: in the statement itself, along foreign keys, in the schema. Words
nothing and knows no policy: ``shown`` says what may be named to the agent, and nothing else is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from policy.catalog import Catalog
from policy.catalog_values import PG_CATALOG, ColumnId, ForeignKey, Relation
from policy.facts import ColumnRef
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
    return ColumnSuggestions(resolution, shown, limit).of(answer)


class ColumnSuggestions:
    """``suggest_columns`` for the unknown columns of one statement: what they have in common is looked up
    once, because a statement may have a thousand of them over a hundred tables."""

    def __init__(self, resolution: Resolution, shown: Shown, limit: int = LIMIT) -> None:
        self._resolution = resolution
        self._shown = shown
        self._limit = limit
        self._around: dict[tuple[int | None, int | None], _Around] = {}

    def of(self, answer: ColumnAnswer) -> Suggestions:
        """Alternatives for ``answer``, an unknown column of the statement."""
        ref = answer.ref
        key = (ref.query, ref.target)
        around = self._around.get(key)
        if around is None:
            around = self._around[key] = _Around(ref, self._resolution, self._shown)
        return _Suggesting(answer, around, self._limit).all()


class _Around:
    """What stands around an unknown column: the sources in its reach, and the columns they have."""

    def __init__(self, ref: ColumnRef, resolution: Resolution, shown: Shown) -> None:
        self.scopes = resolution.scopes
        self.catalog = resolution.scopes.catalog
        self._shown = functools.cache(shown)
        levels = [] if ref.query is None else list(self.scopes.outwards(ref.query))
        self.items = [item for level in levels for item in level.items if not item.hidden]
        self.places: dict[str, list[Place]] = {}
        """The columns by their name, the innermost first."""
        for place in self._places(self._written_target(ref) or self.items):
            self.places.setdefault(place.column, []).append(place)

    def shows(self, column: ColumnId) -> bool:
        return self._shown(column._replace(column=None)) and self._shown(column)

    def _places(self, items: list[Item]) -> Iterator[Place]:
        """Every column the sources have, as far as it may be shown."""
        for item in items:
            for column in item.offer.columns:
                if not all(map(self.shows, column.reads)):
                    continue
                relation = next((QualifiedName(read.schema, read.relation) for read in column.reads), None)
                yield Place(column.name, item.name, relation)

    def _written_target(self, ref: ColumnRef) -> list[Item]:
        """For a column that is written: its target alone."""
        target = ref.target
        if target is None or ref.query is None:
            return []
        sources = self.scopes.facts.queries[ref.query].sources
        items = self.scopes.level(ref.query).items
        return [item for item, source in zip(items, sources, strict=False) if source.relation == target][:1]


class _Suggesting:
    def __init__(self, answer: ColumnAnswer, around: _Around, limit: int) -> None:
        self.answer = answer
        self.ref = answer.ref
        self.around = around
        self.catalog = around.catalog
        self.items = around.items
        self.limit = limit

    def all(self) -> Suggestions:
        name = self.ref.name
        if name is None:
            return Suggestions(sources=self._sources())
        present = self.around.places.get(name, [])
        neighbours = self._first(self._neighbours(name))
        return Suggestions(
            nearest=self._nearest(name),
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

    def _nearest(self, name: str) -> tuple[Place, ...]:
        """Of the qualifier's own columns where that is known."""
        qualifier = self.ref.qualifier[-1] if self.ref.qualifier else None
        by_name = {column: places for column, places in self.around.places.items() if column != name}
        if qualifier is not None and self.answer.fault is Fault.COLUMN:
            own = ((c, [p for p in places if p.source == qualifier]) for c, places in by_name.items())
            by_name = {column: places for column, places in own if places}
        return self._first(place for like in nearest(name, by_name, self.limit) for place in by_name[like])

    def _neighbours(self, name: str) -> Iterator[Neighbour]:
        joins: dict[QualifiedName, list[tuple[QualifiedName, tuple[tuple[str, str], ...]]]] = {}
        for item in self.items:
            for relation in item.relations:
                if relation.schema in _NO_NEIGHBOURS or item.name is None:
                    continue
                if relation.qualified not in joins:
                    joins[relation.qualified] = list(self._joins(relation, name))
                for other, pairs in joins[relation.qualified]:
                    yield Neighbour(name, other, item.name, pairs)

    def _joins(
        self, relation: Relation, name: str
    ) -> Iterator[tuple[QualifiedName, tuple[tuple[str, str], ...]]]:
        """The relations one foreign key away that have the column, and by what they are joined."""
        for other, key in self.catalog.neighbours(relation):
            pairs = _pairs(key, relation, other)
            if self._has(other, name) and self._joinable(relation, other, pairs):
                yield other.qualified, pairs

    def _has(self, relation: Relation, column: str) -> bool:
        return relation.column(column) is not None and self.around.shows(_column_id(relation, column))

    def _joinable(self, here: Relation, there: Relation, pairs: tuple[tuple[str, str], ...]) -> bool:
        return all(
            self.around.shows(_column_id(here, mine)) and self.around.shows(_column_id(there, theirs))
            for mine, theirs in pairs
        )

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
            and self.around.shows(_column_id(relation, name))
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
