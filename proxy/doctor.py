"""What would be open if the proxy were gone round: findings, each with what closes it.

Owns the judgement of a configuration, of what ``doctor_files`` read of its files and ``doctor_facts`` of its
backend roles. Runs nothing and changes nothing: the cure of a finding is for a person to read, and to run or
not.

The gate is one lock, the database's own rights are the other. A finding is *open* where the role could do
what its agent's policy forbids.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from policy.model import Access, Policy, StatementClass, Verdict
from policy.names import QualifiedName
from policy.rules.relation_not_allowed import is_allowed
from proxy.agents import AgentConfig, TrustLoopback
from proxy.config import Config
from proxy.doctor_facts import PUBLIC, Grant, ReachableFunction, RoleFacts, ServerFacts
from proxy.doctor_files import FileFacts
from proxy.tls import TLSMode

_SHOWN: Final = 8
"""Objects that a finding names before it only counts them; its SQL has all of them."""


class Severity(StrEnum):
    """How bad a finding is, the worst first."""

    OPEN = "open"
    """What the policy forbids could be done as this role."""
    WEAK = "weak"
    """A defence that others rely on is missing."""
    UNKNOWN = "unknown"
    """Could not be looked at."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know. ``where`` is the agent and the role in its database, or the part of the
    configuration; ``cure`` the SQL, command or setting that closes it, empty where there is none to offer."""

    severity: Severity
    where: str
    what: str
    cure: str = ""

    def as_json(self) -> dict[str, str]:
        return {"severity": self.severity, "where": self.where, "what": self.what, "cure": self.cure}


# --- the configuration ---


def examine_config(config: Config) -> Iterator[Finding]:
    """What the configuration alone shows."""
    listens_here = is_loopback(config.listen.host)
    if config.listen.tls is None and not listens_here:
        yield Finding(
            Severity.OPEN,
            "listen",
            f"agents connect to {config.listen.host} without TLS: statements and results can be "
            "read and changed on the way",
            "listen: {tls: {cert: …, key: …}}",
        )
    elif config.listen.tls is not None and not config.listen.tls.required and not listens_here:
        yield Finding(
            Severity.WEAK,
            "listen.tls",
            "agents may connect without TLS, because it is not required",
            "listen: {tls: {required: true}}",
        )
    yield from _backend_leg(config)
    if config.audit is None:
        yield Finding(Severity.WEAK, "audit", "no decision is recorded", "audit: {path: audit.jsonl}")
    for agent in config.agents.values():
        if isinstance(agent.auth, TrustLoopback):
            yield Finding(
                Severity.WEAK,
                f"agent {agent.name}",
                "every process of this machine may connect as this agent: it proves nothing",
                "auth: {password_env: …}, or a verifier from `pgturnstile hash-password`",
            )


def _backend_leg(config: Config) -> Iterator[Finding]:
    backend = config.backend
    if backend.socket is not None or is_loopback(backend.host):
        return
    cure = "backend: {tls: {mode: verify-full, ca: …}}"
    if backend.tls.mode is TLSMode.DISABLE:
        yield Finding(
            Severity.OPEN,
            "backend.tls",
            f"{backend.host} is reached without TLS: the role's password and all data can be read on the way",
            cure,
        )
    elif backend.tls.mode is not TLSMode.VERIFY_FULL:
        yield Finding(
            Severity.WEAK,
            "backend.tls",
            f"with mode {backend.tls.mode} another server could pass for {backend.host}",
            cure,
        )


def examine_files(files: Iterable[FileFacts]) -> Iterator[Finding]:
    """What an account of the proxy's machine could learn or change without asking the proxy."""
    for file in files:
        if file.written_at is not None:
            itself = file.written_at == file.path
            how = "written" if itself else f"replaced, as folder {file.written_at} can be written,"
            yield Finding(
                Severity.OPEN,
                file.where,
                f"{file.path} can be {how} by every account of this machine; it decides {file.rules}",
                f"chmod o-w {shlex.quote(str(file.written_at))}",
            )
        if file.secret and file.read_by_all:
            yield Finding(
                Severity.WEAK,
                file.where,
                f"{file.path} can be read by every account of this machine; it holds {file.secret}",
                f"chmod o-r {shlex.quote(str(file.path))}",
            )


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine can reach ``host``."""
    if host.startswith("/") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- the server ---


def examine_server(server: ServerFacts, config: Config) -> Iterator[Finding]:
    """What the server's settings mean for somebody who does not come through the proxy."""
    addresses = [address.strip() for address in server.listen_addresses.split(",") if address.strip()]
    beyond = [address for address in addresses if not is_loopback(address)]
    if beyond:
        yield Finding(
            Severity.WEAK,
            "server",
            f"PostgreSQL listens on {', '.join(beyond)}: whoever reaches port {config.backend.port} and "
            "has a role's password comes round the proxy",
            "let a firewall or pg_hba.conf admit the proxy alone; where they share a machine: "
            "ALTER SYSTEM SET listen_addresses = 'localhost';",
        )
    if beyond and not server.tls:
        yield Finding(
            Severity.WEAK,
            "server",
            "PostgreSQL offers no TLS on an address beyond this machine",
            "ALTER SYSTEM SET ssl = on;",
        )
    if server.hba_trust is None:
        yield Finding(
            Severity.UNKNOWN,
            "server",
            "pg_hba.conf can be read by a superuser only: see to it that no line lets agents' addresses in",
            "SELECT * FROM pg_hba_file_rules;",
        )
    for rule in server.hba_trust or ():
        yield Finding(
            Severity.OPEN,
            "server",
            f"pg_hba.conf lets roles in over the network without a password: {rule}",
            "replace trust by scram-sha-256, then SELECT pg_reload_conf();",
        )
    if server.password_encryption == "md5":  # noqa: S105 - a method's name
        yield Finding(
            Severity.WEAK,
            "server",
            "passwords are stored as MD5 hashes, which log in by themselves when stolen",
            "ALTER SYSTEM SET password_encryption = 'scram-sha-256'; and set each password again",
        )
    if server.log_statement in ("", "none"):
        yield Finding(
            Severity.NOTE,
            "server",
            "log_statement is none: PostgreSQL's own log would not show what was done round the proxy",
            "ALTER SYSTEM SET log_statement = 'mod';",
        )
    elif server.log_statement == "all":
        yield Finding(
            Severity.NOTE,
            "server",
            "log_statement is all: every statement's constants are in PostgreSQL's log as well "
            "as in the audit file",
        )
    if not server.track_counts:
        yield Finding(
            Severity.WEAK,
            "server",
            "track_counts is off: rows written by triggers and WITH escape "
            "limits.affected_rows, and no table has fresh statistics",
            "ALTER SYSTEM SET track_counts = on;",
        )


