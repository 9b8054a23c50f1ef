"""``python -m tests.fuzz --seconds N [TARGET …]``: each target in turn, N seconds each.

Exits with 0 where nothing was found, 1 otherwise: the input then lies in the folder that is named. One that
was mended belongs into ``tests/fuzz/found/TARGET``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.fuzz.targets import TARGETS

_FOLDER: Final = Path("build/fuzz")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(TARGETS)}; default: all"
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each; default: 60")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help=f"default: {_FOLDER}")
    options = parser.parse_args(arguments)
    for name in options.targets:
        if name not in TARGETS:
            parser.error(f"there is no target {name!r}")
    failed = []
    for name in options.targets or TARGETS:
        folder = options.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{name}: {options.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz.run", name, str(options.seconds), str(folder)]
        with (folder / "log").open("w+") as log:
            status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
            log.seek(0)
            tail = log.read().splitlines()[-12:]
        print("\n".join(f"  {line}" for line in tail), flush=True)
        if status:
            failed.append(f"{name}: exit status {status}, see {folder}")
    print("\n".join(failed) or "nothing found")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
