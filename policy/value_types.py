"""Which types the values of a statement can have.

Owns what is certain of an operand's type once a catalog says what its column or cast is, which user-defined
types can be present in a statement at all, and whether a value of one type can stand where another is wanted
(func_select_candidate and can_coerce_type in parse_func.c and parse_coerce.c, as far as they are certain).
Where anything is in doubt, the answer is that it can. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from policy import builtin
from policy.builtin_symbols import TYPES
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.catalog_values import PG_CATALOG, CastContext, Function, Relation, Type, TypeKind
from policy.facts import ColumnRef, Facts, Operand, OperandKind, TypeRef
from policy.names import QualifiedName
from policy.resolve import Answer
from policy.resolve_scope import NOTHING, Reads
from policy.value_origins import Origins

TEXT: Final = QualifiedName(PG_CATALOG, "text")

_CATEGORIES: Final[Mapping[str, str]] = {
    "N": "int2 int4 int8 float4 float8 numeric money oid regclass regproc regtype",
    "S": "text varchar bpchar name",
    "B": "bool",
    "D": "date time timetz timestamp timestamptz",
    "T": "interval",
    "I": "inet cidr",
    "V": "bit varbit",
    "R": "int4range int8range numrange tsrange tstzrange daterange",
    "uuid": "uuid",
    "json": "json",
    "jsonb": "jsonb",
    "bytea": "bytea",
    "xml": "xml",
    "tsvector": "tsvector",
    "tsquery": "tsquery",
}
"""pg_type.typcategory of common types; those of category U have no implicit cast to any other type."""
_CATEGORY: Final = {
    QualifiedName(PG_CATALOG, name): category
    for category, names in _CATEGORIES.items()
    for name in names.split()
}
_ACROSS: Final = frozenset({("S", "regclass"), ("D", "interval")})
"""The server's implicit casts from one category to a type of another (pg_cast.dat)."""
_STRINGS: Final = frozenset(name for name, category in _CATEGORY.items() if category == "S")

_BOOL: Final = QualifiedName(PG_CATALOG, "bool")
_NUMBERS: Final = tuple(
    QualifiedName(PG_CATALOG, name)
    for name in ("int2", "int4", "int8", "numeric", "float4", "float8", "money")
)
_RECKONING: Final = frozenset({"+", "-", "*", "/", "%"})
_COMPARING: Final = frozenset(
    {"=", "<>", "!=", "<", ">", "<=", ">=", "~~", "!~~", "~~*", "!~~*", "~", "!~", "~*"}
)
"""Operators of pg_catalog that give a boolean whatever they are given; ``~`` does so with two sides."""
_WITH_TEXT_UNLIKE: Final = frozenset({"jsonb", "tsvector", "tsquery", "V", "bytea"})
"""What ``||`` makes something else of."""
_UNTOLD: Final = QualifiedName("", "")
_OF_TIME: Final = frozenset({"N", "D", "T"})
_NUMBERS_AND_TIMES: Final = tuple(name for name, category in _CATEGORY.items() if category in _OF_TIME)
_GIVING_ALWAYS: Final = {**dict.fromkeys(_COMPARING, (_BOOL,)), "->>": (TEXT,), "#>>": (TEXT,)}
_GIVING_JSON: Final = frozenset({"->", "#>"})
_JSON_TYPES: Final = tuple(QualifiedName(PG_CATALOG, name) for name in ("json", "jsonb"))
_LIKE_THEIR_ARGUMENT: Final = frozenset({"max", "min"})
"""Functions whose many overloads each return what they are given."""
_OF_NO_CERTAIN_TYPE: Final = frozenset({"record", "internal", "cstring", "void", "trigger"})


def type_named(name: str, schema: str | None, names: CatalogNames) -> tuple[QualifiedName, ...]:
    """The types that a written name may mean: pg_catalog's first, as its search comes first."""
    if schema is not None:
        found = QualifiedName(schema, name)
        return (found,) if schema == PG_CATALOG or names.catalog.type(schema, name) is not None else ()
    if _is_builtin_type(name):
        return (QualifiedName(PG_CATALOG, name),)
    return tuple(
        QualifiedName(each, name) for each in names.schemas if names.catalog.type(each, name) is not None
    )


def _is_builtin_type(name: str) -> bool:
    return name in TYPES or (name.startswith("_") and name[1:] in TYPES)


