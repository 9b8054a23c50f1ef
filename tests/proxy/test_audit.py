"""The audit file: what a line says, that none is lost, and what happens when the disk refuses."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.decision import Allow, Basis, Decision, Reject
from policy.facts import CallKind, Facts, FunctionRef, ParseFailure, QueryString, RelationRef
from policy.lifting import Lifted
from policy.model import Halt, RepairTerms, RuleLevel, StatementClass, Violation
from policy.parse import parse
from proxy import audit as audit_module
from proxy import audit_file
from proxy.audit import Audit, AuditError
from proxy.audit_chain import verify
from proxy.audit_file import AppendFile
from proxy.audit_line import _CACHED_DECISIONS, ConnectionIdentity, Renderer
from proxy.audit_lines import read_lines
from proxy.audit_queue import AT_ONCE
from proxy.config import Audit as AuditSettings
from proxy.config import Fsync, OnFailure, Statements
from proxy.effects import AuditEntry
from proxy.health import AuditState
from tests.support.proxy import wait_for

WHO = ConnectionIdentity(
    agent="analyst",
    database="shop",
    backend_user="shop_ro",
    application_name=None,
    client="127.0.0.1:5000",
    connection="01C",
    policy_name="reports",
    policy_sha256="ab" * 32,
)
SQL = "SELECT lower(name) FROM public.users WHERE id = 41"


def query_string(sql: str = SQL) -> QueryString:
    facts = Facts(
        sql=sql,
        start=1,
        node="SelectStmt",
        classes=frozenset({StatementClass.SELECT}),
        statement_class=StatementClass.SELECT,
        class_positions={},
        relations=(RelationRef("users", "public"), RelationRef("users", "public"), RelationRef("orders")),
        functions=(
            FunctionRef("lower"),
            FunctionRef("name", kind=CallKind.ATTRIBUTE),
            FunctionRef("spent_by", "reporting"),
        ),
    )
    return QueryString(sql, (facts,))


def violation(rule: str, level: RuleLevel = RuleLevel.REJECT) -> Violation:
    return Violation(rule, f"{rule} says 41", "hint", object="public.users", position=8, level=level)


def allow(sql: str = SQL, **more: Any) -> Allow:
    return Allow(query_string(sql), StatementClass.SELECT, **more)


def reject(*violations: Violation, query: QueryString | None = None) -> Reject:
    return Reject(
        query or query_string(), StatementClass.SELECT, violations, RepairTerms(), Halt.CLASS_NOT_REPAIRABLE
    )


def entry_of(decision: Decision, entry_id: str = "01E") -> AuditEntry:
    entry = AuditEntry(entry_id, decision, "extended", 12.5)
    entry.command_tag, entry.rows, entry.bytes, entry.ms, entry.outcome_known = (
        "SELECT 3",
        3,
        120,
        1.23456,
        True,
    )
    return entry


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def line_of(decision: Decision, statements: Statements = Statements.FULL) -> dict[str, Any]:
    rendered = Renderer(statements).render(1_700_000_000.25, entry_of(decision), WHO)
    assert rendered.endswith("\n")
    assert rendered.count("\n") == 1
    parsed: dict[str, Any] = json.loads(rendered)
    return parsed


def test_the_snapshot_that_decided_is_told_where_there_was_one() -> None:
    line = line_of(allow(basis=Basis("cd" * 32, (("public",),), unsettled=True)))
    assert (line["catalog_sha256"], line["search_path"], line["unsettled"]) == ("cd" * 32, [["public"]], True)
    line = line_of(allow(basis=Basis(paths=(("a", "b"), ("b",)))))
    assert line["search_path"] == [["a", "b"], ["b"]]
    assert "catalog_sha256" not in line
    assert not {"catalog_sha256", "search_path", "unsettled"} & line_of(allow()).keys()


def test_masked_constants_are_said_to_be() -> None:
    assert "masked" not in line_of(allow())
    masked = Renderer(Statements.LITERALS_MASKED).render(0.0, entry_of(allow()), WHO)
    assert json.loads(masked)["masked"] is True


def test_an_allowed_statement_has_every_field_of_the_contract_in_its_order() -> None:
    line = line_of(allow())
    fingerprint = line.pop("fingerprint")
    assert isinstance(fingerprint, str)
    assert len(fingerprint) == 16
    expected: list[tuple[str, Any]] = [
        ("ts", "2023-11-14T22:13:20.250000+00:00"),
        ("id", "01E"),
        ("agent", "analyst"),
        ("database", "shop"),
        ("backend_user", "shop_ro"),
        ("application_name", None),
        ("client", "127.0.0.1:5000"),
        ("connection", "01C"),
        ("protocol", "extended"),
        ("class", "select"),
        ("statement", SQL),
        ("relations", ["public.users", "orders"]),
        ("functions", ["lower", "reporting.spent_by"]),
        ("decision", "allow"),
        ("rule", None),
        ("violations", []),
        ("policy", {"name": "reports", "sha256": "ab" * 32}),
        (
            "outcome",
            {
                "command_tag": "SELECT 3",
                "rows": 3,
                "bytes": 120,
                "sqlstate": None,
                "ms": 1.235,
                "known": True,
            },
        ),
    ]
    assert list(line.items()) == expected


def test_a_rejection_names_its_rule_first_and_all_of_its_violations() -> None:
    line = line_of(reject(violation("column-not-allowed"), violation("unbounded-join", RuleLevel.WARN)))
    assert (line["decision"], line["rule"]) == ("reject", "column-not-allowed")
    assert line["violations"] == [
        {
            "rule": "column-not-allowed",
            "level": "reject",
            "object": "public.users",
            "position": 8,
            "message": "column-not-allowed says 41",
            "suggestion": None,
        },
        {
            "rule": "unbounded-join",
            "level": "warn",
            "object": "public.users",
            "position": 8,
            "message": "unbounded-join says 41",
            "suggestion": None,
        },
    ]


@pytest.mark.parametrize(
    ("decision", "rule", "rules"),
    [
        (
            allow(observed=(violation("delete-without-where"),)),
            "delete-without-where",
            ["delete-without-where"],
        ),
        (allow(warnings=(violation("unbounded-join", RuleLevel.WARN),)), None, ["unbounded-join"]),
        (
            allow(observed=(violation("a"),), warnings=(violation("b", RuleLevel.WARN),)),
            "a",
            ["a", "b"],
        ),
    ],
)
def test_what_an_observing_policy_would_have_refused_is_the_rule_of_an_allow(
    decision: Allow, rule: str | None, rules: list[str]
) -> None:
    line = line_of(decision)
    assert line["decision"] == "allow"
    assert line["rule"] == rule
    assert [v["rule"] for v in line["violations"]] == rules


def test_masked_statements_keep_no_constant_anywhere() -> None:
    line = line_of(reject(violation("column-not-allowed")), Statements.LITERALS_MASKED)
    assert line["statement"] == "SELECT lower(name) FROM public.users WHERE id = $1"
    assert "41" not in json.dumps({k: v for k, v in line.items() if k != "fingerprint"})


def test_text_that_does_not_parse_cannot_be_masked_and_is_left_out() -> None:
    failure = ParseFailure("unparsable", 'syntax error at or near "41"', "42601", 1)
    decision = reject(violation("unparsable"), query=QueryString("SELEC 41", (), failure))
    assert line_of(decision, Statements.LITERALS_MASKED)["statement"] is None
    assert line_of(decision, Statements.FULL)["statement"] == "SELEC 41"


def test_no_statement_is_kept_where_none_is_wanted() -> None:
    line = line_of(reject(violation("column-not-allowed")), Statements.NONE)
    assert "statement" not in line
    assert "message" not in line["violations"][0]
    assert line["relations"] == ["public.users", "orders"]


@given(st.text(), st.text())
def test_any_text_makes_one_ascii_line(sql: str, tag: str) -> None:
    entry = entry_of(Allow(QueryString(sql), None))
    entry.command_tag = tag
    rendered = Renderer(Statements.FULL).render(0.0, entry, WHO)
    assert rendered.isascii()
    assert rendered[:-1].isprintable()
    parsed = json.loads(rendered)
    assert parsed["statement"] == sql
    assert parsed["outcome"]["command_tag"] == tag
    assert parsed["class"] is None


def test_members_rendered_once_are_never_those_of_another_decision_or_connection() -> None:
    renderer = Renderer(Statements.FULL)
    for n in range(3 * _CACHED_DECISIONS):
        # Each decision is dropped before the next is made, so that addresses are used again.
        line = json.loads(renderer.render(0.0, entry_of(allow(f"SELECT {n}")), WHO))
        assert line["statement"] == f"SELECT {n}"
    other = ConnectionIdentity("clerk", "shop", "shop_app", "app", "local", "01D", "writes", "cd" * 32)
    decision = allow()
    first, second = (json.loads(renderer.render(0.0, entry_of(decision), who)) for who in (WHO, other))
    assert (first["agent"], second["agent"]) == ("analyst", "clerk")
    assert (first["policy"]["name"], second["policy"]["name"]) == ("reports", "writes")


@pytest.mark.parametrize("statements", list(Statements))
def test_statements_that_differ_in_digits_have_lines_as_of_their_own(statements: Statements) -> None:
    renderer = Renderer(statements)
    sql = "SELECT id FROM orders WHERE id = {}"
    first = parse(sql.format(17))
    known = Allow(first, StatementClass.SELECT)
    assert not renderer.knows(known)
    for number in (17, 42, 99):
        text = sql.format(number)
        own = json.loads(
            Renderer(statements).render(1.5, entry_of(Allow(parse(text), known.statement_class)), WHO)
        )
        alike = Allow(Lifted(text, first), known.statement_class)
        assert json.loads(renderer.render(1.5, entry_of(alike), WHO)) == own
        assert renderer.knows(alike)
    refused = reject(Violation("cost-over-limit", "m", "h"), query=Lifted(sql.format(50), first))
    line = json.loads(renderer.render(1.5, entry_of(refused), WHO))
    assert (line["decision"], line["rule"]) == ("reject", "cost-over-limit")
    if statements is Statements.FULL:
        assert line["statement"] == sql.format(50)


@pytest.mark.parametrize("statements", list(Statements))
def test_statements_that_differ_in_comments_have_lines_as_of_their_own(statements: Statements) -> None:
    renderer = Renderer(statements)
    sql = "SELECT id FROM orders WHERE id = 1 /*traceparent='00-{:032x}-{:016x}-01'*/"
    first = parse(sql.format(1, 2))
    for trace in (1, 2), (0xAB, 3), (4, 0xCD):
        text = sql.format(*trace)
        own = Renderer(statements).render(1.5, entry_of(Allow(parse(text), StatementClass.SELECT)), WHO)
        alike = Allow(Lifted(text, first), StatementClass.SELECT)
        assert renderer.render(1.5, entry_of(alike), WHO) == own
        assert json.loads(own)["trace"] == "00-{:032x}-{:016x}-01".format(*trace)


def test_a_long_statement_seen_first_is_rendered_beside_the_event_loop(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    decisions = [allow("SELECT '" + "x" * (AT_ONCE + n) + "'") for n in range(2)]
    with Audit(AuditSettings(path)) as audit:
        for n, decision in enumerate([*decisions, allow(), *decisions]):
            audit.record(entry_of(decision, str(n)), WHO)
            audit.flush(10)
        assert all(map(audit._renderer.knows, decisions))
    texts = [decision.query.sql for decision in decisions]
    assert [line["statement"] for line in lines_of(path)] == [*texts, SQL, *texts]
    assert [line["id"] for line in lines_of(path)] == list("01234")


@given(st.integers(0, 4_000_000_000_000_000))
def test_the_time_is_told_to_the_microsecond(micros: int) -> None:
    at = micros / 1_000_000
    line = json.loads(Renderer(Statements.NONE).render(at, entry_of(allow()), WHO))
    assert line["ts"] == datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


def test_a_record_that_cannot_be_rendered_still_has_a_line() -> None:
    broken = WHO._replace(client=object())  # type: ignore[arg-type]
    line = json.loads(Renderer(Statements.FULL).render(0.0, entry_of(allow()), broken))
    assert (line["id"], line["agent"]) == ("01E", "analyst")
    assert "TypeError" in line["error"]


def test_every_record_is_in_the_file_in_order_after_close(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    decision = allow()
    with Audit(AuditSettings(path)) as audit:
        for n in range(2_000):
            audit.record(entry_of(decision, str(n)), WHO)
    assert [line["id"] for line in lines_of(path)] == [str(n) for n in range(2_000)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    stamps = [datetime.fromisoformat(line["ts"]) for line in lines_of(path)]
    assert stamps == sorted(stamps)


def test_flush_waits_for_what_was_recorded_before(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Audit(AuditSettings(path)) as audit:
        for n in range(3):
            audit.record(entry_of(allow(), str(n)), WHO)
            assert audit.flush(10)
            assert len(lines_of(path)) == n + 1


def test_a_file_that_exists_is_appended_to_and_a_torn_last_line_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"id":"old"}\n{"id":"to', encoding="ascii")
    with Audit(AuditSettings(path)) as audit:
        audit.record(entry_of(allow()), WHO)
    old, torn, new = path.read_text(encoding="ascii").splitlines()
    assert (old, torn, json.loads(new)["id"]) == ('{"id":"old"}', '{"id":"to', "01E")


def test_a_file_that_was_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    with Audit(AuditSettings(path)) as audit:
        audit.record(entry_of(allow(), "before"), WHO)
        assert audit.flush(10)
        path.rename(moved)
        audit.record(entry_of(allow(), "after"), WHO)
    assert [line["id"] for line in lines_of(moved)] == ["before"]
    assert [line["id"] for line in lines_of(path)] == ["after"]


def test_a_file_that_lost_its_folder_still_takes_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, moved = tmp_path / "logs" / "audit.jsonl", tmp_path / "old"
    path.parent.mkdir()
    with Audit(AuditSettings(path)) as audit:
        path.parent.rename(moved)
        for n in range(3):
            audit.record(entry_of(allow(), str(n)), WHO)
            assert audit.flush(10)
    assert [line["id"] for line in lines_of(moved / "audit.jsonl")] == ["0", "1", "2"]
    assert capsys.readouterr().out.count("audit file moved") == 1


@pytest.mark.parametrize("name", ["", "no/such/folder/audit.jsonl"])
def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(AuditError, match=f"The audit file {path} cannot be opened: "):
        Audit(AuditSettings(path))


class _StubbornDisk:
    """os.write that fails, or writes little, until it is told to work."""

    def __init__(self) -> None:
        self.works = threading.Event()
        self.write = os.write

    def __call__(self, descriptor: int, data: bytes) -> int:
        if not self.works.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.write(descriptor, data[:100])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> _StubbornDisk:
    disk = _StubbornDisk()
    monkeypatch.setattr("proxy.audit_file.os.write", disk)
    monkeypatch.setattr(audit_module, "_RETRY_S", 0.01)
    return disk


def test_a_disk_that_comes_back_gets_everything_once(tmp_path: Path, disk: _StubbornDisk) -> None:
    path = tmp_path / "audit.jsonl"
    with Audit(AuditSettings(path)) as audit:
        for n in range(100):
            audit.record(entry_of(allow(), str(n)), WHO)
        assert not audit.flush(0.1)
        disk.works.set()
    assert [line["id"] for line in lines_of(path)] == [str(n) for n in range(100)]


def test_a_full_queue_makes_record_wait_and_loses_nothing(tmp_path: Path, disk: _StubbornDisk) -> None:
    path = tmp_path / "audit.jsonl"
    with Audit(AuditSettings(path), capacity=3 * 1100, patience_s=30) as audit:
        threading.Timer(0.1, disk.works.set).start()
        for n in range(10):
            audit.record(entry_of(allow(), str(n)), WHO)
        assert disk.works.is_set(), "the fourth record had to wait for the disk"
    assert [line["id"] for line in lines_of(path)] == [str(n) for n in range(10)]


def test_a_queue_that_stays_full_refuses_until_there_is_room(
    tmp_path: Path, disk: _StubbornDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    with Audit(AuditSettings(path), capacity=3 * 1100, patience_s=0.05) as audit:
        for n in range(3):
            audit.record(entry_of(allow(), str(n)), WHO)
        for lost in ("lost-a", "lost-b"):
            with pytest.raises(AuditError, match="takes no more records"):
                audit.record(entry_of(allow(), lost), WHO)
        disk.works.set()
        assert audit.flush(10)
        audit.record(entry_of(allow(), "3"), WHO)
    assert [line["id"] for line in lines_of(path)] == ["0", "1", "2", "3"]
    told = capsys.readouterr().out
    assert told.count("audit queue full") == 1
    assert "lost-a" in told, "the log must hold the line that the file does not"
    assert "lost-b" in told


def test_a_record_larger_than_the_queue_passes_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    long = "SELECT '" + "x" * 10_000 + "'"
    with Audit(AuditSettings(path), capacity=2_000) as audit:
        for _ in range(3):
            audit.record(entry_of(allow(long)), WHO)
    assert [line["statement"] for line in lines_of(path)] == [long] * 3


def test_close_says_how_much_a_dead_disk_lost(tmp_path: Path, disk: _StubbornDisk) -> None:
    audit = Audit(AuditSettings(tmp_path / "audit.jsonl"), patience_s=0.05)
    for _ in range(3):
        audit.record(entry_of(allow()), WHO)
    with pytest.raises(AuditError, match="3 audit records could not be written"):
        audit.close()
    audit.close()
    with pytest.raises(AuditError, match="closed"):
        audit.record(entry_of(allow()), WHO)


def test_a_pipe_can_take_the_audit(tmp_path: Path) -> None:
    path = tmp_path / "audit.fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with Audit(AuditSettings(path)) as audit:
            audit.record(entry_of(allow()), WHO)
        assert json.loads(os.read(reader, 65_536))["id"] == "01E"
    finally:
        os.close(reader)


def test_lines_are_linked_over_rotations_and_restarts(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    with Audit(AuditSettings(path)) as audit:
        audit.record(entry_of(allow(), "0"), WHO)
        assert audit.flush(10)
        path.rename(moved)
        audit.record(entry_of(allow(), "1"), WHO)
    with Audit(AuditSettings(path)) as audit:
        audit.record(entry_of(allow(), "2"), WHO)
    verdict = verify([moved, path])
    assert (verdict.holds, verdict.lines, len(verdict.heads)) == (True, 3, 2)
    assert lines_of(path)[-1]["prev"] is not None


@pytest.mark.parametrize("kept", [b"", b'{"id":"old"}\n'], ids=["a new file", "an old one"])
def test_several_writers_have_whole_lines_and_one_chain(tmp_path: Path, kept: bytes) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(kept)
    # All are there before the first line is: none may claim to begin the file once another has.
    audits = [Audit(AuditSettings(path)) for _ in range(3)]
    for n in range(60):
        audits[n % 3].record(entry_of(allow(f"SELECT '{'x' * 100 * n}'"), str(n)), WHO)
        if n == 30:
            audits[0].flush(10)
    for audit in audits:
        audit.close()
    lines = lines_of(path)[len(kept.splitlines()) :]
    assert sorted(int(line["id"]) for line in lines) == list(range(60))
    verdict = verify([path])
    reasons = [] if not kept else [(1, "a record that is not linked")]
    assert [(at.number, at.reason) for at in verdict.breaks] == reasons
    assert len(verdict.heads) == 3


def test_a_batch_that_the_disk_took_in_part_leaves_no_half_line_for_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    write, full = os.write, threading.Event()
    seen: list[bytes] = []

    def disk(descriptor: int, data: memoryview) -> int:
        if not full.is_set():
            return write(descriptor, data)
        if len(data) <= 50:
            seen.append(path.read_bytes())
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:50])

    monkeypatch.setattr("proxy.audit_file.os.write", disk)
    one, other = AppendFile(path), AppendFile(path)
    with one.alone():
        assert one.append(b"a" * 99 + b"\n") == b""
    full.set()
    with one.alone(), pytest.raises(OSError, match="No space left"):
        one.append(b"b" * 99 + b"\n")
    assert seen[0].endswith(b"b" * 50)
    full.clear()
    with other.alone():
        other.append(b"c\n")
    assert path.read_bytes() == b"a" * 99 + b"\nc\n"
    for file in (one, other):
        file.close()


def test_a_line_that_a_killed_writer_left_half_is_ended_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Audit(AuditSettings(path)) as audit:
        audit.record(entry_of(allow(), "0"), WHO)
        assert audit.flush(10)
        with path.open("ab") as killed:
            killed.write(b'{"id":"ha')
        audit.record(entry_of(allow(), "1"), WHO)
    whole, torn, next_ = path.read_text().splitlines()
    assert (json.loads(whole)["id"], torn, json.loads(next_)["id"]) == ("0", '{"id":"ha', "1")


def test_a_file_that_somebody_keeps_locked_is_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "_LOCKED_S", 0.02)
    monkeypatch.setattr(audit_module, "_RETRY_S", 0.01)
    path = tmp_path / "audit.jsonl"
    told: list[str | None] = []
    with Audit(AuditSettings(path)) as audit:
        audit.on_failure = told.append
        with AppendFile(path).alone():
            audit.record(entry_of(allow()), WHO)
            wait_for(lambda: told == ["another process keeps it locked"])
        assert audit.flush(10)
    assert told == ["another process keeps it locked", None]
    assert [line["id"] for line in lines_of(path)] == ["01E"]


def test_a_file_system_without_locks_still_takes_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("proxy.audit_file.fcntl.flock", no_locks)
    path = tmp_path / "audit.jsonl"
    with Audit(AuditSettings(path)) as audit:
        audit.record(entry_of(allow()), WHO)
    assert [line["id"] for line in lines_of(path)] == ["01E"]


def test_a_torn_last_line_is_in_the_chain_of_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"id":"to', encoding="ascii")
    with Audit(AuditSettings(path)) as audit:
        audit.record(entry_of(allow()), WHO)
    assert [(at.number, at.reason[:9]) for at in verify([path]).breaks] == [(1, "no record")]


def test_the_head_is_logged_when_the_file_is_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    with Audit(AuditSettings(path)) as audit:
        audit.record(entry_of(allow()), WHO)
    (head,) = verify([path]).heads.values()
    assert f"head={head}" in capsys.readouterr().out


def test_the_file_is_reopened_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Audit(AuditSettings(path)) as audit:
        for n in range(3):
            path.rename(tmp_path / f"audit.{n}")
            audit.reopen()
            wait_for(path.exists)
            audit.record(entry_of(allow(), str(n)), WHO)
            assert audit.flush(10)
            assert [line["id"] for line in lines_of(path)] == [str(n)]


def test_a_disk_that_fails_is_told_of_at_once_and_so_is_its_return(
    tmp_path: Path, disk: _StubbornDisk
) -> None:
    told: list[str | None] = []
    with Audit(AuditSettings(tmp_path / "audit.jsonl")) as audit:
        audit.on_failure = told.append
        audit.record(entry_of(allow()), WHO)
        wait_for(lambda: told == ["No space left on device"])
        assert audit.state == AuditState("No space left on device", True, 1024 + len(SQL), 0)
        disk.works.set()
        wait_for(lambda: told == ["No space left on device", None])
        assert audit.state == AuditState(None, True, 0, 0)


def test_where_statements_go_on_records_without_room_are_counted_and_the_file_says_so(
    tmp_path: Path, disk: _StubbornDisk
) -> None:
    path = tmp_path / "audit.jsonl"
    settings = AuditSettings(path, on_failure=OnFailure.ALARM)
    with Audit(settings, capacity=3 * 1100) as audit:
        for n in range(8):
            audit.record(entry_of(allow(), str(n)), WHO)
        assert (audit.state.lost, audit.state.refuses) == (5, False)
        disk.works.set()
        assert audit.flush(10)
        audit.record(entry_of(allow(), "8"), WHO)
    lines = lines_of(path)
    assert [line.get("id") for line in lines] == ["0", "1", "2", None, "8"]
    assert (lines[3]["event"], lines[3]["records"]) == ("records_lost", 5)
    assert verify([path]).holds
    assert [line.is_decision for line in read_lines([path])] == [True, True, True, False, True]


def test_every_batch_is_forced_to_the_disk_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sizes: list[int] = []
    path = tmp_path / "audit.jsonl"

    def fsync(descriptor: int) -> None:
        synced.append(descriptor)
        sizes.append(path.stat().st_size)
        if len(synced) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("proxy.audit_file.os.fsync", fsync)
    monkeypatch.setattr(audit_module, "_RETRY_S", 0.01)
    told: list[str | None] = []
    with Audit(AuditSettings(path, fsync=Fsync.ALWAYS)) as audit:
        audit.on_failure = told.append
        audit.record(entry_of(allow()), WHO)
        assert audit.flush(10)
        assert len(synced) == 2, "a sync that failed is tried again, the lines are not"
        assert sizes[0] == sizes[1] == path.stat().st_size > 0
    assert told == ["Input/output error", None]


CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("sql", "trace"),
    [
        (f"SELECT 1 /*traceparent='{CONTEXT}'*/", CONTEXT),
        (f"SELECT 1 /* action='a%20b',traceparent='{CONTEXT}',tracestate='x%3D1' */;\n", CONTEXT),
        (f"/*traceparent='{CONTEXT}'*/ SELECT 1", CONTEXT),
        (f"/*app='x'*/ SELECT 1 /*traceparent='{CONTEXT}'*/", CONTEXT),
        (f"SELECT '/*traceparent=''{CONTEXT}''*/'", None),
        (f"SELECT 1, '/*traceparent=''{CONTEXT}''*/' /* note */", None),
        (f"SELECT $$/*traceparent='{CONTEXT}'*/$$", None),
        (f"SELECT 1 AS \"/*traceparent='{CONTEXT}'*/\"", None),
        ("SELECT 1 /*traceparent='00-short-01'*/", None),
        (f"SELECT 1 /*traceparent='{CONTEXT.upper()}'*/", None),
        (f"SELECT 1 /* a * b, traceparent='{CONTEXT}'*/", None),
        (f"/*traceparent='{CONTEXT}'", None),
        (f"/*/traceparent='{CONTEXT}'*/ SELECT 1", CONTEXT),
        ("SELECT 1 /*traceparent*/", None),
        ("/*/traceparent", None),
        ("SELECT 1", None),
    ],
)
@pytest.mark.parametrize("statements", list(Statements))
def test_the_trace_context_of_a_comment_is_carried_over(
    sql: str, trace: str | None, statements: Statements
) -> None:
    assert line_of(Allow(parse(sql), StatementClass.SELECT), statements).get("trace") == trace


def test_a_comment_of_nothing_but_trace_contexts_takes_time_by_its_length() -> None:
    """What looks for one holds the interpreter, and with it every agent, until it is done."""

    def seconds(count: int) -> float:
        text = "/*" + f"traceparent='{CONTEXT}'" * count + "* */ SELECT 1"
        decision = reject(query=QueryString(text))
        begin = time.thread_time()
        line_of(decision, Statements.NONE)
        return time.thread_time() - begin

    assert min(seconds(8000) for _ in range(3)) < 40 * min(seconds(1000) for _ in range(3))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'hidden', 4711 /* hidden 4711 */ -- hidden",
        "-- hidden\nSELECT 4711",
        "SET application_name = 'hidden'",
        "COMMENT ON TABLE a IS 'hidden'",
        "DO $x$ BEGIN PERFORM 'hidden'; END $x$",
        "PREPARE p AS SELECT 'hidden', 4711",
        "EXECUTE p('hidden', 4711)",
        "COPY (SELECT 'hidden') TO STDOUT WITH (DELIMITER 'h', NULL 'hidden')",
        "CREATE TABLE a (b text DEFAULT 'hidden', c int CHECK (c <> 4711))",
        "ALTER ROLE x SET search_path = 'hidden'",
        "CREATE ROLE x PASSWORD 'hidden'",
        "CREATE FUNCTION f() RETURNS int AS 'hidden' LANGUAGE sql",
        "NOTIFY c, 'hidden'",
        "FETCH 4711 FROM c",
        "SELECT U&'\\0068idden', E'hidden', N'hidden', $$hidden$$, .4711, 0x4711, 'hid'\n'den'",
        "SELECT interval '4711 days', date 'hidden', 'hidden'::text, a FROM b WHERE c = $1 OR d = 'hidden'",
        "INSERT INTO a VALUES ('hidden', 4711) RETURNING 'hidden'",
        "EXPLAIN (FORMAT JSON) DELETE FROM a WHERE b = 'hidden'",
        "DECLARE c CURSOR FOR SELECT 'hidden'",
        "SELECT 1; SELECT 'hidden'",
    ],
)
def test_a_masked_statement_holds_no_constant_and_no_comment(sql: str) -> None:
    """Wherever the grammar takes one: libpg_query's own normalization leaves those of utility statements."""
    line = line_of(Allow(parse(sql), None), Statements.LITERALS_MASKED)
    masked = line["statement"]
    assert masked is not None
    assert not re.search("hid|idden|4711", json.dumps(line).replace(line["fingerprint"], ""))
    assert re.search(r"\$[0-9]", masked)


def test_a_masked_statement_keeps_names_and_its_own_parameters() -> None:
    sql = 'SELECT "id\'4", t4.c FROM t4 WHERE a = $1 AND b = 7 AND c = $2'
    masked = 'SELECT "id\'4", t4.c FROM t4 WHERE a = $1 AND b = $3 AND c = $2'
    assert line_of(Allow(parse(sql), None), Statements.LITERALS_MASKED)["statement"] == masked


def test_a_writer_that_breaks_is_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str | None] = []
    audit = Audit(AuditSettings(tmp_path / "audit.jsonl"))
    audit.on_failure = told.append
    monkeypatch.setattr(audit._file, "append", lambda data: 1 / 0)
    audit.record(entry_of(allow()), WHO)
    wait_for(lambda: bool(told))
    assert audit.state.failing is not None
    assert "ZeroDivisionError" in audit.state.failing
    with pytest.raises(AuditError, match="1 audit records could not be written"):
        audit.close()
