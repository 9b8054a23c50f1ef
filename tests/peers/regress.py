"""PostgreSQL's regression and isolation tests, by its own drivers pg_regress and pg_isolation_regress.

Both compare what psql or isolationtester prints with the files that come with the source. Server-side COPY,
LOAD and lo_import are part of them, so their files are laid where the server's account can reach them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.peers import pg_source
from tests.peers.suite import Outcome, Road, Suite, Target, Verdict, call

# "test boolean ... ok 130 ms" alone, "     boolean ... ok 130 ms" in a group: pg_regress.c.
_RESULT: Final = re.compile(
    r"^(?:test| {4}) +(?P<test>\S+) +\.\.\. (?P<result>ok|FAILED|failed \(ignored\))", re.MULTILINE
)
_VERDICTS: Final = {"ok": Verdict.PASSED, "FAILED": Verdict.FAILED, "failed (ignored)": Verdict.FAILED}


class _Regress(Suite):
    """One driver and one schedule. ``tree`` is the folder of the source that holds both."""

    tree: ClassVar[str]
    driver: ClassVar[str]
    schedule: ClassVar[str]
    folders: ClassVar[Sequence[str]]
    """Folders of ``tree`` that the driver reads."""
    options: ClassVar[Sequence[str]] = ()
    # As the suites' own temporary instance has it; more than that would let two-phase commit's tests wait.
    settings: ClassVar[Mapping[str, str]] = {"max_prepared_transactions": "10", "max_connections": "100"}

    def prepare(self, workdir: Path) -> str:
        self._built = pg_source.obtain(workdir)
        return self._built.version

    def run(self, target: Target) -> Outcome:
        built, inputs, outputs = self._built, target.shared / "in", target.shared / "out"
        for folder in self.folders:
            shutil.copytree(built.source / self.tree / folder, inputs / folder)
        for library in (built.build / self.tree).glob("*.so"):
            shutil.copy(library, inputs)
        # The server writes there as well: COPY … TO the folder of the results.
        for folder in ("results", "output_iso/results"):
            (outputs / folder).mkdir(parents=True)
        _give(target.shared)
        where = ("--host", target.host, "--port", str(target.port), "--user", target.user)
        finished = call(
            [
                built.build / self.tree / self.driver,
                *(f"--inputdir={inputs}", f"--outputdir={outputs}", f"--dlpath={inputs}"),
                *(f"--bindir={built.programs}", f"--schedule={built.source / self.tree / self.schedule}"),
                *where,
                *self.options,
            ],
            environment=target.environment(
                PGISOLATIONTIMEOUT="60", LD_LIBRARY_PATH=built.library_path, LC_MESSAGES="C"
            ),
            folder=outputs,
            timeout_s=5400,
            log=target.scratch / "output.log",
        )
        for kept in ("regression.diffs", "output_iso", "results"):
            _keep(outputs / kept, target.scratch / kept)
        verdicts = {m["test"]: _VERDICTS[m["result"]] for m in _RESULT.finditer(finished.output)}
        return Outcome(verdicts, note="stopped at the timeout" if finished.timed_out else "")


class PgRegress(_Regress):
    """Under observe alone: the first thing it does is a server-side COPY."""

    name = "pg_regress"
    tree = "src/test/regress"
    driver = "pg_regress"
    schedule = "parallel_schedule"
    folders = ("sql", "expected", "data")
    options = ("--max-concurrent-tests=20",)


class Isolation(_Regress):
    """With the two tests of prepared transactions, which its schedule leaves out."""

    name = "isolation"
    roads = (Road.OBSERVE, Road.ENFORCE)
    tree = "src/test/isolation"
    driver = "pg_isolation_regress"
    schedule = "isolation_schedule"
    folders = ("specs", "expected")
    options = ("prepared-transactions", "prepared-transactions-cic")


def _give(folder: Path) -> None:
    """Everything in ``folder`` to whom the folder itself belongs: the server's account."""
    owner = folder.stat()
    if owner.st_uid != os.geteuid():
        for path in folder.rglob("*"):
            os.chown(path, owner.st_uid, owner.st_gid)


def _keep(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy(source, target)
