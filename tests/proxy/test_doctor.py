"""doctor: each finding with its severity and what closes it, of configurations, servers and real roles."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import psycopg
import pytest
from psycopg import sql

from policy import loader
from proxy import doctor
from proxy.cli import main
from proxy.config import Config
from proxy.config_reading import load_config
from proxy.doctor import Finding, Severity
from proxy.doctor_facts import RoleFacts, ServerFacts, read_role, read_server
from proxy.doctor_files import read_files
from tests.support.certificates import Certificates
from tests.support.postgres import Database

READS = """
version: 1
name: reads
access: read_only
statements: {select: allow}
relations: {allow: ["public.*"], deny: [public.employees]}
columns: {public.customers: {deny: [email]}}
functions: {allow: [builtin-safe]}
"""
WRITES_ORDERS = """
version: 1
name: writes
access: read_write
statements: {select: allow, update: allow}
relations: {allow: ["public.*"]}
"""
CONFIG = """
version: 1
listen: {host: 127.0.0.1, port: 0}
backend: {host: HOST, port: PORT}
audit: {path: audit.jsonl}
agents:
  reader:
    auth: {password_env: AGENT_PASSWORD}
    login: {user: ROLE, password_env: ROLE_PASSWORD}
    databases: [DATABASE]
    policy: reads.yaml
"""
QUIET = ServerFacts("localhost", True, "mod", True, "scram-sha-256", ())


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return write_config(tmp_path, monkeypatch)


def write_config(folder: Path, monkeypatch: pytest.MonkeyPatch, **words: str) -> Config:
    """The configuration with the words in capitals replaced."""
    text = CONFIG
    words = {"HOST": "127.0.0.1", "PORT": "5432", "DATABASE": "shop", "ROLE": "shop_ro"} | words
    for word, value in words.items():
        text = re.sub(rf"\b{word}\b", value, text)
    monkeypatch.setenv("AGENT_PASSWORD", "agent's own")
    monkeypatch.setenv("ROLE_PASSWORD", words.get("PASSWORD", "the role's"))
    (folder / "reads.yaml").write_text(READS, encoding="utf-8")
    (folder / "pgturnstile.yaml").write_text(text, encoding="utf-8")
    return load_config(folder / "pgturnstile.yaml")


def told(findings: Iterator[Finding]) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.what) for finding in findings]


# --- configuration and server ---


def test_a_sound_configuration_has_no_finding(config: Config) -> None:
    assert list(doctor.examine_config(config)) == []


@pytest.mark.parametrize(
    ("host", "tls", "expected"),
    [
        ("10.0.0.9", "disable", [(Severity.OPEN, "10.0.0.9 is reached without TLS")]),
        ("10.0.0.9", "require", [(Severity.WEAK, "another server could pass for 10.0.0.9")]),
        ("10.0.0.9", "verify-full", []),
        ("127.0.0.1", "disable", []),
    ],
)
def test_the_leg_to_the_database(
    host: str,
    tls: str,
    expected: list[tuple[Severity, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = write_config(tmp_path, monkeypatch, HOST=host, PORT=f"5432, tls: {{mode: {tls}}}")
    found = told(doctor.examine_config(config))
    assert [severity for severity, _ in found] == [severity for severity, _ in expected]
    assert all(said in what for (_, what), (_, said) in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("changed", "severity", "said", "cure"),
    [
        ({"listen_addresses": "*"}, Severity.WEAK, "listens on *", "listen_addresses = 'localhost'"),
        ({"log_statement": "none"}, Severity.NOTE, "log_statement is none", "log_statement = 'mod'"),
        ({"track_counts": False}, Severity.WEAK, "track_counts is off", "track_counts = on"),
        ({"password_encryption": "md5"}, Severity.WEAK, "MD5", "scram-sha-256"),
        ({"hba_trust": None}, Severity.UNKNOWN, "superuser only", "pg_hba_file_rules"),
        ({"hba_trust": ("line 9: host all 0.0.0.0",)}, Severity.OPEN, "line 9", "scram-sha-256"),
    ],
)
def test_what_a_server_lacks(
    changed: dict[str, object], severity: Severity, said: str, cure: str, config: Config
) -> None:
    (finding,) = doctor.examine_server(replace(QUIET, **changed), config)  # type: ignore[arg-type]
    assert finding.severity is severity
    assert said in finding.what
    assert cure in finding.cure


def test_a_sound_server_has_no_finding(config: Config) -> None:
    assert list(doctor.examine_server(QUIET, config)) == []


# --- the files ---

FILES = """
version: 1
listen: {port: 0, tls: {cert: server.crt, key: server.key, client_ca: ca.crt}}
backend: {host: 127.0.0.1, tls: {mode: require, ca: ca.crt, cert: server.crt, key: own.key}}
audit: {path: audit.jsonl}
ledger: {store: "sqlite:ledger.db"}
catalog: {login: {user: shop_ro, password_file: catalog.password}}
agents:
  reader: {auth: {password_file: agent.password}, login: {user: shop_ro, password_file: role.password},
    policy: reads.yaml}
