"""A fault is shown so that it is found: place, path, words, source line and caret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.diagnostics import (
    EXCERPT_WIDTH,
    Diagnostic,
    InvalidFileError,
    PolicyError,
    Severity,
    join_path,
    nearest,
    render,
)

FAULT = Diagnostic(
    "p.yaml", 12, 9, "statements.selct", "unknown statement class", "select", "        selct: allow"
)


def test_one_line_names_place_path_fault_and_nearest_word() -> None:
    assert str(FAULT) == ("p.yaml:12:9: statements.selct: unknown statement class; did you mean 'select'?")


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (Diagnostic("p.yaml", 0, 0, "", "cannot be read: no"), "p.yaml: cannot be read: no"),
        (Diagnostic("p.yaml", 3, 0, "cost", "m", severity=Severity.WARNING), "p.yaml:3: warning: cost: m"),
        (
            Diagnostic("p\x1b[2J.yaml", 1, 1, "a\nb", "m"),
            "p\N{REPLACEMENT CHARACTER}[2J.yaml:1:1: a\N{REPLACEMENT CHARACTER}b: m",
        ),
    ],
)
def test_parts_that_are_absent_leave_no_trace(fault: Diagnostic, line: str) -> None:
    assert str(fault) == line


def test_the_caret_stands_under_the_fault() -> None:
    assert render([FAULT]) == (
        f"{FAULT}\n"
        "   12 |         selct: allow\n"
        "      |         ^"
    )  # fmt: skip


def test_without_an_excerpt_there_is_no_caret() -> None:
    assert render([Diagnostic("p.yaml", 1, 1, "", "m")]) == "p.yaml:1:1: m"


def test_several_faults_follow_each_other() -> None:
    assert render([FAULT, FAULT]) == f"{render([FAULT])}\n{render([FAULT])}"


@given(st.text(st.characters(exclude_characters="\n"), min_size=1, max_size=400), st.data())
def test_the_caret_finds_its_character_in_any_line(line: str, data: st.DataObject) -> None:
    column = data.draw(st.integers(1, len(line)))

    _, shown, caret = render([Diagnostic("p", 7, column, "", "m", None, line)]).split("\n")

    at = caret.index("^")
    original = line[column - 1]
    assert shown[at] == original if original.isprintable() else shown[at] in "\N{REPLACEMENT CHARACTER} "
    assert shown.isprintable()
    assert len(shown) <= EXCERPT_WIDTH + 8


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("unbounded_join", ("unbounded-join", "unbounded-select"), "unbounded-join"),
        ("OBSERVE", ("enforce", "observe"), "observe"),
        ("zzz", ("enforce", "observe"), None),
        ("mib", ("KiB", "MiB"), "MiB"),
        ("x" * 100_000, ("enforce",), None),
        ("a", (), None),
    ],
)
def test_the_nearest_word_is_one_that_could_be_meant(
    word: str, known: tuple[str, ...], near: str | None
) -> None:
    assert nearest(word, known) == near


@pytest.mark.parametrize(
    ("path", "key", "joined"),
    [
        ("", "cost", "cost"),
        ("cost", "max_rows", "cost.max_rows"),
        ("tests", 3, "tests[3]"),
        ("columns", "public.users", 'columns["public.users"]'),
        ("agents", "*", 'agents["*"]'),
        ("", "", '[""]'),
    ],
)
def test_paths_are_written_so_that_they_can_be_followed(path: str, key: str | int, joined: str) -> None:
    assert join_path(path, key) == joined


def test_a_long_key_is_cut_in_its_path() -> None:
    assert len(join_path("agents", "x." * 5000)) < 100


def test_an_error_carries_its_faults_and_says_them() -> None:
    error = PolicyError([FAULT, FAULT])

    assert isinstance(error, InvalidFileError)
    assert error.diagnostics == (FAULT, FAULT)
    assert str(error) == f"{FAULT}\n{FAULT}"
