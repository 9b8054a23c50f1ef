"""``python -m tests.corpora DSN FILE…``: what does the gate refuse that PostgreSQL accepts?

Runs scripts for psql statement by statement on a scratch server. Each statement is judged first, by the
catalog as it then is and a policy that opens everything; one that is refused although the server takes it is
printed. ``--prepare`` has the server parse the queries and not run them: for corpora of plain queries.
Corpora are not part of this project: name a folder's files.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import asyncpg
import psycopg

from policy import catalog_source
from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.decision import Reject, Situation, decide
from policy.loader import load
from policy.model import Policy, StatementClass
from policy.parse import parse
from policy.temporary import alters
from tests.corpora.scripts import Step, steps

JUDGED = frozenset(
    {"unparsable", "not-understood", "unknown-relation", "unknown-column", "unknown-function"}
) | {
    *("relation-not-allowed", "column-not-allowed", "function-not-allowed", "insert-missing-not-null"),
}
"""The rules that say something of names or of the grammar; the others judge what is wanted."""

OPEN = f"""\
version: 1
name: open
access: read_write
multiple: judged
statements: {{{", ".join(f"{each.value}: allow" for each in StatementClass)}}}
relations: {{allow: ["*.*", "pg_catalog.*", "information_schema.*"], catalogs: on}}
functions: {{allow: ["*.*", "pg_catalog.*", "information_schema.*"]}}
"""


class Judge:
    """The gate beside one connection. The catalog is read again where a refusal could be a stale one's."""

    def __init__(self, dsn: str, policy: Policy) -> None:
        self.dsn = dsn
        self.policy = policy
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.catalog = self.read()
        self.altered = False
        """True while a transaction is open in which the schema was changed."""

    def read(self) -> Catalog:
        async def read() -> Catalog:
            connection = await asyncpg.connect(self.dsn)
            try:
                return await catalog_source.read(connection)
            finally:
                await connection.close()

        return asyncio.run(read())

    def names(self) -> CatalogNames:
        path, temporary = ("public",), True
        if self.connection.info.transaction_status in (
            psycopg.pq.TransactionStatus.IDLE,
            psycopg.pq.TransactionStatus.INTRANS,
        ):
            row = self.connection.execute(
                "SELECT pg_catalog.current_schemas(false),"
                " pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0"
            ).fetchone()
            assert row is not None
            path, temporary = tuple(row[0]), row[1]
        return CatalogNames(self.catalog, (path,), temporary=temporary, unsettled=self.altered)

    def objections(self, sql: str) -> list[str]:
        names = self.names()
        found = self._judged(sql, names)
        if found:
            self.catalog = self.read()
            found = self._judged(sql, self.names())
        return found

    def _judged(self, sql: str, names: CatalogNames) -> list[str]:
        decision = decide(self.policy, Situation("agent", names), parse(sql))
        failures = [f"failed: {rule}" for rule in decision.failures]
        violations = decision.violations if isinstance(decision, Reject) else ()
        return [*failures, *(f"{v.rule}: {v.message}" for v in violations if v.rule in JUDGED)]

    def run(self, step: Step, *, prepare: bool) -> str | None:
        """The server's SQLSTATE, None where it takes the statement."""
        state = self._run(step, prepare=prepare)
        is_idle = self.connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        altering = any(map(alters, parse(step.sql).statements))
        self.altered = not is_idle and (self.altered or altering)
        return state

    def _run(self, step: Step, *, prepare: bool) -> str | None:
        try:
            if prepare:
                result = self.connection.pgconn.prepare(b"", step.sql.encode())
                if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
                    return (result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"?").decode()
            elif step.data is not None:
                with self.connection.cursor().copy(step.sql.encode()) as copy:
                    copy.write(step.data.encode())
            else:
                self.connection.execute(step.sql.encode())
        except psycopg.Error as error:
            if self.connection.closed:
                self.connection = psycopg.connect(self.dsn, autocommit=True)
            return error.sqlstate or "?"
        return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpora", description=__doc__)
    parser.add_argument("dsn", help="a scratch database: scripts do what they like to it")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--prepare", action="store_true", help="parse, do not run")
    parser.add_argument("--setup", action="append", default=[], help="SQL to run first on the connection")
    arguments = parser.parse_args()
    judge = Judge(arguments.dsn, load(OPEN, "open.yaml"))
    counts: Counter[str] = Counter()
    for file in arguments.files:
        judge.connection.close()
        judge.connection = psycopg.connect(arguments.dsn, autocommit=True)
        for setup in arguments.setup:
            judge.connection.execute(setup.encode())
        for step in steps(file.read_text(errors="replace"), os.environ):
            objections = judge.objections(step.sql)
            state = judge.run(step, prepare=arguments.prepare)
            counts[_outcome(objections, state)] += 1
            if objections and state is None:
                print(
                    f"--- {file.name}\n{step.sql}\n" + "\n".join(f"  {each}" for each in objections),
                    flush=True,
                )
    for outcome, count in sorted(counts.items()):
        print(f"{count:7} {outcome}")
    return 1 if counts["refused, taken by the server"] else 0


def _outcome(objections: list[str], state: str | None) -> str:
    judged = "refused" if objections else "passed"
    return f"{judged}, " + (
        "taken by the server" if state is None else f"refused by the server with {state[:2]}"
    )


if __name__ == "__main__":
    sys.exit(main())
