"""One worker of a proxy: a server that heeds its supervisor alone.

Owns what a worker is told and asked, and what it asks in turn. It gets its configuration from the supervisor
and reads none itself, so that all workers serve by the same one, and one that is started in the place of
another too. It ends when it is told to, and at once when the supervisor is gone. Signals mean nothing to it:
a service manager and a terminal send theirs to every process, and one end has to be enough. Run by ``crew``
alone, which calls ``main``.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog

from proxy import compiled, process
from proxy.audit import Audit, AuditError
from proxy.channel import Channel, GoneError, OtherEndError
from proxy.config import Config, Statements
from proxy.credentials import NAMES
from proxy.handshake import RefusedError
from proxy.health import AuditState, TurnedAway
from proxy.logins import LONGEST_WAIT_S
from proxy.logs import Logs, configure_logging
from proxy.meters import Meters
from proxy.observed import Observed
from proxy.recent import Told
from proxy.server import NoAudit, Server
from proxy.terms import Terms

_ANSWER_S: Final = 5.0
"""How long the supervisor may take to count."""
_UNHEEDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)

log = structlog.get_logger("pgturnstile.worker")


class Start(NamedTuple):
    """The first that a worker is told. ``names_secret``: see ``credentials``."""

    number: int
    config: Config
    names_secret: bytes
    logs: Logs


class Figures(NamedTuple):
    """How a worker fares. ``connections`` are the open ones by agent, ``catalogs`` and ``turned_away`` as the
    server's."""

    meters: Meters
    connections: dict[str, int]
    catalogs: dict[str, bool]
    audit: AuditState | None
    turned_away: TurnedAway | None = None


def main() -> None:
    """Serve until told otherwise. The arguments are descriptors: the channel's, and those to listen at."""
    for number in _UNHEEDED:
        signal.signal(number, signal.SIG_IGN)
    end, *listening = (socket.socket(fileno=int(each)) for each in sys.argv[1:])
    for each in (end, *listening):
        each.set_inheritable(False)
    worker = Worker(listening)
    try:
        # The audit is closed when nothing runs any more.
        with contextlib.ExitStack() as closing, asyncio.Runner(loop_factory=process.event_loop()) as runner:
            served = runner.run(worker.run(end, closing))
    except AuditError as error:
        log.error("audit not closed", error=str(error))
        served = False
    sys.exit(0 if served else 1)


