"""The store of repairs that several proxies share, and what holds while it does not answer.

Owns the choice of the store that a configuration names, and ``SharedLedger``, which stands before it. Whose
turn it is the store alone knows; while it cannot be asked, nobody is given one:

- a refusal grants no repair, and says so (``down``);
- a statement that answers a refusal of this process is refused, as long as that refusal is remembered;
- everything else passes, by the gate alone. What answers a refusal that only another process knows of is
  among it: it is compared with nothing, as if it had been sent before.

An outcome that could not be told is told once the store answers again. A store that failed is left alone for
``REST_S``, so that statements do not each wait for it; the log says when it fails, every ``REMIND_S`` that it
still does, and when it answers again.
"""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import structlog

from policy.ledger import LedgerUnavailableError, MemoryLedger, Store, new_id
from policy.lineage import Again, CloseOut, Considered, NotAnAnswer, Outcome, Repair
from policy.model import RepairRules
from policy.repair import Attempt, Finding
from policy.sandbox import Tried

REST_S: Final = 1.0
"""How long a store that failed is not asked again, in seconds."""
REMIND_S: Final = 60.0
_REDIS: Final = ("redis:", "rediss:")
_URL: Final = "redis://HOST:PORT/NUMBER"
_NUMBER: Final = re.compile(r"/?[0-9]{0,9}")
MAX_UNTOLD: Final = 1_000
"""Outcomes that wait for the store. One that finds no room leaves its turn spent."""

log = structlog.get_logger("pgturnstile.ledger")

T = TypeVar("T")


