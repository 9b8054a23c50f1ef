"""What a run prints and what it writes: the same figures twice, for people and for programs.

Owns the shape of the JSON report and the tables on the terminal. Pure but for the clock: it starts nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.contenders import Name, Ring
from bench.figures import NOISE_LIMIT, Better, Verdict, judge, quartiles, ratios, summarise
from bench.loads import BETTER, DISTINCT_POINT, UNITS, Load, Metric
from bench.processes import machine
from bench.run import Slices
from bench.targets import TARGETS, Target

VERSION: Final = 1
_COMPILABLE: Final = ("proxy.wire.frames", "proxy.session", "proxy.agent_side", "proxy.server_side")
_NOTHING: Final = "-"
_MOST_TRIPS: Final = 1.02
"""Round trips beyond its own that a new statement may take; what a session asks for itself counts too."""
IDLE: Final = 1_000
_COLD: Final = (
    ("parse_us", "CPU to read it"),
    ("gate_without_catalog_us", "CPU of the gate without a catalog (wanted: < 500)"),
    ("gate_with_catalog_us", "CPU of the gate with the catalog (wanted: < 1,000)"),
    ("explain_us", "PostgreSQL's time for EXPLAIN, at its best"),
    ("added_us", "time added to its first run, all told, at its best"),
)
_HEADINGS: Final = (
    f"  {'':36}{'median':>12}{'best quartile':>15}{'spread':>8}{'slices':>8}{'÷ direct':>10}{'÷ pgb.':>8}"
)


def configuration(ring: Ring) -> dict[str, Any]:
    """Everything a figure depends on and that is not a figure."""
    return {
        "machine": machine(),
        "versions": {
            **ring.versions,
            **{name: importlib.metadata.version(name) for name in ("uvloop", "postgast", "sqlglot")},
        },
        "compiled": compiled(),
        "tls": "off, except where a line says so; then on the client's leg, to PostgreSQL in clear",
        "audit": "on, whole statements, to a file",
        "caches": "warm, except for 'distinct' and 'cold'",
        "policy": "strict: read-only, lists of relations, functions and columns, prices and limits",
        "pgbouncer": "session mode, auth_type any, pkt_buf as it comes where no other is named",
        "network": "TCP on loopback, both legs; clients, proxy and PostgreSQL share the cores",
        "absent": dict(ring.missing),
    }


def compiled() -> list[str]:
    """Modules of the hot path that are loaded as machine code."""
    files = {name: str(importlib.import_module(name).__file__) for name in _COMPILABLE}
    return [name for name, file in files.items() if not file.endswith(".py")]


def loads_of(slices: Slices, loads: Sequence[Load]) -> list[dict[str, Any]]:
    """One entry a load and metric, with every contender's figures and its ratios to direct and PgBouncer."""
    found = []
    for load in loads:
        for metric, by_name in slices.taken.get(load.name, {}).items():
            entry: dict[str, Any] = {
                "load": load.name,
                "metric": metric,
                "unit": unit(metric, load.work),
                "contenders": {},
            }
            for name in load.contenders:
                if values := by_name.get(name):
                    entry["contenders"][name] = _contender(values, metric, by_name, load.contenders)
            found.append(entry)
    return found


def unit(metric: Metric, work: str) -> str:
    """``µs a statement``, ``rows per s``."""
    if metric is Metric.P50:
        return UNITS[metric]
    if metric is Metric.CPU:
        return f"{UNITS[metric]} of CPU a {work}"
    return f"{work if work == 'MB' else work + 's'} {UNITS[metric]}"


def _contender(
    values: Sequence[float], metric: Metric, by_name: Mapping[Name, list[float]], among: Sequence[Name]
) -> dict[str, Any]:
    told = summarise(values, BETTER[metric])
    entry: dict[str, Any] = {
        "median": told.median,
        "best_quartile": told.best_quartile,
        "spread": told.spread,
        "slices": told.slices,
        "values": list(values),
    }
    for key, reference in (("to_direct", among[0]), ("to_pgbouncer", among[1])):
        theirs = by_name.get(reference)
        if theirs and (found := ratios(values, theirs)):
            entry[key] = statistics.median(found)
    return entry


def targets_of(slices: Slices, targets: Sequence[Target] = TARGETS) -> list[dict[str, Any]]:
    """Each target whose contenders were measured, with the ratio found and the verdict."""
    found = []
    for target in targets:
        ours = slices.of(target.load, target.metric, Name.PROXY)
        theirs = (
            [1.0] * len(ours)
            if target.reference is None
            else slices.of(target.load, target.metric, target.reference)
        )
        direct = slices.of(target.load, target.metric, Name.DIRECT) if target.added else None
        if not ours or not theirs:
            continue
        rounds = ratios(ours, theirs, direct)
        if not rounds:
            continue
        noise = noise_of(slices, target.load)
        low, middle, high = quartiles(rounds)
        found.append(
            {
                "what": target.what,
                "limit": target.limit,
                "better": target.better,
                "stretch": target.stretch,
                "ratio": middle,
                "quartiles": [low, high],
                "rounds": len(rounds),
                "noise": noise,
                "verdict": judge(rounds, target.limit, target.better, noise),
            }
        )
    return found


