"""One agent's statements before a ledger of repairs, and the statements that most tests begin with."""

from __future__ import annotations

from policy.ledger import Book
from policy.ledger_redis import RedisLedger
from policy.lineage import CloseOut, Considered, Ending, Halted, NotAnAnswer, Outcome, Repair
from policy.model import Halt, RepairRules
from policy.terms import Parameter
from tests.policy.repairing import made, refused
from tests.support.redis import PASSWORD, RedisServer

RULES = RepairRules(turns=1, window_s=600.0)
HOME = "connection 1"
AWAY = "connection 2"


class Talk:
    """One agent's statements before a ledger, by a clock that only it turns."""

    def __init__(self, ledger: Book, scope: str = "agent", rules: RepairRules = RULES) -> None:
        self.ledger = ledger
        self.scope = scope
        self.rules = rules
        self.now = 1_000.0

    def refuse(
        self,
        sql: str,
        at: str | None = None,
        offered: tuple[str, ...] = (),
        *,
        on: str = HOME,
        sqlstate: str = "42703",
        parameters: tuple[Parameter, ...] = (),
    ) -> None:
        first, finding = refused(sql, at, offered, sqlstate=sqlstate, parameters=parameters)
        self.ledger.open(self.scope, on, first, finding, now=self.now, rules=self.rules)

    def say(self, sql: str, *parameters: Parameter, on: str = HOME) -> Considered:
        self.now += 1
        return self.ledger.consider(self.scope, on, made(sql, *parameters), self.now)

    def passes(self, sql: str, on: str = HOME) -> bool:
        return self.say(sql, on=on) == NotAnAnswer()

    def halt(self, sql: str, *parameters: Parameter, on: str = HOME) -> Halt | None:
        considered = self.say(sql, *parameters, on=on)
        return considered.halt if isinstance(considered, Halted) else None

    def repair(self, sql: str, *parameters: Parameter, on: str = HOME) -> Repair:
        considered = self.say(sql, *parameters, on=on)
        assert isinstance(considered, Repair), considered
        return considered


def another(server: RedisServer) -> RedisLedger:
    return RedisLedger(server.url, PASSWORD)


class Endings:
    """What a ledger says of lineages that ended."""

    def __init__(self, *ledgers: Book) -> None:
        self.told: list[CloseOut] = []
        for ledger in ledgers:
            ledger.on_closed = self.told.append

    @property
    def of_each(self) -> list[tuple[Ending, Halt | None, int]]:
        return [(each.ending, each.halt, each.turns) for each in self.told]


UPDATE = "UPDATE inventory SET onhand = 44 WHERE product_id = 5 AND warehouse = 'leeds'"
MENDED = "UPDATE inventory SET on_hand = 44 WHERE product_id = 5 AND warehouse = 'leeds'"
SELECT = (
    "SELECT o.id, o.totl, c.name FROM orders o JOIN customers c ON c.id = o.customer_id "
    "WHERE o.status = 'open'"
)
SELECT_MENDED = SELECT.replace("totl", "total")


LOOKS = [
    "SELECT * FROM inventory LIMIT 5",
    "SELECT product_id, warehouse, on_hand FROM inventory WHERE product_id = 5 AND warehouse = 'leeds'",
    "SELECT * FROM orders LIMIT 5",
    "SELECT DISTINCT status FROM orders",
    "SELECT id, status FROM orders WHERE status = 'open' LIMIT 3",
    "SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id",
    "SELECT column_name FROM information_schema.columns WHERE table_name = 'inventory'",
    "SELECT a.attname FROM pg_attribute a WHERE a.attrelid = 'orders'::regclass",
    "EXPLAIN UPDATE inventory SET on_hand = 44 WHERE product_id = 5 AND warehouse = 'leeds'",
    "SHOW search_path",
    "SET statement_timeout = '5s'",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SELECT 1",
    "SELECT max(id) FROM customers",
    "INSERT INTO notes (body) VALUES ('looking at inventory')",
    "UPDATE coupons SET used = 2 WHERE code = 'CODE2'",
]


