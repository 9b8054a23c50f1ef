"""The roads from a number or a text to a name: PostgreSQL's functions and types that name any object.

Owns what of each is an object, and the SQL that takes its place under ``catalogs: filtered``: a look-up
that gives an object's OID where the policy shows the object, and null both where it does not and where there
is none, so that the two cannot be told apart. The functions are strict and give null for null. Knows no
statement (``filtered``).

Source: PostgreSQL documentation, "System Information Functions" and "Object Identifier Types"; regproc.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from policy.builtin import PG_CATALOG, REVIEWS
from policy.catalog_filters import select
from policy.names import QualifiedName
from policy.text_edits import quoted
from policy.visibility import Visibility


class Thing(StrEnum):
    """What an OID or a text stands for."""

    CLASS = "class"
    WHOLE = "whole"
    """A relation of which no column is hidden: what is told of it may name any."""
    DEFINED = "defined"
    """A relation whose definition names nothing hidden."""
    CONSTRAINT = "constraint"
    TRIGGER = "trigger"
    RULE = "rule"
    STATISTIC = "statistic"
    PROC = "proc"
    PROCEDURE = "procedure"
    """A function, by its name with its arguments' types."""
    BODY = "body"
    """A function whose body may be read."""
    TYPE = "type"
    OPERATOR = "operator"
    SIGNED_OPERATOR = "signed_operator"
    """An operator, by its name with its operands' types."""
    SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class _LookUp:
    shown: Callable[[Visibility], str]
    """The query for the OIDs that may be named."""
    by_name: str | None = None
    """pg_catalog's function that looks a name up and gives null for none."""


_LOOK_UPS: Final[Mapping[Thing, _LookUp]] = MappingProxyType(
    {
        Thing.CLASS: _LookUp(lambda v: v.classes(), "to_regclass"),
        Thing.WHOLE: _LookUp(lambda v: v.whole, "to_regclass"),
        Thing.DEFINED: _LookUp(lambda v: v.defined, "to_regclass"),
        Thing.CONSTRAINT: _LookUp(lambda v: v.constraints),
        Thing.TRIGGER: _LookUp(lambda v: v.triggers),
        Thing.RULE: _LookUp(lambda v: v.rewrites),
        Thing.STATISTIC: _LookUp(lambda v: v.statistics),
        Thing.PROC: _LookUp(lambda v: v.functions, "to_regproc"),
        Thing.PROCEDURE: _LookUp(lambda v: v.functions, "to_regprocedure"),
        Thing.BODY: _LookUp(
            lambda v: f"SELECT p.oid FROM pg_catalog.pg_proc AS p WHERE {v.own_function('p')}"
        ),
        Thing.OPERATOR: _LookUp(lambda v: v.operators, "to_regoper"),
        Thing.SIGNED_OPERATOR: _LookUp(lambda v: v.operators, "to_regoperator"),
        Thing.TYPE: _LookUp(lambda v: v.types, "to_regtype"),
        Thing.SCHEMA: _LookUp(lambda v: v.schemas, "to_regnamespace"),
    }
)

HOLE: Final = "pgturnstile_hole"
"""The column reference that stands for the value looked up, in ``look_up``'s text."""


def _called(label: str) -> str:
    return f" AS {quoted(label)}" if label else ""


@lru_cache(maxsize=512)
def look_up(thing: Thing, v: Visibility | None, label: str, *, named: bool = False) -> tuple[str, str]:
    """What to put before and behind an expression to make it the OID of the ``thing`` it stands for.

    The expression may be of any type whose text is an OID or a name. ``named``: it is a constant that holds a
    name which the policy opens: one that names nothing is an error then, as in PostgreSQL. ``label`` is what
    a column of the result would be called, () none. ``v`` None leaves the look for the object out, for the
    planner to price without it.
    """
    how = _LOOK_UPS[thing]
    named_by = "NULL" if how.by_name is None else f"pg_catalog.{how.by_name}(v.t)::pg_catalog.oid"
    found = "k.o" if v is None else f"SELECT f.oid FROM ({how.shown(v)}) AS f WHERE f.oid = k.o"
    before = f"(SELECT CASE WHEN k.o = 0 THEN k.o ELSE ({found}) END{_called(label)} FROM (SELECT "
    if named:
        return before + "(", ")::pg_catalog.regclass::pg_catalog.oid AS o OFFSET 0) AS k)"
    # An OID is its digits, the one of no object a hyphen.
    before += (
        "CASE WHEN v.t ~ '^[0-9]+$' THEN v.t::pg_catalog.oid WHEN v.t = '-' THEN 0::pg_catalog.oid "
        f"ELSE {named_by} END AS o FROM (SELECT ("
    )
    return before, ")::pg_catalog.text AS t) AS v OFFSET 0) AS k)"


