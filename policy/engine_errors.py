"""What an agent reads of an error that PostgreSQL itself raised.

Owns two things: that such an error tells nothing which the policy hides, and that an error in a name (class
42) tells where the name does exist. SQLSTATE, message and position stay PostgreSQL's own. Pure: fields go in
and fields come out, by the names that ``proxy.wire.backend`` gives them. Knows no connection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from policy import builtin
from policy.catalog_names import CatalogNames
from policy.catalog_values import ColumnId, Relation
from policy.decision import statement_class
from policy.facts import Facts, QueryString
from policy.model import Mode, Policy
from policy.names import Names, QualifiedName
from policy.resolve import Answer, Fault
from policy.rules import unknown_column, unknown_function, unknown_relation
from policy.rules.columns_by_catalog import HiddenColumns
from policy.rules.relation_not_allowed import is_allowed
from policy.rules.showing import Showing
from policy.suggest import suggest_columns

_NAMES_CLASS: Final = "42"
_OF_THE_SESSION: Final = frozenset({"42P03", "42P05"})
"""duplicate_cursor, duplicate_prepared_statement: names of the session, of which a catalog knows nothing."""
_SHOWS_A_ROW: Final = frozenset({"23502", "23514", "44000"})
"""not_null_violation, check_violation, with_check_option_violation: their Detail tells the failing row."""
_SHOWS_A_KEY: Final = frozenset({"23505", "23P01"})
"""unique_violation, exclusion_violation: theirs tells what the columns and expressions of an index hold."""
_FOREIGN_KEY: Final = "23503"
"""foreign_key_violation: its Detail tells a key of the one table or the other."""
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"')
_WORD: Final = re.compile(r"\w+")
_HIDDEN: Final = "(hidden)"
_KEPT_CATALOGS: Final = 16
_MOST_DETAIL: Final = 1500


def enrich(
    fields: Mapping[str, str],
    query: QueryString,
    names: Names,
    policy: Policy,
    *,
    turns_left: int = 0,
    error_id: str = "",
    sandbox: bool = False,
) -> dict[str, str] | None:
    """The fields of an ErrorResponse to ``query`` as the agent is sent them; None where nothing changes.

    ``names`` and ``policy`` are what the statement was judged under, ``turns_left`` the repairs that the
    error leaves, ``error_id`` what the audit calls it. ``sandbox``: a clone raised it, and what the agent
    is to know of that is in Detail whatever the error. A policy that only observes changes nothing.
    """
    if policy.mode is Mode.OBSERVE:
        return None
    told = dict(fields)
    if isinstance(names, CatalogNames):
        told = _cleaned(told, query, names, policy)
    sqlstate = fields.get("sqlstate", "")
    in_a_name = sqlstate.startswith(_NAMES_CLASS) and sqlstate not in _OF_THE_SESSION
    if (in_a_name or sandbox) and query.statements:
        hint = _hint(told, query, names, policy) if isinstance(names, CatalogNames) else None
        if hint:
            told["hint"] = hint
        told["detail"] = _detail(told, query, turns_left, error_id, sandbox=sandbox)
    return told if told != dict(fields) else None


def _detail(
    fields: Mapping[str, str], query: QueryString, turns_left: int, error_id: str, *, sandbox: bool
) -> str:
    """Contract §4's object, in one line, with PostgreSQL's own detail under ``engine``."""
    detail: dict[str, Any] = {
        "v": 1,
        "id": error_id,
        "decision": "engine_error",
        "class": statement_class(query),
        "rule": None,
        "violations": [],
        "repair": {"allowed": turns_left > 0, "turns_left": turns_left, "keep": None},
        "halt": None,
        "cost": None,
        "engine": {
            "sqlstate": fields["sqlstate"],
            "detail": fields.get("detail", "")[:_MOST_DETAIL] or None,
            **({"sandbox": True} if sandbox else {}),
        },
    }
    return json.dumps(detail, ensure_ascii=False, separators=(",", ":"))


# What may not be told ---------------------------------------------------------------------------------------


def _cleaned(
    fields: Mapping[str, str], query: QueryString, names: CatalogNames, policy: Policy
) -> dict[str, str]:
    hidden = _hidden_names(names, policy) | _hidden_here(fields, query, names, policy)
    # A name that the agent has said may be said back; the values behind it may not.
    hidden -= frozenset(_WORD.findall(query.sql))
    told = dict(fields)
    if not hidden and not policy.columns:
        return told
    for field in ("message", "detail", "hint"):
        if field in told:
            told[field] = _QUOTED.sub(lambda quoted: _masked(quoted, hidden), told[field])
    if _HIDDEN in told.get("hint", ""):
        del told["hint"]
    if "detail" in told and _shows_hidden_values(fields, names, policy):
        del told["detail"]
    for field in ("schema", "table", "column", "constraint", "data_type"):
        if _holds(told.get(field, ""), hidden):
            del told[field]
    for field in ("context", "internal_query"):
        if not hidden.isdisjoint(_WORD.findall(told.get(field, ""))):
            del told[field]
            told.pop("internal_position", None)
    return told


def _masked(quoted: re.Match[str], hidden: frozenset[str]) -> str:
    parts = quoted[1].replace('""', '"').split(".")
    return _HIDDEN if any(_holds(part, hidden) for part in parts) else quoted[0]


def _holds(name: str, hidden: frozenset[str]) -> bool:
    """Whether it is a hidden one, or a constraint's name that is made of one: ``api_keys_customer_fkey``."""
    return any(f"_{other}_" in f"_{name}_" for other in hidden)


