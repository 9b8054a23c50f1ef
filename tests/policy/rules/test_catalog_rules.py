"""Rules where a catalog says what names mean."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from policy.catalog import Catalog
from policy.catalog_names import UnreadCatalog
from policy.catalog_values import ColumnId, Expression, ExpressionOrigin, Flow, Uses
from policy.decision import Allow, Reject, Situation, decide
from policy.model import Halt, Violation
from policy.parse import parse
from policy.rules import insert_missing_not_null
from tests.policy.rules.schema import (
    CONTENT,
    function,
    judge,
    named,
    names,
    objection,
    objections,
    reader,
    relation,
    view,
    writer,
)

RELATION, COLUMN, FUNCTION = "relation-not-allowed", "column-not-allowed", "function-not-allowed"

GAUGES = "id int4!, raw int4, twice int4, note text"
GENERATED = names(
    catalog=Catalog(
        replace(
            CONTENT,
            relations=(
                *CONTENT.relations,
                relation(
                    "gauges",
                    GAUGES,
                    expressions=(Expression(ExpressionOrigin.DEFAULT, "twice", Uses(), ("raw",)),),
                    children=(named("gauges_1"),),
                ),
                relation(
                    "gauges_1",
                    GAUGES,
                    expressions=(Expression(ExpressionOrigin.DEFAULT, "twice", Uses(), ("id", "note")),),
                ),
                view("gauge_view", "twice int4", "gauges(twice)"),
            ),
        )
    )
)
"""With a generated column, which a part of the table makes in its own way."""
_WELL_PAID = view("well_paid", "name text", "employees(name, salary)")
_FLOW = Flow(((ColumnId("public", "employees", "name"),),))
WELL_PAID = names(
    catalog=Catalog(
        replace(
            CONTENT,
            relations=(
                *CONTENT.relations,
                replace(_WELL_PAID, rules=(replace(_WELL_PAID.rules[0], flow=_FLOW),)),
            ),
        )
    )
)
"""With a view that chooses its rows by a hidden column and shows none."""


def rules_of(found: list[Violation]) -> set[str]:
    return {violation.rule for violation in found}


class TestRelations:
    @pytest.mark.parametrize(
        ("sql", "object_"),
        [
            ("SELECT 1 FROM api_keys", "public.api_keys"),
            ("SELECT token FROM key_view", "public.key_view"),
            ("SELECT token FROM key_view_view", "public.key_view_view"),
            ("SELECT token FROM kept_keys", "public.kept_keys"),
            ("SELECT id FROM ledger_1", "public.ledger_1"),
            ("SELECT pan FROM billing.cards", "billing.cards"),
            ("SELECT 1 FROM billing.nothing", "billing.nothing"),
            ("SELECT 1 FROM pg_authid", "pg_catalog.pg_authid"),
            ("SELECT 1 FROM pg_toast.pg_toast_1", "pg_toast.pg_toast_1"),
            ("SELECT 1 FROM pg_temp.orders", "pg_temp.orders"),
            ("SELECT 'api_keys'::regclass", "public.api_keys"),
            ("SELECT to_regclass('public.api_keys')", "public.api_keys"),
            ("SELECT has_table_privilege('api_keys', 'select')", "public.api_keys"),
            ("SELECT has_table_privilege('bob', 'api_keys', 'select')", "public.api_keys"),
        ],
    )
    def test_what_leads_to_a_hidden_relation_is_refused(self, sql: str, object_: str) -> None:
        found = objection(sql, reader())
        assert (found.rule, found.object) == (RELATION, object_)
        if object_.endswith(("view", "kept_keys")):
            assert "api_keys" not in found.message + found.hint

    @pytest.mark.parametrize(
        ("sql", "hint"),
        [
            ("SELECT id FROM shop.orders", "Use public.orders instead."),
            ("SELECT id FROM billing.orders", "Use public.orders instead."),
            ("SELECT 1 FROM shop.order_view o", "Use public.order_view instead."),
            ("SELECT 1 FROM shop.api_keys", "Leave it out"),
            ("SELECT 1 FROM shop.key_view", "Leave it out"),
            ("SELECT 1 FROM shop.nothing", "Leave it out"),
            ("SELECT pan FROM billing.cards", "Leave it out"),
        ],
    )
    def test_a_name_in_another_schema_is_told_where_it_is_open(self, sql: str, hint: str) -> None:
        found = objection(sql, reader())
        assert found.rule == RELATION
        assert found.hint.startswith(hint)

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT id FROM orders",
            "SELECT customer FROM order_view",
            "SELECT name FROM staff",
            "SELECT id FROM events",
            "SELECT id FROM events_1",
            "SELECT relname FROM pg_class",
            "SELECT 'orders'::regclass, to_regclass('orders'), '1234'::regclass",
        ],
    )
    def test_what_leads_to_open_ones_passes(self, sql: str) -> None:
        assert objections(sql, reader()) == []

    def test_a_field_is_no_row_type_of_that_name(self) -> None:
        assert objections("SELECT (q).api_keys FROM (SELECT 1 AS api_keys) q", reader()) == []

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT NULL::api_keys",
            "SELECT CAST(NULL AS public.api_keys)",
            "SELECT (NULL::api_keys).token",
            "SELECT NULL::api_keys[]",
            "SELECT NULL::_api_keys",
            "SELECT api_keys '(1,x)'",
            "SELECT api_keys('(1,x)')",
            "SELECT * FROM jsonb_populate_record(NULL::api_keys, '{}')",
            "SELECT * FROM jsonb_to_record('{}') AS r(x api_keys)",
            "SELECT * FROM ROWS FROM (jsonb_to_record('{}') AS (x api_keys)) r",
            "SELECT JSON_VALUE('{}', '$' RETURNING api_keys)",
            "SELECT * FROM JSON_TABLE('{}', '$' COLUMNS (x api_keys PATH '$')) r",
            "SELECT * FROM XMLTABLE('/r' PASSING '<r/>' COLUMNS x api_keys PATH '.')",
            "PREPARE p (api_keys) AS SELECT 1",
            "SELECT 1 WHERE NULL::api_keys IS NULL",
        ],
    )
    def test_a_row_type_tells_of_its_relation(self, sql: str) -> None:
        """``jsonb_populate_record(NULL::t, '{}')`` gives a row of which all columns are told."""
        found = objection(sql, reader())
        assert (found.rule, found.object) == (RELATION, "public.api_keys")
        assert objections(sql.replace("api_keys", "orders").replace(").token", ").id"), reader()) == []

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT id FROM events",
            "SELECT count(*) FROM public.events e",
            "SELECT id FROM event_view",
            # Each mention by itself: ONLY of one says nothing of another.
            "SELECT e.id FROM ONLY events o RIGHT JOIN events e ON true",
            "WITH o AS (SELECT FROM ONLY events) SELECT id FROM events",
            "SELECT id FROM ONLY events UNION ALL SELECT id FROM events",
        ],
    )
    def test_a_denied_part_closes_the_whole(self, sql: str) -> None:
        parted = reader(relations='{allow: ["public.*"], deny: [public.events_1]}')
        found = objection(sql, parted)
        assert found.rule == RELATION
        assert "events_1" not in found.message + found.hint
        assert objections("SELECT o.id FROM ONLY events o, ONLY events", parted) == []
        assert objections(sql, reader()) == []

    def test_a_column_hidden_in_a_part_is_hidden_in_the_whole(self) -> None:
        parted = reader(columns="{public.events_1: {deny: [payload]}}")
        assert objection("SELECT payload FROM events", parted).rule == COLUMN
        assert objections("SELECT id FROM events", parted) == []

    def test_a_view_may_answer_for_itself(self) -> None:
        own = reader(relations='{allow: ["public.*"], deny: [public.api_keys, public.ledger], views: own}')
        assert objections("SELECT token FROM key_view", own) == []
        assert objections("SELECT amount FROM pay_view", own) == []
        assert objections("SELECT n FROM noisy_view", own) == []
        assert objection("SELECT id FROM ledger_1", own).rule == RELATION

    def test_rules_on_writing_count(self) -> None:
        assert objection("INSERT INTO ruled VALUES (1)", writer()).object == "public.ruled"
        assert objections("DELETE FROM ruled WHERE id = 1", writer()) == []

    def test_a_name_means_what_the_path_finds_first(self) -> None:
        known = names("public", "billing")
        assert objections("SELECT id FROM orders", reader(), known) == []
        assert objection("SELECT pan FROM cards", reader(), known).object == "billing.cards"

    def test_where_the_session_may_have_its_own_every_schema_of_the_path_must_be_open(self) -> None:
        known = names("public", "billing", temporary=True)
        found = objection("SELECT 1 FROM not_in_the_snapshot", reader(), known)
        assert found.rule == RELATION
        assert "schema you mean" in found.hint
        assert objections("SELECT 1 FROM not_there", reader(), names(temporary=True)) == []


class TestColumns:
    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT NULL::employees",
            "SELECT (jsonb_populate_record(NULL::employees, '{}')).*",
            "SELECT * FROM jsonb_populate_recordset(NULL::employees, '[{}]')",
        ],
    )
    def test_a_row_type_tells_of_all_its_columns(self, sql: str) -> None:
        found = objection(sql, reader())
        assert (found.rule, found.object) == (COLUMN, "public.employees")
        assert "salary" not in found.message + found.hint

    @pytest.mark.parametrize(
        ("sql", "column"),
        [
            ("SELECT salary FROM employees", "salary"),
            ("SELECT (e).salary FROM employees e", "salary"),
            ("SELECT name FROM employees ORDER BY salary", "salary"),
            ("SELECT 1 FROM employees JOIN pay USING (salary)", "salary"),
            ("SELECT * FROM employees", None),
            ("SELECT e.* FROM employees e", None),
            ("SELECT e FROM employees e", None),
            ("SELECT to_jsonb(e) FROM employees e", None),
            ("SELECT 1 FROM employees NATURAL JOIN pay", None),
            ("SELECT d FROM employees AS e(a, b, c, d)", None),
            ("TABLE employees", None),
            ("COPY employees TO STDOUT", None),
            ("COPY employees (salary) TO STDOUT", "salary"),
            ("SELECT payload FROM events_1", "payload"),
        ],
    )
    def test_every_road_to_a_hidden_column_is_refused(self, sql: str, column: str | None) -> None:
        found = objection(sql, reader())
        assert (found.rule, found.column) == (COLUMN, column)
        assert found.position
        if column is None:
            assert "salary" not in found.message + found.hint

    @pytest.mark.parametrize(
        ("sql", "says"),
        [
            # A scan below a DISTINCT gives every column there is.
            ("EXPLAIN VERBOSE SELECT DISTINCT name FROM employees", "EXPLAIN VERBOSE of public.employees"),
            ("EXPLAIN (VERBOSE, FORMAT JSON) SELECT name FROM staff", "EXPLAIN VERBOSE of public.staff"),
            ("EXPLAIN (VERBOSE off, VERBOSE 1) SELECT id FROM employees", "EXPLAIN VERBOSE of"),
            ("EXPLAIN SELECT name FROM well_paid", "EXPLAIN tells how public.well_paid is made"),
            ("EXPLAIN (COSTS off) SELECT o.id FROM orders o, well_paid LIMIT 1", "EXPLAIN tells how"),
        ],
    )
    def test_a_plan_may_not_tell_of_hidden_columns(self, sql: str, says: str) -> None:
        (found,) = objections(sql, reader(), WELL_PAID)
        assert found.rule == COLUMN
        assert found.message.startswith(says)
        assert "salary" not in found.message + found.hint

    def test_what_such_a_view_shows_may_be_read(self) -> None:
        assert objections("SELECT name FROM well_paid", reader(), WELL_PAID) == []

    @pytest.mark.parametrize(
        "sql",
        [
            "EXPLAIN SELECT DISTINCT name FROM employees",
            "EXPLAIN (VERBOSE, VERBOSE false) SELECT name FROM employees",
            "EXPLAIN (ANALYZE, BUFFERS) SELECT name FROM staff",
            "EXPLAIN VERBOSE SELECT id FROM orders",
            "EXPLAIN VERBOSE SELECT customer FROM order_view",
        ],
    )
    def test_any_other_plan_is_shown(self, sql: str) -> None:
        assert objections(sql, reader()) == []

    @pytest.mark.parametrize(
        ("sql", "columns", "column"),
        [
            ("SELECT twice FROM gauges", "{deny: [raw]}", "twice"),
            ("SELECT id FROM gauges ORDER BY twice", "{deny: [raw]}", "twice"),
            ("SELECT twice FROM gauges_1", "{deny: [raw]}", "twice"),
            ("SELECT twice FROM gauge_view", "{deny: [raw]}", None),
            ("UPDATE gauges SET note = 'x' WHERE id = 1 RETURNING twice", "{deny: [raw]}", "twice"),
            ("SELECT twice FROM gauges", "{allow: [id, note]}", "twice"),
            ("SELECT * FROM gauges", "{deny: [raw]}", None),
            # Its part makes it of another column.
            ("SELECT twice FROM gauges", "{deny: [note]}", "twice"),
        ],
    )
    def test_a_generated_column_of_a_hidden_one_is_hidden(
        self, sql: str, columns: str, column: str | None
    ) -> None:
        policy = writer(columns=f"{{public.gauges: {columns}}}")
        found = objection(sql, policy, GENERATED)
        assert (found.rule, found.column) == (COLUMN, column)

    @pytest.mark.parametrize(
        ("sql", "columns"),
        [
            ("SELECT id, note FROM gauges", "{deny: [raw]}"),
            ("INSERT INTO gauges (id, note) VALUES (1, 'x')", "{deny: [raw]}"),
            ("SELECT id, twice FROM gauges", "{deny: [id_card]}"),
            # Said by name: what was made to be shown in the other's place.
            ("SELECT id, twice FROM gauges", "{allow: [id, twice]}"),
        ],
    )
    def test_any_other_is_open(self, sql: str, columns: str) -> None:
        assert objections(sql, writer(columns=f"{{public.gauges: {columns}}}"), GENERATED) == []

    @pytest.mark.parametrize(
        ("sql", "what"),
        [
            ("SELECT (staff_of(1)).salary", "a row from public.staff_of"),
            ("SELECT staff_of(1)", "a row from public.staff_of"),
            ("SELECT to_jsonb(public.staff_of(1))", "a row from public.staff_of"),
            ("SELECT s FROM staff_of(1) s", "the whole row s"),
            ("SELECT name FROM ROWS FROM (staff_of(1), generate_series(1, 2)) s", "a row from"),
        ],
    )
    def test_a_function_that_gives_rows_is_no_way_round(self, sql: str, what: str) -> None:
        found = objection(sql, reader(functions="{allow: [builtin-safe, public.staff_of]}"))
        assert found.rule == COLUMN
        assert what in found.message
        assert "salary" not in found.message + found.hint

    def test_what_is_open_of_a_functions_rows_passes(self) -> None:
        known = reader(functions="{allow: [builtin-safe, public.staff_of]}")
        assert objections("SELECT s.id, name FROM staff_of(1) s", known) == []
        assert objection("SELECT salary FROM staff_of(1)", known).column == "salary"

    def test_the_hint_lists_what_may_be_used(self) -> None:
        assert "id, name, title." in objection("SELECT * FROM employees", reader()).hint

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT salary FROM pay",
            "SELECT salary FROM pay JOIN employees e ON e.id = pay.employee_id AND e.name = 'x'".replace(
                "SELECT salary", "SELECT pay.salary"
            ),
            "SELECT e.name, (SELECT max(salary) FROM pay) FROM employees e",
            "SELECT a FROM employees AS e(a, b)",
            "SELECT total AS salary FROM orders ORDER BY salary",
            "SELECT s.name FROM (SELECT name FROM employees) s",
            "SELECT ctid FROM employees",
            "SELECT count(*) FROM employees",
        ],
    )
    def test_what_only_looks_like_one_passes(self, sql: str) -> None:
        assert objections(sql, reader()) == []

    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE employees SET salary = 1 WHERE id = 8",
            "UPDATE employees SET title = 'x' WHERE id = 8 RETURNING *",
            "INSERT INTO employees VALUES (1, 'a', 'b', 2)",
            "INSERT INTO employees (id, name, title, salary) VALUES (1, 'a', 'b', 2)",
            "COPY employees FROM STDIN",
        ],
    )
    def test_writing_one_is_no_better(self, sql: str) -> None:
        assert COLUMN in rules_of(objections(sql, writer()))

    def test_a_view_over_one_is_refused_without_naming_it(self) -> None:
        found = objection("SELECT name FROM pay_view", reader())
        assert (found.rule, found.object) == (COLUMN, "public.pay_view")
        assert "salary" not in found.message + found.hint

    def test_what_the_snapshot_lacks_is_judged_by_name(self) -> None:
        policy = reader(columns="{public.fresh: {deny: [secret]}}")
        known = names(temporary=True)
        assert objection("SELECT secret FROM fresh", policy, known).rule == COLUMN
        assert objections("SELECT id FROM fresh", policy, known) == []


class TestFunctions:
    @pytest.mark.parametrize(
        ("sql", "object_"),
        [
            ("SELECT bump('x')", "public.bump"),
            ("SELECT length(12345)", "public.length"),
            ("SELECT length(id) FROM orders", "public.length"),
            ("SELECT length(id * 2 + 1) FROM orders", "public.length"),
            ("SELECT length((SELECT 1) || 'a')", "public.length"),
            ("SELECT length($1)", "public.length"),
            ("SELECT replace(c, 'a', 'b') FROM (SELECT 'x'::ci) s(c)", "public.replace"),
            ("SELECT 5 <~> 3", "public.score"),
            ("SELECT id OPERATOR(public.<~>) 1 FROM orders", "public.score"),
            ("SELECT 'a'::ci = 'b'", "public.ci_eq"),
            ("SELECT $1 = $2", "public.ci_eq"),
            ("SELECT noisy_sum(id) FROM orders", "public.noisy_sum"),
            ("SELECT c.loyalty FROM customers c", "public.loyalty"),
            ("SELECT (c).loyalty FROM customers c", "public.loyalty"),
            ("SELECT name::sku_code FROM customers", "public.to_sku"),
            ("SELECT sku_code(name) FROM customers", "public.to_sku"),
            ("SELECT 7::small_qty", "public.small_enough"),
            ("SELECT '7'::small_qty", "public.small_enough"),
            ("SELECT '{7}'::small_qty[]", "public.small_enough"),
            ("SELECT (7).small_qty", "public.small_enough"),
            ("SELECT (o.id).small_qty FROM orders o", "public.small_enough"),
            ("SELECT ROW(1, 'a', 2)::labels", "public.to_sku"),
            ("SELECT to_json(code) FROM labels", "public.as_json"),
            ("SELECT JSON_OBJECT('a': code) FROM labels", "public.as_json"),
            ("SELECT n FROM noisy_view", "public.noisy_view"),
            ("SELECT pg_sleep(1)", "pg_catalog.pg_sleep"),
            ("SELECT o.pg_sleep FROM orders o", "pg_catalog.pg_sleep"),
            ("SELECT 'x'::no_such_type", "no_such_type"),
            ("SELECT length(s.n) FROM (SELECT id AS n FROM customers) s", "public.length"),
            ("SELECT length(s.n) FROM (SELECT id AS n, * FROM customers) s", "public.length"),
            (
                "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n FROM s) SELECT length(n) FROM s",
                "public.length",
            ),
            (
                "SELECT length(n) FROM (SELECT name AS n FROM customers) a JOIN (SELECT 1 AS n) b USING (n)",
                "public.length",
            ),
            ("SELECT length(n) FROM (VALUES (1)) s (n)", "public.length"),
            ("SELECT length((ARRAY[1])[1])", "public.length"),
            ("SELECT 1 FROM tagged a JOIN tagged b USING (tag)", "public.ci_eq"),
            ("SELECT 1 FROM tagged a JOIN (SELECT tag AS id FROM tagged) b USING (id)", "public.ci_eq"),
            ("SELECT 1 FROM tagged WHERE tag IN (SELECT tag FROM tagged)", "public.ci_eq"),
            ("SELECT CASE tag WHEN 'x' THEN 1 END FROM tagged", "public.ci_eq"),
            ("SELECT length(CASE WHEN true THEN 1 END)", "public.length"),
            ("SELECT length(g) FROM generate_series(1, 2) g", "public.length"),
        ],
    )
    def test_what_would_be_called_is_refused(self, sql: str, object_: str) -> None:
        found = [v for v in objections(sql, reader()) if v.rule == FUNCTION]
        assert object_ in {violation.object for violation in found}

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT length(name) FROM customers",
            "SELECT length('abc')",
            "SELECT length(coalesce(name, '')) FROM customers",
            "SELECT length(trim(name)) FROM customers",
            "SELECT length(name || ' ' || email) FROM customers",
            "SELECT 1 FROM orders WHERE (id = 1) = (total > 2)",
            "SELECT length($1::text)",
            "SELECT length(s.n) FROM (SELECT name AS n FROM customers) s",
            "WITH s (n) AS (SELECT name FROM customers) SELECT length(n) FROM s",
            "SELECT length(n) FROM (SELECT name AS n FROM customers UNION SELECT 'x') s",
            "WITH RECURSIVE s (n) AS (SELECT 'x' UNION ALL SELECT n FROM s) SELECT length(n) FROM s",
            "SELECT length(CASE WHEN id > 1 THEN name ELSE email END) FROM customers",
            "SELECT length((SELECT max(name) FROM customers))",
            "SELECT length((regexp_match(name, 'a'))[1]) FROM customers",
            "SELECT length(string_agg(name, ',')) FROM customers",
            "SELECT length(to_jsonb(id) ->> 'a') FROM orders",
            "SELECT 1 FROM orders JOIN labels USING (id) WHERE id IN (SELECT id FROM tagged)",
            "SELECT CASE id WHEN 1 THEN 2 END FROM tagged",
            "SELECT 1 FROM customers WHERE (name, id) > ('x', 1) AND id = ANY ($1) AND name = ANY ('{x}')",
            "SELECT order_total(id) FROM orders",
            "SELECT replace(name, 'a', 'b') FROM customers",
            "SELECT replace('a', 'b', 'c')",
            "SELECT 1 FROM customers WHERE name = 'x' AND id = 7 AND email = $1 AND id = $2",
            "SELECT 1 FROM customers c JOIN orders o ON o.customer_id = c.id",
            "SELECT s.n FROM (SELECT name AS n FROM customers) s WHERE s.n = 'x'",
            "SELECT c.name, c.email FROM customers c",
            "SELECT (c).email FROM customers c",
            "SELECT to_json(name) FROM customers",
            "SELECT to_json(id) FROM labels",
            "SELECT 'sad'::mood, '{sad}'::mood[]",
            "SELECT pg_advisory_unlock_all()",
        ],
    )
    def test_what_surely_is_a_built_in_or_open_passes(self, sql: str) -> None:
        assert [
            v for v in objections(sql, reader()) if v.rule == FUNCTION and "as_json" not in v.message
        ] == []

    def test_a_schema_that_is_not_on_the_path_shadows_nothing(self) -> None:
        assert objections("SELECT length(1::text::int)", reader(), names("billing")) == []
        assert objection("SELECT billing.secret_sum(1)", reader()).object == "billing.secret_sum"

    @pytest.mark.parametrize(
        "sql",
        ["SELECT (ARRAY[1, 2])['x'::mood]", "SELECT (ARRAY[1, 2])[1:(SELECT 'x'::mood)]"],
    )
    def test_casts_are_added_where_the_server_wants_a_type_of_its_own(self, sql: str) -> None:
        found = objection(sql, reader())
        assert (found.rule, found.object) == (FUNCTION, "public.score_of")
        assert objections("SELECT (ARRAY[1, 2])[1], 'x'::mood", reader()) == []

    def test_casts_are_added_where_values_are_written(self) -> None:
        found = objection("INSERT INTO labels (id, code) SELECT id, notes FROM orders", writer())
        assert (found.rule, found.object) == (FUNCTION, "public.to_sku")
        assert objections("INSERT INTO labels (id, qty) VALUES (1, 2)", writer()) == []

    @pytest.mark.parametrize(
        "sql",
        [
            "INSERT INTO labels (id, code) VALUES (1, 'x'::text)",
            "INSERT INTO labels VALUES (1, CAST('x' AS varchar), 2)",
            "INSERT INTO labels (id, code) VALUES (1, '(x)'), (2, text 'x')",
            "INSERT INTO labels (id, code) VALUES (1, '(x)') ON CONFLICT (id) DO UPDATE SET code = 'x'::text",
            "INSERT INTO labels (id, code) VALUES (1, '(x)') ON CONFLICT (id) DO UPDATE"
            " SET (id, code) = (2, 'x'::text)",
            "UPDATE labels SET code = 'x'::text WHERE id = 1",
            "MERGE INTO labels l USING orders o ON l.id = o.id AND o.id = 3"
            " WHEN MATCHED THEN UPDATE SET code = 'x'::text",
            "MERGE INTO labels l USING orders o ON l.id = o.id AND o.id = 3"
            " WHEN NOT MATCHED THEN INSERT (id, code) VALUES (3, 'x'::text)",
        ],
    )
    def test_a_constant_of_a_type_of_its_own_is_cast_to_the_columns(self, sql: str) -> None:
        """And one without is read as the column's type."""
        assert objection(sql, writer()).object == "public.to_sku"
        untyped = re.sub(r"'x'::text|text 'x'|CAST\('x' AS varchar\)", "'(x)'", sql)
        assert [v for v in objections(untyped, writer()) if v.object == "public.to_sku"] == (
            # A row in one piece may be of any kind.
            objections(untyped, writer()) if "SET (" in untyped else []
        )

    def test_functions_may_be_opened_by_what_they_are(self) -> None:
        policy = reader(
            functions="{allow: [builtin-safe, {language: sql, security_definer: false,"
            " volatility: immutable}]}"
        )
        assert objections("SELECT pure(1)", policy) == []
        assert objection("SELECT definer(1)", policy).object == "public.definer"
        assert objection("SELECT order_total(1)", policy).object == "public.order_total"
        assert objection("SELECT pg_sleep(1)", policy).object == "pg_catalog.pg_sleep"
        owned = reader(functions="{allow: [{schema: public, name: 'or*', owner: dba, volatility: [stable]}]}")
        assert objections("SELECT order_total(1)", owned) == []

    def test_what_relations_set_off_is_judged_where_a_policy_asks(self) -> None:
        asked = writer(rules="{side-effect-function: reject}")
        insert = "INSERT INTO orders (customer_id) VALUES (1)"
        assert objections(insert, writer()) == []
        assert objection(insert, asked).object == "public.log_change"
        assert objection("SELECT id FROM guarded LIMIT 1", asked).object == "public.tenant_of"
        assert objections("SELECT id FROM orders LIMIT 1", asked) == []
        assert objections("DELETE FROM shipments WHERE id = 1", asked) == []


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("sql", "rule", "sqlstate", "hint", "suggestion"),
        [
            ("SELECT id FROM customer", "unknown-relation", None, "Use customers instead.", "customers"),
            ("SELECT id FROM public.order", "unknown-relation", None, "orders", "orders"),
            ("SELECT custmer_id FROM orders", "unknown-column", "42703", "customer_id", "orders.customer_id"),
            (
                "SELECT o.country FROM orders o JOIN customers c ON c.id = o.customer_id",
                "unknown-column",
                "42703",
                "country exists on customers (alias c), which is already in the query: write c.country.",
                "c.country",
            ),
            (
                "SELECT o.country FROM orders o",
                "unknown-column",
                "42703",
                "country exists on customers: join it on customers.id = o.customer_id.",
                None,
            ),
            (
                "SELECT orders.id FROM orders o",
                "unknown-column",
                "42P01",
                "exists on orders (alias o)",
                "o.id",
            ),
            ("SELECT shipped_on FROM customers", "unknown-column", "42703", "exists on shipments", None),
            ("SELECT ifnull(notes, '') FROM orders", "unknown-function", None, "coalesce", None),
            ("SELECT order_totl(1)", "unknown-function", None, "order_total", "order_total"),
            ("SELECT 1 <~~~> 2", "unknown-function", None, "own operators", None),
        ],
    )
    def test_they_are_refused_with_the_places_where_they_exist(
        self, sql: str, rule: str, sqlstate: str | None, hint: str, suggestion: str | None
    ) -> None:
        found = objection(sql, reader())
        assert (found.rule, found.sqlstate, found.suggestion) == (rule, sqlstate, suggestion)
        assert hint in found.hint
        assert found.position
        assert found.repairable

    def test_one_repair_is_open(self) -> None:
        decision = judge("SELECT custmer_id FROM orders LIMIT 1", reader())
        assert isinstance(decision, Reject)
        assert decision.repair.allowed

    @pytest.mark.parametrize(
        ("sql", "hidden"),
        [
            ("SELECT 1 FROM api_key", "api_keys"),
            ("SELECT 1 FROM card", "cards"),
            ("SELECT salry FROM employees", "salary"),
            ("SELECT e.salary_x FROM employees e", "salary"),
            ("SELECT c.secret FROM customers c", "api_keys"),
            ("SELECT pan FROM customers", "cards"),
            ("SELECT secret_sum(1)", "billing"),
            ("SELECT 1 FROM key_vew", "key_view"),
        ],
    )
    def test_nothing_hidden_is_told(self, sql: str, hidden: str) -> None:
        for found in objections(sql, reader()):
            assert found.rule.startswith("unknown-")
            assert hidden not in f"{found.hint} {found.suggestion}".replace("salary_x", "")

    def test_a_hidden_relation_tells_nothing_of_its_columns(self) -> None:
        assert rules_of(objections("SELECT no_such FROM api_keys", reader())) == {RELATION}

    @pytest.mark.parametrize(
        "sql", ["SELECT 1 FROM nowhere", "SELECT no_such FROM orders", "SELECT x.id FROM orders o"]
    )
    def test_where_temporary_relations_may_be_the_server_answers_for_relations(self, sql: str) -> None:
        known = names(temporary=True)
        assert "unknown-relation" not in rules_of(objections(sql, reader(), known))

    def test_what_the_session_may_have_made_is_judged_by_name(self) -> None:
        policy, known = reader(functions='{allow: ["public.made_*"]}'), names(temporary=True)
        assert objections("SELECT made_here(1), 'x'::made_type", policy, known) == []
        for sql in ("SELECT not_listed(1)", "SELECT 'x'::not_listed", "SELECT 1 <~~~> 2"):
            assert objection(sql, policy, known).rule == FUNCTION

    @pytest.mark.parametrize(
        "sql",
        [
            "DELETE FROM orders WHERE statuss = 'new'",
            "UPDATE orders SET status = 'paid' WHERE (statuss) IN ('new')",
            "UPDATE orders AS o SET status = 'paid' WHERE lower(statuss) = 'new' AND true",
            "DELETE FROM orders USING pay p WHERE p.employee_id = orders.id AND statuss = 'new'",
            "DELETE FROM orders WHERE statuss = (SELECT max(name) FROM staff)",
        ],
    )
    def test_a_condition_on_a_column_that_nothing_has_is_no_tautology(self, sql: str) -> None:
        assert [found.rule for found in objections(sql, writer())] == ["unknown-column"]

    def test_what_is_missing_twice_is_told_once(self) -> None:
        assert len(objections("SELECT 1 FROM nowhere a, nowhere b LIMIT 1", reader())) == 1


