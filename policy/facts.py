"""What one walk of the tree learned of one statement: plain frozen values.

Owns the shapes that ``extract`` fills and every rule reads. Knows no parser, no policy and no catalog: names
are as PostgreSQL's grammar folded them, unresolved. Positions count characters of the query string as sent,
from 1, so that they can stand in an ErrorResponse's Position field; None where the grammar keeps none.

The scopes (``Query``, ``Source``, ``Column.query``) carry enough for a name resolver that has a catalog to
work on these values alone, without a second walk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from policy.model import StatementClass

Tree = Mapping[str, Any]
"""A node of libpg_query's JSON tree, ``{"NodeType": {fields}}``, or the bare fields of a typed position."""


class Use(StrEnum):
    """What a statement does with a relation or column."""

    READ = "read"
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    LOCK = "lock"
    DEFINE = "define"
    """Named by DDL, maintenance, GRANT and other utility statements."""


@dataclass(frozen=True, slots=True)
class RelationRef:
    """One mention of a relation that is not a CTE in scope. ``catalog`` is the database part of a.b.c."""

    name: str
    schema: str | None = None
    catalog: str | None = None
    alias: str | None = None
    use: Use = Use.READ
    position: int | None = None
    query: int | None = None
    """Index into ``Facts.queries`` of the scope whose FROM (or target) it stands in."""
    only: bool = False


class OperandKind(StrEnum):
    """What is known of a value's type by the text alone."""

    TYPED = "typed"
    """A number, a boolean or a cast: of the type that ``Operand.name`` names."""
    UNTYPED = "untyped"
    """A string constant or NULL, which takes the type that is wanted of it."""
    PARAMETER = "parameter"
    """``$n`` without a cast: of whatever type the Parse message says."""
    COLUMN = "column"
    """``Operand.position`` tells which; a column of USING has none, and ``Operand.name`` instead."""
    CALL = "call"
    """What a function returns; ``Operand.name`` is the function's, ``Operand.sides`` its arguments where they
    all stand in one list."""
    OPERATION = "operation"
    """What an operator gives; ``Operand.name`` is its symbol, ``Operand.sides`` what it is given."""
    COMMON = "common"
    """Of the type that ``Operand.sides`` come to together: CASE, COALESCE, GREATEST, NULLIF, UNION."""
    ELEMENT = "element"
    """What subscripts take of the one value in ``Operand.sides``."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument of a function or a side of an operator. ``position`` tells which of ``Facts.columns``."""

    kind: OperandKind
    name: str | None = None
    schema: str | None = None
    position: int | None = None
    sides: tuple[Operand, ...] = ()


class CallKind(StrEnum):
    CALL = "call"
    """f(x), anywhere: select list, FROM, DEFAULT, EXECUTE's arguments, CALL …"""
    ATTRIBUTE = "attribute"
    """x.f or (x).f, which PostgreSQL reads as f(x) where no such column exists. May be a plain column."""
    NAMED = "named"
    """Named by a definition for something that will call it; which overload, its arguments do not tell."""


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """One place that calls (or, for ATTRIBUTE, could call) a function by name.

    ``arguments`` is the number of actual arguments, ``literals`` the constant value of each argument as text,
    None where it is not a constant (a cast of a string constant counts as that constant).
    """

    name: str
    schema: str | None = None
    kind: CallKind = CallKind.CALL
    arguments: int = 0
    literals: tuple[str | None, ...] = ()
    argument_names: tuple[str | None, ...] = ()
    """The names of ``name => value`` arguments; () where no argument is named."""
    star: bool = False
    in_from: bool = False
    position: int | None = None
    query: int | None = None
    operands: tuple[Operand, ...] = ()
    """One for each argument; () where they are not told."""


@dataclass(frozen=True, slots=True)
class OperatorRef:
    """An operator by symbol. ``schema`` only for OPERATOR(schema.symbol); the sides say which operands exist.

    ``implied`` marks operators the grammar supplies (``=`` of IN, BETWEEN's ``>=``, ``=`` of NULLIF, LIKE's
    ``~~`` …).
    """

    symbol: str
    schema: str | None = None
    left: bool = True
    right: bool = True
    implied: bool = False
    position: int | None = None
    operands: tuple[Operand, ...] = ()
    """Left and right, or the one there is; () where they are not told."""


