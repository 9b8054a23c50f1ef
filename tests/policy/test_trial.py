"""A policy's own tests, put to the gate: what holds, and what is said of what does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policy import loader
from policy.catalog import Catalog
from policy.diagnostics import PolicyError
from policy.loader import load, load_tests
from policy.model import Policy
from policy.trial import Difference, Tried, run_tests
from tests.policy.conftest import read_catalog
from tests.support.postgres import Database

POLICY = """\
version: 1
name: tried
access: read_write
statements:
  select: allow
  update: allow
relations: {allow: ["public.*"], deny: [public.api_keys]}
"""


def policy_with(test: str, more: str = "") -> Policy:
    return load(f"{POLICY}{more}tests:\n  - {test}\n", "tried.yaml")


def differences(policy: Policy, catalog: Catalog | None = None) -> tuple[Difference, ...]:
    (tried,) = run_tests(policy, catalog)
    return tried.differences


@pytest.mark.parametrize(
    "test",
    [
        "{sql: SELECT id FROM orders, expect: allow}",
        "{sql: TABLE api_keys, expect: reject}",
        "{sql: TABLE api_keys, expect: reject, rule: relation-not-allowed, sqlstate: '42501'}",
        "{sql: UPDATE orders SET status = 'sent', expect: reject, hint_contains: WHERE}",
        "{sql: UPDATE orders SET status = 'sent' WHERE true, expect: reject, halt: tautology}",
        # One query string, as an agent would send it, not a script to be cut up.
        "{sql: SELECT 1; SELECT 2, expect: reject, rule: multiple-statements}",
    ],
)
def test_a_test_that_holds_brings_no_complaint(test: str) -> None:
    assert differences(policy_with(test)) == ()
    assert differences(policy_with(test, "mode: observe\n")) == ()


@pytest.mark.parametrize(
    ("test", "what", "expected", "found"),
    [
        ("{sql: TABLE orders, expect: reject}", "expect", "reject", "allow"),
        ("{sql: TABLE api_keys, expect: allow}", "expect", "allow", "reject"),
        (
            "{sql: TABLE api_keys, expect: reject, rule: column-not-allowed}",
            "rule",
            "column-not-allowed",
            "relation-not-allowed",
        ),
        ("{sql: TABLE api_keys, expect: reject, sqlstate: '42601'}", "sqlstate", "42601", "42501"),
        ("{sql: TABLE api_keys, expect: reject, halt: tautology}", "halt", "tautology", "none"),
        (
            "{sql: TABLE api_keys, expect: reject, hint_contains: WHERE}",
            "hint_contains",
            "WHERE",
            "Leave it",
        ),
        (
            "{sql: TABLE api_keys, expect: reject, message_contains: [api_keys, Zz]}",
            "message_contains",
            "Zz",
            "Relation public.api_keys",
        ),
    ],
)
def test_what_differs_is_said(test: str, what: str, expected: str, found: str) -> None:
    (difference,) = differences(policy_with(test))
    assert difference[:2] == (what, expected)
    assert difference.found.startswith(found)


def test_every_part_that_differs_is_said() -> None:
    test = "{sql: TABLE api_keys, expect: reject, rule: server-file, halt: tautology, hint_contains: [a, Zz]}"
    told = differences(policy_with(test))
    assert [difference.what for difference in told] == ["rule", "halt", "hint_contains"]


def test_with_a_catalog_names_are_looked_up(shop: Database) -> None:
    policy = policy_with("{sql: SELECT stauts FROM orders, expect: reject, rule: unknown-column}")
    assert differences(policy) == (Difference("expect", "reject", "allow"),)
    assert differences(policy, read_catalog(shop.dsn())) == ()


# --- dialogues ---

CLERK = """\
version: 1
name: tried
access: read_write
statements: {select: {decide: allow, repair: once}, update: {decide: allow, repair: once}}
relations: {allow: ["public.*"]}
"""
WRONG = "{sql: UPDATE t SET a = 1 WHERE b = 'x' AND c = 2, expect: allow, fails: '22P02', at: \"'x'\"}"
RIGHT = "sql: UPDATE t SET a = 1 WHERE b = '3' AND c = 2"
SPENT = f"{{{RIGHT}, expect: reject, rule: repair-halted, halt: repair_budget_exhausted, sqlstate: '53400'}}"


def dialogue(*steps: str, more: str = "") -> Tried:
    text = f"{CLERK}{more}tests:\n  - steps: [{', '.join(steps)}]\n"
    (tried,) = run_tests(load(text, "tried.yaml"))
    return tried


@pytest.mark.parametrize(
    "steps",
    [
        (WRONG, f"{{{RIGHT}, expect: allow}}", f"{{{RIGHT}, expect: allow}}"),
        (WRONG, "{sql: SELECT a FROM t LIMIT 5, expect: allow}", f"{{{RIGHT}, expect: allow}}"),
        (WRONG, f"{{{RIGHT}, expect: allow, fails: '23505'}}", SPENT),
        (WRONG, "{sql: UPDATE t SET a = 1 WHERE c = 2, expect: reject, halt: predicate_removed}", SPENT),
        # An error that says nothing of the statement takes no turn.
        (WRONG, f"{{{RIGHT}, expect: allow, fails: '40P01'}}", f"{{{RIGHT}, expect: allow}}"),
        (WRONG, f"{{{RIGHT}, expect: allow, fails: '23505', connection: b}}", SPENT),
        # Another statement of another connection is work of its own.
        (WRONG, "{sql: UPDATE t SET d = 4 WHERE e = 5, expect: allow, connection: b}"),
        ("{sql: SELEC 1, expect: reject, rule: unparsable}", "{sql: SELECT 1, expect: allow}"),
    ],
)
def test_a_dialogue_is_judged_in_the_light_of_its_refusals(steps: tuple[str, ...]) -> None:
    assert dialogue(*steps).differences == ()
    assert dialogue(*steps, more="mode: observe\n").differences == ()


def test_what_a_policy_grants_is_what_its_dialogues_have() -> None:
    again = f"{{{RIGHT}, expect: allow, fails: '23505'}}"
    third = again.replace("a = 1", "a = 4")
    assert dialogue(WRONG, again, third, more="repair: {turns: 2}\n").holds
    assert [each.what for each in dialogue(WRONG, again, third).differences] == ["expect"]
    never = dialogue(WRONG, again, again, again, more="repair: {turns: 0}\n")
    assert never.holds
    connection = f"{{{RIGHT}, expect: allow, connection: b}}"
    by_connection = "repair: {scope: connection}\n"
    assert dialogue(WRONG, again, connection, more=by_connection).holds
    assert not dialogue(WRONG, again, connection).holds


def test_each_step_says_what_differs_of_it() -> None:
    tried = dialogue(WRONG, f"{{{RIGHT}, expect: reject, rule: repair-halted}}", SPENT)
    assert [[each.what for each in step.differences] for step in tried.steps] == [[], ["expect"], ["expect"]]
    assert not tried.holds


def test_every_test_begins_with_nothing_refused() -> None:
    one = f"  - steps: [{WRONG}, {{{RIGHT}, expect: allow}}]\n"
    assert all(tried.holds for tried in run_tests(load(f"{CLERK}tests:\n{one}{one}", "tried.yaml")))


# --- files of tests ---


def test_tests_beside_a_policy(tmp_path: Path) -> None:
    policy = tmp_path / "shop.yaml"
    beside = loader.tests_beside(policy)
    assert beside.name == "shop.tests.yaml"
    beside.write_text("version: 1\ncatalog: shop.json\ntests: [{sql: SELECT 1, expect: allow, agent: bot}]\n")
    file = load_tests(beside)
    assert file.catalog == tmp_path / "shop.json"
    (test,) = file.tests
    assert (test.sql, test.agent, test.source, test.line) == ("SELECT 1", "bot", str(beside), 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tests: []", "version: missing"),
        ("version: 1", "tests: missing"),
        ("version: 1\ntests: []\nrelations: {}", "relations: unknown key"),
        ("version: 1\ntests: [{sql: SELECT 1}]", "tests[0].expect: missing"),
    ],
)
def test_a_faulty_file_of_tests(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.tests.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=re.escape(said)):
        load_tests(path)
