"""A statement and its plan, side by side: what a plan rule is given.

Owns the value and the questions that both plan rules ask of it: what a node may be called in front of the
agent, whose columns a name in the plan's text means. Knows no limit's wording.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Protocol

from policy.catalog_values import Function
from policy.facts import Facts
from policy.figures import Figures, Relations
from policy.model import CostLimits, Policy
from policy.names import QualifiedName
from policy.plan import Node
from policy.sizes import COLUMN_NUMBER


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
        if node.relation is None:
            return None
        name = QualifiedName(node.schema or "public", node.relation)
        return name if self.visible(name) else None

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

    def indexed(self, name: QualifiedName) -> Iterator[str]:
        """The columns of ``name`` that lead an index and that the agent may use."""
        relation = self.catalog.relation(*name) if self.catalog is not None else None
        hiding = [rule for rule in self.policy.columns if rule.relation.matches(*name)]
        for column in dict.fromkeys(index.columns[0] for index in relation.indexes) if relation else ():
            if column is not None and not any(rule.hides(column) for rule in hiding):
                yield column