@dataclass(frozen=True, slots=True)
class TypeRef:
    """A type by name: casts, column definitions, XMLTABLE columns. Arrays name their element type."""

    name: str
    schema: str | None = None
    cast: bool = False
    """True where a value is cast to it, so that a cast function or a domain's CHECK may run."""
    literal: bool = False
    """True where what is cast is a string constant: the type's input function runs, no cast function."""
    literal_value: str | None = None
    """The constant that is cast, where it is one (``'api_keys'::regclass``)."""
    position: int | None = None
    operand: Operand | None = None
    """What is cast, where one value is."""
    array: bool = False


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """One reference to a column. ``qualifier`` is what stands before the last dot, outermost first.

    ``name`` None is a star (``*``, ``t.*``). A single unqualified name may also be a whole row: the resolver
    looks for a source of that name. ``use`` is READ for every value that is read (also in WHERE, ORDER BY,
    USING, RETURNING), INSERT and UPDATE for the columns written.
    """

    name: str | None
    qualifier: tuple[str, ...] = ()
    use: Use = Use.READ
    position: int | None = None
    query: int | None = None
    target: int | None = None
    """For written columns: index into ``Facts.relations`` of the relation written."""
    clause: str = ""
    """Where in its query it stands: target, distinct, where, group, having, window, order, limit, on, using,
    from (a function's or sample's argument), values, set, insert, conflict, when, returning, copy; in utility
    statements references (of a foreign key), or empty."""
    fields: tuple[str | None, ...] = ()
    """What is selected of it: ``(u).ssn`` is the column or whole row ``u`` with fields ``("ssn",)``; None
    stands for ``(u).*``."""
    alone: bool = False
    """True where it is a whole item of ORDER BY, GROUP BY or DISTINCT ON, so that it may name an output."""


class SourceKind(StrEnum):
    RELATION = "relation"
    CTE = "cte"
    SUBQUERY = "subquery"
    FUNCTION = "function"
    TABLE_FUNCTION = "table_function"
    """XMLTABLE, JSON_TABLE: columns are all named in the text."""
    EXCLUDED = "excluded"
    """ON CONFLICT's row; stands for the target relation's columns. Seen by that clause alone, and only where
    it qualifies a column: neither ``*`` nor an unqualified name looks here."""
    OLD_NEW = "old_new"
    """RETURNING's old / new (PostgreSQL 18), or their aliases; as EXCLUDED, for RETURNING alone."""


@dataclass(frozen=True, slots=True)
class Source:
    """One item a scope can take columns from. ``name`` is what qualifies its columns (alias or own name)."""

    kind: SourceKind
    name: str | None
    relation: int | None = None
    """Index into ``Facts.relations`` for RELATION, EXCLUDED and OLD_NEW."""
    query: int | None = None
    """Index into ``Facts.queries`` of the sub-select or CTE body."""
    column_aliases: tuple[str, ...] = ()
    """``AS t(a, b)``, or the names of a column definition list."""
    functions: tuple[str, ...] = ()
    """One for each of ROWS FROM, as written; empty for what is no plain call (``current_date``)."""
    lateral: bool = False
    aliased: bool = False
    join: int | None = None
    """Index into ``Facts.joins`` of the innermost join it is an operand of."""
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """One JOIN. ``using`` are the merged columns; ``alias`` hides the sources below it if given.

    Its left operand is ``Query.sources[first:middle]``, its right one ``[middle:last]``. ``using_alias`` is
    ``USING (…) AS x``, which names the merged columns and hides nothing.
    """

    kind: str
    """inner, left, right, full, cross"""
    natural: bool = False
    using: tuple[str, ...] = ()
    alias: str | None = None
    has_condition: bool = False
    query: int | None = None
    parent: int | None = None
    position: int | None = None
    column_aliases: tuple[str, ...] = ()
    using_alias: str | None = None
    first: int = 0
    middle: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """One item of a select list: its name if it has a certain one, or a star (with its qualifier)."""

    name: str | None
    star: bool = False
    qualifier: tuple[str, ...] = ()
    composite: bool = False
    """``(expression).*``: the fields of a composite value, which only a catalog can name."""
    operand: Operand | None = field(default=None, compare=False)
    """What the text tells of its type; told of queries that others select from."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query level: a SELECT, VALUES or TABLE, a set operation's arm or the operation itself, or the body
    of an INSERT, UPDATE, DELETE or MERGE.

    ``parent`` is the scope that encloses it for correlated references; None at the top. A sub-select of FROM
    that is not LATERAL sees its neighbours no more than a CTE does: its parent is the parent of the query it
    stands in. ``arms`` are the two sides of a set operation. ``final`` is True for the query whose rows the
    statement returns (a PREPARE's or DECLARE's returns them later; an EXPLAIN without ANALYZE returns none).
    """

    index: int
    parent: int | None
    sources: tuple[Source, ...] = ()
    outputs: tuple[Output, ...] = ()
    arms: tuple[int, ...] = ()
    final: bool = False
    relation_count: int = 0
    """Base relations joined in this FROM, through joins and commas, not those inside sub-selects."""
    limited: bool = False
    """LIMIT or FETCH FIRST whose count is certain to be one: a number, arithmetic on numbers, a parameter.
    Not so NULL and ALL, an expression that could yield NULL, or WITH TIES where the order names no column."""
    limit: int | None = None
    """The count, where it is a constant."""
    limit_parameter: int | None = None
    """The n of the ``$n`` that the count is or is reckoned from: bound to NULL it is no limit."""
    one_row: bool = False
    """Certain to return at most one row: aggregates without GROUP BY, no set-returning function above them;
    a SELECT without FROM; a single VALUES row."""
    distinct: bool = False
    locking: bool = False
    recursive: bool = False
    lateral: bool = False
    values_rows: int = 0
    position: int | None = None
    """Where its select list begins, or its target is named."""


