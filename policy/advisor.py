"""What sqlglot adds, on PostgreSQL's own spelling of a statement.

The only importer of sqlglot. It is given the canonical text that libpg_query's deparse wrote
(``parse.canonical``), never an agent's bytes, since its reading of those can be led astray. Its answers add a
refusal, a hint or a comparison; none of them lets anything pass. Bounded: what is too long, or what it cannot
read, it has no opinion on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.simplify import simplify

MAX_CHARACTERS = 16_000
"""Longer texts are not read."""
MAX_PREDICATE_NODES = 48
"""Larger predicates are not simplified: the time it takes grows with the square of an OR chain's length."""

_DIALECT = "postgres"

# It warns of statements it takes for opaque commands; here that means no opinion, which is no news.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


def conjuncts(canonical: str) -> tuple[str, ...]:
    """The conditions that the outermost WHERE of ``canonical`` joins by AND, each as text; () where none."""
    tree = _read(canonical)
    where = tree.args.get("where") if tree is not None else None
    if not isinstance(where, exp.Where):
        return ()
    return tuple(term.sql(_DIALECT) for term in _terms(where.this))


def holds_always(canonical: str) -> bool:
    """True when the WHERE of an UPDATE or DELETE anywhere in ``canonical`` simplifies to TRUE."""
    tree = _read(canonical)
    if tree is None:
        return False
    return any(_is_true(write.args.get("where")) for write in tree.find_all(exp.Update, exp.Delete))


def _read(canonical: str) -> exp.Expr | None:
    if len(canonical) > MAX_CHARACTERS:
        return None
    try:
        tree = sqlglot.parse_one(canonical, dialect=_DIALECT)
    except (SqlglotError, RecursionError, ValueError):
        return None
    return tree if isinstance(tree, exp.Expr) else None


def _terms(condition: exp.Expr) -> Iterator[exp.Expr]:
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from _terms(condition.left)
        yield from _terms(condition.right)
    else:
        yield condition


def _is_true(where: object) -> bool:
    if not isinstance(where, exp.Where):
        return False
    if sum(1 for _ in where.walk()) > MAX_PREDICATE_NODES:
        return False
    try:
        simple = simplify(where.this.copy(), dialect=_DIALECT)
    except (SqlglotError, RecursionError, ValueError, ArithmeticError):
        return False
    return isinstance(simple, exp.Boolean) and bool(simple.this)
