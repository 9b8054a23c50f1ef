"""A Redis server of the system, as a child of the tests, for the ledger that several proxies share."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import redis

from tests.support.proxy import free_port

PASSWORD: Final = "open sesame"
_START_S: Final = 10.0


class RedisServer:
    """One server on 127.0.0.1, which may be stopped and started again with what it holds."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=PASSWORD)

    def start(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        assert program is not None
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self._folder, "requirepass": PASSWORD}
        arguments = [str(word) for key, value in settings.items() for word in (f"--{key}", value)]
        self._process = subprocess.Popen([program, *arguments, "--save", ""], stdout=subprocess.DEVNULL)
        until = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(redis.RedisError):
                self.client.ping()
                return
            if time.monotonic() > until:
                self.stop()
                raise AssertionError("the Redis server did not start")
            time.sleep(0.02)

    def stop(self, *, keeping: bool = False) -> None:
        """End it; ``keeping`` leaves on disk what it holds, for the next ``start``."""
        if self._process is None:
            return
        if keeping:
            self.client.save()
        self._process.terminate()
        self._process.wait(_START_S)
        self._process = None


@contextlib.contextmanager
def run_redis(folder: Path) -> Iterator[RedisServer]:
    """Skips the test where no server is installed."""
    if shutil.which("redis-server") is None and shutil.which("valkey-server") is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
