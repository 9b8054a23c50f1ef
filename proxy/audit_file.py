"""The file that audit lines are appended to: opening, rotation, and where its last line ends.

Owns the descriptor, and that every line in the file is whole though several processes write to it: the
workers of one proxy, or a proxy and the one that replaces it. Whoever writes has the file alone meanwhile
(flock(2), which the kernel gives back for a process that is killed), and takes back what the disk took only
in part. Lines, their queue and their links are ``audit``'s and ``audit_chain``'s.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from proxy.audit_chain import last_digest

_PIECE: Final = 65_536
_LOCKED_S: Final = 5.0
"""How long another process may have the file to itself: a write takes it no longer."""
_LOOK_S: Final = 0.001
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})

log = structlog.get_logger("pgturnstile.audit")


class AuditError(Exception):
    """The audit file cannot be opened or written. The message is a sentence for the operator."""


class AppendFile:
    """Appended to, reopened when it was moved away. Raises AuditError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._orphaned = False
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise AuditError(f"The audit file {path} cannot be opened: {error.strerror}.") from error

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other process writes meanwhile. Raises OSError where one keeps the file to itself."""
        locked = self._lock()
        try:
            yield
        finally:
            if locked:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        """False on a file system that has no locks."""
        deadline = time.monotonic() + _LOCKED_S
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise OSError(error.errno, "another process keeps it locked") from None
                time.sleep(_LOOK_S)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return False
            else:
                return True

    def append(self, data: bytes) -> bytes:
        """Write, ``alone``, and return what was not written: nothing, or the rest for a pipe that failed.

        Raises OSError; of ``data`` nothing is in the file then.
        """
        state = os.fstat(self._descriptor)
        regular = stat.S_ISREG(state.st_mode)
        if regular:
            state = self._end_torn_line(state)
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            if not regular and len(left) < len(data):
                return bytes(left)
            self._take_back(state.st_size, len(data) - len(left))
            raise
        return b""

    def _end_torn_line(self, state: os.stat_result) -> os.stat_result:
        """A line that a crash cut short, also another writer's, must not swallow what follows."""
        if not state.st_size or os.pread(self._descriptor, 1, state.st_size - 1) == b"\n":
            return state
        os.write(self._descriptor, b"\n")
        return os.fstat(self._descriptor)

    def _take_back(self, size: int, written: int) -> None:
        """Cut off half a batch, unless somebody has written behind it without asking."""
        with contextlib.suppress(OSError):
            if written and os.fstat(self._descriptor).st_size == size + written:
                os.ftruncate(self._descriptor, size)

    def last_digest(self) -> str | None:
        """The digest of the last line (``audit_chain``); None where there is none, or no way to look."""
        state = os.fstat(self._descriptor)
        return (
            last_digest(_backwards(self._descriptor, state.st_size)) if stat.S_ISREG(state.st_mode) else None
        )

    def sync(self) -> None:
        """fsync, where the file is one that can be: a pipe cannot. Raises OSError."""
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

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


def _backwards(descriptor: int, size: int) -> Iterator[bytes]:
    """The file's bytes in pieces, the last one first."""
    for at in range(size - _PIECE, -_PIECE, -_PIECE):
        yield os.pread(descriptor, min(_PIECE, at + _PIECE), max(0, at))
