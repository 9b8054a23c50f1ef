"""libpq itself, for tests that look at results as they come: over either sub-protocol, and pipelined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult


class Agent:
    """One connection, by libpq's own calls."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.pg = connection.pgconn

    def run(self, sql: str, extended: bool, *values: str) -> PGresult:
        parameters = [value.encode() for value in values]
        if extended or values:
            return self.pg.exec_params(sql.encode(), parameters or None)
        return self.pg.exec_(sql.encode())

    def pipeline(self, statements: Sequence[str]) -> list[PGresult]:
        """The results of ``statements`` sent in one go with one Sync behind them; the last is the Sync's.

        A string "SYNC" among them stands for a Sync of its own.
        """
        self.pg.enter_pipeline_mode()
        for sql in statements:
            if sql == "SYNC":
                self.pg.pipeline_sync()
            else:
                self.pg.send_query_params(sql.encode(), None)
        self.pg.pipeline_sync()
        syncs = 1 + list(statements).count("SYNC")
        results: list[PGresult] = []
        while syncs:
            result = self.pg.get_result()
            if result is not None:
                results.append(result)
                syncs -= result.status == pq.ExecStatus.PIPELINE_SYNC
        self.pg.exit_pipeline_mode()
        return results

    @property
    def status(self) -> str:
        return pq.TransactionStatus(self.pg.transaction_status).name


def field(result: PGresult, name: str) -> str:
    """A field of an error by the name of libpq's diagnostic; empty where there is none."""
    value = result.error_field(getattr(pq.DiagnosticField, name))
    return (value or b"").decode()


def rows(result: PGresult) -> list[list[str]]:
    """The rows of a result that has to be one."""
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message.decode()
    return [
        [(result.get_value(n, m) or b"").decode() for m in range(result.nfields)]
        for n in range(result.ntuples)
    ]


def outcome(result: PGresult) -> str:
    """An error's SQLSTATE, else the name of the result's status."""
    return field(result, "SQLSTATE") or pq.ExecStatus(result.status).name
