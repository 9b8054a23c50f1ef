"""How many rows a write would find, asked before it runs.

Owns the text of a count that stops one row above ``affected_rows``: the write's own target and WHERE, in
PostgreSQL's own spelling, read without writing. What has run and is undone leaves its traces all the same:
sequences that a trigger moved, work for vacuum, the locks of its rows. Pure, as ``cost``: who asks is the
session's business, and whatever this count says, what was written is counted as well (``proxy.writes``).

None is asked where it could say another number than the write itself: row security, whose conditions differ
for reads and writes; BEFORE triggers, which skip rows; rewrite rules; functions that give each reader another
answer. Nor where it would be refused what the write is not: a condition that reads no column needs no right
to read one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from policy import builtin
from policy.catalog_values import (
    Cast,
    Content,
    Function,
    Operator,
    Relation,
    RelationKind,
    Type,
    TypeKind,
    Volatility,
)
from policy.expressions import bare, kind_of, names_of
from policy.facts import Facts
from policy.figures import Relations
from policy.names import Names, QualifiedName
from policy.parse import canonical, trees

_EVENTS: Final = {"UpdateStmt": "update", "DeleteStmt": "delete"}
_STORED: Final = frozenset({RelationKind.TABLE, RelationKind.PARTITIONED})
_JOINED: Final = ("fromClause", "usingClause", "withClause")
_OPAQUE: Final = frozenset({"CurrentOfExpr", "LockingClause", "WithClause"})
"""Nodes of a WHERE that a read has not, or that make it more than a read."""
_MAX_CUTS: Final = 16
"""Places where the WHERE is looked for in the text: each takes a parse."""


class CountCatalog(Relations, Protocol):
    """What is asked of a catalog here; ``policy.catalog.Catalog`` answers it."""

    @property
    def content(self) -> Content: ...

    def descendants(self, relation: Relation) -> frozenset[QualifiedName]: ...

    def functions_named(self, name: str) -> tuple[Function, ...]: ...

    def functions(self, schema: str, name: str) -> tuple[Function, ...]: ...

    def operators(self, symbol: str) -> tuple[Operator, ...]: ...

    def type(self, schema: str, name: str) -> Type | None: ...

    def casts(self, target: QualifiedName) -> tuple[Cast, ...]: ...


@dataclass(frozen=True, slots=True)
class Count:
    """One SELECT of one number: the rows that match, or ``affected_rows`` + 1 where there are more.

    Takes the write's own parameters. ``declared`` are those whose types its text does not give: it can be
    asked only where the Parse of the write named them.
    """

    text: str
    declared: frozenset[int] = frozenset()

    def askable(self, types: Sequence[int]) -> bool:
        """Whether parameters of these types, by OID and 0 where Parse named none, are all told."""
        return all(number <= len(types) and types[number - 1] for number in self.declared)


def count_of(facts: Facts, limit: int, names: Names, catalog: CountCatalog) -> Count | None:
    """The count for ``facts``'s statement under ``affected_rows`` of ``limit``; None where none is asked."""
    read = trees(facts.sql)
    kind, statement = kind_of(read[0]) if len(read) == 1 else ("", {})
    event = _EVENTS.get(kind)
    where = statement.get("whereClause")
    if event is None or where is None or any(statement.get(part) for part in _JOINED):
        return None
    target = _target(facts, event, names, catalog)
    if target is None or not _reads_a_column(where) or not _reads_alike(where, catalog):
        return None
    text = _where_text(facts.sql, statement)
    if text is None:
        return None
    compared = frozenset(_parameters(where))
    typed = {n: spelt for n, spelt in _assigned(statement, target) if n not in compared}
    items = ", ".join(f"${n}::{spelt}" for n, spelt in sorted(typed.items())) or "1"
    return Count(
        f"SELECT pg_catalog.count(*) FROM (SELECT {items} FROM {_spelt(statement['relation'])} "  # noqa: S608 - quoted
        f"WHERE {text} LIMIT {limit + 1}) AS counted",
        frozenset(_parameters(statement)) - compared - typed.keys(),
    )


def _target(facts: Facts, event: str, names: Names, catalog: CountCatalog) -> Relation | None:
    """The table that is written, where reading and writing it meet the same rows."""
    found = [_known(names.relations(ref), catalog) for ref in facts.relations]
    tables = [relation for relation in found if relation is not None]
    if len(tables) < len(found) or not all(_is_plain(relation) for relation in tables):
        return None
    target = tables[facts.writes[0].target]
    parts = [catalog.relation(*name) for name in catalog.descendants(target)]
    if not all(part is not None and part.kind in _STORED and not _skips(part, event) for part in parts):
        return None
    return None if _skips(target, event) else target


def _known(candidates: Sequence[QualifiedName], catalog: CountCatalog) -> Relation | None:
    return catalog.relation(*candidates[0]) if len(candidates) == 1 else None


def _is_plain(relation: Relation) -> bool:
    return relation.kind in _STORED and not relation.row_security and not relation.rules


def _skips(relation: Relation, event: str) -> bool:
    """Whether a trigger may keep rows from being written."""
    return any(t.enabled and t.row and t.before and event in t.events for t in relation.triggers)


def _reads_a_column(where: Any) -> bool:
    """Whether a column stands outside every sub-select: one of the target."""
    if isinstance(where, list):
        return any(map(_reads_a_column, where))
    if not isinstance(where, Mapping):
        return False
    return any(
        kind == "ColumnRef" or (kind != "subselect" and _reads_a_column(value))
        for kind, value in where.items()
    )