class ValueTypes:
    """The types of one statement's values."""

    def __init__(self, facts: Facts, names: CatalogNames) -> None:
        self._facts = facts
        self._names = names
        self._catalog = names.catalog
        self._columns: tuple[Mapping[int, QualifiedName], Mapping[int, ColumnRef]] | None = None
        self._origins = Origins(facts, names, self._possible)
        self._present: frozenset[QualifiedName] | None = None

    # What is certain of one value -----------------------------------------------------------------------

    def certain(self, operand: Operand) -> QualifiedName | None:
        """The type that ``operand`` surely has, None where it may have another."""
        found = self._possible(operand)
        return found[0] if len(found) == 1 else None

    def _possible(self, operand: Operand) -> tuple[QualifiedName, ...]:
        """The types that ``operand`` can have; empty where there is no telling."""
        reader = _READERS.get(operand.kind)
        return () if reader is None else reader(self, operand)

    def _of_column(self, operand: Operand) -> tuple[QualifiedName, ...]:
        if operand.position is None:
            return self._of_using(operand.name)
        columns, inner = self._column_types()
        known = columns.get(operand.position)
        if known is not None:
            return (known,)
        ref = inner.get(operand.position)
        return () if ref is None else self._origins.of(ref)

    def _of_using(self, name: str | None) -> tuple[QualifiedName, ...]:
        """What columns that some USING merges by that name are, where all are relations' own."""
        found: dict[QualifiedName, None] = {}
        for answer in self._names.resolve(self._facts).columns:
            ref = answer.ref
            if ref.clause != "using" or ref.name != name or ref.query is None:
                continue
            sources = self._facts.queries[ref.query].sources
            if answer.answer is not Answer.RESOLVED or any(source.relation is None for source in sources):
                return ()
            for read in answer.reads:
                relation = self._catalog.relation(read.schema, read.relation)
                column = relation.column(read.column or "") if relation is not None else None
                if column is None:
                    return ()
                found[column.type] = None
        return tuple(found)

    def _of_cast(self, operand: Operand) -> tuple[QualifiedName, ...]:
        return type_named(operand.name or "", operand.schema, self._names)

    def _of_operation(self, operand: Operand) -> tuple[QualifiedName, ...]:
        """What the built-in operator gives, where it surely is one."""
        symbol, sides = operand.name or "", operand.sides
        if operand.schema not in (None, PG_CATALOG) or any(
            found.schema != PG_CATALOG for found in self._catalog.operators(symbol)
        ):
            return ()
        if symbol in _GIVING_ALWAYS and len(sides) == 2:
            return _GIVING_ALWAYS[symbol]
        if symbol in _GIVING_JSON and len(sides) == 2:
            of = self._possible(sides[0])
            return of if set(of) <= set(_JSON_TYPES) else ()
        typed = [side for side in sides if side.kind is not OperandKind.UNTYPED]
        kinds = {_CATEGORY.get(each) for side in typed for each in self._possible(side) or (_UNTOLD,)}
        if not kinds or None in kinds:
            return ()
        if symbol in _RECKONING and kinds <= _OF_TIME:
            return _NUMBERS if kinds == {"N"} else _NUMBERS_AND_TIMES
        return (TEXT,) if symbol == "||" and "S" in kinds and not kinds & _WITH_TEXT_UNLIKE else ()

    def _returned(self, operand: Operand) -> tuple[QualifiedName, ...]:
        name, schema = operand.name or "", operand.schema
        if schema not in (None, PG_CATALOG):
            return ()
        others = () if schema is not None else self._names.schemas
        if any(self._catalog.functions(each, name) for each in others if each != PG_CATALOG):
            return ()
        results = builtin.results(name)
        if not _OF_NO_CERTAIN_TYPE.isdisjoint(results):
            return self._common(operand) if name in _LIKE_THEIR_ARGUMENT else ()
        plain = tuple(QualifiedName(PG_CATALOG, each) for each in results if not each.startswith("any"))
        if len(plain) == len(results):
            return plain
        like_arguments = self._common(operand)
        return (*plain, *like_arguments) if like_arguments else ()

    def _common(self, operand: Operand) -> tuple[QualifiedName, ...]:
        """Every type of its sides' categories, one of which they come to (select_common_type)."""
        found: set[str] = set()
        for side in operand.sides:
            if side.kind is not OperandKind.UNTYPED:
                categories = {_CATEGORY.get(each) for each in self._possible(side) or (_UNTOLD,)}
                if not categories.isdisjoint((None, "R")):
                    return ()
                found.update(filter(None, categories))
        return tuple(name for name, category in _CATEGORY.items() if category in found)

    def _element(self, operand: Operand) -> tuple[QualifiedName, ...]:
        """What a subscript takes of an array, or of jsonb."""
        found = self._possible(operand.sides[0])
        arrays = [each for each in found if each.schema == PG_CATALOG and each.name.startswith("_")]
        if found == (_JSON_TYPES[1],):
            return found
        if not arrays or len(arrays) < len(found):
            return ()
        return tuple(QualifiedName(PG_CATALOG, each.name[1:]) for each in arrays)

    def _column_types(self) -> tuple[Mapping[int, QualifiedName], Mapping[int, ColumnRef]]:
        """By the position of a column's mention: its type, where it surely is one column of a relation, and
        the mention itself where it is no relation's."""
        if self._columns is None:
            columns: dict[int, QualifiedName] = {}
            inner: dict[int, ColumnRef] = {}
            for answer in self._names.resolve(self._facts).columns:
                ref = answer.ref
                if answer.answer is not Answer.RESOLVED or ref.fields or ref.position is None:
                    continue
                reads = answer.reads or self._starred(ref)
                if not reads:
                    inner[ref.position] = ref
                if len(reads) != 1:
                    continue
                (read,) = reads
                relation = self._catalog.relation(read.schema, read.relation)
                column = relation.column(read.column or "") if relation is not None else None
                if column is not None and column.name == ref.name:
                    columns[ref.position] = column.type
            self._columns = columns, inner
        return self._columns

    def _starred(self, ref: ColumnRef) -> Reads:
        """What an item of ORDER BY or GROUP BY reads that names an output which a star gives."""
        if not ref.alone or ref.name is None or ref.query is None or ref.qualifier:
            return NOTHING
        level = self._names.resolve(self._facts).scopes.level(ref.query)
        outputs = level.query.outputs
        if not any(o.star for o in outputs) or any(o.name == ref.name for o in outputs):
            return NOTHING
        return level.find(ref.name, in_part=False) or NOTHING

    # What may be present --------------------------------------------------------------------------------

    @property
    def present(self) -> frozenset[QualifiedName]:
        """Every type outside pg_catalog that a value in the statement may have."""
        if self._present is None:
            found = {part for source in self._sources() for part in made_of(source, self._catalog)}
            self._present = frozenset(name for name in found if name.schema != PG_CATALOG)
        return self._present

    def _sources(self) -> Iterator[QualifiedName]:
        for relation in self._relations():
            yield relation.qualified
            yield from (column.type for column in relation.columns if column.type.schema != PG_CATALOG)
        for ref in self._facts.types:
            yield from self._of_reference(ref)
        for function in self._facts.functions:
            for schema in (function.schema,) if function.schema is not None else self._names.schemas:
                yield from _results(self._catalog.functions(schema, function.name))
        for operator in self._facts.operators:
            yield from (found.result for found in self._catalog.operators(operator.symbol))

    def _relations(self) -> Iterator[Relation]:
        """Every relation mentioned; where one is not in the snapshot, as temporary ones are not, all."""
        for answer in self._names.resolve(self._facts).relations:
            if answer.relations:
                yield from answer.relations
            else:
                yield from self._catalog.content.relations

    def _of_reference(self, ref: TypeRef) -> tuple[QualifiedName, ...]:
        return type_named(ref.name, ref.schema, self._names)

    # Whether one may stand for another ------------------------------------------------------------------

    def may_be(self, operand: Operand, wanted: QualifiedName) -> bool:
        """Whether a value like ``operand`` could be taken where a parameter is of type ``wanted``."""
        possible = self._possible(operand)
        if possible:
            return any(may_become(known, wanted, self._catalog) for known in possible)
        if operand.kind in (OperandKind.PARAMETER, OperandKind.UNTYPED):
            return True
        return self.may_occur(wanted)

    def may_hold(self, operand: Operand, wanted: QualifiedName) -> bool:
        """Whether values like ``operand`` could be of type ``wanted``, or made of such."""
        possible = self._possible(operand)
        if possible:
            return any(wanted in made_of(known, self._catalog) for known in possible)
        if operand.kind in (OperandKind.PARAMETER, OperandKind.UNTYPED):
            return False
        return self.may_occur(wanted)

    def may_occur(self, wanted: QualifiedName) -> bool:
        """Whether some value of the statement, of a type that is not known, could be taken as ``wanted``."""
        if wanted.schema == PG_CATALOG or wanted in self.present:
            return True
        known = self._catalog.type(*wanted)
        if known is None:
            return True
        if known.kind is TypeKind.DOMAIN and known.base is not None:
            return self.may_occur(known.base)
        if known.element is not None:
            return self.may_occur(known.element) and known.element.schema != PG_CATALOG
        return any(
            cast.context is CastContext.IMPLICIT
            and (cast.source.schema == PG_CATALOG or cast.source in self.present)
            for cast in self._catalog.casts(wanted)
        )


