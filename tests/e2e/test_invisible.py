"""Read-only agents under an enforced policy with prices: the same bytes come back as from the server itself.

Scripts are sent message by message, direct and through, and every message of the answer is compared whole:
notices in their order, portals suspended and resumed, answers to Flush before any Sync, COPY that fails in
the middle. The proxy's own questions must leave no trace in any of it.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.postgres import Database, Server
from tests.support.proxy import RunningProxy, run_proxy
from tests.support.wire import (
    COPY_DONE,
    FLUSH,
    SYNC,
    Client,
    Message,
    bind,
    close,
    copy_data,
    copy_fail,
    describe,
    execute,
    kinds,
    parse,
    query,
    run,
    straight,
    through,
)

READING: Final = """
version: 1
name: reading
mode: enforce
multiple: judged
access: read_only
statements: {select: allow, show: allow, set: allow, transaction: allow, cursor: allow, prepare: allow,
  explain: allow, copy_out: allow, notify: allow}
relations: {allow: ["public.*"], catalogs: on}
functions: {allow: [builtin-safe, pg_catalog.pg_sleep]}
rules: {unbounded-join: "off"}
cost: {max_total_cost: 100000000, max_rows: 100000000, max_result_bytes: 100GiB, unpriceable: "off"}
"""
OPEN: Final = READING.replace("read_only", "read_write").replace(
    "select: allow", "select: allow, insert: allow, ddl: allow, copy_in: allow, other: allow"
)
ROLE: Final = "shop_app"

FIVE: Final = "SELECT id, name FROM customers WHERE id <= 5 ORDER BY id"
BY_ID: Final = "SELECT name FROM customers WHERE id = $1::int"
FAILS_AT_THREE: Final = "SELECT 10 / (3 - id) FROM customers WHERE id <= 5 ORDER BY id"

Script = tuple[tuple[bytes, str], ...]
"""What is sent, and the kinds of message one of which ends its answer."""

SCRIPTS: Final[dict[str, Script]] = {
    "simple": ((query(FIVE), "Z"), (query(""), "Z"), (query("SELECT 1; SELECT 2"), "Z")),
    "an error in the middle of a result": ((query(FAILS_AT_THREE), "Z"), (query("SELECT 1"), "Z")),
    "an error in the middle of a string": ((query("SELECT 1; SELECT 1/0; SELECT 2"), "Z"),),
    "extended, asked piece by piece": (
        (parse(BY_ID, "s", (23,)) + FLUSH, "1"),
        (describe("S", "s") + FLUSH, "T"),
        (bind("s", "p", (b"2",)) + FLUSH, "2"),
        (describe("P", "p") + FLUSH, "T"),
        (execute("p") + FLUSH, "C"),
        (close("P", "p") + FLUSH, "3"),
        (SYNC, "Z"),
    ),
    "a portal suspended, resumed and run dry": (
        (query("BEGIN"), "Z"),
        (parse(FIVE) + bind("", "p") + execute("p", 2) + FLUSH, "s"),
        (execute("p", 2) + FLUSH, "s"),
        (execute("p", 2) + FLUSH, "C"),
        (execute("p", 2) + SYNC, "Z"),
        (query("COMMIT"), "Z"),
    ),
    "the unnamed statement bound again": (
        (parse(BY_ID) + bind("", "", (b"1",)) + execute() + SYNC, "Z"),
        (bind("", "", (b"2",)) + execute() + SYNC, "Z"),
        (bind("", "", (b"3",)) + describe("P") + execute() + SYNC, "Z"),
    ),
    "one name, many values": (
        (parse(BY_ID, "s") + SYNC, "Z"),
        *((bind("s", "", (b"%d" % n,)) + execute() + SYNC, "Z") for n in range(1, 9)),
        (bind("s", "", (b"no number",)) + execute() + SYNC, "Z"),
        (bind("s", "", (None,)) + execute() + SYNC, "Z"),
        (bind("s") + execute() + SYNC, "Z"),
    ),
    "a pipeline with an error within": (
        (run("SELECT 1") + run(FAILS_AT_THREE) + run("SELECT 3") + SYNC + run("SELECT 4") + SYNC, "Z"),
        (b"", "Z"),
    ),
    "an error told at once to who flushes": (
        (run("SELECT 1/0") + FLUSH, "E"),
        (run("SELECT 1") + SYNC, "Z"),
    ),
    "notices in their order": (
        (query("COMMIT; ROLLBACK; BEGIN; BEGIN; SELECT 1; COMMIT; COMMIT"), "Z"),
        (run("ROLLBACK") + run("SELECT 1") + run("COMMIT") + SYNC, "Z"),
    ),
    "a transaction that fails": (
        (query("BEGIN ISOLATION LEVEL REPEATABLE READ"), "Z"),
        (query(FAILS_AT_THREE), "Z"),
        (query(FIVE), "Z"),
        (run(FIVE) + SYNC, "Z"),
        (query("COMMIT"), "Z"),
    ),
    "savepoints": (
        (query("BEGIN; SAVEPOINT s; SELECT 1"), "Z"),
        (run("SELECT 1/0") + SYNC, "Z"),
        (query("ROLLBACK TO s"), "Z"),
        (run(BY_ID.replace("$1::int", "4")) + SYNC, "Z"),
        (query("COMMIT"), "Z"),
    ),
    "cursors, one of them held": (
        (query("BEGIN"), "Z"),
        (query(f"DECLARE c SCROLL CURSOR FOR {FIVE}"), "Z"),
        (run(f"DECLARE h CURSOR WITH HOLD FOR {FIVE}") + SYNC, "Z"),
        (query("FETCH 2 FROM c; FETCH BACKWARD 1 FROM c; MOVE 1 IN c"), "Z"),
        (query("FETCH 1 FROM h; COMMIT"), "Z"),
        (run("FETCH 2 FROM h") + run("FETCH ALL FROM h") + SYNC, "Z"),
        (query("FETCH 1 FROM c"), "Z"),
        (query("CLOSE h"), "Z"),
    ),
    "SQL's own PREPARE": (
        (query("PREPARE p (int) AS SELECT name FROM customers WHERE id = $1"), "Z"),
        (query("EXECUTE p(1)"), "Z"),
        (query("EXECUTE p(2)"), "Z"),
        (run("EXECUTE p(3)") + describe("S", "p") + SYNC, "Z"),
        (query("DEALLOCATE p"), "Z"),
    ),
    "COPY out": (
        (query(f"COPY ({FIVE}) TO STDOUT"), "Z"),
        (query(f"COPY ({FIVE}) TO STDOUT (FORMAT binary)"), "Z"),
        (run(f"COPY ({FIVE}) TO STDOUT (FORMAT csv, HEADER)") + SYNC, "Z"),
    ),
    "COPY out that fails in the middle": (
        (query(f"COPY ({FAILS_AT_THREE}) TO STDOUT"), "Z"),
        (run(f"COPY ({FAILS_AT_THREE}) TO STDOUT") + run("SELECT 1") + SYNC, "Z"),
        (query("SELECT 1"), "Z"),
    ),
    "settings, and what they are reported as": (
        (query("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SHOW TimeZone"), "Z"),
        (run("SET application_name = 'x'") + run("SHOW application_name") + SYNC, "Z"),
        (query("BEGIN; SET LOCAL TimeZone = 'UTC'; ROLLBACK"), "Z"),
        (query("RESET ALL"), "Z"),
    ),
    "LISTEN and NOTIFY": (
        (query("LISTEN news"), "Z"),
        (query("BEGIN; NOTIFY news, 'one'; NOTIFY news, 'two'; SELECT 1; COMMIT; SELECT 2"), "Z"),
        (query("UNLISTEN *"), "Z"),
    ),
    "a plan": (
        (query(f"EXPLAIN (COSTS off) {FIVE}"), "Z"),
        (run(f"EXPLAIN (COSTS off, FORMAT json) {FIVE}") + SYNC, "Z"),
    ),
    "what the server has against a statement": (
        (query("SELECT 'a'::int"), "Z"),
        (query("FETCH 1 FROM nowhere"), "Z"),
        (bind("nowhere") + SYNC, "Z"),
        (describe("P", "nowhere") + SYNC, "Z"),
    ),
}


@pytest.fixture(scope="module")
def reading(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with postgres.database() as database, _running(database, READING, tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module")
def writing(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with postgres.database() as database, _running(database, OPEN, tmp_path_factory) as running:
        yield running


def _running(
    database: Database, policy: str, folders: pytest.TempPathFactory
) -> contextlib.AbstractContextManager[RunningProxy]:
    """Every role is an agent of that policy, and logs in by its own password."""
    return run_proxy(
        database,
        folders.mktemp("invisible"),
        {"all": policy},
        agents={"*": {"auth": {"backend": "password"}, "policy": "all.yaml"}},
        catalog={"login": {"user": ROLE, "password_env": f"PASSWORD_{ROLE.upper()}"}},
        limits={"message_bytes": "64MiB"},
    )


def _play(client: Client, script: Script) -> list[Message]:
    got: list[Message] = []
    for sent, ends in script:
        client.send(sent)
        got += client.read_until(ends)
    return got


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_reader_is_sent(reading: RunningProxy, name: str) -> None:
    with straight(reading.database, ROLE) as direct, through(reading, ROLE) as proxied:
        wanted = [_comparable(m, direct) for m in _play(direct, SCRIPTS[name])]
        assert [_comparable(m, proxied) for m in _play(proxied, SCRIPTS[name])] == wanted
        assert proxied.quiet(0.05)


def test_the_prices_were_asked(reading: RunningProxy) -> None:
    """Without this the tests above would hold of a proxy that asks for none."""
    with through(reading, ROLE) as client:
        client.ask(query(FIVE.replace("5", "4")))
        client.ask(parse(BY_ID) + bind("", "", (b"7",)) + execute() + SYNC)
    asked = [r.statement for r in reading.database.records() if r.step and "EXPLAIN (" in r.statement]
    assert any(FIVE.replace("5", "4") in sql for sql in asked)
    assert any(BY_ID in sql for sql in asked)


def test_what_is_notified_while_nothing_is_asked(reading: RunningProxy) -> None:
    with through(reading, ROLE) as listener, through(reading, ROLE) as speaker:
        listener.ask(query("LISTEN news"))
        assert listener.quiet(0.05)
        speaker.ask(query("NOTIFY news, 'unasked'"))
        told = listener.read()
        assert (told.kind, told.body) == ("A", struct.pack("!I", speaker.pid) + b"news\0unasked\0")
        assert listener.quiet(0.05)
        assert kinds(listener.ask(query("SELECT 1"))) == "TDCZ"


@pytest.mark.parametrize(
    "script",
    [
        (
            (query("COPY notes FROM STDIN"), "G"),
            (copy_data(b"1\ta\n") + copy_data(b"x\tb\n"), "EZ"),
            (b"", "Z"),
        ),
        (
            (query("COPY notes FROM STDIN"), "G"),
            (copy_data(b"1\ta\n2\t") + copy_data(b"b\n") + copy_fail("enough"), "Z"),
        ),
        ((run("COPY notes FROM STDIN") + FLUSH, "G"), (copy_data(b"1\n") + COPY_DONE + SYNC, "Z")),
        ((run("COPY notes FROM STDIN") + FLUSH, "G"), (copy_data(b"1\ta\n") + COPY_DONE + SYNC, "Z")),
        (
            (query("BEGIN; COPY notes FROM STDIN"), "G"),
            (copy_data(b"1\tsame\n1\tsame\n") + COPY_DONE, "Z"),
            (query("COMMIT"), "Z"),
        ),
    ],
    ids=["a bad value", "given up", "too few columns", "well", "a key twice"],
)
def test_a_copy_in_and_what_becomes_of_it(writing: RunningProxy, script: Script) -> None:
    database = writing.database
    database.execute("DROP TABLE IF EXISTS notes")
    database.execute(f"CREATE TABLE notes (id int PRIMARY KEY, body text); GRANT ALL ON notes TO {ROLE}")
    whole: Script = (*script, (query("SELECT * FROM notes ORDER BY id"), "Z"))
    with straight(database, ROLE) as direct, through(writing, ROLE) as proxied:
        wanted = _play(direct, whole)
        database.execute("TRUNCATE notes")
        assert _play(proxied, whole) == wanted


def test_two_phase_commit(writing: RunningProxy) -> None:
    """Prepared by one connection, still there when it has gone, committed by another."""
    writing.database.execute(f"CREATE TABLE two_phase (id int); GRANT ALL ON two_phase TO {ROLE}")
    with through(writing, ROLE) as first:
        first.ask(query("BEGIN"))
        first.ask(run("INSERT INTO two_phase VALUES (1)") + SYNC)
        prepared = first.ask(query("PREPARE TRANSACTION 'one'"))
        assert kinds(prepared) == "CZ"
        assert prepared[-1].body == b"I"
        assert rows(first.ask(query("SELECT count(*) FROM two_phase"))) == [b"0"]
    with through(writing, ROLE) as second:
        assert kinds(second.ask(query("COMMIT PREPARED 'one'"))) == "CZ"
        assert rows(second.ask(query("SELECT count(*) FROM two_phase"))) == [b"1"]
        assert kinds(second.ask(query("ROLLBACK PREPARED 'one'"))) == "EZ"


# --- values that are too large to be kept ---

LARGE: Final = 120_000_000
KEPT_KIB: Final = 40_000


def test_a_value_of_a_hundred_megabytes_is_not_kept(reading: RunningProxy) -> None:
    with through(reading, ROLE) as client:
        client.ask(query(FIVE))
        before = _peak_kib(reading)
        # Of a column, so that the planner does not make it.
        client.send(query(f"SELECT repeat(left(name, 1), {LARGE}) FROM customers WHERE id = 1"))
        answer = client.read_until("Z")
        assert (kinds(answer), len(answer[1].body)) == ("TDCZ", 2 + 4 + LARGE)
        assert _peak_kib(reading) - before < KEPT_KIB


def test_a_copy_in_pieces_as_large_as_a_message_may_be(writing: RunningProxy) -> None:
    pieces, size = 4, 30_000_000
    with through(writing, ROLE) as client:
        client.ask(query("CREATE TEMP TABLE large (body text)"))
        before = _peak_kib(writing)
        client.send(query("COPY large FROM STDIN"))
        client.read_until("G")
        for _ in range(pieces):
            client.send(copy_data(b"y" * (size - 1) + b"\n"))
        client.send(COPY_DONE)
        assert kinds(client.read_until("Z")) == "CZ"
        assert rows(client.ask(query("SELECT sum(length(body)) FROM large"))) == [
            b"%d" % (pieces * (size - 1))
        ]
        assert _peak_kib(writing) - before < KEPT_KIB + size // 1024


def _peak_kib(proxy: RunningProxy) -> int:
    """The most memory that the proxy has ever had, in KiB."""
    status = Path(f"/proc/{proxy.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def rows(messages: list[Message]) -> list[bytes]:
    """The first column of every row."""
    found = []
    for each in messages:
        if each.kind == "D":
            (length,) = struct.unpack_from("!i", each.body, 2)
            found.append(each.body[6 : 6 + length])
    return found


def _comparable(given: Message, client: Client) -> Message:
    """The message with the connection's own PID, where it names one, as zero."""
    if given.kind == "A":
        return Message("A", given.body.replace(struct.pack("!I", client.pid), bytes(4), 1))
    return given
