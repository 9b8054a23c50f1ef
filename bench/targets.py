"""What is promised: ratios within one run, and CPU time in µs. A table; knows no process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.contenders import Name
from bench.figures import Better
from bench.loads import (
    DISTINCT_POINT,
    MODES,
    NARROW,
    NUMBERED_POINT,
    PIPELINE_OF_100,
    PREPARED_POINT,
    SELECT_1,
    UNITS,
    WIDE,
    Metric,
    pgbench_name,
)


@dataclass(frozen=True, slots=True)
class Target:
    """The proxy's ``metric`` under ``load`` as a ratio to ``reference``'s, or as it is where that is None;
    ``added``: of what both add to direct. ``stretch`` is what is aimed at beyond."""

    load: str
    metric: Metric
    reference: Name | None
    limit: float
    better: Better
    stretch: float | None = None
    added: bool = False

    @property
    def what(self) -> str:
        metric = {Metric.P50: "p50", Metric.CPU: "CPU of the proxy", Metric.RATE: "rate"}[self.metric]
        told = f"{self.load}: {'added ' if self.added else ''}{metric}"
        return f"{told}, {UNITS[self.metric]}" if self.reference is None else f"{told} ÷ {self.reference}"


def _rate(load: str, reference: Name, limit: float, stretch: float | None = None) -> Target:
    return Target(load, Metric.RATE, reference, limit, Better.HIGHER, stretch)


_POOLER: Final = Name.PGBOUNCER
TARGETS: Final[Sequence[Target]] = (
    *(
        Target(load, Metric.P50, _POOLER, 1.10, Better.LOWER, 1.0, added=True)
        for load in (SELECT_1, PREPARED_POINT)
    ),
    *(
        Target(load, Metric.CPU, _POOLER, 1.25, Better.LOWER, 1.1)
        for load in (SELECT_1, PREPARED_POINT, *(pgbench_name(mode, 8) for mode in MODES))
    ),
    *(_rate(pgbench_name(mode, 8), _POOLER, 0.85, 0.95) for mode in MODES),
    _rate(PIPELINE_OF_100, _POOLER, 1.0),
    _rate(WIDE, _POOLER, 1.5),
    _rate(WIDE, Name.DIRECT, 0.95),
    _rate(NARROW, Name.DIRECT, 0.9),
    *(_rate(pgbench_name(mode, 8), Name.UNPRICED, 0.95) for mode in MODES),
    *(Target(load, Metric.CPU, None, 150, Better.LOWER) for load in (DISTINCT_POINT, NUMBERED_POINT)),
)
