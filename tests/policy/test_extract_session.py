"""Settings, transactions, the session's own statements, COPY."""

from __future__ import annotations

import pytest

from policy.facts import CopyEnd, SessionAction, SettingHow, TransactionKind
from tests.policy.extracting import facts

SETTINGS = [
    ("SET Work_Mem = '1GB'", "work_mem", SettingHow.SET, ("1GB",), False),
    ("SET LOCAL a.B TO 1, 'x', off", "a.b", SettingHow.SET, ("1", "x", "off"), True),
    ("SET a TO DEFAULT", "a", SettingHow.SET, None, False),
    ("SET TIME ZONE 'UTC'", "timezone", SettingHow.SET, ("UTC",), False),
    ("SET TIME ZONE LOCAL", "timezone", SettingHow.SET, None, False),
    ("SET NAMES 'latin1'", "client_encoding", SettingHow.SET, ("latin1",), False),
    ("SET SCHEMA 'x'", "search_path", SettingHow.SET, ("x",), False),
    ('SET search_path TO a, "B"', "search_path", SettingHow.SET, ("a", "B"), False),
    ("SET ROLE admin", "role", SettingHow.SET, ("admin",), False),
    ("SET ROLE NONE", "role", SettingHow.SET, ("none",), False),
    ("RESET ROLE", "role", SettingHow.RESET, None, False),
    ("SET SESSION AUTHORIZATION bob", "session_authorization", SettingHow.SET, ("bob",), False),
    ("RESET SESSION AUTHORIZATION", "session_authorization", SettingHow.RESET, None, False),
    ("SET XML OPTION DOCUMENT", "xmloption", SettingHow.SET, ("DOCUMENT",), False),
    ("RESET a", "a", SettingHow.RESET, None, False),
    ("RESET ALL", None, SettingHow.RESET_ALL, None, False),
    ("DISCARD ALL", None, SettingHow.RESET_ALL, None, False),
    ("SELECT set_config('Role', 'x', true)", "role", SettingHow.SET_CONFIG, ("x",), True),
    ("SELECT pg_catalog.set_config('a', $1, false)", "a", SettingHow.SET_CONFIG, None, False),
    ("SELECT set_config('a' || 'b', 'x', true)", None, SettingHow.SET_CONFIG, ("x",), True),
    ("SELECT set_config($1, 'x', 'on')", None, SettingHow.SET_CONFIG, ("x",), True),
    ("SELECT evil.set_config('a', 'x', 'off'::bool)", "a", SettingHow.SET_CONFIG, ("x",), False),
    (
        "SELECT set_config(is_local => true, new_value => 'x', setting_name => 'A')",
        "a",
        SettingHow.SET_CONFIG,
        ("x",),
        True,
    ),
    ("SELECT set_config('a', VARIADIC 'b')", None, SettingHow.SET_CONFIG, ("b",), False),
    ("SELECT U&\"set_conf\\0069g\"('a', 'x', true)", "a", SettingHow.SET_CONFIG, ("x",), True),
    (
        "EXPLAIN SELECT 1 FROM t WHERE set_config('a', 'x', true) = 'x'",
        "a",
        SettingHow.SET_CONFIG,
        ("x",),
        True,
    ),
    ("ALTER ROLE r SET a = 'x'", "a", SettingHow.ALTER, ("x",), False),
    ("ALTER ROLE r RESET ALL", None, SettingHow.ALTER, None, False),
    ("ALTER DATABASE d SET a TO 1", "a", SettingHow.ALTER, ("1",), False),
    ("ALTER SYSTEM SET a = 1", "a", SettingHow.ALTER, ("1",), False),
    ("ALTER FUNCTION f() SET a = 1", "a", SettingHow.ALTER, ("1",), False),
    (
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql SET a FROM CURRENT AS ''",
        "a",
        SettingHow.ALTER,
        None,
        False,
    ),
    (
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "default_transaction_read_only",
        SettingHow.TRANSACTION,
        ("0",),
        False,
    ),
]


@pytest.mark.parametrize(("sql", "name", "how", "values", "local"), SETTINGS)
def test_settings(
    sql: str, name: str | None, how: SettingHow, values: tuple[str, ...] | None, local: bool
) -> None:
    (setting,) = facts(sql).settings
    assert (setting.name, setting.how, setting.values, setting.local) == (name, how, values, local)


def test_setting_names_fold_ascii_alone() -> None:
    # U+212A KELVIN SIGN: str.lower makes it a k, PostgreSQL does not.
    (setting,) = facts('SET "Wor\u212a_MEM" = 1').settings
    assert setting.name == "wor\u212a_mem"


