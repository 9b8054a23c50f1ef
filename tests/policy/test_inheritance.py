"""extends: what a policy takes over from its base, what it replaces, and where each line is said to stand."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from policy import loader
from policy.check import check
from policy.diagnostics import PolicyError
from policy.explain import explain
from policy.inheritance import place_of, shipped_names
from policy.lint import lint
from policy.model import Access, Catalogs, Policy, RuleLevel, StatementClass, Verdict
from proxy.cli import main

BASE = """\
version: 1
name: base
access: read_write
statements:
  select: {decide: allow, repair: once}
  update: allow
  ddl: {decide: reject, needs: approval}
relations:
  allow: ["public.*", "stock.*"]
  deny: [public.api_keys]
  catalogs: filtered
columns:
  public.users: {deny: [ssn]}
  public.staff: {allow: [id, name]}
functions: {allow: [builtin-safe], deny: [pg_sleep]}
rules: {unbounded-join: reject}
cost:
  max_rows: 100
  allowances: [{name: a, statement: SELECT 1, max_total_cost: 9, expires: 2099-01-01}]
limits: {statement_timeout: 30s, result_rows: 10}
repair: {window: 5m, scope: connection}
tests: [{sql: DROP TABLE x, expect: allow}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    return tmp_path


def extending(folder: Path, text: str, base: str = "./base.yaml") -> Policy:
    path = folder / "own.yaml"
    path.write_text(f"version: 1\nextends: {base}\n{text}", encoding="utf-8")
    return loader.load_file(path)


def test_what_is_not_said_is_inherited(folder: Path) -> None:
    own, base = extending(folder, ""), loader.load(BASE, "base.yaml")
    assert own.access is Access.READ_WRITE
    assert {cls: row.decide for cls, row in own.statements.items()} == {
        cls: row.decide for cls, row in base.statements.items()
    }
    assert (own.limits.statement_timeout_ms, own.limits.result_rows) == (30_000, 10)
    assert own.repair.window_s == 300
    assert own.rules["unbounded-join"] is RuleLevel.REJECT


def test_name_and_tests_are_the_policy_s_own(folder: Path) -> None:
    own = extending(folder, "")
    assert (own.name, own.tests) == ("own", ())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("access: read_only", lambda p: p.access is Access.READ_ONLY),
        ("statements: {update: reject}", lambda p: p.row(StatementClass.UPDATE).decide is Verdict.REJECT),
        ("statements: {update: reject}", lambda p: p.row(StatementClass.SELECT).repair_once),
        ("statements: {select: allow}", lambda p: not p.row(StatementClass.SELECT).repair_once),
        ("statements: {ddl: allow}", lambda p: p.row(StatementClass.DDL).needs is None),
        ('relations: {allow: ["hr.*"]}', lambda p: list(map(str, p.relations.allow)) == ["hr.*"]),
        ("relations: {catalogs: off}", lambda p: p.relations.catalogs is Catalogs.OFF),
        ("relations: {catalogs: off}", lambda p: len(p.relations.allow) == 2),
        (
            "limits: {result_rows: 5}",
            lambda p: (p.limits.result_rows, p.limits.statement_timeout_ms) == (5, 30_000),
        ),
        ("rules: {unbounded-join: off}", lambda p: p.rules["unbounded-join"] is RuleLevel.OFF),
        ("cost: {max_total_cost: 7}", lambda p: (p.cost.max_total_cost, p.cost.max_rows) == (7, 100)),
    ],
)
def test_what_is_said_replaces(folder: Path, text: str, told: object) -> None:
    assert callable(told)
    assert told(extending(folder, text))


def test_denials_are_joined(folder: Path) -> None:
    own = extending(
        folder,
        "relations: {deny: [public.audit]}\n"
        "columns: {public.users: {deny: [email]}, public.staff: {allow: [id]}}\n"
        "functions: {deny: [public.rate]}\n"
        "cost: {allowances: [{name: b, statement: SELECT 2, max_total_cost: 9, expires: 2099-01-01}]}\n",
    )
    assert list(map(str, own.relations.deny)) == ["public.api_keys", "public.audit"]
    assert {str(rule.relation): (rule.allow, rule.deny) for rule in own.columns} == {
        "public.users": (None, {"ssn", "email"}),
        "public.staff": ({"id"}, frozenset()),
    }
    assert list(map(str, own.functions.deny)) == ["*.pg_sleep", "public.rate"]
    assert own.cost is not None
    assert [allowance.name for allowance in own.cost.allowances] == ["a", "b"]


def test_an_extending_policy_cannot_open_what_its_base_denies(folder: Path) -> None:
    own = extending(
        folder, "relations: {allow: [public.api_keys], deny: []}\nfunctions: {allow: [pg_sleep]}\n"
    )
    for sql in (b"SELECT * FROM api_keys", b"SELECT pg_sleep(1)"):
        (checked,) = check(own, sql, source="x")
        assert checked.rejected, sql


# --- places ---


