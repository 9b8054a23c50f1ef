"""Write ``policy/builtin_functions.txt`` from the pg_proc of running servers, and say what awaits review.

By hand, once per new major: ``python -m tests.policy.derive_builtins DSN DSN …``, one DSN for each major, the
oldest and the newest at least; any role will do. Names it prints belong into ``builtin_review.txt`` before
anything else, relations into ``builtin_relations.txt``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psycopg

from policy import builtin

ROW_TYPES = frozenset(
    {"any", "anyelement", "anycompatible", "anynonarray", "anycompatiblenonarray", "record"}
)
"""Argument types that accept a composite value."""

FUNCTIONS_SQL = """
SELECT n.nspname, p.proname, p.prokind, p.provolatile, p.proretset, p.pronargs, p.pronargdefaults,
       p.provariadic <> 0, ARRAY(SELECT t.typname::text
                                 FROM unnest(p.proargtypes) WITH ORDINALITY AS a (type, place)
                                 JOIN pg_type t ON t.oid = a.type ORDER BY a.place), r.typname::text
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
JOIN pg_type r ON r.oid = p.prorettype
WHERE n.nspname IN ('pg_catalog', 'information_schema')
"""
RELATIONS_SQL = """
SELECT n.nspname || '.' || c.relname, ARRAY(SELECT a.attname::text FROM pg_attribute a
                                            WHERE a.attrelid = c.oid AND a.attnum > 0)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('pg_catalog', 'information_schema') AND c.relkind NOT IN ('i', 't')
"""


def describe(connection: psycopg.Connection[Any]) -> dict[str, builtin.Builtin]:
    """Name (schema-qualified outside pg_catalog) -> the worst case over its overloads on this server."""
    found: dict[str, builtin.Builtin] = {}
    for row in connection.execute(FUNCTIONS_SQL):
        schema, name, kind, volatility, is_set, nargs, defaults, variadic, types, result = row
        key = name if schema == builtin.PG_CATALOG else f"{schema}.{name}"
        least = nargs - defaults
        overload = builtin.Builtin(
            name=key,
            kinds=frozenset({builtin.Kind(kind)}),
            volatility=builtin.Volatility(volatility),
            returns_set=is_set,
            takes_row=bool(types) and types[0] in ROW_TYPES and least <= 1 <= (1 if variadic else nargs),
            arities=frozenset() if variadic else frozenset(range(least, nargs + 1)),
            open_arity=least if variadic else None,
            results=frozenset({result}),
        )
        found[key] = worse(found[key], overload) if key in found else overload
    return found


def worse(one: builtin.Builtin, other: builtin.Builtin) -> builtin.Builtin:
    order = list(builtin.Volatility)
    opens = [arity for arity in (one.open_arity, other.open_arity) if arity is not None]
    return builtin.Builtin(
        name=one.name,
        kinds=one.kinds | other.kinds,
        volatility=max(one.volatility, other.volatility, key=order.index),
        returns_set=one.returns_set or other.returns_set,
        takes_row=one.takes_row or other.takes_row,
        arities=one.arities | other.arities,
        open_arity=min(opens, default=None),
        results=one.results | other.results,
    )


def merge(servers: Iterable[Mapping[str, builtin.Builtin]]) -> dict[str, builtin.Builtin]:
    merged: dict[str, builtin.Builtin] = {}
    for server in servers:
        for name, function in server.items():
            merged[name] = worse(merged[name], function) if name in merged else function
    return merged


def relations(connection: psycopg.Connection[Any]) -> dict[str, list[str]]:
    """``schema.name`` of every system table and view -> its columns."""
    return dict(connection.execute(RELATIONS_SQL).fetchall())


def render(function: builtin.Builtin) -> str:
    flags = ("s" if function.returns_set else "") + ("r" if function.takes_row else "")
    arities = [str(arity) for arity in sorted(function.arities)]
    if function.open_arity is not None:
        arities.append(f"{function.open_arity}+")
    kinds = "".join(sorted(function.kinds))
    results = ",".join(sorted(function.results))
    return f"{function.name} {kinds} {function.volatility} {flags or '-'} {','.join(arities)} {results}"


HEADER = """\
# What pg_proc of PostgreSQL 15 and 18 says of their functions. Written by tests/policy/derive_builtins.py;
# the judgement on them is in builtin_review.txt. One name a line, over all its overloads:
#   name
#   kinds: f function, a aggregate, w window, p procedure
#   volatility: the worst of i, s, v
#   flags: s returns a set, r takes a whole row as its one argument, - neither
#   numbers of arguments: 2,3 those alone, 2+ any number from 2 (VARIADIC)
#   types that it can return
"""


def main(dsns: list[str]) -> int:
    servers, seen = [], set[str]()
    for dsn in dsns:
        with psycopg.connect(dsn) as connection:
            servers.append(describe(connection))
            seen |= set(relations(connection))
    merged = merge(servers)
    target = Path(builtin.__file__).with_name("builtin_functions.txt")
    lines = [render(merged[name]) + "\n" for name in sorted(merged)]
    target.write_text(HEADER + "".join(lines), encoding="utf-8")
    unreviewed = sorted(set(merged) - set(builtin.REVIEWS)) + sorted(seen - set(builtin.RELATIONS))
    sys.stdout.write("".join(f"not reviewed: {name}\n" for name in unreviewed))
    return 1 if unreviewed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
