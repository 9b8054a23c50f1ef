"""What two normal forms mean to each other: is each condition of the first still implied by the second?

Owns the reasoning over ``terms`` and ``normal`` forms by which a repair is held to what it must keep. Sound
in one direction: what is called implied holds for every row that the second statement reaches; whatever the
reasoning does not cover, or has no budget left for, is not implied. Pure; knows no catalog and no policy.

A relation that was missing, and that the second statement joins, counts as if the first had joined it so.

Three things may stand in for others. A column whose owner only a catalog could tell (``?depth``) is taken for
the column of that name of any source of its level: if the engine accepts both statements it is that one. A
``$n`` whose value is not known is taken for any constant: whoever compares before values are bound compares
again afterwards. And a ``("fault", form)`` of the first statement may be anything that plays the same part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from policy import builtin
from policy.comparisons import HOLDS, MIRRORED, folded
from policy.expressions import Budget, Constant
from policy.normal import Level
from policy.signatures import ANY, Index
from policy.terms import CONSTANTS, NULL, UNKNOWN_OWNER, Form, split, subforms

MAX_STEPS: Final = 60_000
"""Steps of reasoning one comparison of statements may take."""

OF_NO_RELATION: Final = "()"
"""What the label of a sub-select, or of a function, has for a relation."""

_WRITING: Final = frozenset({"insert", "update", "delete", "merge"})
_STRICT: Final = frozenset({*HOLDS, "~~", "!~~", "~~*", "!~~*", "~", "!~", "~*", "!~*"})
"""Operators that are null where an operand is."""
_MERGING: Final = frozenset(("fields", (".sval", name)) for name in ("bool", "char", "bit", "varbit"))
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2})?", re.ASCII)
_DIGITS: Final = re.compile(r"\d+", re.ASCII)
_TWO_DIGIT_YEAR: Final = 6
_BELOW: Final = frozenset({"<", "<="})
_ABOVE: Final = frozenset({">", ">="})
_BINARY: Final = 4
"""Members of a form of two operands: ``("op", symbol, left, right)``."""
_DATE_TYPES: Final = frozenset({"date", "timestamp", "timestamptz"})
_PREFIX: Final = re.compile(r"([^%_\\]*[^%_\\ ])%+")


class _Comparison(NamedTuple):
    """``tested``, which reads columns, held by ``symbol`` to values of ``kinds``, which read none."""

    tested: Form
    symbol: str
    kinds: frozenset[str]


class Reasoning:
    """One comparison of a first and a second statement. Its methods raise ``TooLarge`` after ``steps``.

    ``joined`` are relations that the second statement may read beside those of the first, by the names that
    labels have (``terms.Scope``).
    """

    def __init__(self, steps: int = MAX_STEPS, joined: frozenset[str] = frozenset()) -> None:
        self._steps = steps
        self._budget = Budget(steps)
        self._joined = joined

    @property
    def taken(self) -> int:
        """Steps taken so far."""
        return self._steps - max(self._budget.left, 0)

    # Statements ---------------------------------------------------------------------------------------------

    def unkept(self, first: Level, second: Level) -> Iterator[Form]:
        """What of ``first`` no longer bounds the rows that ``second`` reads or writes."""
        first = self._completed(first, second)
        yield from self._unimplied(first.where, second.where)
        yield from self._unimplied(first.having, second.having)
        for joined in second.outer:
            if not any(self._pads_alike(known, joined) for known in first.outer):
                yield joined
        for joined in first.outer:
            # One that became an inner join filters by what it joined on.
            if not any(self._pads_alike(joined, known) for known in second.outer):
                yield from self._unimplied(joined[2], second.where)
        for source in first.sources:
            if not any(self._source_kept(source, other) for other in second.sources):
                yield source
        if not self._rest_kept(first, second):
            yield first.rest

    def _completed(self, first: Level, second: Level) -> Level:
        """``first`` with the joins of ``second`` to relations that it lacked: sources, what they are joined
        on, and whether rows without a partner stay."""
        known = {source[1] for source in first.sources}
        added = [source for source in second.sources if source[1] not in known]
        added = [source for source in added if relation_of(source[1]) in self._joined]
        if not added:
            return first
        owners = {form[1] for form in subforms(first) if form[:1] == ("col",)}
        missing = {owner for owner in owners if owner.startswith(UNKNOWN_OWNER)}
        if len(added) == len(missing) == 1:
            # What stands before its columns is its alias.
            first = _owned(first, missing.pop(), added[0][1])
        labels = {source[1] for source in added}
        outer = [joined for joined in second.outer if labels.issuperset(joined[1])]
        on = [condition for condition in second.where if joins(condition) and _owners(condition) & labels]
        return first._replace(
            sources=tuple(sorted((*first.sources, *added), key=repr)),
            outer=tuple(sorted((*first.outer, *outer), key=repr)),
            where=(*first.where, *on),
        )

    def _unimplied(self, goals: Iterable[Form], given: Sequence[Form]) -> Iterator[Form]:
        goals = tuple(goals)
        for goal in goals:
            if not self.implied(goal, given) and not self._said_anew(goal, goals, given):
                yield goal

    def _said_anew(self, goal: Form, goals: Sequence[Form], given: Sequence[Form]) -> bool:
        """Whether a comparison of the call of a function that does not exist is made without it: of the same
        columns, with a value of another kind, or for ``=`` as a range of one (``year(d) = 2025``).

        Such values cannot be compared with the ones before; those that can are ``implied``'s. What stood in
        the first statement already says nothing anew.
        """
        faulty = _faulty_comparison(goal)
        if faulty is None:
            return False
        of_same = [
            compared
            for known in given
            if known not in goals and (compared := _comparison(known)) is not None
            if _columns(compared.tested) == _columns(faulty.tested)
        ]
        self._budget.spend(len(given))
        others = {each.symbol for each in of_same if each.kinds.isdisjoint(faulty.kinds)}
        if faulty.symbol != "=":
            return bool(others)
        bounds = {each.symbol for each in of_same if each.tested[0] == "col"}
        return "=" in others or not (bounds.isdisjoint(_BELOW) or bounds.isdisjoint(_ABOVE))

    def _pads_alike(self, first: Form, second: Form) -> bool:
        """A wider ON finds more partners, a narrower one leaves more rows without any."""
        return (
            first[:2] == second[:2]
            and not any(self._unimplied(first[2], second[2]))
            and not any(self._unimplied(second[2], first[2]))
        )

    def _source_kept(self, first: Form, second: Form) -> bool:
        if first[0] == second[0] == "rows":
            return first[1::2] == second[1::2] and self._rows_kept(first[2], second[2])
        return self.same(first, second)

    def _rows_kept(self, first: Form, second: Form) -> bool:
        if first[0] == second[0] == "cte":
            return self.same(first[2:], second[2:]) and self.narrower(first[1], second[1])
        return self.same(first, second)

    def _rest_kept(self, first: Level, second: Level) -> bool:
        """What MERGE's actions and ON CONFLICT are bound by; a query's GROUP BY bounds no row."""
        if first.action in ("merge", "insert"):
            return self._actions_kept(first, second)
        return first.action == "select" or self.same(first.rest, second.rest)

    def _actions_kept(self, first: Level, second: Level) -> bool:
        if first.action == "merge":
            return all(any(self._action_kept(one, other) for one in first.rest) for other in second.rest)
        # Doing nothing on a conflict writes less than failing does; updating the row in the way writes more.
        if not second.rest or second.rest[1] == "ONCONFLICT_NOTHING":
            return True
        return bool(first.rest) and self._action_kept(first.rest, second.rest)

    def _action_kept(self, first: Form, second: Form) -> bool:
        return first[:-1] == second[:-1] and not any(self._unimplied(first[-1], second[-1]))

    def narrower(self, first: Level, second: Level) -> bool:
        """True when every row of the sub-select ``second`` is a row of ``first``."""
        self._budget.spend()
        if first.action != second.action or not self.same(first.rest, second.rest):
            return False
        first = self._completed(first, second)
        if first == second or first.action.startswith("SETOP"):
            return first == second or self._operation_narrower(first, second)
        if first.action in _WRITING:
            # What a write returns are the rows it wrote.
            return first.target == second.target and not any(self.unkept(first, second))
        if first.action != "select" or len(first.sources) != len(second.sources):
            return self.same(first, second)
        return self._query_narrower(first, second)

    def _query_narrower(self, first: Level, second: Level) -> bool:
        kept = self.same(first.items, second.items) and not any(self.unkept(first, second))
        if not kept or (first.bound and not self.same(first.bound, second.bound)):
            return False
        if not first.bound and not second.bound and _is_plain(first):
            return True
        # Of other rows an aggregate is another value, and a LIMIT takes others.
        return not any(self.unkept(second, first))

    def _operation_narrower(self, first: Level, second: Level) -> bool:
        if first.bound or second.bound:
            return self.same(first, second)
        arms = zip(first.sources, second.sources, strict=True)
        left, right = [(Level(*one), Level(*other)) for one, other in arms]
        if first.action.startswith("SETOP_EXCEPT"):
            return self.narrower(*left) and self.same(*right)
        return self.narrower(*left) and self.narrower(*right)

    # Conditions ---------------------------------------------------------------------------------------------

    def implied(self, goal: Form, given: Sequence[Form]) -> bool:
        """True when ``goal`` holds for every row for which all of ``given`` do."""
        self._budget.spend()
        if goal in given or ("bool", False) in given or NULL in given:
            return True
        if goal[0] == "and":
            return all(self.implied(part, given) for part in goal[1:])
        if goal[0] == "or" and any(self.implied(part, given) for part in goal[1:]):
            return True
        if any(self._follows(goal, known) for known in given):
            return True
        return self._by_cases(goal, given)

    def _by_cases(self, goal: Form, given: Sequence[Form]) -> bool:
        """Each alternative of one of ``given`` implies ``goal``, with the others."""
        for place, known in enumerate(given):
            if known[0] != "or":
                continue
            others = [*given[:place], *given[place + 1 :]]
            if all(self.implied(goal, [*others, *split(case)]) for case in known[1:]):
                return True
        return False

    def _follows(self, goal: Form, known: Form) -> bool:
        self._budget.spend()
        if self.same(goal, known):
            return True
        follows = _FOLLOWS.get(goal[0])
        return follows is not None and follows(self, goal, known)

    def _in_follows(self, goal: Form, known: Form) -> bool:
        _, left, values = goal
        if known[0] == "op" and known[1] == "=" and len(values) == 1 and values[0][0] == "fault":
            return self.same(left, known[2]) and self._plays(values[0][1], known[3])
        if known[0] != "in" or not self.same(left, known[1]):
            return False
        if len(known[2]) > len(values) and any(value[0] == "fault" for value in values):
            return False
        exact = frozenset(values)
        others = [value for value in known[2] if value not in exact]
        # What is looked for is named first, as in ``same``: of these two it is the constant allowed.
        allowed = Index(values, lambda value, one: self.same(one, value)) if others else None
        return allowed is None or all(map(allowed.holds, others))

    def _op_follows(self, goal: Form, known: Form) -> bool:
        _, symbol, left, right = goal
        if known[0] == "in" and self.same(left, known[1]):
            return all(_satisfies(value, symbol, right) for value in known[2])
        if known[0] != "op" or not self.same(left, known[2]):
            return False
        if symbol == "~~" and known[1] == "~~":
            return _prefix_extends(right, known[3])
        return _range_follows(symbol, right, known[1], known[3])

    def _null_follows(self, goal: Form, known: Form) -> bool:
        _, tested, is_null = goal
        if is_null:
            return False
        if known[0] == "in":
            return self.same(tested, known[1]) and NULL not in known[2]
        if known[0] == "op" and known[1] in _STRICT:
            return any(self.same(tested, side) for side in known[2:])
        return False

    def _not_follows(self, goal: Form, known: Form) -> bool:
        refused = goal[1]
        if refused[0] == "null?" and refused[2]:
            return self._null_follows(("null?", refused[1], False), known) or self.same(
                ("null?", refused[1], False), known
            )
        if known[0] != "not" or not _is_membership(refused) or not _is_membership(known[1]):
            return False
        # To be outside of more is to be among fewer.
        return self.same(refused[:-1], known[1][:-1]) and self.narrower(known[1][-1], refused[-1])

    def _sublink_follows(self, goal: Form, known: Form) -> bool:
        if not _is_membership(goal) or not _is_membership(known):
            return False
        return self.same(goal[:-1], known[:-1]) and self.narrower(goal[-1], known[-1])

    # Sameness -----------------------------------------------------------------------------------------------

    def same(self, first: Any, second: Any) -> bool:
        """True when the two are one, but for what may stand in for something else."""
        if first == second:
            return True
        if not isinstance(first, tuple) or not isinstance(second, tuple) or not first or not second:
            return False
        self._budget.spend()
        if first[0] == "fault":
            return self._plays(first[1], second)
        if _is_constant(first) and _is_constant(second):
            return "param" in (first[0], second[0]) or _same_value(first, second)
        if first[0] == second[0] == "col":
            return _same_column(first, second)
        return self._same_parts(first, second)

    def _same_parts(self, first: Form, second: Form) -> bool:
        if len(first) != len(second):
            return False
        if all(self.same(one, other) for one, other in zip(first, second, strict=True)):
            return True
        return self._mirrored(first, second)

    def _mirrored(self, first: Form, second: Form) -> bool:
        """Sides are in the order of their owners, which a stand-in changes."""
        if first[0] != "op" or second[0] != "op" or first[1] not in MIRRORED:
            return False
        if MIRRORED[first[1]] != second[1]:
            return False
        return self.same(first[2], second[3]) and self.same(first[3], second[2])

    def _plays(self, fault: Form, second: Form) -> bool:
        """Whether ``second`` stands where ``fault`` stood, and does what that was to do."""
        if fault[0] in CONSTANTS:
            return (
                second != NULL
                and not _columns(second)
                and not any(f[0] == "sublink" for f in subforms(second))
            )
        if fault[0] == "call":
            return bool(_columns(fault)) and _columns(fault) == _columns(second)
        return self.same(_loosened(fault), _loosened(second))


_FOLLOWS: Final[Mapping[str, Callable[[Reasoning, Form, Form], bool]]] = {
    "in": Reasoning._in_follows,
    "op": Reasoning._op_follows,
    "null?": Reasoning._null_follows,
    "not": Reasoning._not_follows,
    "sublink": Reasoning._sublink_follows,
}


def _comparison(condition: Form) -> _Comparison | None:
    """``condition`` where it compares something with values that read no column; ``in`` is ``=``."""
    if condition[0] == "in":
        return _Comparison(condition[1], "=", frozenset(value[0] for value in condition[2]))
    if condition[0] != "op" or len(condition) != _BINARY or condition[1] not in _BELOW | _ABOVE:
        return None
    _, symbol, left, right = condition
    if _columns(right) or any(form[:1] == ("sublink",) for form in subforms(right)):
        return None
    return _Comparison(left, symbol, frozenset({right[0]}))


def _faulty_comparison(condition: Form) -> _Comparison | None:
    """The same of the call of a function that does not exist, which reads some column."""
    compared = _comparison(condition)
    if compared is None or compared.tested[0] != "fault" or compared.tested[1][0] != "call":
        return None
    return compared if _columns(compared.tested) else None


def joins(condition: Form) -> bool:
    """Whether ``condition`` compares a column with a column."""
    return condition[0] in ("using", "natural") or (
        condition[0] == "op" and condition[2][:1] == condition[3][:1] == ("col",)
    )


def relation_of(label: str) -> str:
    """The relation of a source's label, or ``OF_NO_RELATION``."""
    return label.partition(":")[2].rpartition("#")[0]


