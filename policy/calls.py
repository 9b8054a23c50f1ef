"""What running a statement may call, as far as a catalog tells.

Owns the way from what a statement writes (calls, ``x.f``, operators, casts, views, written columns) to the
functions behind it. Resolution is conservative: whatever PostgreSQL could choose is there; only what it
surely would not choose is left out (another number of arguments, arguments of types that cannot fit, a
built-in that fits exactly). Knows no policy: ``rules.function_not_allowed`` judges what is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from policy import builtin
from policy.builtin_symbols import INFORMATION_SCHEMA_TYPES, OPERATORS, TYPES
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import (
    PG_CATALOG,
    CastContext,
    ColumnId,
    Function,
    FunctionKind,
    Operator,
    RelationKind,
    Uses,
)
from policy.facts import (
    CallKind,
    Facts,
    FunctionRef,
    Operand,
    OperandKind,
    OperatorRef,
    TypeRef,
    Use,
)
from policy.model import StatementClass
from policy.names import QualifiedName
from policy.resolve import Answer, ColumnAnswer
from policy.value_types import ValueTypes, is_string, made_of, type_named

_JSON: Final = QualifiedName(PG_CATALOG, "json")
_UNTOLD: Final = Operand(OperandKind.OTHER)
COMPARING_OPERATORS: Final = frozenset(
    ("=", "<>", "!=", "<", ">", "<=", ">=", "@>", "<@", "&&", "<<", ">>", "&<", "&>", "-|-", "+", "*", "-")
)
"""Those of btree and hash classes, and of arrays and ranges, which compare what they are made of."""
_RANGES: Final = ("range", "multirange")
COMPARING_FUNCTIONS: Final = frozenset(
    {
        *("array_position", "array_positions", "array_remove", "array_replace", "array_sort", "width_bucket"),
        *("max", "min", "mode", "percentile_disc", "range_merge", "range_agg"),
        *("rank", "dense_rank", "percent_rank", "cume_dist", "range_intersect_agg", "multirange"),
        # Those behind operators and operator classes, called by name.
        *("btarraycmp", "arraycontains", "arraycontained", "arrayoverlap", "btrecordcmp"),
        *(f"{of}_{how}" for of in ("array", "record") for how in ("larger", "smaller")),
        *(
            f"{of}_{how}"
            for of in ("array", "record", "range", "multirange")
            for how in ("eq", "ne", "lt", "le", "gt", "ge")
        ),
        *(f"hash_{of}{more}" for of in ("array", "record", *_RANGES) for more in ("", "_extended")),
        *(f"elem_contained_by_{of}" for of in _RANGES),
        *(
            f"{of}_{how}"
            for of in _RANGES
            for how in ("cmp", "contains_elem", "intersect", "minus", "union", "intersect_agg_transfn")
        ),
        *(
            "_".join((of, how, *other))
            for of in _RANGES
            for how in (
                *("adjacent", "after", "before", "contained_by", "contains"),
                *("overlaps", "overleft", "overright"),
            )
            for other in ((), ("range",), ("multirange",))
        ),
    }
)
"""Functions of pg_catalog that take values of any type and compare them."""


class Via(StrEnum):
    """How a function comes to be called; ends "… is not allowed: it is called by"."""

    CALL = "call"
    DEFINITION = "definition"
    OPERATOR = "operator"
    CAST = "cast"
    AGGREGATE = "aggregate"
    COMPARISON = "comparison"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Call:
    """One function that may be called. ``overload`` is the one of the snapshot, None for built-ins and where
    the road there names functions only. ``spelt`` is what the statement says: the operator, type or view."""

    name: QualifiedName
    via: Via
    spelt: str
    overload: Function | None = None
    arguments: int | None = None
    position: int | None = None
    attribute: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """A function, operator or type that no schema of the snapshot holds."""

    ref: FunctionRef | OperatorRef | TypeRef
    spelt: str

    @property
    def position(self) -> int | None:
        return self.ref.position


class RowType(NamedTuple):
    """A relation whose row type, or a type that is made of it, the statement names: the relation's columns
    are told by that, and no value of it."""

    relation: QualifiedName
    position: int | None


class Found(NamedTuple):
    """All that a statement may call, what it would call that does not exist, and the row types it names."""

    calls: tuple[Call, ...]
    missing: tuple[Missing, ...]
    rows: tuple[RowType, ...]


def find_calls(facts: Facts, names: CatalogNames) -> Found:
    """What running the statement ``facts`` may call."""
    finder = _Calls(facts, names)
    calls = tuple(finder.all())
    return Found(calls, tuple(finder.missing), tuple(dict.fromkeys(finder.rows)))


class _Calls:
    """The search through one statement. ``missing`` and ``rows`` are complete once ``all`` has been read to
    its end."""

    def __init__(self, facts: Facts, names: CatalogNames) -> None:
        self._facts = facts
        self._names = names
        self._catalog: Catalog = names.catalog
        self._types = ValueTypes(facts, names)
        self.missing: list[Missing] = []
        self.rows: list[RowType] = []

    def all(self) -> Iterator[Call]:
        called = self._called()
        for function in called:
            yield from (self._attribute if function.kind is CallKind.ATTRIBUTE else self._call)(function)
        for operator in self._facts.operators:
            yield from self._operator(operator)
        defines = StatementClass.DDL in self._facts.classes
        for type_ref in self._facts.types:
            # Outside a definition, a type is named for values to be read into: PREPARE p (t).
            if type_ref.cast or not defines:
                yield from self._cast(type_ref)
            else:
                self._note_rows(type_named(type_ref.name, type_ref.schema, self._names), type_ref.position)
        yield from self._unwritten_casts(called)
        yield from self._comparisons(called)
        yield from self._views()

    def _called(self) -> list[FunctionRef]:
        """The places that call a function, or may: ``x.f`` is a column where x has one of that name."""
        functions = self._facts.functions
        if not any(ref.kind is CallKind.ATTRIBUTE for ref in functions):
            return list(functions)
        columns = {answer.ref.position: answer for answer in self._names.resolve(self._facts).columns}
        return [
            ref
            for ref in functions
            if ref.kind is not CallKind.ATTRIBUTE or not _is_column(columns.get(ref.position), ref.name)
        ]

    # f(x) -----------------------------------------------------------------------------------------------

    def _call(self, ref: FunctionRef) -> Iterator[Call]:
        schemas = (ref.schema,) if ref.schema is not None else self._names.schemas
        found = [
            overload
            for schema in schemas
            for overload in self._catalog.functions(schema, ref.name)
            if not _is_own(overload)
        ]
        system = [schema for schema in schemas if schema in builtin.SYSTEM_SCHEMAS]
        builtins = [schema for schema in system if builtin.is_builtin(ref.name, schema)]
        if not found and not builtins:
            yield from self._type_as_function(ref)
            return
        if ref.kind is CallKind.CALL and ref.arguments == 1:
            # A type of that name is cast to where no function fits exactly (func_get_detail in parse_func.c).
            yield from self._cast_by_name(ref.schema, ref)
        if ref.kind is CallKind.NAMED:
            reachable = found
        else:
            reachable = [f for f in found if _takes(f, ref) and self._may_mean(f, ref)]
        if (
            not reachable
            or ref.kind is CallKind.NAMED
            or any(builtin.accepts(ref.name, ref.arguments, schema) for schema in builtins)
        ):
            # Where nothing fits, the server refuses; until then the built-in's name stands for it.
            for schema in builtins:
                yield self._direct(QualifiedName(schema, ref.name), ref)
        for overload in reachable if (reachable or builtins) else found:
            yield self._direct(overload.qualified, ref, overload)
            if overload.kind is not FunctionKind.FUNCTION:
                yield from self._support(overload, ref)

    def _type_as_function(self, ref: FunctionRef) -> Iterator[Call]:
        """``t(x)`` for a type t is a cast (func_get_detail in parse_func.c)."""
        if ref.arguments == 1 and type_named(ref.name, ref.schema, self._names):
            yield from self._cast(TypeRef(ref.name, ref.schema, cast=True, position=ref.position))
        else:
            self.missing.append(Missing(ref, _spelt(ref.name, ref.schema)))

    def _direct(self, name: QualifiedName, ref: FunctionRef, overload: Function | None = None) -> Call:
        named = ref.kind is CallKind.NAMED
        return Call(
            name,
            Via.DEFINITION if named else Via.CALL,
            str(name),
            overload,
            None if named else ref.arguments,
            ref.position,
            attribute=ref.kind is CallKind.ATTRIBUTE,
        )

    def _support(self, aggregate: Function, ref: FunctionRef) -> Iterator[Call]:
        for name in sorted(self._catalog.closure(aggregate.uses)):
            if name.schema != PG_CATALOG:
                yield Call(name, Via.AGGREGATE, str(aggregate.qualified), position=ref.position)

    def _may_mean(self, overload: Function, ref: FunctionRef) -> bool:
        """Whether the server could choose ``overload`` for the arguments of ``ref``."""
        if not ref.operands:
            return True
        wanted = overload.arguments
        if overload.variadic:
            return True
        pairs = list(zip(ref.operands, wanted, strict=False))
        if not all(self._types.may_be(operand, parameter) for operand, parameter in pairs):
            return False
        if ref.schema is not None:
            return True
        rivals = [
            own.arguments
            for own in self._catalog.functions(PG_CATALOG, ref.name)
            if _is_own(own) and own.accepts(ref.arguments)
        ]
        return not any(self._beats(rival, wanted, ref.operands) for rival in rivals)

    def _beats(
        self, own: Sequence[QualifiedName], other: Sequence[QualifiedName], operands: Sequence[Operand]
    ) -> bool:
        """Whether a built-in with parameters ``own`` is surely chosen over one with ``other``.

        It is where it fits every operand of certain type exactly, literals may be strings, and ``other``
        fits less well (func_select_candidate).
        """
        worse = False
        for operand, mine, theirs in zip(operands, own, other, strict=False):
            if operand.kind is OperandKind.UNTYPED:
                if not is_string(mine):
                    return False
                worse = worse or (theirs.schema == PG_CATALOG and not is_string(theirs))
                worse = worse or (mine.name == "text" and theirs != mine)
            elif self._types.certain(operand) != mine:
                return False
            else:
                worse = worse or theirs != mine
        # Equal parameters: pg_catalog is searched first.
        return worse or tuple(own[: len(operands)]) == tuple(other[: len(operands)])

    # x.f ------------------------------------------------------------------------------------------------

    def _attribute(self, ref: FunctionRef) -> Iterator[Call]:
        """``x.f``, a call of f with x."""
        for schema in self._names.schemas:
            for overload in self._catalog.functions(schema, ref.name):
                if not _is_own(overload) and overload.accepts(1):
                    yield self._direct(overload.qualified, ref, overload)
        if builtin.accepts(ref.name, 1):
            yield self._direct(QualifiedName(PG_CATALOG, ref.name), ref)
        # (x).t is a cast to t as well, where t is a type: a domain's CHECK runs, without any cast function. A
        # row type is not cast to so.
        yield from self._cast_by_name(None, ref)

    def _cast_by_name(self, schema: str | None, ref: FunctionRef) -> Iterator[Call]:
        """What a cast runs that is written as a call, where there is a type of that name."""
        if any(self._may_run(named) for named in type_named(ref.name, schema, self._names)):
            operand = ref.operands[0] if ref.operands else None
            cast = TypeRef(ref.name, schema, cast=True, position=ref.position, operand=operand)
            yield from self._cast(cast, tells_rows=False)

    def _may_run(self, named: QualifiedName) -> bool:
        """Whether a cast to the type may run a function that is not PostgreSQL's own."""
        casts = self._catalog.casts(named)
        return named.schema != PG_CATALOG or any(cast.function is not None for cast in casts)

    # Operators ------------------------------------------------------------------------------------------

    def _operator(self, ref: OperatorRef) -> Iterator[Call]:
        schemas = (ref.schema,) if ref.schema is not None else self._names.schemas
        held = self._catalog.operators(ref.symbol)
        others = [found for found in held if found.schema in schemas and not _is_own_operator(found)]
        own = PG_CATALOG in schemas and ref.symbol in OPERATORS
        if not others:
            if not own:
                self.missing.append(Missing(ref, _operator_spelt(ref)))
            return
        rivals = [found for found in held if _is_own_operator(found)] if own and ref.schema is None else []
        for operator in others:
            if self._may_mean_operator(operator, ref, rivals):
                for name in (operator.function, *operator.estimators):
                    if name.schema != PG_CATALOG:
                        yield Call(name, Via.OPERATOR, _operator_spelt(ref), position=ref.position)

    def _may_mean_operator(self, operator: Operator, ref: OperatorRef, rivals: Sequence[Operator]) -> bool:
        if ref.left != (operator.left is not None) or not ref.right:
            return False
        wanted = _sides(operator)
        if len(ref.operands) != len(wanted):
            return all(self._types.may_occur(side) for side in wanted)
        if not all(
            self._types.may_be(operand, side) for operand, side in zip(ref.operands, wanted, strict=True)
        ):
            return False
        return not any(
            len(_sides(rival)) == len(wanted) and self._beats_operator(_sides(rival), wanted, ref.operands)
            for rival in rivals
        )

    def _beats_operator(
        self, own: Sequence[QualifiedName], other: Sequence[QualifiedName], operands: Sequence[Operand]
    ) -> bool:
        known = [self._types.certain(operand) for operand in operands]
        untyped = [operand.kind is OperandKind.UNTYPED for operand in operands]
        if any(untyped) and not all(untyped):
            # A literal is taken for the other side's type first (binary_oper_exact in parse_oper.c).
            same = next((each for each in known if each is not None), None)
            if same is not None and all(side == same for side in own):
                return True
        return self._beats(own, other, operands)

    # Casts ----------------------------------------------------------------------------------------------

    def _cast(self, ref: TypeRef, *, tells_rows: bool = True) -> Iterator[Call]:
        if ref.schema == builtin.INFORMATION_SCHEMA and ref.name in INFORMATION_SCHEMA_TYPES:
            return
        spelt = _spelt(ref.name, ref.schema)
        found = type_named(ref.name, ref.schema, self._names)
        if not found or (ref.schema == PG_CATALOG and not _is_known_type(ref.name, self._catalog)):
            self.missing.append(Missing(ref, spelt))
            return
        if tells_rows:
            self._note_rows(found, ref.position)
        for target in found:
            for name in sorted(self._run_by_cast(target, ref)):
                yield Call(name, Via.CAST, spelt, position=ref.position)

    def _note_rows(self, types: Iterable[QualifiedName], position: int | None) -> None:
        for named in types:
            for part in made_of(named, self._catalog) if named.schema not in builtin.SYSTEM_SCHEMAS else ():
                relation = self._catalog.relation(*part)
                if relation is not None and relation.kind is not RelationKind.COMPOSITE:
                    self.rows.append(RowType(part, position))

    def _run_by_cast(self, target: QualifiedName, ref: TypeRef) -> set[QualifiedName]:
        """The functions outside pg_catalog that the cast ``ref`` to ``target`` may run."""
        called: set[QualifiedName] = set()
        if target.schema != PG_CATALOG:
            called.update(self._catalog.closure(Uses(types=(target,))))
        if not ref.literal:
            called |= self._cast_functions(target, frozenset(CastContext), ref.operand)
        return {name for name in called if name.schema != PG_CATALOG}

    def _cast_functions(
        self, target: QualifiedName, contexts: frozenset[CastContext], of: Operand | None = None
    ) -> set[QualifiedName]:
        """Of the casts to ``target``, and to what it is made of: elements and members are cast one by one."""
        return {
            cast.function
            for part in made_of(target, self._catalog)
            for cast in self._catalog.casts(part)
            if cast.function is not None
            and cast.context in contexts
            and (self._types.may_occur(cast.source) if of is None else self._may_be_cast(of, cast.source))
        }

    def _may_be_cast(self, operand: Operand, source: QualifiedName) -> bool:
        return operand.kind is OperandKind.PARAMETER or self._types.may_hold(operand, source)

    def _unwritten_casts(self, called: Sequence[FunctionRef]) -> Iterator[Call]:
        """Casts that the server adds: to the columns written, to what functions take, and to json."""
        assigned = frozenset({CastContext.IMPLICIT, CastContext.ASSIGNMENT})
        for target in sorted(self._written_types()):
            for name in sorted(self._cast_functions(target, assigned)):
                if name.schema != PG_CATALOG:
                    yield Call(name, Via.CAST, str(target))
        if any(cast.context is CastContext.IMPLICIT for cast in self._catalog.content.casts):
            yield from self._implicit(called)
        if self._facts.makes_json or any(ref.name in builtin.CASTS_TO_JSON for ref in self._facts.functions):
            for name in sorted(self._cast_functions(_JSON, frozenset(CastContext))):
                if name.schema != PG_CATALOG:
                    yield Call(name, Via.CAST, "json")

    def _written_types(self) -> set[QualifiedName]:
        found: set[QualifiedName] = set()
        if not self._catalog.content.casts:
            return found
        answers = self._names.resolve(self._facts).relations
        for write in self._facts.writes:
            if write.action is StatementClass.DELETE or write.source == "copy":
                continue
            for relation in answers[write.target].relations:
                cast_to = set(write.assigned)
                if write.action is StatementClass.INSERT:
                    names = write.columns or tuple(column.name for column in relation.columns)
                    cast_to.update(
                        name for at, name in enumerate(names) if write.typed is None or at in write.typed
                    )
                found.update(column.type for column in relation.columns if column.name in cast_to)
        for answer in answers:
            if answer.ref.use in (Use.INSERT, Use.UPDATE) and not self._facts.writes:
                found.update(column.type for relation in answer.relations for column in relation.columns)
        return found

    def _implicit(self, called: Sequence[FunctionRef]) -> Iterator[Call]:
        """User-defined implicit casts, which any argument or operand may bring about."""
        told = [ref.operands for ref in called if ref.arguments]
        told += [ref.operands for ref in self._facts.operators]
        operands = [operand for each in told for operand in each]
        untold = not all(told)
        for cast in self._catalog.content.casts:
            function = cast.function
            if cast.context is not CastContext.IMPLICIT or function is None or function.schema == PG_CATALOG:
                continue
            wanted = cast.target.schema == PG_CATALOG or cast.target in self._wanted()
            if not wanted or not self._types.may_occur(cast.source):
                continue
            if untold or any(self._is_or_may_be(operand, cast.source) for operand in operands):
                yield Call(function, Via.CAST, str(cast.target))

    def _is_or_may_be(self, operand: Operand, source: QualifiedName) -> bool:
        return operand.kind is not OperandKind.UNTYPED and self._types.may_be(operand, source)

    def _wanted(self) -> frozenset[QualifiedName]:
        """The types outside pg_catalog that functions and operators of the statement's names take."""
        taken = {
            parameter
            for ref in self._facts.functions
            for overload in self._catalog.functions_named(ref.name)
            for parameter in overload.arguments
        }
        for ref in self._facts.operators:
            for operator in self._catalog.operators(ref.symbol):
                taken.update(_sides(operator))
        return self._types.present | taken

    # Comparisons ----------------------------------------------------------------------------------------

    def _comparisons(self, called: Sequence[FunctionRef]) -> Iterator[Call]:
        """What the types' operator classes call where values are sorted, hashed or looked up in an index."""
        if not self._catalog.content.comparisons:
            return
        compared = dict.fromkeys(
            (
                *self._facts.compared,
                *(operand for ref in self._facts.operators for operand in self._compared_by(ref)),
                *(o for ref in called if ref.name in COMPARING_FUNCTIONS for o in ref.operands or (_UNTOLD,)),
            )
        )
        merged = {self._type_of(read) for read in self._names.resolve(self._facts).implicit}
        for comparison in self._catalog.content.comparisons:
            if comparison.type in merged or any(self._types.may_hold(o, comparison.type) for o in compared):
                for name in comparison.functions:
                    yield Call(name, Via.COMPARISON, str(comparison.type))

    def _compared_by(self, ref: OperatorRef) -> tuple[Operand, ...]:
        """Operands whose comparison functions an operator may bring about, whatever its own function is: an
        index on them, a hash of them, or as elements of what they are."""
        if ref.symbol in COMPARING_OPERATORS:
            return ref.operands or (_UNTOLD,)
        return ()

    def _type_of(self, column: ColumnId) -> QualifiedName | None:
        relation = self._catalog.relation(column.schema, column.relation)
        known = relation.column(column.column or "") if relation is not None else None
        return None if known is None else known.type

    # Views ----------------------------------------------------------------------------------------------

    def _views(self) -> Iterator[Call]:
        for answer in self._names.resolve(self._facts).relations:
            for relation in answer.relations:
                for name in sorted(self._catalog.functions_reached(relation)):
                    yield Call(name, Via.VIEW, str(relation.qualified), position=answer.ref.position)