def _shows_hidden_values(fields: Mapping[str, str], names: CatalogNames, policy: Policy) -> bool:
    """Whether Detail may hold a value of a hidden column or table: the agent's own, or one that is stored."""
    shows = _SHOWS_VALUES.get(fields.get("sqlstate", ""))
    if shows is None:
        return False
    relation = names.catalog.relation(*_raised_by(fields))
    # Of a table that cannot be told, as a temporary one, all is held back.
    return bool(policy.columns) if relation is None else shows(fields, relation, _Hiding(names, policy))


class _Hiding:
    """Which columns of each table of the snapshot are hidden, by a rule or with their table."""

    def __init__(self, names: CatalogNames, policy: Policy) -> None:
        self.catalog: Final = names.catalog
        self._columns = HiddenColumns(names, policy)
        self._policy = policy

    def of(self, relation: Relation) -> frozenset[str]:
        if is_allowed(relation.qualified, self._policy):
            return _hidden_of(relation, self._columns)
        return frozenset(column.name for column in relation.columns)

    @property
    def by_rules(self) -> frozenset[str]:
        users = (r for r in self.catalog.content.relations if r.schema not in builtin.SYSTEM_SCHEMAS)
        return frozenset().union(*(_hidden_of(each, self._columns) for each in users))


def _in_a_row(_: Mapping[str, str], relation: Relation, hiding: _Hiding) -> bool:
    return bool(hiding.of(relation))


def _in_a_key(fields: Mapping[str, str], relation: Relation, hiding: _Hiding) -> bool:
    return _names_one(fields["detail"], hiding.of(relation))


def _in_a_foreign_key(fields: Mapping[str, str], relation: Relation, hiding: _Hiding) -> bool:
    """The key is the referring table's, ``relation``, or that of the table it refers to."""
    catalog = hiding.catalog
    family = (relation.qualified, *sorted(catalog.ancestors(relation)))
    referring = [each for name in family if (each := catalog.relation(*name)) is not None]
    keys = (key for each in referring for key in each.foreign_keys)
    meant = next((key for key in keys if key.name == fields.get("constraint")), None)
    target = None if meant is None else catalog.relation(*meant.target)
    if target is None:
        # A partition's own name for it: whose columns, nobody knows.
        return _names_one(fields["detail"], hiding.by_rules)
    of_target = hiding.of(target)
    open_there = {column.name for column in target.columns} - of_target
    return _names_one(fields["detail"], of_target | (hiding.of(relation) - open_there))


_SHOWS_VALUES: Final[Mapping[str, Callable[[Mapping[str, str], Relation, _Hiding], bool]]] = MappingProxyType(
    {
        **dict.fromkeys(_SHOWS_A_ROW, _in_a_row),
        **dict.fromkeys(_SHOWS_A_KEY, _in_a_key),
        _FOREIGN_KEY: _in_a_foreign_key,
    }
)


def _raised_by(fields: Mapping[str, str]) -> QualifiedName:
    return QualifiedName(fields.get("schema", ""), fields.get("table", ""))


def _hidden_of(relation: Relation, columns: HiddenColumns) -> frozenset[str]:
    ids = (ColumnId(relation.schema, relation.name, column.name) for column in relation.columns)
    return frozenset(each.column for each in ids if each.column and columns.rule(each) is not None)


def _names_one(detail: str, hidden: frozenset[str]) -> bool:
    """Whether one of the names stands in ``detail``, in an expression too: ``Key (lower(ssn))=(…)``."""
    return any(re.search(rf"(?<!\w){re.escape(spelt)}(?!\w)", detail) for spelt in map(_doubled, hidden))


def _doubled(name: str) -> str:
    return name.replace('"', '""')


