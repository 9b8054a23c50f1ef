"""Relations that a statement names in a constant: ``'name'::regclass``, ``to_regclass('name')``.

Owns the list of PostgreSQL's functions that look a relation's name up, and how such a name is read. Knows no
policy: a rule judges what is found as a mention of the relation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from policy.builtin import PG_CATALOG
from policy.facts import CallKind, Facts, FunctionRef, RelationRef
from policy.settings import split_qualified

_OWN: Final = (None, PG_CATALOG)
_FIRST: Final[Mapping[int | None, tuple[int, ...]]] = {None: (0,)}
_PRIVILEGE: Final[Mapping[int | None, tuple[int, ...]]] = {2: (0,), 3: (1,)}

_PLAIN_LIST: Final = re.compile(r'\{([^{}"\\]*)\}')

_LOOKS_UP: Final[Mapping[str, Mapping[int | None, tuple[int, ...]]]] = {
    **dict.fromkeys(
        (
            "currval",
            "nextval",
            "setval",
            "pg_get_serial_sequence",
            "pg_get_viewdef",
            "pg_indexes_size",
            "pg_partition_ancestors",
            "pg_partition_root",
            "pg_partition_tree",
            "pg_relation_filenode",
            "pg_relation_filepath",
            "pg_relation_is_updatable",
            "pg_relation_size",
            "pg_sequence_last_value",
            "pg_sequence_parameters",
            "pg_table_size",
            "pg_total_relation_size",
            "row_security_active",
            "table_to_xml",
            "to_regclass",
        ),
        _FIRST,
    ),
    **dict.fromkeys(
        ("has_table_privilege", "has_any_column_privilege", "has_sequence_privilege"), _PRIVILEGE
    ),
    "has_column_privilege": {3: (0,), 4: (1,)},
}
"""Function of pg_catalog -> number of arguments, None for any -> which of them is a relation's name."""


def relations_in_constants(facts: Facts) -> Iterator[RelationRef]:
    """The relations that constants name where PostgreSQL looks them up."""
    for ref in facts.types:
        if ref.name == "regclass" and ref.schema in _OWN and ref.literal_value:
            for name in _listed(ref.literal_value) if ref.array else (ref.literal_value,):
                yield from _named(name, ref.position)
    for function in facts.functions:
        if function.kind is CallKind.CALL and function.schema in _OWN:
            for place in _places(function):
                text = function.literals[place] if place < len(function.literals) else None
                if text:
                    yield from _named(text, function.position)


def _places(function: FunctionRef) -> tuple[int, ...]:
    by_count = _LOOKS_UP.get(function.name, {})
    return by_count.get(function.arguments, by_count.get(None, ()))


def _listed(text: str) -> Iterable[str]:
    """The names in an array's text; the text itself where it is no plain list."""
    plain = _PLAIN_LIST.fullmatch(text.strip())
    if plain is None:
        return (text,)
    items = (item.strip() for item in plain[1].split(","))
    return (item for item in items if item and item.upper() != "NULL")


def _named(text: str, position: int | None) -> Iterator[RelationRef]:
    """The name that regclassin (regproc.c) reads in ``text``; a number is an OID and names nothing."""
    text = text.strip()
    if text.isdecimal() or text == "-":
        return
    parts = split_qualified(text)
    if parts and len(parts) <= 3:
        yield RelationRef(parts[-1], parts[-2] if len(parts) > 1 else None, position=position)
