"""What a catalog snapshot is made of: plain frozen values.

Owns the shapes that ``catalog_source`` reads, ``catalog_json`` writes down and ``catalog`` answers from.
Knows no connection, no policy and no statement. Names are exact, as the server's catalogs hold them. The
one-letter values of the enums are the server's own (the ``pg_*`` columns named in their docstrings), so that
a dump reads like the catalogs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from policy.names import QualifiedName

PG_CATALOG = "pg_catalog"


class ColumnId(NamedTuple):
    """One column of one relation; ``column`` None stands for the relation as such (how many rows it has)."""

    schema: str
    relation: str
    column: str | None

    def __str__(self) -> str:
        return ".".join(part for part in self if part is not None)


class RelationKind(StrEnum):
    """``pg_class.relkind``, less indexes and TOAST tables, which no statement reads by name."""

    TABLE = "r"
    PARTITIONED = "p"
    VIEW = "v"
    MATERIALIZED_VIEW = "m"
    FOREIGN_TABLE = "f"
    SEQUENCE = "S"
    COMPOSITE = "c"


class Identity(StrEnum):
    """``pg_attribute.attidentity``"""

    NONE = ""
    ALWAYS = "a"
    BY_DEFAULT = "d"


class Generated(StrEnum):
    """``pg_attribute.attgenerated``"""

    NONE = ""
    STORED = "s"
    VIRTUAL = "v"


class FunctionKind(StrEnum):
    """``pg_proc.prokind``"""

    FUNCTION = "f"
    AGGREGATE = "a"
    WINDOW = "w"
    PROCEDURE = "p"


class Volatility(StrEnum):
    """``pg_proc.provolatile``"""

    IMMUTABLE = "i"
    STABLE = "s"
    VOLATILE = "v"


class CastContext(StrEnum):
    """``pg_cast.castcontext``"""

    IMPLICIT = "i"
    ASSIGNMENT = "a"
    EXPLICIT = "e"


class CastMethod(StrEnum):
    """``pg_cast.castmethod``"""

    FUNCTION = "f"
    TEXT = "i"
    """Through the types' text form: the source's output function, then the target's input function."""
    BINARY = "b"


class TypeKind(StrEnum):
    """``pg_type.typtype``"""

    BASE = "b"
    COMPOSITE = "c"
    DOMAIN = "d"
    ENUM = "e"
    MULTIRANGE = "m"
    PSEUDO = "p"
    RANGE = "r"


class RuleEvent(StrEnum):
    """``pg_rewrite.ev_type``"""

    SELECT = "1"
    UPDATE = "2"
    INSERT = "3"
    DELETE = "4"


class ExpressionOrigin(StrEnum):
    """What part of a relation's definition an expression belongs to."""

    DEFAULT = "default"
    """A column's default or the expression of a generated column (``pg_attrdef``)."""
    CHECK = "check"
    POLICY = "policy"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Uses:
    """The functions and types an expression or object calls by itself; ``Catalog.closure`` follows them.

    Operators stand here as their functions. ``functions`` holds those of pg_catalog only where they are
    called by name; ``types`` those outside it only.
    """

    functions: tuple[QualifiedName, ...] = ()
    types: tuple[QualifiedName, ...] = ()


NOTHING_USED = Uses()


@dataclass(frozen=True, slots=True)
class Column:
    """A column that exists (dropped ones do not). ``number`` is its attnum, ``type`` the type's own name.

    ``not_null`` also where its domain says so; ``default`` also where its type has one, and for identity and
    generated columns: True means that an INSERT may leave it out.
    """

    name: str
    number: int
    type: QualifiedName
    not_null: bool = False
    default: bool = False
    identity: Identity = Identity.NONE
    generated: Generated = Generated.NONE


