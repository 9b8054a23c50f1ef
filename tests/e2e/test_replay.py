"""replay: what a session's audit file recorded is decided again, offline, and comes out the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.cli import main
from tests.support.postgres import Server
from tests.support.proxy import WRITER, RunningProxy, run_proxy, wait_for

POLICY = (
    WRITER.replace("name: writer", "name: replayed")
    .replace("update: allow", "update: {decide: allow, repair: once}")
    .replace('allow: ["public.*"]', 'allow: ["public.*"], deny: [public.api_keys]')
    + """
columns: {public.employees: {deny: [salary]}}
cost: {max_total_cost: 20000, max_rows: 100000, max_modified_rows: 500}
limits: {result_rows: 50, affected_rows: 20}
"""
)
SENT: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("SELECT count(*) FROM orders", ()),
    ("SELECT id FROM orders WHERE id = %s", (7,)),
    ("SELECT id FROM orders ORDER BY id", ()),
    ("SELECT count(*) FROM order_items a, order_items b, products c", ()),
    ("SELECT salary FROM employees", ()),
    ("SELECT * FROM api_keys", ()),
    ("SELECT stauts FROM orders", ()),
    ("SELECT 1 / 0", ()),
    ("SELEC 1", ()),
    ("UPDATE orders SET status = 'sent'", ()),
    ("UPDATE orders SET status = 'sent' WHERE id = 7", ()),
    ("UPDATE orders SET status = 'sent' WHERE id BETWEEN 1 AND 400", ()),
    ("UPDATE orders SET stat = 'sent' WHERE id = 7", ()),
    ("UPDATE orders SET status = 'sent' WHERE id > 0", ()),
    ("UPDATE orders SET status = 'sent' WHERE id = 7", ()),
    ("SET search_path = reporting, public", ()),
    ("SELECT count(*) FROM orders WHERE status = %s", ("open",)),
    ("DROP TABLE orders", ()),
    ("SELECT pg_read_file('x')", ()),
    ("SELECT 1; SELECT 2", ()),
    ("", ()),
)


@pytest.fixture(scope="module")
def recorded(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """A proxy that has served both protocols and has written its audit file."""
    folder = tmp_path_factory.mktemp("recorded")
    with (
        postgres.database() as database,
        run_proxy(database, folder, {"replayed": POLICY}, audit={"path": "audit.jsonl"}) as proxy,
    ):
        for prepare in (False, True):
            with psycopg.connect(**proxy.parameters("replayed"), autocommit=True) as connection:
                for sql, values in SENT:
                    try:
                        connection.execute(sql.encode(), values or None, prepare=prepare or bool(values))
                    except psycopg.Error as error:
                        assert error.sqlstate
        audit = folder / "audit.jsonl"
        wait_for(lambda: audit.read_text(encoding="utf-8").count("\n") >= 2 * len(SENT))
        yield proxy


@pytest.fixture
def catalog(recorded: RunningProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["catalog", "dump", "--dsn", recorded.database.dsn("shop_app")]) == 0
    path = tmp_path / "shop.json"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


Replay = Callable[..., tuple[int, list[dict[str, Any]], dict[str, Any]]]


@pytest.fixture
def replay(
    recorded: RunningProxy, catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Replay:
    def replay(policy: str, audit: Path | None = None) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        path = tmp_path / "policy.yaml"
        path.write_text(policy, encoding="utf-8")
        file = audit or recorded.folder / "audit.jsonl"
        code = main(
            [
                "replay",
                "--audit",
                str(file),
                "--policy",
                str(path),
                "--catalog",
                str(catalog),
                "--format",
                "json",
            ]
        )
        *changes, sums = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return code, changes, sums

    return replay


def test_every_decision_comes_out_the_same(replay: Replay) -> None:
    code, changes, sums = replay(POLICY)
    assert changes == []
    assert code == 0
    assert sums["same"] >= 2 * len(SENT)
    assert sums["not_decided_again"] == {}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("deny: [public.api_keys]", "deny: []", {("relation-not-allowed", None)}),
        ("columns: {public.employees: {deny: [salary]}}", "", {("column-not-allowed", None)}),
        ("max_total_cost: 20000, max_rows: 100000, ", "", {("cost-over-limit", None)}),
        ("result_rows: 50", "result_rows: 5", set()),
        (
            ", deny: [public.api_keys]",
            ", deny: [public.api_keys, public.orders]",
            {(None, "relation-not-allowed")},
        ),
        ("update: {decide: allow, repair: once}", "update: allow", {("repair-halted", None)}),
        ("max_total_cost: 20000", "max_total_cost: 0.5", {(None, "cost-over-limit")}),
    ],
)
def test_under_another_policy_just_that_changes(
    replay: Replay, old: str, new: str, expected: set[tuple[str | None, str | None]]
) -> None:
    code, changes, sums = replay(POLICY.replace(old, new))
    told = {(change["before"]["rule"], change["now"]["rule"]) for change in changes}
    assert expected <= told, changes
    assert code == (1 if changes else 0)
    assert sums["changed"] == len(changes)


def test_a_record_that_was_tampered_with_is_noticed(
    replay: Replay, recorded: RunningProxy, tmp_path: Path
) -> None:
    text = (recorded.folder / "audit.jsonl").read_text(encoding="utf-8")
    changed = tmp_path / "changed.jsonl"
    changed.write_text(
        text.replace('"SELECT * FROM api_keys"', '"SELECT count(*) FROM orders"'), encoding="utf-8"
    )
    code, changes, _ = replay(POLICY, changed)
    assert code == 1
    assert {change["before"]["rule"] for change in changes} == {"relation-not-allowed"}
    assert {change["now"]["decision"] for change in changes} == {"allow"}
