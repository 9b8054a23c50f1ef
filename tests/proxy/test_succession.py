"""The change from one gate to the next over transcripts: what was begun by one is ended by it."""

from __future__ import annotations

import pytest

from policy.loader import load
from proxy.effects import Effect, JudgedAnew, Record
from proxy.gate import Gate
from proxy.session import Session
from tests.proxy.test_session import FLUSH, SYNC, complete, error, ready
from tests.proxy.test_session_limits import ANSWER, POLICY, READ, REFUSED, ROW, WRITE, Played, run, start

PRICED = POLICY.replace("limits:", "cost: {max_total_cost: 1000}\nlimits:").replace(
    "affected_rows: 3", "affected_rows: 2"
)
FEW = POLICY.replace(", affected_rows: 3", "")


class Successions:
    """A session and what is told of it; ``changed`` counts the changes of its gate."""

    def __init__(self) -> None:
        self.session: Session = start(FEW)
        self.played = Played()
        self.changed = 0
        self.records: list[tuple[str, str | None]] = []

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, JudgedAnew):
                self.changed += 1
                continue
            self.played.take([effect])
            if isinstance(effect, Record):
                self.records.append((effect.entry.decision.query.sql, effect.entry.sqlstate))

    def agent(self, data: bytes) -> None:
        self.take(self.session.from_frontend(data))

    def server(self, data: bytes) -> None:
        self.take(self.session.from_backend(data))

    def priced(self) -> None:
        self.take(self.session.adopt(Gate(load(PRICED, "limited.yaml"), "agent", 1 << 20)))


@pytest.mark.parametrize("proposed", ["before it comes", "while it waits"])
def test_an_execute_put_back_stays_with_its_bind(proposed: str) -> None:
    """It waits for the result in front of it, and the gate changes when its Bind has been answered: the new
    policy would ask a price, which is asked at the Bind."""
    subject = Successions()
    subject.agent(run(READ))
    if proposed == "before it comes":
        # The last reply owed is then that of READ, which a change of gate waits for: with it comes the rest.
        subject.agent(run(WRITE)[:-1])
        subject.priced()
        subject.agent(run(WRITE)[-1:] + SYNC)
    else:
        subject.agent(run(WRITE) + SYNC)
        subject.priced()
    subject.server(ANSWER + ROW + complete("SELECT 1") + ANSWER)
    assert subject.changed == 0
    subject.server(complete("UPDATE 9") + ready())
    assert subject.changed == 1
    assert subject.records == [(READ, None), (WRITE, None)]
    assert subject.played.rules == []
    assert subject.played.to_backend.replace(FLUSH, b"") == run(READ) + run(WRITE) + SYNC


def test_one_that_comes_after_its_bind_was_answered_is_decided_anew() -> None:
    subject = Successions()
    bound, executed = run(WRITE)[:-10], run(WRITE)[-10:]
    assert executed[:1] == b"E"
    subject.agent(bound + FLUSH)
    subject.server(ANSWER)
    subject.priced()
    subject.agent(executed + SYNC)
    assert subject.changed == 1
    assert subject.records == [(WRITE, "54001")]
    subject.server(error("26000", f'prepared statement "{REFUSED.decode()}" does not exist') + ready())
    assert subject.played.rules == ["unpriceable"]
