"""node-postgres through the proxy: one run of node_driver.js before each server, and what it saw."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import skip_or_fail
from tests.support.proxy import RunningProxy

SCRIPT = Path(__file__).with_name("node_driver.js")
Seen = dict[str, Any]


@pytest.fixture(scope="module")
def node() -> str:
    program = shutil.which("node")
    if program is None:
        skip_or_fail("Node is not installed.")
    assert program is not None
    probe = subprocess.run(
        [program, "-e", 'require("pg")'], capture_output=True, check=False, cwd=SCRIPT.parent
    )
    if probe.returncode:
        skip_or_fail("Node's pg is not installed (NODE_PATH).")
    return program


@pytest.fixture(scope="module")
def seen(node: str, gateway: RunningProxy) -> Seen:
    return run(node, gateway.parameters("writer"))


@pytest.fixture(scope="module")
def direct(node: str, gateway: RunningProxy) -> Seen:
    """The same reads without the proxy."""
    server = gateway.database.server
    role = {"user": "shop_ro", "password": server.passwords["shop_ro"], "dbname": gateway.database.name}
    return run(node, {"host": server.host, "port": server.port, **role}, "rows", "parameterised", "arrays")


def run(node: str, parameters: dict[str, Any], *only: str) -> Seen:
    given = {("database" if name == "dbname" else name): value for name, value in parameters.items()}
    command = [node, str(SCRIPT), json.dumps(given), *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("scenario", ["rows", "parameterised", "arrays"])
def test_rows_are_those_of_the_server(seen: Seen, direct: Seen, scenario: str) -> None:
    assert seen[scenario]
    assert seen[scenario] == direct[scenario]


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("named", [1, 2, 3, 4, 5]),
        ("transaction", {"refused": "42501", "aborted": "25P02", "left": 0}),
        ("queued", list(range(50))),
        ("queued with a refusal", [1, "42501", 1]),
        ("notice", [["NOTICE", "01000", "unbounded-join"]]),
        ("cursor-like", [7, 7, 1986]),
        ("pool", ["42501" if n % 4 == 3 else n for n in range(40)]),
    ],
)
def test_scenarios(seen: Seen, scenario: str, expected: object) -> None:
    assert seen[scenario] == expected


@pytest.mark.parametrize(
    ("way", "rule"),
    [
        ("simple", "delete-without-where"),
        ("extended", "tautology-predicate"),
        ("named", "delete-without-where"),
        ("again", "delete-without-where"),
    ],
)
def test_a_rejection_is_a_database_error(seen: Seen, way: str, rule: str) -> None:
    error = seen["refusals"][way]
    assert (error["name"], error["severity"], error["code"], error["routine"]) == (
        "error",
        "ERROR",
        "42501",
        rule,
    )
    assert json.loads(error["detail"])["rule"] == rule
    assert "Do not retry." in error["hint"]
    assert seen["refusals"]["after"] == {"ran": [{"one": 1}]}
