"""Keeps one database's catalog snapshot fresh.

Owns the connection that reads it, when it is asked again, and how long a snapshot may be trusted without
being confirmed. Knows no policy and no statement: whoever decides asks ``CatalogWatcher.current`` and fails
closed where it is None.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self

import asyncpg
import structlog

from policy import catalog_source
from policy.catalog import Catalog

POLL_SECONDS: Final = 5.0
STALE_AFTER_SECONDS: Final = 30.0
"""The longest a snapshot is answered from without the server's word that it still holds."""

ASK_TIMEOUT_SECONDS: Final = 10.0
READ_TIMEOUT_SECONDS: Final = 60.0
FIRST_BACKOFF_SECONDS: Final = 0.25
LONGEST_BACKOFF_SECONDS: Final = 10.0

_log: Final = structlog.get_logger("pgturnstile.catalog")


class WatchedConnection(catalog_source.Connection, Protocol):
    """A connection that the watcher may also end."""

    def terminate(self) -> None: ...


Connect = Callable[[], Awaitable[WatchedConnection]]


class CatalogUnavailableError(Exception):
    """The catalog could not be read in the time allowed; the last failure, if any, is the cause."""


class CatalogWatcher:
    """One connection, one snapshot, one background task; an async context manager.

    ``connect`` opens an asyncpg connection to the database watched. Every ``poll_seconds`` it asks whether
    anything has changed and reads the catalog again where it has; a lost connection is opened again with
    growing pauses. All times are in seconds; ``clock`` is monotonic.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        poll_seconds: float = POLL_SECONDS,
        stale_after: float = STALE_AFTER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._poll_seconds = poll_seconds
        self._stale_after = stale_after
        self._clock = clock
        self._catalog: Catalog | None = None
        self._confirmed = 0.0
        self._epoch: str | None = None
        self._visible: str | None = None
        self._wanted = asyncio.Event()
        self._asked = 0
        self._answered = 0
        self._progress = asyncio.Condition()
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="catalog-watcher")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def current(self) -> Catalog | None:
        """The snapshot, or None where there is none that was confirmed within ``stale_after``."""
        # Asked for each statement: the clock alone says whether it may be trusted.
        return self._catalog if self._clock() - self._confirmed <= self._stale_after else None

    def confirmed_within(self, seconds: float) -> bool:
        """Whether there is a snapshot that the server has confirmed in the last ``seconds``."""
        return self._catalog is not None and self._clock() - self._confirmed <= seconds

    @property
    def epoch(self) -> str | None:
        """Names the state of the schema that ``current`` shows: part of a decision cache's key."""
        return self._epoch

    @property
    def failure(self) -> BaseException | None:
        """What went wrong last, None once the server has answered again."""
        return self._failure

    async def renew(self, timeout: float = ASK_TIMEOUT_SECONDS) -> Catalog:
        """Ask the server now, because DDL was seen or a name was missing, and wait for the answer.

        The snapshot returned shows everything committed before the call. Calls at the same time share one
        question. Raises CatalogUnavailableError where no answer came within ``timeout`` seconds.
        """
        self._asked += 1
        ticket = self._asked
        self._wanted.set()
        try:
            async with asyncio.timeout(timeout), self._progress:
                await self._progress.wait_for(lambda: self._answered >= ticket)
        except TimeoutError as error:
            raise CatalogUnavailableError("the database's catalog cannot be read") from (
                self._failure or error
            )
        assert self._catalog is not None  # noqa: S101 - _confirm sets it before it counts an answer
        return self._catalog

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            try:
                async with asyncio.timeout(ASK_TIMEOUT_SECONDS):
                    connection = await self._connect()
                try:
                    self._visible = None
                    reader = catalog_source.Reader(connection)
                    while True:
                        await self._confirm(connection, reader)
                        backoff = FIRST_BACKOFF_SECONDS
                        await self._pause(self._poll_seconds)
                finally:
                    connection.terminate()
            # Whatever it is, the snapshot grows stale and those who ask fail closed: trying again is right.
            except Exception as error:
                self._failure = error
                _log.warning("catalog_unreadable", error=str(error) or type(error).__name__)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Until the next poll is due or somebody asks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted.wait()

    async def _confirm(self, connection: WatchedConnection, reader: catalog_source.Reader) -> None:
        """One question to the server: does the snapshot still hold? And a new one where it does not."""
        self._wanted.clear()
        asked = self._asked
        now = self._clock()
        async with asyncio.timeout(ASK_TIMEOUT_SECONDS):
            # Taken before the epoch: a change in between shows at the next poll.
            visible = await catalog_source.visible(connection)
            changed = visible != self._visible or self._catalog is None
            epoch = await catalog_source.epoch(connection) if changed else self._epoch
        if self._catalog is None or epoch != self._epoch:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                self._catalog = await reader.read()
            _log.info("catalog_read", sha256=self._catalog.sha256)
        self._epoch, self._visible, self._confirmed, self._failure = epoch, visible, now, None
        async with self._progress:
            self._answered = asked
            self._progress.notify_all()


def connector(**arguments: Any) -> Connect:
    """A ``connect`` for ``CatalogWatcher`` that passes ``arguments`` to ``asyncpg.connect``."""

    async def connect() -> WatchedConnection:
        connection: WatchedConnection = await asyncpg.connect(**arguments)
        return connection

    return connect
