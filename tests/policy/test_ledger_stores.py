"""Where turns are kept: JSON there and back, several processes, stores that fail."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from policy.ledger import Book, LedgerUnavailableError, MemoryLedger
from policy.ledger_sqlite import SqliteLedger
from policy.lineage import Lineage, Outcome, from_json, to_json
from policy.model import Halt
from policy.repair import Attempt, Finding
from policy.sandbox import Tried
from tests.policy.repairing import made, refused
from tests.policy.talking import (
    A_SECOND_TURN,
    HOME,
    LOOKS,
    MENDED,
    RULES,
    SELECT,
    UPDATE,
    Endings,
    Talk,
    spent,
)

# Stores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql", [*LOOKS, *A_SECOND_TURN, SELECT, "SELEC nothing", "SELECT $1, 1.5, NULL, true"]
)
def test_a_lineage_is_the_same_after_json(sql: str) -> None:
    first: Attempt = made(sql)
    finding = Finding(("42703",), position=9, missing=("a",), functions=("f",), values=True)
    lineage = Lineage("id", "scope", "c", first, finding, 1.0, 2.0, 1, 0, frozenset({"t"}), Halt.UNCHANGED)
    lineage = replace(lineage, tried=Tried({"sqlstate": "23514"}, "the clone is away"))
    again = from_json(json.loads(json.dumps(to_json(lineage))))
    assert again.finding == finding
    assert again.first.levels == first.levels
    assert [type(level) for level in again.first.levels] == [type(level) for level in first.levels]
    assert (again.answered, again.halt, again.watch) == (lineage.answered, lineage.halt, False)
    assert again.tried == lineage.tried


def test_what_the_clone_said_last_is_kept_to_the_end(ledger: Book) -> None:
    talk, endings = Talk(ledger), Endings(ledger)
    failing = Tried({"sqlstate": "23514", "message": "x" * 5_000, "severity": "ERROR"})
    first, finding = refused(UPDATE, "onhand", ("on_hand",))
    for outcome, said in (
        (Outcome.PASSED, Tried()),
        (Outcome.FAILED, failing.brief()),
        (None, failing.brief()),
    ):
        ledger.open(
            talk.scope, HOME, first, finding, now=talk.now, rules=RULES, tried=failing.brief(), name="of mine"
        )
        repair = talk.repair(MENDED)
        assert repair.part == ("of mine", 1)
        if outcome is None:
            assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
            ledger.sweep(talk.now + RULES.window_s)
        else:
            ledger.settled(repair, outcome, talk.now, tried=said)
        assert endings.told[-1].tried == said
        ledger.sweep(talk.now + RULES.window_s)
    told = endings.told[-1].tried
    assert told is not None
    assert told.as_json() == {"error": {"sqlstate": "23514", "message": "x" * 1_000}}
    talk.refuse(UPDATE, "onhand")
    ledger.settled(talk.repair(MENDED), Outcome.PASSED, talk.now)
    assert endings.told[-1].tried is None


def test_workers_of_two_versions_may_share_a_store(
    ledger: Book, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A lineage that was written before ``tried`` was kept is one without; what it has spent is spent."""
    if isinstance(ledger, MemoryLedger):
        return

    def before(body: str | bytes) -> str:
        return json.dumps({key: value for key, value in json.loads(body).items() if key != "tried"})

    talk = Talk(ledger)
    spent(talk)
    if isinstance(ledger, SqliteLedger):
        with sqlite3.connect(tmp_path / "ledger.db") as file:
            ((written,),) = file.execute("SELECT body FROM lineage")
            file.execute("UPDATE lineage SET body = ?", (before(written),))
    else:
        client = request.getfixturevalue("redis_server").client
        for key in client.scan_iter(match="pgturnstile:ledger:1:*", _type="hash"):
            for name, body in client.hgetall(key).items():
                client.hset(key, name, before(body))
    assert talk.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED


def test_two_processes_see_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    one, other = Talk(SqliteLedger(path)), Talk(SqliteLedger(path))
    one.refuse(UPDATE, "onhand", ("on_hand",))
    assert other.ledger.has_open("agent")
    repair = other.repair(MENDED)
    assert one.halt(MENDED) is Halt.REPAIR_BUDGET_EXHAUSTED
    one.ledger.settled(repair, Outcome.PASSED, one.now)
    assert not other.ledger.has_open("agent")
    assert path.stat().st_mode & 0o077 == 0


def test_a_store_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database at all, whatever its name may be" * 40)
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    first, finding = refused(UPDATE, "onhand")
    for name in ("folder", "text", "newer"):
        store = SqliteLedger(tmp_path / name)
        with pytest.raises(LedgerUnavailableError):
            store.has_open("agent")
        with pytest.raises(LedgerUnavailableError):
            store.open("agent", HOME, first, finding, now=0.0, rules=RULES)
        store.close()


def test_a_lineage_that_cannot_be_read_lets_nothing_pass(tmp_path: Path) -> None:
    talk = Talk(SqliteLedger(tmp_path / "ledger.db"))
    talk.refuse(UPDATE, "onhand")
    with sqlite3.connect(tmp_path / "ledger.db") as file:
        file.execute("UPDATE lineage SET body = '{}'")
    with pytest.raises(LedgerUnavailableError):
        talk.say(MENDED)


def test_a_store_that_is_held_by_another_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy.ledger_sqlite.BUSY_S", 0.01)
    talk = Talk(SqliteLedger(tmp_path / "ledger.db"))
    talk.refuse(UPDATE, "onhand")
    holder = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnavailableError):
        talk.say(MENDED)
    holder.execute("ROLLBACK")
    talk.repair(MENDED)
