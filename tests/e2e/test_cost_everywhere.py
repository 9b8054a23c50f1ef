"""Every statement that is planned is priced, however it is sent; and the server's log says what ran.

One table of statements by one of deliveries. Each statement is cheap for one value and dear for another: the
cheap one runs once as it was sent, the dear one never.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator
from typing import Final

import psycopg
import pytest
from psycopg import pq
from psycopg.pq.abc import PGresult

from tests.support.libpq import Agent, field, outcome, rows
from tests.support.postgres import Database, Server
from tests.support.proxy import WRITER, RunningProxy, run_proxy

POLICY: Final = (
    WRITER.replace("name: writer", "name: everywhere")
    .replace("lock: allow", "lock: allow, merge: allow, ddl: allow")
    .replace("builtin-safe", "builtin-safe, public.dice, public.bump, public.twice")
    + "rules: {unbounded-join: 'off'}\n"
    + "cost: {max_total_cost: 20000, max_rows: 100000, max_scan_rows: 20000, max_modified_rows: 1000}\n"
)
SCHEMA: Final = """
CREATE TABLE skew (k int NOT NULL);
INSERT INTO skew SELECT g FROM generate_series(1, 3000) g;
CREATE TABLE sink (k int NOT NULL);
INSERT INTO sink SELECT g FROM generate_series(1, 10) g;
CREATE TABLE big (id int PRIMARY KEY, k int NOT NULL);
INSERT INTO big SELECT g, CASE WHEN g <= 3 THEN 0 ELSE 1 END FROM generate_series(1, 30003) g;
CREATE INDEX ON big (k);
CREATE TABLE parted (k int NOT NULL, note text) PARTITION BY RANGE (k);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (15001);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (15001) TO (30001);
INSERT INTO parted SELECT g, 'x' FROM generate_series(1, 30000) g;
CREATE FUNCTION dice(n int) RETURNS SETOF int VOLATILE LANGUAGE sql AS $$ SELECT generate_series(1, n) $$;
CREATE SEQUENCE bumps;
CREATE FUNCTION bump(n int) RETURNS int VOLATILE SECURITY DEFINER LANGUAGE sql AS
  $$ SELECT n FROM nextval('public.bumps') $$;
