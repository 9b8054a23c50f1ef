"""The workers of one proxy, as their supervisor has them: started, asked, told, and started again.

Owns the processes, the counts that they share, and that all of them serve by one configuration: a new one is
taken by every worker or by none. A worker that ends unasked has a successor at once, which listens at the
very same sockets; one that keeps dying is waited with, and the others serve for it. What a worker does is
``worker``'s; signals and pages are ``supervisor``'s and ``totals``'.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from proxy.backend import Endpoint
from proxy.cancel import Misses
from proxy.channel import Channel, GoneError, OtherEndError
from proxy.config import Config
from proxy.config_reading import unshared_repairs
from proxy.credentials import NAMES
from proxy.listeners import Bind
from proxy.logs import Logs
from proxy.meters import Meters
from proxy.peers import Counts
from proxy.process import CrewError
from proxy.recent import Told
from proxy.reloads import NotTakenError
from proxy.terms import most_connections
from proxy.worker import Figures, Start

_PROGRAM: Final = "from proxy.worker import main; main()"
_NOT_THEIRS: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
"""Of the environment: the service manager hears of the supervisor alone."""
_STEADY_S: Final = 10.0
"""A worker that has served for so long has not died of its start."""
_LONGEST_PAUSE_S: Final = 30.0
_ANSWER_S: Final = 2.0
"""How long a worker may take over what it is asked; one that is busy is shown as it was."""
_TAKE_S: Final = 30.0
"""How long it may take to have a new configuration ready."""
_CLOSING_S: Final = 30.0
"""How long it may take to close its audit file."""

log = structlog.get_logger("pgturnstile.crew")


class Pauses:
    """How long to wait before a worker is started again."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def after(self, served_s: float) -> float:
        """The pause in seconds after one that served for so long: none at first, and after a steady one."""
        if served_s >= _STEADY_S:
            self._next_s = 0.0
        pause_s, self._next_s = self._next_s, min(_LONGEST_PAUSE_S, max(1.0, 2 * self._next_s))
        return pause_s


