"""Limits on what really happens: results that grow too long, writes of too many rows, and what stays."""

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
from tests.support.proxy import READER, WRITER, RunningProxy, run_proxy, wait_for

RESULT = "result-over-limit"
AFFECTED = "affected-rows-over-limit"
LIMITED = (
    READER.replace("name: reader", "name: limited").replace(
        "explain: allow", "explain: allow, copy_out: allow"
    )
).replace("limits: {", "limits: {result_rows: 10000, result_bytes: 1MiB, ")
BOUNDED = (
    WRITER.replace("name: writer", "name: bounded")
    + "multiple: judged\nlimits: {result_rows: 100, affected_rows: 10}\n"
)
RETURNING = WRITER.replace("name: writer", "name: returning") + "limits: {result_rows: 100}\n"
PRICED = (
    WRITER.replace("name: writer", "name: priced").replace("builtin-safe", "builtin-safe, public.slow_plan")
    + "cost: {max_total_cost: 100000}\n"
)
COUNTED = PRICED.replace("name: priced", "name: counted") + "limits: {affected_rows: 10}\n"
WATCHED = (WRITER.replace("name: writer", "name: watched") + "limits: {statement_timeout: 300ms}\n").replace(
    "builtin-safe", "builtin-safe, public.lift"
)
SCHEMA = """
CREATE FUNCTION slow_plan(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_catalog.pg_sleep(8); RETURN n; END $$;
CREATE TABLE things (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, owner int);
CREATE TABLE parts (id int PRIMARY KEY,
  thing int REFERENCES things ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE watched (id int PRIMARY KEY);
CREATE TABLE trail (id int);
CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.trail SELECT generate_series(1, 4); RETURN NULL; END $$;
CREATE TRIGGER follow AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION follow();
INSERT INTO things SELECT g FROM generate_series(1, 1000) g;
INSERT INTO parts SELECT g, 1 FROM generate_series(1, 50) g;
CREATE FUNCTION lift() RETURNS text LANGUAGE sql AS $$ SELECT set_config('statement_timeout', '0', false) $$;
GRANT ALL ON things, parts, watched, trail TO shop_app;
GRANT SELECT ON things TO shop_ro;
"""
MANY = "SELECT g FROM generate_series(1, 10001) AS g"
ENOUGH = "SELECT g FROM generate_series(1, 10000) AS g"


@pytest.fixture(scope="module")
def proxy(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("limits")
    policies = {
        "limited": LIMITED,
        "bounded": BOUNDED,
        "returning": RETURNING,
        "priced": PRICED,
        "watched": WATCHED,
        "counted": COUNTED,
    }
    audit = {"path": str(folder / "audit.jsonl"), "statements": "full"}
    with postgres.database() as database:
        database.execute(SCHEMA)
        with run_proxy(database, folder, policies, audit=audit) as running:
            yield running


@pytest.fixture
def database(proxy: RunningProxy) -> Database:
    return proxy.database


@pytest.fixture
def reader(proxy: RunningProxy) -> Iterator[Agent]:
    with psycopg.connect(**proxy.parameters("limited"), autocommit=True) as connection:
        yield Agent(connection)


@pytest.fixture
def writer(proxy: RunningProxy) -> Iterator[Agent]:
    with psycopg.connect(**proxy.parameters("bounded"), autocommit=True) as connection:
        yield Agent(connection)


both = pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])


def refused(result: PGresult, rule: str) -> None:
    assert field(result, "SQLSTATE") == "57014", outcome(result)
    assert field(result, "SOURCE_FUNCTION") == rule
    detail = json.loads(field(result, "MESSAGE_DETAIL"))
    assert (detail["decision"], detail["rule"]) == ("reject", rule)
    assert field(result, "MESSAGE_HINT")


def usable(agent: Agent) -> None:
    assert agent.status == "IDLE"
    for extended in (False, True):
        assert rows(agent.run("SELECT 42", extended)) == [["42"]]


def changed(database: Database) -> int:
    ((count,),) = database.execute("SELECT count(*) FROM things WHERE n <> 0 OR id > 1000")
    return int(count)


