"""A driver's own look-ups are known by their text; nothing that merely resembles them is."""

from __future__ import annotations

import pytest
from asyncpg import introspection

from policy.cost import question
from policy.driver_lookups import is_driver_lookup
from policy.facts import Facts
from policy.loader import load
from policy.parse import parse

POLICY = load("version: 1\nname: p\nstatements: {select: allow}\ncost: {max_total_cost: 1}\n", "p.yaml")


def facts(sql: str) -> Facts:
    return parse(sql).statements[0]


@pytest.mark.parametrize("text", [introspection.INTRO_LOOKUP_TYPES, introspection.INTRO_LOOKUP_TYPES_13])
def test_a_look_up_is_not_priced(text: str) -> None:
    assert is_driver_lookup(facts(text))
    assert question(facts(text), POLICY) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pg_catalog.pg_type", "public.orders"),
        ("typeinfo_tree tt", "typeinfo_tree tt, pg_catalog.pg_class extra"),
        ("depth DESC", "depth DESC, pg_sleep(1)"),
        ("DISTINCT", "ALL"),
    ],
)
def test_what_resembles_one_is(old: str, new: str) -> None:
    text = introspection.INTRO_LOOKUP_TYPES.replace(old, new)
    assert text != introspection.INTRO_LOOKUP_TYPES
    assert not is_driver_lookup(facts(text))
    assert question(facts(text), POLICY) is not None


def test_an_ordinary_recursion_is_priced() -> None:
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    assert question(facts(sql), POLICY) is not None
