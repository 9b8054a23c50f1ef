"""What is no answer to a refusal: looks around, other work, other workers."""

from __future__ import annotations

import pytest

from policy.ledger import Book
from policy.likeness import recognisable
from policy.lineage import Outcome
from policy.model import Halt
from tests.policy.repairing import made, refused
from tests.policy.talking import AWAY, HOME, LOOKS, MENDED, SELECT, SELECT_MENDED, UPDATE, Talk, spent

# What is no answer -----------------------------------------------------------------------------------


OTHER_ROWS = [
    "UPDATE inventory SET on_hand = 12 WHERE product_id = 9 AND warehouse = 'leeds'",
    "UPDATE inventory SET on_hand = 44 WHERE product_id = 5 AND warehouse = 'york'",
    "DELETE FROM inventory WHERE product_id = 7",
    "INSERT INTO inventory (product_id, warehouse, on_hand) VALUES (5, 'leeds', 44)",
]


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_around_costs_nothing(talk: Talk, look: str) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    talk.refuse(SELECT, "o.totl", ("o.total",))
    for connection in (HOME, AWAY):
        assert talk.passes(look, on=connection)
    talk.repair(MENDED)
    talk.repair(SELECT_MENDED)


@pytest.mark.parametrize("other", OTHER_ROWS)
def test_other_work_of_another_connection_is_no_answer(talk: Talk, other: str) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    assert talk.passes(other, on=AWAY)
    talk.repair(MENDED, on=AWAY)


@pytest.mark.parametrize(
    "second",
    [
        MENDED,
        "update Inventory as i set on_hand=44 where i.warehouse='leeds' and i.product_id=5",
        "/**/ UPDATE public.inventory SET on_hand = 40 + 4 WHERE 5 = product_id AND warehouse IN ('leeds')",
        f"{MENDED} AND on_hand < 10",
        f"{MENDED} RETURNING *",
    ],
)
def test_a_respelt_repair_is_known_on_another_connection(talk: Talk, second: str) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    talk.repair(second, on=AWAY)


@pytest.mark.parametrize(
    ("first", "at", "second"),
    [
        ("SELECT custmer_id FROM orders LIMIT 1", "custmer_id", "SELECT customer_id FROM orders LIMIT 1"),
        (SELECT, "o.totl", f"{SELECT_MENDED} LIMIT 50"),
        (
            "SELECT a.nme FROM a LEFT JOIN b ON true LEFT JOIN c ON a.i = c.i AND c.k = 1",
            "a.nme",
            "SELECT x.name FROM a x LEFT JOIN b ON true LEFT JOIN c ON c.i = x.i AND c.k = 1",
        ),
        (
            SELECT,
            "o.totl",
            "SELECT x.id, x.total, y.name FROM customers y, orders x "
            "WHERE y.id = x.customer_id AND x.status = 'open'",
        ),
        ("SELECT * FROM customer WHERE id = 3", "customer", "SELECT * FROM customers WHERE id = 3"),
    ],
)
def test_a_read_is_known_by_its_likeness(first: str, at: str, second: str) -> None:
    before, finding = refused(first, at, sqlstate="42P01" if at == "customer" else "42703")
    assert recognisable(before, finding, made(second))


@pytest.mark.parametrize(
    "look",
    [
        SELECT_MENDED.replace("o.total, c.name", "o.placed_on, o.channel"),
        SELECT_MENDED.replace("'open'", "'sent'"),
        SELECT_MENDED.replace(" WHERE o.status = 'open'", " LIMIT 5"),
        "SELECT o.id, o.placed_on FROM orders o WHERE o.status = 'open'",
        f"EXPLAIN {SELECT_MENDED}",
    ],
)
def test_a_read_of_something_else_is_no_answer(look: str) -> None:
    before, finding = refused(SELECT, "o.totl", ("o.total",))
    assert recognisable(before, finding, made(SELECT_MENDED))
    assert not recognisable(before, finding, made(look))


def test_a_statement_with_nothing_to_measure_is_known_by_its_text() -> None:
    first, finding = refused("EXECUTE p (1)", sqlstate="42804")
    assert recognisable(first, finding, made("EXECUTE  p(1)"))
    assert not recognisable(first, finding, made("EXECUTE p (2)"))
    assert not recognisable(first, finding, made("BEGIN"))
    first, finding = refused("SELECT nextval('orders_id_seq')", sqlstate="42P01")
    for other in ("BEGIN", "SHOW search_path", "SELECT id, email INTO copied FROM customers"):
        assert not recognisable(first, finding, made(other))


