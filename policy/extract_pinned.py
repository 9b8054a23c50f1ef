"""Which setting a set_config changes whose setting's name is read from a relation that WHERE narrows to one.

Owns the reading of pg_dump's ``SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings WHERE
name = 'restrict_nonsystem_relation_kind'``: the name is the column's, and whatever the WHERE lets pass equals
the constant. That equal means the same text holds of the server's own pg_settings alone; whether it is that
one, only names can say, not the tree (``rules/setting_not_allowed``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from policy.extract_walk import Fields, Scope, Walk, setting_name, strings
from policy.facts import PinnedName, Source, SourceKind

_COLUMN: Final = "name"
_EQUALS: Final = (["="], ["pg_catalog", "="])


def pinned_name(walk: Walk, arguments: Sequence[Fields]) -> PinnedName | None:
    """What the first of set_config's ``arguments`` can be; None where the tree does not pin it to one text.

    Only for a call in the select list of a query of one relation, not joined and with no column renamed: the
    list is worked out for rows that have passed the WHERE (ExecScan in execScan.c), which of a call elsewhere
    is not certain.
    """
    scope = walk.scope
    if scope is None or walk.clause != "target" or len(scope.sources) != 1:
        return None
    (source,) = scope.sources
    if source.kind is not SourceKind.RELATION or source.relation is None or source.column_aliases:
        return None
    if not arguments or not _is_column(arguments[0], source):
        return None
    held = [text for text in _held_to(scope, source) if text is not None]
    return PinnedName(setting_name(held[0]), source.relation) if held else None


def _held_to(scope: Scope, source: Source) -> Iterator[str | None]:
    """The constants that conjuncts of the WHERE hold the column to."""
    waiting = [scope.where]
    while waiting:
        for kind, fields in waiting.pop().items():
            if kind == "BoolExpr" and fields["boolop"] == "AND_EXPR":
                waiting += fields["args"]
            elif kind == "A_Expr" and fields["kind"] == "AEXPR_OP" and strings(fields["name"]) in _EQUALS:
                sides = fields.get("lexpr", {}), fields.get("rexpr", {})
                for column, constant in (sides, sides[::-1]):
                    if _is_column(column, source):
                        yield _text(constant)


def _is_column(node: Fields, source: Source) -> bool:
    parts = node["ColumnRef"]["fields"] if "ColumnRef" in node else ()
    if not parts or any("String" not in part for part in parts):
        return False
    return strings(parts) in ([_COLUMN], [source.name, _COLUMN])


def _text(node: Fields) -> str | None:
    """A bare string constant. A cast or collation would have another type's or its own idea of equal."""
    constant = node.get("A_Const", {})
    return str(constant["sval"].get("sval", "")) if "sval" in constant else None
