"""Reads a catalog snapshot from a live database.

Owns which queries of ``catalog_queries`` are asked, and what need not be asked again of the reading before;
``catalog_assembly`` makes values of the rows. It must know no policy and no rule, and keep no connection:
``catalog_watcher`` does.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from policy import catalog_queries as queries
from policy.catalog import Catalog
from policy.catalog_assembly import Assembly, Made, Named, Row, names_by_oid
from policy.catalog_values import Column, Content, Generated, Identity
from policy.names import QualifiedName
from policy.settings import split_identifiers


class Connection(Protocol):
    """What of asyncpg's Connection is needed here."""

    def transaction(self, *, isolation: Any, readonly: bool) -> AbstractAsyncContextManager[Any]: ...

    def cursor(self, query: str, *arguments: Any, prefetch: int) -> Any: ...

    async def execute(self, query: str) -> str: ...

    async def fetch(self, query: str, *arguments: Any) -> list[Any]: ...

    async def fetchrow(self, query: str) -> Any: ...


_COLUMNS_AT_A_TIME: Final = 2000
_DIFFERENT_AT_MOST: Final = 1000
"""Of how many relations the columns are asked for by oid: for more it is as quick to read all."""


async def read(connection: Connection) -> Catalog:
    """The schema of the database ``connection`` is open to, as of one instant.

    ``connection`` is asyncpg's, in no transaction, of any login; it is left as it was. Raises what asyncpg
    raises. Takes one REPEATABLE READ, READ ONLY transaction and waits for no lock that a reader would not.
    """
    return await Reader(connection).read()


class Reader:
    """Reads the schema behind one connection again and again.

    Most of a reading is the same as in the one before: what came with the server, and in a large schema the
    relations that nobody has touched. Columns, which are nine tenths of it, are asked for where one of the
    relation's, or a type of one, has been written since; a relation is made anew where anything that it is
    made of is another.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._servers = _Servers()
        self._added = _Added()

    async def read(self) -> Catalog:
        """As the function ``read``. One call at a time; after a failure the next call reads everything."""
        connection, servers, last = self._connection, self._servers, self._added
        self._servers, self._added = _Servers(), _Added()
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            version, database, login, searched, listed = await connection.fetchrow(queries.SESSION)
            await connection.execute("SET LOCAL search_path TO pg_catalog; SET LOCAL jit TO off")
            stamp = _digest(await connection.fetch(queries.SERVERS_EPOCH))
            if servers.stamp != stamp:
                servers, last = await _read_servers(connection, stamp), _Added()
            rows = {name: await connection.fetch(query) for name, query in _FETCHED.items()}
            relations = frozenset(row[0] for row in rows["relations"] if row[0] >= queries.FIRST_USER_OID)
            added = await _read_added(connection, servers, relations, last)

        def assemble() -> Catalog:
            assembly = Assembly(rows, _named(servers, added), last.made)
            content = Content(
                version=version,
                database=database,
                login=login,
                search_path=tuple((split_identifiers(listed) or ()) if searched is None else searched),
                schemas=tuple(sorted(schema for (schema,) in rows["schemas"])),
                **assembly.parts(),
            )
            added.made = assembly.made
            return Catalog(content, assembly.encoded)

        # Large schemas take a second or two of arithmetic: other connections should not wait for it.
        catalog = await asyncio.to_thread(assemble)
        self._servers, self._added = servers, added
        return catalog


Types = Mapping[int, "_TypeRow"]


class _TypeRow(NamedTuple):
    """What a column takes from its type."""

    name: QualifiedName
    not_null: bool
    default: bool


@dataclass(slots=True)
class _Servers:
    """What came with the server, read again where ``stamp`` is another; empty at first."""

    stamp: str = ""
    types: Types = field(default_factory=dict)
    functions: Mapping[int, QualifiedName] = field(default_factory=dict)
    columns: Mapping[int, tuple[Column, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Added:
    """What somebody has made; empty at first. ``columns`` and ``made`` are by the relation's oid."""

    types: Types = field(default_factory=dict)
    functions: Mapping[int, QualifiedName] = field(default_factory=dict)
    relations: frozenset[int] = frozenset()
    columns: Mapping[int, tuple[Column, ...]] = field(default_factory=dict)
    widened: Mapping[int, tuple[Column, ...]] = field(default_factory=dict)
    """Columns that relations of the server were given."""
    writers: Mapping[int, int] = field(default_factory=dict)
    """See ``catalog_queries.WRITERS``."""
    made: Mapping[int, Made] = field(default_factory=dict)


