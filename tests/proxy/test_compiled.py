"""That a module which was compiled from another source than the one beside it does not start."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy import compiled
from proxy.compiled import MODULES, StaleBuildError, check, digest
from tests.support.postgres import skip_or_fail

ROOT = Path(__file__).parents[2]
SOURCE = b"VALUE = 1\n"
_packages = itertools.count()


def extension() -> Path:
    """Some extension module of the interpreter's own, to stand for one of ours."""
    for name in ("_json", "_queue", "_lsprof", "_ctypes"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and Path(spec.origin).suffix in (".so", ".pyd"):
            return Path(spec.origin)
    skip_or_fail("this Python has no extension modules in files of their own")
    raise AssertionError


class Package:
    """A package with one module ``name``, compiled or not, and the stamp of a build."""

    def __init__(self, folder: Path) -> None:
        self.name = f"built_{next(_packages)}"
        self.folder = folder / self.name
        self.folder.mkdir()
        self.built: dict[str, str] = {}
        binary = extension()
        self.module = f"{self.name}.{binary.name.partition('.')[0]}"
        self.source = self.folder / (self.module.rpartition(".")[2] + ".py")
        self.source.write_bytes(SOURCE)
        self._binary = binary

    def compile(self) -> None:
        shutil.copy(self._binary, self.folder / self._binary.name)

    def stamped(self, source: bytes = SOURCE) -> None:
        self.built[self.module] = digest(source)

    def check(self) -> bool:
        return check([self.module], self.built)[self.module]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.syspath_prepend(tmp_path)
    made = Package(tmp_path)
    importlib.invalidate_caches()
    return made


def test_source_alone_runs_as_source(package: Package) -> None:
    assert package.check() is False


def test_what_was_compiled_from_the_source_beside_it_runs(package: Package) -> None:
    package.compile()
    package.stamped()
    assert package.check() is True


def change(package: Package) -> None:
    package.compile()
    package.stamped(b"VALUE = 2\n")


def no_stamp(package: Package) -> None:
    package.compile()


def no_source(package: Package) -> None:
    package.compile()
    package.stamped()
    package.source.unlink()


def half_removed(package: Package) -> None:
    package.stamped()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (change, "was compiled from another source"),
        (no_stamp, "was compiled from another source"),
        (no_source, "was compiled from another source"),
        (half_removed, "runs from its source, though it was compiled"),
    ],
)
def test_anything_else_is_refused(package: Package, spoil: Callable[[Package], None], told: str) -> None:
    spoil(package)
    with pytest.raises(StaleBuildError, match=told) as refused:
        package.check()
    assert "install pgturnstile again" in str(refused.value)


def test_every_module_of_the_list_is_there() -> None:
    assert all((ROOT / (name.replace(".", "/") + ".py")).is_file() for name in MODULES)
    assert len(set(MODULES)) == len(MODULES)
    assert set(check()) == set(MODULES)


def test_the_list_can_be_read_before_anything_is_installed() -> None:
    """The build imports it with nothing but the standard library at hand."""
    source = Path(compiled.__file__).read_text()
    assert "import structlog" not in source
    assert "from policy" not in source
    assert "from proxy" not in source
