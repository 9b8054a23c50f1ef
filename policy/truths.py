"""A condition within a comparison: ``(…) = true``, ``(…)::int > 0``, ``CASE WHEN … THEN 1 ELSE 0 END = 1``.

Owns how such spellings are read as what they come to, for ``predicates``: what is wrapped is to be judged as
it is without. Pure; knows no scope, no catalog and no policy.

Source: PostgreSQL documentation, "Boolean Type": which casts a boolean has.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from policy.comparisons import HOLDS, MIRRORED, comparison, folded
from policy.expressions import Constant, Node, as_boolean, constant, kind_of, names_of, type_name

_CONDITIONS: Final = frozenset({"BoolExpr", "BooleanTest", "NullTest"})
_COMPARING: Final = frozenset(
    {"AEXPR_IN", "AEXPR_DISTINCT", "AEXPR_NOT_DISTINCT", "AEXPR_BETWEEN", "AEXPR_NOT_BETWEEN"}
)
_WRITTEN: Final[Mapping[str | None, Mapping[bool, Constant]]] = {
    "bool": {True: Constant(True), False: Constant(False)},
    "int4": {True: Constant(Fraction(1)), False: Constant(Fraction(0))},
    "text": {True: Constant("true"), False: Constant("false")},
    "varchar": {True: Constant("true"), False: Constant("false")},
}
"""What a cast of a boolean gives, by the type cast to."""


class Truths(NamedTuple):
    """A comparison that holds where ``condition`` has one of the values in ``held``, and nowhere else."""

    condition: Node
    held: frozenset[bool]


def truths(left: Node, symbol: str, right: Node) -> Truths | None:
    """What ``left symbol right`` asks of a condition; None where it compares none with a constant."""
    if symbol not in HOLDS:
        return None
    for one, sign, other in ((left, symbol, right), (right, MIRRORED[symbol], left)):
        value = constant(other)
        asked = None if value is None else _asked(one, sign, value)
        if asked is not None:
            return asked
    return None


def _asked(node: Node, symbol: str, value: Constant) -> Truths | None:
    kind, fields = kind_of(node)
    if isinstance(value.value, bool):
        return _held(node, "bool", symbol, value)
    if is_condition(node):
        truth = as_boolean(value)
        return None if truth is None else _held(node, "bool", symbol, Constant(truth))
    if kind != "TypeCast" or not is_condition(fields["arg"]):
        return None
    return _held(fields["arg"], type_name(fields), symbol, value)


def _held(condition: Node, to: str | None, symbol: str, value: Constant) -> Truths | None:
    written = _WRITTEN.get(to)
    if written is None:
        return None
    found = {truth: _compares(each, symbol, value) for truth, each in written.items()}
    if None in found.values():
        return None
    return Truths(condition, frozenset(truth for truth, holds in found.items() if holds))


def _compares(written: Constant, symbol: str, value: Constant) -> bool | None:
    if isinstance(written.value, str):
        # The order of two texts is their collation's.
        return (written.value == value.value) is (symbol == "=") if symbol in ("=", "<>") else None
    return folded(written, symbol, value)


def cast_condition(fields: Mapping[str, Node]) -> Node | None:
    """The condition that a cast of a cast of it comes to: ``(…)::int::boolean``."""
    inner_kind, inner = kind_of(fields["arg"])
    if type_name(fields) != "bool" or inner_kind != "TypeCast" or type_name(inner) not in _WRITTEN:
        return None
    return inner["arg"] if is_condition(inner["arg"]) else None


def is_condition(node: Node) -> bool:
    """Whether ``node`` is true, false or null, by its form alone."""
    kind, fields = kind_of(node)
    if kind == "A_Expr":
        compares = fields["kind"] == "AEXPR_OP" and names_of(fields["name"]) in _SYMBOLS
        return compares or fields["kind"] in _COMPARING
    if kind == "SubLink":
        return fields["subLinkType"] in ("EXISTS_SUBLINK", "ANY_SUBLINK", "ALL_SUBLINK")
    return kind in _CONDITIONS


_SYMBOLS: Final = frozenset((symbol,) for symbol in HOLDS)


def compared_results(left: Node, symbol: str, right: Node) -> Node | None:
    """``CASE … THEN x ELSE y END symbol constant`` as a CASE of ``x symbol constant`` and ``y symbol
    constant``; None for other comparisons."""
    for one, other, mirrored in ((left, right, False), (right, left, True)):
        kind, fields = kind_of(one)
        if kind != "CaseExpr" or constant(other) is None or (mirrored and symbol not in MIRRORED):
            continue
        sign = MIRRORED[symbol] if mirrored else symbol
        whens = [
            {"CaseWhen": {**when["CaseWhen"], "result": comparison(when["CaseWhen"]["result"], sign, other)}}
            for when in fields["args"]
        ]
        default = {"defresult": comparison(fields["defresult"], sign, other)} if "defresult" in fields else {}
        return {"CaseExpr": {**fields, "args": whens, **default}}
    return None