def test_a_rejection_names_the_file_whose_line_decided(folder: Path) -> None:
    own = extending(folder, "relations: {deny: [public.audit]}\n")
    for sql, file, text in (
        ("SELECT * FROM api_keys", "base.yaml", "deny: [public.api_keys]"),
        ("SELECT * FROM audit", "own.yaml", "deny: [public.audit]"),
        ("SELECT ssn FROM users", "base.yaml", "public.users"),
        ("DROP TABLE x", "base.yaml", "ddl:"),
    ):
        (checked,) = check(own, sql.encode(), source="x")
        assert checked.rejection is not None
        assert checked.rejection.file == file
        line = (folder / file).read_text(encoding="utf-8").splitlines()[checked.rejection.line - 1]
        assert text in line, sql
    explained = explain(own, "SELECT 1")
    answers = {answer.rule: answer for answer in explained.answers}
    assert explained.place(answers["unbounded-join"]) == (str(folder / "base.yaml"), 16)


def test_the_hash_is_of_every_file(folder: Path) -> None:
    before = extending(folder, "").sha256
    assert extending(folder, "").sha256 == before
    assert extending(folder, "# a word\n").sha256 != before
    (folder / "base.yaml").write_text(BASE + "# a word\n", encoding="utf-8")
    assert extending(folder, "").sha256 != before
    assert loader.load(BASE, "a").sha256 != before


def test_a_warning_about_a_base_s_line_is_told_there(folder: Path) -> None:
    (folder / "base.yaml").write_text(BASE.replace("[public.api_keys]", "[hr.pay]"), encoding="utf-8")
    extending(folder, "")
    text = (folder / "own.yaml").read_text(encoding="utf-8")
    policy = loader.load(text, str(folder / "own.yaml"))
    (warning,) = [w for w in lint(text, policy, date(2027, 1, 1)) if "deny" in w.path]
    assert (warning.source, warning.line) == (str(folder / "base.yaml"), 10)


def test_three_files_upon_each_other(folder: Path) -> None:
    (folder / "middle.yaml").write_text("version: 1\nextends: ./base.yaml\nlimits: {result_rows: 7}\n")
    own = extending(folder, "limits: {lock_timeout: 1s}\n", base="./middle.yaml")
    assert (own.limits.result_rows, own.limits.lock_timeout_ms, own.limits.statement_timeout_ms) == (
        7,
        1000,
        30_000,
    )
    assert [Path(file).name for file in own.files] == ["own.yaml", "middle.yaml", "base.yaml"]
    source, line = place_of(own.relations.line, own.files)
    assert (Path(source).name, line) == ("base.yaml", 8)


# --- faults ---


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("read-onyl", "2:10: extends: no such base; name one of"),
        ("./none.yaml", "cannot be read"),
        ("./own.yaml", "a policy cannot extend itself"),
        ("[a]", "2:10: extends: expected a text"),
    ],
)
def test_a_base_that_cannot_be_used(folder: Path, base: str, said: str) -> None:
    with pytest.raises(PolicyError) as raised:
        extending(folder, "", base=base)
    assert said in str(raised.value)


def test_a_base_s_faults_are_told_with_its_own_place(folder: Path) -> None:
    (folder / "base.yaml").write_text("version: 1\nacces: read_only\n", encoding="utf-8")
    with pytest.raises(PolicyError) as raised:
        extending(folder, "mode: x\n")
    told = [str(diagnostic) for diagnostic in raised.value.diagnostics]
    assert told[0].startswith(f"{folder / 'own.yaml'}:2:10: extends: {folder / 'base.yaml'} cannot be used")
    assert told[1].startswith(f"{folder / 'own.yaml'}:3:7: mode: unknown value")
    assert told[2].startswith(f"{folder / 'base.yaml'}:2:1: acces: unknown key; did you mean 'access'?")


def test_a_fault_that_only_both_together_have(folder: Path) -> None:
    with pytest.raises(PolicyError) as raised:
        extending(folder, "settings: {allow: [statement_timeout]}\n")
    assert "lift limits.statement_timeout" in str(raised.value)


def test_a_ring_of_policies(folder: Path) -> None:
    (folder / "base.yaml").write_text("version: 1\nextends: ./own.yaml\n", encoding="utf-8")
    with pytest.raises(PolicyError, match="nor what extends it"):
        extending(folder, "")


def test_too_many_upon_each_other(tmp_path: Path) -> None:
    for number in range(6):
        below = f"extends: ./{number + 1}.yaml\n" if number < 5 else ""
        (tmp_path / f"{number}.yaml").write_text(f"version: 1\n{below}", encoding="utf-8")
    with pytest.raises(PolicyError, match="more than 4 policies"):
        loader.load_file(tmp_path / "0.yaml")
    assert loader.load_file(tmp_path / "1.yaml").name == "1"


def test_the_version_is_not_inherited(folder: Path) -> None:
    with pytest.raises(PolicyError, match="version: missing"):
        loader.load("extends: ./base.yaml\n", str(folder / "own.yaml"))


# --- what ships ---


@pytest.mark.parametrize("name", ["read-only", "read-write", "migration-review", "permissive"])
def test_shipped_bases_are_known_by_name(name: str, folder: Path) -> None:
    assert name in shipped_names()
    assert extending(folder, "", base=name).row(StatementClass.SELECT).decide is Verdict.ALLOW


def test_the_command_line_reads_bases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extending(folder, "tests: [{sql: DROP TABLE x, expect: reject}]\n")
    assert main(["policy", "test", str(folder / "own.yaml")]) == 0
    assert main(["policy", "explain", str(folder / "own.yaml"), "--sql", "DROP TABLE x"]) == 1
    assert "refuses  base.yaml:7" in capsys.readouterr().out
