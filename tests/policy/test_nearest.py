"""Likeness of names: what is offered for a misspelt one, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.nearest import distance, nearest

KNOWN = (
    "customers",
    "customer_notes",
    "orders",
    "order_items",
    "Orders",
    "products",
    "stock",
    "api_keys",
    "id",
)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("custmers", ("customers",)),
        ("order", ("Orders", "orders", "order_items")),
        ("orderitems", ("order_items",)),
        ("ORDER_ITEMS", ("order_items",)),
        ("sotck", ("stock",)),
        ("items", ("order_items",)),
        ("notes", ("customer_notes",)),
        ("payments", ()),
        ("ix", ("id",)),
        ("", ()),
    ],
)
def test_nearest(word: str, expected: tuple[str, ...]) -> None:
    assert nearest(word, KNOWN) == expected


def test_limit() -> None:
    assert nearest("order", KNOWN, limit=1) == ("Orders",)


@pytest.mark.parametrize(
    ("left", "right", "edits"),
    [
        ("abc", "abc", 0),
        ("abc", "acb", 1),
        ("abc", "ab", 1),
        ("abc", "xabc", 1),
        ("abc", "axc", 1),
        ("", "ab", 2),
    ],
)
def test_distance(left: str, right: str, edits: int) -> None:
    assert distance(left, right, 3) == edits
    assert distance(left, right, edits - 1) is None if edits else True


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_bounds_never_hide_a_near_name(left: str, right: str) -> None:
    """The quick bounds discard nothing that the distance would keep."""
    allowed = max(1, min(4, len(left) // 3))
    if distance(left, right, allowed) is not None:
        assert nearest(left, [right]) == (right,)