def _is_column(answer: ColumnAnswer | None, name: str) -> bool:
    """Whether ``name`` is surely a column: ``answer``'s own, or the field that is taken of its row."""
    if answer is None:
        return False
    ref = answer.ref
    if ref.name == name and not ref.fields:
        return answer.answer is Answer.RESOLVED
    return ref.fields[:1] == (name,) and {read.column for read in answer.reads} == {name}


def _takes(overload: Function, ref: FunctionRef) -> bool:
    # The arguments of WITHIN GROUP count among an aggregate's own.
    return overload.kind is FunctionKind.AGGREGATE or overload.accepts(ref.arguments)


def _is_own(function: Function) -> bool:
    """Whether it came with the server; extensions may add to pg_catalog."""
    return function.schema in builtin.SYSTEM_SCHEMAS and builtin.is_builtin(function.name, function.schema)


def _is_own_operator(operator: Operator) -> bool:
    return operator.schema == PG_CATALOG and operator.function.schema == PG_CATALOG


def _sides(operator: Operator) -> tuple[QualifiedName, ...]:
    return (operator.right,) if operator.left is None else (operator.left, operator.right)


def _is_known_type(name: str, catalog: Catalog) -> bool:
    own = name in TYPES or (name.startswith("_") and name[1:] in TYPES)
    return own or catalog.type(PG_CATALOG, name) is not None


def _spelt(name: str, schema: str | None) -> str:
    return name if schema is None else f"{schema}.{name}"


def _operator_spelt(ref: OperatorRef) -> str:
    return ref.symbol if ref.schema is None else f"OPERATOR({ref.schema}.{ref.symbol})"