@pytest.mark.parametrize(
    ("sql", "kind", "read_only", "isolation"),
    [
        ("BEGIN", TransactionKind.BEGIN, None, None),
        ("BEGIN READ ONLY", TransactionKind.BEGIN, True, None),
        (
            "START TRANSACTION READ WRITE, ISOLATION LEVEL SERIALIZABLE",
            TransactionKind.BEGIN,
            False,
            "serializable",
        ),
        ("BEGIN READ ONLY READ WRITE", TransactionKind.BEGIN, False, None),
        ("COMMIT", TransactionKind.COMMIT, None, None),
        ("ROLLBACK", TransactionKind.ROLLBACK, None, None),
        ("SET TRANSACTION READ WRITE", TransactionKind.SET_TRANSACTION, False, None),
        ("SET LOCAL TRANSACTION READ ONLY", TransactionKind.SET_TRANSACTION, True, None),
        (
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
            TransactionKind.SET_CHARACTERISTICS,
            False,
            None,
        ),
        ("PREPARE TRANSACTION 'x'", TransactionKind.PREPARE, None, None),
    ],
)
def test_transactions(sql: str, kind: TransactionKind, read_only: bool | None, isolation: str | None) -> None:
    (transaction,) = facts(sql).transactions
    assert (transaction.kind, transaction.read_only, transaction.isolation) == (kind, read_only, isolation)


def test_transaction_names_and_snapshots() -> None:
    assert facts("SAVEPOINT a").transactions[0].name == "a"
    assert facts("COMMIT PREPARED 'g'").transactions[0].name == "g"
    assert facts("SET TRANSACTION SNAPSHOT 's'").transactions[0].snapshot == "s"
    assert facts("COMMIT AND CHAIN").transactions[0].chain


@pytest.mark.parametrize(
    ("sql", "action", "name"),
    [
        ("PREPARE p AS SELECT 1", SessionAction.PREPARE, "p"),
        ("EXECUTE p(1)", SessionAction.EXECUTE, "p"),
        ("EXPLAIN EXECUTE p(1)", SessionAction.EXECUTE, "p"),
        ("CREATE TABLE t AS EXECUTE p", SessionAction.EXECUTE, "p"),
        ("DEALLOCATE p", SessionAction.DEALLOCATE, "p"),
        ("DEALLOCATE ALL", SessionAction.DEALLOCATE_ALL, None),
        ("DECLARE c CURSOR FOR SELECT 1", SessionAction.DECLARE, "c"),
        ("FETCH 3 FROM c", SessionAction.FETCH, "c"),
        ("MOVE c", SessionAction.FETCH, "c"),
        ("CLOSE c", SessionAction.CLOSE, "c"),
        ("CLOSE ALL", SessionAction.CLOSE_ALL, None),
        ("DISCARD ALL", SessionAction.DISCARD_ALL, None),
        ("DISCARD TEMP", SessionAction.DISCARD, "temp"),
        ("LISTEN x", SessionAction.LISTEN, "x"),
        ("UNLISTEN *", SessionAction.UNLISTEN, None),
        ("NOTIFY x", SessionAction.NOTIFY, "x"),
    ],
)
def test_session(sql: str, action: SessionAction, name: str | None) -> None:
    (done,) = facts(sql).session
    assert (done.action, done.name, done.hold, done.position) == (action, name, False, 1)


def test_a_held_cursor_and_one_that_is_only_explained() -> None:
    assert facts("DECLARE c CURSOR WITH HOLD FOR SELECT 1").session[0].hold
    assert facts("EXPLAIN DECLARE c CURSOR FOR SELECT 1").session == ()


@pytest.mark.parametrize(
    ("sql", "end"),
    [
        ("COPY t TO STDOUT", CopyEnd.STDOUT),
        ("COPY t FROM STDIN", CopyEnd.STDIN),
        ("COPY t TO '/x'", CopyEnd.TO_FILE),
        ("COPY t FROM '/x'", CopyEnd.FROM_FILE),
        ("COPY (SELECT 1) TO PROGRAM 'x'", CopyEnd.TO_PROGRAM),
        ("COPY t FROM PROGRAM 'x'", CopyEnd.FROM_PROGRAM),
    ],
)
def test_copy_ends(sql: str, end: CopyEnd) -> None:
    (copied,) = facts(sql).copies
    assert copied.end is end


def test_copy_options() -> None:
    (copied,) = facts("COPY t (a) FROM STDIN WITH (FORMAT csv, HEADER, FORCE_NULL (a, b)) WHERE a > 1").copies
    assert copied.columns == ("a",)
    assert copied.options == (("format", "csv"), ("header", ""), ("force_null", "a,b"))
    assert copied.where is not None


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TEMP TABLE t (a int)",
        "CREATE TEMP TABLE t AS SELECT 1",
        "SELECT * INTO TEMPORARY t FROM u",
        "CREATE TABLE pg_temp.t (a int)",
        "CREATE TEMP VIEW v AS SELECT 1",
        "CREATE TEMP SEQUENCE s",
    ],
)
def test_temporary_objects(sql: str) -> None:
    assert facts(sql).creates_temp
    assert not facts("CREATE TABLE t AS SELECT 1").creates_temp
