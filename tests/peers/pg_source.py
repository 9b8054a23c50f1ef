"""PostgreSQL's own source, as Debian's package of the installed server carries it, and its test programs.

Owns obtaining it without touching the machine's package sources, and the one configure and make. The server
itself is not built: the programs run at the packaged one.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.peers.suite import NotAvailableError, call, need

_PACKAGE: Final = "postgresql-15"
_PROGRAMS: Final = Path("/usr/lib/postgresql/15/bin")
_BUILT: Final = (  # in this order: the last ones link against the first
    "src/backend generated-headers",
    "src/common all",
    "src/port all",
    "src/interfaces/libpq all",
    "src/test/regress all",
    "src/test/isolation all",
    "src/test/modules/libpq_pipeline all",
)


@dataclass(frozen=True, slots=True)
class Built:
    """The unpacked source and the folder it was built in, which mirrors its tree.

    ``programs`` is the installation whose psql and server belong to it.
    """

    version: str
    source: Path
    build: Path
    programs: Path = _PROGRAMS

    @property
    def library_path(self) -> str:
        """Where the libpq of this build is: LD_LIBRARY_PATH for the programs linked with it."""
        return str(self.build / "src/interfaces/libpq")


def obtain(workdir: Path) -> Built:
    """The source of the installed package's very version, built once below ``workdir``.

    Raises NotAvailableError where there is no such package, no source of it to be had, or no compiler.
    """
    for program in ("apt-get", "dpkg-query", "gcc", "make", "tar"):
        if shutil.which(program) is None:
            raise NotAvailableError(
                f"{program} is not installed; the suite comes with Debian's source package"
            )
    if not (_PROGRAMS / "psql").exists():
        raise NotAvailableError(f"{_PACKAGE} is not installed")
    package = need("dpkg-query", call(["dpkg-query", "-W", "-f", "${source:Version}", _PACKAGE])).strip()
    folder = workdir / f"{_PACKAGE}_{package}"
    built = Built(package.partition("-")[0], folder / "source", folder / "build")
    done = folder / "built"
    if not done.exists():
        # Whatever an interrupted attempt left there is not to be trusted.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _unpack(_download(package, folder), built.source)
        _make(built)
        done.touch()
    return built


def _download(package: str, folder: Path) -> Path:
    """The upstream archive, by an apt that keeps its lists and sources below ``folder``."""
    sources = folder / "sources.list"
    sources.write_text("".join(f"deb-src {line}\n" for line in _repositories()))
    state, cache = folder / "lists", folder / "cache"
    for part in (state / "partial", cache / "archives/partial"):
        part.mkdir(parents=True)
    apt = (
        "apt-get",
        *("-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", f"Dir::State::lists={state}", "-o", f"Dir::Cache={cache}"),
        # Its sandbox account could not enter a home folder.
        *("-o", "APT::Sandbox::User=root", "-q", "-o", "Acquire::Retries=3"),
    )
    need("apt-get update", call([*apt, "update"], timeout_s=300))
    what = f"{_PACKAGE}={package}"
    need(
        f"apt-get source {what}",
        call([*apt, "source", "--download-only", what], folder=folder, timeout_s=600),
    )
    archives = sorted(folder.glob(f"{_PACKAGE}_*.orig.tar.*"))
    if not archives:
        raise NotAvailableError(f"the source package {what} holds no upstream archive")
    return archives[0]


def _repositories() -> list[str]:
    """Where the machine's own Debian packages come from, as lines of a sources list less their first word."""
    fields = "$(CREATED_BY)|$(ORIGIN)|$(SITE)|$(RELEASE)|$(COMPONENT)"
    output = need("apt-get indextargets", call(["apt-get", "indextargets", "--format", fields]))
    lines = []
    for target in output.splitlines():
        kind, origin, site, release, component = target.split("|")
        if kind == "Packages" and origin in ("Debian", "Ubuntu"):
            lines.append(f"{site} {release} {component}")
    if not lines:
        raise NotAvailableError("apt knows no Debian repository; run apt-get update once")
    return list(dict.fromkeys(lines))


def _unpack(archive: Path, source: Path) -> None:
    source.mkdir()
    need("tar", call(["tar", "-xf", archive, "--strip-components=1", "-C", source], timeout_s=300))


def _make(built: Built) -> None:
    built.build.mkdir()
    # What the server was built with does not matter to programs that only talk to it.
    options = ("--without-readline", "--without-icu", "--without-zlib", "CFLAGS=-O1")
    log = built.build.parent
    configure: list[str | Path] = [built.source / "configure", *options]
    need("configure", call(configure, folder=built.build, timeout_s=600, log=log / "configure.log"))
    for step in _BUILT:
        where, goal = step.split()
        name = re.sub(r"\W+", "-", where)
        command: list[str | Path] = ["make", "-C", built.build / where, goal]
        need(f"make -C {where} {goal}", call(command, timeout_s=1200, log=log / f"{name}.log"))
