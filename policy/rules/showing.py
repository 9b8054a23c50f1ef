"""What hints may name: relations and columns that the policy opens to the agent.

Shared by the rules on unknown names and by whatever adds a hint to an engine's error. A name that it does not
show is never told, whatever it is near to.
"""

from __future__ import annotations

from policy.builtin import SYSTEM_SCHEMAS
from policy.catalog_names import CatalogNames
from policy.catalog_values import ColumnId
from policy.facts import RelationRef
from policy.model import Policy
from policy.names import QualifiedName
from policy.rules.columns_by_catalog import HiddenColumns
from policy.rules.relation_not_allowed import is_open


class Showing:
    """Answers ``suggest.Shown`` for one policy and catalog. Remembers what it was asked."""

    def __init__(self, names: CatalogNames, policy: Policy) -> None:
        self._names = names
        self._policy = policy
        self._hidden = HiddenColumns(names, policy)
        self._relations: dict[QualifiedName, bool] = {}

    def __call__(self, column: ColumnId) -> bool:
        if not self.relation(QualifiedName(column.schema, column.relation)):
            return False
        return self._hidden.rule(column) is None

    def relation(self, name: QualifiedName) -> bool:
        """Whether the agent may use the relation, and hence be told of it."""
        known = self._relations.get(name)
        if known is None:
            known = self._relations[name] = self._is_open(name)
        return known

    def _is_open(self, name: QualifiedName) -> bool:
        relation = self._names.catalog.relation(*name)
        if relation is None or not is_open(name, self._names.catalog, self._policy):
            return False
        return self._hidden.rule_on_rows(relation) is None

    def spelt(self, name: QualifiedName) -> str:
        """``name`` as the agent can write it: without its schema where the search path finds it so."""
        found = tuple(self._names.relations(RelationRef(name.name)))
        return name.name if found == (name,) else str(name)

    def column_rule_allows(self, schema: str, relation: str, column: str) -> bool:
        return self(ColumnId(schema, relation, column))


def is_system(name: QualifiedName) -> bool:
    return name.schema in SYSTEM_SCHEMAS
