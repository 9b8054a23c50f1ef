"""The condition under which a row of each catalog is shown: one table, one line a catalog.

Owns the list of the catalogs that ``catalogs: filtered`` opens beside those of no user's object (``COMMON``
in ``builtin_relations.txt``): what is neither there nor here is closed. ``visibility`` gives the conditions
on relations, columns and functions that the lines are made of. Every row of a catalog stands for an object,
and is shown if that object, the relation and the columns it belongs to, and whatever its definition names are
shown.

``MASKS`` are columns whose text may name what the row itself does not, and columns that hold more than
structure (``WITHHELD`` in ``builtin_relations.txt``): they are null where they may not be told.

Knows no statement and no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from policy.builtin import INFORMATION_SCHEMA, PG_CATALOG, WITHHELD
from policy.catalog_values import Column
from policy.names import QualifiedName
from policy.reg_types import REG_TYPES
from policy.visibility import (
    ALWAYS,
    NEVER,
    PG_ATTRDEF,
    PG_CLASS,
    PG_CONSTRAINT,
    PG_NAMESPACE,
    PG_POLICY,
    PG_PROC,
    PG_REWRITE,
    PG_STATISTIC_EXT,
    PG_TRIGGER,
    PG_TYPE,
    Visibility,
    all_of,
    any_of,
    apart,
    not_,
)

ROW: Final = "t"
"""The alias of the row that a condition is about."""
_FIRST_OF_USERS: Final = 16384
"""The first OID that is given to an object made after initdb: FirstNormalObjectId in access/transam.h."""

Condition = Callable[[Visibility], str]


def _always(_: Visibility) -> str:
    return ALWAYS


def _never(_: Visibility) -> str:
    return NEVER


def _row_of_class(v: Visibility) -> str:
    """Of pg_class itself: the row is at hand, and need not be looked up."""
    space = f"EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.oid = {ROW}.relnamespace AND {{}})"
    return space.format(v.is_class(ROW, "n"))


def _classes(column: str) -> Condition:
    return lambda v: f"{ROW}.{column} IN ({v.classes()})"


def _relations(column: str) -> Condition:
    return lambda v: f"{ROW}.{column} IN ({v.relations()})"


def _functions(*columns: str) -> Condition:
    return lambda v: all_of(*(v.is_function(f"{ROW}.{column}") for column in columns))


def _types(column: str) -> Condition:
    return lambda v: v.is_type(f"{ROW}.{column}")


def _in_schema(column: str) -> Condition:
    return lambda v: f"({ROW}.{column} = 0 OR {ROW}.{column} IN ({v.schemas}))"


def _named_schema(column: str) -> Condition:
    return lambda v: v.schema(f"{ROW}.{column}")


def _table(schema: str, name: str) -> Condition:
    return lambda v: v.table(f"{ROW}.{schema}", f"{ROW}.{name}")


def _any_class(schema: str, name: str) -> Condition:
    return lambda v: v.any_class(f"{ROW}.{schema}", f"{ROW}.{name}")


def _tables(*pairs: tuple[str, str]) -> Condition:
    return lambda v: all_of(*(v.table(f"{ROW}.{schema}", f"{ROW}.{name}") for schema, name in pairs))


def _column(schema: str, table: str, name: str) -> Condition:
    return lambda v: v.column(f"{ROW}.{schema}", f"{ROW}.{table}", f"{ROW}.{name}")


def _both(*conditions: Condition) -> Condition:
    return lambda v: all_of(*(condition(v) for condition in conditions))


def _object(class_id: str, oid: str, number: str | None) -> Condition:
    """Of an address: the OIDs of a catalog and of an object in it, and the number of a column of it."""

    def condition(v: Visibility) -> str:
        shown = (
            f"WHEN {PG_CLASS} THEN {v.is_any_class(f'{ROW}.{oid}')}",
            f"WHEN {PG_PROC} THEN {v.is_function(f'{ROW}.{oid}')}",
            f"WHEN {PG_TYPE} THEN {v.is_type(f'{ROW}.{oid}')}",
            f"WHEN {PG_ATTRDEF} THEN {v.is_default(f'{ROW}.{oid}')}",
            f"WHEN {PG_CONSTRAINT} THEN {v.is_constraint(f'{ROW}.{oid}')}",
            f"WHEN {PG_NAMESPACE} THEN {ROW}.{oid} IN ({v.schemas})",
            f"WHEN {PG_REWRITE} THEN {v.is_rewrite(f'{ROW}.{oid}')}",
            f"WHEN {PG_TRIGGER} THEN {v.is_trigger(f'{ROW}.{oid}')}",
            f"WHEN {PG_POLICY} THEN {v.is_row_policy(f'{ROW}.{oid}')}",
            f"WHEN {PG_STATISTIC_EXT} THEN {v.is_statistic(f'{ROW}.{oid}')}",
        )
        known = " ".join(shown)
        own = f"{ROW}.{oid} < {_FIRST_OF_USERS}"
        column = ALWAYS
        if number is not None:
            column = any_of(f"{ROW}.{class_id} <> {PG_CLASS}", v.numbered(f"{ROW}.{oid}", f"{ROW}.{number}"))
        return all_of(f"CASE {ROW}.{class_id} {known} ELSE {own} END", column)

    return condition


def _constraint(schema: str, name: str) -> Condition:
    """Of a constraint by its names: where several tables have one of the name, all of them must be shown."""
    source = (
        "EXISTS (SELECT FROM pg_catalog.pg_constraint AS k "
        "JOIN pg_catalog.pg_namespace AS kn ON kn.oid = k.connamespace "
        f"WHERE kn.nspname = {ROW}.{schema} AND k.conname = {ROW}.{name}"
    )

    def condition(v: Visibility) -> str:
        hidden = f"{source} AND {not_(v.constraint('k'))})"
        return all_of(apart(f"{source})"), not_(apart(hidden)))

    return condition


def _not_null_check(v: Visibility) -> str:
    """Of information_schema's constraints: a NOT NULL that it makes up is called after the OIDs of schema and
    table and the column's number, and its text after the column."""
    name = f"{ROW}.constraint_name::pg_catalog.text"
    made_up = apart(
        "EXISTS (SELECT FROM pg_catalog.pg_attribute AS m "
        f"WHERE m.attrelid = pg_catalog.split_part({name}, '_', 2)::pg_catalog.oid "
        f"AND m.attnum = pg_catalog.split_part({name}, '_', 3)::pg_catalog.int2 "
        f"AND {v.is_relation('m.attrelid')} AND {v.attribute('m')})"
    )
    listed = _constraint("constraint_schema", "constraint_name")(v)
    return f"CASE WHEN {name} ~ '^[0-9]+_[0-9]+_[0-9]+_not_null$' THEN {made_up} ELSE {listed} END"


