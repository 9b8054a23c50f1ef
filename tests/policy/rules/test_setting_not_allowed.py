from __future__ import annotations

import pytest

from tests.policy.rules.judging import passes, policy_of, violations

RULE = "setting-not-allowed"


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SET statement_timeout = 0", "statement_timeout"),
        ("SET SESSION statement_timeout TO '1h'", "statement_timeout"),
        ("SET LOCAL work_mem = '1GB'", "work_mem"),
        ("SET lock_timeout TO DEFAULT", "lock_timeout"),
        ("RESET statement_timeout", "statement_timeout"),
        ("SET cpu_tuple_cost = 0", "cpu_tuple_cost"),
        ("SET ROLE shop_app", "role"),
        ("RESET ROLE", "role"),
        ("SET SESSION AUTHORIZATION DEFAULT", "session_authorization"),
        ("SET session_replication_role = replica", "session_replication_role"),
        ("SET log_min_duration_statement = -1", "log_min_duration_statement"),
        ("SET shop.tenant = '2'", "shop.tenant"),
        ('SET "Shop.Tenant" = 2', "shop.tenant"),
        ("SET backslash_quote = on", "backslash_quote"),
        ("SET standard_conforming_strings = off", "standard_conforming_strings"),
        ("SET client_encoding = 'SJIS'", "client_encoding"),
        ("SET NAMES 'latin1'", "client_encoding"),
        ("SET search_path = billing, public", "search_path"),
        ("SET search_path = public, pg_catalog", "search_path"),
        ("SET search_path = pg_temp", "search_path"),
        ('SET search_path = "$user", public', "search_path"),
        ("SET SCHEMA 'billing'", "search_path"),
        ("SET client_min_messages = debug5", "client_min_messages"),
        ("SELECT set_config('shop.tenant', '2', false)", "shop.tenant"),
        ("SELECT pg_catalog.set_config('shop.tenant', '2', true)", "shop.tenant"),
        ("SELECT set_config('search_path', $1, false)", "search_path"),
        ("SELECT set_config('search_path', 'public, billing', false)", "search_path"),
        ("SELECT U&\"set_conf\\0069g\"('role', 'x', true)", "role"),
        ("SELECT set_config($1, 'x', true)", None),
        ("SELECT set_config('role' || '', 'x', true)", None),
        # As pg_dump has it: another pg_settings may stand before the server's.
        ("SELECT set_config(name, 'view', false) FROM pg_settings WHERE name = 'geqo'", None),
        ("SELECT 1 FROM orders ORDER BY set_config('role', 'x', true)", "role"),
        ("EXPLAIN SELECT set_config('role', 'x', true)", "role"),
    ],
)
def test_settings_outside_the_list_are_refused(sql: str, name: str | None) -> None:
    (found,) = violations(sql, policy_of(), RULE)
    assert found.object == name
    assert found.position
    assert not found.repairable
    assert "timezone" in found.hint


@pytest.mark.parametrize(
    "sql",
    [
        "SET timezone = 'Europe/Berlin'",
        "SET TIME ZONE 'UTC'",
        "SET TIME ZONE INTERVAL '-08:00' HOUR TO MINUTE",
        "SET DateStyle = ISO, DMY",
        "SET application_name TO 'weekly; v2'",
        "SET extra_float_digits = 3",
        "SET geqo = off",
        "SET client_encoding = 'utf-8'",
        "SET NAMES 'UTF8'",
        "SET standard_conforming_strings = on",
        "SET standard_conforming_strings TO DEFAULT",
        "SET search_path = public",
        "SET search_path = pg_catalog, public",
        "SET search_path = ''",
        "SELECT set_config('search_path', '', false)",
        "SET search_path TO DEFAULT",
        "RESET search_path",
        "RESET timezone",
        "RESET ALL",
        "DISCARD ALL",
        "SET shop.color = 'blue'",
        "SET client_min_messages = warning",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SELECT current_setting('jit') AS cur, set_config('jit', 'off', false) AS new",
        "SELECT set_config('timezone', $1, false)",
        "SHOW work_mem",
        "SHOW ALL",
    ],
)
def test_the_base_set_and_what_the_policy_adds_pass(sql: str) -> None:
    passes(sql, policy_of())


def test_alter_is_judged_as_set_is() -> None:
    policy = policy_of(statements="{role: allow, maintenance: allow, ddl: allow}", access="read_write")
    for sql in (
        "ALTER ROLE shop_ro SET statement_timeout = 0",
        "ALTER ROLE shop_ro SET search_path FROM CURRENT",
        "ALTER SYSTEM SET log_min_duration_statement = 0",
        "ALTER DATABASE shop SET work_mem = '1GB'",
        "ALTER FUNCTION f() SET search_path = billing",
    ):
        assert violations(sql, policy, RULE), sql


def test_the_line_is_that_of_the_section() -> None:
    policy = policy_of()
    (found,) = violations("SET work_mem = '1GB'", policy, RULE)
    assert found.line == policy.settings.line
