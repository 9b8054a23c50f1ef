"""Judging a file: how it is cut, what each piece is held to, and how an answer is written down."""

from __future__ import annotations

import json

import pytest

from policy.check import Checked, check
from policy.loader import load
from policy.model import Policy

TEXT = """\
version: 1
name: reader
statements:
  select: allow
  update: {decide: allow, repair: once}
  ddl: {decide: reject, needs: approval}
access: read_write
relations: {allow: ["public.*"], deny: [public.secrets]}
functions: {allow: [builtin-safe]}
rules: {unbounded-join: warn}
"""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load(TEXT, "reader.yaml")


def judged(policy: Policy, text: bytes, **options: int) -> list[Checked]:
    return list(check(policy, text, source="file.sql", agent="bot", **options))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b";;\n -- comment\n/* ; */", []),
        (b"SELECT 1", [1]),
        (b"\xef\xbb\xbfSELECT 1;\nSELECT 2;", [1, 2]),
        (b"SELECT ';';\n\n-- a; b\nSELECT $$;\n$$; SELECT E'\\';'", [1, 4, 5]),
        ("SELECT 'ä€😀';\nSELECT '😀'".encode(), [1, 2]),
        (b"SELECT 1\r\n;SELECT 2", [1, 2]),
    ],
)
def test_a_file_is_cut_where_postgresql_cuts_it(policy: Policy, text: bytes, lines: list[int]) -> None:
    answers = judged(policy, text)
    assert [answer.line for answer in answers] == lines
    assert not any(answer.rejected for answer in answers)


def test_statements_are_judged_alone_and_positions_count_within_them(policy: Policy) -> None:
    fine, refused = judged(policy, "SELECT 'ä'; /* x */ SELECT * FROM secrets".encode())
    assert not fine.rejected
    assert refused.rejection is not None
    assert refused.rejection.position is not None
    assert refused.sql[refused.rejection.position - 1 :].startswith("secrets")
    assert "multiple-statements" not in [violation.rule for violation in refused.violations]


def test_each_statement_is_held_to_the_size_limit_not_the_file(policy: Policy) -> None:
    long = "SELECT '" + "x" * 100 + "'"
    answers = judged(policy, f"SELECT 1; {long}; SELECT 2".encode(), statement_bytes=60)
    assert [answer.rejection and answer.rejection.routine for answer in answers] == [
        None,
        "statement-too-large",
        None,
    ]


@pytest.mark.parametrize(
    ("text", "position"), [(b"SELECT 1; SELEC 2; SELECT 3", 11), (b"SELECT '\xff'", 9), (b"SELECT 1\0", 9)]
)
def test_text_that_does_not_parse_is_one_rejection_with_its_place(
    policy: Policy, text: bytes, position: int
) -> None:
    (answer,) = judged(policy, text)
    assert answer.rejection is not None
    assert (answer.rejection.routine, answer.rejection.sqlstate) == ("unparsable", "42601")
    assert answer.rejection.position == position


def test_a_warning_is_no_rejection(policy: Policy) -> None:
    (answer,) = judged(policy, b"SELECT a.id FROM a JOIN b ON a.id = b.id")
    written = answer.as_json()
    assert (written["decision"], written["repair"]) == ("allow", None)
    assert [(v["rule"], v["level"]) for v in written["violations"]] == [("unbounded-join", "warn")]
    assert "rule" not in written


def test_an_answer_can_be_written_as_json_and_says_what_the_agent_reads(policy: Policy) -> None:
    (answer,) = judged(policy, b"DROP TABLE orders")
    written = json.loads(json.dumps(answer.as_json()))
    assert answer.rejection is not None
    assert {key: written[key] for key in ("source", "line", "sql", "decision", "class", "rule", "halt")} == {
        "source": "file.sql",
        "line": 1,
        "sql": "DROP TABLE orders",
        "decision": "reject",
        "class": "ddl",
        "rule": "class-not-allowed",
        "halt": "approval_required",
    }
    assert written["cost"] is None
    assert written["repair"] == {"allowed": False, "turns_left": 0, "keep": None}
    assert (written["message"], written["hint"]) == (answer.rejection.message, answer.rejection.hint)
    assert written["violations"][0]["message"]


def test_what_an_observing_policy_sees_is_listed_and_passes() -> None:
    observing = load(TEXT + "mode: observe\n", "reader.yaml")
    (answer,) = judged(observing, b"SELECT * FROM secrets")
    assert not answer.rejected
    assert [violation.rule for violation in answer.violations] == ["relation-not-allowed"]
