"""What psycopg 3 does beyond statements: pipelines, prepared statements, cursors, COPY, cancelling."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors, pq
from psycopg.rows import class_row, dict_row, namedtuple_row

from tests.support.proxy import RunningProxy, wait_for

Connection = psycopg.Connection[tuple[Any, ...]]
REFUSED = "DELETE FROM orders"
STATUS = pq.TransactionStatus


@pytest.fixture
def connection(gateway: RunningProxy) -> Iterator[Connection]:
    with psycopg.connect(**gateway.parameters("writer"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def insider(gateway: RunningProxy) -> Iterator[Connection]:
    """Of an agent that may see all catalogs."""
    with psycopg.connect(**gateway.parameters("insider"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def direct(gateway: RunningProxy) -> Iterator[Connection]:
    with psycopg.connect(gateway.database.dsn("shop_app"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def table(gateway: RunningProxy) -> Iterator[str]:
    """A table of the test's own."""
    gateway.database.execute("CREATE TABLE scratch (id int PRIMARY KEY, word text NOT NULL, note text)")
    gateway.database.execute("GRANT ALL ON scratch TO shop_app")
    yield "scratch"
    gateway.database.execute("DROP TABLE scratch")


def words(gateway: RunningProxy) -> list[str]:
    """What is there, by a connection of its own straight to the server."""
    return [word for (word,) in gateway.database.execute("SELECT word FROM scratch ORDER BY id")]


def status(connection: Connection) -> pq.TransactionStatus:
    return connection.info.transaction_status


def insert(connection: Connection, *numbers: int) -> None:
    for n in numbers:
        connection.execute("INSERT INTO scratch (id, word) VALUES (%s, %s)", (n, f"w{n}"))


# --- parameters, results, prepared statements ---


@pytest.mark.parametrize("binary", [False, True])
def test_parameters_and_results_in_both_formats(
    connection: Connection, direct: Connection, binary: bool
) -> None:
    mark = "%b" if binary else "%t"
    sql = f"SELECT *, {mark}::text, {mark}::int4, {mark}::numeric FROM products WHERE id < {mark}".encode()
    values = ("ä", 7, 1.25, 5)
    with connection.cursor(binary=binary) as ours, direct.cursor(binary=binary) as theirs:
        assert ours.execute(sql, values).fetchall() == theirs.execute(sql, values).fetchall()
        assert repr(ours.description) == repr(theirs.description)


def test_prepared_statements_are_prepared_on_the_server(insider: Connection) -> None:
    connection = insider
    connection.prepare_threshold = 2
    for n in range(6):
        found = connection.execute("SELECT id, status FROM orders WHERE id = %s", (n + 1,)).fetchone()
        assert found is not None
    prepared = connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    assert prepared == [("SELECT id, status FROM orders WHERE id = $1",)]
    with pytest.raises(errors.InsufficientPrivilege):
        connection.execute(REFUSED, prepare=True)
    connection.execute("DEALLOCATE ALL")
    assert connection.execute("SELECT 1", prepare=True).fetchone() == (1,)


def test_more_prepared_statements_than_psycopg_keeps(insider: Connection) -> None:
    connection = insider
    connection.prepared_max = 3
    for n in range(10):
        for _ in range(2):
            sql = f"SELECT {n} + %s".encode()
            assert connection.execute(sql, (1,), prepare=True).fetchone() == (n + 1,)
    assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (3,)


def test_row_factories(connection: Connection) -> None:
    sql = "SELECT id, name FROM customers WHERE id = 1"
    with connection.cursor(row_factory=dict_row) as cursor:
        assert (cursor.execute(sql).fetchone() or {}).keys() == {"id", "name"}
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        assert [row._fields for row in cursor.execute(sql)] == [("id", "name")]
    with connection.cursor(row_factory=class_row(dict)) as cursor:
        assert [row["id"] for row in cursor.execute(sql)] == [1]


def test_executemany_in_one_pipeline(connection: Connection, gateway: RunningProxy, table: str) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO scratch (id, word) VALUES (%s, %s) RETURNING id",
            [(n, f"w{n}") for n in range(50)],
            returning=True,
        )
        returned = [result.fetchone() for result in cursor.results()]
    assert returned == [(n,) for n in range(50)]
    assert words(gateway) == [f"w{n}" for n in range(50)]


# --- pipelines ---


def test_a_pipeline_of_allowed_statements(connection: Connection, gateway: RunningProxy, table: str) -> None:
    with connection.pipeline() as pipeline:
        insert(connection, 1, 2)
        counted = connection.execute("SELECT count(*) FROM scratch")
        pipeline.sync()
        insert(connection, 3)
        again = connection.execute("SELECT count(*) FROM scratch")
    assert (counted.fetchone(), again.fetchone()) == ((2,), (3,))
    assert words(gateway) == ["w1", "w2", "w3"]


def test_a_refused_middle_leaves_no_trace_of_its_segment(
    connection: Connection, gateway: RunningProxy, table: str
) -> None:
    with pytest.raises(errors.InsufficientPrivilege), connection.pipeline():
        insert(connection, 1)
        connection.execute(REFUSED)
        insert(connection, 2)
    assert status(connection) is STATUS.IDLE
    assert words(gateway) == []
    assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("middle", [REFUSED, "SELECT 1/0"])
