"""The policies that the proxy is measured under. Text only; knows no process.

``strict`` is what a careful operator would run: reads alone, lists of relations and functions, hidden
columns, prices and limits. Its numbers are out of the way of the workloads, never switched off.
"""

from __future__ import annotations

from collections.abc import Iterator

_HEAD = """
version: 1
name: {name}
mode: enforce
access: read_only
statements:
  select: {{decide: allow, repair: once}}
  explain: allow
  show: allow
  set: allow
  transaction: allow
  cursor: allow
  prepare: allow
functions: {{allow: [builtin-safe]}}
rules: {{unbounded-join: "off", unbounded-select: "off"}}
limits: {{statement_timeout: 5min, lock_timeout: 2s, result_rows: 100000000, result_bytes: 100GiB}}
"""
_COST = """
cost:
  max_total_cost: 1000000000
  max_rows: 1000000000
  max_scan_rows: 1000000000
  max_result_bytes: 100GiB
"""


def strict(*, cost: bool = True, rows: int = 0) -> str:
    """``cost`` asks prices of PostgreSQL. ``rows`` adds that many rows that name tables and columns which no
    statement touches, half to be read and half to be hidden."""
    allow = ["public.*", *(f"tenant_{n}.accounts" for n in range(rows // 2))]
    return "".join(
        (
            _HEAD.format(name="strict" if cost else "unpriced"),
            f"relations: {{allow: {_list(allow)}, deny: [public.secrets], catalogs: filtered}}\n",
            "".join(_columns(rows - rows // 2)),
            _COST if cost else "",
        )
    )


def _columns(rows: int) -> Iterator[str]:
    yield "columns:\n  public.customers: {deny: [password_hash]}\n"
    for n in range(rows):
        yield f"  tenant_{n}.people: {{deny: [password_hash, ssn]}}\n"


def _list(items: list[str]) -> str:
    return "[" + ", ".join(f'"{item}"' for item in items) + "]"
