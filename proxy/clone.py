"""A clone of the database, on which statements are tried and rolled back: one connection of one session.

Owns the conversation with it: a transaction made like the agent's session,
the statement with the agent's own bytes for its values, ROLLBACK, and a session as new for the next. What an
answer is worth is ``policy.sandbox``'s. The connection is never shared: nothing that outlives a rollback
meets another agent. Knows nothing of the agent's connection.

Source: PostgreSQL documentation, "Extended Query".
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from policy import sandbox
from policy.sandbox import Tried, read_session, setup
from proxy import backend
from proxy.backend import BackendError, Endpoint, Login
from proxy.dsn import CloneTarget
from proxy.effects import Trial
from proxy.stream import StreamClosedError, TransportStream
from proxy.wire import backend as wire
from proxy.wire.frontend import MalformedMessage

_CONNECT_S: Final = 10.0
_MORE_S: Final = 2.0
"""What the clone may take beyond a statement's own time: to set up, to roll back, to say that it gave up."""
_PIECE: Final = 64 * 1024
_LONGEST: Final = 1 << 20
"""Longest message of the clone that is read rather than passed over, in bytes."""
_ROWS: Final = frozenset({b"D", b"d"})

log = structlog.get_logger("pgturnstile.sandbox")


class _Said(NamedTuple):
    """What the clone answered up to its ReadyForQuery."""

    error: Mapping[str, str] | None
    rows: list[bytes]
    types: tuple[int, ...]
    status: bytes


