"""Which operators and types are PostgreSQL's own.

Owns ``builtin_symbols.txt``, the union of what PostgreSQL 15 and 18 have in pg_catalog; tests hold it to real
servers. An operator or type outside it may be somebody's own, and its function may do anything. Knows no
policy. Pure after import; an unreadable data file raises ``ValueError`` at import, so that nothing starts
without it.
"""

from __future__ import annotations

from importlib import resources


def _load() -> dict[str, frozenset[str]]:
    sections: dict[str, set[str]] = {"operators": set(), "types": set()}
    here: set[str] | None = None
    text = resources.files("policy").joinpath("builtin_symbols.txt").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        name = line[1:-1]
        if line.startswith("[") and line.endswith("]") and name in sections:
            here = sections[name]
        elif here is not None:
            here.update(line.split())
        elif line and not line.startswith("#"):
            raise ValueError(f"builtin_symbols.txt:{number}: a name before the first section")
    if not all(sections.values()):
        raise ValueError("builtin_symbols.txt: a section is missing")
    return {name: frozenset(members) for name, members in sections.items()}


_SECTIONS = _load()
OPERATORS = _SECTIONS["operators"]
"""Symbols of the operators of pg_catalog. Another schema may hold an operator of the same symbol."""
INFORMATION_SCHEMA_TYPES = frozenset(
    {"cardinal_number", "character_data", "sql_identifier", "time_stamp", "yes_or_no"}
)
"""The domains of information_schema, whose checks call nothing (information_schema.sql)."""
TYPES = _SECTIONS["types"]
"""Names of the types of pg_catalog, less arrays and the rows of catalogs."""