# --- a role ---


def examine_role(facts: RoleFacts, agent: AgentConfig) -> Iterator[Finding]:
    """What ``facts.role`` could do that the policy of ``agent`` does not mean it to."""
    where = f"agent {agent.name}: role {facts.role} in {facts.database}"
    if "SUPERUSER" in facts.attributes:
        yield Finding(
            Severity.OPEN,
            where,
            "is a superuser: no right of the database holds it back",
            f"ALTER ROLE {quote(facts.role)} NOSUPERUSER;",
        )
        return
    yield from _attributes(facts, where)
    yield from _memberships(facts, where)
    yield from _tables(facts, agent.policy, where)
    yield from _hidden_columns(facts, agent.policy, where)
    yield from _functions(facts, agent.policy, where)
    yield from _creating(facts, agent.policy, where)


_ATTRIBUTE_MEANS: Final = {
    "BYPASSRLS": "row security does not hold for it",
    "CREATEROLE": "it may make and change other roles",
    "CREATEDB": "it may make databases",
    "REPLICATION": "it may copy the whole cluster",
}


def _attributes(facts: RoleFacts, where: str) -> Iterator[Finding]:
    for attribute, means in _ATTRIBUTE_MEANS.items():
        if attribute in facts.attributes:
            cure = f"ALTER ROLE {quote(facts.role)} NO{attribute};"
            yield Finding(Severity.OPEN, where, f"has {attribute}: {means}", cure)


