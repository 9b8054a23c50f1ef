"""``pgturnstile doctor``: what the database would let agents do if the proxy were gone round."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import asyncpg

from policy.diagnostics import printable
from proxy.agents import AgentConfig
from proxy.backend import Endpoint
from proxy.catalogs import asyncpg_tls
from proxy.commands.terminal import Exit, Subcommands, add_format, command, painter
from proxy.config import Config
from proxy.config_reading import load_config
from proxy.credentials import SecretError
from proxy.doctor import Finding, Severity, examine_config, examine_files, examine_role, examine_server
from proxy.doctor_facts import RoleFacts, ServerFacts, read_role, read_server
from proxy.doctor_files import read_files

_CONNECT_S: Final = 10.0
_COLOURS: Final = {Severity.OPEN: "31", Severity.WEAK: "33", Severity.UNKNOWN: "35", Severity.NOTE: "36"}


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    doctor = command(commands, "doctor", _doctor, ["doctor --config pgturnstile.yaml --database shop"])
    doctor.add_argument("--config", required=True, type=Path, metavar="FILE", help="pgturnstile.yaml")
    doctor.add_argument(
        "--database",
        action="append",
        default=[],
        metavar="NAME",
        help="a database to look into, beside those that the configuration names; may be repeated",
    )
    add_format(doctor, "a line a finding and what closes it, or one JSON object a finding")


def _doctor(options: argparse.Namespace) -> Exit:
    """Look for what is open beside the gate.

    Logs in as the backend role of each agent and says what that role could do
    that its policy forbids, and what else of the configuration and the server
    others rely on in vain, the rights on its files included. Each finding
    comes with the SQL or the command that closes it, which is yours to run:
    nothing is changed. Exit code 1 when anything is open.
    """
    config = load_config(options.config)
    findings = asyncio.run(_examine(config, options.database))
    rank = list(Severity)
    findings.sort(key=lambda finding: rank.index(finding.severity))
    for finding in findings:
        _print(finding, options)
    is_open = sum(finding.severity is Severity.OPEN for finding in findings)
    if options.format == "text":
        print(f"{len(findings)} finding{'' if len(findings) == 1 else 's'}, {is_open} open")
    return Exit.REJECTED if is_open else Exit.DONE


def _print(finding: Finding, options: argparse.Namespace) -> None:
    if options.format == "json":
        print(json.dumps(finding.as_json()))
        return
    severity = painter(sys.stdout)(f"{finding.severity:<7}", _COLOURS[finding.severity])
    print(f"{severity} {printable(finding.where)}: {printable(finding.what)}")
    for line in finding.cure.splitlines():
        print(f"        {printable(line)}")


_NO_ANSWER = (OSError, SecretError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


async def _examine(config: Config, databases: list[str]) -> list[Finding]:
    findings = [*examine_config(config), *examine_files(read_files(config))]
    server: ServerFacts | None = None
    for agent in config.agents.values():
        if agent.login is None:
            findings.append(_not_looked_at(agent, "its role is whoever logs in"))
            continue
        for database in sorted({*databases, *(agent.databases or ())}) or [agent.login.user]:
            try:
                role, server = await _ask(config, agent, database)
            except (
                OSError,
                SecretError,
                TimeoutError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
            ) as error:
                findings.append(_not_looked_at(agent, f"{database}: {error or type(error).__name__}"))
                continue
            findings += examine_role(role, agent)
    if server is not None:
        findings += examine_server(server, config)
    return list(dict.fromkeys(findings))


def _not_looked_at(agent: AgentConfig, why: str) -> Finding:
    return Finding(Severity.UNKNOWN, f"agent {agent.name}", f"its backend role was not looked at: {why}")


async def _ask(config: Config, agent: AgentConfig, database: str) -> tuple[RoleFacts, ServerFacts]:
    login, endpoint = agent.login, Endpoint.of(config.backend)
    connection: Any = await asyncpg.connect(
        host=endpoint.host,
        port=endpoint.port,
        user=login.user if login is not None else None,
        password=login.password() if login is not None else None,
        database=database,
        ssl=asyncpg_tls(endpoint),
        direct_tls=endpoint.direct,
        timeout=_CONNECT_S,
        server_settings={"application_name": "pgturnstile doctor", "default_transaction_read_only": "on"},
    )
    try:
        return await read_role(connection), await read_server(connection)
    finally:
        await connection.close()
