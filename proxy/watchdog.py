"""What the server may take for an answer, in seconds, and what follows when it takes longer.

Owns the time for which the foremost reply that is waited for has been worked on. The relay asks now and then;
nothing is measured a message. What the server's own ``statement_timeout`` misses is cancelled, once, with the
error that PostgreSQL makes of it; a question that has a limit of its own hears that its answer came late. A
server that does not answer that either is given up: it may be gone without a word, and TCP would tell of it
after a quarter of an hour.
"""

from __future__ import annotations

from typing import Final

from policy.model import Mode, Policy
from proxy.answers import CYCLES, Owed
from proxy.conversation import Conversation
from proxy.effects import CancelRunning
from proxy.phase import Phase
from proxy.replies import Reply

_MARGIN_S: Final = 1.0
_MARGIN: Final = 0.2
"""How much longer than ``statement_timeout``, which the server keeps itself: a share, and at least that."""
_GIVEN_UP_S: Final = 60.0
"""How long what was cancelled may take to say so, in seconds, before its session ends."""

_RUNS: Final = frozenset({*CYCLES, Owed.EXECUTE})
"""What is waited for. The server keeps its answers to other messages until it is asked to flush."""


class Watchdog:
    """Watches one connection."""

    def __init__(self, conversation: Conversation) -> None:
        self._c = conversation
        self._head: Reply | None = None
        self._looked = 0.0
        self._worked_s = 0.0
        self._struck = False
        self._struck_at = 0.0

    @property
    def watches(self) -> bool:
        """True where anything may take too long."""
        policy = self._c.gate.policy
        return _statement_limit_s(policy) is not None or (policy.cost is not None and not self._c.observes)

    def look(self, *, flowing: bool) -> None:
        """See whether the same reply is still awaited; ``flowing`` is False where the agent does not read.

        Time in which the server waits for the agent does not count.
        """
        now = self._c.clock()
        head = next((r for r in self._c.replies.queue if r.exchange is not None or r.kind in _RUNS), None)
        if head is not self._head:
            self._head, self._worked_s, self._struck = head, 0.0, False
        elif flowing and self._c.phase is not Phase.COPY_IN:
            self._worked_s += now - self._looked
        self._looked = now
        if head is None or self._c.cancelling:
            return
        if self._struck:
            if self._worked_s >= self._struck_at + _GIVEN_UP_S:
                self._c.end("the database server does not answer", "08006")
            return
        question = head.exchange
        if question is not None and question.limit_s is not None:
            limit: float | None = question.limit_s
        else:
            limit = _statement_limit_s(self._c.gate.policy)
        if limit is None or self._worked_s < limit:
            return
        self._struck, self._struck_at = True, self._worked_s
        if question is not None:
            question.late = True
        self._c.cancelling = True
        self._c.effects.append(CancelRunning())


def _statement_limit_s(policy: Policy) -> float | None:
    timeout_ms = policy.limits.statement_timeout_ms
    if not timeout_ms or policy.mode is Mode.OBSERVE:
        return None
    return timeout_ms / 1000 + max(_MARGIN_S, _MARGIN * timeout_ms / 1000)
