"""Types of parameters that a Parse message may not declare unless ``catalogs`` are on.

Owns their OIDs, which are the same in every release (src/include/catalog/pg_type.dat). A value bound to one
is looked up as a name, or shown as one, wherever the text puts it. Knows nothing of texts: types that a text
names are ``filtered_values``'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policy.catalog import Catalog
from policy.model import Catalogs, Mode, Policy, Violation
from policy.reg_types import has_naming_types

_NAMING: Final = frozenset(
    {
        24,  # regproc
        1008,
        2202,  # regprocedure
        2207,
        2203,  # regoper
        2208,
        2204,  # regoperator
        2209,
        2205,  # regclass
        2210,
        2206,  # regtype
        2211,
        4089,  # regnamespace
        4090,
    }
)
"""Each with its array type."""


_FIRST_OF_USERS: Final = 16384
"""The first OID of a type that somebody has made: FirstNormalObjectId in access/transam.h."""


def named_parameters(types: Sequence[int], policy: Policy, catalog: Catalog | None) -> Violation | None:
    """The objection to the ``types``, OIDs, that a Parse message gives its parameters, if there is one.

    Which of somebody's own types a number means is not known: where one of them holds names, all are refused
    to whom catalogs are shown. Where none is open at all, that would refuse every enum for what its neighbour
    could tell: the name of an object whose number has been guessed.
    """
    if policy.relations.catalogs is Catalogs.ON or policy.mode is Mode.OBSERVE:
        return None
    filtered = policy.relations.catalogs is Catalogs.FILTERED
    own = filtered and any(each >= _FIRST_OF_USERS for each in types)
    if _NAMING.isdisjoint(types) and not (own and (catalog is None or has_naming_types(catalog))):
        return None
    return Violation(
        "function-not-allowed",
        "A parameter of a type that names objects, as regclass, is not allowed unless catalogs are open",
        "Declare it as text, or leave its type to the server.",
        line=policy.relations.line,
    )