class TestInserts:
    @pytest.mark.parametrize(
        ("sql", "missing"),
        [
            ("INSERT INTO shipments (order_id, carrier) VALUES (5, 'p')", "shipped_on"),
            ("INSERT INTO shipments (order_id) VALUES (5)", "carrier, shipped_on"),
            ("INSERT INTO shipments (order_id, carrier, shipped_on) VALUES (5, NULL, 'x')", "carrier"),
            ("INSERT INTO shipments (order_id, carrier, shipped_on) VALUES (5, DEFAULT, 'x')", "carrier"),
            ("INSERT INTO shipments DEFAULT VALUES", "order_id, carrier, shipped_on"),
            ("INSERT INTO shipments (order_id) SELECT id FROM orders WHERE id = 9", "carrier, shipped_on"),
            ("INSERT INTO shipments VALUES (1, 5, 'p')", "shipped_on"),
            ("INSERT INTO shipments SELECT 1, id, 'p' FROM orders WHERE id = 9", "shipped_on"),
            ("INSERT INTO shipments SELECT 1, id, NULL, now() FROM orders WHERE id = 9", "carrier"),
            ("INSERT INTO shipments (order_id, carrier, shipped_on) SELECT 5, NULL::text, now()", "carrier"),
            ("INSERT INTO shipments VALUES (1, 5, 'p', '2025-01-01'), (2, 5, NULL, '2025-01-01')", "carrier"),
            ("INSERT INTO shipments (order_id) VALUES (5) ON CONFLICT DO NOTHING", "carrier, shipped_on"),
            ("COPY shipments (order_id, carrier) FROM STDIN", "shipped_on"),
            (
                "MERGE INTO shipments s USING orders o ON s.order_id = o.id AND o.id = 5 "
                "WHEN NOT MATCHED THEN INSERT (order_id, carrier) VALUES (o.id, 'p')",
                "shipped_on",
            ),
        ],
    )
    def test_what_a_table_demands_is_missed(self, sql: str, missing: str) -> None:
        found = objection(sql, writer())
        assert found.rule == "insert-missing-not-null"
        assert f"the values of {missing};" in found.hint
        assert found.halt is Halt.CLASS_NOT_REPAIRABLE
        assert not found.repairable

    @pytest.mark.parametrize(
        "sql",
        [
            "INSERT INTO shipments (order_id, carrier, shipped_on) VALUES (5, 'p', '2025-01-01')",
            "INSERT INTO shipments (id, order_id, carrier, shipped_on) VALUES (DEFAULT, 5, 'p', $1)",
            "INSERT INTO shipments SELECT 1, 2, 'p', date '2025-01-01'",
            "INSERT INTO shipments SELECT * FROM shipments WHERE id = 1",
            "INSERT INTO shipments SELECT 1, 2, NULL, now() UNION ALL SELECT 1, 2, 'p', now()",
            "INSERT INTO stamped (id) VALUES (1)",
            "COPY shipments FROM STDIN",
        ],
    )
    def test_what_is_complete_or_supplied_passes(self, sql: str) -> None:
        assert objections(sql, writer()) == []

    @pytest.mark.parametrize(
        ("sql", "wanted", "missing"),
        [
            ("INSERT INTO shipments VALUES (1, $1, $2, $3)", {1, 2, 3}, {1: "order_id", 3: "shipped_on"}),
            ("INSERT INTO shipments VALUES ($1, $2, 'p', now())", {2}, {2: "order_id"}),
            ("INSERT INTO shipments SELECT 1, $1, CAST($2 AS text), $3::date", {1, 2, 3}, {2: "carrier"}),
            ("INSERT INTO shipments VALUES (1, 2, 'p', $1), (2, 3, $2, now())", {1, 2}, {2: "carrier"}),
            (
                "WITH n AS (INSERT INTO shipments VALUES (1, 2, $2, now()) RETURNING id) SELECT $1 FROM n",
                {2},
                {2: "carrier"},
            ),
            ("INSERT INTO shipments VALUES (1, 2, coalesce($1, 'p'), now())", set(), {}),
            ("INSERT INTO stamped (id) VALUES ($1)", set(), {}),
            ("INSERT INTO api_keys (id) VALUES ($1)", set(), {}),
            ("UPDATE orders SET status = $1 WHERE id = $2", set(), {}),
        ],
    )
    def test_a_parameter_that_is_a_wanted_value_may_not_be_null(
        self, sql: str, wanted: set[int], missing: dict[int, str]
    ) -> None:
        (facts,), policy = parse(sql).statements, writer()
        assert insert_missing_not_null.wanted(facts, names(), policy) == wanted
        assert insert_missing_not_null.unbound(facts, names(), policy, ()) is None
        for number, column in missing.items():
            found = insert_missing_not_null.unbound(facts, names(), policy, [number])
            assert found is not None
            assert (found.rule, found.column) == ("insert-missing-not-null", column)
            assert found.halt is Halt.CLASS_NOT_REPAIRABLE

    def test_of_a_hidden_relation_nothing_is_told(self) -> None:
        policy = writer(rules="{side-effect-function: reject}")
        found = objections("INSERT INTO api_keys (id) VALUES (1)", policy)
        assert rules_of(found) == {RELATION}

    def test_a_hidden_column_is_not_named(self) -> None:
        policy = writer(columns="{public.pay: {deny: [salary]}}")
        found = objection("INSERT INTO pay (employee_id) VALUES (1)", policy)
        assert "salary" not in found.message + found.hint
        assert "columns that the policy hides" in found.hint


