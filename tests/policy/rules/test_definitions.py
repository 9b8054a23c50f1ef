"""How far DDL reaches beyond the object it is about, where a policy allows it at all."""

from __future__ import annotations

import pytest

from policy.model import Policy
from tests.policy.rules.judging import policy_of, violations
from tests.policy.rules.schema import names, objection, objections, writer

RELATION, COLUMN = "relation-not-allowed", "column-not-allowed"


def definer(**sections: str) -> Policy:
    columns = "{public.employees: {deny: [salary]}, public.events: {deny: [payload]}}"
    statements = "{select: allow, insert: allow, update: allow, ddl: allow, role: allow}"
    return writer(**{"columns": columns, "statements": statements, **sections})


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        # A name that the policy does not know
        ("ALTER TABLE employees RENAME COLUMN salary TO x", "salary"),
        ("ALTER TABLE IF EXISTS public.employees RENAME salary TO x", "salary"),
        ("ALTER TABLE employees RENAME TO x", None),
        ("ALTER TABLE ONLY employees RENAME TO x", None),
        ("ALTER TABLE employees SET SCHEMA other", None),
        ("ALTER TABLE events_1 RENAME COLUMN payload TO x", "payload"),
        # What is computed of the rows that are there
        ("ALTER TABLE employees ADD CHECK (salary > 7777000)", "salary"),
        ("ALTER TABLE employees ADD COLUMN x numeric GENERATED ALWAYS AS (salary * 2) STORED", "salary"),
        ("ALTER TABLE employees ALTER COLUMN title TYPE text USING salary::text", "salary"),
        ("ALTER TABLE employees ADD CHECK (employees IS NOT NULL)", None),
        ("CREATE INDEX ON employees ((salary / 2))", "salary"),
        ("CREATE INDEX ON employees (id) WHERE salary > 7777000", "salary"),
        ("CREATE STATISTICS s ON (salary / 2), id FROM employees", "salary"),
        ("CREATE POLICY p ON employees USING (salary > 1)", "salary"),
        ("CREATE POLICY p ON employees USING (employees.salary > 1)", "salary"),
        ("CREATE POLICY p ON employees USING ((employees).salary > 1)", "salary"),
        ("CREATE POLICY p ON employees USING (employees::text LIKE '%7777008%')", None),
        ("CREATE POLICY p ON employees USING (EXISTS (SELECT FROM orders WHERE total = salary))", "salary"),
        ("CREATE POLICY p ON employees WITH CHECK (id IN (SELECT salary FROM orders))", "salary"),
        ("CREATE RULE r AS ON UPDATE TO employees DO ALSO SELECT NEW.salary", "salary"),
        ("CREATE RULE r AS ON UPDATE TO employees DO ALSO SELECT old::text", None),
        ("CREATE RULE r AS ON UPDATE TO employees WHERE OLD.salary > 1 DO INSTEAD NOTHING", "salary"),
        (
            "CREATE TRIGGER t AFTER UPDATE ON employees FOR EACH ROW WHEN (OLD.salary > 1)"
            " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "salary",
        ),
        # Whether a value is among the hidden ones
        ("ALTER TABLE orders ADD FOREIGN KEY (total) REFERENCES employees (salary)", "salary"),
        ("CREATE TABLE x (a numeric REFERENCES employees (salary))", "salary"),
    ],
)
def test_ddl_is_no_way_to_a_hidden_column(sql: str, column: str | None) -> None:
    found = [each for each in objections(sql, definer()) if each.rule == COLUMN]
    assert [each.column for each in found[:1]] == [column]
    if column is None:
        assert "salary" not in found[0].message + found[0].hint


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE employees RENAME COLUMN title TO job",
        "ALTER TABLE employees RENAME CONSTRAINT a TO b",
        "ALTER TABLE orders RENAME TO purchases",
        "ALTER TABLE orders SET SCHEMA other",
        "ALTER TABLE employees ADD COLUMN phone varchar(20) CHECK (phone IS NOT NULL)",
        "ALTER TABLE employees ADD CHECK (id > 0 AND title IS NOT NULL)",
        "ALTER TABLE employees ALTER COLUMN title TYPE varchar(9) USING title::varchar(9)",
        "ALTER TABLE employees ALTER COLUMN salary SET NOT NULL",
        "ALTER TABLE employees DROP COLUMN salary",
        "CREATE INDEX ON employees (name) WHERE title IS NOT NULL",
        "CREATE INDEX ON employees (salary)",
        "CREATE POLICY p ON employees USING (name = current_user)",
        "CREATE POLICY p ON orders USING (EXISTS (SELECT FROM employees e WHERE e.id = orders.customer_id))",
        "CREATE RULE r AS ON UPDATE TO orders DO ALSO UPDATE customers SET name = NEW.notes WHERE id = 1",
        "CREATE TABLE x (salary numeric CHECK (salary > 0), boss int REFERENCES employees (id))",
        "CREATE TABLE x (id int REFERENCES employees)",
    ],
)
def test_ddl_on_what_is_open_passes(sql: str) -> None:
    assert objections(sql, definer()) == []


