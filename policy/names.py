"""Which objects a name could mean.

The seam between rules and whatever knows the schema. ``PathNames`` works from the session's search_path alone
and is conservative: every schema the name could resolve in is a candidate, and rules require every candidate
to be allowed. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from policy.facts import FunctionRef, RelationRef


class QualifiedName(NamedTuple):
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


SearchPath = tuple[str, ...]
"""Effective schemas in order, as ``current_schemas(false)`` gives them: no "$user", pg_catalog implicit."""


class Names(Protocol):
    """What a rule may ask about names. A catalog-backed implementation answers more exactly."""

    def relations(self, ref: RelationRef) -> Sequence[QualifiedName]:
        """Every relation that ``ref`` could be, most likely first; empty where it surely does not exist."""
        ...

    def functions(self, ref: FunctionRef) -> Sequence[QualifiedName]:
        """Every function that ``ref`` could call by name, pg_catalog's included."""
        ...


@dataclass(frozen=True, slots=True)
class PathNames:
    """Names by search_path alone.

    ``paths`` are all the search paths that may be in force when the statement runs: one as a rule, several
    between a SET search_path that is still under way and the server's word on it.
    """

    paths: tuple[SearchPath, ...] = (("public",),)

    def relations(self, ref: RelationRef) -> Sequence[QualifiedName]:
        if ref.schema is not None:
            return (QualifiedName(ref.schema, ref.name),)
        if ref.name.startswith("pg_"):
            # Every relation of pg_catalog is named so, and pg_catalog is searched first.
            return (QualifiedName("pg_catalog", ref.name), *self._along_paths(ref.name))
        return self._along_paths(ref.name)

    def functions(self, ref: FunctionRef) -> Sequence[QualifiedName]:
        if ref.schema is not None:
            return (QualifiedName(ref.schema, ref.name),)
        return (QualifiedName("pg_catalog", ref.name), *self._along_paths(ref.name))

    def _along_paths(self, name: str) -> tuple[QualifiedName, ...]:
        seen = dict.fromkeys(schema for path in self.paths for schema in path)
        return tuple(QualifiedName(schema, name) for schema in seen)
