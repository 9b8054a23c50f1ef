"""Texts that differ in a number or a comment alone, so that one is judged by what was learned of another.

Owns which digits and comments of an allowed statement may be others without a change of its decision, and the
query string that another text with others there is. Pure; keeps nothing (``proxy.rulings`` does).

Why the decision cannot change. Let T be a text that was judged, and U one of the same length that differs
from it only within the spans that ``spans`` and ``comments`` give: in digits, and in what comments say.

* *The lexer reads the same tokens.* T is ASCII and, but for its comments, holds no quote, dollar sign or
  backslash, hence PostgreSQL's lexer (scan.l) never leaves its initial state for long. A span is a whole run
  of digits, with neither a letter, a digit, an underscore nor a point next to it, so it is one ``decinteger``
  whatever the digits are, leading zeros included; everything else of U is T. At most nine digits are below
  2^31: the token is an ICONST and the constant an int4, in every release.
* *Comments end where they did.* Where no number is another, T may also have parameters and constants and
  names in quotes, without a backslash: each is over at its second quote, and a dollar sign before a digit
  opens none. So the ``/*`` of a span is met in the initial state, where it begins a comment even within what
  could be an operator, and the ``*/`` behind it ends that, since there is neither ``*`` nor ``/`` between
  them, in T as in U: nothing nests, nothing ends sooner. A comment is no token. One that begins with ``+`` is
  left alone: extensions take it for a hint to the planner, and the price would be another.
* *The grammar makes the same tree.* It sees kinds of tokens, and the number itself reaches one action, that
  which made the A_Const. The tree of T shows that A_Const as one side of ``column = number`` (or ``<>``,
  ``<``, ``>``, ``<=``, ``>=``), which is a whole conjunct of the WHERE of a SELECT.
* *The facts are the same*, positions too, because no length changes; only ``Facts.sql`` differs. What facts
  keep of constants is that of calls, limits, settings, casts and writes, none of which is such a conjunct;
  a setting's name may be one of a text (``SettingRef.pinned``), which T has none of.
* *No rule reads more than facts*, but for what reads the text again: to tell a driver's look-up and an
  allowance, which lift all constants themselves, and the size of values that a statement makes, which is why
  one that may make them is left out.

Only a plain Allow is taken: a warning may quote the text. With another number the price is another matter
(``cost.Question.keyed``); with another comment it is the same.
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

_SIMPLE: Final = re.compile(r"(?:[\t\n\r !#%&(-,.0-\[\]-~]|-(?!-)|/(?!\*))*")
"""Up to a comment: ASCII without quotes, the dollar sign and the backslash."""
_QUOTING: Final = re.compile(
    r"""(?:[\t\n\r !#%&(-,.0-\[\]-~]|-(?!-)|/(?!\*)|\$(?=[0-9])|'[^'\\]*'|"[^"\\]*")*"""
)
"""The same, with parameters and with what is quoted and holds no backslash."""
_INTERIOR: Final = rb"(?!\+)[\t\n\r -)+-.0-~]*"
"""What a comment may hold that others may stand for: ASCII without ``*`` and ``/``, and no hint."""
COMMENT: Final = re.compile(_INTERIOR)
_COMMENT: Final = re.compile(f"/\\*({_INTERIOR.decode()})\\*/")
_ANY_COMMENT: Final = re.compile(rb"/\*" + _INTERIOR + rb"\*/")
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_NUMBER: Final = re.compile(r"(?<![\w.])[0-9]{1,9}(?![\w.])", re.ASCII)
_COMPARISONS: Final = frozenset({("=",), ("<>",), ("<",), (">",), ("<=",), (">=",)})

Span = tuple[int, int]
"""Where a number, or what a comment holds, begins and ends, in characters of the query string."""

_set: Final = object.__setattr__


class Lifted(QueryString):
    """The query string ``sql``, which is ``like`` but for what ``spans`` and ``comments`` gave for it.

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
    if not _is_plain_select(decision) or _comments(query.sql, _SIMPLE) is None:
        return ()
    facts = query.statements[0]
    numbers = {found.start(): found.end() for found in _NUMBER.finditer(query.sql)}
    begin = facts.start - 1
    if not numbers or may_grow(facts):
        return ()
    compared = {begin + place: value for place, value in _compared(facts)}
    found = tuple(
        (start, end)
        for start, end in numbers.items()
        if start in compared and int(query.sql[start:end]) == compared[start]
    )
    return found if len(found) <= MAX_SPANS else ()


def comments(decision: Decision) -> tuple[Span, ...]:
    """What the comments of an allowed text hold, without ``/*`` and ``*/``, where they may hold anything else
    that ``COMMENT`` matches; () where there are none, or it is no such text as in ``spans``."""
    found = _comments(decision.query.sql, _QUOTING) if _is_plain_select(decision) else None
    return found if found is not None and len(found) <= MAX_SPANS else ()


def shape(text: bytes) -> bytes:
    """The same for texts that differ in digits and comments alone, and as long: where to look for one that
    was judged. That the spans are as they may be is for whoever finds it to see."""
    alike = text.translate(_DIGITS)
    return _ANY_COMMENT.sub(_blank, alike) if b"/*" in text else alike


def _blank(comment: re.Match[bytes]) -> bytes:
    return b" " * len(comment[0])


def _is_plain_select(decision: Decision) -> bool:
    """A SELECT that was allowed without a word, and goes to the server as it is."""
    query = decision.query
    if not isinstance(decision, Allow) or decision.warnings or decision.observed or decision.failures:
        return False
    if decision.rewritten is not None:
        # Another text goes to the server, which has the digits of this one.
        return False
    if len(query.sql) > MAX_TEXT or len(query.statements) != 1 or isinstance(query, Lifted):
        return False
    facts = query.statements[0]
    begin = facts.start - 1
    select = facts.node == "SelectStmt" and facts.classes == {StatementClass.SELECT}
    return select and query.sql.startswith(facts.sql, begin)


def _comments(sql: str, passed: re.Pattern[str]) -> tuple[Span, ...] | None:
    """What the comments of ``sql`` hold; None where between them there is anything that ``passed`` does not
    match, or one of them is not ``_COMMENT``."""
    if not sql.isascii():
        return None
    found: list[Span] = []
    at = 0
    while (begin := _end(passed, sql, at)) < len(sql):
        comment = _COMMENT.match(sql, begin)
        if comment is None:
            return None
        found.append(comment.span(1))
        at = comment.end()
    return tuple(found)


def _end(passed: re.Pattern[str], sql: str, at: int) -> int:
    match = passed.match(sql, at)
    return at if match is None else match.end()


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
