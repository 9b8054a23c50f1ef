"""What an engine's error may tell, and what is added to it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from policy.catalog_names import CatalogNames
from policy.engine_errors import enrich
from policy.model import Policy
from policy.names import PathNames
from policy.parse import parse
from tests.policy.rules.schema import names, reader, writer

TEMPORARY = names(temporary=True)


def told(
    fields: Mapping[str, str],
    sql: str,
    policy: Policy | None = None,
    known: CatalogNames | PathNames = TEMPORARY,
) -> dict[str, str]:
    """The fields as the agent is sent them."""
    return enrich(fields, parse(sql), known, policy or writer(), error_id="c-1") or dict(fields)


class TestWhatMayNotBeTold:
    def test_a_hint_of_postgresql_that_names_something_hidden_goes(self) -> None:
        fields = {
            "sqlstate": "42703",
            "message": 'column "salry" does not exist',
            "hint": 'Perhaps you meant to reference the column "employees.salary".',
            "position": "8",
        }
        found = told(fields, "SELECT salry FROM employees")
        assert "salary" not in json.dumps(found)
        assert found["message"] == fields["message"]
        assert found["position"] == "8"

    def test_a_foreign_key_of_a_hidden_table_is_not_named(self) -> None:
        fields = {
            "sqlstate": "23503",
            "message": 'update or delete on table "customers" violates foreign key constraint '
            '"api_keys_customer_id_fkey" on table "api_keys"',
            "detail": 'Key (id)=(10) is still referenced from table "api_keys".',
            "schema": "public",
            "table": "api_keys",
            "constraint": "api_keys_customer_id_fkey",
        }
        found = told(fields, "DELETE FROM customers WHERE id = 10")
        assert "api_keys" not in json.dumps(found)
        assert '"customers"' in found["message"]
        assert found["detail"] == "Key (id)=(10) is still referenced from table (hidden)."
        assert (found["sqlstate"], found["schema"]) == ("23503", "public")
        assert "table" not in found

    @pytest.mark.parametrize("sqlstate", ["23502", "23514", "44000"])
    def test_a_failing_row_is_not_shown_where_a_column_is_hidden(self, sqlstate: str) -> None:
        fields = {
            "sqlstate": sqlstate,
            "message": "m",
            "detail": "Failing row contains (8, E, null, 7777008).",
        }
        sql = "UPDATE employees SET title = NULL WHERE id = 8"
        hidden = told({**fields, "schema": "public", "table": "employees"}, sql)
        assert "detail" not in hidden
        assert "detail" not in told(fields, sql)
        open_table = {**fields, "schema": "public", "table": "orders"}
        assert told(open_table, "UPDATE orders SET status = NULL WHERE id = 8") == open_table

    @pytest.mark.parametrize(
        ("sqlstate", "table", "detail", "kept"),
        [
            ("23505", "employees", "Key (salary)=(7777008) already exists.", False),
            ("23505", "employees", "Key (id, salary)=(8, 7777008) already exists.", False),
            ("23505", "employees", "Key (abs(salary))=(7777008) already exists.", False),
            ("23505", "employees", "Schlüssel »(id, (salary + 1))=(8, 7)« existiert bereits.", False),
            (
                "23P01",
                "employees",
                "Key (id, salary)=(8, 1) conflicts with existing key (id, salary)=(8, 7777008).",
                False,
            ),
            ("23505", "employees", "Key (id)=(8) already exists.", True),
            ("23505", "employees", "Key (id, salary_band)=(8, 3) already exists.", True),
            ("23505", "orders", "Key (id)=(8) already exists.", True),
            ("23505", "api_keys", "Key (id)=(8) already exists.", False),
            ("23503", "employees", 'Key (salary)=(7777008) is not present in table "bands".', False),
            ("23503", "orders", 'Key (customer_id)=(5) is not present in table "customers".', True),
            ("23503", "api_keys", "Key (id)=(10) is still referenced from table (hidden).", True),
            ("23503", "api_keys", "Key (customer_id)=(10) is not present in table (hidden).", False),
            # By a constraint that the snapshot does not hold: of any hidden column there is.
            (
                "23503",
                "shipments",
                'Key (salary)=(7777008) is still referenced from table "shipments".',
                False,
            ),
            ("23503", "shipments", 'Key (id)=(3) is still referenced from table "shipments".', True),
            # Of a table that the snapshot does not hold.
            ("23505", "unknown", "Key (id)=(8) already exists.", False),
        ],
    )
    @pytest.mark.parametrize("remark", ["", " /* salary */", ' -- "salary" customer_id secret id'])
    def test_a_key_of_hidden_columns_is_not_shown_whatever_the_agent_says(
        self, sqlstate: str, table: str, detail: str, kept: bool, remark: str
    ) -> None:
        constraint = {"orders": "fk", "api_keys": "api_keys_customer_id_fkey"}.get(table, "c")
        place = {"schema": "public", "table": table, "constraint": constraint}
        fields = {"sqlstate": sqlstate, "message": "m", "detail": detail, **place}
        found = told(fields, "UPDATE orders SET notes = 'x' WHERE id = 8" + remark)
        assert found.get("detail") == (detail if kept else None)

    def test_where_a_trigger_failed_is_not_told_if_it_names_what_is_hidden(self) -> None:
        fields = {
            "sqlstate": "22001",
            "message": "value too long",
            "context": 'SQL statement "INSERT INTO public.api_keys VALUES (1)"\nPL/pgSQL function f() line 1',
            "internal_query": "INSERT INTO public.api_keys VALUES (1)",
            "internal_position": "3",
        }
        assert told(fields, "INSERT INTO orders (customer_id) VALUES (1)") == {
            "sqlstate": "22001",
            "message": "value too long",
        }

    def test_what_the_agent_said_itself_may_be_said_back(self) -> None:
        fields = {"sqlstate": "22P02", "message": 'invalid input syntax for type integer: "salary"'}
        assert told(fields, "SELECT id FROM orders WHERE id = 'salary'") == fields


class TestWhatIsAdded:
    @pytest.mark.parametrize(
        ("sqlstate", "position", "sql", "hint"),
        [
            ("42P01", 15, "SELECT id FROM customer", "Use customers instead."),
            ("42703", 8, "SELECT custmer_id FROM orders", "Use orders.customer_id instead."),
            ("42703", 8, "SELECT o.country FROM orders o JOIN customers c ON true", "write c.country"),
            ("42702", 8, "SELECT id FROM orders JOIN customers ON true", "Write orders.id or customers.id."),
            ("42883", 8, "SELECT ifnull(notes, '') FROM orders", "coalesce"),
            ("42803", 8, "SELECT status, count(*) FROM orders", "Add status to GROUP BY"),
        ],
    )
    def test_an_error_in_a_name_tells_where_it_exists(
        self, sqlstate: str, position: int, sql: str, hint: str
    ) -> None:
        at = position + (sqlstate == "42P01")
        found = told({"sqlstate": sqlstate, "message": "m", "position": str(at)}, sql)
        assert hint in found["hint"]
        assert (found["sqlstate"], found["message"], found["position"]) == (sqlstate, "m", str(at))

    def test_its_detail_is_the_contract_s_object_with_postgresql_s_own_within(self) -> None:
        found = told(
            {"sqlstate": "42804", "message": "m", "detail": "a detail"}, "DELETE FROM orders WHERE id = 1"
        )
        detail = json.loads(found["detail"])
        assert (detail["v"], detail["id"], detail["decision"], detail["class"]) == (
            1,
            "c-1",
            "engine_error",
            "delete",
        )
        assert detail["rule"] is None
        assert detail["engine"] == {"sqlstate": "42804", "detail": "a detail"}
        assert detail["repair"] == {"allowed": False, "turns_left": 0, "keep": None}
        assert "\n" not in found["detail"]

    def test_it_says_whether_a_repair_is_open(self) -> None:
        fields, query = {"sqlstate": "42804", "message": "m"}, parse("SELECT 1 FROM orders")
        for turns_left in (0, 1, 2):
            found = enrich(fields, query, TEMPORARY, reader(), turns_left=turns_left) or {}
            told_of_it = json.loads(found["detail"])["repair"]
            assert told_of_it == {"allowed": turns_left > 0, "turns_left": turns_left, "keep": None}

    def test_a_hint_of_postgresql_that_names_nothing_hidden_stays_where_there_is_no_better(self) -> None:
        fields = {"sqlstate": "42804", "message": "m", "hint": "You will need to cast it."}
        assert told(fields, "SELECT 1 FROM orders")["hint"] == fields["hint"]


class TestWhatPassesAsItIs:
    @pytest.mark.parametrize(
        "fields",
        [
            {"sqlstate": "22012", "message": "division by zero"},
            {"sqlstate": "23505", "message": 'duplicate key value violates unique constraint "orders_pkey"'},
            {"sqlstate": "42P05", "message": 'prepared statement "s1" already exists'},
            {"sqlstate": "57014", "message": "canceling statement due to statement timeout"},
        ],
    )
    def test_errors_of_other_classes_that_name_nothing_hidden(self, fields: dict[str, str]) -> None:
        assert enrich(fields, parse("SELECT 1 FROM orders"), TEMPORARY, writer()) is None

    def test_everything_where_the_policy_only_observes(self) -> None:
        observing = writer(mode="observe")
        fields = {"sqlstate": "42703", "message": 'column "salary" does not exist', "position": "8"}
        assert enrich(fields, parse("SELECT x FROM orders"), TEMPORARY, observing) is None

    def test_without_a_catalog_only_the_detail_is_added(self) -> None:
        fields = {"sqlstate": "42703", "message": "m", "position": "8"}
        found = told(fields, "SELECT x FROM orders", known=PathNames())
        assert {name: text for name, text in found.items() if name != "detail"} == fields
