"""mode: observe: everything passes as it came, nothing is asked or held, and the file says what would not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from proxy.cli import main
from tests.support.postgres import Server
from tests.support.proxy import RunningProxy, run_proxy

OBSERVED = """
version: 1
name: observed
mode: observe
access: read_only
statements: {select: {decide: allow, repair: once}}
relations: {allow: ["public.*"], deny: [public.api_keys]}
functions: {allow: [builtin-safe]}
cost: {max_total_cost: 1}
limits: {result_rows: 1, affected_rows: 1}
"""


@pytest.fixture(scope="module")
def observed(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    folder = tmp_path_factory.mktemp("observed")
    audit = {"path": "audit.jsonl"}
    with (
        postgres.database() as database,
        run_proxy(database, folder, {"watched": OBSERVED}, audit=audit) as proxy,
    ):
        yield proxy


SENT = (
    "SELECT count(*) FROM orders a, orders b",
    "SELECT count(*) FROM api_keys",
    "SELECT id FROM orders ORDER BY id LIMIT 3",
    "UPDATE orders SET status = status",
    "CREATE TEMP TABLE observed_made ()",
)


@pytest.mark.parametrize("prepare", [False, True], ids=["simple", "prepared"])
def test_nothing_is_refused_asked_or_held(observed: RunningProxy, prepare: bool) -> None:
    with psycopg.connect(**observed.parameters("watched"), autocommit=True) as connection:
        for sql in SENT:
            connection.execute(sql.encode(), prepare=prepare)
    texts = [*observed.database.executed("shop_app"), *observed.database.parsed("shop_app")]
    assert set(SENT) <= set(texts)
    assert not [text for text in texts if "EXPLAIN" in text or "pgturnstile" in text]


def test_an_open_transaction_stays_usable(observed: RunningProxy) -> None:
    with psycopg.connect(**observed.parameters("watched")) as connection:
        connection.execute("DELETE FROM order_items")
        connection.execute("SELECT count(*) FROM order_items a, order_items b, order_items c")
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        connection.rollback()
    assert observed.database.execute("SELECT count(*) > 0 FROM order_items") == [(True,)]


def test_what_is_under_way_is_neither_held_nor_cut_short(observed: RunningProxy) -> None:
    """Cursors, COPY both ways and pipelines, each over a limit or a list of the policy."""
    with psycopg.connect(**observed.parameters("watched")) as connection:
        with connection.cursor("many") as cursor:
            cursor.execute("SELECT id FROM orders ORDER BY id")
            assert [row[0] for row in cursor.fetchmany(5)] == [1, 2, 3, 4, 5]
        with connection.cursor() as cursor:
            with cursor.copy("COPY (SELECT id FROM orders ORDER BY id LIMIT 4) TO STDOUT") as copy:
                assert [row[0] for row in copy.rows()] == ["1", "2", "3", "4"]
            cursor.execute("CREATE TEMP TABLE observed_copy (n int)")
            with cursor.copy("COPY observed_copy FROM STDIN") as copy:
                for n in range(3):
                    copy.write_row((n,))
            assert cursor.rowcount == 3
        with connection.pipeline():
            results = [connection.execute(sql.encode()) for sql in SENT[:4]]
            counted = connection.execute("SELECT count(*) FROM observed_copy")
        assert all(result.rowcount > 0 for result in results)
        assert counted.fetchone() == (3,)
        connection.rollback()


@pytest.mark.parametrize("prepare", [False, True], ids=["simple", "prepared"])
def test_an_error_is_the_servers_own(observed: RunningProxy, prepare: bool) -> None:
    sql = "SELECT id FROM orders WHERE nothing = 1"
    with psycopg.connect(**observed.parameters("watched"), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
            connection.execute(sql.encode(), prepare=prepare)
        assert caught.value.diag.statement_position == str(sql.index("nothing") + 1)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_summary_tells_what_enforcing_would_refuse(
    observed: RunningProxy, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with psycopg.connect(**observed.parameters("watched"), autocommit=True) as connection:
        for _ in range(3):
            connection.execute("SELECT secret FROM api_keys WHERE id = 1")
    audit = observed.folder / "audit.jsonl"
    copied = tmp_path / "audit.jsonl"
    # A line is whole once its end is there: the writer may be at work on the next.
    text = ""
    while text.count("SELECT secret FROM api_keys") < 3:
        text = audit.read_text(encoding="utf-8").rpartition("\n")[0] + "\n"
    copied.write_text(text, encoding="utf-8")
    assert main(["audit", "summary", "--format", "json", str(copied)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["refused"] == 0
    relation = next(rule for rule in told["rules"] if rule["rule"] == "relation-not-allowed")
    assert relation["agents"].keys() == {"watched"}
    assert {"count": 3, "agents": {"watched": 3}}.items() <= next(
        shape for shape in relation["statements"] if "SELECT secret" in shape["example"]
    ).items()