@dataclass(frozen=True, slots=True)
class Cte:
    name: str
    query: int
    recursive: bool = False
    materialized: bool | None = None
    column_aliases: tuple[str, ...] = ()
    added_columns: tuple[str, ...] = ()
    """What SEARCH and CYCLE add after the query's own columns."""


@dataclass(frozen=True, slots=True)
class Write:
    """One INSERT, UPDATE, DELETE or one action of a MERGE, wherever it is nested, that running the statement
    would run: under EXPLAIN without ANALYZE there is none.

    ``where`` is the WHERE tree (for MERGE the ON condition, ANDed with the action's own by the reader);
    None where there is none, and for rows NOT MATCHED BY SOURCE, which ON does not bound. ``query`` is its
    scope. ``columns`` the target columns named, () where none are.
    """

    action: StatementClass
    target: int
    query: int
    where: Tree | None = None
    action_condition: Tree | None = None
    where_position: int | None = None
    columns: tuple[str, ...] = ()
    has_columns: bool = False
    source: str = ""
    """For INSERT: values, select, default, or copy (COPY … FROM)."""
    values: tuple[tuple[str, ...], ...] = ()
    """For INSERT … VALUES: each row's items as one of ``null``, ``default``, ``const:<text>``,
    ``param:<number>``, ``expr``."""
    selected: tuple[str, ...] = ()
    """For INSERT … SELECT: the items of its list in the same way; () where their number is not certain."""
    typed: frozenset[int] | None = None
    """For INSERT: the places, from 0, where some row may have a value with a type of its own. It is cast to
    the column's, where a string constant, NULL or DEFAULT is read as that. None: every place."""
    assigned: frozenset[str] = frozenset()
    """The columns that SET, of ON CONFLICT too, gives a value with a type of its own."""
    on_conflict: str | None = None
    """nothing, update"""
    from_sources: bool = False
    """UPDATE … FROM / DELETE … USING / MERGE … USING: other relations joined."""
    current_of: str | None = None
    merge: bool = False
    match: str = ""
    """For MERGE: matched, not_matched_by_source, not_matched_by_target."""
    position: int | None = None


class SettingHow(StrEnum):
    SET = "set"
    RESET = "reset"
    RESET_ALL = "reset_all"
    SET_CONFIG = "set_config"
    TRANSACTION = "transaction"
    """SET SESSION CHARACTERISTICS, which sets default_transaction_*: see also ``Facts.transactions``."""
    ALTER = "alter"
    """ALTER ROLE/DATABASE/SYSTEM/FUNCTION … SET, CREATE FUNCTION … SET."""


@dataclass(frozen=True, slots=True)
class PinnedName:
    """The text that a WHERE holds the column ``name`` of a relation to: lower case, as a setting's name."""

    name: str
    relation: int
    """Index into ``Facts.relations``."""


@dataclass(frozen=True, slots=True)
class SettingRef:
    """A setting that the statement changes. ``name`` is lower case, None where it is no constant.

    ``values`` are the constants as text; None where they are no constants or the change is to DEFAULT.
    """

    name: str | None
    how: SettingHow
    values: tuple[str, ...] | None = None
    local: bool = False
    position: int | None = None
    pinned: PinnedName | None = None
    """What ``name`` is where it is read from pg_catalog.pg_settings. Only ``rules/setting_not_allowed`` looks
    whether it is: to all others the name is unknown."""


class TransactionKind(StrEnum):
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    RELEASE = "release"
    ROLLBACK_TO = "rollback_to"
    SET_TRANSACTION = "set_transaction"
    SET_CHARACTERISTICS = "set_characteristics"
    PREPARE = "prepare_transaction"
    COMMIT_PREPARED = "commit_prepared"
    ROLLBACK_PREPARED = "rollback_prepared"


