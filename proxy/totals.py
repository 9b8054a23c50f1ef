"""A proxy of several workers as its admin port shows it: one page for all of them.

Owns how figures of workers become the proxy's. They are asked when somebody looks; one that does not answer
in time is shown as it was, and what one had counted that is no more stays in the sum as far as it was seen,
so that no counter goes back. The proxy is ready while one worker serves: the others are being started again,
and who connects meanwhile is that one's.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.admin import AdminPort, Pages
from proxy.config import Admin
from proxy.crew import Crew
from proxy.health import AuditState, Facts, Health, LastReload
from proxy.meters import Meters
from proxy.metrics import CONTENT_TYPE, Gauges, Page

_OF_EACH: Final = frozenset({"process_start_time_seconds", "process_max_fds"})
"""What processes do not add up to: the supervisor's is told."""

_PROBE_S: Final = 0.5
"""How long a probe is kept for a worker that is busy: it gives up after a second by default."""

LastReloaded = Callable[[], LastReload | None]


def admin_port(admin: Admin, crew: Crew, last_reload: LastReloaded) -> AdminPort:
    """The port, not listening yet."""

    async def facts() -> Facts:
        await crew.look(_PROBE_S)
        return facts_of(crew, last_reload())

    async def metrics() -> tuple[bytes, str]:
        await crew.look()
        page = Page(counted(crew), lambda: gauges_of(crew, last_reload()), about)
        return page.render(), CONTENT_TYPE

    def about(registry: CollectorRegistry) -> None:
        registry.register(_Workers(crew))
        registry.register(_Processes(crew))
        PlatformCollector(registry=registry)

    health = Health(facts, lambda: crew.endpoint)
    return AdminPort(admin, Pages(health, metrics, crew.decisions), shared=True)


def counted(crew: Crew) -> Meters:
    """What all workers have counted up to now."""
    total = Meters()
    total.know(crew.config.agents)
    total.add(crew.departed)
    for post in crew.posts:
        if post.figures is not None:
            total.add(post.figures.meters)
    return total


def facts_of(crew: Crew, reload: LastReload | None) -> Facts:
    """What ``/readyz`` goes by."""
    catalogs: dict[str, bool] = {}
    for post in crew.posts:
        for name, readable in () if post.figures is None else post.figures.catalogs.items():
            catalogs[name] = readable and catalogs.get(name, True)
    policies = tuple(policy.name for policy in crew.config.policies)
    serving = sum(post.serving for post in crew.posts)
    turned_away = [post.figures.turned_away for post in crew.posts if post.figures is not None]
    return Facts(
        crew.draining,
        policies,
        catalogs,
        _audit(crew),
        reload,
        workers=(serving, len(crew.posts)),
        turned_away=next((each for each in turned_away if each is not None), None),
    )


def gauges_of(crew: Crew, reload: LastReload | None) -> Gauges:
    """What is so at the moment, all workers together."""
    connections: Counter[str] = Counter()
    for post in crew.posts:
        connections.update({} if post.figures is None else post.figures.connections)
    audit = _audit(crew)
    return Gauges(
        dict(connections),
        crew.draining,
        reload is not None and reload.refused is not None,
        None if audit is None else audit.waiting,
        None if audit is None else audit.lost,
        None if audit is None else audit.failing is None,
    )


def _audit(crew: Crew) -> AuditState | None:
    """The file as all workers see it: it fails where it fails for one of them."""
    states = [post.figures.audit for post in crew.posts if post.figures is not None]
    found = [state for state in states if state is not None]
    if not found:
        return None
    failing = next((state.failing for state in found if state.failing is not None), None)
    waiting, lost = sum(state.waiting for state in found), sum(state.lost for state in found)
    return AuditState(failing, found[0].refuses, waiting, lost)


class _Workers(Collector):
    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def collect(self) -> Iterable[Metric]:
        serving = sum(post.serving for post in self._crew.posts)
        yield GaugeMetricFamily("pgturnstile_workers", "Workers that serve now.", value=serving)
        yield CounterMetricFamily(
            "pgturnstile_worker_restarts",
            "Workers that died and were started again.",
            value=self._crew.restarts,
        )


class _Processes(Collector):
    """Memory, processor time and descriptors of the supervisor and its workers together."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def collect(self) -> Iterable[Metric]:
        sums: dict[str, Metric] = {each.name: each for each in ProcessCollector(registry=None).collect()}
        for pid in self._crew.pids:
            for metric in ProcessCollector(pid=_always(pid), registry=None).collect():
                if metric.name in sums and metric.name not in _OF_EACH:
                    [sample] = sums[metric.name].samples
                    sums[metric.name].samples = [
                        sample._replace(value=sample.value + metric.samples[0].value)
                    ]
        # What those took that have ended.
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        if "process_cpu_seconds" in sums:
            [sample] = sums["process_cpu_seconds"].samples
            sums["process_cpu_seconds"].samples = [
                sample._replace(value=sample.value + ended.ru_utime + ended.ru_stime)
            ]
        return sums.values()


def _always(pid: int) -> Callable[[], int]:
    return lambda: pid