def _owned(item: Any, before: str, owner: str) -> Any:
    """``item`` with the columns of ``before`` as those of ``owner``."""
    if not isinstance(item, tuple) or item[:1] in (("text",), ("typed",)):
        return item
    if item[:2] == ("col", before):
        return ("col", owner, *item[2:])
    parts = tuple(_owned(each, before, owner) for each in item)
    return Level(*parts) if isinstance(item, Level) else parts


def _owners(condition: Form) -> frozenset[str]:
    return frozenset(owner for owner, _ in _columns(condition))


def columns(form: Any) -> frozenset[str]:
    """The names of the columns in a form."""
    return frozenset(each[2] for each in subforms(form) if each[:1] == ("col",))


def contradict(reasoning: Reasoning, first: Sequence[Form], second: Sequence[Form]) -> bool:
    """True when one expression is held to constants of its own in each: other rows are meant."""
    pinned = [(form[1], form[2]) for form in first if form[0] == "in"]
    return any(
        form[0] == "in" and reasoning.same(left, form[1]) and not _meet(reasoning, values, form[2])
        for form in second
        for left, values in pinned
    )


def _meet(reasoning: Reasoning, first: Sequence[Form], second: Sequence[Form]) -> bool:
    """Whether one of ``first`` is the same as one of ``second``."""
    if not frozenset(first).isdisjoint(second):
        return True
    return any(map(Index(second, reasoning.same).holds, first))


