"""What is counted, under which labels, and that neither counters nor the ring of decisions grow for ever."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from policy.decision import Allow, Decision, Reject
from policy.facts import QueryString
from policy.lineage import CloseOut, Ending
from policy.model import RepairTerms, StatementClass, Violation
from proxy.audit_line import ConnectionIdentity
from proxy.config import Statements
from proxy.effects import AuditEntry
from proxy.gate import Gate
from proxy.meters import MAX_AGENTS, GateMeter, Histogram, Meters
from proxy.metrics import Gauges, Page
from proxy.recent import Recent
from tests.e2e.test_server import POLICY

WHO = ConnectionIdentity("analyst", "shop", "shop_ro", None, "127.0.0.1:5000", "01C", "reports", "ab" * 32)
GAUGES = Gauges({"analyst": 2, "stranger": 3}, False, True, 17, 4, False)


def violation(rule: str) -> Violation:
    return Violation(rule, "a message", "a hint")


def allow(sql: str = "SELECT 1", **more: Any) -> Allow:
    return Allow(QueryString(sql, ()), StatementClass.SELECT, **more)


def reject(*rules: str) -> Reject:
    query = QueryString("DELETE FROM a", ())
    return Reject(query, StatementClass.DELETE, tuple(map(violation, rules)), RepairTerms(), None)


def entry(decision: Decision, **outcome: Any) -> AuditEntry:
    made = AuditEntry("01E", decision, "simple", 0.0)
    made.outcome_known = True
    for name, value in outcome.items():
        setattr(made, name, value)
    return made


def page(meters: Meters) -> dict[str, float]:
    """The samples of the page, by name and labels as they stand there."""
    lines = Page(meters, lambda: GAUGES).render().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@pytest.mark.parametrize(
    ("made", "sample"),
    [
        (entry(allow()), 'decisions_total{agent="analyst",class="select",decision="allow",rule=""}'),
        (
            entry(allow(observed=(violation("a-rule"), violation("b")))),
            'decisions_total{agent="analyst",class="select",decision="observe",rule="a-rule"}',
        ),
        (
            entry(reject("a-rule", "b"), sqlstate="42501"),
            'decisions_total{agent="analyst",class="delete",decision="reject",rule="a-rule"}',
        ),
        (entry(allow(), sqlstate="23505"), 'statement_errors_total{agent="analyst",sqlstate_class="23"}'),
        (entry(allow(), outcome_known=False), 'statements_unknown_total{agent="analyst"}'),
        (entry(allow(), ms=3.0), 'statement_seconds_bucket{agent="analyst",le="0.005"}'),
    ],
)
def test_a_record_counts_once(made: AuditEntry, sample: str) -> None:
    meters = Meters()
    meters.know(["analyst", "*"])
    meters.record(made, WHO)
    assert page(meters)[f"pgturnstile_{sample}"] == 1


@pytest.mark.parametrize(
    ("reason", "rule"), [("unknown-column", "unknown-column"), ("23514", "23"), ("no-rule-of-ours", "no")]
)
def test_repairs_count_by_what_refused_and_how_they_ended(reason: str, rule: str) -> None:
    meters = Meters()
    first = CloseOut("1", "agent", StatementClass.UPDATE, (reason, "b"), 1, Ending.REPAIRED, None, 0.0, 1.0)
    for ending in (Ending.REPAIRED, Ending.ABANDONED, Ending.ABANDONED):
        meters.closed(replace(first, ending=ending))
    samples = page(meters)
    assert samples[f'pgturnstile_repairs_total{{outcome="repaired",rule="{rule}"}}'] == 1
    assert samples[f'pgturnstile_repairs_total{{outcome="abandoned",rule="{rule}"}}'] == 2


def test_what_the_gate_refuses_is_no_error_of_the_server() -> None:
    meters = Meters()
    meters.know(["analyst"])
    meters.record(entry(reject("a-rule"), sqlstate="42501"), WHO)
    samples = page(meters)
    assert not any("statement_errors" in name for name in samples)
    assert samples['pgturnstile_statement_seconds_count{agent="analyst"}'] == 0


def test_rows_and_bytes_add_up_also_of_what_went_over_its_limit() -> None:
    meters = Meters()
    meters.know(["analyst"])
    meters.record(entry(allow(), rows=3, bytes=30), WHO)
    meters.record(entry(reject("result-over-limit"), rows=2, bytes=20), WHO)
    samples = page(meters)
    assert samples['pgturnstile_result_rows_total{agent="analyst"}'] == 5
    assert samples['pgturnstile_result_bytes_total{agent="analyst"}'] == 50


def test_names_that_nobody_configured_make_no_label() -> None:
    meters = Meters()
    meters.know(["analyst", "*"])
    for n in range(50):
        meters.record(entry(allow()), WHO._replace(agent=f"role{n}"))
        meters.of(f"role{n}").opened += 1
    samples = page(meters)
    assert samples['pgturnstile_connections_opened_total{agent="*"}'] == 50
    assert samples['pgturnstile_connections{agent="*"}'] == 3
    assert samples['pgturnstile_connections{agent="analyst"}'] == 2
    assert not any("role" in name for name in samples)
    meters.know(f"agent{n}" for n in range(MAX_AGENTS + 10))
    assert len(meters.agents) == MAX_AGENTS


def test_an_agent_that_a_reload_brings_again_keeps_its_counts() -> None:
    meters = Meters()
    meters.know(["analyst"])
    meters.record(entry(allow()), WHO)
    meters.know(["analyst", "other"])
    assert meters.of("analyst").statement_s.counts[0] == 1


def test_what_is_so_now_is_shown() -> None:
    samples = page(Meters())
    assert (samples["pgturnstile_draining"], samples["pgturnstile_reload_refused"]) == (0, 1)
    assert samples["pgturnstile_audit_waiting_bytes"] == 17
    assert samples["pgturnstile_audit_lost_total"] == 4
    assert samples["pgturnstile_audit_writable"] == 0
    assert samples["process_cpu_seconds_total"] > 0


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(seconds)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)


def test_the_gate_counts_what_it_knows_and_what_it_judges() -> None:
    meter = GateMeter()
    gate = Gate(POLICY, "analyst", 4096, meter=meter)
    names = gate.names((("public",),))
    cache = gate.cache(names)
    for text in (b"SELECT 1", b"SELECT 1", b"DROP TABLE a"):
        if cache.get(text) is None:
            gate.rule(text, names)
    assert (meter.lookups.exact, meter.lookups.missed) == (1, 2)
    assert sum(meter.judged_s.counts) == 2


def test_judging_in_several_threads_loses_no_count() -> None:
    meter = GateMeter()
    threads = [threading.Thread(target=lambda: [meter.judged(0.001) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(meter.judged_s.counts) == 8000


def test_the_latest_decisions_come_newest_first_and_as_the_audit_tells_them() -> None:
    recent = Recent(Statements.NONE, records=3)
    for n in range(5):
        made = entry(allow(f"SELECT {n}"))
        made.id = str(n)
        recent.record(made, WHO)
    told = [json.loads(each.line) for each in recent.newest(10)]
    assert [line["id"] for line in told] == ["4", "3", "2"]
    assert all("statement" not in line for line in told)
    assert [json.loads(each.line)["id"] for each in recent.newest(1)] == ["4"]


def test_long_statements_take_no_more_memory_than_short_ones() -> None:
    recent = Recent(Statements.FULL, records=1000, characters=10_000)
    for _ in range(50):
        recent.record(entry(allow("SELECT '" + "x" * 3000 + "'")), WHO)
    assert len(recent.newest(1000)) == 3
    recent.record(entry(allow("SELECT '" + "x" * 50_000 + "'")), WHO)
    assert len(recent.newest(1000)) == 1
