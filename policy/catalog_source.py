"""Reads a catalog snapshot from a live database.

Owns what the rows of ``catalog_queries`` mean and how they become a ``Content``. It must know no policy and
no rule, and keep no connection: ``catalog_watcher`` does.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, Protocol

from policy import catalog_json
from policy import catalog_queries as queries
from policy.catalog import Catalog
from policy.catalog_values import (
    PG_CATALOG,
    Cast,
    CastContext,
    CastMethod,
    Column,
    ColumnId,
    Comparison,
    Content,
    Expression,
    ExpressionOrigin,
    Flow,
    ForeignKey,
    Function,
    FunctionKind,
    Generated,
    Identity,
    Index,
    Operator,
    OutColumn,
    Read,
    Relation,
    RelationKind,
    RewriteRule,
    RuleEvent,
    Trigger,
    Type,
    TypeKind,
    Uses,
    Volatility,
)
from policy.names import QualifiedName
from policy.view_flow import Stored, ViewFlow, flow_of

Row = Sequence[Any]


class Connection(Protocol):
    """What of asyncpg's Connection is needed here."""

    def transaction(self, *, isolation: Any, readonly: bool) -> AbstractAsyncContextManager[Any]: ...

    def cursor(self, query: str, *, prefetch: int) -> Any: ...

    async def execute(self, query: str) -> str: ...

    async def fetch(self, query: str) -> list[Any]: ...

    async def fetchrow(self, query: str) -> Any: ...


_COLUMNS_AT_A_TIME: Final = 2000
_EXPRESSION_ORIGINS: Final[Mapping[str, ExpressionOrigin]] = {
    "pg_attrdef": ExpressionOrigin.DEFAULT,
    "pg_constraint": ExpressionOrigin.CHECK,
    "pg_policy": ExpressionOrigin.POLICY,
    "pg_class": ExpressionOrigin.INDEX,
}

# pg_trigger.tgtype (catalog/pg_trigger.h)
_TRIGGER_ROW: Final = 1
_TRIGGER_BEFORE: Final = 2
_TRIGGER_INSTEAD: Final = 64
_TRIGGER_EVENTS: Final = ((4, "insert"), (8, "delete"), (16, "update"), (32, "truncate"))

_OUT_MODES: Final = frozenset("obt")
"""``pg_proc.proargmodes``: OUT, INOUT, TABLE."""


async def read(connection: Connection) -> Catalog:
    """The schema of the database ``connection`` is open to, as of one instant.

    ``connection`` is asyncpg's, in no transaction, of any login; it is left as it was. Raises what asyncpg
    raises. Takes one REPEATABLE READ, READ ONLY transaction and waits for no lock that a reader would not.
    """
    return await Reader(connection).read()