def test_segments_of_a_pipeline_stand_or_fall_alone(gateway: RunningProxy, table: str, middle: str) -> None:
    """By libpq itself, so that everything is on its way before the first answer is read."""
    conn = pq.PGconn.connect(psycopg.conninfo.make_conninfo(**gateway.parameters("writer")).encode())
    conn.enter_pipeline_mode()
    segments = ((1, None, 2), (3, middle, 4), (5, None, 6))
    for first, between, second in segments:
        conn.send_query_params(f"INSERT INTO scratch VALUES ({first}, 'w{first}')".encode(), None)
        if between is not None:
            conn.send_query_params(between.encode(), None)
        conn.send_query_params(f"INSERT INTO scratch VALUES ({second}, 'w{second}')".encode(), None)
        conn.pipeline_sync()
    states: list[str] = []
    while states.count("PIPELINE_SYNC") < len(segments):
        if (result := conn.get_result()) is not None:
            states.append(pq.ExecStatus(result.status).name)
    conn.finish()
    assert states == [
        *("COMMAND_OK", "COMMAND_OK", "PIPELINE_SYNC"),
        *("COMMAND_OK", "FATAL_ERROR", "PIPELINE_ABORTED", "PIPELINE_SYNC"),
        *("COMMAND_OK", "COMMAND_OK", "PIPELINE_SYNC"),
    ]
    assert words(gateway) == ["w1", "w2", "w5", "w6"]


def test_a_refusal_within_a_transaction_within_a_pipeline(
    connection: Connection, gateway: RunningProxy, table: str
) -> None:
    with (
        pytest.raises(errors.InsufficientPrivilege),
        connection.pipeline(),
        connection.transaction(),
    ):
        insert(connection, 1)
        connection.execute(REFUSED)
        insert(connection, 2)
    assert status(connection) is STATUS.IDLE
    assert words(gateway) == []


def test_each_statement_of_a_pipeline_gets_its_own_answer(connection: Connection) -> None:
    with connection.pipeline():
        cursors = [connection.execute("SELECT %s::int", (n,)) for n in range(200)]
        assert [cursor.fetchone() for cursor in cursors] == [(n,) for n in range(200)]


# --- transactions ---


def test_a_refusal_fails_the_transaction_and_rollback_mends_it(
    connection: Connection, gateway: RunningProxy, table: str
) -> None:
    connection.execute("BEGIN")
    insert(connection, 1)
    assert status(connection) is STATUS.INTRANS
    with pytest.raises(errors.InsufficientPrivilege):
        connection.execute(REFUSED)
    assert status(connection) is STATUS.INERROR
    connection.execute("ROLLBACK")
    assert status(connection) is STATUS.IDLE
    assert words(gateway) == []


def test_nested_transactions(connection: Connection, gateway: RunningProxy, table: str) -> None:
    with connection.transaction():
        insert(connection, 1)
        with pytest.raises(errors.InsufficientPrivilege), connection.transaction():
            insert(connection, 2)
            connection.execute(REFUSED)
        insert(connection, 3)
    assert words(gateway) == ["w1", "w3"]


# --- cursors ---


def test_server_side_cursors(connection: Connection) -> None:
    with connection.transaction(), connection.cursor("c", scrollable=True) as cursor:
        cursor.itersize = 7
        cursor.execute("SELECT id FROM orders ORDER BY id LIMIT %s", (30,))
        assert [row[0] for row in cursor] == list(range(1, 31))
        cursor.scroll(0, mode="absolute")
        assert cursor.fetchmany(2) == [(1,), (2,)]
    with connection.cursor("held", withhold=True) as cursor:
        cursor.execute("SELECT id FROM orders ORDER BY id LIMIT 3")
        assert cursor.fetchall() == [(1,), (2,), (3,)]


def test_a_cursor_over_a_refused_query(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        cursor = connection.cursor("c")
        with pytest.raises(errors.InsufficientPrivilege):
            cursor.execute("SELECT * FROM pg_authid")
        assert status(connection) is STATUS.INERROR
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_rows_one_by_one_and_in_chunks(connection: Connection) -> None:
    with connection.cursor() as cursor:
        assert sum(1 for _ in cursor.stream("SELECT * FROM orders")) == 2000
    with connection.cursor() as cursor, pytest.raises(errors.InsufficientPrivilege):
        list(cursor.stream("SELECT * FROM pg_authid"))


# --- copy ---


@pytest.mark.parametrize("form", ["text", "csv", "binary"])
def test_copy_out(connection: Connection, direct: Connection, form: str) -> None:
    sql = f"COPY (SELECT * FROM orders ORDER BY id) TO STDOUT (FORMAT {form})".encode()
    copied = []
    for one in (connection, direct):
        with one.cursor() as cursor, cursor.copy(sql) as copy:
            copied.append((b"".join(copy), cursor.rowcount))
    assert copied[0] == copied[1]
    assert len(copied[0][0]) > 100_000


@pytest.mark.parametrize("binary", [False, True])
def test_copy_in(connection: Connection, gateway: RunningProxy, table: str, binary: bool) -> None:
    form = "(FORMAT binary)" if binary else ""
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY scratch (id, word) FROM STDIN {form}".encode()) as copy,
    ):
        copy.set_types(["int4", "text"])
        for n in range(2000):
            copy.write_row((n, f"wörd {n}"))
    assert words(gateway) == [f"wörd {n}" for n in range(2000)]


