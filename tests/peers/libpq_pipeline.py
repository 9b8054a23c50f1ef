"""libpq's own test of pipelining, and the messages it sent and received as its traces have them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.peers import pg_source
from tests.peers.suite import Outcome, Road, Suite, Target, Verdict, call, need

_TREE: Final = "src/test/modules/libpq_pipeline"
_ROWS: Final = "700"  # as the traces were made: t/001_libpq_pipeline.pl


class LibpqPipeline(Suite):
    """A test passes where the program says so and its trace, if one is kept, is the one that was kept."""

    name = "libpq_pipeline"
    roads = (Road.OBSERVE, Road.ENFORCE)

    def prepare(self, workdir: Path) -> str:
        self._built = pg_source.obtain(workdir)
        return self._built.version

    def run(self, target: Target) -> Outcome:
        program = self._built.build / _TREE / "libpq_pipeline"
        environment = target.environment(LD_LIBRARY_PATH=self._built.library_path)
        tests = need("libpq_pipeline tests", call([program, "tests"], environment=environment)).split()
        verdicts: dict[str, Verdict] = {}
        seen: dict[str, str] = {}
        for test in tests:
            trace = target.scratch / f"{test}.trace"
            finished = call(
                [program, "-r", _ROWS, "-t", trace, test, target.dsn],
                environment=environment,
                timeout_s=300,
                log=target.scratch / f"{test}.log",
            )
            kept = self._built.source / _TREE / "traces" / f"{test}.trace"
            if kept.exists():
                seen[test] = trace.read_text() if trace.exists() else finished.output
            same = test not in seen or seen[test] == kept.read_text()
            passed = finished.code == 0 and not finished.timed_out and same
            verdicts[test] = Verdict.PASSED if passed else Verdict.FAILED
        return Outcome(verdicts, seen)
