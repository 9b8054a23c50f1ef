"""What the names of a statement mean in one database, as far as that is certain without asking it.

Owns the search for a name through the query levels, as colNameToVar and refnameNamespaceItem
(parse_relation.c) do it, and the three answers. Knows no policy and words no hint: ``suggest`` has the places
a hint may name. Every answer rests on the snapshot and the search paths given; whoever rejects for an unknown
name makes sure first that the snapshot is fresh.

Two promises, for whoever builds a rule on this. ``reads`` is never too small: whatever the server makes of
the reference, it reads nothing else. And UNKNOWN is never wrong: the server refuses such a statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from policy.catalog import Catalog
from policy.catalog_values import PG_CATALOG, Relation
from policy.facts import ColumnRef, Facts, RelationRef, SourceKind, Use
from policy.names import SearchPath
from policy.resolve_scope import NOTHING, Item, Level, Reads, Scopes


class Answer(StrEnum):
    RESOLVED = "resolved"
    UNKNOWN = "unknown"
    """The server is certain to refuse the statement for it."""
    UNCERTAIN = "uncertain"
    """The server decides."""


class Fault(StrEnum):
    """What of an unknown column does not exist."""

    COLUMN = "column"
    """42703: none of that name where it is looked for."""
    SOURCE = "source"
    """42P01: its qualifier names nothing in FROM."""


@dataclass(frozen=True, slots=True)
class RelationAnswer:
    """One mention of a relation. ``relations`` are all it may mean, those of the snapshot only."""

    ref: RelationRef
    answer: Answer
    relations: tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class ColumnAnswer:
    """One mention of a column. ``reads``: the columns of relations it reads or writes (also for a star or a
    whole row: all of theirs); empty for what a sub-select, CTE or function gives."""

    ref: ColumnRef
    answer: Answer
    reads: Reads = NOTHING
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """Every mention of ``facts``, in its order. ``implicit`` are columns no mention names: NATURAL joins'."""

    relations: tuple[RelationAnswer, ...]
    columns: tuple[ColumnAnswer, ...]
    implicit: Reads
    scopes: Scopes
    """For ``suggest``."""

    @property
    def reads(self) -> Reads:
        """Every column of a relation that the statement names or compares, read or written."""
        return self.implicit.union(*(column.reads for column in self.columns))


def resolve(
    facts: Facts,
    catalog: Catalog,
    paths: Sequence[SearchPath],
    *,
    temporary: bool = True,
    unsettled: bool = False,
) -> Resolution:
    """Resolve every relation and column ``facts`` mentions.

    ``paths`` are the search paths that may be in force (``names.PathNames.paths``). ``temporary`` says that
    the session may hold temporary relations, which no snapshot shows: no unqualified name is certain then.
    ``unsettled`` says that the session may have made or changed any relation since: no name is.
    """
    scopes = Scopes(facts, catalog, paths, temporary or facts.creates_temp, unsettled=unsettled)
    search = _Search(scopes)
    implicit = NOTHING.union(*(scopes.level(query.index).natural for query in facts.queries))
    return Resolution(
        tuple(map(search.relation, facts.relations)),
        tuple(map(search.column, facts.columns)),
        implicit,
        scopes,
    )


_COMPLETE: Final = frozenset(
    {
        "SelectStmt",
        "InsertStmt",
        "UpdateStmt",
        "DeleteStmt",
        "MergeStmt",
        "ExplainStmt",
        "PrepareStmt",
        "DeclareCursorStmt",
        "CopyStmt",
        "CreateTableAsStmt",
        "ViewStmt",
    }
)
"""Statements whose levels say all that a name in them may mean. Elsewhere there are parameters of a function,
OLD and NEW of a rule, columns of a table that is being defined."""

_SEES_A_PART: Final = frozenset({"from", "on"})
"""Clauses that see some of the sources of their own level."""


