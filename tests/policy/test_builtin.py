"""The reviewed lists, held to real servers.

Two kinds of test: decisions that matter are what the review says, and the lists are complete and consistent.
What the safe functions do when they are called is in ``test_builtin_effects.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import asyncpg.introspection
import psycopg
import pytest
import sqlalchemy

from policy import builtin
from policy.builtin import CatalogAccess, Volatility
from tests.policy import derive_builtins
from tests.support.postgres import Server

SQL_TEXT = "runs SQL given as text"
FILES = "reads files of the server"
LOCK = "takes an advisory lock"
SESSIONS = "reads or controls other sessions"
STATISTICS = "reads activity counters of the server"
TYPE_IO = "is a type's input or output function"
INTERNAL = "takes or returns values that SQL cannot make"


@pytest.fixture
def connection(postgres: Server) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.shop.dsn()) as connection:
        yield connection


# --- decisions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nargs", "reason"),
    [
        ("set_config", 3, "changes a setting"),
        ("current_setting", 2, None),
        ("nextval", 1, "moves a sequence"),
        ("setval", 2, "moves a sequence"),
        ("currval", 1, None),
        ("lastval", 0, None),
        ("pg_sequence_last_value", 1, "returns stored values"),
        ("query_to_xml", 4, SQL_TEXT),
        ("cursor_to_xml", 5, SQL_TEXT),
        ("ts_stat", 1, SQL_TEXT),
        ("ts_rewrite", 2, SQL_TEXT),
        ("ts_rewrite", 3, None),
        ("ts_rewrite", None, SQL_TEXT),
        ("ts_rewrite", 4, builtin.NOT_REVIEWED),
        ("table_to_xml", 4, "reads a table it is given as a value"),
        ("database_to_xml", 3, "reads a table it is given as a value"),
        ("currtid2", 2, "reads a table it is given as a value"),
        ("pg_input_is_valid", 2, "runs the input function of a type named as text"),
        ("lo_from_bytea", 2, "reads or writes large objects"),
        ("loread", 2, "reads or writes large objects"),
        ("pg_read_file", 1, FILES),
        ("pg_ls_dir", 1, FILES),
        ("pg_stat_file", 1, FILES),
        ("pg_relation_filepath", 1, FILES),
        ("pg_hba_file_rules", 0, FILES),
        ("pg_advisory_lock", 1, LOCK),
        ("pg_try_advisory_xact_lock_shared", 2, LOCK),
        ("pg_advisory_unlock", 1, None),
        ("pg_advisory_unlock_all", 0, None),
        ("pg_sleep", 1, "makes the session wait"),
        ("pg_sleep_until", 1, "makes the session wait"),
        ("pg_notify", 2, "sends or counts notifications"),
        ("pg_terminate_backend", 1, SESSIONS),
        ("pg_stat_get_activity", 1, SESSIONS),
        ("pg_stat_get_backend_client_addr", 1, SESSIONS),
        ("pg_stat_get_db_numbackends", 1, STATISTICS),
        ("pg_stat_get_xact_tuples_inserted", 1, STATISTICS),
        ("pg_stat_reset", 0, "writes or resets statistics"),
        ("pg_restore_attribute_stats", 4, "writes or resets statistics"),
        ("txid_current", 0, "assigns a transaction id"),
        ("pg_current_xact_id", 0, "assigns a transaction id"),
        ("pg_current_xact_id_if_assigned", 0, None),
        ("pg_export_snapshot", 0, "exports the snapshot to other sessions"),
        ("pg_logical_emit_message", 3, "reads or controls replication"),
        ("pg_replication_origin_create", 1, "reads or controls replication"),
        ("pg_reload_conf", 0, "administers the server"),
        ("pg_import_system_collations", 1, "administers the server"),
        ("binary_upgrade_set_next_pg_type_oid", 1, "is for pg_upgrade only"),
        ("gin_clean_pending_list", 1, "changes an index"),
        ("pg_show_all_settings", 0, "shows internals of the server"),
        ("RI_FKey_cascade_del", 0, "works only inside a trigger"),
        ("pg_event_trigger_dropped_objects", 0, "works only inside a trigger"),
        ("plpgsql_validator", 1, "is a handler or validator behind CREATE statements"),
        ("textin", 1, TYPE_IO),
        ("record_out", 1, TYPE_IO),
        ("numeric_accum", 2, INTERNAL),
        ("interval_avg", 1, INTERNAL),
        ("dblink", 2, builtin.NOT_REVIEWED),
        ("Lower", 1, builtin.NOT_REVIEWED),
        ("", 0, builtin.NOT_REVIEWED),
    ],
)
def test_the_reason_is_the_reviewed_one(name: str, nargs: int | None, reason: str | None) -> None:
    assert builtin.category(name, nargs) == reason
    assert builtin.is_safe(name, nargs) is (reason is None)


@pytest.mark.parametrize(
    "names",
    [
        "sum avg count min max array_agg string_agg bool_or percentile_cont mode stddev corr",
        "json_object_agg",
        "row_number rank dense_rank lag lead ntile first_value nth_value cume_dist",
        "abs round trunc mod power ln sqrt width_bucket",
        "lower upper length substring replace split_part regexp_matches format concat_ws repeat lpad md5",
        "sha256",
        "now clock_timestamp date_trunc date_part extract age to_char to_date make_interval justify_days",
        "timezone",
        "to_json to_jsonb row_to_json jsonb_set jsonb_path_query json_each jsonb_array_elements xpath",
        "xmlagg",
        "unnest generate_series array_length array_position array_to_string string_to_array",
        "generate_subscripts",
        "to_tsvector to_tsquery plainto_tsquery websearch_to_tsquery ts_headline ts_rank ts_rank_cd",
        "ts_debug",
        "random setseed gen_random_uuid uuidv7",
        "version current_database current_schema current_schemas current_user session_user pg_backend_pid",
        "inet_server_addr inet_client_addr pg_is_in_recovery pg_postmaster_start_time pg_client_encoding",
        # psql's \d and its kin, SQLAlchemy, Django, asyncpg, JDBC
        "format_type pg_get_expr pg_get_indexdef pg_get_constraintdef pg_get_viewdef pg_get_triggerdef",
        "pg_get_ruledef pg_get_functiondef pg_get_function_arguments pg_get_function_result",
        "pg_get_userbyid",
        "pg_get_partkeydef pg_get_serial_sequence pg_get_statisticsobjdef_columns pg_get_keywords",
        "pg_table_is_visible pg_type_is_visible pg_function_is_visible pg_encoding_to_char",
        "pg_options_to_table",
        "obj_description col_description shobj_description has_table_privilege has_schema_privilege",
        "pg_has_role",
        "to_regclass to_regtype pg_typeof pg_relation_size pg_total_relation_size pg_database_size",
        "pg_size_pretty",
        "pg_relation_is_publishable pg_partition_ancestors pg_partition_root array_upper quote_ident",
        "aclexplode",
    ],
)
def test_ordinary_work_is_safe(names: str) -> None:
    assert {name: builtin.category(name) for name in names.split()} == dict.fromkeys(names.split())


def test_schemas_are_kept_apart() -> None:
    assert builtin.is_safe("_pg_expandarray", 1, schema=builtin.INFORMATION_SCHEMA)
    assert not builtin.is_safe("_pg_expandarray", 1)
    assert not builtin.is_builtin("_pg_expandarray")
    assert not builtin.is_safe("lower", 1, schema=builtin.INFORMATION_SCHEMA)
    assert not builtin.is_safe("lower", 1, schema="public")
    assert not builtin.is_safe("public.lower", 1)


@pytest.mark.parametrize(
    ("name", "facts", "volatility"),
    [
        ("count", "aggregate row", Volatility.IMMUTABLE),
        ("sum", "aggregate", Volatility.IMMUTABLE),
        ("json_agg", "aggregate row", Volatility.STABLE),
        ("array_agg", "aggregate row", Volatility.IMMUTABLE),
        ("rank", "aggregate window row", Volatility.IMMUTABLE),
        ("row_number", "window", Volatility.IMMUTABLE),
        ("row_to_json", "row", Volatility.STABLE),
        ("to_jsonb", "row", Volatility.STABLE),
        ("pg_typeof", "row", Volatility.STABLE),
        ("record_out", "row", Volatility.STABLE),
        ("num_nulls", "row", Volatility.IMMUTABLE),
        ("quote_literal", "row", Volatility.STABLE),
        ("generate_series", "set", Volatility.STABLE),
        ("unnest", "set", Volatility.IMMUTABLE),
        ("lower", "", Volatility.IMMUTABLE),
        ("random", "", Volatility.VOLATILE),
        ("ts_rewrite", "", Volatility.VOLATILE),
        ("no_such_function", "", Volatility.VOLATILE),
    ],
)
def test_facts(name: str, facts: str, volatility: Volatility) -> None:
    answers = {
        "aggregate": builtin.is_aggregate(name),
        "window": builtin.is_window(name),
        "set": builtin.returns_set(name),
        "row": builtin.takes_row(name),
    }
    assert [fact for fact, holds in answers.items() if holds] == facts.split()
    assert builtin.volatility(name) is volatility


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("pg_sleep", [1], [0, 2]),
        ("count", [0, 1], [2]),
        ("concat", [1, 2, 50], [0]),
        ("json_build_object", [0, 1, 9], []),
        ("now", [0], [1]),
        ("make_interval", [0, 3, 7], [8]),
        ("no_such_function", [], [0, 1]),
    ],
)
def test_numbers_of_arguments(name: str, accepted: list[int], refused: list[int]) -> None:
    assert [n for n in (*accepted, *refused) if builtin.accepts(name, n)] == accepted


@pytest.mark.parametrize(
    ("schema", "name", "access"),
    [
        ("pg_catalog", "pg_class", CatalogAccess.STRUCTURE),
        ("pg_catalog", "pg_attribute", CatalogAccess.STRUCTURE),
        ("pg_catalog", "pg_proc", CatalogAccess.STRUCTURE),
        ("pg_catalog", "pg_views", CatalogAccess.STRUCTURE),
        ("pg_catalog", "pg_settings", CatalogAccess.COMMON),
        ("pg_catalog", "pg_roles", CatalogAccess.COMMON),
        ("pg_catalog", "pg_authid", CatalogAccess.SECRETS),
        ("pg_catalog", "pg_shadow", CatalogAccess.SECRETS),
        ("pg_catalog", "pg_user_mappings", CatalogAccess.SECRETS),
        ("pg_catalog", "pg_subscription", CatalogAccess.SECRETS),
        ("pg_catalog", "pg_db_role_setting", CatalogAccess.SECRETS),
        ("pg_catalog", "pg_statistic", CatalogAccess.VALUES),
        ("pg_catalog", "pg_stats_ext_exprs", CatalogAccess.VALUES),
        ("pg_catalog", "pg_largeobject", CatalogAccess.VALUES),
        ("pg_catalog", "pg_stat_user_tables", CatalogAccess.STRUCTURE),
        ("pg_catalog", "pg_statio_all_indexes", CatalogAccess.STRUCTURE),
        ("pg_catalog", "pg_stat_user_functions", CatalogAccess.STATISTICS),
        ("pg_catalog", "pg_stat_database", CatalogAccess.STATISTICS),
        ("pg_catalog", "pg_stat_activity", CatalogAccess.SESSIONS),
        ("pg_catalog", "pg_locks", CatalogAccess.SESSIONS),
        ("pg_catalog", "pg_prepared_statements", CatalogAccess.SESSIONS),
        ("pg_catalog", "pg_hba_file_rules", CatalogAccess.SERVER),
        ("pg_catalog", "pg_replication_slots", CatalogAccess.SERVER),
        ("information_schema", "tables", CatalogAccess.STRUCTURE),
        ("information_schema", "columns", CatalogAccess.STRUCTURE),
        ("information_schema", "user_mapping_options", CatalogAccess.SECRETS),
        ("information_schema", "foreign_server_options", CatalogAccess.SERVER),
        ("information_schema", "pg_class", None),
        ("pg_catalog", "tables", None),
        ("pg_catalog", "pg_future_catalog", None),
        ("public", "pg_class", None),
        ("pg_toast", "pg_toast_2619", None),
    ],
)
def test_catalog_access(schema: str, name: str, access: CatalogAccess | None) -> None:
    assert builtin.catalog_relation(schema, name) is access


def test_only_structure_is_readable() -> None:
    assert [access for access in CatalogAccess if access.readable] == [
        CatalogAccess.STRUCTURE,
        CatalogAccess.COMMON,
    ]
    assert len({access.phrase for access in CatalogAccess}) == len(CatalogAccess)


def test_columns_that_show_more_than_structure_are_withheld() -> None:
    assert builtin.WITHHELD["pg_catalog.pg_sequences"] == {"last_value"}
    assert builtin.WITHHELD["pg_catalog.pg_roles"] == {"rolconfig"}


# --- the lists against each other and against servers ------------------------------------------------------


def test_review_and_facts_name_the_same_functions() -> None:
    assert set(builtin.REVIEWS) == set(builtin.FUNCTIONS)


def test_volatile_functions_are_safe_only_where_each_was_reviewed() -> None:
    loose = [
        (name, review.key)
        for name, forms in builtin.REVIEWS.items()
        for review in forms.values()
        if review.safe and builtin.FUNCTIONS[name].volatility is Volatility.VOLATILE
        if not review.key.startswith("volatile-")
    ]
    # The form of ts_rewrite that runs a query is the volatile one; the other has three arguments.
    assert loose == [("ts_rewrite", "text-search")]


def test_no_function_of_a_server_is_unreviewed(connection: psycopg.Connection[Any]) -> None:
    assert sorted(set(derive_builtins.describe(connection)) - set(builtin.REVIEWS)) == []


def test_facts_hold_the_worst_of_each_server(connection: psycopg.Connection[Any]) -> None:
    described = derive_builtins.describe(connection)
    assert [
        name
        for name, function in described.items()
        if derive_builtins.worse(builtin.FUNCTIONS[name], function) != builtin.FUNCTIONS[name]
    ] == []


def test_facts_hold_nothing_that_no_server_has(postgres15: Server, postgres18: Server) -> None:
    servers = []
    for server in (postgres15, postgres18):
        with psycopg.connect(server.shop.dsn()) as connection:
            servers.append(derive_builtins.describe(connection))
    assert derive_builtins.merge(servers) == builtin.FUNCTIONS


def test_system_relations_are_all_classified(connection: psycopg.Connection[Any]) -> None:
    assert sorted(set(derive_builtins.relations(connection)) - set(builtin.RELATIONS)) == []


def test_relations_and_withheld_columns_exist(postgres15: Server, postgres18: Server) -> None:
    columns: dict[str, set[str]] = {}
    for server in (postgres15, postgres18):
        with psycopg.connect(server.shop.dsn()) as connection:
            for name, found in derive_builtins.relations(connection).items():
                columns.setdefault(name, set()).update(found)
    assert set(builtin.RELATIONS) == set(columns)
    assert {n: sorted(w - columns[n]) for n, w in builtin.WITHHELD.items() if w - columns[n]} == {}
    assert all(builtin.RELATIONS[name].readable for name in builtin.WITHHELD)


def test_types_that_sql_cannot_make_are_never_safe(connection: psycopg.Connection[Any]) -> None:
    names = connection.execute(
        """
        SELECT DISTINCT p.proname FROM pg_proc p, unnest(p.proargtypes || p.prorettype) AS t
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
          AND t::regtype::text IN ('internal', 'cstring', 'cstring[]', 'trigger', 'event_trigger',
              'language_handler', 'fdw_handler', 'index_am_handler', 'table_am_handler', 'tsm_handler')
        """
    ).fetchall()
    assert len(names) > 500
    assert [name for (name,) in names if builtin.is_safe(name)] == []


def test_what_built_in_operators_and_casts_call_is_safe(connection: psycopg.Connection[Any]) -> None:
    names = connection.execute(
        """
        SELECT p.proname, p.pronargs FROM pg_proc p
        WHERE p.oid IN (SELECT oprcode FROM pg_operator UNION SELECT castfunc FROM pg_cast)
          AND p.pronamespace = 'pg_catalog'::regnamespace
        """
    ).fetchall()
    assert len(names) > 900
    assert [name for name, nargs in names if not builtin.is_safe(name, nargs)] == []


def test_what_sqlalchemy_and_asyncpg_ask_the_catalogs_is_allowed(postgres: Server) -> None:
    asked = [text for name, text in vars(asyncpg.introspection).items() if name.startswith("INTRO_")]
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(postgres.shop.dsn())
    )
    with engine.connect() as connection:
        sqlalchemy.event.listen(connection, "before_cursor_execute", lambda *event: asked.append(event[2]))
        sqlalchemy.MetaData().reflect(connection, views=True)
        inspector = sqlalchemy.inspect(connection)
        for table in inspector.get_table_names():
            inspector.get_check_constraints(table)
        for view in inspector.get_view_names():
            inspector.get_view_definition(view)
    engine.dispose()
    text = "\n".join(asked)
    functions = {name for name in re.findall(r"(\w+)\(", text) if builtin.is_builtin(name)}
    relations = set(re.findall(r"\b(?:FROM|JOIN) pg_catalog\.(\w+)", text))
    assert {"format_type", "pg_get_constraintdef", "pg_get_viewdef"} <= functions
    assert {"pg_class", "pg_attribute", "pg_constraint"} <= relations
    assert {name for name in functions if not builtin.is_safe(name)} == set()
    accesses = {name: builtin.catalog_relation("pg_catalog", name) for name in relations}
    assert {name for name, access in accesses.items() if access is None or not access.readable} == set()


# --- unreadable data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "lines", "message"),
    [
        ("_load_reviews", ["lower"], "before the first section"),
        ("_load_reviews", ["[maybe x: y]"], "not a section header"),
        ("_load_reviews", ["[safe a: b]", "lower", "[unsafe c: d]", "lower"], "lower is classified twice"),
        ("_load_reviews", ["[safe a: b]", "lower/1 lower"], "lower is classified twice"),
        ("_load_reviews", ["[safe a: b]", "lower lower/1"], "lower/1 is classified twice"),
        ("_load_reviews", ["[safe a: b]", "lower/x"], "invalid literal"),
        ("_load_functions", ["lower f i - 1 text", "lower f i - 1 text"], "lower is described twice"),
        ("_load_functions", ["lower z i - 1 text"], "'z' is not a valid Kind"),
        ("_load_functions", ["lower f x - 1 text"], "'x' is not a valid Volatility"),
        ("_load_functions", ["lower f i"], "not enough values"),
        ("_load_relations", ["pg_class"], "before the first section"),
        ("_load_relations", ["[public structure]"], "not a section header"),
        ("_load_relations", ["[pg_catalog nonsense]"], "'nonsense' is not a valid CatalogAccess"),
        ("_load_relations", ["[pg_catalog structure]", "pg_class pg_class"], "pg_class is classified twice"),
    ],
)
def test_a_broken_list_is_an_error(
    monkeypatch: pytest.MonkeyPatch, load: str, lines: list[str], message: str
) -> None:
    monkeypatch.setattr(builtin, "_lines", lambda file: [(f"{file}:1", line) for line in lines])
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(builtin, load)()
