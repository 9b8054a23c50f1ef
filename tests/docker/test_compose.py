"""docker/compose.yaml: what its files say of one another agrees, and the whole runs here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from proxy.config import Config
from proxy.config_reading import read_config
from proxy.embedded import BinariesNotFoundError, EmbeddedPostgres, find_binaries
from tests.support import dockerfile
from tests.support.postgres import skip_or_fail
from tests.support.proxy import free_port
from tests.support.strict_yaml import load_all

ROOT: Final = Path(__file__).parent.parent.parent
DOCKER: Final = ROOT / "docker"
COMPOSE: Final[dict[str, Any]] = load_all(DOCKER / "compose.yaml")[0]
SERVICES: Final[dict[str, Any]] = COMPOSE["services"]
STAGES: Final = dockerfile.read((DOCKER / "Dockerfile").read_text(encoding="utf-8"))
IMAGE: Final = STAGES["proxy"]
CONFIG_TEXT: Final = (DOCKER / "pgturnstile.yaml").read_text(encoding="utf-8")
PROXY: Final = SERVICES["pgturnstile"]


def made_secrets() -> dict[str, str]:
    """What ``make-env`` prints."""
    done = subprocess.run(
        ["sh", str(DOCKER / "make-env")], capture_output=True, text=True, timeout=20, check=True
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def loaded() -> Config:
    return read_config(CONFIG_TEXT, "pgturnstile.yaml", DOCKER, made_secrets())


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


# --- the files agree ---


def test_every_secret_is_random_and_new_each_time() -> None:
    one, other = made_secrets(), made_secrets()
    values = [*one.values(), *other.values()]
    assert len(set(values)) == len(values)
    assert all(re.fullmatch(r"[0-9a-f]{32}", value) for value in values)


def test_every_variable_is_one_that_make_env_makes_and_is_asked_for() -> None:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    named = set(re.findall(r"\$\{(\w+)", text)) | {COMPOSE["secrets"]["admin_token"]["environment"]}
    assert named == set(made_secrets())
    assert "${" not in re.sub(r"\$\{\w+:\?[^}]+\}", "", text), "a variable that is missing must end the start"


def test_the_proxy_gets_the_variables_that_its_configuration_names() -> None:
    named = re.findall(r"(?:password_env|token_env): (\w+)", CONFIG_TEXT)
    assert sorted(PROXY["environment"]) == sorted(named)
    assert all(value.startswith(f"${{{name}:?") for name, value in PROXY["environment"].items())


def test_the_configuration_names_what_the_services_are() -> None:
    config = loaded()
    assert config.backend.host in SERVICES
    assert config.agents["analyst"].databases == {SERVICES["postgres"]["environment"]["POSTGRES_DB"]}
    assert PROXY["ports"] == [f"127.0.0.1:{config.listen.port}:{config.listen.port}"]
    agent = SERVICES["agent"]["environment"]
    assert (agent["PGHOST"], agent["PGPORT"]) == ("pgturnstile", str(config.listen.port))
    assert agent["PGDATABASE"] == "shop"
    assert agent["PGUSER"] in config.agents
    assert seconds(PROXY["stop_grace_period"]) * 1000 > config.limits.drain_timeout_ms


def test_the_image_serves_the_ports_of_the_configuration_and_asks_its_health_there() -> None:
    config = loaded()
    assert config.admin is not None
    assert config.audit is not None
    assert IMAGE.last("EXPOSE").words == [str(config.listen.port), str(config.admin.port)]
    assert f"http://127.0.0.1:{config.admin.port}/healthz" in IMAGE.last("HEALTHCHECK").rest
    made = IMAGE.last("RUN").words
    assert str(config.audit.path.parent) == made[-1]
    owner, group = IMAGE.last("USER").rest.split(":")
    assert made[made.index("--owner") + 1] == owner
    assert made[made.index("--group") + 1] == group
    assert int(owner) > 0


def test_what_is_mounted_exists_and_lands_where_it_is_looked_for() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DOCKER / source).exists(), volume
    targets = [volume.split(":")[1] for volume in PROXY["volumes"]]
    command = IMAGE.last("CMD").words
    folder = IMAGE.last("WORKDIR").rest
    assert targets[0] == command[command.index("--config") + 1] == f"{folder}/pgturnstile.yaml"
    assert targets[1] == f"{folder}/policies"
    for name in re.findall(r"policy: (\S+)", CONFIG_TEXT):
        assert (DOCKER / name).is_file()
        assert name.startswith("policies/")


def test_what_is_built_are_stages_of_the_dockerfile() -> None:
    for name in ("pgturnstile", "agent"):
        build = SERVICES[name]["build"]
        assert (DOCKER / build["context"] / build["dockerfile"]).resolve() == DOCKER / "Dockerfile"
        assert build["target"] in STAGES
    assert list(STAGES)[-1] == "proxy", "what a build without --target makes"


def test_the_database_is_reached_through_the_proxy_alone() -> None:
    beside = {name for name, each in SERVICES.items() if "database" in each.get("networks", ["database"])}
    assert beside == {"postgres", "pgturnstile"}
    assert SERVICES["postgres"]["networks"] == ["database"]
    assert COMPOSE["networks"]["database"] == {"internal": True}
    assert "ports" not in SERVICES["postgres"]


@pytest.mark.parametrize("name", ["pgturnstile", "agent"])
def test_what_is_ours_runs_with_nothing_to_spare(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert STAGES[service["build"]["target"]].all("USER")


def test_prometheus_asks_the_admin_port_with_its_token() -> None:
    config = loaded()
    assert config.admin is not None
    (job,) = load_all(DOCKER / "prometheus.yml")[0]["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"pgturnstile:{config.admin.port}"]}]
    (secret,) = SERVICES["prometheus"]["secrets"]
    assert job["authorization"] == {"credentials_file": f"/run/secrets/{secret}"}
    assert COMPOSE["secrets"][secret] == {"environment": "ADMIN_TOKEN"}
    assert config.admin.token is not None


# --- it runs ---


@dataclass(frozen=True, slots=True)
class Running:
    """The proxy of compose.yaml before a server that has run seed.sql."""

    port: int
    admin: int
    folder: Path
    secrets: dict[str, str]
    dsn: str

    def connect(self, agent: str) -> psycopg.Connection[tuple[Any, ...]]:
        password = self.secrets[f"{agent.upper()}_PASSWORD"]
        return psycopg.connect(
            host="127.0.0.1", port=self.port, dbname="shop", user=agent, password=password, autocommit=True
        )

    def pgturnstile(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "proxy", *map(str, arguments)],
            env=os.environ | self.secrets,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Addresses and paths of the containers replaced by free ones of this machine; all else as it stands."""
    psql = shutil.which("psql")
    try:
        binaries = find_binaries()
    except BinariesNotFoundError as error:
        skip_or_fail(str(error))
    if psql is None:
        skip_or_fail("psql is not installed, and seed.sql is written for it.")
    folder = tmp_path_factory.mktemp("compose")
    secrets = made_secrets()
    with EmbeddedPostgres(binaries) as engine:
        with psycopg.connect(engine.dsn("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        # As the image of PostgreSQL does: docker-entrypoint.sh's docker_process_sql.
        seeded = subprocess.run(
            [str(psql), "-X", "-v", "ON_ERROR_STOP=1", "-f", str(DOCKER / "seed.sql"), engine.dsn("shop")],
            env=os.environ | secrets,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert seeded.returncode == 0, seeded.stderr
        config = load_all(DOCKER / "pgturnstile.yaml")[0]
        config["listen"] |= {"host": "127.0.0.1", "port": free_port()}
        config["backend"] |= {"host": engine.host, "port": engine.port}
        config["admin"] |= {"host": "127.0.0.1", "port": free_port()}
        config["audit"] |= {"path": "audit.jsonl"}
        (folder / "pgturnstile.yaml").write_text(json.dumps(config), encoding="utf-8")
        shutil.copytree(DOCKER / "policies", folder / "policies")
        words = [*IMAGE.last("ENTRYPOINT").words, *IMAGE.last("CMD").words]
        words = [word.replace("/etc/pgturnstile/", f"{folder}/") for word in words]
        assert words[0] == "pgturnstile"
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "proxy", *words[1:]],
                env=os.environ | secrets,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            assert ready.startswith("ready "), (folder / "log").read_text()
            yield Running(
                config["listen"]["port"], config["admin"]["port"], folder, secrets, engine.dsn("shop")
            )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            process.stdout.close()
        assert process.returncode == 0


def test_the_sample_agent_gets_what_it_expects(running: Running) -> None:
    given = SERVICES["agent"]["environment"] | {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(running.port),
        "PGPASSWORD": running.secrets["ANALYST_PASSWORD"],
    }
    done = subprocess.run(
        [sys.executable, str(DOCKER / "agent.py")],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "Lisbon" in done.stdout
    assert "customer_id" in done.stdout
    assert "example.org" not in done.stdout


def test_the_clerk_writes_a_few_rows_and_no_more(running: Running) -> None:
    with running.connect("clerk") as connection:
        connection.execute("UPDATE orders SET status = 'sent' WHERE id = 7")
        connection.execute("INSERT INTO orders (customer_id, total) VALUES (7, 12.50)")
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("UPDATE orders SET status = 'sent' WHERE id BETWEEN 1 AND 100")
        assert refused.value.diag.source_function == "affected-rows-over-limit"


def test_the_roles_can_do_no_more_than_the_policies_allow(running: Running) -> None:
    done = running.pgturnstile("doctor", "--config", running.folder / "pgturnstile.yaml", "--format", "json")
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, findings
    assert not [finding for finding in findings if finding["severity"] == "open"]


@pytest.mark.parametrize("name", ["analyst", "clerk"])
def test_the_policies_fit_the_database(running: Running, name: str) -> None:
    policy = running.folder / "policies" / f"{name}.yaml"
    linted = running.pgturnstile("policy", "lint", "--strict", "--dsn", running.dsn, policy)
    assert linted.returncode == 0, linted.stdout
    tested = running.pgturnstile("policy", "test", policy)
    assert tested.returncode == 0, tested.stdout


def test_the_health_check_of_the_image_tells_life_from_death(running: Running) -> None:
    _, command = IMAGE.last("HEALTHCHECK").rest.split("CMD ", 1)
    program, *arguments = json.loads(command)
    assert program == "python"
    for port, code in ((running.admin, 0), (free_port(), 1)):
        words = [word.replace(":6433/", f":{port}/") for word in arguments]
        asked = subprocess.run([sys.executable, *words], capture_output=True, timeout=20, check=False)
        assert asked.returncode == code, asked.stderr


def test_the_counters_are_there_for_the_token_alone(running: Running) -> None:
    url = f"http://127.0.0.1:{running.admin}/metrics"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=10)
    assert refused.value.code == 401
    bearer = {"Authorization": f"Bearer {running.secrets['ADMIN_TOKEN']}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=bearer), timeout=10) as answer:
        assert b'pgturnstile_connections_opened_total{agent="analyst"}' in answer.read()