class Reader:
    """Reads the schema behind one connection again and again.

    Most of a reading is about objects that came with the server. They are read once, and again where one of
    them has changed: a migration, whose every statement asks for a reading, is spared thousands of rows each.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._servers: _Servers | None = None

    async def read(self) -> Catalog:
        """As the function ``read``. One call at a time."""
        connection = self._connection
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            version, database, login, search_path = await connection.fetchrow(queries.SESSION)
            await connection.execute("SET LOCAL search_path TO pg_catalog; SET LOCAL jit TO off")
            servers = await self._read_servers()
            added = await _read_part(connection, queries.ADDED, servers.names.types)
            rows = {name: await connection.fetch(query) for name, query in _FETCHED.items()}

        def assemble() -> Catalog:
            assembly = _Assembly(rows, servers, added)
            content = Content(
                version=version,
                database=database,
                login=login,
                search_path=tuple(search_path),
                schemas=tuple(sorted(schema for (schema,) in rows["schemas"])),
                **assembly.parts(),
            )
            return Catalog(content, servers.encoded)

        # Large schemas take a second or two of arithmetic: other connections should not wait for it.
        return await asyncio.to_thread(assemble)

    async def _read_servers(self) -> _Servers:
        stamp = _digest(await self._connection.fetch(queries.SERVERS_EPOCH))
        if self._servers is None or self._servers.stamp != stamp:
            self._servers = _Servers(stamp, await _read_part(self._connection, queries.SERVERS, {}))
        return self._servers


class _Names(NamedTuple):
    """One part of the objects: what they are called, and the columns of the relations among them, by oid."""

    types: Mapping[int, QualifiedName]
    functions: Mapping[int, QualifiedName]
    columns: Mapping[int, tuple[Column, ...]]


class _Servers:
    """What came with the server, kept from one reading to the next for as long as ``stamp`` holds.

    ``encoded`` has the digest's lines of the relations in ``relations``, which are kept with the row that
    they were made of.
    """

    def __init__(self, stamp: str, names: _Names) -> None:
        self.stamp = stamp
        self.names = names
        self.relations: dict[int, tuple[Row, Relation]] = {}
        self.encoded: dict[int, str] = {}

    def relation(self, row: Row, make: Callable[[Row], Relation]) -> Relation:
        """The relation that ``row`` of RELATIONS describes, to which nobody has added anything."""
        known = self.relations.get(row[0])
        if known is not None:
            if known[0] == row:
                return known[1]
            del self.encoded[id(known[1])]
        made = make(row)
        self.relations[row[0]] = (row, made)
        self.encoded[id(made)] = catalog_json.encode_relation(made)
        return made


async def _read_part(
    connection: Connection, part: queries.Part, more_types: Mapping[int, QualifiedName]
) -> _Names:
    """``more_types`` are those that columns of this part may have besides its own."""
    types = {**more_types, **_names(await connection.fetch(part.type_names))}
    columns = await _columns(connection, part.columns, types)
    return _Names(types, _names(await connection.fetch(part.function_names)), columns)


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


def _names(rows: Sequence[Row]) -> dict[int, QualifiedName]:
    return {oid: QualifiedName(sys.intern(schema), sys.intern(name)) for oid, schema, name in rows}


async def _columns(
    connection: Connection, query: str, type_names: Mapping[int, QualifiedName]
) -> dict[int, tuple[Column, ...]]:
    """Every relation's columns, by the relation's oid. Streamed: they are nine tenths of a large schema."""
    columns: dict[int, list[Column]] = defaultdict(list)
    async for record in connection.cursor(query, prefetch=_COLUMNS_AT_A_TIME):
        relation, name, number, type_oid, not_null, default, identity, generated = record
        columns[relation].append(
            Column(
                sys.intern(name),
                number,
                type_names[type_oid],
                not_null,
                default,
                Identity(identity),
                Generated(generated),
            )
        )
    return {relation: tuple(items) for relation, items in columns.items()}


class _Key(NamedTuple):
    """An object of the catalogs: the catalog that holds it, and its oid there."""

    catalog: str
    oid: int


class _Assembly:
    """Puts the rows of one reading together. Lives for one call of ``read``."""

    def __init__(
        self,
        rows: Mapping[str, Sequence[Row]],
        servers: _Servers,
        added: _Names,
    ) -> None:
        self.rows = rows
        self.servers = servers
        self.type_names = added.types
        self.columns = {**servers.names.columns, **added.columns}
        self.widened = servers.names.columns.keys() & added.columns.keys()
        for oid in self.widened:
            both = (*servers.names.columns[oid], *added.columns[oid])
            self.columns[oid] = tuple(sorted(both, key=lambda column: column.number))
        self.function_names = {**servers.names.functions, **added.functions}
        self.relation_names = _names([row[:3] for row in rows["relations"]])
        self.operator_functions = {row[0]: row[6] for row in rows["operators"]}
        self.aggregate_functions = {row[0]: row[1] for row in rows["aggregates"]}
        self.used: dict[_Key, tuple[set[QualifiedName], set[QualifiedName]]] = {}
        self.read: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._column_ids: dict[ColumnId, ColumnId] = {}
        """Each column once: the flows of views repeat them."""
        self._sort_dependencies()

    def parts(self) -> dict[str, Any]:
        """The fields of ``Content`` that come from rows, each sorted."""
        return {
            "relations": tuple(sorted(self._relations(), key=lambda r: (r.schema, r.name))),
            "functions": tuple(sorted(self._functions(), key=lambda f: (f.schema, f.name, f.arguments))),
            "operators": tuple(sorted(self._operators(), key=_operator_order)),
            "casts": tuple(sorted(self._casts(), key=lambda c: (c.source, c.target))),
            "types": tuple(sorted(self._types(), key=lambda t: (t.schema, t.name))),
            "comparisons": tuple(sorted(self._comparisons(), key=lambda c: c.type)),
            "row_functions": tuple(sorted(name for (name,) in self.rows["row_functions"])),
        }

    # Dependencies -------------------------------------------------------------------------------------------

    def _sort_dependencies(self) -> None:
        for catalog, oid, referenced, referenced_oid, number in self.rows["dependencies"]:
            if referenced == "pg_class":
                self.read[oid][referenced_oid].add(number)
                continue
            functions, types = self.used.setdefault(_Key(catalog, oid), (set(), set()))
            if referenced == "pg_type":
                name = self.type_names.get(referenced_oid)
                if name is not None:
                    types.add(name)
                continue
            function = (
                referenced_oid if referenced == "pg_proc" else self.operator_functions.get(referenced_oid)
            )
            if function is not None:
                functions.update(self._called([function]))

    def _called(self, functions: Sequence[int]) -> list[QualifiedName]:
        return [self.function_names[oid] for oid in functions if oid in self.function_names]

    def _called_outside(self, functions: Sequence[int]) -> list[QualifiedName]:
        return [name for name in self._called(functions) if name.schema != PG_CATALOG]

    def _uses(self, *keys: _Key, functions: Sequence[QualifiedName] = ()) -> Uses:
        """What the dependencies of ``keys`` say, and ``functions``, in order."""
        called, types = set(functions), set[QualifiedName]()
        for key in keys:
            more_functions, more_types = self.used.get(key, (set(), set()))
            called |= more_functions
            types |= more_types
        return Uses(tuple(sorted(called)), tuple(sorted(types)))

    # Relations ----------------------------------------------------------------------------------------------

    def _relations(self) -> list[Relation]:
        indexes = self._grouped("indexes", key=1)
        foreign_keys = self._grouped("foreign_keys", key=1)
        triggers = self._grouped("triggers", key=0)
        rules = self._grouped("rules", key=1)
        children = self._grouped("inheritance", key=0)
        expressions = self._expressions()

        def make(row: Row) -> Relation:
            oid, _, _, kind, owner, partition, row_security, forced, row_count = row
            return Relation(
                *self.relation_names[oid],
                kind=RelationKind(kind),
                owner=sys.intern(owner),
                columns=self.columns.get(oid, ()),
                indexes=tuple(sorted((self._index(oid, row) for row in indexes[oid]), key=_by_name)),
                foreign_keys=tuple(sorted(self._foreign_keys(oid, foreign_keys[oid]), key=_by_name)),
                triggers=tuple(sorted(map(self._trigger, triggers[oid]), key=_by_name)),
                rules=tuple(sorted(map(self._rule, rules[oid]), key=_by_name)),
                expressions=tuple(
                    sorted(expressions[oid], key=lambda e: (e.origin, e.column or "", e.uses.functions))
                ),
                children=tuple(
                    sorted(self.relation_names[c] for _, c in children[oid] if c in self.relation_names)
                ),
                partition=partition,
                row_security=row_security,
                row_security_forced=forced,
                rows=row_count,
            )

        own = (indexes, foreign_keys, triggers, rules, children, expressions, self.widened)
        return [
            make(row)
            if row[0] >= queries.FIRST_USER_OID or any(row[0] in parts for parts in own)
            else self.servers.relation(row, make)
            for row in self.rows["relations"]
        ]

    def _grouped(self, name: str, key: int) -> defaultdict[int, list[Row]]:
        groups: defaultdict[int, list[Row]] = defaultdict(list)
        for row in self.rows[name]:
            groups[row[key]].append(row)
        return groups

    def _column_names(self, relation: int, numbers: Sequence[int]) -> tuple[str | None, ...]:
        """The columns' names, None for an expression (number 0)."""
        by_number = {column.number: column.name for column in self.columns.get(relation, ())}
        return tuple(by_number.get(number) for number in numbers)

    def _index(self, relation: int, row: Row) -> Index:
        _, _, name, numbers, key_columns, unique, primary, partial = row
        # The columns after the key ones are only INCLUDEd.
        return Index(name, self._column_names(relation, numbers[:key_columns]), unique, primary, partial)

    def _foreign_keys(self, relation: int, rows: Sequence[Row]) -> list[ForeignKey]:
        found = []
        for name, _, numbers, target, target_numbers in rows:
            columns = [c for c in self._column_names(relation, numbers) if c is not None]
            target_columns = [c for c in self._column_names(target, target_numbers) if c is not None]
            if target in self.relation_names and len(columns) == len(target_columns):
                found.append(
                    ForeignKey(name, tuple(columns), self.relation_names[target], tuple(target_columns))
                )
        return found

    def _trigger(self, row: Row) -> Trigger:
        _, name, function, bits, enabled = row
        return Trigger(
            name,
            self.function_names[function],
            tuple(event for bit, event in _TRIGGER_EVENTS if bits & bit),
            before=bool(bits & _TRIGGER_BEFORE),
            instead=bool(bits & _TRIGGER_INSTEAD),
            row=bool(bits & _TRIGGER_ROW),
            enabled=enabled,
        )

    def _rule(self, row: Row) -> RewriteRule:
        oid, relation, name, event, instead, whole_row, builtin_relations, functions, tree = row
        # A view's stored tree may still list the view itself, for OLD and NEW.
        columns = {other: numbers for other, numbers in self.read[oid].items() if other != relation}
        # Of the server's own relations no dependency may say which columns are read: then all of them are.
        untold = {other for other in builtin_relations if other not in columns}
        columns |= {other: set() for other in untold}
        reads = [
            Read(
                self.relation_names[other],
                tuple(sorted(c for c in self._column_names(other, sorted(numbers)) if c is not None)),
                whole=whole_row or other in untold,
            )
            for other, numbers in columns.items()
            if other in self.relation_names
        ]
        return RewriteRule(
            name,
            RuleEvent(event),
            instead,
            tuple(sorted(reads, key=lambda read: read.relation)),
            self._uses(_Key("pg_rewrite", oid), functions=self._called(functions)),
            flow=self._flow(flow_of(tree), relation) if tree is not None else None,
        )

    def _flow(self, flow: ViewFlow | None, view: int) -> Flow | None:
        """``flow`` by names; None where it is not certain or a relation in it is left out of the snapshot."""
        named = (
            {column: self._flow_columns(column) for part in (*flow.outputs, flow.rows) for column in part}
            if flow is not None
            else {}
        )
        if flow is None or None in named.values() or len(flow.outputs) != len(self.columns.get(view, ())):
            return None
        outputs, rows = (
            [tuple(sorted({each for column in part for each in named[column] or ()})) for part in parts]
            for parts in (flow.outputs, [flow.rows])
        )
        return Flow(tuple(outputs), rows[0])

    def _flow_columns(self, column: Stored) -> tuple[ColumnId, ...] | None:
        relation = self.relation_names.get(column.relation)
        if relation is None:
            return None
        known = self.columns.get(column.relation, ())
        return tuple(
            self._column_ids.setdefault(found, found)
            for each in known
            if column.number in (0, each.number)
            for found in (ColumnId(*relation, each.name),)
        )

    def _expressions(self) -> defaultdict[int, list[Expression]]:
        found: defaultdict[int, list[Expression]] = defaultdict(list)
        for catalog, oid, relation, number, _ in self.rows["expression_owners"]:
            uses = self._uses(_Key(catalog, oid))
            if relation and (uses.functions or uses.types):
                column = self._column_names(relation, [number])[0] if number is not None else None
                found[relation].append(Expression(_EXPRESSION_ORIGINS[catalog], column, uses))
        return found

    # Functions, operators, casts, types ---------------------------------------------------------------------

    def _functions(self) -> list[Function]:
        return [self._function(row) for row in self.rows["functions"]]

    def _function(self, row: Row) -> Function:
        (oid, _, _, kind, volatility, definer, language, owner, arguments, result, returns_set, defaults) = (
            row[:12]
        )
        variadic, all_types, modes, names = row[12:]
        return Function(
            *self.function_names[oid],
            kind=FunctionKind(kind),
            volatility=Volatility(volatility),
            security_definer=definer,
            language=sys.intern(language),
            owner=sys.intern(owner),
            arguments=tuple(self.type_names[argument] for argument in arguments),
            result=self.type_names[result],
            returns_set=returns_set,
            defaults=defaults,
            variadic=variadic,
            columns=self._out_columns(all_types, modes, names),
            uses=self._uses(
                _Key("pg_proc", oid), functions=self._called(self.aggregate_functions.get(oid, ()))
            ),
        )

    def _out_columns(
        self, types: Sequence[int] | None, modes: Sequence[str] | None, names: Sequence[str] | None
    ) -> tuple[OutColumn, ...]:
        if types is None or modes is None:
            return ()
        shown = [
            (names[at] if names is not None else "", types[at])
            for at, mode in enumerate(modes)
            if mode in _OUT_MODES
        ]
        # A column without a name is called so by build_function_result_tupdesc_d (funcapi.c).
        return tuple(
            OutColumn(sys.intern(name or f"column{number}"), self.type_names[type_oid])
            for number, (name, type_oid) in enumerate(shown, 1)
        )

    def _operators(self) -> list[Operator]:
        return [
            Operator(
                schema,
                symbol,
                self.type_names.get(left),
                self.type_names[right],
                self.type_names[result],
                self.function_names[function],
                tuple(self._called_outside(estimators)),
            )
            for _, schema, symbol, left, right, result, function, estimators in self.rows["operators"]
        ]

    def _casts(self) -> list[Cast]:
        return [
            Cast(
                self.type_names[source],
                self.type_names[target],
                self.function_names.get(function),
                CastContext(context),
                CastMethod(method),
            )
            for source, target, function, context, method in self.rows["casts"]
        ]

    def _comparisons(self) -> list[Comparison]:
        functions: dict[QualifiedName, set[QualifiedName]] = defaultdict(set)
        for type_oid, function in self.rows["comparisons"]:
            functions[self.type_names[type_oid]].update(self._called_outside([function]))
        return [Comparison(name, tuple(sorted(called))) for name, called in functions.items() if called]

    def _types(self) -> list[Type]:
        checks: dict[int, list[_Key]] = defaultdict(list)
        for catalog, oid, _, _, domain in self.rows["expression_owners"]:
            if domain:
                checks[domain].append(_Key(catalog, oid))
        return [
            Type(
                schema,
                name,
                TypeKind(kind),
                category,
                element=self.type_names.get(element),
                base=self.type_names.get(base),
                relation=self.relation_names.get(relation),
                uses=self._uses(
                    _Key("pg_type", oid), *checks[oid], functions=self._called_outside(functions)
                ),
            )
            for oid, schema, name, kind, category, element, base, relation, functions in self.rows["types"]
        ]


def _by_name(item: Index | ForeignKey | Trigger | RewriteRule) -> str:
    return item.name


def _operator_order(operator: Operator) -> tuple[str, str, QualifiedName, QualifiedName]:
    return operator.schema, operator.symbol, operator.left or QualifiedName("", ""), operator.right
