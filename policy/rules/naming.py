"""What rules share about names: how a relation is called in what the agent reads, and PostgreSQL's own."""

from __future__ import annotations

from policy.builtin import PG_CATALOG, catalog_relation
from policy.catalog_names import CatalogNames, UnreadCatalog
from policy.facts import RelationRef
from policy.model import Violation
from policy.names import Names, QualifiedName


def display_name(ref: RelationRef, names: Names) -> QualifiedName:
    """The likeliest qualified name of ``ref``; its own spelling where no schema could hold it."""
    candidates = names.relations(ref)
    if not candidates and isinstance(names, CatalogNames):
        candidates = names.by_path.relations(ref)
    outside = [c for c in candidates if c.schema != "pg_catalog"]
    if ref.schema is None and outside:
        return outside[0]
    return candidates[0] if candidates else QualifiedName(ref.schema or "?", ref.name)


def system_relation(ref: RelationRef, names: Names) -> QualifiedName | None:
    """The system catalog or view that ``ref`` is for certain; None where it is or may be anything else.

    PostgreSQL looks in pg_catalog first (search_path may not move it: ``settings.HELD``), so a name that is
    there for certain is that one and no other.
    """
    for name in names.relations(ref):
        if (ref.schema is not None or name.schema == PG_CATALOG) and catalog_relation(*name) is not None:
            return name
    return None


def unread(rule: str, names: UnreadCatalog, position: int | None) -> Violation:
    """The objection to what cannot be judged because the catalog is wanting."""
    return Violation(
        rule=rule,
        message=f"The catalog of database {names.database} cannot be read, so names cannot be judged",
        hint="Try again in a minute; if it lasts, report it to whoever runs the gate.",
        position=position,
        repairable=False,
    )