@lru_cache(maxsize=64)
def look_up_all(thing: Thing, v: Visibility | None, label: str) -> tuple[str, str]:
    """``look_up`` of every OID of an array, which is one of one dimension then."""
    found = "e.o" if v is None else "CASE WHEN e.o = 0 THEN e.o ELSE f.oid END"
    shown = "" if v is None else f" LEFT JOIN ({_LOOK_UPS[thing].shown(v)}) AS f ON f.oid = e.o"
    before = (
        f"(SELECT CASE WHEN k.a IS NOT NULL THEN ARRAY(SELECT {found} "
        f"FROM pg_catalog.unnest(k.a) WITH ORDINALITY AS e(o, i){shown} ORDER BY e.i) END{_called(label)} "
        "FROM (SELECT ("
    )
    return before, ")::pg_catalog._oid AS a OFFSET 0) AS k)"


@lru_cache(maxsize=64)
def look_up_texts(thing: Thing, v: Visibility | None, label: str) -> tuple[str, str]:
    """``look_up`` of every text of an array, which is given as one text or as many."""
    before, behind = look_up(thing, v, "")
    found = f"{before}e.t{behind}"
    first = (
        f"(SELECT CASE WHEN k.a IS NOT NULL THEN ARRAY(SELECT {found} "
        f"FROM pg_catalog.unnest(k.a) WITH ORDINALITY AS e(t, i) ORDER BY e.i) END{_called(label)} "
        "FROM (SELECT ("
    )
    return first, ")::pg_catalog._text AS a OFFSET 0) AS k)"


@lru_cache(maxsize=64)
def comment(v: Visibility | None) -> tuple[str, str]:
    """What to put before and behind an OID to make it the comment on the object, of whichever catalog, that
    obj_description of one argument finds first. ``v`` as in ``look_up``."""
    shown = select(QualifiedName(PG_CATALOG, "pg_description"), (), v, frozenset())
    found = (
        f"SELECT d.description FROM ({shown}) AS d WHERE d.objoid = k.o AND d.objsubid = 0 "
        "ORDER BY d.classoid LIMIT 1"
    )
    before = f"(SELECT ({found}) AS obj_description FROM (SELECT ("
    return before, ")::pg_catalog.oid AS o OFFSET 0) AS k)"


TYPES: Final[Mapping[str, Thing]] = MappingProxyType(
    {
        "regclass": Thing.CLASS,
        "regproc": Thing.PROC,
        "regprocedure": Thing.PROCEDURE,
        "regtype": Thing.TYPE,
        "regoper": Thing.OPERATOR,
        "regoperator": Thing.SIGNED_OPERATOR,
        "regnamespace": Thing.SCHEMA,
    }
)
"""Type of pg_catalog -> what a value of it names."""
LOOK_UP_FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {name: name for name in TYPES} | {f"to_{name}": name for name in TYPES}
)
"""Function of one argument that is a cast by another name -> the type."""

Places = Mapping[int, Thing]
_FIRST_CLASS: Final[Places] = {0: Thing.CLASS}


def _privilege(thing: Thing) -> Mapping[int | None, Places]:
    """``has_x_privilege([role,] object, privilege)``"""
    return {2: {0: thing}, 3: {1: thing}}


RELATION_COUNTERS: Final = tuple(
    name for name, forms in REVIEWS.items() for review in forms.values() if review.key == "relation-counters"
)
"""How often a relation was used: functions of its OID alone."""

