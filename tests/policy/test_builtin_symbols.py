"""The lists of PostgreSQL's own operators and types, held to the servers that have them."""

from __future__ import annotations

from policy.builtin_symbols import INFORMATION_SCHEMA_TYPES, OPERATORS, TYPES
from tests.support.postgres import Server

OPERATORS_SQL = (
    "SELECT DISTINCT oprname::text FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace"
)
TYPES_SQL = """
SELECT typname::text FROM pg_type
WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype <> 'c'
  AND NOT (typelem <> 0 AND typname LIKE '\\_%')
"""

DOMAINS_SQL = """
SELECT typname::text FROM pg_type WHERE typnamespace = 'information_schema'::regnamespace AND typtype = 'd'
"""


def names(server: Server, sql: str) -> set[str]:
    return {name for (name,) in server.shop.execute(sql)}


def test_every_operator_of_pg_catalog_is_listed(postgres: Server) -> None:
    assert names(postgres, OPERATORS_SQL) <= OPERATORS


def test_every_type_of_pg_catalog_is_listed(postgres: Server) -> None:
    assert names(postgres, TYPES_SQL) <= TYPES


def test_the_types_of_information_schema_are_listed(postgres: Server) -> None:
    assert names(postgres, DOMAINS_SQL) == INFORMATION_SCHEMA_TYPES


def test_nothing_is_listed_that_no_server_has(postgres15: Server, postgres18: Server) -> None:
    both = (postgres15, postgres18)
    assert set().union(*(names(server, OPERATORS_SQL) for server in both)) >= OPERATORS
    assert set().union(*(names(server, TYPES_SQL) for server in both)) >= TYPES