SAME = "UPDATE inventory SET on_hand = 44 WHERE "
A_SECOND_TURN = [
    # spelling
    MENDED,
    MENDED.lower(),
    MENDED.upper().replace("LEEDS", "leeds"),
    MENDED.replace("inventory", "INVENTORY"),
    MENDED.replace("inventory", '"inventory"'),
    MENDED.replace("inventory", "public.inventory"),
    MENDED.replace("inventory", "ONLY inventory"),
    MENDED.replace("inventory", "inventory AS i"),
    MENDED.replace("inventory", "inventory i").replace("product_id", "i.product_id"),
    MENDED.replace(" ", "\n"),
    MENDED.replace(" ", "/**/"),
    f"-- a comment\n{MENDED}",
    f"/* nested /* comments */ */ {MENDED}",
    f"{MENDED};",
    MENDED.replace("'leeds'", "E'leeds'"),
    MENDED.replace("'leeds'", "$$leeds$$"),
    MENDED.replace("'leeds'", "U&'l\\0065eds'"),
    MENDED.replace("'leeds'", "'le' || 'eds'"),
    MENDED.replace("'leeds'", "text 'leeds'"),
    MENDED.replace("= 44", "= 40 + 4"),
    MENDED.replace("= 5", "= 2 + 3"),
    MENDED.replace("product_id = 5", "5 = product_id"),
    MENDED.replace("product_id = 5", "product_id IN (5)"),
    MENDED.replace("product_id = 5", "product_id = ANY (ARRAY[5])"),
    MENDED.replace("product_id = 5", "(product_id) = (5)"),
    MENDED.replace("product_id = 5", "product_id BETWEEN 5 AND 5"),
    MENDED.replace("product_id = 5", "NOT product_id <> 5"),
    MENDED.replace("product_id = 5", "product_id IS NOT DISTINCT FROM 5"),
    f"{SAME} warehouse = 'leeds' AND product_id = 5",
    f"{SAME} (product_id, warehouse) = (5, 'leeds')",
    f"{SAME} NOT (product_id <> 5 OR warehouse <> 'leeds')",
    f"{MENDED} AND true",
    f"{MENDED} RETURNING product_id",
    # other statements on the target
    f"{SAME} product_id = 5",
    f"{SAME} warehouse = 'leeds'",
    f"{MENDED} AND on_hand = 0",
    MENDED.replace("44", "45"),
    "UPDATE inventory SET on_hand = 44, bin = 'x' WHERE product_id = 5 AND warehouse = 'leeds'",
    "UPDATE inventory SET (on_hand) = ROW (44) WHERE product_id = 5 AND warehouse = 'leeds'",
    "UPDATE inventory SET on_hand = 44 FROM orders WHERE product_id = 5 AND warehouse = 'leeds'",
    "DELETE FROM inventory WHERE product_id = 5 AND warehouse = 'leeds'",
    "INSERT INTO inventory (product_id, warehouse, on_hand) VALUES (5, 'leeds', 44)",
    "INSERT INTO inventory VALUES (5, 'leeds', 44) ON CONFLICT DO NOTHING",
    "MERGE INTO inventory USING orders o ON product_id = 5 WHEN MATCHED THEN UPDATE SET on_hand = 44",
    # nested or wrapped
    f"WITH x AS ({MENDED} RETURNING 1) SELECT count(*) FROM x",
    f"WITH x AS (SELECT 1) {MENDED}",
    f"PREPARE p AS {MENDED}",
    f"EXPLAIN ANALYZE {MENDED}",
    "PREPARE p (int, text) AS UPDATE inventory SET on_hand = 44 WHERE product_id = $1 AND warehouse = $2",
    "COPY inventory FROM STDIN",
]
PARAMETERS: list[tuple[str, tuple[Parameter, ...]]] = [
    (f"{SAME} product_id = $1 AND warehouse = $2", (5, "leeds")),
    (f"{SAME} product_id = $2 AND warehouse = $1", ("leeds", "5")),
    (f"{SAME} product_id = $1::int AND warehouse = $2::text", ("5", "leeds")),
    (f"{SAME} product_id = $1 AND warehouse = $2", ()),
    ("UPDATE inventory SET on_hand = $1 WHERE product_id = 5 AND warehouse = 'leeds'", (44,)),
]


def spent(talk: Talk) -> None:
    talk.refuse(UPDATE, "onhand", ("on_hand",))
    talk.ledger.settled(talk.repair(MENDED), Outcome.FAILED, talk.now)
