"""``python -m tests.peers [SUITE …]``: run the suites direct and through, and print one table.

Exits with 0 where nothing differs but what is accepted, 1 otherwise, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.peers import report
from tests.peers.accepted import ACCEPTED
from tests.peers.servers import run_target
from tests.peers.suite import NotAvailableError, Outcome, Road, Suite
from tests.peers.suites import SUITES

_WORKDIR: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgturnstile-peers"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.list:
        for suite in SUITES:
            print(f"{suite.name:<20} {'quick' if suite.quick else '':<6} {', '.join(suite.roads)}")
        return 0
    chosen = [s for s in SUITES if (not options.suites or s.name in options.suites)]
    if options.quick:
        chosen = [suite for suite in chosen if suite.quick]
    # A run that is cancelled stops its servers and their programs, as by Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.workdir.mkdir(parents=True, exist_ok=True)
    rows: list[report.Row] = []
    for suite in chosen:
        rows += _run(suite, options.roads or suite.roads, options.workdir)
        result = json.dumps([report.as_json(row) for row in rows], indent=1)
        (options.workdir / "results.json").write_text(result)
    print("\n" + report.table(rows))
    faults = [f"{row.suite} ({row.road}): {fault}" for row in rows for fault in row.faults]
    # CI installs all that the quick slice needs: there, what is missing is a fault.
    if os.environ.get("CI", "").lower() in ("1", "true"):
        faults += [f"{row.suite}: not available: {row.unavailable}" for row in rows if row.unavailable]
    for fault in faults:
        print("\n" + fault)
    print(f"\nResults: {options.workdir / 'results.json'}")
    return 1 if faults else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    names = [suite.name for suite in SUITES]
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(names)}; default: all")
    parser.add_argument("--list", action="store_true", help="say which suites there are, and run none")
    parser.add_argument("--quick", action="store_true", help="only those that are fast and need no build")
    parser.add_argument("--workdir", type=Path, default=_WORKDIR, help="where builds and results are kept")
    parser.add_argument(
        "--road",
        dest="roads",
        action="append",
        type=Road,
        choices=[Road.OBSERVE, Road.ENFORCE],
        help="through which policy; default: what each suite is meant for",
    )
    options = parser.parse_args(arguments)
    options.workdir = options.workdir.absolute()
    unknown = sorted(set(options.suites) - set(names))
    if unknown:
        parser.error(f"no suite is called {', '.join(unknown)}; there are {', '.join(names)}")
    return options


def _run(suite: Suite, roads: Sequence[Road], workdir: Path) -> list[report.Row]:
    """One row a road. What breaks one road, or one suite, does not end the others' run."""
    try:
        version = suite.prepare(workdir)
        direct = _run_one(suite, Road.DIRECT, version, workdir)
    except Exception as error:
        return [_missing(error, report.Row(suite.name, "", road)) for road in roads]
    rows = []
    for road in roads:
        row = report.Row(suite.name, version, road, direct)
        try:
            through = _run_one(suite, road, version, workdir)
        except Exception as error:
            rows.append(_missing(error, row))
        else:
            differences, stale = report.compare(suite.name, road, direct, through, ACCEPTED)
            rows.append(replace(row, through=through, differences=differences, stale=stale))
    return rows


def _missing(error: Exception, row: report.Row) -> report.Row:
    if isinstance(error, NotAvailableError):
        return replace(row, unavailable=str(error))
    traceback.print_exception(error)
    return replace(row, broken=f"{type(error).__name__}: {error}")


def _run_one(suite: Suite, road: Road, version: str, workdir: Path) -> Outcome:
    began = time.monotonic()
    with run_target(suite, road, workdir / "results" / suite.name / road) as target:
        outcome = suite.run(target)
    print(f"{suite.name} {version}, {road}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
