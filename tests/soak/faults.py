"""The faults, one a strike, at random.

Owns what goes wrong and how often it did. None of them sends a statement that is marked.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg

from tests.soak.ground import Ground
from tests.support.wire import query

_SLOW_S: Final = 8.0


class Field:
    """Where the faults strike. ``struck`` counts them."""

    def __init__(self, ground: Ground, chosen: random.Random) -> None:
        self.ground = ground
        self.chosen = chosen
        self.struck: Counter[Callable[[Field], None]] = Counter()
        self.reloads = 0
        self.rotations = 0
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def strike(self) -> None:
        fault = self.chosen.choice(FAULTS)
        self.struck[fault] += 1
        fault(self)

    def aside(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self.threads = [each for each in self.threads if each.is_alive()] + [thread]
        thread.start()

    def close(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(30)


@contextlib.contextmanager
def _connected(field: Field) -> Iterator[tuple[psycopg.Connection[Any], socket.socket]]:
    """A connection of the agents' kind and its socket; it ends without a goodbye."""
    connection = psycopg.connect(**field.ground.parameters, autocommit=True)
    with connection, socket.socket(fileno=socket.dup(connection.fileno())) as sock:
        sock.settimeout(2)
        try:
            yield connection, sock
        finally:
            sock.shutdown(socket.SHUT_RDWR)


def backend_killed(field: Field) -> None:
    """One agent's backend is told to end, whatever it does."""
    pids = list(field.ground.sessions())
    if pids:
        field.ground.database.execute(f"SELECT pg_terminate_backend({field.chosen.choice(pids)})")


def catalog_reader_killed(field: Field) -> None:
    field.ground.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'pgturnstile catalog'"
    )


def policy_reloaded(field: Field) -> None:
    field.reloads += 1
    field.ground.reload(field.reloads)


def line_cut(field: Field) -> None:
    """Every connection to the server is reset."""
    field.ground.line.cut()


def server_away(field: Field) -> None:
    field.ground.line.down()
    time.sleep(field.chosen.uniform(0.05, 0.5))
    field.ground.line.up()


def server_restarted(field: Field) -> None:
    field.ground.restart()


def audit_rotated(field: Field) -> None:
    field.rotations += 1
    field.ground.rotate(field.rotations)


def reader_slow(field: Field) -> None:
    """An agent asks for much and reads a little at a time, then goes without a word."""

    def read() -> None:
        with contextlib.suppress(psycopg.Error, OSError), _connected(field) as (_, sock):
            sock.sendall(query("SELECT repeat('x', 10000) FROM generate_series(1, 10000)"))
            end = time.monotonic() + _SLOW_S
            while time.monotonic() < end and not field.over.wait(0.1) and sock.recv(16_384):
                pass

    field.aside(read)


def client_vanishes(field: Field) -> None:
    """An agent goes with a transaction open and a statement running."""

    def vanish() -> None:
        with contextlib.suppress(psycopg.Error, OSError), _connected(field) as (connection, sock):
            connection.execute("BEGIN")
            connection.execute("UPDATE items SET n = n WHERE id = 20000")
            sock.sendall(query("SELECT pg_sleep(10)"))

    field.aside(vanish)


FAULTS: Final = (
    backend_killed,
    backend_killed,
    catalog_reader_killed,
    policy_reloaded,
    line_cut,
    server_away,
    server_restarted,
    audit_rotated,
    reader_slow,
    client_vanishes,
)
