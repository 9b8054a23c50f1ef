"""The SQL that a catalog snapshot is read with, on PostgreSQL 15 to 18.

Owns the texts alone; ``catalog_source`` runs them and knows what their columns mean. Every text needs no more
than an ordinary login: the catalogs named here are readable by PUBLIC. They run with search_path set to
pg_catalog, so that no name or operator in them can mean anything else. Objects of temporary schemas and TOAST
are left out everywhere: ``pg_%`` names no other schema but pg_catalog itself.
"""

# ruff: noqa: S608 - every text is made of this module's own constants

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FIRST_USER_OID: Final = 16384
"""FirstNormalObjectId (access/transam.h): objects below it came with the server."""

_SCHEMAS: Final = r"(n.nspname = 'pg_catalog' OR n.nspname NOT LIKE 'pg\_%')"
_KINDS: Final = "c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c') AND c.relpersistence <> 't'"
_NOT_THE_SERVERS: Final = f"(n.nspname <> 'pg_catalog' OR {{oid}} >= {FIRST_USER_OID})"

# Where temporary objects may come first, asking what is searched makes the schema for them, or fails for a
# role that may make none (fetch_search_path in namespace.c).
SESSION: Final = """
SELECT current_setting('server_version_num')::int, current_database()::text, current_user::text,
       CASE WHEN strpos(current_setting('search_path'), 'pg_temp') = 0
            THEN current_schemas(false)::text[] END,
       current_setting('search_path')
"""

SCHEMAS: Final = f"SELECT n.nspname::text FROM pg_namespace n WHERE {_SCHEMAS}"

RELATIONS: Final = f"""
SELECT c.oid, n.nspname, c.relname, c.relkind::text, pg_get_userbyid(c.relowner), c.relispartition,
       c.relrowsecurity, c.relforcerowsecurity, c.reltuples::float8
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE {_KINDS} AND {_SCHEMAS}
"""

_COLUMNS: Final = f"""
SELECT a.attrelid, a.attname, a.attnum, a.atttypid, a.attnotnull, a.atthasdef OR a.attidentity <> '',
       a.attidentity::text, a.attgenerated::text
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE {{part}} AND a.attnum > 0 AND NOT a.attisdropped AND {_KINDS} AND {_SCHEMAS}
ORDER BY a.attrelid, a.attnum
"""

# A unique index whose constraint is deferrable may hold duplicates for a while: no key to rely on.
INDEXES: Final = f"""
SELECT i.indexrelid, i.indrelid, x.relname, i.indkey::int2[], i.indnkeyatts, i.indisunique AND i.indimmediate,
       i.indisprimary, i.indpred IS NOT NULL
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indisvalid AND i.indislive AND i.indrelid >= {FIRST_USER_OID}
  AND x.relnamespace <> 'pg_toast'::regnamespace
"""

# A partition's copy of its parent's key has a parent itself.
FOREIGN_KEYS: Final = """
SELECT conname, conrelid, conkey, confrelid, confkey FROM pg_constraint
WHERE contype = 'f' AND conparentid = 0
"""

TRIGGERS: Final = """
SELECT tgrelid, tgname, tgfoid, tgtype, tgenabled <> 'D' FROM pg_trigger WHERE NOT tgisinternal
"""

INHERITANCE: Final = "SELECT inhparent, inhrelid FROM pg_inherits"

# pg_depend says nothing of objects that came with the server, nor of whole-row references
# (find_expr_references_walker, dependency.c). The stored tree says both: its fields are ":name value", and
# text in it cannot look so, because outfuncs.c escapes blanks.
RULES: Final = f"""
SELECT r.oid, r.ev_class, r.rulename, r.ev_type::text, r.is_instead,
       position(':varattno 0 ' IN tree.text) > 0,
       ARRAY(SELECT DISTINCT m[1]::oid FROM regexp_matches(tree.text, ':relid (\\d+)', 'g') m
             WHERE m[1] <> '0' AND m[1]::oid < {FIRST_USER_OID}),
       ARRAY(SELECT DISTINCT m[1]::oid
             FROM regexp_matches(tree.text, ':(?:funcid|aggfnoid|winfnoid|tsmhandler) (\\d+)', 'g') m
             WHERE m[1] <> '0'),
       CASE r.ev_type WHEN '1' THEN r.ev_action::text END
FROM pg_rewrite r, LATERAL (SELECT r.ev_action::text || r.ev_qual::text) tree(text)
WHERE r.ev_class >= {FIRST_USER_OID}
"""