class Clone:
    """One session's connection to its clone. ``run`` one trial at a time; ``close`` at any time."""

    def __init__(self, connection: str) -> None:
        self._connection = connection
        self._target: CloneTarget | None = None
        self._stream: TransportStream | None = None
        self._key: tuple[Endpoint, int, bytes] | None = None
        self._timeout_ms = 0
        self.running = False
        self._cancelled = False

    async def run(self, target: CloneTarget | None, trial: Trial) -> Tried:
        """Try ``trial`` on ``target``. Never raises but CancelledError: what fails makes the clone unfit."""
        self.running, self._cancelled = True, False
        try:
            tried = await self._run(target, trial)
        finally:
            self.running = False
        return Tried.cancel() if self._cancelled else tried

    async def cancel(self) -> None:
        """End what runs: whatever comes of it, it counts as cancelled."""
        self._cancelled = True
        await self._cancel()

    async def _run(self, target: CloneTarget | None, trial: Trial) -> Tried:
        rules = trial.policy.sandbox
        if target is None or rules is None:
            return Tried(why_not="there is no clone", unfit=True)
        try:
            async with asyncio.timeout(_CONNECT_S):
                stream = await self._open(target, rules.timeout_ms)
            async with asyncio.timeout(rules.timeout_ms / 1000 + _MORE_S):
                tried = await self._try(stream, trial)
                await self._begin_anew(stream)
                return tried
        except (BackendError, StreamClosedError, OSError, TimeoutError, MalformedMessage) as error:
            self.close()
            self._warn(str(error) or type(error).__name__)
            await self._cancel()
            return Tried(why_not="the clone does not answer", unfit=True)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cut the connection; what runs on it is rolled back by the clone."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()

    async def _cancel(self) -> None:
        """Stop what may still run there, whose locks others would wait for: a server that works does not
        notice that its client is gone."""
        if self._key is not None:
            with contextlib.suppress(BackendError, OSError, TimeoutError):
                async with asyncio.timeout(_MORE_S):
                    await backend.cancel(*self._key)

    async def _open(self, target: CloneTarget, timeout_ms: int) -> TransportStream:
        """The connection, made where there is none yet, or none to this clone."""
        stream = self._stream
        if (
            stream is not None
            and not stream.ended
            and (target, timeout_ms) == (self._target, self._timeout_ms)
        ):
            return stream
        self.close()
        self._target, self._timeout_ms = target, timeout_ms
        self._key = None
        endpoint = Endpoint(target.host, target.port, target.mode, target.tls)
        stream = self._stream = await backend.connect(endpoint)
        pins = {
            "client_encoding": "UTF8",
            "standard_conforming_strings": "on",
            "statement_timeout": str(timeout_ms),
        }
        named = {"application_name": "pgturnstile sandbox"}
        login = Login(target.role, target.database, target.password, named, pins)
        opened = await backend.log_in(stream, login)
        self._key = (endpoint, opened.pid, opened.secret)
        return stream

    async def _try(self, stream: TransportStream, trial: Trial) -> Tried:
        stream.write(
            wire.simple_query(b"BEGIN READ WRITE")
            + _run_once(setup(trial.session))
            + _run_once(trial.question)
            + wire.SYNC
        )
        begun = await self._answer(stream)
        said = await self._answer(stream, keep=True)
        error = begun.error or said.error
        if error is not None:
            self._warn(f"{error.get('sqlstate')}: {error.get('message')}")
            return Tried(why_not="the clone does not take the session's settings or its role", unfit=True)
        there = read_session(trial.policy, wire.decode_row(said.rows[-1]))
        if there.fingerprint != trial.session.fingerprint:
            self._warn("its definitions of what a statement meets differ from the database's")
            return Tried(why_not="the clone's schema differs from the database's", unfit=True)
        if not there.like(trial.session):
            self._warn("it has other settings than the session in spite of what it was told")
            return Tried(why_not="the clone does not take the session's settings or its role", unfit=True)
        return await self._run_statement(stream, trial)

    async def _run_statement(self, stream: TransportStream, trial: Trial) -> Tried:
        parse = wire.parse_message(b"", trial.text, trial.types)
        if trial.values is not None and 1 in trial.formats:
            stream.write(parse + wire.frame(b"D", b"S\0") + wire.SYNC)
            said = await self._answer(stream)
            if said.error is not None:
                return self._judged(said)
            if await self._differ(stream, said.types):
                return Tried(why_not="it binds binary values of a type that was made in the database")
        values = b"\0\0\0\0\0\0" if trial.values is None else trial.values
        bind = wire.frame(b"B", b"\0\0" + values)
        stream.write(parse + bind + wire.execute_message(b"") + wire.SYNC)
        said = await self._answer(stream)
        if said.error is None and trial.commits and said.status == b"T":
            stream.write(wire.simple_query(b"SET CONSTRAINTS ALL IMMEDIATE"))
            said = await self._answer(stream)
        return self._judged(said)

    async def _differ(self, stream: TransportStream, types: Iterable[int]) -> bool:
        """Whether values of ``types``, in binary, may mean another thing here: an array or a row names types
        by their numbers. A value of an enum is its label."""
        question = sandbox.ask_types(types)
        if question is None:
            return False
        stream.write(_run_once(question) + wire.SYNC)
        said = await self._answer(stream, keep=True)
        return said.error is not None or wire.decode_row(said.rows[0]) != [b"0"]

    def _judged(self, said: _Said) -> Tried:
        if said.status not in (b"T", b"E"):
            raise MalformedMessage("a statement ended the transaction that it was tried in")
        tried = Tried.of(said.error)
        if tried.unfit and said.error is not None:
            self._warn(f"{said.error.get('sqlstate')}: {said.error.get('message')}")
        return tried

    async def _begin_anew(self, stream: TransportStream) -> None:
        """End the transaction, and with DISCARD what outlives one: locks, statements, sequences' values."""
        stream.write(wire.simple_query(b"ROLLBACK") + wire.simple_query(b"DISCARD ALL"))
        for _ in range(2):
            said = await self._answer(stream)
            if said.error is not None or said.status != b"I":
                raise MalformedMessage("the transaction could not be rolled back")

    async def _answer(self, stream: TransportStream, *, keep: bool = False) -> _Said:
        """Everything up to ReadyForQuery; rows are passed over unless they are to be kept."""
        error: Mapping[str, str] | None = None
        rows: list[bytes] = []
        types: tuple[int, ...] = ()
        while True:
            kind, body = await _next(stream, keep=keep)
            if kind == b"E":
                error = error or wire.decode_fields(body)
            elif kind == b"D" and keep:
                rows.append(body)
            elif kind == b"t":
                types = struct.unpack_from(f"!{len(body) // 4}I", body, 2)
            elif kind == b"G":
                raise MalformedMessage("the clone asks for data")
            elif kind == b"Z":
                return _Said(error, rows, types, body)

    def _warn(self, reason: str) -> None:
        log.warning("clone unfit", connection=self._connection, reason=reason)


def _run_once(text: str) -> bytes:
    return wire.parse_message(b"", text.encode()) + wire.bind_message(b"", b"") + wire.execute_message(b"")


async def _next(stream: TransportStream, *, keep: bool) -> tuple[bytes, bytes]:
    """The next message; the body of a row that is not kept is dropped as it comes."""
    header = await stream.read(5)
    kind = header[:1]
    (length,) = struct.unpack_from("!i", header, 1)
    left = length - 4
    if left < 0:
        raise MalformedMessage("a message shorter than its length")
    if kind in _ROWS and not keep:
        while left:
            left -= len(await stream.read(min(left, _PIECE)))
        return kind, b""
    if left > _LONGEST:
        raise MalformedMessage(f"a message of {left} bytes")
    return kind, await stream.read(left)
