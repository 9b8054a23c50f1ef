"""A server that breaks the protocol: both sides are closed, and the agent is told that and nothing else."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.liar import Liar, Script, lying
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy
from tests.support.wire import kinds, message, query, through

ROWS = message("T", struct.pack("!H", 1) + b"x\0" + struct.pack("!IHIhih", 0, 0, 25, -1, -1, 0))
ROW = message("D", struct.pack("!HI", 1, 6) + b"forged")
DONE = message("C", b"SELECT 1\0")
READY = message("Z", b"I")


def says(*messages: bytes) -> Script:
    return lambda proxy: proxy.sendall(b"".join(messages))


def _notices(proxy: socket.socket) -> None:
    notice = message("N", b"SNOTICE\0C00000\0M" + b"x" * 8000 + b"\0\0") * 8
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        proxy.sendall(notice)


BREACHES: dict[str, bytes] = {
    "length_zero": b"D\0\0\0\0",
    "length_negative": b"D\xff\xff\xff\xff",
    "no_such_message": b"\x01\0\0\0\x04",
    "a_giant_description": b"T\x7f\xff\xff\xf0" + b"x" * 1000,
    "ready_of_many": message("Z", b"II"),
    "a_message_of_agents": message("Q", b"SELECT 1\0"),
    "asks_for_a_password": message("R", struct.pack("!I", 3)),
    "says_welcome_again": message("R", struct.pack("!I", 0)),
    "a_new_secret": message("K", b"\0\0\0\1\0\0\0\2"),
    "another_protocol": message("v", struct.pack("!II", 196608, 0)),
    "starts_replication": message("W", b"\0\0\0"),
    "parse_complete_to_query": message("1") + READY,
    "ready_for_nothing_known": message("Z", b"X"),
    "ready_without_status": message("Z", b""),
    "ready_twice": ROWS + ROW + DONE + READY + READY,
    "ready_in_place_of_a_price": READY,
    "a_price_without_ready": message("1") + message("2") + READY,
    "a_price_that_copies_in": message("1") + message("2") + message("G", b"\0\0\0"),
    "rows_of_nothing_asked": message("1") + ROW,
    "a_functions_result": message("V", b"\0\0\0\0") + READY,
    "a_message_of_type_zero": b"\0\0\0\0\4" + ROWS + ROW + DONE + READY,
    "an_answer_too_many": ROWS + ROW + DONE + READY + ROWS + ROW + DONE + READY,
}
SCRIPTS: dict[str, Script] = {
    **{name: says(said) for name, said in BREACHES.items()},
    "notices": _notices,
}


@pytest.fixture(scope="module")
def liar(postgres18: Server) -> Iterator[Liar]:
    with lying(postgres18.host, postgres18.port, SCRIPTS) as running:
        yield running


@pytest.fixture(scope="module")
def deceived(
    postgres18: Server, liar: Liar, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("deceived")
    with (
        postgres18.database() as database,
        run_proxy(database, folder, backend={"host": "127.0.0.1", "port": liar.port}) as running,
    ):
        yield running


def tell(name: str) -> bytes:
    return query(f"SELECT 'lie:{name}'")


def assert_serves(proxy: RunningProxy) -> None:
    with through(proxy, "shop_app") as other:
        assert kinds(other.ask(query("SELECT 1"))) == "TDCZ"


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_ends_both_sides_in_words(deceived: RunningProxy, name: str) -> None:
    with through(deceived, "shop_app") as client:
        client.send(tell(name))
        got = client.rest()
    # What EXPLAIN's answer began with is swallowed, so nothing precedes the end.
    assert [(m.kind, m.sqlstate) for m in got] == [("E", "08P01")]
    assert_serves(deceived)


def test_notices_without_end_take_no_memory(deceived: RunningProxy) -> None:
    status = Path(f"/proc/{deceived.process.pid}/status")

    def resident_kib() -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1])

    with through(deceived, "shop_app") as client:
        before = resident_kib()
        client.send(tell("notices"))
        time.sleep(1.0)
        assert resident_kib() - before < 40_000
        assert_serves(deceived)
