"""What each query level of a statement offers to the names in it.

Owns PostgreSQL's namespace of a level (parse_clause.c, parse_relation.c): the columns of every source, what
joins merge, rename and hide, and which columns a sub-select, CTE or function has. Knows ``Facts`` and a
``Catalog``, no policy; finding a name in the levels is ``resolve``'s.

Where the columns of something are not all known it is *open*: it may have any column besides those listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from policy.catalog import Catalog, effective_path
from policy.catalog_values import PG_CATALOG, ColumnId, Function, FunctionKind, Relation, RelationKind
from policy.facts import Cte, Facts, Join, Query, RelationRef, Source, SourceKind
from policy.names import QualifiedName, SearchPath

Reads = frozenset[ColumnId]
"""The columns of relations that a value is taken from. Empty for what a sub-select or CTE gives: its own
references are resolved where they stand."""

NOTHING: Final[Reads] = frozenset()

SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmax", "cmax", "xmin", "cmin", "ctid"})
"""``SysAtt`` in heap.c"""
_WITH_SYSTEM_COLUMNS: Final = frozenset(RelationKind) - {RelationKind.VIEW, RelationKind.COMPOSITE}
_VALUES_COLUMN: Final = re.compile(r"column[1-9][0-9]*")
_TAKES_ARGUMENTS: Final = frozenset({SourceKind.FUNCTION, SourceKind.TABLE_FUNCTION})
_OF_A_RELATION: Final = frozenset({SourceKind.RELATION, SourceKind.EXCLUDED, SourceKind.OLD_NEW})
_SEEN_ONLY_BY_NAME: Final = frozenset({SourceKind.EXCLUDED, SourceKind.OLD_NEW})
_ORDINALITY: Final = "ordinality"
_RECORD: Final = QualifiedName(PG_CATALOG, "record")


class OfferedColumn(NamedTuple):
    name: str
    reads: Reads


@dataclass(slots=True)
class Offer:
    """An ordered list of columns.

    ``values`` marks VALUES, whose columns are called column1, column2, …; ``scalar`` a function in FROM whose
    row is no row but its one value, so that ``f.name`` may be any function of, or cast from, that.
    """

    columns: Sequence[OfferedColumn] = ()
    open: bool = False
    values: bool = False
    scalar: bool = False

    def find(self, name: str) -> Reads | None:
        """What a column of that name reads; None where none is listed."""
        found = [column.reads for column in self.columns if column.name == name]
        if found:
            return found[0] if len(found) == 1 else frozenset().union(*found)
        return NOTHING if self.values and _VALUES_COLUMN.fullmatch(name) else None

    def everything(self) -> Reads:
        return NOTHING.union(*(column.reads for column in self.columns))

    def renamed(self, aliases: Sequence[str]) -> Offer:
        """With an alias list, which renames the first columns. Of an open offer the list may name what is not
        known, so its own names stay too."""
        if not aliases:
            return self
        if self.open or self.values or len(aliases) > len(self.columns):
            added = [OfferedColumn(alias, self.everything()) for alias in aliases]
            return Offer([*added, *self.columns], self.open, self.values, self.scalar)
        kept = [
            OfferedColumn(alias, column.reads) for alias, column in zip(aliases, self.columns, strict=False)
        ]
        return Offer([*kept, *self.columns[len(kept) :]], scalar=self.scalar)


@dataclass(slots=True)
class Item:
    """What one name qualifies: a source, a join's alias or the merged columns' alias.

    ``relations`` are those a RELATION source may be: one as a rule. ``aliased`` items answer to no schema.
    """

    name: str | None
    offer: Offer
    kind: SourceKind | None = None
    relations: tuple[Relation, ...] = ()
    aliased: bool = True
    joined: bool = False
    """An operand of a join, which passes on no system columns."""
    hidden: bool = False
    """Under a join that has an alias: seen from inside that join alone."""

    @property
    def doubtful(self) -> bool:
        """Whether it may be another relation, which need not have the columns listed."""
        return self.kind in _OF_A_RELATION and self.offer.open

    def find(self, name: str) -> Reads | None:
        found = self.offer.find(name)
        return self.system_column(name) if found is None else found

    def system_column(self, name: str) -> Reads | None:
        if name not in SYSTEM_COLUMNS:
            return None
        having = [relation for relation in self.relations if relation.kind in _WITH_SYSTEM_COLUMNS]
        return frozenset(ColumnId(r.schema, r.name, name) for r in having) if having else None


class UsingColumn(NamedTuple):
    """A column of USING. ``missing`` where a side whose columns are all known has none of that name."""

    reads: Reads
    missing: bool
    open: bool


@dataclass(slots=True)
class Level:
    """One query level. ``units`` are what FROM comes to for unqualified names: sources and whole joins."""

    query: Query
    items: list[Item] = field(default_factory=list)
    units: list[Offer] = field(default_factory=list)
    using: dict[str, UsingColumn] = field(default_factory=dict)
    natural: set[ColumnId] = field(default_factory=set)
    """What NATURAL joins compare."""
    partly_seen: bool = False
    """Whether something in its FROM sees a part of it only: an ON condition, a function's or a sample's
    argument, a LATERAL sub-select."""

    @property
    def doubtful(self) -> bool:
        return any(item.doubtful for item in self.items)

    @property
    def open(self) -> bool:
        return any(unit.open for unit in self.units)

    def find(self, name: str, in_part: bool) -> Reads | None:
        """What an unqualified column ``name`` reads here; None where no listed column has the name.

        ``in_part`` where the name may stand inside FROM, which sees columns before joins rename or hide them.
        """
        offers = [*self.units, *(item.offer for item in self.items if in_part and item.hidden)]
        found = [reads for offer in offers if (reads := offer.find(name)) is not None]
        if in_part or not found:
            having = [i for i in self.items if (in_part or not i.joined) and i.kind not in _SEEN_ONLY_BY_NAME]
            found += [reads for item in having if (reads := item.system_column(name)) is not None]
        return NOTHING.union(*found) if found else None

    def everything(self) -> Reads:
        return NOTHING.union(*(unit.everything() for unit in self.units))

    def named(self, name: str, in_part: bool) -> list[Item]:
        """The items ``name`` qualifies; ``in_part`` as in ``find``."""
        return [item for item in self.items if item.name == name and (in_part or not item.hidden)]


class RelationCandidates(NamedTuple):
    """What a mention of a relation may mean. ``certain`` where it can mean nothing else."""

    relations: tuple[Relation, ...]
    certain: bool


class Scopes:
    """The levels of one statement, each made when first asked for."""

    __slots__ = ("_ctes", "_levels", "_offers", "catalog", "facts", "paths", "temporary", "unsettled")

    def __init__(
        self,
        facts: Facts,
        catalog: Catalog,
        paths: Sequence[SearchPath],
        temporary: bool,
        *,
        unsettled: bool = False,
    ) -> None:
        self.facts = facts
        self.catalog = catalog
        self.paths = tuple(dict.fromkeys(effective_path(path) for path in paths))
        self.temporary = temporary
        self.unsettled = unsettled
        self._levels: dict[int, Level] = {}
        self._offers: dict[int, Offer] = {}
        self._ctes: Mapping[int, Cte] = {cte.query: cte for cte in facts.ctes}

    def level(self, query: int) -> Level:
        known = self._levels.get(query)
        if known is None:
            known = self._levels[query] = Level(self.facts.queries[query])
            _Building(self, known).fill()
        return known

    def outwards(self, query: int) -> Iterator[Level]:
        """The level of ``query`` and those around it that its names may mean, innermost first."""
        at: int | None = query
        while at is not None:
            level = self.level(at)
            yield level
            at = level.query.parent

    def relation(self, ref: RelationRef) -> RelationCandidates:
        """Every relation a mention may mean along the search paths in force."""
        if ref.schema is not None:
            found = self.catalog.relation(ref.schema, ref.name)
            # Temporary and TOAST schemas are not in a snapshot: no other schema may be called so.
            known = not ref.schema.startswith("pg_") or ref.schema == PG_CATALOG
            certain = not self.unsettled and (known or found is not None)
            return RelationCandidates(() if found is None else (found,), certain)
        each = [self.catalog.resolve(ref.name, path) for path in self.paths]
        relations = tuple({r.qualified: r for r in each if r is not None}.values())
        certain = not self.temporary and not self.unsettled and len(set(map(_key, each))) <= 1
        return RelationCandidates(relations, certain)

    def offer(self, query: int) -> Offer:
        """The columns a query gives to whoever selects from it."""
        known = self._offers.get(query)
        if known is None:
            # While it is under way, a query that reads itself (a recursive CTE's second arm) finds this.
            self._offers[query] = Offer(open=True)
            known = self._offers[query] = self._make_offer(self.facts.queries[query])
        return known

    def _make_offer(self, query: Query) -> Offer:
        offer: Offer
        if query.arms:
            offer = self.offer(query.arms[0])
        elif query.values_rows:
            offer = Offer(values=True)
        else:
            offer = self._outputs(query)
        cte = self._ctes.get(query.index)
        if cte is not None:
            offer = offer.renamed(cte.column_aliases)
            added = [OfferedColumn(name, NOTHING) for name in cte.added_columns]
            offer = Offer([*offer.columns, *added], offer.open, offer.values)
        return offer

    def _outputs(self, query: Query) -> Offer:
        columns: list[OfferedColumn] = []
        is_open = False
        for output in query.outputs:
            if output.star:
                starred, more_open = ([], True) if output.composite else self.starred(query, output.qualifier)
                columns.extend(OfferedColumn(name, NOTHING) for name in starred)
                is_open |= more_open
            elif output.name is None:
                is_open = True
            else:
                columns.append(OfferedColumn(output.name, NOTHING))
        return Offer(columns, is_open)

    def starred(self, query: Query, qualifier: Sequence[str]) -> tuple[list[str], bool]:
        """The names a star stands for, and whether there may be others."""
        if not qualifier:
            level = self.level(query.index)
            offers: Iterable[Offer] = level.units
        else:
            offers = [
                item.offer
                for level in self.outwards(query.index)
                for item in self.qualified_items(level, qualifier, level.query is not query)
            ][:1]
        names: list[str] = []
        is_open = not offers
        for offer in offers:
            names += [column.name for column in offer.columns]
            # Of VALUES the number of columns is not known.
            is_open |= offer.open or offer.values
        return names, is_open

    def qualified_items(self, level: Level, qualifier: Sequence[str], in_part: bool) -> list[Item]:
        """The items of ``level`` that ``alias`` or ``schema.relation`` means (refnameNamespaceItem)."""
        items = level.named(qualifier[-1], in_part)
        if len(qualifier) == 1:
            return items
        schema = qualifier[-2]
        return [i for i in items if not i.aliased and any(r.schema == schema for r in i.relations)]


def _key(relation: Relation | None) -> QualifiedName | None:
    return None if relation is None else relation.qualified


class _Building:
    """Fills one level: sources first, then joins from the inside out."""

    def __init__(self, scopes: Scopes, level: Level) -> None:
        self.scopes = scopes
        self.catalog = scopes.catalog
        self.level = level
        self.query = level.query
        self.join_items: list[tuple[Join, Item]] = []

    def fill(self) -> None:
        units: dict[int, Offer] = {}
        for at, source in enumerate(self.query.sources):
            item = self._item(source)
            self.level.items.append(item)
            self.level.partly_seen |= source.lateral or source.kind in _TAKES_ARGUMENTS
            if source.kind not in _SEEN_ONLY_BY_NAME:
                units[at] = item.offer
        sources = list(self.level.items)
        self.level.partly_seen |= any(
            call.in_from and call.query == self.query.index for call in self.scopes.facts.functions
        )
        # A join stands before the joins inside it: from the last to the first is from the inside out.
        for join in reversed(self.scopes.facts.joins):
            if join.query == self.query.index:
                self.level.partly_seen = True
                for item in sources[join.first : join.last]:
                    item.joined = True
                units[join.first] = self._join(join, units[join.first], units.pop(join.middle), sources)
        self.level.units = list(units.values())

    def _item(self, source: Source) -> Item:
        offer, relations = self._offer(source)
        return Item(source.name, offer.renamed(source.column_aliases), source.kind, relations, source.aliased)

    def _offer(self, source: Source) -> tuple[Offer, tuple[Relation, ...]]:
        """A source's own columns, before its alias list; for relations also which they may be."""
        if source.relation is not None:
            candidates = self.scopes.relation(self.scopes.facts.relations[source.relation])
            columns = [
                OfferedColumn(name, reads)
                for relation in candidates.relations
                for name, reads in self.catalog.columns_of(relation).items()
            ]
            certain = candidates.certain and len(candidates.relations) == 1
            return Offer(columns, not certain), candidates.relations
        if source.query is not None:
            return self.scopes.offer(source.query), ()
        if source.kind is SourceKind.TABLE_FUNCTION:
            return Offer(), ()  # its alias list has all of them
        if source.kind is SourceKind.FUNCTION:
            return self._function(source), ()
        return Offer(open=True), ()

    def _function(self, source: Source) -> Offer:
        """The columns of a function in FROM (addRangeTableEntryForFunction)."""
        shapes = {self._shape(f, source) for f in self._overloads(source)}
        columns = shapes.pop() if len(shapes) == 1 else None
        if columns is None:
            return Offer(open=True)
        # WITH ORDINALITY adds a last column; no fact says whether it is there.
        scalar = len(columns) == 1
        return Offer([*columns, OfferedColumn(_ORDINALITY, NOTHING)], scalar=scalar)

    def _overloads(self, source: Source) -> list[Function]:
        """Every function the search paths reach by that name; none where the snapshot leaves them out."""
        if len(source.functions) != 1:
            return []  # ROWS FROM: the columns of all of them
        schema, _, name = source.functions[0].rpartition(".")
        schemas = [schema] if schema else dict.fromkeys(s for path in self.scopes.paths for s in path)
        found = [f for s in schemas for f in self.catalog.functions(s, name)]
        return [f for f in found if f.kind is FunctionKind.FUNCTION]

    def _shape(self, function: Function, source: Source) -> tuple[OfferedColumn, ...] | None:
        """A function's result columns; None where they are not known. A relation's rows keep its columns."""
        if len(function.columns) > 1:
            return tuple(OfferedColumn(column.name, NOTHING) for column in function.columns)
        if function.result == _RECORD:
            # AS t(a int, b text) is demanded then, and says it all.
            return tuple(OfferedColumn(name, NOTHING) for name in source.column_aliases)
        row = self.catalog.relation(*function.result)
        if row is not None:
            return tuple(OfferedColumn(name, reads) for name, reads in self.catalog.columns_of(row).items())
        if not self._is_scalar(function.result):
            return None
        # A scalar's column has its OUT parameter's or the source's name (chooseScalarFunctionAlias).
        name = function.columns[0].name if function.columns else source.name
        return None if name is None else (OfferedColumn(name, NOTHING),)

    def _is_scalar(self, result: QualifiedName) -> bool:
        if result.schema == PG_CATALOG:
            return not result.name.startswith("any")
        known = self.catalog.type(*result)
        # A domain may be one over a row.
        return known is not None and known.relation is None and known.base is None

    def _join(self, join: Join, left: Offer, right: Offer, sources: list[Item]) -> Offer:
        is_open = left.open or right.open
        merged = [OfferedColumn(name, self._using(name, left, right)) for name in join.using]
        if join.natural:
            merged = self._natural(left, right)
        names = {column.name for column in merged}
        rest = [column for side in (left, right) for column in side.columns if column.name not in names]
        values = left.values or right.values
        joined = Offer([*merged, *rest], is_open, values)
        if join.using_alias is not None:
            self._add(join, join.using_alias, Offer(merged))
        if join.alias is not None:
            joined = joined.renamed(join.column_aliases)
            for item in sources[join.first : join.last]:
                item.hidden = True
            for inner, item in self.join_items:
                item.hidden |= join.first <= inner.first < join.last
            self._add(join, join.alias, joined)
        return joined

    def _add(self, join: Join, name: str, offer: Offer) -> None:
        item = Item(name, offer)
        self.level.items.append(item)
        self.join_items.append((join, item))

    def _using(self, name: str, left: Offer, right: Offer) -> Reads:
        sides = [(side, side.find(name)) for side in (left, right)]
        reads = NOTHING.union(*(found for _, found in sides if found is not None))
        missing = any(found is None and not side.open for side, found in sides)
        before = self.level.using.get(name, UsingColumn(NOTHING, False, False))
        self.level.using[name] = UsingColumn(
            before.reads | reads,
            before.missing or missing,
            before.open or any(found is None for _, found in sides),
        )
        return reads

    def _natural(self, left: Offer, right: Offer) -> list[OfferedColumn]:
        theirs = {column.name for column in right.columns}
        common = [
            OfferedColumn(name, (left.find(name) or NOTHING) | (right.find(name) or NOTHING))
            for name in dict.fromkeys(column.name for column in left.columns if column.name in theirs)
        ]
        for column in common:
            self.level.natural |= column.reads
        # An open side may share any column of the other.
        for one, other in ((left, right), (right, left)):
            if one.open or one.values:
                self.level.natural |= other.everything()
        return common
