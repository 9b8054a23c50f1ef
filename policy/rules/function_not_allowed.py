"""function-not-allowed: a call the policy does not allow, however it is spelt.

What it refuses
    Every call of a function that ``functions.deny`` names or ``functions.allow`` does not cover, in every
    schema it could be found in. An operator that is not PostgreSQL's own, and a cast to a type that is not,
    may call any function: the operator is refused, the type needs the permission a function of its name would
    need. ``x.f`` is a call of f where x has no such column: refused where f is a built-in that is not safe,
    or denied.
Why
    Functions read files, run text as SQL, sleep, lock, and write with their owner's rights; and the planner
    runs them for an EXPLAIN alone.
Refused
    ``SELECT pg_sleep(5)`` · ``SELECT query_to_xml('TABLE api_keys', true, false, '')`` · ``SELECT 5 <~> 3`` ·
    ``SELECT 7::small_qty``
Allowed
    ``SELECT count(*), lower(name) FROM customers GROUP BY 2`` · ``SELECT '7'::int + 1`` ·
    ``SELECT pg_advisory_unlock_all()`` (it undoes only the session's own doing)
Settings
    ``functions: {allow: [builtin-safe, schema.name, …], deny: […]}``; deny wins. ``builtin-safe`` is the
    reviewed list of PostgreSQL's functions that do nothing beside their result. ``set_config`` is judged as
    SET is.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy import builtin
from policy.builtin_symbols import INFORMATION_SCHEMA_TYPES, OPERATORS, TYPES
from policy.facts import CallKind, Facts, FunctionRef, OperatorRef, TypeRef
from policy.model import Pattern, Policy, RuleLevel, StatementClass, Violation
from policy.names import Names, QualifiedName
from policy.rules.session_undo import unlocks

NAME = "function-not-allowed"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "functions"

_OWN = (None, builtin.PG_CATALOG)
_SAMPLING_METHODS = frozenset({"bernoulli", "system"})
"""Named by TABLESAMPLE. As functions they take an argument of type internal, which no SQL can give."""


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    for function in facts.functions:
        judge = _attribute if function.kind is CallKind.ATTRIBUTE else _call
        yield from judge(function, names, policy)
    for operator in facts.operators:
        yield from _operator(operator, policy)
    defines = StatementClass.DDL in facts.classes
    for type_ref in facts.types:
        # Outside a definition, a type is named for values to be read into: PREPARE p (t), AS r (x t).
        if type_ref.cast or not defines:
            yield from _cast(type_ref, names, policy)


def _call(ref: FunctionRef, names: Names, policy: Policy) -> Iterator[Violation]:
    candidates = _candidates(ref, names)
    denied = _denied(candidates, policy)
    if denied is not None:
        yield _violation(ref, candidates[0], "the policy denies it", policy, denied.line)
        return
    if _is_judged_elsewhere(ref):
        return
    refused = [name for name in candidates if not _is_allowed(name, ref.arguments, policy)]
    if refused:
        shown = refused[0]
        yield _violation(ref, shown, _why(shown, ref.arguments, policy), policy, policy.functions.line)


def _is_judged_elsewhere(ref: FunctionRef) -> bool:
    if ref.schema not in _OWN:
        return False
    return unlocks(ref) or ref.name == "set_config" or ref.name in _SAMPLING_METHODS


def _attribute(ref: FunctionRef, names: Names, policy: Policy) -> Iterator[Violation]:
    """``x.f``, most often a plain column: only what is known to be a function can be held against it."""
    # A deny pattern with a wildcard is no sign that a function of this name exists.
    named = [pattern for pattern in policy.functions.deny if pattern.name == ref.name]
    candidates = tuple(names.functions(ref)) if named else ()
    denied = next((pattern for pattern in named if _matches_any(pattern, candidates)), None)
    if denied is not None:
        yield _violation(ref, candidates[0], "the policy denies it", policy, denied.line)
    elif builtin.accepts(ref.name, 1) and not _is_allowed(
        QualifiedName(builtin.PG_CATALOG, ref.name), 1, policy, any_builtin_safe=True
    ):
        shown = QualifiedName(builtin.PG_CATALOG, ref.name)
        yield _violation(ref, shown, _why(shown, 1, policy), policy, policy.functions.line)


def _operator(ref: OperatorRef, policy: Policy) -> Iterator[Violation]:
    if ref.schema in _OWN and ref.symbol in OPERATORS:
        return
    spelt = ref.symbol if ref.schema is None else f"OPERATOR({ref.schema}.{ref.symbol})"
    yield Violation(
        rule=NAME,
        message=f"Operator {spelt} is not one of PostgreSQL's own and may call any function",
        hint="Use a built-in operator, or a function that the policy allows.",
        object=spelt,
        position=ref.position,
        line=policy.functions.line,
    )


def _cast(ref: TypeRef, names: Names, policy: Policy) -> Iterator[Violation]:
    if _is_own_type(ref):
        return
    # f(x) and x::f are one thing to PostgreSQL where f is a type, so one permission covers both.
    candidates = _candidates(FunctionRef(ref.name, ref.schema, arguments=1), names)
    if all(_is_allowed(name, 1, policy) for name in candidates) and _denied(candidates, policy) is None:
        return
    spelt = ref.name if ref.schema is None else f"{ref.schema}.{ref.name}"
    yield Violation(
        rule=NAME,
        message=f"A cast to {spelt}, which is not one of PostgreSQL's own types, may call any function",
        hint="Cast to a built-in type, or leave the cast out.",
        object=spelt,
        position=ref.position,
        line=policy.functions.line,
    )


def _is_own_type(ref: TypeRef) -> bool:
    if ref.schema == builtin.INFORMATION_SCHEMA:
        return ref.name in INFORMATION_SCHEMA_TYPES
    # PostgreSQL names an array type after its element: _int4.
    return ref.schema in _OWN and (ref.name in TYPES or (ref.name.startswith("_") and ref.name[1:] in TYPES))


def _candidates(ref: FunctionRef, names: Names) -> tuple[QualifiedName, ...]:
    """What the call could reach. A built-in's name stands for the built-in unless its schema says
    otherwise."""
    candidates = tuple(names.functions(ref))
    if ref.schema is not None:
        return candidates
    if builtin.is_builtin(ref.name):
        return (QualifiedName(builtin.PG_CATALOG, ref.name),)
    outside = tuple(name for name in candidates if name.schema != builtin.PG_CATALOG)
    return outside or (QualifiedName(builtin.PG_CATALOG, ref.name),)


def _denied(candidates: tuple[QualifiedName, ...], policy: Policy) -> Pattern | None:
    return next((p for p in policy.functions.deny if _matches_any(p, candidates)), None)


def _matches_any(pattern: Pattern, candidates: tuple[QualifiedName, ...]) -> bool:
    return any(pattern.matches(*name) for name in candidates)


def _is_allowed(
    name: QualifiedName, arguments: int, policy: Policy, *, any_builtin_safe: bool = False
) -> bool:
    rules = policy.functions
    if name.schema in builtin.SYSTEM_SCHEMAS:
        safe_counts = rules.builtin_safe or any_builtin_safe
        if safe_counts and builtin.is_safe(name.name, arguments, name.schema):
            return True
        # "*.*" stands for the DBA's own functions, not for what the review found unsafe.
        return any(p.schema == name.schema and p.matches(*name) for p in rules.allow)
    return any(p.matches(*name) for p in rules.allow)


def _why(name: QualifiedName, arguments: int, policy: Policy) -> str:
    if name.schema in builtin.SYSTEM_SCHEMAS and builtin.is_builtin(name.name, name.schema):
        reason = builtin.category(name.name, arguments, name.schema)
        if reason is not None:
            return f"it {reason}"
    return f"policy {policy.name} does not list it"


def _violation(ref: FunctionRef, name: QualifiedName, why: str, policy: Policy, line: int) -> Violation:
    return Violation(
        rule=NAME,
        message=f"Function {name} is not allowed: {why}",
        hint=_hint(policy),
        object=str(name),
        position=ref.position,
        line=line,
        schema=name.schema,
    )


def _hint(policy: Policy) -> str:
    rules = policy.functions
    usable = ["PostgreSQL's own functions that have no effect"] if rules.builtin_safe else []
    usable += [str(p) for p in rules.allow if not any(d.matches(p.schema, p.name) for d in rules.deny)]
    if not usable:
        return "Leave the call out: this policy allows no function."
    return f"Leave the call out, or use {', '.join(usable)}."