def _columns(form: Form) -> frozenset[tuple[str, str]]:
    return frozenset((each[1], each[2]) for each in subforms(form) if each[:1] == ("col",))


def _is_constant(form: Form) -> bool:
    return form[0] in CONSTANTS or form[0] == "param"


def _is_membership(form: Form) -> bool:
    """EXISTS (…), ``x IN (SELECT …)``: true for more rows the more rows the sub-select has."""
    return form[0] == "sublink" and form[1] in ("EXISTS_SUBLINK", "ANY_SUBLINK")


def _is_plain(level: Level) -> bool:
    """True when each row of a level is there for itself alone: no grouping, no aggregate, no window."""
    calls = [each for item in level.items for each in subforms(item) if each[:1] == ("call",)]
    return (
        not level.rest
        and not level.having
        and all(
            builtin.is_builtin(call[1])
            and not builtin.is_aggregate(call[1])
            and not builtin.is_window(call[1])
            for call in calls
        )
        and not any(".over" in each or ".agg_filter" in each for call in calls for each in subforms(call[3]))
    )


def _same_column(first: Form, second: Form) -> bool:
    if first[2] != second[2] and ANY not in (first[2], second[2]):
        return False
    owners = first[1], second[1]
    if owners[0] == owners[1] or ANY in owners:
        return True
    return any(
        one.startswith("?") and (other.startswith(one[1:] + ":") and not other.startswith("?"))
        for one, other in (owners, owners[::-1])
    )


