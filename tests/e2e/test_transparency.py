"""An agent whose policy only observes sees what it would see without the proxy, to the last field.

Random conversations are held twice, with the server and through the proxy, and compared at the level of
libpq. Tables are temporary, so that both begin alike and leave nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import psycopg
import psycopg2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from policy.loader import load
from policy.names import PathNames
from proxy.gate import Gate
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy
from tests.support.transcript import (
    CopyIn,
    CopyOut,
    DescribePortal,
    DescribeStatement,
    Extended,
    Piped,
    Pipeline,
    Prepare,
    Run,
    Simple,
    Step,
    Witness,
)

OBSERVER = """
version: 1
name: observer
mode: observe
multiple: judged
access: read_write
statements: {select: allow}
relations: {allow: []}
functions: {allow: []}
"""

PRICED = """
version: 1
name: priced
mode: enforce
multiple: judged
access: read_write
statements: {select: allow, insert: allow, update: allow, delete: allow, merge: allow, explain: allow,
  show: allow, set: allow, transaction: allow, cursor: allow, prepare: allow, copy_out: allow, copy_in: allow,
  lock: allow, notify: allow, ddl: allow, maintenance: allow}
relations: {allow: ["*.*"], catalogs: on}
functions: {allow: [builtin-safe]}
rules: {unbounded-join: "off", update-without-where: "off", delete-without-where: "off"}
cost: {max_total_cost: 1000000000000, max_rows: 1000000000000, unpriceable: "off"}
"""

BEGINNING = (
    Simple(
        "CREATE TEMP TABLE t"
        " (id int PRIMARY KEY, a text NOT NULL DEFAULT 'x' CHECK (a <> ''), b numeric(6, 2))"
    ),
    Simple("CREATE TEMP TABLE u (t_id int REFERENCES t DEFERRABLE INITIALLY DEFERRED, v jsonb)"),
    Simple("INSERT INTO t SELECT n, 'row ' || n, n * 1.5 FROM generate_series(1, 5) n"),
)

QUERIES = (
    "",
    "-- nothing",
    ";;",
    "SELECT",
    "SELECT 1",
    "TABLE t ORDER BY id",
    "SELECT 1; SELECT 1/0; SELECT 2",
    "SELECT 1; SELEC 2",
    "SELEC 1",
    "SELECT 'unfinished",
    'SELECT "grüße 💡", nowhere FROM t',
    "SELECT * FROM t WHERE id = (SELECT 'y'::int)",
    "SELECT a, count(*), sum(b) FROM t GROUP BY a ORDER BY a",
    "SELECT n, repeat('y', n * 1000) FROM generate_series(1, 40) n",
    "SELECT 1 / (3 - n) FROM generate_series(1, 5) n",
    "INSERT INTO t VALUES (6, 'six')",
    "INSERT INTO t VALUES (1, 'again')",
    "INSERT INTO t (id, a) VALUES (7, ''), (8, NULL)",
    "INSERT INTO t VALUES (9, 'nine', 12345.67) RETURNING *",
    "INSERT INTO u VALUES (99, '{}')",
    "UPDATE t SET b = b + 1 RETURNING id, b",
    "DELETE FROM t WHERE id > 4",
    "DELETE FROM u",
    "TRUNCATE u",
    "BEGIN",
    "BEGIN; INSERT INTO t VALUES (10, 'ten'); COMMIT",
    "BEGIN; SELECT 1/0; COMMIT",
    "INSERT INTO t VALUES (11, 'lost'); SELECT 1/0",
    "START TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY",
    "COMMIT",
    "COMMIT AND CHAIN",
    "ROLLBACK",
    "SAVEPOINT s",
    "ROLLBACK TO s",
    "RELEASE s",
    "SET CONSTRAINTS ALL IMMEDIATE",
    "SET TimeZone = 'Asia/Tokyo'",
    "SET LOCAL application_name = 'local'",
    "SET search_path = pg_temp, public",
    "SET search_path = nowhere",
    "SELECT set_config('search_path', 'public', false)",
    "SET DateStyle = 'German'",
    "SET nothing = 1",
    "RESET ALL",
    "SHOW search_path",
    "SHOW TimeZone; SHOW DateStyle",
    "DISCARD PLANS",
    "SELECT now() - now(), current_setting('TimeZone')",
    "DECLARE c SCROLL CURSOR FOR SELECT * FROM t ORDER BY id",
    "DECLARE h CURSOR WITH HOLD FOR SELECT n FROM generate_series(1, 9) n",
    "FETCH 2 FROM c",
    "FETCH BACKWARD 1 FROM c",
    "FETCH 3 FROM h",
    "MOVE 2 IN h",
    "CLOSE c",
    "CLOSE ALL",
    "PREPARE p (int) AS SELECT $1 + 1",
    "EXECUTE p(41)",
    "EXECUTE p",
    "EXECUTE s1(2)",
    "DEALLOCATE p",
    "DEALLOCATE ALL",
    "EXPLAIN (COSTS off) SELECT * FROM t WHERE id = 1",
    "DO $$ BEGIN RAISE NOTICE 'told % times', 3; RAISE WARNING 'ähem' USING HINT = 'h', DETAIL = 'd'; END $$",
    "DO $$ BEGIN RAISE EXCEPTION 'own' USING ERRCODE = 'XY123', COLUMN = 'c', TABLE = 't'; END $$",
    "DROP TABLE IF EXISTS never_there",
    "CREATE TEMP TABLE made AS SELECT 1 AS one",
    "DROP TABLE made",
    "ALTER TABLE t ADD COLUMN added int DEFAULT 3",
    "LISTEN channel",
    "NOTIFY channel, 'payload'",
    "UNLISTEN *",
    "COPY t (id, a) TO STDOUT",
    "COPY t (id, a) FROM STDIN",
    "COPY (SELECT 1/0) TO STDOUT",
    "VACUUM t",
)
PARAMETERISED: tuple[tuple[str, tuple[bytes | None, ...]], ...] = (
    ("SELECT $1::int + 1", (b"41",)),
    ("SELECT $1::int + 1", (b"no number",)),
    ("SELECT $1::int + 1", ()),
    ("SELECT * FROM t WHERE id = $1 OR a = $2", (b"2", b"row 3")),
    ("INSERT INTO t VALUES ($1, $2, $3) RETURNING id", (b"20", b"by value", None)),
    ("UPDATE t SET a = $2 WHERE id = $1", (b"3", "häuser".encode())),
    ("SELECT $1, $2::bytea", (b"text", b"\\x0001ff")),
)

PREPARED = ("SELECT * FROM t ORDER BY id", "SELEC", "BEGIN", "SELECT 1/0")


def conversations(
    allowed: Callable[[str], bool], reused: Sequence[str] = ("", "s1", "s2")
) -> st.SearchStrategy[list[Step]]:
    """Steps in any order, of the texts above that are ``allowed``; ``reused`` statements run again later.

    Not DECLARE by the extended protocol: behind the EXPLAIN that asks its price it stands in a pipeline,
    where PostgreSQL does not mind that no transaction was begun.
    """
    queries = [sql for sql in QUERIES if allowed(sql)]
    parameterised = [(sql, values) for sql, values in PARAMETERISED if allowed(sql)]
    names = st.sampled_from(["", "s1", "s2"])
    simple = st.builds(Simple, st.sampled_from(queries))
    piped = st.one_of(
        st.builds(Extended, st.sampled_from([q for q in queries if not q.startswith(("COPY", "DECLARE"))])),
        st.builds(
            lambda q, binary: Extended(q[0], q[1], binary), st.sampled_from(parameterised), st.booleans()
        ),
        st.builds(lambda name, q: Prepare(name, q[0]), names, st.sampled_from(parameterised)),
        st.builds(Prepare, names, st.sampled_from([sql for sql in PREPARED if allowed(sql)])),
        st.builds(
            Run, st.sampled_from(reused), st.sampled_from([(), (b"1",), (b"2", b"row")]), st.booleans()
        ),
        st.builds(DescribeStatement, names),
        st.builds(DescribePortal, st.sampled_from(["", "c", "h"])),
    )
    lines = [b"30\tthirty\n", b"31\tthir", b"ty-one\n", b"1\tagain\n", b"broken\n", b"32\t\\N\n", b""]
    copies = st.one_of(
        st.builds(
            CopyIn,
            st.sampled_from(["COPY t (id, a) FROM STDIN", "COPY nowhere FROM STDIN"]),
            st.lists(st.sampled_from(lines), max_size=5).map(tuple),
            st.sampled_from([None, b"given up"]),
        ),
        st.builds(CopyOut, st.sampled_from(["COPY t (id, a) TO STDOUT", "COPY t TO STDOUT (FORMAT binary)"])),
    )
    parts = st.lists(st.one_of(piped, piped, st.none()), max_size=6)
    pipelines = parts.map(lambda steps: Pipeline(tuple(steps)))
    return st.lists(st.one_of(simple, simple, piped, pipelines, copies), min_size=1, max_size=14)


def allowed_by_priced() -> Callable[[str], bool]:
    gate = Gate(load(PRICED, "priced.yaml"), "priced", 1 << 20)

    def allowed(sql: str) -> bool:
        # What EXECUTE runs and which path holds is known to the session alone.
        by_session = sql.startswith("EXECUTE") or "search_path" in sql
        return not by_session and gate.rule_slowly(sql.encode(), PathNames()).allowed

    return allowed


@pytest.fixture(scope="module")
def observed(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("observed")
    policies = {"shop_app": OBSERVER}  # named like its role, which the server reports to the client
    with postgres.database() as database, run_proxy(database, folder, policies) as running:
        yield running


@pytest.fixture(scope="module")
def priced(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("priced")
    with postgres.database() as database, run_proxy(database, folder, {"shop_app": PRICED}) as running:
        yield running


many = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)


@many
@given(conversation=conversations(lambda sql: True))
def test_a_conversation_is_the_same_through_the_proxy(
    observed: RunningProxy, conversation: list[Step]
) -> None:
    assert_alike(observed, conversation)


@many
@given(conversation=conversations(allowed_by_priced(), reused=("s1", "s2")))
def test_asking_for_prices_changes_nothing_else(priced: RunningProxy, conversation: list[Step]) -> None:
    """What passes the gate is asked for its price in its place in the stream, and nobody is the wiser.

    But for the place in PostgreSQL's source where an error was raised, which is EXPLAIN's, and for the
    unnamed statement that a Query has dropped: asked for its price, it fails at another step.
    """
    assert_alike(priced, conversation, places=False)


def test_prices_are_asked(priced: RunningProxy) -> None:
    assert_alike(priced, [Simple("TABLE t"), Extended(*PARAMETERISED[3])])
    asked = [r.statement for r in priced.database.records() if r.step and r.statement.startswith("EXPLAIN")]
    assert {sql.partition(") ")[2] for sql in asked} >= {"TABLE t", PARAMETERISED[3][0]}


def assert_alike(proxy: RunningProxy, conversation: list[Step], *, places: bool = True) -> None:
    direct = Witness(proxy.database.dsn("shop_app"), places=places)
    proxied = Witness(make_conninfo(**proxy.parameters("shop_app")), places=places)
    try:
        for step in (*BEGINNING, *conversation):
            assert proxied.take(step) == direct.take(step), step
    finally:
        direct.close()
        proxied.close()


@pytest.mark.parametrize(
    "step",
    [
        Simple("EXECUTE never_prepared"),
        Simple("SET standard_conforming_strings = off"),
        Simple("SET client_encoding = 'LATIN1'; SELECT 'a'"),
        Simple("SET session_replication_role = replica"),
        Simple("COPY t TO PROGRAM 'cat'"),
        Simple("SELECT pg_read_file('/etc/passwd')"),
        Simple("SELECT * FROM pg_authid"),
        Extended("SELECT 1; SELECT 2"),
    ],
)
def test_what_an_enforcing_policy_could_never_allow(observed: RunningProxy, step: Step) -> None:
    assert_alike(observed, [step, Simple("SELECT 'a\\''b'")])


PLUS_ONE = PARAMETERISED[0]


@pytest.mark.parametrize(
    "segments",
    [
        # The unnamed statement of a skipped Parse, of a failed one, and of one behind the next Sync.
        (DescribeStatement(""), Extended(""), None, Extended(*PLUS_ONE)),
        (Prepare("", "SELEC"), None, Extended(*PLUS_ONE)),
        (Prepare("", "SELECT 'first'"), None, Run("nowhere"), Prepare("", "SELECT 'skipped'")),
        (Run("nowhere"), Prepare("s1", "SELECT 'skipped'"), None, Prepare("s1", "SELECT $1::int")),
        (Prepare("s1", "SELECT $1::int"), None, Prepare("s1", "SELECT 'again'"), None, Run("s1", (b"1",))),
    ],
)
def test_names_across_the_syncs_of_a_pipeline(
    observed: RunningProxy, segments: tuple[Piped | None, ...]
) -> None:
    assert_alike(observed, [Pipeline(segments), Run("", (b"1",)), Run("s1", (b"1",)), Simple("SELECT 1")])


@pytest.mark.parametrize(
    ("options", "statement"),
    [
        ("-c standard_conforming_strings=off", r"SELECT 'a\'' || ' b'"),
        ("-c client_encoding=LATIN1", "SELECT 'caf\xe9', '\xe9'::bytea"),
    ],
)
def test_a_session_that_begins_with_another_way_of_reading(
    observed: RunningProxy, options: str, statement: str
) -> None:
    direct = psycopg.conninfo.conninfo_to_dict(observed.database.dsn("shop_app"))
    seen = []
    for place in (direct, observed.parameters("shop_app")):
        with psycopg.connect(**{**place, "options": options}, autocommit=True) as connection:
            encoding = connection.info.encoding
            row = connection.execute(statement.encode(encoding)).fetchone()
            seen.append((encoding, connection.info.parameter_status("standard_conforming_strings"), row))
    assert seen[0] == seen[1]


def test_large_objects_by_function_calls(observed: RunningProxy) -> None:
    """libpq reaches large objects by FunctionCall messages, which an enforcing policy refuses."""
    connection = psycopg2.connect(**observed.parameters("shop_app"))
    try:
        written = connection.lobject(0, "wb")
        written.write(b"x" * 100_000)
        written.close()
        assert connection.lobject(written.oid, "rb").read() == b"x" * 100_000
        connection.rollback()
        with pytest.raises(psycopg2.OperationalError, match="does not exist"):
            connection.lobject(1, "rb")
        connection.rollback()
    finally:
        connection.close()


def test_large_objects_where_the_policy_is_enforced(observed: RunningProxy) -> None:
    connection = psycopg2.connect(**observed.parameters("writer"))
    try:
        with pytest.raises(psycopg2.Error, match="FunctionCall carries no SQL"):
            connection.lobject(0, "wb")
        connection.rollback()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)
    finally:
        connection.close()
