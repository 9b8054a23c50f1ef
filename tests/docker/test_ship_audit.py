"""docker/ship-audit beside the audit's own writer: every line comes out once and in order."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).parent.parent.parent / "docker" / "ship-audit"


class Writer(threading.Thread):
    """Appends numbered lines, and follows a file that is moved away at its next line."""

    def __init__(self, path: Path, lines: int) -> None:
        super().__init__()
        self._path = path
        self._lines = lines

    def run(self) -> None:
        for number in range(self._lines):
            with self._path.open("a") as file:
                # What is moved away meanwhile still gets this line.
                time.sleep(0.002)
                file.write(f"{number}\n")


def shipper(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(["sh", str(SCRIPT), str(path), "1"], stdout=subprocess.PIPE, text=True)


def test_every_line_comes_out_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writer = Writer(path, 1000)
    with shipper(path) as process:
        writer.start()
        writer.join()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.splitlines() == [str(number) for number in range(1000)]
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_was_left_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.with_name("audit.jsonl.part").write_text("1\n2\n")
    path.write_text("3\n")
    with shipper(path) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_script_can_be_run_as_it_is() -> None:
    assert os.access(SCRIPT, os.X_OK)
