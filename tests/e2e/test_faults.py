"""What breaks while a statement is under way, and what is known afterwards.

After each fault: the agent is told once and in words, the audit line says what became of the statement or
that nobody knows, the database is as it must be, no backend of the proxy's is left, and others are served.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.audit_chain import verify
from proxy.wire import startup
from proxy.wire.backend import close_message
from tests.support.line import Line, failing_line
from tests.support.postgres import Database, Server
from tests.support.proxy import RunningProxy, run_proxy, wait_for
from tests.support.wire import SYNC, Client, Message, bind, execute, kinds, parse, query, through

COUNTED = """
version: 1
name: counted
access: read_write
statements: {select: allow, update: {decide: allow, repair: once}, insert: allow, transaction: allow}
relations: {allow: ["public.*"]}
functions: {allow: [builtin-safe, public.planned, pg_catalog.pg_sleep]}
limits: {affected_rows: 100, statement_timeout: 60s}
cost: {max_total_cost: 100000}
"""
SCHEMA = """
CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO stock VALUES (1, 1), (2, 2), (3, 3);
CREATE TABLE slow (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO slow VALUES (1, 1);
CREATE FUNCTION lagged() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_sleep(30); RETURN NEW; END';
CREATE TRIGGER lags BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION lagged();
CREATE FUNCTION planned() RETURNS int LANGUAGE plpgsql IMMUTABLE AS
  'BEGIN PERFORM pg_sleep(30); RETURN 1; END';
GRANT SELECT, INSERT, UPDATE ON stock, slow TO shop_app, shop_ro;
"""
FORGETS = close_message(b"S", b"") + close_message(b"P", b"")
"""What the proxy sends once a held Query may be committed; its Sync follows."""


@pytest.fixture(scope="module")
def faulty(
    postgres18: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningProxy, Line]]:
    folder = tmp_path_factory.mktemp("faulty")
    with (
        postgres18.database() as database,
        failing_line(postgres18.host, postgres18.port) as line,
    ):
        database.execute(SCHEMA)
        with run_proxy(
            database,
            folder,
            {"counted": COUNTED},
            backend={"host": "127.0.0.1", "port": line.port},
            audit={"path": str(folder / "audit.jsonl")},
            agents={
                "counted": {
                    "auth": {"trust": "loopback"},
                    "login": {"user": "shop_app", "password_env": "PASSWORD_SHOP_APP"},
                    "policy": "counted.yaml",
                }
            },
        ) as running:
            yield running, line


@pytest.fixture
def proxy(faulty: tuple[RunningProxy, Line]) -> Iterator[RunningProxy]:
    """The proxy; after the test nobody's backend is left, and it serves."""
    proxy, _ = faulty
    yield proxy
    assert_serves(proxy)
    wait_for(lambda: backends(proxy.database) == [], within_s=15)


@pytest.fixture
def line(faulty: tuple[RunningProxy, Line]) -> Line:
    return faulty[1]


@contextlib.contextmanager
def agent(proxy: RunningProxy) -> Iterator[Client]:
    with through(proxy, "counted") as client:
        yield client


def assert_serves(proxy: RunningProxy) -> None:
    with agent(proxy) as other:
        assert kinds(other.ask(query("SELECT 1"))) == "TDCZ"


def backends(database: Database, state: str = "") -> list[int]:
    """Process ids of the agents' sessions, whoever reads the catalog left out."""
    rows = database.execute(
        f"SELECT pid FROM pg_stat_activity WHERE datname = '{database.name}' AND usename = 'shop_app'"
        f" AND application_name <> 'pgturnstile catalog' {state}"
    )
    return [pid for (pid,) in rows]


def sleeps(proxy: RunningProxy) -> None:
    wait_for(lambda: bool(backends(proxy.database, "AND wait_event = 'PgSleep'")), within_s=15)


def told(messages: list[Message]) -> list[tuple[str, str]]:
    """Severity and SQLSTATE of each error, of which there must be nothing else."""
    assert set(kinds(messages)) <= {"E"}, messages
    return [(m.fields["severity_plain"], m.sqlstate) for m in messages]


def audited(proxy: RunningProxy, statement: str) -> dict[str, Any]:
    """The one audit line of ``statement``."""
    path = proxy.folder / "audit.jsonl"

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
        return [each for each in lines if each["statement"] == statement]

    wait_for(lambda: bool(found()), within_s=15)
    (entry,) = found()
    return entry


def known(entry: dict[str, Any]) -> tuple[str | None, str | None, bool]:
    outcome = entry["outcome"]
    return outcome["command_tag"], outcome["sqlstate"], outcome["known"]


PLANNED = "SELECT n FROM stock WHERE id = planned()"
EXTENDED = (parse(PLANNED + " AND n > 0") + bind() + execute() + SYNC, PLANNED + " AND n > 0")


@pytest.mark.parametrize("sent", [(query(PLANNED), PLANNED), EXTENDED], ids=["simple", "extended"])
def test_the_backend_is_ended_during_our_explain(proxy: RunningProxy, sent: tuple[bytes, str]) -> None:
    """Planning runs the IMMUTABLE function: the statement itself has never begun."""
    messages, statement = sent
    with agent(proxy) as client:
        client.send(messages)
        sleeps(proxy)
        proxy.database.execute(f"SELECT pg_terminate_backend({client.pid})")
        assert told(client.rest()[-1:]) == [("FATAL", "57P01")]
    entry = audited(proxy, statement)
    assert (entry["decision"], entry["outcome"]["known"]) == ("allow", False)
    assert statement not in proxy.database.executed("shop_app")


HELD = "UPDATE slow SET n = n + 1 WHERE id = 1"


def test_the_backend_is_ended_while_a_write_is_held(proxy: RunningProxy) -> None:
    with agent(proxy) as client:
        client.send(query(HELD))
        sleeps(proxy)
        proxy.database.execute(f"SELECT pg_terminate_backend({client.pid})")
        assert told(client.rest()) == [("FATAL", "57P01")]
    assert known(audited(proxy, HELD))[2] is False
    assert proxy.database.execute("SELECT n FROM slow") == [(1,)]


@pytest.mark.parametrize(("answered", "after"), [(False, 1), (True, 11)], ids=["before", "behind"])
def test_the_line_is_cut_at_the_commit_of_a_held_write(
    proxy: RunningProxy, line: Line, answered: bool, after: int
) -> None:
    """The one moment at which nobody on this side can know: the agent and the audit are told just that."""
    statement = f"UPDATE stock SET n = n + 10 WHERE id = {1 + answered}"
    with agent(proxy) as client:
        line.cut_at(FORGETS, answered=answered)
        client.send(query(statement))
        assert line.reached.wait(15)
        assert told(client.rest()) == [("FATAL", "57P01")]
    tag, sqlstate, certain = known(audited(proxy, statement))
    assert (tag, sqlstate, certain) == ("UPDATE 1", None, False)
    wait_for(lambda: backends(proxy.database) == [])
    assert proxy.database.execute(f"SELECT n FROM stock WHERE id = {1 + answered}") == [(after + answered,)]


def test_the_line_is_cut_in_a_transaction(proxy: RunningProxy, line: Line) -> None:
    with agent(proxy) as client:
        for sql in ("BEGIN", "UPDATE stock SET n = 99 WHERE id = 3"):
            client.ask(query(sql))
        line.cut()
        assert told(client.rest()) == [("FATAL", "57P01")]
    wait_for(lambda: backends(proxy.database) == [])
    proxy.database.execute("SET lock_timeout = '2s'; UPDATE stock SET n = n WHERE id = 3")
    assert proxy.database.execute("SELECT n FROM stock WHERE id = 3") == [(3,)]


def test_a_server_that_is_away_is_there_again_without_a_restart(proxy: RunningProxy, line: Line) -> None:
    """Connections end in words, new ones are refused in words; then both the sessions and the catalog are
    back by themselves."""
    with agent(proxy) as first, agent(proxy) as second:
        second.ask(query("BEGIN"))
        line.down()
        assert told(first.rest()) == told(second.rest()) == [("FATAL", "57P01")]
    with socket.create_connection(("127.0.0.1", proxy.port), 15) as sock:
        refused = refusal(sock, proxy)
    assert (refused.sqlstate, refused.fields["message"]) == (
        "57P03",
        "the database server cannot be reached",
    )
    logged = proxy.logged("connection refused", sqlstate="57P03")
    assert "refused" in logged[-1]["reason"].removeprefix("the database server cannot be reached")
    line.up()
    with agent(proxy) as again:
        (row,) = [m for m in again.ask(query("SELECT n FROM stock WHERE id = 3")) if m.kind == "D"]
        assert row.body.endswith(b"3")


def refusal(sock: socket.socket, proxy: RunningProxy) -> Message:
    sock.sendall(startup.encode_startup({"user": "counted", "database": proxy.database.name}))
    return Client(sock).rest()[-1]


def test_the_catalogs_connection_is_lost_and_back(proxy: RunningProxy) -> None:
    def reader() -> list[int]:
        rows = proxy.database.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgturnstile catalog'"
            f" AND datname = '{proxy.database.name}'"
        )
        return [pid for (pid,) in rows]

    with agent(proxy) as client:
        wait_for(lambda: bool(reader()), within_s=30)
        (before,) = reader()
        proxy.database.execute(f"SELECT pg_terminate_backend({before})")
        assert kinds(client.ask(query("SELECT n FROM stock WHERE id = 1"))) == "TDCZ"
        proxy.database.execute("CREATE TABLE newer (id int); GRANT SELECT ON newer TO shop_app")
        # What is refused for what the catalog lacks asks it again first.
        assert kinds(client.ask(query("SELECT id FROM newer"))) == "TCZ"
        wait_for(lambda: bool(reader()) and reader() != [before], within_s=30)


