"""Bugs that other proxies had, each tried on this one, and compared with the server itself where it can be.

The names in brackets are the project and the number of its issue.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator

import pytest

from proxy.wire.startup import encode_cancel
from tests.support.postgres import Database
from tests.support.proxy import RunningProxy, wait_for
from tests.support.wire import (
    COPY_DONE,
    FLUSH,
    SYNC,
    Client,
    Message,
    bind,
    close,
    copy_data,
    describe,
    dial,
    execute,
    kinds,
    parse,
    query,
    run,
    straight,
    through,
)

REFUSED = "SELECT pg_read_file('/etc/passwd')"


@pytest.fixture
def table(gateway: RunningProxy) -> Iterator[str]:
    """An empty table of the test's own, to whose rows the agent may do anything."""
    name = f"bugs_{random.randrange(10**9)}"
    gateway.database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    gateway.database.execute(f"GRANT ALL ON {name} TO shop_app")
    yield name
    gateway.database.execute(f"DROP TABLE {name}")


def told(messages: list[Message]) -> list[tuple[str, bytes | str]]:
    """What a client can tell of messages: types and bodies, of errors the code."""
    return [(m.kind, m.sqlstate if m.kind == "E" else m.body) for m in messages]


def count(database: Database, table: str) -> int:
    return int(database.execute(f"SELECT count(*) FROM {table}")[0][0])


ROWS = "SELECT n FROM generate_series(1, 5) n"

SAME_AS_DIRECT = {
    # name: messages, and how many ReadyForQuery end them
    "an error waits for Sync [pgwire 146]": (run("SELECT 1/0") + SYNC, 1),
    "nothing runs between a failure and its Sync [duckgres 718]": (
        run("SELECT 1/0") + query("SELECT 7") + run("SELECT 8") + SYNC + query("SELECT 9"),
        2,
    ),
    "no CloseComplete between an error and its Sync [multigres 1017]": (
        parse("SELECT 1/0", "s") + bind("s") + execute() + close("S", "s") + close("P") + SYNC,
        1,
    ),
    "an error, its Sync and the next Parse at once [pgbouncer 759]": (
        run("SELECT 1/0") + SYNC + run("SELECT 2") + SYNC,
        2,
    ),
    "Sync within COPY is not counted [pgbouncer 1025]": (
        query("COPY {table} FROM STDIN")
        + copy_data(b"1\ta\n")
        + SYNC * 100
        + copy_data(b"2\tb\n")
        + FLUSH
        + COPY_DONE
        + query("SELECT count(*) FROM {table}"),
        2,
    ),
    "a trailing Describe stays with its Sync [pgdog 1508]": (
        parse("SELECT 1", "s")
        + bind("s")
        + execute()
        + describe("S", "s")
        + SYNC
        + describe("S", "s")
        + SYNC,
        2,
    ),
    "max_rows gives as many rows [proxysql 5900]": (parse(ROWS) + bind() + execute("", 1) + SYNC, 1),
    "five rows by two [arcadedb 6458]": (
        query("BEGIN") + parse(ROWS) + bind("", "p") + execute("p", 2) * 3 + SYNC + query("COMMIT"),
        3,
    ),
    "two Executes, the second fails, none commits [proxysql 5118]": (
        run("INSERT INTO {table} VALUES (1, 'a')")
        + run("INSERT INTO {table} VALUES (1, 'b')")
        + SYNC
        + query("SELECT count(*) FROM {table}"),
        2,
    ),
    "five Syncs [supavisor 1061]": (SYNC * 5, 5),
    "Describe of a name, alone, later [supavisor 1174]": (
        parse("SELECT $1::int AS one", "s") + SYNC + describe("S", "s") + SYNC,
        2,
    ),
    "Close after a failed Parse [odyssey 1361]": (
        parse("SELECT nowhere", "s") + SYNC + close("S", "s") + SYNC,
        2,
    ),
    "two ParameterStatus where one was expected [pgpool 176]": (
        query("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET application_name = 'x'"),
        1,
    ),
    "SET, SET, SHOW in one Query [pgdog 1087]": (
        query("SET DateStyle = 'ISO'; SET extra_float_digits = 2; SHOW DateStyle"),
        1,
    ),
    "a portal is gone with its transaction": (parse(ROWS) + bind("", "p") + SYNC + execute("p") + SYNC, 2),
    "a live name prepared again": (parse("SELECT 1", "s") + SYNC + parse("SELECT 2", "s") + SYNC, 2),
    "the unnamed statement replaced, and dropped by a Query": (
        parse("SELECT 1")
        + parse("SELECT 2")
        + bind()
        + execute()
        + SYNC
        + query("SELECT 3")
        + bind()
        + execute()
        + SYNC,
        3,
    ),
    "DISCARD ALL forgets names": (
        parse("SELECT 1", "s") + SYNC + query("DEALLOCATE ALL") + bind("s") + SYNC,
        3,
    ),
    "PREPARE and Parse share their names": (
        query("PREPARE s AS SELECT 1")
        + bind("s")
        + execute()
        + SYNC
        + parse("SELECT 2", "s")
        + SYNC
        + parse("SELECT 3", "t")
        + SYNC
        + query("EXECUTE t")
        + query("DEALLOCATE t")
        + query("EXECUTE t"),
        7,
    ),
    "a prepared name outlives the rollback": (
        query("BEGIN") + parse("SELECT 1", "s") + SYNC + query("ROLLBACK") + bind("s") + execute() + SYNC,
        4,
    ),
    "an empty Query, and an empty Parse": (query("") + run("") + SYNC, 2),
}


