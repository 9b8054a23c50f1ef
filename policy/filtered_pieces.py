"""What ``filtered`` puts into a statement, in text and in tree: casts, and sketches with a value in their
hole.

Owns the forms of these pieces, and the proof that what is put in is the one SELECT or the one value it is
meant to be. Knows neither which values are looked up nor by what (``filtered_values``, ``name_givers``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from policy.builtin import PG_CATALOG
from policy.expressions import PLACES
from policy.name_givers import HOLE
from policy.parse import trees

Node = Any
Fields = Mapping[str, Any]

FUNCTIONS_RULE: Final = "function-not-allowed"
"""The rule that a refusal of a function, or of a type that looks names up, is told as."""
TEXT: Final = "::pg_catalog.text"


class Wanted(StrEnum):
    """What becomes of a value of a type that looks names up."""

    NAME = "name"
    NUMBER = "number"
    TEXT = "text"


def own_type(name: str) -> Node:
    """The tree of a type of pg_catalog."""
    return {"names": [{"String": {"sval": "pg_catalog"}}, {"String": {"sval": name}}], "typemod": -1}


def own_name(parts: Sequence[Node]) -> str | None:
    """The name, where it is one of pg_catalog's or could be."""
    names = [part.get("String", {}).get("sval") for part in parts]
    if not names or (len(names) > 1 and names[-2] != PG_CATALOG):
        return None
    return str(names[-1])


def cast_to(reg: str, wanted: Wanted, bounds: str = "") -> str:
    """The text that makes a value of type ``reg``, or an array of them with ``bounds`` [], what is wanted."""
    if wanted is Wanted.NUMBER:
        # In brackets alone, as in IN (…), a sub-select would be read as one of many rows.
        return f"::pg_catalog.oid{bounds}"
    return f"::pg_catalog.{reg}{bounds}" + (f"{TEXT}{bounds}" if wanted is Wanted.TEXT else "")


@lru_cache(maxsize=512)
def is_select(text: str) -> bool:
    """Whether it is one SELECT, as may stand in brackets."""
    read = trees(text)
    return len(read) == 1 and "SelectStmt" in read[0] and text == text.strip()


@lru_cache(maxsize=512)
def is_value(before: str, behind: str) -> bool:
    """Whether the two make one value of whatever stands between them, in brackets of its own."""
    read = trees(f"SELECT {before}{HOLE}{behind}")
    if len(read) != 1 or not (before.endswith("(") and behind.startswith(")")):
        return False
    items = read[0].get("SelectStmt", {}).get("targetList", ())
    values = [item["ResTarget"]["val"] for item in items if "name" not in item["ResTarget"]]
    if len(items) != 1 or len(values) != 1 or not values[0].keys() <= {"SubLink", "FuncCall"}:
        return False
    return _holes(values[0]) == 1


def _holes(node: Node) -> int:
    """How often the tree holds the place of the value, by itself."""
    if isinstance(node, list):
        return sum(map(_holes, node))
    if not isinstance(node, Mapping):
        return 0
    if set(node) == {"ColumnRef"} and node["ColumnRef"]["fields"] == [{"String": {"sval": HOLE}}]:
        return 1
    return sum(map(_holes, node.values()))


def filled(before: str, behind: str, value: Node) -> Node:
    """The tree of a sketch, with ``value`` in its hole."""

    def fill(node: Node) -> Node:
        if isinstance(node, list):
            return [fill(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        if set(node) == {"ColumnRef"} and node["ColumnRef"]["fields"] == [{"String": {"sval": HOLE}}]:
            return value
        return {k: fill(v) for k, v in node.items() if k not in PLACES}

    (tree,) = trees(f"SELECT {before}{HOLE}{behind}")
    return fill(tree["SelectStmt"]["targetList"][0]["ResTarget"]["val"])
