"""``pgturnstile catalog …``: a database's catalog as a file."""

from __future__ import annotations

import argparse

from proxy.commands.sources import read_catalog
from proxy.commands.terminal import Exit, Subcommands, command, group


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    catalog = group(commands, "catalog", "Write down a database's catalog.")
    dump = command(
        catalog,
        "dump",
        _catalog_dump,
        ["catalog dump --dsn postgresql://dba@localhost/shop > shop.json"],
    )
    dump.add_argument("--dsn", required=True, metavar="DSN", help="the database, as a URI")


def _catalog_dump(options: argparse.Namespace) -> Exit:
    """Write down a database's catalog, for checks without the database.

    Prints one line of JSON that `check --catalog` reads: names, types, keys,
    functions, views; no row, no statistics and no password. Any role may read
    it.
    """
    print(read_catalog(options.dsn).to_json())
    return Exit.DONE
