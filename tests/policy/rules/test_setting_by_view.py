"""pg_catalog.pg_settings as a road to settings: set_config with a name read from it, and an UPDATE of it."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from policy.catalog import Catalog
from policy.catalog_names import CatalogNames
from policy.model import Policy
from policy.names import PathNames
from tests.policy.conftest import read_catalog
from tests.policy.rules.judging import violations
from tests.policy.rules.schema import CONTENT, WRITER, names, objections, policy_of, relation
from tests.support.postgres import Server

RULE = "setting-not-allowed"
CATALOG = Catalog(
    replace(
        CONTENT,
        relations=(
            *CONTENT.relations,
            relation("pg_catalog.pg_settings", "name text, setting text"),
            relation("odd.pg_settings", "name ci, setting text"),
            relation("settings", "name text, setting text"),
        ),
    )
)


def policy(**sections: str) -> Policy:
    return policy_of(
        WRITER, relations='{allow: ["*.*"], catalogs: on}', settings="{allow: [work_mem]}", **sections
    )


PG_DUMP_S = "SELECT set_config(name, '4MB', false) FROM pg_settings WHERE name = 'work_mem'"


@pytest.mark.parametrize(
    "sql",
    [
        PG_DUMP_S,
        "SELECT pg_catalog.set_config(s.name, '', true) FROM pg_catalog.pg_settings s WHERE 'GEQO' = s.name",
        "SELECT set_config(pg_settings.name, '', true) FROM pg_settings WHERE '' < '1' AND name = 'geqo'",
        "SELECT set_config(name, $1, false) FROM pg_settings WHERE name OPERATOR(pg_catalog.=) 'work_mem'",
        "SELECT * FROM (SELECT set_config(name, '', true) FROM pg_settings WHERE name = 'work_mem') AS s",
        # No row passes, whichever of the two is looked at.
        "SELECT set_config(name, 'x', false) FROM pg_settings WHERE name = 'work_mem' AND name = 'geqo'",
    ],
)
def test_a_name_that_the_where_holds_to_one_that_is_allowed_passes(sql: str) -> None:
    assert objections(sql, policy(), names(catalog=CATALOG)) == []


@pytest.mark.parametrize(
    "sql",
    [
        # What others keep account of, they know by its name in the text alone.
        "SELECT set_config(name, 'public', false) FROM pg_settings WHERE name = 'search_path'",
        "SELECT set_config(name, 'on', false) FROM pg_settings WHERE name = 'transaction_read_only'",
        "SELECT set_config(name, 'UTF8', false) FROM pg_settings WHERE name = 'client_encoding'",
        # Not held to one name.
        "SELECT set_config(name, '', false) FROM pg_settings",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name = $1",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name = setting",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name = 'geqo' OR true",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE NOT name = 'geqo'",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name <> 'geqo'",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name ~ 'geqo'",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name IN ('geqo', 'role')",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name = ANY ('{geqo,role}')",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE setting = 'geqo'",
        # Another equality than that of texts.
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name = 'geqo'::ci",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name::ci = 'geqo'",
        "SELECT set_config(name, '4MB', false) FROM pg_settings WHERE name = 'geqo' COLLATE \"de\"",
        "SELECT set_config(name, '', false) FROM pg_settings WHERE name OPERATOR(public.=) 'geqo'",
        # Another name than the one that is held.
        "SELECT set_config(setting, '', false) FROM pg_settings WHERE name = 'geqo'",
        "SELECT set_config(name || '', '', false) FROM pg_settings WHERE name = 'geqo'",
        "SELECT set_config(name, '', false) FROM pg_settings AS s(setting, name) WHERE name = 'geqo'",
        "SELECT set_config(a.name, '', false) FROM pg_settings a, pg_settings b WHERE b.name = 'geqo'",
        "SELECT set_config(a.name, '', false) FROM pg_settings a, pg_settings b WHERE a.name = 'geqo'",
        "SELECT set_config(a.name, '', false) FROM pg_settings a LEFT JOIN pg_settings b ON a.name = 'geqo'",
        # Worked out before the WHERE, or for other rows than it lets pass.
        "SELECT 1 FROM pg_settings WHERE name = 'geqo' AND set_config(name, '', false) = ''",
        "SELECT 1 FROM pg_settings, set_config(name, '', false) WHERE name = 'geqo'",
        "SELECT (SELECT set_config(s.name, '', false) FROM pg_settings WHERE name = 'geqo') FROM settings s",
        "SELECT name FROM pg_settings WHERE name = 'geqo' ORDER BY set_config(name, '', false)",
        # Another relation than the server's.
        "SELECT set_config(name, '', false) FROM settings WHERE name = 'geqo'",
        "SELECT set_config(name, '', false) FROM odd.pg_settings WHERE name = 'geqo'",
        "SELECT set_config(name, '', false) FROM pg_temp.pg_settings WHERE name = 'geqo'",
        "WITH pg_settings(name) AS (SELECT 'role') SELECT set_config(name, '', false) FROM pg_settings"
        " WHERE name = 'geqo'",
        "SELECT set_config(name, '', false) FROM (SELECT 'role'::ci AS name) pg_settings WHERE name = 'geqo'",
        "SELECT set_config(VARIADIC ARRAY[name, '', 'false']) FROM pg_settings WHERE name = 'geqo'",
    ],
)
def test_a_name_that_may_be_any_is_refused(sql: str) -> None:
    (found,) = [each for each in objections(sql, policy(), names(catalog=CATALOG)) if each.rule == RULE]
    assert found.message == "A setting whose name is no constant is not allowed"
    assert found.position
    assert not found.repairable


def test_a_name_that_is_not_allowed_is_refused_by_it() -> None:
    sql = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'statement_timeout'"
    (found,) = objections(sql, policy(), names(catalog=CATALOG))
    assert (found.rule, found.object) == (RULE, "statement_timeout")


@pytest.mark.parametrize(
    "known",
    [
        names(catalog=CATALOG, temporary=True),
        names(catalog=CATALOG).after_change(),
        PathNames(),
        # As far as the snapshot goes it may be public's.
        names(),
    ],
)
def test_where_another_pg_settings_may_stand_before_the_server_s_it_is_refused(
    known: CatalogNames | PathNames,
) -> None:
    (found,) = [each for each in objections(PG_DUMP_S, policy(), known) if each.rule == RULE]
    assert found.message == "A setting whose name is no constant is not allowed"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE pg_settings SET setting = '0' WHERE name = 'statement_timeout'",
        "UPDATE ONLY pg_catalog.pg_settings AS s SET setting = $1",
        "WITH done AS (UPDATE pg_settings SET setting = 'x' WHERE name = 'role' RETURNING 1) SELECT 1",
        "EXPLAIN ANALYZE UPDATE pg_settings SET setting = 'off' WHERE name = 'geqo'",
        "PREPARE later AS UPDATE pg_settings SET setting = 'off' WHERE name = 'geqo'",
    ],
)
@pytest.mark.parametrize("catalogs", ["on", "filtered"])
def test_an_update_of_pg_settings_is_refused(sql: str, catalogs: str) -> None:
    """PostgreSQL documentation, "pg_settings": an UPDATE is equivalent to SET on that parameter."""
    for_all = policy_of(
        WRITER,
        statements="{select: allow, update: allow, explain: allow, prepare: allow}",
        relations=f'{{allow: ["*.*"], catalogs: {catalogs}}}',
    )
    (found,) = violations(sql, for_all, RULE)
    assert (found.message, found.position) == (
        "UPDATE of pg_catalog.pg_settings is not allowed: use SET",
        sql.index("pg_") + 1,
    )
    assert "timezone" in found.hint


VIEWS = """
    CREATE VIEW renamed AS SELECT name, setting AS value FROM pg_settings;
    CREATE VIEW twice AS SELECT name, value FROM renamed;
    CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1);
    CREATE VIEW of_tenant AS SELECT id, note, (SELECT setting FROM pg_settings WHERE name = 'geqo') AS tenant
        FROM items WHERE id < (SELECT count(*) FROM pg_settings);