_READERS: Final[Mapping[OperandKind, Callable[[ValueTypes, Operand], tuple[QualifiedName, ...]]]] = {
    OperandKind.COLUMN: ValueTypes._of_column,
    OperandKind.TYPED: ValueTypes._of_cast,
    OperandKind.CALL: ValueTypes._returned,
    OperandKind.OPERATION: ValueTypes._of_operation,
    OperandKind.COMMON: ValueTypes._common,
    OperandKind.ELEMENT: ValueTypes._element,
}


def parts(name: QualifiedName, catalog: Catalog) -> Iterator[QualifiedName]:
    """The types that values of type ``name`` are made of."""
    known = catalog.type(*name)
    if known is None:
        return
    yield from (part for part in (known.element, known.base) if part is not None)
    relation = catalog.relation(*known.relation) if known.relation is not None else None
    if relation is not None:
        yield from (column.type for column in relation.columns)


def made_of(name: QualifiedName, catalog: Catalog) -> frozenset[QualifiedName]:
    """``name`` and, at every depth, its elements, bases and members."""
    seen: set[QualifiedName] = set()
    waiting = [name]
    while waiting:
        now = waiting.pop()
        if now not in seen:
            seen.add(now)
            waiting.extend(parts(now, catalog))
    return frozenset(seen)


