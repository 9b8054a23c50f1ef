"""The audit file: one line of JSON a decision, written beside the event loop.

Owns the shape of a line (README, "The audit file") and the thread that writes it. Knows nothing of frames, of
sessions or of how a decision came about; it reads the values of ``policy`` and of ``proxy.effects``.

What is promised:

* **The event loop does not wait for the disk.** ``record`` appends a line to a queue. One thread writes what
  is queued in batches, at most ``_GATHER_S`` seconds later. It also makes the lines whose statement would
  have to be parsed at length for it; the others are made at once, because handing the interpreter over to
  another thread and back takes longer.
* **Nothing is dropped.** The queue is bounded by the size of what it holds. When it is full, ``record`` waits
  for room, which holds the event loop and so every agent, and says so in the log. When there is no room
  within ``patience_s`` it raises, and the connection that caused the record is closed: a proxy that cannot
  write its audit stops carrying statements.
* **Complete after close().** What was recorded before is on the disk (fsync) when it returns. A killed
  process loses what was queued in its last milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import structlog

from policy import parse
from policy.decision import Allow, Decision, Reject
from policy.facts import CallKind, Facts, QueryString
from policy.lifting import Lifted
from policy.model import Violation
from proxy.config import Statements
from proxy.effects import AuditEntry

_GATHER_S: Final = 0.005
"""How long the writer collects before a batch: a wake-up a record would cost more than the record."""
_BATCH: Final = 256
"""Records a write."""
_AT_ONCE: Final = 512
"""Characters of a statement above which its line, seen for the first time, is left to the writer's thread."""
_CAPACITY: Final = 64 * 1024 * 1024
_RECORD_BYTES: Final = 1024
"""What a queued record is counted as, beside the characters of its statement."""
_PATIENCE_S: Final = 5.0
_RETRY_S: Final = 0.5
_CACHED_DECISIONS: Final = 2048
_CACHED_STATEMENT: Final = 4096
"""Characters above which a decision's members are rendered anew each time, so that the cache stays small."""

log = structlog.get_logger("pgturnstile.audit")


