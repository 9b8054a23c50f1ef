"""The command line: exit codes, what goes to which stream, and no traceback for a person's mistake."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psycopg
import pytest
import structlog

from policy import rules
from proxy.cli import main
from proxy.commands.terminal import Exit, painter
from proxy.logs import configure_logging
from proxy.scram import Verifier
from tests.support.postgres import Database

PROGRAM = [sys.executable, "-m", "proxy"]
POLICY = """\
version: 1
name: orders-only
access: read_write
statements:
  select: allow
  update: allow
relations: {allow: ["public.*"], deny: [public.api_keys]}
functions: {allow: [builtin-safe]}
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """``main`` in this process: exit code, stdout, stderr."""

    def run(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse's own way out
            assert isinstance(error.code, int)
            code = error.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "orders-only.yaml"
    path.write_text(POLICY, encoding="utf-8")
    return path


# --- usage ---


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["demo"],
        ["serve"],
        ["check"],
        ["policy", "lint"],
        ["policy", "test"],
        ["catalog", "dump"],
        ["rules"],
        ["hash-password"],
    ],
    ids=lambda c: " ".join(c) or "none",
)
def test_every_command_has_help_with_examples(command: list[str], run: Run) -> None:
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert "usage: pgturnstile" in out
    if command:
        assert f"\n  pgturnstile {' '.join(command)}" in out.partition("examples:")[2]
    else:
        assert "Exit codes: 0 done or allowed, 1 rejected or a check failed, 2" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["check"], "--policy"),
        (["check", "--policy", "x", "--dsn", "x", "--catalog", "x"], "not allowed with"),
        (["policy"], "COMMAND"),
        (["policy", "lint"], "FILE"),
        (["policy", "test", "--dsn", "x", "--catalog", "x", "p.yaml"], "not allowed with"),
        (["catalog"], "COMMAND"),
        (["catalog", "dump"], "--dsn"),
        (["serve"], "--config"),
        (["demo", "--port", "0"], "expected a whole number from 1 to 65535, not '0'"),
        (["demo", "--port", "65536"], "expected a whole number"),
        (["demo", "--port", "x"], "expected a whole number"),
        (["hash-password", "--iterations", "100"], "expected a whole number from 4096"),
        (["check", "--pol", "x"], "--pol"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], said: str, run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_the_version_is_the_package_s(run: Run) -> None:
    try:
        version = f"pgturnstile {importlib.metadata.version('pgturnstile')}"
    except importlib.metadata.PackageNotFoundError:
        version = "pgturnstile, not installed: run from its source"
    assert run("--version") == (0, f"{version}\n", "")


# --- check ---


def test_an_allowed_statement_is_exit_code_0(run: Run, policy_file: Path) -> None:
    code, out, err = run("check", "--policy", policy_file, stdin=b"SELECT id\nFROM orders")
    assert code == Exit.DONE
    assert out.splitlines() == [
        "<stdin>:1: allow  select      SELECT id FROM orders",
        "1 statement, 0 rejected by policy orders-only",
    ]
    assert err == ""


