"""Names by a catalog snapshot: exactly what PostgreSQL would find along the search paths in force.

Owns the catalog-backed ``Names`` and what stands in its place where a catalog is wanted and cannot be read.
Knows no policy. A value is part of a decision cache's key, so equality and hash are cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from policy.catalog import Catalog, effective_path
from policy.facts import Facts, FunctionRef, RelationRef
from policy.names import PathNames, QualifiedName, SearchPath
from policy.resolve import Resolution, resolve

T = TypeVar("T")


class CatalogNames:
    """Names by ``catalog`` along ``paths``, all the search paths that may be in force.

    ``temporary`` says that the session may hold temporary relations, which no snapshot shows; ``unsettled``
    that it has itself changed the schema in a transaction that is still open, so that nothing the snapshot
    says of a relation or function is certain. Safe to share between threads.
    """

    __slots__ = ("_hash", "_last", "by_path", "catalog", "paths", "schemas", "temporary", "unsettled")

    def __init__(
        self,
        catalog: Catalog,
        paths: tuple[SearchPath, ...],
        *,
        temporary: bool = True,
        unsettled: bool = False,
    ) -> None:
        self.catalog: Final = catalog
        self.paths: Final = paths
        self.temporary: Final = temporary or unsettled
        self.unsettled: Final = unsettled
        self.by_path: Final = PathNames(paths)
        """The same names where no catalog says which of the schemas has them."""
        self.schemas: Final = tuple(
            dict.fromkeys(schema for path in paths for schema in effective_path(path))
        )
        """Every schema that an unqualified name may be found in, pg_catalog included."""
        self._hash = hash((catalog.sha256, paths, self.temporary, unsettled))
        self._last: tuple[Facts, dict[Callable[..., Any], Any]] | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, CatalogNames)
            and self._hash == other._hash
            and self.paths == other.paths
            and (self.temporary, self.unsettled) == (other.temporary, other.unsettled)
            and self.catalog == other.catalog
        )

    def __hash__(self) -> int:
        return self._hash

    def after_change(self) -> CatalogNames:
        """The same names once the session has changed the schema, until that is committed and read."""
        return CatalogNames(self.catalog, self.paths, temporary=True, unsettled=True)

    def relations(self, ref: RelationRef) -> Sequence[QualifiedName]:
        """The relations that ``ref`` means along the paths; none where the snapshot has none."""
        if ref.schema is not None:
            found = self.catalog.relation(ref.schema, ref.name)
            return () if found is None else (found.qualified,)
        each = (self.catalog.resolve(ref.name, path) for path in self.paths)
        return tuple(dict.fromkeys(relation.qualified for relation in each if relation is not None))

    def functions(self, ref: FunctionRef) -> Sequence[QualifiedName]:
        """Every function of the name that the paths reach and the snapshot holds. Of pg_catalog's own it
        holds few: ``policy.builtin`` knows them."""
        schemas = (ref.schema,) if ref.schema is not None else self.schemas
        return tuple(
            QualifiedName(schema, ref.name) for schema in schemas if self.catalog.functions(schema, ref.name)
        )

    def resolve(self, facts: Facts) -> Resolution:
        """``resolve.resolve`` of ``facts``."""
        return self.shared(facts, _resolve)

    def shared(self, facts: Facts, learn: Callable[[Facts, CatalogNames], T]) -> T:
        """``learn(facts, self)``, which all who ask for it while ``facts`` are judged share."""
        last = self._last
        if last is None or last[0] is not facts:
            last = self._last = (facts, {})
        known = last[1].get(learn)
        if known is None:
            known = last[1][learn] = learn(facts, self)
        return cast(T, known)


def _resolve(facts: Facts, names: CatalogNames) -> Resolution:
    return resolve(facts, names.catalog, names.paths, temporary=names.temporary, unsettled=names.unsettled)


@dataclass(frozen=True, slots=True)
class UnreadCatalog(PathNames):
    """Names where the catalog of ``database`` should be known and cannot be read: what needs it is
    refused."""

    database: str = ""


SessionNames = CatalogNames | PathNames
"""Names of a session: by the catalog, by the search paths alone, or in want of a catalog."""
