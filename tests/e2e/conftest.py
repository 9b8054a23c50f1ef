"""What the tests with real drivers share: one proxy before each server, with a database of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.postgres import Server
from tests.support.proxy import WRITER, RunningProxy, run_proxy

INSIDER = (
    WRITER.replace("name: writer", "name: insider")
    .replace("lock: allow", "lock: allow, notify: allow")
    .replace("catalogs: filtered", "catalogs: on")
)
STRICT = (
    WRITER.replace("name: writer", "name: strict").replace("catalogs: filtered", "catalogs: on")
    + "rules: {unbounded-join: reject}\n"
)
DUMPER = """
version: 1
name: dumper
mode: enforce
access: read_only
statements: {select: allow, set: allow, transaction: allow, prepare: allow, lock: allow, copy_out: allow}
relations: {allow: ["public.*"], catalogs: on}
functions: {allow: [builtin-safe, "pg_catalog.*"]}
settings:
  allow: [default_table_access_method, idle_in_transaction_session_timeout, lock_timeout,
    restrict_nonsystem_relation_kind, row_security, statement_timeout, synchronize_seqscans,
    transaction_timeout]
"""
"""What pg_dump needs, and nothing that writes."""


@contextlib.contextmanager
def _gateway(server: Server, folder: Path) -> Iterator[RunningProxy]:
    with (
        server.database() as database,
        run_proxy(database, folder, {"insider": INSIDER, "strict": STRICT, "dumper": DUMPER}) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def gateway_of(
    server_of: Callable[[int], Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], RunningProxy]]:
    """The proxy before the server of a major; it stays while tests go from one to another."""
    with contextlib.ExitStack() as running:

        def gateway_of(major: int) -> RunningProxy:
            folder = tmp_path_factory.mktemp(f"gateway{major}")
            return running.enter_context(_gateway(server_of(major), folder))

        yield cache(gateway_of)


@pytest.fixture(scope="session")
def gateway(postgres: Server, gateway_of: Callable[[int], RunningProxy]) -> RunningProxy:
    """A proxy before each server, with three further agents.

    ``insider`` may listen and see all catalogs; ``strict`` sees them too, and may not join without a bound;
    ``dumper`` may run pg_dump. The database is shared: a test writes rows of its own only, and counts no
    others.
    """
    return gateway_of(postgres.major)
