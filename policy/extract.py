"""From one statement's parse tree to ``Facts``.

Owns the beginning and the end: which handlers there are, what a statement's own text is, and the freezing of
what the walk collected. The walk is ``extract_walk``; what nodes mean is said in ``extract_expression``,
``extract_query``, ``extract_write``, ``extract_utility`` and, for what that only classes, ``extract_define``
and ``extract_reach``.
Knows no parser (a tree is a dict), no policy and no catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from policy import (
    extract_define,
    extract_expression,
    extract_query,
    extract_reach,
    extract_utility,
    extract_write,
)
from policy.extract_walk import (
    MAX_DEPTH,
    Handler,
    NotUnderstoodError,
    Scope,
    SourceText,
    TooDeep,
    Walk,
)
from policy.facts import Cte, Facts, NotUnderstood, Query, Tree
from policy.model import DANGER, StatementClass

__all__ = ["HANDLERS", "MAX_DEPTH", "SourceText", "TooDeep", "extract"]

HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        **extract_expression.HANDLERS,
        **extract_query.HANDLERS,
        **extract_write.HANDLERS,
        **extract_utility.HANDLERS,
        **extract_define.HANDLERS,
        **extract_reach.HANDLERS,
    }
)
_RAW_STATEMENT: Final = frozenset({"stmt", "stmt_location", "stmt_len"})


def extract(raw: Tree, text: SourceText) -> Facts:
    """The facts of one RawStmt, ``{"stmt": {…}, "stmt_location": …, "stmt_len": …}`` (in bytes of ``text``).

    A node, field or enum value that is not known gives facts with ``not_understood`` set, of what was read
    until then. Raises ``TooDeep`` past ``MAX_DEPTH`` nested nodes.
    """
    location, length = raw.get("stmt_location", 0), raw.get("stmt_len", 0)
    end = location + length if length else len(text.data)
    sql = text.data[location:end].decode()
    start = text.position(location) or 1
    walk = Walk(HANDLERS, text, start + len(sql) - len(sql.lstrip()))
    not_understood = None
    try:
        if not raw.keys() <= _RAW_STATEMENT:
            raise NotUnderstoodError("a field of RawStmt")
        walk.visit_final(raw["stmt"])
    except NotUnderstoodError as error:
        not_understood = NotUnderstood(error.what, error.position)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        # A tree whose shape is not the one the handlers were written for: another grammar's.
        not_understood = NotUnderstood(f"a tree of an unexpected shape ({type(error).__name__}: {error})")
    return _freeze(walk, sql, start, next(iter(raw["stmt"])), not_understood)


def _freeze(walk: Walk, sql: str, start: int, node: str, not_understood: NotUnderstood | None) -> Facts:
    if not walk.classes:
        walk.classes[StatementClass.OTHER] = walk.start
    recursive = {cte.query for cte in walk.ctes if cte.recursive}
    return Facts(
        sql=sql,
        start=start,
        node=node,
        classes=frozenset(walk.classes),
        statement_class=max(walk.classes, key=DANGER.__getitem__),
        class_positions=MappingProxyType(walk.classes),
        relations=tuple(walk.relations),
        columns=tuple(walk.columns),
        functions=tuple(walk.functions),
        operators=tuple(walk.operators),
        types=tuple(walk.types),
        compared=tuple(dict.fromkeys(walk.compared)),
        queries=tuple(_query(scope, scope.index in recursive) for scope in walk.scopes),
        joins=tuple(join for join in walk.joins if join is not None),
        ctes=tuple(
            Cte(
                cte.name,
                cte.query,
                cte.recursive,
                cte.materialized,
                cte.column_aliases,
                cte.added_columns,
            )
            for cte in walk.ctes
            if cte.query is not None
        ),
        writes=tuple(walk.writes),
        settings=tuple(walk.settings),
        transactions=tuple(walk.transactions),
        copies=tuple(walk.copies),
        renames=tuple(walk.renames),
        schemas=tuple(walk.schemas),
        session=tuple(walk.session),
        runs=walk.running and not (walk.explains and not walk.analyze),
        explain_analyze=walk.analyze,
        explain_verbose=walk.verbose,
        parameters=walk.parameters,
        creates_temp=walk.creates_temp,
        locks_as_reading=walk.locks_as_reading,
        truncates_referring=walk.truncates_referring,
        makes_json=walk.makes_json,
        not_understood=not_understood,
        depth=walk.deepest,
        nodes=walk.nodes,
    )


def _query(scope: Scope, recursive: bool) -> Query:
    sources = scope.sources
    for at, info in scope.cte_sources:
        sources[at] = replace(sources[at], query=info.query)
    return Query(
        index=scope.index,
        parent=None if scope.parent is None else scope.parent.index,
        sources=tuple(sources),
        outputs=scope.outputs,
        arms=scope.arms,
        final=scope.final,
        relation_count=scope.relation_count,
        limited=scope.limited,
        limit=scope.limit,
        limit_parameter=scope.limit_parameter,
        one_row=scope.one_row,
        distinct=scope.distinct,
        locking=scope.locking,
        recursive=recursive,
        lateral=scope.lateral,
        values_rows=scope.values_rows,
        position=scope.position,
    )