def noise_of(slices: Slices, load: str) -> float:
    """The spread of the direct slices of ``load``; infinite where there are none."""
    for metric in (Metric.P50, Metric.RATE):
        if values := slices.of(load, metric, Name.DIRECT):
            return summarise(values, BETTER[metric]).spread
    return float("inf")


def render(report: Mapping[str, Any]) -> Iterator[str]:
    """The report as lines for a terminal."""
    yield from _render_configuration(report["configuration"])
    for entry in report.get("loads", ()):
        yield ""
        yield f"{entry['load']}, {entry['unit']}"
        yield _HEADINGS
        for name, told in entry["contenders"].items():
            yield (
                f"  {name:36}{_number(told['median']):>12}{_number(told['best_quartile']):>15}"
                f"{told['spread']:>8.0%}{told['slices']:>8}"
                f"{_ratio(told.get('to_direct')):>10}{_ratio(told.get('to_pgbouncer')):>8}"
            )
    if "cold" in report:
        asked = report["cold"]["statements"]
        title = f"A statement never seen before; µs, medians of {asked} statements such as agents write"
        yield from _render_lines(title, cold_lines(report["cold"], _cpu_of_the_proxy(report, DISTINCT_POINT)))
    yield from _render_lines(f"Memory with {IDLE:,} idle connections", memory_lines(report))
    for curve in report.get("curves", ()):
        yield from _render_curve(curve)
    yield from _render_targets(report.get("targets", ()))
    yield from _render_lines("FAILED", ((failure, "") for failure in report.get("failures", ())))


def cold_lines(cold: Mapping[str, Any], point_cpu_us: float | None) -> Iterator[tuple[str, str]]:
    """The cold figures in words, with what is wanted of them. ``point_cpu_us`` is the proxy's CPU time for a
    distinct point select, where it was measured."""
    for key, label in _COLD:
        values = cold[key]
        yield label, f"{statistics.median(values):,.0f} (up to {max(values):,.0f})"
    for protocol, trips in cold["extra_trips"].items():
        verdict = Verdict.MET if trips <= _MOST_TRIPS else Verdict.MISSED
        yield f"round trips added to a point select, {protocol} (wanted: 1)", f"{trips:.2f}, {verdict}"
    if point_cpu_us is not None:
        yield "CPU of the proxy for a point select (wanted: < 150)", f"{point_cpu_us:,.0f}"


def memory_lines(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, mib in report.get("idle_memory", {}).items():
        wanted = " (wanted: < 100)" if name == Name.PROXY else ""
        yield f"{name}, MiB{wanted}", f"{mib:,.0f}"


def _cpu_of_the_proxy(report: Mapping[str, Any], load: str) -> float | None:
    for entry in report.get("loads", ()):
        if entry["load"] == load and entry["metric"] == Metric.CPU and Name.PROXY in entry["contenders"]:
            median: float = entry["contenders"][Name.PROXY]["median"]
            return median
    return None


def _render_lines(title: str, lines: Iterator[tuple[str, str]]) -> Iterator[str]:
    for number, (label, value) in enumerate(lines):
        if not number:
            yield ""
            yield title
        yield f"  {label:72}{value}"


def _render_curve(curve: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{curve['name']}{'':40}"[:40] + "".join(f"{size:>12,}" for size in curve["sizes"])
    for name, values in curve["series"].items():
        yield f"  {name:38}" + "".join(f"{_number(value):>12}" for value in values)
    for check in curve["checks"]:
        yield f"  {check['what']}: {check['found']:.2f}, limit {check['limit']:.2f}: {check['verdict']}"


def _render_configuration(told: Mapping[str, Any]) -> Iterator[str]:
    machine_ = told["machine"]
    yield (
        f"{machine_['cores']} cores of {machine_['cpu']}, Linux {machine_['kernel']},"
        f" load {machine_['load_1min']:.1f} at the start; CPython {machine_['python']}"
    )
    yield ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    yield f"compiled: {', '.join(told['compiled']) or 'nothing'}"
    for key in ("tls", "audit", "caches", "policy", "pgbouncer", "network"):
        yield f"{key}: {told[key]}"
    for name, why in told["absent"].items():
        yield f"not measured: {name}, because {why}"


def _render_targets(targets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not targets:
        return
    yield ""
    yield "Targets: median of the rounds [quartiles], the limit, and how far the direct slices spread"
    for target in targets:
        sign = "≤" if target["better"] == Better.LOWER else "≥"
        low, high = target["quartiles"]
        yield (
            f"  {target['what']:72}{target['ratio']:6.2f} [{low:.2f}, {high:.2f}]"
            f"  {sign} {target['limit']:.2f}  ±{target['noise']:.0%}  {target['verdict']}"
        )
    if any(target["verdict"] == Verdict.TOO_NOISY for target in targets):
        yield f"  Too noisy: the direct slices spread over more than {NOISE_LIMIT:.0%} of their median."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"