_ROLE_MEANS: Final = {
    "pg_execute_server_program": "it may run programs on the server",
    "pg_read_server_files": "it may read the server's files",
    "pg_write_server_files": "it may write the server's files",
    "pg_read_all_data": "it may read every table",
    "pg_write_all_data": "it may write every table",
    "pg_database_owner": "it owns the database",
    "pg_signal_backend": "it may end other sessions",
    "pg_maintain": "it may lock, vacuum and refresh every table",
    "pg_read_all_settings": "it may read every setting",
    "pg_read_all_stats": "it may read others' statements",
    "pg_monitor": "it may read others' statements and every setting",
    "pg_create_subscription": "it may make subscriptions",
    "pg_checkpoint": "it may run CHECKPOINT",
}
"""PostgreSQL's predefined roles (documentation, "Predefined Roles")."""


def _memberships(facts: RoleFacts, where: str) -> Iterator[Finding]:
    for role, means in _ROLE_MEANS.items():
        if role in facts.member_of:
            cure = f"REVOKE {role} FROM {quote(facts.role)};"
            yield Finding(Severity.OPEN, where, f"is a member of {role}: {means}", cure)


_CLASS_OF_PRIVILEGE: Final = {
    "INSERT": (StatementClass.INSERT, StatementClass.MERGE, StatementClass.COPY_IN),
    "UPDATE": (StatementClass.UPDATE, StatementClass.MERGE, StatementClass.INSERT),
    "DELETE": (StatementClass.DELETE, StatementClass.MERGE),
    "TRUNCATE": (StatementClass.DDL, StatementClass.MAINTENANCE),
}
"""What takes a privilege: INSERT … ON CONFLICT and MERGE take more than their own."""


def _tables(facts: RoleFacts, policy: Policy, where: str) -> Iterator[Finding]:
    grants = [grant for grant in facts.grants if not _meant(grant, policy)]
    owned = sorted({grant.shown for grant in grants if grant.owned})
    if owned:
        yield Finding(
            Severity.OPEN,
            where,
            f"owns {_listed(owned)}: an owner may do everything with them, dropping included",
            "\n".join(f"ALTER TABLE {shown} OWNER TO …;" for shown in owned),
        )
    for verb, wanted in (("write", True), ("read", False)):
        found = [grant for grant in grants if not grant.owned and (grant.privilege != "SELECT") is wanted]
        if found:
            relations = sorted({grant.shown for grant in found})
            what = f"may {verb} {_listed(relations)}, which policy {policy.name} never does"
            yield Finding(Severity.OPEN, where, what, _revokes(found))


def _meant(grant: Grant, policy: Policy) -> bool:
    """Whether the policy lets its agents use the privilege."""
    if not is_allowed(grant.relation, policy):
        return False
    if grant.privilege == "SELECT":
        return True
    if policy.access is Access.READ_ONLY:
        return False
    return any(policy.row(c).decide is Verdict.ALLOW for c in _CLASS_OF_PRIVILEGE[grant.privilege])


def _revokes(grants: Iterable[Grant]) -> str:
    """REVOKE by grantee: what came through PUBLIC or another role is not the role's own to lose."""
    privileges: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for grant in grants:
        privileges[grant.grantee, grant.shown].append(grant.privilege)
    relations: defaultdict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (grantee, shown), words in privileges.items():
        relations[grantee, tuple(words)].append(shown)
    return "\n".join(
        f"REVOKE {', '.join(words)} ON {', '.join(shown)} FROM {_grantee(grantee)};"
        for (grantee, words), shown in relations.items()
    )


def _grantee(name: str) -> str:
    return name if name == PUBLIC else quote(name)


