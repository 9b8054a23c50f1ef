"""What a backend role could do in a database if nothing stood before it, read as that role.

Owns the questions to PostgreSQL and the values their answers become. Judges nothing: ``doctor`` does. Only
reads, in one read-only transaction; every question may be asked by any role, and what only a superuser may
read is left out rather than failed on.

Source: PostgreSQL documentation, "Access Privilege Inquiry Functions" and "Predefined Roles"; aclexplode and
acldefault in src/backend/utils/adt/acl.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from policy.names import QualifiedName

PUBLIC: Final = "PUBLIC"
"""The grantee that stands for every role."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One privilege on one table or view, and to whom it was given: the role itself, one that it is a member
    of, or PUBLIC. An owner's grant is that of ``owner``."""

    relation: QualifiedName
    shown: str
    privilege: str
    grantee: str
    owner: str

    @property
    def owned(self) -> bool:
        return self.grantee == self.owner


@dataclass(frozen=True, slots=True)
class ReadableColumn:
    """One column whose values the role may read. ``shown`` is its relation, quoted where SQL asks for it."""

    relation: QualifiedName
    column: str
    shown: str


@dataclass(frozen=True, slots=True)
class ReachableFunction:
    """A function the role may execute. ``shown`` holds name and argument types, as GRANT takes them."""

    name: QualifiedName
    shown: str
    owner_is_superuser: bool
    security_definer: bool


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """What one role may do in one database.

    ``attributes`` are those of pg_roles that lead round a policy, by their SQL words; ``member_of`` every
    role whose rights it has; ``creatable_schemas`` where it may create objects.
    """

    role: str
    database: str
    attributes: frozenset[str]
    member_of: frozenset[str]
    grants: tuple[Grant, ...]
    columns: tuple[ReadableColumn, ...]
    functions: tuple[ReachableFunction, ...]
    creatable_schemas: tuple[str, ...]
    may_create_temporary: bool
    foreign_servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself. ``hba_trust`` lists rules that ask no proof of a peer that comes over
    the network; None where the role may not read them."""

    listen_addresses: str
    tls: bool
    log_statement: str
    track_counts: bool
    password_encryption: str
    hba_trust: tuple[str, ...] | None


class Connection(Protocol):
    """What of asyncpg's Connection is needed here."""

    async def fetch(self, query: str, *args: Any) -> list[Any]: ...

    async def fetchrow(self, query: str, *args: Any) -> Any: ...

    async def fetchval(self, query: str, *args: Any) -> Any: ...


async def read_role(connection: Connection) -> RoleFacts:
    """The facts of the role that ``connection`` is logged in as. Raises asyncpg.PostgresError."""
    # What is not on search_path is shown with its schema, as it has to be in the SQL of a cure.
    await connection.fetchval(_NARROW_PATH)
    role = await connection.fetchrow(_ROLE)
    return RoleFacts(
        role=role["role"],
        database=role["database"],
        attributes=frozenset(word for word in _ATTRIBUTES if role[word.lower()]),
        member_of=frozenset(row[0] for row in await connection.fetch(_MEMBER_OF)),
        grants=tuple(
            Grant(QualifiedName(row[0], row[1]), row[2], row[3], row[4], row[5])
            for row in await connection.fetch(_GRANTS)
        ),
        columns=tuple(
            ReadableColumn(QualifiedName(row[0], row[1]), row[2], row[3])
            for row in await connection.fetch(_COLUMNS)
        ),
        functions=tuple(
            ReachableFunction(QualifiedName(row[0], row[1]), row[2], row[3], row[4])
            for row in await connection.fetch(_FUNCTIONS)
        ),
        creatable_schemas=tuple(row[0] for row in await connection.fetch(_CREATABLE)),
        may_create_temporary=await connection.fetchval(_TEMPORARY),
        foreign_servers=tuple(row[0] for row in await connection.fetch(_FOREIGN_SERVERS)),
    )


