from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.decision import MAX_VIOLATIONS, Allow, Reject
from policy.facts import QueryString
from policy.model import Halt, RepairTerms, StatementClass, Violation
from policy.rejection import DETAIL_BYTES, Rejection, notice, reject
from tests.policy.rules.judging import READER, WRITER, judge, policy_of

KEYS = {"v", "id", "decision", "class", "rule", "violations", "repair", "halt", "cost"}


def rejection_of(sql: str, text: str = READER, **sections: str) -> Rejection:
    policy = policy_of(text, **sections)
    decision = judge(sql, policy)
    assert isinstance(decision, Reject)
    return reject(decision, "01JD", policy)


def detail_of(rejection: Rejection) -> dict[str, Any]:
    assert "\n" not in rejection.detail
    assert len(rejection.detail.encode()) < DETAIL_BYTES
    detail: dict[str, Any] = json.loads(rejection.detail)
    return detail


def test_every_field_of_a_rejection_without_repair() -> None:
    policy = policy_of(WRITER)
    decision = judge("UPDATE orders SET status = 'paid'", policy)
    assert isinstance(decision, Reject)
    assert reject(decision, "01JD", policy) == Rejection(
        sqlstate="42501",
        message="UPDATE on public.orders has no WHERE clause. Do not retry.",
        detail='{"v":1,"id":"01JD","decision":"reject","class":"update","rule":"update-without-where","violations":'
        '[{"rule":"update-without-where","message":"UPDATE on public.orders has no WHERE clause",'
        '"object":"public.orders","position":1,"suggestion":null}],"repair":{"allowed":false,"turns_left":0,'
        '"keep":null},"halt":"class_not_repairable","cost":null}',
        hint="Name the rows in a WHERE clause, in a new statement that somebody has asked for. Do not retry.",
        position=1,
        schema="public",
        table="orders",
        column=None,
        file="test.yaml",
        line=0,
        routine="update-without-where",
    )


def test_a_repair_says_what_to_keep_and_that_there_is_one() -> None:
    rejection = rejection_of("SELECT o.id FROM orders o, customers c WHERE c.id = o.customer_id", WRITER)
    detail = detail_of(rejection)
    assert detail["repair"] == {
        "allowed": True,
        "turns_left": 1,
        "keep": {"relations": ["public.orders", "public.customers"], "predicates": ["c.id = o.customer_id"]},
    }
    assert detail["halt"] is None
    assert "Do not retry" not in rejection.hint + rejection.message
    assert "one corrected statement" in rejection.hint
    assert "Add LIMIT" in rejection.message


def test_text_that_cannot_be_read_keeps_nothing() -> None:
    rejection = rejection_of("SELEC 1")
    assert detail_of(rejection)["repair"]["keep"] == {"relations": [], "predicates": []}
    assert rejection.sqlstate == "42601"
    assert rejection.hint.endswith("Send one corrected statement: there is no second attempt.")


@pytest.mark.parametrize(
    ("sql", "text", "hint_end", "message_part"),
    [
        ("DROP TABLE orders", READER, "Do not retry.", "Do not retry."),
        ("DELETE FROM orders WHERE id = 1", READER, "Do not retry.", "Do not retry."),
        (
            "SELECT * FROM employees",
            READER,
            "Do not retry this statement as it is.",
            "Name the columns you need",
        ),
        ("SELECT 1 FROM api_keys", READER, "Do not retry this statement as it is.", "Leave it out"),
        ("SET work_mem = '1GB'", READER, "Do not retry this statement as it is.", "Leave it as it is"),
    ],
)
def test_hint_and_message_say_whether_to_retry(sql: str, text: str, hint_end: str, message_part: str) -> None:
    rejection = rejection_of(sql, text)
    assert rejection.hint.endswith(hint_end)
    assert message_part in rejection.message


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELEC 1", "42601"),
        ("SELECT 1 FROM api_keys", "42501"),
        ("SELECT " + "1+" * 9000 + "1", "54001"),
        ("COPY orders TO '/tmp/x'", "42501"),
        ("SELECT 1; SELECT 2", "42501"),
    ],
)
def test_sqlstates(sql: str, sqlstate: str) -> None:
    assert rejection_of(sql).sqlstate == sqlstate


def test_the_object_at_fault_has_its_fields() -> None:
    rejection = rejection_of("SELECT name, salary FROM employees")
    assert (rejection.schema, rejection.table, rejection.column) == ("public", "employees", "salary")
    assert rejection.position == 14
    assert rejection.line > 0


