"""Every suite, in the order in which they run: the quickest first."""

from __future__ import annotations

from typing import Final

from tests.peers.dump import Dump
from tests.peers.flows import FLOWS
from tests.peers.libpq_pipeline import LibpqPipeline
from tests.peers.pgbench import Pgbench
from tests.peers.psql import Psql
from tests.peers.python_drivers import PYTHON_SUITES
from tests.peers.regress import Isolation, PgRegress
from tests.peers.suite import Suite

SUITES: Final[tuple[Suite, ...]] = (
    Dump(),
    Psql(),
    Pgbench(),
    LibpqPipeline(),
    *FLOWS,
    *PYTHON_SUITES,
    PgRegress(),
    Isolation(),
)
