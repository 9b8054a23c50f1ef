"""Puts the rows of one reading of the catalogs together into the values of a snapshot.

Owns what the rows of ``catalog_queries`` mean, and which relations of the last reading still stand: most of a
large schema is the same from one reading to the next. Knows no connection (``catalog_source``), no policy and
no rule.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from policy import catalog_json
from policy.catalog_values import (
    PG_CATALOG,
    Cast,
    CastContext,
    CastMethod,
    Column,
    ColumnId,
    Comparison,
    Expression,
    ExpressionOrigin,
    Flow,
    ForeignKey,
    Function,
    FunctionKind,
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

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")

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

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

_OUT_MODES: Final = frozenset("obt")
"""``pg_proc.proargmodes``: OUT, INOUT, TABLE."""


def names_by_oid(rows: Sequence[Row]) -> dict[int, QualifiedName]:
    """Rows that begin with an oid, a schema and a name."""
    return {row[0]: QualifiedName(sys.intern(row[1]), sys.intern(row[2])) for row in rows}


class Named(NamedTuple):
    """What objects are called, and the columns of the relations among them, by oid."""

    types: Mapping[int, QualifiedName]
    functions: Mapping[int, QualifiedName]
    columns: Mapping[int, tuple[Column, ...]]


class _Key(NamedTuple):
    """An object of the catalogs: the catalog that holds it, and its oid there."""

    catalog: str
    oid: int


class _Noting(Generic[_Asked, _Answer]):
    """A mapping that notes what it was asked and what it answered; None for what it does not hold."""

    def __init__(self, of: Mapping[_Asked, _Answer]) -> None:
        self._of = of
        self._noted: dict[_Asked, _Answer | None] = {}

    def get(self, asked: _Asked) -> _Answer | None:
        answer = self._noted[asked] = self._of.get(asked)
        return answer

    def taken(self) -> Mapping[_Asked, _Answer | None]:
        """What was noted since this was last called."""
        if not self._noted:
            return _NOTHING  # as mostly, and kept for each relation
        noted, self._noted = self._noted, {}
        return noted

    def holds(self, noted: Mapping[_Asked, _Answer | None]) -> bool:
        """Whether every question in ``noted`` has that answer here."""
        return all(self._of.get(asked) == answer for asked, answer in noted.items())


class Made(NamedTuple):
    """A relation, with the rows that it was made of and all that was looked up in making it.

    Where both are the same again, it would be made the same again. ``encoded`` is its text in a digest.
    """

    rows: tuple[Any, ...]
    looked_up: tuple[Mapping[Any, Any], ...]
    relation: Relation
    encoded: str


class Assembly:
    """Puts the rows of one reading together. Lives for one reading.

    ``rows`` by the names of ``catalog_source``; ``made`` are the relations of an earlier reading, by oid:
    those that would be made the same are taken from there.
    """

    def __init__(
        self, rows: Mapping[str, Sequence[Row]], named: Named, made: Mapping[int, Made] = MappingProxyType({})
    ) -> None:
        self.rows = rows
        self.type_names = named.types
        self.operator_functions = {row[0]: row[6] for row in rows["operators"]}
        self.aggregate_functions = {row[0]: row[1] for row in rows["aggregates"]}
        self._made = made
        self._used: dict[_Key, tuple[set[QualifiedName], set[QualifiedName]]] = {}
        self._read: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._computed: dict[int, set[int]] = defaultdict(set)
        """By the oid of a generated column's expression: the columns that it reads, all of one row."""
        self.function_names = _Noting(named.functions)
        self.relation_names = _Noting(names_by_oid(rows["relations"]))
        self.columns = _Noting(named.columns)
        self.used = _Noting(self._used)
        self.read = _Noting(self._read)
        self._column_ids: dict[ColumnId, ColumnId] = {}
        """Each column once: the flows of views repeat them."""
        self._sort_dependencies()
        self.made = self._make_relations()
        """The relations by oid, for the next reading."""

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
                if catalog == "pg_attrdef":
                    self._computed[oid].add(number)
                else:
                    self._read[oid][referenced_oid].add(number)
                continue
            functions, types = self._used.setdefault(_Key(catalog, oid), (set(), set()))
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
        return [name for oid in functions if (name := self.function_names.get(oid)) is not None]

    def _called_outside(self, functions: Sequence[int]) -> list[QualifiedName]:
        return [name for name in self._called(functions) if name.schema != PG_CATALOG]

    def _uses(self, *keys: _Key, functions: Sequence[QualifiedName] = ()) -> Uses:
        """What the dependencies of ``keys`` say, and ``functions``, in order."""
        called, types = set(functions), set[QualifiedName]()
        for key in keys:
            more_functions, more_types = self.used.get(key) or (set(), set())
            called |= more_functions
            types |= more_types
        return Uses(tuple(sorted(called)), tuple(sorted(types)))

    # Relations ----------------------------------------------------------------------------------------------

    @property
    def encoded(self) -> dict[int, str]:
        """What ``catalog_json.digest`` takes of that name."""
        return {id(made.relation): made.encoded for made in self.made.values()}

    def _make_relations(self) -> dict[int, Made]:
        indexes = self._grouped("indexes", key=1)
        foreign_keys = self._grouped("foreign_keys", key=1)
        triggers = self._grouped("triggers", key=0)
        rules = self._grouped("rules", key=1)
        children = self._grouped("inheritance", key=0)
        expressions = self._expressions()
        sources: tuple[_Noting[Any, Any], ...] = (
            self.function_names,
            self.relation_names,
            self.columns,
            self.used,
            self.read,
        )

        def make(row: Row) -> Relation:
            oid, schema, name, kind, owner, partition, row_security, forced, row_count = row
            child_names = [self.relation_names.get(child) for _, child in children.get(oid, ())]
            return Relation(
                sys.intern(schema),
                sys.intern(name),
                kind=RelationKind(kind),
                owner=sys.intern(owner),
                columns=self.columns.get(oid) or (),
                indexes=tuple(sorted((self._index(oid, row) for row in indexes.get(oid, ())), key=_by_name)),
                foreign_keys=tuple(sorted(self._foreign_keys(oid, foreign_keys.get(oid, ())), key=_by_name)),
                triggers=tuple(sorted(map(self._trigger, triggers.get(oid, ())), key=_by_name)),
                rules=tuple(sorted(map(self._rule, rules.get(oid, ())), key=_by_name)),
                expressions=tuple(expressions.get(oid, ())),
                children=tuple(sorted(child for child in child_names if child is not None)),
                partition=partition,
                row_security=row_security,
                row_security_forced=forced,
                rows=row_count,
            )

        def made_of(row: Row) -> Made:
            oid, row_count = row[0], row[-1]
            parts = (indexes, foreign_keys, triggers, children, expressions)
            rows = (
                row[:-1],
                *(part.get(oid) for part in parts),
                [_without_tree(rule) for rule in rules.get(oid, ())],
            )
            last = self._made.get(oid)
            if (
                last is not None
                and last.rows == rows
                and all(source.holds(noted) for source, noted in zip(sources, last.looked_up, strict=True))
            ):
                if last.relation.rows == row_count:
                    return last
                return last._replace(relation=replace(last.relation, rows=row_count))
            for source in sources:
                source.taken()
            relation = make(row)
            looked_up = tuple(source.taken() for source in sources)
            return Made(rows, looked_up, relation, catalog_json.encode_relation(relation))

        return {row[0]: made_of(row) for row in self.rows["relations"]}

    def _relations(self) -> list[Relation]:
        return [made.relation for made in self.made.values()]

    def _grouped(self, name: str, key: int) -> Mapping[int, list[Row]]:
        groups: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows[name]:
            groups[row[key]].append(row)
        return groups

    def _column_names(self, relation: int, numbers: Sequence[int]) -> tuple[str | None, ...]:
        """The columns' names, None for an expression (number 0)."""
        by_number = {column.number: column.name for column in self.columns.get(relation) or ()}
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
            target_name = self.relation_names.get(target)
            if target_name is not None and len(columns) == len(target_columns):
                found.append(ForeignKey(name, tuple(columns), target_name, tuple(target_columns)))
        return found

    def _trigger(self, row: Row) -> Trigger:
        _, name, function, bits, enabled = row
        return Trigger(
            name,
            self._function_name(function),
            tuple(event for bit, event in _TRIGGER_EVENTS if bits & bit),
            before=bool(bits & _TRIGGER_BEFORE),
            instead=bool(bits & _TRIGGER_INSTEAD),
            row=bool(bits & _TRIGGER_ROW),
            enabled=enabled,
        )

    def _rule(self, row: Row) -> RewriteRule:
        oid, relation, name, event, instead, whole_row, builtin_relations, functions, tree = row
        # A view's stored tree may still list the view itself, for OLD and NEW.
        read = self.read.get(oid) or {}
        columns = {other: numbers for other, numbers in read.items() if other != relation}
        # Of the server's own relations no dependency may say which columns are read: then all of them are.
        untold = {other for other in builtin_relations if other not in columns}
        columns |= {other: set() for other in untold}
        reads = [
            Read(
                other_name,
                tuple(sorted(c for c in self._column_names(other, sorted(numbers)) if c is not None)),
                whole=whole_row or other in untold,
            )
            for other, numbers in columns.items()
            if (other_name := self.relation_names.get(other)) is not None
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
        if flow is None or None in named.values() or len(flow.outputs) != len(self.columns.get(view) or ()):
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
        known = self.columns.get(column.relation) or ()
        return tuple(
            self._column_ids.setdefault(found, found)
            for each in known
            if column.number in (0, each.number)
            for found in (ColumnId(*relation, each.name),)
        )

    def _expressions(self) -> Mapping[int, list[Expression]]:
        found: dict[int, list[Expression]] = defaultdict(list)
        for catalog, oid, relation, number, _ in self.rows["expression_owners"]:
            uses = self._uses(_Key(catalog, oid))
            read = self._computed.get(oid, ()) if catalog == "pg_attrdef" else ()
            if relation and (uses.functions or uses.types or read):
                column = self._column_names(relation, [number])[0] if number is not None else None
                reads = tuple(name for name in self._column_names(relation, sorted(read)) if name is not None)
                found[relation].append(Expression(_EXPRESSION_ORIGINS[catalog], column, uses, reads))
        for expressions in found.values():
            expressions.sort(key=lambda e: (e.origin, e.column or "", e.uses.functions, e.uses.types))
        return found

    # Functions, operators, casts, types ---------------------------------------------------------------------

    def _function_name(self, oid: int) -> QualifiedName:
        """Raises KeyError where it is not among the rows: then they are not of one reading."""
        name = self.function_names.get(oid)
        if name is None:
            raise KeyError(oid)
        return name

    def _functions(self) -> list[Function]:
        return [self._function(row) for row in self.rows["functions"]]

    def _function(self, row: Row) -> Function:
        (oid, _, _, kind, volatility, definer, language, owner, arguments, result, returns_set, defaults) = (
            row[:12]
        )
        variadic, all_types, modes, names = row[12:]
        return Function(
            *self._function_name(oid),
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
                self._function_name(function),
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


def _without_tree(rule: Row) -> Row:
    """A row of RULES with a hash in the place of the stored query: kept from one reading to the next."""
    *others, tree = rule
    return (*others, None if tree is None else hashlib.sha256(tree.encode()).digest())


def _by_name(item: Index | ForeignKey | Trigger | RewriteRule) -> str:
    return item.name


def _operator_order(operator: Operator) -> tuple[str, str, QualifiedName, QualifiedName]:
    return operator.schema, operator.symbol, operator.left or QualifiedName("", ""), operator.right
