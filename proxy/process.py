"""One process of the proxy: what is made before the server, the signals, and the end in good order.

Owns the order of starting and stopping, and what a signal means. Connections are ``server``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

import structlog

from policy.diagnostics import InvalidFileError
from proxy import compiled
from proxy.audit import Audit
from proxy.config import Config
from proxy.relay import AuditSink
from proxy.server import DRAIN_S, NoAudit, Server

log = structlog.get_logger("pgturnstile.server")


def serve(load: Callable[[], Config]) -> None:
    """Run the server of the config that ``load`` gives until a signal ends it.

    SIGTERM and SIGINT drain, a second one stops at once; SIGHUP loads anew and keeps the last good config
    where that fails. Prints one ``ready`` line on stdout when connections are accepted. Raises what ``load``
    raises, AuditError, OSError where the address cannot be listened on, ssl.SSLError, and StaleBuildError.
    """
    log.info("starting", compiled=dict(compiled.check()))
    config = load()
    with contextlib.ExitStack() as stack:
        audit: AuditSink = NoAudit()
        if config.audit is not None:
            audit = stack.enter_context(Audit(config.audit.path, config.audit.statements))
        with asyncio.Runner(loop_factory=_event_loop()) as runner:
            runner.run(_run(Server(config, audit), load))


async def _run(server: Server, load: Callable[[], Config]) -> None:
    loop = asyncio.get_running_loop()
    asked, urged = asyncio.Event(), asyncio.Event()

    def end() -> None:
        (urged if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    reloads = _Reloads(server, load)
    loop.add_signal_handler(signal.SIGHUP, reloads.ask)
    host, port = await server.start()
    print(f"ready host={host} port={port}", flush=True)
    await asked.wait()
    reloads.stop()
    log.info("draining", within_s=DRAIN_S)
    draining, urging = loop.create_task(server.drain()), loop.create_task(urged.wait())
    await asyncio.wait({draining, urging}, return_when=asyncio.FIRST_COMPLETED)
    urging.cancel()
    if not draining.done():
        draining.cancel()
        await server.stop()
    else:
        draining.result()


class _Reloads:
    """Loads away from the event loop, one at a time; a config with a fault changes nothing."""

    def __init__(self, server: Server, load: Callable[[], Config]) -> None:
        self._server = server
        self._load = load
        self._asked = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def ask(self) -> None:
        self._asked.set()

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            before = self._server.config
            try:
                after = await asyncio.to_thread(self._load)
                self._server.replace_config(after)
            except (InvalidFileError, OSError) as error:
                log.error("reload failed; the old configuration stays", error=str(error))
                continue
            log.info("configuration reloaded")
            if (before.listen.host, before.listen.port, before.audit) != (
                after.listen.host,
                after.listen.port,
                after.audit,
            ):
                log.warning("a new listening address or audit file takes a restart")


def _event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed: it costs a third less time a message."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