def _reads_alike(node: Any, catalog: CountCatalog) -> bool:
    """Whether evaluating ``node`` once more gives what it gave, and does nothing else."""
    if isinstance(node, list):
        return all(_reads_alike(item, catalog) for item in node)
    if not isinstance(node, Mapping):
        return True
    for kind, fields in node.items():
        if kind in _OPAQUE or kind in ("lockingClause", "withClause"):
            return False
        asked = _ASKED.get(kind)
        if asked is not None and not asked(fields, catalog):
            return False
        if not _reads_alike(fields, catalog):
            return False
    return True


def _steady_call(call: Mapping[str, Any], catalog: CountCatalog) -> bool:
    name = names_of(call.get("funcname", ()))[-1]
    known = catalog.functions_named(name)
    steady = all(function.volatility is not Volatility.VOLATILE for function in known)
    if builtin.is_builtin(name):
        return steady and builtin.volatility(name) is not builtin.Volatility.VOLATILE
    return steady and bool(known)


def _steady_operator(expression: Mapping[str, Any], catalog: CountCatalog) -> bool:
    names = names_of(expression.get("name", ()))
    return all(
        function.volatility is not Volatility.VOLATILE
        for operator in (catalog.operators(names[-1]) if names else ())
        for function in catalog.functions(*operator.function)
    )


def _steady_cast(cast: Mapping[str, Any], catalog: CountCatalog) -> bool:
    """By the server's own casts, to an enumeration or one of the server's own types: a domain's CHECK and
    the input function of a type may call anything."""
    name = names_of(cast.get("typeName", {}).get("names", ("",)))[-1]
    schemas = (builtin.PG_CATALOG, *catalog.content.schemas)
    if any(catalog.casts(QualifiedName(schema, name)) for schema in schemas):
        return False
    made = [found for schema in schemas if (found := catalog.type(schema, name)) is not None]
    return all(found.kind is TypeKind.ENUM for found in made)


_ASKED: Final = {"FuncCall": _steady_call, "A_Expr": _steady_operator, "TypeCast": _steady_cast}


def _parameters(node: Any) -> Iterator[int]:
    if isinstance(node, list):
        for item in node:
            yield from _parameters(item)
    elif isinstance(node, Mapping):
        for kind, value in node.items():
            if kind == "ParamRef":
                yield value.get("number", 0)
            else:
                yield from _parameters(value)


def _assigned(statement: Mapping[str, Any], target: Relation) -> Iterator[tuple[int, str]]:
    """Parameters that an UPDATE assigns as they are, each with its column's type."""
    for item in statement.get("targetList", ()):
        fields = item.get("ResTarget", {})
        kind, value = kind_of(fields.get("val", {}))
        column = target.column(fields.get("name", ""))
        if kind == "ParamRef" and column is not None and not fields.get("indirection"):
            yield value.get("number", 0), ".".join(map(quoted, column.type))


def _where_text(sql: str, statement: Mapping[str, Any]) -> str | None:
    """The WHERE of ``statement`` in PostgreSQL's own spelling.

    It is cut out where what is cut reads as the very same condition and relation.
    """
    text = canonical(sql)
    if text is None:
        return None
    if statement.get("returningList") or statement.get("returningClause"):
        wholes = _parted(text, " RETURNING ")
        candidates = (tail for whole, _ in wholes for _, tail in _parted(whole, " WHERE "))
    else:
        candidates = (tail for _, tail in _parted(text, " WHERE "))
    wanted = bare([statement["relation"], statement["whereClause"]])
    target = _spelt(statement["relation"])
    return next((c for c in islice(candidates, _MAX_CUTS) if _condition(target, c) == wanted), None)


def _parted(text: str, word: str) -> Iterator[tuple[str, str]]:
    """What stands before and behind each ``word``, the last first."""
    at = text.rfind(word)
    while at >= 0:
        yield text[:at], text[at + len(word) :]
        at = text.rfind(word, 0, at)


def _condition(target: str, where: str) -> Any:
    """Relation and WHERE of a SELECT made of the two texts, as ``bare``; None where it has anything else."""
    read = trees(f"SELECT 1 FROM {target} WHERE {where} LIMIT 1")  # noqa: S608 - compared, not run
    kind, select = kind_of(read[0]) if len(read) == 1 else ("", {})
    sources = select.get("fromClause", ())
    if kind != "SelectStmt" or len(sources) != 1 or not select.keys() <= _CLAUSES:
        return None
    return bare([kind_of(sources[0])[1], select.get("whereClause")])


_CLAUSES: Final = frozenset(
    {"targetList", "fromClause", "whereClause", "limitCount", "limitOption", "op", "groupDistinct"}
)


def _spelt(relation: Mapping[str, Any]) -> str:
    """A RangeVar as a FROM clause names it. ``inh`` is left out of the tree where it says ONLY."""
    parts = (relation.get(key) for key in ("catalogname", "schemaname", "relname"))
    name = ".".join(quoted(part) for part in parts if part)
    alias = relation.get("alias", {}).get("aliasname")
    return ("" if relation.get("inh") else "ONLY ") + name + (f" AS {quoted(alias)}" if alias else "")


def quoted(name: str) -> str:
    """``name`` as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'