def _table_constraint(v: Visibility) -> str:
    return all_of(v.table(f"{ROW}.table_schema", f"{ROW}.table_name"), _not_null_check(v))


def _routine(schema: str, specific_name: str) -> Condition:
    """Of a function by information_schema's name for it, which ends in its OID."""
    return lambda v: apart(
        "EXISTS (SELECT FROM pg_catalog.pg_proc AS p "
        "JOIN pg_catalog.pg_namespace AS pn ON pn.oid = p.pronamespace "
        f"WHERE pn.nspname = {ROW}.{schema} AND p.oid = pg_catalog.substring("
        f"{ROW}.{specific_name}::pg_catalog.text, '_([0-9]+)$')::pg_catalog.oid AND {v.function('p')})"
    )


def _type(schema: str, name: str) -> Condition:
    return lambda v: apart(
        "EXISTS (SELECT FROM pg_catalog.pg_type AS y JOIN pg_catalog.pg_namespace AS yn "
        "ON yn.oid = y.typnamespace "
        f"WHERE yn.nspname = {ROW}.{schema} AND y.typname = {ROW}.{name} AND {v.type('y')})"
    )


def _element(v: Visibility) -> str:
    """Of an array's element: by the object that has the array."""
    routine = _routine("object_schema", "object_name")(v)
    type_ = _type("object_schema", "object_name")(v)
    table = v.table(f"{ROW}.object_schema", f"{ROW}.object_name")
    return f"CASE {ROW}.object_type WHEN 'TABLE' THEN {table} WHEN 'ROUTINE' THEN {routine} ELSE {type_} END"


