"""psql as people and scripts use it: queries, the \\d family, \\copy, scripts, errors as it prints them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.postgres import skip_or_fail
from tests.support.proxy import PASSWORD, RunningProxy

LOOKS = (
    r"\d",
    r"\d orders",
    r"\d+ orders",
    r"\d+ order_totals",
    r"\d orders_pkey",
    r"\d orders_id_seq",
    r"\dt+",
    r"\dv",
    r"\di",
    r"\ds",
    r"\df",
    r"\df reporting.*",
    r"\sf reporting.revenue",
    r"\sv order_totals",
    r"\dn+",
    r"\dT",
    r"\dp",
    r"\l",
    r"\dx",
    r"\encoding",
)
Psql = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def program() -> str:
    found = shutil.which("psql")
    if found is None:
        skip_or_fail("psql is not installed.")
    assert found is not None
    return found


def run(program: str, parameters: dict[str, str], *arguments: str, given: str = "") -> str:
    """What psql prints, on both streams."""
    environment = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        **{f"PG{name.upper()}": value for name, value in parameters.items()},
    }
    done = subprocess.run(
        [program, "-X", "-v", "VERBOSITY=verbose", *arguments],
        env=environment,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout


@pytest.fixture
def through(gateway: RunningProxy) -> dict[str, str]:
    given = gateway.parameters("writer", PASSWORD)
    given["database"] = given.pop("dbname")
    return {name: str(value) for name, value in given.items()}


@pytest.fixture
def direct(gateway: RunningProxy) -> dict[str, str]:
    server = gateway.database.server
    return {
        "host": server.host,
        "port": str(server.port),
        "user": "shop_app",
        "password": server.passwords["shop_app"],
        "database": gateway.database.name,
    }


@pytest.mark.parametrize("look", LOOKS)
def test_it_looks_around_as_it_does_directly(
    program: str, through: dict[str, str], direct: dict[str, str], look: str
) -> None:
    """Even where joins need a bound: these join system catalogs alone."""
    seen = run(program, {**through, "user": "strict"}, "-c", look)
    told = run(program, direct, "-c", look)
    if "42703" in told:
        # An older psql looks for a column that this server's catalogs have no more: the gate says so too.
        assert "42703" in seen
    else:
        assert seen == told
    assert "42501" not in seen


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "SELECT * FROM products ORDER BY id LIMIT 5"),
        ("-c", "SET DateStyle = German", "-c", "SET TimeZone = 'Asia/Tokyo'", "-c", "TABLE orders LIMIT 3"),
        ("-c", "SET DateStyle = German; SET extra_float_digits = 0; SHOW DateStyle"),
        ("-At", "-c", "SELECT 1/0"),
        ("-At", "-c", "SELECT 'nowhere'::int FROM orders"),
        ("-v", "FETCH_COUNT=10", "-c", "SELECT id FROM orders ORDER BY id LIMIT 35"),
        ("--csv", "-c", r"\copy (SELECT id, status FROM orders ORDER BY id LIMIT 20) TO STDOUT CSV HEADER"),
        ("-1", "-c", "SELECT 1", "-c", "SELECT 2"),
    ],
)
def test_it_prints_what_it_prints_directly(
    program: str, through: dict[str, str], direct: dict[str, str], arguments: tuple[str, ...]
) -> None:
    assert run(program, through, *arguments) == run(program, direct, *arguments)


def test_a_script_goes_on_after_a_refusal(program: str, through: dict[str, str]) -> None:
    script = r"""
        \set ON_ERROR_ROLLBACK off
        \echo :SERVER_VERSION_NUM
        BEGIN;
        DELETE FROM orders;
        SELECT 'never';
        COMMIT;
        SELECT 'lives on';
        \gdesc
        SELECT $1::int + 1 AS bound \bind 41 \g
    """
    printed = run(program, through, "-At", given="\n".join(line.strip() for line in script.splitlines()))
    assert "ERROR:  42501: DELETE on orders has no WHERE clause" in printed.replace("public.", "")
    assert 'DETAIL:  {"v":1,' in printed
    assert "HINT:  " in printed
    assert "Do not retry." in printed
    assert "LOCATION:  delete-without-where, " in printed
    assert "ERROR:  25P02" in printed
    assert "\nROLLBACK\n" in printed
    assert "\nlives on\n" in printed


def test_copy_both_ways(gateway: RunningProxy, program: str, through: dict[str, str], tmp_path: Path) -> None:
    gateway.database.execute("CREATE TABLE sheet (id int PRIMARY KEY, word text)")
    gateway.database.execute("GRANT ALL ON sheet TO shop_app")
    try:
        source, copy = tmp_path / "source.csv", tmp_path / "copy.csv"
        source.write_text("".join(f'{n},"wörd, {n}"\n' for n in range(3000)), encoding="utf-8")
        assert run(program, through, "-c", rf"\copy sheet FROM '{source}' CSV") == "COPY 3000\n"
        assert run(program, through, "-c", rf"\copy sheet TO '{copy}' CSV") == "COPY 3000\n"
        assert copy.read_text(encoding="utf-8") == source.read_text(encoding="utf-8")
        assert "23505" in run(program, through, "-c", rf"\copy sheet FROM '{source}' CSV")
        assert "42501" in run(program, through, "-c", rf"\copy pg_class FROM '{source}' CSV")
        assert gateway.database.execute("SELECT count(*) FROM sheet") == [(3000,)]
    finally:
        gateway.database.execute("DROP TABLE sheet")


def test_large_objects_are_not_offered(program: str, through: dict[str, str]) -> None:
    """psql reaches them by FunctionCall messages, which carry no SQL to judge."""
    printed = run(program, through, "-c", r"\lo_import /dev/null", "-c", "SELECT 'lives on'")
    assert "ERROR" in printed
    assert "lives on" in printed


def test_pg_dump_passes_where_nothing_may_write(
    gateway: RunningProxy, through: dict[str, str], direct: dict[str, str]
) -> None:
    """Also what it sets by a name that it reads from pg_settings."""
    # A link to the server's program may stand alone.
    server = gateway.database.server.engine.binaries.folder / "postgres"
    program = server.resolve().with_name("pg_dump")
    if not program.exists():
        skip_or_fail(f"{program} is not there.")
    gateway.database.execute(
        "CREATE TABLE IF NOT EXISTS kept AS SELECT id, status FROM orders; GRANT SELECT ON kept TO shop_app"
    )
    dumps = [
        subprocess.run(
            [program, "-t", "public.kept"],
            env={"PATH": os.environ["PATH"], **{f"PG{n.upper()}": v for n, v in parameters.items()}},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for parameters in (direct, {**through, "user": "dumper"})
    ]
    told, seen = ((done.returncode, _unfenced(done.stdout), done.stderr) for done in dumps)
    assert told[0] == 0, told[2]
    assert seen == told
    assert "COPY public.kept" in told[1]


def _unfenced(dump: str) -> str:
    """Less the random word that a dump is fenced in by."""
    return re.sub(r"^\\(un)?restrict .*", "", dump, flags=re.MULTILINE)