CREATE FUNCTION twice(n int) RETURNS int IMMUTABLE LANGUAGE sql AS $$ SELECT 2 * n $$;
CREATE OPERATOR @^ (FUNCTION = bump, RIGHTARG = int);
GRANT ALL ON skew, sink, big, parted TO shop_app;
GRANT CREATE ON SCHEMA public TO shop_app;
ANALYZE;
"""
OVER: Final = "cost-over-limit"
MARKS: Final = itertools.count()
both = pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
PAIRS: Final = "FROM skew a, skew b WHERE a.k < {v} AND b.k < {v}"
CHEAP, DEAR = 2, 2500

STATEMENTS: Final = {
    "select": f"SELECT count(*) {PAIRS}",
    "values": f"VALUES ((SELECT count(*) {PAIRS}))",
    "insert": f"INSERT INTO sink SELECT a.k {PAIRS} AND a.k + b.k = 0",
    "update": f"UPDATE sink SET k = k WHERE k IN (SELECT a.k * b.k {PAIRS})",
    "delete": "DELETE FROM sink USING skew a, skew b WHERE sink.k < 0 AND a.k < {v} AND b.k < {v} "
    "AND a.k <> b.k",
    "merge": f"MERGE INTO sink USING (SELECT a.k * b.k AS k {PAIRS}) q ON sink.k = q.k "
    "WHEN MATCHED THEN DO NOTHING",
    "cte": f"WITH w AS (INSERT INTO sink SELECT 1 WHERE false RETURNING k) SELECT count(*) {PAIRS}",
    "declare": f"DECLARE c CURSOR WITH HOLD FOR SELECT a.k {PAIRS}",
    "explain": f"EXPLAIN ANALYZE SELECT a.k {PAIRS}",
    "create": f"CREATE TABLE {{name}} AS SELECT a.k {PAIRS}",
    "execute": "EXECUTE pairs({v})",
    "copy": f"COPY (SELECT a.k {PAIRS}) TO STDOUT",
}
WITHOUT_PARAMETERS: Final = {"copy", "execute"}
"""Statements to which PostgreSQL gives no parameters."""
NOT_PIPELINED: Final = {"copy"}
"""Statements that libpq keeps out of pipelines."""


@pytest.fixture(scope="module")
def proxy(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("everywhere")
    with postgres.database() as database:
        database.execute(SCHEMA)
        with run_proxy(database, folder, {"everywhere": POLICY}) as running:
            yield running


Delivery = Callable[[Agent, str, int], PGresult]
"""Sends a statement, with ``{v}`` where its value goes if it takes one, and returns its result."""


def parts(sql: str, value: int, spelt: str = "$1::int") -> tuple[bytes, list[bytes] | None]:
    """The text and the parameters of a statement sent by the extended protocol."""
    return sql.replace("{v}", spelt).encode(), [str(value).encode()] if "{v}" in sql else None


def copied(agent: Agent, result: PGresult) -> PGresult:
    """The outcome of a COPY, whose rows come one by one before it."""
    if result.status != pq.ExecStatus.COPY_OUT:
        return result
    while agent.pg.get_copy_data(0)[0] > 0:
        pass
    last = agent.pg.get_result()
    assert last is not None
    assert agent.pg.get_result() is None
    return last


def simply(agent: Agent, sql: str, value: int) -> PGresult:
    return copied(agent, agent.pg.exec_(sql.replace("{v}", str(value)).encode()))


def unnamed(agent: Agent, sql: str, value: int) -> PGresult:
    return copied(agent, agent.pg.exec_params(*parts(sql, value)))


def binary(agent: Agent, sql: str, value: int) -> PGresult:
    text, given = parts(sql, value, "$1")
    sent = None if given is None else [struct.pack("!i", value)]
    types, formats = ([23], [1]) if given else (None, None)
    return copied(agent, agent.pg.exec_params(text, sent, types, formats, result_format=1))


def named(agent: Agent, sql: str, value: int) -> PGresult:
    name = f"s{value}".encode()
    text, given = parts(sql, value)
    agent.pg.prepare(name, text)
    return copied(agent, agent.pg.exec_prepared(name, given))


def pipelined(agent: Agent, sql: str, value: int) -> PGresult:
    pg = agent.pg
    pg.enter_pipeline_mode()
    pg.send_query_params(b"SELECT 1", None)
    pg.send_query_params(*parts(sql, value))
    pg.send_query_params(b"SELECT 2", None)
    pg.pipeline_sync()
    results: list[PGresult] = []
    while not results or outcome(results[-1]) != "PIPELINE_SYNC":
        result = pg.get_result()
        if result is not None:
            results.append(result)
    pg.exit_pipeline_mode()
    assert outcome(results[0]) == "TUPLES_OK"
    assert (outcome(results[2]) == "PIPELINE_ABORTED") is (field(results[1], "SQLSTATE") != "")
    return results[1]


def within(opening: list[str], delivery: Delivery) -> Delivery:
    """The same in a transaction, which is rolled back."""

    def deliver(agent: Agent, sql: str, value: int) -> PGresult:
        for each in opening:
            agent.run(each, extended=False)
        result = delivery(agent, sql, value)
        failed = field(result, "SQLSTATE") != ""
        assert agent.status == ("INERROR" if failed else "INTRANS")
        if "SAVEPOINT s" in opening:
            agent.run("ROLLBACK TO s", extended=False)
            assert agent.status == "INTRANS"
            assert rows(agent.run("SELECT count(*) FROM sink", extended=True)) == [["10"]]
        agent.run("ROLLBACK", extended=False)
        return result

    return deliver


DELIVERIES: Final[dict[str, Delivery]] = {
    "simple": simply,
    "unnamed": unnamed,
    "binary": binary,
    "named": named,
    "pipelined": pipelined,
    "in a transaction": within(["BEGIN"], simply),
    "in a savepoint": within(["BEGIN", "SAVEPOINT s"], unnamed),
    "prepared in a savepoint": within(["BEGIN ISOLATION LEVEL REPEATABLE READ", "SAVEPOINT s"], named),
}


def written(kind: str, value: int, name: str) -> str:
    """The statement of that kind; ``name`` is the table it makes, if it makes one."""
    sql = STATEMENTS[kind].replace("{name}", name)
    return sql.replace("{v}", str(value)) if kind in WITHOUT_PARAMETERS else sql


def ran(database: Database, mark: str) -> int:
    return sum(mark in text and "EXPLAIN (FORMAT JSON" not in text for text in database.executed())


@pytest.mark.parametrize("kind", STATEMENTS)
def test_each_statement_by_each_delivery(proxy: RunningProxy, kind: str) -> None:
    marks: dict[str, tuple[str, str]] = {}
    for number, (way, deliver) in enumerate(DELIVERIES.items()):
        if kind in NOT_PIPELINED and deliver is pipelined:
            continue
        cheap, dear = (f"/* {kind} {number} {word} */" for word in ("cheap", "dear"))
        with psycopg.connect(**proxy.parameters("everywhere"), autocommit=True) as connection:
            agent = Agent(connection)
            agent.run(f"PREPARE pairs (int) AS {STATEMENTS['select'].replace('{v}', '$1')}", False)
            result = deliver(agent, f"{written(kind, CHEAP, f'made_{number}')} {cheap}", CHEAP)
            assert field(result, "SQLSTATE") == "", (way, field(result, "MESSAGE_PRIMARY"))
            assert agent.status == "IDLE"
            agent.run("CLOSE ALL", False)
            result = deliver(agent, f"{written(kind, DEAR, 'dear')} {dear}", DEAR)
            assert field(result, "SQLSTATE") == "54001", (way, outcome(result))
            assert field(result, "SOURCE_FUNCTION") == OVER
            assert agent.status == "IDLE"
            assert rows(agent.run("SELECT count(*) FROM sink", True)) == [["10"]]
        marks[way] = (cheap, dear)
    found = {
        way: (ran(proxy.database, cheap), ran(proxy.database, dear)) for way, (cheap, dear) in marks.items()
    }
    assert found == dict.fromkeys(marks, (1, 0))


LIMIT_HIDES = "SELECT a.k FROM skew a JOIN skew b ON a.k <> b.k ORDER BY a.k + b.k LIMIT 5"
SAME_TEXT = "UPDATE big SET k = k WHERE k = $1"


@both
@pytest.mark.parametrize(
    ("sql", "values", "rule", "limit"),
    [
        (LIMIT_HIDES, (), OVER, "max_total_cost"),
        ("SELECT a.k FROM skew a JOIN skew b ON a.k <> b.k LIMIT 5", (), None, None),
        ("SELECT count(*) FROM skew a CROSS JOIN skew b", (), OVER, "max_total_cost"),
        ("SELECT 1 FROM (SELECT DISTINCT a.k FROM skew a, skew b LIMIT 1) q", (), OVER, "max_total_cost"),
        ("TABLE big", (), OVER, "max_scan_rows"),
        ("SELECT * FROM big LIMIT 3", (), None, None),
        ("SELECT k FROM big WHERE id = $1", ("7",), None, None),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT i FROM n", (),
         "unpriceable", None),
        ("SELECT count(*) FROM dice(3)", (), "unpriceable", None),
        ("SELECT dice(3)", (), "unpriceable", None),
        ("SELECT count(*) FROM generate_series(1, $1::int)", ("900",), None, None),
        ("SELECT count(*) FROM generate_series(1, $1::int)", ("900000",), OVER, "max_rows"),
        ("SELECT count(*) FROM parted WHERE k = $1", ("20000",), None, None),
        ("SELECT count(*) FROM parted WHERE k >= $1", ("15001",), None, None),
        ("SELECT count(*) FROM parted WHERE k > $1", ("100",), OVER, "max_scan_rows"),
        (SAME_TEXT, ("0",), None, None),
        (SAME_TEXT, ("1",), OVER, "max_modified_rows"),
        ("UPDATE big SET k = k WHERE id <= $1", ("3",), None, None),
        ("UPDATE big SET k = k WHERE id <= $1", ("30000",), OVER, "max_modified_rows"),
        ("INSERT INTO sink SELECT k FROM big WHERE id <= $1 AND false", ("30000",), None, None),
    ],
)  # fmt: skip
def test_what_a_plan_hides_and_what_a_value_decides(  # noqa: PLR0917 - a table's row
    proxy: RunningProxy,
    sql: str,
    values: tuple[str, ...],
    rule: str | None,
    limit: str | None,
    extended: bool,
) -> None:
    mark = f"/* {next(MARKS)} */"
    for number, value in enumerate(values, 1):
        sql = sql if extended else sql.replace(f"${number}", value)
    with psycopg.connect(**proxy.parameters("everywhere"), autocommit=True) as connection:
        agent = Agent(connection)
        result = agent.run(f"{sql} {mark}", extended, *(values if extended else ()))
        assert field(result, "SOURCE_FUNCTION") == (rule or ""), field(result, "MESSAGE_PRIMARY")
        assert field(result, "SQLSTATE") == ("54001" if rule else "")
        assert agent.status == "IDLE"
    if rule == OVER:
        assert json.loads(field(result, "MESSAGE_DETAIL"))["cost"]["limit"] == limit
    assert ran(proxy.database, mark) == (0 if rule else 1)


@both
@pytest.mark.parametrize(
    ("run", "blamed"),
    [
        ("EXECUTE one(bump(7))", "bump"),
        ("EXECUTE one(1 + twice(bump(3)))", "bump"),
        ("EXECUTE one(@^ 7)", "@^"),
        ("CREATE TABLE made AS EXECUTE one(bump(7))", "bump"),
        ("EXPLAIN ANALYZE EXECUTE one(bump(7))", "bump"),
        ("EXECUTE one(twice(3) + abs(-1) * '1'::int)", None),
        ("EXECUTE one(date_part('year', now())::int)", None),
        ("EXPLAIN ANALYZE EXECUTE one(twice(3))", None),
    ],
)
def test_arguments_of_execute_do_not_run_to_be_priced(
    proxy: RunningProxy, run: str, blamed: str | None, extended: bool
) -> None:
    """EXPLAIN EXECUTE evaluates them (EvaluateParams in prepare.c)."""
    before = proxy.database.execute("SELECT last_value, is_called FROM bumps")
    with psycopg.connect(**proxy.parameters("everywhere"), autocommit=True) as connection:
        agent = Agent(connection)
        agent.run("PREPARE one (int) AS SELECT id FROM big WHERE id = $1", False)
        result = agent.run(run, extended)
        assert field(result, "SOURCE_FUNCTION") == ("unpriceable" if blamed else "")
        assert field(result, "SQLSTATE") == ("54001" if blamed else "")
        if blamed:
            assert field(result, "STATEMENT_POSITION") == str(run.index(blamed) + 1)
            assert "bump is an argument of EXECUTE" in field(result, "MESSAGE_PRIMARY")
            assert "Call bump in the statement that is prepared" in field(result, "MESSAGE_HINT")
        assert agent.status == "IDLE"
    assert proxy.database.execute("SELECT last_value, is_called FROM bumps") == before
