"""Texts that differ in a number alone, so that one is judged by what was learned of another.

Owns which digits of an allowed statement may be others without a change of its decision, and the query string
that another text with other digits there is. Pure; keeps nothing (``proxy.rulings`` does).

Why the decision cannot change. Let T be a text that was judged, and U one of the same length that differs
from it in digits only, and those within the spans that ``spans`` gives.

* *The lexer reads the same tokens.* T is ASCII and holds no quote, dollar sign, backslash or comment, hence
  PostgreSQL's lexer (scan.l) never leaves its initial state. A span is a whole run of digits, with neither a
  letter, a digit, an underscore nor a point next to it, so it is one ``decinteger`` whatever the digits are,
  leading zeros included; everything else of U is T. At most nine digits are below 2^31: the token is an
  ICONST and the constant an int4, in every release.
* *The grammar makes the same tree.* It sees kinds of tokens, and the number itself reaches one action, that
  which made the A_Const. The tree of T shows that A_Const as one side of ``column = number`` (or ``<>``,
  ``<``, ``>``, ``<=``, ``>=``), which is a whole conjunct of the WHERE of a SELECT.
* *The facts are the same*, positions too, because no length changes; only ``Facts.sql`` differs. What facts
  keep of constants is that of calls, limits, settings, casts and writes, none of which is such a conjunct;
  a setting's name may be one of a text (``SettingRef.pinned``), which T has none of.
* *No rule reads more than facts*, but for what reads the text again: to tell a driver's look-up and an
  allowance, which lift all constants themselves, and the size of values that a statement makes, which is why
  one that may make them is left out.

Only a plain Allow is taken: a warning may quote the text. The price is another matter (``cost.is_look_up``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from policy.decision import Allow, Decision
from policy.expressions import kind_of, names_of
from policy.facts import Facts, QueryString
from policy.model import StatementClass
from policy.parse import trees
from policy.sizes import may_grow

MAX_TEXT: Final = 4_096
"""Longer texts are not looked at, in characters."""
MAX_SPANS: Final = 16

_SIMPLE: Final = re.compile(r"[\t\n\r !#%&(-\[\]-~]*")
"""ASCII without quotes, the dollar sign and the backslash."""
_COMMENTS: Final = ("--", "/*")
_NUMBER: Final = re.compile(r"(?<![\w.])[0-9]{1,9}(?![\w.])", re.ASCII)
_COMPARISONS: Final = frozenset({("=",), ("<>",), ("<",), (">",), ("<=",), (">=",)})

Span = tuple[int, int]
"""Where a number begins and ends, in characters of the query string."""

_set: Final = object.__setattr__


class Lifted(QueryString):
    """The query string ``sql``, which is ``like`` but for digits in spans that ``spans`` gave for it.

    Its facts are worked out when somebody asks for them: where a statement is let through nobody does.
    """

    __slots__ = ("_made", "like")

    like: QueryString
    _made: tuple[Facts, ...] | None

    def __init__(self, sql: str, like: QueryString) -> None:
        _set(self, "sql", sql)
        _set(self, "failure", None)
        _set(self, "like", like)
        _set(self, "_made", None)

    @property
    def statements(self) -> tuple[Facts, ...]:
        if self._made is None:
            _set(self, "_made", tuple(self._own(facts) for facts in self.like.statements))
        return self._made or ()

    def _own(self, facts: Facts) -> Facts:
        begin = facts.start - 1
        return replace(facts, sql=self.sql[begin : begin + len(facts.sql)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueryString) and (
            (self.sql, self.statements, self.failure) == (other.sql, other.statements, other.failure)
        )

    __hash__ = None  # type: ignore[assignment]  # as the facts' own mappings have none


def spans(decision: Decision) -> tuple[Span, ...]:
    """The numbers of an allowed text whose digits may be others; () where there are none, or it is no plain
    SELECT that was allowed without a word."""
    query = decision.query
    if not isinstance(decision, Allow) or decision.warnings or decision.observed or decision.failures:
        return ()
    if decision.rewritten is not None:
        # Another text goes to the server, which has the digits of this one.
        return ()
    if len(query.sql) > MAX_TEXT or len(query.statements) != 1 or isinstance(query, Lifted):
        return ()
    facts = query.statements[0]
    if facts.node != "SelectStmt" or facts.classes != {StatementClass.SELECT} or may_grow(facts):
        return ()
    numbers = {found.start(): found.end() for found in _NUMBER.finditer(query.sql)}
    begin = facts.start - 1
    if not numbers or not _is_simple(query.sql) or not query.sql.startswith(facts.sql, begin):
        return ()
    compared = {begin + place: value for place, value in _compared(facts)}
    found = tuple(
        (start, end)
        for start, end in numbers.items()
        if start in compared and int(query.sql[start:end]) == compared[start]
    )
    return found if len(found) <= MAX_SPANS else ()


def _is_simple(sql: str) -> bool:
    """Whether PostgreSQL's lexer meets nothing in ``sql`` but words, numbers and operators."""
    return _SIMPLE.fullmatch(sql) is not None and not any(mark in sql for mark in _COMMENTS)


def _compared(facts: Facts) -> Iterator[tuple[int, int]]:
    """Where in ``facts.sql`` a number stands that the WHERE compares a column to, and its value."""
    read = trees(facts.sql)
    where = kind_of(read[0])[1].get("whereClause") if len(read) == 1 else None
    waiting: list[Mapping[str, Any]] = [where] if where else []
    while waiting:
        kind, fields = kind_of(waiting.pop())
        if kind == "BoolExpr" and fields.get("boolop") == "AND_EXPR":
            waiting += fields.get("args", ())
        elif (
            kind == "A_Expr"
            and fields.get("kind") == "AEXPR_OP"
            and names_of(fields.get("name", ())) in _COMPARISONS
        ):
            for one, other in (("lexpr", "rexpr"), ("rexpr", "lexpr")):
                column, constant = kind_of(fields.get(one, {})), kind_of(fields.get(other, {}))
                if column[0] == "ColumnRef" and constant[0] == "A_Const" and "ival" in constant[1]:
                    yield constant[1].get("location", 0), constant[1]["ival"].get("ival", 0)