@pytest.fixture(autouse=True)
def clean(database: Database) -> Iterator[None]:
    yield
    locks = "SELECT count(*) FROM pg_locks WHERE relation IN ('things'::regclass, 'parts'::regclass)"
    assert database.execute(locks) == [(0,)]
    database.execute("DELETE FROM things WHERE id > 1000")
    database.execute("UPDATE things SET n = 0 WHERE n <> 0")
    database.execute("TRUNCATE watched, trail")


# --- results ---


@both
def test_the_row_over_the_limit_ends_the_result_in_an_error(reader: Agent, extended: bool) -> None:
    assert len(rows(reader.run(ENOUGH, extended))) == 10_000
    refused(reader.run(MANY, extended), RESULT)
    usable(reader)


@both
def test_an_endless_result_is_cancelled(reader: Agent, extended: bool) -> None:
    refused(reader.run("SELECT generate_series(1, 2000000000)", extended), RESULT)
    usable(reader)


@both
def test_bytes_count_as_well(reader: Agent, extended: bool) -> None:
    assert len(rows(reader.run("SELECT repeat('x', 1000000)", extended))) == 1
    refused(reader.run("SELECT repeat('x', 1100000)", extended), RESULT)
    refused(reader.run("SELECT repeat('x', 1000) FROM generate_series(1, 2000)", extended), RESULT)
    usable(reader)


@both
@pytest.mark.parametrize("count", [10_001, 3_000_000], ids=["just over", "far over"])
def test_in_a_transaction_it_fails_the_transaction(reader: Agent, count: int, extended: bool) -> None:
    reader.run("BEGIN", extended)
    refused(reader.run(f"SELECT generate_series(1, {count})", extended), RESULT)
    assert reader.status == "INERROR"
    assert outcome(reader.run("SELECT 1", extended)) == "25P02"
    reader.run("ROLLBACK", extended)
    usable(reader)


@both
def test_a_savepoint_undoes_the_failure(reader: Agent, extended: bool) -> None:
    reader.run("BEGIN", extended)
    reader.run("SAVEPOINT s", extended)
    refused(reader.run(MANY, extended), RESULT)
    reader.run("ROLLBACK TO s", extended)
    assert reader.status == "INTRANS"
    assert rows(reader.run("SELECT 1", extended)) == [["1"]]
    reader.run("COMMIT", extended)
    usable(reader)


def fetch_thrice(agent: Agent, size: int, extended: bool) -> list[str]:
    return [outcome(agent.run(f"FETCH {size} FROM c", extended)) for _ in range(3)]


@both
def test_fetches_of_a_cursor_add_up(reader: Agent, extended: bool) -> None:
    reader.run("BEGIN", extended)
    reader.run("DECLARE c CURSOR FOR SELECT g FROM generate_series(1, 30000) AS g", extended)
    assert fetch_thrice(reader, 5000, extended) == ["TUPLES_OK", "TUPLES_OK", "57014"]
    reader.run("ROLLBACK", extended)
    reader.run("BEGIN", extended)
    reader.run("DECLARE c CURSOR FOR SELECT g FROM generate_series(1, 30000) AS g", extended)
    assert fetch_thrice(reader, 3000, extended) == ["TUPLES_OK"] * 3
    reader.run("COMMIT", extended)
    usable(reader)


def test_copy_out_is_counted(reader: Agent) -> None:
    def copy(sql: str) -> tuple[int, PGresult]:
        assert reader.pg.exec_(sql.encode()).status == pq.ExecStatus.COPY_OUT
        lines = 0
        while reader.pg.get_copy_data(0)[0] > 0:
            lines += 1
        result = reader.pg.get_result()
        assert result is not None
        assert reader.pg.get_result() is None
        return lines, result

    for options, lines in (
        ("", 10_000),
        ("WITH (FORMAT csv, HEADER)", 10_001),
        ("WITH (FORMAT binary)", 10_001),
    ):
        found, result = copy(f"COPY ({ENOUGH}) TO STDOUT {options}")
        assert (found, outcome(result)) == (lines, "COMMAND_OK")
    found, result = copy(f"COPY ({MANY}) TO STDOUT")
    assert found == 10_000
    refused(result, RESULT)
    usable(reader)