@dataclass(frozen=True, slots=True)
class TransactionRef:
    """A transaction statement. ``read_only`` is None where the mode is not named. ``snapshot`` for SET
    TRANSACTION SNAPSHOT."""

    kind: TransactionKind
    read_only: bool | None = None
    chain: bool = False
    name: str | None = None
    snapshot: str | None = None
    isolation: str | None = None
    deferrable: bool | None = None
    position: int | None = None


class CopyEnd(StrEnum):
    STDOUT = "stdout"
    STDIN = "stdin"
    TO_FILE = "to_file"
    FROM_FILE = "from_file"
    TO_PROGRAM = "to_program"
    FROM_PROGRAM = "from_program"


@dataclass(frozen=True, slots=True)
class CopyRef:
    end: CopyEnd
    relation: int | None = None
    columns: tuple[str, ...] = ()
    where: Tree | None = None
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RenameRef:
    """A relation, by its index into ``Facts.relations``, that is to be called ``name`` or to stand in
    ``schema`` (None: as before); or ``column`` of it, which is to be called otherwise."""

    relation: int
    column: str | None = None
    name: str | None = None
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaRef:
    """A schema that stands for all that is in it: DROP SCHEMA, GRANT … ON ALL TABLES IN SCHEMA; ``renamed``
    where it is to be called so."""

    name: str
    renamed: str | None = None


class SessionAction(StrEnum):
    """What a statement does to the names of its session."""

    PREPARE = "prepare"
    EXECUTE = "execute"
    DEALLOCATE = "deallocate"
    DEALLOCATE_ALL = "deallocate_all"
    DECLARE = "declare"
    FETCH = "fetch"
    CLOSE = "close"
    CLOSE_ALL = "close_all"
    DISCARD_ALL = "discard_all"
    DISCARD = "discard"
    """DISCARD PLANS, SEQUENCES, TEMP: ``name`` says which."""
    LISTEN = "listen"
    UNLISTEN = "unlisten"
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True)
class SessionRef:
    action: SessionAction
    name: str | None = None
    hold: bool = False
    """DECLARE … WITH HOLD"""
    position: int | None = None


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A node, field or option the gate does not know: the statement is refused, naming this."""

    what: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of one statement, nested parts included.

    ``sql`` is the text of this statement alone, ``start`` its first character's position in the query string
    (from 1). ``classes`` holds the class of every part; ``statement_class`` is the most dangerous of them.
    """

    sql: str
    start: int
    node: str
    """The statement node's type, e.g. SelectStmt."""
    classes: frozenset[StatementClass]
    statement_class: StatementClass
    class_positions: Mapping[StatementClass, int | None]
    relations: tuple[RelationRef, ...] = ()
    columns: tuple[ColumnRef, ...] = ()
    functions: tuple[FunctionRef, ...] = ()
    operators: tuple[OperatorRef, ...] = ()
    types: tuple[TypeRef, ...] = ()
    compared: tuple[Operand, ...] = ()
    """What is compared without an operator: sorted, grouped, told apart from its like."""
    queries: tuple[Query, ...] = ()
    joins: tuple[Join, ...] = ()
    ctes: tuple[Cte, ...] = ()
    writes: tuple[Write, ...] = ()
    settings: tuple[SettingRef, ...] = ()
    transactions: tuple[TransactionRef, ...] = ()
    copies: tuple[CopyRef, ...] = ()
    renames: tuple[RenameRef, ...] = ()
    schemas: tuple[SchemaRef, ...] = ()
    session: tuple[SessionRef, ...] = ()
    runs: bool = True
    """False for EXPLAIN without ANALYZE, which plans its statement but does not run it."""
    explain_analyze: bool = False
    explain_verbose: bool = False
    parameters: int = 0
    """The highest $n."""
    creates_temp: bool = False
    """SELECT INTO TEMP, CREATE TEMP …"""
    locks_as_reading: bool = False
    """LOCK TABLE … IN ACCESS SHARE MODE, which takes the lock that SELECT does."""
    truncates_referring: bool = False
    """TRUNCATE … CASCADE, which empties every table with a foreign key to one that it names."""
    makes_json: bool = False
    """JSON_OBJECT, JSON_ARRAY, JSON_SCALAR and their aggregates, which may call a cast to json unseen."""
    not_understood: NotUnderstood | None = None
    depth: int = 0
    nodes: int = 0

    @property
    def returns_rows(self) -> bool:
        return any(q.final for q in self.queries)


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """PostgreSQL's grammar (or a guard before it) does not accept the text. ``rule`` names which."""

    rule: str
    message: str
    sqlstate: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class QueryString:
    """What one Query or Parse message carried: 0..n statements, or why it could not be read."""

    sql: str
    statements: tuple[Facts, ...] = ()
    failure: ParseFailure | None = None