@pytest.mark.parametrize("size", [0, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", SAME_AS_DIRECT)
def test_the_same_as_without_the_proxy(gateway: RunningProxy, table: str, name: str, size: int) -> None:
    written, cycles = SAME_AS_DIRECT[name]
    sent = _with_table(written, table)
    with straight(gateway.database) as client:
        client.send(sent)
        direct = client.cycles(cycles)
    gateway.database.execute(f"TRUNCATE {table}")
    with through(gateway, "shop_app") as client:
        for at in range(0, len(sent), size or len(sent)):
            client.send(sent[at : at + (size or len(sent))])
        assert told(client.cycles(cycles)) == told(direct)
        assert client.quiet(0.05)


def _with_table(sent: bytes, table: str) -> bytes:
    """The messages with the table's name put in, lengths and all."""
    out = b""
    while sent:
        length = int.from_bytes(sent[1:5], "big")
        body = sent[5 : length + 1].replace(b"{table}", table.encode())
        out += sent[:1] + (len(body) + 4).to_bytes(4, "big") + body
        sent = sent[length + 1 :]
    return out


def test_no_ready_before_sync_even_for_a_refusal(gateway: RunningProxy) -> None:
    """[pgcat 137]"""
    with through(gateway, "shop_app") as client:
        client.send(parse(REFUSED), bind(), execute(), FLUSH)
        assert client.read().sqlstate == "42501"
        assert client.quiet()
        assert kinds(client.ask(SYNC)) == "Z"


def test_who_waits_after_flush_sees_the_error_at_once(gateway: RunningProxy) -> None:
    """[multigres 1274], [pgcat 951, 953]"""
    with through(gateway, "shop_app") as client:
        client.send(parse("SELECT nowhere"), FLUSH)
        assert client.read().sqlstate == "42703"
        client.ask(SYNC)
        client.send(run("SELECT 1"), FLUSH)
        assert kinds(client.read_until("C")) == "12DC"
        assert client.quiet(0.1)
        client.ask(SYNC)


def test_a_portal_survives_flush(gateway: RunningProxy) -> None:
    """[pgdog 1332], [pgpool 59]"""
    with through(gateway, "shop_app") as client:
        client.send(parse(ROWS), bind("", "p"), execute("p", 2), FLUSH)
        assert kinds(client.read_until("s")) == "12DDs"
        client.send(execute("p", 2), FLUSH)
        assert kinds(client.read_until("s")) == "DDs"
        assert kinds(client.ask(execute("p", 2), SYNC)) == "DCZ"


def test_a_long_copy_in_random_pieces(gateway: RunningProxy, table: str) -> None:
    """[odyssey 554]"""
    pick = random.Random(554)
    rows = [f"{n}\t{'x' * pick.randrange(300)}\n".encode() for n in range(3000)]
    data = b"".join(rows)
    sent, at = [query(f"COPY {table} FROM STDIN")], 0
    while at < len(data):
        size = pick.choice([1, 7, 100, 9000, 70_000])
        sent.append(copy_data(data[at : at + size]))
        at += size
    stream = b"".join([*sent, COPY_DONE])
    with through(gateway, "shop_app") as client:
        while stream:
            size = pick.choice([1, 13, 4096, 100_000])
            client.send(stream[:size])
            stream = stream[size:]
        assert kinds(client.cycles()) == "GCZ"
        out = client.ask(query(f"COPY (SELECT * FROM {table} ORDER BY id) TO STDOUT"))
    assert b"".join(m.body for m in out if m.kind == "d") == data


def test_a_copy_to_a_view_that_is_refused_once_it_began(gateway: RunningProxy, table: str) -> None:
    """The server asks for data before it finds that it may not take any."""
    database = gateway.database
    database.execute(f"CREATE VIEW {table}_view AS SELECT * FROM {table}")
    database.execute(f"GRANT ALL ON {table}_view TO shop_app")
    sent = run(f"COPY {table}_view FROM STDIN") + SYNC
    with straight(database) as client:
        direct = client.ask(sent)
    with through(gateway, "shop_app") as client:
        assert told(client.ask(sent)) == told(direct)
        assert kinds(client.ask(query("SELECT 1"))) == "TDCZ"
    database.execute(f"DROP VIEW {table}_view")


def test_names_and_states_of_a_copy_given_up(gateway: RunningProxy, table: str) -> None:
    with through(gateway, "shop_app") as client:
        client.send(run(f"COPY {table} FROM STDIN"), SYNC)
        assert kinds(client.read_until("G")) == "12G"
        client.send(copy_data(b"no number\tx\n"))
        assert client.read().sqlstate == "22P02"
        client.send(copy_data(b"2\tb\n"), COPY_DONE, SYNC)
        assert told(client.cycles()) == [("Z", b"I")]
        assert kinds(client.ask(query("SELECT 1"))) == "TDCZ"
    assert count(gateway.database, table) == 0


def test_nobody_inherits_a_dead_clients_transaction(gateway: RunningProxy, table: str) -> None:
    """[supavisor 1172]"""
    with through(gateway, "shop_app") as client:
        client.ask(query("BEGIN"))
        client.ask(query(f"INSERT INTO {table} VALUES (1, 'lost')"))
        pid = client.pid
        client.cut()
    wait_for(lambda: not alive(gateway.database, pid))
    with through(gateway, "shop_app") as client:
        assert told(client.ask(SYNC)) == [("Z", b"I")]
    assert count(gateway.database, table) == 0


@pytest.mark.parametrize(
    "left",
    [
        query("SELECT 1")[:7],  # [supavisor 1164]
        parse("SELECT 1", "s"),  # [pgdog 803]
        run("SELECT 1") + FLUSH,
        b"",
    ],
    ids=["mid-frame", "after Parse", "without Sync", "idle"],
)
def test_a_client_that_goes_frees_its_backend(gateway: RunningProxy, left: bytes) -> None:
    with through(gateway, "shop_app") as client:
        client.send(left)
        pid = client.pid
        client.sock.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: not alive(gateway.database, pid))


def test_a_copy_whose_client_goes_is_not_kept(gateway: RunningProxy, table: str) -> None:
    with through(gateway, "shop_app") as client:
        client.send(query(f"COPY {table} FROM STDIN"))
        client.read_until("G")
        client.send(copy_data(b"1\ta\n"), copy_data(b"2\tb\n")[:7])
        pid = client.pid
        client.cut()
    wait_for(lambda: not alive(gateway.database, pid))
    assert count(gateway.database, table) == 0


def alive(database: Database, pid: int) -> bool:
    return bool(database.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))


