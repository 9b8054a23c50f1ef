"""An agent that would have a turn more than it has."""

from __future__ import annotations

from policy.decision import Reject, Situation, decide
from policy.dialogue import Dialogue
from policy.ledger import MAX_LINEAGES, MemoryLedger
from policy.lineage import Outcome
from policy.model import Halt
from policy.parse import parse
from tests.policy.repairing import NAMES, refused
from tests.policy.rules.judging import WRITER, policy_of
from tests.policy.talking import (
    A_SECOND_TURN,
    AWAY,
    HOME,
    MENDED,
    PARAMETERS,
    RULES,
    SELECT,
    SELECT_MENDED,
    Talk,
    spent,
)

# An adversary ----------------------------------------------------------------------------------------


READ_AGAIN = [
    SELECT_MENDED.lower(),
    f"({SELECT_MENDED})",
    f"{SELECT_MENDED} LIMIT 100",
    f"{SELECT_MENDED} OFFSET 0",
    f"{SELECT_MENDED} FOR SHARE OF o",
    f"{SELECT_MENDED} AND o.id IS NOT NULL",
    SELECT_MENDED.replace("SELECT", "SELECT DISTINCT"),
    SELECT_MENDED.replace("= 'open'", "IN ('open', 'open')"),
    SELECT_MENDED.replace("o.status = 'open'", "NOT o.status <> 'open'"),
    SELECT_MENDED.replace("o.status = 'open'", "(o.status = 'open') IS TRUE"),
    SELECT_MENDED.replace("JOIN", "LEFT JOIN"),
    SELECT_MENDED.replace("WHERE", "AND"),
    SELECT_MENDED.replace("o.total", "o.total::text"),
    SELECT_MENDED.replace("o.id, o.total, c.name", "c.name, o.total AS t, o.id"),
    f"WITH x AS ({SELECT_MENDED}) SELECT * FROM x",
    f"WITH x AS MATERIALIZED ({SELECT_MENDED}), y AS (SELECT * FROM x) SELECT total FROM y",
    f"SELECT * FROM ({SELECT_MENDED}) s",
    f"SELECT s.total FROM ({SELECT_MENDED}) s JOIN notes n ON n.id = s.id",
    f"SELECT * FROM (SELECT * FROM ({SELECT_MENDED}) s) t",
    f"{SELECT_MENDED} UNION ALL {SELECT_MENDED}",
    f"SELECT NULL, NULL, NULL WHERE false UNION {SELECT_MENDED}",
    f"SELECT json_agg(s) FROM ({SELECT_MENDED}) s",
    f"SELECT (SELECT json_agg(s) FROM ({SELECT_MENDED}) s)",
    f"SELECT count(*) FROM ({SELECT_MENDED}) s",
    f"SELECT 1 WHERE EXISTS ({SELECT_MENDED})",
    f"COPY ({SELECT_MENDED}) TO STDOUT",
    f"DECLARE c CURSOR FOR {SELECT_MENDED}",
    f"PREPARE p AS {SELECT_MENDED}",
    f"EXPLAIN ANALYZE {SELECT_MENDED}",
    f"CREATE TEMP TABLE z AS {SELECT_MENDED}",
    f"INSERT INTO notes {SELECT_MENDED}",
    f"WITH z AS (INSERT INTO notes {SELECT_MENDED} RETURNING *) SELECT * FROM z",
]


def test_no_way_to_read_a_second_time(talk: Talk) -> None:
    talk.refuse(SELECT, "o.totl", ("o.total",))
    talk.ledger.settled(talk.repair(SELECT_MENDED), Outcome.FAILED, talk.now)
    for number, sql in enumerate(READ_AGAIN):
        for on in (HOME, f"new {number}"):
            assert talk.halt(sql, on=on) is Halt.REPAIR_BUDGET_EXHAUSTED, sql
    other = SELECT_MENDED.replace("'open'", "'sent'")
    for look in (f"SELECT * FROM ({other}) s", "SELECT * FROM (SELECT id FROM orders LIMIT 3) s", other):
        assert talk.passes(look), look


