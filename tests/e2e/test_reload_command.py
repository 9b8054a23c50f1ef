"""``pgturnstile reload``, SIGHUP, watched files: all is taken or nothing, and told where one looks."""

from __future__ import annotations

import json
import signal
import stat
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

from proxy.cli import main
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, free_port, run_proxy, wait_for

POLICY: Final = """
version: 1
name: changing
access: read_write
statements: {select: allow}
relations: {allow: [public.RELATION]}
functions: {allow: [builtin-safe]}
rules: {unbounded-select: "off"}
tests:
  - {sql: SELECT id FROM orders, expect: EXPECT}
"""
ORDERS: Final = POLICY.replace("RELATION", "orders").replace("EXPECT", "allow")
CUSTOMERS: Final = POLICY.replace("RELATION", "customers").replace("EXPECT", "reject")
UNTRUE: Final = POLICY.replace("RELATION", "customers").replace("EXPECT", "allow")


@pytest.fixture(scope="module")
def proxy(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("reload")
    admin = {"host": "127.0.0.1", "port": free_port()}
    with (
        postgres.database() as database,
        run_proxy(database, folder, {"changing": ORDERS}, control="control.sock", admin=admin) as proxy,
    ):
        yield proxy


@pytest.fixture
def connection(proxy: RunningProxy) -> Iterator[psycopg.Connection[Any]]:
    """One that is there before anything is changed."""
    write(proxy, ORDERS)
    assert reload(proxy) == 0
    with psycopg.connect(**proxy.parameters("changing"), autocommit=True) as connection:
        connection.execute("SELECT id FROM orders")
        yield connection


def write(proxy: RunningProxy, text: str, name: str = "changing.yaml") -> None:
    (proxy.folder / name).write_text(text)


def reload(proxy: RunningProxy) -> int:
    return main(["reload", "--config", str(proxy.folder / "pgturnstile.yaml")])


def refuses(connection: psycopg.Connection[Any], table: str) -> bool:
    try:
        connection.execute(f"SELECT id FROM {table}".encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def readiness(proxy: RunningProxy) -> Any:
    port = proxy.config["admin"]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
        return json.load(answer)


def test_a_reload_that_is_taken(
    proxy: RunningProxy, connection: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write(proxy, CUSTOMERS)
    capsys.readouterr()
    assert reload(proxy) == 0
    assert capsys.readouterr().out == "reloaded\n"
    assert refuses(connection, "orders")
    assert not refuses(connection, "customers")


class Refused(NamedTuple):
    """A file, what is written to it, and a part of the reason."""

    name: str
    text: str
    reason: str


REFUSED: Final = {
    "a policy that is none": Refused("changing.yaml", "version: 2", "changing.yaml:1:10: version"),
    "a test that does not hold": Refused("changing.yaml", UNTRUE, "expect expected allow, found reject"),
    "a test beside that does not hold": Refused(
        "changing.tests.yaml",
        "version: 1\ntests: [{name: own, sql: SELECT id FROM orders, expect: reject}]",
        "changing.tests.yaml:2: test fails: own: expect expected reject, found allow",
    ),
    "a file of tests that is none": Refused("changing.tests.yaml", "tests: 1", "changing.tests.yaml"),
    "a dump that is not there": Refused(
        "changing.tests.yaml",
        "version: 1\ncatalog: none.json\ntests: [{sql: SELECT id FROM orders, expect: allow}]",
        "catalog that its tests name cannot be read",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_reload_that_is_refused_changes_nothing_and_says_why(
    proxy: RunningProxy,
    connection: psycopg.Connection[Any],
    capsys: pytest.CaptureFixture[str],
    case: Refused,
) -> None:
    name, text, reason = case
    before = (proxy.folder / name).read_text() if (proxy.folder / name).exists() else None
    write(proxy, text, name)
    capsys.readouterr()
    try:
        assert reload(proxy) == 1
        told = capsys.readouterr().out
        assert told.startswith("not reloaded")
        assert reason in told
        assert reason in proxy.logged("reload failed; the old configuration stays")[-1]["error"]
        assert reason in json.dumps(readiness(proxy))
        assert not refuses(connection, "orders")
    finally:
        if before is None:
            (proxy.folder / name).unlink()
        else:
            write(proxy, before, name)
    assert reload(proxy) == 0
    assert reason not in json.dumps(readiness(proxy))


def test_the_socket_is_its_owners_alone(proxy: RunningProxy) -> None:
    assert stat.S_IMODE((proxy.folder / "control.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("version: 1\n", "names no control socket"),
        ("control: nobody.sock\nunknown: 1\n", "No proxy answers at"),
        ("control: [", "expected"),
    ],
)
def test_nobody_to_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, said: str) -> None:
    path = tmp_path / "pgturnstile.yaml"
    path.write_text(config)
    assert main(["reload", "--config", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_the_newest_process_has_the_socket(
    proxy: RunningProxy, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """Whoever ends later takes only its own name away."""
    socket = proxy.folder / "control.sock"
    first = socket.stat().st_ino
    with run_proxy(proxy.database, tmp_path, {"changing": CUSTOMERS}, control=str(socket)) as second:
        assert socket.stat().st_ino != first
        assert reload(second) == 0
        assert second.logged("configuration reloaded")
    assert not socket.exists()
    # Without a socket there is still the signal.
    write(proxy, CUSTOMERS)
    seen = len(proxy.logged("configuration reloaded"))
    proxy.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(proxy.logged("configuration reloaded")) > seen)
    assert refuses(connection, "orders")


# --- watched files ---

BASE: Final = ORDERS.replace("name: changing\n", "name: base\n")
EXTENDS: Final = "version: 1\nname: changing\nextends: base.yaml\n"


@pytest.fixture(scope="module")
def watched(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "base.yaml").write_text(BASE)
    with (
        postgres.database() as database,
        run_proxy(database, folder, {"changing": EXTENDS}, arguments=["--watch"]) as proxy,
    ):
        yield proxy


def replaced(path: Path, text: str) -> None:
    """As editors and deployments do."""
    successor = path.with_suffix(".new")
    successor.write_text(text)
    successor.replace(path)


@pytest.mark.parametrize("put", [Path.write_text, replaced], ids=["written", "replaced"])
def test_files_that_change_are_taken(watched: RunningProxy, put: Callable[[Path, str], object]) -> None:
    base = watched.folder / "base.yaml"
    with psycopg.connect(**watched.parameters("changing"), autocommit=True) as connection:
        assert not refuses(connection, "orders")
        put(
            base, BASE.replace("public.orders", "public.customers").replace("expect: allow", "expect: reject")
        )
        wait_for(lambda: refuses(connection, "orders"))
        failed = len(watched.log())
        put(base, "version: 2")
        wait_for(lambda: any("reload failed" in entry["event"] for entry in watched.log()[failed:]))
        assert not refuses(connection, "customers")
        put(base, BASE)
        wait_for(lambda: not refuses(connection, "orders"))


def test_a_file_whose_absence_was_the_fault_is_waited_for(watched: RunningProxy) -> None:
    own, other = watched.folder / "changing.yaml", watched.folder / "other.yaml"
    with psycopg.connect(**watched.parameters("changing"), autocommit=True) as connection:
        seen = len(watched.log())
        own.write_text(EXTENDS.replace("base.yaml", "other.yaml"))
        wait_for(lambda: any("reload failed" in entry["event"] for entry in watched.log()[seen:]))
        other.write_text(CUSTOMERS.replace("name: changing\n", "name: base\n"))
        wait_for(lambda: refuses(connection, "orders"))
        own.write_text(EXTENDS)
        wait_for(lambda: not refuses(connection, "orders"))
