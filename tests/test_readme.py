"""README.md is true: each of its code blocks is run, loaded or compared, and an unknown kind of block fails.

A block says by its info string what it is: ``sql POLICY RULE`` is SQL that the named policy refuses by that
rule (or ``allow``), ``python demo`` runs against the demo, and so on: ``KINDS`` lists them.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, get_args

import psycopg
import pytest
import yaml

from policy import loader, rules
from policy.decision import Reject, Situation, decide
from policy.lineage import CloseOut, Ending, scope_key
from policy.loader import load
from policy.model import Policy, RepairRules, StatementClass
from policy.names import PathNames
from policy.parse import parse
from policy.trial import run_tests
from proxy import cli, config, config_reading, config_reference
from proxy.agents import Auth
from proxy.audit_line import closed_line
from proxy.commands import rules as rule_pages
from proxy.config import Statements
from proxy.config_reading import read_config
from proxy.demo import PASSWORDS
from proxy.demo_tour import ANALYST, CLERK
from proxy.scram import Verifier
from proxy.tls import TLSMode
from tests.support.certificates import Certificates
from tests.support.demo import RunningDemo, run_demo

ROOT: Final = Path(__file__).parent.parent
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES: Final = ROOT / "policy" / "examples"
IN_CI: Final = os.environ.get("CI") == "true"
ADDRESS: Final = "127.0.0.1:6432"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its info string, its text, and the line it begins at."""

    info: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"line {self.line}: {self.info}"


BLOCKS: Final = tuple(
    Block(match[1].strip(), match[2], README.count("\n", 0, match.start()) + 1)
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
)
KINDS: Final = (
    "",
    "java",
    "js node",
    "json audit",
    "json event",
    "python demo",
    "python repair",
    "sh review",
    "sh replay",
    "ini service",
    "sh check",
    "sh compose",
    "sh service-install",
    "sql-roles",
    "text logrotate",
    "sh fresh-machine",
    "sh pip-demo",
    "sh pip-test",
    "sh psql",
    "sh serve",
    "sh doctor",
    "sh audit",
    "sh audit-verify",
    "text rejection",
    "yaml config",
    "yaml policy",
    "yaml policy-reference",
)


def blocks(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.info == kind]


def the(kind: str) -> Block:
    (block,) = blocks(kind)
    return block


SQL_BLOCKS: Final = [block for block in BLOCKS if block.info.startswith("sql ")]
POLICY_BLOCKS: Final = [block for block in BLOCKS if block.info.startswith("yaml policy")]


@pytest.fixture(scope="module")
def demo() -> Iterator[RunningDemo]:
    with run_demo() as demo:
        yield demo


def at(demo: RunningDemo, text: str) -> str:
    """``text`` with the demo's usual address replaced by where this one listens."""
    assert ADDRESS in text
    return text.replace(ADDRESS, f"127.0.0.1:{demo.port}")


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {block.info for block in BLOCKS} - {block.info for block in SQL_BLOCKS} == set(KINDS)
    assert README.count("\n```") == 2 * len(BLOCKS), "a fence is not closed"


# --- the first screen ---


