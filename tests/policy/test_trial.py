"""A policy's own tests, put to the gate: what holds, and what is said of what does not."""

from __future__ import annotations

import pytest

from policy.catalog import Catalog
from policy.loader import load
from policy.model import Policy
from policy.trial import run_tests
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


def complaints(policy: Policy, catalog: Catalog | None = None) -> tuple[str, ...]:
    (tried,) = run_tests(policy, catalog)
    return tried.complaints


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
    assert complaints(policy_with(test)) == ()
    assert complaints(policy_with(test, "mode: observe\n")) == ()


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("{sql: TABLE orders, expect: reject}", "it is allowed"),
        ("{sql: TABLE api_keys, expect: allow}", "relation-not-allowed rejects it: Relation public.api_keys"),
        ("{sql: TABLE api_keys, expect: reject, rule: column-not-allowed}", "rule is relation-not-allowed"),
        ("{sql: TABLE api_keys, expect: reject, sqlstate: '42601'}", "sqlstate is 42501, not 42601"),
        ("{sql: TABLE api_keys, expect: reject, halt: tautology}", "halt is none, not tautology"),
        ("{sql: TABLE api_keys, expect: reject, hint_contains: WHERE}", "the hint does not say 'WHERE'"),
    ],
)
def test_what_differs_is_said(test: str, said: str) -> None:
    (complaint,) = complaints(policy_with(test))
    assert said in complaint


def test_every_part_that_differs_is_said() -> None:
    test = "{sql: TABLE api_keys, expect: reject, rule: server-file, halt: tautology, hint_contains: [a, Zz]}"
    told = complaints(policy_with(test))
    assert [said.partition(" is ")[0] for said in told[:2]] == ["rule", "halt"]
    assert "'Zz'" in told[2]


def test_with_a_catalog_names_are_looked_up(shop: Database) -> None:
    policy = policy_with("{sql: SELECT stauts FROM orders, expect: reject, rule: unknown-column}")
    assert complaints(policy) == ("it is allowed",)
    assert complaints(policy, read_catalog(shop.dsn())) == ()
