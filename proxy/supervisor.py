"""The process over the workers of a proxy: what signals, the service manager and the admin port have to do
with.

Owns the order of starting and stopping. It carries no connection: those are the workers' (``crew``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final

import structlog

from proxy import process
from proxy.audit_file import AppendFile
from proxy.config import Config
from proxy.crew import Crew
from proxy.listeners import Address, handed
from proxy.logs import Logs
from proxy.reloads import Reloads
from proxy.systemd import Notifier, take_listener

_LAST_S: Final = 15.0
"""How long workers that have drained, or are to stop at once, may take for their last words and the audit."""

_STUCK_S: Final = 30.0
"""A worker whose event loop stands still for so long is not what serves anybody."""
_LOOK_S: Final = 10.0

log = structlog.get_logger("pgturnstile.server")


def supervise(config: Config, load: Callable[[], Config], logs: Logs, *, watch: bool) -> None:
    """Have the workers of ``config`` serve until a signal ends it, as ``process.serve``, which calls it.

    Raises CrewError beside what that raises.
    """
    if config.audit is not None:
        # One sentence at once, instead of one from each worker.
        AppendFile(config.audit.path).close()
    with asyncio.Runner(loop_factory=process.event_loop()) as runner:
        runner.run(_run(config, load, logs, watch=watch))


async def _run(config: Config, load: Callable[[], Config], logs: Logs, *, watch: bool) -> None:
    listening = take_listener(os.environ)
    listen = config.listen
    bind = Address(listen.host, listen.port).bind if listening is None else handed(listening)
    crew = Crew(config, logs, bind)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(
        signal.SIGUSR1, process.nothing_to_reopen if config.audit is None else crew.reopen
    )
    notifier = Notifier(os.environ)
    reloads = Reloads(crew, load, notifier)
    loop.add_signal_handler(signal.SIGHUP, reloads.ask)
    asked, urged = process.endings(loop)
    async with contextlib.AsyncExitStack() as ending:
        ending.push_async_callback(_leave_nobody, crew)
        if config.admin is not None:
            # Imported where it is asked for, as in ``process``.
            from proxy.totals import admin_port  # noqa: PLC0415 - as said above

            admin = admin_port(config.admin, crew, lambda: reloads.last)
            await admin.start()
            ending.callback(admin.close)
        starting = loop.create_task(crew.start())
        urging = loop.create_task(asked.wait())
        await asyncio.wait({starting, urging}, return_when=asyncio.FIRST_COMPLETED)
        urging.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return
        host, port = starting.result()
        if watch:
            reloads.watch()
        control = await process.control(config, reloads)
        print(f"ready host={listen.host if listening is None else host} port={port}", flush=True)
        notifier.ready()
        notifier.watch()
        watching = loop.create_task(_watch(crew))
        await asked.wait()
        watching.cancel()
        notifier.stopping()
        reloads.stop()
        if control is not None:
            control.close()
        await _end(crew, urged)
        notifier.close()


async def _watch(crew: Crew) -> None:
    while True:
        await crew.end_the_stuck(_STUCK_S)
        await asyncio.sleep(_LOOK_S)


async def _leave_nobody(crew: Crew) -> None:
    """Whatever went wrong, no worker is left."""
    if crew.pids:
        crew.stop()
        with contextlib.suppress(process.CrewError):
            if not await crew.wait(_LAST_S):
                crew.kill()
                await crew.wait(_LAST_S)


async def _end(crew: Crew, urged: asyncio.Event) -> None:
    """Have the workers drain, stop where that takes too long or is ``urged``, and kill what is left then."""
    within_s = crew.config.limits.drain_timeout_ms / 1000
    log.info("draining", within_s=within_s)
    crew.hand_over(within_s)
    loop = asyncio.get_running_loop()
    draining, urging = loop.create_task(crew.wait(within_s + _LAST_S)), loop.create_task(urged.wait())
    await asyncio.wait({draining, urging}, return_when=asyncio.FIRST_COMPLETED)
    urging.cancel()
    if draining.done() and draining.result():
        return
    draining.cancel()
    crew.stop()
    if not await crew.wait(_LAST_S):
        log.error("workers do not end and are killed")
        crew.kill()
        await crew.wait(_LAST_S)
