from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.settings import BASE, HELD, allowed_names, judge_setting, split_identifiers, split_qualified
from tests.policy.rules.judging import WRITER, policy_of


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("application_name", "x"),
        ("DateStyle", "ISO, MDY"),
        ("TimeZone", "UTC"),
        ("IntervalStyle", "iso_8601"),
        ("extra_float_digits", "3"),
        ("geqo", "off"),
        ("client_encoding", "UTF8"),
        ("client_encoding", "'utf-8'"),
        ("client_encoding", "unicode"),
        ("search_path", "public"),
        ("search_path", ' PUBLIC , "public"'),
        ("search_path", ""),
        ("standard_conforming_strings", "on"),
        ("standard_conforming_strings", "TRUE"),
        ("default_transaction_read_only", "on"),
        ("shop.color", "blue"),
        ("SHOP.COLOR", "blue"),
    ],
)
def test_start_up_parameters_that_pass(name: str, value: str) -> None:
    assert judge_setting(name, (value,), policy_of()) is None


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("client_encoding", "SQL_ASCII", "only UTF8"),
        ("client_encoding", "LATIN1", "only UTF8"),
        ("standard_conforming_strings", "off", "only on"),
        ("standard_conforming_strings", "", "only on"),
        ("search_path", "billing", "schema billing"),
        ("search_path", "public,billing", "schema billing"),
        ("search_path", 'public, "$user"', "name the schemas"),
        ("search_path", "public, pg_catalog", "may only stand first"),
        ("search_path", "pg_temp_3", "schema pg_temp_3"),
        ("search_path", "public,,x", "no list of schema names"),
        ("search_path", '"public', "no list of schema names"),
        ("session_replication_role", "replica", "session_replication_role is not allowed"),
        ("replication", "true", "replication is not allowed"),
        ("statement_timeout", "0", "statement_timeout is not allowed"),
        ("options", "-c x=1", "options is not allowed"),
        ("default_transaction_read_only", "off", "only be set to on"),
    ],
)
def test_start_up_parameters_that_do_not(name: str, value: str, says: str) -> None:
    found = judge_setting(name, (value,), policy_of())
    assert found is not None
    assert says in found.message
    assert found.object == name.lower()
    assert found.rule in ("setting-not-allowed", "access-read-only")


def test_a_read_write_policy_may_leave_read_only() -> None:
    assert judge_setting("default_transaction_read_only", ("off",), policy_of(WRITER)) is None


def test_held_settings_are_held_even_where_the_policy_allows_them() -> None:
    policy = policy_of(settings="{allow: [client_encoding, standard_conforming_strings, search_path]}")
    assert judge_setting("client_encoding", ("SJIS",), policy) is not None
    assert judge_setting("standard_conforming_strings", ("off",), policy) is not None
    assert judge_setting("search_path", ("billing",), policy) is not None


def test_catalogs_off_keeps_information_schema_off_the_path() -> None:
    assert judge_setting("search_path", ("information_schema",), policy_of()) is None
    closed = policy_of(relations='{allow: ["public.*"], catalogs: "off"}')
    assert judge_setting("search_path", ("information_schema",), closed) is not None


def test_the_base_set_lifts_no_limit_and_changes_no_identity() -> None:
    for name in (
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "transaction_timeout",
        "work_mem",
        "temp_file_limit",
        "role",
        "session_authorization",
        "session_replication_role",
        "row_security",
        "log_statement",
        "track_activities",
        "backslash_quote",
        "escape_string_warning",
        "transform_null_equals",
        "quote_all_identifiers",
        "enable_seqscan",
        "plan_cache_mode",
        "synchronous_commit",
        "local_preload_libraries",
        "dynamic_library_path",
        "default_text_search_config",
    ):
        assert name not in BASE
    assert set(HELD) <= BASE
    assert allowed_names(policy_of()) == BASE | {"shop.color"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ("a",)),
        (' A , "B c" ,d ', ("a", "B c", "d")),
        ('"a""b"', ('a"b',)),
        ("", ()),
        ("  ", ()),
        ("É", ("É",)),
        ("a b", None),
        ("a,", None),
        (",a", None),
        ('""', None),
        ('"a', None),
        ('"a"b', None),
        ("x" * 70, ("x" * 63,)),
    ],
)
def test_lists_of_names_are_read_as_postgresql_reads_them(text: str, names: tuple[str, ...] | None) -> None:
    assert split_identifiers(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ("a",)),
        ("A.b", ("a", "b")),
        ('"A".b . C', ("A", "b", "c")),
        ("a..b", None),
        ("", None),
        ("a.", None),
    ],
)
def test_dotted_names_are_read_as_postgresql_reads_them(text: str, names: tuple[str, ...] | None) -> None:
    assert split_qualified(text) == names


@given(
    st.lists(
        st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=9), min_size=1
    )
)
def test_what_is_quoted_is_read_back(names: list[str]) -> None:
    text = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    assert split_identifiers(text) == tuple(names)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for split in (split_identifiers, split_qualified):
        found = split(text)
        assert found is None or all(0 < len(name.encode()) <= 63 for name in found)
