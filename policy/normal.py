"""Statements in a normal form that is free of spelling.

Owns how a statement's tree becomes ``Level`` values: which sources a query level has and under which labels,
what filters its rows (WHERE and the ON of inner joins alike), what only decorates them (outer joins), CTEs
put where they are used. Expressions are ``terms``; what two levels mean to each other is ``implication``.
Pure; knows no catalog and no policy: ``relation_name`` says how a relation is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from policy.expressions import Budget, Node, kind_of, names_of
from policy.facts import RelationRef
from policy.terms import UNREAD, Fields, Form, Reading, Scope, Terms, conjunction, split

MAX_NODES: Final = 40_000
"""Nodes a statement may have to get a normal form."""


class Level(NamedTuple):
    """A SELECT, or the body of a write.

    ``target`` is the label of the written relation. ``sources`` are ``("relation", label)``, ``("rows",
    label, level)`` of a sub-select or CTE, and others as they are. ``where`` filters; ``outer`` holds
    ``(kind, labels that may be null, conditions)`` of each outer join; ``items`` are what is selected or
    assigned. ``bound`` is LIMIT and OFFSET, ``rest`` all else that decides what comes out, ``shown`` what
    only decides its order or how it is returned.
    """

    tag: str
    action: str
    target: str
    sources: tuple[Form, ...]
    where: tuple[Form, ...]
    outer: tuple[Form, ...]
    having: tuple[Form, ...]
    items: tuple[Form, ...]
    distinct: bool
    bound: Form
    rest: Form
    shown: Form


LEVEL: Final = "level"
_EMPTY: Final = Level(LEVEL, "", "", (), (), (), (), (), False, (), (), ())
WRAPPED: Final[Mapping[str, str]] = {
    "ExplainStmt": "query",
    "DeclareCursorStmt": "query",
    "PrepareStmt": "query",
    "CopyStmt": "query",
    "CreateTableAsStmt": "query",
}
"""Statements about a statement, and the field it is in."""
_SELECT_READ: Final = frozenset(
    {
        "targetList",
        "fromClause",
        "whereClause",
        "havingClause",
        "distinctClause",
        "withClause",
        "limitCount",
        "limitOffset",
        "limitOption",
        "sortClause",
        "larg",
        "rarg",
        "op",
        "all",
    }
)
"""Fields of a SelectStmt that have a place of their own in a Level, or decide no row."""


def levels(
    tree: Node,
    relation_name: Callable[[RelationRef], str],
    reading: Reading = UNREAD,
    max_nodes: int = MAX_NODES,
) -> tuple[Level, ...]:
    """The levels of the statement ``tree`` that stand on their own.

    Writes of its CTEs come first, then itself, then what is wrapped around it (EXPLAIN, DECLARE …).

    () for a statement that has none. Raises ``TooLarge``.
    """
    return _Reader(relation_name, reading, Budget(max_nodes)).read(tree)


def thawed(item: Any) -> Any:
    """Forms and levels as they were before they were written as JSON."""
    if not isinstance(item, list):
        return item
    parts = tuple(thawed(each) for each in item)
    return Level(*parts) if parts[:1] == (LEVEL,) else parts


class _Reader:
    def __init__(self, relation_name: Callable[[RelationRef], str], reading: Reading, budget: Budget) -> None:
        self._relation_name = relation_name
        self._budget = budget
        self._terms = Terms(budget, reading, self._select)
        self._writes: list[Level] = []

    def read(self, tree: Node) -> tuple[Level, ...]:
        kind, fields = kind_of(tree)
        wrappers: list[Level] = []
        while kind in WRAPPED:
            options = {k: v for k, v in fields.items() if k not in (WRAPPED[kind], "whereClause")}
            where = self._terms.conjuncts(fields.get("whereClause"), Scope())
            wrappers.append(_EMPTY._replace(action=kind, where=where, shown=self._generic(options, Scope())))
            kind, fields = kind_of(fields.get(WRAPPED[kind], {}))
        if kind not in _STATEMENTS:
            return tuple(wrappers)
        main = self._statement(kind, fields, None)
        return (*self._writes, main, *wrappers)

    def _statement(self, kind: str, fields: Fields, parent: Scope | None) -> Level:
        return _STATEMENTS[kind](self, fields, parent)

    def _scope(self, fields: Fields, parent: Scope | None) -> Scope:
        """A new level's scope, with the CTEs of its WITH in sight."""
        ctes = dict(parent.ctes) if parent is not None else {}
        scope = Scope(parent, ctes)
        clause = fields.get("withClause", {})
        for item in clause.get("ctes", ()):
            cte = item["CommonTableExpr"]
            name = cte["ctename"]
            if clause.get("recursive"):
                ctes[name] = (("recursive", scope.depth, len(ctes)), 1)
            before = self._budget.left
            kind, query = kind_of(cte["ctequery"])
            level = self._statement(kind, query, scope)
            if kind != "SelectStmt":
                self._writes.append(level)
            columns = _columns(cte.get("aliascolnames", ()))
            options = {k: cte[k] for k in ("search_clause", "cycle_clause") if k in cte}
            extras = self._terms.generic(options, scope) if options else ()
            ctes[name] = (("cte", level, columns, extras), before - self._budget.left)
        return scope

    # Queries ------------------------------------------------------------------------------------------------

    def _select(self, fields: Fields, parent: Scope | None) -> Level:
        self._budget.spend()
        scope = self._scope(fields, parent)
        if fields.get("op", "SETOP_NONE") != "SETOP_NONE":
            return self._set_operation(fields, scope)
        where: list[Form] = []
        outer: list[Form] = []
        sources = self._from(fields.get("fromClause", ()), scope, where, outer)
        where += self._terms.conjuncts(fields.get("whereClause"), scope)
        items = tuple(self._item(target, scope) for target in fields.get("targetList", ()))
        return _EMPTY._replace(
            action="select",
            sources=tuple(sources),
            where=split(conjunction(where)),
            outer=tuple(sorted(outer, key=repr)),
            having=self._terms.conjuncts(fields.get("havingClause"), scope),
            items=items,
            distinct="distinctClause" in fields,
            bound=self._bound(fields, scope),
            rest=self._rest(fields, scope),
            shown=self._order(fields, scope),
        )

    def _set_operation(self, fields: Fields, scope: Scope) -> Level:
        arms = tuple(self._select(fields[side], scope) for side in ("larg", "rarg"))
        return _EMPTY._replace(
            action=f"{fields['op']}{' ALL' if fields.get('all') else ''}",
            sources=arms,
            bound=self._bound(fields, scope),
            rest=self._rest(fields, scope),
            shown=self._order(fields, scope),
        )

    def _order(self, fields: Fields, scope: Scope) -> Form:
        return self._generic({"sortClause": fields["sortClause"]}, scope) if "sortClause" in fields else ()

    def _bound(self, fields: Fields, scope: Scope) -> Form:
        parts = {k: fields[k] for k in ("limitCount", "limitOffset") if k in fields}
        if not parts:
            return ()
        # Which rows a LIMIT takes depends on their order.
        parts |= {k: fields[k] for k in ("limitOption", "sortClause") if k in fields}
        return self._generic(parts, scope)

    def _rest(self, fields: Fields, scope: Scope) -> Form:
        rest = {k: v for k, v in fields.items() if k not in _SELECT_READ}
        if fields.get("distinctClause", [{}]) != [{}]:
            rest["distinctClause"] = fields["distinctClause"]
        return self._generic(rest, scope) if rest else ()

    def _generic(self, fields: Mapping[str, Any], scope: Scope) -> Form:
        form: Form = self._terms.generic(fields, scope)
        return form

    def _item(self, target: Node, scope: Scope) -> Form:
        fields = target["ResTarget"]
        return self._terms.value(fields["val"], scope)

    # FROM ---------------------------------------------------------------------------------------------------

    def _from(self, items: Sequence[Node], scope: Scope, where: list[Form], outer: list[Form]) -> list[Form]:
        """The sources of ``items``; what filters them goes into ``where``, outer joins into ``outer``.

        All are named before any is read, because conditions and LATERAL look at what stands before them.
        """
        named = [label for item in items for label in self._name(item, scope)]
        labels = iter(named)
        return sorted(
            (source for item in items for source in self._source(item, scope, labels, where, outer)[0]),
            key=repr,
        )

    def _name(self, item: Node, scope: Scope) -> list[str]:
        """Give the sources of ``item`` their labels, in the order of the text."""
        kind, fields = kind_of(item)
        if kind == "JoinExpr":
            found = [*self._name(fields["larg"], scope), *self._name(fields["rarg"], scope)]
            alias = fields.get("alias", fields.get("join_using_alias", {})).get("aliasname")
            if alias is not None:
                scope.names[alias] = f"{scope.depth}:join"
            return found
        relation = fields["relation"].get("RangeVar", {}) if kind == "RangeTableSample" else fields
        alias = relation.get("alias", {}).get("aliasname")
        if kind in ("RangeVar", "RangeTableSample") and not self._is_cte(relation, scope):
            base = self._relation_name(RelationRef(relation["relname"], relation.get("schemaname")))
        else:
            base = "()"
        return [self._register(scope, base, alias or relation.get("relname"))]

    @staticmethod
    def _register(scope: Scope, base: str, called: str | None) -> str:
        number = sum(1 for label in scope.labels if label.rpartition("#")[0] == f"{scope.depth}:{base}")
        label = f"{scope.depth}:{base}#{number}"
        scope.labels.append(label)
        if called is not None:
            scope.names[called] = label
        return label

    @staticmethod
    def _is_cte(relation: Fields, scope: Scope) -> bool:
        return "schemaname" not in relation and relation.get("relname") in scope.ctes

    def _source(
        self, item: Node, scope: Scope, labels: Any, where: list[Form], outer: list[Form]
    ) -> tuple[list[Form], list[str]]:
        """The sources of ``item``, and their labels."""
        self._budget.spend()
        kind, fields = kind_of(item)
        if kind == "JoinExpr":
            return self._join(fields, scope, labels, where, outer)
        label = next(labels)
        alias = fields.get("alias", {})
        columns = _columns(alias.get("colnames", ()))
        if kind == "RangeVar":
            if self._is_cte(fields, scope):
                form, cost = scope.ctes[fields["relname"]]
                self._budget.spend(cost)
                return [("rows", label, form, columns)], [label]
            only = () if fields.get("inh", False) else ("only",)
            return [("relation", label, columns, only)], [label]
        if kind == "RangeSubselect":
            around = scope if fields.get("lateral") else Scope(scope.parent, scope.ctes)
            query_kind, query = kind_of(fields["subquery"])
            return [("rows", label, ("cte", self._statement(query_kind, query, around), (), ()), columns)], [
                label
            ]
        kept = {k: v for k, v in fields.items() if k not in ("alias", "relation")}
        return [("other", label, kind, self._generic(kept, scope), columns)], [label]

    def _join(
        self, fields: Fields, scope: Scope, labels: Any, where: list[Form], outer: list[Form]
    ) -> tuple[list[Form], list[str]]:
        kind = fields.get("jointype", "JOIN_INNER")
        nullable: list[Form] = []
        left_where = nullable if kind in ("JOIN_RIGHT", "JOIN_FULL") else where
        right_where = nullable if kind in ("JOIN_LEFT", "JOIN_FULL") else where
        left, left_labels = self._source(fields["larg"], scope, labels, left_where, outer)
        right, right_labels = self._source(fields["rarg"], scope, labels, right_where, outer)
        on = [
            *self._terms.conjuncts(fields.get("quals"), scope),
            *self._merged(fields, left_labels, right_labels),
        ]
        both = [*left_labels, *right_labels]
        if kind == "JOIN_INNER":
            where += on
        else:
            padded = {"JOIN_LEFT": right_labels, "JOIN_RIGHT": left_labels}.get(kind, both)
            name = "full" if kind == "JOIN_FULL" else "one side"
            outer.append((name, tuple(sorted(padded)), split(conjunction([*nullable, *on]))))
        return [*left, *right], both

    @staticmethod
    def _merged(fields: Fields, left: list[str], right: list[str]) -> list[Form]:
        """What USING and NATURAL compare."""
        names = names_of(fields.get("usingClause", ()))
        if fields.get("isNatural"):
            return [("natural", tuple(left), tuple(right))]
        if len(left) == len(right) == 1:
            sides = sorted((left[0], right[0]))
            return [("op", "=", *(("col", side, name) for side in sides)) for name in names]
        return [("using", name, tuple(left), tuple(right)) for name in names]

    # Writes -------------------------------------------------------------------------------------------------

    def _update(self, fields: Fields, parent: Scope | None) -> Level:
        return self._changed("update", fields, parent, "fromClause")

    def _delete(self, fields: Fields, parent: Scope | None) -> Level:
        return self._changed("delete", fields, parent, "usingClause")

    def _changed(self, action: str, fields: Fields, parent: Scope | None, others: str) -> Level:
        scope, where, outer = self._scope(fields, parent), list[Form](), list[Form]()
        sources = self._from([{"RangeVar": fields["relation"]}, *fields.get(others, ())], scope, where, outer)
        where += self._terms.conjuncts(fields.get("whereClause"), scope)
        items = self._assignments(fields.get("targetList", ()), scope)
        shown = self._returning(fields, scope)
        return self._write(action, scope, sources, where=where, outer=outer, items=items, shown=shown)

    def _merge(self, fields: Fields, parent: Scope | None) -> Level:
        scope, where, outer = self._scope(fields, parent), list[Form](), list[Form]()
        sources = self._from(
            [{"RangeVar": fields["relation"]}, fields["sourceRelation"]], scope, where, outer
        )
        where += self._terms.conjuncts(fields.get("joinCondition"), scope)
        clauses = [item["MergeWhenClause"] for item in fields.get("mergeWhenClauses", ())]
        whens = tuple(
            ("when", c["matchKind"], c["commandType"], self._terms.conjuncts(c.get("condition"), scope))
            for c in clauses
        )
        items = tuple(i for c in clauses for i in self._assignments(c.get("targetList", ()), scope))
        values = self._generic({"values": [c.get("values", []) for c in clauses]}, scope)
        return self._write(
            "merge",
            scope,
            sources,
            where=where,
            outer=outer,
            items=items,
            rest=whens,
            shown=(values, self._returning(fields, scope)),
        )

    def _insert(self, fields: Fields, parent: Scope | None) -> Level:
        scope = self._scope(fields, parent)
        query = fields.get("selectStmt", {}).get("SelectStmt")
        where: list[Form] = []
        sources = self._from([{"RangeVar": fields["relation"]}], scope, where, [])
        items: tuple[Form, ...] = ()
        if query is not None and "valuesLists" in query:
            items = self._rows(fields.get("cols", ()), query["valuesLists"], Scope(scope, scope.ctes))
        elif query is not None:
            sources.append(
                ("rows", "select", ("cte", self._select(query, Scope(None, scope.ctes)), (), ()), ())
            )
        scope.names["excluded"] = f"{scope.depth}:excluded"
        conflict = fields.get("onConflictClause", {})
        rest: Form = ()
        if conflict:
            rest = ("conflict", conflict["action"], self._terms.conjuncts(conflict.get("whereClause"), scope))
        names = tuple(column["ResTarget"].get("name", "") for column in fields.get("cols", ()))
        conflicts = {k: conflict[k] for k in ("infer", "targetList") if k in conflict}
        shown = (("cols", *names), self._generic(conflicts, scope), self._returning(fields, scope))
        return self._write(
            "insert",
            scope,
            sources,
            items=items,
            rest=rest,
            shown=shown,
        )

    def _returning(self, fields: Fields, scope: Scope) -> Form:
        kept = {k: fields[k] for k in ("returningList", "returningClause", "override") if k in fields}
        return self._generic(kept, scope)

    def _write(
        self,
        action: str,
        scope: Scope,
        sources: list[Form],
        *,
        where: Sequence[Form] = (),
        outer: Sequence[Form] = (),
        items: tuple[Form, ...] = (),
        rest: Form = (),
        shown: Form = (),
    ) -> Level:
        return _EMPTY._replace(
            action=action,
            target=scope.labels[0],
            sources=tuple(sources),
            where=split(conjunction(where)),
            outer=tuple(sorted(outer, key=repr)),
            items=items,
            rest=rest,
            shown=shown,
        )

    def _assignments(self, targets: Sequence[Node], scope: Scope) -> tuple[Form, ...]:
        found = []
        for target in targets:
            fields = target["ResTarget"]
            value = self._terms.value(fields["val"], scope) if "val" in fields else ()
            found.append(("set", fields.get("name", ""), value))
        return tuple(found)

    def _rows(self, columns: Sequence[Node], rows: Sequence[Node], scope: Scope) -> tuple[Form, ...]:
        """``("set", column or place, value)`` for every value of every row."""
        names = [column["ResTarget"].get("name", "") for column in columns]
        return tuple(
            ("set", names[place] if place < len(names) else place, self._terms.value(value, scope))
            for row in rows
            for place, value in enumerate(row["List"].get("items", ()))
        )


def _columns(names: Sequence[Node]) -> Form:
    """What an alias calls columns: a form, not mere names, of which the first could be taken for a form's."""
    return ("cols", *names_of(names)) if names else ()


_STATEMENTS: Final[Mapping[str, Callable[[_Reader, Fields, Scope | None], Level]]] = {
    "SelectStmt": _Reader._select,
    "InsertStmt": _Reader._insert,
    "UpdateStmt": _Reader._update,
    "DeleteStmt": _Reader._delete,
    "MergeStmt": _Reader._merge,
}
