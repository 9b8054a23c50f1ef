"""The process that judges large texts: questions on its standard input, decisions on its standard output.

Owns how a question and a decision travel between the two processes, and the worker's loop. Run by ``judges``
alone, which calls ``main``. Knows no connection, no secret and no configuration: the policy and the
catalog come with the first question that needs them and are named by a number from then on.

A frame is four bytes of length and a pickle. Both ends are the proxy's own: no byte of an agent is ever
unpickled, its text travels inside a ``bytes`` object.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames, SessionNames
from policy.cost import Question
from policy.decision import Decision, RuleFailure, Situation, decide
from policy.hidden_code import hides
from policy.model import Policy
from policy.parse import parse
from policy.price import priceable

NICENESS: Final = 5
"""A worker yields to the event loop, which serves everybody, wherever both want the same core."""
TIRED_KIB: Final = 256 * 1024
"""A worker that has ever held more is replaced: what a hostile tree took is not all given back."""
MAX_SHARED: Final = 16
"""So is one that has been sent as many policies and snapshots of schemas: most of them are no more."""
_OOM_SCORE: Final = "500"
"""Where memory ends, a judge goes before the proxy (proc_pid_oom_score_adj(5))."""
_LENGTH: Final = struct.Struct("!I")
_SHARED: Final = (Policy, Catalog)


class Asked(NamedTuple):
    """One text to judge, and how many seconds of the processor that may take before the kernel ends the
    process: of the processor, because how busy a machine is says nothing of a statement."""

    policy: Policy
    agent: str
    text: bytes
    statement_bytes: int
    names: SessionNames
    seconds: float


class Judged(NamedTuple):
    """``question`` is what its price is asked by; ``hides`` as in ``Ruling``; ``tired`` that this worker is
    to be replaced."""

    decision: Decision
    question: Question | None
    hides: bool
    tired: bool = False


class Shared:
    """The policies and catalogs that both ends of one pipe hold, by number."""

    def __init__(self) -> None:
        self._objects: list[Policy | Catalog] = []
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def dump(self, message: object) -> bytes:
        """``message`` as a frame. What it shares and the other end has not seen goes ahead of it."""
        fresh: list[Policy | Catalog] = []

        def number(item: object) -> int | None:
            if not isinstance(item, _SHARED):
                return None
            if id(item) not in self._numbers:
                self._numbers[id(item)] = len(self._objects)
                self._objects.append(item)
                fresh.append(item)
            return self._numbers[id(item)]

        body = _dumped(message, number)
        return b"".join(_frame(part) for part in (_dumped(fresh, lambda _: None), body))

    def load(self, read: Callable[[int], bytes]) -> Any:
        """The next message; ``read`` gives so many bytes. Raises EOFError where there is none."""
        for item in _loaded(_read_frame(read), self._objects):
            self._numbers[id(item)] = len(self._objects)
            self._objects.append(item)
        return _loaded(_read_frame(read), self._objects)


class _Pickler(pickle.Pickler):
    # By how it is made anew: an index is not sent, and a hash is that of its process.
    dispatch_table: Mapping[type, Callable[[Any], Any]] = {
        MappingProxyType: lambda view: (_view, (dict(view),)),
        Catalog: lambda catalog: (Catalog, (catalog.content,)),
        CatalogNames: lambda names: (
            _catalog_names,
            (names.catalog, names.paths, names.temporary, names.unsettled),
        ),
    }

    def __init__(self, file: IO[bytes], number: Callable[[object], int | None]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._number = number

    def persistent_id(self, obj: object) -> int | None:
        return self._number(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], objects: list[Policy | Catalog]) -> None:
        super().__init__(file)
        self._objects = objects

    def persistent_load(self, pid: int) -> Policy | Catalog:
        return self._objects[pid]


def _view(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)


def _catalog_names(catalog: Catalog, paths: Any, temporary: bool, unsettled: bool) -> CatalogNames:
    return CatalogNames(catalog, paths, temporary=temporary, unsettled=unsettled)


def _dumped(message: object, number: Callable[[object], int | None]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, number).dump(message)
    return buffer.getvalue()


def _loaded(body: bytes, objects: list[Policy | Catalog]) -> Any:
    return _Unpickler(io.BytesIO(body), objects).load()


def _frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _read_frame(read: Callable[[int], bytes]) -> bytes:
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    return read(length)


def judge(asked: Asked) -> Judged:
    """What ``Gate.rule_slowly`` decides, without the log."""
    query = parse(asked.text, asked.statement_bytes)
    decision = decide(asked.policy, Situation(asked.agent, asked.names), query)
    decision, question = priceable(decision, asked.policy, asked.names)
    if decision.failures:
        decision = replace(decision, failures=tuple(map(_told, decision.failures)))
    return Judged(decision, question, hides(decision, asked.names))


def _told(failure: RuleFailure) -> RuleFailure:
    """``failure`` with its traceback in words: neither an exception nor a frame need survive a pickle."""
    return RuleFailure(failure.rule, RuntimeError("".join(traceback.format_exception(failure.error))))


def main() -> None:
    """Answer questions until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    shared, questions, answers = Shared(), sys.stdin.buffer, sys.stdout.buffer

    def read(size: int) -> bytes:
        data = questions.read(size)
        if len(data) < size:
            raise EOFError
        return data

    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            asked: Asked = shared.load(read)
            # Its signal is not handled: code in C must not put it off.
            signal.setitimer(signal.ITIMER_PROF, asked.seconds)
            judged = judge(asked)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            held_kib = _held_kib()
            tired = held_kib > TIRED_KIB or len(shared) > MAX_SHARED
            answers.write(shared.dump(judged._replace(tired=tired)))
            answers.flush()


def _held_kib() -> int:
    """The memory that this process holds, in KiB.

    Not ru_maxrss: that counts what the parent held when it started this process (exec_mmap in Linux's
    fs/exec.c), so that a worker of a large proxy would never be used twice.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize() // 1024