def test_a_name_that_the_policy_hides_it_by_as_well_is_no_way_round() -> None:
    everywhere = definer(columns='{"public.*": {deny: [salary]}}')
    assert objections("ALTER TABLE employees RENAME TO staff_members", everywhere) == []
    assert objection("ALTER TABLE employees SET SCHEMA other", everywhere).rule == COLUMN


@pytest.mark.parametrize(
    "sql",
    [
        "DROP SCHEMA billing CASCADE",
        "DROP SCHEMA IF EXISTS nothing, billing",
        "DROP SCHEMA public",
        "ALTER SCHEMA billing RENAME TO app",
        "GRANT SELECT ON ALL TABLES IN SCHEMA billing TO bob",
        "REVOKE ALL ON ALL TABLES IN SCHEMA public, billing FROM bob",
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA billing",
        "ALTER PUBLICATION p ADD TABLES IN SCHEMA billing",
    ],
)
def test_a_schema_stands_for_all_that_is_in_it(sql: str) -> None:
    found = objection(sql, definer())
    assert found.rule == RELATION
    assert "api_keys" not in found.message + found.hint
    assert "cards" not in found.message + found.hint
    assert violations(sql, policy_of(), RELATION)


def test_a_schema_with_nothing_closed_in_it_may_go() -> None:
    policy = definer(relations='{allow: ["public.*", "billing.*"]}')
    for sql in ("DROP SCHEMA billing CASCADE", "CREATE SCHEMA app", "GRANT USAGE ON SCHEMA billing TO bob"):
        assert objections(sql, policy) == [], sql
    assert objections("DROP SCHEMA nothing", definer(), names()) == []


def test_a_schema_s_new_name_may_not_take_its_columns_from_the_policy() -> None:
    policy = definer(relations='{allow: ["*.*"]}', columns="{public.employees: {deny: [salary]}}")
    found = objection("ALTER SCHEMA public RENAME TO app", policy)
    assert (found.rule, found.object) == (COLUMN, "public.employees")
    assert objections("ALTER SCHEMA billing RENAME TO app", policy) == []


def test_truncate_cascade_stands_for_every_table_that_refers_to_it() -> None:
    found = objection("TRUNCATE orders, customers CASCADE", definer())
    assert (found.rule, found.object) == (RELATION, "public.customers")
    assert "api_keys" not in found.message + found.hint
    for sql in ("TRUNCATE customers", "TRUNCATE orders CASCADE", "TRUNCATE customers RESTRICT"):
        assert objections(sql, definer()) == [], sql
    assert objections("TRUNCATE customers CASCADE", definer(relations='{allow: ["public.*"]}')) == []
