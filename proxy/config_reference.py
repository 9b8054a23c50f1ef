"""Every key of the configuration, for the README: what its reading asks of a file, and a sentence on each.

Owns the sentences and the table. Which keys there are, what they take and what holds without them is recorded
from the reading itself, as the JSON Schema of policies is (``policy.schema``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from policy.schema import asked
from proxy.config_reading import Reading

_NOWHERE: Final = Path("/nonexistent")


class _AnyVariable(dict[str, str]):
    """An environment in which every variable is set."""

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - dict's signature
        return "a secret that is long enough"


def table() -> str:
    """The table in Markdown: a row a key."""
    reading = Reading(_NOWHERE, _AnyVariable())
    schema = asked(lambda place: reading.config(place, "pgturnstile.yaml")).schema((), {})
    rows = [
        f"| `{key}` | {takes} | {default} | {MEANING[key]} |" for key, takes, default in _rows(schema, "")
    ]
    return "\n".join(["| key | takes | default | what it is |", "|---|---|---|---|", *rows])


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Key path, what it takes, and its default, of every key below ``path`` that is no mapping itself."""
    required = schema.get("required", ())
    for name, below in schema.get("properties", {}).items():
        yield from _row(f"{path}{name}", below, required=name in required)


def _row(path: str, schema: Mapping[str, Any], *, required: bool) -> Iterator[tuple[str, str, str]]:
    if "properties" in schema:
        yield from _rows(schema, f"{path}.")
    elif isinstance(schema.get("additionalProperties"), Mapping):
        yield from _row(f"{path}.NAME", schema["additionalProperties"], required=False)
    else:
        default = f"`{_word(schema['default'])}`" if "default" in schema else "required" if required else ""
        yield path, _takes(schema), default


def _word(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _takes(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        return "a list"
    if "minimum" in schema:
        return f"{schema['minimum']:,} to {schema['maximum']:,}"
    if isinstance(schema.get("type"), list):
        return "a time, as `10s`" if "ms" in schema["pattern"] else "a size, as `1MiB`"
    return {"boolean": "`true`, `false`"}.get(str(schema.get("type")), "a text")


MEANING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "version": "of the format: 1",
        "listen.host": "the address that agents connect to; default: 127.0.0.1",
        "listen.port": "0: the system chooses; the `ready` line tells",
        "listen.tls.cert": "certificate chain, a file",
        "listen.tls.key": "its key, a file without a passphrase",
        "listen.tls.client_ca": "who issues the agents' certificates, a file",
        "listen.tls.required": "whether a connection without TLS is refused",
        "backend.host": "of PostgreSQL, or the folder of its Unix socket; default: 127.0.0.1",
        "backend.port": "of PostgreSQL",
        "backend.tls.mode": "libpq's sslmode; without `tls`: `disable` for this machine, else `verify-full`",
        "backend.tls.ca": "who issues PostgreSQL's certificate; default: the system's authorities",
        "backend.tls.cert": "a certificate to show to PostgreSQL",
        "backend.tls.key": "its key",
        "backend.tls.negotiation": "`direct`: TLS from the first byte, which PostgreSQL 17 and later take",
        "agents.NAME.auth.scram": "a verifier that `hash-password` printed",
        "agents.NAME.auth.password_env": "the variable that holds the agent's password",
        "agents.NAME.auth.password_file": "the file that holds it, read anew when it changes",
        "agents.NAME.auth.cert.cn": "the common name of the agent's certificate",
        "agents.NAME.auth.cert.san": "or one of its alternative names",
        "agents.NAME.auth.trust": "no proof, from this machine alone: for development",
        "agents.NAME.auth.backend": "PostgreSQL is asked, as the role that the agent names",
        "agents.NAME.login.user": "the role in PostgreSQL",
        "agents.NAME.login.password_env": "the variable that holds its password",
        "agents.NAME.login.password_file": "or the file",
        "agents.NAME.databases": "those the agent may use; default: any",
        "agents.NAME.networks": "where it may come from, as `10.0.0.0/8`; default: anywhere",
        "agents.NAME.connections": "at a time; default: `limits.connections_per_agent`",
        "agents.NAME.policy": "the policy file, from the folder of the configuration",
        "audit.path": "the file of decisions; without `audit` none is kept",
        "audit.statements": "how much of a statement's text is kept",
        "audit.on_failure": "where the file takes no more lines: serve nobody, or serve and say so",
        "audit.fsync": "when lines are forced to the disk",
        "admin.host": "of the admin port, which is off without `admin`; default: 127.0.0.1",
        "admin.port": "of the admin port",
        "admin.token_env": "the variable that holds its token; needed off this machine",
        "control": "the Unix socket that `reload` asks by; default: none",
        "ledger.store": "of repairs: `memory`, `sqlite:PATH`, `redis://…` or `rediss://…`",
        "ledger.password_env": "the variable that holds the store's password",
        "catalog.login.user": "who reads the schema; default: the agents' own logins",
        "catalog.login.password_env": "the variable that holds its password",
        "catalog.login.password_file": "or the file",
        "limits.connections": "in all",
        "limits.connections_per_agent": "of one agent",
        "limits.startup_timeout": "from the first byte to the first statement",
        "limits.judge_timeout": "of processor time for judging one large statement",
        "limits.message_bytes": "of one message of an agent",
        "limits.statement_bytes": "of one statement",
        "limits.drain_timeout": "how long SIGTERM lets what runs go on",
        "workers": "processes that serve, each on a core of its own",
    }
)
"""By key path; ``NAME`` stands for an agent's."""
