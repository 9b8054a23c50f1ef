"""A proxy of one process: what is made before the server, the signals, and the end in good order.

Owns the order of starting and stopping, and what a signal means. Connections are ``server``'s; where there
are to be workers, all of it is ``supervisor``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from proxy import compiled
from proxy.audit import Audit
from proxy.config import Config, Statements
from proxy.control import ControlSocket
from proxy.logs import Logs
from proxy.reloads import Reloads
from proxy.server import NoAudit, Server
from proxy.systemd import Notifier, take_listener

if TYPE_CHECKING:
    from proxy.overview import Overview

_SWITCH_S: Final = 0.0005
"""How long another thread may keep the interpreter from the event loop, in seconds: by default 5 ms, which is
as long as dozens of statements take."""
_UNAUDITED: Final = (
    "the proxy cannot write its audit file and carries no statement until it can; try again later"
)
_YOUNG: Final = 20_000
"""Objects made, and not yet dropped, before the garbage collector looks for cycles among them. By its default
of 700 a pipeline of a hundred statements makes it look several times, at a fifth of what they cost."""

log = structlog.get_logger("pgturnstile.server")


class CrewError(Exception):
    """Workers cannot serve, or did not end in good order. The message is a sentence for the operator."""


def serve(load: Callable[[], Config], logs: Logs, *, watch: bool = False) -> None:
    """Run the server of the config that ``load`` gives until a signal ends it; or its workers, which log as
    ``logs`` says.

    SIGTERM and SIGINT drain, a second one stops at once; SIGHUP loads anew and keeps the last good config
    where that fails, and so do files that have changed, with ``watch``; SIGUSR1 opens the audit file anew.
    Prints one ``ready`` line on stdout when connections are accepted. Raises what ``load`` raises,
    AuditError, OSError where the address or the control socket cannot be listened on, ssl.SSLError,
    StaleBuildError, and CrewError of workers.
    """
    log.info("starting", compiled=dict(compiled.check()))
    config = load()
    if config.workers > 1:
        # Imported where it is asked for: one process needs none of it.
        from proxy.supervisor import supervise  # noqa: PLC0415 - as said above

        supervise(config, load, logs, watch=watch)
        return
    share_the_interpreter()
    with contextlib.ExitStack() as stack:
        audit: Audit | None = None
        if config.audit is not None:
            audit = stack.enter_context(Audit(config.audit))
        overview = _overview(config, audit)
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            runner.run(_run(config, load, audit, overview, watch=watch))


def share_the_interpreter() -> None:
    """Have the event loop get the interpreter back soon from another thread."""
    sys.setswitchinterval(_SWITCH_S)


def spare_the_collector() -> None:
    """Have the garbage collector look seldom, and never again at what was made up to now and stays: modules
    and policies. Sessions drop what they make by its count of references; cycles are left by what ends."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def _overview(config: Config, audit: Audit | None) -> Overview | None:
    if config.admin is None:
        return None
    # Imported where it is asked for: the collector's library is megabytes that most processes never use.
    from proxy.overview import Overview  # noqa: PLC0415 - as said above

    statements = Statements.FULL if config.audit is None else config.audit.statements
    return Overview(config.admin, audit or NoAudit(), audit, statements)


async def _run(
    config: Config,
    load: Callable[[], Config],
    audit: Audit | None,
    overview: Overview | None,
    *,
    watch: bool,
) -> None:
    server = Server(config, audit) if overview is None else Server(config, overview.sink, overview.meters)
    loop = asyncio.get_running_loop()
    # Without a handler the signal would end a process that keeps no audit.
    loop.add_signal_handler(signal.SIGUSR1, audit.reopen if audit is not None else nothing_to_reopen)
    if audit is not None:
        heed(audit, server)
    asked, urged = endings(loop)
    notifier = Notifier(os.environ)
    reloads = Reloads(server, load, notifier)
    loop.add_signal_handler(signal.SIGHUP, reloads.ask)
    if watch:
        reloads.watch()
    admin = None if overview is None else overview.port(server, lambda: reloads.last)
    if admin is not None:
        await admin.start()
    handed = take_listener(os.environ)
    host, port = await server.start([] if handed is None else [handed])
    spare_the_collector()
    control_socket = await control(config, reloads)
    print(f"ready host={host} port={port}", flush=True)
    notifier.ready()
    notifier.watch()
    await asked.wait()
    notifier.stopping()
    reloads.stop()
    if control_socket is not None:
        control_socket.close()
    await _end(server, urged)
    if admin is not None:
        # Until here it says that the process drains.
        admin.close()
    notifier.close()


async def control(config: Config, reloads: Reloads) -> ControlSocket | None:
    """The control socket, listening, where the configuration names one."""
    if config.control is None:
        return None

    async def reload() -> dict[str, object]:
        return (await reloads.reload())._asdict()

    made = ControlSocket(config.control, {"reload": reload})
    await made.start()
    return made


def endings(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Event, asyncio.Event]:
    """What is set by the first signal that asks for the end, and by the second."""
    asked, urged = asyncio.Event(), asyncio.Event()

    def end() -> None:
        (urged if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    return asked, urged


def nothing_to_reopen() -> None:
    log.warning("no audit file to reopen")


def heed(audit: Audit, server: Server) -> None:
    """Have statements wait while the audit takes none, where the operator wants it so."""
    loop = asyncio.get_running_loop()

    def suspend() -> None:
        state = audit.state
        server.suspend(_UNAUDITED if state.refuses and state.failing is not None else None)

    def tell(_: str | None) -> None:
        # Once the loop is closed nothing is carried any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(suspend)

    audit.on_failure = tell
    suspend()


async def _end(server: Server, urged: asyncio.Event) -> None:
    """Drain, or stop where that takes too long or is ``urged``."""
    loop = asyncio.get_running_loop()
    within_s = server.config.limits.drain_timeout_ms / 1000
    log.info("draining", within_s=within_s)
    draining, urging = loop.create_task(server.drain(within_s)), loop.create_task(urged.wait())
    await asyncio.wait({draining, urging}, return_when=asyncio.FIRST_COMPLETED)
    urging.cancel()
    if not draining.done():
        draining.cancel()
        await server.stop()
    else:
        draining.result()


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed: it costs a third less time a message."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