"""


def test_an_update_through_a_view_is_one_of_what_it_updates(postgres: Server) -> None:
    """What the rule says, beside what PostgreSQL does."""
    settles = {
        "UPDATE renamed SET value = 'off' WHERE name = 'geqo'": True,
        "UPDATE twice SET value = 'off' WHERE name = 'geqo'": True,
        "UPDATE pg_settings SET setting = 'off' WHERE name = 'geqo'": True,
        "UPDATE of_tenant SET note = tenant": False,
        "UPDATE items SET note = (SELECT setting FROM pg_settings WHERE name = 'geqo')": False,
        # To what it is already.
        "UPDATE renamed SET name = name WHERE name = 'geqo'": False,
    }
    with postgres.database() as database:
        database.execute(VIEWS)
        known = CatalogNames(read_catalog(database.dsn()), (("public",),), temporary=False)
        with psycopg.connect(database.dsn(), autocommit=True) as connection:
            for sql, does in settles.items():
                found = [each for each in objections(sql, policy(), known) if each.rule == RULE]
                connection.execute("RESET geqo")
                connection.execute(sql)
                row = connection.execute("SHOW geqo").fetchone()
                assert row is not None
                assert (row[0] == "off", bool(found)) == (does, does), sql
        assert objections(PG_DUMP_S, policy(), known) == []
