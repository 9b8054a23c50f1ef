"""Rows counted before a write runs: what would go over the limit never does, and nothing else tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest
from psycopg import pq
from psycopg.pq.abc import PGresult

from tests.support.libpq import Agent, field, outcome, rows
from tests.support.postgres import Database, Server
from tests.support.proxy import WRITER, RunningProxy, run_proxy, wait_for

AFFECTED = "affected-rows-over-limit"
COUNTED = (
    WRITER.replace("name: writer", "name: counted").replace("builtin-safe", "builtin-safe, public.says")
    + "cost: {max_total_cost: 100000}\nlimits: {affected_rows: 10}\n"
)
SCHEMA = """
CREATE TABLE jobs (id int PRIMARY KEY, state text NOT NULL, tries numeric NOT NULL DEFAULT 0, seen json);
INSERT INTO jobs SELECT g, CASE WHEN g <= 5 THEN 'few' ELSE 'many' END FROM generate_series(1, 500) g;
CREATE SEQUENCE trail;
CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
  $$ BEGIN PERFORM nextval('public.trail'); RETURN NULL; END $$;
CREATE TRIGGER follow AFTER UPDATE OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION follow();
CREATE FUNCTION says(n int) RETURNS bool STABLE LANGUAGE plpgsql AS
  $$ BEGIN RAISE NOTICE 'looked at %', n; RETURN n < 3; END $$;