# An expression of pg_attrdef depends on columns that it reads normally, and otherwise on the one it is for.
DEPENDENCIES: Final = f"""
SELECT d.classid::regclass::text, d.objid, d.refclassid::regclass::text, d.refobjid, d.refobjsubid
FROM pg_depend d
WHERE d.deptype IN ('n', 'a') AND d.objid >= {FIRST_USER_OID}
  AND (d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass
       OR d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0
          AND d.deptype = 'n'
       OR d.classid = 'pg_class'::regclass AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
       OR d.classid IN ('pg_rewrite'::regclass, 'pg_attrdef'::regclass, 'pg_policy'::regclass,
                        'pg_constraint'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass)
          AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass))
"""

# What the dependants of DEPENDENCIES belong to: a relation (and column), or a domain.
EXPRESSION_OWNERS: Final = f"""
SELECT 'pg_attrdef', oid, adrelid, adnum, 0::oid FROM pg_attrdef WHERE oid >= {FIRST_USER_OID}
UNION ALL SELECT 'pg_policy', oid, polrelid, NULL, 0 FROM pg_policy
UNION ALL SELECT 'pg_constraint', oid, conrelid, NULL, contypid FROM pg_constraint
          WHERE contype = 'c' AND oid >= {FIRST_USER_OID}
UNION ALL SELECT 'pg_class', indexrelid, indrelid, NULL, 0 FROM pg_index
          WHERE indexrelid >= {FIRST_USER_OID} AND (indexprs IS NOT NULL OR indpred IS NOT NULL)
"""

_FUNCTION_NAMES: Final = """
SELECT p.oid, n.nspname, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE {part}
"""

# With what a column takes from its type.
_TYPES: Final = """
SELECT t.oid, n.nspname, t.typname, t.typnotnull, t.typdefault IS NOT NULL
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE {part}
"""

# Of the objects that came with the server: thousands, and they hardly ever change.
SERVERS_COLUMNS: Final = _COLUMNS.format(
    part=f"a.attrelid < {FIRST_USER_OID} AND a.atttypid < {FIRST_USER_OID}"
)
SERVERS_FUNCTIONS: Final = _FUNCTION_NAMES.format(part=f"p.oid < {FIRST_USER_OID}")
SERVERS_TYPES: Final = _TYPES.format(part=f"t.oid < {FIRST_USER_OID}")

# Of all others.
ADDED_COLUMNS: Final = _COLUMNS.format(part=f"a.attrelid >= {FIRST_USER_OID}")
ADDED_FUNCTIONS: Final = _FUNCTION_NAMES.format(part=f"p.oid >= {FIRST_USER_OID}")
ADDED_TYPES: Final = _TYPES.format(part=f"t.oid >= {FIRST_USER_OID}")

WIDENED_COLUMNS: Final = _COLUMNS.format(
    part=f"a.attrelid < {FIRST_USER_OID} AND a.atttypid >= {FIRST_USER_OID}"
)
"""A view of information_schema can be given a column of anybody's type."""

COLUMNS_OF: Final = _COLUMNS.format(part=f"a.attrelid >= {FIRST_USER_OID} AND a.attrelid = ANY($1::oid[])")
"""ADDED_COLUMNS of the relations in the parameter."""

WRITERS: Final = f"""
SELECT xmin, count(*) FROM pg_attribute WHERE attrelid >= {FIRST_USER_OID} AND attnum > 0 GROUP BY xmin
"""
"""The transactions that wrote the rows of columns, dropped ones among them, and how many each. A number grows
only where one has ended since, for its rows can only become fewer afterwards: they are changed by being
written anew, by another."""

WRITTEN: Final = f"""
SELECT DISTINCT attrelid FROM pg_attribute
WHERE attrelid >= {FIRST_USER_OID} AND attnum > 0 AND (xmin = ANY($1::xid[]) OR atttypid = ANY($2::oid[]))
"""
"""The relations with a column that one of these transactions wrote, or that has one of these types."""