def test_a_copy_given_up(connection: Connection, gateway: RunningProxy, table: str) -> None:
    class GivenUpError(Exception):
        pass

    sql = "COPY scratch (id, word) FROM STDIN"
    with pytest.raises(GivenUpError), connection.cursor() as cursor, cursor.copy(sql) as copy:
        copy.write_row((1, "lost"))
        raise GivenUpError
    with (
        pytest.raises(errors.UniqueViolation),
        connection.cursor() as cursor,
        cursor.copy(sql) as copy,
    ):
        copy.write("1\tone\n1\tagain\n")
    assert words(gateway) == []
    assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY pg_authid TO STDOUT",
        "COPY (SELECT * FROM pg_authid) TO STDOUT",
        "COPY orders TO '/tmp/orders'",
        "COPY orders FROM PROGRAM 'cat'",
        "COPY pg_class FROM STDIN",
    ],
)
def test_a_refused_copy(connection: Connection, sql: str) -> None:
    with (
        pytest.raises(errors.InsufficientPrivilege),
        connection.cursor() as cursor,
        cursor.copy(sql.encode()) as copy,
    ):
        list(copy)
    assert connection.execute("SELECT 1").fetchone() == (1,)


# --- notices and notifications ---


Notice = tuple[str | None, str | None, str | None, str | None]


def heard(connection: Connection) -> list[Notice]:
    """The notices from now on: severity, SQLSTATE, routine, hint. libpq forgets each after its handler."""
    notices: list[Notice] = []
    connection.add_notice_handler(
        lambda n: notices.append((n.severity, n.sqlstate, n.source_function, n.message_hint))
    )
    return notices


def test_a_warning_of_the_gate_is_a_notice(connection: Connection) -> None:
    notices = heard(connection)
    sql = "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id"
    assert len(connection.execute(sql).fetchall()) == 2000
    ((severity, sqlstate, rule, hint),) = notices
    assert (severity, sqlstate, rule) == ("NOTICE", "01000", "unbounded-join")
    assert "LIMIT" in (hint or "")


def test_a_notice_of_the_server(connection: Connection) -> None:
    notices = heard(connection)
    connection.execute("COMMIT")
    assert [notice[:2] for notice in notices] == [("WARNING", "25P01")]


def test_listen_and_notify(gateway: RunningProxy) -> None:
    with psycopg.connect(**gateway.parameters("insider"), autocommit=True) as connection:
        connection.execute("LISTEN channel")
        gateway.database.execute("NOTIFY channel, 'from elsewhere'")
        connection.execute("NOTIFY channel, 'own'")
        received = list(connection.notifies(timeout=5, stop_after=2))
        assert {n.payload for n in received} == {"from elsewhere", "own"}
        assert connection.info.backend_pid in {n.pid for n in received}


def test_listen_where_no_policy_allows_it(connection: Connection) -> None:
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        connection.execute("LISTEN channel")
    assert json.loads(caught.value.diag.message_detail or "")["class"] == "notify"


# --- cancelling ---


def test_a_cancel_hits_its_own_query_only(gateway: RunningProxy, connection: Connection) -> None:
    outcomes: list[object] = []
    with psycopg.connect(**gateway.parameters("writer"), autocommit=True) as bystander:
        thread = threading.Thread(
            target=lambda: outcomes.append(bystander.execute("SELECT 7 FROM pg_sleep(1)").fetchone())
        )
        thread.start()
        wait_for(lambda: asleep(gateway, bystander))
        canceller = threading.Thread(target=_cancel_when_asleep, args=(gateway, connection))
        canceller.start()
        started = time.monotonic()
        with pytest.raises(errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(30)")
        assert time.monotonic() - started < 20
        canceller.join()
        thread.join()
    assert outcomes == [(7,)]
    assert connection.execute("SELECT 1").fetchone() == (1,)


def _cancel_when_asleep(gateway: RunningProxy, connection: Connection) -> None:
    wait_for(lambda: asleep(gateway, connection))
    connection.cancel()


def asleep(gateway: RunningProxy, connection: Connection) -> bool:
    sql = f"SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = {connection.info.backend_pid}"
    return gateway.database.execute(sql) == [(True,)]


def test_a_cancel_in_a_pipeline_fails_its_segment(
    gateway: RunningProxy, connection: Connection, table: str
) -> None:
    canceller = threading.Thread(target=_cancel_when_asleep, args=(gateway, connection))
    canceller.start()
    with pytest.raises(errors.QueryCanceled), connection.pipeline():
        insert(connection, 1)
        connection.execute("SELECT pg_sleep(30)")
        insert(connection, 2)
    canceller.join()
    assert words(gateway) == []