def test_what_is_pipelined_behind_it_fails_with_it(reader: Agent) -> None:
    results = reader.pipeline(["SELECT 1", MANY, "SELECT 2", "SYNC", "SELECT 3"])
    assert [outcome(r) for r in results] == [
        "TUPLES_OK",
        "57014",
        "PIPELINE_ABORTED",
        "PIPELINE_SYNC",
        "TUPLES_OK",
        "PIPELINE_SYNC",
    ]
    usable(reader)


def test_what_its_pipeline_wrote_is_undone(writer: Agent, database: Database) -> None:
    update = "UPDATE things SET n = 1 WHERE id = 1"
    long = "SELECT g FROM generate_series(1, 101) AS g"
    for pipeline in ([update, long], [long, update], [update, long, update, "SYNC", "SELECT 1"]):
        results = writer.pipeline(pipeline)
        assert "57014" in [outcome(r) for r in results]
        assert changed(database) == 0
    results = writer.pipeline([update, "SELECT 1", update])
    assert [outcome(r) for r in results] == ["COMMAND_OK", "TUPLES_OK", "COMMAND_OK", "PIPELINE_SYNC"]
    assert changed(database) == 1


@both
def test_a_write_whose_result_is_too_long_is_undone(
    proxy: RunningProxy, database: Database, extended: bool
) -> None:
    with psycopg.connect(**proxy.parameters("returning"), autocommit=True) as connection:
        agent = Agent(connection)
        insert = "INSERT INTO things SELECT g FROM generate_series(1001, {}) g RETURNING id"
        refused(agent.run(insert.format(1101), extended), RESULT)
        usable(agent)
        assert changed(database) == 0
        assert len(rows(agent.run(insert.format(1100), extended))) == 100
        assert changed(database) == 100


# --- writes ---

WITHIN = {
    "update": "UPDATE things SET n = 1 WHERE id <= 10",
    "insert": "INSERT INTO things SELECT g FROM generate_series(1001, 1010) g",
    "returning": "UPDATE things SET n = 1 WHERE id <= 10 RETURNING id",
    "cte": "WITH w AS (UPDATE things SET n = 1 WHERE id <= 10 RETURNING 1) SELECT count(*) FROM w",
    "analyze": "EXPLAIN ANALYZE UPDATE things SET n = 1 WHERE id <= 10",
}
OVER = {
    "update": "UPDATE things SET n = 1 WHERE id <= 11",
    "delete": "DELETE FROM things WHERE id > 989",
    "insert": "INSERT INTO things SELECT g FROM generate_series(1001, 1011) g",
    "returning": "UPDATE things SET n = 1 WHERE id <= 11 RETURNING id",
    "cte": "WITH w AS (UPDATE things SET n = 1 WHERE id <= 11 RETURNING 1) SELECT count(*) FROM w",
    "cte beside": "WITH w AS (UPDATE things SET n = 1 WHERE id <= 10) UPDATE things SET n = 2 WHERE id = 20",
    "trigger": "INSERT INTO watched VALUES (1), (2), (3)",
    "cascade": "DELETE FROM things WHERE id = 1",
    "analyze": "EXPLAIN ANALYZE UPDATE things SET n = 1 WHERE id <= 11",
}


@both
@pytest.mark.parametrize("name", WITHIN)
def test_writes_within_the_limit_stay(writer: Agent, database: Database, name: str, extended: bool) -> None:
    result = writer.run(WITHIN[name], extended)
    assert outcome(result) in ("COMMAND_OK", "TUPLES_OK"), result.error_message
    if name == "update":
        assert result.command_status == b"UPDATE 10"
    usable(writer)
    assert changed(database) == 10


@both
@pytest.mark.parametrize("name", OVER)
def test_writes_over_the_limit_are_undone(
    writer: Agent, database: Database, name: str, extended: bool
) -> None:
    refused(writer.run(OVER[name], extended), AFFECTED)
    usable(writer)
    assert changed(database) == 0
    assert database.execute("SELECT (SELECT count(*) FROM things), (SELECT count(*) FROM trail)") == [
        (1000, 0)
    ]


