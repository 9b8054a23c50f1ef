"""The test suites of Python's PostgreSQL drivers and of SQLAlchemy, each in an environment of its own.

Where the registry's source package carries the tests they are taken from there, so that driver and tests are
of one version. psycopg's does not: its suite runs from a checkout that the caller names.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from tests.peers.environments import environment
from tests.peers.suite import NotAvailableError, Outcome, Road, Suite, Target, Verdict, call, need

PSYCOPG_SOURCE: Final = "PGTURNSTILE_PSYCOPG_SOURCE"
"""Environment variable: a checkout of psycopg, whose source package carries no tests."""

_PYTEST: Final = ("pytest>=8,<10", "pytest-timeout>=2,<3")
_TEST_TIMEOUT_S: Final = 60
"""For one test; with it one that hangs fails, and the others still run."""
_RUN_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Tests:
    """One suite: where its tests are and what they need.

    ``source`` is the source package with the tests, as the registry names it; None: ``PSYCOPG_SOURCE``.
    ``folders`` of it are copied, without the driver's own code, which is installed as ``requirements`` say.
    ``arguments`` and ``environment`` tell pytest and the suite where to connect. ``leave_out`` are paths.
    """

    name: str
    source: str | None
    version: str
    folders: tuple[str, ...]
    requirements: tuple[str, ...]
    arguments: Callable[[Target], tuple[str, ...]]
    environment: Callable[[Target], Mapping[str, str]] = lambda _: {}
    leave_out: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """Statements for the fresh cluster, sent straight to it."""
    roads: tuple[Road, ...] = (Road.OBSERVE,)
    settings: Mapping[str, str] = field(default_factory=dict)


class PytestSuite(Suite):
    """Runs one entry of the table below."""

    def __init__(self, tests: _Tests) -> None:
        self._tests = tests
        self._folder = Path()
        self._python = Path()

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._tests.name

    @property
    def roads(self) -> tuple[Road, ...]:  # type: ignore[override]
        return self._tests.roads

    @property
    def settings(self) -> Mapping[str, str]:  # type: ignore[override]
        return self._tests.settings

    def prepare(self, workdir: Path) -> str:
        tests = self._tests
        home = workdir / "python" / tests.name
        self._python = environment(home / "venv", (*_PYTEST, *tests.requirements))
        self._folder = home / "tests"
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True)
        source = self._unpacked(home) if tests.source else _checkout()
        for name in tests.folders:
            copy = shutil.copytree if (source / name).is_dir() else shutil.copy
            copy(source / name, self._folder / name)
        return tests.version

    def run(self, target: Target) -> Outcome:
        tests = self._tests
        with psycopg.connect(target.straight.dsn, autocommit=True) as connection:
            for statement in tests.before:
                connection.execute(sql.SQL(statement).format(sql.Literal(target.password)))
        first = self._pytest(target, "first")
        # What fails is tried once more, on every road alike: some tests rest on a quick machine.
        return first if not first.count(Verdict.FAILED) else retried(first, self._pytest(target, "again"))

    def _pytest(self, target: Target, attempt: str) -> Outcome:
        tests = self._tests
        results = target.scratch / f"{attempt}.xml"
        finished = call(
            [
                *(self._python, "-m", "pytest", "-q", "-o", "addopts="),
                *("--timeout", str(_TEST_TIMEOUT_S), "--tb", "short", f"--junitxml={results}"),
                *(f"--ignore={path}" for path in tests.leave_out),
                "--cache-clear" if attempt == "first" else "--last-failed",
                *tests.arguments(target),
            ],
            environment={**target.environment(), **tests.environment(target)},
            folder=self._folder,
            timeout_s=_RUN_TIMEOUT_S,
            log=target.scratch / f"{attempt}.log",
        )
        if not results.exists():
            raise RuntimeError(f"pytest did not finish: {finished.output[-500:]}")
        return Outcome(verdicts_of(results.read_text()), note="timed out" if finished.timed_out else "")

    def _unpacked(self, home: Path) -> Path:
        tests = self._tests
        unpacked = home / f"{tests.source}-{tests.version}".lower()
        if not unpacked.exists():
            download = (self._python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:")
            need("pip download", call((*download, "--dest", home, f"{tests.source}=={tests.version}")))
            with tarfile.open(home / f"{unpacked.name}.tar.gz") as archive:
                archive.extractall(home, filter="data")
        return unpacked


def retried(first: Outcome, again: Outcome) -> Outcome:
    """The first run's outcome, but for the tests that failed in it and have passed since."""
    mended = {
        test
        for test, verdict in first.verdicts.items()
        if verdict is Verdict.FAILED and again.verdicts.get(test) is Verdict.PASSED
    }
    verdicts = {t: Verdict.PASSED if t in mended else v for t, v in first.verdicts.items()}
    notes = [first.note, f"passed when tried again: {', '.join(sorted(mended))}" if mended else ""]
    return Outcome(verdicts, note="; ".join(filter(None, notes)))