def test_a_server_that_vanishes_without_a_word_does_not_keep_the_agents_locks(
    proxy: RunningProxy, line: Line
) -> None:
    """The proxy's half: an agent that leaves is not waited for because the server says nothing."""
    with agent(proxy) as client:
        line.silence_at(b"SELECT 'vanished'")
        client.send(query("SELECT 'vanished'"))
        assert line.reached.wait(15)
        assert client.quiet()
        assert_serves(proxy)
        client.cut()
    entry = audited(proxy, "SELECT 'vanished'")
    assert known(entry) == (None, None, False)
    line.cut()


# --- the proxy itself ---


def test_a_proxy_killed_under_load_has_every_line_but_the_last_moments(
    postgres18: Server, tmp_path: Path
) -> None:
    """Lines are written a few hundredths of a second after the answer (proxy/audit.py): of a statement that
    was answered a second before the kill the line is on the file, whole and linked, and the next proxy goes
    on with the same chain."""
    audit = {"path": str(tmp_path / "audit.jsonl")}
    shop, path = postgres18.shop, Path(audit["path"])
    answered: list[int] = []
    with run_proxy(shop, tmp_path, audit=audit) as proxy:
        ready = threading.Event()

        def work() -> None:
            with contextlib.suppress(psycopg.Error):
                parameters = proxy.parameters("trusted", None)
                with psycopg.connect(**parameters, autocommit=True) as connection:
                    while True:
                        connection.execute(f"SELECT {len(answered)}".encode())
                        answered.append(len(answered))
                        if len(answered) == 200:
                            ready.set()

        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(60)
        certain = len(answered)
        wait_for(lambda: path.read_bytes().count(b"\n") >= certain, within_s=1.0)
        proxy.process.kill()
        proxy.process.wait()
        thread.join(30)
    lines = path.read_text().splitlines()
    whole = [json.loads(text)["statement"] for text in lines]
    assert whole == [f"SELECT {n}" for n in range(len(whole))]
    assert len(answered) + 1 >= len(whole) >= certain
    with (
        run_proxy(shop, tmp_path, audit=audit) as proxy,
        psycopg.connect(**proxy.parameters("trusted", None), autocommit=True) as connection,
    ):
        connection.execute("SELECT 'after'")
    assert verify([path]).holds
    wait_for(lambda: leftovers(shop) == [])


def leftovers(database: Database) -> list[tuple[Any, ...]]:
    return database.execute(
        f"SELECT pid FROM pg_stat_activity WHERE datname = '{database.name}' AND usename = 'shop_ro'"
    )