class Post:
    """One worker's place, whoever fills it at the moment."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sockets: list[socket.socket] = []
        self.process: asyncio.subprocess.Process | None = None
        self.channel: Channel | None = None
        self.config: Config | None = None
        """What its worker was started with, or took last."""
        self.serving = False
        self.replaced = False
        """Whether its worker was ended to have another one."""
        self.figures: Figures | None = None
        """How its worker fared when it was last asked."""
        self.address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        """Where its first worker listens. Raises CrewError."""

    def close_sockets(self) -> None:
        for each in self.sockets:
            each.close()
        self.sockets = []

    def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()


class Crew:
    """``config.workers`` of them. ``start``, then ``hand_over`` or ``stop``, then ``wait``."""

    def __init__(self, config: Config, logs: Logs, bind: Bind) -> None:
        self.config = config
        self.endpoint = Endpoint.of(config.backend)
        self.restarts = 0
        """Workers that died and were, or are to be, started again."""
        self.departed = Meters()
        """What those counted that are no more, as far as it is known."""
        self._logs = logs
        self._bind = bind
        self._counts = Counts()
        self._misses = Misses()
        self._posts = [Post(number) for number in range(1, config.workers + 1)]
        self._keeping: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()
        self._ending = asyncio.Event()
        self._failed: list[str] = []
        self._counts.attempts.allow(most_connections(config))

    @property
    def posts(self) -> list[Post]:
        return self._posts

    @property
    def draining(self) -> bool:
        return self._ending.is_set()

    @property
    def pids(self) -> list[int]:
        """Of the workers that there are."""
        found = [post.process for post in self._posts]
        return [each.pid for each in found if each is not None and each.returncode is None]

    async def start(self) -> tuple[str, int]:
        """Have every worker serve; gives host and port. Raises CrewError and OSError; none is left then."""
        # One after the other: the first may be the one to choose the port.
        for post in self._posts:
            post.sockets = self._bind()
        loop = asyncio.get_running_loop()
        self._keeping = [loop.create_task(self._keep(post)) for post in self._posts]
        try:
            found = await asyncio.gather(*(post.address for post in self._posts))
        except BaseException:
            self.stop()
            for post in self._posts:
                post.kill()
            await asyncio.gather(*self._keeping)
            raise
        return found[0]

    # --- what all of them do together ---

    async def take(self, config: Config) -> None:
        """Serve by ``config`` from here on. Raises NotTakenError, OSError and ssl.SSLError where a worker
        could not, and none does then."""
        why_not = unshared_repairs(config, len(self._posts))
        if why_not is not None:
            raise NotTakenError(why_not)
        async with self._changing:
            endpoint = Endpoint.of(config.backend)
            ready = await self._prepared(config)
            self.config, self.endpoint = config, endpoint
            self._counts.attempts.allow(most_connections(config))
            took = {
                channel
                for channel, done in zip(ready, await asyncio.gather(*map(_committed, ready)), strict=True)
                if done
            }
            for post in self._posts:
                if post.channel in took:
                    post.config = config
                elif post.config is not None and post.config is not config:
                    # It was started meanwhile, by what is the old configuration now, or does not answer.
                    post.replaced = True
                    post.kill()

    async def _prepared(self, config: Config) -> list[Channel]:
        """The workers that need only be told to serve by ``config``. Raises NotTakenError where one can't."""

        async def prepare(post: Post, channel: Channel) -> Channel | None:
            try:
                async with asyncio.timeout(_TAKE_S):
                    await channel.ask("prepare", config)
            except GoneError:
                # Its successor begins with whatever comes of this.
                return None
            except OtherEndError as error:
                raise NotTakenError(f"worker {post.number}: {error}") from error
            except TimeoutError:
                raise NotTakenError(f"worker {post.number} does not answer") from None
            return channel

        serving = [(post, post.channel) for post in self._posts if post.serving and post.channel is not None]
        ready = await asyncio.gather(*(prepare(*each) for each in serving))
        return [channel for channel in ready if channel is not None]

    async def look(self, within_s: float = _ANSWER_S) -> None:
        """Learn how each worker fares (``Post.figures``)."""

        async def look(post: Post, figures: Awaitable[Figures]) -> None:
            post.figures = await figures

        await self._ask_all(within_s, look, "figures")

    async def decisions(self, limit: int) -> list[str]:
        """The latest of all workers, the newest first."""
        found: list[Told] = []

        async def collect(_: Post, told: Awaitable[list[Told]]) -> None:
            found.extend(await told)

        await self._ask_all(_ANSWER_S, collect, "decisions", limit)
        return [told.line for told in sorted(found, key=lambda told: -told.at)[:limit]]

    async def end_the_stuck(self, within_s: float) -> None:
        """Kill each worker whose event loop does not turn within that time."""

        async def ping(post: Post) -> None:
            channel = post.channel if post.serving else None
            # Asked twice: where all processes were stopped for a while, this one's time is over first.
            for _ in range(2):
                if channel is None or channel.gone.is_set():
                    return
                with contextlib.suppress(TimeoutError, GoneError):
                    async with asyncio.timeout(within_s / 2):
                        await channel.ask("ping")
                    return
            if post.channel is channel:
                log.error("worker does not answer and is killed", worker=post.number)
                post.kill()

        await asyncio.gather(*map(ping, self._posts))

    def reopen(self) -> None:
        """Have each open the audit file anew."""
        self._tell_all("reopen")

    async def _ask_all(
        self, within_s: float, use: Callable[[Post, Awaitable[Any]], Awaitable[None]], *asked: Any
    ) -> None:
        """``use`` the answer of each worker that gives one in time."""

        async def ask(post: Post) -> None:
            if post.channel is None or not post.serving:
                return
            try:
                async with asyncio.timeout(within_s):
                    await use(post, post.channel.ask(*asked))
            except (GoneError, TimeoutError) as error:
                log.debug("worker gives no answer", worker=post.number, asked=asked[0], error=repr(error))
            except OtherEndError as error:
                log.error("worker cannot answer", worker=post.number, asked=asked[0], error=str(error))

        await asyncio.gather(*map(ask, self._posts))

    def _tell_all(self, *told: Any) -> None:
        for post in self._posts:
            if post.channel is not None:
                post.channel.tell(*told)

    # --- the end ---

    def hand_over(self, within_s: float) -> None:
        """Have every worker drain; who connects from here on is another proxy's."""
        self._begin_to_end()
        self._tell_all("drain", within_s)

    def stop(self) -> None:
        """Have every worker stop at once."""
        self._begin_to_end()
        self._tell_all("stop")

    def _begin_to_end(self) -> None:
        self._ending.set()
        for post in self._posts:
            post.close_sockets()

    async def wait(self, within_s: float) -> bool:
        """Until all have ended; False where they have not within that time.

        Raises CrewError where one did not end in good order.
        """
        if self._keeping and (await asyncio.wait(self._keeping, timeout=within_s))[1]:
            return False
        if self._failed:
            raise CrewError("; ".join(self._failed))
        return True

    def kill(self) -> None:
        for post in self._posts:
            post.kill()

    # --- one worker ---

    async def _keep(self, post: Post) -> None:
        """Have a worker at ``post`` until the end."""
        pauses = Pauses()
        while not self._ending.is_set():
            served_s, code = await self._fill(post)
            if self._ending.is_set():
                if code:
                    self._failed.append(_ended_with(post, code))
                return
            if post.replaced:
                continue
            if not post.address.done():
                post.address.set_exception(CrewError(_ended_with(post, code)))
                return
            pause_s = pauses.after(served_s)
            self.restarts += 1
            log.error("worker died", worker=post.number, exit=code, served_s=served_s, again_in_s=pause_s)
            if pause_s:
                # Nobody is to wait for it: those who connect are the others'.
                post.close_sockets()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), pause_s)

    async def _fill(self, post: Post) -> tuple[float, int | None]:
        """One worker from its start to its end: how long it served, in seconds, and its exit code, None where
        it could not be started."""
        loop = asyncio.get_running_loop()
        began: float | None = None

        def serving(host: str, port: int) -> None:
            nonlocal began
            began, post.serving = loop.time(), True
            if not post.address.done():
                post.address.set_result((host, port))

        code: int | None = None
        try:
            process, channel = await self._launch(post, serving)
            log.info("worker started", worker=post.number, process=process.pid)
            code = await _ended(process, channel)
            channel.close()
        except OSError as error:
            log.error("worker not started", worker=post.number, error=error.strerror or str(error))
        except Exception:
            log.exception("worker not started", worker=post.number)
        finally:
            post.kill()
            self._counts.forget(post.number)
            if post.figures is not None:
                self.departed.add(post.figures.meters)
            post.serving, post.figures, post.channel, post.config = False, None, None, None
        return (0.0 if began is None else round(loop.time() - began, 1)), code

    async def _launch(
        self, post: Post, serving: Callable[[str, int], None]
    ) -> tuple[asyncio.subprocess.Process, Channel]:
        post.sockets = post.sockets or self._bind()
        post.replaced = False
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = [theirs.fileno(), *(each.fileno() for each in post.sockets)]
            process = post.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-c",
                _PROGRAM,
                *map(str, descriptors),
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
                env=_environment(),
            )
        channel = post.channel = await Channel.over(ours, {**self._handlers(post), "serving": serving})
        post.config = self.config
        channel.tell("start", Start(post.number, self.config, NAMES.secret, self._logs))
        if self.draining:
            channel.tell("stop")
        return process, channel

    def _handlers(self, post: Post) -> dict[str, Callable[..., Any]]:
        counts, number = self._counts, post.number

        def failed(reason: str) -> None:
            log.error("worker cannot serve", worker=number, error=reason)
            if not post.address.done():
                post.address.set_exception(CrewError(f"The proxy cannot start: {reason}"))

        def parting(figures: Figures) -> None:
            post.figures = figures

        return {
            "failed": failed,
            "parting": parting,
            "entered": lambda: counts.entered(number),
            "left": lambda: counts.left(number),
            "crowded": counts.crowded,
            "take_place": lambda agent, most: counts.take_place(number, agent, most),
            "leave_place": lambda agent: counts.leave_place(number, agent),
            "begin_login": counts.attempts.begin,
            "login_over": counts.attempts.over,
            "cancel": self._cancel,
        }

    async def _cancel(self, pid: int, secret: bytes, source: str) -> bool:
        """As ``Peers.cancel``, whoever has the connection: its key says nothing of that, so each is asked."""
        if not self._misses.begin(source):
            return False
        cancelling: list[asyncio.Future[None]] = []

        async def cancel(post: Post, holds: Awaitable[bool]) -> None:
            # At once, whatever the others still have to say.
            if await holds and post.channel is not None:
                cancelling.append(post.channel.ask("cancel", pid, secret))

        await self._ask_all(_ANSWER_S, cancel, "holds", pid, secret)
        if not cancelling:
            return False
        self._misses.hit(source)
        await asyncio.gather(*cancelling, return_exceptions=True)
        return True


def _ended_with(post: Post, code: int | None) -> str:
    if code is None:
        return f"Worker {post.number} could not be started; the log has the reason."
    return f"Worker {post.number} ended with exit code {code}."


async def _committed(channel: Channel) -> bool:
    try:
        async with asyncio.timeout(_TAKE_S):
            await channel.ask("commit")
    except GoneError:
        # Its successor begins with it.
        return False
    except (OtherEndError, TimeoutError) as error:
        log.error("worker did not take what it had ready", error=repr(error))
        return False
    return True


async def _ended(process: asyncio.subprocess.Process, channel: Channel) -> int:
    """The exit code, once it has ended and been heard to its last word. One that says nothing any more has
    ``_CLOSING_S`` to end."""
    ended, gone = asyncio.ensure_future(process.wait()), asyncio.ensure_future(channel.gone.wait())
    await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({ended, gone}, timeout=_CLOSING_S)
    gone.cancel()
    if not ended.done():
        process.kill()
    return await ended


def _environment() -> dict[str, str]:
    """What a worker gets: all of ours, and the modules from where we have them."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_THEIRS}
    kept["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 - as sys.path has it
    return kept
