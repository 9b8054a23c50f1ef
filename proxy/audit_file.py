"""The file that audit lines are appended to: opening, rotation, and where its last line ends.

Owns the descriptor. Lines, their queue and their links are ``audit``'s and ``audit_chain``'s.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from proxy.audit_chain import last_digest

_PIECE: Final = 65_536

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

    def append(self, data: bytes) -> bytes:
        """Write, and return what was not written. Raises OSError."""
        return data[os.write(self._descriptor, data) :]

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


def _backwards(descriptor: int, size: int) -> Iterator[bytes]:
    """The file's bytes in pieces, the last one first."""
    for at in range(size - _PIECE, -_PIECE, -_PIECE):
        yield os.pread(descriptor, min(_PIECE, at + _PIECE), max(0, at))