def _used(v: Visibility) -> str:
    """Of what a role may use: foreign servers and wrappers are in no schema, and seen by all."""
    type_ = _type("object_schema", "object_name")(v)
    sequence = v.any_class(f"{ROW}.object_schema", f"{ROW}.object_name")
    others = any_of(f"{ROW}.object_schema = ''", v.schema(f"{ROW}.object_schema"))
    return (
        f"CASE {ROW}.object_type WHEN 'DOMAIN' THEN {type_} WHEN 'SEQUENCE' THEN {sequence} ELSE {others} END"
    )


def _own_session(_: Visibility) -> str:
    return f"{ROW}.pid = pg_catalog.pg_backend_pid()"


def _trigger(v: Visibility) -> str:
    return apart(
        "EXISTS (SELECT FROM pg_catalog.pg_trigger AS g JOIN pg_catalog.pg_class AS gc ON gc.oid = g.tgrelid "
        "JOIN pg_catalog.pg_namespace AS gn ON gn.oid = gc.relnamespace "
        f"WHERE gn.nspname = {ROW}.event_object_schema AND gc.relname = {ROW}.event_object_table "
        f"AND g.tgname = {ROW}.trigger_name AND {v.trigger('g')})"
    )


def _rule(v: Visibility) -> str:
    return apart(
        "EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w JOIN pg_catalog.pg_class AS wc "
        "ON wc.oid = w.ev_class "
        "JOIN pg_catalog.pg_namespace AS wn ON wn.oid = wc.relnamespace "
        f"WHERE wn.nspname = {ROW}.schemaname AND wc.relname = {ROW}.tablename "
        f"AND w.rulename = {ROW}.rulename "
        f"AND {v.rewrite('w')})"
    )


def _row_policy(v: Visibility) -> str:
    return apart(
        "EXISTS (SELECT FROM pg_catalog.pg_policy AS r JOIN pg_catalog.pg_class AS rc ON rc.oid = r.polrelid "
        "JOIN pg_catalog.pg_namespace AS rn ON rn.oid = rc.relnamespace "
        f"WHERE rn.nspname = {ROW}.schemaname AND rc.relname = {ROW}.tablename "
        f"AND r.polname = {ROW}.policyname "
        f"AND {v.row_policy('r')})"
    )


