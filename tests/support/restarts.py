"""A PostgreSQL server that is stopped and started again in its place.

Owns the engine that remembers what it was started from, so that port, data and settings are the same
afterwards. A test that restarts a server has one to itself.
"""

from __future__ import annotations

import signal
from enum import Enum
from pathlib import Path
from typing import Final

from proxy.embedded import EmbeddedPostgres

_STOP_S: Final = 30.0


class Shutdown(Enum):
    """PostgreSQL's modes of shutting down, as the signal that asks for each (pg_ctl's ``-m``)."""

    SMART = signal.SIGTERM
    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT


class RestartableEngine(EmbeddedPostgres):
    """``ask_to_end``, ``wait_for_end``, ``start_again``, in this order."""

    _programs: Path | None = None

    def _serve(self, programs: Path) -> bool:
        self._programs = programs
        return super()._serve(programs)

    def ask_to_end(self, mode: Shutdown) -> None:
        assert self._server is not None
        self._server.send_signal(mode.value)

    @property
    def has_ended(self) -> bool:
        return self._server is None or self._server.poll() is not None

    def wait_for_end(self) -> None:
        assert self._server is not None
        self._server.wait(_STOP_S)

    def start_again(self) -> None:
        assert self._programs is not None
        assert self.has_ended
        assert self._serve(self._programs), self.log_path.read_text()[-2000:]
