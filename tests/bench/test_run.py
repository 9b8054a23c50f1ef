"""The order of slices, the report made of them, and what of it is told."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from bench import publish, report
from bench.client import Address, ClientError
from bench.contenders import BenchError, Contender, Name, Ring
from bench.figures import FEWEST_SLICES, Verdict
from bench.loads import LOADS, QUICK, Load, Metric
from bench.run import Slices, measure, order
from bench.targets import TARGETS

PRESENT = {name: Contender(name, Address(1, "u", "d")) for name in Name}
REPORT_OF_NOTHING = {
    "configuration": {
        "machine": {"cores": 1, "cpu": "", "kernel": "", "load_1min": 0.0, "python": ""},
        "versions": {},
        "compiled": [],
        "absent": {},
        **dict.fromkeys(("tls", "audit", "caches", "policy", "pgbouncer", "network"), ""),
    }
}
NAMES = {load.name for load in LOADS}


def turns(seed: int, present: dict[Name, Contender] = PRESENT) -> list[tuple[str, Name]]:
    rounds = order(LOADS, present, random.Random(seed))
    return [(load.name, contender.name) for load, contenders in rounds for contender in contenders]


def test_a_round_has_every_load_with_every_contender_once() -> None:
    assert Counter(turns(1)) == Counter((load.name, name) for load in LOADS for name in load.contenders)


def test_the_seed_decides_the_order() -> None:
    assert turns(7) == turns(7)
    assert len({tuple(turns(seed)) for seed in range(20)}) == 20


def test_nobody_always_goes_first() -> None:
    firsts = {next(name for load, name in turns(seed) if load == "SELECT 1") for seed in range(50)}
    assert firsts == {Name.DIRECT, Name.PGBOUNCER, Name.PROXY, Name.UNPRICED}


def test_who_is_missing_is_left_out() -> None:
    present = {name: c for name, c in PRESENT.items() if not name.startswith("pgbouncer")}
    assert not any(name.startswith("pgbouncer") for _, name in turns(1, present))


def test_loads_have_names_of_their_own_and_begin_with_direct_and_pgbouncer() -> None:
    # report.py takes the first two for the references of the ratios.
    assert len(NAMES) == len(LOADS)
    for load in LOADS:
        assert load.contenders[0].startswith("direct"), load.name
        assert load.contenders[1].startswith("pgbouncer"), load.name
    assert {load.name for load in QUICK} < NAMES


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.what)
def test_targets_speak_of_what_is_measured(target: Any) -> None:
    load = next(load for load in LOADS if load.name == target.load)
    assert {Name.PROXY, target.reference or Name.DIRECT} <= set(load.contenders)
    assert target.metric is not Metric.CPU or target.reference is not Name.DIRECT


def ring(*names: Name) -> Ring:
    """What ``measure`` looks at of one."""
    return SimpleNamespace(contenders={name: PRESENT[name] for name in names})  # type: ignore[return-value]


def test_every_slice_is_kept_with_its_contender() -> None:
    numbers = itertools.count()
    load = Load("a", "unit", lambda _, c, s: {Metric.RATE: next(numbers) * s}, (Name.DIRECT, Name.PROXY))
    taken = measure(ring(Name.DIRECT, Name.PROXY), [load], rounds=3, seconds=2, seed=1)
    found = [*taken.of("a", Metric.RATE, Name.DIRECT), *taken.of("a", Metric.RATE, Name.PROXY)]
    assert sorted(found) == [0, 2, 4, 6, 8, 10]
    assert (taken.rounds, taken.failures) == (3, [])


@pytest.mark.parametrize(
    "error", [BenchError("otherwise"), ClientError("42501: no"), ConnectionResetError("gone")]
)
def test_a_slice_that_fails_takes_its_round_from_all_and_is_told(error: Exception) -> None:
    calls = Counter[Name]()

    def run(_: Ring, contender: Contender, __: float) -> dict[Metric, float]:
        calls[contender.name] += 1
        if contender.name is Name.PROXY and calls[Name.PROXY] == 2:
            raise error
        return {Metric.RATE: float(calls[contender.name])}

    told: list[str] = []
    load = Load("a", "unit", run, (Name.DIRECT, Name.PGBOUNCER, Name.PROXY))
    taken = measure(
        ring(Name.DIRECT, Name.PGBOUNCER, Name.PROXY), [load], rounds=3, seconds=2, seed=1, tell=told.append
    )
    assert taken.of("a", Metric.RATE, Name.PROXY) == [1, 3]
    assert (
        len(taken.of("a", Metric.RATE, Name.DIRECT)) == len(taken.of("a", Metric.RATE, Name.PGBOUNCER)) == 2
    )
    assert taken.failures == [f"a, pgturnstile, round 2: {error}"]
    assert taken.failures[0] in told
    assert any(
        str(error) in line for line in report.render({**REPORT_OF_NOTHING, "failures": taken.failures})
    )


def test_a_mistake_of_the_benchmark_is_no_failure_of_a_contender() -> None:
    def run(*_: object) -> dict[Metric, float]:
        raise KeyError("mistake")

    with pytest.raises(KeyError):
        measure(ring(Name.PROXY), [Load("a", "unit", run, (Name.PROXY,))], rounds=1, seconds=1, seed=1)


def test_no_round_is_begun_that_would_end_too_late() -> None:
    load = Load("a", "unit", lambda *_: {Metric.RATE: 1.0}, (Name.DIRECT,))
    told: list[str] = []
    taken = measure(ring(Name.DIRECT), [load], rounds=9, seconds=1, seed=1, within_s=0.0, tell=told.append)
    assert taken.rounds == FEWEST_SLICES
    assert told[-1] == f"no time for more than {FEWEST_SLICES} rounds"


def slices(direct: list[float], theirs: list[float], ours: list[float]) -> Slices:
    made = Slices()
    for name, values in ((Name.DIRECT, direct), (Name.PGBOUNCER, theirs), (Name.PROXY, ours)):
        for value in values:
            made.add("SELECT 1", name, {Metric.P50: value})
    return made


ADDED = next(t for t in TARGETS if t.load == "SELECT 1" and t.metric is Metric.P50)


@pytest.mark.parametrize(
    ("direct", "ours", "verdict"),
    [
        ([20.0] * 5, [40.0] * 5, Verdict.MET),
        ([20.0] * 5, [60.0] * 5, Verdict.MISSED),
        ([20.0, 20.0, 26.0, 30.0, 18.0], [40.0] * 5, Verdict.TOO_NOISY),
        ([20.0] * 2, [40.0] * 2, Verdict.TOO_FEW),
    ],
)
def test_a_target_is_judged_by_what_is_added_to_direct(
    direct: list[float], ours: list[float], verdict: Verdict
) -> None:
    theirs = [value + 20 for value in direct]
    (told,) = report.targets_of(slices(direct, theirs, ours), [ADDED])
    assert told["verdict"] is verdict


@pytest.mark.parametrize(
    ("spent", "verdict"),
    [
        ([90.0, 100.0, 110.0], Verdict.MET),
        ([140.0, 150.0, 160.0], Verdict.TOO_CLOSE),
        ([200.0] * 3, Verdict.MISSED),
    ],
)
def test_a_target_without_a_reference_is_judged_as_it_is(spent: list[float], verdict: Verdict) -> None:
    target = next(t for t in TARGETS if t.reference is None)
    made = Slices()
    for value in spent:
        made.add(target.load, Name.DIRECT, {Metric.P50: 20.0})
        made.add(target.load, Name.PROXY, {Metric.CPU: value})
    (told,) = report.targets_of(made, [target])
    assert told["what"].endswith("CPU of the proxy, µs")
    assert (told["ratio"], told["verdict"]) == (spent[1], verdict)


def test_a_target_whose_contender_is_missing_is_left_out() -> None:
    assert report.targets_of(slices([20.0] * 3, [], [40.0] * 3), [ADDED]) == []


def test_no_direct_slices_are_noise_enough() -> None:
    assert report.noise_of(slices([], [1.0], [1.0]), "SELECT 1") == float("inf")


def test_the_figures_of_a_load() -> None:
    load = next(load for load in LOADS if load.name == "SELECT 1")
    (entry,) = report.loads_of(slices([10.0, 20.0], [20.0, 40.0], [30.0, 60.0]), [load])
    ours = entry["contenders"][Name.PROXY]
    assert (ours["median"], ours["slices"], ours["to_direct"], ours["to_pgbouncer"]) == (45, 2, 3, 1.5)
    assert entry["unit"] == "µs"


@pytest.mark.parametrize(
    ("metric", "work", "unit"),
    [
        (Metric.P50, "statement", "µs"),
        (Metric.CPU, "statement", "µs of CPU a statement"),
        (Metric.RATE, "row", "rows per s"),
        (Metric.RATE, "MB", "MB per s"),
    ],
)
def test_units(metric: Metric, work: str, unit: str) -> None:
    assert report.unit(metric, work) == unit


def kept() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(publish.REPORT.read_text(encoding="utf-8"))
    return loaded


def test_the_readme_shows_the_kept_report() -> None:
    readme = publish.README.read_text(encoding="utf-8")
    assert publish.replaced(readme, kept()) == readme


def test_the_kept_pictures_are_there() -> None:
    pictures = {path.name for path in publish.RESULTS.iterdir() if path.suffix in (".png", ".svg")}
    assert pictures == {f"{name}.{kind}" for name in ("side-by-side", "growth") for kind in ("png", "svg")}


def test_the_kept_report_as_text_is_the_kept_report() -> None:
    text = (publish.RESULTS / "report.txt").read_text(encoding="utf-8")
    assert "\n".join(report.render(kept())) + "\n" == text


def test_a_readme_without_marks_is_not_overwritten() -> None:
    with pytest.raises(ValueError, match="README"):
        publish.replaced("# nothing here\n", kept())


def test_pictures_of_a_report(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the bench extra")
    from bench.plot import draw

    written = draw(kept(), tmp_path)
    assert {path.name for path in written} == {
        f"{name}.{kind}" for name in ("side-by-side", "growth") for kind in ("png", "svg")
    }
    for path in written:
        begin = path.read_bytes()[:200]
        assert begin.startswith(b"\x89PNG") or b"<?xml" in begin


def test_a_report_without_curves_has_no_picture_of_growth(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the bench extra")
    from bench.plot import draw

    names = {path.stem for path in draw(kept() | {"curves": []}, tmp_path)}
    assert names == {"side-by-side"}