_hidden_by_catalog: dict[tuple[str, str], frozenset[str]] = {}


def _hidden_names(names: CatalogNames, policy: Policy) -> frozenset[str]:
    """Every name of the snapshot that stands for something hidden and for nothing that may be told."""
    key = (names.catalog.sha256, policy.sha256)
    known = _hidden_by_catalog.get(key)
    if known is None:
        while len(_hidden_by_catalog) >= _KEPT_CATALOGS:
            _hidden_by_catalog.pop(next(iter(_hidden_by_catalog)), None)
        known = _hidden_by_catalog[key] = _find_hidden_names(names, policy)
    return known


def _hidden_here(
    fields: Mapping[str, str], query: QueryString, names: CatalogNames, policy: Policy
) -> frozenset[str]:
    """The hidden columns of the relations at hand, whatever their names stand for elsewhere."""
    columns = HiddenColumns(names, policy)
    at_hand = [r for f in query.statements for answer in names.resolve(f).relations for r in answer.relations]
    raised_by = names.catalog.relation(*_raised_by(fields))
    relations = (*at_hand, *([raised_by] if raised_by is not None else ()))
    return frozenset().union(*(_hidden_of(relation, columns) for relation in relations))


def _find_hidden_names(names: CatalogNames, policy: Policy) -> frozenset[str]:
    columns = HiddenColumns(names, policy)
    hidden: set[str] = set()
    shown: set[str] = set()
    for relation in names.catalog.content.relations:
        if relation.schema in builtin.SYSTEM_SCHEMAS:
            continue
        is_open = is_allowed(relation.qualified, policy)
        (shown if is_open else hidden).update((relation.name, relation.schema))
        for column in relation.columns:
            visible = is_open and columns.rule(ColumnId(relation.schema, relation.name, column.name)) is None
            (shown if visible else hidden).add(column.name)
    return frozenset(hidden - shown)


# What helps -------------------------------------------------------------------------------------------------


def _hint(fields: Mapping[str, str], query: QueryString, names: CatalogNames, policy: Policy) -> str | None:
    """The catalog's word on the place that PostgreSQL points at."""
    finder = _HINTS.get(fields.get("sqlstate", ""))
    position = fields.get("position", "")
    if finder is None or not position.isdecimal():
        return None
    for facts in query.statements:
        for hint in finder(facts, names, policy, int(position)):
            if hint:
                return hint
    return None


def _of_relation(facts: Facts, names: CatalogNames, policy: Policy, position: int) -> Iterator[str]:
    for answer in names.resolve(facts).relations:
        if answer.ref.position == position and not answer.relations:
            near = unknown_relation.nearest(answer, names, policy)
            yield unknown_relation.hint(near, policy)
    yield from _of_column(facts, names, policy, position)


def _of_column(facts: Facts, names: CatalogNames, policy: Policy, position: int) -> Iterator[str]:
    resolution = names.resolve(facts)
    showing = Showing(names, policy)
    for answer in resolution.columns:
        if answer.ref.position == position and answer.answer is not Answer.RESOLVED:
            at_fault = answer if answer.fault is not None else replace(answer, fault=Fault.COLUMN)
            yield unknown_column.hint(suggest_columns(at_fault, resolution, showing), showing)


def _of_ambiguous(facts: Facts, names: CatalogNames, policy: Policy, position: int) -> Iterator[str]:
    resolution = names.resolve(facts)
    showing = Showing(names, policy)
    for answer in resolution.columns:
        if answer.ref.position == position:
            places = suggest_columns(replace(answer, fault=Fault.COLUMN), resolution, showing).present
            written = dict.fromkeys(f"{place.source}.{place.column}" for place in places if place.source)
            if written:
                yield f"Write {' or '.join(written)}."


def _of_function(facts: Facts, names: CatalogNames, policy: Policy, position: int) -> Iterator[str]:
    for ref in facts.functions:
        if ref.position == position and not (builtin.is_builtin(ref.name) or names.functions(ref)):
            yield unknown_function.advice(ref.name, names, policy)[0]


def _of_grouping(facts: Facts, _: CatalogNames, __: Policy, position: int) -> Iterator[str]:
    for ref in facts.columns:
        if ref.position == position and ref.name is not None:
            written = ".".join((*ref.qualifier, ref.name))
            yield f"Add {written} to GROUP BY, or use it in an aggregate such as max({written})."


_HINTS: Final[Mapping[str, Callable[[Facts, CatalogNames, Policy, int], Iterator[str]]]] = MappingProxyType(
    {
        "42P01": _of_relation,
        "42703": _of_column,
        "42702": _of_ambiguous,
        "42883": _of_function,
        "42803": _of_grouping,
    }
)