class Worker:
    """What ``main`` runs."""

    def __init__(self, listening: list[socket.socket]) -> None:
        self._listening = listening
        self._audit: Audit | None = None
        self._observed: Observed | None = None
        self._prepared: Terms | None = None
        self._server: Server
        self._channel: Channel
        self._started: asyncio.Future[Start]
        self._over: asyncio.Future[float | None]
        """How long to drain, in seconds; None to stop at once."""

    async def run(self, end: socket.socket, closing: contextlib.ExitStack) -> bool:
        """Until the end; False where it could not serve. What is to be closed last goes to ``closing``."""
        loop = asyncio.get_running_loop()
        self._started, self._over = loop.create_future(), loop.create_future()
        self._channel = await Channel.over(end, self._handlers())
        gone = loop.create_task(self._channel.gone.wait())
        gone.add_done_callback(lambda _: self._end(None))
        await _first(self._started, gone)
        if not self._started.done():
            return False
        start = self._started.result()
        configure_logging(sys.stderr, as_json=start.logs.as_json, least=start.logs.least, worker=start.number)
        try:
            host, port = await self._serve(start, closing)
        except (OSError, ssl.SSLError, AuditError, compiled.StaleBuildError) as error:
            self._channel.tell("failed", str(error))
            return False
        process.spare_the_collector()
        self._channel.tell("serving", host, port)
        within_s = await self._over
        if within_s is not None and not self._channel.gone.is_set():
            await self._drain(within_s)
        else:
            await self._server.stop()
        self._channel.tell("parting", self._figures())
        gone.cancel()
        return True

    async def _serve(self, start: Start, closing: contextlib.ExitStack) -> tuple[str, int]:
        compiled.check()
        process.share_the_interpreter()
        NAMES.secret = start.names_secret
        config = start.config
        if config.audit is not None:
            self._audit = closing.enter_context(Audit(config.audit))
        sink = self._audit or NoAudit()
        if config.admin is not None:
            statements = Statements.FULL if config.audit is None else config.audit.statements
            self._observed = Observed(sink, statements)
        meters = None if self._observed is None else self._observed.meters
        self._server = Server(config, self._observed or sink, meters, AskedPeers(self._channel))
        if self._audit is not None:
            process.heed(self._audit, self._server)
        return await self._server.start(self._listening)

    async def _drain(self, within_s: float) -> None:
        """Drain, unless it is told to stop meanwhile."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        draining = loop.create_task(self._server.hand_over(within_s))
        await _first(draining, self._over)
        if not draining.done():
            draining.cancel()
            await self._server.stop()
        else:
            draining.result()

    # --- what it is told and asked ---

    def _handlers(self) -> dict[str, Callable[..., Any]]:
        return {
            "start": self._started.set_result,
            "drain": self._end,
            "stop": lambda: self._end(None),
            "prepare": self._prepare,
            "commit": self._commit,
            "holds": self._holds,
            "cancel": self._cancel,
            "figures": self._figures,
            "decisions": self._decisions,
            "reopen": self._reopen,
            "ping": lambda: None,
        }

    def _end(self, within_s: float | None) -> None:
        if not self._over.done():
            self._over.set_result(within_s)

    def _prepare(self, config: Config) -> None:
        """Have ready what it takes to serve by ``config``; raises where that cannot be had."""
        self._prepared = self._server.terms_of(config)

    def _commit(self) -> None:
        """Serve by what was prepared last."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            raise AssertionError("nothing is prepared")
        self._server.adopt(prepared)

    def _holds(self, pid: int, secret: bytes) -> bool:
        return self._server.holds(pid, secret)

    async def _cancel(self, pid: int, secret: bytes) -> None:
        await self._server.cancel(pid, secret)

    def _figures(self) -> Figures:
        return Figures(
            Meters() if self._observed is None else self._observed.meters,
            self._server.connections,
            self._server.catalogs,
            None if self._audit is None else self._audit.state,
            self._server.turned_away,
        )

    def _decisions(self, limit: int) -> list[Told]:
        return [] if self._observed is None else self._observed.recent.newest(limit)

    def _reopen(self) -> None:
        if self._audit is not None:
            self._audit.reopen()


async def _first(*awaited: asyncio.Future[Any]) -> None:
    """Until one of them is done."""
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)


class AskedPeers:
    """``Peers`` as the supervisor counts them. Raises RefusedError where it does not."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def entered(self) -> None:
        self._channel.tell("entered")

    def left(self) -> None:
        self._channel.tell("left")

    async def crowded(self, most: int) -> bool:
        return bool(await self._answer("crowded", most))

    async def take_place(self, agent: str, most: int) -> bool:
        def give_back(taken: bool) -> None:
            if taken:
                self.leave_place(agent)

        return bool(await self._answer("take_place", agent, most, unwanted=give_back))

    def leave_place(self, agent: str) -> None:
        self._channel.tell("leave_place", agent)

    def allow_logins(self, connections: int) -> None:
        """The supervisor knows the configuration."""

    async def begin_login(self, source: str, user: str) -> float:
        def take_back(wait_s: float) -> None:
            if wait_s <= LONGEST_WAIT_S:
                self.login_over(source, user)

        return float(await self._answer("begin_login", source, user, unwanted=take_back))

    def login_over(self, source: str, user: str) -> None:
        self._channel.tell("login_over", source, user)

    async def cancel(self, pid: int, secret: bytes, source: str) -> bool:
        try:
            return bool(await self._channel.ask("cancel", pid, secret, source))
        except (GoneError, OtherEndError):
            return False

    async def _answer(
        self, name: str, *values: object, unwanted: Callable[[Any], None] = lambda _: None
    ) -> Any:
        """What the supervisor answers. ``unwanted`` is called with an answer that comes when nobody waits for
        it any more: what was counted has to be taken back."""
        answer = self._channel.ask(name, *values)

        def take_back(_: object) -> None:
            if answer.exception() is None:
                unwanted(answer.result())

        try:
            async with asyncio.timeout(_ANSWER_S):
                return await asyncio.shield(answer)
        except GoneError:
            raise RefusedError("the proxy is shutting down", "57P03") from None
        except OtherEndError as error:
            raise RefusedError(
                "the proxy failed; the connection is closed", "XX000", reason=str(error)
            ) from None
        except TimeoutError:
            answer.add_done_callback(take_back)
            raise RefusedError("the proxy is too busy; try again later", "57P03") from None
        except asyncio.CancelledError:
            answer.add_done_callback(take_back)
            raise
