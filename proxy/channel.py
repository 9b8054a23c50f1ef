"""What a supervisor and one of its workers say to each other, over a pair of sockets that nobody else has.

Owns the frames, and whose answer is whose. What is said is ``crew``'s and ``worker``'s. Either end may tell
the other something, or ask it and be answered; what is sent first is taken up first.

A frame is four bytes of length and a pickle. Both ends are the proxy's own: no byte of an agent is ever
unpickled, its text travels inside a ``bytes`` or ``str`` object.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import itertools
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Self, cast

import structlog

_LENGTH: Final = struct.Struct("!I")

Handler = Callable[..., Any]
"""Gives what is answered, or an awaitable of it."""

log = structlog.get_logger("pgturnstile.channel")


class GoneError(Exception):
    """The other end is not there any more."""


class OtherEndError(Exception):
    """What was asked for failed at the other end. The message is what went wrong there."""


class Channel(asyncio.Protocol):
    """One end. ``handlers`` are by the name of what the other end may tell or ask."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()
        """Set once the other end is not there any more."""

    @classmethod
    async def over(cls, end: socket.socket, handlers: Mapping[str, Handler]) -> Self:
        """The end that is ``end``, which is the channel's from here on."""
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: cls(handlers), sock=end)
        return channel

    def tell(self, name: str, *values: object) -> None:
        """Have the other end do ``name``. Nothing happens where it is gone."""
        self._send((None, name, values))

    def ask(self, name: str, *values: object) -> asyncio.Future[Any]:
        """What the other end answers. The future raises GoneError and OtherEndError."""
        answer = asyncio.get_running_loop().create_future()
        if self.gone.is_set():
            answer.set_exception(GoneError())
            return answer
        number = next(self._numbers)
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        self._send((number, name, values))
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
            if len(received) < end:
                return
            message = pickle.loads(bytes(received[_LENGTH.size : end]))  # noqa: S301 - made by ourselves
            del received[:end]
            self._take(*message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.gone.set()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(GoneError())

    # --- one message ---

    def _take(self, number: int | None, name: str | None, content: Any) -> None:
        """``name`` None for an answer; ``number`` None where none is wanted."""
        if name is not None:
            self._do(number, name, content)
            return
        answer = self._waiting.get(number) if number is not None else None
        if answer is None or answer.done():
            # Whoever asked has stopped waiting.
            return
        value, failed = content
        if failed is None:
            answer.set_result(value)
        else:
            answer.set_exception(OtherEndError(failed))

    def _do(self, number: int | None, name: str, values: tuple[Any, ...]) -> None:
        try:
            result = self._handlers[name](*values)
        except Exception as error:
            self._failed(number, name, error)
            return
        if inspect.isawaitable(result):
            task = asyncio.get_running_loop().create_task(self._finish(number, name, result))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        else:
            self._answer(number, result, None)

    async def _finish(self, number: int | None, name: str, result: Awaitable[Any]) -> None:
        try:
            value = await result
        except Exception as error:
            self._failed(number, name, error)
        else:
            self._answer(number, value, None)

    def _failed(self, number: int | None, name: str, error: Exception) -> None:
        if number is None:
            log.error("what was told failed", name=name, exc_info=error)
        self._answer(number, None, str(error) or repr(error))

    def _answer(self, number: int | None, value: object, failed: str | None) -> None:
        if number is not None:
            self._send((number, None, (value, failed)))

    def _send(self, message: tuple[object, ...]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            body = dumped(message)
            self._transport.write(_LENGTH.pack(len(body)) + body)


class _Pickler(pickle.Pickler):
    dispatch_table: Mapping[type, Callable[[Any], Any]] = {
        MappingProxyType: lambda view: (_view, (dict(view),)),
    }


def _view(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)


def dumped(message: object) -> bytes:
    """``message`` as it travels."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()
