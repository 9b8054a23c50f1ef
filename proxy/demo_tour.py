"""The demo's tour as data: what is sent, and what must come back.

Owns the steps that ``pgturnstile demo`` prints and that ``pgturnstile demo --check`` walks, so that the two
cannot differ. Knows no driver and no socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ANALYST: Final = "analyst"
CLERK: Final = "clerk"


@dataclass(frozen=True, slots=True)
class Refused:
    """What an agent must read. ``hint`` is a part of the Hint; ``table`` and ``column`` are error fields."""

    rule: str
    statement_class: str
    sqlstate: str = "42501"
    hint: str = "Do not retry"
    table: str | None = None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """What must come of a statement that passes: ``rows`` returned or changed, and, where stated, which."""

    rows: int
    values: tuple[tuple[object, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One stop of the tour.

    ``batch`` holds one statement, or several that are sent in one pipeline. ``expected`` is the answer to the
    first of them that is refused, else to the last. ``probe`` is a query for a superuser's own connection,
    ``change`` by how much its number must differ afterwards.
    """

    title: str
    agent: str
    batch: tuple[str, ...]
    expected: Refused | Returned
    probe: str | None = None
    change: int = 0
    secrets: tuple[str, ...] = field(default=())
    """Texts that nothing sent to the agent may contain."""


TOUR: Final[tuple[Step, ...]] = (
    Step(
        "A report passes as it is",
        ANALYST,
        ("SELECT status, count(*) FROM orders GROUP BY status ORDER BY count(*) DESC, status",),
        Returned(4, (("sent", 800), ("open", 400), ("paid", 400), ("refunded", 400))),
    ),
    Step(
        "A table that the policy hides is refused",
        ANALYST,
        ("SELECT partner, secret FROM api_keys",),
        Refused("relation-not-allowed", "select", table="api_keys"),
        secrets=("hidden-key-",),
    ),
    Step(
        "So is a column that it hides, and the agent reads which one",
        ANALYST,
        ("SELECT name, salary FROM employees WHERE job = 'team lead'",),
        Refused("column-not-allowed", "select", hint="Leave it out", table="employees", column="salary"),
        secrets=(".37",),
    ),
    Step(
        "The corrected statement, on the same connection, passes",
        ANALYST,
        ("SELECT name, hired_on FROM employees WHERE job = 'team lead'",),
        Returned(3),
        secrets=(".37",),
    ),
    Step(
        "A view that shows the hidden column under another name is no way round",
        ANALYST,
        ("SELECT job, wage FROM wage_bill",),
        Refused(
            "column-not-allowed",
            "select",
            hint="Columns of public.wage_bill that you may use: job",
            table="wage_bill",
        ),
        secrets=(".37",),
    ),
    Step(
        "A name that does not exist is answered with the one that does",
        ANALYST,
        ("SELECT name, hired FROM employees",),
        Refused("unknown-column", "select", sqlstate="42703", hint="hired_on"),
    ),
    Step(
        "A join without its condition is refused by its price, before it runs",
        ANALYST,
        ("SELECT count(*) FROM orders, order_items",),
        Refused("cost-over-limit", "select", sqlstate="54001", hint="on a condition"),
    ),
    Step(
        "A reader does not write, however its statement is dressed",
        ANALYST,
        ("WITH gone AS (DELETE FROM orders WHERE id = 7 RETURNING id) SELECT count(*) FROM gone",),
        Refused("class-not-allowed", "delete"),
        probe="SELECT count(*) FROM orders",
    ),
    Step(
        "Two statements in one string are refused whole",
        ANALYST,
        ("SELECT 1; DROP TABLE order_items",),
        Refused("multiple-statements", "ddl"),
        probe="SELECT count(*) FROM order_items",
    ),
    Step(
        "A function that may not be called",
        ANALYST,
        ("SELECT restock(1, 1000000)",),
        Refused("function-not-allowed", "select"),
        probe="SELECT sum(stock) FROM products",
    ),
    Step(
        "An UPDATE without WHERE is refused, though this agent may update",
        CLERK,
        ("UPDATE products SET stock = stock - 1",),
        Refused("update-without-where", "update", hint="WHERE", table="products"),
        probe="SELECT sum(stock) FROM products",
    ),
    Step(
        "With a WHERE that names the row, it passes",
        CLERK,
        ("UPDATE products SET stock = stock - 1 WHERE sku = 'TEA-004'",),
        Returned(1),
        probe="SELECT sum(stock) FROM products",
        change=-1,
    ),
    Step(
        "A WHERE that meets more rows than agreed: they are counted before it runs, and it does not",
        CLERK,
        ("DELETE FROM orders WHERE customer_id < 20",),
        Refused("affected-rows-over-limit", "delete", sqlstate="57014", hint="Name fewer rows"),
        probe="SELECT count(*) FROM orders",
    ),
    Step(
        "A WHERE that is always true is no WHERE",
        CLERK,
        ("DELETE FROM orders WHERE id = id",),
        Refused("tautology-predicate", "delete"),
        probe="SELECT count(*) FROM orders",
    ),
    Step(
        "A pipeline with a refused statement in the middle leaves no trace of the others",
        CLERK,
        (
            "UPDATE products SET stock = stock + 5 WHERE sku = 'TEA-010'",
            "UPDATE products SET stock = 0",
            "UPDATE products SET stock = stock + 5 WHERE sku = 'TEA-011'",
        ),
        Refused("update-without-where", "update", hint="WHERE"),
        probe="SELECT sum(stock) FROM products",
    ),
)
