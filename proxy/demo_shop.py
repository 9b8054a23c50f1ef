"""Loads the sample shop into an empty database.

Owns demo_shop.sql and the passwords of its roles; it must not know who serves the database or what reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Final

import asyncpg

ROLES: Final = ("shop_ro", "shop_app")
"""The roles the shop creates: one that reads, one that reads and writes rows."""


async def load_shop(dsn: str, passwords: Mapping[str, str]) -> None:
    """Create tables, rows, views, functions and roles (about half a second), and give each role its password.

    ``dsn``        an empty database, as a superuser of PostgreSQL 15 or later.
    ``passwords``  for each of ROLES.

    Raises KeyError when a role has no password, and asyncpg's errors.
    """
    chosen = [(role, passwords[role]) for role in ROLES]
    script = resources.files(__package__).joinpath("demo_shop.sql").read_text(encoding="utf-8")
    connection = await asyncpg.connect(dsn)
    try:
        # Without arguments asyncpg sends one simple Query, which PostgreSQL runs as one transaction.
        await connection.execute(script)
        for role, password in chosen:
            # ALTER ROLE takes no parameters, so the server itself does the quoting.
            statement = await connection.fetchval(
                "SELECT format('ALTER ROLE %I PASSWORD %L', $1::text, $2::text)", role, password
            )
            await connection.execute(statement)
    finally:
        await connection.close()