async def read_server(connection: Connection) -> ServerFacts:
    """The facts of the server behind ``connection``. Raises asyncpg.PostgresError."""
    settings = dict(await connection.fetch(_SETTINGS))
    rules: tuple[str, ...] | None = None
    if await connection.fetchval(_MAY_READ_HBA):
        rules = tuple(row[0] for row in await connection.fetch(_HBA_TRUST))
    return ServerFacts(
        listen_addresses=settings.get("listen_addresses", ""),
        tls=settings.get("ssl") == "on",
        log_statement=settings.get("log_statement", ""),
        track_counts=settings.get("track_counts") == "on",
        password_encryption=settings.get("password_encryption", ""),
        hba_trust=rules,
    )


_ATTRIBUTES: Final = ("SUPERUSER", "BYPASSRLS", "CREATEROLE", "CREATEDB", "REPLICATION")
_NARROW_PATH: Final = "SELECT set_config('search_path', 'pg_catalog', false)"
_ROLE: Final = """
SELECT current_user::text AS role, current_database()::text AS database, rolsuper AS superuser,
    rolbypassrls AS bypassrls, rolcreaterole AS createrole, rolcreatedb AS createdb,
    rolreplication AS replication
FROM pg_catalog.pg_roles WHERE rolname = current_user
"""
_MEMBER_OF: Final = """
SELECT rolname::text FROM pg_catalog.pg_roles
WHERE rolname <> current_user AND pg_has_role(current_user, oid, 'MEMBER')
"""
_GRANTS: Final = """
SELECT n.nspname::text, c.relname::text, format('%I.%I', n.nspname, c.relname), a.privilege_type::text,
    CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END,
    pg_get_userbyid(c.relowner)::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND n.nspname !~ '^pg_(toast|temp)'
    AND has_schema_privilege(n.oid, 'USAGE')
    AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')
    AND (a.grantee = 0 OR pg_has_role(current_user, a.grantee, 'USAGE'))
ORDER BY 1, 2, 4, 5
"""
_COLUMNS: Final = """
SELECT n.nspname::text, c.relname::text, a.attname::text, format('%I.%I', n.nspname, c.relname)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND n.nspname !~ '^pg_(toast|temp)'
    AND has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(c.oid, a.attnum, 'SELECT')
ORDER BY 1, 2, a.attnum
"""
_FUNCTIONS: Final = """
SELECT n.nspname::text, p.proname::text, p.oid::regprocedure::text, o.rolsuper, p.prosecdef
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_roles o ON o.oid = p.proowner
WHERE has_function_privilege(p.oid, 'EXECUTE') AND has_schema_privilege(n.oid, 'USAGE')
    AND p.prorettype <> 'pg_catalog.trigger'::regtype
ORDER BY 3
"""
_CREATABLE: Final = """
SELECT quote_ident(n.nspname) FROM pg_catalog.pg_namespace n
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
    AND has_schema_privilege(n.oid, 'CREATE')
ORDER BY 1
"""
_TEMPORARY: Final = "SELECT has_database_privilege(current_database(), 'TEMPORARY')"
_FOREIGN_SERVERS: Final = """
SELECT quote_ident(srvname) FROM pg_catalog.pg_foreign_server WHERE has_server_privilege(oid, 'USAGE')
ORDER BY 1
"""
_SETTINGS: Final = """
SELECT name, setting FROM pg_catalog.pg_settings
WHERE name IN ('listen_addresses', 'ssl', 'log_statement', 'track_counts', 'password_encryption')
"""
_MAY_READ_HBA: Final = """
SELECT has_table_privilege('pg_catalog.pg_hba_file_rules', 'SELECT')
    AND has_function_privilege('pg_catalog.pg_hba_file_rules()', 'EXECUTE')
"""
_HBA_TRUST: Final = """
SELECT format('line %s: %s %s %s', line_number, type, array_to_string(user_name, ','), coalesce(address, ''))
FROM pg_catalog.pg_hba_file_rules
WHERE auth_method = 'trust' AND type <> 'local' AND coalesce(address, '') NOT IN ('127.0.0.1', '::1')
ORDER BY line_number
"""
