"""Which column of which catalog a reference in a statement over filtered catalogs reads.

Owns the certainty of it: what is not sure to be a catalog's own column is none, since the number in it may be
anybody's. Names are followed by the facts' scopes, and by PostgreSQL's refusal of a name that is ambiguous.
Knows no expression but the plain reference (``filtered_values``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from policy.builtin import PG_CATALOG
from policy.catalog import Catalog
from policy.facts import ColumnRef, Facts, OperandKind, Source, SourceKind
from policy.name_givers import KEYS, LOOK_UP_FUNCTIONS, REG_COLUMNS, TYPES
from policy.names import QualifiedName
from policy.resolve_scope import SYSTEM_COLUMNS
from policy.rules import relation_not_allowed
from policy.text_edits import Edits, Refusal

Node = Any

_UNGROUPED: Final = frozenset({"target", "distinct", "having", "order", "window"})
"""Clauses that see a grouped query's columns only as they are grouped by."""
_OID: Final = frozenset({"oid"})
_EXPRESSION_TYPE: Final = "pg_node_tree"
"""A type that cannot be grouped by."""


class CatalogColumn(NamedTuple):
    """``of`` are a catalog of pg_catalog and its column. ``row`` tells rows apart: the number of the query,
    what the catalog is called there, the statement."""

    of: tuple[str, str]
    row: tuple[int, str | None, int]


class CatalogRow(NamedTuple):
    """``CatalogColumn.row``, and of which catalog it is."""

    catalog: str
    query: int
    source: str
    statement: int


