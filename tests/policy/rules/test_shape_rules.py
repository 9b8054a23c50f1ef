"""The rules on how a statement is made: no WHERE, a WHERE that narrows nothing, rows without bound."""

from __future__ import annotations

import pytest

from policy.decision import Allow, Reject
from policy.model import Halt, RuleLevel
from tests.policy.rules.judging import READER, WRITER, judge, passes, policy_of, violations

UPDATE, DELETE = "update-without-where", "delete-without-where"
TAUTOLOGY, WEAK = "tautology-predicate", "weak-predicate"
JOIN, SELECT = "unbounded-join", "unbounded-select"


def told(sql: str, text: str = WRITER) -> list[str]:
    """The rules that object to ``sql``, by reject or warning."""
    decision = judge(sql, policy_of(text))
    assert decision.failures == ()
    found = decision.violations if isinstance(decision, Reject) else decision.warnings
    return [violation.rule for violation in found]


@pytest.mark.parametrize(
    ("sql", "rules"),
    [
        ("UPDATE orders SET status = 'paid'", [UPDATE]),
        ("DELETE FROM coupons", [DELETE]),
        ("DELETE FROM ONLY coupons AS c RETURNING c.code", [DELETE]),
        ("UPDATE orders SET total = 1 FROM customers", [UPDATE]),
        ("DELETE FROM coupons USING orders", [DELETE]),
        ("WITH d AS (DELETE FROM labels) UPDATE orders SET notes = 'x' WHERE id = 1", [DELETE]),
        ("WITH a AS (UPDATE x SET y = 1), b AS (DELETE FROM z) SELECT 1", [UPDATE, DELETE]),
        ("PREPARE p AS DELETE FROM coupons", [DELETE]),
        ("EXPLAIN ANALYZE DELETE FROM coupons", [DELETE]),
        ("EXPLAIN DELETE FROM coupons", []),
        ("DELETE FROM coupons WHERE CURRENT OF c", []),
        ("UPDATE coupons SET used = 1 WHERE code = 'A'", []),
        ("INSERT INTO coupons (code) VALUES ('a') ON CONFLICT (code) DO UPDATE SET used = 1", []),
        ("DELETE FROM coupons WHERE true", [TAUTOLOGY]),
        ("UPDATE coupons SET used = 0 WHERE code = 'A' OR 2 > 1", [TAUTOLOGY]),
        ("WITH d AS (DELETE FROM coupons WHERE 1 = 1 RETURNING 1) SELECT count(*) FROM d", [TAUTOLOGY]),
        ("UPDATE coupons SET used = 0 FROM products p WHERE p.id = 3", [TAUTOLOGY]),
        ("DELETE FROM coupons WHERE $1", [TAUTOLOGY]),
        ("PREPARE u (boolean) AS UPDATE coupons SET used = 0 WHERE $1", [TAUTOLOGY]),
        ("MERGE INTO coupons c USING (SELECT 1 AS x) s ON true WHEN MATCHED THEN DELETE", [TAUTOLOGY]),
        (
            "MERGE INTO coupons c USING s ON true WHEN MATCHED AND c.code = 'A' THEN UPDATE SET used = 1",
            [],
        ),
        ("MERGE INTO coupons c USING s ON c.code = s.code WHEN MATCHED THEN DELETE", []),
        ("MERGE INTO c USING s ON true WHEN NOT MATCHED THEN INSERT (x) VALUES (1)", []),
        ("MERGE INTO c USING s ON c.x = s.x WHEN NOT MATCHED BY SOURCE THEN DELETE", [WEAK]),
        ("MERGE INTO c USING s ON c.x = s.x WHEN NOT MATCHED BY SOURCE AND c.y = 1 THEN DELETE", []),
        ("MERGE INTO c USING s ON c.x = s.x WHEN NOT MATCHED BY SOURCE AND true THEN DELETE", [TAUTOLOGY]),
        ("DELETE FROM coupons WHERE code LIKE '%'", [WEAK]),
        ("DELETE FROM coupons WHERE code IS NOT NULL", [WEAK]),
        ("UPDATE orders SET notes = NULL WHERE notes IS NOT NULL AND customer_id = 50", []),
        ("DELETE FROM coupons WHERE false", []),
        ("DELETE FROM coupons AS c WHERE coupons.code = 'A'", [TAUTOLOGY]),
    ],
)
def test_writes(sql: str, rules: list[str]) -> None:
    assert told(sql) == rules