def test_a_question_of_our_own_that_fails_answers_nobody(gateway: RunningProxy) -> None:
    """[pgdog 887]: the path is asked for after every SET; the agent sees its own answers alone."""
    with through(gateway, "shop_app") as client:
        sent = b"".join(
            query("SET search_path TO public") + query(f"SELECT {n}") + query("SELECT 1/0") for n in range(50)
        )
        client.send(sent)
        for n in range(50):
            assert kinds(client.cycles()) in ("CZ", "CSZ", "SCZ")
            assert client.cycles()[1].body.endswith(str(n).encode())
            assert client.cycles()[0].sqlstate == "22012"
        assert client.quiet(0.1)


def test_every_reply_of_a_tagged_pipeline_fits_its_request(gateway: RunningProxy) -> None:
    """[pgdog 759]"""
    pick = random.Random(759)
    wanted = [pick.choice(["good", "refused", "failing"]) for _ in range(400)]
    with through(gateway, "shop_app") as client:
        sent = []
        for n, fate in enumerate(wanted):
            sql = {"good": f"SELECT {n}", "refused": REFUSED, "failing": f"SELECT {n}/0"}[fate]
            sent.append(query(sql) if pick.random() < 0.5 else run(sql) + SYNC)
        client.send(*sent)
        for n, fate in enumerate(wanted):
            cycle = client.cycles()
            codes = [m.sqlstate for m in cycle if m.kind == "E"]
            rows = [m.body[6:] for m in cycle if m.kind == "D"]
            assert (codes, rows) == {
                "good": ([], [str(n).encode()]),
                "refused": (["42501"], []),
                "failing": (["22012"], []),
            }[fate]


