"""docker/kubernetes: each manifest names what another one makes, and the configuration in it loads."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import redis
import yaml

from policy.loader import load_file
from policy.trial import run_tests
from proxy.config import Config
from proxy.config_reading import ConfigError, read_config
from tests.support import dockerfile
from tests.support.certificates import Certificates
from tests.support.proxy import free_port, wait_for
from tests.support.strict_yaml import load_all

DOCKER: Final = Path(__file__).parent.parent.parent / "docker"
FOLDER: Final = DOCKER / "kubernetes"
IMAGE: Final = dockerfile.read((DOCKER / "Dockerfile").read_text(encoding="utf-8"))["proxy"]
DOCUMENTS: Final[list[Any]] = [each for path in sorted(FOLDER.glob("*.yaml")) for each in load_all(path)]
TO_FILL: Final[list[Any]] = load_all(FOLDER / "secrets.yaml.example")
MOUNTED: Final = "/etc/pgturnstile"


def of(kind: str, name: str = "pgturnstile") -> dict[str, Any]:
    (found,) = (
        each for each in [*DOCUMENTS, *TO_FILL] if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return dict(found)


DEPLOYMENT: Final = of("Deployment")["spec"]
LEDGER: Final = of("Deployment", "ledger")["spec"]
POD: Final = DEPLOYMENT["template"]["spec"]
(PROXY,) = POD["containers"]
(SHIPPER,) = POD["initContainers"]
CONFIG: Final = of("ConfigMap")["data"]
VALUES: Final = {
    "analyst-password": "the agent's",
    "shop-ro-password": "the role's",
    "admin-token": "a token of twenty-two",
    "ledger-password": "thestores",
}


def mounted(folder: Path, certificates: Certificates, values: dict[str, str]) -> dict[str, str]:
    """The pod's volumes below ``folder``, as the manifests put them there. Returns its environment."""
    content = {
        "pgturnstile": values,
        "pgturnstile-tls": {
            "tls.crt": certificates.certificate.read_text(),
            "tls.key": certificates.key.read_text(),
        },
        "database-ca": {"ca.crt": certificates.ca.read_text()},
    }
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    for mount in PROXY["volumeMounts"]:
        volume = volumes[mount["name"]]
        at = folder / mount["mountPath"].removeprefix("/")
        at.mkdir(parents=True)
        if "emptyDir" in volume:
            continue
        if "secret" in volume:
            files = content[volume["secret"]["secretName"]]
            items = {each["key"]: each["path"] for each in volume["secret"].get("items", [])}
        else:
            name = volume["configMap"]["name"]
            files, items = CONFIG if name == "pgturnstile" else content[name], {}
        for key, text in files.items():
            if not items or key in items:
                (at / items.get(key, key)).write_text(text, encoding="utf-8")
    return {
        each["name"]: values[each["valueFrom"]["secretKeyRef"]["key"]]
        for each in PROXY["env"]
        if each["valueFrom"]["secretKeyRef"]["name"] == "pgturnstile"
    }


def load(folder: Path, environment: dict[str, str]) -> Config:
    """The configuration that the container's arguments name, every path in it taken below ``folder``."""
    path = folder / PROXY["args"][PROXY["args"].index("--config") + 1].removeprefix("/")
    text = re.sub(r"(?<=[ {])/(?=etc/|var/)", f"{folder}/", path.read_text(encoding="utf-8"))
    return read_config(text, str(path), path.parent, environment)


@pytest.fixture
def config(tmp_path: Path, certificates: Certificates) -> Config:
    return load(tmp_path, mounted(tmp_path, certificates, VALUES))


def test_the_configuration_loads_from_what_is_mounted(config: Config) -> None:
    assert config.listen.tls is not None
    assert config.listen.tls.required
    assert config.backend.tls.mode == "verify-full"
    assert config.backend.tls.ca is not None
    assert config.admin is not None
    assert config.admin.token == VALUES["admin-token"]
    (policy,) = config.policies
    assert policy.tests