CREATE TABLE skipped (id int PRIMARY KEY, state text);
INSERT INTO skipped SELECT g, 'x' FROM generate_series(1, 50) g;
CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN RETURN CASE WHEN NEW.id = 7 THEN NEW END; END $$;
CREATE TRIGGER skip BEFORE UPDATE ON skipped FOR EACH ROW EXECUTE FUNCTION skip();
CREATE TABLE owned (id int PRIMARY KEY, state text, writable bool);
INSERT INTO owned SELECT g, 'x', g = 1 FROM generate_series(1, 50) g;
ALTER TABLE owned ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads ON owned FOR SELECT USING (true);
CREATE POLICY writes ON owned FOR UPDATE USING (writable);
CREATE TABLE blind (id int PRIMARY KEY, state text);
INSERT INTO blind SELECT g, 'x' FROM generate_series(1, 50) g;
GRANT ALL ON jobs, skipped, owned TO shop_app;
GRANT UPDATE, SELECT (id) ON blind TO shop_app;
"""

both = pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])


@pytest.fixture(scope="module")
def proxy(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("counted")
    audit = {"path": str(folder / "audit.jsonl"), "statements": "full"}
    with postgres.database() as database:
        database.execute(SCHEMA)
        with run_proxy(database, folder, {"counted": COUNTED}, audit=audit) as running:
            yield running


@pytest.fixture
def database(proxy: RunningProxy) -> Database:
    return proxy.database


@pytest.fixture
def agent(proxy: RunningProxy) -> Iterator[Agent]:
    with psycopg.connect(**proxy.parameters("counted"), autocommit=True) as connection:
        yield Agent(connection)


def traces(database: Database) -> int:
    """How often a row trigger ran, in whatever transaction: no rollback takes that back."""
    ((moved,),) = database.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM trail")
    return int(moved)


def ran(database: Database, *words: str) -> list[str]:
    """The statements executed that begin with one of ``words``."""
    return [text for text in database.executed() if text.startswith(words)]


def foreseen(result: PGresult) -> None:
    assert (field(result, "SQLSTATE"), field(result, "SOURCE_FUNCTION")) == ("57014", AFFECTED), outcome(
        result
    )
    assert field(result, "MESSAGE_PRIMARY").startswith("The statement would write more than 10 rows")
    detail = json.loads(field(result, "MESSAGE_DETAIL"))
    assert detail["rule"] == AFFECTED
    assert (detail["cost"]["limit"], detail["cost"]["ceiling"]) == ("affected_rows", 10)
    assert {lock["relation"] for lock in detail["cost"]["locks"]} == {"public.jobs"}


def usable(agent: Agent) -> None:
    assert agent.status == "IDLE"
    for extended in (False, True):
        assert rows(agent.run("SELECT 42", extended)) == [["42"]]


WRITES = [
    "UPDATE jobs SET tries = tries + 1 WHERE upper(state) = '{}'",
    "DELETE FROM jobs AS j WHERE upper(j.state) || '' = '{}' RETURNING j.id",
    "UPDATE ONLY public.jobs SET state = 'WHERE' WHERE upper(state) LIKE '{}' -- all of them",
]


@both
@pytest.mark.parametrize("sql", WRITES)
def test_what_would_write_too_much_never_runs(
    agent: Agent, database: Database, sql: str, extended: bool
) -> None:
    before, moved = len(ran(database, "UPDATE", "DELETE")), traces(database)
    foreseen(agent.run(sql.format("MANY"), extended))
    assert len(ran(database, "UPDATE", "DELETE")) == before
    assert traces(database) == moved
    usable(agent)


@both
@pytest.mark.parametrize("sql", WRITES)
def test_what_writes_little_runs_once(agent: Agent, database: Database, sql: str, extended: bool) -> None:
    before, moved = len(ran(database, "UPDATE", "DELETE")), traces(database)
    agent.run("BEGIN", extended)
    assert agent.run(sql.format("FEW"), extended).command_tuples == 5
    assert agent.status == "INTRANS"
    agent.run("ROLLBACK", extended)
    assert len(ran(database, "UPDATE", "DELETE")) == before + 1
    assert traces(database) == moved + 5
    usable(agent)


@both
def test_in_a_transaction_the_refusal_fails_it_to_the_savepoint(agent: Agent, extended: bool) -> None:
    agent.run("BEGIN", extended)
    agent.run("SAVEPOINT s", extended)
    foreseen(agent.run(WRITES[0].format("MANY"), extended))
    assert agent.status == "INERROR"
    assert field(agent.run("SELECT 1 FROM jobs", extended), "SQLSTATE") == "25P02"
    agent.run("ROLLBACK TO s", extended)
    assert agent.status == "INTRANS"
    agent.run("ROLLBACK", extended)
    usable(agent)


def test_the_same_text_by_its_value(agent: Agent, database: Database) -> None:
    """Three rows and five hundred with the same text: the value decides, and a prepared one too."""
    sql = "UPDATE jobs SET state = state, tries = $1, seen = $3 WHERE id <= $2"
    agent.pg.prepare(b"named", sql.encode())
    for wanted, refused in ((b"3", False), (b"500", True), (b"10", False), (b"11", True)):
        before = len(ran(database, "UPDATE"))
        for result in (
            agent.pg.exec_prepared(b"named", [b"1.5", wanted, b"{}"]),
            agent.run(sql, True, "1.5", wanted.decode(), "{}"),
        ):
            if refused:
                foreseen(result)
            else:
                assert result.command_tuples == int(wanted)
        assert len(ran(database, "UPDATE")) == before + (0 if refused else 2)
    usable(agent)


def test_parameters_whose_types_nobody_told_are_left_to_the_run(agent: Agent, database: Database) -> None:
    """The count cannot tell what $1 is; the write itself is still undone above the limit."""
    sql = "UPDATE jobs SET tries = tries + $1 WHERE id <= $2"
    assert agent.run(sql, True, "0", "5").command_tuples == 5
    before = database.execute("SELECT sum(tries) FROM jobs")
    result = agent.run(sql, True, "1", "400")
    assert (field(result, "SQLSTATE"), field(result, "SOURCE_FUNCTION")) == ("57014", AFFECTED)
    assert "wrote 400 rows" in field(result, "MESSAGE_PRIMARY")
    assert database.execute("SELECT sum(tries) FROM jobs") == before
    typed = agent.pg.exec_params(sql.encode(), [b"1", b"400"], [1700, 23])
    foreseen(typed)
    usable(agent)


def test_a_driver_that_binds_binary_values(proxy: RunningProxy, database: Database) -> None:
    async def talk() -> list[object]:
        given = proxy.parameters("counted")
        name = given.pop("dbname")
        connection = await asyncpg.connect(**given, database=name, ssl=False)
        said: list[object] = []
        try:
            for sql, values in (
                ("UPDATE jobs SET state = $1 WHERE id <= $2 AND state = ANY($3)", ("few", 4, ["few"])),
                (
                    "UPDATE jobs SET state = $1 WHERE id <= $2 AND state = ANY($3)",
                    ("few", 400, ["few", "many"]),
                ),
                ("SELECT count(*) FROM jobs WHERE state = 'few'", ()),
            ):
                try:
                    said.append(
                        await connection.fetch(sql, *values)
                        if not values
                        else await connection.execute(sql, *values)
                    )
                except asyncpg.PostgresError as error:
                    said.append((error.sqlstate, error.message.split(";")[0]))
        finally:
            await connection.close()
        return said

    updated, refused, counted = asyncio.run(talk())
    assert updated == "UPDATE 4"
    assert refused == ("57014", "The statement would write more than 10 rows, the limit")
    assert counted == [(5,)]


def test_in_a_pipeline_what_stands_before_it_is_undone(agent: Agent, database: Database) -> None:
    moved = database.execute("SELECT sum(tries) FROM jobs")
    pg = agent.pg
    pg.enter_pipeline_mode()
    pg.send_query_params(b"UPDATE jobs SET tries = 9 WHERE id = 1", None)
    pg.send_query_params(WRITES[0].format("MANY").encode(), None)
    pg.send_query_params(b"UPDATE jobs SET tries = 9 WHERE id = 2", None)
    pg.pipeline_sync()
    states = []
    while not states or states[-1] != "PIPELINE_SYNC":
        result = pg.get_result()
        if result is not None:
            states.append(pq.ExecStatus(result.status).name)
    pg.exit_pipeline_mode()
    assert states == ["COMMAND_OK", "FATAL_ERROR", "PIPELINE_ABORTED", "PIPELINE_SYNC"]
    assert database.execute("SELECT sum(tries) FROM jobs") == moved
    usable(agent)


@both
def test_its_own_errors_are_the_statements(agent: Agent, extended: bool) -> None:
    for status in ("IDLE", "INTRANS"):
        if status == "INTRANS":
            agent.run("BEGIN", extended)
        result = agent.run("UPDATE jobs SET tries = 0 WHERE 1 / (id - id) > 0", extended)
        assert field(result, "SQLSTATE") == "22012"
        assert field(result, "STATEMENT_POSITION") == ""
    assert agent.status == "INERROR"
    agent.run("ROLLBACK", extended)
    usable(agent)


@both
def test_notices_are_heard_once(agent: Agent, extended: bool) -> None:
    heard: list[str] = []
    agent.pg.notice_handler = lambda notice: heard.append(field(notice, "MESSAGE_PRIMARY"))
    result = agent.run("UPDATE jobs SET tries = 0 WHERE id BETWEEN 2 AND 4 AND says(id)", extended)
    assert result.command_tuples == 1
    assert sorted(heard) == ["looked at 2", "looked at 3", "looked at 4"]


@both
@pytest.mark.parametrize(
    ("sql", "written"),
    [
        ("UPDATE skipped SET state = 'y' WHERE id > 0", 1),
        ("UPDATE owned SET state = 'y' WHERE id > 0", 1),
        ("UPDATE blind SET state = 'y' WHERE 1 = 1 AND id < 4", 3),
        ("UPDATE jobs SET state = state WHERE id IN (SELECT id FROM jobs WHERE id < 4)", 3),
    ],
)
def test_what_a_count_would_get_wrong_is_not_refused(
    agent: Agent, sql: str, written: int, extended: bool
) -> None:
    assert agent.run(sql, extended).command_tuples == written


def test_a_warm_look_up_by_key_asks_nothing(agent: Agent, database: Database) -> None:
    sql = "UPDATE jobs SET tries = tries WHERE id = $1"
    agent.run(sql, True, "1")
    before = len(ran(database, "EXPLAIN", "SELECT pg_catalog.count"))
    for value in ("2", "3", "4"):
        assert agent.run(sql, True, value).command_tuples == 1
    assert len(ran(database, "EXPLAIN", "SELECT pg_catalog.count")) == before


def test_the_audit_has_one_line_of_it(agent: Agent, proxy: RunningProxy) -> None:
    sql = "UPDATE jobs SET tries = 77 WHERE upper(state) = 'MANY'"
    agent.run(sql, True)
    path = proxy.folder / "audit.jsonl"
    wait_for(lambda: sql in path.read_text())
    (line,) = [json.loads(each) for each in path.read_text().splitlines() if sql in each]
    assert (line["decision"], line["rule"], line["outcome"]["sqlstate"]) == ("reject", AFFECTED, "57014")
    assert line["cost"]["total"] > 0
