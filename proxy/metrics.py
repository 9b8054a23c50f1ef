"""The counters of a process in Prometheus's text format.

Owns names, help texts and labels: the page that ``/metrics`` shows is made anew each time it is asked for, so
that counting itself stays a matter of integers (``meters``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from proxy.config import ANY_AGENT
from proxy.meters import AgentMeter, Histogram, Meters

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class Gauges(NamedTuple):
    """What is so at the moment. ``connections`` are the open ones by agent; the audit's are None without one:
    bytes that wait to be written, records given up, and whether the file takes lines."""

    connections: dict[str, int]
    draining: bool
    reload_refused: bool
    audit_waiting_bytes: int | None
    audit_lost: int | None
    audit_writable: bool | None


class Page:
    """What ``/metrics`` answers. ``gauges`` is asked each time; ``about`` adds what tells of the process, or
    of those that there are."""

    def __init__(
        self,
        meters: Meters,
        gauges: Callable[[], Gauges],
        about: Callable[[CollectorRegistry], None] | None = None,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(meters, gauges))
        (_about_this_process if about is None else about)(self._registry)

    def render(self) -> bytes:
        return generate_latest(self._registry)


def _about_this_process(registry: CollectorRegistry) -> None:
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)


class _Collector(Collector):
    def __init__(self, meters: Meters, gauges: Callable[[], Gauges]) -> None:
        self._meters = meters
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        gauges = self._gauges()
        agents = {**self._meters.agents, ANY_AGENT: self._meters.anybody}
        yield from _of_connections(self._meters, agents, gauges)
        yield from _of_statements(agents)
        yield from _of_gate(self._meters)
        yield from _of_process(gauges)


def _of_connections(meters: Meters, agents: dict[str, AgentMeter], gauges: Gauges) -> Iterator[Metric]:
    is_open = GaugeMetricFamily("pgturnstile_connections", "Connections of agents now.", labels=["agent"])
    opened = CounterMetricFamily(
        "pgturnstile_connections_opened", "Connections handed over to a backend.", labels=["agent"]
    )
    now = dict.fromkeys(agents, 0)
    for name, count in gauges.connections.items():
        now[name if name in agents else ANY_AGENT] += count
    for name, meter in agents.items():
        is_open.add_metric([name], now[name])
        opened.add_metric([name], meter.opened)
    refused = CounterMetricFamily(
        "pgturnstile_connections_refused",
        "Connections refused before they had a backend, by SQLSTATE.",
        labels=["sqlstate"],
    )
    for sqlstate, count in sorted(meters.refused.items()):
        refused.add_metric([sqlstate], count)
    yield from (is_open, opened, refused)
    yield CounterMetricFamily(
        "pgturnstile_backend_failures",
        "Connections for which the database server gave no session.",
        value=meters.backend_failures,
    )


def _of_statements(agents: dict[str, AgentMeter]) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "pgturnstile_decisions",
        "Decisions by what was asked and by the rule that refused it, or under observe would have.",
        labels=["agent", "class", "decision", "rule"],
    )
    errors = CounterMetricFamily(
        "pgturnstile_statement_errors",
        "Statements that were let through and failed in PostgreSQL, by the class of the SQLSTATE.",
        labels=["agent", "sqlstate_class"],
    )
    unknown = CounterMetricFamily(
        "pgturnstile_statements_unknown",
        "Statements let through of whose outcome nothing came back.",
        labels=["agent"],
    )
    rows = CounterMetricFamily("pgturnstile_result_rows", "Rows sent to agents.", labels=["agent"])
    size = CounterMetricFamily(
        "pgturnstile_result_bytes", "Bytes of the rows sent to agents.", labels=["agent"]
    )
    took = HistogramMetricFamily(
        "pgturnstile_statement_seconds",
        "From a statement's arrival to its outcome, of those let through.",
        labels=["agent"],
    )
    for name, meter in agents.items():
        for (statement_class, decision, rule), count in sorted(meter.decisions.items()):
            decisions.add_metric([name, statement_class, decision, rule], count)
        for state, count in sorted(meter.errors.items()):
            errors.add_metric([name, state], count)
        unknown.add_metric([name], meter.unknown)
        rows.add_metric([name], meter.rows)
        size.add_metric([name], meter.bytes)
        took.add_metric([name], _buckets(meter.statement_s), meter.statement_s.total)
    yield from (decisions, errors, unknown, rows, size, took)


def _of_gate(meters: Meters) -> Iterator[Metric]:
    gate = meters.gate
    lookups = CounterMetricFamily(
        "pgturnstile_ruling_lookups",
        "Texts looked up among those judged before: known, known but for digits that do not matter, or not.",
        labels=["result"],
    )
    for result, count in (
        ("exact", gate.lookups.exact),
        ("lifted", gate.lookups.lifted),
        ("miss", gate.lookups.missed),
    ):
        lookups.add_metric([result], count)
    yield lookups
    repairs = CounterMetricFamily(
        "pgturnstile_repairs",
        "Refusals whose repair is over, by the rule that refused, or by PostgreSQL's class of SQLSTATE.",
        labels=["rule", "outcome"],
    )
    for (rule, outcome), count in sorted(meters.repairs.items()):
        repairs.add_metric([rule, outcome], count)
    yield repairs
    for name, text, histogram in (
        ("pgturnstile_gate_seconds", "Parsing a text and holding it against every rule.", gate.judged_s),
        ("pgturnstile_explain_seconds", "From asking EXPLAIN to its answer.", gate.explain_s),
    ):
        family = HistogramMetricFamily(name, text, labels=[])
        family.add_metric([], _buckets(histogram), histogram.total)
        yield family


def _of_process(gauges: Gauges) -> Iterator[Metric]:
    for name, text, value in (
        ("pgturnstile_draining", "1 while the proxy accepts nothing more.", gauges.draining),
        (
            "pgturnstile_reload_refused",
            "1 where the configuration on the disk was refused and an older one is served.",
            gauges.reload_refused,
        ),
        (
            "pgturnstile_audit_waiting_bytes",
            "Size of the audit records that are not written yet.",
            gauges.audit_waiting_bytes,
        ),
        ("pgturnstile_audit_writable", "0 while the audit file takes no lines.", gauges.audit_writable),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, text, value=float(value))
    if gauges.audit_lost is not None:
        yield CounterMetricFamily(
            "pgturnstile_audit_lost",
            "Audit records given up under on_failure: alarm.",
            value=gauges.audit_lost,
        )


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative, as the format wants them."""
    buckets, so_far = [], 0
    for bound, count in zip((*map(repr, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        so_far += count
        buckets.append((bound, float(so_far)))
    return buckets