"""


@pytest.fixture
def files(certificates: Certificates) -> Iterator[Path]:
    """A folder that every account may enter, with a configuration whose files are its owner's alone."""
    folder = Path(tempfile.mkdtemp(dir="/tmp")).resolve()
    folder.chmod(0o755)
    for name, data in {
        "pgturnstile.yaml": FILES.encode(),
        "reads.yaml": READS.encode(),
        "server.crt": certificates.certificate.read_bytes(),
        "server.key": certificates.key.read_bytes(),
        "own.key": certificates.key.read_bytes(),
        "ca.crt": certificates.ca.read_bytes(),
        **{f"{whose}.password": f"secret of {whose}".encode() for whose in ("agent", "role", "catalog")},
        "audit.jsonl": b"",
        "ledger.db": b"",
    }.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    yield folder
    shutil.rmtree(folder)


def about_files(folder: Path) -> list[Finding]:
    return list(doctor.examine_files(read_files(load_config(folder / "pgturnstile.yaml"))))


def test_files_of_their_owner_alone_have_no_finding(files: Path) -> None:
    assert about_files(files) == []


SECRETS = {
    "server.key": ("listen.tls.key", "the key of the proxy's certificate"),
    "own.key": ("backend.tls.key", "the key shown to PostgreSQL"),
    "agent.password": ("agent reader", "the agent's password"),
    "role.password": ("agent reader", "the password of the backend role shop_ro"),
    "catalog.password": ("catalog", "the password of the backend role shop_ro"),
    "audit.jsonl": ("audit", "what agents asked, values included"),
    "ledger.db": ("ledger", "what agents asked and were refused"),
}
OTHERS = ("pgturnstile.yaml", "reads.yaml", "ca.crt")


def test_whatever_holds_a_secret_is_not_for_every_account_to_read(files: Path) -> None:
    for name in (*SECRETS, *OTHERS):
        (files / name).chmod(0o644)
    found = about_files(files)
    assert {(f.cure, f.where, f.what.split(" holds ")[1]) for f in found} == {
        (f"chmod o-r {files / name}", *of) for name, of in SECRETS.items()
    }
    assert {f.severity for f in found} == {Severity.WEAK}
    for finding in found:
        subprocess.run(finding.cure, shell=True, check=True)
    assert about_files(files) == []


