"""What unbounded-join and unbounded-select share: the queries whose rows reach the agent without a bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policy.facts import Facts, Query, SourceKind
from policy.names import Names
from policy.rules.naming import system_relation

_BODIES: Final = frozenset({SourceKind.SUBQUERY, SourceKind.CTE})


def unbounded_queries(facts: Facts, names: Names) -> Iterator[Query]:
    """The final queries and, in place of set operations, their arms: those that nothing bounds.

    What RETURNING gives back is as much as was written, which is judged elsewhere. A statement that reads
    system catalogs alone is bounded by the size of the schema: drivers look types and tables up by joins of
    many of them, which no agent could repair.
    """
    if all(system_relation(ref, names) is not None for ref in facts.relations):
        return
    writing = {write.query for write in facts.writes}
    waiting = [query.index for query in facts.queries if query.final and query.index not in writing]
    while waiting:
        query = facts.queries[waiting.pop()]
        if query.limited or query.one_row:
            continue
        if query.arms:
            waiting.extend(reversed(query.arms))
        else:
            yield query


def joined_relations(facts: Facts, query: Query) -> int:
    """How many relations the FROM of ``query`` joins: also those within its sub-selects and CTEs, which are
    so many relations less only where LIMIT or an aggregate bounds them. Of a set operation, its larger arm.
    """
    return _joined(facts, query.index, frozenset())


def _joined(facts: Facts, index: int, within: frozenset[int]) -> int:
    query = facts.queries[index]
    if index in within or (within and (query.limited or query.one_row)):
        # A recursive CTE reads itself; what is bounded multiplies nothing.
        return 0
    inside = within | {index}
    if query.arms:
        return max(_joined(facts, arm, inside) for arm in query.arms)
    below = (source.query for source in query.sources if source.kind in _BODIES and source.query is not None)
    return query.relation_count + sum(_joined(facts, each, inside) for each in below)