def test_two_commands_suffice_on_a_fresh_machine() -> None:
    assert [block.text for block in blocks("sh fresh-machine")] == ["make demo\n", "make test\n"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert max(block.line for block in blocks("sh fresh-machine")) < 25, "they belong on the first screen"


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("demo", ".venv/bin/pgturnstile demo"),
        ("test", ".venv/bin/python -m pytest -n 2 --dist loadfile"),
    ],
    ids=["demo", "test"],
)
def test_the_lines_without_make_name_what_exists(extra: str, expected: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    venv, install, run = the(f"sh pip-{extra}").text.splitlines()
    assert venv == "python3 -m venv .venv"
    assert install == f".venv/bin/pip install -e '.[{extra}]'"
    assert extra in project["optional-dependencies"]
    assert run == expected
    assert "pgturnstile" in project["scripts"]


# --- what the agent sees, and drivers ---


def refusal(demo: RunningDemo, sql: str) -> psycopg.errors.Diagnostic:
    with (
        psycopg.connect(demo.uri(ANALYST), autocommit=True) as connection,
        pytest.raises(psycopg.Error) as refused,
    ):
        connection.execute(sql.encode())
    return refused.value.diag


def test_the_rejection_shown_is_what_is_sent(demo: RunningDemo) -> None:
    """In psql's layout of VERBOSITY verbose: src/fe_utils and libpq's fe-protocol3.c."""
    sql = next(block for block in SQL_BLOCKS if block.info.startswith("sql demo-analyst ")).text.strip()
    read = refusal(demo, sql)
    assert read.statement_position is not None
    assert read.source_file is not None
    lines = [
        f"{read.severity}:  {read.sqlstate}: {read.message_primary}",
        f"LINE 1: {sql}",
        " " * (len("LINE 1: ") + int(read.statement_position) - 1) + "^",
        f"DETAIL:  {read.message_detail}",
        f"HINT:  {read.message_hint}",
        f"SCHEMA NAME:  {read.schema_name}",
        f"TABLE NAME:  {read.table_name}",
        f"COLUMN NAME:  {read.column_name}",
        f"LOCATION:  {read.source_function}, {Path(read.source_file).name}:{read.source_line}",
    ]
    sent = "\n".join(lines) + "\n"
    shown = the("text rejection").text
    one_id = re.compile(r'"id":"[0-9a-f]{16}-\d+"')
    assert one_id.search(shown)
    assert one_id.sub("", shown) == one_id.sub("", sent), sent


def test_repairs_are_answered_as_the_table_says(demo: RunningDemo) -> None:
    section = README[README.index("### One repair") :].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE)
    assert len(rows) == 4
    with psycopg.connect(demo.uri(CLERK), autocommit=True) as connection:
        for sql, answer in rows:
            try:
                connection.execute(sql)
            except psycopg.Error as error:
                read = error.diag
                halt = json.loads(read.message_detail or "")["halt"]
                assert answer.startswith(f"{read.sqlstate}, "), (sql, read.message_primary)
                assert (f"halt `{halt}`" if halt else f"hint: {read.message_hint}".rstrip(".")) in answer
            else:
                assert answer.startswith("passes")