class _Search:
    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes
        self.catalog = scopes.catalog
        self.complete = scopes.facts.node in _COMPLETE and scopes.facts.not_understood is None
        self._everything: dict[int, Reads] = {}
        """What a star reads, by query: a thousand of them over a thousand sources must not each ask all."""

    def relation(self, ref: RelationRef) -> RelationAnswer:
        relations, certain = self.scopes.relation(ref)
        if relations:
            answer = Answer.RESOLVED if certain else Answer.UNCERTAIN
        elif certain and self.complete and ref.use is not Use.DEFINE:
            answer = Answer.UNKNOWN
        else:
            answer = Answer.UNCERTAIN
        return RelationAnswer(ref, answer, relations)

    def column(self, ref: ColumnRef) -> ColumnAnswer:
        found = self._column(ref)
        if found.answer is Answer.UNKNOWN and not self.complete:
            return ColumnAnswer(ref, Answer.UNCERTAIN, found.reads)
        return found

    def _column(self, ref: ColumnRef) -> ColumnAnswer:
        if ref.target is not None:
            return self._written(ref, ref.target)
        if ref.query is None:
            return ColumnAnswer(ref, Answer.UNCERTAIN)
        levels = list(self.scopes.outwards(ref.query))
        if ref.clause == "using" and ref.name is not None:
            return self._using(ref, levels[0], ref.name)
        if ref.name is None:
            return self._qualified_star(ref, levels) if ref.qualifier else self._star(ref, levels[0])
        if ref.qualifier:
            return self._qualified(ref, levels, ref.name)
        return self._unqualified(ref, levels, ref.name)

    def _written(self, ref: ColumnRef, target: int) -> ColumnAnswer:
        relations, certain = self.scopes.relation(self.scopes.facts.relations[target])
        if ref.name is None or not relations:
            return ColumnAnswer(ref, Answer.UNCERTAIN)
        found = [self.catalog.columns_of(relation).get(ref.name) for relation in relations]
        reads = NOTHING.union(*(each for each in found if each is not None))
        if not certain or len(relations) > 1:
            return ColumnAnswer(ref, Answer.UNCERTAIN, reads)
        return ColumnAnswer(ref, Answer.RESOLVED, reads) if reads else _unknown_column(ref)

    def _using(self, ref: ColumnRef, level: Level, name: str) -> ColumnAnswer:
        using = level.using.get(name)
        if using is None:
            return ColumnAnswer(ref, Answer.UNCERTAIN)
        if using.missing:
            return ColumnAnswer(ref, Answer.UNKNOWN, using.reads, Fault.COLUMN)
        return ColumnAnswer(ref, Answer.UNCERTAIN if using.open else Answer.RESOLVED, using.reads)

    # Stars

    def _star(self, ref: ColumnRef, level: Level) -> ColumnAnswer:
        answer = Answer.UNCERTAIN if level.open else Answer.RESOLVED
        reads = self._everything.get(level.query.index)
        if reads is None:
            reads = self._everything[level.query.index] = level.everything()
        return ColumnAnswer(ref, answer, reads)

    def _qualified_star(self, ref: ColumnRef, levels: list[Level]) -> ColumnAnswer:
        items = self._items(ref, levels)
        if not items:
            return self._no_source(ref, levels)
        reads = NOTHING.union(*(item.offer.everything() for item in items))
        is_open = any(item.offer.open for item in items)
        return ColumnAnswer(ref, Answer.UNCERTAIN if is_open else Answer.RESOLVED, reads)

    # Columns

    def _qualified(self, ref: ColumnRef, levels: list[Level], name: str) -> ColumnAnswer:
        items = self._items(ref, levels)
        if not items:
            return self._no_source(ref, levels)
        found = [item.find(name) for item in items]
        if None not in found and not any(item.doubtful for item in items):
            return ColumnAnswer(ref, Answer.RESOLVED, NOTHING.union(*filter(None, found)))
        # Where there is no such column x.f may still be f(x), which is handed the whole row.
        if self._may_call(name):
            return ColumnAnswer(
                ref, Answer.UNCERTAIN, NOTHING.union(*(self._field(item, name) for item in items))
            )
        if any(reads is not None for reads in found):
            return ColumnAnswer(ref, Answer.UNCERTAIN, NOTHING.union(*filter(None, found)))
        if any(item.offer.open or item.offer.scalar for item in items):
            return ColumnAnswer(ref, Answer.UNCERTAIN)
        return _unknown_column(ref)

    def _items(self, ref: ColumnRef, levels: list[Level]) -> list[Item]:
        """What the qualifier of ``ref`` means: of the innermost level that has it, and of those around where
        that level may be one that ``ref`` sees only in part."""
        items: list[Item] = []
        for depth, level in enumerate(levels):
            in_part = _seen_in_part(ref, depth, level)
            here = self.scopes.qualified_items(level, ref.qualifier, in_part)
            items += here
            if here and not in_part:
                break
        return items

    def _no_source(self, ref: ColumnRef, levels: list[Level]) -> ColumnAnswer:
        # The schema of a relation that is not known cannot be compared.
        unresolved = len(ref.qualifier) > 1 and any(
            item.kind is SourceKind.RELATION and item.offer.open for level in levels for item in level.items
        )
        if unresolved:
            return ColumnAnswer(ref, Answer.UNCERTAIN)
        return ColumnAnswer(ref, Answer.UNKNOWN, NOTHING, Fault.SOURCE)

    def _unqualified(self, ref: ColumnRef, levels: list[Level], name: str) -> ColumnAnswer:
        output = self._names_output(ref, levels[0], name)
        if output is Answer.RESOLVED and ref.clause != "group":
            # Whose own references stand in the select list.
            return ColumnAnswer(ref, Answer.RESOLVED)
        found: list[Reads] = []
        is_open = False
        for depth, level in enumerate(levels):
            in_part = _seen_in_part(ref, depth, level)
            reads = level.find(name, in_part)
            if reads is None:
                # A column of an open source would hide those further out, and any whole row.
                is_open = is_open or level.open
                continue
            found.append(reads)
            if not level.doubtful and not in_part:
                break
        else:
            # No column is certain: a source of that name may be meant, as a row.
            found += self._whole_rows(ref, levels, name)
        if found or output is Answer.RESOLVED:
            answer = Answer.UNCERTAIN if is_open and output is not Answer.RESOLVED else Answer.RESOLVED
            return ColumnAnswer(ref, answer, NOTHING.union(*found))
        if is_open or output is Answer.UNCERTAIN:
            return ColumnAnswer(ref, Answer.UNCERTAIN)
        return _unknown_column(ref)

    def _names_output(self, ref: ColumnRef, level: Level, name: str) -> Answer:
        """Whether an item of ORDER BY, GROUP BY or DISTINCT ON names an output (findTargetlistEntrySQL92).

        Outputs come before the sources' columns, but for GROUP BY. An item that is not alone there may be one
        of a ROLLUP, or in an expression, which knows no outputs.
        """
        if not (ref.alone or ref.clause == "group"):
            return Answer.UNKNOWN
        offer = self.scopes.offer(level.query.index)
        if offer.find(name) is not None:
            return Answer.RESOLVED if ref.alone else Answer.UNCERTAIN
        return Answer.UNCERTAIN if offer.open else Answer.UNKNOWN

    def _whole_rows(self, ref: ColumnRef, levels: list[Level], name: str) -> list[Reads]:
        """What ``name`` reads as the row of each source it may mean."""
        whole = ColumnRef(None, (name,), query=ref.query, clause=ref.clause)
        items = self._items(whole, levels)
        field = ref.fields[0] if ref.fields else None
        if field is None:
            return [item.offer.everything() for item in items]
        # (t).column takes one column of the row, unless it is a call with the row.
        return [self._field(item, field) for item in items]

    def _field(self, item: Item, name: str) -> Reads:
        """All that ``item.name`` may read: the column, and the row where there may be no such column."""
        reads = item.find(name)
        if reads is None or item.doubtful:
            return (reads or NOTHING) | item.offer.everything()
        return reads

    def _may_call(self, name: str) -> bool:
        """Whether x.name could be a function of, or a cast from, a row."""
        return (
            name in self.catalog.row_functions
            or any(f.schema != PG_CATALOG and f.accepts(1) for f in self.catalog.functions_named(name))
            or any(cast.target.name == name for cast in self.catalog.content.casts)
        )


def _seen_in_part(ref: ColumnRef, depth: int, level: Level) -> bool:
    """Whether ``ref`` may see only some of ``level``, so that a name found there may mean one further out."""
    return ref.clause in _SEES_A_PART if depth == 0 else level.partly_seen


def _unknown_column(ref: ColumnRef) -> ColumnAnswer:
    return ColumnAnswer(ref, Answer.UNKNOWN, NOTHING, Fault.COLUMN)