def test_a_turn_spent_elsewhere_on_the_same_statement_is_spent(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",), on=HOME)
    talk.refuse(UPDATE, "onhand", ("on_hand",), on=AWAY)
    talk.ledger.settled(talk.repair(MENDED, on=AWAY), Outcome.FAILED, talk.now)
    assert talk.halt(MENDED, on=HOME) is Halt.REPAIR_BUDGET_EXHAUSTED


@pytest.mark.parametrize(
    "look", ["SELECT * FROM papers LIMIT 5", "SELECT p.* FROM papers p", "SELECT count(*) FROM papers"]
)
@pytest.mark.parametrize("at", ["titel", "cites"])
def test_a_look_at_every_column_is_no_repair_of_one(talk: Talk, look: str, at: str) -> None:
    right = "SELECT title FROM papers ORDER BY citations DESC LIMIT 3"
    wrong = right.replace({"titel": "title", "cites": "citations"}[at], at)
    talk.refuse(wrong, at, ("title", "citations"))
    for on in (HOME, AWAY):
        assert talk.passes(look, on=on)
    talk.repair(right, on=AWAY)


@pytest.mark.parametrize(
    ("second", "here", "elsewhere"),
    [
        ("SELECT o.id, o.total FROM orders o", Halt.PREDICATE_REMOVED, None),
        ("SELECT total, id FROM public.orders ORDER BY 1", Halt.PREDICATE_REMOVED, None),
        # These look around.
        ("SELECT o.id, o.total FROM orders o LIMIT 5", None, None),
        ("SELECT DISTINCT o.id, o.total FROM orders o", None, None),
        ("SELECT * FROM orders", None, None),
        ("SELECT o.id FROM orders o", None, None),
        ("SELECT o.id, o.total FROM orders o JOIN customers c ON c.id = o.customer_id", None, None),
    ],
)
def test_a_read_without_its_conditions_is_an_answer_where_it_was_refused(
    ledger: Book, second: str, here: Halt | None, elsewhere: Halt | None
) -> None:
    for on, halt in ((HOME, here), (AWAY, elsewhere)):
        talk = Talk(ledger, scope=f"agent on {on}")
        talk.refuse("SELECT o.id, o.totl FROM orders o WHERE o.status = 'open'", "o.totl", ("o.total",))
        assert talk.halt(second, on=on) is halt


def test_a_star_is_answered_by_a_star(talk: Talk) -> None:
    talk.refuse("SELECT * FROM papers WHERE yera = 2020", "yera", ("year",))
    talk.repair("SELECT * FROM papers WHERE year = 2020")


def test_three_columns_of_seven_are_another_statement() -> None:
    text = "SELECT a, b, c, {} FROM orders WHERE year = 3"
    first, finding = refused(text.format("d, e, f, totl"), "totl", ("total",))
    assert recognisable(first, finding, made(text.format("d, e, f, total")))
    assert not recognisable(first, finding, made(text.format("w, x, y, z")))


def test_a_count_of_another_select_is_another_statement() -> None:
    text = "SELECT count(*) FROM (SELECT author FROM writes GROUP BY author HAVING count({}) > 2) s"
    first, finding = refused(text.format("paprid"), "paprid", ("paperid",))
    assert recognisable(first, finding, made(text.format("paperid")))
    assert not recognisable(first, finding, made("SELECT count(*) FROM writes"))
    tree = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT {} FROM t"
    first, finding = refused(tree.format("nn"), "nn", ("n",))
    assert recognisable(first, finding, made(tree.format("n")))


def test_a_part_of_a_summary_is_another_statement() -> None:
    first, finding = refused("SELECT stauts, count(*) FROM orders GROUP BY 1", "stauts", ("status",))
    assert recognisable(first, finding, made("SELECT status, count(*) FROM orders GROUP BY 1"))
    assert not recognisable(first, finding, made("SELECT count(*) FROM orders"))
    assert not recognisable(first, finding, made("SELECT status FROM orders LIMIT 5"))


def test_a_delete_with_an_updates_conditions_is_known(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    delete = "DELETE FROM inventory i WHERE i.warehouse = 'leeds' AND i.product_id = 5"
    assert talk.halt(delete, on=AWAY) is Halt.CLASS_CHANGED


def test_half_of_the_conditions_and_half_of_the_columns_are_another_statement() -> None:
    first = "SELECT id, totl FROM orders WHERE status = 'open' AND year = 3"
    before, finding = refused(first, "totl", ("total",))
    assert not recognisable(before, finding, made("SELECT id, placed FROM orders WHERE status = 'open'"))
    assert recognisable(before, finding, made(first.replace("totl", "total")))


def test_a_spent_turn_is_not_had_through_another_refusal(talk: Talk) -> None:
    spent(talk)
    other = "UPDATE inventory SET onhand = 9 WHERE product_id = 8 AND warehouse = 'york'"
    talk.refuse(other, "onhand", ("on_hand",), on=AWAY)
    mended = other.replace("onhand", "on_hand")
    assert talk.halt(mended) is Halt.REPAIR_BUDGET_EXHAUSTED
    talk.repair(mended, on=AWAY)


def test_an_insert_of_another_row_is_another_statement() -> None:
    same = "INSERT INTO t (id, kind, shipped) VALUES (21, 'express', '2025-05-05')"
    first, finding = refused(same.replace("shipped", "shpped"), "shpped")
    assert recognisable(first, finding, made(same))
    assert not recognisable(first, finding, made(same.replace("21", "22")))
