"""psql's own commands, the \\d family first: what each prints, direct and through.

One psql runs a whole group of commands, with a line of its own before each, so that the output can be cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.peers import sample
from tests.peers.suite import Outcome, Road, Suite, Target, Verdict, call, need

# Every informational command of psql 15 (exec_command_d, _list, _sf_sv, _z in command.c).
_LOOKS: Final = """
    d da dA dAc dAf dAo dAp db dc dC dd dD ddp dE de des det deu dew df dfa dfn dfp dft dfw dF dFd dFp dFt
    dg di dl dL dm dn do dO dp dP dPi dPt dPn dRp dRs drds ds dt dT du dv dx dX dy l z
"""
_MARKS: Final = ("", "+", "S", "S+")
_NO_SYSTEM: Final = """
    dA dAc dAf dAo dAp db dC ddp dew des deu dF dFd dFp dFt dl dp dP dPi dPt dPn dRp dRs drds dx dX dy l z
"""
_OBJECTS: Final = (
    r"\d app.people",
    r"\d+ app.people",
    r"\d+ app.moves",
    r"\d+ app.moves_old",
    r"\d app.names",
    r"\d+ app.joined",
    r"\d+ app.kept",
    r"\d app.people_folded",
    r"\d+ app.counter",
    r"\d+ app.note",
    r"\d+ app.address",
    r"\d public.far",
    r'\d "Odd Names"."Mixed Case"',
    r"\d *.people",
    r"\d nothing_like_it",
    r"\df+ lab.*",
    r"\df lab.step integer integer",
    r"\do+ lab.*",
    r"\dT+ app.*",
    r"\dd lab.*",
    r"\dt+ public.*",
    r"\di+ app.*",
    r"\sf lab.step",
    r"\sf+ lab.guard",
    r"\sf lab.nothing",
    r"\sv app.names",
    r"\sv+ app.joined",
    r"\dconfig work_mem",
    r"\dconfig+ work_mem",
    r"\encoding",
)
_QUERIES: Final = (
    r"SELECT 1 AS a, 'x' AS b \gx",
    r"SELECT id, at FROM public.blobs WHERE id < 4 \gdesc",
    r"SELECT format('SELECT %s AS n', n) FROM generate_series(1, 3) n \gexec",
    r"SELECT id % 3 AS r, id % 2 AS c, count(*) FROM public.blobs GROUP BY 1, 2 \crosstabview",
    r"SELECT 41 + 1 AS answer \gset",
    r"\echo :answer",
    r"\copy (SELECT id, words FROM public.blobs WHERE id < 5 ORDER BY id) TO STDOUT",
    r"\copy (SELECT id, words FROM public.blobs WHERE id < 5 ORDER BY id) TO STDOUT CSV HEADER",
    "COPY public.wide (t) FROM STDIN;\nrow of\\ttab\n\\\\N\n\\.",
    "SELECT count(*) FROM public.wide;",
    "SELECT 1/0;",
    r"\errverbose",
    "SELECT nothing FROM app.people;",
    "SELECT 1; SELECT 2; SELECT 3;",
    r"SELECT 1 AS a\; SELECT 2 AS b\; SELECT 1/0\; SELECT 4;",
    "BEGIN;\nSELECT 1/0;\nSELECT 1;\nROLLBACK;",
    "DO $$BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END$$;",
    "LISTEN news;\nNOTIFY news, 'a payload';",
    "\\set FETCH_COUNT 7\nSELECT id FROM public.blobs WHERE id < 30 ORDER BY 1;\n\\unset FETCH_COUNT",
    "\\set ON_ERROR_ROLLBACK on\nBEGIN;\nSELECT 1/0;\nSELECT 2;\nCOMMIT;\n\\unset ON_ERROR_ROLLBACK",
    "\\set AUTOCOMMIT off\nSELECT 1;\nROLLBACK;\n\\set AUTOCOMMIT on",
    "\\set ECHO_HIDDEN on\n\\d app.stock\n\\unset ECHO_HIDDEN",
    "\\set VERBOSITY verbose\nSELECT 1/0;\n\\set VERBOSITY default",
    "\\set SHOW_ALL_RESULTS off\nSELECT 1\\; SELECT 2;\n\\set SHOW_ALL_RESULTS on",
    "EXPLAIN (COSTS OFF) SELECT * FROM public.blobs WHERE id = 1;",
    "PREPARE p (int) AS SELECT id FROM public.blobs WHERE id = $1;\nEXECUTE p(3);\nDEALLOCATE p;",
)
_BACKEND_PID: Final = re.compile(r"(?<=server process with PID )\d+")
_MARK: Final = "==== "


class Psql(Suite):
    """What only the engine's refusal or the client's own command makes of it is compared, errors included."""

    name = "psql"
    roads = (Road.OBSERVE, Road.ENFORCE)
    quick = True
    settings: ClassVar[Mapping[str, str]] = {"autovacuum": "off"}  # sizes and statistics are shown

    def prepare(self, workdir: Path) -> str:
        output = need("psql --version", call(["psql", "--version"]))
        match = re.search(r"\(PostgreSQL\) (\S+)", output)
        return match[1] if match else output.strip()

    def run(self, target: Target) -> Outcome:
        at = sample.load(target)
        call(["psql", "-Xq", "-c", "VACUUM ANALYZE"], environment=at.straight.environment())
        seen = {**_ask(at, "looks", list(_looks())), **_ask(at, "queries", _QUERIES)}
        return Outcome(dict.fromkeys(seen, Verdict.PASSED), seen)


def _looks() -> Iterator[str]:
    yield from _OBJECTS
    no_system = frozenset(_NO_SYSTEM.split())
    for look in _LOOKS.split():
        for mark in _MARKS:
            if "S" not in mark or look not in no_system:
                yield f"\\{look}{mark}"


def _ask(target: Target, group: str, commands: Sequence[str]) -> dict[str, str]:
    """What psql printed for each command, on both streams, by the command."""
    script = "".join(f"\\echo '{_MARK}{n}'\n{command}\n" for n, command in enumerate(commands))
    finished = call(
        ["psql", "-X", "-P", "pager=off"],
        environment=target.environment(LC_ALL="C.UTF-8", PGTZ="UTC"),
        timeout_s=600,
        text_in=script,
        log=target.scratch / f"{group}.log",
    )
    parts = re.split(rf"^{_MARK}(\d+)\n", finished.output, flags=re.MULTILINE)
    printed = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    return {
        command.replace("\n", " "): _BACKEND_PID.sub("n", printed.get(n, "not run"))
        for n, command in enumerate(commands)
    }