def _hidden_columns(facts: RoleFacts, policy: Policy, where: str) -> Iterator[Finding]:
    hidden = [
        f"{column.shown}.{quote(column.column)}"
        for column in facts.columns
        if is_allowed(column.relation, policy) and _hides(policy, column.relation, column.column)
    ]
    if hidden:
        yield Finding(
            Severity.OPEN,
            where,
            f"may read {_listed(hidden)}, which policy {policy.name} hides",
            "grant the other columns instead of the table: REVOKE SELECT ON …; GRANT SELECT (…) ON … TO …;",
        )


def _hides(policy: Policy, relation: QualifiedName, column: str) -> bool:
    return any(rule.relation.matches(*relation) and rule.hides(column) for rule in policy.columns)


_REACHES_OUT: Final = frozenset(
    {
        "lo_export", "lo_import", "pg_file_write", "pg_file_read", "pg_ls_dir", "pg_promote",
        "pg_read_binary_file", "pg_read_file", "pg_reload_conf", "pg_stat_file", "pg_switch_wal",
    }
)  # fmt: skip
"""Functions of the system schema that only a superuser may execute unless somebody granted it."""


def _functions(facts: RoleFacts, policy: Policy, where: str) -> Iterator[Finding]:
    kinds: tuple[tuple[Severity, str, Callable[[ReachableFunction], bool]], ...] = (
        (Severity.OPEN, "may execute {}: files, programs or the cluster itself", _reaches_out),
        (Severity.OPEN, "may execute {}: connections of the server's own to other databases", _dials),
        (Severity.WEAK, "may execute {}: SECURITY DEFINER functions of a superuser", _as_superuser),
    )
    for severity, what, is_one in kinds:
        found = [f.shown for f in facts.functions if is_one(f) and not _function_meant(f, policy)]
        if found:
            cure = f"REVOKE EXECUTE ON FUNCTION {', '.join(found)} FROM PUBLIC, {quote(facts.role)};"
            yield Finding(severity, where, what.format(_listed(found)), cure)
    if facts.foreign_servers:
        cure = f"REVOKE USAGE ON FOREIGN SERVER {', '.join(facts.foreign_servers)} FROM {quote(facts.role)};"
        what = f"may use the foreign servers {_listed(facts.foreign_servers)}"
        yield Finding(Severity.WEAK, where, what, cure)


def _reaches_out(function: ReachableFunction) -> bool:
    return function.name.schema == "pg_catalog" and function.name.name in _REACHES_OUT


def _dials(function: ReachableFunction) -> bool:
    return function.name.schema != "pg_catalog" and function.name.name.startswith("dblink")


def _as_superuser(function: ReachableFunction) -> bool:
    return function.security_definer and function.owner_is_superuser and function.name.schema != "pg_catalog"


def _function_meant(function: ReachableFunction, policy: Policy) -> bool:
    if any(pattern.matches(*function.name) for pattern in policy.functions.deny):
        return False
    return any(pattern.matches(*function.name) for pattern in policy.functions.allow)


def _creating(facts: RoleFacts, policy: Policy, where: str) -> Iterator[Finding]:
    if policy.access is not Access.READ_ONLY and policy.row(StatementClass.DDL).decide is Verdict.ALLOW:
        return
    if facts.creatable_schemas:
        schemas = ", ".join(facts.creatable_schemas)
        yield Finding(
            Severity.OPEN,
            where,
            f"may create objects in {schemas}, which can stand before others on search_path",
            f"REVOKE CREATE ON SCHEMA {schemas} FROM PUBLIC, {quote(facts.role)};",
        )
    if facts.may_create_temporary:
        yield Finding(
            Severity.NOTE,
            where,
            "may create temporary tables",
            f"REVOKE TEMPORARY ON DATABASE {quote(facts.database)} FROM PUBLIC, {quote(facts.role)};",
        )


def quote(name: str) -> str:
    """``name`` as SQL takes it whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
