"""Does a WHERE narrow anything? An answer from the tree alone.

Owns the analysis behind ``tautology-predicate`` and ``weak-predicate``. The question, asked of a condition in
libpg_query's tree and of the names of the written relation: does it compare a column of the target with
something that is not derived from that same column? ``judge(node, wanted)`` says what rows are left where
``node`` must be ``wanted``, so that NOT is pushed inwards as it goes.

Sound in one direction: what is called ALWAYS holds for every row whose columns are not null. Everything the
analysis does not know counts as narrowing; the planner's estimate and the count of rows written stand behind
it. Knows no catalog and no policy. Bounded by ``MAX_NODES`` visited nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from policy.comparisons import (
    HOLDS,
    MIRRORED,
    NEGATED,
    above_least,
    comparison,
    covers,
    elements,
    folded,
    matches_everything,
    null_only_for_null,
    paired,
)
from policy.expressions import (
    Budget,
    Constant,
    Key,
    Node,
    Scope,
    TooLarge,
    constant,
    difference,
    key,
    kind_of,
    linear,
    mentions_target,
    names_of,
    selected_value,
    sources,
    type_name,
)
from policy.subselects import (
    Select,
    conjuncts,
    is_set_operation,
    join_conditions,
    may_drop_rows,
    own_rows,
    selects_same,
    ties_to_itself,
    yields_nothing,
    yields_one_row,
)
from policy.truths import cast_condition, compared_results, truths

MAX_NODES = 200_000
"""Nodes visited before a condition is left undecided; an IN list of 10,000 constants takes far fewer."""
_LONG_LIST = 64
"""Longer lists of constants are judged as a whole."""

Fields = Mapping[str, Any]


class Narrowing(IntEnum):
    """What a condition leaves of a table. OR takes the greatest of its parts, AND the least."""

    NEVER = 0
    """No row at all."""
    NARROWS = 1
    """Some rows, by what they hold."""
    WEAK = 2
    """Every row but for oddities: ``x IS NOT NULL``, ``x LIKE '%'``, ``length(x) >= 0``."""
    UNTIED = 3
    """All rows or none: it never mentions the target."""
    ALWAYS = 4
    """Every row, null columns aside."""
    UNDECIDED = 5
    """Too large to be looked at."""


def narrowing(
    condition: Node | None,
    target: Iterable[str],
    relation: str | None = None,
    *,
    columns: frozenset[str] | None = None,
    joined_to_itself: Iterable[str] = (),
) -> Narrowing:
    """What ``condition`` leaves of the written relation; ALWAYS for None.

    ``target`` are the names that may stand before the dot of its columns: its alias, or else its own name.
    ``relation`` is its own name, by which a sub-select over the same relation is recognised. ``columns`` are
    the names of all its columns where they are known: another one without a qualifier is a joined relation's.
    ``joined_to_itself`` are the names under which it is joined once more.
    """
    if condition is None:
        return Narrowing.ALWAYS
    scope = Scope(frozenset(target), columns=columns)
    for own in joined_to_itself:
        if all(ties_to_itself(each, own, scope) for each in conjuncts(condition)):
            return Narrowing.ALWAYS
    try:
        return _Analysis(scope, relation, Budget(MAX_NODES)).judge(condition, True)
    except TooLarge:
        return Narrowing.UNDECIDED


def has_alternatives(condition: Node, most_nodes: int) -> bool:
    """True for a condition of at most ``most_nodes`` nodes that is more than comparisons joined by AND."""
    waiting: list[object] = [condition]
    found = False
    while waiting and most_nodes >= 0:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, Mapping):
            most_nodes -= 1
            found = (
                found
                or node.get("boolop") in ("OR_EXPR", "NOT_EXPR")
                or not node.keys().isdisjoint(_BRANCHING)
            )
            waiting.extend(value for value in node.values() if isinstance(value, (list, Mapping)))
    return found and not waiting


_BRANCHING = frozenset({"CaseExpr", "CoalesceExpr", "BooleanTest", "SubLink"})


def all_of(parts: Iterable[Narrowing]) -> Narrowing:
    """AND: one condition that narrows is enough."""
    return min(parts, default=Narrowing.ALWAYS)


def any_of(parts: Iterable[Narrowing]) -> Narrowing:
    """OR: one condition that does not narrow spoils all."""
    return max(parts, default=Narrowing.NEVER)


def _opposite(part: Narrowing) -> Narrowing:
    """Of the negation of a condition that is not looked into again."""
    return _OPPOSITES.get(part, part)


_OPPOSITES = {
    Narrowing.NEVER: Narrowing.ALWAYS,
    Narrowing.ALWAYS: Narrowing.NEVER,
    Narrowing.WEAK: Narrowing.NARROWS,
}


class _Analysis:
    """Reads conditions in one scope: a statement's own, or a sub-select's."""

    def __init__(self, scope: Scope, relation: str | None, budget: Budget) -> None:
        self._scope = scope
        self._relation = relation
        self._budget = budget

    def judge(self, node: Node, wanted: bool) -> Narrowing:
        """What rows are left where ``node`` must be ``wanted``."""
        self._budget.spend()
        value = constant(node)
        if value is not None:
            return _of_constant(value, wanted)
        kind, fields = kind_of(node)
        judge_kind = _KINDS.get(kind)
        return self._by_mention(node) if judge_kind is None else judge_kind(self, node, fields, wanted)

    def _by_mention(self, *nodes: object) -> Narrowing:
        """Of what has no reading of its own: a condition on the target if it mentions it."""
        if any(mentions_target(node, self._scope, self._budget) for node in nodes):
            return Narrowing.NARROWS
        return Narrowing.UNTIED

    def _key(self, node: object) -> Key:
        return key(node, self._scope, self._budget)

    # Boolean structure --------------------------------------------------------------------------------------

    def bool_expr(self, node: Node, fields: Fields, wanted: bool) -> Narrowing:  # noqa: ARG002 - one of a table
        operator = fields["boolop"]
        if operator == "NOT_EXPR":
            return self.judge(fields["args"][0], not wanted)
        if (operator == "AND_EXPR") is wanted:
            return all_of([self.judge(arg, wanted) for arg in fields["args"]])
        return self._alternatives(list(_flattened(fields)), wanted)

    def _alternatives(self, parts: Sequence[Node], wanted: bool) -> Narrowing:
        """One of ``parts`` must be ``wanted``."""
        found = any_of([self.judge(part, wanted) for part in parts])
        if found in (Narrowing.NARROWS, Narrowing.WEAK) and self._complementary(parts, wanted):
            return Narrowing.ALWAYS
        return found

    def _complementary(self, parts: Sequence[Node], wanted: bool) -> bool:
        """``x OR NOT x``, ``x < 5 OR x >= 5``, ``x <> 1 OR x <> 2``: no row escapes all of them."""
        whole: dict[Key, bool] = {}
        compared: dict[Key, list[tuple[str, Constant]]] = {}
        for part in parts:
            affirmed, polarity = _affirmed(part, wanted)
            if whole.setdefault(self._key(affirmed), polarity) is not polarity:
                return True
            atom = _atom(affirmed, polarity)
            if atom is not None:
                compared.setdefault(self._key(atom[0]), []).append(atom[1:])
        return any(covers(atoms) for atoms in compared.values())

    def boolean_test(self, node: Node, fields: Fields, wanted: bool) -> Narrowing:  # noqa: ARG002 - one of a table
        test, arg = fields["booltesttype"], fields["arg"]
        if not wanted:
            test = _OPPOSITE_TESTS[test]
        if test in ("IS_TRUE", "IS_FALSE"):
            return self.judge(arg, test == "IS_TRUE")
        if test in ("IS_UNKNOWN", "IS_NOT_UNKNOWN"):
            return self._is_null(arg, test == "IS_UNKNOWN", boolean=True)
        found = self.judge(arg, test == "IS_NOT_TRUE")
        # Nulls are not true either, so of what holds for every other row they are left.
        spared = (
            self._by_mention(arg) if found is Narrowing.ALWAYS and constant(arg) is None else _opposite(found)
        )
        return any_of([spared, self.judge(arg, test == "IS_NOT_FALSE")])

    def null_test(self, node: Node, fields: Fields, wanted: bool) -> Narrowing:  # noqa: ARG002 - one of a table
        return self._is_null(fields["arg"], (fields["nulltesttype"] == "IS_NULL") is wanted)

    def _is_null(self, arg: Node, is_null: bool, boolean: bool = False) -> Narrowing:
        if self._always_null(arg):
            return Narrowing.ALWAYS if is_null else Narrowing.NEVER
        if self._never_null(arg):
            return Narrowing.NEVER if is_null else Narrowing.ALWAYS
        mentioned = self._by_mention(arg)
        if mentioned is Narrowing.NARROWS and not is_null and (boolean or null_only_for_null(arg)):
            return Narrowing.WEAK
        return mentioned

    def _always_null(self, node: Node) -> bool:
        """NULL, and what is neither true nor false of any row: ``a = NULL``."""
        value = constant(node)
        if value is not None:
            return value.value is None
        kind, fields = kind_of(node)
        if kind not in ("A_Expr", "BoolExpr", "CaseExpr"):
            return False
        if fields.get("kind") == "AEXPR_NULLIF":
            return self._key(fields["lexpr"]) == self._key(fields["rexpr"])
        return all(self.judge(node, wanted) is Narrowing.NEVER for wanted in (True, False))

    def _never_null(self, node: Node) -> bool:
        self._budget.spend()
        value = constant(node)
        if value is not None:
            return value.value is not None
        kind, fields = kind_of(node)
        if kind == "CoalesceExpr":
            return any(self._never_null(arg) for arg in fields["args"])
        return kind == "A_ArrayExpr"

    def case(self, node: Node, fields: Fields, wanted: bool) -> Narrowing:  # noqa: ARG002 - one of a table
        """From its end: each WHEN gives its own result where it holds, what stands behind it elsewhere."""
        found = self.judge(fields["defresult"], wanted) if "defresult" in fields else Narrowing.NEVER
        for when in reversed([when["CaseWhen"] for when in fields["args"]]):
            condition = comparison(fields["arg"], "=", when["expr"]) if "arg" in fields else when["expr"]
            chosen = self.judge(when["result"], wanted)
            otherwise = self.judge(_not_true(condition), True)
            ways = [all_of([self.judge(condition, True), chosen]), all_of([otherwise, found])]
            either = all_of([chosen, found])
            # What both results hold for, the CASE does, whatever it asks.
            found = any_of([*ways, either] if either in (Narrowing.WEAK, Narrowing.ALWAYS) else ways)
        return found

    def coalesce(self, node: Node, fields: Fields, wanted: bool) -> Narrowing:
        """Its first argument that is not null: what stands behind matters for rows where that is null."""
        for arg in fields["args"]:
            if self._always_null(arg):
                continue
            found = self.judge(arg, wanted)
            by_itself_null = found is Narrowing.NEVER and not null_only_for_null(arg)
            return self._by_mention(node) if by_itself_null else found
        return Narrowing.NEVER

    def cast(self, node: Node, fields: Fields, wanted: bool) -> Narrowing:
        condition = cast_condition(fields)
        if condition is not None:
            return self.judge(condition, wanted)
        if type_name(fields) == "bool" and kind_of(fields["arg"])[0] in _KINDS:
            return self.judge(fields["arg"], wanted)
        return self._by_mention(node)

    # Comparisons --------------------------------------------------------------------------------------------

    def expression(self, node: Node, fields: Fields, wanted: bool) -> Narrowing:
        judge_form = _FORMS.get(fields["kind"])
        if judge_form is None or "lexpr" not in fields:
            return self._by_mention(node)
        return judge_form(self, fields, wanted)

    def operator(self, fields: Fields, wanted: bool) -> Narrowing:
        return self._compare(fields["lexpr"], _symbol(fields), fields["rexpr"], wanted)

    def _compare(self, left: Node, symbol: str, right: Node, wanted: bool) -> Narrowing:
        self._budget.spend()
        values = constant(left), constant(right)
        if any(value is not None and value.value is None for value in values):
            return Narrowing.NEVER
        if not wanted:
            if symbol not in NEGATED:
                return _opposite(self._compare(left, symbol, right, True))
            symbol = NEGATED[symbol]
        found = self._compared_within(left, symbol, right)
        if found is not None:
            return found
        if symbol in HOLDS:
            return self._ordered(left, symbol, right)
        mentioned = self._compared(left, right)
        same = symbol in ("~~", "~~*", "@>", "<@") and self._key(left) == self._key(right)
        if mentioned is Narrowing.NARROWS and (same or matches_everything(symbol, right)):
            return Narrowing.WEAK
        return mentioned

    def _compared_within(self, left: Node, symbol: str, right: Node) -> Narrowing | None:
        """Of a comparison that comes to conditions or comparisons within it; None for any other."""
        asked = truths(left, symbol, right)
        if asked is not None:
            return self._of_truths(*asked)
        results = compared_results(left, symbol, right)
        if results is not None:
            return self.judge(results, True)
        pairs = paired(left, right)
        if pairs is not None and symbol in ("=", "<>"):
            parts = [self._compare(one, symbol, other, True) for one, other in pairs]
            return all_of(parts) if symbol == "=" else any_of(parts)
        return None

    def _of_truths(self, condition: Node, held: frozenset[bool]) -> Narrowing:
        """``condition`` must have one of the values in ``held``."""
        if len(held) == 1:
            return self.judge(condition, True in held)
        return self._is_null(condition, False, boolean=True) if held else Narrowing.NEVER

    def _ordered(self, left: Node, symbol: str, right: Node) -> Narrowing:
        values = constant(left), constant(right)
        known = folded(values[0], symbol, values[1])
        if known is not None:
            return Narrowing.ALWAYS if known else Narrowing.NEVER
        gap = difference(linear(left, self._scope, self._budget), linear(right, self._scope, self._budget))
        if gap is not None:
            if HOLDS[symbol](gap):
                return Narrowing.ALWAYS
            # x = x + 1 is false for numbers, but - means other things for other types.
            return Narrowing.NEVER if gap == 0 else Narrowing.WEAK
        mentioned = self._compared(left, right)
        at_bottom = above_least(left, symbol, values[1]) or above_least(right, MIRRORED[symbol], values[0])
        if mentioned is Narrowing.NARROWS and at_bottom:
            return Narrowing.WEAK
        return mentioned

    def _compared(self, left: Node, right: Node) -> Narrowing:
        # As one expression, so that a comparison of two columns within a sub-select can tie it to the target.
        return self._by_mention(comparison(left, "=", right))

    def distinct(self, fields: Fields, wanted: bool) -> Narrowing:
        equal = (fields["kind"] == "AEXPR_NOT_DISTINCT") is wanted
        left, right = fields["lexpr"], fields["rexpr"]
        for one, other in ((left, right), (right, left)):
            value = constant(one)
            if value is not None and value.value is None:
                return self._is_null(other, equal)
        return self._compare(left, "=" if equal else "<>", right, True)

    def in_list(self, fields: Fields, wanted: bool) -> Narrowing:
        symbol = _symbol(fields)
        items = fields["rexpr"]["List"]["items"]
        return self._listed(fields["lexpr"], symbol, items, symbol == "=", wanted)

    def over_array(self, fields: Fields, wanted: bool) -> Narrowing:
        left, symbol, array = fields["lexpr"], _symbol(fields), fields["rexpr"]
        is_any = fields["kind"] == "AEXPR_OP_ANY"
        kind, inner = kind_of(array)
        if kind == "SubLink" and inner.get("subLinkType") == "ARRAY_SUBLINK":
            return self._in_select(left, symbol, inner["subselect"], is_any, wanted)
        items = elements(array)
        if items is None:
            return self._by_mention(left, array)
        return self._listed(left, symbol, items, is_any, wanted)

    def _listed(
        self, left: Node, symbol: str, items: Sequence[Node], is_any: bool, wanted: bool
    ) -> Narrowing:
        """``left symbol ANY (items)`` or ``ALL``; NOT turns one into the other."""
        if len(items) > _LONG_LIST and all("A_Const" in item for item in items):
            return self._by_mention(left)
        parts = [comparison(left, symbol, item) for item in items]
        if is_any is wanted:
            return self._alternatives(parts, wanted)
        return all_of([self.judge(part, wanted) for part in parts])

    def between(self, fields: Fields, wanted: bool) -> Narrowing:
        left = fields["lexpr"]
        low, high = fields["rexpr"]["List"]["items"]
        bounds = [comparison(left, ">=", low), comparison(left, "<=", high)]
        if (fields["kind"] == "AEXPR_BETWEEN") is wanted:
            return all_of([self.judge(bound, True) for bound in bounds])
        return self._alternatives(bounds, False)

    def similar(self, fields: Fields, wanted: bool) -> Narrowing:
        """SIMILAR TO arrives as a regular expression that similar_to_escape makes of the pattern."""
        kind, call = kind_of(fields["rexpr"])
        pattern = call["args"][0] if kind == "FuncCall" and call.get("args") else fields["rexpr"]
        symbol = {"~": "~~", "!~": "!~~"}[_symbol(fields)]
        return self._compare(fields["lexpr"], symbol, pattern, wanted)

    # Sub-selects --------------------------------------------------------------------------------------------

    def sublink(self, node: Node, fields: Fields, wanted: bool) -> Narrowing:
        form, select = fields["subLinkType"], fields["subselect"]
        if form == "EXISTS_SUBLINK":
            found = self._rows_of(select["SelectStmt"])
            return found if wanted else _opposite(found)
        if form in ("ANY_SUBLINK", "ALL_SUBLINK"):
            symbol = names_of(fields.get("operName", ()))[-1:] or ("=",)
            return self._in_select(fields["testexpr"], symbol[0], select, form == "ANY_SUBLINK", wanted)
        value = selected_value(select) if form == "EXPR_SUBLINK" else None
        return self._by_mention(node) if value is None else self.judge(value, wanted)

    def _rows_of(self, select: Select) -> Narrowing:
        """For which rows of the target the sub-select yields a row."""
        if is_set_operation(select):
            if select["op"] == "SETOP_UNION":
                return any_of([self._rows_of(select["larg"]), self._rows_of(select["rarg"])])
            return self._by_mention({"SelectStmt": select})
        if yields_nothing(select):
            return Narrowing.NEVER
        if yields_one_row(select):
            return Narrowing.ALWAYS
        if may_drop_rows(select):
            return self._by_mention({"SelectStmt": select})
        return self._filtered(select)

    def _filtered(self, select: Select) -> Narrowing:
        conditions = [*join_conditions(select)]
        if "whereClause" in select:
            conditions.append(select["whereClause"])
        inside = self._inside(select)
        found = all_of([inside.judge(condition, True) for condition in conditions])
        if found is Narrowing.NEVER or "fromClause" not in select:
            return found
        if inside._by_mention(select["fromClause"]) is Narrowing.NARROWS:
            return Narrowing.NARROWS
        if found is not Narrowing.NARROWS:
            # Whether that relation has a row says nothing of a row of the target.
            return Narrowing.UNTIED
        return Narrowing.ALWAYS if self._finds_itself(select, inside._scope) else found

    def _inside(self, select: Select) -> _Analysis:
        return _Analysis(self._scope.within(sources(select)), self._relation, self._budget)

    def _finds_itself(self, select: Select, inner: Scope) -> bool:
        """``EXISTS (SELECT … FROM t AS u WHERE u.id = t.id)``: every row of t finds itself."""
        own = own_rows(select, self._relation)
        return own is not None and all(
            ties_to_itself(condition, own, inner) for condition in conjuncts(select["whereClause"])
        )

    def _in_select(self, left: Node, symbol: str, select: Node, is_any: bool, wanted: bool) -> Narrowing:
        """``left symbol ANY (select)`` or ``ALL``."""
        value = selected_value(select)
        if value is not None:
            return self._compare(left, symbol, value, wanted)
        fields = select["SelectStmt"]
        if self._rows_of(fields) is Narrowing.NEVER:
            return Narrowing.NEVER if is_any is wanted else Narrowing.ALWAYS
        found = self._by_mention(left, select)
        own = own_rows(fields, self._relation)
        if is_any and symbol == "=" and own is not None and selects_same(left, fields, own, self._scope):
            found = self._of_own_rows(fields, own)
        return found if wanted else _opposite(found)

    def _of_own_rows(self, select: Select, own: str) -> Narrowing:
        """``id IN (SELECT id FROM t WHERE …)`` leaves of t what that WHERE leaves."""
        if "whereClause" not in select:
            return Narrowing.ALWAYS
        inner = self._scope.within(frozenset({own}))
        of_own = _Analysis(Scope(frozenset({own})), self._relation, self._budget)
        return all_of(
            of_own.judge(condition, True)
            for condition in conjuncts(select["whereClause"])
            if not ties_to_itself(condition, own, inner)
        )


_KINDS: Mapping[str, Callable[[_Analysis, Node, Fields, bool], Narrowing]] = {
    "BoolExpr": _Analysis.bool_expr,
    "BooleanTest": _Analysis.boolean_test,
    "NullTest": _Analysis.null_test,
    "CaseExpr": _Analysis.case,
    "CoalesceExpr": _Analysis.coalesce,
    "TypeCast": _Analysis.cast,
    "A_Expr": _Analysis.expression,
    "SubLink": _Analysis.sublink,
}
"""How a condition of each node type is read; any other is a condition if it mentions the target."""
_FORMS: Mapping[str, Callable[[_Analysis, Fields, bool], Narrowing]] = {
    "AEXPR_OP": _Analysis.operator,
    "AEXPR_LIKE": _Analysis.operator,
    "AEXPR_ILIKE": _Analysis.operator,
    "AEXPR_SIMILAR": _Analysis.similar,
    "AEXPR_DISTINCT": _Analysis.distinct,
    "AEXPR_NOT_DISTINCT": _Analysis.distinct,
    "AEXPR_IN": _Analysis.in_list,
    "AEXPR_OP_ANY": _Analysis.over_array,
    "AEXPR_OP_ALL": _Analysis.over_array,
    "AEXPR_BETWEEN": _Analysis.between,
    "AEXPR_NOT_BETWEEN": _Analysis.between,
}
_OPPOSITE_TESTS = {
    "IS_TRUE": "IS_NOT_TRUE",
    "IS_NOT_TRUE": "IS_TRUE",
    "IS_FALSE": "IS_NOT_FALSE",
    "IS_NOT_FALSE": "IS_FALSE",
    "IS_UNKNOWN": "IS_NOT_UNKNOWN",
    "IS_NOT_UNKNOWN": "IS_UNKNOWN",
}
_NEGATIVE_FORMS: Mapping[tuple[str, str], str] = {
    ("nulltesttype", "IS_NOT_NULL"): "IS_NULL",
    ("booltesttype", "IS_NOT_TRUE"): "IS_TRUE",
    ("booltesttype", "IS_NOT_FALSE"): "IS_FALSE",
    ("booltesttype", "IS_NOT_UNKNOWN"): "IS_UNKNOWN",
    ("kind", "AEXPR_NOT_BETWEEN"): "AEXPR_BETWEEN",
    ("kind", "AEXPR_NOT_BETWEEN_SYM"): "AEXPR_BETWEEN_SYM",
    ("kind", "AEXPR_DISTINCT"): "AEXPR_NOT_DISTINCT",
}
"""Field and value of a negative form -> the value of its affirmative."""
_NAMES = {"AEXPR_BETWEEN": "BETWEEN", "AEXPR_BETWEEN_SYM": "BETWEEN SYMMETRIC"}
"""Affirmative forms whose name the grammar changes with them."""
_NEGATIVE_SYMBOLS = {"<>": "=", "!~~": "~~", "!~~*": "~~*", "!~": "~", "!~*": "~*"}


def _not_true(condition: Node) -> Node:
    return {"BooleanTest": {"arg": condition, "booltesttype": "IS_NOT_TRUE"}}


def _of_constant(value: Constant, wanted: bool) -> Narrowing:
    if isinstance(value.value, bool):
        return Narrowing.ALWAYS if value.value is wanted else Narrowing.NEVER
    return Narrowing.NEVER if value.value is None else Narrowing.UNTIED


def _flattened(fields: Fields) -> Iterable[Node]:
    for arg in fields["args"]:
        kind, inner = kind_of(arg)
        if kind == "BoolExpr" and inner["boolop"] == fields["boolop"]:
            yield from _flattened(inner)
        else:
            yield arg


def _symbol(fields: Fields) -> str:
    return names_of(fields["name"])[-1]


def _affirmed(node: Node, wanted: bool) -> tuple[Node, bool]:
    """A condition without NOT in any spelling, and what it must then be."""
    kind, fields = kind_of(node)
    if kind == "BoolExpr" and fields["boolop"] == "NOT_EXPR":
        return _affirmed(fields["args"][0], not wanted)
    if kind not in ("A_Expr", "NullTest", "BooleanTest"):
        return node, wanted
    for field in ("nulltesttype", "booltesttype", "kind"):
        positive = _NEGATIVE_FORMS.get((field, fields.get(field, "")))
        if positive is not None:
            name = {"name": [{"String": {"sval": _NAMES[positive]}}]} if positive in _NAMES else {}
            return {kind: {**fields, field: positive, **name}}, not wanted
    if kind == "A_Expr" and fields["kind"] in (
        "AEXPR_OP",
        "AEXPR_IN",
        "AEXPR_LIKE",
        "AEXPR_ILIKE",
        "AEXPR_SIMILAR",
    ):
        symbol = _NEGATIVE_SYMBOLS.get(_symbol(fields))
        if symbol is not None:
            return {kind: {**fields, "name": [{"String": {"sval": symbol}}]}}, not wanted
    return node, wanted


def _atom(node: Node, wanted: bool) -> tuple[Node, str, Constant] | None:
    """``(expression, operator, constant)`` of a comparison with a constant."""
    kind, fields = kind_of(node)
    if kind == "ColumnRef":
        return node, "=", Constant(wanted)
    if kind != "A_Expr" or fields["kind"] != "AEXPR_OP" or "lexpr" not in fields:
        return None
    symbol, left, right = _symbol(fields), fields["lexpr"], fields["rexpr"]
    value = constant(right)
    if value is None:
        left, value, symbol = right, constant(left), MIRRORED.get(symbol, "")
    if value is None or value.value is None or symbol not in HOLDS:
        return None
    return left, symbol if wanted else NEGATED[symbol], value
