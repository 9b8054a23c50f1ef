"""When a database is watched, left and forgotten, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from policy.catalog import Catalog
from proxy import catalogs
from proxy.backend import Endpoint
from proxy.catalogs import CatalogLogin, Catalogs
from tests.policy.rules.schema import CATALOG

ENDPOINT = Endpoint("127.0.0.1", 5432)
LOGIN = CatalogLogin("reader", lambda: None)


class Watcher:
    """Stands in for a CatalogWatcher: notes when it is started, stopped and asked."""

    made: list[Watcher]

    def __init__(self, connect: Callable[[], Awaitable[Any]]) -> None:
        self.current: Catalog | None = None
        self.failure: BaseException | None = None
        self.age_s = 0.0
        self.log: list[str] = []
        Watcher.made.append(self)

    async def __aenter__(self) -> Watcher:
        self.log.append("start")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("stop")

    def confirmed_within(self, seconds: float) -> bool:
        return self.current is not None and self.age_s <= seconds

    async def renew(self, timeout: float = 0.0) -> Catalog:
        self.log.append("renew")
        self.current, self.age_s = CATALOG, 0.0
        return CATALOG


@pytest.fixture(autouse=True)
def watchers(monkeypatch: pytest.MonkeyPatch) -> list[Watcher]:
    Watcher.made = []
    monkeypatch.setattr(catalogs, "CatalogWatcher", Watcher)
    return Watcher.made


async def take(kept: Catalogs) -> catalogs.WatchedCatalog:
    return await kept.take("shop", ENDPOINT, LOGIN, within_s=1.0)


def test_it_is_left_after_the_last_session_and_watched_again_with_the_next(watchers: list[Watcher]) -> None:
    async def scenario() -> None:
        kept = Catalogs(idle_s=60.0, linger_s=0.0)
        one, two = await take(kept), await take(kept)
        assert one is two
        kept.give_back(one)
        await asyncio.sleep(0.01)
        assert watchers[0].log == ["start", "renew"]
        kept.give_back(two)
        await asyncio.sleep(0.01)
        assert watchers[0].log == ["start", "renew", "stop"]
        assert await take(kept) is one
        assert watchers[0].log == ["start", "renew", "stop", "start"]
        await kept.close()
        assert watchers[0].log[-1] == "stop"

    asyncio.run(scenario())


def test_a_snapshot_that_nobody_has_watched_for_a_while_is_confirmed_first(watchers: list[Watcher]) -> None:
    async def scenario() -> None:
        kept = Catalogs(idle_s=60.0, linger_s=0.0)
        kept.give_back(await take(kept))
        await asyncio.sleep(0.01)
        watchers[0].age_s = 11.0
        await take(kept)
        assert watchers[0].log == ["start", "renew", "stop", "start", "renew"]

    asyncio.run(scenario())


def test_a_session_that_comes_while_the_last_one_s_time_runs_out_stays_watched(
    watchers: list[Watcher],
) -> None:
    async def scenario() -> None:
        kept = Catalogs(idle_s=60.0, linger_s=0.01)
        kept.give_back(await take(kept))
        await take(kept)
        await asyncio.sleep(0.05)
        assert watchers[0].log == ["start", "renew"]

    asyncio.run(scenario())


def test_it_is_forgotten_when_nobody_has_used_it_for_long(watchers: list[Watcher]) -> None:
    async def scenario() -> None:
        kept = Catalogs(idle_s=0.02, linger_s=0.0)
        kept.give_back(await take(kept))
        await asyncio.sleep(0.08)
        await take(kept)
        assert [watcher.log for watcher in watchers] == [["start", "renew", "stop"], ["start", "renew"]]

    asyncio.run(scenario())
