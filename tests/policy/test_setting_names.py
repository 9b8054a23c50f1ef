"""The list of settings is PostgreSQL's own."""

from __future__ import annotations

from policy import settings
from policy.setting_names import KNOWN
from tests.support.postgres import Database

CHANGEABLE = """
SELECT lower(name) FROM pg_settings
WHERE name !~ '\\.' AND context IN ('user', 'superuser', 'backend', 'superuser-backend')
"""


def test_every_setting_of_a_running_server_is_known(shop: Database) -> None:
    of_the_server = {name for (name,) in shop.execute(CHANGEABLE)}

    assert of_the_server
    assert of_the_server - KNOWN == set()


def test_settings_that_no_session_can_change_are_not_listed(shop: Database) -> None:
    fixed = {
        name
        for (name,) in shop.execute(
            "SELECT lower(name) FROM pg_settings WHERE context IN ('internal', 'postmaster')"
        )
    }

    assert KNOWN & fixed == set()


def test_what_drivers_need_is_known() -> None:
    assert settings.BASE <= KNOWN
