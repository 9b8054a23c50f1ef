"""The audit file: one line of JSON a decision, written beside the event loop.

Owns the thread that empties the queue, and what follows when that is full. What waits in it is
``audit_queue``'s, what a line tells ``audit_line``'s, how the file is opened ``audit_file``'s.

What is promised:

* **The event loop does not wait for the disk.** ``record`` appends to a queue. One thread makes lines of what
  is queued and writes them in batches, at most ``_GATHER_S`` seconds later: one after the other they cost a
  third of what each would between two statements, where what it takes has left the processor's caches. The
  line of a decision not recorded before, which holds much, is made at once, unless its statement would have
  to be parsed at length for it.
* **Nothing is dropped.** The queue is bounded by the size of what it holds. When it is full, ``record`` waits
  for room, which holds the event loop and so every agent, and says so in the log. When there is no room
  within ``patience_s`` it raises, and the connection that caused the record is closed: a proxy that cannot
  write its audit stops carrying statements.
* **Complete after close().** What was recorded before is on the disk (fsync) when it returns. A killed
  process loses what was queued in its last milliseconds; with ``Fsync.ALWAYS`` so does a machine that loses
  its power, which without may lose what its kernel had not written yet.
* **A disk that fails is told of at once** (``on_failure``), and what then follows is chosen: under ``refuse``
  whoever is told carries no further statement, under ``alarm`` statements go on, records that find no room
  are given up, and a line says how many.
* **Every line is linked to the one before it** (``audit_chain``), also over rotations and restarts. Several
  processes may write to one file: each has a run of its own, and no line is in pieces (``audit_file``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import structlog

from policy.lineage import CloseOut
from proxy.audit_file import AppendFile, AuditError
from proxy.audit_line import ConnectionIdentity, Renderer, closed_line, lost_records
from proxy.audit_links import Links
from proxy.audit_queue import RECORD_BYTES, Queue, chained
from proxy.config import Audit as AuditSettings
from proxy.config import Fsync, OnFailure
from proxy.effects import AuditEntry
from proxy.health import AuditState

_GATHER_S: Final = 0.025
"""How long the writer collects before a batch. Each batch takes the interpreter from the event loop half a
dozen times, however few its records are: at 5 ms a busy proxy spent a fifth of its system calls on that."""
_BATCH: Final = 1024
"""Records a write."""
_CAPACITY: Final = 64 * 1024 * 1024
_PATIENCE_S: Final = 5.0
_RETRY_S: Final = 0.5

log = structlog.get_logger("pgturnstile.audit")

__all__ = ["Audit", "AuditError"]


class Audit:
    """The sink that a server hands its records to. ``record`` is for one thread, the event loop's.

    ``settings``    ``path`` is appended to, created with mode 0600. A file that is moved away (log rotation)
                    is followed by a new one of the same name.
    ``capacity``    bytes of records that may wait.
    ``patience_s``  seconds that ``record`` waits for room, and ``close`` for a disk that refuses.

    Raises AuditError where the file cannot be opened.
    """

    def __init__(
        self,
        settings: AuditSettings,
        *,
        capacity: int = _CAPACITY,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._settings = settings
        self.on_failure: Callable[[str | None], None] = _nobody_to_tell
        """Called by the writer's thread with the reason when the disk begins to refuse, and with None when it
        takes lines again."""
        self._file = AppendFile(settings.path)
        self._links: Links | None = None
        """This run, once it has a first line: that links to the last one in the file at the time."""
        self._renderer = Renderer(settings.statements)
        self._reopening = threading.Event()
        self._lost = 0
        self._untold = 0
        self._queue = Queue(self._renderer, capacity)
        self._patience_s = patience_s
        self._idle = False
        self._stalled = False
        self._failing: str | None = None
        self._wake = threading.Event()
        self._closed = False
        self._closing = threading.Event()
        """``_closed`` for the writer's thread, which waits for it; asking an event is a call."""
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        """Queue one decision whose outcome is known; ``entry`` must not change any more.

        Raises AuditError when the queue is full and stays so, unless it may be given up, and after close().
        """
        if self._closed or self._untold or not self._queue.offer(entry, identity):
            self._record_late(entry, identity)
        if self._idle:
            self._awaken()

    def _record_late(self, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        """Queue a record that found no room at first, or that follows some that found none."""
        weight = RECORD_BYTES + len(entry.decision.query.sql)
        if self._closed or not self._queue.fits(weight):
            if self._gives_up(weight):
                return
            self._wait_for_room(weight, entry, identity)
        if self._untold:
            self._tell_of_lost()
        self._queue.add_line(self._renderer.render(time.time(), entry, identity), weight)

    def closed(self, record: CloseOut) -> None:
        """Queue the line of a refusal whose repair is over. Where there is no room, it goes to the log, or is
        given up as records are."""
        line = closed_line(record, self._settings.statements)
        if self._gives_up(len(line)):
            return
        if self._closed or not self._queue.fits(len(line)):
            log.error("audit record not written", line=line.rstrip())
            return
        self._queue.add_line(line, len(line))
        if self._idle:
            self._awaken()

    def _awaken(self) -> None:
        self._idle = False
        self._wake.set()

    @property
    def state(self) -> AuditState:
        """How it stands with the file."""
        refuses = self._settings.on_failure is OnFailure.REFUSE
        return AuditState(self._failing, refuses, self._queue.taken - self._queue.written, self._lost)

    def reopen(self) -> None:
        """Open the file anew by its name, as after a rotation, also where there is nothing to write."""
        self._reopening.set()
        self._wake.set()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything recorded so far has been handed to the operating system; False if it was not
        within ``timeout_s`` seconds.
        """
        target = self._queue.taken
        self._wake.set()
        with self._progress:
            return self._progress.wait_for(lambda: self._queue.written >= target, timeout_s)

    def close(self) -> None:
        """Write what waits, sync the file to the disk and close it. Twice is harmless.

        Raises AuditError when the disk did not take all of it.
        """
        if self._closed:
            return
        if self._untold:
            self._tell_of_lost()
        self._closed = True
        self._closing.set()
        self._wake.set()
        self._thread.join()
        try:
            self._file.sync()
            head = self._file.last_digest() if self._links is None else self._links.head
        except OSError as error:
            raise AuditError(
                f"The audit file {self._file.path} cannot be synced: {error.strerror}."
            ) from error
        finally:
            self._file.close()
        if self._queue:
            raise AuditError(
                f"{len(self._queue)} audit records could not be written to {self._file.path} and are lost."
            )
        # Whoever keeps the log keeps what the file must hold.
        log.info("audit closed", path=str(self._file.path), head=head)

    def _gives_up(self, weight: int) -> bool:
        """Whether a record that finds no room is counted and dropped, because statements are to go on."""
        if self._settings.on_failure is OnFailure.REFUSE or self._closed or self._queue.fits(weight):
            return False
        if not self._untold:
            log.error("audit records are lost", path=str(self._file.path), error=self._failing)
        self._lost += 1
        self._untold += 1
        return True

    def _tell_of_lost(self) -> None:
        """There is room again: the file says what it lacks."""
        log.warning("audit records were lost", path=str(self._file.path), records=self._untold)
        self._queue.add_line(lost_records(time.time(), self._untold), RECORD_BYTES)
        self._untold = 0

    def _wait_for_room(self, weight: int, entry: AuditEntry, identity: ConnectionIdentity) -> None:
        """The slow side of ``record``: hold the event loop, and with it every agent, until there is room."""
        if self._closed:
            raise AuditError("The audit file is closed.")
        if not self._stalled:
            log.warning("audit queue full", path=str(self._file.path), waiting=len(self._queue))
            began = time.monotonic()
            with self._progress:
                self._stalled = not self._progress.wait_for(
                    lambda: self._queue.fits(weight), self._patience_s
                )
            if not self._stalled:
                log.warning("audit queue has room", waited_s=round(time.monotonic() - began, 3))
                return
        elif self._queue.fits(weight):
            self._stalled = False
            return
        # The statement has run: its record goes to the log, so that even this one is written somewhere.
        log.error(
            "audit record not written", line=self._renderer.render(time.time(), entry, identity).rstrip()
        )
        raise AuditError(f"The audit file {self._file.path} takes no more records.")

    # --- the writer's thread ---

    def _run(self) -> None:
        try:
            self._write_until_closed()
        except Exception as error:
            # Without a writer nothing is recorded any more: whoever carries statements must hear of it.
            self._fails(f"the writer of the audit failed: {error!r}")
            log.exception("audit writer failed", path=str(self._file.path))

    def _write_until_closed(self) -> None:
        while self._queue or not self._closing.is_set():
            # While records keep coming nobody has to wake the writer: it looks again by itself.
            self._closing.wait(_GATHER_S)
            if self._reopening.is_set():
                self._reopening.clear()
                self._file.follow_rotation()
            if not self._queue:
                self._sleep_while_idle()
            elif not self._write_all():
                return

    def _write_all(self) -> bool:
        while self._queue:
            if not self._write_batch():
                return False
        return True

    def _sleep_while_idle(self) -> None:
        # record() appends before it looks at _idle, and we look at the queue after setting it: whichever
        # comes second sees the other, so no record waits for a wake-up that never comes.
        self._wake.clear()
        self._idle = True
        if not self._queue and not self._closing.is_set() and not self._reopening.is_set():
            self._wake.wait()
        self._idle = False

    def _write_batch(self) -> bool:
        """Write the oldest records and take them off the queue. False: closing, and the disk refuses."""
        if not self._write(self._queue.take(_BATCH)):
            return False
        self._queue.done()
        with self._progress:
            self._progress.notify_all()
        return True

    def _write(self, texts: list[str]) -> bool:
        """Try until the disk takes the lines; once closing, for ``patience_s`` seconds without progress."""
        lines: bytes | None = None
        failed = False
        unsynced = self._settings.fsync is Fsync.ALWAYS
        deadline: float | None = None
        self._file.follow_rotation()
        while lines != b"" or unsynced:
            try:
                if lines != b"":
                    with self._file.alone():
                        lines = self._linked(texts) if lines is None else lines
                        lines = self._file.append(lines)
                else:
                    self._file.sync()
                    unsynced = False
                deadline = None
                continue
            except OSError as error:
                if not failed:
                    log.error("audit write failed", path=str(self._file.path), error=error.strerror)
                    self._fails(error.strerror or str(error))
                failed = True
            if not self._closing.wait(_RETRY_S):
                continue
            deadline = deadline or time.monotonic() + self._patience_s
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(_RETRY_S, self._patience_s / 4))
        if failed:
            self._fails(None)
            log.warning("audit write recovered", path=str(self._file.path))
        return True

    def _linked(self, texts: list[str]) -> bytes:
        """``texts`` as the next lines of this run, whose first is to be had while nobody else writes."""
        if self._links is None:
            self._links = Links(self._file.last_digest())
        return chained(texts, self._links)

    def _fails(self, reason: str | None) -> None:
        self._failing = reason
        self.on_failure(reason)


def _nobody_to_tell(reason: str | None) -> None:
    """Stands in until there is somebody who carries statements."""