_PG_CATALOG: Final[Mapping[str, Condition]] = {
    "pg_aggregate": _functions("aggfnoid"),
    "pg_am": _always,
    "pg_amproc": _always,
    "pg_attrdef": lambda v: v.default(ROW),
    "pg_attribute": lambda v: all_of(f"{ROW}.attrelid IN ({v.classes()})", v.attribute(ROW)),
    "pg_class": _row_of_class,
    "pg_collation": _in_schema("collnamespace"),
    "pg_constraint": lambda v: v.constraint(ROW),
    "pg_conversion": _in_schema("connamespace"),
    "pg_default_acl": _in_schema("defaclnamespace"),
    "pg_depend": _both(
        _object("classid", "objid", "objsubid"), _object("refclassid", "refobjid", "refobjsubid")
    ),
    "pg_description": _object("classoid", "objoid", "objsubid"),
    "pg_enum": _types("enumtypid"),
    "pg_foreign_table": _relations("ftrelid"),
    "pg_index": lambda v: all_of(f"{ROW}.indrelid IN ({v.relations()})", v.index(ROW)),
    "pg_indexes": _both(_table("schemaname", "tablename"), _any_class("schemaname", "indexname")),
    "pg_inherits": _both(_classes("inhrelid"), _classes("inhparent")),
    "pg_matviews": _table("schemaname", "matviewname"),
    "pg_namespace": lambda v: f"{ROW}.oid IN ({v.schemas})",
    "pg_opclass": _in_schema("opcnamespace"),
    "pg_operator": _in_schema("oprnamespace"),
    "pg_opfamily": _in_schema("opfnamespace"),
    "pg_partitioned_table": _relations("partrelid"),
    "pg_policies": _row_policy,
    "pg_policy": lambda v: v.row_policy(ROW),
    "pg_proc": lambda v: v.function(ROW),
    "pg_publication_namespace": _in_schema("pnnspid"),
    "pg_publication_rel": _relations("prrelid"),
    "pg_publication_tables": lambda v: v.table(
        f"{ROW}.schemaname", f"{ROW}.tablename", f"c.oid IN ({v.whole})"
    ),
    "pg_range": _types("rngtypid"),
    "pg_rewrite": lambda v: v.rewrite(ROW),
    "pg_rules": _rule,
    "pg_sequence": _relations("seqrelid"),
    "pg_sequences": _any_class("schemaname", "sequencename"),
    "pg_stat_gssapi": _own_session,
    "pg_stat_ssl": _own_session,
    "pg_statistic_ext": lambda v: v.statistic(ROW),
    "pg_tables": _table("schemaname", "tablename"),
    "pg_transform": _always,
    "pg_trigger": lambda v: v.trigger(ROW),
    "pg_ts_config": _in_schema("cfgnamespace"),
    "pg_ts_dict": _in_schema("dictnamespace"),
    "pg_ts_parser": _in_schema("prsnamespace"),
    "pg_ts_template": _in_schema("tmplnamespace"),
    "pg_type": lambda v: v.type(ROW),
    "pg_views": _table("schemaname", "viewname"),
}

_COLUMN: Final = _column("table_schema", "table_name", "column_name")
_TABLE: Final = _table("table_schema", "table_name")
_SPECIFIC: Final = _routine("specific_schema", "specific_name")

_INFORMATION_SCHEMA: Final[Mapping[str, Condition]] = {
    "attributes": _column("udt_schema", "udt_name", "attribute_name"),
    "check_constraint_routine_usage": _both(_constraint("constraint_schema", "constraint_name"), _SPECIFIC),
    "check_constraints": _not_null_check,
    "column_column_usage": _both(_COLUMN, _column("table_schema", "table_name", "dependent_column")),
    "column_domain_usage": _both(_COLUMN, _type("domain_schema", "domain_name")),
    "column_options": _COLUMN,
    "column_privileges": _COLUMN,
    "column_udt_usage": _COLUMN,
    "columns": _COLUMN,
    "constraint_column_usage": _both(_COLUMN, _constraint("constraint_schema", "constraint_name")),
    "constraint_table_usage": _both(_TABLE, _constraint("constraint_schema", "constraint_name")),
    "data_type_privileges": _element,
    "domain_constraints": _both(
        _type("domain_schema", "domain_name"), _constraint("constraint_schema", "constraint_name")
    ),
    "domain_udt_usage": _type("domain_schema", "domain_name"),
    "domains": _type("domain_schema", "domain_name"),
    "element_types": _element,
    "foreign_tables": _table("foreign_table_schema", "foreign_table_name"),
    "key_column_usage": _both(_COLUMN, _constraint("constraint_schema", "constraint_name")),
    "parameters": _SPECIFIC,
    "referential_constraints": _constraint("constraint_schema", "constraint_name"),
    "role_column_grants": _COLUMN,
    "role_routine_grants": _SPECIFIC,
    "role_table_grants": _TABLE,
    "role_udt_grants": _type("udt_schema", "udt_name"),
    "role_usage_grants": _used,
    "routine_privileges": _SPECIFIC,
    "routines": _SPECIFIC,
    "schemata": _named_schema("schema_name"),
    "sequences": _any_class("sequence_schema", "sequence_name"),
    "table_constraints": _table_constraint,
    "table_privileges": _TABLE,
    "tables": _TABLE,
    "triggered_update_columns": _both(
        _trigger, _column("event_object_schema", "event_object_table", "event_object_column")
    ),
    "triggers": _trigger,
    "udt_privileges": _type("udt_schema", "udt_name"),
    "usage_privileges": _used,
    "user_defined_types": _type("user_defined_type_schema", "user_defined_type_name"),
    "view_column_usage": _both(_table("view_schema", "view_name"), _COLUMN),
    "view_routine_usage": _both(_TABLE, _SPECIFIC),
    "view_table_usage": _tables(("view_schema", "view_name"), ("table_schema", "table_name")),
    "views": _TABLE,
}

