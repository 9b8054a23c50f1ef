"""function-not-allowed: a call the policy does not allow, however it is spelt.

What it refuses
    Every call of a function that ``functions.deny`` names or ``functions.allow`` does not cover. With a
    catalog: every overload that the server could choose, and what is behind an operator, a cast (with the
    checks of a domain and the members of a composite type), an aggregate, a comparison that sorts, groups
    or joins, a view (``relations.views:
    expand``) and ``x.f`` where x has no column f; and the functions that a definition names, as CREATE
    OPERATOR, CAST, AGGREGATE, TYPE and TRIGGER do. Without one: in every schema it could be found in; an
    operator that is not PostgreSQL's own is refused, a cast to a type that is not needs the permission a
    function of its name would need, and ``x.f`` is refused where f is a built-in that is not safe, or denied.
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
    reviewed list of PostgreSQL's functions that do nothing beside their result. An entry of ``allow`` may
    tell functions by what they are: ``{schema: reporting, language: sql, volatility: immutable,
    security_definer: false, owner: dba}``; it stands for no function of PostgreSQL's own, and for none where
    there is no catalog. ``set_config`` is judged as SET is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from policy import builtin
from policy.builtin_symbols import INFORMATION_SCHEMA_TYPES, OPERATORS, TYPES
from policy.calls import Call, Missing, Via, find_calls
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, UnreadCatalog
from policy.catalog_values import Function
from policy.facts import CallKind, Facts, FunctionRef, OperatorRef, TypeRef
from policy.model import FunctionKind, Pattern, Policy, RuleLevel, StatementClass, Views, Violation
from policy.names import Names, QualifiedName
from policy.rules.naming import unread
from policy.rules.session_undo import UNLOCKS

NAME = "function-not-allowed"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42501"
GOVERNED_BY = "functions"

_OWN = (None, builtin.PG_CATALOG)
_SAMPLING_METHODS = frozenset({"bernoulli", "system"})
"""Named by TABLESAMPLE. As functions they take an argument of type internal, which no SQL can give."""


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    if isinstance(names, UnreadCatalog):
        if facts.functions or facts.operators or facts.types:
            yield unread(NAME, names, facts.start)
    elif isinstance(names, CatalogNames):
        yield from _by_catalog(facts, names, policy)
    else:
        yield from _by_name(facts, names, policy)


# With a catalog ---------------------------------------------------------------------------------------------


def _by_catalog(facts: Facts, names: CatalogNames, policy: Policy) -> Iterator[Violation]:
    found = names.shared(facts, find_calls)
    told: set[tuple[str, int | None]] = set()
    for call in found.calls:
        # What the session has just made again may be of another kind than the snapshot says.
        violation = _judge(replace(call, overload=None) if names.unsettled else call, policy)
        if violation is not None and (violation.message, violation.position) not in told:
            told.add((violation.message, violation.position))
            yield violation
    for missing in found.missing:
        yield from _missing(missing, names, policy)


def _judge(call: Call, policy: Policy) -> Violation | None:
    if call.via is Via.VIEW and policy.relations.views is Views.OWN:
        return None
    denied = next((p for p in policy.functions.deny if p.matches(*call.name)), None)
    if denied is not None:
        return _refused(call, "the policy denies it", policy, denied.line)
    own = call.name.schema == builtin.PG_CATALOG and call.overload is None
    if own and _is_name_judged_elsewhere(call.name.name, call.arguments):
        return None
    if _is_call_allowed(call, policy):
        return None
    return _refused(call, _why(call.name, call.arguments, policy), policy, policy.functions.line)


def _is_call_allowed(call: Call, policy: Policy) -> bool:
    # x.f is most often a column: a policy without builtin-safe does not refuse every one of such a name.
    if _is_allowed(call.name, call.arguments, policy, any_builtin_safe=call.attribute):
        return True
    if call.via is Via.DEFINITION and _is_support(call.name, policy):
        return True
    if call.name.schema in builtin.SYSTEM_SCHEMAS or call.overload is None:
        return False
    return any(_is_of_kind(call.overload, kind) for kind in policy.functions.kinds)


def is_function_allowed(name: QualifiedName, catalog: Catalog, policy: Policy) -> bool:
    """Whether every function of that name, outside pg_catalog, is open to the agent."""
    if any(pattern.matches(*name) for pattern in policy.functions.deny):
        return False
    overloads = catalog.functions(*name) or (None,)
    return all(_is_call_allowed(Call(name, Via.CALL, str(name), each), policy) for each in overloads)


def _is_of_kind(function: Function, kind: FunctionKind) -> bool:
    return (
        kind.pattern.matches(function.schema, function.name)
        and (kind.volatility is None or function.volatility.name.lower() in kind.volatility)
        and (kind.language is None or function.language in kind.language)
        and (kind.security_definer is None or function.security_definer is kind.security_definer)
        and (kind.owner is None or function.owner == kind.owner)
    )


def _refused(call: Call, why: str, policy: Policy, line: int) -> Violation:
    subject, object_ = _SUBJECTS[call.via].format(spelt=call.spelt, name=call.name), str(call.name)
    if call.via is Via.VIEW:
        why, object_ = f"it calls a function that policy {policy.name} does not list or denies", call.spelt
    return Violation(
        rule=NAME,
        message=f"{subject} is not allowed: {why}",
        hint=_hint(policy),
        object=object_,
        position=call.position,
        line=line,
        schema=call.name.schema if call.via is not Via.VIEW else None,
    )


_SUBJECTS: Mapping[Via, str] = MappingProxyType(
    {
        Via.CALL: "Function {name}",
        Via.DEFINITION: "Function {name}",
        Via.OPERATOR: "Operator {spelt}, which calls function {name},",
        Via.CAST: "A cast to {spelt}, which calls function {name},",
        Via.AGGREGATE: "Aggregate {spelt}, which calls function {name},",
        Via.COMPARISON: "A comparison of {spelt} values, which calls function {name},",
        Via.VIEW: "View {spelt}",
    }
)


def _missing(missing: Missing, names: CatalogNames, policy: Policy) -> Iterator[Violation]:
    """What the snapshot lacks: where the session may have made it itself, its name decides."""
    ref = missing.ref
    if not names.temporary:
        if isinstance(ref, TypeRef):
            yield _unknown_type(missing, policy)
    elif isinstance(ref, TypeRef):
        yield from _cast(ref, names.by_path, policy)
    elif isinstance(ref, OperatorRef):
        yield from _operator(ref, policy)
    else:
        yield from _call(ref, names.by_path, policy)


def _unknown_type(missing: Missing, policy: Policy) -> Violation:
    return Violation(
        rule=NAME,
        message=f"Type {missing.spelt} is not known, so what a cast to it calls cannot be judged",
        hint="Cast to a type that exists, or leave the cast out.",
        object=missing.spelt,
        position=missing.position,
        sqlstate="42704",
        repairable=True,
        line=policy.functions.line,
    )


# By name alone ----------------------------------------------------------------------------------------------


def _by_name(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    for function in facts.functions:
        judge = _attribute if function.kind is CallKind.ATTRIBUTE else _call
        yield from judge(function, names, policy)
    for operator in facts.operators:
        yield from _operator(operator, policy)
    defines = StatementClass.DDL in facts.classes
    for type_ref in facts.types:
        # Outside a definition, a type is named for values to be read into: PREPARE p (t).
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
    arguments = None if ref.kind is CallKind.NAMED else ref.arguments
    refused = [name for name in candidates if not _is_allowed(name, arguments, policy)]
    if ref.kind is CallKind.NAMED:
        refused = [name for name in refused if not _is_support(name, policy)]
    if refused:
        shown = refused[0]
        yield _violation(ref, shown, _why(shown, arguments, policy), policy, policy.functions.line)


def _is_judged_elsewhere(ref: FunctionRef) -> bool:
    return ref.schema in _OWN and _is_name_judged_elsewhere(ref.name, ref.arguments)


def _is_name_judged_elsewhere(name: str, arguments: int | None) -> bool:
    """For functions of pg_catalog."""
    unlocks = name in UNLOCKS and arguments == 0
    return unlocks or name == "set_config" or name in _SAMPLING_METHODS


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
    name: QualifiedName, arguments: int | None, policy: Policy, *, any_builtin_safe: bool = False
) -> bool:
    rules = policy.functions
    if name.schema in builtin.SYSTEM_SCHEMAS:
        safe_counts = rules.builtin_safe or any_builtin_safe
        if safe_counts and builtin.is_safe(name.name, arguments, name.schema):
            return True
        # "*.*" stands for the DBA's own functions, not for what the review found unsafe.
        return any(p.schema == name.schema and p.matches(*name) for p in rules.allow)
    return any(p.matches(*name) for p in rules.allow)


def _is_support(name: QualifiedName, policy: Policy) -> bool:
    """Whether it is a built-in that a definition may name though nobody can call it."""
    own = policy.functions.builtin_safe and name.schema in builtin.SYSTEM_SCHEMAS
    return own and builtin.is_support(name.name, name.schema)


def _why(name: QualifiedName, arguments: int | None, policy: Policy) -> str:
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
    usable += ["functions of the kinds that the policy lists"] if rules.kinds else []
    usable += [_shown(p) for p in rules.allow if not any(d.matches(p.schema, p.name) for d in rules.deny)]
    if not usable:
        return "Leave the call out: this policy allows no function."
    return f"Leave the call out, or use {', '.join(usable)}."


def _shown(pattern: Pattern) -> str:
    """A star for the schema stands for no system schema: PostgreSQL's own are allowed by name alone."""
    return f"{pattern} (none of pg_catalog)" if pattern.schema.startswith("*") else str(pattern)
