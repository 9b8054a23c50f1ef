"""A store that fails: who is still told what, how often it is asked and how often the log says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import structlog
from structlog.testing import capture_logs

from policy.ledger import Book, LedgerUnavailableError, Lineages, MemoryLedger
from policy.lineage import Halted, NotAnAnswer, Outcome, Repair
from policy.model import Halt, RepairRules
from proxy.ledgers import MAX_UNTOLD, REMIND_S, REST_S, LedgerStore, SharedLedger, ledger_of
from tests.policy.repairing import made, refused

T = TypeVar("T")
RULES = RepairRules(turns=1, window_s=600.0)
WRONG = "UPDATE inventory SET onhand = 44 WHERE product_id = 5 AND warehouse = 'leeds'"
RIGHT = WRONG.replace("onhand", "on_hand")
OTHER = "UPDATE coupons SET used = 1 WHERE code = 'A'"


class Store(Book):
    """A memory that can be made to fail; ``asked`` counts how often it was asked."""

    def __init__(self) -> None:
        self.works = True
        self.asked = 0
        self.memory = MemoryLedger()

    def has_open(self, scope: str) -> bool:
        self._ask()
        return self.memory.has_open(scope)

    def sweep(self, now: float) -> None:
        self._ask()
        self.memory.sweep(now)

    def _change(self, scope: str, now: float, change: Callable[[Lineages], T]) -> T:
        self._ask()
        return self.memory._change(scope, now, change)

    def _ask(self) -> None:
        self.asked += 1
        if not self.works:
            raise LedgerUnavailableError("gone")


class Setting:
    """A failing store behind a ledger, and a clock that only the test turns."""

    def __init__(self) -> None:
        self.store = Store()
        self.now = 100.0
        self.ledger = SharedLedger(self.store, "the store", clock=lambda: self.now)

    def refuse(self, on: str = "c1") -> str | None:
        first, finding = refused(WRONG, "onhand", ("on_hand",))
        return self.ledger.open("agent", on, first, finding, now=self.now, rules=RULES)

    def consider(self, sql: str, on: str = "c1") -> Repair | Halted | NotAnAnswer:
        return self.ledger.consider("agent", on, made(sql), self.now)


@pytest.fixture
def setting() -> Setting:
    structlog.reset_defaults()
    return Setting()


def test_while_the_store_answers_it_alone_says_whose_turn_it_is(setting: Setting) -> None:
    assert setting.refuse() is not None
    repair = setting.consider(RIGHT)
    assert isinstance(repair, Repair)
    again = setting.consider(RIGHT)
    assert isinstance(again, Halted)
    assert again.halt is Halt.REPAIR_BUDGET_EXHAUSTED
    setting.ledger.settled(repair, Outcome.PASSED, setting.now)
    assert not setting.ledger.has_open("agent")
    # Another process closed it, or opened another: this one's memory of it says nothing.
    setting.refuse()
    setting.store.memory = MemoryLedger()
    assert setting.consider(RIGHT) == NotAnAnswer()


def test_what_answers_a_refusal_of_this_process_is_refused_and_nothing_else(setting: Setting) -> None:
    setting.refuse()
    setting.store.works = False
    assert setting.ledger.has_open("agent")
    with pytest.raises(LedgerUnavailableError):
        setting.consider(RIGHT)
    with pytest.raises(LedgerUnavailableError):
        setting.consider(RIGHT, on="c2")
    assert setting.consider(OTHER) == NotAnAnswer()
    assert not setting.ledger.has_open("somebody else")
    setting.now += RULES.window_s
    assert setting.consider(RIGHT) == NotAnAnswer()


def test_a_refusal_that_the_store_did_not_take_grants_no_turn(setting: Setting) -> None:
    setting.store.works = False
    assert not setting.ledger.down
    assert setting.refuse() is None
    assert setting.ledger.down
    with pytest.raises(LedgerUnavailableError):
        setting.consider(RIGHT)


def test_what_is_closed_here_is_not_remembered_here(setting: Setting) -> None:
    setting.refuse()
    repair = setting.consider(RIGHT)
    assert isinstance(repair, Repair)
    setting.ledger.settled(repair, Outcome.PASSED, setting.now)
    setting.store.works = False
    assert setting.consider(RIGHT) == NotAnAnswer()


def test_a_store_that_failed_is_left_alone_for_a_while(setting: Setting) -> None:
    setting.store.works = False
    for _ in range(100):
        setting.ledger.has_open("agent")
    assert setting.store.asked == 1
    setting.now += REST_S
    setting.ledger.has_open("agent")
    assert setting.store.asked == 2


def test_the_log_says_it_once_then_now_and_then_and_when_it_is_over(setting: Setting) -> None:
    with capture_logs() as logs:
        setting.store.works = False
        for _ in range(int(2.5 * REMIND_S)):
            setting.ledger.has_open("agent")
            setting.now += REST_S
        setting.store.works = True
        setting.ledger.has_open("agent")
        setting.ledger.has_open("agent")
    told = [(each["log_level"], each["event"].split(";")[0]) for each in logs]
    failing = ("error", "the ledger of repairs does not answer")
    assert told == [failing] * 3 + [("info", "the ledger of repairs answers again")]
    assert [each.get("for_s") for each in logs] == [0.0, REMIND_S, 2 * REMIND_S, None]


def test_an_outcome_is_told_once_the_store_answers_again(setting: Setting) -> None:
    setting.refuse()
    repair = setting.consider(RIGHT)
    assert isinstance(repair, Repair)
    setting.store.works = False
    assert setting.ledger.settled(repair, Outcome.PASSED, setting.now) is None
    setting.store.works = True
    setting.now += REST_S
    setting.ledger.has_open("somebody")
    assert not setting.store.memory.has_open("agent")


def test_outcomes_that_find_no_room_leave_their_turns_spent(setting: Setting) -> None:
    setting.refuse()
    repair = setting.consider(RIGHT)
    assert isinstance(repair, Repair)
    setting.store.works = False
    for _ in range(MAX_UNTOLD):
        setting.ledger.settled(Repair("elsewhere", "unknown"), Outcome.PASSED, setting.now)
    setting.ledger.settled(repair, Outcome.NOT_TRIED, setting.now)
    setting.store.works = True
    setting.now += REST_S
    assert isinstance(setting.consider(RIGHT), Halted)


def test_a_store_that_fails_while_it_is_told_hears_the_rest_later(setting: Setting) -> None:
    setting.refuse()
    repair = setting.consider(RIGHT)
    assert isinstance(repair, Repair)
    setting.store.works = False
    setting.ledger.settled(repair, Outcome.NOT_TRIED, setting.now)
    setting.now += REST_S
    assert setting.ledger.has_open("agent")
    assert setting.ledger.down
    setting.store.works = True
    setting.now += REST_S
    assert isinstance(setting.consider(RIGHT), Repair)


def test_the_stores_that_a_configuration_names(tmp_path: Path) -> None:
    assert not ledger_of(LedgerStore()).waits
    file = ledger_of(LedgerStore(f"sqlite:{tmp_path / 'l.db'}"))
    assert file.waits
    assert not file.has_open("agent")
    assert (tmp_path / "l.db").exists()
    server = ledger_of(LedgerStore("redis://127.0.0.1:1/0", "secret"))
    assert server.waits
    assert not server.has_open("agent")
    assert server.down
