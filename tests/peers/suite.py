"""What a suite of somebody else's is to the runner: something to prepare, to run at a target, and an outcome.

Owns the values that the suites and the runner exchange, and running a program to its end. Knows no single
suite, no policy and no proxy: a suite sees a place to connect to and must not care what stands there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final


class NotAvailableError(Exception):
    """What the suite needs cannot be had on this machine; the message says what and why."""


class Road(StrEnum):
    """How a run reaches PostgreSQL."""

    DIRECT = "direct"
    OBSERVE = "observe"  # through a proxy that judges everything and refuses nothing
    ENFORCE = "enforce"  # through a proxy whose policy allows everything that a policy can


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Target:
    """A fresh cluster to run at, through a proxy or not; the suite may do with it what it likes.

    ``user`` is a superuser with a password. ``shared`` is a folder that both the suite and the server's own
    account can read and write: what server-side COPY or LOAD needs must be there. ``scratch`` is kept after
    the run: logs and results belong there. ``server_port`` is PostgreSQL's own port, for a suite that has
    to prepare what a proxy refuses by contract.
    """

    road: Road
    host: str
    port: int
    user: str
    password: str
    database: str
    shared: Path
    scratch: Path
    server_port: int

    @property
    def dsn(self) -> str:
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    def at(self, database: str) -> Target:
        """The same place with another database."""
        return replace(self, database=database)

    @property
    def straight(self) -> Target:
        """The same cluster without the proxy: for looking at what a run has left behind."""
        return replace(self, road=Road.DIRECT, port=self.server_port)

    def environment(self, **more: str) -> dict[str, str]:
        """The process's environment with libpq's variables set to this target, and ``more``."""
        return inherited(
            PGHOST=self.host,
            PGPORT=str(self.port),
            PGUSER=self.user,
            PGPASSWORD=self.password,
            PGDATABASE=self.database,
            **more,
        )


def inherited(**more: str) -> dict[str, str]:
    """The process's environment without what libpq takes from it, and ``more``."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | more


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave: a verdict by the name of each test.

    ``seen`` holds, for tests that have one, the text a client saw: two roads must give the same.
    """

    verdicts: Mapping[str, Verdict]
    seen: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def count(self, verdict: Verdict) -> int:
        return sum(1 for given in self.verdicts.values() if given is verdict)


class Suite(ABC):
    """One suite. ``prepare`` is called once, then ``run`` once a road, each at a cluster of its own."""

    name: ClassVar[str]
    roads: ClassVar[tuple[Road, ...]] = (Road.OBSERVE,)
    """The roads beside the direct one."""
    quick: ClassVar[bool] = False
    """Whether it belongs to the slice that CI runs: fast, and nothing to build."""
    major: ClassVar[int] = 15
    """PostgreSQL's major version."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Server settings."""

    @abstractmethod
    def prepare(self, workdir: Path) -> str:
        """Obtain and build what is needed below ``workdir``, which is kept from run to run; its version.

        Raises NotAvailableError.
        """

    @abstractmethod
    def run(self, target: Target) -> Outcome:
        """Run every test at ``target``. Raises NotAvailableError, or any error where the run itself broke."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended; ``timed_out`` where it had to be stopped."""

    code: int
    output: str
    timed_out: bool


_TAIL: Final = 2000


def call(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = 3600.0,
    log: Path | None = None,
    text_in: str | None = None,
) -> Finished:
    """Run a program to its end, its errors among its output; with its children it is ended at the timeout.

    ``log`` also keeps the output. Raises NotAvailableError where the program does not exist.
    """
    try:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE if text_in is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotAvailableError(f"{command[0]} is not installed") from error
    timed_out = False
    try:
        output, _ = process.communicate(text_in.encode() if text_in is not None else None, timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        _end_group(process)
        output, _ = process.communicate()
    except BaseException:
        _end_group(process)
        raise
    text = output.decode(errors="backslashreplace")
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)
    return Finished(process.returncode, text, timed_out)


def need(what: str, finished: Finished) -> str:
    """The output of a step of ``prepare`` that has to succeed. Raises NotAvailableError where it did not."""
    if finished.code != 0:
        raise NotAvailableError(f"{what} failed: {finished.output.strip()[-_TAIL:]}")
    return finished.output


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