class CatalogColumns:
    """The references of one query string. ``catalogs``: position in the text -> the catalog read there."""

    def __init__(
        self,
        facts: Sequence[Facts],
        catalogs: Mapping[int, QualifiedName],
        edits: Edits,
        snapshot: Catalog | None,
    ) -> None:
        self._facts = facts
        self._catalogs = catalogs
        self._edits = edits
        self._snapshot = snapshot
        self._columns: dict[int, tuple[Facts, ColumnRef]] = {
            ref.position: (each, ref) for each in facts for ref in each.columns if ref.position is not None
        }
        self.numbers: Final = frozenset(
            ref.name
            for each in facts
            for ref in each.columns
            if ref.name is not None and ref.name in REG_COLUMNS
        )
        """The names among ``REG_COLUMNS`` that the text holds: such columns are read as numbers, and become
        names where they are named."""

    def system(self) -> Mapping[int, frozenset[str]]:
        """The place of a catalog in FROM -> the system columns that may be read of it: a sub-select has none
        but those it selects. Raises Refusal where it would show them unasked: by a star, or its whole row."""
        wanted: dict[int, frozenset[str]] = {}
        for facts in self._facts:
            named = [ref for ref in facts.columns if ref.name in SYSTEM_COLUMNS]
            for query, scope in enumerate(facts.queries if named else ()):
                for source in scope.sources:
                    if self._catalog(source, facts) is None or source.relation is None:
                        continue
                    read = [ref for ref in named if not ref.qualifier or ref.qualifier[-1] == source.name]
                    if read and _shows_every_column(source, query, facts):
                        raise Refusal(
                            relation_not_allowed.NAME,
                            f"The system column {read[0].name} of a catalog cannot be read beside *",
                            "Name the columns you need instead of *.",
                            read[0].position,
                        )
                    place = facts.relations[source.relation].position or 0
                    wanted[place] = frozenset(str(ref.name) for ref in read)
        return wanted

    def dependent(self) -> Mapping[int, tuple[tuple[str, str], ...]]:
        """The place of a column that a query groups by -> what it must group by beside it, each as a source
        and a column. PostgreSQL lets the columns of a table stand ungrouped where its primary key is grouped
        by; a sub-select has none."""
        keys: dict[CatalogRow, dict[str, int]] = defaultdict(dict)
        wanted: dict[CatalogRow, dict[str, None]] = defaultdict(dict)
        for place, (facts, ref) in self._columns.items():
            found = self._read(facts, ref)
            if found is None:
                continue
            query, source, statement = found.row
            if source is None:
                continue
            row = CatalogRow(found.of[0], query, source, statement)
            if ref.query == query and ref.clause == "group" and ref.alone:
                keys[row][found.of[1]] = place
            elif ref.query != query or ref.clause in _UNGROUPED:
                wanted[row][found.of[1]] = None
        return {
            min(grouped.values()): tuple(
                (row.source, name)
                for name in wanted[row]
                if name not in grouped and self._can_be_grouped(row.catalog, name)
            )
            for row, grouped in keys.items()
            if grouped.keys() >= KEYS.get(row.catalog, _OID)
        }

    def _can_be_grouped(self, catalog: str, name: str) -> bool:
        relation = None if self._snapshot is None else self._snapshot.relation(PG_CATALOG, catalog)
        column = None if relation is None else relation.column(name)
        return column is not None and column.type.name != _EXPRESSION_TYPE

    def is_function(self, node: Node) -> bool:
        """Whether it is a reference that is certain to read one of ``REG_COLUMNS`` of a catalog."""
        found = self.direct(node)
        return found is not None and found.of[1] in REG_COLUMNS and self._holds(found.of[0], found.of[1])

    def direct(self, node: Node) -> CatalogColumn | None:
        """What a plain reference is certain to read, if its source has such a column at all."""
        if not isinstance(node, Mapping) or "ColumnRef" not in node:
            return None
        facts, ref = self._columns.get(self._edits.position(node["ColumnRef"]["location"]), (None, None))
        return None if facts is None or ref is None else self._read(facts, ref)

    def _read(self, facts: Facts, ref: ColumnRef) -> CatalogColumn | None:
        if ref.name is None or ref.fields:
            return None
        found = self._source(facts, ref)
        if found is None or found[1].column_aliases:
            return None
        catalog = self._catalog(found[1], facts)
        if catalog is None or catalog.schema != PG_CATALOG:
            return None
        return CatalogColumn((catalog.name, ref.name), (found[0], found[1].name, id(facts)))

    def derived(self, node: Node) -> str | None:
        """The type in ``TYPES`` that a plain reference to a column of a sub-select or CTE was written to be
        of, as far as the text tells: in what is forwarded such a column is a text."""
        if not isinstance(node, Mapping) or "ColumnRef" not in node:
            return None
        facts, ref = self._columns.get(self._edits.position(node["ColumnRef"]["location"]), (None, None))
        query = None if ref is None or ref.name is None or ref.fields else ref.query
        while facts is not None and ref is not None and query is not None:
            qualifier = ref.qualifier[-1] if ref.qualifier else None
            sources = [s for s in facts.queries[query].sources if qualifier in (None, s.name)]
            types = {t for s in sources if (t := _written_type(s, str(ref.name), facts)) is not None}
            if types or (qualifier is not None and sources):
                return types.pop() if len(types) == 1 else None
            query = facts.queries[query].parent
        return None

    def _source(self, facts: Facts, ref: ColumnRef) -> tuple[int, Source] | None:
        """The query whose source ``ref`` reads, and that source."""
        qualifier = ref.qualifier[-1] if ref.qualifier else None
        query = ref.query
        while query is not None:
            if any(join.alias is not None for join in facts.joins if join.query == query):
                # It hides what it joins, and may be called like a part of it.
                return None
            scope = facts.queries[query]
            sources = [s for s in scope.sources if qualifier is None or s.name == qualifier]
            if qualifier is None and len(sources) > 1:
                sources = self._only_one_with(str(ref.name), facts, query)
                return (query, sources[0]) if len(sources) == 1 else None
            if sources:
                return (query, sources[0]) if len(sources) == 1 else None
            query = scope.parent
        return None

    def _only_one_with(self, name: str, facts: Facts, query: int) -> list[Source]:
        """The catalogs among the sources of ``query`` that have the column: PostgreSQL refuses the name
        without a qualifier where something else has it too, unless joins merge the two."""
        if any(join.using or join.natural for join in facts.joins if join.query == query):
            return []
        found = ((source, self._catalog(source, facts)) for source in facts.queries[query].sources)
        return [source for source, catalog in found if catalog and self._holds(catalog.name, name)]

    def _catalog(self, source: Source, facts: Facts) -> QualifiedName | None:
        if source.kind is not SourceKind.RELATION or source.relation is None:
            return None
        return self._catalogs.get(facts.relations[source.relation].position or 0)

    def _holds(self, catalog: str, column: str) -> bool:
        """Whether the catalog is known to have the column."""
        relation = None if self._snapshot is None else self._snapshot.relation(PG_CATALOG, catalog)
        return relation is not None and relation.column(column) is not None


def _shows_every_column(source: Source, query: int, facts: Facts) -> bool:
    """Whether some star or whole row may hold all that ``source`` of ``query`` has, or a join all that it has
    in common."""
    joins = [join for join in facts.joins if join.query == query]
    if any(join.natural for join in joins):
        return True
    # What joins are called by is nobody's own name.
    names = {source.name, *(join.alias for join in joins)}
    return any(
        (ref.qualifier[-1] in names if ref.qualifier else ref.query in (query, None))
        if ref.name is None
        else not ref.qualifier and ref.name in names
        for ref in facts.columns
    )


def _written_type(source: Source, name: str, facts: Facts) -> str | None:
    """The type in ``TYPES`` of the column ``name`` of a sub-select or CTE."""
    if source.query is None or source.column_aliases or facts.queries[source.query].arms:
        return None
    for output in facts.queries[source.query].outputs:
        operand = output.operand
        if output.name == name and operand is not None and operand.schema in (None, PG_CATALOG):
            types = {OperandKind.TYPED: TYPES, OperandKind.CALL: LOOK_UP_FUNCTIONS}.get(operand.kind, {})
            of = str(operand.name)
            return LOOK_UP_FUNCTIONS.get(of) if of in types else None
    return None
