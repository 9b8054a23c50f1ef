"""What pyproject.toml cannot tell: with PGTURNSTILE_COMPILE=1 the hot path is compiled with mypyc.

Without the variable the wheel is pure. Which modules those are, and how a stale build is noticed, is in
proxy/compiled.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from proxy import compiled  # noqa: E402 - from the folder that is being built

COMPILE = os.environ.get("PGTURNSTILE_COMPILE", "").lower() in ("1", "true")
REQUIRES = ["mypy>=1.15,<3"]
# The product's dependencies are not there where a wheel is built, and what is followed is not compiled.
FLAGS = ["--ignore-missing-imports", "--follow-imports=silent", "--allow-subclassing-any"]


def extensions() -> list[object]:
    """The modules to compile, with the stamp; [] while setuptools only asks what the build requires."""
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - only where it is wanted
    except ImportError:
        return []
    paths = [ROOT / (name.replace(".", "/") + ".py") for name in compiled.MODULES]
    hashes = {
        name: compiled.digest(path.read_bytes()) for name, path in zip(compiled.MODULES, paths, strict=True)
    }
    stamp = ROOT / (compiled.STAMP.replace(".", "/") + ".py")
    stamp.write_text(f'"""Made by setup.py."""\n\nSOURCES: dict[str, str] = {hashes!r}\n')
    try:
        names = [str(path.relative_to(ROOT)) for path in (*paths, stamp)]
        built: list[object] = mypycify([*FLAGS, *names], opt_level="3", debug_level="0")
    finally:
        # It exists compiled or not at all: beside sources that run as they are it would be a stale build.
        stamp.unlink()
    return built


class Build(build_py):
    """Makes no pure wheel where a compiled one was wanted."""

    def run(self) -> None:
        if COMPILE and not self.distribution.ext_modules:
            raise SystemExit("PGTURNSTILE_COMPILE=1 needs mypy to build: " + ", ".join(REQUIRES))
        super().run()


if COMPILE:
    setup(cmdclass={"build_py": Build}, setup_requires=REQUIRES, ext_modules=extensions())
else:
    setup(cmdclass={"build_py": Build})
