"""Conditions and values in a normal form that is free of spelling.

Owns how an expression of libpg_query's tree becomes a ``Form``: columns by the source they belong to, never
by an alias; constants folded and bound values in place of their ``$n``; NOT pushed inwards, BETWEEN, IN and
``= ANY (…)`` written out, comparisons turned so that the constant stands right, AND and OR flattened and
sorted. Two conditions of one form hold for the same rows; what two forms mean to each other is
``implication``. Pure; knows no catalog and no policy, and no statement (``normal`` gives the scopes).

A form is a nested tuple of texts, numbers and flags whose first item is its kind, so that it can be hashed,
compared and written as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from policy.comparisons import HOLDS, MIRRORED, NEGATED, comparison, elements, folded, paired
from policy.expressions import Budget, Constant, Node, constant, kind_of, names_of, selected_value

Form = tuple[Any, ...]
Fields = Mapping[str, Any]
Parameter = bool | int | float | Decimal | str | None
"""A bound value: a number where its type is one, else the text PostgreSQL would read; None for NULL."""

UNKNOWN_OWNER: Final = "!"
"""Marks the owner of a column whose qualifier names no source."""
TRUE: Final[Form] = ("bool", True)
NULL: Final[Form] = ("null",)
CONSTANTS: Final = frozenset({"num", "text", "bool", "typed", "null"})
"""Kinds of forms that are one value."""

_DROPPED: Final = frozenset(
    {
        "location",
        "list_start",
        "list_end",
        "rexpr_list_start",
        "rexpr_list_end",
        "stmt_location",
        "stmt_len",
        "funcformat",
    }
)
"""Fields that say where or in which spelling something was written."""
_COMMUTATIVE: Final = frozenset({"+", "*"})
_ARITHMETIC: Final[Mapping[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


@dataclass(slots=True)
class Scope:
    """What names mean at one query level. ``labels`` name its sources in the order of the text; a label
    begins with the level's depth and holds no alias."""

    parent: Scope | None = None
    ctes: Mapping[str, tuple[Form, int]] = field(default_factory=dict)
    """Name of a CTE -> its form, and what it costs to say it once more."""
    names: dict[str, str] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    def column(self, names: Sequence[str]) -> Form:
        """``("col", owner, name)``; the owner is a label, or ``?depth`` where only a catalog could tell which
        of that level's sources (or one further out) has the column."""
        if len(names) == 1:
            return ("col", self._unqualified(), names[0])
        scope: Scope | None = self
        while scope is not None:
            label = scope.names.get(names[-2])
            if label is not None:
                return ("col", label, names[-1])
            scope = scope.parent
        return ("col", UNKNOWN_OWNER + names[-2], names[-1])

    def _unqualified(self) -> str:
        scope: Scope | None = self
        while scope is not None and not scope.labels:
            scope = scope.parent
        if scope is None:
            return "?0"
        alone = len(scope.labels) == 1 and (scope.parent is None or not scope.parent.sees_sources())
        return scope.labels[0] if alone else f"?{scope.depth}"

    def sees_sources(self) -> bool:
        return bool(self.labels) or (self.parent is not None and self.parent.sees_sources())


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of a statement beside its text.

    ``parameters`` are the values bound to ``$1`` …, () where they are not known. ``fault_at`` is the place
    (bytes from the start of the statement, from 0) of what was refused: the form there is wrapped as
    ``("fault", form)``; ``values_at_fault`` wraps every bound value, ``calls_at_fault`` every call of a
    function of these names.
    """

    parameters: tuple[Parameter, ...] = ()
    fault_at: int | None = None
    values_at_fault: bool = False
    calls_at_fault: frozenset[str] = frozenset()


UNREAD: Final = Reading()


class Terms:
    """Makes forms of expressions. Raises ``TooLarge`` once ``budget`` is spent.

    ``select`` makes the form of a sub-select.
    """

    def __init__(self, budget: Budget, reading: Reading, select: Callable[[Fields, Scope], Form]) -> None:
        self._budget = budget
        self._parameters = reading.parameters
        self._fault_at = reading.fault_at
        self._values_at_fault = reading.values_at_fault
        self._calls_at_fault = reading.calls_at_fault
        self._select = select

    def conjuncts(self, node: Node | None, scope: Scope) -> tuple[Form, ...]:
        """The conditions that AND joins at the top of ``node``; () for none, or for one that is TRUE."""
        if node is None:
            return ()
        return split(self.condition(node, scope))

    # Conditions ---------------------------------------------------------------------------------------------

    def condition(self, node: Node, scope: Scope, wanted: bool = True, exact: bool = False) -> Form:
        """The form of ``node``, or of NOT ``node``.

        Where not ``exact`` it stands in a WHERE, which takes NULL for FALSE, and may be simplified by that.
        """
        self._budget.spend()
        node = self._bound(node)
        kind, fields = kind_of(node)
        read = _CONDITIONS.get(kind)
        if read is not None and constant(node) is None:
            return self._marked(fields, read(self, fields, scope, wanted, exact))
        form = self.value(node, scope)
        if form[0] == "bool":
            return ("bool", form[1] is wanted)
        if form == NULL:
            return form
        if form[0] == "col":
            return ("in", form, (("bool", wanted),))
        return form if wanted else ("not", form)

    def _boolean(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:
        operator = fields["boolop"]
        if operator == "NOT_EXPR":
            return self.condition(fields["args"][0], scope, not wanted, exact)
        parts = [self.condition(arg, scope, wanted, exact) for arg in fields["args"]]
        return conjunction(parts) if (operator == "AND_EXPR") is wanted else disjunction(parts)

    def _boolean_test(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:
        test, arg = fields["booltesttype"], fields["arg"]
        if wanted and not exact and test in ("IS_TRUE", "IS_FALSE"):
            return self.condition(arg, scope, test == "IS_TRUE")
        form: Form = ("test", test, self.value(arg, scope))
        return form if wanted else ("not", form)

    def _null_test(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:  # noqa: ARG002 - one of a table
        # A row with some nulls is neither NULL nor NOT NULL, so NOT of the one is not the other.
        form: Form = ("null?", self.value(fields["arg"], scope), fields["nulltesttype"] == "IS_NULL")
        return form if wanted else ("not", form)

    def _expression(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:
        read = _FORMS.get(fields["kind"], Terms._opaque)
        return read(self, fields, scope, wanted, exact)

    def _opaque(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:  # noqa: ARG002 - one of a table
        form: Form = ("node", "A_Expr", self.generic(fields, scope))
        return form if wanted else ("not", form)

    def _operation(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:  # noqa: ARG002 - one of a table
        symbol = _symbol(fields)
        if "lexpr" not in fields:
            form = self._prefixed(symbol, self.value(fields["rexpr"], scope))
            return form if wanted else ("not", form)
        pairs = paired(fields["lexpr"], fields["rexpr"])
        if pairs is not None and symbol in ("=", "<>"):
            every = (symbol == "=") is wanted
            parts = [self._compared(one, "=" if every else "<>", other, scope) for one, other in pairs]
            return conjunction(parts) if every else disjunction(parts)
        if wanted:
            return self._compared(fields["lexpr"], symbol, fields["rexpr"], scope)
        if symbol in NEGATED:
            return self._compared(fields["lexpr"], NEGATED[symbol], fields["rexpr"], scope)
        return ("not", self._compared(fields["lexpr"], symbol, fields["rexpr"], scope))

    def _compared(self, left: Node, symbol: str, right: Node, scope: Scope) -> Form:
        sides = constant(self._bound(left)), constant(self._bound(right))
        known = folded(sides[0], symbol, sides[1])
        if known is not None:
            return ("bool", known)
        return compared(self.value(left, scope), symbol, self.value(right, scope))

    def _prefixed(self, symbol: str, value: Form) -> Form:
        if symbol == "-" and value[0] == "num":
            return ("num", str(-Fraction(value[1])))
        return ("prefix", symbol, value)

    def _in_list(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:  # noqa: ARG002 - one of a table
        among = (_symbol(fields) == "=") is wanted
        return self._among(fields["lexpr"], fields["rexpr"]["List"]["items"], among, scope)

    def _over_array(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:
        symbol, is_any = _symbol(fields), fields["kind"] == "AEXPR_OP_ANY"
        array = self._bound(fields["rexpr"])
        members = elements(array)
        if members is None or (symbol, is_any) not in (("=", True), ("<>", False)):
            return self._opaque({**fields, "rexpr": array}, scope, wanted, exact)
        return self._among(fields["lexpr"], members, is_any is wanted, scope)

    def _among(self, left: Node, items: Sequence[Node], among: bool, scope: Scope) -> Form:
        """``left`` is one of ``items``, or none of them."""
        parts = [self._compared_row(left, "=" if among else "<>", item, scope) for item in items]
        return disjunction(parts) if among else conjunction(parts)

    def _compared_row(self, left: Node, symbol: str, right: Node, scope: Scope) -> Form:
        return self.condition(comparison(left, symbol, right), scope)

    def _between(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:  # noqa: ARG002 - one of a table
        low, high = fields["rexpr"]["List"]["items"]
        inside = (fields["kind"] == "AEXPR_BETWEEN") is wanted
        symbols = (">=", "<=") if inside else ("<", ">")
        parts = [
            self._compared(fields["lexpr"], s, b, scope) for s, b in zip(symbols, (low, high), strict=True)
        ]
        return conjunction(parts) if inside else disjunction(parts)

    def _distinct(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:
        same = (fields["kind"] == "AEXPR_NOT_DISTINCT") is wanted
        left, right = sorted((self.value(fields[s], scope) for s in ("lexpr", "rexpr")), key=_constants_last)
        if same and not exact and right[0] in CONSTANTS and right != NULL:
            return compared(left, "=", right)
        return ("same" if same else "differs", left, right)

    def _sublink(self, fields: Fields, scope: Scope, wanted: bool, exact: bool) -> Form:
        kind, select = fields["subLinkType"], fields["subselect"]["SelectStmt"]
        if kind == "EXPR_SUBLINK":
            inner = selected_value(fields["subselect"])
            if inner is not None:
                return self.condition(inner, scope, wanted, exact)
        form: Form = (
            "sublink",
            kind,
            ".".join(names_of(fields.get("operName", ()))) or "=",
            self.value(fields["testexpr"], scope) if "testexpr" in fields else (),
            self._select(select, scope),
        )
        return form if wanted else ("not", form)

    # Values -------------------------------------------------------------------------------------------------

    def value(self, node: Node, scope: Scope) -> Form:
        """The form of an expression whose NULL is not FALSE."""
        self._budget.spend()
        bound = self._bound(node)
        kind, fields = kind_of(bound)
        known = constant(bound) if kind != "CollateClause" else None
        if known is not None:
            form = constant_form(known)
            if bound is not node and self._values_at_fault:
                return ("fault", form)
            return self._marked(kind_of(fields["arg"])[1] if kind == "TypeCast" else fields, form)
        if kind in _CONDITIONS and kind not in _VALUES:
            return self.condition(bound, scope, exact=True)
        read = _VALUES.get(kind)
        if read is not None:
            form = read(self, fields, scope)
            # A column at fault is known by its name, wherever it stands.
            return form if kind == "ColumnRef" else self._marked(fields, form)
        return self._marked(fields, ("node", kind, self.generic(fields, scope)))

    def _column(self, fields: Fields, scope: Scope) -> Form:
        return scope.column(names_of(fields.get("fields", ())))

    def _parameter(self, fields: Fields, scope: Scope) -> Form:  # noqa: ARG002 - one of a table
        return ("param", fields.get("number", 0))

    def _arithmetic(self, fields: Fields, scope: Scope) -> Form:
        symbol = _symbol(fields)
        if fields["kind"] != "AEXPR_OP" or symbol in NEGATED or "lexpr" not in fields:
            return self._expression(fields, scope, True, True)
        left, right = self.value(fields["lexpr"], scope), self.value(fields["rexpr"], scope)
        if left[0] == right[0] == "num" and symbol in _ARITHMETIC:
            return ("num", str(_ARITHMETIC[symbol](Fraction(left[1]), Fraction(right[1]))))
        if left[0] == right[0] == "text" and symbol == "||":
            return ("text", left[1] + right[1])
        if symbol in _COMMUTATIVE:
            left, right = sorted((left, right), key=repr)
        return ("op", symbol, left, right)

    def _call(self, fields: Fields, scope: Scope) -> Form:
        name = names_of(fields["funcname"])
        plain = name[1:] if name[0] == "pg_catalog" and len(name) > 1 else name
        rest = {k: v for k, v in fields.items() if k not in ("funcname", "args")}
        args = tuple(self.value(arg, scope) for arg in fields.get("args", ()))
        form: Form = ("call", ".".join(plain), args, self.generic(rest, scope))
        elsewhere = fields.get("location") != self._fault_at
        return ("fault", form) if name[-1] in self._calls_at_fault and elsewhere else form

    def _sub_value(self, fields: Fields, scope: Scope) -> Form:
        inner = selected_value(fields["subselect"]) if fields["subLinkType"] == "EXPR_SUBLINK" else None
        return self._sublink(fields, scope, True, True) if inner is None else self.value(inner, scope)

    def generic(self, item: Any, scope: Scope) -> Any:
        """What has no reading of its own: its fields, less places, with the forms of what is within.

        A dot keeps the name of a field from being taken for a form's.
        """
        self._budget.spend()
        if isinstance(item, Mapping):
            if len(item) == 1:
                (kind, fields), *_ = item.items()
                if kind == "SelectStmt":
                    return self._select(fields, scope)
                if kind[:1].isupper():
                    return self.value(item, scope)
            kept = sorted(name for name in item if name not in _DROPPED)
            return ("fields", *((f".{name}", self.generic(item[name], scope)) for name in kept))
        if isinstance(item, list):
            return ("list", *(self.generic(each, scope) for each in item))
        return item

    def _bound(self, node: Node) -> Node:
        """``node`` with the value bound to it: ``$1``, ``$1::date``."""
        kind, fields = kind_of(node)
        if kind == "ParamRef":
            number = fields.get("number", 0)
            if 0 < number <= len(self._parameters):
                return _constant_node(self._parameters[number - 1])
        elif kind == "TypeCast":
            arg = self._bound(fields["arg"])
            if arg is not fields["arg"]:
                return {kind: {**fields, "arg": arg}}
        return node

    def _marked(self, fields: Fields, form: Form) -> Form:
        if self._fault_at is not None and fields.get("location") == self._fault_at:
            return ("fault", form)
        return form


_CONDITIONS: Final[Mapping[str, Callable[[Terms, Fields, Scope, bool, bool], Form]]] = {
    "BoolExpr": Terms._boolean,
    "BooleanTest": Terms._boolean_test,
    "NullTest": Terms._null_test,
    "A_Expr": Terms._expression,
    "SubLink": Terms._sublink,
}
_FORMS: Final[Mapping[str, Callable[[Terms, Fields, Scope, bool, bool], Form]]] = {
    "AEXPR_OP": Terms._operation,
    "AEXPR_LIKE": Terms._operation,
    "AEXPR_ILIKE": Terms._operation,
    "AEXPR_SIMILAR": Terms._operation,
    "AEXPR_IN": Terms._in_list,
    "AEXPR_OP_ANY": Terms._over_array,
    "AEXPR_OP_ALL": Terms._over_array,
    "AEXPR_BETWEEN": Terms._between,
    "AEXPR_NOT_BETWEEN": Terms._between,
    "AEXPR_DISTINCT": Terms._distinct,
    "AEXPR_NOT_DISTINCT": Terms._distinct,
}
_VALUES: Final[Mapping[str, Callable[[Terms, Fields, Scope], Form]]] = {
    "A_Expr": Terms._arithmetic,
    "ColumnRef": Terms._column,
    "ParamRef": Terms._parameter,
    "FuncCall": Terms._call,
    "SubLink": Terms._sub_value,
}


def compared(left: Form, symbol: str, right: Form) -> Form:
    """``left symbol right`` with its constant right, or its sides in order; ``=`` a constant as ``in``."""
    if NULL in (left, right) and symbol in HOLDS:
        return NULL
    if symbol in MIRRORED and _constants_last(left) > _constants_last(right):
        left, right, symbol = right, left, MIRRORED[symbol]
    if right[0] == "bool" and symbol in ("=", "<>"):
        return ("in", left, (("bool", right[1] is (symbol == "=")),))
    if symbol == "=" and _is_value(right):
        return ("in", left, (right,))
    return ("op", symbol, left, right)


def conjunction(parts: Iterable[Form]) -> Form:
    """AND of ``parts``."""
    terms = {term for part in parts for term in split(part)}
    if ("bool", False) in terms:
        return ("bool", False)
    for _, _, left, bound in [term for term in terms if term[:2] == ("op", ">=")]:
        if ("op", "<=", left, bound) in terms:
            terms -= {("op", ">=", left, bound), ("op", "<=", left, bound)}
            terms.add(compared(left, "=", bound))
    return _joined("and", terms, TRUE)


def disjunction(parts: Iterable[Form]) -> Form:
    """OR of ``parts``; several values of one expression become one list."""
    lists: dict[Form, set[Form]] = {}
    others: set[Form] = set()
    for part in parts:
        for term in part[1:] if part[0] == "or" else (part,):
            if term[0] == "in":
                lists.setdefault(term[1], set()).update(term[2])
            else:
                others.add(term)
    if TRUE in others:
        return TRUE
    others.discard(("bool", False))
    merged = (("in", left, tuple(sorted(values, key=repr))) for left, values in lists.items())
    return _joined("or", {*others, *merged}, ("bool", False))


def split(condition: Form) -> tuple[Form, ...]:
    """The conditions that AND joins in a form."""
    if condition[0] == "and":
        return condition[1:]
    return () if condition == TRUE else (condition,)


def constant_form(value: Constant) -> Form:
    if value.value is None:
        return NULL
    if isinstance(value.value, bool):
        return ("bool", value.value)
    if isinstance(value.value, Fraction):
        return ("num", str(value.value))
    return ("text", value.value) if value.typed is None else ("typed", value.typed, value.value)


def subforms(form: Any) -> Iterator[Form]:
    """``form`` and every form within it."""
    waiting = [form]
    while waiting:
        each = waiting.pop()
        if isinstance(each, tuple):
            yield each
            waiting.extend(each)


def _joined(kind: str, terms: set[Form], none: Form) -> Form:
    if len(terms) > 1:
        return (kind, *sorted(terms, key=repr))
    return next(iter(terms), none)


def _is_value(form: Form) -> bool:
    return form[0] in CONSTANTS or form[0] == "param" or (form[0] == "fault" and _is_value(form[1]))


def _constants_last(form: Form) -> tuple[bool, str]:
    return _is_value(form), repr(form)


def _symbol(fields: Fields) -> str:
    """An operator as written; one of a schema other than pg_catalog keeps it, and so means nothing here."""
    names = names_of(fields["name"])
    return names[-1] if names[:-1] in ((), ("pg_catalog",)) else ".".join(names)


def _constant_node(value: Parameter) -> Node:
    if value is None:
        return {"A_Const": {"isnull": True}}
    if isinstance(value, bool):
        return {"A_Const": {"boolval": {"boolval": value}}}
    if isinstance(value, str):
        return {"A_Const": {"sval": {"sval": value}}}
    return {"A_Const": {"fval": {"fval": str(value)}}}