def _same_value(first: Form, second: Form) -> bool:
    """5 and '5'; a date as text and as a date. Not 7 and '07', which are two texts."""
    kinds = {first[0], second[0]}
    if kinds == {"num", "text"}:
        return bool(first[1] == second[1])
    if kinds <= {"text", "typed"} and first[-1] == second[-1]:
        types = {form[1] for form in (first, second) if form[0] == "typed"}
        return types <= _DATE_TYPES and _DATE.fullmatch(first[-1]) is not None
    return False


def _as_constant(form: Form) -> Constant | None:
    match form:
        case ("num", number):
            return Constant(Fraction(number))
        case ("text" | "bool", value):
            return Constant(value)
        case ("typed", kind, text):
            return Constant(text, kind)
        case _:
            return None


def _satisfies(value: Form, symbol: str, bound: Form) -> bool:
    """Whether a column equal to ``value`` surely satisfies ``column symbol bound``."""
    if value[0] == "param":
        return True
    if symbol in ("~~", "~~*"):
        prefix = _PREFIX.fullmatch(bound[1]) if bound[0] == "text" else None
        return symbol == "~~" and prefix is not None and value[0] == "text" and value[1].startswith(prefix[1])
    if symbol not in HOLDS:
        return False
    gap = _gap(value, bound)
    if gap is not None:
        return HOLDS[symbol](Fraction(gap))
    one, other = _as_constant(value), _as_constant(bound)
    return value[0] != "num" and bound[0] != "num" and folded(one, symbol, other) is True


