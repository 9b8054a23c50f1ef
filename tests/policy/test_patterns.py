"""Names in a policy mean what they mean in SQL, or are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.model import Pattern
from policy.patterns import (
    BadNameError,
    allowed_function,
    column_name,
    denied_function,
    relation_pattern,
    split_name,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", ("orders",)),
        ("public.orders", ("public", "orders")),
        ('"Odd Schema".orders', ("Odd Schema", "orders")),
        ('public."a.b"', ("public", "a.b")),
        ('public."say ""hi"""', ("public", 'say "hi"')),
        ("public.*", ("public", "*")),
        ("pub*.ord*s", ("pub*", "ord*s")),
        ("public.straße", ("public", "straße")),
        ("public.2024_orders", ("public", "2024_orders")),
        ("public.$x", ("public", "$x")),
    ],
)
def test_a_name_is_split_as_sql_would(text: str, parts: tuple[str, ...]) -> None:
    assert split_name(text) == parts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (".", "empty"),
        ("public.", "empty"),
        (".orders", "empty"),
        ('public.""', "empty"),
        ('public."x', "quote"),
        ('public.x"', "quote"),
        ('"a"b', "quote"),
        ('a"b"', "quote"),
        ("public.Orders", "SQL reads Orders as orders"),
        ('public."*"', "wildcard"),
        ("public.my-table", "double quotes"),
        ("public. orders", "double quotes"),
        ("x" * 64, "63 bytes"),
        ("ü" * 32, "63 bytes"),
    ],
)
def test_what_is_no_name_or_two_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadNameError, match=says):
        split_name(text)


@given(
    st.lists(
        st.text(st.characters(exclude_characters="*\0", codec="utf-8"), min_size=1, max_size=15), min_size=1
    )
)
def test_any_quoted_name_comes_back(parts: list[str]) -> None:
    text = ".".join('"' + part.replace('"', '""') + '"' for part in parts)

    assert split_name(text) == tuple(parts)


READERS: tuple[Callable[[str], object], ...] = (
    split_name, column_name, relation_pattern, allowed_function, denied_function,
)  # fmt: skip


@given(st.sampled_from(READERS), st.one_of(st.text(), st.text('aA.*" (')))
def test_any_text_is_a_name_or_refused(reader: Callable[[str], object], text: str) -> None:
    try:
        assert reader(text)
    except BadNameError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("reader", "text", "pattern"),
    [
        (relation_pattern, "public.*", Pattern("public", "*")),
        (relation_pattern, "*.*", Pattern("*", "*")),
        (denied_function, "pg_sleep", Pattern("*", "pg_sleep")),
        (denied_function, "reporting.raw", Pattern("reporting", "raw")),
        (denied_function, "no_such_function", Pattern("*", "no_such_function")),
        (allowed_function, "pg_sleep", Pattern("pg_catalog", "pg_sleep")),
        (allowed_function, "json_*", Pattern("pg_catalog", "json_*")),
        (allowed_function, "reporting.*", Pattern("reporting", "*")),
    ],
)
def test_a_bare_name_stands_for_what_its_list_says(
    reader: Callable[[str], Pattern], text: str, pattern: Pattern
) -> None:
    assert reader(text) == pattern


@pytest.mark.parametrize(
    ("reader", "text", "near"),
    [
        (relation_pattern, "orders", "public.orders"),
        (relation_pattern, "*", "*.*"),
        (relation_pattern, "db.public.orders", "public.orders"),
        (column_name, "users.ssn", "ssn"),
        (allowed_function, "order_total", "public.order_total"),
        (allowed_function, "*", "builtin-safe"),
        (denied_function, "pg_sleep(int)", "pg_sleep"),
        (denied_function, "a.b.c", "b.c"),
    ],
)
def test_the_likely_meaning_is_offered(reader: Callable[[str], object], text: str, near: str) -> None:
    with pytest.raises(BadNameError) as caught:
        reader(text)

    assert caught.value.near == near


def test_columns_are_named_one_by_one() -> None:
    assert column_name('"SSN"') == "SSN"
    with pytest.raises(BadNameError, match="one by one"):
        column_name("ss*")
