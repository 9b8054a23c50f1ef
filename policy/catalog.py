"""One database's schema, frozen, and the questions rules ask of it.

Owns the look-ups over a ``Content``: by name, along a search path, by likeness, and the closures of what a
view or function reaches. Pure: it knows no connection (``catalog_source``), no policy and no statement
(``resolve``). Every answer is exact for the moment the snapshot was read; what a session keeps to itself
(temporary objects) is not in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from policy import catalog_json
from policy.catalog_values import (
    PG_CATALOG,
    Cast,
    ColumnId,
    Content,
    ForeignKey,
    Function,
    Operator,
    Read,
    Relation,
    RelationKind,
    RuleEvent,
    Type,
    TypeKind,
    Uses,
)
from policy.names import QualifiedName, SearchPath
from policy.nearest import nearest

Visible = Callable[[QualifiedName], bool]
"""Whether a relation may be named to the agent."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_ASKED_ABOUT: Final = 64
"""How many like names are looked at for some that may be shown: all of a large schema's would take long."""
_SUGGESTED: Final = frozenset(RelationKind) - {RelationKind.COMPOSITE, RelationKind.SEQUENCE}
"""What an agent that mistook a name can have meant: a sequence can be read, and nobody wants to."""
_ARRAY_CATEGORY: Final = "A"
_COMPOSITE_CATEGORY: Final = "C"


def effective_path(path: SearchPath) -> SearchPath:
    """``path`` with pg_catalog where PostgreSQL searches it: first, unless the path names it."""
    return path if PG_CATALOG in path else (PG_CATALOG, *path)


class ViewSources(NamedTuple):
    """What a view's columns, by name, and its rows tell of at every depth: columns of tables and of the views
    between."""

    columns: Mapping[str, frozenset[ColumnId]]
    rows: frozenset[ColumnId]


