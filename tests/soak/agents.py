"""Agents: one statement after the other over one driver, each marked, each with what the agent was told.

Owns what is sent and the agent's side of the books. Knows nothing of the audit.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tests.support.drivers import Driver


class Told(StrEnum):
    """What an agent knows of a statement that it sent."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sent:
    """One statement; ``meant`` is what it comes to where nothing interferes. ``writes``: it leaves a row."""

    tag: str
    meant: Told
    told: Told
    writes: bool


Statement = tuple[Told, str, tuple[object, ...]]


def _read(chosen: random.Random) -> Statement:
    return Told.ANSWERED, "SELECT n FROM items WHERE id = ?", (chosen.randint(1, 20_000),)


def _read_plainly(chosen: random.Random) -> Statement:
    return Told.ANSWERED, f"SELECT count(*) FROM items WHERE n = {chosen.randint(0, 6)}", ()


def _read_long(chosen: random.Random) -> Statement:
    return Told.ANSWERED, f"SELECT id, body FROM items WHERE id < {chosen.randint(1000, 15_000)}", ()


def _wait(chosen: random.Random) -> Statement:
    return Told.ANSWERED, f"SELECT pg_sleep({chosen.uniform(0, 0.5):.3f})", ()


def _write(chosen: random.Random) -> Statement:
    return Told.ANSWERED, "INSERT INTO written (tag) VALUES ('{tag}')", ()


def _write_bound(chosen: random.Random) -> Statement:
    return Told.ANSWERED, "INSERT INTO written (tag) VALUES (?)", ("{tag}",)


def _write_much(chosen: random.Random) -> Statement:
    return Told.REFUSED, "UPDATE items SET n = n WHERE id < 10000", ()


def _destroy(chosen: random.Random) -> Statement:
    return Told.REFUSED, "DELETE FROM items", ()


def _divide(chosen: random.Random) -> Statement:
    return Told.FAILED, f"SELECT {chosen.randint(1, 9)} / (n - n) FROM items WHERE id = 1", ()


def _fail_to_bind(chosen: random.Random) -> Statement:
    return Told.FAILED, "SELECT n FROM items WHERE id = '1'::text::int / 0", ()


_CHOICES: Final[tuple[tuple[Callable[[random.Random], Statement], int], ...]] = (
    (_read, 30),
    (_read_plainly, 15),
    (_read_long, 4),
    (_wait, 6),
    (_write, 12),
    (_write_bound, 12),
    (_write_much, 4),
    (_destroy, 6),
    (_divide, 5),
    (_fail_to_bind, 4),
)


class Agent(threading.Thread):
    """One agent: connects, sends, connects again when its connection is gone."""

    def __init__(
        self,
        number: int,
        driver: type[Driver],
        parameters: Mapping[str, Any],
        stop: threading.Event,
        chosen: random.Random,
    ) -> None:
        super().__init__(name=f"agent-{number}-{driver.name}", daemon=True)
        self.sent: list[Sent] = []
        self.connections = 0
        self.refused_connections = 0
        self._number = number
        self._driver = driver
        self._parameters = dict(parameters)
        self._stop_asked = stop
        self._chosen = chosen

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                connection = self._driver(self._parameters)
            except Exception:
                # While the server is away there is nobody to talk to.
                self.refused_connections += 1
                self._stop_asked.wait(0.2)
                continue
            self.connections += 1
            self._work(connection)
            with contextlib.suppress(Exception):
                connection.close()

    def _work(self, connection: Driver) -> None:
        left = self._chosen.randint(20, 400)
        while left and not self._stop_asked.is_set():
            left -= 1
            if not self._send(connection):
                return

    def _send(self, connection: Driver) -> bool:
        """One statement; False where the connection is gone."""
        (choice,) = self._chosen.choices([c for c, _ in _CHOICES], [weight for _, weight in _CHOICES])
        meant, text, values = choice(self._chosen)
        tag = f"soak-{self._number}-{len(self.sent)}"
        text = f"{text.replace('{tag}', tag)} /* {tag} */"
        bound = [tag if value == "{tag}" else value for value in values]
        told = Told.ANSWERED
        try:
            connection.run(text, *bound)
        except Exception as error:
            told = self._meaning(connection, error)
        self.sent.append(Sent(tag, meant, told, text.startswith("INSERT")))
        return told is not Told.UNKNOWN

    @staticmethod
    def _meaning(connection: Driver, error: Exception) -> Told:
        """What the error says of the statement; nothing, where it says that the connection is gone."""
        try:
            told = connection.told(error)
        except (AssertionError, AttributeError, IndexError, TypeError):
            return Told.UNKNOWN
        if told.sqlstate is None or told.sqlstate.startswith(("08", "57P", "XX")):
            return Told.UNKNOWN
        return Told.REFUSED if '"decision":"reject"' in (told.detail or "") else Told.FAILED
