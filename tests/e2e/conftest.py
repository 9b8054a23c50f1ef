"""What the tests with real drivers share: one proxy before each server, with a database of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import Server
from tests.support.proxy import WRITER, RunningProxy, run_proxy

LISTENER = WRITER.replace("name: writer", "name: listener").replace(
    "lock: allow", "lock: allow, notify: allow"
)


@pytest.fixture(scope="session")
def gateway(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """A proxy before each server, with the further agent ``listener``.

    Its database is shared: a test writes rows of its own only, and counts no others.
    """
    folder = tmp_path_factory.mktemp("gateway")
    with postgres.database() as database, run_proxy(database, folder, {"listener": LISTENER}) as running:
        yield running
