"""unpriceable: a statement whose plan says nothing of what it would take.

What it refuses
    A recursive query. A function that returns rows where the planner only guesses how many: a volatile
    one made by users, a series whose bounds the text does not give. Values made
    large by ``repeat``, ``lpad``, ``format`` and their like, with a count that is large or unbounded. An
    EXECUTE with a volatile function among its arguments, whatever the setting.
Why
    The planner says 3.66 of a recursion of a hundred million rows and 0.01 of a gigabyte in one value.
    Arguments of EXECUTE are evaluated to plan it: what they call would run for the question as well.
Refused
    ``WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n`` · ``SELECT
    repeat('x', 1000000000)`` · ``SELECT count(*) FROM generate_series(1, (SELECT 2000000000))``
Allowed
    ``SELECT lpad(id::text, 6, '0') FROM orders LIMIT 5`` · ``SELECT * FROM generate_series(1, 12)``
Repair
    One, by a bound that can be seen: a constant count, ``least(n, 50)``, constant bounds of a series.
Settings
    ``cost: {unpriceable: reject | warn | off}``; reject by default. A value counts as large above
    ``max_result_bytes``, or 16 MiB where that is not set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from policy import builtin
from policy.catalog_values import Volatility
from policy.expressions import kind_of, names_of
from policy.facts import Facts
from policy.model import CostLimits, Policy, RuleLevel, Violation
from policy.names import QualifiedName
from policy.parse import trees
from policy.plan import Node
from policy.priced import Priced
from policy.rules.cost_over_limit import COLLECTING
from policy.series import DEFAULT_ROWS, series_rows
from policy.sizes import Growth, growth, may_grow

NAME = "unpriceable"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "54001"
GOVERNED_BY = "cost"

LARGE_BYTES: Final = 16 << 20
_ORDINARY_BYTES: Final = 256
"""Values of up to this size are what the planner's own widths are about."""
_SERIES: Final = QualifiedName(builtin.PG_CATALOG, "generate_series")
_PLAN_VALUE: Final = re.compile(r"\((?:hashed )?(?:InitPlan|SubPlan) (\d+)\)(?:\.col\d+)?")
"""How EXPLAIN prints a sub-plan's value, which no grammar reads; an InitPlan's is ``$0`` before 17."""


def check_text(facts: Facts, policy: Policy) -> Iterator[Violation]:
    """What needs no plan, and must be known before one is asked for: planning would make the value."""
    found = growth(facts) if may_grow(facts) else None
    if found is None or found.bytes <= _large(policy.cost):
        return
    size = "any number of" if math.isinf(found.bytes) else f"about {found.bytes:,.0f}"
    yield _violation(
        policy,
        f"Unpriceable: {found.function} makes a value of {size} bytes",
        "Give the count as a small constant, or bound it, as in least(n, 50).",
        position=_position(facts, found),
    )


def check_plan(priced: Priced, policy: Policy) -> Iterator[Violation]:
    yield from _recursions(priced, policy)
    for node in priced.nodes:
        if node.kind in ("Function Scan", "ProjectSet"):
            yield from _sets(priced, policy, node)
    if may_grow(priced.facts):
        yield from _grown_rows(priced, policy)


def run_twice(policy: Policy, function: str, position: int | None) -> Violation:
    """The objection to an EXECUTE with an argument that asking for its price would carry out."""
    return _refusal(
        policy,
        f"Unpriceable: {function} is an argument of EXECUTE, and asking for a plan would run it",
        f"Call {function} in the statement that is prepared, or give its value as a constant.",
        position,
    )


def several(policy: Policy) -> Violation:
    """The objection to a string of statements that would have to be priced."""
    return _refusal(
        policy,
        "Unpriceable: a later statement of a string may depend on an earlier one",
        "Send the statements one by one.",
    )


def unread(policy: Policy) -> Violation:
    """The objection to a statement whose plan is none that can be read."""
    return _refusal(
        policy, "Unpriceable: the server's plan could not be read", "Report this to whoever runs the gate."
    )


def too_slow(policy: Policy) -> Violation:
    """The objection to a statement whose plan was not there in time."""
    return _refusal(
        policy,
        "Unpriceable: the server did not plan the statement in time",
        "Join fewer relations, or compare with constants instead of calling functions.",
    )


def unasked(policy: Policy) -> Violation:
    """The objection to rows of what was opened before the policy set limits to its price."""
    return _refusal(
        policy,
        "Unpriceable: this was opened before the policy limited its cost",
        "End the transaction, close what is open, and send the statement again.",
    )


def exchanged(policy: Policy) -> Violation:
    """The objection to what stands for another statement than the one that was priced."""
    return _refusal(
        policy,
        "Unpriceable: a prepared statement, or a name in one, has come to mean another since this was bound",
        "Bind it again.",
    )


def _recursions(priced: Priced, policy: Policy) -> Iterator[Violation]:
    if any(node.kind == "Recursive Union" for node in priced.nodes):
        yield _violation(
            policy,
            "Unpriceable: the planner cannot know how often a recursive query repeats",
            "Write the levels out as joins, or ask for them one by one.",
        )


def _sets(priced: Priced, policy: Policy, node: Node) -> Iterator[Violation]:
    """The calls of one node that return rows the planner only guesses."""
    if node.kind == "Function Scan" and node.rows <= 1 and priced.catalog is None:
        return
    texts = node.output if node.call is None else (node.call,)
    calls = [call for text in texts for call in _calls(text)]
    if node.kind == "ProjectSet" and not any(name is None or _may_return_set(name) for name, _ in calls):
        # Something returns a set here, and not by a name: an operator.
        calls.append((None, ()))
    for name, args in calls:
        if name is None:
            yield _guess(policy, node.function or "a function")
        elif _guessed(priced, name):
            yield _guess(policy, name.name)
        elif name == _SERIES:
            yield from _series(priced, policy, node, args)