GIVERS: Final[Mapping[str, Mapping[int | None, Places]]] = MappingProxyType(
    {
        **{
            name: {None: _FIRST_CLASS}
            for name in (
                "currval",
                "nextval",
                "pg_column_is_updatable",
                "pg_get_indexdef",
                "pg_index_column_has_property",
                "pg_index_has_property",
                "pg_indexes_size",
                "pg_partition_ancestors",
                "pg_relation_filenode",
                "pg_relation_filepath",
                "pg_relation_is_publishable",
                "pg_relation_is_updatable",
                "pg_relation_size",
                "pg_sequence_last_value",
                "pg_sequence_parameters",
                "pg_table_is_visible",
                "pg_table_size",
                "pg_total_relation_size",
                "row_security_active",
                "setval",
                *RELATION_COUNTERS,
            )
        },
        **{
            name: {None: {0: Thing.PROC}}
            for name in (
                "pg_function_is_visible",
                "pg_get_function_arg_default",
                "pg_get_function_arguments",
                "pg_get_function_identity_arguments",
                "pg_get_function_result",
            )
        },
        **{name: {None: {0: Thing.BODY}} for name in ("pg_get_function_sqlbody", "pg_get_functiondef")},
        **{
            name: {None: {0: Thing.STATISTIC}}
            for name in (
                "pg_get_statisticsobjdef",
                "pg_get_statisticsobjdef_columns",
                "pg_get_statisticsobjdef_expressions",
                "pg_statistics_obj_is_visible",
            )
        },
        **{name: {None: {0: Thing.TYPE}} for name in ("format_type", "pg_type_is_visible")},
        **{
            name: {None: {0: Thing.WHOLE}} for name in ("pg_get_partition_constraintdef", "pg_get_partkeydef")
        },
        "col_description": {2: {0: Thing.WHOLE}},
        "has_any_column_privilege": _privilege(Thing.CLASS),
        "has_column_privilege": {3: {0: Thing.WHOLE}, 4: {1: Thing.WHOLE}},
        "has_function_privilege": _privilege(Thing.PROCEDURE),
        "has_schema_privilege": _privilege(Thing.SCHEMA),
        "has_sequence_privilege": _privilege(Thing.CLASS),
        "has_table_privilege": _privilege(Thing.CLASS),
        "has_type_privilege": _privilege(Thing.TYPE),
        "pg_get_constraintdef": {None: {0: Thing.CONSTRAINT}},
        "pg_get_expr": {None: {1: Thing.WHOLE}},
        "pg_get_ruledef": {None: {0: Thing.RULE}},
        "pg_get_serial_sequence": {2: {0: Thing.WHOLE}},
        "pg_get_triggerdef": {None: {0: Thing.TRIGGER}},
        "pg_get_viewdef": {None: {0: Thing.DEFINED}},
    }
)
"""Function of pg_catalog -> number of arguments, None for any -> which of them stands for what."""

BY_TEXT: Final = frozenset({"pg_get_serial_sequence"})
"""Functions that take a relation as a text alone."""

COMMENTS: Final[Mapping[str, Thing | None]] = MappingProxyType(
    {
        "pg_class": Thing.CLASS,
        "pg_constraint": Thing.CONSTRAINT,
        "pg_namespace": Thing.SCHEMA,
        "pg_proc": Thing.PROC,
        "pg_rewrite": Thing.RULE,
        "pg_statistic_ext": Thing.STATISTIC,
        "pg_trigger": Thing.TRIGGER,
        "pg_type": Thing.TYPE,
        **dict.fromkeys(
            (
                "pg_am",
                "pg_cast",
                "pg_collation",
                "pg_conversion",
                "pg_event_trigger",
                "pg_extension",
                "pg_foreign_data_wrapper",
                "pg_foreign_server",
                "pg_language",
                "pg_opclass",
                "pg_operator",
                "pg_opfamily",
                "pg_publication",
                "pg_ts_config",
                "pg_ts_dict",
                "pg_ts_parser",
                "pg_ts_template",
            )
        ),
    }
)
"""obj_description's catalog -> what its objects are; None where a comment on any may be read."""

REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "pg_basetype",
                "pg_filenode_relation",
                "pg_get_acl",
                "pg_get_catalog_foreign_keys",
                "pg_get_object_address",
                "pg_get_publication_tables",
                "pg_get_replica_identity_index",
                "pg_input_error_info",
                "pg_input_is_valid",
                "regclassin",
                "regclassout",
                "regnamespacein",
                "regnamespaceout",
                "regoperatorin",
                "regoperatorout",
                "regoperin",
                "regoperout",
                "regprocedurein",
                "regprocedureout",
                "regprocin",
                "regprocout",
                "regtypein",
                "regtypeout",
            ),
            "Read pg_catalog or information_schema instead.",
        ),
        "pg_partition_tree": "Read it in FROM.",
    }
)
"""Functions that name any object and that no look-up stands before -> what to do instead."""

DESCRIBING: Final = frozenset({"pg_describe_object", "pg_identify_object", "pg_identify_object_as_address"})
"""Functions that name the object of an address: its catalog, its OID and the number of a column."""

ADDRESSES: Final = frozenset(
    {
        ("pg_depend", "classid", "objid", "objsubid"),
        ("pg_depend", "refclassid", "refobjid", "refobjsubid"),
        ("pg_description", "classoid", "objoid", "objsubid"),
    }
)
"""Filtered catalog, and its columns that are an address: of a row that is shown, the object is too."""

