"""``pgturnstile demo`` as a child process, for tests that talk to it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from proxy.demo import PASSWORDS
from tests.support.proxy import free_port

COMMAND: Final = (sys.executable, "-m", "proxy", "demo")


@dataclass(frozen=True, slots=True)
class RunningDemo:
    """A demo that accepts connections; ``told`` are the lines it printed so far."""

    process: subprocess.Popen[str]
    port: int
    told: tuple[str, ...]

    def uri(self, agent: str) -> str:
        return f"postgresql://{agent}:{PASSWORDS[agent]}@127.0.0.1:{self.port}/shop"

    @property
    def audit(self) -> Path:
        """Where it says that its audit is."""
        return next(Path(found[1]) for line in self.told if (found := re.search(r"a line of (\S+)\.$", line)))


@contextlib.contextmanager
def run_demo() -> Iterator[RunningDemo]:
    """A demo on a free port, killed at the end if it still runs."""
    port = free_port()
    process = subprocess.Popen(
        [*COMMAND, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        yield RunningDemo(process, port, tuple(_until_ready(process)))
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate()


def _until_ready(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")
        if "Ctrl-C" in line:
            return
    pytest.fail(f"the demo did not start: {process.communicate()[1]}")