def _gap(left: Form, right: Form) -> int | None:
    """-1, 0 or 1 as ``left`` is below, at or above ``right`` for every type they may be read as."""
    if left[0] == right[0] == "num":
        one, other = Fraction(left[1]), Fraction(right[1])
        # A column of type double precision sees no difference that a double does not hold.
        if one != other and float(one) == float(other):
            return None
        return (one > other) - (one < other)
    if {left[0], right[0]} <= {"text", "typed"}:
        types = {form[1] for form in (left, right) if form[0] == "typed"}
        one_text, other_text = left[-1], right[-1]
        if types <= _DATE_TYPES and _one_order(one_text, other_text, dates_only=bool(types)):
            return bool(one_text > other_text) - bool(one_text < other_text)
    return None


def _one_order(left: str, right: str, dates_only: bool) -> bool:
    """Whether two texts are in one order as text, as numbers and as dates alike."""
    if _DATE.fullmatch(left) and _DATE.fullmatch(right):
        return True
    digits = _DIGITS.fullmatch(left) is not None and _DIGITS.fullmatch(right) is not None
    return not dates_only and digits and len(left) == len(right) != _TWO_DIGIT_YEAR


def _range_follows(symbol: str, bound: Form, known: str, limit: Form) -> bool:
    """``x known limit`` implies ``x symbol bound``."""
    if symbol == known and _same_moments(symbol, bound, limit):
        return True
    gap = _gap(limit, bound)
    if gap is None:
        return False
    if symbol == "<>":
        return (
            (known in (">", ">=") and gap > 0)
            or (known in ("<", "<=") and gap < 0)
            or (known in ("<", ">") and gap == 0)
        )
    side = {">": 1, ">=": 1, "<": -1, "<=": -1}
    if side.get(symbol) is None or side.get(symbol) != side.get(known):
        return False
    strict = symbol in ("<", ">") and known in ("<=", ">=")
    return gap * side[symbol] > 0 or (gap == 0 and not strict)


