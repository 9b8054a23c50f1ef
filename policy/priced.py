"""A statement and its plan, side by side: what a plan rule is given.

Owns the value and the questions that both plan rules ask of it: what a node may be called in front of the
agent, whose columns a name in the plan's text means. Knows no limit's wording.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Final, Protocol

from policy.catalog_values import Function
from policy.facts import Facts
from policy.figures import Figures, Relations
from policy.model import CostLimits, Policy
from policy.names import QualifiedName
from policy.plan import Node
from policy.sizes import COLUMN_NUMBER

_UNSAID_SCHEMA: Final = "public"
"""Of relations in a plan that was asked without VERBOSE."""


class PlanCatalog(Relations, Protocol):
    """What plan rules ask of a catalog; ``policy.catalog.Catalog`` answers it."""

    def functions_named(self, name: str) -> tuple[Function, ...]: ...


@dataclass(frozen=True)
class Priced:
    """``limits`` are those in force for this statement: the policy's, or an allowance's ceiling.

    ``today`` is what the plan's now() stands for, ``visible`` whether the agent may be told of a relation.
    Without a ``catalog`` sizes come from the plan alone and every function outside pg_catalog is taken for a
    volatile set.
    """

    figures: Figures
    facts: Facts
    limits: CostLimits
    policy: Policy
    today: date
    visible: Callable[[QualifiedName], bool]
    catalog: PlanCatalog | None = None

    def shown(self, node: Node) -> QualifiedName | None:
        """The relation of ``node`` where the agent may know its name: a view's tables are the view's
        secret."""
        whole = self._wholes.get(id(node))
        if whole is not None:
            return whole if self.visible(whole) else None
        return None if node.relation is None else self.named(node.schema, node.relation)

    def named(self, schema: str | None, relation: str) -> QualifiedName | None:
        """What the relation of a plan is called in front of the agent: a part of a table that the statement
        does not name itself by the name of the whole."""
        name = QualifiedName(schema or _UNSAID_SCHEMA, relation)
        known = self.catalog.relation(*name) if self.catalog is not None else None
        if known is not None and self.catalog is not None and relation not in self._named:
            above = [each for each in self.catalog.ancestors(known) if self.visible(each)]
            if above:
                return min(above, key=self._height)
        return name if self.visible(name) else None

    def _height(self, name: QualifiedName) -> int:
        """How many tables the one of this name is a part of."""
        known = self.catalog.relation(*name) if self.catalog is not None else None
        return len(self.catalog.ancestors(known)) if known is not None and self.catalog is not None else 0

    @cached_property
    def _named(self) -> frozenset[str]:
        return frozenset(ref.name for ref in self.facts.relations)

    @cached_property
    def _wholes(self) -> Mapping[int, QualifiedName]:
        return {id(each.node): each.whole for each in self.figures.nodes if each.whole is not None}

    def relations_below(self, node: Node) -> tuple[QualifiedName, ...]:
        """The relations read by ``node`` and what is below it, in plan order, those that may be named."""
        return tuple(dict.fromkeys(name for each in node.walk() if (name := self.shown(each)) is not None))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(figure.node for figure in self.figures.nodes)

    @cached_property
    def _stored(self) -> frozenset[str]:
        return frozenset(n.alias for n in self.nodes if n.relation is not None and n.alias is not None)

    @cached_property
    def _others(self) -> bool:
        return any(node.alias is not None and node.relation is None for node in self.nodes)

    def number_of(self, column: tuple[str, ...]) -> float:
        """At most how large the number in a column of the plan's text is: a ``sizes.NumberOf``."""
        stored = column[-2] in self._stored if len(column) > 1 else bool(self._stored) and not self._others
        return COLUMN_NUMBER if stored else math.inf

    def known(self, name: QualifiedName) -> bool:
        """Whether the catalog says which indexes ``name`` has."""
        return self.catalog is not None and self.catalog.relation(*name) is not None

    def indexed(self, name: QualifiedName) -> Iterator[str]:
        """The columns of ``name`` that lead an index and that the agent may use."""
        relation = self.catalog.relation(*name) if self.catalog is not None else None
        hiding = [rule for rule in self.policy.columns if rule.relation.matches(*name)]
        for column in dict.fromkeys(index.columns[0] for index in relation.indexes) if relation else ():
            if column is not None and not any(rule.hides(column) for rule in hiding):
                yield column