def _named(servers: _Servers, added: _Added) -> Named:
    columns = {**servers.columns, **added.columns}
    for oid, more in added.widened.items():
        both = (*servers.columns.get(oid, ()), *more)
        columns[oid] = tuple(sorted(both, key=lambda column: column.number))
    types = {oid: row.name for part in (servers.types, added.types) for oid, row in part.items()}
    return Named(types, {**servers.functions, **added.functions}, columns)


async def _read_servers(connection: Connection, stamp: str) -> _Servers:
    types = _types(await connection.fetch(queries.SERVERS_TYPES))
    columns = await _columns(connection, types, queries.SERVERS_COLUMNS)
    return _Servers(stamp, types, names_by_oid(await connection.fetch(queries.SERVERS_FUNCTIONS)), columns)


async def _read_added(
    connection: Connection, servers: _Servers, relations: frozenset[int], last: _Added
) -> _Added:
    types = _types(await connection.fetch(queries.ADDED_TYPES))
    writers: dict[int, int] = dict(map(tuple, await connection.fetch(queries.WRITERS)))
    ended = [writer for writer, count in writers.items() if count > last.writers.get(writer, 0)]
    # A column's row says nothing of its type's name and default.
    retyped = [oid for oid, row in last.types.items() if types.get(oid) != row]
    different = set(relations - last.relations)
    if max(len(different), len(ended), len(retyped)) <= _DIFFERENT_AT_MOST:
        written = await connection.fetch(queries.WRITTEN, ended, retyped)
        different |= relations.intersection(oid for (oid,) in written)
    every_type = {**servers.types, **types}
    if len(different) > _DIFFERENT_AT_MOST:
        columns = await _columns(connection, every_type, queries.ADDED_COLUMNS)
    else:
        still = relations - different
        columns = {
            **{oid: columns for oid, columns in last.columns.items() if oid in still},
            **await _columns(connection, every_type, queries.COLUMNS_OF, different),
        }
    return _Added(
        types,
        names_by_oid(await connection.fetch(queries.ADDED_FUNCTIONS)),
        relations,
        columns,
        await _columns(connection, every_type, queries.WIDENED_COLUMNS),
        writers,
    )


def _types(rows: Sequence[Row]) -> dict[int, _TypeRow]:
    names = names_by_oid(rows)
    return {oid: _TypeRow(names[oid], not_null, default) for oid, _, _, not_null, default in rows}


async def epoch(connection: Connection) -> str:
    """A short text that differs after every DDL that a snapshot would show.

    Counts and sums the writing transactions of the catalogs' rows, so a row added, changed or removed shows.
    What it does not see: changes of roles' names; settings in postgresql.conf; statistics. GRANT shows
    although a snapshot would be equal. Temporary objects do not show.
    """
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute("SET LOCAL search_path TO pg_catalog; SET LOCAL jit TO off")
        return _digest(await connection.fetch(queries.EPOCH))


def _digest(stamps: Sequence[Row]) -> str:
    text = ";".join(",".join(str(value) for value in stamp) for stamp in sorted(map(tuple, stamps)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


async def visible(connection: Connection) -> str:
    """What a statement that starts now would see, in the server's own notation.

    While it stays equal no transaction has ended that could have changed anything: the cheap question before
    ``epoch``.
    """
    (snapshot,) = await connection.fetchrow(queries.VISIBLE)
    return str(snapshot)


_FETCHED: Final[Mapping[str, str]] = {
    "schemas": queries.SCHEMAS,
    "relations": queries.RELATIONS,
    "indexes": queries.INDEXES,
    "foreign_keys": queries.FOREIGN_KEYS,
    "triggers": queries.TRIGGERS,
    "inheritance": queries.INHERITANCE,
    "rules": queries.RULES,
    "dependencies": queries.DEPENDENCIES,
    "expression_owners": queries.EXPRESSION_OWNERS,
    "functions": queries.FUNCTIONS,
    "aggregates": queries.AGGREGATES,
    "operators": queries.OPERATORS,
    "casts": queries.CASTS,
    "types": queries.TYPES,
    "comparisons": queries.COMPARISONS,
    "row_functions": queries.ROW_FUNCTIONS,
}


async def _columns(
    connection: Connection, types: Types, query: str, *arguments: Any
) -> dict[int, tuple[Column, ...]]:
    """Every relation's columns, by the relation's oid. Streamed: they are nine tenths of a large schema."""
    columns: dict[int, list[Column]] = defaultdict(list)
    async for record in connection.cursor(query, *arguments, prefetch=_COLUMNS_AT_A_TIME):
        relation, name, number, type_oid, not_null, default, identity, generated = record
        of_type = types[type_oid]
        columns[relation].append(
            Column(
                sys.intern(name),
                number,
                of_type.name,
                not_null or of_type.not_null,
                default or of_type.default,
                Identity(identity),
                Generated(generated),
            )
        )
    return {relation: tuple(items) for relation, items in columns.items()}