FUNCTIONS: Final = f"""
WITH listed AS (
  SELECT p.*, n.nspname, {_NOT_THE_SERVERS.format(oid="p.oid")} AS added
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE {_SCHEMAS})
SELECT p.oid, p.nspname, p.proname, p.prokind::text, p.provolatile::text, p.prosecdef, l.lanname,
       pg_get_userbyid(p.proowner), p.proargtypes::oid[], p.prorettype, p.proretset, p.pronargdefaults,
       p.provariadic <> 0, p.proallargtypes, p.proargmodes::text[], p.proargnames
FROM listed p JOIN pg_language l ON l.oid = p.prolang
WHERE p.added OR p.proname IN (SELECT proname FROM listed WHERE added OR proretset)
"""

AGGREGATES: Final = f"""
SELECT aggfnoid::oid, ARRAY[aggtransfn, aggfinalfn, aggcombinefn, aggserialfn, aggdeserialfn, aggmtransfn,
                            aggminvtransfn, aggmfinalfn]::oid[]
FROM pg_aggregate WHERE aggfnoid >= {FIRST_USER_OID}
"""

OPERATORS: Final = f"""
WITH listed AS (
  SELECT o.*, n.nspname, {_NOT_THE_SERVERS.format(oid="o.oid")} AS added
  FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE {_SCHEMAS} AND o.oprcode <> 0)
SELECT o.oid, o.nspname, o.oprname, o.oprleft, o.oprright, o.oprresult, o.oprcode::oid,
       ARRAY[o.oprrest, o.oprjoin]::oid[]
FROM listed o WHERE o.added OR o.oprname IN (SELECT oprname FROM listed WHERE added)
"""

CASTS: Final = f"""
SELECT castsource, casttarget, castfunc, castcontext::text, castmethod::text FROM pg_cast
WHERE oid >= {FIRST_USER_OID}
"""

# Row types follow from their relations and ordinary arrays from their elements: Catalog.type makes those.
TYPES: Final = f"""
SELECT t.oid, n.nspname, t.typname, t.typtype::text, t.typcategory::text,
       CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END,
       CASE t.typtype WHEN 'd' THEN t.typbasetype WHEN 'r' THEN r.rngsubtype WHEN 'm' THEN m.rngtypid
                      ELSE 0 END,
       t.typrelid,
       ARRAY[t.typinput, t.typoutput, t.typreceive, t.typsend, t.typmodin, t.typmodout, t.typsubscript,
             coalesce(r.rngcanonical, 0), coalesce(r.rngsubdiff, 0)]::oid[]
         || ARRAY(SELECT p.amproc::oid FROM pg_opclass k JOIN pg_amproc p ON p.amprocfamily = k.opcfamily
                  WHERE k.oid = r.rngsubopc AND k.oid >= {FIRST_USER_OID})
FROM pg_type t
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_class c ON c.oid = t.typrelid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_range r ON r.rngtypid = t.oid
LEFT JOIN pg_range m ON m.rngmultitypid = t.oid
WHERE {_SCHEMAS} AND {_NOT_THE_SERVERS.format(oid="t.oid")} AND t.typisdefined
  AND coalesce(c.relkind = 'c', true)
  AND coalesce(t.typname <> '_' || e.typname OR t.typnamespace <> e.typnamespace, true)
"""

# Default classes alone: another is used where an index or ORDER BY … USING names it.
COMPARISONS: Final = f"""
WITH used AS (
  SELECT k.opcintype AS type, k.opcfamily AS family FROM pg_opclass k JOIN pg_am a ON a.oid = k.opcmethod
  WHERE k.opcdefault AND a.amname IN ('btree', 'hash') AND k.oid >= {FIRST_USER_OID}
  UNION SELECT r.rngtypid, k.opcfamily FROM pg_range r JOIN pg_opclass k ON k.oid = r.rngsubopc
  WHERE k.oid >= {FIRST_USER_OID})
SELECT u.type, p.amproc::oid FROM used u JOIN pg_amproc p ON p.amprocfamily = u.family
UNION SELECT u.type, o.oprcode::oid FROM used u JOIN pg_amop m ON m.amopfamily = u.family
      JOIN pg_operator o ON o.oid = m.amopopr
"""

