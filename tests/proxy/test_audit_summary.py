"""Looking back on audit files: what is counted, and what a broken file is told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from proxy.audit_lines import AuditLineError, read_lines
from proxy.audit_summary import summarize
from proxy.cli import main


def line(
    rule: str | None = None,
    *,
    decision: str = "allow",
    agent: str = "bot",
    fingerprint: str = "f1",
    **more: Any,
) -> dict[str, Any]:
    return {
        "id": "x-1",
        "agent": agent,
        "fingerprint": fingerprint,
        "statement": f"text of {fingerprint}",
        "decision": decision,
        "rule": rule,
        "policy": {"name": "shop", "sha256": "0"},
        "outcome": {"sqlstate": None},
        **more,
    }


def write(path: Path, bodies: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies), encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(
        tmp_path / "audit.jsonl",
        [
            line(),
            line(outcome={"sqlstate": "42703"}),
            line("delete-without-where", decision="reject", fingerprint="f2"),
            line("delete-without-where", agent="other", fingerprint="f2"),
            line("delete-without-where", fingerprint="f3"),
            line("column-not-allowed", fingerprint="f4"),
            {"event": "something else"},
        ],
    )


def test_refusals_are_counted_by_rule_agent_and_statement(file: Path) -> None:
    summary = summarize(read_lines([file]))
    assert (summary.decisions, summary.refused, summary.observed, summary.failed) == (6, 1, 3, 1)
    deletes, columns = summary.rules
    assert (deletes.rule, deletes.refused, deletes.observed) == ("delete-without-where", 1, 2)
    assert deletes.agents == {"bot": 2, "other": 1}
    assert [(shape.fingerprint, shape.count) for shape in deletes.dearest(9)] == [("f2", 2), ("f3", 1)]
    assert [shape.fingerprint for shape in deletes.dearest(1)] == ["f2"]
    assert columns.count == 1


def test_several_files_are_one_summary(file: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "audit.2.jsonl", [line("server-file", decision="reject")])
    assert summarize(read_lines([file, more])).refused == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id": "a", "decision": "allow"}\n{"id": "b", "deci', ":2: no JSON, the file ends within it"),
        ("nonsense\n", ":1: no JSON"),
        ('{"id": "\x80", "decision": "allow"}\n', ":1: no JSON"),
        ("[" * 100_000 + "\n", ":1: no JSON"),
        ('{"id": "a",\r"decision": "allow"}\nnonsense\n', ":2: no JSON"),
        ("[1]\n", ":1: no audit record"),
        ('{"id": 1}\n', ":1: no audit record"),
    ],
)
def test_a_line_that_is_none_is_told_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(AuditLineError) as raised:
        list(read_lines([path]))
    assert str(raised.value) == f"{path}{said}"


def test_the_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "summary", "--top", "1", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("6 decisions: 1 refused, 3 that enforcing would refuse, 1 let through and failed")
    assert "delete-without-where: 1 refused, 2 would be (bot 2, other 1)" in out
    assert "        2  f2  text of f2" in out
    assert "and 1 more" in out
    assert main(["audit", "summary", "--format", "json", str(file)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["refused"], told["would_refuse"]) == (1, 3)
    assert told["rules"][0]["statements"][0] == {
        "fingerprint": "f2",
        "count": 2,
        "agents": {"bot": 1, "other": 1},
        "example": "text of f2",
    }


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_file_that_cannot_be_read_is_wrong_usage(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "summary", str(tmp_path / name)]) == 2
    assert "cannot be read" in capsys.readouterr().err