class AuditError(Exception):
    """The audit file cannot be opened or written. The message is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class ConnectionIdentity:
    """Who asked: what is the same for every decision of one connection under one policy.

    ``application_name`` is the one given at start-up, None where none was: a later SET does not rename the
    connection. ``client`` is ``host:port``, or ``local`` for a Unix socket; ``connection`` the proxy's own id
    of the connection.
    """

    agent: str
    database: str
    backend_user: str
    application_name: str | None
    client: str
    connection: str
    policy_name: str
    policy_sha256: str


_Queued = tuple[int, str | tuple[float, AuditEntry, ConnectionIdentity]]
"""What a record is counted as, and its line, or what to make it of."""


class Audit:
    """The sink that a server hands its records to. ``record`` is for one thread, the event loop's.

    ``path``        appended to, created with mode 0600. A file that is moved away (log rotation) is followed
                    by a new one of the same name.
    ``statements``  how much of a statement's text is kept.
    ``capacity``    bytes of records that may wait.
    ``patience_s``  seconds that ``record`` waits for room, and ``close`` for a disk that refuses.

    Raises AuditError where the file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        statements: Statements = Statements.FULL,
        *,
        capacity: int = _CAPACITY,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._file = _AppendFile(path)
        self._renderer = Renderer(statements)
        self._capacity = capacity
        self._patience_s = patience_s
        self._pending: deque[_Queued] = deque()
        # Each counter has one writer, so neither needs a lock: their difference is what waits.
        self._taken = 0
        self._written = 0
        self._idle = False
        self._stalled = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._write_until_closed, name="audit-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        """Queue one decision whose outcome is known; ``entry`` must not change any more.

        Raises AuditError when the queue is full and stays so, and after close().
        """
        decision = entry.decision
        length = len(decision.query.sql)
        weight = _RECORD_BYTES + length
        if self._taken - self._written + weight > self._capacity or self._closing.is_set():
            self._wait_for_room(weight, entry, identity)
        self._taken += weight
        at = time.time()
        if length <= _AT_ONCE or self._renderer.knows(decision):
            self._pending.append((weight, self._renderer.render(at, entry, identity)))
        else:
            self._pending.append((weight, (at, entry, identity)))
        if self._idle:
            self._idle = False
            self._wake.set()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything recorded so far has been handed to the operating system; False if it was not
        within ``timeout_s`` seconds.
        """
        target = self._taken
        self._wake.set()
        with self._progress:
            return self._progress.wait_for(lambda: self._written >= target, timeout_s)

    def close(self) -> None:
        """Write what waits, sync the file to the disk and close it. Twice is harmless.

        Raises AuditError when the disk did not take all of it.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        self._thread.join()
        try:
            self._file.sync()
        except OSError as error:
            raise AuditError(
                f"The audit file {self._file.path} cannot be synced: {error.strerror}."
            ) from error
        finally:
            self._file.close()
        if self._pending:
            raise AuditError(
                f"{len(self._pending)} audit records could not be written to {self._file.path} and are lost."
            )

    def _wait_for_room(self, weight: int, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        """The slow side of ``record``: hold the event loop, and with it every agent, until there is room."""
        if self._closing.is_set():
            raise AuditError("The audit file is closed.")
        if not self._stalled:
            log.warning("audit queue full", path=str(self._file.path), waiting=len(self._pending))
            began = time.monotonic()
            with self._progress:
                self._stalled = not self._progress.wait_for(lambda: self._fits(weight), self._patience_s)
            if not self._stalled:
                log.warning("audit queue has room", waited_s=round(time.monotonic() - began, 3))
                return
        elif self._fits(weight):
            self._stalled = False
            return
        # The statement has run: its record goes to the log, so that even this one is written somewhere.
        log.error(
            "audit record not written", line=self._renderer.render(time.time(), entry, identity).rstrip()
        )
        raise AuditError(f"The audit file {self._file.path} takes no more records.")

    def _fits(self, weight: int) -> bool:
        """Whether a record may be queued; one larger than the queue may once the queue is empty."""
        return self._taken - self._written + weight <= self._capacity or self._taken == self._written

    # --- the writer's thread ---

    def _write_until_closed(self) -> None:
        while self._pending or not self._closing.is_set():
            self._sleep_while_idle()
            self._closing.wait(_GATHER_S)
            while self._pending:
                if not self._write_batch():
                    return

    def _sleep_while_idle(self) -> None:
        # record() appends before it looks at _idle, and we look at the queue after setting it: whichever
        # comes second sees the other, so no record waits for a wake-up that never comes.
        self._wake.clear()
        self._idle = True
        if not self._pending and not self._closing.is_set():
            self._wake.wait()
        self._idle = False

    def _write_batch(self) -> bool:
        """Write the oldest records and take them off the queue. False: closing, and the disk refuses."""
        batch = [self._pending[n] for n in range(min(_BATCH, len(self._pending)))]
        lines = "".join(
            queued if isinstance(queued, str) else self._renderer.render(*queued) for _, queued in batch
        )
        if not self._write(lines.encode("ascii")):
            return False
        for _ in batch:
            self._pending.popleft()
        self._written += sum(weight for weight, _ in batch)
        with self._progress:
            self._progress.notify_all()
        return True

    def _write(self, lines: bytes) -> bool:
        """Try until the disk takes the lines; once closing, for ``patience_s`` seconds without progress."""
        failed = False
        deadline: float | None = None
        self._file.follow_rotation()
        while lines:
            try:
                lines = self._file.append(lines)
                deadline = None
                continue
            except OSError as error:
                if not failed:
                    log.error("audit write failed", path=str(self._file.path), error=error.strerror)
                failed = True
            if not self._closing.wait(_RETRY_S):
                continue
            deadline = deadline or time.monotonic() + self._patience_s
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(_RETRY_S, self._patience_s / 4))
        if failed:
            log.warning("audit write recovered", path=str(self._file.path))
        return True


class _AppendFile:
    """The file behind the audit: appended to, reopened when it was moved away."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._orphaned = False
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise AuditError(f"The audit file {path} cannot be opened: {error.strerror}.") from error

    def append(self, data: bytes) -> bytes:
        """Write, and return what was not written. Raises OSError."""
        return data[os.write(self._descriptor, data) :]

    def sync(self) -> None:
        """fsync, where the file is one that can be: a pipe cannot. Raises OSError."""
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> int:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            state = os.fstat(descriptor)
            # A line that a crash cut short must not swallow the first one of this run.
            if (
                stat.S_ISREG(state.st_mode)
                and state.st_size
                and os.pread(descriptor, 1, state.st_size - 1) != b"\n"
            ):
                os.write(descriptor, b"\n")
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def follow_rotation(self) -> None:
        """Open a new file where ours no longer has the name; between batches, so that no line is split."""
        ours = os.fstat(self._descriptor)
        if not stat.S_ISREG(ours.st_mode):
            return
        with contextlib.suppress(OSError):
            named = self.path.stat()
            if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino):
                return
        try:
            successor = self._open()
        except OSError as error:
            # The old file is still ours and still takes lines: better there than nowhere.
            if not self._orphaned:
                log.error("audit file moved", path=str(self.path), error=error.strerror)
            self._orphaned = True
            return
        self.close()
        self._descriptor = successor
        self._orphaned = False