# One argument suffices, and its type is record, "any" or polymorphic so that a row fits.
ROW_FUNCTIONS: Final = """
SELECT DISTINCT p.proname::text FROM pg_proc p
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.pronargs >= 1 AND p.pronargs - p.pronargdefaults <= 1
  AND p.proargtypes[0] IN ('record'::regtype, '"any"'::regtype, 'anyelement'::regtype, 'anynonarray'::regtype,
                           'anycompatible'::regtype, 'anycompatiblenonarray'::regtype)
"""

# The rows each part counts are those whose change the snapshot would show. A row's xmin changes when it is
# written and keeps its value when it is frozen; ANALYZE and VACUUM update counts in place and leave it alone.
_TEMPORARY: Final = "(SELECT oid FROM pg_class WHERE relpersistence = 't')"
_TEMPORARY_SCHEMAS: Final = (
    r"(SELECT oid FROM pg_namespace WHERE nspname LIKE 'pg\_temp\_%' OR nspname LIKE 'pg\_toast%')"
)
_STAMPED: Final = (
    ("pg_namespace", r"x.nspname NOT LIKE 'pg\_%'"),
    ("pg_class", f"x.relpersistence <> 't' AND x.relnamespace NOT IN {_TEMPORARY_SCHEMAS}"),
    ("pg_attribute", f"x.attrelid >= {FIRST_USER_OID} AND x.attnum > 0 AND x.attrelid NOT IN {_TEMPORARY}"),
    ("pg_attrdef", f"x.adrelid NOT IN {_TEMPORARY}"),
    ("pg_constraint", f"x.connamespace NOT IN {_TEMPORARY_SCHEMAS}"),
    ("pg_index", f"x.indrelid >= {FIRST_USER_OID} AND x.indrelid NOT IN {_TEMPORARY}"),
    ("pg_inherits", f"x.inhrelid NOT IN {_TEMPORARY}"),
    ("pg_trigger", f"x.tgrelid NOT IN {_TEMPORARY}"),
    ("pg_policy", "true"),
    ("pg_rewrite", f"x.ev_class NOT IN {_TEMPORARY}"),
    ("pg_type", f"x.typnamespace NOT IN {_TEMPORARY_SCHEMAS}"),
    ("pg_range", "true"),
    ("pg_proc", f"x.pronamespace NOT IN {_TEMPORARY_SCHEMAS}"),
    ("pg_aggregate", "true"),
    ("pg_operator", f"x.oprnamespace NOT IN {_TEMPORARY_SCHEMAS}"),
    ("pg_cast", "true"),
    ("pg_opclass", "true"),
    ("pg_amproc", "true"),
    ("pg_amop", "true"),
    ("pg_db_role_setting", "true"),
)
# What SERVERS_COLUMNS, _FUNCTIONS and _TYPES are read from. Names of schemas are among it: information_schema
# can be renamed.
_SERVERS_STAMPED: Final = (
    ("pg_namespace", "true"),
    ("pg_class", f"x.oid < {FIRST_USER_OID}"),
    ("pg_attribute", f"x.attrelid < {FIRST_USER_OID} AND x.attnum > 0"),
    ("pg_type", f"x.oid < {FIRST_USER_OID}"),
    ("pg_proc", f"x.oid < {FIRST_USER_OID}"),
)


def _stamps(stamped: Sequence[tuple[str, str]]) -> str:
    # OFFSET 0 keeps the planner from taking the conversion apart into two.
    return "\nUNION ALL\n".join(
        f"SELECT {number}, count(*), coalesce(sum(w.writer), 0), coalesce(bit_xor(w.writer), 0)"
        f" FROM (SELECT x.xmin::text::bigint AS writer FROM {table} x WHERE {condition} OFFSET 0) w"
        for number, (table, condition) in enumerate(stamped)
    )


EPOCH: Final = _stamps(_STAMPED)
SERVERS_EPOCH: Final = _stamps(_SERVERS_STAMPED)
"""Equal where the three would be read the same."""

VISIBLE: Final = "SELECT pg_current_snapshot()::text"
