"""How many rows a ``generate_series`` makes, where the planner does not say.

Owns the arithmetic of one call as EXPLAIN VERBOSE prints it. PostgreSQL estimates series of integers from 15
on, of numerics and timestamps from 18 on (their support functions in src/backend/utils/adt), and only where
the bounds are constants or bound values; everything else is 1,000 rows to it, whatever it makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final

from policy.expressions import Node, as_number, constant, kind_of, names_of, type_name
from policy.sizes import NumberOf, magnitude

DEFAULT_ROWS: Final = 1000.0
"""What the planner takes a set-returning function for (procost and prorows of CREATE FUNCTION)."""

_DAY: Final = 86_400.0
_UNITS: Final = {
    "microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "sec": 1.0, "minute": 60.0, "min": 60.0,
    "hour": 3600.0, "day": _DAY, "week": 7 * _DAY, "mon": 30 * _DAY, "month": 30 * _DAY,
    "year": 365.25 * _DAY, "decade": 3652.5 * _DAY, "century": 36_525 * _DAY,
}  # fmt: skip
_PART: Final = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*([a-z]+)")
_CLOCK: Final = re.compile(r"([-+]?)(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?")
_MAX_INTERVAL: Final = 256
"""Characters, as many as PostgreSQL's interval_in (timestamp.c) keeps. The patterns above take the square of
a text's length where it is one long number."""
_INSTANT: Final = re.compile(
    r"(\d{4,6})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?)?(?:[-+]\d\d(?::?\d\d)?)?"
)
_NOW: Final = frozenset({"now", "transaction_timestamp", "statement_timestamp", "clock_timestamp"})
_TIME_TYPES: Final = frozenset({"timestamp", "timestamptz", "date"})
_EPOCH: Final = date(1970, 1, 1).toordinal()


def series_rows(args: Sequence[Node], number_of: NumberOf, today: date) -> float:
    """At most how many rows ``generate_series(args)`` makes; inf where nothing bounds it.

    ``today`` is what now() stands for, to the day.

    A series of days or more whose bounds are data is taken for ``DEFAULT_ROWS``: a calendar of all time has
    few days, a clock of all time many seconds.
    """
    if len(args) == 3 and (step := _seconds(args[2])) is not None:
        return _times(args, step, today)
    if len(args) not in (2, 3):
        return math.inf
    step = 1.0 if len(args) == 2 else _least(args[2])
    first, last = (_number(arg) for arg in args[:2])
    if first is not None and last is not None:
        return abs(last - first) // step + 1 if step else math.inf
    reach = magnitude(args[0], number_of) + magnitude(args[1], number_of)
    return reach / step + 1 if step else math.inf


def _number(node: Node) -> float | None:
    value = constant(node)
    number = None if value is None else as_number(value)
    return None if number is None else float(number)


def _least(step: Node) -> float:
    number = _number(step)
    return 0.0 if number is None else abs(number)


def _times(args: Sequence[Node], step: float, today: date) -> float:
    first, last = (_instant(arg, today) for arg in args[:2])
    if first is not None and last is not None:
        return abs(last - first) / step + 1 if step else math.inf
    return DEFAULT_ROWS if step >= _DAY else math.inf


def _seconds(node: Node) -> float | None:
    """The length of a constant interval, its sign aside; None for what is none."""
    kind, fields = kind_of(node)
    if kind != "TypeCast" or type_name(fields) != "interval":
        return None
    value = constant(fields.get("arg", {}))
    return None if value is None or not isinstance(value.value, str) else _interval(value.value)


def _interval(text: str) -> float | None:
    """``1 day 02:00:00`` or ``2 hours``, as PostgreSQL prints and agents write them."""
    if len(text) > _MAX_INTERVAL:
        return None
    left = text.strip().lower().removeprefix("@")
    total = 0.0
    for pattern in (_PART, _CLOCK):
        for found in pattern.finditer(left):
            length = _length(found)
            if length is None:
                return None
            total += length
        left = pattern.sub("", left)
    return abs(total) if not left.strip() and total else None


def _length(found: re.Match[str]) -> float | None:
    if found.re is _PART:
        unit = _UNITS.get(found[2]) or _UNITS.get(found[2].removesuffix("s"))
        return None if unit is None else float(found[1]) * unit
    sign, hours, minutes, seconds = found.groups()
    length = int(hours) * 3600 + int(minutes) * 60 + float(seconds or 0)
    return -length if sign == "-" else length


def _instant(node: Node, today: date) -> float | None:  # noqa: PLR0911 - a table of node types
    """Seconds since 1970 of a time the expression itself spells out, to a day or so; None for others."""
    kind, fields = kind_of(node)
    if kind == "SQLValueFunction":
        return (today.toordinal() - _EPOCH) * _DAY
    if kind == "TypeCast":
        value = constant(fields.get("arg", {}))
        if value is not None and isinstance(value.value, str) and type_name(fields) in _TIME_TYPES:
            return _written(value.value)
        return _instant(fields.get("arg", {}), today)
    if kind == "FuncCall":
        name, args = names_of(fields.get("funcname", ()))[-1], fields.get("args", ())
        if name in _NOW and not args:
            return (today.toordinal() - _EPOCH) * _DAY
        return _instant(args[1], today) if name == "date_trunc" and len(args) > 1 else None
    if kind == "A_Expr" and fields.get("kind") == "AEXPR_OP":
        return _moved(fields, today)
    return None


def _moved(fields: Mapping[str, Any], today: date) -> float | None:
    start = _instant(fields.get("lexpr", {}), today)
    by = _seconds(fields.get("rexpr", {}))
    if by is None:
        days = _number(fields.get("rexpr", {}))
        by = None if days is None else days * _DAY
    sign = {"+": 1, "-": -1}.get(names_of(fields.get("name", ()))[-1])
    return None if start is None or by is None or sign is None else start + sign * by


def _written(text: str) -> float | None:
    found = _INSTANT.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day = (int(found[n]) for n in (1, 2, 3))
    # Python's calendar ends in 9999 and PostgreSQL's in 294276: 400 years repeat to the day.
    cycles = max(0, (year - 2000) // 400)
    try:
        days = date(year - 400 * cycles, month, day).toordinal() - _EPOCH + 146_097 * cycles
    except ValueError:
        return None
    clock = timedelta(hours=int(found[4] or 0), minutes=int(found[5] or 0), seconds=int(found[6] or 0))
    return days * _DAY + clock.total_seconds()