TRUSTED: Final[Mapping[tuple[str, str], frozenset[Thing]]] = MappingProxyType(
    {
        ("pg_attrdef", "adrelid"): frozenset({Thing.CLASS}),
        ("pg_attribute", "attrelid"): frozenset({Thing.CLASS}),
        ("pg_class", "oid"): frozenset({Thing.CLASS}),
        ("pg_class", "relnamespace"): frozenset({Thing.SCHEMA}),
        ("pg_constraint", "conrelid"): frozenset({Thing.CLASS}),
        ("pg_constraint", "confrelid"): frozenset({Thing.CLASS}),
        ("pg_constraint", "oid"): frozenset({Thing.CONSTRAINT}),
        ("pg_index", "indexrelid"): frozenset({Thing.CLASS}),
        ("pg_index", "indrelid"): frozenset({Thing.CLASS}),
        ("pg_inherits", "inhparent"): frozenset({Thing.CLASS}),
        ("pg_inherits", "inhrelid"): frozenset({Thing.CLASS}),
        ("pg_namespace", "oid"): frozenset({Thing.SCHEMA}),
        ("pg_proc", "oid"): frozenset({Thing.PROC, Thing.PROCEDURE}),
        ("pg_rewrite", "ev_class"): frozenset({Thing.CLASS}),
        ("pg_rewrite", "oid"): frozenset({Thing.RULE}),
        ("pg_sequence", "seqrelid"): frozenset({Thing.CLASS}),
        ("pg_statistic_ext", "oid"): frozenset({Thing.STATISTIC}),
        ("pg_statistic_ext", "stxrelid"): frozenset({Thing.CLASS}),
        ("pg_trigger", "oid"): frozenset({Thing.TRIGGER}),
        ("pg_trigger", "tgrelid"): frozenset({Thing.CLASS}),
        ("pg_type", "oid"): frozenset({Thing.TYPE}),
    }
)
"""Column of a filtered catalog -> what every OID in it is certain to be shown as: no look-up is needed."""

ARGUMENT_TYPES: Final = frozenset({("pg_proc", "proargtypes"), ("pg_proc", "proallargtypes")})
"""Column of a filtered catalog -> the types in it are certain to be shown: the function's signature is."""

KEYS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "pg_aggregate": frozenset({"aggfnoid"}),
        "pg_attribute": frozenset({"attrelid", "attnum"}),
        "pg_description": frozenset({"objoid", "classoid", "objsubid"}),
        "pg_foreign_table": frozenset({"ftrelid"}),
        "pg_index": frozenset({"indexrelid"}),
        "pg_inherits": frozenset({"inhrelid", "inhseqno"}),
        "pg_partitioned_table": frozenset({"partrelid"}),
        "pg_range": frozenset({"rngtypid"}),
        "pg_sequence": frozenset({"seqrelid"}),
    }
)
"""Filtered catalog -> its primary key, where that is not ``oid``: DECLARE_UNIQUE_INDEX_PKEY in
src/include/catalog/pg_*.h."""

EXPRESSIONS: Final = frozenset(
    {
        ("pg_attrdef", "adbin", "adrelid"),
        ("pg_class", "relpartbound", "oid"),
        ("pg_constraint", "conbin", "conrelid"),
        ("pg_index", "indexprs", "indrelid"),
        ("pg_index", "indpred", "indrelid"),
        ("pg_policy", "polqual", "polrelid"),
        ("pg_policy", "polwithcheck", "polrelid"),
        ("pg_publication_rel", "prqual", "prrelid"),
        ("pg_statistic_ext", "stxexprs", "stxrelid"),
        ("pg_trigger", "tgqual", "tgrelid"),
    }
)
"""Catalog, expression, relation: of one and the same row, pg_get_expr names what that row may name. An
expression put together with another relation would name that one's columns, by number."""

REG_COLUMNS: Final = frozenset(
    {
        "aggcombinefn",
        "aggdeserialfn",
        "aggfinalfn",
        "aggfnoid",
        "aggmfinalfn",
        "aggminvtransfn",
        "aggmtransfn",
        "aggserialfn",
        "aggtransfn",
        "amhandler",
        "amproc",
        "conproc",
        "oprcode",
        "oprjoin",
        "oprrest",
        "prosupport",
        "prsend",
        "prsheadline",
        "prslextype",
        "prsstart",
        "prstoken",
        "rngcanonical",
        "rngsubdiff",
        "tmplinit",
        "tmpllexize",
        "trffromsql",
        "trftosql",
        "typanalyze",
        "typinput",
        "typmodin",
        "typmodout",
        "typoutput",
        "typreceive",
        "typsend",
        "typsubscript",
    }
)
"""Columns of catalogs whose values are of a type in ``TYPES``."""