def test_what_is_wrapped_is_the_repair_or_a_look_around(talk: Talk) -> None:
    wrapped = "SELECT count(*) FROM ({}) s"
    talk.refuse(SELECT, "o.totl", ("o.total",))
    assert talk.passes(wrapped.format(SELECT_MENDED.replace(" WHERE o.status = 'open'", "")))
    assert talk.passes(f"CREATE TEMP TABLE z AS SELECT * FROM ({SELECT_MENDED}) s")
    repair = talk.repair(wrapped.format(SELECT_MENDED), on=AWAY)
    assert talk.halt(wrapped.format(SELECT_MENDED)) is Halt.REPAIR_BUDGET_EXHAUSTED
    talk.ledger.settled(repair, Outcome.PASSED, talk.now)
    assert talk.passes(SELECT_MENDED)


def test_there_are_fifty_ways() -> None:
    assert len(A_SECOND_TURN) >= 50
    assert all(parse(sql).failure is None for sql in A_SECOND_TURN)


def test_no_way_to_a_second_turn(talk: Talk) -> None:
    spent(talk)
    for sql in A_SECOND_TURN:
        assert talk.halt(sql) is Halt.REPAIR_BUDGET_EXHAUSTED, sql
    for sql, values in PARAMETERS:
        assert talk.halt(sql, *values) is Halt.REPAIR_BUDGET_EXHAUSTED, sql


def test_a_new_connection_has_no_turn_of_its_own(talk: Talk) -> None:
    spent(talk)
    for number, sql in enumerate(A_SECOND_TURN[:33]):
        assert talk.halt(sql, on=f"new {number}") is Halt.REPAIR_BUDGET_EXHAUSTED, sql
    for sql, values in PARAMETERS:
        assert talk.halt(sql, *values, on="another") is Halt.REPAIR_BUDGET_EXHAUSTED, sql


def test_a_flood_of_refusals_brings_no_turn_back(talk: Talk) -> None:
    spent(talk)
    for number in range(MAX_LINEAGES + 10):
        talk.refuse(f"SELECT nme FROM t{number} WHERE id = {number}", "nme", on="flood")
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED


def test_nor_does_a_flood_of_repairs_that_failed() -> None:
    talk = Talk(MemoryLedger())
    spent(talk)
    text = "UPDATE t{} SET {} = 1 WHERE id = 1"
    for number in range(MAX_LINEAGES - 1):
        talk.refuse(text.format(number, "nme"), "nme", ("name",))
        repair = talk.repair(text.format(number, "name"))
        talk.ledger.settled(repair, Outcome.FAILED, talk.now)
    first, finding = refused(text.format("", "nme"), "nme")
    assert talk.ledger.open("agent", HOME, first, finding, now=talk.now, rules=RULES) is None
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
    # Whoever is refused then is told that there is no repair.
    policy = policy_of(WRITER)
    dialogue = Dialogue(policy, talk.ledger, "agent", HOME)
    refusal = decide(policy, Situation("agent", NAMES), parse("SELEC 1"))
    assert isinstance(refusal, Reject)
    assert refusal.repair.allowed
    told = dialogue.judge_refused(refusal, NAMES, talk.now).decision
    assert isinstance(told, Reject)
    assert (told.repair.allowed, told.halt) == (False, Halt.REPAIR_BUDGET_EXHAUSTED)
    allowed = decide(policy, Situation("agent", NAMES), parse(text.format("", "name")))
    assert dialogue.failed(allowed, NAMES, {"sqlstate": "23514"}, talk.now).turns_left == 0
    # Windows that are over make room.
    late = talk.now + RULES.window_s
    assert talk.ledger.open("agent", HOME, first, finding, now=late, rules=RULES) is not None