def test_ten_queries_the_fifth_refused(gateway: RunningProxy, table: str) -> None:
    statements = [f"INSERT INTO {table} VALUES ({n}, 'x')" for n in range(10)]
    statements[4] = REFUSED
    with through(gateway, "shop_app") as client:
        client.send(*map(query, statements))
        assert [kinds(client.cycles()) for _ in statements] == ["CZ"] * 4 + ["EZ"] + ["CZ"] * 5
    assert count(gateway.database, table) == 9


@pytest.mark.parametrize("place", ["Parse", "Query"])
def test_a_refused_middle_takes_its_implicit_transaction_with_it(
    gateway: RunningProxy, table: str, place: str
) -> None:
    refused = run(REFUSED) if place == "Parse" else query(REFUSED)
    with through(gateway, "shop_app") as client:
        client.send(run(f"INSERT INTO {table} VALUES (1, 'x')"), refused)
        client.send(run(f"INSERT INTO {table} VALUES (2, 'x')"), SYNC)
        cycles = client.cycles(1 if place == "Parse" else 2)
    assert [m.sqlstate for m in cycles if m.kind == "E"] == ["42501"]
    assert count(gateway.database, table) == (0 if place == "Parse" else 1)


def test_a_savepoint_and_its_portals_outlive_a_refusal(gateway: RunningProxy) -> None:
    with through(gateway, "shop_app") as client:
        client.ask(query("BEGIN"))
        assert kinds(client.ask(parse(ROWS), bind("", "p"), execute("p", 2), SYNC)) == "12DDsZ"
        client.ask(query("SAVEPOINT a"))
        assert told(client.ask(run(REFUSED), SYNC))[-1] == ("Z", b"E")
        assert told(client.ask(query("SELECT 1")))[0] == ("E", "25P02")
        assert told(client.ask(query("ROLLBACK TO a")))[-1] == ("Z", b"T")
        assert kinds(client.ask(execute("p", 2), SYNC)) == "DDsZ"
        assert told(client.ask(query("COMMIT"))) == [("C", b"COMMIT\0"), ("Z", b"I")]


def test_a_refused_bind_in_the_midst_of_open_portals(gateway: RunningProxy) -> None:
    with through(gateway, "shop_app") as client:
        client.send(query("BEGIN"), parse(ROWS, "s"), bind("s", "p"), bind("s", "q"), execute("p", 1))
        client.send(run(REFUSED), execute("q"), SYNC)
        client.cycles()
        assert kinds(client.cycles()) == "122DsEZ"
        assert told(client.ask(query("COMMIT"))) == [("C", b"ROLLBACK\0"), ("Z", b"I")]
        assert kinds(client.ask(bind("s"), execute("", 0), SYNC)) == "2DDDDDCZ"


def test_notices_and_notifications_are_no_replies(gateway: RunningProxy) -> None:
    listener = "LISTEN bugs"
    with through(gateway, "shop_app") as other:
        assert told(other.ask(query(listener)))[0] == ("E", "42501")
    with through(gateway, "shop_app") as client:
        # A commit outside a transaction is a WARNING of the server's, in the middle of a pipeline.
        client.send(run("COMMIT"), run("ROLLBACK"), run("SELECT 1"), SYNC)
        assert kinds(client.cycles()) == "12NC12NC12DCZ"


def test_a_late_cancel_kills_nothing(gateway: RunningProxy) -> None:
    """[pgbouncer 717, 245]"""

    def cancel(client: Client) -> None:
        with dial(gateway.port) as sock:
            sock.sendall(encode_cancel(client.pid, client.secret))
            assert sock.recv(1) == b""

    with through(gateway, "shop_app") as client:
        client.ask(query("SELECT 1"))
        cancel(client)
        client.send(query("SELECT pg_sleep(0.2)"))
        assert kinds(client.cycles()) == "TDCZ"
        client.send(query("SELECT pg_sleep(20)"))
        time.sleep(0.2)
        cancel(client)
        cancel(client)
        assert client.read_until("Z")[-2].sqlstate == "57014"
        assert kinds(client.ask(query("SELECT 2"))) == "TDCZ"
