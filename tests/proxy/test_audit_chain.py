"""The chain through audit files: whatever is done to a line shows, at its place."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import cli
from proxy.audit_chain import Verdict, last_digest, verify
from proxy.audit_links import Links
from proxy.commands.terminal import Exit

Lines = list[bytes]


def chained(count: int, links: Links | None = None) -> Lines:
    links = links or Links()
    return [links.link(f'{{"id":"{n}","decision":"allow"}}\n') for n in range(count)]


def verified(path: Path, *parts: Lines, expected: tuple[str, ...] = ()) -> Verdict:
    """What is found where each of ``parts`` is a file."""
    files = []
    for n, lines in enumerate(parts):
        files.append(path / f"audit.{n}")
        files[-1].write_bytes(b"".join(lines))
    return verify(files, expected)


def places(verdict: Verdict) -> list[tuple[str, int]]:
    return [(each.path.name, each.number) for each in verdict.breaks]


def test_a_line_tells_the_hash_of_the_one_before_it() -> None:
    first, second, _ = chained(3)
    assert json.loads(first)["prev"] is None
    assert json.loads(second)["prev"] == hashlib.sha256(first.rstrip(b"\n")).hexdigest()
    numbers = [json.loads(line)["chain"] for line in (first, second)]
    assert [re.sub("^[0-9a-f]{8}", "RUN", number) for number in numbers] == ["RUN-1", "RUN-2"]


def test_an_untouched_file_holds(tmp_path: Path) -> None:
    lines = chained(50)
    verdict = verified(tmp_path, lines)
    assert (verdict.holds, verdict.lines, verdict.breaks, verdict.since) == (True, 50, [], [])
    assert list(verdict.heads.values()) == [hashlib.sha256(lines[-1].rstrip(b"\n")).hexdigest()]


TAMPERING: dict[str, tuple[Callable[[Lines], object], list[int], str]] = {
    "a changed word": (
        lambda at: at.__setitem__(4, at[4].replace(b"allow", b"allov")),
        [6],
        "not what it was",
    ),
    "a changed link": (lambda at: at.__setitem__(4, at[4].replace(b'"prev":"', b'"prev":"0', 1)), [5, 6], ""),
    "a line taken out": (lambda at: at.pop(4), [5], "lines 5 to 5 of run"),
    "three lines taken out": (lambda at: at.__delitem__(slice(4, 7)), [5], "lines 5 to 7 of run"),
    "a line put in": (lambda at: at.insert(4, b'{"id":"x","decision":"allow"}\n'), [5], "not linked"),
    "a line doubled": (lambda at: at.insert(4, at[4]), [6], "comes again"),
    "two lines exchanged": (lambda at: at.insert(4, at.pop(5)), [5, 6], ""),
    "the first line taken out of its run": (lambda at: at.pop(0), [], ""),
    "a line put in that no reader can nest": (
        lambda at: at.insert(4, b"[" * 100_000 + b"\n"),
        [5],
        "no record",
    ),
    "an empty line": (lambda at: at.insert(4, b"\n"), [5], "no record"),
    "a carriage return": (lambda at: at.__setitem__(4, at[4][:-1] + b"\r\n"), [5, 6], ""),
    "a space at the end": (lambda at: at.__setitem__(4, at[4][:-1] + b" \n"), [5, 6], ""),
    "another claim to be first": (lambda at: at.extend(chained(1)), [11], "first of all"),
    "a line cut short": (lambda at: at.__setitem__(9, at[9][:30]), [10], "the file ends within"),
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_shows_at_its_place(tmp_path: Path, name: str) -> None:
    tamper, numbers, says = TAMPERING[name]
    lines = chained(10)
    tamper(lines)
    verdict = verified(tmp_path, lines)
    assert [number for _, number in places(verdict)] == numbers
    assert all(says in each.reason for each in verdict.breaks)
    assert verdict.holds is not bool(numbers)
    assert bool(verdict.since) is (name == "the first line taken out of its run")


@settings(deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = chained(6)
    text = bytearray(b"".join(lines))
    # The last line has none behind it that tells of it: its head does.
    head = hashlib.sha256(lines[-1].rstrip(b"\n")).hexdigest()
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != text[at]))
    path = tmp_path_factory.mktemp("chain") / "audit"
    path.write_bytes(text)
    verdict = verify([path], [head])
    # Under another run's name the first line is one that this run seems to begin behind.
    assert not verdict.holds or [name.partition("-")[2] for name in verdict.since] == ["2"]


def test_what_is_cut_off_at_the_end_shows_by_the_head_that_was_kept(tmp_path: Path) -> None:
    lines = chained(10)
    head = hashlib.sha256(lines[-1].rstrip(b"\n")).hexdigest()
    assert verified(tmp_path, lines[:7]).holds
    verdict = verified(tmp_path, lines[:7], expected=(head,))
    assert (verdict.holds, verdict.missing) == (False, [head])
    assert verified(tmp_path, lines, expected=(head,)).holds


def test_a_rotation_in_the_middle_of_a_run_holds_and_a_file_left_out_shows(tmp_path: Path) -> None:
    lines = chained(9)
    assert verified(tmp_path, lines[:3], lines[3:6], lines[6:]).holds
    left_out = verified(tmp_path, lines[:3], lines[6:])
    assert places(left_out) == [("audit.1", 1)]
    assert places(verified(tmp_path, lines[3:6], lines[:3])) == [("audit.1", n) for n in (1, 2, 3)]


def test_files_whose_beginning_was_thrown_away_say_so(tmp_path: Path) -> None:
    lines = chained(9)
    verdict = verified(tmp_path, lines[3:])
    assert verdict.holds
    assert [name.partition("-")[2] for name in verdict.since] == ["4"]


def test_runs_follow_each_other_and_may_overlap(tmp_path: Path) -> None:
    first = Links()
    before = chained(3, first)
    second = Links(first.head)
    old, new = chained(3, first), chained(3, second)
    interleaved = [line for pair in zip(old, new, strict=True) for line in pair]
    assert verified(tmp_path, before, interleaved).holds
    assert len(verified(tmp_path, before, interleaved).heads) == 2
    assert places(verified(tmp_path, before, interleaved[:2] + interleaved[3:])) == [("audit.1", 4)]


def test_a_writer_that_finds_the_name_free_begins_anew(tmp_path: Path) -> None:
    """As after a rotation while no proxy ran, or by a worker that began just then: told, and no break. Behind
    another line it is one."""
    before, after = chained(3), chained(2)
    verdict = verified(tmp_path, before, after)
    assert (verdict.holds, [path.name for path in verdict.anew]) == (True, ["audit.1"])
    assert verified(tmp_path, before, chained(3, Links("ab" * 32))).anew == []
    assert places(verified(tmp_path, before, [after[1], after[0]])) == [("audit.1", 1), ("audit.1", 2)]
    assert places(verified(tmp_path, [*before, *after])) == [("audit.0", 4)]


def test_a_run_that_continues_from_nothing_known_shows(tmp_path: Path) -> None:
    first = Links()
    before = chained(3, first)
    after = chained(2, Links("ab" * 32))
    assert places(verified(tmp_path, before, after)) == [("audit.1", 1)]


def test_a_line_that_a_crash_cut_short_is_told_and_held_by_the_next(tmp_path: Path) -> None:
    torn = b'{"id":"to\n'
    lines = chained(3)
    behind = chained(2, Links(hashlib.sha256(torn[:-1]).hexdigest()))
    verdict = verified(tmp_path, [*lines, torn, *behind])
    assert [(each.number, each.reason) for each in verdict.breaks] == [
        (4, "no record: a line that was cut short, or something else")
    ]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (b"", None),
        (b"a\n", b"a"),
        (b"a\nb\n", b"b"),
        (b"a\nb", b"b"),
        (b"one line", b"one line"),
        (b"a\n\n", b""),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 100])
def test_the_last_line_is_found_from_the_end(text: bytes, last: bytes | None, piece: int) -> None:
    starts = range(0, len(text), piece)
    found = last_digest(text[at : at + piece] for at in reversed(starts))
    assert found == (None if last is None else hashlib.sha256(last).hexdigest())


def run(*arguments: object) -> int:
    try:
        return cli.main(["audit", "verify", *map(str, arguments)])
    finally:
        structlog.reset_defaults()


def test_the_command_tells_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    lines = chained(4)
    path.write_bytes(b"".join(lines))
    head = hashlib.sha256(lines[-1].rstrip(b"\n")).hexdigest()
    assert run(path, "--head", head) == Exit.DONE
    assert f": {head}\n" in capsys.readouterr().out
    newer = tmp_path / "newer.jsonl"
    newer.write_bytes(b"".join(chained(1)))
    assert run(path, newer) == Exit.DONE
    assert f"note: nothing links {newer} to what was before it" in capsys.readouterr().out
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    assert run(path) == Exit.REJECTED
    assert capsys.readouterr().out.startswith(f"{path}:2: lines 2 to 2 of run ")
    assert run(path, "--format", "json", "--head", "0" * 64) == Exit.REJECTED
    told = json.loads(capsys.readouterr().out)
    assert (told["holds"], told["lines"], told["missing_heads"]) == (False, 3, ["0" * 64])
    assert [(each["file"], each["line"]) for each in told["breaks"]] == [(str(path), 2)]


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "absent") == Exit.USAGE
    assert "cannot be read" in capsys.readouterr().err
