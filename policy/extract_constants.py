"""What the tree spells out as a constant, under the casts that may be round it.

Owns the reading of one, as it is spelt and as it is passed on: ``'orders_old'::varchar(6)`` spells one name
and passes another. Knows no other node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from policy.builtin import PG_CATALOG
from policy.extract_walk import Fields, strings

_WRAPPERS: Final = 8
"""How many casts a constant is looked for under: each level of a chain looks again."""
_MAX_NAME_BYTES: Final = 63
"""A longer ``name`` is cut (NAMEDATALEN)."""
_WHOLE: Final = re.compile("0|[1-9][0-9]*", re.ASCII)
"""A whole number as PostgreSQL would write it again."""
_TRUTHS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("t", "true", "y", "yes", "on", "1"), "true"),
    **dict.fromkeys(("f", "false", "n", "no", "off", "0"), "false"),
}
_NUMBERS: Final = frozenset({"int2", "int4", "int8", "numeric", "oid"})
_TEXTS: Final = frozenset({"text", "varchar", "cstring", "unknown"})
"""Types that keep a text as it is."""


def constant(node: Fields) -> str | None:
    """The value of a constant other than NULL as it is spelt; a few casts and argument names are looked
    through, whatever they make of it."""
    for _ in range(_WRAPPERS):
        for name, fields in node.items():
            if name == "A_Const":
                return _constant_text(fields)
            if name not in ("TypeCast", "NamedArgExpr", "CollateClause"):
                return None
            node = fields.get("arg", {})
    return None


def exact_constant(node: Fields) -> str | None:
    """The text that a constant other than NULL has behind its casts; None where one may make another of it.

    A cast to a length cuts, one to bits or "char" reads digits otherwise, and a type of somebody's own may do
    anything.
    """
    casts: list[Fields] = []
    for _ in range(_WRAPPERS):
        for name, fields in node.items():
            if name == "A_Const":
                return _behind(casts, fields)
            if name not in ("TypeCast", "NamedArgExpr", "CollateClause"):
                return None
            if name == "TypeCast":
                casts.append(fields["typeName"])
            node = fields.get("arg", {})
    return None


def _behind(casts: list[Fields], fields: Fields) -> str | None:
    """The constant ``fields`` as text, behind ``casts``, the innermost last."""
    text = _constant_text(fields)
    if casts and text is not None and not {"sval", "boolval"} & fields.keys() and not _WHOLE.fullmatch(text):
        # 1e3 is written as 1000, and bits without their letter.
        return None
    while casts and text is not None:
        text = _cast(text, casts.pop(), outermost=not casts)
    return text


def _cast(text: str, spelt: Fields, *, outermost: bool) -> str | None:
    """``text`` as a value of the TypeName ``spelt``; None where that may be another."""
    *schema, name = strings(spelt.get("names", ())) or [""]
    if schema not in ([], [PG_CATALOG]) or "arrayBounds" in spelt or spelt.get("setof"):
        return None
    if "typmods" in spelt:
        return text if name == "varchar" and len(text) <= _length(spelt) else None
    if name == "regclass":
        # Which relation it is stays the same; how that is written depends on the path.
        return text if outermost else None
    if name in _TEXTS or (name == "name" and len(text.encode()) <= _MAX_NAME_BYTES):
        return text
    if name in _NUMBERS:
        return text if _WHOLE.fullmatch(text) else None
    return _TRUTHS.get(text.strip().lower()) if name == "bool" else None


def _length(spelt: Fields) -> int:
    (length,) = spelt["typmods"]
    return int(length.get("A_Const", {}).get("ival", {}).get("ival", 0))


def is_null(node: Fields) -> bool:
    """A NULL constant, cast or not."""
    for _ in range(_WRAPPERS):
        for name, fields in node.items():
            if name == "A_Const":
                return bool(fields.get("isnull"))
            if name != "TypeCast":
                return False
            node = fields.get("arg", {})
    return False


def parameter(node: Fields) -> int | None:
    """The number of the parameter that ``node`` is, cast or not; None for anything else."""
    for _ in range(_WRAPPERS):
        for name, fields in node.items():
            if name == "ParamRef":
                number: int = fields.get("number", 0)
                return number
            if name != "TypeCast":
                return None
            node = fields.get("arg", {})
    return None


def _constant_text(fields: Fields) -> str | None:
    for field, read in _CONSTANTS.items():
        if field in fields:
            return read(fields[field])
    return None


_CONSTANTS: Final[Mapping[str, Callable[[Fields], str]]] = {
    # The JSON tree leaves out 0, false and the empty string.
    "ival": lambda value: str(value.get("ival", 0)),
    "fval": lambda value: str(value.get("fval", "")),
    "sval": lambda value: str(value.get("sval", "")),
    "boolval": lambda value: "true" if value.get("boolval") else "false",
    "bsval": lambda value: str(value.get("bsval", "")),
}
