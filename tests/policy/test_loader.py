"""A policy loads whole, or every fault of it is named with its place and what was probably meant."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.diagnostics import Diagnostic, PolicyError, Severity
from policy.loader import load, load_file
from policy.model import (
    Access,
    Catalogs,
    ClassRow,
    ColumnRule,
    Halt,
    Mode,
    Multiple,
    Needs,
    OnStale,
    Pattern,
    Policy,
    RepairScope,
    RuleLevel,
    StatementClass,
    Verdict,
)

EXAMPLES = Path(__file__).parents[2] / "policy" / "examples"

FULL = """\
version: 1
name: analytics
mode: observe
multiple: judged
access: read_write
statements:
  select:      allow
  update:      {decide: allow, repair: once}
  delete:      {decide: allow, repair: none}
  ddl:         {decide: reject, needs: approval}
  maintenance: {decide: reject, needs: runbook}
  call:        reject
relations:
  allow: ["public.*", '"Odd Schema"."Odd.Name"']
  deny: [public.api_keys]
  catalogs: on
columns: {public.users: {deny: [password_hash, '"SSN"']}, "hr.*": {allow: [id]}}
functions:
  allow: [builtin-safe, "reporting.*", pg_sleep]
  deny: [dblink, "pg_*", hr.raise]
settings: {allow: [TimeZone, shop.tenant]}
rules:
  unbounded-join: reject
  unbounded-select: off
cost:
  max_total_cost: 1e5
  max_rows: 1000000
  max_scan_rows: 5000000
  max_result_bytes: 100MiB
  max_modified_rows: 1000
  unpriceable: warn
  under_limit: full
  allowances:
    - {name: nightly, statement: SELECT 1, max_total_cost: 5000000, expires: 2027-03-01}
limits:
  statement_timeout: 30s
  lock_timeout: 0
  idle_in_transaction_timeout: 1.5m
  result_rows: 10000
  result_bytes: 50MB
  affected_rows: 1000
repair: {turns: 0, window: 10m, scope: connection}
sandbox: {dsn_env: SHOP_CLONE_DSN, classes: [insert, update], on_stale: skip, timeout: 5s}
tests:
  - {name: whole table, sql: DELETE FROM orders, expect: reject, rule: delete-without-where, sqlstate: 42501,
     hint_contains: WHERE, halt: class_not_repairable, why: it happened}
  - {sql: "", expect: allow}
