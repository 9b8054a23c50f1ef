"""Which types a column can have that a sub-select, CTE or function in FROM gives.

Owns the way from such a column's mention to what the select list or the function says of its type. A column
may come from any source that offers its name, so that the answer is every type of all of them; where one of
them cannot be told, none is. Knows no policy; what an operand's type is, ``value_types`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from policy import builtin
from policy.catalog_names import CatalogNames
from policy.catalog_values import PG_CATALOG, Function
from policy.facts import ColumnRef, Facts, Operand, OperandKind, Source, SourceKind
from policy.names import QualifiedName

Types = tuple[QualifiedName, ...]
"""Every type that is possible; empty where there is no telling."""

_UNNEST: Final = "unnest"
_NO_VALUE: Final = frozenset({"record", "void"})
_FROM_QUERIES: Final = frozenset({SourceKind.SUBQUERY, SourceKind.CTE})


class Origins:
    """The columns of one statement that no relation gives. ``possible`` tells an operand's types."""

    def __init__(self, facts: Facts, names: CatalogNames, possible: Callable[[Operand], Types]) -> None:
        self._facts = facts
        self._names = names
        self._possible = possible
        self._recursive = {cte.query for cte in facts.ctes if cte.recursive}
        self._renaming = {join.query for join in facts.joins if join.alias or join.using or join.natural}
        """Levels where a join merges or renames columns."""
        self._under_way: set[ColumnRef] = set()

    def of(self, ref: ColumnRef) -> Types:
        """The types that the column ``ref`` means can have."""
        if ref in self._under_way or ref.query is None or ref.name is None:
            return ()
        self._under_way.add(ref)
        found: dict[QualifiedName, None] = {}
        for source in self._sources(ref):
            types = self._given_by(source, ref.name, ref.query)
            if types is not None and not types:
                found.clear()
                break
            found.update(dict.fromkeys(types or ()))
        self._under_way.discard(ref)
        return tuple(found)

    def _sources(self, ref: ColumnRef) -> Sequence[Source | None]:
        """Those that ``ref`` may take its column from; None stands for one that cannot be told."""
        found: list[Source | None] = []
        for level in self._names.resolve(self._facts).scopes.outwards(ref.query or 0):
            if level.query.index in self._renaming:
                found.append(None)
            named = (s for s in level.query.sources if not ref.qualifier or s.name == ref.qualifier[-1])
            found += [source for source in named if source.relation is None]
        return found

    def _given_by(self, source: Source | None, name: str, query: int) -> Types | None:
        """The types of the column ``name`` of ``source``; None where it has none of that name."""
        if source is None:
            return ()
        if source.kind in _FROM_QUERIES and source.query is not None:
            return self._selected(source, source.query, name)
        if source.kind is SourceKind.FUNCTION and len(source.functions) == 1:
            return self._returned(source, source.functions[0], name, query)
        return ()

    # Queries --------------------------------------------------------------------------------------------

    def _selected(self, source: Source, query: int, name: str) -> Types | None:
        outputs = self._outputs(query)
        if outputs is None:
            return ()
        names = [*source.column_aliases, *(known for known, _ in outputs[len(source.column_aliases) :])]
        given = [operand for known, (_, operand) in zip(names, outputs, strict=False) if known == name]
        return self._possible(given[0]) if given else None

    def _outputs(self, query: int) -> list[tuple[str | None, Operand]] | None:
        """The columns that a query gives, in order, and what is known of each; None where there may be
        others."""
        known = self._facts.queries[query]
        if known.arms:
            left = self._outputs(known.arms[0])
            if query in self._recursive or left is None:
                # The first arm alone says what a recursive query gives (analyzeCTE in parse_cte.c).
                return left
            right = self._outputs(known.arms[1]) or []
            pairs = zip(left, right, strict=False)
            return [
                (n, Operand(OperandKind.COMMON, sides=(one, other))) for (n, one), (_, other) in pairs
            ] or None
        told = [(output.name, output.operand) for output in known.outputs if not output.star]
        if not told or len(told) < len(known.outputs):
            return None
        return [(name, operand or Operand(OperandKind.OTHER)) for name, operand in told]

    # Functions ------------------------------------------------------------------------------------------

    def _returned(self, source: Source, spelt: str, name: str, query: int) -> Types | None:
        schema, _, function = spelt.rpartition(".")
        schemas = (schema,) if schema else self._names.schemas
        overloads = [each for s in schemas for each in self._names.catalog.functions(s, function)]
        own_name = source.column_aliases[0] if source.column_aliases else source.name
        if function == _UNNEST and all(each.schema == PG_CATALOG for each in overloads):
            return self._unnested(spelt, query) if name == own_name else ()
        if any(len(each.columns) > 1 for each in overloads):
            return _of_row(overloads, source.column_aliases, name)
        if name != own_name:
            return ()
        results = {each.result for each in overloads}
        if not overloads and PG_CATALOG in schemas:
            results = {QualifiedName(PG_CATALOG, each) for each in builtin.results(function)}
        told = not any(
            r.schema == PG_CATALOG and (r.name.startswith("any") or r.name in _NO_VALUE) for r in results
        )
        return tuple(sorted(results)) if told else ()

    def _unnested(self, spelt: str, query: int) -> Types:
        calls = [
            call.operands
            for call in self._facts.functions
            if call.in_from and call.query == query and spelt in (call.name, f"{call.schema}.{call.name}")
        ]
        if len(calls) != 1 or len(calls[0]) != 1:
            return ()
        return self._possible(Operand(OperandKind.ELEMENT, sides=calls[0]))


def _of_row(overloads: Sequence[Function], aliases: Sequence[str], name: str) -> Types | None:
    found: dict[QualifiedName, None] = {}
    for each in overloads:
        names = [*aliases, *(column.name for column in each.columns[len(aliases) :])]
        types = [column.type for known, column in zip(names, each.columns, strict=False) if known == name]
        if not types:
            return ()
        found[types[0]] = None
    return tuple(found)
