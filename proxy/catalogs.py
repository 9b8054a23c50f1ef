"""The catalogs of the databases behind the proxy: one watcher a database, shared by its sessions.

Owns when a watcher begins and ends and whose login it reads with. What a snapshot holds is ``policy``'s, how
it is kept fresh ``policy.catalog_watcher``'s. Knows no messages.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Protocol

import asyncpg
import structlog

from policy.catalog import Catalog
from policy.catalog_watcher import POLL_SECONDS, CatalogUnavailableError, CatalogWatcher, WatchedConnection
from proxy.backend import Endpoint
from proxy.tls import TLSMode

IDLE_S: Final = 300.0
"""How long a snapshot is kept after the last session of its database: a later one then finds it there."""
LINGER_S: Final = 1.0
"""How long its connection stays after the last session. DROP DATABASE, and whatever else needs a database
without sessions, waits up to five seconds for those that leave (CountOtherDBBackends in
src/backend/storage/ipc/procarray.c) and then fails: a session of ours must not be the one that stays."""
_WATCHED_WITHIN_S: Final = 2 * POLL_SECONDS
"""What a watched snapshot was confirmed in at most, while all goes well."""
_STATEMENT_TIMEOUT_MS: Final = 60_000

log = structlog.get_logger("pgturnstile.catalog")


class CatalogLogin(NamedTuple):
    """The role that reads a catalog. Any role may: the catalogs in question are open to all.

    ``password`` is asked each time a connection is made: it may change meanwhile.
    """

    user: str
    password: Callable[[], str | None]


class CatalogView(Protocol):
    """What a gate needs of a database's catalog."""

    @property
    def database(self) -> str: ...

    @property
    def current(self) -> Catalog | None:
        """The snapshot that may be trusted now; another object whenever it was read anew."""
        ...

    async def renew(self) -> bool:
        """Make sure that the snapshot shows what is committed by now; False where that cannot be had."""
        ...


class WatchedCatalog:
    """One database's catalog while anybody uses it. Made by ``Catalogs`` alone."""

    def __init__(self, database: str, endpoint: Endpoint, login: CatalogLogin) -> None:
        self.database: Final = database
        self.users = 0
        self._watching = False
        self._endpoint = endpoint
        self._login = login
        self._watcher = CatalogWatcher(self._connect)

    @property
    def current(self) -> Catalog | None:
        return self._watcher.current

    async def renew(self) -> bool:
        try:
            await self._watcher.renew()
        except CatalogUnavailableError as error:
            log.warning("catalog_unreadable", database=self.database, error=str(error.__cause__ or error))
            return False
        return True

    async def first(self, within_s: float) -> None:
        """Until there is a snapshot as fresh as a watched one, ``within_s`` seconds at most: a session may
        begin without."""
        if not self._watcher.confirmed_within(_WATCHED_WITHIN_S):
            try:
                await self._watcher.renew(within_s)
            except CatalogUnavailableError as error:
                log.warning("catalog_unreadable", database=self.database, error=str(error.__cause__ or error))

    def offer(self, endpoint: Endpoint, login: CatalogLogin) -> None:
        """Read by these from now on, where those before have failed: certificates and passwords change."""
        if self._watcher.failure is not None:
            self._endpoint = endpoint
            self._login = login

    async def start(self) -> None:
        """Watch, with a connection, where that is not done already."""
        if not self._watching:
            self._watching = True
            await self._watcher.__aenter__()

    async def stop(self) -> None:
        """Leave the database; the snapshot stays."""
        if self._watching:
            self._watching = False
            await self._watcher.__aexit__(None, None, None)

    async def _connect(self) -> WatchedConnection:
        connection: WatchedConnection = await asyncpg.connect(
            host=self._endpoint.host,
            port=self._endpoint.port,
            user=self._login.user,
            password=self._login.password(),
            database=self.database,
            ssl=asyncpg_tls(self._endpoint),
            # A pooler may stand before the server.
            statement_cache_size=0,
            server_settings={
                "application_name": "pgturnstile catalog",
                "default_transaction_read_only": "on",
                "statement_timeout": str(_STATEMENT_TIMEOUT_MS),
            },
        )
        return connection


def asyncpg_tls(endpoint: Endpoint) -> ssl.SSLContext | Literal["prefer", False]:
    """asyncpg's ``ssl``: with a context it insists on TLS, which ``prefer`` does not."""
    if endpoint.is_socket or endpoint.tls is None:
        return False
    return "prefer" if endpoint.mode is TLSMode.PREFER else endpoint.tls


class Catalogs:
    """Every catalog in use. After its last user one is watched for ``linger_s`` and kept for ``idle_s``,
    in seconds."""

    def __init__(self, *, idle_s: float = IDLE_S, linger_s: float = LINGER_S) -> None:
        self._idle_s = idle_s
        self._linger_s = linger_s
        self._watched: dict[tuple[Any, ...], WatchedCatalog] = {}
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def readable(self) -> dict[str, bool]:
        """The databases in use, and whether the schema of each can be read."""
        return {each.database: each.current is not None for each in self._watched.values() if each.users}

    async def take(
        self, database: str, endpoint: Endpoint, login: CatalogLogin, *, within_s: float
    ) -> WatchedCatalog:
        """The catalog of ``database``, with a snapshot if there is one ``within_s`` seconds. Give it back."""
        key = (endpoint.host, endpoint.port, endpoint.mode, database)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = WatchedCatalog(database, endpoint, login)
        watched.users += 1
        try:
            await watched.start()
            watched.offer(endpoint, login)
            await watched.first(within_s)
        except BaseException:
            self.give_back(watched)
            raise
        return watched

    def give_back(self, watched: WatchedCatalog) -> None:
        """One user less; after the last one the catalog is left, and some time later forgotten."""
        watched.users -= 1
        if not watched.users:
            loop = asyncio.get_running_loop()
            loop.call_later(self._linger_s, self._leave_if_idle, watched)
            loop.call_later(self._idle_s, self._forget_if_idle, watched)

    def _leave_if_idle(self, watched: WatchedCatalog) -> None:
        task = asyncio.get_running_loop().create_task(self._leave(watched))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _leave(self, watched: WatchedCatalog) -> None:
        if not watched.users:
            await watched.stop()

    def _forget_if_idle(self, watched: WatchedCatalog) -> None:
        if watched.users:
            return
        self._watched = {key: other for key, other in self._watched.items() if other is not watched}

    async def close(self) -> None:
        """Stop watching."""
        ending, self._watched = list(self._watched.values()), {}
        await asyncio.gather(*(watched.stop() for watched in ending), *self._endings)