class Catalog:
    """An immutable index over one ``Content``. Equal where ``sha256`` is; safe to share between threads."""

    __slots__ = (
        "_casts",
        "_columns",
        "_columns_of",
        "_functions",
        "_functions_by_name",
        "_operators",
        "_parents",
        "_reach",
        "_referrers",
        "_relations",
        "_relations_by_name",
        "_sources",
        "_types",
        "content",
        "row_functions",
        "sha256",
    )

    def __init__(self, content: Content, encoded: Mapping[int, str] = MappingProxyType({})) -> None:
        """``encoded`` spares ``catalog_json.digest``, whose it is, some work."""
        self.content: Final = content
        self.sha256: Final = catalog_json.digest(content, encoded)
        """Of the schema alone: see ``catalog_json.digest``."""
        self.row_functions: Final = frozenset(content.row_functions)
        self._relations: Final = {relation.qualified: relation for relation in content.relations}
        self._relations_by_name: Final = _grouped((relation.name, relation) for relation in content.relations)
        self._functions: Final = _grouped((function.qualified, function) for function in content.functions)
        self._functions_by_name: Final = _grouped((function.name, function) for function in content.functions)
        self._operators: Final = _grouped((operator.symbol, operator) for operator in content.operators)
        self._casts: Final = _grouped((cast.target, cast) for cast in content.casts)
        self._types: Final = {QualifiedName(item.schema, item.name): item for item in content.types}
        self._reach: Final[dict[QualifiedName, tuple[frozenset[ColumnId], frozenset[QualifiedName]]]] = {}
        self._sources: Final[dict[QualifiedName, ViewSources | None]] = {}
        self._columns_of: Final[dict[QualifiedName, Mapping[str, frozenset[ColumnId]]]] = {}
        # Needed for hints alone, and large: made when first asked for.
        self._columns: Mapping[str, tuple[Relation, ...]] | None = None
        self._parents: Mapping[QualifiedName, tuple[QualifiedName, ...]] | None = None
        self._referrers: Mapping[QualifiedName, tuple[tuple[Relation, ForeignKey], ...]] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Catalog) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def to_json(self) -> str:
        """The whole snapshot as deterministic JSON text, for decisions offline."""
        return catalog_json.dump(self.content)

    @classmethod
    def from_json(cls, text: str | bytes) -> Catalog:
        """The snapshot ``to_json`` wrote. Raises ``catalog_json.CatalogFormatError``."""
        return cls(catalog_json.load(text))

    # Relations and columns ----------------------------------------------------------------------------------

    def relation(self, schema: str, name: str) -> Relation | None:
        return self._relations.get(QualifiedName(schema, name))

    def relations_named(self, name: str) -> tuple[Relation, ...]:
        """The relations of that name in every schema, by schema."""
        return self._relations_by_name.get(name, ())

    def resolve(self, name: str, path: SearchPath) -> Relation | None:
        """What an unqualified ``name`` means along ``path`` (namespace.c, RelnameGetRelid).

        Temporary relations, which come before every schema, are the caller's business.
        """
        return next(
            (found for schema in effective_path(path) if (found := self.relation(schema, name)) is not None),
            None,
        )

    def columns_of(self, relation: Relation) -> Mapping[str, frozenset[ColumnId]]:
        """The columns of ``relation`` by name, in order, each as the set of itself alone."""
        known = self._columns_of.get(relation.qualified)
        if known is None:
            known = self._columns_of[relation.qualified] = {
                column.name: frozenset({ColumnId(relation.schema, relation.name, column.name)})
                for column in relation.columns
            }
        return known

    def columns_named(self, column: str) -> tuple[Relation, ...]:
        """Every relation that can be read and has a column of that name."""
        if self._columns is None:
            self._columns = _grouped(
                (each.name, relation)
                for relation in self.content.relations
                if relation.kind in _SUGGESTED
                for each in relation.columns
            )
        return self._columns.get(column, ())

    def nearest_relations(self, name: str, visible: Visible, limit: int = 3) -> tuple[QualifiedName, ...]:
        """At most ``limit`` readable relations whose name is like ``name``: those of that very name first."""
        like = nearest(name, self._relations_by_name, _ASKED_ABOUT)
        found = (
            relation.qualified
            for known in like
            for relation in self._relations_by_name[known]
            if relation.kind in _SUGGESTED and visible(relation.qualified)
        )
        return tuple(islice(found, limit))

    def nearest_columns(
        self, name: str, relations: Iterable[Relation], limit: int = 3
    ) -> tuple[ColumnId, ...]:
        """At most ``limit`` columns of ``relations`` whose name is like ``name``."""
        candidates: dict[str, list[ColumnId]] = defaultdict(list)
        for relation in relations:
            for column in relation.columns:
                candidates[column.name].append(ColumnId(relation.schema, relation.name, column.name))
        found = (column for known in nearest(name, candidates, limit) for column in candidates[known])
        return tuple(found)[:limit]

    def neighbours(self, relation: Relation) -> Iterator[tuple[Relation, ForeignKey]]:
        """Relations that a foreign key ties to ``relation``, with that key, in either direction."""
        for key in relation.foreign_keys:
            target = self._relations.get(key.target)
            if target is not None:
                yield target, key
        if self._referrers is None:
            self._referrers = _grouped(
                (key.target, (referrer, key))
                for referrer in self.content.relations
                for key in referrer.foreign_keys
            )
        yield from self._referrers.get(relation.qualified, ())

    def descendants(self, relation: Relation) -> frozenset[QualifiedName]:
        """Partitions and inheritance children at every depth: a read of ``relation`` returns their rows."""
        found: set[QualifiedName] = set()
        waiting = list(relation.children)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                child = self._relations.get(name)
                waiting.extend(child.children if child is not None else ())
        return frozenset(found)

    def ancestors(self, relation: Relation) -> frozenset[QualifiedName]:
        """The partitioned tables and inheritance parents above ``relation``, at every height."""
        if self._parents is None:
            self._parents = _grouped(
                (child, parent.qualified) for parent in self.content.relations for child in parent.children
            )
        found: set[QualifiedName] = set()
        waiting = list(self._parents.get(relation.qualified, ()))
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(self._parents.get(name, ()))
        return frozenset(found)

    # Functions, operators, casts, types ---------------------------------------------------------------------

    def functions(self, schema: str, name: str) -> tuple[Function, ...]:
        """The overloads of a name in one schema; of pg_catalog's own, those ``Content.functions`` holds."""
        return self._functions.get(QualifiedName(schema, name), ())

    def functions_named(self, name: str) -> tuple[Function, ...]:
        """The overloads of a name in every schema."""
        return self._functions_by_name.get(name, ())

    def operators(self, symbol: str) -> tuple[Operator, ...]:
        """The operators of a symbol in every schema; pg_catalog's own only where others share the symbol."""
        return self._operators.get(symbol, ())

    def casts(self, target: QualifiedName) -> tuple[Cast, ...]:
        """The casts to a type, less those the server was made with."""
        return self._casts.get(target, ())

    def type(self, schema: str, name: str) -> Type | None:
        """A type that is not the server's own: also a relation's row type; an array by its usual name."""
        known = self._types.get(QualifiedName(schema, name))
        if known is not None:
            return known
        relation = self.relation(schema, name)
        if relation is not None and relation.kind is not RelationKind.SEQUENCE and schema != PG_CATALOG:
            return Type(
                schema, name, TypeKind.COMPOSITE, _COMPOSITE_CATEGORY, relation=QualifiedName(schema, name)
            )
        if name.startswith("_") and self.type(schema, name[1:]) is not None:
            return Type(schema, name, TypeKind.BASE, _ARRAY_CATEGORY, element=QualifiedName(schema, name[1:]))
        return None

    # What is reached ----------------------------------------------------------------------------------------

    def reach(self, relation: Relation) -> frozenset[ColumnId]:
        """Everything a read of the view ``relation`` reads below it, at every depth; empty for a table.

        Each relation reached is there once with ``column`` None and once for each column that is read
        anywhere in the view: also by a predicate, and every column where a whole row may be read.
        """
        return self._reached(relation)[0]

    def reach_of_writing(self, relation: Relation, event: RuleEvent) -> frozenset[ColumnId]:
        """Everything that rules of ``relation`` on ``event`` read or write in its place or besides."""
        found: set[ColumnId] = set()
        for rule in relation.rules:
            if rule.event is event:
                for read in rule.reads:
                    below = self._relations.get(read.relation)
                    found.update(_columns_read(read, below))
                    if below is not None and below is not relation:
                        found |= self.reach(below)
        return frozenset(found)

    def view_sources(self, relation: Relation) -> ViewSources | None:
        """Which of what it reaches the columns and rows of the view ``relation`` tell of.

        None where that is not certain, and for what is no view: then whatever ``reach`` says counts.
        """
        name = relation.qualified
        if name not in self._sources:
            self._sources[name] = None  # a view that reads itself
            self._sources[name] = self._find_sources(relation)
        return self._sources[name]

    def _find_sources(self, view: Relation) -> ViewSources | None:
        rules = [rule for rule in view.rules if rule.event is RuleEvent.SELECT]
        flow = rules[0].flow if len(rules) == 1 else None
        if flow is None or len(flow.outputs) != len(view.columns):
            return None
        below: dict[QualifiedName, ViewSources] = {}
        for read in rules[0].reads:
            relation = self._relations.get(read.relation)
            if relation is not None and any(rule.event is RuleEvent.SELECT for rule in relation.rules):
                sources = self.view_sources(relation)
                if sources is None:
                    return None
                below[read.relation] = sources
        columns = {
            column.name: frozenset(_followed(output, below))
            for column, output in zip(view.columns, flow.outputs, strict=True)
        }
        rows = frozenset(_followed(flow.rows, below)).union(*(each.rows for each in below.values()))
        return ViewSources(columns, rows)

    def functions_reached(self, relation: Relation) -> frozenset[QualifiedName]:
        """The functions a read of the view ``relation`` may run at every depth, by name.

        Those outside pg_catalog through operators, casts, aggregates and types too; pg_catalog's where a view
        calls them by name.
        """
        return self._reached(relation)[1]

    def closure(self, uses: Uses) -> frozenset[QualifiedName]:
        """``uses`` and what those use in turn: support functions, types' functions, domain checks."""
        functions: set[QualifiedName] = set()
        types: set[QualifiedName] = set()
        waiting = [uses]
        while waiting:
            now = waiting.pop()
            for function in now.functions:
                if function not in functions:
                    functions.add(function)
                    waiting.extend(overload.uses for overload in self._functions.get(function, ()))
            for name in now.types:
                if name not in types:
                    types.add(name)
                    waiting.extend(self._uses_of_type(name))
        return frozenset(functions)

    def _uses_of_type(self, name: QualifiedName) -> Iterator[Uses]:
        known = self.type(*name)
        if known is None:
            return
        yield known.uses
        yield Uses(types=tuple(part for part in (known.element, known.base) if part is not None))
        relation = self._relations.get(known.relation) if known.relation is not None else None
        if relation is not None:
            yield Uses(types=tuple({c.type for c in relation.columns if c.type.schema != PG_CATALOG}))

    def _reached(self, relation: Relation) -> tuple[frozenset[ColumnId], frozenset[QualifiedName]]:
        known = self._reach.get(relation.qualified)
        if known is None:
            known = self._reach[relation.qualified] = self._follow(relation)
        return known

    def _follow(self, relation: Relation) -> tuple[frozenset[ColumnId], frozenset[QualifiedName]]:
        columns: set[ColumnId] = set()
        functions: set[QualifiedName] = set()
        seen: set[QualifiedName] = set()
        waiting = [relation]
        while waiting:
            now = waiting.pop()
            if now.qualified in seen:
                continue
            seen.add(now.qualified)
            for rule in now.rules:
                if rule.event is not RuleEvent.SELECT:
                    continue
                functions |= self.closure(rule.uses)
                for read in rule.reads:
                    below = self._relations.get(read.relation)
                    columns.update(_columns_read(read, below))
                    if below is not None:
                        waiting.append(below)
        return frozenset(columns), frozenset(functions)


def _followed(columns: Iterable[ColumnId], below: Mapping[QualifiedName, ViewSources]) -> Iterator[ColumnId]:
    """``columns``, and what those of the views ``below`` tell of."""
    for column in columns:
        yield column
        sources = below.get(QualifiedName(column.schema, column.relation))
        if sources is not None and column.column is not None:
            yield from sources.columns.get(column.column, ())


def _columns_read(read: Read, relation: Relation | None) -> Iterator[ColumnId]:
    schema, name = read.relation
    yield ColumnId(schema, name, None)
    columns: Iterable[str] = read.columns
    if read.whole and relation is not None:
        columns = (column.name for column in relation.columns)
    for column in columns:
        yield ColumnId(schema, name, column)


def _grouped(pairs: Iterable[tuple[_Key, _Value]]) -> Mapping[_Key, tuple[_Value, ...]]:
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in groups.items()}
