"""Types of parameters that a Parse message may not declare under ``catalogs: filtered``.

Owns their OIDs, which are the same in every release (src/include/catalog/pg_type.dat). A value bound to one
is looked up as a name, or shown as one, wherever the text puts it. Knows nothing of texts: types that a text
names are ``filtered_values``'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from policy.model import Catalogs, Mode, Policy, Violation

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


def named_parameters(types: Iterable[int], policy: Policy) -> Violation | None:
    """The objection to the ``types``, OIDs, that a Parse message gives its parameters, if there is one."""
    if policy.relations.catalogs is not Catalogs.FILTERED or policy.mode is Mode.OBSERVE:
        return None
    if _NAMING.isdisjoint(types):
        return None
    return Violation(
        "function-not-allowed",
        "A parameter of a type that names objects, as regclass, is not allowed while catalogs are filtered",
        "Declare it as text, or leave its type to the server.",
        line=policy.relations.line,
    )