class Renderer:
    """Records to lines. Safe to share between threads.

    What is the same for every record of a decision, of a connection or of a price is rendered once and
    spliced in, and so is what statements have in common that differ in digits alone (``policy.lifting``).
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._decisions = _Cache()
        self._alike = _Cache()
        self._identities = _Cache()
        self._policies = _Cache()
        self._costs = _Cache()
        self._second = (-1, "")

    def knows(self, decision: Decision) -> bool:
        """Whether a line of ``decision`` is put together of what was rendered before."""
        query = decision.query
        if isinstance(query, Lifted) and self._alike.get(query.like) is not None:
            return True
        return self._decisions.get(decision) is not None

    def render(self, at: float, entry: AuditEntry, identity: ConnectionIdentity) -> str:
        """One line, ASCII, with its line feed. ``at`` is the time in seconds since the epoch.

        Never fails: a record that cannot be rendered becomes a line that says so, because a statement without
        a line, or a writer that died of one statement, would be worse.
        """
        try:
            return self._line(at, entry, identity)
        except Exception as error:
            log.exception("audit record not rendered", id=entry.id)
            return (
                _encode({"ts": _timestamp(at), "id": entry.id, "agent": identity.agent, "error": repr(error)})
                + "\n"
            )

    def _line(self, at: float, entry: AuditEntry, identity: ConnectionIdentity) -> str:
        who = self._identities.get(identity) or self._identities.put(identity, _identity_members(identity))
        policy = self._policies.get(identity) or self._policies.put(identity, _policy_members(identity))
        # By hand: an encoder takes three times as long to set itself up. Integers, a finite float and texts
        # that are encoded leave nothing to escape.
        return (
            f'{{"ts":"{self._time(at)}","id":{_text(entry.id)},{who},"protocol":{_text(entry.protocol)},'
            f"{self._decided(entry.decision)},{policy},"
            f'"outcome":{{"command_tag":{_text(entry.command_tag)},"rows":{entry.rows:d},'
            f'"bytes":{entry.bytes:d},"sqlstate":{_text(entry.sqlstate)},"ms":{entry.ms:.3f},'
            f'"known":{_BOOL[entry.outcome_known]}}}{self._further(entry)}}}\n'
        )

    def _time(self, at: float) -> str:
        second = int(at)
        micros = round((at - second) * 1_000_000)
        if micros == 1_000_000:
            second, micros = second + 1, 0
        known, clock = self._second
        if second != known:
            clock = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second = (second, clock)
        return f"{clock}.{micros:06d}+00:00"

    def _decided(self, decision: Decision) -> str:
        known = self._decisions.get(decision)
        if known is not None:
            return known
        query = decision.query
        if isinstance(query, Lifted) and isinstance(decision, Allow):
            return self._lifted(decision, query)
        members = "".join(_decision_members(decision, self._statements))
        if len(query.sql) <= _CACHED_STATEMENT:
            self._decisions.put(decision, members)
        return members

    def _lifted(self, decision: Allow, query: Lifted) -> str:
        """The members of a decision of which all but the statement's text is that of others."""
        alike = self._alike.get(query.like)
        if alike is None:
            head, statement, tail = _decision_members(decision, self._statements)
            if self._statements is not Statements.FULL:
                head, tail = head + statement + tail, ""
            alike = self._alike.put(query.like, head + _SEAM + tail)
        head, _, tail = alike.partition(_SEAM)
        return head + _statement(query.sql) + tail if tail else head

    def _further(self, entry: AuditEntry) -> str:
        """The members that few lines have."""
        decision = entry.decision
        refused = isinstance(decision, Reject)
        told = ""
        if entry.repair is not None or (isinstance(decision, Reject) and decision.halt is not None):
            told = "," + _members({"repair": _repair(entry)})
        cost = decision.cost if isinstance(decision, Reject) else entry.cost
        if cost is None:
            return told
        members = None if refused else self._costs.get(cost)
        if members is None:
            members = _members({"cost": cost})
            if not refused:
                self._costs.put(cost, members)
        return f"{told},{members}"


