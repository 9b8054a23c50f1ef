"""The types whose values are names of objects, to whoever holds a number.

Owns their list, and which of somebody's own types and columns hold such a value. Knows no statement.
"""

from __future__ import annotations

from typing import Final

from policy.builtin import PG_CATALOG, SYSTEM_SCHEMAS
from policy.catalog import Catalog
from policy.catalog_values import Relation
from policy.names import QualifiedName
from policy.value_types import made_of

REG_TYPES: Final = frozenset(
    {
        "regclass",
        "regcollation",
        "regconfig",
        "regdictionary",
        "regnamespace",
        "regoper",
        "regoperator",
        "regproc",
        "regprocedure",
        "regrole",
        "regtype",
    }
)
"""Types whose output is a name and whose input looks one up (src/backend/utils/adt/regproc.c)."""
OPEN_TYPES: Final = frozenset({"regcollation", "regconfig", "regdictionary", "regrole"})
"""Types that name what ``catalogs: filtered`` shows to everybody."""
CLOSED_TYPES: Final = REG_TYPES - OPEN_TYPES
"""Types that name what it does not: those that are looked up (``name_givers``)."""


def names_objects(name: QualifiedName, catalog: Catalog) -> bool:
    """Whether values of the type are names of objects, or hold one: a domain, an array, a row."""
    if name.schema == PG_CATALOG:
        return name.name.removeprefix("_") in CLOSED_TYPES
    return any(names_objects(part, catalog) for part in made_of(name, catalog) if part.schema == PG_CATALOG)


def has_naming_types(catalog: Catalog) -> bool:
    """Whether somebody has made a type, be it a table's row, whose values hold names of objects.

    Asked for a Parse message that declares a parameter of somebody's type, and found once for a schema.
    """
    known = _known.get(catalog.sha256)
    if known is None:
        while len(_known) >= _KEPT:
            _known.pop(next(iter(_known)), None)
        known = _known[catalog.sha256] = _find_naming_types(catalog)
    return known


_KEPT: Final = 64
_known: Final[dict[str, bool]] = {}


def _find_naming_types(catalog: Catalog) -> bool:
    made = {QualifiedName(each.schema, each.name) for each in catalog.content.types}
    made |= {
        column.type
        for relation in catalog.content.relations
        if relation.schema not in SYSTEM_SCHEMAS
        for column in relation.columns
    }
    return any(names_objects(name, catalog) for name in made)


def naming_columns(relation: Relation, catalog: Catalog) -> frozenset[str]:
    """The columns of somebody's own relation that hold such values."""
    if relation.schema in SYSTEM_SCHEMAS:
        return frozenset()
    return frozenset(column.name for column in relation.columns if names_objects(column.type, catalog))