"""


def faults(text: bytes | str) -> tuple[Diagnostic, ...]:
    with pytest.raises(PolicyError) as caught:
        load(text, "p.yaml")
    return caught.value.diagnostics


def test_every_key_of_a_full_policy_arrives() -> None:
    policy = load(FULL, "policies/a.yaml")

    assert (policy.name, policy.source) == ("analytics", "policies/a.yaml")
    assert policy.sha256 == hashlib.sha256(FULL.encode()).hexdigest()
    assert (policy.mode, policy.multiple, policy.access) == (Mode.OBSERVE, Multiple.JUDGED, Access.READ_WRITE)
    assert policy.statements == {
        StatementClass.SELECT: ClassRow(Verdict.ALLOW, line=7),
        StatementClass.UPDATE: ClassRow(Verdict.ALLOW, repair_once=True, line=8),
        StatementClass.DELETE: ClassRow(Verdict.ALLOW, line=9),
        StatementClass.DDL: ClassRow(Verdict.REJECT, needs=Needs.APPROVAL, line=10),
        StatementClass.MAINTENANCE: ClassRow(Verdict.REJECT, needs=Needs.RUNBOOK, line=11),
        StatementClass.CALL: ClassRow(Verdict.REJECT, line=12),
    }
    assert policy.relations.allow == (Pattern("public", "*", 14), Pattern("Odd Schema", "Odd.Name", 14))
    assert policy.relations.deny == (Pattern("public", "api_keys", 15),)
    assert (policy.relations.catalogs, policy.relations.line) == (Catalogs.ON, 13)
    assert policy.columns == (
        ColumnRule(Pattern("public", "users", 17), None, frozenset({"password_hash", "SSN"}), 17),
        ColumnRule(Pattern("hr", "*", 17), frozenset({"id"}), frozenset(), 17),
    )
    assert policy.functions.builtin_safe
    assert policy.functions.allow == (Pattern("reporting", "*", 19), Pattern("pg_catalog", "pg_sleep", 19))
    assert policy.functions.deny == (
        Pattern("*", "dblink", 20),
        Pattern("*", "pg_*", 20),
        Pattern("hr", "raise", 20),
    )
    assert policy.settings.allow == {"timezone", "shop.tenant"}
    assert policy.rules["unbounded-join"] is RuleLevel.REJECT
    assert policy.rules["unbounded-select"] is RuleLevel.OFF
    assert policy.rule_lines == {"unbounded-join": 23, "unbounded-select": 24}


def test_ceilings_carry_their_units() -> None:
    policy = load(FULL, "a.yaml")

    cost, limits, repair = policy.cost, policy.limits, policy.repair
    assert cost is not None
    assert (cost.max_total_cost, cost.max_rows, cost.max_scan_rows) == (1e5, 1e6, 5e6)
    assert (cost.max_result_bytes, cost.max_modified_rows) == (100 * 2**20, 1000)
    assert (cost.unpriceable, cost.under_limit_full, cost.line) == (RuleLevel.WARN, True, 25)
    assert [(a.name, a.statement, a.max_total_cost, a.expires, a.line) for a in cost.allowances] == [
        ("nightly", "SELECT 1", 5e6, "2027-03-01", 34)
    ]
    assert (limits.statement_timeout_ms, limits.lock_timeout_ms) == (30_000, 0)
    assert limits.idle_in_transaction_timeout_ms == 90_000
    assert (limits.result_rows, limits.result_bytes, limits.affected_rows) == (10_000, 50_000_000, 1000)
    assert (repair.turns, repair.window_s, repair.scope) == (0, 600.0, RepairScope.CONNECTION)
    assert policy.sandbox is not None
    assert policy.sandbox.dsn_env == "SHOP_CLONE_DSN"
    assert policy.sandbox.classes == {StatementClass.INSERT, StatementClass.UPDATE}
    assert (policy.sandbox.on_stale, policy.sandbox.timeout_ms) == (OnStale.SKIP, 5_000)
    (first,), (second,) = (test.steps for test in policy.tests)
    assert (first.sql, first.expect, first.rule, first.sqlstate) == (
        "DELETE FROM orders",
        Verdict.REJECT,
        "delete-without-where",
        "42501",
    )
    assert (first.hint_contains, first.halt, policy.tests[0].name) == (
        ("WHERE",),
        Halt.CLASS_NOT_REPAIRABLE,
        "whole table",
    )
    assert (second.sql, second.expect, policy.tests[1].line) == ("", Verdict.ALLOW, 47)


def test_silence_takes_the_safe_side() -> None:
    policy = load("version: 1\n", "policies/reporting.yaml")

    assert policy.name == "reporting"
    assert (policy.mode, policy.access) == (Mode.ENFORCE, Access.READ_ONLY)
    assert policy.multiple is Multiple.DRIVER_SETUP
    assert not policy.statements
    assert policy.row(StatementClass.SELECT).decide is Verdict.REJECT
    assert not policy.relations.allow
    assert policy.relations.catalogs is Catalogs.OFF
    assert not policy.functions.builtin_safe
    assert policy.rules["update-without-where"] is RuleLevel.REJECT
    assert policy.rules["unbounded-join"] is RuleLevel.WARN
    assert policy.rules["unbounded-select"] is RuleLevel.OFF


class Broken(NamedTuple):
    """``text`` stands from line 2 on, under ``version: 1``; ``at`` is line:column of the one fault."""

    text: str
    at: str
    path: str
    says: str
    near: str | None = None


BROKEN = {
    # Keys
    "unknown section": Broken("acess: read_only", "2:1", "acess", "unknown key", "access"),
    "unknown section, nothing like it": Broken(
        "zzz: 1", "2:1", "zzz", "expected version, extends, name, mode"
    ),
    "key given twice": Broken(
        "mode: enforce\nmode: observe", "3:1", "mode", "given twice: on line 2 and on line 3"
    ),
    "class given twice": Broken(
        "statements:\n  select: allow\n  ddl: reject\n  select: reject",
        "5:3",
        "statements.select",
        "on line 3 and on line 5",
    ),
    "merge key": Broken("limits: {<<: 1}", "2:10", 'limits["<<"]', "merge key"),
    "alias": Broken("name: *n", "2:7", "name", "alias"),
    "anchor": Broken("name: &n x", "2:7", "name", "anchor"),
    "tag": Broken("name: !!str x", "2:7", "name", "tag"),
    "python tag": Broken("name: !!python/object/apply:os.system [id]", "2:7", "name", "tag"),
    # Words
    "mode misspelt": Broken("mode: observ", "2:7", "mode", "expected enforce or observe", "observe"),
    "mode as a boolean": Broken("mode: true", "2:7", "mode", "found true or false"),
    "access with a dash": Broken("access: read-only", "2:9", "access", "unknown value", "read_only"),
    "multiple unknown": Broken("multiple: always", "2:11", "multiple", "driver_setup, never or judged"),
    "catalogs as a boolean": Broken(
        "relations: {catalogs: false}", "2:23", "relations.catalogs", "off, filtered or on"
    ),
    "name empty": Broken('name: ""', "2:7", "name", "empty"),
    "name a number": Broken("name: 7", "2:7", "name", "expected a text, found a number; put it in quotes"),
    "name of two lines": Broken('name: "a\\nb"', "2:7", "name", "one line"),
    # The decision table
    "class misspelt": Broken(
        "statements: {udpate: allow}", "2:14", "statements.udpate", "unknown statement class", "update"
    ),
    "row misspelt": Broken(
        "statements: {select: alow}", "2:22", "statements.select", "allow or reject", "allow"
    ),
    "row warns": Broken("statements: {select: warn}", "2:22", "statements.select", "a level of rules:"),
    "row without decide": Broken(
        "statements:\n  ddl: {needs: approval}", "3:8", "statements.ddl.decide", "required"
    ),
    "row's repair": Broken(
        "statements: {update: {decide: allow, repair: twice}}",
        "2:46",
        "statements.update.repair",
        "once or none",
    ),
    "repair of a rejected class": Broken(
        "statements: {ddl: {decide: reject, repair: once}}",
        "2:44",
        "statements.ddl.repair",
        "nothing to repair",
    ),
    "needs of an allowed class": Broken(
        "statements: {ddl: {decide: allow, needs: approval}}",
        "2:42",
        "statements.ddl.needs",
        "decide: reject",
    ),
    "needs misspelt": Broken(
        "statements: {ddl: {decide: reject, needs: aproval}}",
        "2:43",
        "statements.ddl.needs",
        "approval or runbook",
        "approval",
    ),
    "statements as a list": Broken(
        "statements: [select]", "2:13", "statements", "expected a mapping, found a list"
    ),
    "statements empty": Broken("statements:", "2:12", "statements", "expected a mapping, found nothing"),
    # Names
    "relation unqualified": Broken(
        "relations: {deny: [api_keys]}", "2:20", "relations.deny[0]", "needs its schema", "public.api_keys"
    ),
    "relation a star": Broken(
        'relations: {allow: ["*"]}', "2:21", "relations.allow[0]", "needs its schema", "*.*"
    ),
    "relation of three parts": Broken(
        "relations: {allow: [shop.public.x]}", "2:21", "relations.allow[0]", "database", "public.x"
    ),
    "relation in upper case": Broken(
        "relations: {deny: [public.API_Keys]}", "2:20", "relations.deny[0]", "api_keys"
    ),
    "relation with a space": Broken(
        "relations: {deny: [public.api keys]}", "2:20", "relations.deny[0]", "double quotes"
    ),
    "relation without a name": Broken("relations: {deny: [public.]}", "2:20", "relations.deny[0]", "empty"),
    "relation quoted badly": Broken(
        "relations: {deny: ['public.\"x']}", "2:20", "relations.deny[0]", "quote is out of place"
    ),
    "relation too long": Broken(
        f"relations: {{deny: [public.{'x' * 64}]}}", "2:20", "relations.deny[0]", "63 bytes"
    ),
    "relations not a list": Broken(
        "relations: {allow: public.x}", "2:20", "relations.allow", "expected a list"
    ),
    "unquoted star": Broken(
        "relations: {allow: [*.*]}", "2:21", "relations.allow[0]", "put the pattern in quotes"
    ),
    "column rule unqualified": Broken(
        "columns: {users: {deny: [ssn]}}", "2:11", "columns.users", "needs its schema", "public.users"
    ),
    "column rule empty": Broken(
        "columns: {public.users: {}}", "2:25", 'columns["public.users"]', "says nothing"
    ),
    "column in upper case": Broken(
        "columns: {public.users: {deny: [SSN]}}",
        "2:33",
        'columns["public.users"].deny[0]',
        "upper case is ambiguous",
    ),
    "column qualified": Broken(
        "columns: {public.users: {deny: [users.ssn]}}",
        "2:33",
        'columns["public.users"].deny[0]',
        "named alone",
        "ssn",
    ),
    "column a star": Broken(
        'columns: {public.u: {deny: ["*"]}}', "2:29", 'columns["public.u"].deny[0]', "deny the relation"
    ),
    "function not built in": Broken(
        "functions: {allow: [order_total]}",
        "2:21",
        "functions.allow[0]",
        "no built-in function",
        "public.order_total",
    ),
    "builtin-safe misspelt": Broken(
        "functions: {allow: [builtin_safe]}",
        "2:21",
        "functions.allow[0]",
        "no built-in function",
        "builtin-safe",
    ),
    "function with arguments": Broken(
        'functions: {deny: ["f(int)"]}', "2:20", "functions.deny[0]", "without its arguments", "f"
    ),
    "functions all": Broken(
        'functions: {allow: ["*"]}', "2:21", "functions.allow[0]", "every built-in", "builtin-safe"
    ),
    "builtin-safe denied": Broken(
        "functions: {deny: [builtin-safe]}", "2:20", "functions.deny[0]", "belongs under allow"
    ),
    "setting misspelt": Broken(
        "settings: {allow: [datestle]}", "2:20", "settings.allow[0]", "no such setting", "datestyle"
    ),
    "setting of identity": Broken(
        "settings: {allow: [ROLE]}", "2:20", "settings.allow[0]", "never be allowed"
    ),
    "setting ill-formed": Broken(
        'settings: {allow: ["a b"]}', "2:20", "settings.allow[0]", "the name of one setting"
    ),
    "setting that is a limit": Broken(
        "limits: {statement_timeout: 5s}\nsettings: {allow: [statement_timeout]}",
        "3:20",
        "settings.allow[0]",
        "lift limits.statement_timeout",
    ),
    # Rules
    "rule misspelt": Broken(
        "rules: {unbounded_joins: warn}", "2:9", "rules.unbounded_joins", "unknown rule", "unbounded-join"
    ),
    "rule level": Broken(
        "rules: {unbounded-join: deny}", "2:25", "rules.unbounded-join", "reject, warn or off"
    ),
    "rule off as a boolean": Broken(
        "rules: {unbounded-join: false}", "2:25", "rules.unbounded-join", "true and false are no words"
    ),
    "rule governed by a section": Broken(
        "rules: {relation-not-allowed: off}", "2:9", "rules.relation-not-allowed", "governed by relations:"
    ),
    "rule that always holds": Broken(
        "rules: {server-file: warn}", "2:9", "rules.server-file", "always holds"
    ),
    # Numbers and units
    "cost a text": Broken(
        "cost: {max_total_cost: cheap}", "2:24", "cost.max_total_cost", "expected a number, found a text"
    ),
    "cost infinite": Broken("cost: {max_total_cost: .inf}", "2:24", "cost.max_total_cost", "finite"),
    "cost negative": Broken("cost: {max_rows: -1}", "2:18", "cost.max_rows", "out of range"),
    "cost with an underscore": Broken(
        "cost: {max_rows: 1_000}", "2:18", "cost.max_rows", "expected a number, found a text"
    ),
    "digits without end": Broken(
        f"cost: {{max_rows: {'9' * 5000}}}", "2:18", "cost.max_rows", "too many digits"
    ),
    "size unit": Broken(
        "cost: {max_result_bytes: 5Mib}", "2:26", "cost.max_result_bytes", "unknown unit 'Mib'", "MiB"
    ),
    "size a word": Broken("limits: {result_bytes: much}", "2:24", "limits.result_bytes", "expected a size"),
    "duration without unit": Broken(
        "limits: {statement_timeout: 30}", "2:29", "limits.statement_timeout", "unit is missing"
    ),
    "duration unit": Broken(
        "limits: {lock_timeout: 2sec}", "2:24", "limits.lock_timeout", "unknown unit 'sec'"
    ),
    "duration too long": Broken("limits: {lock_timeout: 30d}", "2:24", "limits.lock_timeout", "out of range"),
    "duration too fine": Broken(
        "limits: {lock_timeout: 0.5ms}", "2:24", "limits.lock_timeout", "smallest unit"
    ),
    "rows a fraction": Broken("limits: {result_rows: 1.5}", "2:23", "limits.result_rows", "whole number"),
    "rows a boolean": Broken(
        "limits: {affected_rows: true}", "2:25", "limits.affected_rows", "found true or false"
    ),
    "server's limit": Broken(
        "limits: {statement_bytes: 1MiB}", "2:10", "limits.statement_bytes", "server's configuration"
    ),
    "three repairs": Broken("repair: {turns: 3}", "2:17", "repair.turns", "0 to 2"),
    "no window": Broken("repair: {window: 0}", "2:18", "repair.window", "1s to"),
    "scope unknown": Broken("repair: {scope: agents}", "2:17", "repair.scope", "unknown value", "agent"),
    "allowance without a day": Broken(
        "cost: {allowances: [{name: a, statement: SELECT 1, max_total_cost: 1}]}",
        "2:21",
        "cost.allowances[0].expires",
        "required",
    ),
    "allowance of no day": Broken(
        "cost: {allowances: [{name: a, statement: SELECT 1, max_total_cost: 1, expires: 2027-02-30}]}",
        "2:80",
        "cost.allowances[0].expires",
        "expected a day",
    ),
    "sandbox with its DSN": Broken(
        "sandbox: {dsn: postgres://u:p@h/d, dsn_env: X, classes: [insert]}",
        "2:11",
        "sandbox.dsn",
        "holds a secret",
    ),
    "sandbox class": Broken(
        "sandbox: {dsn_env: X, classes: [inserts]}", "2:33", "sandbox.classes[0]", "unknown value", "insert"
    ),
    # Tests
    "dialogue without statements": Broken("tests: [{steps: []}]", "2:17", "tests[0].steps", "at least one"),
    "step without expect": Broken(
        "tests: [{steps: [{sql: SELECT 1}]}]", "2:18", "tests[0].steps[0].expect", "required"
    ),
    "statement beside steps": Broken(
        "tests: [{sql: SELECT 1, steps: [{sql: SELECT 1, expect: allow}]}]",
        "2:15",
        "tests[0].sql",
        "in the step",
    ),
    "step that is rejected and fails": Broken(
        "tests: [{steps: [{sql: SELECT 1, expect: reject, fails: '23505'}]}]",
        "2:57",
        "tests[0].steps[0].fails",
        "of a statement that runs",
    ),
    "error at what is not there": Broken(
        "tests: [{steps: [{sql: SELECT 1, expect: allow, fails: '22P02', at: x}]}]",
        "2:69",
        "tests[0].steps[0].at",
        "a part of the statement",
    ),
    "place of no error": Broken(
        "tests: [{steps: [{sql: SELECT 1, expect: allow, at: '1'}]}]", "2:53", "tests[0].steps[0].at", "fails"
    ),
    "test without expect": Broken("tests: [{sql: SELECT 1}]", "2:9", "tests[0].expect", "required"),
    "test of an unknown rule": Broken(
        "tests: [{sql: SELECT 1, expect: reject, rule: no-where}]", "2:47", "tests[0].rule", "unknown rule"
    ),
    "test of no SQLSTATE": Broken(
        "tests: [{sql: SELECT 1, expect: reject, sqlstate: 4250}]",
        "2:51",
        "tests[0].sqlstate",
        "five characters",
    ),
    "allowed, with a rule": Broken(
        "tests: [{sql: SELECT 1, expect: allow, rule: unbounded-join}]",
        "2:46",
        "tests[0].rule",
        "expects allow",
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_fault_is_named_at_its_place(case: Broken) -> None:
    (fault,) = faults(f"version: 1\n{case.text}\n")

    assert f"{fault.line}:{fault.column}" == case.at
    assert fault.path == case.path
    assert case.says in fault.message
    assert fault.near == case.near
    assert fault.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("version", "says"),
    [("", "required"), ("version: 2\n", "reads version 1"), ("version: one\n", "whole number")],
)
def test_the_version_must_be_one_that_is_read(version: str, says: str) -> None:
    (fault,) = faults(version + "name: x\n")

    assert fault.path == "version"
    assert says in fault.message


def test_all_faults_come_at_once_in_the_files_order() -> None:
    text = (
        "version: 1\nrules: {unbounded-join: on}\nmode: x\nstatements: {slect: allow, ddl: y}\ncost: {a: 1}\n"
    )

    assert [(d.line, d.path) for d in faults(text)] == [
        (2, "rules.unbounded-join"),
        (3, "mode"),
        (4, "statements.slect"),
        (4, "statements.ddl"),
        (5, "cost.a"),
    ]


def test_allowances_are_told_apart_by_name() -> None:
    row = "  - {name: a, statement: SELECT 1, max_total_cost: 1, expires: 2027-01-01}\n"

    (fault,) = faults(f"version: 1\ncost:\n  allowances:\n  {row}  {row}")

    assert (fault.line, fault.path) == (5, "cost.allowances[1]")
    assert "line 4" in fault.message


def test_a_file_is_read_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("version: 1\n", encoding="utf-8")

    assert load_file(path).source == str(path)
    assert load_file(path, "given.yaml").source == "given.yaml"


@pytest.mark.parametrize(
    ("name", "says"),
    [("absent.yaml", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null byte")],
)
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_file(tmp_path / name)

    (fault,) = caught.value.diagnostics
    assert fault.message == f"cannot be read: {says}"
    assert (fault.line, fault.column) == (0, 0)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_policies_load_and_are_tested(path: Path) -> None:
    policy = load_file(path)

    assert policy.name == path.stem
    assert {step.expect for test in policy.tests for step in test.steps} == {Verdict.ALLOW, Verdict.REJECT}
    assert all(s.rule for t in policy.tests for s in t.steps if s.expect is Verdict.REJECT)


def test_the_digest_is_of_the_bytes() -> None:
    crlf = b"\xef\xbb\xbfversion: 1\r\nname: a\r\n"

    policy = load(crlf, "a.yaml")

    assert policy.sha256 == hashlib.sha256(crlf).hexdigest()
    assert replace(policy, sha256="") == replace(load("version: 1\nname: a\n", "a.yaml"), sha256="")


WORDS = st.sampled_from(
    [
        *(
            "version: 1\n",
            "name: x\n",
            "statements:",
            "  select: ",
            "allow",
            "rules:",
            "off",
            "tests:\n  - sql: ",
        ),
        *(
            "{",
            "}",
            "[",
            "]",
            "\n",
            "- ",
            ": ",
            ", ",
            "? ",
            "| ",
            "> ",
            "'",
            '"',
            "\t",
            "#",
            "~",
            "<<: ",
            "*.*",
        ),
        *(
            "*a ",
            "&a ",
            "!!t ",
            "---\n",
            "%YAML 1.2\n",
            "0x",
            "9" * 50,
            "\ufeff",
            '"\\UFFFFFFFF"',
            '"\\ud800"',
        ),
    ]
)


def load_or_refuse(text: bytes | str) -> Policy | PolicyError:
    try:
        return load(text, "p.yaml")
    except PolicyError as error:
        return error


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.binary(), st.lists(WORDS, max_size=30).map("".join)))
def test_any_text_is_loaded_or_refused_with_places(text: bytes | str) -> None:
    outcome = load_or_refuse(text)

    if isinstance(outcome, PolicyError):
        assert outcome.diagnostics
        assert all(d.line >= 1 and d.column >= 1 and d.message for d in outcome.diagnostics)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_policy_is_loaded_or_refused(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(FULL)))
    cut = data.draw(st.integers(0, 20))

    load_or_refuse(FULL[:at] + data.draw(st.one_of(WORDS, st.text(max_size=3))) + FULL[at + cut :])