def test_the_policy_in_it_holds_its_own_tests(tmp_path: Path, certificates: Certificates) -> None:
    mounted(tmp_path, certificates, VALUES)
    policy = load_file(next(tmp_path.rglob("analyst.yaml")))
    assert [tried.differences for tried in run_tests(policy)] == [(), (), ()]


@pytest.mark.parametrize("key", sorted(VALUES))
def test_a_secret_that_was_not_filled_in_keeps_the_proxy_from_starting(
    key: str, tmp_path: Path, certificates: Certificates
) -> None:
    environment = mounted(tmp_path, certificates, VALUES | {key: ""})
    with pytest.raises(ConfigError, match=r"empty|expected a password"):
        load(tmp_path, environment)


def test_the_secrets_to_fill_in_are_those_that_are_used_and_stand_empty() -> None:
    assert set(of("Secret")["stringData"]) == set(VALUES)
    used = {item["key"] for volume in POD["volumes"] for item in volume.get("secret", {}).get("items", [])}
    (store,) = LEDGER["template"]["spec"]["containers"]
    used |= {each["valueFrom"]["secretKeyRef"]["key"] for each in [*PROXY["env"], *store["env"]]}
    assert used == set(VALUES)
    for document in TO_FILL:
        for value in (document.get("stringData") or document["data"]).values():
            assert value == ""
    assert not {each["kind"] for each in DOCUMENTS} & {"Secret"}, "applying the folder would overwrite them"


def test_every_volume_is_made_and_mounted() -> None:
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    used = {mount["name"] for container in (PROXY, SHIPPER) for mount in container["volumeMounts"]}
    assert used == set(volumes)
    for volume in volumes.values():
        if "secret" in volume:
            of("Secret", volume["secret"]["secretName"])
        if "configMap" in volume:
            of("ConfigMap", volume["configMap"]["name"])


def test_the_audit_is_written_where_the_shipper_looks(config: Config) -> None:
    assert config.audit is not None
    program, path = SHIPPER["command"]
    assert str(config.audit.path).endswith(path)
    assert IMAGE.all("COPY")[-1].rest.split()[-1].endswith(f"/{program}")
    (at,) = [mount["mountPath"] for mount in SHIPPER["volumeMounts"]]
    assert str(Path(path).parent) == at == IMAGE.last("RUN").words[-1]
    assert SHIPPER["restartPolicy"] == "Always"
    assert SHIPPER["image"] == PROXY["image"]


