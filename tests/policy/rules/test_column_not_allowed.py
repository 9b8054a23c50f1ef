from __future__ import annotations

import pytest

from tests.policy.rules.judging import WRITER, passes, policy_of, violations

RULE = "column-not-allowed"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT salary FROM employees",
        "SELECT e.salary FROM employees e",
        "SELECT employees.salary FROM employees",
        "SELECT public.employees.salary FROM public.employees",
        'SELECT U&"salar\\0079" FROM employees',
        "SELECT name FROM employees WHERE salary > 7777030",
        "SELECT name FROM employees ORDER BY salary DESC",
        "SELECT name AS salary FROM employees ORDER BY salary + 0",
        "SELECT title FROM employees GROUP BY title, salary",
        "SELECT name AS salary FROM employees GROUP BY salary",
        "SELECT title FROM employees GROUP BY title HAVING max(salary) > 1",
        "SELECT avg(salary) FROM employees",
        "SELECT @ salary FROM employees",
        "SELECT count(*) FILTER (WHERE salary > 1) FROM employees",
        "SELECT rank() OVER (ORDER BY salary) FROM employees",
        "SELECT 1 FROM orders o JOIN employees e ON o.total = e.salary",
        "SELECT 1 FROM orders JOIN employees USING (salary)",
        "SELECT 1 FROM orders o WHERE EXISTS (SELECT 1 FROM employees WHERE salary = o.total)",
        "SELECT (SELECT salary) FROM employees",
        "SELECT 1 FROM employees e, LATERAL (SELECT e.salary) x",
        "SELECT (SELECT max(total) FROM orders WHERE total > salary) FROM employees",
        "SELECT x.b FROM (SELECT name, salary FROM employees) AS x(a, b)",
        "WITH x AS (SELECT salary FROM employees) SELECT 1 FROM x",
        "SELECT name FROM employees UNION SELECT salary::text FROM employees",
        "SELECT (e).salary FROM employees e",
        "SELECT DISTINCT ON (salary) name FROM employees",
        "COPY (SELECT salary FROM employees) TO STDOUT",
        "COPY employees (id, salary) TO STDOUT",
        "EXPLAIN SELECT salary FROM employees",
        "PREPARE p AS SELECT salary FROM employees",
        "DECLARE c CURSOR FOR SELECT salary FROM employees",
        "SELECT j.salary FROM (orders JOIN employees ON true) AS j",
    ],
)
def test_naming_it_anywhere_is_refused(sql: str) -> None:
    found = violations(sql, policy_of(), RULE)
    assert {(v.object, v.schema, v.table, v.column) for v in found} == {
        ("public.employees.salary", "public", "employees", "salary")
    }
    assert all("salary of public.employees is hidden" in v.message for v in found)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT * FROM employees", "*"),
        ("SELECT o.id, e.* FROM orders o JOIN employees e ON e.id = o.employee_id", "e.*"),
        ("SELECT * FROM orders o JOIN employees e ON e.id = o.employee_id", "*"),
        ("SELECT j.* FROM (orders JOIN employees ON true) AS j", "j.*"),
        ("SELECT public.employees.* FROM employees", "employees.*"),
        ("TABLE employees", "*"),
        ("SELECT e FROM employees e", "the whole row e"),
        ("SELECT employees FROM employees", "the whole row employees"),
        ("SELECT to_jsonb(e) FROM employees e", "the whole row e"),
        ("SELECT to_jsonb(e.*) FROM employees e", "e.*"),
        ("SELECT e.row_to_json FROM employees e", "the whole row e"),
        ("SELECT (e).to_jsonb FROM employees e", "the whole row e"),
        ("SELECT (e).* FROM employees e", "the whole row e"),
        ("SELECT e::text FROM employees e", "the whole row e"),
        ("SELECT (SELECT e) FROM employees e", "the whole row e"),
        ("SELECT count(*) FROM employees e WHERE e IS NULL", "the whole row e"),
        ("SELECT 1 FROM employees e ORDER BY e", "the whole row e"),
        ("SELECT json_agg(e) FROM employees e", "the whole row e"),
        ("SELECT x FROM (SELECT * FROM employees) x", "*"),
        ("SELECT 1 FROM orders NATURAL JOIN employees", "NATURAL JOIN"),
        ("SELECT x.g FROM employees AS x(a, b, c, d, e, f, g)", "a list of column aliases"),
        ("SELECT 1 FROM (orders JOIN employees ON true) AS j(a, b)", "a list of column aliases"),
        ("COPY employees TO STDOUT", "a COPY of the whole table"),
        ("EXPLAIN (ANALYZE) SELECT * FROM employees", "*"),
    ],
)
def test_taking_it_without_naming_it_is_refused_and_does_not_tell_its_name(sql: str, what: str) -> None:
    found = violations(sql, policy_of(), RULE)
    assert what in [
        v.hint.removeprefix("Name the columns you need instead of ").removesuffix(".") for v in found
    ]
    assert all("salary" not in v.message + v.hint for v in found)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE employees SET salary = 1 WHERE id = 8", True),
        ("UPDATE employees SET (title, salary) = ('a', 1) WHERE id = 8", True),
        ("UPDATE employees SET title = salary::text WHERE id = 8", True),
        ("UPDATE employees SET title = 'a' WHERE salary = 8", True),
        ("UPDATE employees SET title = 'a' WHERE id = 8 RETURNING *", True),
        ("UPDATE employees SET title = 'a' WHERE id = 8 RETURNING salary", True),
        ("UPDATE employees SET title = 'a' WHERE id = 8 RETURNING old.salary", True),
        ("UPDATE employees SET title = 'a' WHERE id = 8 RETURNING new.*", True),
        ("DELETE FROM employees WHERE id = 8 RETURNING employees", True),
        ("UPDATE orders SET total = e.salary FROM employees e WHERE e.id = orders.id", True),
        ("INSERT INTO employees (id, salary) VALUES (1, 2)", True),
        ("INSERT INTO employees VALUES (1, 'a')", True),
        ("INSERT INTO employees SELECT 1, 'a'", True),
        ("INSERT INTO employees (id) VALUES (1) RETURNING *", True),
        ("INSERT INTO employees (id) VALUES (1) ON CONFLICT (salary) DO NOTHING", True),
        (
            "INSERT INTO employees (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET title = excluded.salary",
            True,
        ),
        ("INSERT INTO employees AS e (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET title = e.salary", True),
        (
            "MERGE INTO employees e USING orders o ON e.id = o.id WHEN MATCHED THEN UPDATE SET salary = 1",
            True,
        ),
        (
            "MERGE INTO employees e USING orders o ON e.id = o.id WHEN NOT MATCHED THEN INSERT VALUES (1)",
            True,
        ),
        ("MERGE INTO orders o USING employees e ON e.salary = o.total WHEN MATCHED THEN DO NOTHING", True),
        ("COPY employees FROM STDIN", True),
        ("COPY employees (salary) FROM STDIN", True),
        ("UPDATE employees SET title = 'a' WHERE id = 8 RETURNING id, title", False),
        ("UPDATE employees SET title = 'a' WHERE id = 8 RETURNING old.title, new.title", False),
        ("INSERT INTO employees (id, title) VALUES (1, 'a') RETURNING id", False),
        (
            "INSERT INTO employees (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET title = excluded.title",
            False,
        ),
        ("INSERT INTO employees DEFAULT VALUES", False),
        ("INSERT INTO orders (salary) VALUES (1)", False),
        ("DELETE FROM employees WHERE id = 8", False),
        ("COPY employees (id, title) FROM STDIN", False),
    ],
)
def test_writes(sql: str, told: bool) -> None:
    assert bool(violations(sql, policy_of(WRITER), RULE)) is told


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, name FROM employees WHERE title = 'CEO' ORDER BY name",
        "SELECT e.id, e.ctid FROM employees e",
        "SELECT count(*) FROM employees",
        "SELECT total AS salary FROM orders ORDER BY salary",
        "SELECT id AS salary FROM employees ORDER BY salary",
        "SELECT DISTINCT ON (salary) id AS salary FROM employees",
        "SELECT e.id AS salary FROM employees e UNION SELECT 1 ORDER BY salary",
        "SELECT salary FROM (SELECT 1 AS salary) s",
        "SELECT s.salary FROM (SELECT 1 AS salary) s, employees e",
        "WITH s(salary) AS (SELECT 1) SELECT salary FROM s",
        "SELECT (SELECT salary FROM (SELECT 1 AS salary) s) FROM employees",
        "SELECT * FROM (SELECT id, name FROM employees) e",
        "SELECT x.* FROM (SELECT id, name FROM employees) x, employees",
        "SELECT (e).name FROM employees e",
        "SELECT e.name, m.name AS boss FROM employees e LEFT JOIN employees m ON m.id = e.manager_id LIMIT 1",
        "SELECT o.* FROM orders o JOIN employees e ON e.id = o.employee_id LIMIT 1",
        "SELECT 1 FROM orders JOIN employees USING (id) LIMIT 1",
        "COPY employees (id, name) TO STDOUT",
        "SELECT 'salary' AS x FROM employees",
        "SELECT id, name FROM customers",
        "SELECT c.id, c.name FROM customers c",
    ],
)
def test_leaving_it_out_passes(sql: str) -> None:
    passes(sql, policy_of())


