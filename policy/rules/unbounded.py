"""What unbounded-join and unbounded-select share: the queries whose rows reach the agent without a bound."""

from __future__ import annotations

from collections.abc import Iterator

from policy.facts import Facts, Query
from policy.names import Names
from policy.rules.naming import system_relation


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
