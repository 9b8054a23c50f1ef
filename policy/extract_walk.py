"""The generic walk over a raw parse tree, and what it collects.

Owns the one visit of every field of every node, the refusal of what ``nodes`` does not list, the scopes in
which names stand, and the recording of relations, columns, functions, operators and types. What a node type
means is said by the handlers of ``extract_expression``, ``extract_query``, ``extract_write`` and
``extract_utility``, which this module does not know: a handler records what its node says, walks the fields
whose order or context matters, and gives the node back to ``rest``, which walks every other field. Nothing is
left out by forgetting it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

from policy.builtin import PG_CATALOG
from policy.facts import (
    CallKind,
    ColumnRef,
    CopyRef,
    FunctionRef,
    Join,
    Operand,
    OperatorRef,
    Output,
    RelationRef,
    RenameRef,
    SchemaRef,
    SessionAction,
    SessionRef,
    SettingRef,
    Source,
    SourceKind,
    TransactionRef,
    TypeRef,
    Use,
    Write,
)
from policy.model import StatementClass
from policy.nodes import FIELDS, LIST, NODE, SCALAR

Fields = Mapping[str, Any]
"""The bare fields of one node."""
Handler = Callable[["Walk", Fields], None]

MAX_DEPTH: Final = 1000
"""Nodes within nodes. Far above what people and models write (300 chained ``||`` make 300), and low enough
that neither this walk nor ``json.loads`` meets the interpreter's own limit first."""

NOTHING: Final[frozenset[str]] = frozenset()
QUERY_STATEMENTS: Final = frozenset({"SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt"})
_CONTINUATION = re.compile(rb"[\x80-\xbf]")


