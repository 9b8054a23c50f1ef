"""What of a report is kept in the repository: the report, its pictures, and the figures in README.md.

Owns ``results/`` and the part of README.md between its two marks, which is made from the kept report and
held equal to it by a test. ``python -m bench.publish`` makes all of it anew, ``python -m bench.publish FILE``
from the report that ``--json`` wrote.
"""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.contenders import Name
from bench.figures import FEWEST_SLICES, NOISE_LIMIT
from bench.loads import (
    MODES,
    NARROW,
    PIPELINE_OF_100,
    PREPARED_POINT,
    SELECT_1,
    WIDE,
    Metric,
    pgbench_name,
)
from bench.report import IDLE, render

RESULTS: Final = Path(__file__).parent / "results"
REPORT: Final = RESULTS / "report.json"
README: Final = Path(__file__).parent.parent / "README.md"
BEGIN: Final = "<!-- figures of bench/results/report.json, written by `make bench ARGS=--publish` -->\n"
_WIDTH: Final = 120
END: Final = "<!-- end of the figures -->\n"

_ROWS: Final[tuple[tuple[str, Metric, str], ...]] = (
    (SELECT_1, Metric.P50, "`SELECT 1`, one client, µs"),
    (PREPARED_POINT, Metric.P50, "prepared point select, one client, µs"),
    *((pgbench_name(mode, 8), Metric.RATE, f"pgbench -S, {mode}, 8 clients, per s") for mode in MODES),
    (pgbench_name("prepared", 8), Metric.CPU, "the same, prepared: CPU between, µs a transaction"),
    (PIPELINE_OF_100, Metric.RATE, "pipelines of 100, per s"),
    (WIDE, Metric.RATE, "200 MB of wide rows, MB per s"),
    (NARROW, Metric.RATE, "1 M narrow rows, rows per s"),
)
_COLUMNS: Final = (Name.DIRECT, Name.PGBOUNCER, Name.PROXY)


def publish(report: Mapping[str, Any]) -> None:
    """Keep ``report``; needs matplotlib. Raises ValueError where README.md has lost its marks."""
    from bench.plot import draw  # noqa: PLC0415  # matplotlib is an extra

    RESULTS.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (RESULTS / "report.txt").write_text("\n".join(render(report)) + "\n", encoding="utf-8")
    draw(report, RESULTS)
    README.write_text(replaced(README.read_text(encoding="utf-8"), report), encoding="utf-8")


def replaced(readme: str, report: Mapping[str, Any]) -> str:
    """``readme`` with the figures of ``report`` between its marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md has no {BEGIN.strip()} … {END.strip()}")
    return f"{before}{BEGIN}{markdown(report)}{END}{after}"


def markdown(report: Mapping[str, Any]) -> str:
    """The part of README.md, with a line break at its end."""
    return "\n".join(part for line in _lines(report) for part in _wrapped(line)) + "\n"


def _wrapped(line: str) -> list[str]:
    """A line of prose in lines of the README's width; a row of a table cannot be broken."""
    return [line] if line.startswith("|") or not line else textwrap.wrap(line, _WIDTH, break_on_hyphens=False)


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    machine, versions = report["configuration"]["machine"], report["configuration"]["versions"]
    compiled = report["configuration"]["compiled"]
    yield (
        f"On {machine['cores']} cores of {machine['cpu']}, load {machine['load_1min']:.1f} when it began, "
        f"CPython {machine['python']}, PostgreSQL {versions['postgresql']}, {versions['pgbouncer']}, "
        f"{'compiled' if compiled else 'nothing compiled'}; medians of {report['rounds']} slices of "
        f"{report['seconds']:g} seconds, the ratio made within each round:"
    )
    yield ""
    yield "| | direct | PgBouncer | pgturnstile | ÷ PgBouncer |"
    yield "|---|---:|---:|---:|---:|"
    entries = {(entry["load"], entry["metric"]): entry["contenders"] for entry in report["loads"]}
    for load, metric, label in _ROWS:
        told = entries.get((load, metric), {})
        if Name.PROXY not in told:
            continue
        cells = [_cell(told[name]["median"]) if name in told else "" for name in _COLUMNS]
        ratio = told[Name.PROXY].get("to_pgbouncer")
        yield f"| {label} | {' | '.join(cells)} | {'' if ratio is None else f'{ratio:.2f}'} |"
    yield ""
    yield from _in_words(report)
    noise = max((target["noise"] for target in report["targets"]), default=0.0)
    if noise > NOISE_LIMIT or report["rounds"] < FEWEST_SLICES:
        yield (
            f"The machine was shared, or the run short: the direct slices spread by up to {noise:.0%} of"
            " their median, so no verdict on a target follows from these figures."
        )
    yield ""
    yield "![Rates and CPU time beside PgBouncer](bench/results/side-by-side.svg)"


def _in_words(report: Mapping[str, Any]) -> Iterator[str]:
    cold = report.get("cold")
    if cold is not None:
        gate, explain = (statistics.median(cold[key]) for key in ("gate_with_catalog_us", "explain_us"))
        yield (
            f"A statement never seen before costs the gate {gate:,.0f} µs of CPU and PostgreSQL"
            f" {explain:,.0f} µs for EXPLAIN: medians of {cold['statements']} statements such as agents"
            " write, with joins of five and CTEs."
        )
    memory = report.get("idle_memory", {}).get(Name.PROXY)
    if memory is not None:
        yield f"{IDLE:,} idle connections take {memory:,.0f} MiB in all."


def _cell(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    publish(json.loads((Path(sys.argv[1]) if sys.argv[1:] else REPORT).read_text(encoding="utf-8")))
