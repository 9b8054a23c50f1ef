"""What one connection's statements may return and write: the limits in force, and what was counted so far.

Owns the arithmetic; who counts, and what follows from too much, is ``server_side``'s and ``writes``'s.
"""

from __future__ import annotations

from policy.model import Mode, Policy


class RunLimits:
    """Rows and bytes of a result, and rows that one statement may write; None = not limited. ``results``:
    whether results are limited at all."""

    __slots__ = ("affected_rows", "result_bytes", "result_rows", "results")

    def __init__(self, result_rows: int | None, result_bytes: int | None, affected_rows: int | None) -> None:
        self.result_rows = result_rows
        self.result_bytes = result_bytes
        self.affected_rows = affected_rows
        self.results = result_rows is not None or result_bytes is not None


class Meter:
    """Rows and bytes that one result has given so far: of a Query, a portal or a cursor.

    ``written`` is True once the rows it wrote have been counted: a write is done whole by the first Execute
    of its portal, whatever rows the later ones fetch.
    """

    __slots__ = ("bytes", "rows", "written")

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.written = False

    def add(self, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size


def run_limits(policy: Policy) -> RunLimits | None:
    """What ``policy`` limits as statements run; None where that is nothing, or it only observes."""
    limits = policy.limits
    found = RunLimits(limits.result_rows, limits.result_bytes, limits.affected_rows)
    if policy.mode is Mode.OBSERVE or not (found.results or found.affected_rows is not None):
        return None
    return found