class NotUnderstoodError(Exception):
    """A node, field or enum value that the gate does not know."""

    def __init__(self, what: str, position: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.position = position


class TooDeep(Exception):  # noqa: N818  (a fact about the text, not a fault of ours)
    """The tree is deeper than ``MAX_DEPTH``."""


class SourceText:
    """A query string as characters and as bytes, and the way from the parser's byte offsets to positions."""

    __slots__ = ("_continuations", "ascii", "data", "sql")

    def __init__(self, sql: str, data: bytes) -> None:
        self.sql = sql
        self.data = data
        self.ascii = len(sql) == len(data)
        """Offsets are positions less one."""
        self._continuations = (
            () if self.ascii else tuple(found.start() for found in _CONTINUATION.finditer(data))
        )

    def position(self, location: int) -> int | None:
        """Character position from 1 of a byte offset from 0; None for the parser's "unknown", -1."""
        if location < 0:
            return None
        if self._continuations:
            location -= bisect_left(self._continuations, location)
        return location + 1


class Environment:
    """The CTE names that one WITH brings into sight, and those of the queries around it."""

    __slots__ = ("names", "outer")

    def __init__(self, outer: Environment | None) -> None:
        self.names: dict[str, CteInfo] = {}
        self.outer = outer


class CteInfo:
    """A CTE while the walk is under way. ``query`` is known once its body is entered."""

    __slots__ = (
        "added_columns",
        "column_aliases",
        "entered",
        "materialized",
        "name",
        "query",
        "recursive",
    )

    def __init__(
        self,
        name: str,
        column_aliases: tuple[str, ...],
        materialized: bool | None,
        added_columns: tuple[str, ...],
    ) -> None:
        self.name = name
        self.column_aliases = column_aliases
        self.added_columns = added_columns
        self.materialized = materialized
        self.query: int | None = None
        self.recursive = False
        self.entered = False


class Scope:
    """A query level while the walk is under way; becomes a ``facts.Query``."""

    __slots__ = (
        "aggregates",
        "arms",
        "cte_sources",
        "distinct",
        "final",
        "index",
        "lateral",
        "limit",
        "limit_parameter",
        "limited",
        "locking",
        "may_return_set",
        "one_row",
        "outputs",
        "parent",
        "position",
        "relation_count",
        "sources",
        "values_rows",
        "where",
    )

    def __init__(self, index: int, parent: Scope | None) -> None:
        self.index = index
        self.parent = parent
        self.sources: list[Source] = []
        self.cte_sources: list[tuple[int, CteInfo]] = []
        """Where in ``sources`` a CTE stands: its query may be entered later (WITH RECURSIVE looks ahead)."""
        self.outputs: tuple[Output, ...] = ()
        self.arms: tuple[int, ...] = ()
        self.final = False
        self.relation_count = 0
        self.limited = False
        self.limit: int | None = None
        self.limit_parameter: int | None = None
        self.aggregates = False
        """One of PostgreSQL's own aggregates is called for its rows."""
        self.may_return_set = False
        """Something in its select list, or what counts as such, is not certain to be one value a row."""
        self.one_row = False
        self.distinct = False
        self.locking = False
        self.lateral = False
        self.values_rows = 0
        self.position: int | None = None
        self.where: Fields = {}
        """The WHERE of a SELECT."""


class Walk:
    """One pass over one statement's tree. ``visit`` it once, then read what it holds."""

    def __init__(self, handlers: Mapping[str, Handler], text: SourceText, start: int) -> None:
        self.handlers = handlers
        self.text = text
        self.ascii = text.ascii
        self.start = start
        """Position of the statement's first character that is not white space."""
        self.running = True
        """False inside an EXPLAIN that only plans: parts are looked at, but add no class and no write."""
        self.final = False
        """Whether the next query level entered is the one whose rows the statement returns."""
        self.scope: Scope | None = None
        self.clause = ""
        self.clause_depth = 0
        """Where the list of the clause's items stands; they are alone there, or below a SortBy."""
        self.environment: Environment | None = None
        self.in_aggregate = False
        """Inside the arguments of an aggregate of the current query level."""
        self.assigned: Fields | None = None
        """The source of the multiple assignment that was walked last."""
        self.only_names = False
        """Inside a statement that names objects, types among them, and casts nothing."""
        self.analyze = False
        self.verbose = False
        self.explains = False
        self.creates_temp = False
        self.locks_as_reading = False
        self.truncates_referring = False
        self.makes_json = False
        self.parameters = 0
        self.depth = 0
        self.deepest = 0
        self.nodes = 0
        self.classes: dict[StatementClass, int | None] = {}
        self.relations: list[RelationRef] = []
        self.columns: list[ColumnRef] = []
        self.functions: list[FunctionRef] = []
        self.attributes: set[Hashable] = set()
        self.operators: list[OperatorRef] = []
        self.types: list[TypeRef] = []
        self.compared: list[Operand] = []
        self.scopes: list[Scope] = []
        self.joins: list[Join | None] = []
        self.ctes: list[CteInfo] = []
        self.writes: list[Write] = []
        self.settings: list[SettingRef] = []
        self.transactions: list[TransactionRef] = []
        self.copies: list[CopyRef] = []
        self.renames: list[RenameRef] = []
        self.schemas: list[SchemaRef] = []
        self.session: list[SessionRef] = []

    # The walk itself

    def visit(self, node: Fields) -> None:
        """One node in its wrapper, ``{"Type": {fields}}``; ``{}`` is the C tree's NULL."""
        for name, fields in node.items():
            handler = self.handlers.get(name)
            if handler is None:
                self.rest(name, fields)
            else:
                handler(self, fields)

    def visit_all(self, nodes: list[Fields] | None) -> None:
        for node in nodes or ():
            self.visit(node)

    def visit_final(self, node: Fields) -> None:
        """A statement whose rows, if it is a query, go to the client."""
        self.final = not QUERY_STATEMENTS.isdisjoint(node)
        self.visit(node)
        self.final = False

    def rest(self, name: str, fields: Fields, done: frozenset[str] = NOTHING) -> None:
        """Walk every field of a ``name`` node that is not in ``done``; refuse what is not in the table."""
        kinds = FIELDS.get(name)
        if kinds is None:
            raise NotUnderstoodError(f"the node {name}", self.position(fields))
        self.deeper()
        for field, value in fields.items():
            kind = kinds.get(field)
            if kind is SCALAR:
                continue
            if kind is None:
                raise NotUnderstoodError(f"the field {name}.{field}", self.position(fields))
            if field in done:
                continue
            if kind is NODE:
                self.visit(value)
            elif kind is LIST:
                for node in value:
                    self.visit(node)
            else:
                self.visit({kind: value})
        self.depth -= 1

    def leaf(self, name: str, fields: Fields) -> None:
        """A ``name`` node that has been read whole: count it, and refuse fields that are not in the table."""
        self.nodes += 1
        if not fields.keys() <= FIELDS[name].keys():
            unknown = ", ".join(sorted(fields.keys() - FIELDS[name].keys()))
            raise NotUnderstoodError(f"the field {name}.{unknown}", self.position(fields))

    def deeper(self) -> None:
        """One level down; the caller comes up by ``depth -= 1``."""
        self.nodes += 1
        self.depth += 1
        if self.depth > self.deepest:
            self.deepest = self.depth
            if self.depth > MAX_DEPTH:
                raise TooDeep

    def in_clause(self, clause: str, node: Fields | None) -> None:
        if node:
            wanted = _WANTED_BY_CLAUSE.get(clause)
            if wanted is not None:
                self.coerced(node, wanted)
            before, self.clause = self.clause, clause
            self.visit(node)
            self.clause = before

    def all_in_clause(self, clause: str, nodes: list[Fields] | None) -> None:
        if nodes:
            before = self.clause, self.clause_depth
            self.clause, self.clause_depth = clause, self.depth
            self.visit_all(nodes)
            self.clause, self.clause_depth = before

    def position(self, fields: Fields) -> int | None:
        """Where a node says it stands. CREATE TABLESPACE's ``location`` is a path, hence no position."""
        location = fields.get("location", -1)
        if self.ascii and location.__class__ is int:
            return location + 1 if location >= 0 else None
        return self.text.position(location) if isinstance(location, int) else None

    # What handlers record

    def add_class(self, statement_class: StatementClass, position: int | None = None) -> None:
        if self.running:
            self.classes.setdefault(statement_class, self.start if position is None else position)

    def add_write(self, write: Write) -> None:
        if self.running:
            self.writes.append(write)

    def acts_on_session(self, action: SessionAction, name: str | None = None, hold: bool = False) -> None:
        self.session.append(SessionRef(action, name, hold, self.start))

    def open_scope(self, parent: Scope | None) -> Scope:
        """A new query level, current from now on; the caller puts the old one back."""
        scope = Scope(len(self.scopes), parent)
        scope.final, self.final = self.final and self.running, False
        self.scopes.append(scope)
        self.scope = scope
        return scope

    @property
    def query(self) -> int | None:
        return None if self.scope is None else self.scope.index

    def relation(self, fields: Fields, use: Use, query: int | None = None) -> int:
        """Record a RangeVar as a mention of a relation; gives its index in ``Facts.relations``."""
        self.leaf("RangeVar", fields)
        alias = fields.get("alias")
        self.relations.append(
            RelationRef(
                fields["relname"],
                fields.get("schemaname"),
                fields.get("catalogname"),
                None if alias is None else alias["aliasname"],
                use,
                self.position(fields),
                query,
                not fields.get("inh", False),
            )
        )
        return len(self.relations) - 1

    def named_relation(self, names: list[str], use: Use = Use.DEFINE) -> None:
        """Record a relation given as the parts of a dotted name."""
        if names:
            catalog, schema = qualifiers(names)
            self.relations.append(RelationRef(names[-1], schema, catalog, use=use, query=self.query))

    def cte(self, fields: Fields) -> CteInfo | None:
        """The CTE that a RangeVar of a FROM clause means, if any: only an unqualified name can be one."""
        if self.environment is None or "schemaname" in fields:
            return None
        name = fields["relname"]
        environment: Environment | None = self.environment
        while environment is not None:
            found = environment.names.get(name)
            if found is not None:
                return found
            environment = environment.outer
        return None

    def function(
        self,
        names: list[str],
        fields: Fields,
        arguments: int,
        literals: tuple[str | None, ...],
        *,
        argument_names: tuple[str | None, ...] = (),
        in_from: bool = False,
        operands: tuple[Operand, ...] = (),
        kind: CallKind = CallKind.CALL,
    ) -> None:
        """Record a call; ``fields`` hold its location and its star, if any."""
        self.functions.append(
            FunctionRef(
                names[-1],
                names[-2] if len(names) > 1 else None,
                kind,
                arguments,
                literals,
                argument_names,
                bool(fields.get("agg_star")),
                in_from,
                self.position(fields),
                self.query,
                operands,
            )
        )

    def attribute(self, name: str, position: int | None, key: Hashable = None) -> None:
        """``x.name``, which may be a call. ``key`` tells one x from another: once a query is enough."""
        query = self.query
        if key is not None:
            if (query, key) in self.attributes:
                return
            self.attributes.add((query, key))
        self.functions.append(
            FunctionRef(name, None, CallKind.ATTRIBUTE, 1, (None,), position=position, query=query)
        )

    def operator(
        self,
        names: list[str],
        position: int | None,
        implied: bool = False,
        left: bool = True,
        right: bool = True,
        *,
        operands: tuple[Operand, ...] = (),
    ) -> None:
        schema = names[-2] if len(names) > 1 else None
        self.operators.append(OperatorRef(names[-1], schema, left, right, implied, position, operands))

    def coerced(self, node: Fields, wanted: str) -> None:
        """Record that the server makes a value of its own type ``wanted`` of ``node``, if it is of another.

        It does so as an assignment would (coerce_to_boolean, coerce_to_specific_type in parse_coerce.c).
        """
        for kind, fields in node.items():
            if kind in _OF_ANY_TYPE:
                position = self.position(fields)
                self.types.append(TypeRef(wanted, PG_CATALOG, cast=True, position=position))

    def written_column(self, fields: Fields, use: Use, target: int, clause: str) -> str:
        """Record a ResTarget (or its like) as a column that is written; gives the name."""
        name: str = fields["name"]
        self.columns.append(ColumnRef(name, (), use, self.position(fields), self.query, target, clause))
        return name

    def source(self, scope: Scope, kind: SourceKind, alias: Fields | None, **more: Any) -> None:
        """Add an item that ``scope`` can take columns from. ``more`` are further fields of ``Source``."""
        name, aliases = more.pop("name", None), more.pop("column_aliases", ())
        if alias is not None:
            self.leaf("Alias", alias)
            name = alias["aliasname"]
            names = strings(alias.get("colnames", ()))
            # A list that is shorter than the columns renames the first of them.
            aliases = (*names, *aliases[len(names) :])
        scope.sources.append(
            Source(kind, name, column_aliases=tuple(aliases), aliased=alias is not None, **more)
        )


_WANTED_BY_CLAUSE: Final[Mapping[str, str]] = {
    "where": "bool",
    "on": "bool",
    "having": "bool",
    "limit": "int8",
}
_OF_ANY_TYPE: Final = frozenset(
    {
        "A_ArrayExpr",
        "A_Indirection",
        "CaseExpr",
        "CoalesceExpr",
        "ColumnRef",
        "FuncCall",
        "MinMaxExpr",
        "SubLink",
        "TypeCast",
    }
)
"""Expressions whose value may be of a type of somebody's own, without an operator that would tell."""


def inner_nodes(node: Any) -> list[Fields]:
    """Every dict in ``node``, in no order, less those of sub-selects."""
    found: list[Fields] = []
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            found.append(item)
            waiting.extend(value for name, value in item.items() if name != "SelectStmt")
    return found


_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def setting_name(name: str) -> str:
    """A setting's name in lower case as guc.c compares it: ASCII letters alone."""
    return name.translate(_LOWER)


def qualifiers(names: list[str]) -> tuple[str | None, str | None]:
    """Database and schema of a dotted name of up to three parts."""
    catalog, schema, _ = [None, None, *names][-3:]
    return catalog, schema


def strings(nodes: Iterable[Fields]) -> list[str]:
    """The texts of a list of String nodes: a dotted name, an operator, column aliases.

    Raises KeyError where there is anything else, which ``extract`` takes for a tree it does not understand.
    """
    return [node["String"].get("sval", "") for node in nodes]


def dotted(nodes: list[Fields]) -> tuple[list[str], bool]:
    """A path of names as ``strings`` gives it, and whether ``*`` ends it."""
    star = "A_Star" in nodes[-1]
    return strings(nodes[:-1] if star else nodes), star
