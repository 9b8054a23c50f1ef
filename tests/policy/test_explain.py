"""``policy explain``: the decision is ``decide``'s, and each answer names the line it rests on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policy import loader
from policy.check import check
from policy.explain import Explained, explain, may_be_set, verdict
from policy.model import Policy
from policy.rules import BY_NAME, RULES, STRING_RULES
from proxy.cli import main
from tests.support.postgres import Database

TEXT = """\
version: 1
name: shop
access: read_only
statements:
  select: allow
  update: allow
relations:
  allow: ["public.*"]
  deny: [public.api_keys]
columns:
  public.users: {deny: [ssn]}
functions: {allow: [builtin-safe]}
rules:
  unbounded-join: warn
"""
POLICY: Policy = loader.load(TEXT, "policies/shop.yaml")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(TEXT.splitlines(), 1) if text in line)


def said(explained: Explained, rule: str) -> tuple[str, int]:
    (answer,) = [answer for answer in explained.answers if answer.rule == rule and answer.statement == 0]
    return verdict(answer), explained.place(answer)[1]


@pytest.mark.parametrize(
    ("sql", "rule", "word", "place"),
    [
        ("SELECT 1", "class-not-allowed", "passes", "select: allow"),
        ("DELETE FROM orders WHERE id = 1", "class-not-allowed", "refuses", "statements:"),
        ("UPDATE orders SET total = 1 WHERE id = 1", "access-read-only", "refuses", "access:"),
        ("SELECT * FROM api_keys", "relation-not-allowed", "refuses", "deny: [public.api_keys]"),
        ("SELECT id FROM orders", "relation-not-allowed", "passes", "relations:"),
        ("SELECT ssn FROM users", "column-not-allowed", "refuses", "public.users"),
        ("SELECT pg_sleep(1)", "function-not-allowed", "refuses", "functions:"),
        ("SELECT 1 FROM a JOIN b ON a.id = b.id", "unbounded-join", "warns", "unbounded-join"),
        ("SELECT 1", "unbounded-join", "passes", "unbounded-join"),
    ],
)
def test_each_answer_names_its_line(sql: str, rule: str, word: str, place: str) -> None:
    assert said(explain(POLICY, sql), rule) == (word, line_of(place))


@pytest.mark.parametrize("rule", ["unbounded-select", "side-effect-function"])
def test_what_is_off_by_default_is_said_to_be(rule: str) -> None:
    assert said(explain(POLICY, "SELECT 1"), rule) == ("off", 0)


def test_every_rule_answers_for_every_statement() -> None:
    explained = explain(POLICY, "SELECT 1; SELECT 2")
    per_statement = [rule.NAME for rule in RULES]
    assert [answer.rule for answer in explained.answers] == [
        *(rule.NAME for rule in STRING_RULES),
        *per_statement,
        *per_statement,
    ]


@pytest.mark.parametrize("sql", ["SELECT 1", "SELECT ssn FROM users", "DROP TABLE x", "SELEC 1", ""])
def test_the_decision_is_that_of_check(sql: str) -> None:
    explained = explain(POLICY, sql)
    (checked,) = check(POLICY, sql.encode(), source="<sql>") if sql else (explained.checked,)
    assert explained.checked.rejection == checked.rejection
    refusing = {a.rule for a in explained.answers if verdict(a) == "refuses"}
    assert refusing == {v.rule for v in checked.violations}


def test_the_facts() -> None:
    (told,) = explain(POLICY, "UPDATE orders o SET total = abs(o.total) WHERE id = $1").statements
    assert dict(told.facts) == {
        "classes": ("update",),
        "relations": ("public.orders (update)",),
        "columns": ("total", "o.total", "id"),
        "functions": ("abs",),
        "shape": ("1 parameter", "update with a condition"),
    }


def test_rules_that_no_policy_governs() -> None:
    assert {name for name in BY_NAME if not may_be_set(name)} == {
        "unparsable",
        "statement-too-large",
        "not-understood",
        "server-file",
    }


# --- the command ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_command_prints_the_rejection_word_for_word(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "explain", str(file), "--sql", "SELECT ssn FROM users"]) == 1
    out = capsys.readouterr().out
    rejection = explain(POLICY, "SELECT ssn FROM users").checked.rejection
    assert rejection is not None
    for text in (rejection.message, rejection.detail, rejection.hint, "COLUMN NAME:  ssn"):
        assert text in out
    assert f"column-not-allowed       refuses  shop.yaml:{line_of('public.users')}" in out
    assert "decision: reject" in out


def test_the_command_in_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "explain", str(file), "--sql", "SELECT 1", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["decision"] == "allow"
    assert {"rule", "statement", "level", "governed_by", "file", "line", "violations"} == set(
        told["rules"][0]
    )


def test_text_that_does_not_parse_is_explained_too(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "explain", str(file), "--sql", "SELEC 1"]) == 1
    out = capsys.readouterr().out
    assert "ERROR:  42601" in out
    assert "unparsable" in out


def test_a_database_is_asked_for_the_plan(
    shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(TEXT + "cost: {max_total_cost: 10}\n", encoding="utf-8")
    sql = "SELECT count(*) FROM orders a, orders b"
    arguments = ["policy", "explain", str(path), "--dsn", shop.dsn(), "--sql", sql]
    assert main([*arguments, "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["rule"] == "cost-over-limit"
    assert told["plan"][0]["kind"] == "Nested Loop"
    assert told["plan"][0]["own"] <= told["plan"][0]["total"] <= told["cost"]["total"]
    assert [node["own"] for node in told["plan"]] == sorted((n["own"] for n in told["plan"]), reverse=True)
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "  Nested Loop: " in out
    assert "ERROR:  54001" in out