@pytest.mark.parametrize(
    ("sql", "halt"),
    [
        ("DELETE FROM coupons", Halt.CLASS_NOT_REPAIRABLE),
        ("DELETE FROM coupons WHERE true", Halt.TAUTOLOGY),
        ("DELETE FROM coupons WHERE code IS NOT NULL", Halt.TAUTOLOGY),
    ],
)
def test_no_repair_is_open_for_a_shape(sql: str, halt: Halt) -> None:
    decision = judge(sql, policy_of(WRITER))
    assert isinstance(decision, Reject)
    assert decision.halt is halt
    assert not decision.repair.allowed


def test_the_target_and_its_place_are_told() -> None:
    (found,) = violations("WITH d AS (DELETE FROM labels) SELECT 1", policy_of(WRITER), DELETE)
    assert (found.object, found.schema, found.table) == ("public.labels", "public", "labels")
    assert found.message == "DELETE on public.labels has no WHERE clause"
    assert "WHERE" in found.hint
    assert found.position
    (found,) = violations("DELETE FROM coupons WHERE 1 < 2", policy_of(WRITER), TAUTOLOGY)
    assert found.position == 27
    assert "DELETE on public.coupons holds for every row" in found.message
    (found,) = violations("DELETE FROM coupons WHERE now() > '2001-01-01'", policy_of(WRITER), TAUTOLOGY)
    assert "never compares a column of it" in found.message


def test_a_condition_too_large_to_judge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy.predicates.MAX_NODES", 5)
    (found,) = violations("DELETE FROM coupons WHERE a = 1 AND b = 2 AND c = 3", policy_of(WRITER), TAUTOLOGY)
    assert "too large to be judged" in found.message


def test_the_second_look_finds_what_the_first_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "DELETE FROM coupons WHERE code = 'A' OR code = 'B'"
    assert told(sql) == []
    monkeypatch.setattr("policy.rules.tautology_predicate.holds_always", lambda text: "coupons" in text)
    assert told(sql) == [TAUTOLOGY]
    # It is not asked where there is nothing to simplify, which is nearly always.
    assert told("DELETE FROM coupons WHERE code = 'A' AND used > 3") == []


@pytest.mark.parametrize(
    ("sql", "rules"),
    [
        ("SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id", [JOIN]),
        ("SELECT 1 FROM orders, customers", [JOIN]),
        ("SELECT c.country, count(*) FROM orders o JOIN customers c ON true GROUP BY 1", [JOIN]),
        ("SELECT DISTINCT c.country FROM orders o JOIN customers c ON true", [JOIN]),
        ("SELECT 1 FROM a UNION ALL SELECT 1 FROM b JOIN c ON true", [JOIN]),
        ("SELECT 1 FROM b JOIN c ON true LIMIT ALL", [JOIN]),
        ("SELECT 1 FROM b JOIN c ON true LIMIT NULL", [JOIN]),
        ("PREPARE p AS SELECT 1 FROM b JOIN c ON true", [JOIN]),
        ("SELECT * FROM (SELECT o.id FROM orders o JOIN customers c ON true) x", [JOIN]),
        ("WITH q AS (SELECT o.id FROM orders o JOIN customers c ON true) SELECT * FROM q", [JOIN]),
        ("WITH a AS (SELECT 1 FROM b, c), q AS (TABLE a) SELECT * FROM (TABLE q) x", [JOIN]),
        ("SELECT o.id FROM orders o CROSS JOIN LATERAL (SELECT 1 FROM customers) x", [JOIN]),
        ("SELECT o.id FROM orders o, (SELECT 1 FROM a UNION ALL SELECT 2 FROM b) x", [JOIN]),
        ("SELECT id FROM (TABLE orders) o NATURAL JOIN (TABLE customers) c", [JOIN]),
        (
            "WITH RECURSIVE t AS (SELECT 1 AS n FROM a UNION ALL SELECT n FROM t, b, c) SELECT n FROM t",
            [JOIN],
        ),
        ("WITH RECURSIVE t AS (SELECT 1 AS n FROM a UNION ALL SELECT n FROM t, a) SELECT n FROM t", [SELECT]),
        ("SELECT * FROM (SELECT o.id FROM orders o JOIN customers c ON true LIMIT 5) x", []),
        ("SELECT * FROM (SELECT o.id FROM orders o JOIN customers c ON true) x LIMIT 5", []),
        ("SELECT count(*) FROM (SELECT o.id FROM orders o JOIN customers c ON true) x", []),
        ("SELECT o.id FROM orders o, (SELECT max(id) FROM customers) x", [SELECT]),
        ("SELECT o.id FROM orders o, (VALUES (1), (2)) x", [SELECT]),
        ("SELECT id FROM orders WHERE id IN (SELECT a.i FROM a JOIN b ON true)", [SELECT]),
        ("SELECT (SELECT count(*) FROM a JOIN b ON true) FROM orders", [SELECT]),
        ("SELECT * FROM (TABLE orders) x", [SELECT]),
        ("SELECT o.id FROM orders o JOIN customers c ON true LIMIT 10", []),
        ("SELECT o.id FROM orders o JOIN customers c ON true FETCH FIRST 3 ROWS ONLY", []),
        ("SELECT count(*), max(o.id) FROM orders o JOIN customers c ON true", []),
        ("(SELECT 1 FROM b JOIN c ON true) UNION SELECT 1 LIMIT 5", []),
        ("(SELECT 1 FROM b JOIN c ON true LIMIT 5) UNION SELECT 1", []),
        ("EXPLAIN SELECT 1 FROM b JOIN c ON true", []),
        ("INSERT INTO labels (id) SELECT 1 FROM b JOIN c ON true", []),
        ("DELETE FROM shipments s USING orders o WHERE o.id = s.order_id RETURNING s.id", []),
        ("UPDATE a SET x = 1 FROM b WHERE b.i = a.i RETURNING a.i", []),
        ("SELECT id FROM orders", [SELECT]),
        ("SELECT id FROM orders, generate_series(1, 2)", [SELECT]),
        ("SELECT id FROM orders LIMIT 5", []),
        ("SELECT count(*) FROM orders", []),
        ("SELECT 1", []),
        ("VALUES (1), (2)", []),
    ],
)
def test_rows_without_bound(sql: str, rules: list[str]) -> None:
    assert told(sql) == rules


