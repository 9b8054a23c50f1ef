"""A run from end to end, as short as can be: that it ends, cleans up and reports. It cannot fail on speed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench import report
from bench.__main__ import main
from bench.client import ClientError, parse, query, raise_error, run_prepared
from bench.contenders import Name
from bench.trips import count_trips
from proxy.embedded import BinariesNotFoundError, find_binaries
from proxy.wire import frontend
from proxy.wire.backend import encode_error
from tests.support.postgres import skip_or_fail

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")
def test_a_short_run(tmp_path: Path) -> None:
    try:
        find_binaries()
    except BinariesNotFoundError as error:
        skip_or_fail(str(error))
    path = tmp_path / "report.json"
    ended = bench(
        *("--only", "SELECT 1", "--rounds", "1", "--seconds", "0.1", "--seed", "3", "--json", str(path))
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(path.read_text(encoding="utf-8"))
    assert (told["seed"], told["rounds"]) == (3, 1)
    latency = next(e for e in told["loads"] if (e["load"], e["metric"]) == ("SELECT 1", "p50"))
    absent = told["configuration"]["absent"]
    assert {Name.DIRECT, Name.PROXY, Name.UNPRICED} <= set(latency["contenders"])
    assert (Name.PGBOUNCER in latency["contenders"]) != (Name.PGBOUNCER in absent)
    assert {target["verdict"] for target in told["targets"]} <= {"too few slices to tell"}
    assert "\n".join(report.render(told)) in ended.stdout
    assert "seed 3" in ended.stderr
    pids = [
        int(line.split("process ")[1].split(",")[0])
        for line in ended.stderr.splitlines()
        if "process " in line
    ]
    assert pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--only", "no such thing"), "no workload's name holds no such thing"),
        (("--publish", "--quick"), "keeps whole reports"),
        (("--rounds", "0"), "at least 1"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:  # argparse's own
        code = ended.code
    assert code == 2
    assert why in capsys.readouterr().err


def test_the_messages_are_what_the_proxy_reads() -> None:
    """The client's own encoders against the product's decoders."""
    assert frontend.decode_query(query("SELECT 'é'")[5:]) == "SELECT 'é'".encode()
    prepared = frontend.decode_parse(parse("s", "SELECT $1")[5:])
    assert (prepared.name, prepared.text) == (b"s", b"SELECT $1")
    both = run_prepared("s", ["12"])
    length = 1 + int.from_bytes(both[1:5], "big")
    bind, execute = both[5:length], both[length + 5 :]
    assert frontend.decode_bind(bind, 0, len(bind)).statement == b"s"
    assert frontend.decode_execute(execute, 0, len(execute)) == b""


def test_an_error_in_an_answer_is_raised() -> None:
    fields = {"severity": "ERROR", "sqlstate": "42501", "message": "no", "hint": "ask"}
    with pytest.raises(ClientError, match="42501: no ask"):
        raise_error(b"C\x00\x00\x00\x05\x00" + encode_error(fields))


@pytest.mark.parametrize("flights", [1, 2, 5])
def test_round_trips_are_counted_by_direction(flights: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        with (
            count_trips(server.getsockname()[1]) as counter,
            socket.create_connection(("127.0.0.1", counter.port)) as client,
        ):
            for _ in range(flights):
                client.sendall(b"one")
                assert client.recv(100) == b"one"
            assert counter.trips() == [flights]
            assert counter.busiest([1]) == flights - 1
            assert counter.busiest([]) == flights


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while chunk := connection.recv(100):
            connection.sendall(chunk)
