"""The sample agent of compose.yaml: asks what a model might ask, and shows what comes back.

A fixed list stands in for the model. Where to connect is in libpq's environment variables. Exits with 0 when
every answer was of the kind expected.
"""

from __future__ import annotations

import json
import sys
from typing import LiteralString

import psycopg

ASKED: tuple[tuple[LiteralString, str | None], ...] = (
    (
        "SELECT c.city, sum(o.total) FROM orders o JOIN customers c ON c.id = o.customer_id "
        "GROUP BY c.city ORDER BY c.city",
        None,
    ),
    ("SELECT name, email FROM customers LIMIT 5", "column-not-allowed"),
    ("UPDATE orders SET status = 'sent'", "class-not-allowed"),
    ("SELECT id FROM orders WHERE custmer_id = 7 LIMIT 3", "unknown-column"),
    ("SELECT id FROM orders WHERE customer_id = 7 LIMIT 3", None),
)
"""What is asked, with the rule that refuses it; the last but one is answered by its repair."""


def ask(connection: psycopg.Connection, sql: LiteralString) -> str | None:
    """Run ``sql`` and print what the model would read. Returns the rule that refused it, None for rows."""
    print(f"> {sql}")
    try:
        for row in connection.execute(sql):
            print(f"  {', '.join(map(str, row))}")
    except psycopg.Error as error:
        print(f"  {error.sqlstate} {error.diag.message_primary}")
        print(f"  {error.diag.message_hint}")
        rule: str | None = json.loads(error.diag.message_detail or "{}").get("rule")
        return rule
    return None


def main() -> int:
    with psycopg.connect(autocommit=True) as connection:
        unexpected = [sql for sql, rule in ASKED if ask(connection, sql) != rule]
    for sql in unexpected:
        print(f"not as expected: {sql}", file=sys.stderr)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