def test_each_statement_of_a_file_is_judged_alone(run: Run, policy_file: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_bytes(
        "\N{BYTE ORDER MARK}-- ünïcode\nSELECT 1;\n\nUPDATE orders SET total = 0;\n"
        "SELECT $$;$$; TABLE api_keys".encode()
    )
    code, out, _ = run("check", "--policy", policy_file, "--format", "json", script)
    assert code == Exit.REJECTED
    judged = [json.loads(line) for line in out.splitlines()]
    assert [(j["line"], j["decision"], j["class"]) for j in judged] == [
        (2, "allow", "select"),
        (4, "reject", "update"),
        (5, "allow", "select"),
        (5, "reject", "select"),
    ]
    assert [j.get("rule") for j in judged] == [
        None,
        "update-without-where",
        None,
        "relation-not-allowed",
    ]
    assert {j["source"] for j in judged} == {str(script)}
    assert judged[3]["sql"].strip() == "TABLE api_keys"
    assert judged[3]["violations"][0]["position"] == 7, "positions count within the statement"


def test_a_rejection_in_json_has_what_the_agent_would_read(run: Run, policy_file: Path) -> None:
    code, out, _ = run(
        "check", "--policy", policy_file, "--format", "json", "-", stdin=b"UPDATE orders SET total = 0"
    )
    (judged,) = [json.loads(line) for line in out.splitlines()]
    assert code == Exit.REJECTED
    assert list(judged) == [
        "source",
        "line",
        "sql",
        "decision",
        "class",
        "violations",
        "cost",
        "repair",
        "rule",
        "halt",
        "sqlstate",
        "message",
        "hint",
    ]
    assert judged["repair"] == {"allowed": False, "turns_left": 0, "keep": None}
    assert (judged["halt"], judged["sqlstate"], judged["cost"]) == ("class_not_repairable", "42501", None)
    assert "Do not retry" in judged["hint"]
    assert judged["violations"][0]["rule"] == "update-without-where"


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        (b"SELECT 1; SELEC 2; SELECT 3", "42601"),
        (b"SELECT '\xff'", "42601"),
        (b"SELECT 1\0; SELECT 2", "42601"),
    ],
)
def test_text_that_cannot_be_read_is_one_rejected_statement(
    text: bytes, sqlstate: str, run: Run, policy_file: Path
) -> None:
    code, out, _ = run("check", "--policy", policy_file, "--format", "json", stdin=text)
    (judged,) = [json.loads(line) for line in out.splitlines()]
    assert code == Exit.REJECTED
    assert (judged["decision"], judged["rule"], judged["sqlstate"]) == ("reject", "unparsable", sqlstate)


@pytest.mark.parametrize("text", [b"", b"  ;;\n-- nothing\n"])
def test_text_without_statements_is_nothing_to_reject(text: bytes, run: Run, policy_file: Path) -> None:
    assert run("check", "--policy", policy_file, stdin=text) == (
        Exit.DONE,
        "0 statements, 0 rejected by policy orders-only\n",
        "",
    )


