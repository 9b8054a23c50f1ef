"""A database server that is restarted under its sessions: in each of PostgreSQL's modes, and after a crash.

Every session is told once and in words, whatever it was at; nothing that was not committed stays; the audit
has one line for each statement, which says what is known of it; and the proxy serves again by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proxy.audit_chain import verify
from proxy.wire import startup
from tests.support.postgres import Database, Server, run_server
from tests.support.proxy import RunningProxy, free_port, run_proxy, wait_for
from tests.support.restarts import RestartableEngine, Shutdown
from tests.support.wire import FLUSH, Client, Message, dial, kinds, parse, query, run, through

pytestmark = pytest.mark.slow

POLICY: Final = """
version: 1
name: restarted
access: read_write
statements: {select: allow, update: allow, transaction: allow}
relations: {allow: ["public.*"]}
functions: {allow: [builtin-safe, pg_catalog.pg_sleep]}
limits: {affected_rows: 100}
cost: {max_total_cost: 100000}
"""
SCHEMA: Final = """
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO stock VALUES (1, 1), (2, 1), (3, 1);
CREATE TABLE slow (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO slow VALUES (1, 1);
CREATE FUNCTION lagged() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_sleep(60); RETURN NEW; END';
CREATE TRIGGER lags BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION lagged();
GRANT SELECT, UPDATE ON stock, slow TO shop_app;
"""
ENDED: Final = [("FATAL", "57P01")]
"""What every session is told: by the server itself, or by the proxy for one that had no time to."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with run_server(18, kind=RestartableEngine) as server:
        yield server


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    with server.database() as database:
        database.execute(SCHEMA)
        yield database


@pytest.fixture
def proxy(database: Database, tmp_path: Path) -> Iterator[RunningProxy]:
    agents = {
        "restarted": {
            "auth": {"trust": "loopback"},
            "login": {"user": "shop_app", "password_env": "PASSWORD_SHOP_APP"},
            "policy": "restarted.yaml",
        }
    }
    audit = {"path": str(tmp_path / "audit.jsonl")}
    with run_proxy(
        database,
        tmp_path,
        {"restarted": POLICY},
        agents=agents,
        audit=audit,
        admin={"port": free_port()},
        limits={"startup_timeout": "3s"},
    ) as running:
        yield running


def engine(proxy: RunningProxy) -> RestartableEngine:
    found = proxy.database.server.engine
    assert isinstance(found, RestartableEngine)
    return found


@contextlib.contextmanager
def at_work(proxy: RunningProxy) -> Iterator[dict[str, Client]]:
    """A session in each of the states that a restart can meet."""
    with contextlib.ExitStack() as open_:
        names = ("idle", "in a transaction", "running", "in a pipeline", "holding a write")
        found = {name: open_.enter_context(through(proxy, "restarted")) for name in names}
        found["idle"].ask(query("SELECT 'idle'"))
        found["in a transaction"].ask(query("BEGIN"))
        found["in a transaction"].ask(query("UPDATE stock SET n = 2 WHERE id = 1"))
        found["running"].send(query("SELECT pg_sleep(60)"))
        found["in a pipeline"].send(run("UPDATE stock SET n = 2 WHERE id = 2"), parse("SELECT 1", "later"))
        found["in a pipeline"].send(run("SELECT pg_sleep(61)"), FLUSH)
        found["holding a write"].send(query("UPDATE slow SET n = 2 WHERE id = 1"))
        sleeping = (
            f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{proxy.database.name}'"
            " AND wait_event = 'PgSleep'"
        )
        wait_for(lambda: proxy.database.execute(sleeping) == [(3,)])
        yield found


def told(client: Client) -> list[tuple[str, str]]:
    """Severity and SQLSTATE of each error until the connection ends."""
    return [(m.fields["severity_plain"], m.sqlstate) for m in client.rest() if m.kind == "E"]


def ready(proxy: RunningProxy) -> tuple[bool, list[str]]:
    url = f"http://127.0.0.1:{proxy.config['admin']['port']}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            said = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        said = json.loads(error.read())
    return said["ready"], said["problems"]


def refusal(proxy: RunningProxy) -> Message:
    with dial(proxy.port) as sock:
        sock.sendall(startup.encode_startup({"user": "restarted", "database": proxy.database.name}))
        return Client(sock).rest()[-1]


def audited(proxy: RunningProxy) -> dict[str, tuple[str | None, bool]]:
    """SQLSTATE and certainty of each statement's outcome; no statement has two lines."""
    lines = [json.loads(text) for text in (proxy.folder / "audit.jsonl").read_text().splitlines()]
    found = {each["statement"]: each["outcome"] for each in lines}
    assert len(found) == len(lines)
    return {statement: (outcome["sqlstate"], outcome["known"]) for statement, outcome in found.items()}


DONE: Final = (None, True)
UNKNOWN: Final = (None, False)


@pytest.mark.parametrize("mode", [Shutdown.FAST, Shutdown.IMMEDIATE], ids=lambda mode: mode.name.lower())
def test_sessions_are_told_and_the_proxy_serves_again(proxy: RunningProxy, mode: Shutdown) -> None:
    with at_work(proxy) as sessions:
        engine(proxy).ask_to_end(mode)
        assert {name: told(client) for name, client in sessions.items()} == dict.fromkeys(sessions, ENDED)
        engine(proxy).wait_for_end()
    assert_away(proxy)
    engine(proxy).start_again()
    assert_nothing_happened(proxy)


def test_a_crash_of_one_backend_ends_all_sessions_in_words(proxy: RunningProxy) -> None:
    """PostgreSQL ends every session then and starts from its log, under the same postmaster."""
    with at_work(proxy) as sessions:
        os.kill(sessions["running"].pid, signal.SIGKILL)
        assert {name: told(client) for name, client in sessions.items()} == dict.fromkeys(sessions, ENDED)
    wait_for(lambda: serves(proxy))
    assert_nothing_happened(proxy)


def test_a_smart_shutdown_waits_for_the_sessions_and_takes_no_new_one(proxy: RunningProxy) -> None:
    """What runs goes on and is committed; the connection that reads the catalog does not keep the server."""
    with through(proxy, "restarted") as first, through(proxy, "restarted") as second:
        first.ask(query("BEGIN"))
        second.send(query("SELECT 5 FROM pg_sleep(1)"))
        engine(proxy).ask_to_end(Shutdown.SMART)
        refused = refusal(proxy)
        while refused.sqlstate != "57P03":
            refused = refusal(proxy)
        assert refused.fields["message"] == "the database system is shutting down"
        wait_for(lambda: ready(proxy) == (False, ["backend: the database system is shutting down"]))
        assert kinds(second.cycles()) == "TDCZ"
        first.ask(query("UPDATE stock SET n = 2 WHERE id = 3"))
        assert kinds(first.ask(query("COMMIT"))) == "CZ"
        assert not engine(proxy).has_ended
    engine(proxy).wait_for_end()
    assert_away(proxy)
    engine(proxy).start_again()
    assert_serves(proxy)
    assert proxy.database.execute("SELECT n FROM stock ORDER BY id") == [(1,), (1,), (2,)]


def test_a_server_that_hangs_is_no_server(proxy: RunningProxy) -> None:
    """Its kernel goes on accepting connections. Sessions that were there are not touched."""
    with through(proxy, "restarted") as client:
        try:
            os.kill(engine(proxy).pid, signal.SIGSTOP)
            assert refusal(proxy).fields["message"] == "the database server did not answer in time"
            wait_for(lambda: ready(proxy) == (False, ["backend: no answer in time"]))
            assert kinds(client.ask(query("SELECT 1"))) == "TDCZ"
        finally:
            os.kill(engine(proxy).pid, signal.SIGCONT)
        wait_for(lambda: ready(proxy) == (True, []))
    assert_serves(proxy)


def assert_away(proxy: RunningProxy) -> None:
    refused = refusal(proxy)
    assert (refused.sqlstate, refused.fields["message"]) == (
        "57P03",
        "the database server cannot be reached",
    )
    wait_for(lambda: ready(proxy) == (False, ["backend: the database server cannot be reached"]))


def serves(proxy: RunningProxy) -> bool:
    try:
        with through(proxy, "restarted") as client:
            return kinds(client.ask(query("SELECT 'again'"))) == "TDCZ"
    except (EOFError, OSError):
        return False


def assert_serves(proxy: RunningProxy) -> None:
    with through(proxy, "restarted") as client:
        assert kinds(client.ask(query("SELECT n FROM stock WHERE id = 1"))) == "TDCZ"
    wait_for(lambda: ready(proxy) == (True, []))


def assert_nothing_happened(proxy: RunningProxy) -> None:
    """Of what was under way nothing is left, and the audit says so."""
    assert_serves(proxy)
    assert proxy.database.execute("SELECT n FROM stock UNION ALL SELECT n FROM slow") == [(1,)] * 4
    statements = {
        "SELECT 'idle'": DONE,
        "BEGIN": DONE,
        "UPDATE stock SET n = 2 WHERE id = 1": DONE,
        "UPDATE stock SET n = 2 WHERE id = 2": DONE,
        "SELECT n FROM stock WHERE id = 1": DONE,
        "SELECT pg_sleep(60)": UNKNOWN,
        "SELECT pg_sleep(61)": UNKNOWN,
        "UPDATE slow SET n = 2 WHERE id = 1": UNKNOWN,
    }
    wait_for(lambda: statements.keys() <= audited(proxy).keys())
    found = audited(proxy)
    assert {each: found[each] for each in statements} == statements
    assert verify([proxy.folder / "audit.jsonl"]).holds
