"""Where the peers' packages live: virtual environments and folders of Node modules below the work folder.

What is there is kept from run to run, and made anew where other packages are asked for.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.peers.suite import call, need


def environment(folder: Path, requirements: Sequence[str]) -> Path:
    """The interpreter of a virtual environment with these packages.

    Raises NotAvailableError where one of them cannot be had.
    """
    python = folder / "bin" / "python"
    if not _is_made_of(folder, requirements):
        need("making an environment", call([sys.executable, "-m", "venv", "--clear", folder]))
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        need("pip install", call((*install, *requirements)))
        _note(folder, requirements)
    return python


def version_of(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    asks = f"import importlib.metadata as m; print(m.version({package!r}))"
    return need(f"looking for {package}", call([python, "-c", asks])).strip()


def node_modules(folder: Path, packages: Sequence[str]) -> Path:
    """A folder of Node modules with these packages, for NODE_PATH.

    Raises NotAvailableError where one of them cannot be had.
    """
    if not _is_made_of(folder, packages):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        quiet = ("--silent", "--no-fund", "--no-audit", "--no-update-notifier")
        need("npm install", call(["npm", "install", *quiet, "--prefix", folder, *packages]))
        _note(folder, packages)
    return folder / "node_modules"


def _is_made_of(folder: Path, packages: Sequence[str]) -> bool:
    stamp = folder / "packages.txt"
    return stamp.exists() and stamp.read_text() == "\n".join(packages)


def _note(folder: Path, packages: Sequence[str]) -> None:
    """Written last, so that a broken installation does not pass for a made one."""
    (folder / "packages.txt").write_text("\n".join(packages))