def test_hidden_names_are_not_told() -> None:
    rejection = rejection_of("SELECT * FROM employees")
    everything = " ".join(map(str, (rejection.message, rejection.detail, rejection.hint, rejection.column)))
    assert "salary" not in everything


def test_many_violations_are_cut_and_counted() -> None:
    tables = ", ".join(f"billing.{'t' * 50}{n}" for n in range(200))
    detail = detail_of(rejection_of(f"SELECT 1 FROM {tables}"))
    assert 0 < len(detail["violations"]) < 200
    assert detail["left_out"]["violations"] == MAX_VIOLATIONS - len(detail["violations"])


def test_long_kept_predicates_are_cut() -> None:
    terms = " AND ".join(f"c.x{n} = '{'y' * 60}'" for n in range(100))
    detail = detail_of(rejection_of(f"SELECT 1 FROM orders o, customers c WHERE {terms}", WRITER))
    assert detail["left_out"]["predicates"] > 0
    assert detail["repair"]["keep"]["predicates"][0].startswith("c.x0 = ")


def test_a_warning_becomes_a_notice() -> None:
    policy = policy_of(READER)
    decision = judge("SELECT o.id FROM orders o, customers c", policy)
    assert isinstance(decision, Allow)
    (warning,) = decision.warnings
    told = notice(warning, policy)
    assert told.sqlstate == "01000"
    assert told.routine == "unbounded-join"
    assert "joins 2 relations" in told.message
    assert "LIMIT" in told.hint
    assert told.file == "test.yaml"  # without its folder


_texts = st.text(max_size=5000)
_violations = st.builds(
    Violation,
    rule=st.sampled_from(["unparsable", "relation-not-allowed", "class-not-allowed"]),
    message=_texts,
    hint=_texts,
    object=st.none() | _texts,
    suggestion=st.none() | _texts,
    position=st.none() | st.integers(1, 10**7),
    halt=st.none() | st.sampled_from(Halt),
)


@given(
    violations=st.lists(_violations, min_size=1, max_size=40),
    relations=st.lists(_texts, max_size=20),
    predicates=st.lists(_texts, max_size=20),
    allowed=st.booleans(),
)
def test_detail_is_always_one_short_line_of_json(
    violations: list[Violation], relations: list[str], predicates: list[str], allowed: bool
) -> None:
    repair = RepairTerms(allowed, int(allowed), tuple(relations), tuple(predicates))
    halt = None if allowed else violations[0].halt
    decision = Reject(QueryString("x"), StatementClass.OTHER, tuple(violations), repair, halt)
    rejection = reject(decision, "0" * 26, policy_of())
    detail = detail_of(rejection)
    assert set(detail) - {"left_out"} == KEYS
    assert detail["rule"] == rejection.routine
    assert "\n" not in rejection.message + rejection.hint
    assert rejection.hint
    assert len(rejection.message) < 2000
    assert ("Do not retry" in rejection.hint) or allowed


@pytest.mark.parametrize(
    ("sql", "hidden"),
    [
        ('TABLE U&"api\\005fkeys"', "api_keys"),
        ("TABLE U&\"api!005fkeys\" UESCAPE '!'", "api_keys"),
        ('SELECT pan FROM U&"b\\0069lling".cards', "billing"),
        ('SELECT pan FROM U&"billin\\0067".U&"c\\0061rds"', "cards"),
        ("SELECT E'api\\x5fkeys'::regclass", "api_keys"),
        ('SELECT U&"sal\\0061ry" FROM employees', "salary"),
        ('SELECT e.U&"sal\\0061ry" FROM employees e', "salary"),
        ('SELECT id FROM employees WHERE U&"sal\\0061ry" > 5', "salary"),
    ],
)
@pytest.mark.parametrize("text", [READER, WRITER])
def test_a_hidden_name_that_came_in_escapes_is_not_spelt_out(sql: str, hidden: str, text: str) -> None:
    denied = '{allow: ["public.*"], deny: ["billing.*", public.api_keys], catalogs: filtered}'
    rejection = rejection_of(sql, text, relations=denied)
    told = " ".join(filter(None, (rejection.message, rejection.hint, rejection.detail)))
    named = {rejection.schema, rejection.table, rejection.column}
    assert rejection.routine in ("relation-not-allowed", "column-not-allowed")
    assert "(hidden)" in rejection.message
    assert hidden not in told
    assert hidden not in named
    assert rejection.position is not None


def test_a_hidden_name_written_in_clear_is_told_as_ever() -> None:
    rejection = rejection_of("SELECT Salary FROM employees")
    assert rejection.message.startswith("Column salary of public.employees is hidden")
    assert (rejection.table, rejection.column) == ("employees", "salary")