@both
def test_each_statement_is_counted_by_itself(writer: Agent, database: Database, extended: bool) -> None:
    for first in (1, 11, 21):
        sql = f"UPDATE things SET n = 1 WHERE id BETWEEN {first} AND {first + 9}"
        assert outcome(writer.run(sql, extended)) == "COMMAND_OK"
    assert changed(database) == 30


@both
def test_over_the_limit_in_a_transaction(writer: Agent, database: Database, extended: bool) -> None:
    writer.run("BEGIN", extended)
    assert outcome(writer.run(WITHIN["update"], extended)) == "COMMAND_OK"
    assert writer.status == "INTRANS"
    writer.run("SAVEPOINT s", extended)
    refused(writer.run(OVER["insert"], extended), AFFECTED)
    assert writer.status == "INERROR"
    assert outcome(writer.run(WITHIN["update"], extended)) == "25P02"
    writer.run("ROLLBACK TO s", extended)
    assert writer.status == "INTRANS"
    assert outcome(writer.run(WITHIN["insert"], extended)) == "COMMAND_OK"
    writer.run("COMMIT", extended)
    usable(writer)
    assert changed(database) == 20


def test_a_refused_middle_of_a_pipeline_leaves_nothing(writer: Agent, database: Database) -> None:
    results = writer.pipeline([WITHIN["update"], OVER["insert"], "UPDATE things SET n = 3 WHERE id = 30"])
    assert [outcome(r) for r in results] == ["COMMAND_OK", "57014", "PIPELINE_ABORTED", "PIPELINE_SYNC"]
    usable(writer)
    assert changed(database) == 0


def test_a_pipeline_within_the_limit_stays_whole(writer: Agent, database: Database) -> None:
    update = "UPDATE things SET n = 1 WHERE id = {}"
    results = writer.pipeline([update.format(n) for n in range(1, 21)])
    assert [outcome(r) for r in results] == ["COMMAND_OK"] * 20 + ["PIPELINE_SYNC"]
    assert changed(database) == 20


@both
def test_a_deferred_constraint_fails_at_the_commit(writer: Agent, extended: bool) -> None:
    result = writer.run("INSERT INTO parts VALUES (1000, 4711)", extended)
    assert outcome(result) == "23503"
    usable(writer)
    writer.run("BEGIN", extended)
    assert outcome(writer.run("INSERT INTO parts VALUES (1000, 4711)", extended)) == "COMMAND_OK"
    assert outcome(writer.run("COMMIT", extended)) == "23503"
    usable(writer)


@both
def test_the_servers_own_errors_are_the_agents(writer: Agent, extended: bool) -> None:
    result = writer.run("INSERT INTO things VALUES (1)", extended)
    assert (outcome(result), field(result, "CONSTRAINT_NAME")) == ("23505", "things_pkey")
    usable(writer)
    result = writer.run("UPDATE things SET nope = 1 WHERE id = 1", extended)
    assert (outcome(result), field(result, "STATEMENT_POSITION")) == ("42703", "19")
    usable(writer)


def test_a_parameter_without_a_value_is_refused_as_postgresql_does(writer: Agent) -> None:
    assert outcome(writer.run("UPDATE things SET n = $1 WHERE id = 1", False)) == "42P02"
    usable(writer)


@both
def test_prepared_statements_are_counted_as_they_run(
    writer: Agent, database: Database, extended: bool
) -> None:
    writer.run("PREPARE p AS UPDATE things SET n = 1 WHERE id <= $1", extended)
    refused(writer.run("EXECUTE p(11)", extended), AFFECTED)
    assert changed(database) == 0
    assert writer.run("EXECUTE p(10)", extended).command_status == b"UPDATE 10"
    writer.pg.prepare(b"q", b"UPDATE things SET n = 1 WHERE id <= $1")
    refused(writer.pg.exec_prepared(b"q", [b"11"]), AFFECTED)
    assert outcome(writer.pg.exec_prepared(b"q", [b"9"])) == "COMMAND_OK"
    usable(writer)
    assert changed(database) == 10


