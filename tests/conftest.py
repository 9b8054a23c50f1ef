"""Fixtures for the whole suite.

Servers start when first asked for and stop with the run. A test that only reads takes ``shop``; a test that
writes takes ``database``, a copy of its own. Both run once on each PostgreSQL major: 15, 18 and what the
environment names beside them (``tests.support.postgres``). Names that end in 15 or 18 mean that major alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import pytest
import structlog
from hypothesis import settings

from tests.support.certificates import Certificates, make_certificates
from tests.support.postgres import Database, Server, majors, run_server
from tests.support.redis import RedisServer, run_redis


def pytest_configure(config: pytest.Config) -> None:
    """End a run on SIGTERM as on Ctrl-C, fixtures torn down: a cancelled run leaves no folders behind."""

    def end(number: int, frame: FrameType | None) -> None:
        if config.pluginmanager.hasplugin("dsession"):
            _end_workers(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, end)
    # How long an example takes is the machine's doing.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
    _let_children_keep_bytecode(config)


def _end_workers(number: int) -> None:
    """Pass the signal on to pytest-xdist's workers, which are all the children of its own process.

    Where the system does not tell of them, pytest-xdist ends them, and gives them less time to tear down.
    """
    with contextlib.suppress(OSError):
        for worker in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(worker), number)


def _let_children_keep_bytecode(config: pytest.Config) -> None:
    """Where no bytecode is to be written beside the sources, keep it in a folder of the run's.

    A run starts hundreds of proxies, and compiling the sources takes each as long as the rest of its start.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        folder = tempfile.TemporaryDirectory(prefix="pytest-bytecode-")
        config.add_cleanup(folder.cleanup)
        os.environ["PYTHONPYCACHEPREFIX"] = folder.name


@pytest.fixture(autouse=True)
def fresh_logging() -> Iterator[None]:
    """A command run within a test sets logging up for its process: the next test begins without that."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def server_of() -> Iterator[Callable[[int], Server]]:
    """The server of a major, started when first asked for; it stays while tests go from one to another."""
    with contextlib.ExitStack() as running:
        yield cache(lambda major: running.enter_context(run_server(major)))


@pytest.fixture(scope="session")
def postgres15(server_of: Callable[[int], Server]) -> Server:
    """PostgreSQL 15 of the system: TLS, ICU and libxml are compiled in, as they are not in the wheel."""
    return server_of(15)


@pytest.fixture(scope="session")
def postgres18(server_of: Callable[[int], Server]) -> Server:
    """PostgreSQL 18, of the wheel unless the system has it."""
    return server_of(18)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Redis, or Valkey, of the system."""
    with run_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session", params=majors(), ids="pg{}".format)
def postgres(request: pytest.FixtureRequest, server_of: Callable[[int], Server]) -> Server:
    """Each of the servers in turn."""
    return server_of(request.param)


@pytest.fixture(scope="session")
def shop(postgres: Server) -> Database:
    """The shared sample shop of each server, for tests that only read."""
    return postgres.shop


@pytest.fixture
def database(postgres: Server) -> Iterator[Database]:
    """The test's own copy of the sample shop, on each server."""
    with postgres.database() as database:
        yield database


@pytest.fixture
def database15(postgres15: Server) -> Iterator[Database]:
    """The test's own copy of the sample shop on PostgreSQL 15."""
    with postgres15.database() as database:
        yield database


@pytest.fixture
def database18(postgres18: Server) -> Iterator[Database]:
    """The test's own copy of the sample shop on PostgreSQL 18."""
    with postgres18.database() as database:
        yield database


@pytest.fixture
def empty_database(postgres: Server) -> Iterator[Database]:
    """The test's own database without any tables, on each server."""
    with postgres.database("template0") as database:
        yield database


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate authority and a server certificate for localhost and 127.0.0.1."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def postgres15_tls(certificates: Certificates) -> Iterator[Server]:
    """A second PostgreSQL 15 that offers TLS, certified by ``certificates``, beside plain connections."""
    files = {
        "server.crt": certificates.certificate.read_bytes(),
        "server.key": certificates.key.read_bytes(),
    }
    with run_server(15, settings={"ssl": "on"}, files=files) as server:
        yield server
