"""Policies to start from: what they hold, that they load, and that they allow what they were made of."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from policy import loader
from policy.catalog import Catalog
from policy.catalog_values import Column, Content, Relation, RelationKind
from policy.check import check
from policy.lint import lint
from policy.model import Access, Catalogs, Multiple, RuleLevel, StatementClass
from policy.names import QualifiedName
from policy.narrowest import narrowest
from policy.starter import looks_secret, pattern_part, recorded, starter
from policy.trial import run_tests
from proxy.cli import main
from tests.policy.rules.schema import CATALOG, CONTENT
from tests.support.postgres import Database

SECRET = (
    *(
        "password",
        "password_hash",
        "api_keys",
        "apikey",
        "user_token",
        "SSN",
        "salary",
        "card_number",
        "tax_id",
    ),
    *("private_key", "date_of_birth_dob", "pwd"),
)
TODAY = date(2027, 1, 1)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(
            (name, True)
            for name in ("password", "password_hash", "api_keys", "apikey", "user_token", "SSN", "salary")
        ),
        *((name, True) for name in SECRET),
        *((name, False) for name in ("orders", "id", "status", "passenger", "keyboard", "tokenizer", "spin")),
    ],
)
def test_names_that_look_secret(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_the_start_for_a_database_loads_holds_and_is_not_odd() -> None:
    text = starter(CATALOG)
    policy = loader.load(text, "shop.yaml")
    assert lint(text, policy, TODAY, CATALOG) == []
    assert all(tried.holds for tried in run_tests(policy, CATALOG))
    assert policy.access is Access.READ_ONLY
    assert "public.api_keys" in map(str, policy.relations.deny)
    hidden = {str(rule.relation): rule.deny for rule in policy.columns}
    assert hidden["public.employees"] == {"salary"}
    for sql, allowed in (
        ("SELECT id FROM orders", True),
        ("SELECT salary FROM employees", False),
        ("COPY (SELECT id FROM orders) TO STDOUT (FORMAT binary)", True),
        ("COPY (SELECT salary FROM employees) TO STDOUT", False),
        ("COPY orders TO 'orders.csv'", False),
        ("COPY orders FROM STDIN", False),
    ):
        (checked,) = check(policy, sql.encode(), source="x", catalog=CATALOG)
        assert checked.rejected is not allowed, sql


def relation(schema: str, name: str, *columns: str, rows: float = 1) -> Relation:
    text = QualifiedName("pg_catalog", "text")
    made = tuple(Column(column, number, text) for number, column in enumerate(columns, 1))
    return Relation(schema, name, RelationKind.TABLE, "dba", made, rows=rows)


def catalog_of(*relations: Relation, database: str = "db") -> Catalog:
    return Catalog(Content(CONTENT.version, database, "dba", ("public",), ("public",), relations))


@pytest.mark.parametrize(
    "catalog",
    [
        catalog_of(),
        catalog_of(database="it's #1: [odd]"),
        catalog_of(database="true"),
        catalog_of(relation("public", "Odd \"Name\" # 'x'", "Pass\nword", "id")),
        catalog_of(relation("My Schema", "orders", "id"), relation("null", "yes", "password")),
    ],
)
def test_no_name_breaks_the_file(catalog: Catalog) -> None:
    policy = loader.load(starter(catalog), "x.yaml")
    assert policy.name == catalog.content.database
    assert len(policy.relations.allow) == len({r.schema for r in catalog.content.relations})


def test_a_list_that_is_cut_says_so() -> None:
    names = [f"a_table_with_a_long_name_{number}" for number in range(6)]
    text = starter(catalog_of(*(relation("public", name, "id") for name in names)))
    line = next(line for line in text.splitlines() if f"{names[0]}, " in line)
    assert line.endswith("…")
    assert len(line) == 110


def test_large_tables_are_not_to_be_read_whole() -> None:
    text = starter(catalog_of(relation("public", "events", "id", rows=5e7), relation("public", "t", rows=-1)))
    assert "# public.events: 50,000,000 rows" in text
    assert "1 tables have never been analyzed" in text
    cost = loader.load(text, "x.yaml").cost
    assert cost is not None
    assert cost.max_scan_rows == 1_000_000


@pytest.mark.parametrize(("name", "part"), [("orders", "orders"), ("Orders", '"Orders"'), ('a"b', '"a""b"')])
def test_names_are_written_as_policies_read_them(name: str, part: str) -> None:
    assert pattern_part(name) == part


# --- from what was recorded ---

SEEN = {
    "SELECT id FROM orders": 5,
    "UPDATE orders SET total = 1 WHERE id = 3": 2,
    "SELECT pg_sleep(0)": 1,
    "SELECT public.order_total(1)": 1,
    "DELETE FROM orders": 1,
    "SET work_mem = '1MB'": 4,
    "SELECT relname FROM pg_class": 3,
    "SELECT 1; SELECT 2": 1,
    "BEGIN": 3,
    "": 2,
}
NEVER = {"COPY orders FROM '/x'": 2, "SELEC": 1}


@pytest.mark.parametrize("catalog", [CATALOG, None], ids=["catalog", "no catalog"])
def test_what_was_recorded_is_allowed_and_nothing_else(catalog: Catalog | None) -> None:
    found = narrowest({**SEEN, **NEVER}, "bot", catalog)
    policy = loader.load(recorded(found), "bot.yaml")
    for sql in SEEN:
        for checked in check(policy, sql.encode(), source="x", catalog=catalog):
            assert not checked.rejected, sql
    for sql in ("SELECT id FROM employees", "INSERT INTO orders DEFAULT VALUES", "SET jit_above_cost = 1"):
        (checked,) = check(policy, sql.encode(), source="x", catalog=catalog)
        assert checked.rejected, sql
    assert policy.access is Access.READ_WRITE
    assert policy.multiple is Multiple.JUDGED
    assert policy.relations.catalogs is Catalogs.FILTERED
    assert policy.rules["delete-without-where"] is RuleLevel.WARN
    assert found.refused == {"server-file": (2, "COPY orders FROM '/x'"), "unparsable": (1, "SELEC")}


def test_reads_alone_stay_read_only() -> None:
    policy = loader.load(recorded(narrowest({"SELECT id FROM orders": 7}, "bot", CATALOG)), "bot.yaml")
    assert policy.access is Access.READ_ONLY
    assert set(policy.statements) == {StatementClass.SELECT}
    assert list(map(str, policy.relations.allow)) == ["public.orders"]


def test_the_numbers_say_how_often() -> None:
    lines = recorded(narrowest(SEEN, "bot", CATALOG)).splitlines()
    assert "    - public.orders    # 8" in lines
    assert "    - pg_catalog.pg_sleep    # 1" in lines
    assert "    - work_mem    # 4" in lines
    assert any(line.split() == ["update:", "allow", "#", "2"] for line in lines)


# --- the command ---


def test_the_command_on_a_database(
    shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "init", "--dsn", shop.dsn()]) == 0
    path = tmp_path / "shop.yaml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["policy", "lint", "--strict", "--dsn", shop.dsn(), str(path)]) == 0
    assert main(["policy", "test", "--dsn", shop.dsn(), str(path)]) == 0


def test_the_command_on_audit_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def line(sql: str | None, agent: str = "bot", sqlstate: str | None = None) -> str:
        outcome = {"sqlstate": sqlstate}
        body = {"id": "1", "decision": "allow", "agent": agent, "statement": sql, "outcome": outcome}
        return json.dumps(body) + "\n"

    audit = tmp_path / "audit.jsonl"
    audit.write_text(line("TABLE a") + line("TABLE b", "other") + line("TABLE c", sqlstate="42P01"))
    assert main(["policy", "init", "--from-audit", str(audit), "--agent", "bot", "--name", "mine"]) == 0
    policy = loader.load(capsys.readouterr().out, "mine.yaml")
    assert (policy.name, list(map(str, policy.relations.allow))) == ("mine", ["public.a"])
    audit.write_text(line(None))
    assert main(["policy", "init", "--from-audit", str(audit)]) == 2
    assert "1 statements have no text" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--name", "x"]])
def test_nothing_to_start_from_is_wrong_usage(arguments: list[str]) -> None:
    assert main(["policy", "init", *arguments]) == 2