def test_a_query_leaves_no_unnamed_statement(writer: Agent) -> None:
    writer.pg.prepare(b"", b"SELECT 7")
    writer.run(WITHIN["update"], False)
    assert outcome(writer.pg.exec_prepared(b"", None)) == "26000"
    usable(writer)


@pytest.mark.parametrize("within", ["", "BEGIN"], ids=["alone", "in a transaction"])
@pytest.mark.parametrize(
    "failing",
    [
        ("bounded", "UPDATE things SET n = 8 WHERE id < 500", "57014"),
        ("bounded", "UPDATE things SET n = 8 / (id - id) WHERE id < 500", "22012"),
        ("bounded", "UPDATE things SET n = 8 WHERE id < 1 / 0", "22012"),
        ("priced", "UPDATE things SET n = 8 WHERE id < 1 / 0", "22012"),
        ("counted", "UPDATE things SET n = 8 WHERE id < 500", "57014"),
        ("counted", "UPDATE things SET n = 8 WHERE 1 / (id - id) = 1", "22012"),
    ],
)
def test_nor_does_one_that_failed(
    proxy: RunningProxy, database: Database, failing: tuple[str, str, str], within: str
) -> None:
    """Else the agent's Bind of what it prepared would run what was refused, and be told for the former."""
    agent, query, sqlstate = failing
    with psycopg.connect(**proxy.parameters(agent), autocommit=True) as connection:
        pgconn = connection.pgconn
        if within:
            connection.execute(within.encode())
        assert pgconn.prepare(b"", b"SELECT 7").status == pq.ExecStatus.COMMAND_OK
        assert outcome(pgconn.exec_(query.encode())) == sqlstate
        if within:
            pgconn.exec_(b"ROLLBACK")
        for _ in range(2):
            assert outcome(pgconn.exec_prepared(b"", None)) == "26000"
        assert outcome(pgconn.describe_prepared(b"")) == "26000"
        assert connection.info.transaction_status is pq.TransactionStatus.IDLE
    assert changed(database) == 0


@pytest.mark.parametrize("forgetting", [b"DEALLOCATE ALL", b"DISCARD ALL"])
def test_the_unnamed_statement_outlives_what_drops_all_others(
    writer: Agent, database: Database, forgetting: bytes
) -> None:
    assert writer.pg.prepare(b"s", forgetting).status == pq.ExecStatus.COMMAND_OK
    assert (
        writer.pg.prepare(b"", b"UPDATE things SET n = 8 WHERE id < 500").status == pq.ExecStatus.COMMAND_OK
    )
    assert outcome(writer.pg.exec_prepared(b"s", None)) == "COMMAND_OK"
    refused(writer.pg.exec_prepared(b"", None), AFFECTED)
    usable(writer)
    assert changed(database) == 0


def copy_in(agent: Agent, extended: bool, count: int) -> PGresult:
    started = agent.run("COPY things (id) FROM STDIN", extended)
    assert started.status == pq.ExecStatus.COPY_IN, started.error_message
    for n in range(count):
        agent.pg.put_copy_data(f"{2000 + n}\n".encode())
    agent.pg.put_copy_end(None)
    result = agent.pg.get_result()
    assert result is not None
    assert agent.pg.get_result() is None
    return result


@both
def test_copy_in_is_counted_before_it_is_committed(writer: Agent, database: Database, extended: bool) -> None:
    assert copy_in(writer, extended, 10).command_status == b"COPY 10"
    usable(writer)
    assert changed(database) == 10
    assert outcome(copy_in(writer, extended, 5)) == "23505"
    usable(writer)
    database.execute("DELETE FROM things WHERE id > 1000")
    refused(copy_in(writer, extended, 11), AFFECTED)
    usable(writer)
    assert changed(database) == 0


def test_a_copy_that_the_agent_gives_up_is_no_surprise(writer: Agent, database: Database) -> None:
    writer.run("COPY things (id) FROM STDIN", False)
    writer.pg.put_copy_data(b"2000\n")
    writer.pg.put_copy_end(b"no more")
    result = writer.pg.get_result()
    assert result is not None
    assert outcome(result) == "57014"
    assert writer.pg.get_result() is None
    usable(writer)
    assert changed(database) == 0


