"""The admin port of a running proxy: probes, counters and the latest decisions, as statements pass."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.postgres import Database
from tests.support.proxy import RunningProxy, free_port, run_proxy, wait_for


@pytest.fixture(scope="module")
def proxy(shop: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("proxy")
    with run_proxy(
        shop, folder, admin={"port": free_port()}, audit={"path": str(folder / "audit.jsonl")}
    ) as running:
        yield running


def get(proxy: RunningProxy, target: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{proxy.config['admin']['port']}{target}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def sample(proxy: RunningProxy, name: str) -> float:
    _, page = get(proxy, "/metrics")
    values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(f"pgturnstile_{name} ")]
    return float(values[0]) if values else 0.0


def run(proxy: RunningProxy, *statements: str, user: str = "reader") -> None:
    with psycopg.connect(**proxy.parameters(user), autocommit=True) as connection:
        for sql in statements:
            try:
                connection.execute(sql.encode())
            except psycopg.Error as error:
                assert error.sqlstate is not None


def test_a_proxy_that_serves_is_alive_and_ready(proxy: RunningProxy) -> None:
    assert get(proxy, "/healthz") == (200, "ok\n")
    status, body = get(proxy, "/readyz")
    told: dict[str, Any] = json.loads(body)
    assert (status, told["ready"], told["problems"]) == (200, True, [])
    assert told["backend"] == {"reachable": True, "error": None}
    assert told["audit"] == {"writable": True, "error": None, "lost": 0}


def test_statements_are_counted_as_what_they_were(proxy: RunningProxy) -> None:
    allowed = 'decisions_total{agent="reader",class="select",decision="allow",rule=""}'
    refused = 'decisions_total{agent="reader",class="delete",decision="reject",rule="class-not-allowed"}'
    failed = 'statement_errors_total{agent="reader",sqlstate_class="22"}'
    before = [sample(proxy, name) for name in (allowed, refused, failed)]
    hits = sample(proxy, 'ruling_lookups_total{result="exact"}')
    run(proxy, "SELECT 2", "SELECT 2", "DELETE FROM orders WHERE id = 1", "SELECT 1 / 0 FROM orders")
    counted = [sample(proxy, name) for name in (allowed, refused, failed)]
    assert [after - first for after, first in zip(counted, before, strict=True)] == [3, 1, 1]
    assert sample(proxy, 'ruling_lookups_total{result="exact"}') - hits == 1
    assert sample(proxy, 'connections_opened_total{agent="reader"}') >= 1


def test_a_refused_login_counts_by_its_sqlstate(proxy: RunningProxy) -> None:
    before = sample(proxy, 'connections_refused_total{sqlstate="28P01"}')
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(**proxy.parameters("reader", "wrong"))
    assert sample(proxy, 'connections_refused_total{sqlstate="28P01"}') == before + 1


def test_the_latest_decision_comes_first(proxy: RunningProxy) -> None:
    run(proxy, "SELECT 41", "DROP TABLE orders")
    _, body = get(proxy, "/decisions?limit=2")
    dropped, selected = json.loads(body)
    assert (dropped["statement"], dropped["decision"]) == ("DROP TABLE orders", "reject")
    assert (selected["statement"], selected["agent"]) == ("SELECT 41", "reader")


def test_a_refused_reload_is_told_and_leaves_the_proxy_ready(proxy: RunningProxy) -> None:
    path = proxy.folder / "reader.yaml"
    good = path.read_text()
    try:
        path.write_text(good + "nonsense: 1\n")
        proxy.process.send_signal(1)
        wait_for(lambda: json.loads(get(proxy, "/readyz")[1])["reload"] is not None)
        status, body = get(proxy, "/readyz")
        told = json.loads(body)["reload"]
        assert (status, told["taken"]) == (200, False)
        assert "nonsense" in told["error"]
        assert sample(proxy, "reload_refused") == 1
    finally:
        path.write_text(good)
    proxy.process.send_signal(1)
    wait_for(lambda: json.loads(get(proxy, "/readyz")[1])["reload"]["taken"] is True)
    assert sample(proxy, "reload_refused") == 0


def test_the_time_of_explain_is_measured(shop: Database, tmp_path_factory: pytest.TempPathFactory) -> None:
    policy = (
        "version: 1\nname: priced\nstatements: {select: allow}\nrelations: {allow: ['public.*']}\n"
        "functions: {allow: [builtin-safe]}\ncost: {max_total_cost: 1000000}\n"
    )
    folder = tmp_path_factory.mktemp("priced")
    with run_proxy(shop, folder, {"priced": policy}, admin={"port": free_port()}) as proxy:
        run(proxy, "SELECT count(*) FROM orders", user="priced")
        assert sample(proxy, "explain_seconds_count") == 1
        assert sample(proxy, "gate_seconds_count") >= 1


def test_a_backend_that_is_gone_is_a_reason_to_send_agents_elsewhere(
    shop: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("gone")
    with run_proxy(shop, folder, admin={"port": free_port()}, backend={"port": free_port()}) as proxy:
        status, body = get(proxy, "/readyz")
        assert status == 503
        assert json.loads(body)["problems"] == ["backend: the database server cannot be reached"]
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(**proxy.parameters())
        assert sample(proxy, "backend_failures_total") == 1
        assert get(proxy, "/healthz") == (200, "ok\n")
