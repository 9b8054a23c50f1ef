"""EXPLAIN before forwarding: what is too dear never runs, and what is not cannot tell that it was priced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from tests.support.libpq import Agent, field, outcome, rows
from tests.support.postgres import Database, Server
from tests.support.proxy import READER, WRITER, RunningProxy, run_proxy
from tests.support.server_log import Step

COST = """
cost: {max_total_cost: 20000, max_rows: 100000, max_modified_rows: 50, unpriceable: reject}
"""
PRICED = READER.replace("name: reader", "name: priced") + COST
PRICED_WRITER = WRITER.replace("name: writer", "name: priced-writer") + COST

CROSS = "SELECT count(*) FROM order_items a, order_items b, products c"
DEAR_ABOVE = "SELECT count(*) FROM generate_series(1, $1::int) AS g"


@pytest.fixture(scope="module")
def priced(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """One proxy before each server; its tests read, or write rows of their own."""
    policies = {"priced": PRICED, "priced-writer": PRICED_WRITER}
    folder = tmp_path_factory.mktemp("priced")
    with postgres.database() as database, run_proxy(database, folder, policies) as running:
        yield running


@pytest.fixture
def database(priced: RunningProxy) -> Database:
    return priced.database


@pytest.fixture
def agent(priced: RunningProxy) -> Iterator[Agent]:
    with psycopg.connect(**priced.parameters("priced"), autocommit=True) as connection:
        yield Agent(connection)


@pytest.fixture
def writer(priced: RunningProxy) -> Iterator[Agent]:
    with psycopg.connect(**priced.parameters("priced-writer"), autocommit=True) as connection:
        yield Agent(connection)


both = pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])


def executed(database: Database) -> list[str]:
    return [
        r.statement for r in database.records() if r.step is Step.EXECUTE and "EXPLAIN" not in r.statement
    ]


def explained(database: Database) -> list[str]:
    return [r.statement for r in database.records() if r.step is Step.EXECUTE and "EXPLAIN" in r.statement]


@both
def test_too_dear_is_refused_before_it_runs(agent: Agent, database: Database, extended: bool) -> None:
    result = agent.run(CROSS, extended)
    assert field(result, "SQLSTATE") == "54001"
    assert field(result, "SOURCE_FUNCTION") == "cost-over-limit"
    detail = json.loads(field(result, "MESSAGE_DETAIL"))
    assert detail["cost"]["limit"] in ("max_total_cost", "max_rows")
    assert detail["cost"]["total"] > 20_000
    assert {lock["relation"] for lock in detail["cost"]["locks"]} == {"public.order_items", "public.products"}
    assert field(result, "MESSAGE_HINT")
    assert agent.status == "IDLE"
    assert rows(agent.run("SELECT 42", extended)) == [["42"]]
    assert CROSS not in executed(database)


@both
def test_the_price_is_not_to_be_seen(agent: Agent, database: Database, extended: bool) -> None:
    result = agent.run("SELECT count(*) FROM orders WHERE id <= 10", extended)
    assert rows(result) == [["10"]]
    assert explained(database)
    assert agent.status == "IDLE"


@both
def test_in_a_transaction_a_refusal_fails_it(agent: Agent, extended: bool) -> None:
    agent.run("BEGIN", extended)
    assert rows(agent.run("SELECT count(*) FROM orders WHERE id = 1", extended)) == [["1"]]
    assert agent.status == "INTRANS"
    assert field(agent.run(CROSS, extended), "SQLSTATE") == "54001"
    assert agent.status == "INERROR"
    assert field(agent.run("SELECT count(*) FROM orders", extended), "SQLSTATE") == "25P02"
    agent.run("ROLLBACK", extended)
    assert agent.status == "IDLE"


@pytest.mark.parametrize(("bound", "refused"), [("100", False), ("2000000000", True), ("100", False)])
def test_the_bound_value_decides(agent: Agent, bound: str, refused: bool) -> None:
    result = agent.run(DEAR_ABOVE, True, bound)
    assert (field(result, "SQLSTATE") == "54001") is refused
    if not refused:
        assert rows(result) == [[bound]]


@both
def test_an_error_of_explain_is_the_statements_own(agent: Agent, extended: bool) -> None:
    """Its position counts in the statement as sent, after characters of more than one byte too."""
    result = agent.run("SELECT 'é', nope FROM orders", extended)
    assert field(result, "SQLSTATE") == "42703"
    assert field(result, "STATEMENT_POSITION") == "13"
    assert agent.status == "IDLE"
    assert rows(agent.run("SELECT 1", extended)) == [["1"]]


def test_an_error_of_a_value_is_the_binds_own(agent: Agent) -> None:
    result = agent.run("SELECT count(*) FROM orders WHERE id = $1", True, "twelve")
    assert field(result, "SQLSTATE") == "22P02"
    assert field(result, "CONTEXT") == "unnamed portal parameter $1 = '...'"
    assert agent.status == "IDLE"


def test_named_and_unnamed_statements_are_left_as_they_were(agent: Agent) -> None:
    agent.pg.prepare(b"", b"SELECT 7 FROM orders WHERE id = 1")
    agent.pg.prepare(b"named", b"SELECT 8 FROM orders WHERE id = $1")
    for value in (b"1", b"2"):
        assert rows(agent.pg.exec_prepared(b"named", [value])) == [["8"]]
    assert rows(agent.pg.exec_prepared(b"", None)) == [["7"]]


def test_a_pipelined_rollback_does_not_hide_a_dear_statement(agent: Agent, database: Database) -> None:
    """The last status says failed when the dear SELECT arrives; it is priced all the same."""
    agent.run("BEGIN", False)
    assert field(agent.run("SELECT 1/0 FROM orders", False), "SQLSTATE") == "22012"
    pg = agent.pg
    pg.enter_pipeline_mode()
    pg.send_query_params(b"ROLLBACK", None)
    pg.send_query_params(CROSS.encode(), None)
    pg.pipeline_sync()
    states = []
    while True:
        result = pg.get_result()
        if result is None:
            continue
        states.append(field(result, "SQLSTATE"))
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            break
    pg.exit_pipeline_mode()
    assert "54001" in states
    assert CROSS not in executed(database)


def test_a_refused_middle_of_a_pipeline_leaves_no_trace(writer: Agent, database: Database) -> None:
    before = database.execute("SELECT count(*) FROM products")
    pg = writer.pg
    pg.enter_pipeline_mode()
    pg.send_query_params(b"INSERT INTO products (sku, name, category, price) VALUES ('x1','x','x',1)", None)
    pg.send_query_params(CROSS.encode(), None)
    pg.send_query_params(b"INSERT INTO products (sku, name, category, price) VALUES ('x2','x','x',1)", None)
    pg.pipeline_sync()
    found = []
    while True:
        result = pg.get_result()
        if result is None:
            continue
        found.append(pq.ExecStatus(result.status).name)
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            break
    pg.exit_pipeline_mode()
    assert found == ["COMMAND_OK", "FATAL_ERROR", "PIPELINE_ABORTED", "PIPELINE_SYNC"]
    assert writer.status == "IDLE"
    assert database.execute("SELECT count(*) FROM products") == before


def test_too_many_rows_to_change_are_refused_by_the_estimate(writer: Agent, database: Database) -> None:
    result = writer.run("UPDATE orders SET status = 'sent' WHERE id > 10", False)
    assert field(result, "SQLSTATE") == "54001"
    assert json.loads(field(result, "MESSAGE_DETAIL"))["cost"]["limit"] == "max_modified_rows"
    assert writer.status == "IDLE"
    assert writer.run("UPDATE orders SET status = 'sent' WHERE id = 10", True).command_tuples == 1


def test_a_price_that_cannot_change_is_asked_once(agent: Agent, database: Database) -> None:
    for _ in range(3):
        rows(agent.run("SELECT count(*) FROM orders WHERE id < 7", True))
    assert len([text for text in explained(database) if "id < 7" in text]) == 1
    for value in ("1", "2", "3"):
        rows(agent.run("SELECT count(*) FROM orders WHERE id < $1 + 1", True, value))
    assert len([text for text in explained(database) if "id < $1 + 1" in text]) == 3


def test_growth_is_refused_unasked(agent: Agent, database: Database) -> None:
    result = agent.run("SELECT repeat('x', 1000000000)", False)
    assert (field(result, "SQLSTATE"), field(result, "SOURCE_FUNCTION")) == ("54001", "unpriceable")
    assert not any("repeat" in text for text in explained(database) + executed(database))


def test_cursors_copies_and_prepared_statements_are_priced(agent: Agent, priced: RunningProxy) -> None:
    agent.run("BEGIN", False)
    declared = agent.run(f"DECLARE c CURSOR FOR {CROSS}", False)
    assert field(declared, "SQLSTATE") == "54001"
    agent.run("ROLLBACK", False)
    assert agent.run(f"PREPARE p AS {CROSS}", False).status == pq.ExecStatus.COMMAND_OK
    assert field(agent.run("EXECUTE p", False), "SQLSTATE") == "54001"
    with psycopg.connect(**priced.parameters("priced-writer"), autocommit=True) as connection:
        copied = connection.pgconn.exec_(f"COPY ({CROSS}) TO STDOUT".encode())
        assert field(copied, "SQLSTATE") == "54001"


DECLARE = "DECLARE c CURSOR FOR SELECT id FROM orders WHERE id < 4"


@both
def test_a_cursor_outside_a_transaction_is_postgresqls_to_refuse(agent: Agent, extended: bool) -> None:
    """Behind a question of ours in the same implicit transaction it would not be."""
    result = agent.run(DECLARE, extended)
    assert field(result, "SQLSTATE") == "25P01"
    assert agent.status == "IDLE"
    assert field(agent.run(f"DECLARE c CURSOR FOR {CROSS}", extended), "SQLSTATE") == "54001"
    agent.run("BEGIN", extended)
    assert agent.run(DECLARE, extended).status == pq.ExecStatus.COMMAND_OK
    assert rows(agent.run("FETCH ALL c", extended)) == [["1"], ["2"], ["3"]]
    agent.run("ROLLBACK", extended)
    assert agent.run(DECLARE.replace("FOR", "WITH HOLD FOR"), extended).status == pq.ExecStatus.COMMAND_OK
    assert rows(agent.run("FETCH ALL c", extended)) == [["1"], ["2"], ["3"]]
    assert agent.status == "IDLE"


@pytest.mark.parametrize(
    "statements",
    [
        [DECLARE],
        ["SELECT 1", DECLARE, "FETCH ALL c"],
        ["BEGIN", DECLARE, "SYNC", "FETCH ALL c"],
        ["SELECT nope FROM orders", DECLARE],
        [DECLARE.replace("id <", "nope <"), "SELECT 1"],
        ["BEGIN", "SELECT 1/0 FROM orders", "SYNC", DECLARE, "SYNC", "ROLLBACK"],
    ],
)
def test_a_cursor_in_a_pipeline_is_as_it_is_without_a_price(
    agent: Agent, priced: RunningProxy, statements: list[str]
) -> None:
    """Majors differ in what they take for a transaction: the server itself says what is right."""
    with psycopg.connect(priced.database.dsn(), autocommit=True) as connection:
        direct = Agent(connection)
        expected = [outcome(result) for result in direct.pipeline(statements)]
        assert [outcome(result) for result in agent.pipeline(statements)] == expected
        assert agent.status == direct.status


def test_what_runs_is_what_the_server_says_runs(database: Database, tmp_path: Path) -> None:
    sql = "SELECT query FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid()"
    policies = {"insider": PRICED.replace("filtered", '"on"').replace("name: priced", "name: insider")}
    with (
        run_proxy(database, tmp_path, policies) as running,
        psycopg.connect(make_conninfo(**running.parameters("insider")), autocommit=True) as connection,
    ):
        assert connection.execute(sql).fetchone() == (sql,)
        assert connection.pgconn.exec_(sql.encode()).get_value(0, 0) == sql.encode()


def test_the_audit_has_the_price(database: Database, tmp_path: Path) -> None:
    audit = {"path": str(tmp_path / "audit.jsonl"), "statements": "full"}
    with (
        run_proxy(database, tmp_path, {"priced": PRICED}, audit=audit) as running,
        psycopg.connect(**running.parameters("priced"), autocommit=True) as connection,
    ):
        connection.pgconn.exec_(b"SELECT count(*) FROM orders")
        connection.pgconn.exec_(CROSS.encode())
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    by_text = {line["statement"]: line for line in lines if "statement" in line}
    assert by_text["SELECT count(*) FROM orders"]["cost"]["limit"] is None
    assert by_text[CROSS]["cost"]["limit"] is not None
    assert by_text[CROSS]["outcome"]["sqlstate"] == "54001"


def test_asyncpg_may_learn_a_type(priced: RunningProxy, database: Database) -> None:
    """Its look-up of types is dearer than the policy allows, and no agent's to repair."""
    database.execute("CREATE TYPE mood AS ENUM ('calm', 'cross')")
    database.execute("CREATE TABLE feelings (id int PRIMARY KEY, mood mood)")
    database.execute("INSERT INTO feelings VALUES (1, 'calm')")
    database.execute("GRANT SELECT ON feelings TO shop_app")
    found = asyncio.run(learn(priced))
    assert found == "calm"


async def learn(priced: RunningProxy) -> object:
    given = priced.parameters("priced")
    database = given.pop("dbname")
    connection = await asyncpg.connect(**given, database=database, ssl=False)
    try:
        return await connection.fetchval("SELECT mood FROM feelings WHERE id = $1", 1)
    finally:
        await connection.close()