def test_the_repair_shown_is_made(demo: RunningDemo) -> None:
    block = the("python repair")
    done = subprocess.run(
        [sys.executable, "-c", at(demo, block.text)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[\(\d+,\)\]\n", done.stdout)


@pytest.mark.parametrize("block", blocks("python demo"), ids=str)
def test_python_examples_run_against_the_demo(block: Block, demo: RunningDemo) -> None:
    ast.parse(block.text)
    done = subprocess.run(
        [sys.executable, "-c", at(demo, block.text)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example prints what it got"
    if "error.diag" in block.text:
        message, hint, detail, rule, row = done.stdout.splitlines()
        assert "salary" in message
        assert "Do not retry" in hint
        assert json.loads(detail)["rule"] == rule == "column-not-allowed"
        assert row == "('Staff member 1', 'owner')"


def test_the_psql_example_runs(demo: RunningDemo) -> None:
    command = shlex.split(at(demo, the("sh psql").text))
    if shutil.which(command[0]) is None:
        pytest.skip("psql is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "2000" in done.stdout


def test_the_node_example_runs(demo: RunningDemo, tmp_path: Path) -> None:
    script = tmp_path / "example.js"
    script.write_text(at(demo, the("js node").text), encoding="utf-8")
    installed = (
        shutil.which("node") is not None
        and subprocess.run(
            ["node", "-e", 'require("pg")'], cwd=tmp_path, capture_output=True, check=False
        ).returncode
        == 0
    )
    if not installed:
        assert not IN_CI, "CI installs Node and its driver for this"
        pytest.skip("Node's pg is not installed (NODE_PATH)")
    done = subprocess.run(
        ["node", str(script)], capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "400\n"), done.stderr


def test_the_java_example_has_the_demo_s_address_and_login() -> None:
    text = the("java").text
    assert f'"jdbc:postgresql://{ADDRESS}/shop", "{ANALYST}", "{PASSWORDS[ANALYST]}"' in text


# --- policies ---


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    """Every policy that README can speak of, by name: its own and those that ship."""
    texts = {block.info: block.text for block in POLICY_BLOCKS}
    loaded = [load(text, name) for name, text in texts.items()]
    loaded += [loader.load_file(path) for path in sorted(EXAMPLES.glob("*.yaml"))]
    return {policy.name: policy for policy in loaded}


@pytest.mark.parametrize("block", SQL_BLOCKS, ids=str)
def test_sql_is_judged_as_claimed(block: Block, policies: dict[str, Policy]) -> None:
    _, policy_name, rule = block.info.split()
    decision = decide(policies[policy_name], Situation("", PathNames()), parse(block.text))
    assert (decision.violations[0].rule if isinstance(decision, Reject) else "allow") == rule, decision


@pytest.mark.parametrize("block", POLICY_BLOCKS, ids=str)
def test_a_policy_s_own_tests_hold(block: Block) -> None:
    policy = load(block.text, "README.md")
    assert policy.tests
    for tried in run_tests(policy):
        assert tried.differences == ()


def test_the_policy_reference_has_every_key() -> None:
    text = the("yaml policy-reference").text
    sections = yaml.load(text, yaml.BaseLoader)
    assert set(loader._SECTIONS) - set(sections) == {"extends"}
    assert set(sections["rules"]) == rules.CONFIGURABLE
    for statement_class in ("select", "merge", "lock", "replication", "other"):
        assert re.search(rf"\b{statement_class}\b", text)
    load(text, "README.md")


def test_the_policies_that_ship_are_counted() -> None:
    numerals = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")
    assert f"{numerals[len(list(EXAMPLES.glob('*.yaml')))]} policies to start from" in README


def rule_table() -> str:
    """What stands between the two markers."""
    rows = ["| rule | level | it refuses |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {rule.DEFAULT} | {rule_pages.summary(name)} |" for name, rule in rules.BY_NAME.items()
    ]
    return "\n".join(rows)


def test_the_rule_table_is_that_of_the_pages() -> None:
    table = re.search(r"<!-- rules: [^\n]* -->\n(.*?)\n?<!-- /rules -->", README, re.DOTALL)
    assert table is not None
    assert table[1].strip() == rule_table(), f"it should read:\n{rule_table()}"


# --- running it ---


def test_every_key_of_the_configuration_is_in_the_table() -> None:
    shown = re.search(r"<!-- configuration: [^\n]* -->\n(.*?)\n?<!-- /configuration -->", README, re.DOTALL)
    assert shown is not None
    assert shown[1].strip() == config_reference.table(), f"it should read:\n{config_reference.table()}"
    assert len(config_reference.MEANING) == config_reference.table().count("\n") - 1


def environment_of(text: str) -> dict[str, str]:
    return dict.fromkeys(re.findall(r"password_env: (\w+)", text), "a password")


def test_the_configuration_loads_and_has_every_section(tmp_path: Path) -> None:
    text = the("yaml config").text
    (tmp_path / "policies").symlink_to(EXAMPLES)
    loaded = read_config(text, "README.md", tmp_path, environment_of(text))
    assert set(loaded.agents) == {"reporting-bot", "support-bot", "*"}
    sections = yaml.load(text, yaml.BaseLoader)
    assert set(sections) == set(config_reading._SECTIONS)
    assert loaded.limits == config.ServerLimits(), "the limits shown are the defaults"
    assert (loaded.listen, loaded.backend) == (config.Listen(), config.Backend())


def test_what_is_commented_out_loads_with_the_files_in_place(
    tmp_path: Path, certificates: Certificates
) -> None:
    text = the("yaml config").text.replace("  # tls:", "  tls:")
    (tmp_path / "policies").symlink_to(EXAMPLES)
    for name, file in (
        ("server.crt", certificates.certificate),
        ("server.key", certificates.key),
        ("agents-ca.crt", certificates.ca),
        ("ca.crt", certificates.ca),
    ):
        (tmp_path / name).symlink_to(file)
    loaded = read_config(text, "README.md", tmp_path, environment_of(text))
    assert loaded.listen.tls == config.ListenTls(
        tmp_path / "server.crt", tmp_path / "server.key", True, tmp_path / "agents-ca.crt"
    )
    assert loaded.backend.tls == config.BackendTls(TLSMode.VERIFY_FULL, tmp_path / "ca.crt")


def test_every_way_to_authenticate_has_its_row(certificates: Certificates, tmp_path: Path) -> None:
    """The table's first cells, each as an agent's ``auth``, and no way without a cell."""
    (tmp_path / "policies").symlink_to(EXAMPLES)
    (tmp_path / "PATH").write_text("a password")
    (tmp_path / "tls.pem").write_bytes(certificates.certificate.read_bytes() + certificates.key.read_bytes())
    table = README.partition("| `auth:` |")[2].partition("\n\n")[0]
    written = [cell for row in table.splitlines()[2:] for cell in re.findall(r"`([^`]*)`", row.split("|")[1])]
    verifier = str(Verifier.derive("a password"))
    files = {"cert": "tls.pem", "key": "tls.pem", "client_ca": "tls.pem"}
    seen = set()
    for auth in written:
        proves = yaml.safe_load(f"{{{auth}}}".replace("SCRAM-SHA-256$…", verifier))
        agent: dict[str, Any] = {"auth": proves, "policy": "policies/analytics.yaml"}
        agent |= {} if "backend" in proves else {"login": {"user": "a"}}
        document = {"version": 1, "backend": {}, "listen": {"tls": files}, "agents": {"a": agent}}
        loaded = read_config(json.dumps(document), "README.md", tmp_path, {"NAME": "a password"})
        seen.add(type(loaded.agents["a"].auth))
    assert seen == set(get_args(Auth))


@pytest.mark.parametrize(
    "kind", ["sh check", "sh serve", "sh doctor", "sh audit", "sh audit-verify", "sh review", "sh replay"]
)
def test_commands_shown_are_commands(kind: str) -> None:
    for line in the(kind).text.splitlines():
        words = shlex.split(line.partition(" < ")[0], comments=True)
        assert words[0] == "pgturnstile"
        options = cli.parser().parse_args(words[1:])
        policy = getattr(options, "policy", None)
        if policy is not None:
            assert loader.load_file(ROOT / policy)


def test_the_line_of_an_ending_shown_is_one() -> None:
    shown = json.loads(the("json event").text)
    record = CloseOut(
        shown["lineage"],
        scope_key(RepairRules(), shown["agent"], shown["database"], "", ""),
        StatementClass(shown["class"]),
        tuple(shown["reasons"]),
        shown["turns"],
        Ending(shown["outcome"]),
        shown["halt"],
        datetime.fromisoformat(shown["opened"]).timestamp(),
        datetime.fromisoformat(shown["ts"]).timestamp(),
    )
    assert json.loads(closed_line(record, Statements.FULL)) == shown


def test_the_audit_line_shown_has_the_fields_of_a_real_one(demo: RunningDemo) -> None:
    sql = next(block for block in SQL_BLOCKS if block.info.startswith("sql demo-analyst ")).text.strip()
    detail = json.loads(refusal(demo, sql).message_detail or "")
    line: dict[str, Any] = {}
    while line.get("id") != detail["id"]:
        # A line is whole once its end is there: the writer may be at work on the next.
        whole, _, _ = demo.audit.read_text(encoding="ascii").rpartition("\n")
        line = json.loads(whole.rpartition("\n")[2] or "{}")
    shown = json.loads(the("json audit").text)
    assert list(shown) == list(line)
    changing = (
        "ts",
        "id",
        "client",
        "connection",
        "fingerprint",
        "outcome",
        "policy",
        "catalog_sha256",
        "chain",
        "prev",
    )
    assert {k: v for k, v in shown.items() if k not in changing} == {
        k: v for k, v in line.items() if k not in changing
    }, json.dumps(line)
    for nested in ("outcome", "policy"):
        assert list(shown[nested]) == list(line[nested])
    table = README[README.index("### The audit file") :]
    for key in line:
        assert re.search(rf"^\|.*`{key}`", table, re.MULTILINE), f"the table does not explain {key}"
