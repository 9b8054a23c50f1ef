"""unknown-function: a call of a function, or a use of an operator, that does not exist.

What it refuses
    A name that is no function of PostgreSQL's own and that no schema the call could mean holds. Whether a
    function takes the arguments given is the server's to say.
Why
    Most such calls are another product's functions; the agent learns PostgreSQL's, before the database is
    asked.
Refused
    ``SELECT ifnull(status, 'none') FROM orders`` · ``SELECT 1 <~~~> 2``
Allowed
    ``SELECT coalesce(status, 'none') FROM orders``
Settings
    None of its own: ``functions`` says what a hint may name. Works with a catalog alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from policy import builtin
from policy.calls import find_calls
from policy.catalog_names import CatalogNames
from policy.facts import Facts, FunctionRef, TypeRef
from policy.model import Policy, RuleLevel, Violation
from policy.names import Names
from policy.nearest import nearest

NAME = "unknown-function"
DEFAULT = RuleLevel.REJECT
SQLSTATE = "42883"
GOVERNED_BY = "functions"

_OPERATOR = ("Use one of PostgreSQL's own operators.", None)
_LEAVE_OUT = "Use a function that PostgreSQL has, or leave the call out."

FROM_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "charindex": "strpos(text, part), which takes them in the other order",
        "convert": "CAST(value AS type)",
        "curdate": "CURRENT_DATE",
        "date_add": "date + interval '1 day'",
        "date_format": "to_char(timestamp, format)",
        "date_sub": "date - interval '1 day'",
        "dateadd": "timestamp + interval '1 day'",
        "datediff": "the difference of two dates, date - date",
        "datepart": "extract(part FROM timestamp)",
        "day": "extract(day FROM date)",
        "decode_oracle": "CASE",
        "getdate": "now()",
        "group_concat": "string_agg(text, separator)",
        "hour": "extract(hour FROM time)",
        "if": "CASE WHEN … THEN … ELSE … END",
        "ifnull": "coalesce(value, otherwise)",
        "iif": "CASE WHEN … THEN … ELSE … END",
        "instr": "strpos(text, part)",
        "isnull": "coalesce(value, otherwise), or IS NULL",
        "json_extract": "the operators -> and ->>",
        "julianday": "extract(epoch FROM timestamp)",
        "len": "length(text)",
        "listagg": "string_agg(text, separator)",
        "minute": "extract(minute FROM time)",
        "month": "extract(month FROM date)",
        "nvl": "coalesce(value, otherwise)",
        "rand": "random()",
        "regexp_contains": "text ~ pattern",
        "safe_divide": "a / nullif(b, 0)",
        "strftime": "to_char(timestamp, format)",
        "sysdate": "now()",
        "timestampdiff": "the difference of two timestamps",
        "to_varchar": "to_char(value, format)",
        "ucase": "upper(text)",
        "lcase": "lower(text)",
        "unix_timestamp": "extract(epoch FROM timestamp)",
        "year": "extract(year FROM date)",
    }
)
"""Functions of other products -> what PostgreSQL has in their place."""


def check(facts: Facts, names: Names, policy: Policy) -> Iterator[Violation]:
    if not isinstance(names, CatalogNames):
        return
    if names.temporary:
        return  # what this session has made itself is in no snapshot: function-not-allowed judges by name
    for missing in names.shared(facts, find_calls).missing:
        if isinstance(missing.ref, TypeRef):
            continue
        kind, (hint, suggestion) = "operator", _OPERATOR
        if isinstance(missing.ref, FunctionRef):
            kind, (hint, suggestion) = "function", advice(missing.ref.name, names, policy)
        yield Violation(
            rule=NAME,
            message=f"There is no {kind} {missing.spelt}",
            hint=hint,
            object=missing.spelt,
            position=missing.position,
            suggestion=suggestion,
            repairable=True,
            line=policy.functions.line,
        )


def advice(wanted: str, names: CatalogNames, policy: Policy) -> tuple[str, str | None]:
    """The next step for a function of a name that does not exist, and what could stand in its place."""
    if wanted in FROM_ELSEWHERE:
        return f"Use {FROM_ELSEWHERE[wanted]}.", None
    near = nearest(wanted, _usable(names, policy))
    if not near:
        return _LEAVE_OUT, None
    return f"Use {' or '.join(near)} instead, or leave the call out.", near[0]


def _usable(names: CatalogNames, policy: Policy) -> set[str]:
    """The functions that the policy opens, as an agent writes them."""
    found = set(_safe_builtins()) if policy.functions.builtin_safe else set()
    for function in names.catalog.content.functions:
        name = function.qualified
        if name.schema in builtin.SYSTEM_SCHEMAS or any(p.matches(*name) for p in policy.functions.deny):
            continue
        if any(pattern.matches(*name) for pattern in policy.functions.allow):
            found.add(name.name if name.schema in names.schemas else str(name))
    return found


@cache
def _safe_builtins() -> frozenset[str]:
    return frozenset(name for name in builtin.FUNCTIONS if builtin.is_safe(name))
