from __future__ import annotations

import pytest

from policy.model import Halt
from tests.policy.rules.judging import READER, WRITER, passes, policy_of, violations

RULE = "access-read-only"
READS_BUT_ALLOWS_WRITES = policy_of(
    READER, statements="{select: allow, update: allow, lock: allow, do: allow, set: allow}"
)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("UPDATE orders SET total = 0 WHERE id = 1", "update statements write or lock"),
        ("SELECT id FROM orders FOR SHARE", "lock statements write or lock"),
        ("DO 'BEGIN COMMIT; SET TRANSACTION READ WRITE; DELETE FROM orders; END'", "do statements write"),
        ("LOCK TABLE orders", "lock statements write or lock"),
        ("LOCK TABLE orders IN ROW SHARE MODE", "lock statements write or lock"),
        ("LOCK TABLE orders IN ROW EXCLUSIVE MODE NOWAIT", "lock statements write or lock"),
    ],
)
def test_a_row_that_allows_a_write_does_not_undo_read_only(sql: str, says: str) -> None:
    (found,) = violations(sql, READS_BUT_ALLOWS_WRITES, RULE)
    assert found.message.startswith(f"Policy reader is read-only and {says}")
    assert found.halt is Halt.CLASS_NOT_REPAIRABLE


@pytest.mark.parametrize(
    "sql",
    ["LOCK TABLE orders IN ACCESS SHARE MODE", "LOCK ONLY orders, customers IN ACCESS SHARE MODE NOWAIT"],
)
def test_the_lock_that_reading_takes_may_be_taken_where_its_row_allows_it(sql: str) -> None:
    passes(sql, READS_BUT_ALLOWS_WRITES)
    assert violations(sql, policy_of(), "class-not-allowed")


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("BEGIN READ WRITE", "BEGIN asks for READ WRITE"),
        ("START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE", "BEGIN asks for READ WRITE"),
        ("BEGIN READ ONLY, READ WRITE", "BEGIN asks for READ WRITE"),
        ("SET TRANSACTION READ WRITE", "SET TRANSACTION asks for READ WRITE"),
        (
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
            "SET SESSION CHARACTERISTICS asks for READ WRITE",
        ),
        ("SET default_transaction_read_only = off", "default_transaction_read_only may only be set to on"),
        ("SET LOCAL transaction_read_only TO 'no'", "transaction_read_only may only be set to on"),
        ("SET transaction_read_only TO DEFAULT", "transaction_read_only may only be set to on"),
        ("SET LOCAL transaction_read_only = DEFAULT", "transaction_read_only may only be set to on"),
        ("RESET transaction_read_only", "transaction_read_only may only be set to on"),
        ("SELECT set_config('transaction_read_only', 'off', true)", "may only be set to on"),
        ("SELECT set_config('transaction_read_only', $1, true)", "may only be set to on"),
    ],
)
def test_ways_to_read_write_are_refused(sql: str, says: str) -> None:
    (found,) = violations(sql, policy_of(), RULE)
    assert says in found.message
    assert found.position


@pytest.mark.parametrize(
    "sql",
    [
        "BEGIN",
        "BEGIN READ ONLY",
        "START TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET TRANSACTION READ ONLY",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET default_transaction_read_only = on",
        "SET default_transaction_read_only TO DEFAULT",
        "RESET default_transaction_read_only",
        "SELECT set_config('transaction_read_only', 'true', true)",
        "COMMIT AND CHAIN",
    ],
)
def test_staying_read_only_passes(sql: str) -> None:
    passes(sql, policy_of())


@pytest.mark.parametrize("sql", ["BEGIN READ WRITE", "SET default_transaction_read_only = off"])
def test_a_read_write_policy_does_not_mind(sql: str) -> None:
    passes(sql, policy_of(WRITER))
