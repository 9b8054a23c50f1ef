"""What names mean while a session changes what they mean: search_path, its own DDL, temporary relations."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy

ANALYST = """
version: 1
name: analyst
access: read_only
statements: {select: allow, show: allow, set: allow, transaction: allow, prepare: allow}
relations: {allow: ["public.*", "extra.*"], deny: [extra.secrets]}
columns: {public.people: {deny: [pay]}}
functions: {allow: [builtin-safe, public.shout]}
"""
BUILDER = """
version: 1
name: builder
access: read_write
multiple: judged
statements: {select: allow, show: allow, set: allow, transaction: allow, insert: allow, ddl: allow, do: allow}
relations: {allow: ["public.*", "extra.*"], deny: [extra.secrets, public.hidden]}
columns: {public.people: {allow: [id, name, made]}}
functions: {allow: [builtin-safe, "public.made_*", {schema: extra, volatility: immutable}]}
"""
SCHEMA = """
CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL, pay numeric);
INSERT INTO people VALUES (1, 'Ann', 7777);
CREATE FUNCTION public.shout(text) RETURNS text LANGUAGE sql AS 'SELECT upper($1)';
CREATE SCHEMA extra;
CREATE TABLE extra.people (id int, pay text, other text);
INSERT INTO extra.people VALUES (9, 'open', 'x');
CREATE TABLE extra.secrets (id int, word text);
CREATE FUNCTION extra.shout(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION extra.twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * $1';
CREATE SCHEMA shut;
CREATE TABLE shut.people (id int, name text);
GRANT USAGE, CREATE ON SCHEMA extra, public TO shop_app;
GRANT USAGE ON SCHEMA shut TO shop_app;
GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA extra, public, shut TO shop_app;
ALTER FUNCTION extra.twice(int) OWNER TO shop_app;
ALTER TABLE people OWNER TO shop_app;
"""
Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def gateway(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """One for all: each test undoes what it does."""
    policies = {"analyst": ANALYST, "builder": BUILDER}
    with postgres.database() as database:
        database.execute(SCHEMA)
        with run_proxy(database, tmp_path_factory.mktemp("track"), policies) as running:
            yield running


@contextlib.contextmanager
def connected(gateway: RunningProxy, user: str) -> Iterator[Connection]:
    with psycopg.connect(**gateway.parameters(user), autocommit=True) as connection:
        yield connection


def refused_by(connection: Connection, sql: str) -> str | None:
    """The rule that refuses ``sql``, None where it passes or the server itself refuses it."""
    try:
        connection.execute(sql.encode())
    except psycopg.Error as error:
        routine = error.diag.source_function or ""
        return routine if "-" in routine else None
    return None


PAY = "SELECT pay FROM people"
COLUMN = "column-not-allowed"


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        # PAY is hidden in public.people and open in extra.people.
        (["SET search_path = extra, public"], None),
        (["SET search_path = extra, public", "RESET search_path"], COLUMN),
        (["SET search_path = extra, public", "SET search_path TO DEFAULT"], COLUMN),
        (["SELECT set_config('search_path', 'extra', false)"], None),
        (["BEGIN", "SET LOCAL search_path = extra, public"], None),
        (["BEGIN", "SET LOCAL search_path = extra", "COMMIT"], COLUMN),
        (["BEGIN", "SET LOCAL search_path = extra", "ROLLBACK"], COLUMN),
        (["BEGIN", "SET search_path = extra", "COMMIT"], None),
        (["BEGIN", "SET search_path = extra", "ROLLBACK"], COLUMN),
        (["BEGIN", "SAVEPOINT s", "SET search_path = extra", "ROLLBACK TO s"], COLUMN),
        (["BEGIN", "SAVEPOINT s", "SET search_path = extra", "RELEASE s"], None),
        (["SET search_path = extra", "BEGIN", "SAVEPOINT s", "SET LOCAL search_path = public", "ROLLBACK TO s"], None),
        (["BEGIN", "SET LOCAL search_path = extra", "SELECT 1/0", "ROLLBACK"], COLUMN),
        (["SET search_path = extra", "BEGIN", "SET LOCAL search_path = public"], COLUMN),
        (["SET search_path = extra", "DISCARD ALL"], COLUMN),
        (["PREPARE p AS SET search_path = extra"], COLUMN),
    ],
)  # fmt: skip
def test_names_follow_the_search_path(gateway: RunningProxy, steps: list[str], outcome: str | None) -> None:
    with connected(gateway, "analyst") as connection:
        for step in steps:
            with contextlib.suppress(psycopg.Error):
                connection.execute(step.encode())
        assert refused_by(connection, PAY) == outcome
        if outcome is None:
            assert connection.execute(PAY.encode()).fetchall() == [("open",)]


def test_functions_follow_it_too(gateway: RunningProxy) -> None:
    with connected(gateway, "analyst") as connection:
        assert connection.execute("SELECT shout('a')").fetchone() == ("A",)
        connection.execute("SET search_path = extra, public")
        assert refused_by(connection, "SELECT shout('a')") == "function-not-allowed"


def test_a_path_into_a_closed_schema_is_no_way_in(gateway: RunningProxy) -> None:
    with connected(gateway, "analyst") as connection:
        connection.execute("BEGIN")
        assert refused_by(connection, "SET LOCAL search_path = shut, public") == "setting-not-allowed"


def test_a_temporary_relation_that_shadows_a_permitted_one_is_not_mistaken_for_it(
    gateway: RunningProxy,
) -> None:
    with connected(gateway, "builder") as connection:
        connection.execute("CREATE TEMP TABLE people (id int, pay text)")
        # Whichever is meant, the hidden column of the permitted one counts.
        assert refused_by(connection, PAY) == COLUMN
        assert refused_by(connection, "SELECT pay FROM pg_temp.people") == "relation-not-allowed"
        assert refused_by(connection, "CREATE TEMP VIEW v AS SELECT p.pay FROM public.people p") == COLUMN
        assert refused_by(connection, "SELECT id FROM people") is None


MADE = "CREATE TABLE extra.made (id int, note text)"


@pytest.mark.parametrize(
    ("steps", "sql", "outcome"),
    [
        ([MADE], "SELECT id, note FROM extra.made", None),
        ([MADE], "SELECT m.id FROM extra.made m JOIN public.people p USING (id)", None),
        ([MADE], "INSERT INTO extra.made VALUES (1, 'a') RETURNING note", None),
        ([MADE, "SAVEPOINT s"], "SELECT id FROM extra.made", None),
        (["ALTER TABLE public.people ADD made int"], "SELECT made FROM public.people", None),
        (["ALTER TABLE public.people ALTER name DROP NOT NULL"], "INSERT INTO public.people (id) VALUES (2)", None),
        (["CREATE VIEW extra.peek AS SELECT id FROM public.people"], "SELECT id FROM extra.peek", None),
        (["CREATE FUNCTION public.made_up() RETURNS int LANGUAGE sql AS 'SELECT 7'"], "SELECT made_up()", None),
        (["DO 'BEGIN CREATE TABLE extra.did (id int); END'"], "SELECT id FROM extra.did", None),
        # What is not permitted stays so, known or not.
        ([MADE], "SELECT id FROM extra.secrets", "relation-not-allowed"),
        (["DO 'BEGIN CREATE TABLE public.hidden (id int); END'"], "SELECT id FROM hidden", "relation-not-allowed"),
        ([MADE], "SELECT pay FROM public.people", COLUMN),
        (["ALTER TABLE public.people RENAME name TO wage"], "SELECT wage FROM public.people", COLUMN),
        (["ALTER TABLE public.people RENAME name TO wage"], "SELECT * FROM public.people", COLUMN),
        (["CREATE FUNCTION public.other() RETURNS int LANGUAGE sql AS 'SELECT 7'"], "SELECT other()", "function-not-allowed"),
        (
            ["CREATE OR REPLACE FUNCTION extra.twice(int) RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN 3; END'"],
            "SELECT extra.twice(1)",
            "function-not-allowed",
        ),
    ],
)  # fmt: skip
def test_what_an_open_transaction_has_made_is_left_to_the_server(
    gateway: RunningProxy, steps: list[str], sql: str, outcome: str | None
) -> None:
    with connected(gateway, "builder") as connection:
        connection.execute("BEGIN")
        for step in steps:
            connection.execute(step.encode())
        assert refused_by(connection, sql) == outcome
        status = psycopg.pq.TransactionStatus.INERROR if outcome else psycopg.pq.TransactionStatus.INTRANS
        assert connection.info.transaction_status == status
        connection.execute("ROLLBACK")
        # Undone, it is unknown again, and told so by the gate.
        if outcome is None and "made" in sql and "FROM extra" in sql:
            assert refused_by(connection, "SELECT id FROM extra.made") == "unknown-relation"


def test_later_parts_of_a_string_see_what_earlier_ones_make(gateway: RunningProxy) -> None:
    with connected(gateway, "builder") as connection:
        connection.execute(
            f"{MADE}; INSERT INTO extra.made VALUES (1, 'a'); SELECT note FROM extra.made".encode()
        )
        assert connection.execute("SELECT note FROM extra.made").fetchone() == ("a",)
        connection.execute("DROP TABLE extra.made")
        assert refused_by(connection, "CREATE TABLE extra.b (id int); SELECT word FROM extra.secrets") == (
            "relation-not-allowed"
        )


def test_without_a_change_of_ones_own_kinds_of_functions_count(gateway: RunningProxy) -> None:
    with connected(gateway, "builder") as connection, connection.transaction():
        assert connection.execute("SELECT extra.twice(1)").fetchone() == (2,)


def test_an_alteration_by_another_connection_is_seen(gateway: RunningProxy) -> None:
    with connected(gateway, "analyst") as connection:
        assert refused_by(connection, "SELECT made FROM public.people") == "unknown-column"
        gateway.database.execute("ALTER TABLE public.people ADD made int")
        assert refused_by(connection, "SELECT made FROM public.people") is None
        with connected(gateway, "builder") as other:
            other.execute("ALTER TABLE public.people RENAME made TO stale")
            assert refused_by(other, "SELECT stale FROM public.people") == COLUMN, "on no list of its policy"
        assert refused_by(connection, "SELECT stale FROM public.people") is None
