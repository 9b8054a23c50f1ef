"""Every suite, in the order in which they run: the quickest first."""

from __future__ import annotations

from typing import Final

from tests.peers.flows import FLOWS
from tests.peers.pgbench import Pgbench
from tests.peers.python_drivers import PYTHON_SUITES
from tests.peers.suite import Suite

SUITES: Final[tuple[Suite, ...]] = (Pgbench(), *FLOWS, *PYTHON_SUITES)
