"""The differences between direct and through that remain, each with its reason and the test that pins it.

A name listed here that no longer differs is a fault too: the list only ever says what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.peers.suite import Road


@dataclass(frozen=True, slots=True)
class Accepted:
    """``pinned_by`` is a test of the ordinary suite, as ``tests/…py::test_name``."""

    suite: str
    test: str
    roads: tuple[Road, ...]
    reason: str
    pinned_by: str


_ONLY_ENFORCED: Final = (Road.ENFORCE,)
_REFUSAL: Final = "a name that does not exist is the gate's to answer: its message, hint and Detail"
_DUMP: Final = (
    "pg_dump calls set_config with a name that it reads from pg_settings, "
    "which may be a temporary relation where sessions can make one"
)
_NAMELESS_SETTING: Final = (
    "tests/policy/rules/test_setting_by_view.py::"
    "test_where_another_pg_settings_may_stand_before_the_server_s_it_is_refused"
)
_UNKNOWN_COLUMN: Final = "tests/policy/rules/test_catalog_rules.py::test_one_repair_is_open"
_ERRORS: Final = "errors of syntax and names"
_TOLD: Final = (
    "a text that does not parse is the gate's to answer; PostgreSQL's errors of class 42 get a Detail"
)
_ENGINE_ERROR: Final = (
    "tests/proxy/test_session_catalog.py::test_an_error_of_the_agent_s_own_statement_is_told_by_the_catalog"
)
_ERROR_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            *("node-pg", "postgres.js", "pgjdbc", "dbd-pg", "ruby-pg", "psqlpy", "adbc", "langchain"),
            *("django-literals", "django-binding", "mcp-postgres"),
            *(f"sqlalchemy-orm-{driver}" for driver in ("psycopg2", "psycopg", "pg8000")),
        ),
        (_ERRORS,),
    ),
    "lib-pq": tuple(f"{_ERRORS}, binary parameters: {binary}" for binary in ("no", "yes")),
    "pgx-v4": tuple(f"{_ERRORS}, cache: {cache}" for cache in ("prepare", "describe", "none", "simple")),
    "php-pdo": tuple(f"{_ERRORS}, {how} prepares" for how in ("real", "emulated")),
    "psqlODBC": tuple(
        f"{_ERRORS}, {options}"
        for options in (
            *({}, {"UseServerSidePrepare": 0}),
            *({"UseDeclareFetch": 1, "Fetch": 7}, {"Protocol": "7.4-2"}),
        )
    ),
}
"""The step of each flow in which PostgreSQL's errors of syntax and names are met, and no others."""
_LARGE_OBJECTS: Final = "libpq reads and writes large objects by FunctionCall, which carries no SQL to judge"
_FUNCTION_CALL: Final = "tests/e2e/test_transparency.py::test_large_objects_where_the_policy_is_enforced"
_ROLE: Final = "SET ROLE leaves the role that the agent was given: no policy can allow it"
_NEVER_ALLOWED: Final = "tests/policy/test_loader.py::test_a_fault_is_named_at_its_place"
_AS_OTHERS: Final = ("cluster-conflict", "cluster-conflict-partition", "truncate-conflict", "vacuum-conflict")

ACCEPTED: Final[tuple[Accepted, ...]] = (
    Accepted("psql", "SELECT nothing FROM app.people;", _ONLY_ENFORCED, _REFUSAL, _UNKNOWN_COLUMN),
    *(
        Accepted("pg_dump", test, _ONLY_ENFORCED, _DUMP, _NAMELESS_SETTING)
        for test in ("plain", "inserts", "custom", "tar", "directory")
    ),
    *(Accepted("isolation", test, _ONLY_ENFORCED, _ROLE, _NEVER_ALLOWED) for test in _AS_OTHERS),
    Accepted("libpq_pipeline", "pipeline_abort", _ONLY_ENFORCED, _TOLD, _ENGINE_ERROR),
    Accepted(
        "pg_dump",
        "large-objects",
        _ONLY_ENFORCED,
        _LARGE_OBJECTS,
        _FUNCTION_CALL,
    ),
    Accepted(
        "asyncpg",
        "tests.test_introspection.TestIntrospection::test_introspection_on_large_db",
        (Road.OBSERVE,),
        "what follows a change of the schema waits for a new reading of the catalog, here of 51,000 columns",
        "tests/proxy/test_session_catalog.py::test_after_its_own_ddl_the_catalog_is_asked_again_once",
    ),
    Accepted("ruby-pg", "large objects", _ONLY_ENFORCED, _LARGE_OBJECTS, _FUNCTION_CALL),
    *(
        Accepted(flow, step, _ONLY_ENFORCED, _TOLD, _ENGINE_ERROR)
        for flow, steps in _ERROR_STEPS.items()
        for step in steps
    ),
)