@pytest.mark.parametrize("name", [*SECRETS, *OTHERS])
def test_what_every_account_may_write_is_open(files: Path, name: str) -> None:
    (files / name).chmod(0o602)
    (finding,) = about_files(files)
    assert finding.severity is Severity.OPEN
    assert f"{files / name} can be written by every account" in finding.what
    assert finding.cure == f"chmod o-w {files / name}"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0o750, set()),  # nobody comes to what is in it
        (0o1777, {(Severity.WEAK, "role.password")}),  # as /tmp: nobody may replace another's file
        (0o773, {(Severity.OPEN, ""), (Severity.WEAK, "role.password")}),
        (0o772, set()),
    ],
    ids=["closed", "sticky", "open", "unsearchable"],
)
def test_the_folder_decides_too(files: Path, mode: int, expected: set[tuple[Severity, str]]) -> None:
    (files / "role.password").chmod(0o604)
    files.chmod(mode)
    found = about_files(files)
    assert {(f.severity, Path(f.cure.split()[-1]).relative_to(files).name) for f in found} == expected
    replaceable = [f for f in found if f"can be replaced, as folder {files} can be written" in f.what]
    assert len(replaceable) == (len(SECRETS) + len(OTHERS) if (Severity.OPEN, "") in expected else 0)


def test_a_link_is_judged_by_what_it_leads_to(files: Path) -> None:
    hidden = files / "hidden"
    hidden.mkdir(mode=0o700)
    (files / "role.password").rename(hidden / "word")
    (hidden / "word").chmod(0o666)
    (files / "role.password").symlink_to(hidden / "word")
    assert about_files(files) == []
    hidden.chmod(0o711)
    assert {f.severity for f in about_files(files)} == {Severity.OPEN, Severity.WEAK}
    assert all(str(hidden / "word") in f.what for f in about_files(files))


def test_what_is_no_file_or_not_there_has_no_finding(files: Path) -> None:
    (files / "audit.jsonl").unlink()
    assert about_files(files) == []
    (files / "audit.jsonl").symlink_to("/dev/null")
    assert about_files(files) == []


# --- real roles ---


def facts(database: Database, role: str | None) -> tuple[RoleFacts, ServerFacts]:
    async def read() -> tuple[RoleFacts, ServerFacts]:
        connection = await asyncpg.connect(database.dsn(role))
        try:
            return await read_role(connection), await read_server(connection)
        finally:
            await connection.close()

    return asyncio.run(read())


def examined(database: Database, role: str | None, policy: str, config: Config) -> list[Finding]:
    agent = replace(config.agents["reader"], policy=loader.load(policy.encode(), "policy.yaml"))
    return list(doctor.examine_role(facts(database, role)[0], agent))


def test_a_superuser_is_told_once(database: Database, config: Config) -> None:
    (finding,) = examined(database, None, READS, config)
    assert finding.severity is Severity.OPEN
    assert "is a superuser" in finding.what
    assert finding.cure.endswith("NOSUPERUSER;")


def test_what_the_policy_never_does_is_open_and_its_cure_closes_it(
    database: Database, config: Config
) -> None:
    def about_tables() -> list[Finding]:
        return [f for f in examined(database, "shop_app", READS, config) if "which policy" in f.what]

    before = about_tables()
    assert {f.severity for f in before} == {Severity.OPEN}
    assert any("may write" in f.what and "public.customers" in f.what for f in before)
    for finding in before:
        if finding.cure.startswith("REVOKE") and "…" not in finding.cure:
            database.execute(finding.cure)
    after = [f.what for f in about_tables()]
    assert not any("may write" in what or "may read public.employees" in what for what in after)


def test_a_policy_that_writes_means_it(database: Database, config: Config) -> None:
    database.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM shop_app, PUBLIC")
    database.execute("GRANT SELECT, UPDATE ON orders TO shop_app")
    assert not [f for f in examined(database, "shop_app", WRITES_ORDERS, config) if "may write" in f.what]
    database.execute("GRANT DELETE ON orders TO PUBLIC")
    (finding,) = [f for f in examined(database, "shop_app", WRITES_ORDERS, config) if "may write" in f.what]
    assert finding.cure == "REVOKE DELETE ON public.orders FROM PUBLIC;"


