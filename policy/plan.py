"""PostgreSQL's answer to EXPLAIN (FORMAT JSON), typed.

Owns the reading of that JSON, as ``ExplainNode`` in src/backend/commands/explain.c writes it in PostgreSQL 15
to 18. Unknown keys and node types are kept out of the way, not refused: a newer server says more, and what
it says of cost and rows is read all the same. What does not have the numbers of a plan is refused. Knows no
policy and judges nothing (``figures``, ``cost``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_BYTES: Final = 4 << 20
"""Longer answers are refused: a plan of a thousand partitions takes some 1 MB."""
MAX_DEPTH: Final = 400


class PlanFormatError(Exception):
    """The text is no plan. The statement it was asked for cannot be priced, hence not let through."""


class NoPlanError(Exception):
    """There is no plan of a statement.

    ``sqlstate`` is PostgreSQL's where it refuses to plan it, ``position`` the character of the statement
    that it blames, from 1. ``late`` is True where it took longer than it may.
    """

    def __init__(
        self, message: str, *, sqlstate: str | None = None, position: int | None = None, late: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.sqlstate = sqlstate
        self.position = position
        self.late = late


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a plan. Costs in planner units, ``rows`` and ``width`` (bytes) for one run of the node.

    ``role`` is the key "Parent Relationship": Outer, Inner, InitPlan, SubPlan, Member, Subquery; empty at the
    top. ``rows`` below a Gather are those of one worker. ``conditions`` are the keys that name a condition,
    as "Hash Cond" or "Filter", each with its text; ``schema``, ``output`` and ``call`` are there under
    VERBOSE alone.
    """

    kind: str
    startup: float
    total: float
    rows: float
    width: float
    role: str = ""
    relation: str | None = None
    schema: str | None = None
    alias: str | None = None
    index: str | None = None
    join: str | None = None
    inner_unique: bool = False
    strategy: str | None = None
    operation: str | None = None
    function: str | None = None
    call: str | None = None
    cte: str | None = None
    subplan: str | None = None
    sampling: str | None = None
    workers: int = 0
    parallel_aware: bool = False
    conditions: tuple[tuple[str, str], ...] = ()
    keys: tuple[str, ...] = ()
    """Sort, group and hash keys."""
    output: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()

    def has(self, *keys: str) -> bool:
        """Whether any of the conditions ``keys`` is there."""
        return any(key in keys for key, _ in self.conditions)

    def walk(self) -> Iterator[Node]:
        """The node and all below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plans of one statement: one as a rule, several or none where rewrite rules make it so."""

    roots: tuple[Node, ...]

    def walk(self) -> Iterator[Node]:
        for root in self.roots:
            yield from root.walk()


def parse_plan(text: bytes | str) -> Plan:
    """Read the one value that EXPLAIN (FORMAT JSON) returns. Raises ``PlanFormatError`` for anything else."""
    if len(text) > MAX_BYTES:
        raise PlanFormatError(f"the plan is {len(text)} bytes long")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanFormatError(f"no JSON: {error}") from error
    if not isinstance(answer, list):
        raise PlanFormatError("no list of plans")
    return Plan(tuple(_root(item) for item in answer))


def _root(item: Any) -> Node:
    if not isinstance(item, dict) or "Plan" not in item:
        raise PlanFormatError("an item without a plan: the statement is not one that is planned")
    return _node(item["Plan"], 1)


_CONDITIONS: Final = (
    "Hash Cond",
    "Merge Cond",
    "Join Filter",
    "Filter",
    "Index Cond",
    "Recheck Cond",
    "TID Cond",
    "One-Time Filter",
    "Order By",
)
_KEYS: Final = ("Sort Key", "Group Key", "Presorted Key")


def _node(raw: Any, depth: int) -> Node:
    if not isinstance(raw, dict):
        raise PlanFormatError("a node that is no object")
    if depth > MAX_DEPTH:
        raise PlanFormatError("the plan is nested too deep")
    below = raw.get("Plans", [])
    if not isinstance(below, list):
        raise PlanFormatError("the children of a node are no list")
    conditions = tuple((key, str(raw[key])) for key in _CONDITIONS if key in raw)
    return Node(
        kind=_word(raw, "Node Type") or _missing("Node Type"),
        startup=_number(raw, "Startup Cost"),
        total=_number(raw, "Total Cost"),
        rows=_number(raw, "Plan Rows"),
        width=_number(raw, "Plan Width"),
        role=_word(raw, "Parent Relationship") or "",
        relation=_word(raw, "Relation Name"),
        schema=_word(raw, "Schema"),
        alias=_word(raw, "Alias"),
        index=_word(raw, "Index Name"),
        join=_word(raw, "Join Type"),
        inner_unique=raw.get("Inner Unique") is True,
        strategy=_word(raw, "Strategy"),
        operation=_word(raw, "Operation"),
        function=_word(raw, "Function Name"),
        call=_word(raw, "Function Call"),
        cte=_word(raw, "CTE Name"),
        subplan=_word(raw, "Subplan Name"),
        sampling=_word(raw, "Sampling Method"),
        workers=int(_number(raw, "Workers Planned")) if "Workers Planned" in raw else 0,
        parallel_aware=raw.get("Parallel Aware") is True,
        conditions=conditions,
        keys=tuple(text for key in _KEYS for text in _words(raw.get(key, ()))),
        output=_words(raw.get("Output", ())),
        children=tuple(_node(child, depth + 1) for child in below),
    )


def _missing(key: str) -> str:
    raise PlanFormatError(f"a node without {key}")


def _word(raw: Mapping[str, Any], key: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise PlanFormatError(f"{key} is no text")
    return value


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        # Sort keys of a set-returning or incremental kind nest lists; nothing is judged by those.
        return ()
    return tuple(value)


def _number(raw: Mapping[str, Any], key: str) -> float:
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanFormatError(f"{key} is no number")
    try:
        number = float(value)
    except OverflowError as error:
        raise PlanFormatError(f"{key} is no number") from error
    # Python's reader takes Infinity and NaN for numbers, which no limit could be held against.
    if not math.isfinite(number) or number < 0:
        raise PlanFormatError(f"{key} is no number of a plan")
    return number
