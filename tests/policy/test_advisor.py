from __future__ import annotations

import pytest

from policy.advisor import MAX_CHARACTERS, MAX_PREDICATE_NODES, conjuncts, holds_always


@pytest.mark.parametrize(
    ("sql", "terms"),
    [
        ("SELECT 1 FROM t WHERE a = 1 AND (b = 2 AND c > 3)", ("a = 1", "b = 2", "c > 3")),
        ("SELECT 1 FROM t WHERE a = 1 OR b = 2", ("a = 1 OR b = 2",)),
        ("UPDATE t SET x = 1 WHERE a = 'v'", ("a = 'v'",)),
        ("SELECT 1 FROM t", ()),
        ("SELECT 1 FROM (SELECT 1 FROM t WHERE a = 1) s", ()),
        ("PREPARE p AS SELECT 1", ()),
        ("this is no sql at all (", ()),
    ],
)
def test_conjuncts(sql: str, terms: tuple[str, ...]) -> None:
    assert conjuncts(sql) == terms


@pytest.mark.parametrize(
    ("sql", "always"),
    [
        ("DELETE FROM t WHERE 1 = 1", True),
        ("UPDATE t SET x = 1 WHERE a = 1 OR 2 > 1", True),
        ("WITH d AS (DELETE FROM t WHERE NOT FALSE RETURNING a) SELECT a FROM d", True),
        ("DELETE FROM t WHERE a = 1", False),
        ("DELETE FROM t WHERE 1 = 1 AND a = 1", False),
        ("SELECT 1 FROM t WHERE 1 = 1", False),
        ("DELETE FROM t", False),
        ("no sql (", False),
    ],
)
def test_holds_always(sql: str, always: bool) -> None:
    assert holds_always(sql) is always


def test_what_is_too_large_gets_no_opinion() -> None:
    assert not holds_always("DELETE FROM t WHERE 1 = 1 /* " + "x" * MAX_CHARACTERS + " */")
    chain = " OR ".join(f"a = {n}" for n in range(MAX_PREDICATE_NODES))
    assert not holds_always(f"DELETE FROM t WHERE {chain} OR 1 = 1")
