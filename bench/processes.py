"""What the kernel says of a process: CPU time and memory. Linux alone; knows no contender.

Source: proc(5), and the kernel's Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICK_NS: Final = 10**9 // os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_LIBC: Final = ctypes.CDLL(None)


def supported() -> bool:
    """Whether there is anything here that this module can read."""
    return sys.platform == "linux" and _PROC.is_dir()


def die_with_parent() -> None:
    """For a child to call between fork and exec, after it has changed its user: the kernel ends it when the
    thread that started it is gone, however that went (prctl(2), PR_SET_PDEATHSIG)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def cpu_ns(pid: int) -> int:
    """Time on a CPU that the process's threads of now have had so far, user and kernel, in nanoseconds."""
    total = 0
    for task in (_PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            total += _task_ns(task)
    return total


def _task_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except FileNotFoundError:  # a kernel without CONFIG_SCHED_INFO counts in ticks of 10 ms
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_NS


def resident_bytes(pid: int) -> int:
    """Memory of the process in RAM; pages that it shares count whole."""
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def machine() -> dict[str, str | int | float]:
    """The machine, for whoever reads the figures later."""
    models = [
        line.partition(":")[2].strip()
        for line in (_PROC / "cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
    }
