"""Programs in many languages, each walking through what its driver can do: what they print must be the same.

Owns the table of flows, and how each is built and started. A program prints `== STEP` and below it what it
saw; each step is a test, and its text is compared between the roads. The programs connect by libpq's
variables and print nothing that differs from run to run.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import psycopg

from tests.peers.environments import environment, node_modules, version_of
from tests.peers.suite import NotAvailableError, Outcome, Road, Suite, Target, Verdict, call, inherited, need

_PROGRAMS: Final = Path(__file__).with_name("programs")
_JDBC: Final = Path("/usr/share/java/postgresql.jar")
_GO_PATH: Final = "/usr/share/gocode"
_ODBC: Final = Path("/usr/lib/x86_64-linux-gnu/odbc/psqlodbcw.so")

_STEP: Final = re.compile(r"^== (.*)\n", re.MULTILINE)
_ENDED: Final = "ran to its end"
_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A program that can be started: of which version, how, and what its environment has in addition.

    Where the command names ``{scratch}``, the run's own folder is put in. ``copied`` goes there first.
    """

    version: str
    command: tuple[str | Path, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    copied: Path | None = None


class Flow(Suite):
    """One row of the table below. ``schema`` is what the fresh cluster gets before, straight."""

    roads = (Road.OBSERVE, Road.ENFORCE)
    settings: ClassVar[Mapping[str, str]] = {"max_prepared_transactions": "10"}

    def __init__(self, name: str, made: Callable[[Path], Ready], schema: str = "") -> None:
        self._name = name
        self._made = made
        self._schema = schema
        self._ready: Ready | None = None

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._name

    def prepare(self, workdir: Path) -> str:
        self._ready = self._made(workdir / "flows" / self._name)
        return self._ready.version

    def run(self, target: Target) -> Outcome:
        ready = self._ready
        assert ready is not None, "not prepared"
        if self._schema:
            with psycopg.connect(target.straight.dsn, autocommit=True) as connection:
                connection.execute(self._schema.encode())
        if ready.copied is not None:
            shutil.copytree(ready.copied, target.scratch / ready.copied.name)
        finished = call(
            [str(part).format(scratch=target.scratch) for part in ready.command],
            environment=target.environment(**ready.environment),
            folder=target.scratch,
            timeout_s=_TIMEOUT_S,
            log=target.scratch / "output.txt",
        )
        return outcome_of(finished.output, complete=finished.code == 0 and not finished.timed_out)


def outcome_of(output: str, *, complete: bool) -> Outcome:
    """Each step of a program's output as a test that passed by being reached; its text is what was seen.

    ``complete`` is whether the program said that it succeeded. The text of the step in which it did not is
    compared like the others'.
    """
    _, *parts = _STEP.split(output)
    seen = dict(zip(parts[::2], parts[1::2], strict=True))
    verdicts = dict.fromkeys(seen, Verdict.PASSED)
    return Outcome({**verdicts, _ENDED: Verdict.PASSED if complete else Verdict.FAILED}, seen)


def _python(
    program: str, requirements: tuple[str, ...], package: str, *arguments: str
) -> Callable[[Path], Ready]:
    """``requirements`` are installed, ``package`` is the one whose version counts."""

    def made(folder: Path) -> Ready:
        python = environment(folder.with_name(Path(program).stem) / "venv", requirements)
        return Ready(version_of(python, package), (python, _PROGRAMS / program, *arguments))

    return made


def _node(program: str, *packages: str) -> Callable[[Path], Ready]:
    """The first package is the one whose version counts."""

    def made(folder: Path) -> Ready:
        modules = node_modules(folder, packages)
        return Ready(
            _node_version(modules, packages[0]),
            ("node", _PROGRAMS / program),
            {"NODE_PATH": str(modules)},
        )

    return made


def _node_version(modules: Path, package: str) -> str:
    name, _, _ = package.rpartition("@")
    return str(json.loads((modules / name / "package.json").read_text())["version"])


def _jdbc(folder: Path) -> Ready:
    if not _JDBC.exists():
        raise NotAvailableError(f"{_JDBC} is not there (Debian: libpostgresql-jdbc-java)")
    need("javac", call(["javac", "-cp", _JDBC, "-d", folder, _PROGRAMS / "Jdbc.java"]))
    return Ready(_debian("libpostgresql-jdbc-java"), ("java", "-cp", f"{folder}:{_JDBC}", "Jdbc"))


def _go(program: str, package: str) -> Callable[[Path], Ready]:
    """Against the libraries that Debian packages as sources."""

    def made(folder: Path) -> Ready:
        version = _debian(package)
        folder.mkdir(parents=True, exist_ok=True)
        go = {"GO111MODULE": "off", "GOPATH": _GO_PATH, "GOCACHE": str(folder / "cache"), "GOFLAGS": "-p=2"}
        binary = folder / Path(program).stem
        with_path = inherited(**go)
        need("go build", call(["go", "build", "-o", binary, _PROGRAMS / program], environment=with_path))
        return Ready(version, (binary,))

    return made


def _script(interpreter: str, program: str, *version: str) -> Callable[[Path], Ready]:
    """``version`` are the interpreter's arguments that make it print the version of its driver."""

    def made(folder: Path) -> Ready:
        output = need(f"{interpreter} with its driver", call([interpreter, *version]))
        return Ready(output.strip(), (interpreter, _PROGRAMS / program))

    return made


def _odbc(folder: Path) -> Ready:
    if not _ODBC.exists():
        raise NotAvailableError(f"{_ODBC} is not there (Debian: odbc-postgresql)")
    python = environment(folder / "venv", ("pyodbc>=5,<6",))
    return Ready(_debian("odbc-postgresql"), (python, _PROGRAMS / "odbc.py", _ODBC))


def _duckdb(folder: Path) -> Ready:
    """DuckDB's own download of extensions is no registry; a package brings this one along."""
    python = environment(folder / "venv", ("duckdb==1.5.5", "duckdb-extension-postgres-scanner==1.5.5"))
    extensions = list((folder / "venv").rglob("postgres_scanner.duckdb_extension*"))
    if not extensions:
        raise NotAvailableError("the package holds no extension for this platform")
    return Ready(version_of(python, "duckdb"), (python, _PROGRAMS / "duckdb_scanner.py", extensions[0]))


def _dbt(folder: Path) -> Ready:
    python = environment(folder / "venv", ("dbt-core==1.10.*", "dbt-postgres==1.9.*"))
    command = (python, _PROGRAMS / "dbt_project.py", python.with_name("dbt"), "{scratch}/dbt")
    return Ready(version_of(python, "dbt-core"), command, copied=_PROGRAMS / "dbt")


def _mcp(folder: Path) -> Ready:
    package = "@modelcontextprotocol/server-postgres"
    modules = node_modules(folder, (f"{package}@0.6",))
    command = (sys.executable, _PROGRAMS / "mcp_client.py", "node", modules / package / "dist" / "index.js")
    return Ready(_node_version(modules, f"{package}@"), command)


def _debian(package: str) -> str:
    return need(f"looking for {package}", call(["dpkg-query", "-W", "-f", "${Version}", package])).strip()


_HARBOUR: Final = """
CREATE TABLE harbour (id int PRIMARY KEY, name text NOT NULL, depth numeric);
INSERT INTO harbour VALUES (1, 'Bergen', 11.5), (2, 'Kiel', NULL), (3, 'O''Porto', 8);
CREATE VIEW deep AS SELECT name FROM harbour WHERE depth > 10;
"""
_ORM: Final = (
    "SQLAlchemy>=2.1,<2.2",
    "psycopg2-binary>=2.9,<3",
    "psycopg[binary]>=3.3,<3.4",
    "pg8000>=1.31,<2",
)
_LANGCHAIN: Final = ("langchain-community>=0.4,<0.5", "SQLAlchemy>=2,<3", "psycopg[binary]>=3.3,<3.4")

FLOWS: Final = (
    Flow(
        "node-pg",
        _node("node_pg.js", "pg@8", "pg-cursor@2", "pg-query-stream@4", "pg-copy-streams@7"),
    ),
    Flow("postgres.js", _node("postgres_js.js", "postgres@3")),
    Flow("pgjdbc", _jdbc),
    Flow("lib-pq", _go("lib_pq.go", "golang-github-lib-pq-dev")),
    Flow("pgx-v4", _go("pgx_v4.go", "golang-github-jackc-pgx-v4-dev")),
    Flow("dbd-pg", _script("perl", "perl_dbi.pl", "-MDBD::Pg", "-e", "print $DBD::Pg::VERSION")),
    Flow("ruby-pg", _script("ruby", "ruby_pg.rb", "-rpg", "-e", "print PG::VERSION")),
    Flow("php-pdo", _script("php", "php_pdo.php", "-r", "echo phpversion('pdo_pgsql') ?: exit(1);")),
    Flow("psqlODBC", _odbc),
    Flow("psqlpy", _python("tokio_psqlpy.py", ("psqlpy>=0.13,<0.14",), "psqlpy")),
    Flow(
        "adbc", _python("adbc.py", ("adbc-driver-postgresql>=1,<2", "pyarrow>=15"), "adbc-driver-postgresql")
    ),
    Flow("duckdb", _duckdb),
    *(
        Flow(
            f"django-{how}",
            _python("django_app.py", ("Django>=5.2,<5.3", "psycopg[binary]>=3.3,<3.4"), "Django", how),
        )
        for how in ("literals", "binding")
    ),
    *(
        Flow(f"sqlalchemy-orm-{driver}", _python("sqlalchemy_orm.py", _ORM, "SQLAlchemy", driver))
        for driver in ("psycopg2", "psycopg", "pg8000")
    ),
    Flow("langchain", _python("langchain_sql.py", _LANGCHAIN, "langchain-community", "psycopg")),
    Flow("dbt", _dbt),
    Flow("mcp-postgres", _mcp, schema=_HARBOUR),
)