def _calls(text: str) -> Iterator[tuple[QualifiedName | None, Sequence[Any]]]:
    """The function calls in an expression list that EXPLAIN printed; one without a name where it cannot be
    read back."""
    read = trees("SELECT " + _PLAN_VALUE.sub(r"$\1", text))
    if read:
        yield from _function_calls(read)
    else:
        yield None, ()


def _function_calls(node: Any) -> Iterator[tuple[QualifiedName, Sequence[Any]]]:
    if isinstance(node, list | tuple):
        for item in node:
            yield from _function_calls(item)
    elif isinstance(node, dict):
        for kind, fields in node.items():
            if kind == "FuncCall":
                names = names_of(fields["funcname"])
                # Unqualified: pg_catalog's, or one of the search path, which _guessed looks for too.
                schema = names[-2] if len(names) > 1 else builtin.PG_CATALOG
                yield QualifiedName(schema, names[-1]), fields.get("args", ())
            yield from _function_calls(fields)


def _series(priced: Priced, policy: Policy, node: Node, args: Sequence[Any]) -> Iterator[Violation]:
    below = sum(child.rows for child in node.children) or 1.0
    if round(node.rows / below) != DEFAULT_ROWS:
        return  # the planner worked it out, and its limits hold
    rows = series_rows([_with_values(priced, arg) for arg in args], priced.number_of, priced.today)
    ceiling = priced.limits.max_rows if priced.limits.max_rows is not None else math.inf
    if rows * below <= max(ceiling, DEFAULT_ROWS) and not math.isinf(rows):
        return
    count = "any number of" if math.isinf(rows) else f"about {rows * below:,.0f}"
    yield _violation(
        policy,
        f"Unpriceable: generate_series makes {count} rows, which the planner takes for 1,000",
        "Give both bounds of the series as constants, not far apart.",
    )


def _with_values(priced: Priced, arg: Any) -> Any:
    """``arg`` with the value of an InitPlan in its place, where that is an expression of its own."""
    kind, fields = kind_of(arg)
    if kind == "TypeCast":
        return {kind: {**fields, "arg": _with_values(priced, fields["arg"])}}
    if kind != "ParamRef":
        return arg
    number = fields.get("number", 0)
    names = (f"InitPlan {number}", f"(returns ${number})")
    for node in priced.nodes:
        if node.subplan is not None and node.subplan.endswith(names) and len(node.output) == 1:
            read = trees("SELECT " + _PLAN_VALUE.sub(r"$\1", node.output[0]))
            targets = kind_of(read[0])[1].get("targetList", []) if read else []
            return _with_values(priced, targets[0]["ResTarget"]["val"]) if len(targets) == 1 else arg
    return arg


def _may_return_set(name: QualifiedName) -> bool:
    return builtin.returns_set(name.name, name.schema) or not builtin.is_builtin(name.name, name.schema)


def _guessed(priced: Priced, name: QualifiedName) -> bool:
    """Whether ``name`` may be a user's function that returns rows by a count that is a guess."""
    ours = builtin.is_builtin(name.name, name.schema)
    if priced.catalog is None:
        return not ours
    known = [f for f in priced.catalog.functions_named(name.name) if f.schema not in builtin.SYSTEM_SCHEMAS]
    if not known:
        return not ours
    return any(f.returns_set and f.volatility is Volatility.VOLATILE for f in known)


def _guess(policy: Policy, name: str) -> Violation:
    return _violation(
        policy,
        f"Unpriceable: {name} returns rows and the planner only guesses how many",
        "Read the relations it reads instead, or call it for one row at a time where it can be.",
    )


def _grown_rows(priced: Priced, policy: Policy) -> Iterator[Violation]:
    """Values that are small one by one and many."""
    found = growth(priced.facts)
    if found is None or found.bytes <= _ORDINARY_BYTES:
        return
    collecting = any(ref.name in COLLECTING for ref in priced.facts.functions)
    rows = (
        max((f.rows for f in priced.figures.nodes), default=0.0) if collecting else priced.figures.result_rows
    )
    if found.bytes * rows > _large(priced.limits):
        yield _violation(
            policy,
            f"Unpriceable: {found.function} makes about {found.bytes * rows:,.0f} bytes of {rows:,.0f} rows",
            "Make the values shorter, or ask for fewer rows with a condition or a LIMIT.",
            position=_position(priced.facts, found),
        )


def _large(limits: CostLimits | None) -> float:
    limit = limits.max_result_bytes if limits is not None else None
    return LARGE_BYTES if limit is None else limit


def _position(facts: Facts, found: Growth) -> int:
    if found.location is None or found.location < 0:
        return facts.start
    return facts.start + len(facts.sql.encode()[: found.location].decode(errors="ignore"))


def _refusal(policy: Policy, message: str, hint: str, position: int | None = None) -> Violation:
    """An objection at any level of the rule: there is no plan that limits could be held against."""
    return replace(_violation(policy, message, hint, position), level=RuleLevel.REJECT)


def _violation(policy: Policy, message: str, hint: str, position: int | None = None) -> Violation:
    return Violation(
        rule=NAME,
        message=message,
        hint=hint,
        position=position,
        repairable=True,
        line=policy.cost.line if policy.cost is not None else 0,
        level=policy.cost.unpriceable if policy.cost is not None else DEFAULT,
    )
