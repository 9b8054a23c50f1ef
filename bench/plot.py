"""Two pictures of a report: the contenders side by side, and how the cost grows. PNG and SVG.

Owns how it looks. Reads the JSON of ``report`` alone, so a picture can be made anew from a kept report. Needs
matplotlib, from the ``bench`` extra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.contenders import Name
from bench.loads import MODES, NARROW, PIPELINE_OF_100, WIDE, Metric, pgbench_name

SIDE_BY_SIDE: Final = "side-by-side"
GROWTH: Final = "growth"
_COLOURS: Final[Mapping[str, str]] = {Name.PGBOUNCER: "#9aa5b1", Name.PROXY: "#1f6f8b"}
_LINES: Final = ("#1f6f8b", "#c8553d", "#6a994e", "#7b5ea7")
_RATES: Final[Mapping[str, str]] = {
    **{pgbench_name(mode, clients): f"{mode}, {clients} clients" for clients in (8, 32) for mode in MODES},
    PIPELINE_OF_100: "pipeline of 100",
    WIDE: "200 MB, wide rows",
    NARROW: "1 M narrow rows",
}
_STYLE: Final = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "pgturnstile",  # the same report gives the same file
}


def draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write what the report has figures for into ``folder``: the files' paths."""
    with mpl.rc_context(_STYLE):
        figures = {SIDE_BY_SIDE: _side_by_side(report), GROWTH: _growth(report.get("curves", ()))}
        written = []
        for name, figure in figures.items():
            if figure is None:
                continue
            for kind, more in (("png", {"dpi": 150}), ("svg", {"metadata": {"Date": None}})):
                path = folder / f"{name}.{kind}"
                figure.savefig(path, format=kind, bbox_inches="tight", **more)
                written.append(path)
    return written


def _side_by_side(report: Mapping[str, Any]) -> Any:
    """Rates and CPU time, the proxy beside PgBouncer."""
    rates = _bars(report, Metric.RATE, "to_direct")
    times = _bars(report, Metric.CPU, "median", tuple(pgbench_name(mode, 8) for mode in MODES))
    if not rates:
        return None
    figure = Figure(figsize=(9, 3.6))
    left, right = figure.subplots(1, 2, width_ratios=(3, 1.2))
    _draw_bars(left, rates)
    left.axhline(1, color="#444444", linewidth=0.8)
    left.set_title("Rate, as a share of direct", loc="left")
    _draw_bars(right, times)
    right.set_title("CPU a transaction, µs", loc="left")
    left.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.42), ncols=2)
    return figure


def _bars(
    report: Mapping[str, Any], metric: Metric, key: str, among: Sequence[str] = tuple(_RATES)
) -> dict[str, dict[str, float]]:
    """By load, then contender; in the order of ``_RATES``."""
    found = {}
    entries = {entry["load"]: entry for entry in report.get("loads", ()) if entry["metric"] == metric}
    for load in among:
        told = entries.get(load, {}).get("contenders", {})
        values = {name: told[name][key] for name in _COLOURS if key in told.get(name, {})}
        if values:
            found[_RATES[load]] = values
    return found


def _draw_bars(axes: Any, bars: Mapping[str, Mapping[str, float]]) -> None:
    width = 0.8 / len(_COLOURS)
    for number, (name, colour) in enumerate(_COLOURS.items()):
        places = [place + (number - 0.5) * width for place in range(len(bars))]
        heights = [values.get(name, 0.0) for values in bars.values()]
        drawn = axes.bar(places, heights, width, color=colour, label=name)
        axes.bar_label(drawn, fmt=_told, fontsize=7, padding=1)
    axes.set_xticks(range(len(bars)), list(bars), rotation=35, ha="right")


def _told(height: float) -> str:
    return f"{height:,.0f}" if height >= 10 else f"{height:.2f}"


def _growth(curves: Sequence[Mapping[str, Any]]) -> Any:
    """A panel a curve, both axes logarithmic: a straight line at 45 degrees is linear growth."""
    if not curves:
        return None
    rows = (len(curves) + 2) // 3
    figure = Figure(figsize=(9, 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).flat
    for panel, curve in zip(panels, curves, strict=False):
        for (name, values), colour in zip(curve["series"].items(), _LINES, strict=False):
            panel.plot(
                curve["sizes"], values, marker="o", markersize=3, linewidth=1.2, color=colour, label=name
            )
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(curve["size"], loc="left", fontsize=9)
        panel.legend(frameon=False, fontsize=6)
        panel.margins(y=0.3)
    for panel in list(panels)[len(curves) :]:
        panel.remove()
    return figure
