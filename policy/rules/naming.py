"""How rules call a relation in what the agent reads: by the first name that it could have."""

from __future__ import annotations

from policy.facts import RelationRef
from policy.names import Names, QualifiedName


def display_name(ref: RelationRef, names: Names) -> QualifiedName:
    """The likeliest qualified name of ``ref``; its own spelling where no schema could hold it."""
    candidates = names.relations(ref)
    outside = [c for c in candidates if c.schema != "pg_catalog"]
    if ref.schema is None and outside:
        return outside[0]
    return candidates[0] if candidates else QualifiedName(ref.schema or "?", ref.name)
