"""Warnings about what is legal and odd: each at its place, and none about a sound policy."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from policy import loader
from policy.diagnostics import Diagnostic, Severity
from policy.lint import _globs_meet, lint
from proxy.cli import main
from tests.policy.rules.schema import CATALOG

EXAMPLES = Path(__file__).parents[2] / "policy" / "examples"
TODAY = date(2027, 1, 15)
SOUND = """\
version: 1
access: read_write
statements:
  select: {decide: allow, repair: once}
  update: allow
relations: {allow: ["public.*"]}
"""
READS = "version: 1\naccess: read_only\n"


def warnings(text: str, *, catalog: bool = False) -> list[Diagnostic]:
    return lint(text, loader.load(text, "p.yaml"), TODAY, CATALOG if catalog else None)


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[2] / "policy" / "examples").glob("*.yaml")),
    ids=lambda path: path.stem,
)
def test_shipped_policies_are_not_odd(path: Path) -> None:
    assert lint(path.read_text(encoding="utf-8"), loader.load_file(path), TODAY) == []


@pytest.mark.parametrize(
    ("text", "path", "at", "said"),
    [
        (f"{READS}statements: {{update: allow}}", "statements.update", "update", "by access: read_only"),
        (f"{READS}statements: {{select: allow}}", "statements.select", "select", "relations allows no table"),
        (READS, "version", "version", "everything is refused"),
        (
            SOUND.replace('["public.*"]}', '["public.*"], deny: [billing.cards]}'),
            "relations.deny[0]",
            "billing.cards",
            "does not open anyway",
        ),
        (
            f"{SOUND}columns: {{hr.staff: {{deny: [pay]}}}}",
            'columns["hr.staff"]',
            "hr.staff",
            "does not open",
        ),
        (
            f"{SOUND}functions: {{allow: [public.rate], deny: [reporting.x]}}",
            "functions.deny[0]",
            "reporting.x",
            "does not open anyway",
        ),
        (
            SOUND.replace('["public.*"]', '["public.*", "public.*"]'),
            "relations.allow[1]",
            '"public.*"]',
            "on line 6",
        ),
        (
            SOUND.replace('["public.*"]}', '[public.a, "x.*"], deny: [public.a]}'),
            "relations.allow[0]",
            "public.a",
            "deny wins",
        ),
        (
            f"{SOUND}rules: {{delete-without-where: warn}}",
            "rules.delete-without-where",
            "delete-without",
            "no delete or merge is allowed",
        ),
        (
            f"{READS}limits: {{affected_rows: 5}}",
            "limits.affected_rows",
            "affected_rows",
            "no class that writes",
        ),
        (
            f"{READS}cost: {{max_rows: 9, max_modified_rows: 5}}",
            "cost.max_modified_rows",
            "max_modified_rows",
            "no class that writes",
        ),
        (f"{SOUND}cost: {{unpriceable: warn}}", "cost", "cost", "no ceiling"),
        (f"{SOUND}repair: {{turns: 0}}", "statements.select.repair", "repair: once", "repair.turns is 0"),
        (f"{READS}repair: {{turns: 1}}", "repair", "repair", "no row of statements"),
    ],
)
def test_each_warning_stands_at_its_place(text: str, path: str, at: str, said: str) -> None:
    found = [warning for warning in warnings(text) if warning.path == path]
    assert len(found) == 1, warnings(text)
    (warning,) = found
    assert warning.severity is Severity.WARNING
    assert said in warning.message
    assert text.splitlines()[warning.line - 1][warning.column - 1 :].startswith(at)
    assert warning.excerpt == text.splitlines()[warning.line - 1]


@pytest.mark.parametrize(
    ("expires", "said"),
    [
        ("2027-01-15", "has expired"),
        ("2026-01-01", "has expired"),
        ("2027-01-29", "ends on 2027-01-29"),
        ("2027-01-30", None),
    ],
)
def test_an_allowance_that_ends(expires: str, said: str | None) -> None:
    allowance = f"{{name: a, statement: SELECT 1, max_total_cost: 9, expires: {expires}}}"
    found = warnings(f"{SOUND}cost: {{max_rows: 5, allowances: [{allowance}]}}\n")
    assert [said in warning.message for warning in found if said] == ([True] if said else [])
    assert [warning.path for warning in found] == (["cost.allowances[0].expires"] if said else [])


def test_an_allowance_that_allows_nothing_more() -> None:
    allowance = "{name: a, statement: SELECT 1, max_total_cost: 9, expires: 2029-01-01}"
    (warning,) = warnings(f"{SOUND}cost: {{max_total_cost: 9, allowances: [{allowance}]}}\n")
    assert warning.path == "cost.allowances[0].max_total_cost"


@pytest.mark.parametrize(
    ("text", "path", "near"),
    [
        (SOUND.replace('["public.*"]', "[public.order]"), "relations.allow[0]", "public.orders"),
        (
            SOUND.replace('["public.*"]}', '["public.*"], deny: [public.api_kes]}'),
            "relations.deny[0]",
            "public.api_keys",
        ),
        (f"{SOUND}columns: {{public.zzzzzzzz: {{deny: [a]}}}}", 'columns["public.zzzzzzzz"]', None),
        (f"{SOUND}columns: {{public.orders: {{deny: [totl]}}}}", 'columns["public.orders"].deny', "total"),
        (f"{SOUND}functions: {{allow: [public.zzzzzzzz]}}", "functions.allow[0]", None),
    ],
)
def test_names_that_stand_for_nothing(text: str, path: str, near: str | None) -> None:
    assert [w.path for w in warnings(text)] == []
    found = [w for w in warnings(text, catalog=True) if w.path == path]
    assert [w.near for w in found] == [near]


def test_a_class_whose_every_table_is_denied() -> None:
    text = SOUND.replace('["public.*"]', '["public.*", "nowhere.*"], deny: ["public.*"]')
    found = [w.path for w in warnings(text, catalog=True) if "every table" in w.message]
    assert found == ["statements.select", "statements.update"]


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a*", "ab", True),
        ("a*", "*b", True),
        ("a*c", "b*", False),
        ("*", "", True),
        ("a*b*c", "axxbyyc", True),
        ("a*b", "a*c", False),
        ("*a", "*b", False),
        ("**", "x", True),
    ],
)
def test_patterns_that_meet(one: str, other: str, meet: bool) -> None:
    assert _globs_meet(one, other) is _globs_meet(other, one) is meet


# --- the command ---


def test_a_warning_fails_only_under_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(READS, encoding="utf-8")
    assert main(["policy", "lint", str(path)]) == 0
    assert "warning: version: no statement class is allowed" in capsys.readouterr().out
    assert main(["policy", "lint", "--strict", "--format", "json", str(path)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["line"], told["column"], told["severity"]) == (1, 1, "warning")


def test_a_file_that_cannot_be_read_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "lint", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_what_is_odd_in_a_base_is_said_where_its_author_is_the_reader(tmp_path: Path) -> None:
    """A base of one's own can be changed, one that ships cannot."""
    narrower = "version: 1\nextends: {base}\nstatements: {{delete: reject, merge: reject}}\n"
    own = tmp_path / "base.yaml"
    own.write_text(SOUND.replace("update", "delete") + "rules: {delete-without-where: reject}\n")
    said = {}
    for base in ("./base.yaml", "read-write"):
        path = tmp_path / "policy.yaml"
        path.write_text(narrower.format(base=base), encoding="utf-8")
        said[base] = lint(path.read_text(encoding="utf-8"), loader.load_file(path), TODAY)
    assert [(each.source, each.path) for each in said["./base.yaml"]] == [
        (str(own), "rules.delete-without-where")
    ]
    assert said["read-write"] == []