def test_a_string_of_several_statements_must_not_write(writer: Agent, database: Database) -> None:
    assert outcome(writer.run("SELECT 1; SELECT 2", False)) == "TUPLES_OK"
    result = writer.run(f"{WITHIN['update']}; SELECT 1", False)
    assert field(result, "SOURCE_FUNCTION") == "multiple-statements"
    usable(writer)
    assert changed(database) == 0


def test_portals_fetched_in_parts_add_up_and_write_once(proxy: RunningProxy, database: Database) -> None:
    """By server-side cursors of asyncpg's kind: Execute with a row limit, again and again."""

    async def play() -> list[int]:
        connection = await asyncpg.connect(
            host="127.0.0.1",
            port=proxy.port,
            user="limited",
            password=proxy.parameters("limited")["password"],
            database=database.name,
        )
        seen = []
        try:
            async with connection.transaction():
                cursor = await connection.cursor("SELECT g FROM generate_series(1, 20000) AS g")
                for _ in range(4):
                    seen.append(len(await cursor.fetch(4000)))
        except asyncpg.QueryCanceledError as error:
            assert RESULT in str(error.as_dict().get("server_source_function"))
        assert await connection.fetchval("SELECT 42") == 42
        await connection.close()
        return seen

    assert asyncio.run(play()) == [4000, 4000]


def test_the_audit_has_one_line_for_a_statement_that_went_over(
    proxy: RunningProxy, reader: Agent, writer: Agent
) -> None:
    long = "SELECT g AS audited FROM generate_series(1, 10002) AS g"
    refused(reader.run(long, False), RESULT)
    wide = "UPDATE things SET n = 5 WHERE id <= 12"
    refused(writer.run(wide, True), AFFECTED)
    narrow = "UPDATE things SET n = 5 WHERE id <= 3"
    writer.run(narrow, False)
    usable(writer)
    audit = proxy.folder / "audit.jsonl"
    wait_for(lambda: narrow in audit.read_text())
    lines = [json.loads(line) for line in audit.read_text().splitlines()]

    def told(sql: str) -> list[tuple[str, str | None, str | None, str | None]]:
        return [
            (line["decision"], line["rule"], line["outcome"]["sqlstate"], line["outcome"]["command_tag"])
            for line in lines
            if line.get("statement") == sql
        ]

    assert told(long) == [("reject", RESULT, "57014", None)]
    assert told(wide) == [("reject", AFFECTED, "57014", "UPDATE 12")]
    assert told(narrow) == [("allow", None, None, "UPDATE 3")]


# --- time ---


@both
def test_a_statement_that_cannot_be_planned_in_time_is_unpriceable(
    proxy: RunningProxy, database: Database, extended: bool
) -> None:
    sql = "SELECT id FROM things WHERE id = slow_plan(7)"
    with psycopg.connect(**proxy.parameters("priced"), autocommit=True) as connection:
        agent = Agent(connection)
        for transaction in (False, True):
            if transaction:
                agent.run("BEGIN", extended)
            result = agent.run(sql, extended)
            assert (outcome(result), field(result, "SOURCE_FUNCTION")) == ("54001", "unpriceable")
            assert agent.status == ("INERROR" if transaction else "IDLE")
        assert outcome(agent.run("SELECT 1", extended)) == "25P02"
        agent.run("ROLLBACK", extended)
        usable(agent)
    assert sql not in database.executed()


def test_what_outlasts_the_servers_own_timeout_is_cancelled(proxy: RunningProxy) -> None:
    with psycopg.connect(**proxy.parameters("watched"), autocommit=True) as connection:
        agent = Agent(connection)
        assert field(agent.run("SELECT pg_sleep(8)", False), "MESSAGE_PRIMARY").endswith("statement timeout")
        assert rows(agent.run("SELECT lift()", False)) == [["0"]]
        for extended in (False, True):
            result = agent.run("SELECT pg_sleep(8)", extended)
            assert outcome(result) == "57014"
            assert field(result, "MESSAGE_PRIMARY").endswith("user request")
            usable(agent)
