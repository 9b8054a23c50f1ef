"""What may be tried on a clone, what its word is worth, and which definitions a statement meets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from policy import catalog_source, sandbox
from policy.catalog_names import CatalogNames
from policy.decision import Situation, decide
from policy.loader import load
from policy.model import Policy, Verdict
from policy.names import PathNames
from policy.parse import parse
from policy.replay import Again, decide_again, recorded
from policy.sandbox import Session, Tried, Worth
from tests.support.postgres import Database, Server

POLICY = """
version: 1
access: read_write
statements: {select: allow, insert: allow, update: allow, delete: allow, call: allow, cursor: allow}
relations: {allow: ["public.*"]}
functions: {allow: [builtin-safe, "public.*"]}
settings: {allow: [app.tenant, work_mem]}
sandbox: {dsn_env: CLONE, classes: [update, call]}
"""


def policy(more: str = "") -> Policy:
    return load(POLICY + more, "trying.yaml")


@pytest.mark.parametrize(
    ("sqlstate", "worth"),
    [
        ("23514", Worth.EVIDENCE),
        ("23502", Worth.EVIDENCE),
        ("22012", Worth.EVIDENCE),
        ("42703", Worth.EVIDENCE),
        ("42883", Worth.EVIDENCE),
        ("P0001", Worth.EVIDENCE),
        ("MY042", Worth.EVIDENCE),
        ("23503", Worth.ROWS),
        ("23505", Worth.ROWS),
        ("23P01", Worth.ROWS),
        ("25001", Worth.SESSION),
        ("2D000", Worth.SESSION),
        ("55000", Worth.SESSION),
        ("34000", Worth.SESSION),
        ("42501", Worth.NONE),
        ("57014", Worth.NONE),
        ("40P01", Worth.NONE),
        ("53300", Worth.NONE),
        ("55P03", Worth.NONE),
        ("25006", Worth.NONE),
        ("XX000", Worth.NONE),
        ("58030", Worth.NONE),
    ],
)
def test_what_an_error_of_the_clone_is_worth(sqlstate: str, worth: Worth) -> None:
    assert sandbox.worth(sqlstate) is worth
    tried = Tried.of({"sqlstate": sqlstate, "message": "said"})
    assert tried.is_evidence is (worth is Worth.EVIDENCE)
    assert tried.unfit is (worth is Worth.NONE)
    assert (tried.why_not is None) is (worth in (Worth.EVIDENCE, Worth.ROWS))


def test_what_the_audit_tells() -> None:
    error = {"sqlstate": "22P02", "message": 'invalid input: "secret"', "file": "int.c", "position": "7"}
    assert Tried().as_json() == {"error": None}
    assert Tried.of(error).as_json() == {
        "error": {"sqlstate": "22P02", "message": 'invalid input: "secret"', "position": "7"}
    }
    assert Tried.of(error).as_json(full=False) == {"error": {"sqlstate": "22P02"}}
    assert Tried(why_not="it is away", unfit=True).as_json() == {"error": None, "not_tried": "it is away"}
    assert Tried.cancel().is_evidence


@pytest.mark.parametrize(
    ("sql", "more", "asked"),
    [
        ("UPDATE t SET a = 1 WHERE b = 2", "", True),
        ("WITH w AS (UPDATE t SET a = 1 WHERE b = 2 RETURNING a) SELECT * FROM w", "", True),
        ("CALL p()", "", True),
        ("INSERT INTO t VALUES (1)", "", False),
        ("SELECT 1", "", False),
        ("UPDATE t SET a = 1", "", False),
        ("UPDATE t SET a = 1 WHERE b = 2", "mode: observe\n", False),
    ],
)
def test_which_statements_are_asked_for(sql: str, more: str, asked: bool) -> None:
    rules = policy(more)
    decision = decide(rules, Situation("agent", PathNames((("public",),))), parse(sql))
    assert sandbox.asks(rules, decision) is asked


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("UPDATE t SET a = 1", None),
        ("DELETE FROM t WHERE CURRENT OF c", "cursors"),
        ("DECLARE c CURSOR FOR SELECT 1", "cursors"),
        ("EXECUTE p", "prepared statements"),
        ("VACUUM t", "maintenance"),
        ("COMMIT", "transaction"),
        ("COPY t FROM STDIN", "data"),
        ("SET work_mem TO 1", "session alone"),
        ("LOCK TABLE t", "transaction alone"),
        ("UPDATE t SET a = $1", "no values"),
        ("UPDATE t SET a = 1; UPDATE t SET a = 2", "not one statement"),
        ("UPDAT t", "does not parse"),
    ],
)
def test_what_cannot_be_tried(sql: str, reason: str | None) -> None:
    why_not = sandbox.why_not(parse(sql), simple=True)
    assert (why_not is None) if reason is None else (why_not is not None and reason in why_not)


def test_types_that_the_database_has_made_have_another_number_on_the_clone() -> None:
    bound = parse("UPDATE t SET a = $1")
    assert sandbox.why_not(bound, simple=False, types=(23, 0)) is None
    assert "types" in (sandbox.why_not(bound, simple=False, types=(23, 16_400)) or "")


def session(**values: Any) -> Session:
    usual = {"settings": (("TimeZone", "UTC"),), "role": "r", "fingerprint": "f", "written": False}
    return Session(**{**usual, "temporary": (), **values})


@pytest.mark.parametrize(
    ("found", "sql", "reason"),
    [
        (session(), "UPDATE t SET a = 1", None),
        (session(written=True), "UPDATE t SET a = 1", "has written"),
        (session(temporary=("t",)), "UPDATE t SET a = 1", "temporary"),
        (session(temporary=("t",)), "UPDATE public.t SET a = 1", None),
        (session(temporary=("u",)), "UPDATE t SET a = 1 FROM u", "temporary"),
        (session(temporary=("u",)), "UPDATE t SET a = 1", None),
        (session(), "UPDATE pg_temp.t SET a = 1", "temporary"),
        (session(), "UPDATE t SET a = pg_temp.f()", "temporary"),
    ],
)
def test_what_is_not_tried_in_a_session(found: Session, sql: str, reason: str | None) -> None:
    why_not = found.why_not(parse(sql))
    assert (why_not is None) if reason is None else (why_not is not None and reason in why_not)


def test_sessions_are_alike_by_settings_and_role() -> None:
    assert session().like(session(fingerprint="other", written=True))
    assert not session().like(session(role="other"))
    assert not session().like(session(settings=(("TimeZone", "CET"),)))


def test_settings_of_applications_go_along() -> None:
    names = sandbox.settings_of(policy())
    assert "app.tenant" in names
    assert "work_mem" not in names


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        (POLICY, "sandbox-stale"),
        (POLICY.replace("[update, call]", "[update, call], on_stale: skip"), None),
        (POLICY.replace("[update, call]", "[insert]"), None),
        (POLICY.replace("sandbox:", "x-sandbox:").partition("x-sandbox:")[0], None),
        (POLICY.replace("update: allow", "update: reject"), "class-not-allowed"),
    ],
)
def test_a_refusal_for_want_of_the_clone_is_replayed_while_the_policy_asks_for_it(
    rules: str, rule: str | None
) -> None:
    body = {
        "statement": "UPDATE t SET a = 1 WHERE b = 2",
        "decision": "reject",
        "rule": "sandbox-stale",
        "search_path": [["public"]],
        "ts": "2026-11-30T00:00:00.000000+00:00",
        "sandbox": {"error": None, "not_tried": "the clone does not answer"},
        "outcome": {"sqlstate": "42501"},
    }
    again = decide_again(body, load(rules, "again.yaml"), None)
    assert again == Again(Verdict.ALLOW if rule is None else Verdict.REJECT, rule)


def test_an_error_of_the_clone_is_replayed_as_what_was_allowed() -> None:
    error = {"sqlstate": "23514", "message": "said"}
    body = {
        "statement": "UPDATE t SET a = 1 WHERE b = 2",
        "decision": "allow",
        "rule": None,
        "search_path": [["public"]],
        "ts": "2026-11-30T00:00:00.000000+00:00",
        "sandbox": {"error": error},
        "outcome": {"sqlstate": "23514"},
    }
    assert decide_again(body, policy(), None) == recorded(body) == Again(Verdict.ALLOW, None)


# --- on a server ---

SCHEMA = """
CREATE TYPE mood AS ENUM ('calm', 'keen');
CREATE DOMAIN grade AS int CHECK (VALUE > 0);
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE FUNCTION doubled(int) RETURNS int LANGUAGE sql AS 'SELECT $1 * 2';
CREATE TABLE parent (id int PRIMARY KEY, m mood, g grade, dropped int, note text DEFAULT 'n');
ALTER TABLE parent DROP COLUMN dropped;
CREATE TABLE child (id int, parent int REFERENCES parent ON DELETE CASCADE);
CREATE TABLE aside (id int);
CREATE VIEW shown AS SELECT id, note FROM parent WHERE doubled(id) > 0;
CREATE TRIGGER touched BEFORE UPDATE ON parent FOR EACH ROW EXECUTE FUNCTION touch();
CREATE POLICY own ON parent USING (id > 0);
"""


@contextmanager
def two(server: Server) -> Iterator[tuple[Database, Database]]:
    with server.database("template0") as one, server.database("template0") as other:
        for each in (one, other):
            for statement in SCHEMA.strip().split(";\n"):
                each.execute(statement)
        yield one, other


async def _told(database: Database, question: str) -> Session:
    connection = await asyncpg.connect(database.dsn())
    try:
        row = await connection.fetchrow(question)
        return sandbox.read_session(policy(), [None if v is None else str(v).encode() for v in row])
    finally:
        await connection.close()


async def _question(database: Database, sql: str) -> str:
    connection = await asyncpg.connect(database.dsn())
    try:
        names = CatalogNames(await catalog_source.read(connection), (("public",),))
        return sandbox.question(policy(), parse(sql), names)
    finally:
        await connection.close()


UPDATE = "UPDATE parent SET note = 'x' WHERE id = 1"
DIFFERENCES = {
    "ALTER TABLE parent ADD COLUMN more int": True,
    "ALTER TABLE parent ALTER note SET NOT NULL": True,
    "ALTER TABLE parent ALTER note SET DEFAULT 'm'": True,
    "ALTER TABLE parent ADD CHECK (id < 5)": True,
    "CREATE UNIQUE INDEX ON parent (note)": True,
    "CREATE INDEX ON parent (note)": False,
    "ALTER TYPE mood ADD VALUE 'wild'": True,
    "ALTER DOMAIN grade ADD CHECK (VALUE < 9)": True,
    "CREATE OR REPLACE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'": True,
    "ALTER TABLE parent DISABLE TRIGGER touched": True,
    "ALTER TABLE parent ENABLE ROW LEVEL SECURITY": True,
    "ALTER POLICY own ON parent USING (id > 1)": True,
    "ALTER TABLE child ADD COLUMN more int": True,
    "CREATE RULE r AS ON UPDATE TO parent DO ALSO NOTHING": True,
    "ALTER TABLE aside ADD COLUMN more int": False,
    "CREATE OR REPLACE FUNCTION doubled(int) RETURNS int LANGUAGE sql AS 'SELECT $1'": False,
    "COMMENT ON TABLE parent IS 'c'": False,
}


def test_a_fingerprint_tells_what_the_statement_meets_and_nothing_else(postgres: Server) -> None:
    with two(postgres) as (one, _):
        question = asyncio.run(_question(one, UPDATE))
        for ddl, tells in DIFFERENCES.items():
            before = asyncio.run(_told(one, question)).fingerprint
            one.execute(ddl)
            assert (asyncio.run(_told(one, question)).fingerprint != before) is tells, ddl


def test_a_view_brings_what_it_reads_and_calls(postgres: Server) -> None:
    with two(postgres) as (one, _):
        question = asyncio.run(_question(one, "SELECT * FROM shown"))
        before = asyncio.run(_told(one, question)).fingerprint
        one.execute("CREATE OR REPLACE FUNCTION doubled(int) RETURNS int LANGUAGE sql AS 'SELECT $1'")
        assert asyncio.run(_told(one, question)).fingerprint != before


def test_a_clone_has_the_same_fingerprint_whatever_was_dropped_before(postgres: Server) -> None:
    with two(postgres) as (one, other):
        other.execute("ALTER TABLE parent ADD COLUMN gone int")
        other.execute("ALTER TABLE parent DROP COLUMN gone")
        question = asyncio.run(_question(one, UPDATE))
        there, here = asyncio.run(_told(other, question)), asyncio.run(_told(one, question))
        assert there == here
        assert (here.role, here.written, here.temporary) == ("owner", False, ())


def test_a_session_is_set_up_like_another(database18: Database) -> None:
    wanted = session(settings=(("DateStyle", "SQL, DMY"), ("app.tenant", "it's \\ 7")), role="shop_ro")

    async def there() -> tuple[str, str, str]:
        connection = await asyncpg.connect(database18.dsn())
        try:
            async with connection.transaction():
                await connection.fetch(sandbox.setup(wanted))
                row = await connection.fetchrow(
                    "SELECT current_setting('datestyle'), current_setting('app.tenant'), current_user::text"
                )
                return tuple(row)
        finally:
            await connection.close()

    assert asyncio.run(there()) == ("SQL, DMY", "it's \\ 7", "shop_ro")