def test_ports_go_by_the_same_names_everywhere(config: Config) -> None:
    assert config.admin is not None
    ports = {port["name"]: port["containerPort"] for port in PROXY["ports"]}
    assert ports == {"postgres": config.listen.port, "admin": config.admin.port}
    (port,) = of("Service")["spec"]["ports"]
    assert port["targetPort"] in ports
    probes = {name: PROXY[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"admin"}
    assert probes["readinessProbe"]["path"] == "/readyz"
    assert probes["livenessProbe"]["path"] == probes["startupProbe"]["path"] == "/healthz"


def test_a_pod_that_ends_has_the_time_to_drain(config: Config) -> None:
    before = int(PROXY["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert POD["terminationGracePeriodSeconds"] > before + config.limits.drain_timeout_ms / 1000 + 10


def test_labels_select_the_pods_of_the_deployment() -> None:
    labels = DEPLOYMENT["template"]["metadata"]["labels"]
    selectors = [
        DEPLOYMENT["selector"]["matchLabels"],
        of("Service")["spec"]["selector"],
        of("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert of("PodDisruptionBudget")["spec"]["minAvailable"] < DEPLOYMENT["replicas"]


def test_only_the_proxy_reaches_the_database(config: Config) -> None:
    policy = of("NetworkPolicy", "only-the-proxy")
    host, _, namespace = config.backend.host.partition(".")
    assert policy["metadata"]["namespace"] == namespace.partition(".")[0]
    assert policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == host
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    ((rule,),) = [policy["spec"]["ingress"]]
    ((peer,),) = [rule["from"]]
    assert peer["podSelector"]["matchLabels"] == DEPLOYMENT["selector"]["matchLabels"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "pgturnstile"}
    assert rule["ports"] == [{"protocol": "TCP", "port": config.backend.port}]


def test_the_proxy_reaches_the_database_and_names_and_is_reached_at_two_ports(config: Config) -> None:
    spec = of("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == ["postgres", "admin"]
    assert all(rule["from"] for rule in spec["ingress"])
    out = [port["port"] for rule in spec["egress"] for port in rule["ports"]]
    assert out == [config.backend.port, 6379, 53, 53]


def test_the_replicas_share_a_ledger_that_they_alone_reach(config: Config) -> None:
    assert DEPLOYMENT["replicas"] > 1
    (port,) = of("Service", "ledger")["spec"]["ports"]
    assert config.ledger.store == f"redis://ledger.pgturnstile.svc.cluster.local:{port['port']}/0"
    assert config.ledger.password == VALUES["ledger-password"]
    (store,) = LEDGER["template"]["spec"]["containers"]
    assert store["ports"] == [{"name": port["targetPort"], "containerPort": 6379}]
    assert store["env"] == [each for each in PROXY["env"] if each["name"] == "LEDGER_PASSWORD"]
    labels = LEDGER["template"]["metadata"]["labels"]
    policy = of("NetworkPolicy", "ledger")["spec"]
    assert labels == LEDGER["selector"]["matchLabels"] == of("Service", "ledger")["spec"]["selector"]
    assert labels == policy["podSelector"]["matchLabels"]
    assert policy["ingress"][0]["from"] == [{"podSelector": DEPLOYMENT["selector"]}]
    assert (policy["egress"], LEDGER["replicas"]) == ([], 1)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_the_store_takes_the_settings_that_it_is_given(tmp_path: Path) -> None:
    """By the same command, with Redis in Valkey's place, on a free port of loopback."""
    (store,) = LEDGER["template"]["spec"]["containers"]
    program, flag, script = store["command"]
    port, password = free_port(), VALUES["ledger-password"]
    script = script.replace("valkey-server -", f"redis-server - --port {port} --bind 127.0.0.1")
    with subprocess.Popen(
        [program, flag, script],
        env=os.environ | {"LEDGER_PASSWORD": password},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            client = redis.Redis(port=port, password=password)
            wait_for(lambda: answers(client))
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("save") == {"save": ""}
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(port=port).ping()
        finally:
            # The shell's child: only the server itself can be told to end.
            with contextlib.suppress(redis.RedisError):
                redis.Redis(port=port, password=password).shutdown(nosave=True)
            process.wait(10)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.parametrize(
    "container", [PROXY, SHIPPER, *LEDGER["template"]["spec"]["containers"]], ids=lambda each: each["name"]
)
def test_containers_have_nothing_to_spare(container: dict[str, Any]) -> None:
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]


def test_the_pod_runs_as_the_user_of_the_image() -> None:
    context = POD["securityContext"]
    assert context["runAsNonRoot"] is True
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == IMAGE.last("USER").rest
    assert context["fsGroup"] == context["runAsGroup"]
    assert POD["automountServiceAccountToken"] is False


def test_manifests_are_in_their_namespace() -> None:
    for document in [*DOCUMENTS, *TO_FILL]:
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] in ("pgturnstile", "database")


def test_a_key_that_stands_twice_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("a: 1\nb: {c: 1, c: 2}\n")
    assert yaml.safe_load(path.read_text())["b"] == {"c": 2}
    with pytest.raises(ValueError, match=r"\['c'\] more than once"):
        load_all(path)
