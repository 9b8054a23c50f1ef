"""A policy to start from, as YAML with comments: of a live database, or of what agents were seen to do.

Owns the text and the choice of what a DBA is told in it. What the narrowest policy is ``narrowest`` says;
names and sizes come from a catalog snapshot.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from policy.catalog import Catalog
from policy.catalog_values import FunctionKind, Relation, RelationKind, Volatility
from policy.model import Access, Multiple, Pattern, StatementClass
from policy.narrowest import Narrowest
from policy.schema import MODELINE

SCHEMA_FILE: Final = "policy.schema.json"
"""What the modeline names: ``policy schema > policy.schema.json`` makes it."""

_SECRET: Final = re.compile(
    r"(^|_)(passw(or)?d|passwd|pwd|pass|secret|token|api_?key|private_?key|access_?key|credential|credentials|salt|"
    r"hash|otp|pin|cvv|cvc|ssn|tax_?id|passport|iban|card_?(number|no)|account_?(number|no)|salary|birth(day|_?date)|dob)"
    r"(s|_hash|_enc|_encrypted|_digest)?($|_)"
)
"""Words in a name that say that what it holds is secret or personal."""
_READABLE: Final = frozenset(
    {
        RelationKind.TABLE,
        RelationKind.PARTITIONED,
        RelationKind.VIEW,
        RelationKind.MATERIALIZED_VIEW,
        RelationKind.FOREIGN_TABLE,
    }
)
_SCAN_ROWS: Final = 1_000_000
"""Rows above which a table is not to be read whole."""
_SHOWN: Final = 8
_WIDTH: Final = 110
_VOLATILITY: Final = {
    Volatility.IMMUTABLE: "immutable",
    Volatility.STABLE: "stable",
    Volatility.VOLATILE: "volatile",
}


def looks_secret(name: str) -> bool:
    """Whether a table or column of this name is likely to hold what agents should not read."""
    return _SECRET.search(name.lower()) is not None


def starter(catalog: Catalog) -> str:
    """The policy to start from for the database of ``catalog``: reads only, and nothing that looks secret."""
    relations = sorted(
        (
            r
            for r in catalog.content.relations
            if r.kind in _READABLE and not r.partition and not _is_system(r.schema)
        ),
        key=lambda relation: relation.qualified,
    )
    parts = (
        _head(catalog.content.database),
        _STATEMENTS,
        _relations(relations),
        _columns(relations),
        _functions(catalog),
        _cost(relations),
        _LIMITS,
        _tests(relations),
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def _is_own(relation: Relation) -> bool:
    return relation.kind in _READABLE and not relation.partition and not _is_system(relation.schema)


def _is_system(schema: str) -> bool:
    return schema.startswith("pg_") or schema == "information_schema"


def _head(database: str) -> list[str]:
    return [
        f"{MODELINE}{SCHEMA_FILE}",
        f"# A start for database {_plain(database)}: reads, and nothing whose name looks secret.",
        "# Read it line by line, run `policy lint --strict` and `policy test`, and try it in observe mode.",
        "version: 1",
        f"name: {_scalar(database)}",
        "mode: enforce                  # observe: decide and record, refuse nothing",
        "access: read_only",
        "",
    ]


_STATEMENTS: Final = [
    "statements:                    # a class without a row is refused",
    "  select:      {decide: allow, repair: once}",
    "  explain:     allow",
    "  show:        allow",
    "  set:         allow",
    "  transaction: allow",
    "  cursor:      allow",
    "  copy_out:    allow             # COPY (SELECT …) TO STDOUT, by which data frames are read",
    "  prepare:     allow",
    "  ddl:         {decide: reject, needs: approval}",
    "  role:        {decide: reject, needs: approval}",
    "  maintenance: {decide: reject, needs: runbook}",
    "",
]


def _relations(relations: Sequence[Relation]) -> Iterator[str]:
    yield "relations:"
    schemas = dict.fromkeys(relation.schema for relation in relations)
    if schemas:
        yield "  allow:"
    else:
        yield "  allow: []                    # the database holds no table yet"
    for schema in schemas:
        own = [relation for relation in relations if relation.schema == schema]
        yield from _commented(f"    - {_quoted(f'{pattern_part(schema)}.*')}", f"{_counted(own)}: ", own)
    secret = [relation for relation in relations if looks_secret(relation.name)]
    if secret:
        yield "  deny:                        # their names look secret"
        yield from (f"    - {_quoted(pattern(relation.schema, relation.name))}" for relation in secret)
    else:
        yield "  deny: []                     # no table's name looks secret"
    yield "  catalogs: filtered           # names, types and keys, which drivers look up"
    yield ""


def _columns(relations: Sequence[Relation]) -> Iterator[str]:
    hidden = [
        (relation, names)
        for relation in relations
        if not looks_secret(relation.name)
        and (names := [column.name for column in relation.columns if looks_secret(column.name)])
    ]
    if not hidden:
        yield "# columns:                     # no column's name looks secret"
        yield "#   public.users: {deny: [password_hash]}"
    else:
        yield "columns:                       # their names look secret"
    for relation, names in hidden:
        listed = ", ".join(_scalar(pattern_part(name)) for name in names)
        yield f"  {_quoted(pattern(relation.schema, relation.name))}: {{deny: [{listed}]}}"
    yield ""


def _functions(catalog: Catalog) -> Iterator[str]:
    yield "functions:"
    yield "  allow:"
    yield "    - builtin-safe             # the reviewed list of PostgreSQL's own"
    own = sorted(
        {
            (function.schema, function.name, _VOLATILITY[function.volatility], function.security_definer)
            for function in catalog.content.functions
            if not _is_system(function.schema)
            and function.kind is not FunctionKind.PROCEDURE
            and function.result.name != "trigger"
        }
    )
    for schema, name, volatility, definer in own:
        as_owner = ", with its owner's rights" if definer else ""
        yield f"    # - {_quoted(pattern(schema, name))}    # {volatility}{as_owner}"
    yield ""


def _cost(relations: Sequence[Relation]) -> Iterator[str]:
    large = sorted((r for r in relations if r.rows > _SCAN_ROWS), key=lambda relation: -relation.rows)
    yield "cost:                          # what PostgreSQL's planner estimates, before a statement runs"
    yield "  max_total_cost: 1000000      # of any node of the plan, in the planner's units"
    yield "  max_rows: 10000000           # out of any node"
    if large:
        yield f"  max_scan_rows: {_SCAN_ROWS}       # of a table read whole; these are larger:"
        for relation in large[:_SHOWN]:
            yield f"    # {_plain(str(relation.qualified))}: {relation.rows:,.0f} rows"
    else:
        yield f"  max_scan_rows: {_SCAN_ROWS}       # of a table read whole; none is as large yet"
    never = sum(relation.rows < 0 and relation.kind is RelationKind.TABLE for relation in relations)
    if never:
        yield f"  # {never} tables have never been analyzed: run ANALYZE, or their prices are guesses"
    yield "  max_result_bytes: 100MiB"
    yield ""


_LIMITS: Final = [
    "limits:",
    "  statement_timeout: 30s",
    "  lock_timeout: 2s",
    "  idle_in_transaction_timeout: 5m",
    "  result_rows: 100000",
    "",
]


def _tests(relations: Sequence[Relation]) -> Iterator[str]:
    """One of each kind, of this database, to go on from."""
    yield "tests:"
    open_ = next((r for r in relations if not looks_secret(r.name) and not _hides(r)), None)
    if open_ is not None:
        yield f"  - sql: {_scalar(f'TABLE {_sql(open_)} LIMIT 1')}"
        yield "    expect: allow"
        yield f"  - sql: {_scalar(f'TRUNCATE {_sql(open_)}')}"
        yield "    expect: reject"
    secret = next((r for r in relations if looks_secret(r.name)), None)
    if secret is not None:
        yield f"  - sql: {_scalar(f'TABLE {_sql(secret)} LIMIT 1')}"
        yield "    expect: reject"
        yield "    rule: relation-not-allowed"
    yield "  - sql: SELECT pg_read_file('PG_VERSION')"
    yield "    expect: reject"
    yield "    rule: function-not-allowed"


def _hides(relation: Relation) -> bool:
    return any(looks_secret(column.name) for column in relation.columns)


# --- from what was seen ---


def recorded(found: Narrowest) -> str:
    """``found`` as a policy file, with how often each line was used."""
    return "\n".join(_recorded(found)) + "\n"


def _recorded(found: Narrowest) -> Iterator[str]:
    policy = found.policy
    yield f"{MODELINE}{SCHEMA_FILE}"
    yield f"# The narrowest policy that allows the {found.statements:,} statements that were recorded."
    yield "# The numbers say how often each line was used."
    yield "version: 1"
    yield f"name: {_scalar(policy.name)}"
    yield f"access: {policy.access}"
    if policy.multiple is Multiple.JUDGED:
        yield "multiple: judged"
    yield "statements:"
    for cls in StatementClass:
        if cls in policy.statements:
            yield f"  {cls + ':':<12} allow     # {found.classes[cls]:,}"
    if not policy.statements:
        yield "  select: reject               # nothing was recorded that can be allowed"
    yield "relations:"
    yield from _list("  allow", policy.relations.allow, found.relations)
    yield f"  catalogs: {policy.relations.catalogs}"
    yield "functions:"
    yield "  allow:"
    yield "    - builtin-safe"
    yield from _entries(policy.functions.allow, found.functions)
    if policy.settings.allow:
        yield "settings:"
        yield "  allow:"
        for name in sorted(policy.settings.allow):
            yield f"    - {_scalar(name)}    # {found.settings[name]:,}"
    levels = sorted(policy.rules)
    if levels:
        yield "rules:                         # they object to what was recorded: look at these"
        for rule in levels:
            yield f"  {rule}: {policy.rules[rule]}    # {found.warned[rule]:,}"
    if policy.access is Access.READ_WRITE:
        yield "# limits: {affected_rows: 1000}   # rows that one statement may write"
    for rule, (count, example) in found.refused.items():
        yield f"# {count:,} stay refused by {rule}, as: {_plain(' '.join(example.split()))[:80]}"


def _list(head: str, patterns: Sequence[Pattern], counts: Counter[str]) -> Iterator[str]:
    yield f"{head}:" if patterns else f"{head}: []"
    yield from _entries(patterns, counts)


def _entries(patterns: Sequence[Pattern], counts: Counter[str]) -> Iterator[str]:
    for each in sorted(patterns, key=str):
        yield f"    - {_quoted(pattern(each.schema, each.name))}    # {counts[str(each)]:,}"


# --- how things are written ---


def pattern(schema: str, name: str) -> str:
    """One relation or function as policies name it."""
    return f"{pattern_part(schema)}.{pattern_part(name)}"


def pattern_part(name: str) -> str:
    """A name as ``patterns`` reads it: in double quotes where it holds more than small letters."""
    if re.fullmatch(r"[a-z0-9_$]+", name):
        return name
    return '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    """``text`` as a YAML scalar; names are only quoted where they have to be."""
    return text if re.fullmatch(r"[a-z_][a-z0-9_$]*\.[a-z0-9_$]+", text) else _scalar(text, always=True)


def _scalar(text: str, *, always: bool = False) -> str:
    if (
        not always
        and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_ ().*,'-]*[A-Za-z0-9_)']", text)
        and text not in _WORDS
    ):
        return text
    return "'" + text.replace("'", "''") + "'"


_WORDS: Final = frozenset({"true", "false", "null", "True", "False", "Null", "TRUE", "FALSE", "NULL"})


def _sql(relation: Relation) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in relation.qualified)


def _plain(text: str) -> str:
    """``text`` within a comment: one line, whatever it holds."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _counted(relations: Sequence[Relation]) -> str:
    kinds: defaultdict[str, int] = defaultdict(int)
    for relation in relations:
        kinds[
            "view" if relation.kind in (RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW) else "table"
        ] += 1
    return ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in sorted(kinds.items()))


def _commented(line: str, lead: str, named: Sequence[Relation]) -> Iterator[str]:
    """``line`` with a comment that lists ``named``, as many as have room."""
    words = [_plain(relation.name) for relation in named]
    listed = ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")
    comment = f"{lead}{listed}"
    if len(line) + len(comment) + 4 <= _WIDTH:
        yield f"{line}    # {comment}"
    else:
        indent = " " * (len(line) - len(line.lstrip()))
        room = _WIDTH - len(indent) - 2
        yield f"{indent}# {comment if len(comment) <= room else comment[: room - 1] + '…'}"
        yield line
