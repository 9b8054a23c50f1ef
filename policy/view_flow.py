"""From which columns a view's own columns take their values.

Owns the reading of a view's stored query (``pg_rewrite.ev_action``) as PostgreSQL 15 to 18 keep it: after
analysis and before rewriting, so that every column is a Var that says which item of FROM it belongs to, and
no name is left to resolve. Knows no policy; columns are numbers here (``catalog_source`` names them).

What counts as flow. An output takes the values of every column in its expression: CASE conditions, FILTER,
windows, and all of a sub-select that stands in it. Through sub-selects in FROM, CTEs, joins that merge
columns and set operations it takes those of the outputs they give. A condition (WHERE, ON, USING, HAVING)
decides which rows there are, as whoever made the view wanted; but what it compares it also tells of each
other, as ``a.code = b.secret`` does. So columns that one comparison mentions flow into one another. What
decides how many rows there are or in which order, value by value (ORDER BY, DISTINCT ON, LIMIT, a function
that returns rows), is told apart: a reader of any column of the view learns it.

Where a part of the query is not understood there is no flow at all, and whoever asks takes the view to read
whatever it reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from policy.node_tree import Node, NodeTreeError, name_of, read


class Stored(NamedTuple):
    """A column by ``pg_class.oid`` and ``pg_attribute.attnum``; 0 is the whole row."""

    relation: int
    number: int


class ViewFlow(NamedTuple):
    """``outputs``: for each column of the view, in order, the columns that its values may tell of. ``rows``:
    what the number or order of its rows tells of."""

    outputs: tuple[frozenset[Stored], ...]
    rows: frozenset[Stored]


@lru_cache(maxsize=8192)
def flow_of(tree: str) -> ViewFlow | None:
    """What the query ``tree`` (the text of ``ev_action``) makes its columns of; None where it is not
    understood. Kept by text: a snapshot is read again after every change of the schema."""
    try:
        (query,) = read(tree)
        return _View(query).flow()
    except (NodeTreeError, RecursionError, ValueError, TypeError, IndexError):
        # A tree of a shape that these majors do not write.
        return None


class _Leaf(NamedTuple):
    """A column of one item of FROM: ``level`` tells which query it stands in. Of an item that is no relation
    it stands beside what the column is made of, since a constant may be compared too."""

    level: int
    item: int
    number: int


_Leaves = frozenset[_Leaf]
_NOTHING: Final[_Leaves] = frozenset()
_WHOLE: Final = 0

# RTEKind (parsenodes.h)
_RELATION, _SUBQUERY, _JOIN, _FUNCTION, _TABLE_FUNCTION, _VALUES, _CTE, _GROUP = 0, 1, 2, 3, 4, 5, 6, 9
_RENAMING: Final = frozenset({_JOIN, _GROUP})
"""Items whose columns are those of others."""
# SubLinkType (primnodes.h)
_EXISTS: Final = 0


@dataclass(slots=True)
class _Level:
    """One query and the one around it."""

    index: int
    query: Node
    parent: _Level | None
    outputs: list[_Leaves] | None = None
    under_way: list[_Leaves] | None = None
    """What is known of the outputs of a query that reads itself, until they grow no more."""
    levels: dict[int, _Level] = field(default_factory=dict)
    """The queries inside it, by the identity of their nodes."""

    def up(self, count: int) -> _Level:
        level = self
        for _ in range(count):
            if level.parent is None:
                raise NodeTreeError("a column belongs to no query")
            level = level.parent
        return level


class _View:
    """The search through one view's query."""

    def __init__(self, query: Node) -> None:
        self._count = 0
        self._columns: dict[_Leaf, Stored | None] = {}
        """Every column mentioned, and where it is stored if it is a relation's."""
        self._groups: dict[_Leaf, _Leaf] = {}
        self._conditions_of: set[int] = set()
        self._rows: set[_Leaf] = set()
        self._top = self._level(query, None)

    def flow(self) -> ViewFlow:
        outputs = self._outputs(self._top)
        self._conditions(self._top)
        self._tie_whole_rows()
        tied = self._tied()
        return ViewFlow(
            tuple(self._stored(leaves, tied) for leaves in outputs), self._stored(self._rows, tied)
        )

    def _level(self, query: Any, parent: _Level | None) -> _Level:
        if not isinstance(query, Node) or query.label != "QUERY":
            raise NodeTreeError("a query is missing")
        if parent is not None and id(query) in parent.levels:
            return parent.levels[id(query)]
        if query.number("commandType") != 1:
            raise NodeTreeError("a view that does not select")
        self._count += 1
        level = _Level(self._count, query, parent)
        if parent is not None:
            parent.levels[id(query)] = level
        return level

    # What a column is made of ---------------------------------------------------------------------------

    def _outputs(self, level: _Level) -> list[_Leaves]:
        """What each output of a query takes its values from, in order."""
        if level.outputs is not None:
            return level.outputs
        if level.under_way is not None:
            return level.under_way
        targets = [t for t in level.query.items("targetList") if t.get("resjunk") == "false"]
        level.under_way = [_NOTHING] * len(targets)
        while True:
            _forget(level)
            found = [self._target(target, level) for target in targets]
            for arm in self._arms(level.query.get("setOperations"), level):
                if len(arm) < len(found):
                    raise NodeTreeError("an arm of a set operation gives too few columns")
                found = [one | other for one, other in zip(found, arm, strict=False)]
            if found == level.under_way or not level.query.get("setOperations"):
                break
            level.under_way = found
        level.outputs, level.under_way = found, None
        return found

    def _target(self, target: Node, level: _Level) -> _Leaves:
        return self._leaves(target.get("expr"), level)

    def _arms(self, operation: Any, level: _Level) -> Iterator[list[_Leaves]]:
        if not isinstance(operation, Node):
            return
        if operation.label == "RANGETBLREF":
            item = self._item(level, operation.number("rtindex"))
            yield self._outputs(self._level(item.get("subquery"), level))
            return
        yield from self._arms(operation.get("larg"), level)
        yield from self._arms(operation.get("rarg"), level)

    def _item(self, level: _Level, number: int) -> Node:
        items = level.query.items("rtable")
        if not 1 <= number <= len(items):
            raise NodeTreeError("a column belongs to no item of FROM")
        item = items[number - 1]
        if not isinstance(item, Node):
            raise NodeTreeError("an item of FROM is missing")
        return item

    def _leaves(self, value: Any, level: _Level, *, condition: bool = False) -> _Leaves:
        """The columns that ``value`` mentions. Of a sub-select in a condition those its outputs take; its own
        conditions are conditions by themselves."""
        if isinstance(value, list):
            return _NOTHING.union(*(self._leaves(each, level, condition=condition) for each in value))
        if not isinstance(value, Node):
            return _NOTHING
        if value.label == "VAR":
            at = level.up(value.number("varlevelsup"))
            return self._column(at, value.number("varno"), value.number("varattno"))
        if value.label == "QUERY":
            return self._everything(self._level(value, level))
        found = [self._leaves(each, level, condition=condition) for each in self._children(value, condition)]
        if value.label == "SUBLINK" and condition:
            inner = self._level(value.get("subselect"), level)
            self._conditions(inner)
            if value.number("subLinkType") != _EXISTS:
                found += self._outputs(inner)
        if value.label == "WINDOWFUNC":
            found.append(self._window(value.number("winref"), level))
        return _NOTHING.union(*found)

    def _children(self, node: Node, condition: bool) -> Iterator[Any]:
        skipped = "subselect" if condition and node.label == "SUBLINK" else None
        return (
            each for name, each in node.fields.items() if name != skipped and isinstance(each, Node | list)
        )

    def _column(self, level: _Level, number: int, column: int) -> _Leaves:
        item = self._item(level, number)
        kind = item.number("rtekind")
        given = _GIVEN.get(kind)
        if given is None and kind != _RELATION:
            raise NodeTreeError("an item of FROM of a kind that is not known")
        made_of = _NOTHING if given is None else _pick(given(self, item, level), column)
        if column < 0 or kind in _RENAMING:
            return made_of
        leaf = _Leaf(level.index, number, column)
        self._columns[leaf] = Stored(item.number("relid"), column) if given is None else None
        return made_of | {leaf}

    def _of_subquery(self, item: Node, level: _Level) -> list[_Leaves]:
        return self._outputs(self._level(item.get("subquery"), level))

    def _of_join(self, item: Node, level: _Level) -> list[_Leaves]:
        return [self._leaves(part, level) for part in item.items("joinaliasvars")]

    def _of_group(self, item: Node, level: _Level) -> list[_Leaves]:
        return [self._leaves(part, level) for part in item.items("groupexprs")]

    def _of_values(self, item: Node, level: _Level) -> list[_Leaves]:
        rows = [[self._leaves(each, level) for each in row] for row in item.items("values_lists")]
        return [_NOTHING.union(*column) for column in zip(*rows, strict=True)]

    def _of_function(self, item: Node, level: _Level) -> list[_Leaves]:
        return [self._leaves([item.get("functions"), item.get("tablefunc")], level)]

    def _of_cte(self, item: Node, level: _Level) -> list[_Leaves]:
        return self._outputs(self._cte_level(item, level))

    def _cte_level(self, item: Node, level: _Level) -> _Level:
        around = level.up(item.number("ctelevelsup"))
        name = name_of(item.get("ctename"))
        for cte in around.query.items("cteList"):
            if name_of(cte.get("ctename")) == name:
                return self._level(cte.get("ctequery"), around)
        raise NodeTreeError("a WITH query is missing")

    def _window(self, number: int, level: _Level) -> _Leaves:
        found = _NOTHING
        for clause in level.query.items("windowClause"):
            if clause.number("winref") == number:
                keys = [*clause.items("partitionClause"), *clause.items("orderClause")]
                found = found.union(*(self._key(key, level) for key in keys))
                found |= self._leaves([clause.get("startOffset"), clause.get("endOffset")], level)
        return found

    def _key(self, key: Node, level: _Level) -> _Leaves:
        """What a SORTGROUPCLAUSE sorts or groups by."""
        number = key.number("tleSortGroupRef")
        targets = [t for t in level.query.items("targetList") if t.number("ressortgroupref") == number]
        return _NOTHING.union(*(self._target(target, level) for target in targets))

    def _everything(self, level: _Level) -> _Leaves:
        """All that a query in an expression mentions, whatever for."""
        found = [_NOTHING, *self._outputs(level)]
        for name, value in level.query.fields.items():
            if name == "rtable":
                found += [self._of_item(item, level) for item in value or ()]
            elif name == "cteList":
                found += [self._everything(self._level(c.get("ctequery"), level)) for c in value or ()]
            elif name != "rteperminfos":
                found.append(self._leaves(value, level))
        return _NOTHING.union(*found)

    def _of_item(self, item: Node, level: _Level) -> _Leaves:
        kind = item.number("rtekind")
        if kind == _SUBQUERY:
            return self._everything(self._level(item.get("subquery"), level))
        if kind in (_FUNCTION, _TABLE_FUNCTION, _VALUES):
            return self._leaves(
                [item.get(name) for name in ("functions", "tablefunc", "values_lists")], level
            )
        return _NOTHING

    # What decides which rows there are ------------------------------------------------------------------

    def _conditions(self, level: _Level) -> None:
        """Tie together what each comparison of a query mentions, and note what its rows tell."""
        if level.index in self._conditions_of:
            return
        self._conditions_of.add(level.index)
        query = level.query
        self._jointree(query.get("jointree"), level)
        self._tie_comparisons(query.get("havingQual"), level)
        first_of = query.items("distinctClause") if query.get("hasDistinctOn") == "true" else []
        for key in (*query.items("sortClause"), *first_of):
            self._rows |= self._key(key, level)
        self._rows |= self._leaves([query.get("limitOffset"), query.get("limitCount")], level)
        for item in query.items("rtable"):
            self._inside(item, level)
        if query.get("hasTargetSRFs") == "true":
            self._rows |= self._given_to_sets(query.get("targetList"), level)

    def _inside(self, item: Node, level: _Level) -> None:
        kind = item.number("rtekind")
        if kind == _SUBQUERY:
            self._conditions(self._level(item.get("subquery"), level))
        elif kind == _CTE:
            self._conditions(self._cte_level(item, level))
        elif kind in (_FUNCTION, _TABLE_FUNCTION):
            self._rows |= self._leaves([item.get("functions"), item.get("tablefunc")], level)
        self._rows |= self._leaves([item.get("tablesample"), item.get("securityQuals")], level)

    def _given_to_sets(self, value: Any, level: _Level) -> _Leaves:
        """What set-returning functions of a select list are given, of which they make rows."""
        if isinstance(value, list):
            return _NOTHING.union(*(self._given_to_sets(each, level) for each in value))
        if not isinstance(value, Node) or value.label == "QUERY":
            return _NOTHING
        if "true" in (value.get("funcretset"), value.get("opretset")):
            return self._leaves(value, level)
        return self._given_to_sets(list(value.fields.values()), level)

    def _jointree(self, value: Any, level: _Level) -> None:
        if isinstance(value, list):
            for each in value:
                self._jointree(each, level)
        elif isinstance(value, Node) and value.label in ("FROMEXPR", "JOINEXPR"):
            for name in ("fromlist", "larg", "rarg"):
                self._jointree(value.get(name), level)
            self._tie_comparisons(value.get("quals"), level)
        elif value is not None and not (isinstance(value, Node) and value.label == "RANGETBLREF"):
            raise NodeTreeError("a FROM of a shape that is not known")

    def _tie_comparisons(self, value: Any, level: _Level) -> None:
        if isinstance(value, list):
            for each in value:
                self._tie_comparisons(each, level)
        elif isinstance(value, Node) and value.label in ("BOOLEXPR", "BOOL"):
            self._tie_comparisons(value.get("args"), level)
        else:
            self._tie(self._leaves(value, level, condition=True))

    # Columns that tell of each other --------------------------------------------------------------------

    def _tie(self, leaves: _Leaves) -> None:
        for one, other in pairwise(leaves):
            self._groups[self._group(other)] = self._group(one)

    def _group(self, leaf: _Leaf) -> _Leaf:
        while leaf in self._groups and self._groups[leaf] != leaf:
            leaf = self._groups[leaf]
        return leaf

    def _tie_whole_rows(self) -> None:
        """A comparison of a whole row compares each of its columns."""
        compared = {leaf for tie in self._groups.items() for leaf in tie}
        for whole in [leaf for leaf in compared if leaf.number == _WHOLE]:
            self._tie(self._of_row(whole))

    def _of_row(self, leaf: _Leaf) -> _Leaves:
        """``leaf``; for a whole row also every column of it that the query mentions."""
        if leaf.number != _WHOLE:
            return frozenset((leaf,))
        return frozenset(other for other in self._columns if other[:2] == leaf[:2])

    def _tied(self) -> dict[_Leaf, set[_Leaf]]:
        tied: dict[_Leaf, set[_Leaf]] = {}
        for leaf in self._columns:
            tied.setdefault(self._group(leaf), set()).add(leaf)
        return tied

    def _stored(self, leaves: _Leaves | set[_Leaf], tied: dict[_Leaf, set[_Leaf]]) -> frozenset[Stored]:
        parts = {part for leaf in leaves for part in self._of_row(leaf)}
        every = {other for leaf in parts for other in (leaf, *tied.get(self._group(leaf), ()))}
        stored = (self._columns[leaf] for leaf in every)
        return frozenset(each for each in stored if each is not None)


_GIVEN: Final[Mapping[int, Callable[[_View, Node, _Level], list[_Leaves]]]] = {
    _SUBQUERY: _View._of_subquery,
    _JOIN: _View._of_join,
    _FUNCTION: _View._of_function,
    _TABLE_FUNCTION: _View._of_function,
    _VALUES: _View._of_values,
    _CTE: _View._of_cte,
    _GROUP: _View._of_group,
}
"""The columns that an item of FROM gives, in order, where it is no relation."""


def _forget(level: _Level) -> None:
    """Outputs found inside a query that reads itself, while its own were still growing."""
    for inner in level.levels.values():
        inner.outputs = None
        _forget(inner)


def _pick(columns: list[_Leaves], number: int) -> _Leaves:
    """Column ``number``, from 1; of all of them the whole row, and what SEARCH, CYCLE or a row of a function
    has besides."""
    if 1 <= number <= len(columns):
        return columns[number - 1]
    return _NOTHING.union(*columns)
