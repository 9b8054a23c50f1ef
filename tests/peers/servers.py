"""The places that suites run at: a fresh cluster for each road, and the proxy before it.

Owns the two policies of the roads. Knows no suite.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.embedded import BinariesNotFoundError, EmbeddedPostgres, find_binaries
from tests.peers.suite import NotAvailableError, Road, Suite, Target
from tests.support.postgres import Database, Server
from tests.support.proxy import RunningProxy, run_proxy
from tests.support.server_log import ServerLog

_DATABASE: Final = "postgres"
_PERMISSIVE: Final = Path(__file__).parents[2] / "policy/examples/permissive.yaml"
_OPEN: Final = Path(__file__).with_name("open.yaml")
_LIMITS: Final = {
    "connections": 500,
    "connections_per_agent": 500,
    "message_bytes": "1023MiB",
    "statement_bytes": "64MiB",
}


def policy_of(road: Road) -> str:
    """The policy's text: the shipped permissive one made to observe, or one with everything open."""
    if road is Road.ENFORCE:
        return _OPEN.read_text()
    text = _PERMISSIVE.read_text()
    observing = text.replace("\nmode: enforce\n", "\nmode: observe\n")
    assert observing != text, "the permissive policy no longer says `mode: enforce`"
    return observing


@contextlib.contextmanager
def run_target(suite: Suite, road: Road, scratch: Path) -> Iterator[Target]:
    """A fresh cluster on that road; it and its proxy are stopped at the end. ``scratch`` is emptied first.

    Raises NotAvailableError where there are no binaries of the suite's major version.
    """
    try:
        binaries = find_binaries(major=suite.major)
    except BinariesNotFoundError as error:
        raise NotAvailableError(str(error)) from error
    if scratch.exists():
        shutil.rmtree(scratch)
    scratch.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(EmbeddedPostgres(binaries, settings=suite.settings))
        stack.callback(shutil.copyfile, engine.log_path, scratch / "postgres.log")
        shared = _shared_folder(engine)
        port = engine.port
        if road is not Road.DIRECT:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgturnstile-peers-")))
            port = stack.enter_context(_proxy(engine, road, folder)).port
            stack.callback(shutil.copyfile, folder / "proxy.log", scratch / "proxy.log")
        yield Target(
            road=road,
            host=engine.host,
            port=port,
            user=engine.superuser,
            password=engine.password,
            database=_DATABASE,
            shared=shared,
            scratch=scratch,
            server_port=engine.port,
        )


def _shared_folder(engine: EmbeddedPostgres) -> Path:
    """Inside the run folder, so that it goes with it, and owned as the run folder is."""
    folder = engine.folder / "shared"
    folder.mkdir(mode=0o700)
    owner = engine.folder.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    return folder


@contextlib.contextmanager
def _proxy(engine: EmbeddedPostgres, road: Road, folder: Path) -> Iterator[RunningProxy]:
    """The agents are PostgreSQL's own roles, as a suite may make some; the superuser reads the catalogs."""
    server = Server(engine, {engine.superuser: engine.password}, ServerLog(engine.log_path))
    database = Database(server, _DATABASE)
    login = {"user": engine.superuser, "password_env": f"PASSWORD_{engine.superuser.upper()}"}
    with run_proxy(
        database,
        folder,
        {"open": policy_of(road)},
        agents={"*": {"auth": {"backend": "password"}, "policy": "open.yaml"}},
        catalog={"login": login},
        limits=_LIMITS,
    ) as running:
        yield running
