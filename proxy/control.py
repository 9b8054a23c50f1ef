"""The control socket: a Unix socket by which whoever runs the proxy asks it for something and is answered.

Owns both ends: what the process listens with and what the command line asks by. One question a connection,
one line each way: a command's name, and JSON. Who may ask is what the file system says (mode 0600). The
newest process takes the name over, so that one can follow another without a gap; a socket that a crash has
left behind is in nobody's way. Knows no protocol of PostgreSQL's and no configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

_QUESTION_BYTES: Final = 256
_QUESTION_S: Final = 5.0
"""How long a question may take to arrive."""

Answering = Callable[[], Awaitable[Mapping[str, Any]]]

log = structlog.get_logger("pgturnstile.control")


class ControlError(Exception):
    """Nobody answers at the socket. The message is a sentence for the person who asked."""


class ControlSocket:
    """Listens at ``path`` and answers each of ``commands`` by name."""

    def __init__(self, path: Path, commands: Mapping[str, Answering]) -> None:
        self._path = path
        self._commands = commands
        self._inode: tuple[int, int] | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises OSError where the name is another file's, or cannot be had."""
        listener = _listener(self._path)
        found = self._path.stat()
        self._inode = (found.st_dev, found.st_ino)
        self._server = await asyncio.start_unix_server(self._answer, sock=listener, limit=_QUESTION_BYTES)

    def close(self) -> None:
        """Listen no more; the name goes where it is not another process's by now."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(OSError):
            found = self._path.stat()
            if (found.st_dev, found.st_ino) == self._inode:
                self._path.unlink()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_QUESTION_S):
                name = (await reader.readline()).decode("ascii", "replace").strip()
            command = self._commands.get(name)
            if command is None:
                answer: Mapping[str, Any] = {"error": f"unknown command {name!r}"}
            else:
                answer = await command()
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (OSError, TimeoutError, ValueError) as error:
            log.warning("a question at the control socket came to nothing", error=str(error))
        finally:
            writer.close()


def ask(path: Path, command: str, within_s: float) -> dict[str, Any]:
    """What the process behind ``path`` answers to ``command``. Raises ControlError."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(within_s)
            connection.connect(str(path))
            connection.sendall(command.encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline()
    except TimeoutError:
        raise ControlError(f"The proxy at {path} did not answer within {within_s:g} seconds.") from None
    except OSError as error:
        raise ControlError(f"No proxy answers at {path}: {error.strerror or error}.") from error
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        raise ControlError(f"The proxy at {path} ended without an answer.") from None
    return answer


def _listener(path: Path) -> socket.socket:
    """A socket that listens at ``path`` by the time anybody finds it there."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "the control socket's name is another file's", str(path))
    made = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            made.unlink()
        listener.bind(str(made))
        made.chmod(0o600)
        listener.listen()
        made.rename(path)
    except BaseException:
        listener.close()
        with contextlib.suppress(OSError):
            made.unlink()
        raise
    return listener