def _same_moments(symbol: str, bound: Form, limit: Form) -> bool:
    """The same comparison with a later (or earlier) point of time: a date column drops the time of both."""
    if bound[0] != "text" or limit[0] != "text" or symbol not in ("<", "<=", ">", ">="):
        return False
    one, other = str(bound[1]), str(limit[1])
    if (
        len(one) != len(other)
        or not (_MOMENT.fullmatch(one) and _MOMENT.fullmatch(other))
        or one[10] != other[10]
    ):
        return False
    return other >= one if symbol in (">", ">=") else other <= one


def _prefix_extends(pattern: Form, other: Form) -> bool:
    """``LIKE 'abc%'`` within ``LIKE 'ab%'``."""
    if pattern[0] != "text" or other[0] != "text":
        return False
    wide, narrow = _PREFIX.fullmatch(pattern[1]), _PREFIX.fullmatch(other[1])
    return wide is not None and narrow is not None and narrow[1].startswith(wide[1])


def _loosened(form: Any) -> Any:
    """``form`` without casts, its numbers as text: what is left when only types were at fault.

    A cast that makes many values one stays: ``n::bool`` and ``code::varchar(2)`` hold for more rows.
    """
    if not isinstance(form, tuple) or not form:
        return form
    if form[:2] == ("node", "TypeCast") and not _merges(dict(form[2][1:])[".typeName"]):
        return _loosened(dict(form[2][1:])[".arg"])
    if form[0] in ("num", "typed"):
        return ("text", form[-1])
    if form[0] == "in":
        return ("in", _loosened(form[1]), tuple(sorted((_loosened(value) for value in form[2]), key=repr)))
    return tuple(_loosened(each) for each in form)


def _merges(type_name: Form) -> bool:
    """Whether a cast to the type makes one value of several that differ in more than how they are written."""
    fields = dict(type_name[1:])
    *_, name = fields[".names"]
    return ".typmods" in fields or name[2] in _MERGING
