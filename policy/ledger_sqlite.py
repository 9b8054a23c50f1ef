"""The ledger of several workers on one machine: one SQLite file.

Owns the file's layout and its locking. Every change of a scope is one ``BEGIN IMMEDIATE`` transaction, so two
workers cannot both take the one turn; readers are never held up (WAL). The connection is made by the process
and at the time that first needs it: a worker that was forked has one of its own. Statements are kept by their
normal form with the constants they hold, so the file is made readable by its owner alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from policy.ledger import Book, LedgerUnavailableError, Lineages, T, take_over
from policy.lineage import Lineage, from_json, to_json

FORMAT: Final = 1
"""What the file's ``user_version`` says. Another one's lineages cannot be read: nothing is let through."""
BUSY_S: Final = 1.0
"""How long a worker waits for another's change, in seconds; a change was measured at some 0.2 ms."""

_UNREADABLE: Final = (KeyError, TypeError, ValueError, RecursionError)
_LAYOUT: Final = """
CREATE TABLE IF NOT EXISTS lineage (
    scope TEXT NOT NULL, id TEXT NOT NULL, until REAL NOT NULL, body TEXT NOT NULL, PRIMARY KEY (scope, id)
) WITHOUT ROWID
"""


class SqliteLedger(Book):
    """Lineages in the file at ``path``, which is made where it is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._connection: sqlite3.Connection | None = None

    def has_open(self, scope: str) -> bool:
        with self._lock, _unavailable(self._path):
            query = "SELECT 1 FROM lineage WHERE scope = ? LIMIT 1"
            return self._connect().execute(query, (scope,)).fetchone() is not None

    def sweep(self, now: float) -> None:
        over: list[str] = []
        with self._lock, _unavailable(self._path):
            connection = self._connect()
            # A look holds nobody up, and mostly finds nothing.
            looked = connection.execute("SELECT 1 FROM lineage WHERE until <= ? LIMIT 1", (now,))
            if looked.fetchone() is None:
                return
            with _transaction(connection):
                rows = connection.execute("SELECT body FROM lineage WHERE until <= ?", (now,))
                over = [body for (body,) in rows]
                connection.execute("DELETE FROM lineage WHERE until <= ?", (now,))
        for body in over:
            # What cannot be read any more tells nothing of its end, and is gone like the rest.
            with contextlib.suppress(*_UNREADABLE):
                lineage = from_json(json.loads(body))
                self._report(take_over({lineage.id: lineage}, now))

    def close(self) -> None:
        """Let go of the file. The ledger may be used again."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def _change(self, scope: str, now: float, change: Callable[[Lineages], T]) -> T:  # noqa: ARG002 - the seam's
        with self._lock, _unavailable(self._path):
            connection = self._connect()
            with _transaction(connection):
                known = self._read(connection, scope)
                lineages = dict(known)
                result = change(lineages)
                self._write(connection, scope, known, lineages)
            return result

    @staticmethod
    def _read(connection: sqlite3.Connection, scope: str) -> Lineages:
        rows = connection.execute("SELECT id, body FROM lineage WHERE scope = ?", (scope,))
        try:
            return {key: from_json(json.loads(body)) for key, body in rows}
        except _UNREADABLE as error:
            raise LedgerUnavailableError(f"a lineage of scope {scope!r} cannot be read: {error}") from error

    @staticmethod
    def _write(connection: sqlite3.Connection, scope: str, known: Lineages, lineages: Lineages) -> None:
        gone = [(scope, key) for key in known if key not in lineages]
        changed = [each for key, each in lineages.items() if known.get(key) is not each]
        connection.executemany("DELETE FROM lineage WHERE scope = ? AND id = ?", gone)
        connection.executemany(
            "INSERT OR REPLACE INTO lineage (scope, id, until, body) VALUES (?, ?, ?, ?)",
            [(scope, each.id, each.until, _body(each)) for each in changed],
        )

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None or self._owner != os.getpid():
            self._connection, self._owner = _opened(self._path), os.getpid()
        return self._connection


def _opened(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A turn that a power cut forgets is a turn of ten minutes ago.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, FORMAT):
            raise LedgerUnavailableError(f"{path} is a ledger of format {version}, not {FORMAT}")
        connection.execute(_LAYOUT)
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _body(lineage: Lineage) -> str:
    return json.dumps(to_json(lineage), separators=(",", ":"))


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def _unavailable(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerUnavailableError(f"the ledger {path} cannot be used: {error}") from error