def test_hidden_columns_that_the_role_can_read(database: Database, config: Config) -> None:
    (finding,) = [f for f in examined(database, "shop_ro", READS, config) if "hides" in f.what]
    assert finding.severity is Severity.OPEN
    assert 'public.customers."email"' in finding.what
    database.execute(
        "REVOKE SELECT ON customers FROM shop_ro, PUBLIC; GRANT SELECT (id) ON customers TO shop_ro"
    )
    assert not [f for f in examined(database, "shop_ro", READS, config) if "hides" in f.what]


@pytest.mark.parametrize(
    ("made", "said", "cure"),
    [
        ("ALTER ROLE {role} BYPASSRLS", "has BYPASSRLS", "ALTER ROLE {role} NOBYPASSRLS;"),
        ("ALTER ROLE {role} CREATEROLE", "has CREATEROLE", "ALTER ROLE {role} NOCREATEROLE;"),
        (
            "GRANT pg_read_server_files TO {role}",
            "server's files",
            "REVOKE pg_read_server_files FROM {role};",
        ),
        ("GRANT pg_write_all_data TO {role}", "write every table", "REVOKE pg_write_all_data FROM {role};"),
        ("GRANT CREATE ON SCHEMA public TO {role}", "may create objects", "REVOKE CREATE ON SCHEMA public"),
        (
            "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {role}",
            "pg_read_file",
            "FUNCTION pg_read_file(text)",
        ),
        (
            "CREATE FUNCTION all_pay() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'",
            "SECURITY DEFINER",
            "REVOKE EXECUTE ON FUNCTION public.all_pay()",
        ),
        ("CREATE TABLE owned (); ALTER TABLE owned OWNER TO {role}", "owns public.owned", "OWNER TO"),
    ],
)
def test_one_thing_too_many(made: str, said: str, cure: str, database: Database, config: Config) -> None:
    role = f"doctor_{database.name}"
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        name = sql.Identifier(role)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        try:
            connection.execute(made.format(role=role).encode())
            found = asyncio.run(_as_role(database, role, config))
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(name))
    matching = [f for f in found if said in f.what]
    assert len(matching) == 1, found
    assert cure.format(role=f'"{role}"') in matching[0].cure


async def _as_role(database: Database, role: str, config: Config) -> list[Finding]:
    connection = await asyncpg.connect(database.dsn())
    try:
        await connection.execute(f'SET SESSION AUTHORIZATION "{role}"')
        return list(doctor.examine_role(await read_role(connection), config.agents["reader"]))
    finally:
        await connection.close()


# --- the command ---


def test_the_command(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    password = database.server.passwords["shop_app"]
    write_config(
        tmp_path,
        monkeypatch,
        HOST=database.server.host,
        PORT=str(database.server.port),
        DATABASE=database.name,
        ROLE="shop_app",
        PASSWORD=password,
    )
    arguments = ["doctor", "--config", str(tmp_path / "pgturnstile.yaml")]
    assert main([*arguments, "--format", "json"]) == 1
    out, err = capsys.readouterr()
    findings = [json.loads(line) for line in out.splitlines()]
    assert {"severity", "where", "what", "cure"} == set(findings[0])
    assert findings[0]["severity"] == "open"
    assert password not in out + err
    assert main(arguments) == 1
    out, _ = capsys.readouterr()
    assert out.splitlines()[-1].endswith(" open")
    assert "REVOKE" in out


def test_a_role_that_cannot_log_in_is_said_to_be_unknown(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(
        tmp_path,
        monkeypatch,
        HOST=database.server.host,
        PORT=str(database.server.port),
        DATABASE="no_such_database",
    )
    assert main(["doctor", "--config", str(tmp_path / "pgturnstile.yaml"), "--format", "json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    finding = json.loads(line)
    assert finding["severity"] == "unknown"
    assert "was not looked at" in finding["what"]