def test_an_observing_policy_rejects_nothing_and_says_what_it_saw(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "observe.yaml"
    path.write_text(POLICY + "mode: observe\n", encoding="utf-8")
    code, out, _ = run("check", "--policy", path, "--format", "json", stdin=b"TABLE api_keys")
    judged = json.loads(out)
    assert code == Exit.DONE
    assert judged["decision"] == "allow"
    assert judged["violations"][0]["rule"] == "relation-not-allowed"


# --- policy ---


def test_a_policy_without_fault_has_nothing_said_of_it(run: Run, policy_file: Path) -> None:
    assert run("policy", "lint", policy_file, policy_file.parent) == (Exit.DONE, "", "")


def test_every_fault_of_every_policy_is_said_at_its_place(run: Run, policy_file: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        policy_file.with_name(name).write_text(POLICY + "limts: {}\nacces: read_only\n", encoding="utf-8")
    code, out, err = run("policy", "lint", policy_file.parent)
    assert (code, err) == (Exit.REJECTED, "")
    for name in ("a.yaml", "b.yaml"):
        assert f"{policy_file.with_name(name)}:9:1: limts: unknown key; did you mean 'limits'?" in out
        assert f"{policy_file.with_name(name)}:10:1: acces: unknown key; did you mean 'access'?" in out


def test_a_policy_s_tests_are_counted_and_those_that_fail_are_shown(run: Run, policy_file: Path) -> None:
    tests = "tests:\n  - {sql: TABLE orders, expect: allow}\n"
    policy_file.write_text(POLICY + tests, encoding="utf-8")
    assert run("policy", "test", policy_file) == (Exit.DONE, "1 test, 0 failed\n", "")
    policy_file.write_text(
        POLICY + tests + '  - {sql: "TABLE\\napi_keys", expect: allow}\n', encoding="utf-8"
    )
    code, out, _ = run("policy", "test", policy_file.parent)
    where, expected, found, error, *_, sum_ = out.splitlines()
    assert (code, where, sum_) == (
        Exit.REJECTED,
        f"{policy_file}:11: TABLE api_keys",
        "2 tests, 1 failed",
    )
    assert (expected, found) == ("    - expect: allow", "    + expect: reject")
    assert error.startswith("    ERROR:  42501: Relation public.api_keys")


def test_of_a_dialogue_the_steps_that_differ_are_shown(run: Run, policy_file: Path) -> None:
    steps = "tests:\n  - name: talk\n    steps:\n      - {sql: TABLE orders, expect: allow}\n"
    policy_file.write_text(
        f"{POLICY}{steps}      - {{sql: TABLE api_keys, expect: allow}}\n", encoding="utf-8"
    )
    code, out, _ = run("policy", "test", policy_file)
    lines = out.splitlines()
    where = policy_file.read_text(encoding="utf-8").splitlines().index("  - name: talk") + 1
    assert (code, lines[0]) == (Exit.REJECTED, f"{policy_file}:{where}: talk")
    assert lines[1:4] == [
        f"    step 2, line {where + 3}: TABLE api_keys",
        "    - expect: allow",
        "    + expect: reject",
    ]
    _, out, _ = run("policy", "test", "--format", "json", policy_file)
    told = json.loads(out)
    assert (told["name"], told["holds"]) == ("talk", False)
    assert [(each["sql"], bool(each["differences"])) for each in told["steps"]] == [
        ("TABLE orders", False),
        ("TABLE api_keys", True),
    ]
    assert told["steps"][1]["rejection"]["rule"] == "relation-not-allowed"


def test_tests_beside_a_policy_run_with_it_and_go_into_a_report(
    run: Run, policy_file: Path, tmp_path: Path
) -> None:
    policy_file.write_text(POLICY + "tests:\n  - {sql: TABLE orders, expect: allow}\n", encoding="utf-8")
    beside = policy_file.with_name("orders-only.tests.yaml")
    beside.write_text(
        "version: 1\ntests: [{sql: TABLE api_keys, expect: allow, name: keys}]\n", encoding="utf-8"
    )
    report = tmp_path / "report.xml"
    code, out, _ = run("policy", "test", "--junit", report, policy_file.parent)
    assert (code, out.splitlines()[0]) == (Exit.REJECTED, f"{beside}:2: keys")
    (suite,) = ElementTree.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["keys"]
    code, out, _ = run("policy", "test", "--format", "json", policy_file)
    told = [json.loads(line) for line in out.splitlines()]
    assert [each["holds"] for each in told] == [True, False]
    assert told[1]["differences"] == [{"what": "expect", "expected": "allow", "found": "reject"}]
    assert told[1]["rejection"]["rule"] == "relation-not-allowed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["test", "."], "There are no tests"), (["lint", "empty"], "empty holds no *.yaml.")],
)
def test_nothing_to_do_is_no_success(
    arguments: list[str], said: str, run: Run, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(policy_file.parent)
    Path("empty").mkdir()
    code, out, err = run("policy", *arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert said in err


def test_what_a_statement_holds_cannot_steer_the_terminal(run: Run, policy_file: Path) -> None:
    code, out, _ = run(
        "check", "--policy", policy_file, stdin=b"SELECT '\x1b[2J', \"a\x9bb\x07\" FROM api_keys"
    )
    assert code == Exit.REJECTED
    assert all(c.isprintable() or c == "\n" for c in out)


@pytest.mark.parametrize("what", ["policy", "sql"])
def test_a_file_that_is_not_there_is_one_sentence(what: str, run: Run, policy_file: Path) -> None:
    missing = policy_file.with_name("missing.x")
    policy, sql = (missing, "-") if what == "policy" else (policy_file, missing)
    code, out, err = run("check", "--policy", policy, sql)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert str(missing) in err
    assert "cannot be read: No such file or directory" in err


def test_every_fault_of_a_policy_is_shown_with_its_place(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("version: 1\nname: x\nacess: read_only\nstatements: {selekt: allow}\n", encoding="utf-8")
    code, out, err = run("check", "--policy", path, stdin=b"SELECT 1")
    assert (code, out) == (2, "")
    assert f"{path}:3:1: " in err
    assert "did you mean 'access'?" in err
    assert f"{path}:4:14: " in err
    assert "did you mean 'select'?" in err


def test_names_are_looked_up_in_a_database_or_in_its_dump(
    run: Run, tmp_path: Path, policy_file: Path, database18: Database
) -> None:
    code, dump, err = run("catalog", "dump", "--dsn", database18.dsn())
    assert (code, err) == (0, "")
    file = tmp_path / "shop.json"
    file.write_text(dump)
    database18.execute("CREATE VIEW keys AS SELECT secret FROM api_keys")
    sql = b"SELECT statsu FROM orders"
    for source in (("--catalog", file), ("--dsn", database18.dsn())):
        code, out, _ = run("check", "--policy", policy_file, *source, stdin=sql)
        assert code == Exit.REJECTED
        assert "unknown-column" in out
        assert "Use orders.status instead." in out
    view = b"SELECT secret FROM keys"
    code, out, _ = run("check", "--policy", policy_file, "--dsn", database18.dsn(), stdin=view)
    assert "relation-not-allowed" in out
    _, out, _ = run("check", "--policy", policy_file, "--catalog", file, stdin=view)
    assert "unknown-relation" in out
    code, _, _ = run("check", "--policy", policy_file, stdin=view)
    assert code == Exit.DONE


def test_a_database_is_asked_for_prices(run: Run, tmp_path: Path, database18: Database) -> None:
    policy = tmp_path / "priced.yaml"
    policy.write_text(
        "version: 1\nname: priced\nstatements: {select: allow}\nrelations: {allow: [public.*]}\n"
        "cost: {max_scan_rows: 1000}\n"
    )
    sql = b"SELECT * FROM orders WHERE id = $1; SELECT * FROM orders; SELECT 1::date FROM orders"
    source = ("check", "--policy", policy, "--dsn", database18.dsn())
    code, out, err = run(*source, "--format", "json", stdin=sql)
    assert (code, err) == (Exit.REJECTED, "")
    generic, dear, failing = map(json.loads, out.splitlines())
    assert (generic["decision"], generic["cost"]["generic"]) == ("allow", True)
    assert (dear["decision"], dear["rule"], dear["cost"]["limit"]) == (
        "reject",
        "cost-over-limit",
        "max_scan_rows",
    )
    assert (failing["decision"], failing["cost"], failing["unpriced"][:6]) == ("allow", None, "42846:")
    code, out, _ = run(*source, stdin=sql)
    assert "rows by a generic plan\n" in out
    assert "    not priced: 42846: cannot cast type integer to date at character 9\n" in out


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--catalog", "missing.json", "cannot be read"),
        ("--catalog", "orders-only.yaml", "not JSON"),
        ("--dsn", "postgresql://bob:hunter2@127.0.0.1:9/shop", "The catalog cannot be read"),
        ("--dsn", "nonsense", "The catalog cannot be read"),
    ],
)
def test_a_catalog_that_cannot_be_read_is_a_mistake_told_in_a_sentence(
    run: Run, policy_file: Path, option: str, value: str, said: str
) -> None:
    place = policy_file.parent / value if option == "--catalog" else value
    code, out, err = run("check", "--policy", policy_file, option, place, stdin=b"SELECT 1")
    assert (code, out) == (Exit.USAGE, "")
    assert said in err
    assert "hunter2" not in err


# --- rules ---


def test_rules_lists_every_rule_with_level_and_summary(run: Run) -> None:
    code, out, _ = run("rules")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [
        [name, str(rule.DEFAULT)] for name, rule in rules.BY_NAME.items()
    ]
    for line, name in zip(out.splitlines(), rules.BY_NAME, strict=True):
        summary = line.split(maxsplit=2)[2]
        assert summary in rules.page(name).splitlines()[0].replace("``", "`")
        assert not summary.startswith(name)


def test_rules_as_json_is_the_same_list(run: Run) -> None:
    code, out, _ = run("rules", "--format", "json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(out)] == list(rules.BY_NAME)
    assert {"name", "level", "governed_by", "summary"} == set(json.loads(out)[0])


@pytest.mark.parametrize("name", rules.BY_NAME)
def test_every_rule_has_a_page(name: str, run: Run) -> None:
    code, out, _ = run("rules", name)
    assert code == 0
    assert out.startswith(name)
    assert "Refused\n" in out
    assert json.loads(run("rules", name, "--format", "json")[1])["page"] == out.rstrip("\n")


def test_a_rule_that_does_not_exist_brings_the_nearest(run: Run) -> None:
    code, out, err = run("rules", "update-without-were")
    assert (code, out) == (2, "")
    assert "did you mean 'update-without-where'?" in err
    assert "`pgturnstile rules` lists them" in run("rules", "qqqq")[2]


# --- hash-password ---


def test_a_password_from_standard_input_becomes_a_verifier(run: Run) -> None:
    code, out, err = run("hash-password", stdin="pässword\r\nnot this\n".encode())
    assert (code, err) == (0, "")
    verifier = Verifier.parse(out.strip())
    assert verifier == Verifier.derive("pässword", verifier.salt, verifier.iterations)
    assert verifier.iterations == 4096
    assert (
        Verifier.parse(run("hash-password", "--iterations", "5000", stdin=b"x")[1].strip()).iterations == 5000
    )


@pytest.mark.parametrize(
    ("stdin", "said"), [(b"", "empty"), (b"\n", "empty"), (b"\xff\n", "UTF-8"), (b"a\0b\n", "NUL")]
)
def test_a_password_that_nobody_could_use_is_refused(stdin: bytes, said: str, run: Run) -> None:
    code, out, err = run("hash-password", stdin=stdin)
    assert (code, out) == (2, "")
    assert said in err


def at_terminal(*typed: str) -> tuple[int, str]:
    """``hash-password`` at a terminal of its own: exit code, and all that stood on the screen."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*PROGRAM, "hash-password"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        screen = b""
        for prompt, answer in zip((b"Password: ", b"Again: "), typed, strict=True):
            while prompt not in screen:
                screen += os.read(ours, 1024)
            time.sleep(
                0.05
            )  # getpass switches the echo off before it prints, and flushes what was typed ahead
            os.write(ours, answer.encode() + b"\n")
        while True:
            try:
                chunk = os.read(ours, 1024)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            screen += chunk
        return process.wait(30), screen.decode()
    finally:
        os.close(ours)


def test_at_a_terminal_the_password_is_asked_twice_and_never_shown() -> None:
    code, screen = at_terminal("s3cret", "s3cret")
    assert code == 0
    assert "s3cret" not in screen
    verifier = Verifier.parse(screen.split()[-1])
    assert verifier == Verifier.derive("s3cret", verifier.salt, verifier.iterations)


def test_two_different_passwords_are_refused() -> None:
    code, screen = at_terminal("one", "two")
    assert code == 2
    assert "differ" in screen
    assert "SCRAM" not in screen


# --- streams ---


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour_only_on_a_terminal_that_wants_it(
    terminal: bool, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    configure_logging(screen, as_json=False)
    structlog.get_logger("test").warning("seen")
    assert "seen" in screen.getvalue()
    assert ("\x1b[" in screen.getvalue()) is coloured
    assert painter(screen)("word", "31") == ("\x1b[31mword\x1b[0m" if coloured else "word")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_traceback_in_the_log_shows_no_variables(as_json: bool) -> None:
    """Formatters that do so come with packages that anything else may have installed."""
    screen = io.StringIO()
    configure_logging(screen, as_json=as_json)

    def fail(password: str) -> None:
        raise RuntimeError(len(password))

    try:
        fail("open-" + "sesame-7")
    except RuntimeError:
        structlog.get_logger("test").exception("failed")
    renderer = structlog.get_config()["processors"][-1]
    assert as_json or structlog.dev.plain_traceback in vars(renderer).values()
    assert "RuntimeError: 13" in screen.getvalue()
    assert "open-sesame-7" not in screen.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    full = open("/dev/full", "w", buffering=1)  # noqa: PTH123, SIM115 - its close fails as well
    configure_logging(full, as_json=True)
    for _ in range(3):
        structlog.get_logger("test").warning("lost", text="x" * 10_000)
    structlog.reset_defaults()
    with pytest.raises(OSError, match="No space left"):
        full.write("x" * 10_000)
        full.flush()
    with contextlib.suppress(OSError):
        full.close()


def test_log_lines_for_programs_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(sys.stderr, as_json=True)
    structlog.get_logger("test").warning("seen", port=1)
    out, err = capsys.readouterr()
    assert out == ""
    line = json.loads(err)
    assert (line["event"], line["level"], line["port"]) == ("seen", "warning", 1)


def test_a_reader_that_goes_away_is_no_traceback(policy_file: Path) -> None:
    script = policy_file.with_name("long.sql")
    script.write_text("SELECT 1;\n" * 5_000, encoding="utf-8")
    process = subprocess.Popen(
        [*PROGRAM, "check", "--policy", policy_file, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 2
    assert b"Traceback" not in errors


def test_exit_codes_reach_the_shell(policy_file: Path) -> None:
    for sql, code in (("SELECT 1", 0), ("TABLE api_keys", 1), ("SELECT (", 1)):
        done = subprocess.run(
            [*PROGRAM, "check", "--policy", policy_file], input=sql.encode(), capture_output=True, check=False
        )
        assert done.returncode == code, done.stderr


# --- serve ---


CONFIG = """\
version: 1
listen: {{port: {port}}}
backend: {{host: 127.0.0.1, port: {backend}}}
agents:
  bot:
    auth: {{trust: loopback}}
    login: {{user: shop_app, password_env: SHOP_APP}}
    policy: orders-only.yaml
audit: {{path: {audit}}}
"""


@dataclass(frozen=True, slots=True)
class Serving:
    """``pgturnstile serve`` before a sample shop, ready."""

    process: subprocess.Popen[str]
    port: int
    database: str
    folder: Path

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="bot", dbname=self.database, autocommit=True
        )

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text("ascii").splitlines()]


def serve(
    folder: Path, database: Database, *, port: int = 0, audit: str = "audit.jsonl"
) -> subprocess.Popen[str]:
    text = CONFIG.format(port=port, backend=database.server.port, audit=audit)
    (folder / "pgturnstile.yaml").write_text(text, encoding="utf-8")
    return subprocess.Popen(
        [*PROGRAM, "serve", "--config", folder / "pgturnstile.yaml", "--log-format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SHOP_APP": database.server.passwords["shop_app"]},
    )


@pytest.fixture
def serving(policy_file: Path, database18: Database) -> Iterator[Serving]:
    process = serve(policy_file.parent, database18)
    try:
        assert process.stdout is not None
        ready = re.fullmatch(r"ready host=127\.0\.0\.1 port=(\d+)\n", process.stdout.readline())
        assert ready is not None, process.communicate()[1]
        yield Serving(process, int(ready[1]), database18.name, policy_file.parent)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_audit_is_complete_after_sigterm(serving: Serving) -> None:
    with serving.connect() as connection:
        for n in range(300):
            connection.execute(f"SELECT {n}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("TABLE api_keys")
        serving.process.send_signal(signal.SIGTERM)
        out, errors = serving.process.communicate(timeout=60)
    assert (serving.process.returncode, out) == (0, ""), errors
    lines = serving.audited()
    assert [line["statement"] for line in lines] == [*(f"SELECT {n}" for n in range(300)), "TABLE api_keys"]
    for line in lines[:-1]:
        assert (line["decision"], line["protocol"], line["agent"]) == ("allow", "simple", "bot")
        assert line["outcome"]["command_tag"] == "SELECT 1"
        assert (line["outcome"]["rows"], line["outcome"]["sqlstate"]) == (1, None)
        assert line["outcome"]["known"]
    last = lines[-1]
    assert (last["decision"], last["rule"], last["outcome"]["sqlstate"]) == (
        "reject",
        "relation-not-allowed",
        "42501",
    )
    assert last["backend_user"] == "shop_app"
    assert last["policy"]["name"] == "orders-only"
    assert len({line["id"] for line in lines}) == len(lines)
    assert all(json.loads(line)["event"] for line in errors.splitlines()), "logs are JSON lines on stderr"


def test_sighup_takes_a_good_policy_and_keeps_the_last_one_before_a_bad_one(serving: Serving) -> None:
    policy = serving.folder / "orders-only.yaml"

    def reload(text: str, event: str) -> None:
        policy.write_text(text, encoding="utf-8")
        serving.process.send_signal(signal.SIGHUP)
        assert serving.process.stderr is not None
        for line in serving.process.stderr:
            if event in line:
                return

    reload(POLICY.replace("deny: [public.api_keys]", "deny: [public.orders]"), "reloaded")
    with serving.connect() as connection:
        connection.execute("SELECT count(*) FROM api_keys")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT count(*) FROM orders")
    reload("version: 2", "reload failed")
    with serving.connect() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT count(*) FROM orders")


def test_what_keeps_the_server_from_starting_is_one_sentence(
    policy_file: Path, database18: Database, tmp_path: Path
) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        for arguments, said in (
            ({"port": port}, "address already in use"),
            ({"audit": "no/such/audit.jsonl"}, "audit.jsonl cannot be opened: No such file or directory."),
        ):
            process = serve(policy_file.parent, database18, **arguments)
            out, errors = process.communicate(timeout=30)
            assert (process.returncode, out) == (2, "")
            *logged, last = errors.splitlines()
            assert last.startswith("pgturnstile: ")
            assert said in last
            assert all(json.loads(line)["level"] == "info" for line in logged)