class TestWithoutACatalog:
    @pytest.mark.parametrize(
        "sql", ["SELECT 1 FROM orders", "SELECT now()", "SELECT 1 + 1", "SELECT '1'::int", "TABLE orders"]
    )
    def test_what_needs_one_is_refused_saying_so(self, sql: str) -> None:
        decision = decide(reader(), Situation("agent", UnreadCatalog((("public",),), "shop")), parse(sql))
        assert isinstance(decision, Reject)
        assert "catalog of database shop cannot be read" in decision.violations[0].message
        assert not decision.repair.allowed

    @pytest.mark.parametrize("sql", ["SELECT 1", "EXPLAIN SELECT 1", ""])
    def test_what_needs_none_passes(self, sql: str) -> None:
        situation = Situation("agent", UnreadCatalog((("public",),), "shop"))
        assert isinstance(decide(reader(), situation, parse(sql)), Allow)


class TestConditions:
    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE orders SET notes = 'x' FROM customers WHERE country = 'NL'",
            "UPDATE orders SET notes = 'x' FROM customers c WHERE name = 'Bob' AND email LIKE 'b%'",
            "UPDATE orders SET notes = 'x' FROM (VALUES (1)) AS v(a) WHERE a = 1",
            "DELETE FROM orders USING customers WHERE name = 'Bob' OR country = 'NL'",
            "MERGE INTO orders o USING customers ON country = 'NL' WHEN MATCHED THEN DELETE",
            "UPDATE orders SET notes = 'x' WHERE EXISTS (SELECT FROM customers WHERE name = country)",
            # Every row finds itself.
            "DELETE FROM orders USING orders o WHERE o.id = orders.id",
            "UPDATE orders o SET notes = 'x' FROM orders p WHERE o.status = p.status AND p.id = o.id",
            "MERGE INTO orders o USING orders p ON o.id = p.id WHEN MATCHED THEN DELETE",
        ],
    )
    def test_a_joined_table_s_columns_choose_no_rows(self, sql: str) -> None:
        assert objection(sql, writer()).rule == "tautology-predicate"

    @pytest.mark.parametrize(
        "sql",
        [
            "UPDATE orders SET notes = 'x' FROM customers c WHERE country = 'NL' AND customer_id = c.id",
            "UPDATE orders SET notes = 'x' FROM customers c WHERE country = 'NL' AND status = 'open'",
            "UPDATE orders SET notes = 'x' WHERE ctid = '(0,1)'",
            "UPDATE orders SET notes = 'x' WHERE EXISTS (SELECT FROM customers c WHERE c.id = customer_id)",
            "UPDATE orders SET notes = 'x' WHERE EXISTS (SELECT FROM customers WHERE name = notes)",
            "DELETE FROM orders o USING orders p WHERE o.notes = p.notes AND o.id > p.id",
            "DELETE FROM orders o USING orders p WHERE o.id = p.customer_id",
            "DELETE FROM orders o USING orders p WHERE o.id = p.id AND p.status = 'void'",
        ],
    )
    def test_what_is_tied_to_the_target_does(self, sql: str) -> None:
        assert objections(sql, writer()) == []

    def test_what_may_be_a_table_of_the_session_s_own_may_have_any_column(self) -> None:
        sql = "UPDATE orders SET notes = 'x' FROM customers WHERE country = 'NL'"
        assert objections(sql, writer(), names(temporary=True)) == []


def test_a_type_is_cast_to_where_no_function_of_its_name_fits() -> None:
    functions = (*CONTENT.functions, function("small_qty", "int4, int4"))
    known = names(catalog=Catalog(replace(CONTENT, functions=functions)))
    policy = reader(functions="{allow: [builtin-safe, public.small_qty]}")
    for sql in ("SELECT small_qty(7)", "SELECT public.small_qty(id) FROM orders"):
        assert objection(sql, policy, known).object == "public.small_enough", sql
    assert objections("SELECT small_qty(1, 2), date(now())", policy, known) == []