def verdicts_of(junit: str) -> dict[str, Verdict]:
    """The verdict of each test in a JUnit report as pytest writes it; the worst of several of one name."""
    worst = (Verdict.SKIPPED, Verdict.PASSED, Verdict.FAILED)
    verdicts: dict[str, Verdict] = {}
    for case in ET.fromstring(junit).iter("testcase"):
        name = f"{case.get('classname')}::{_ADDRESS.sub('0x…', case.get('name', ''))}"
        kinds = {child.tag for child in case}
        verdict = (
            Verdict.FAILED
            if kinds & {"failure", "error"}
            else Verdict.SKIPPED
            if "skipped" in kinds
            else Verdict.PASSED
        )
        verdicts[name] = max(verdict, verdicts.get(name, Verdict.SKIPPED), key=worst.index)
    return verdicts


_ADDRESS: Final = re.compile(r"0x[0-9a-f]{6,}")


def _checkout() -> Path:
    named = os.environ.get(PSYCOPG_SOURCE)
    if not named:
        raise NotAvailableError(f"the source package has no tests: set {PSYCOPG_SOURCE} to a checkout")
    if not (Path(named) / "tests" / "conftest.py").exists():
        raise NotAvailableError(f"{PSYCOPG_SOURCE}={named} is not a checkout of psycopg")
    return Path(named)


def _sqlalchemy(driver: str, requirement: str) -> _Tests:
    return _Tests(
        name=f"sqlalchemy-{driver}",
        source="SQLAlchemy",
        version="2.1.9",
        folders=("test", "lib", "pyproject.toml", "setup.cfg"),
        requirements=("SQLAlchemy[asyncio]==2.1.9", requirement),
        arguments=lambda target: (
            *("-p", "no:logging", "--maxfail=1000000"),
            *("test/dialect/postgresql", "test/dialect/test_suite.py", "test/engine/test_transaction.py"),
            *("test/engine/test_reflection.py", "test/sql/test_query.py", "test/sql/test_returning.py"),
            f"--dburi=postgresql+{driver}://suite:suite@{target.host}:{target.port}/{target.database}",
        ),
        before=(
            # One test puts its URL together by replacing capitals, those of a password too.
            "CREATE ROLE suite SUPERUSER LOGIN PASSWORD 'suite'",
            *("CREATE SCHEMA test_schema", "CREATE SCHEMA test_schema_2", "CREATE EXTENSION hstore"),
        ),
        settings={"max_prepared_transactions": "10"},
    )


PYTHON_SUITES: Final = tuple(
    PytestSuite(tests)
    for tests in (
        _Tests(
            name="asyncpg",
            source="asyncpg",
            version="0.32.0",
            folders=("tests",),
            requirements=("asyncpg==0.32.0", "distro"),
            arguments=lambda _: ("tests",),
            leave_out=("tests/test__sourcecode.py",),
        ),
        _Tests(
            name="pg8000",
            source="pg8000",
            version="1.31.6",
            folders=("test",),
            requirements=("pg8000==1.31.6", "pytest-mock", "pytest-benchmark", "pytz"),
            arguments=lambda _: ("--benchmark-disable", "test"),
            # Those need a pg_hba.conf, and those a server at port 5432 with a password of its own.
            leave_out=(
                *(f"test/{flavour}/auth" for flavour in ("dbapi", "legacy", "native")),
                "test/test_readme.py",
            ),
            before=("CREATE ROLE postgres SUPERUSER LOGIN PASSWORD {}", "CREATE EXTENSION hstore"),
            settings={"max_prepared_transactions": "10"},
        ),
        _Tests(
            name="psycopg2",
            source="psycopg2",
            version="2.9.13",
            folders=("tests",),
            requirements=("psycopg2-binary==2.9.13",),
            arguments=lambda _: ("tests",),
            environment=lambda target: {"PSYCOPG2_TESTDB": target.database, "PSYCOPG2_TEST_FAST": "1"},
            before=("CREATE EXTENSION hstore",),
            settings={"max_prepared_transactions": "10"},
        ),
        _Tests(
            name="psycopg",
            source=None,
            version="3.3",
            folders=("tests", "pyproject.toml"),
            requirements=("psycopg[binary,pool]>=3.3,<3.4", "anyio>=4,<5", "typing-extensions", "tzdata"),
            arguments=lambda target: (
                *("-m", "not slow and not timing and not mypy", "-p", "no:randomly"),
                f"--test-dsn={target.dsn}",
                "tests",
            ),
            leave_out=("tests/pool", "tests/crdb", "tests/test_typing.py"),
            settings={"max_prepared_transactions": "10"},
        ),
        _sqlalchemy("psycopg", "psycopg[binary]>=3.3,<3.4"),
        _sqlalchemy("asyncpg", "asyncpg==0.32.0"),
    )
)
