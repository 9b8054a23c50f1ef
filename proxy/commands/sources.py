"""What commands read: policies, SQL, and the catalog that names are looked up in.

Knows no command. A file that cannot be read, or a database that does not answer, is a UsageError.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg

from policy import catalog_source
from policy.catalog import Catalog
from policy.catalog_json import CatalogFormatError
from policy.loader import TESTS_SUFFIX
from proxy.commands.terminal import UsageError, read

_CONNECT_S: Final = 10.0
"""How long a database may take to answer."""

T = TypeVar("T")


def policy_files(named: Sequence[Path]) -> Iterator[Path]:
    """The files named, and the YAML files of the folders named."""
    for path in named:
        if not path.is_dir():
            yield path
            continue
        found = [found for found in sorted(path.glob("*.yaml")) if not found.name.endswith(TESTS_SUFFIX)]
        if not found:
            raise UsageError(f"{path} holds no *.yaml.")
        yield from found


def inputs(files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    if not files:
        if sys.stdin.isatty():
            raise UsageError("Name a file of SQL, or - to read standard input.")
        files = ["-"]
    for name in files:
        if name == "-":
            yield "<stdin>", sys.stdin.buffer.read()
        else:
            yield name, read(Path(name))


def add_names(command: argparse.ArgumentParser) -> None:
    names = command.add_mutually_exclusive_group()
    names.add_argument("--dsn", metavar="DSN", help="look names up in this database")
    names.add_argument(
        "--catalog", type=Path, metavar="FILE", help="look names up in what `catalog dump` wrote"
    )


def named_catalog(options: argparse.Namespace) -> Catalog | None:
    if options.dsn is not None:
        return read_catalog(options.dsn)
    return None if options.catalog is None else dumped_catalog(options.catalog)


def dumped_catalog(path: Path) -> Catalog:
    """What ``catalog dump`` wrote to ``path``."""
    try:
        return Catalog.from_json(read(path))
    except CatalogFormatError as error:
        raise UsageError(f"{path}: {error}.") from error


def read_catalog(dsn: str) -> Catalog:
    """The catalog of the database that ``dsn`` names."""
    return asyncio.run(with_database(dsn, _no_more))


async def with_database(dsn: str, use: Callable[[asyncpg.Connection[Any], Catalog], Awaitable[T]]) -> T:
    """What ``use`` makes of one read-only connection to the database that ``dsn`` names, and its catalog.

    A fault of the connection is a UsageError and never quotes ``dsn``, for it may hold a password.
    """
    connection: asyncpg.Connection[Any] | None = None
    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=_CONNECT_S,
            statement_cache_size=0,
            server_settings={"application_name": "pgturnstile", "default_transaction_read_only": "on"},
        )
        catalog = await catalog_source.read(connection)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        if connection is not None:
            connection.terminate()
        raise UsageError(f"The catalog cannot be read: {str(error) or type(error).__name__}") from error
    try:
        return await use(connection, catalog)
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise UsageError(f"The database has stopped answering: {error}") from error
    finally:
        connection.terminate()


async def _no_more(_connection: asyncpg.Connection[Any], catalog: Catalog) -> Catalog:
    return catalog
