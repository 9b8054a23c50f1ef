"""Reading configuration and policies again while the proxy runs: when, and whether what was read is taken.

Owns the order of a reload: read away from the event loop, try the tests that the policies bring along, and
only then replace, in one step. Whatever goes wrong before leaves everything as it was. What a new
configuration does to open sessions is ``server``'s and ``renewal``'s, and that it is every worker's or none's
``crew``'s. Knows no messages.

A reload is asked for by a signal (``ask``), by somebody who waits for the outcome (``reload``), or by files
that changed (``watch``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import structlog

from policy.catalog import Catalog
from policy.catalog_json import CatalogFormatError
from policy.diagnostics import InvalidFileError
from policy.loader import tests_beside
from policy.model import Policy
from policy.trial import Tried, run_all
from proxy.config import Config
from proxy.health import LastReload
from proxy.systemd import Notifier

_POLL_S: Final = 0.5
"""How often watched files are looked at. What changed is read once it stayed the same from one look to the
next: an editor may write a file in pieces, and a deployment several files."""
_MOST_TOLD: Final = 10
"""Failed tests of a policy that are told one by one."""

Stamp = tuple[int, int, int] | None
"""Time of the last change in ns, size in bytes and inode of a file; None where it is not there."""

log = structlog.get_logger("pgturnstile.server")


class TestsFailedError(Exception):
    """A policy does not do what its own tests say. The message tells each on a line of its own."""


class NotTakenError(Exception):
    """A configuration without a fault that cannot be served by what runs. The message says why."""


class Served(Protocol):
    """What is served by a configuration: a server, or the workers of a proxy."""

    @property
    def config(self) -> Config:
        """The one that new connections are served by."""
        ...

    async def take(self, config: Config) -> None:
        """Serve by ``config`` from here on, all of it, or raise: OSError, ssl.SSLError, NotTakenError."""
        ...


class Reloads:
    """The reloads of what is ``served``, one at a time. ``load`` reads everything and raises what is wrong;
    ``notifier`` tells the service manager of each."""

    def __init__(self, served: Served, load: Callable[[], Config], notifier: Notifier | None = None) -> None:
        self._notifier = Notifier({}) if notifier is None else notifier
        self.last: LastReload | None = None
        self._served = served
        self._load = load
        self._one_at_a_time = asyncio.Lock()
        self._asked = asyncio.Event()
        self._at_fault: frozenset[Path] = frozenset()
        """Files that kept the last reload from being taken: putting them right may be all it takes."""
        self._tasks = [asyncio.get_running_loop().create_task(self._serve_signals())]

    def ask(self) -> None:
        """Reload soon; asked several times meanwhile, once."""
        self._asked.set()

    def watch(self) -> None:
        """Reload whenever the files of the configuration have changed."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._serve_changes()))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def reload(self) -> LastReload:
        """Reload now. Never raises for what is wrong with the files: the outcome says it."""
        async with self._one_at_a_time:
            self._notifier.reloading()
            refused = await self._attempt()
            self._notifier.ready()
            self.last = LastReload(time.time(), refused)
            return self.last

    async def _attempt(self) -> str | None:
        """Why the configuration as it is now is not taken; None where it is."""
        before = self._served.config
        self._at_fault = frozenset()
        try:
            after = await asyncio.to_thread(self._read)
            await self._served.take(after)
        except InvalidFileError as error:
            self._at_fault = frozenset(Path(each.source) for each in error.diagnostics)
            return _refused(str(error))
        except (TestsFailedError, NotTakenError, OSError) as error:
            return _refused(str(error))
        except Exception as error:
            log.exception("a reload failed by itself")
            return _refused(f"the proxy failed: {error!r}")
        log.info("configuration reloaded", policies={p.name: p.sha256 for p in after.policies})
        if _fixed(before) != _fixed(after):
            log.warning(
                "a new listening address, admin port, audit file, control socket or number of workers takes "
                "a restart"
            )
        return None

    def _read(self) -> Config:
        """The configuration, its policies having passed their tests. Runs in a thread."""
        config = self._load()
        failures = [failure for policy in config.policies for failure in _failures(policy)]
        if failures:
            raise TestsFailedError("\n".join(failures))
        return config

    async def _serve_signals(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.reload()

    async def _serve_changes(self) -> None:
        known = await asyncio.to_thread(_stamps, self._files())
        while True:
            await asyncio.sleep(_POLL_S)
            now = await asyncio.to_thread(_stamps, known)
            if now == known:
                continue
            settled = await self._settled(now)
            changed = sorted(str(path) for path in settled if settled[path] != known[path])
            log.info("files have changed", files=changed)
            await self.reload()
            # What changed during the reload differs from what was seen before it: the next look sees it.
            files = self._files()
            known = {**await asyncio.to_thread(_stamps, files - settled.keys()), **settled}
            known = {path: stamp for path, stamp in known.items() if path in files}

    async def _settled(self, now: Mapping[Path, Stamp]) -> Mapping[Path, Stamp]:
        """The stamps once they stay as they are."""
        while True:
            await asyncio.sleep(_POLL_S)
            later = await asyncio.to_thread(_stamps, now)
            if later == now:
                return now
            now = later

    def _files(self) -> frozenset[Path]:
        return self._at_fault | frozenset(_files_of(self._served.config))


def _refused(reason: str) -> str:
    log.error("reload failed; the old configuration stays", error=reason)
    return reason


def _failures(policy: Policy) -> list[str]:
    """What ``policy`` does not do as its tests say, a line each. Raises PolicyError for a file of tests."""
    try:
        failed = [tried for tried in run_all(policy, None, _dump) if not tried.holds]
    except (OSError, CatalogFormatError) as error:
        return [f"{policy.source}: the catalog that its tests name cannot be read: {error}"]
    told = [_told(tried) for tried in failed[:_MOST_TOLD]]
    more = len(failed) - len(told)
    return [*told, f"{policy.source}: {more} more of its tests fail"] if more else told


def _told(tried: Tried) -> str:
    difference = tried.differences[0]
    what = tried.test.name or tried.test.sql or "a test"
    return (
        f"{tried.test.source}:{tried.test.line}: test fails: {what}: "
        f"{difference.what} expected {difference.expected}, found {difference.found}"
    )


def _dump(path: Path) -> Catalog:
    return Catalog.from_json(path.read_bytes())


def _files_of(config: Config) -> Iterator[Path]:
    """Every file that a reload would read, but for passwords, which are read at each login."""
    yield Path(config.source)
    for policy in config.policies:
        yield from map(Path, policy.files)
        yield tests_beside(Path(policy.source))
    if config.listen.tls is not None:
        tls = config.listen.tls
        yield from (path for path in (tls.cert, tls.key, tls.client_ca) if path is not None)
    if config.backend.tls.ca is not None:
        yield config.backend.tls.ca
    yield from config.backend.tls.own or ()


def _stamps(paths: Iterable[Path]) -> Mapping[Path, Stamp]:
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _fixed(config: Config) -> tuple[object, ...]:
    """What a process keeps from its start to its end."""
    return (
        config.listen.host,
        config.listen.port,
        config.admin,
        config.audit,
        config.control,
        config.workers,
    )