@dataclass(frozen=True, slots=True)
class Index:
    """A valid index. ``columns`` are its key columns in order, None where the key is an expression."""

    name: str
    columns: tuple[str | None, ...]
    unique: bool = False
    primary: bool = False
    partial: bool = False


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """``columns`` of the relation that holds it refer to ``target_columns`` of ``target``, pair by pair."""

    name: str
    columns: tuple[str, ...]
    target: QualifiedName
    target_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger that somebody made (not a foreign key's). ``events`` of: insert, update, delete, truncate."""

    name: str
    function: QualifiedName
    events: tuple[str, ...]
    before: bool = False
    instead: bool = False
    row: bool = False
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """What one rule reads of one relation. ``whole`` where a whole row may be read: every column then."""

    relation: QualifiedName
    columns: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """What a view's query makes its columns of (``view_flow``): for each column, by its number, the columns
    that its values may tell of; ``rows``: what the number and order of its rows tell of. Of the relations
    that the query names itself: what is below them is theirs."""

    outputs: tuple[tuple[ColumnId, ...], ...]
    rows: tuple[ColumnId, ...] = ()


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """One rule of a relation; a view is its SELECT rule (``pg_rewrite``).

    ``flow`` is a view's, None where it is not certain: each of its columns then tells of all it reads.
    """

    name: str
    event: RuleEvent
    instead: bool
    reads: tuple[Read, ...] = ()
    uses: Uses = NOTHING_USED
    flow: Flow | None = None


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression in a relation's definition that uses something outside pg_catalog, or of which a column
    is made: ``reads`` are the columns of the row that a generated column takes its value from."""

    origin: ExpressionOrigin
    column: str | None
    uses: Uses
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """One entry of ``pg_class``. ``rows`` is the planner's last count, -1 where nothing was counted.

    ``children`` are the direct partitions or inheritance children, whose rows a read of this relation returns
    unless it says ONLY. ``rows`` takes no part in comparisons: it says nothing of the schema.
    """

    schema: str
    name: str
    kind: RelationKind
    owner: str
    columns: tuple[Column, ...] = ()
    indexes: tuple[Index, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    rules: tuple[RewriteRule, ...] = ()
    expressions: tuple[Expression, ...] = ()
    children: tuple[QualifiedName, ...] = ()
    partition: bool = False
    row_security: bool = False
    row_security_forced: bool = False
    rows: float = field(default=-1.0, compare=False)

    @property
    def qualified(self) -> QualifiedName:
        return QualifiedName(self.schema, self.name)

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """Column lists of which one value of each finds at most one row, the primary key first."""
        whole = [index for index in self.indexes if index.unique and not index.partial]
        whole.sort(key=lambda index: not index.primary)
        return tuple(
            names
            for index in whole
            if len(names := tuple(name for name in index.columns if name is not None)) == len(index.columns)
        )


@dataclass(frozen=True, slots=True)
class OutColumn:
    """A column of a function's result row: an OUT or INOUT parameter, or one of RETURNS TABLE."""

    name: str
    type: QualifiedName


@dataclass(frozen=True, slots=True)
class Function:
    """One overload (``pg_proc``). ``arguments`` are the types of its input parameters, in order.

    ``defaults`` of them, the last ones, may be left out. ``variadic`` where the last one takes any number.
    ``uses``: an aggregate's support functions, the planner support function, functions in parameter defaults
    and in a body written in SQL-standard form. What a body given as text does is not known to the server
    either.
    """

    schema: str
    name: str
    kind: FunctionKind
    volatility: Volatility
    security_definer: bool
    language: str
    owner: str
    arguments: tuple[QualifiedName, ...]
    result: QualifiedName
    returns_set: bool = False
    defaults: int = 0
    variadic: bool = False
    columns: tuple[OutColumn, ...] = ()
    uses: Uses = NOTHING_USED

    @property
    def qualified(self) -> QualifiedName:
        return QualifiedName(self.schema, self.name)

    def accepts(self, count: int) -> bool:
        """Whether a call with ``count`` arguments could mean this overload, types left aside."""
        declared = len(self.arguments)
        if count > declared:
            return self.variadic
        return count >= declared - self.defaults - (1 if self.variadic else 0)


@dataclass(frozen=True, slots=True)
class Operator:
    """``left`` None for a prefix operator. ``estimators``, run by the planner: those outside pg_catalog."""

    schema: str
    symbol: str
    left: QualifiedName | None
    right: QualifiedName
    result: QualifiedName
    function: QualifiedName
    estimators: tuple[QualifiedName, ...] = ()


@dataclass(frozen=True, slots=True)
class Cast:
    source: QualifiedName
    target: QualifiedName
    function: QualifiedName | None
    context: CastContext
    method: CastMethod


@dataclass(frozen=True, slots=True)
class Type:
    """One type that is neither a table's row nor an ordinary array (``Catalog.type`` answers for those too).

    ``element`` for arrays, ``base`` for domains and ranges, ``relation`` for composites. ``uses``: input and
    output functions, a domain's CHECK and default, a range's canonical and difference functions.
    """

    schema: str
    name: str
    kind: TypeKind
    category: str
    element: QualifiedName | None = None
    base: QualifiedName | None = None
    relation: QualifiedName | None = None
    uses: Uses = NOTHING_USED


@dataclass(frozen=True, slots=True)
class Comparison:
    """What sorting, grouping, joining or indexing values of ``type`` calls: the functions outside pg_catalog
    of its default btree or hash operator class (``pg_opclass``), or of the one that a range was made with."""

    type: QualifiedName
    functions: tuple[QualifiedName, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """Everything a snapshot holds, each tuple sorted.

    ``relations`` includes those of pg_catalog and information_schema. ``functions`` and ``operators`` hold of
    pg_catalog's own only what overload resolution needs: those whose name something outside pg_catalog
    shares, and functions of which an overload returns a set. ``types`` and ``casts`` hold what is not the
    server's own. ``row_functions`` names pg_catalog's functions that take a whole row, which ``t.name`` may
    call.

    ``version`` is ``server_version_num``; ``search_path`` the login's effective one
    (``current_schemas(false)``), or what it lists where temporary objects come into that.
    """

    version: int
    database: str
    login: str
    search_path: tuple[str, ...]
    schemas: tuple[str, ...]
    relations: tuple[Relation, ...] = ()
    functions: tuple[Function, ...] = ()
    operators: tuple[Operator, ...] = ()
    casts: tuple[Cast, ...] = ()
    types: tuple[Type, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    row_functions: tuple[str, ...] = ()