class SharedLedger:
    """``store``, called ``name`` in the log, with what this process does while it fails.

    ``clock`` gives seconds. Safe to call from several threads.
    """

    waits = True

    def __init__(self, store: Store, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._own = MemoryLedger()
        """The refusals that this process told of, to know their answers by."""
        self._untold: deque[tuple[Repair, Outcome, float, Again | None, Tried | None]] = deque()
        self._lock = threading.Lock()
        self._failed: float | None = None
        self._reminded = 0.0
        self._first_failed = 0.0

    def takes_time(self, scope: str, size: int) -> bool:  # noqa: ARG002 - the seam's
        return True

    @property
    def down(self) -> bool:
        return self._failed is not None

    @property
    def on_closed(self) -> Callable[[CloseOut], None] | None:
        """The store's: what this process remembers besides ends nowhere."""
        return self._store.on_closed

    @on_closed.setter
    def on_closed(self, told: Callable[[CloseOut], None] | None) -> None:
        self._store.on_closed = told

    def sweep(self, now: float) -> None:
        self._own.sweep(now)
        self._asked(lambda: self._store.sweep(now))

    def has_open(self, scope: str) -> bool:
        try:
            return self._asked(lambda: self._store.has_open(scope))
        except LedgerUnavailableError:
            return self._own.has_open(scope)

    def open(
        self,
        scope: str,
        connection: str,
        first: Attempt,
        finding: Finding,
        *,
        now: float,
        rules: RepairRules,
        watch: bool = False,
        tried: Tried | None = None,
        name: str | None = None,
    ) -> str | None:
        """As ``Ledger.open``; None as well where the store could not take it: no turn is to be had."""
        name = name or new_id()
        opened = None
        try:
            opened = self._asked(
                lambda: self._store.open(
                    scope,
                    connection,
                    first,
                    finding,
                    now=now,
                    rules=rules,
                    watch=watch,
                    tried=tried,
                    name=name,
                )
            )
        except LedgerUnavailableError:
            log.debug("a refusal is remembered by this process alone", store=self._name)
        self._own.open(scope, connection, first, finding, now=now, rules=rules, watch=watch, name=name)
        return opened

    def consider(self, scope: str, connection: str, made: Attempt, now: float) -> Considered:
        """As ``Ledger.consider``; while the store fails, ``LedgerUnavailableError`` is raised for what
        answers a refusal of this process, and for nothing else."""
        try:
            return self._asked(lambda: self._store.consider(scope, connection, made, now))
        except LedgerUnavailableError:
            if self._own.answered(scope, connection, made, now):
                raise
            return NotAnAnswer()

    def recheck(self, repair: Repair, made: Attempt, now: float) -> Considered:
        return self._asked(lambda: self._store.recheck(repair, made, now))

    def settled(
        self,
        repair: Repair,
        outcome: Outcome,
        now: float,
        again: Again | None = None,
        tried: Tried | None = None,
    ) -> CloseOut | None:
        """As ``Ledger.settled``; where the store cannot be told, None, and it is told later."""
        self._own.settled(repair, outcome, now, again)
        try:
            return self._asked(lambda: self._store.settled(repair, outcome, now, again, tried))
        except LedgerUnavailableError:
            with self._lock:
                if len(self._untold) < MAX_UNTOLD:
                    self._untold.append((repair, outcome, now, again, tried))
            return None

    def _asked(self, ask: Callable[[], T]) -> T:
        """What the store answers. Raises ``LedgerUnavailableError``, at once where it failed a moment ago."""
        failed = self._failed
        if failed is not None and self._clock() - failed < REST_S:
            raise LedgerUnavailableError(f"{self._name} did not answer a moment ago")
        try:
            if failed is not None:
                self._tell_the_untold()
            answer = ask()
        except LedgerUnavailableError as error:
            self._note_failure(error)
            raise
        if failed is not None:
            self._note_answer()
        return answer

    def _tell_the_untold(self) -> None:
        """Before anything else is asked: the store may have a turn to give back."""
        with self._lock:
            untold, self._untold = self._untold, deque()
        try:
            while untold:
                self._store.settled(*untold[0])
                untold.popleft()
        finally:
            with self._lock:
                self._untold.extendleft(reversed(untold))

    def _note_failure(self, error: LedgerUnavailableError) -> None:
        with self._lock:
            now = self._clock()
            first = self._failed is None
            self._failed = now
            if first:
                self._first_failed = now
            if not first and now - self._reminded < REMIND_S:
                return
            self._reminded = now
        log.error(
            "the ledger of repairs does not answer; no repair is granted",
            store=self._name,
            error=str(error),
            for_s=round(now - self._first_failed, 1),
        )

    def _note_answer(self) -> None:
        with self._lock:
            again = self._failed is not None
            self._failed = None
        if again:
            log.info("the ledger of repairs answers again", store=self._name)


@dataclass(frozen=True, slots=True)
class LedgerStore:
    """``ledger:`` of a configuration. ``store`` is ``memory``, ``sqlite:`` with a path, or a Redis URL."""

    store: str = "memory"
    password: str | None = field(default=None, repr=False)

    @property
    def shared(self) -> bool:
        """Whether several processes have it in common."""
        return self.store != "memory"

    @property
    def remote(self) -> bool:
        """Whether it is a server, which may ask for a password."""
        return self.store.startswith(_REDIS)

    @property
    def path(self) -> Path | None:
        """The file it is in, where it is in one."""
        kind, _, rest = self.store.partition(":")
        return Path(rest) if kind == "sqlite" else None


def read_store(text: str, folder: Path) -> str:
    """The store that ``text`` names, a relative path of it within ``folder``.

    Raises ValueError with what is wrong, as far as that can be told without asking a server.
    """
    kind, colon, rest = text.partition(":")
    if kind == "sqlite" and rest:
        return f"sqlite:{folder / rest}"
    if f"{kind}{colon}" in _REDIS:
        _check_url(text)
    elif text != "memory":
        raise ValueError(f"unknown store; expected memory, sqlite:PATH or {_URL}")
    return text


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.password is not None:
        raise ValueError("a secret never stands in the file; name a variable that holds it with password_env")
    # ``port`` raises ValueError by itself.
    if not parts.hostname or parts.port == 0 or not _NUMBER.fullmatch(parts.path) or "?" in url or "#" in url:
        raise ValueError(f"expected {_URL}, or rediss:// for TLS")
    if importlib.util.find_spec("redis") is None:
        raise ValueError("needs the client library: pip install 'pgturnstile[redis]'")


def ledger_of(named: LedgerStore) -> Store:
    """The ledger that is ``named``. Nothing is connected to yet."""
    store = named.store
    if named.path is not None:
        from policy.ledger_sqlite import SqliteLedger  # noqa: PLC0415 - most have no use for it

        return SharedLedger(SqliteLedger(named.path), store)
    if named.remote:
        from policy.ledger_redis import RedisLedger  # noqa: PLC0415 - an extra

        return SharedLedger(RedisLedger(store, named.password), store)
    return MemoryLedger()