_OF: Final = ("all", "sys", "user")
_STATISTICS: Final[Mapping[str, Condition]] = {
    **{
        f"{kind}_{of}_tables": _relations("relid")
        for kind in ("pg_stat", "pg_stat_xact", "pg_statio")
        for of in _OF
    },
    **{f"{kind}_{of}_indexes": _classes("indexrelid") for kind in ("pg_stat", "pg_statio") for of in _OF},
    **{f"pg_statio_{of}_sequences": _classes("relid") for of in _OF},
}
"""How often each table, index and sequence was used, and how many rows it holds."""
_WITHHOLDING: Final[Mapping[str, Condition]] = dict.fromkeys(
    ("pg_foreign_data_wrapper", "pg_foreign_server", "pg_roles", "pg_user"), _always
)
"""Catalogs of no user's object that are here for the columns they withhold."""

FILTERS: Final[Mapping[QualifiedName, Condition]] = MappingProxyType(
    {
        QualifiedName(PG_CATALOG, name): condition
        for name, condition in {**_PG_CATALOG, **_STATISTICS, **_WITHHOLDING}.items()
    }
    | {QualifiedName(INFORMATION_SCHEMA, name): condition for name, condition in _INFORMATION_SCHEMA.items()}
)
"""Catalog -> the condition on its row, ``ROW``."""


def _definition(schema: str, name: str) -> Condition:
    return lambda v: v.definition(f"{ROW}.{schema}", f"{ROW}.{name}")


def _own(v: Visibility) -> str:
    return v.own_function(ROW)


def _own_routine(_: Visibility) -> str:
    return f"{ROW}.routine_schema IN ('pg_catalog', 'information_schema')"


def _generation(v: Visibility) -> str:
    """Of a column's default or generation: it may name a hidden column, or its sequence."""
    return apart(
        "EXISTS (SELECT FROM pg_catalog.pg_attrdef AS d JOIN pg_catalog.pg_attribute AS da "
        "ON da.attrelid = d.adrelid AND da.attnum = d.adnum "
        "JOIN pg_catalog.pg_class AS ec ON ec.oid = d.adrelid "
        "JOIN pg_catalog.pg_namespace AS en ON en.oid = ec.relnamespace "
        f"WHERE en.nspname = {ROW}.table_schema AND ec.relname = {ROW}.table_name "
        f"AND da.attname = {ROW}.column_name AND {v.default('d')})"
    )


def _udt(v: Visibility) -> str:
    """Of the type of a column: it may be the row of a hidden relation."""
    return _type("udt_schema", "udt_name")(v)


def _withheld() -> Mapping[QualifiedName, Mapping[str, Condition]]:
    """The columns that tell more than structure: nobody's, but the last value of a sequence that may be read
    as a relation."""
    masks: dict[QualifiedName, dict[str, Condition]] = {
        QualifiedName(*name.split(".")): dict.fromkeys(columns, _never) for name, columns in WITHHELD.items()
    }
    masks[QualifiedName(PG_CATALOG, "pg_sequences")]["last_value"] = _table("schemaname", "sequencename")
    return masks


