"""Reload after reload under load: no connection lost, no statement decided by a mix of two policies."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import asyncpg
import psycopg
import pytest

from policy.decision import Reject
from proxy.audit_line import ConnectionIdentity
from proxy.effects import AuditEntry
from tests.e2e.test_reload import CUSTOMERS, ORDERS, Proxy, policy, through
from tests.support.postgres import Database
from tests.support.postgres import Server as Postgres

DEAR: Final = policy("public.orders, public.customers", "cost: {max_total_cost: 1000}")
FEW: Final = policy("public.orders, public.customers", "limits: {affected_rows: 1, result_rows: 5}")

SIMPLE: Final = "SELECT id FROM orders ORDER BY id LIMIT 3"
OTHER: Final = "SELECT id FROM customers ORDER BY id LIMIT 2"
PREPARED: Final = "SELECT id FROM orders WHERE id = $1"
JOIN: Final = (
    "SELECT count(*) FROM orders a, orders b, orders c WHERE a.id < 3 AND b.id < 3 AND c.id < 3 OR a.id = 0"
)
WRITE: Final = "UPDATE orders SET status = status WHERE id < 4"
LONG: Final = "SELECT id FROM orders ORDER BY id"
PORTAL: Final = "SELECT id FROM orders ORDER BY id DESC"

PASSED: Final = "passed"
EXPECTED: Final[Mapping[str, Mapping[str, str]]] = {
    ORDERS.sha256: {**dict.fromkeys((SIMPLE, PREPARED, JOIN, WRITE, LONG, PORTAL), PASSED), OTHER: "42501"},
    CUSTOMERS.sha256: {
        **dict.fromkeys((SIMPLE, PREPARED, JOIN, WRITE, LONG, PORTAL), "42501"),
        OTHER: PASSED,
    },
    DEAR.sha256: {
        **dict.fromkeys((SIMPLE, OTHER, PREPARED, WRITE, LONG), PASSED),
        JOIN: "54001",
    },
    FEW.sha256: {
        **dict.fromkeys((SIMPLE, OTHER, PREPARED, JOIN), PASSED),
        WRITE: "57014",
        LONG: "57014",
    },
}
"""What becomes of each statement under each policy. Left out is what the past of a portal decides: what it
has returned, and whether its price was asked when it was opened."""
AT_THE_GATE: Final = ("42501", "54001")
"""Refusals that leave nothing to the server."""


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as database:
        yield database


Step = Callable[[asyncpg.Connection], Awaitable[object]]


async def simple(connection: asyncpg.Connection) -> object:
    return await connection.execute(random.choice((SIMPLE, OTHER, JOIN, LONG)))


async def extended(connection: asyncpg.Connection) -> object:
    return await connection.fetch(random.choice((SIMPLE, OTHER, JOIN, LONG)))


async def writes(connection: asyncpg.Connection) -> object:
    return await random.choice((connection.execute, connection.fetch))(WRITE)


async def reads_on(connection: asyncpg.Connection) -> object:
    async with connection.transaction():
        cursor = await connection.cursor(PORTAL)
        return [await cursor.fetch(1) for _ in range(4)]


async def repeatedly(connection: asyncpg.Connection, step: Step, until: asyncio.Event) -> Counter[str]:
    """What ``step`` came to, each time until the end."""
    told: Counter[str] = Counter()
    while not until.is_set():
        try:
            await step(connection)
        except asyncpg.PostgresError as error:
            told[str(error.sqlstate)] += 1
        else:
            told[PASSED] += 1
    assert not connection.is_closed()
    return told


async def prepared_once(connection: asyncpg.Connection, until: asyncio.Event) -> Counter[str]:
    while True:
        try:
            statement = await connection.prepare(PREPARED)
            break
        except asyncpg.InsufficientPrivilegeError:
            continue

    async def step(_: asyncpg.Connection) -> object:
        return await statement.fetchval(random.randrange(1, 9))

    return await repeatedly(connection, step, until)


def pipelines(parameters: dict[str, Any], until: asyncio.Event) -> Counter[str]:
    """Many statements under way at once, some behind the same Sync. Nothing is prepared by name: psycopg
    binds what a pipeline prepares before it knows whether that was refused."""
    told: Counter[str] = Counter()
    with psycopg.connect(**parameters, autocommit=True, prepare_threshold=None) as connection:
        while not until.is_set():
            try:
                with connection.pipeline() as pipeline:
                    for sql in (SIMPLE, OTHER, WRITE, SIMPLE):
                        connection.execute(sql.encode())
                        if random.random() < 0.5:
                            pipeline.sync()
            except psycopg.Error as error:
                told[str(error.sqlstate)] += 1
            else:
                told[PASSED] += 1
        assert connection.execute("SELECT 1").fetchone() == (1,)
    return told


def as_expected(entry: AuditEntry, identity: ConnectionIdentity) -> bool:
    """Whether what was decided, and came of it where that is known, is what the policy named with it says."""
    expected = EXPECTED[identity.policy_sha256].get(entry.decision.query.sql)
    if expected is None:
        return True
    if not entry.outcome_known:
        return not isinstance(entry.decision, Reject) and expected not in AT_THE_GATE
    if isinstance(entry.decision, Reject) and any("in time" in v.message for v in entry.decision.violations):
        # A machine that is busy enough plans for longer than a second.
        return identity.policy_sha256 == DEAR.sha256
    return (entry.sqlstate or PASSED) == expected and isinstance(entry.decision, Reject) is (
        expected != PASSED
    )


def told(entry: AuditEntry) -> tuple[str, ...]:
    return (
        tuple(found.message for found in entry.decision.violations)
        if isinstance(entry.decision, Reject)
        else ()
    )


@pytest.mark.parametrize("reloads", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_reloads_under_load(database: Database, reloads: int) -> None:
    outcomes: list[Counter[str]] = []

    async def use(proxy: Proxy, _: asyncpg.Connection) -> None:
        until = asyncio.Event()
        steps: list[Step] = [simple, simple, extended, extended, writes, reads_on, reads_on]
        parameters = {
            "host": "127.0.0.1",
            "port": proxy.port,
            "user": "local",
            "dbname": proxy.database.name,
        }
        work = [asyncio.create_task(repeatedly(await proxy.connect(), step, until)) for step in steps]
        work.append(asyncio.create_task(prepared_once(await proxy.connect(), until)))
        work.append(asyncio.create_task(asyncio.to_thread(pipelines, parameters, until)))
        policies = itertools.cycle((ORDERS, CUSTOMERS, DEAR, FEW))
        for _ in range(reloads):
            proxy.change(next(policies))
            # As many statements later as it happens, from none to some.
            await asyncio.sleep(random.choice((0, 0, 0.001, 0.01, 0.03)))
        until.set()
        outcomes.extend(await asyncio.gather(*work))

    records = through(database, ORDERS, use)
    # Refused is only what some policy refuses, and all work went on.
    usual = {PASSED, "42501", "54001", "57014"}
    assert [set(told) - usual for told in outcomes] == [set()] * len(outcomes)
    assert all(outcomes)
    assert sum(told[PASSED] for told in outcomes) > reloads // 10
    assert not [entry for entry in records.log if entry["log_level"] == "error"]
    wrong = Counter(
        (identity.policy_sha256[:8], entry.sqlstate, entry.decision.query.sql, told(entry))
        for entry, identity in records.taken
        if not as_expected(entry, identity)
    )
    assert not wrong
    decided_by = Counter(identity.policy_sha256 for _, identity in records.taken)
    assert decided_by.keys() == EXPECTED.keys()
