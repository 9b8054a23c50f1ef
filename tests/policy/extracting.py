"""What the walk learned of one statement, in the short notation of its tables.

Relations stand as ``use:schema.name``, columns as ``use clause qualifier.name``, calls as
``schema.name/arguments``.
"""

from __future__ import annotations

from policy.facts import CallKind, Facts, Query
from policy.parse import parse


def facts(sql: str) -> Facts:
    found = parse(sql)
    assert found.failure is None, found.failure
    (statement,) = found.statements
    assert statement.not_understood is None, statement.not_understood
    return statement


def dotted(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


def relations(found: Facts) -> set[str]:
    return {f"{r.use.value}:{dotted(r.catalog, r.schema, r.name)}" for r in found.relations}


def calls(found: Facts) -> set[str]:
    return {f"{dotted(f.schema, f.name)}/{f.arguments}" for f in found.functions if f.kind is CallKind.CALL}


def attributes(found: Facts) -> set[str]:
    return {f.name for f in found.functions if f.kind is CallKind.ATTRIBUTE}


def columns(found: Facts) -> set[str]:
    return {f"{c.use.value} {c.clause} {dotted(*c.qualifier, c.name or '*')}" for c in found.columns}


def words(text: str) -> set[str]:
    return set(text.split())


def scope(found: Facts, index: int) -> Query:
    assert found.queries[index].index == index
    return found.queries[index]
