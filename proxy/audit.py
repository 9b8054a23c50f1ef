"""The audit file: one line of JSON a decision, written beside the event loop.

Owns the queue, the thread that empties it and the file. What a line tells is ``audit_line``'s.

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
import os
import stat
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from proxy.audit_line import ConnectionIdentity, Renderer
from proxy.config import Statements
from proxy.effects import AuditEntry
from proxy.health import AuditState

_GATHER_S: Final = 0.025
"""How long the writer collects before a batch. Each batch takes the interpreter from the event loop half a
dozen times, however few its records are: at 5 ms a busy proxy spent a fifth of its system calls on that."""
_BATCH: Final = 1024
"""Records a write."""
_AT_ONCE: Final = 512
"""Characters of a statement above which its line, seen for the first time, is left to the writer's thread."""
_CAPACITY: Final = 64 * 1024 * 1024
_RECORD_BYTES: Final = 1024
"""What a queued record is counted as, beside the characters of its statement."""
_PATIENCE_S: Final = 5.0
_RETRY_S: Final = 0.5

log = structlog.get_logger("pgturnstile.audit")


class AuditError(Exception):
    """The audit file cannot be opened or written. The message is a sentence for the operator."""


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
        self._failing: str | None = None
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

    @property
    def state(self) -> AuditState:
        """How it stands with the file."""
        return AuditState(self._failing, True, self._taken - self._written, 0)

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
            # While records keep coming nobody has to wake the writer: it looks again by itself.
            self._closing.wait(_GATHER_S)
            if not self._pending:
                self._sleep_while_idle()
            elif not self._write_all():
                return

    def _write_all(self) -> bool:
        while self._pending:
            if not self._write_batch():
                return False
        return True

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
                self._failing = error.strerror or str(error)
            if not self._closing.wait(_RETRY_S):
                continue
            deadline = deadline or time.monotonic() + self._patience_s
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(_RETRY_S, self._patience_s / 4))
        if failed:
            self._failing = None
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
