"""README's "Run it in production": unit, roles, rotation and containers, held against what they speak of."""

from __future__ import annotations

import asyncio
import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import asyncpg
import psycopg
import pytest

from policy import catalog_source
from proxy import cli
from proxy.config import ServerLimits
from tests.support.postgres import Database, Server
from tests.test_readme import ROOT, the

COMPOSE: Final = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")


def unit() -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None)
    # Case counts in systemd's keys.
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(the("ini service").text)
    return read


# --- as a service ---


def test_the_unit_runs_commands_that_exist_where_they_were_installed() -> None:
    service = unit()["Service"]
    install = the("sh service-install").text
    for key in ("ExecStart", "ExecReload"):
        program, *arguments = shlex.split(service[key])
        cli.parser().parse_args(arguments)
        assert f"sudo python3 -m venv {Path(program).parents[1]}\n" in install
        assert f"sudo {Path(program).parent}/pip install .\n" in install
        assert f" {arguments[arguments.index('--config') + 1]}\n" in install
    assert f" {service['User']}\n" in install
    assert install.splitlines()[-1].endswith(f"-m 0600 /dev/null {service['EnvironmentFile']}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert Path(program).name in project["scripts"]
    assert int(service["TimeoutStopSec"]) * 1000 > ServerLimits().drain_timeout_ms


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / "pgturnstile.service"
    # It looks whether the program is there.
    path.write_text(the("ini service").text.replace("/opt/pgturnstile/bin/pgturnstile", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    assert not [line for line in done.stderr.splitlines() if "pgturnstile.service" in line], done.stderr


def test_what_is_installed_is_there(tmp_path: Path) -> None:
    for source in re.findall(r"(policy/\S+)", the("sh service-install").text):
        assert list(ROOT.glob(source))
    for line in the("sh service-install").text.splitlines():
        assert shlex.split(line)[0] == "sudo"
    assert not (tmp_path / "pgturnstile.yaml").exists(), "that one is the reader's own"


def test_the_audit_is_rotated_where_the_service_writes_it() -> None:
    text = the("text logrotate").text
    folder = f"/var/lib/{unit()['Service']['StateDirectory']}"
    assert text.startswith(f"{folder}/audit.jsonl {{\n")
    assert {"delaycompress", "nocreate", "su pgturnstile pgturnstile"} <= set(
        map(str.strip, text.splitlines())
    )


# --- the roles in PostgreSQL ---


@pytest.fixture
def with_roles(postgres: Server, database: Database) -> Database:
    """A shop where the roles' grants are README's. Roles are the server's, and the shop has made them."""
    script = the("sql-roles").text.replace("DATABASE shop", f"DATABASE {database.name}")
    created, made = re.subn(r"^CREATE ROLE .*\n", "", script, flags=re.MULTILINE)
    assert made == 2
    database.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM shop_ro, shop_app")
    # What ALTER ROLE … SET leaves would be the next test's as well.
    database.execute(re.sub(r"^ALTER ROLE .*\n", "", created, flags=re.MULTILINE))
    return database


def test_the_roles_can_be_made_as_written(database: Database) -> None:
    script = re.sub(r"\b(shop_ro|shop_app)\b", r"made_\1", the("sql-roles").text)
    script = script.replace("DATABASE shop", f"DATABASE {database.name}")
    with psycopg.connect(database.dsn()) as connection:
        connection.execute(script.encode())
        cursor = connection.execute(
            "SELECT rolname, rolsuper, rolconfig FROM pg_roles WHERE rolname LIKE 'made%' ORDER BY 1"
        )
        assert cursor.fetchall() == [
            ("made_shop_app", False, None),
            ("made_shop_ro", False, ["default_transaction_read_only=on"]),
        ]
        connection.rollback()


@pytest.mark.parametrize(
    ("role", "statement", "allowed"),
    [
        ("shop_ro", "SELECT id FROM orders LIMIT 1", True),
        ("shop_ro", "SELECT name, city FROM customers LIMIT 1", True),
        ("shop_ro", "SELECT email FROM customers LIMIT 1", False),
        ("shop_ro", "SELECT secret FROM api_keys", False),
        ("shop_ro", "DELETE FROM orders WHERE id = 1", False),
        ("shop_ro", "CREATE TABLE t (a int)", False),
        ("shop_ro", "CREATE TEMPORARY TABLE t (a int)", False),
        ("shop_app", "UPDATE orders SET status = 'sent' WHERE id = 1", True),
        ("shop_app", "INSERT INTO orders (customer_id) VALUES (1)", True),
        ("shop_app", "UPDATE products SET price = 1 WHERE id = 1", False),
    ],
)
def test_the_grants_let_the_work_through_and_no_more(
    with_roles: Database, role: str, statement: str, allowed: bool
) -> None:
    if allowed:
        with_roles.execute(statement, role)
    else:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            with_roles.execute(statement, role)


def test_a_role_that_may_only_connect_reads_the_schema(with_roles: Database) -> None:
    with_roles.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM shop_ro")
    with_roles.execute("REVOKE ALL ON SCHEMA public FROM shop_ro, PUBLIC")

    async def names_read() -> set[str]:
        connection = await asyncpg.connect(with_roles.dsn("shop_ro"))
        try:
            catalog = await catalog_source.read(connection)
            return {name for name in ("orders", "api_keys", "nothing") if catalog.relations_named(name)}
        finally:
            await connection.close()

    assert asyncio.run(names_read()) == {"orders", "api_keys"}


# --- in containers ---


def test_the_compose_commands_are_those_of_the_file() -> None:
    lines = the("sh compose").text.splitlines()
    assert [f"#   {line}" for line in lines] == COMPOSE.splitlines()[1:3]
    for line in lines:
        for path in re.findall(r"docker/(?!\.env)\S+", line):
            assert (ROOT / path).is_file()
