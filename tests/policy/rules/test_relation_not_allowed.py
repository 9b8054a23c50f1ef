from __future__ import annotations

import pytest

from policy.decision import Situation, decide
from policy.names import PathNames
from policy.parse import parse
from tests.policy.rules.judging import passes, policy_of, violations

RULE = "relation-not-allowed"


@pytest.mark.parametrize(
    ("sql", "object_", "position"),
    [
        ("SELECT * FROM api_keys", "public.api_keys", 15),
        ("SELECT secret FROM Public.API_Keys", "public.api_keys", 20),
        ('SELECT k."secret" FROM "public"."api_keys" AS k', "public.api_keys", 24),
        ('TABLE U&"api\\005fkeys"', "public.api_keys", 7),
        ("TABLE billing.invoices", "billing.invoices", 7),
        ("SELECT 1 ORDER BY (SELECT key FROM api_keys LIMIT 1)", "public.api_keys", 36),
        ("WITH secrets AS (SELECT * FROM api_keys) SELECT 1", "public.api_keys", 32),
        ("WITH api_keys AS (SELECT * FROM api_keys) SELECT * FROM api_keys", "public.api_keys", 33),
        ("COPY api_keys TO STDOUT", "public.api_keys", 6),
        ("DECLARE c CURSOR FOR SELECT secret FROM api_keys", "public.api_keys", 41),
        ("PREPARE p AS SELECT secret FROM api_keys", "public.api_keys", 33),
        ("EXPLAIN SELECT * FROM other.t", "other.t", 23),
        ("SELECT * FROM db.billing.cards", "billing.cards", 15),
        ("SELECT * FROM pg_toast.pg_toast_16384", "pg_toast.pg_toast_16384", 15),
        ("SELECT * FROM pg_temp.t", "pg_temp.t", 15),
        ("SELECT * FROM pg_temp_3.t", "pg_temp_3.t", 15),
        ("SELECT 'api_keys'::regclass", "public.api_keys", 20),
        ("SELECT 'Billing.\"cards\"'::regclass::oid", "billing.cards", 27),
        ("SELECT '{orders, api_keys}'::regclass[]", "public.api_keys", 30),
        ("SELECT CAST('{orders,billing.cards}' AS regclass[])", "billing.cards", 41),
    ],
)
def test_relations_outside_the_policy_are_refused(sql: str, object_: str, position: int) -> None:
    (found,) = violations(sql, policy_of(), RULE)
    assert found.object == object_
    assert found.position == position
    assert f"{found.schema}.{found.table}" == object_
    assert object_ in found.message
    assert found.halt is None
    assert not found.repairable


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM orders",
        "WITH api_keys AS (SELECT 1 AS n) SELECT n FROM api_keys",
        "SELECT table_name FROM information_schema.tables",
        "SELECT relname FROM pg_class",
        "SELECT relname FROM pg_catalog.pg_class",
        "SELECT 'orders'::regclass, '1259'::regclass",
        "SELECT '{orders,NULL, 1259,-}'::regclass[], '{}'::regclass[], '{orders}'::pg_catalog.regclass[]",
        "SELECT 'api_keys'",
    ],
)
def test_what_the_policy_opens_passes(sql: str) -> None:
    assert violations(sql, policy_of(), RULE) == []


@pytest.mark.parametrize(
    ("sql", "off", "filtered", "on"),
    [
        ("SELECT relname FROM pg_class", False, True, True),
        ("SELECT table_name FROM information_schema.tables", False, True, True),
        ("SELECT rolpassword FROM pg_authid", False, False, True),
        ("SELECT most_common_vals FROM pg_stats", False, False, True),
        ("SELECT query FROM pg_stat_activity", False, False, True),
        ("SELECT query FROM pg_catalog.pg_stat_activity", False, False, True),
        ("SELECT x FROM pg_catalog.pg_of_a_future_version", False, False, True),
        ("SELECT x FROM pg_of_a_future_version", False, False, True),
        ("SELECT chunk_data FROM pg_toast.pg_toast_16384", False, False, False),
    ],
)
def test_catalogs_open_as_the_policy_says(sql: str, off: bool, filtered: bool, on: bool) -> None:
    for catalogs, expected in (("off", off), ("filtered", filtered), ("on", on)):
        policy = policy_of(relations=f'{{allow: ["*.*"], catalogs: "{catalogs}"}}')
        assert (violations(sql, policy, RULE) == []) is expected, catalogs


def test_a_pattern_that_names_a_catalog_opens_it_and_deny_closes_it() -> None:
    policy = policy_of(relations="{allow: [pg_catalog.pg_authid, pg_temp.mine], deny: [pg_catalog.pg_class]}")
    assert violations("SELECT 1 FROM pg_authid", policy, RULE) == []
    assert violations("SELECT 1 FROM pg_temp.mine", policy, RULE) == []
    assert violations("SELECT 1 FROM pg_class", policy, RULE)


def test_an_unqualified_name_must_be_allowed_in_every_schema_it_could_be_in() -> None:
    policy = policy_of(relations='{allow: ["b.*"]}')
    (found,) = violations("SELECT 1 FROM t", policy, RULE, ("a", "b"))
    assert "schema you mean" in found.hint
    assert violations("SELECT 1 FROM b.t", policy, RULE, ("a", "b")) == []
    assert violations("SELECT 1 FROM t", policy, RULE, ("b",)) == []


def test_every_path_that_may_be_in_force_counts() -> None:
    policy = policy_of(relations='{allow: ["b.*"]}')
    names = PathNames((("b",), ("a",)))
    decision = decide(policy, Situation("x", names), parse("SELECT 1 FROM t"))
    assert [v.rule for v in getattr(decision, "violations", ())] == [RULE]


def test_a_name_that_no_schema_could_hold_is_refused() -> None:
    assert violations("SELECT 1 FROM t", policy_of(), RULE, ())


def test_the_hint_offers_what_is_allowed_and_hides_what_is_denied() -> None:
    policy = policy_of(relations="{allow: [public.orders, public.api_keys], deny: [public.api_keys]}")
    (found,) = violations("SELECT 1 FROM customers", policy, RULE)
    assert "public.orders" in found.hint
    assert "api_keys" not in found.hint + found.message


def test_the_deciding_line_is_the_deny_entry_or_the_section() -> None:
    policy = policy_of(relations='\n  allow: ["public.*"]\n  deny:\n    - billing.*\n    - public.api_keys\n')
    denied = policy.relations.deny
    (found,) = violations("SELECT 1 FROM api_keys", policy, RULE)
    assert found.line == denied[1].line
    (found,) = violations("SELECT 1 FROM other.t", policy, RULE)
    assert found.line == policy.relations.line


def test_one_relation_is_told_once() -> None:
    assert len(violations("SELECT 1 FROM api_keys a, api_keys b, public.api_keys c", policy_of(), RULE)) == 1


def test_an_allowed_read_passes_whole() -> None:
    passes("SELECT id FROM orders WHERE id = 1", policy_of())
