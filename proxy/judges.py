"""Who judges a statement away from the event loop: a thread, or for a large text a process.

Owns the worker processes, the turns of agents and the time a worker may take. Knows no message of the
protocol.

Why a process: the tree of a megabyte of SQL keeps the interpreter's lock for seconds, part of them in one
call of C that no other thread can interrupt, and would so stop every other connection. Why a turn for each
agent: one that sends nothing but such statements takes one worker and one thread, however many connections
it has, and nobody waits for more than that. A worker that does not answer in time is killed and the statement
refused, whatever the text does to the parser or to a rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Final, TypeVar, cast

import structlog

from policy.catalog_names import SessionNames
from proxy.gate import Gate
from proxy.judge import Asked, Judged, Shared
from proxy.ruling import Ruling

LARGE: Final = 4 * 1024
"""Texts of more bytes are judged in a process. To judge what is made to take long costs 5 to 8 microseconds a
byte, and to take the decision of a process over 0.6, so that much less keeps the interpreter from the event
loop; but what is not made for it, such as forty joins, is then answered in twice the time."""
PROCESSES: Final = max(2, min(4, (os.cpu_count() or 1) // 2))
"""At least two: the second is there for whoever does not fill the first."""
_PATIENCE: Final = 6
"""How many times its time a worker may take by the clock, on a machine that gives it no processor."""
_THREADS: Final = 4
_INHERITED: Final = (
    *("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
)
"""What of the environment a worker gets: none of the secrets that may stand there."""

log = structlog.get_logger("pgturnstile.judges")

T = TypeVar("T")


class _UnjudgedError(Exception):
    """A worker gave no answer. The message says why, as in "the statement was not judged: …"."""


class Judges:
    """The judges of one server. ``seconds`` of the processor are the most that one large text may
    take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="judge")
        self._askers = ThreadPoolExecutor(PROCESSES, thread_name_prefix="large-judge")
        self._free = asyncio.Semaphore(PROCESSES)
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._processes = _Turns()
        self._interpreter = _Turns()
        self._closed = False

    @property
    def workers(self) -> frozenset[Worker]:
        """The processes that are there."""
        return frozenset(self._all)

    async def rule(self, gate: Gate, text: bytes, names: SessionNames) -> Ruling:
        """The ruling of ``gate`` on ``text``: a refusal where it is not to be had in time."""
        if len(text) <= LARGE:
            return await self.work(gate.agent, lambda: gate.rule_slowly(text, names))
        loop = asyncio.get_running_loop()
        async with self._processes.turn(gate.agent), self._free:
            try:
                if self._closed:
                    raise _UnjudgedError("the proxy is shutting down")
                began = time.perf_counter()
                judged = await loop.run_in_executor(self._askers, self._ask, gate, text, names)
                gate.meter.judged(time.perf_counter() - began)
            except _UnjudgedError as error:
                log.error(
                    "a statement could not be judged", agent=gate.agent, bytes=len(text), reason=str(error)
                )
                return gate.unjudged(text, names, str(error))
        return gate.ruled(judged.decision, judged.question, text, names, hides=judged.hides)

    async def work(self, agent: str, call: Callable[[], T]) -> T:
        """What ``call`` returns, which reckons for ``agent``, from a thread: one at a time for each agent,
        since every thread that wants the interpreter makes the event loop wait longer for it."""
        async with self._interpreter.turn(agent):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """End every worker, whatever it is at."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self._all):
            worker.stop()
        self._askers.shutdown(cancel_futures=True)
        while self._idle:
            self._idle.pop().end()

    def _ask(self, gate: Gate, text: bytes, names: SessionNames) -> Judged:
        """What a worker makes of ``text``. Blocks: not on the event loop."""
        worker = self._idle.pop() if self._idle else self._started()
        judged: Judged | None = None
        try:
            asked = Asked(gate.policy, gate.agent, text, gate.statement_bytes, names, self.seconds)
            judged = worker.ask(asked)
        finally:
            if judged is None or judged.tired or self._closed:
                self._all.discard(worker)
                worker.end()
            else:
                self._idle.append(worker)
        return judged

    def _started(self) -> Worker:
        try:
            worker = Worker()
        except OSError as error:
            # A limit on processes or memory: the statement is refused, and the session need not end with it.
            raise _UnjudgedError(f"no process can be started to judge it ({error.strerror})") from error
        self._all.add(worker)
        if self._closed:
            worker.stop()
        return worker


class _Turns:
    """One at a time for each agent; what else it wants waits here and not in the queue of all."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    @contextlib.asynccontextmanager
    async def turn(self, agent: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(agent, _Turn())
        turn.wanted += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[agent]


class _Turn:
    """Whose turn it is among the statements of one agent, and how many want it."""

    __slots__ = ("lock", "wanted")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


class Worker:
    """One process and the pipes to it."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 - as sys.path has it
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from proxy.judge import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._questions = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._shared = Shared()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, asked: Asked) -> Judged:
        """The answer. Raises _UnjudgedError where none comes, or none in time."""
        overdue = threading.Event()

        def give_up() -> None:
            overdue.set()
            self._process.kill()

        def read(size: int) -> bytes:
            data = self._answers.read(size)
            if len(data) < size:
                raise EOFError
            return data

        timer = threading.Timer(_PATIENCE * asked.seconds, give_up)
        timer.start()
        try:
            self._questions.write(self._shared.dump(asked))
            self._questions.flush()
            judged: Judged = self._shared.load(read)
        except (EOFError, BrokenPipeError):
            late = overdue.is_set() or self._process.wait() == -signal.SIGPROF
            why = f"it takes longer than {asked.seconds:g} s to judge" if late else "what judged it failed"
            raise _UnjudgedError(why) from None
        except Exception as error:
            # An upgrade in place: a worker that started after it speaks of things that are not here.
            raise _UnjudgedError("what judged it answered in another version's words") from error
        finally:
            timer.cancel()
        return judged

    def stop(self) -> None:
        """End the process, whatever it is at; who waits for its answer is told, and ends the rest."""
        self._process.kill()

    def end(self) -> None:
        """End the process, whatever it is at."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._questions, self._answers):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