@pytest.mark.parametrize(
    ("sql", "rules"),
    [
        ("SELECT c.relname FROM pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace", []),
        ("SELECT relname FROM pg_catalog.pg_class", []),
        ("SELECT 1 FROM information_schema.tables JOIN information_schema.columns USING (table_name)", []),
        ("SELECT 1 FROM pg_class c JOIN orders o ON o.id = c.oid", [JOIN]),
        ("SELECT 1 FROM pg_class, tables", [JOIN]),
        ("SELECT 1 FROM public.pg_class, pg_class", [JOIN]),
    ],
)
def test_system_catalogs_alone_need_no_bound(sql: str, rules: list[str]) -> None:
    relations = '{allow: ["public.*"], catalogs: on}'
    decision = judge(sql, policy_of(WRITER, relations=relations))
    found = decision.violations if isinstance(decision, Reject) else decision.warnings
    assert [violation.rule for violation in found] == rules


def test_an_unbounded_join_may_be_repaired_once_and_must_keep_the_rest() -> None:
    sql = (
        "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id "
        "WHERE o.total > 5 AND c.country = 'DE'"
    )
    decision = judge(sql, policy_of(WRITER))
    assert isinstance(decision, Reject)
    assert decision.halt is None
    assert decision.repair.allowed
    assert decision.repair.turns_left == 1
    assert decision.repair.keep_relations == ("public.orders", "public.customers")
    assert decision.repair.keep_predicates == ("o.total > 5", "c.country = 'DE'")
    assert "LIMIT" in decision.violations[0].hint
    assert "DISTINCT" in decision.violations[0].hint


def test_levels_are_the_policys_or_the_rules_own() -> None:
    sql = "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id"
    decision = judge(sql, policy_of(READER))
    assert isinstance(decision, Allow)
    assert [(v.rule, v.level) for v in decision.warnings] == [(JOIN, RuleLevel.WARN)]
    assert judge(sql, policy_of(READER, rules='{unbounded-join: "off"}')) == Allow(
        decision.query, decision.statement_class, basis=decision.basis
    )


def test_a_level_changes_a_shape_rule() -> None:
    warned = judge("DELETE FROM coupons", policy_of(WRITER, rules="{delete-without-where: warn}"))
    assert isinstance(warned, Allow)
    assert [v.rule for v in warned.warnings] == [DELETE]
    passes("DELETE FROM coupons", policy_of(WRITER, rules='{delete-without-where: "off"}'))


def test_the_line_is_that_of_the_level() -> None:
    policy = policy_of(WRITER, rules="\n  delete-without-where: reject\n")
    (found,) = violations("DELETE FROM coupons", policy, DELETE)
    assert found.line == policy.rule_lines[DELETE] > 0