MASKS: Final[Mapping[QualifiedName, Mapping[str, Condition]]] = MappingProxyType(
    {
        **_withheld(),
        QualifiedName(PG_CATALOG, "pg_views"): {"definition": _definition("schemaname", "viewname")},
        QualifiedName(PG_CATALOG, "pg_matviews"): {"definition": _definition("schemaname", "matviewname")},
        QualifiedName(PG_CATALOG, "pg_proc"): {"prosrc": _own, "probin": _own, "prosqlbody": _own},
        QualifiedName(INFORMATION_SCHEMA, "views"): {
            "view_definition": _definition("table_schema", "table_name")
        },
        QualifiedName(INFORMATION_SCHEMA, "routines"): {"routine_definition": _own_routine},
        QualifiedName(INFORMATION_SCHEMA, "columns"): {
            "column_default": _generation,
            "generation_expression": _generation,
            "udt_name": _udt,
        },
    }
)
"""Catalog -> column -> the condition on its row under which the column tells its value, else it is null."""

VIEWS: Final = frozenset(
    {
        "pg_indexes",
        "pg_matviews",
        "pg_policies",
        "pg_publication_tables",
        "pg_roles",
        "pg_rules",
        "pg_sequences",
        "pg_stat_gssapi",
        "pg_stat_ssl",
        "pg_tables",
        "pg_user",
        "pg_views",
        *_STATISTICS,
    }
)
"""The views of pg_catalog among them, which have no system columns."""

_WITH_NAMES: Final = frozenset(
    {
        "pg_aggregate",
        "pg_am",
        "pg_amproc",
        "pg_conversion",
        "pg_operator",
        "pg_proc",
        "pg_range",
        "pg_sequences",
        "pg_transform",
        "pg_ts_parser",
        "pg_ts_template",
        "pg_type",
    }
)
"""Catalogs with columns of a type in ``REG_TYPES``."""


def needs_columns(name: QualifiedName, *, snapshot: bool) -> bool:
    """Whether the columns of the catalog must be known to filter it. Without a ``snapshot`` they need not be
    to withhold some: ``column-not-allowed`` refuses those then."""
    masked = name in MASKS and (snapshot or f"{name.schema}.{name.name}" not in WITHHELD)
    return masked or (name.schema == PG_CATALOG and name.name in _WITH_NAMES)


@lru_cache(maxsize=512)
def select(
    name: QualifiedName,
    columns: tuple[Column, ...],
    v: Visibility | None,
    system: frozenset[str],
    numbers: frozenset[str] = frozenset(),
) -> str:
    """The query that stands in the place of the catalog: its rows that are shown, its columns in order.

    ``v`` None leaves the conditions out, for the planner to price without them. ``columns`` () where they are
    not known: then all pass, and ``needs_columns`` must be false. ``system`` are the system columns wanted
    beside them.

    No column of it is of a type that names objects: a number that met one, in UNION or CASE or a function's
    arguments, would come out as the name of any. They are texts, but OIDs where they are among ``numbers``.
    """
    masks = MASKS.get(name, {})
    listed = [f"{ROW}.*"]
    if columns and needs_columns(name, snapshot=True):
        listed = [_shown_column(column, masks, v, numbers) for column in columns]
    listed += [f"{ROW}.{column} AS {column}" for column in sorted(system)]
    where = "" if v is None else f" WHERE {FILTERS[name](v)}"
    return f"SELECT {', '.join(listed)} FROM {name.schema}.{name.name} AS {ROW}{where}"


def _shown_column(
    column: Column, masks: Mapping[str, Condition], v: Visibility | None, numbers: frozenset[str]
) -> str:
    value = f"{ROW}.{column.name}"
    condition = masks[column.name](v) if column.name in masks and v is not None else ALWAYS
    if column.type.schema == PG_CATALOG and column.type.name in REG_TYPES:
        if column.type.name == "regproc" and v is not None:
            condition = any_of(f"{value}::pg_catalog.oid < {_FIRST_OF_USERS}", v.is_function(value))
        value += f"::pg_catalog.{'oid' if column.name in numbers else 'text'}"
    elif condition == ALWAYS:
        return value
    return f"CASE WHEN {condition} THEN {value} END AS {column.name}"
