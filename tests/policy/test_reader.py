"""Units, bounds and the wording of what was expected."""

from __future__ import annotations

from enum import StrEnum

import pytest

from policy import yaml_source
from policy.reader import MAX_MS, Place
from policy.yaml_source import Report


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


def place_of(written: str) -> tuple[Place, Report]:
    """The value of one key, as it is written."""
    document = yaml_source.read(f"k: {written}\n", "f.yaml")
    place = Place.root(document).fields(("k",))["k"]
    assert document.report.found == []
    return place, document.report


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("1ms", 1),
        ("500ms", 500),
        ("30s", 30_000),
        ("30 s", 30_000),
        ("10m", 600_000),
        ("10min", 600_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
        ("1.5s", 1500),
        ("0.1s", 100),
        ("2147483647ms", MAX_MS),
        ('"30s"', 30_000),
    ],
)
def test_durations_are_milliseconds(written: str, ms: int) -> None:
    place, report = place_of(written)

    assert place.duration_ms() == ms
    assert report.found == []


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("30", "a unit is missing; expected a duration with its unit, as in 500ms, 30s, 10m or 1h"),
        ("0.0", "a unit is missing"),
        ("-1s", "expected a duration"),
        ("1 h 30 m", "expected a duration"),
        ("s", "expected a duration"),
        ("1e3s", "expected a duration"),
        ("٣s", "expected a duration"),
        ("true", "found true or false"),
        ("[1s]", "found a list"),
        ("{}", "found a mapping"),
        ("", "found nothing"),
        ("5 weeks", "unknown unit 'weeks'; expected ms, s, m, min, h or d"),
        ("5S", "unknown unit 'S'"),
        ("1.0001s", "a fraction of the smallest unit"),
        ("2147483648ms", "out of range: expected 0ms to 2147483647ms"),
    ],
)
def test_what_is_no_duration_says_what_is(written: str, says: str) -> None:
    place, report = place_of(written)

    assert place.duration_ms() is None
    (fault,) = report.found
    assert says in fault.message


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("12B", 12),
        ("1kB", 1000),
        ("1KB", 1000),
        ("10MB", 10_000_000),
        ("2GB", 2 * 10**9),
        ("1KiB", 1024),
        ("50MiB", 50 * 2**20),
        ("1GiB", 2**30),
        ("1.5KiB", 1536),
    ],
)
def test_sizes_are_bytes(written: str, size: int) -> None:
    place, report = place_of(written)

    assert place.size() == size
    assert report.found == []


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("1.5", "a unit is missing; expected a size"),
        ("true", "found true or false"),
        ("5mib", "unknown unit 'mib'"),
        ("-5", "out of range: expected 1KiB to 3MiB"),
        ("4MiB", "out of range: expected 1KiB to 3MiB"),
        ("1023", "out of range"),
    ],
)
def test_what_is_no_size_says_what_is(written: str, says: str) -> None:
    place, report = place_of(written)

    assert place.size(1024, 3 * 2**20) is None
    (fault,) = report.found
    assert says in fault.message


@pytest.mark.parametrize(
    ("least", "most", "shown"),
    [
        (0, 3_600_000, "0ms to 1h"),
        (1000, 600_000, "1s to 10m"),
        (1, 1500, "1ms to 1500ms"),
    ],
)
def test_bounds_of_time_are_shown_as_they_would_be_written(least: int, most: int, shown: str) -> None:
    place, report = place_of("2h")

    assert place.duration_ms(least, most) is None
    assert report.found[0].message == f"out of range: expected {shown}"


@pytest.mark.parametrize(
    ("least", "most", "shown"),
    [(0, 1023, "0B to 1023B"), (1, 2**30, "1B to 1GiB"), (1000, 2**20, "1000B to 1MiB")],
)
def test_bounds_of_size_are_shown_as_they_would_be_written(least: int, most: int, shown: str) -> None:
    place, report = place_of("2GiB")

    assert place.size(least, most) is None
    assert report.found[0].message == f"out of range: expected {shown}"


@pytest.mark.parametrize("written", ["1", "5"])
def test_bounds_are_included(written: str) -> None:
    place, _ = place_of(written)

    assert place.integer(1, 5) == int(written)
    assert place.number(1, 5) == float(written)


@pytest.mark.parametrize("written", [".nan", ".inf", "-.inf", "1e999"])
def test_numbers_are_finite(written: str) -> None:
    place, report = place_of(written)

    assert place.number(0, 1e300) is None
    assert "expected a finite number" in report.found[0].message


def test_a_word_of_a_closed_set() -> None:
    right, _ = place_of("green")
    wrong, report = place_of("gren")

    assert right.word(Colour) is Colour.GREEN
    assert wrong.word(Colour) is None
    assert (report.found[0].message, report.found[0].near) == (
        "unknown value; expected red or green",
        "green",
    )


def test_a_word_that_is_refused_says_why() -> None:
    place, report = place_of("blue")

    assert place.choice({"red": 1}, {"blue": "is out of stock"}) is None
    assert report.found[0].message == "is out of stock"


def test_a_fault_that_is_reported_is_not_reported_again() -> None:
    document = yaml_source.read("k: *a", "f.yaml")
    place = Place.root(document).fields(("k",))["k"]

    readers = (place.string, place.written, place.boolean, place.duration_ms, place.size, place.items)
    for reader in readers:
        assert not reader()
    assert place.integer(0, 1) is None
    assert place.word(Colour) is None
    assert len(document.report.found) == 1