class _Cache:
    """Members by the identity of the object they were rendered from; the oldest go first.

    The object is kept with its entry, so that its id cannot be given to another one meanwhile.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[object, str]] = {}
        self._changing = threading.Lock()

    def get(self, key: object) -> str | None:
        found = self._entries.get(id(key))
        return found[1] if found is not None else None

    def put(self, key: object, members: str) -> str:
        with self._changing:
            if len(self._entries) >= _CACHED_DECISIONS:
                del self._entries[next(iter(self._entries))]
            self._entries[id(key)] = (key, members)
        return members


def _repair(entry: AuditEntry) -> dict[str, str | None]:
    """The lineage that the statement repairs, and why it may not be repaired itself."""
    return {
        "lineage": None if entry.repair is None else entry.repair.lineage,
        "halt": entry.decision.halt if isinstance(entry.decision, Reject) else None,
    }


def _identity_members(identity: ConnectionIdentity) -> str:
    return _members(
        {
            "agent": identity.agent,
            "database": identity.database,
            "backend_user": identity.backend_user,
            "application_name": identity.application_name,
            "client": identity.client,
            "connection": identity.connection,
        }
    )


def _policy_members(identity: ConnectionIdentity) -> str:
    return _members({"policy": {"name": identity.policy_name, "sha256": identity.policy_sha256}})


def _decision_members(decision: Decision, statements: Statements) -> tuple[str, str, str]:
    """What a line tells of the decision: before the statement's text, the text itself, and behind it."""
    violations = (
        (*decision.observed, *decision.warnings) if isinstance(decision, Allow) else decision.violations
    )
    refused = decision.observed if isinstance(decision, Allow) else decision.violations
    query = decision.query
    head = _members({"class": decision.statement_class, "fingerprint": parse.fingerprint(query.sql)})
    statement = ""
    if statements is Statements.FULL:
        statement = _statement(query.sql)
    elif statements is Statements.LITERALS_MASKED:
        statement = _statement(_masked(query))
    tail = _members(
        {
            "relations": _distinct(name for facts in query.statements for name in _relation_names(facts)),
            "functions": _distinct(name for facts in query.statements for name in _function_names(facts)),
            "decision": "allow" if isinstance(decision, Allow) else "reject",
            "rule": refused[0].rule if refused else None,
            "violations": [_violation(v, statements) for v in violations],
            **({} if decision.catalog_sha256 is None else {"catalog_sha256": decision.catalog_sha256}),
        }
    )
    return head + ",", statement, tail


def _statement(sql: str | None) -> str:
    return f'"statement":{_text(sql)},'


def _violation(violation: Violation, statements: Statements) -> dict[str, Any]:
    members: dict[str, Any] = {
        "rule": violation.rule,
        "level": violation.level,
        "object": violation.object,
        "position": violation.position,
    }
    if statements is Statements.FULL:
        # Messages and suggestions may quote the statement, which the other two settings keep out of the file.
        members["message"] = violation.message
        members["suggestion"] = violation.suggestion
    return members


def _masked(query: QueryString) -> str | None:
    """The text with its constants replaced by ``$n``; None where it does not parse."""
    return None if query.failure is not None else parse.normalize(query.sql)


def _relation_names(facts: Facts) -> Iterable[str]:
    return (f"{ref.schema}.{ref.name}" if ref.schema else ref.name for ref in facts.relations)


def _function_names(facts: Facts) -> Iterable[str]:
    return (
        f"{ref.schema}.{ref.name}" if ref.schema else ref.name
        for ref in facts.functions
        if ref.kind is not CallKind.ATTRIBUTE
    )


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


# ASCII alone: a line is read in terminals, and no control character of a statement may reach one.
_encode: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_escaped: Final = json.encoder.encode_basestring_ascii
_BOOL: Final = {True: "true", False: "false"}


_SEAM: Final = "\n"
"""Where a statement's text goes into members that several share: no JSON text holds a line feed."""


def _text(value: str | None) -> str:
    return "null" if value is None else _escaped(value)


def _members(values: dict[str, Any]) -> str:
    """JSON members, ``"key":value,…`` without braces round them."""
    return _encode(values)[1:-1]