def _results(functions: Iterable[Function]) -> Iterator[QualifiedName]:
    for function in functions:
        yield function.result
        yield from (column.type for column in function.columns)


def may_become(source: QualifiedName, target: QualifiedName, catalog: Catalog) -> bool:
    """Whether a value of type ``source`` could be taken as ``target`` without a cast being written."""
    if source == target or _takes_any(target):
        return True
    if any(c.source == source and c.context is CastContext.IMPLICIT for c in catalog.casts(target)):
        return True
    below, beneath = _base_of(target, catalog), _base_of(source, catalog)
    if below is not None or beneath is not None:
        return may_become(beneath or source, below or target, catalog)
    if source in _CATEGORY:
        return _becomes(source, target)
    if source.schema == PG_CATALOG and _is_builtin_type(source.name) and not _takes_any(source):
        # A cast to somebody's own type would be among the snapshot's; elements of arrays have theirs.
        known = catalog.type(*target)
        return target.schema == PG_CATALOG or known is None or known.element is not None
    known = catalog.type(*source)
    return known is None or known.kind in (TypeKind.COMPOSITE, TypeKind.PSEUDO)


def _becomes(source: QualifiedName, target: QualifiedName) -> bool:
    """For a ``source`` whose casts are known here, and no domain."""
    category = _CATEGORY[source]
    if target in _CATEGORY:
        return category == _CATEGORY[target] or (category, target.name) in _ACROSS
    # No built-in type becomes one of somebody's own, or an array, unless a cast says so.
    return target.schema == PG_CATALOG and not target.name.startswith("_")


def _takes_any(target: QualifiedName) -> bool:
    return target.schema == PG_CATALOG and (
        target.name.startswith("any") or target.name in ("record", "_record", "internal", "cstring")
    )


def _base_of(name: QualifiedName, catalog: Catalog) -> QualifiedName | None:
    known: Type | None = catalog.type(*name)
    return known.base if known is not None and known.kind is TypeKind.DOMAIN else None


def is_string(name: QualifiedName) -> bool:
    """Whether it is one of the server's own string types, which an untyped literal prefers."""
    return name in _STRINGS