@pytest.mark.parametrize(
    "sql", ["SELECT email FROM customers", "SELECT c.email FROM customers c", "SELECT * FROM customers"]
)
def test_an_allow_list_hides_everything_else(sql: str) -> None:
    assert violations(sql, policy_of(), RULE)


def test_an_unqualified_name_counts_wherever_it_could_be_hidden() -> None:
    policy = policy_of(columns='{"*.staff": {deny: [pay]}}')
    assert violations("SELECT pay FROM staff", policy, RULE, ("a", "b"))
    assert violations("SELECT pay FROM orders JOIN a.staff ON true", policy, RULE)
    assert violations("SELECT pay FROM orders", policy, RULE) == []


def test_where_several_tables_could_have_it_the_hint_is_to_say_which() -> None:
    (found,) = violations("SELECT status FROM customers c JOIN orders o ON true LIMIT 1", policy_of(), RULE)
    assert "table's name before it" in found.hint
    (found,) = violations("SELECT status FROM customers", policy_of(), RULE)
    assert found.hint == "Leave it out."


def test_a_whole_row_is_told_as_one_even_under_an_allow_list() -> None:
    (found,) = violations("SELECT c FROM customers c", policy_of(), RULE)
    assert "the whole row c takes in all of them" in found.message


def test_the_place_and_the_line_are_given() -> None:
    policy = policy_of()
    (found,) = violations("SELECT name, salary FROM employees WHERE salary > 1", policy, RULE)
    assert found.position == 14
    assert found.line == policy.columns[0].line
