"""What the functions reviewed as safe do to a server when they are called: nothing.

Every safe overload of pg_catalog is called on each server, as a superuser, inside a read-write transaction.
Then the session is searched for traces. Functions that general arguments do not reach have their own calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from policy import builtin
from policy.builtin import Kind
from tests.support.postgres import Server

SAMPLES = {
    "any": "1",
    "anyarray": "ARRAY[2, 1]",
    "anycompatible": "1",
    "anycompatiblearray": "ARRAY[2, 1]",
    "anycompatiblemultirange": "'{[1,5)}'::int4multirange",
    "anycompatiblenonarray": "1",
    "anycompatiblerange": "int4range(1, 5)",
    "anyelement": "1",
    "anyenum": "'calm'::public.mood",
    "anymultirange": "'{[1,5)}'::int4multirange",
    "anynonarray": "1",
    "anyrange": "int4range(1, 5)",
    "record": "ROW(1, 'a'::text)",
    '"char"': "'r'::\"char\"",
    "_text": "ARRAY['a', 'b']",
    "aclitem": "'=r/postgres'::aclitem",
    "bit": "B'101'",
    "bool": "true",
    "box": "box '((0,0),(1,1))'",
    "bytea": "'\\x0102'::bytea",
    "cidr": "cidr '10.0.0.0/8'",
    "circle": "circle '<(0,0),1>'",
    "date": "date '2024-02-29'",
    "inet": "inet '10.0.0.1/8'",
    "int2vector": "'1 2'::int2vector",
    "interval": "interval '1 day'",
    "json": """json '{"a": [1, {"b": 2}]}'""",
    "jsonb": """jsonb '{"a": [1, {"b": 2}]}'""",
    "jsonpath": "jsonpath '$.a'",
    "line": "line '{1,2,3}'",
    "lseg": "lseg '[(0,0),(1,1)]'",
    "macaddr": "macaddr '08:00:2b:01:02:03'",
    "macaddr8": "macaddr8 '08:00:2b:01:02:03:04:05'",
    "money": "money '3.00'",
    "oid": "'pg_class'::regclass::oid",
    "oidvector": "'23 25'::oidvector",
    "path": "path '((0,0),(1,1),(1,0))'",
    "pg_lsn": "pg_lsn '0/16B3748'",
    "pg_node_tree": "NULL::pg_node_tree",
    "pg_snapshot": "pg_current_snapshot()",
    "point": "point '(1,2)'",
    "polygon": "polygon '((0,0),(1,1),(1,0))'",
    "regclass": "'pg_class'::regclass",
    "regconfig": "'english'::regconfig",
    "regdictionary": "'english_stem'::regdictionary",
    "regnamespace": "'public'::regnamespace",
    "regtype": "'text'::regtype",
    "text": "'public'::text",
    "tid": "tid '(0,1)'",
    "time": "time '10:00'",
    "timestamp": "timestamp '2024-02-29 10:00'",
    "timestamptz": "timestamptz '2024-02-29 10:00+00'",
    "timetz": "timetz '10:00+00'",
    "tsquery": "tsquery 'a & b'",
    "tsvector": "tsvector 'a b'",
    "txid_snapshot": "txid_current_snapshot()",
    "uuid": "uuid '00000000-0000-4000-8000-000000000000'",
    "xid": "xid '3'",
    "xid8": "xid8 '3'",
    "xml": "xml '<a/>'",
}
"""An argument for each type. Numbers take 1, types not listed NULL."""

OWN_CALLS = """
aclcontains(relacl, relacl[1]) FROM pg_class WHERE relacl IS NOT NULL LIMIT 1
aclinsert(relacl, relacl[1]) FROM pg_class WHERE oid = 0
aclremove(relacl, relacl[1]) FROM pg_class WHERE oid = 0
aclitemeq(relacl[1], relacl[1]) FROM pg_class WHERE relacl IS NOT NULL LIMIT 1
array_fill(1, ARRAY[2])
date_part('year', now())
date_trunc('year', now())
decode('00', 'hex')
encode('a', 'hex')
"extract"('year', now())
hash_aclitem(relacl[1]) FROM pg_class WHERE relacl IS NOT NULL LIMIT 1
hash_aclitem_extended(relacl[1], 1) FROM pg_class WHERE relacl IS NOT NULL LIMIT 1
has_any_column_privilege('pg_class', 'SELECT')
has_column_privilege('pg_class', 'oid', 'SELECT')
has_database_privilege(current_database(), 'CONNECT')
has_function_privilege('now()', 'EXECUTE')
has_language_privilege('sql', 'USAGE')
has_parameter_privilege('work_mem', 'SET')
has_schema_privilege('public', 'USAGE')
has_sequence_privilege('public.numbers', 'USAGE')
has_table_privilege('pg_class', 'SELECT')
has_tablespace_privilege('pg_default', 'CREATE')
has_type_privilege('text', 'USAGE')
is_normalized('a', 'NFC')
json_array_elements('[1]')
json_array_elements_text('[1]')
json_array_length('[1]')
json_build_object('a', 1)
json_object_agg_unique('a'::text, 1)
json_object_agg_unique_strict('a'::text, 1)
json_populate_record(NULL::pg_class, '{"oid": 1}')
json_populate_recordset(NULL::pg_class, '[{"oid": 1}]')
a FROM json_to_record('{"a": 1}') AS t (a int)
a FROM json_to_recordset('[{"a": 1}]') AS t (a int)
json_to_tsvector('english', '{"a": "b"}', '"all"')
jsonb_array_elements('[1]')
jsonb_array_elements_text('[1]')
jsonb_array_length('[1]')
jsonb_build_object('a', 1)
jsonb_delete_path('{"a": 1}', '{a}')
jsonb_insert('{"a": [1]}', '{a,0}', '2')
jsonb_object_agg_unique('a'::text, 1)
jsonb_object_agg_unique_strict('a'::text, 1)
jsonb_populate_record(NULL::pg_class, '{"oid": 1}')
jsonb_populate_record_valid(NULL::pg_class, '{"oid": 1}')
jsonb_populate_recordset(NULL::pg_class, '[{"oid": 1}]')
jsonb_set('{"a": 1}', '{a}', '2')
jsonb_set_lax('{"a": 1}', '{a}', '2')
a FROM jsonb_to_record('{"a": 1}') AS t (a int)
a FROM jsonb_to_recordset('[{"a": 1}]') AS t (a int)
jsonb_to_tsvector('english', '{"a": "b"}', '"all"')
like_escape('a', '#')
line(point '(0,0)', point '(1,1)')
macaddr(macaddr8 '08:00:2b:ff:fe:01:02:03')
makeaclitem(10, 10, 'SELECT', false)
"normalize"('a', 'NFC')
numeric_log(10, 100)
pg_collation_actual_version('"C"'::regcollation)
pg_collation_for('a'::text)
pg_database_collation_actual_version(oid) FROM pg_database
pg_database_size(current_database())
pg_get_object_address('table', '{pg_catalog,pg_class}', '{}')
pg_get_publication_tables('published')
pg_get_serial_sequence('public.things', 'id')
pg_get_viewdef('pg_catalog.pg_tables')
pg_relation_size('pg_class', 'fsm')
pg_sequence_parameters('public.numbers'::regclass)
pg_size_bytes('1 MB')
pg_split_walfile_name('000000010000000000000001')
pg_tablespace_location(oid) FROM pg_tablespace
pg_tablespace_size('pg_default')
regclass('pg_class'::text)
row_security_active('pg_class')
similar_escape('a', '#')
similar_to_escape('a', '#')
timezone('UTC', now())
to_date('2024', 'YYYY')
to_number('1', '9')
to_regoperator('+(int,int)')
to_regprocedure('now()')
to_timestamp('2024', 'YYYY')
ts_headline('english', 'a b', 'b', 'MaxWords=3, MinWords=1')
ts_parse('default', 'a b')
ts_token_type('default')
width_bucket(1, 0, 2, 2)
""".strip().splitlines()
"""Calls of functions, or of forms of them, that need arguments with a meaning."""

NOT_CALLED = {
    "btvarstrequalimage": "wants a collation beside its argument, which no call can give",
    "currval": "has a test of its own",
    "lastval": "has a test of its own",
    "multirange_intersect_agg_transfn": "works only inside its aggregate, which is called",
    "range_intersect_agg_transfn": "works only inside its aggregate, which is called",
    "pg_xact_commit_timestamp": "needs track_commit_timestamp",
    "xmlvalidate": "is not implemented",
}
WITHOUT_LIBXML = "unsupported XML feature"

JSON_CONSTRUCTORS = (
    "JSON_OBJECT('a': {})",
    "JSON_ARRAY({})",
    "JSON_OBJECTAGG('a': {})",
    "JSON_ARRAYAGG({})",
    "JSON_SCALAR({})",
)
"""The constructors that the grammar has no function names for; JSON_SCALAR came with 17."""

OVERLOADS_SQL = """
SELECT p.proname, p.prokind, a.aggkind, a.aggnumdirectargs,
       p.provariadic NOT IN (0, '"any"'::regtype) AS spread,
       ARRAY(SELECT t.typname::text FROM unnest(p.proargtypes) WITH ORDINALITY AS u (type, place)
             JOIN pg_type t ON t.oid = u.type ORDER BY u.place)
FROM pg_proc p LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
WHERE p.pronamespace = 'pg_catalog'::regnamespace ORDER BY p.oid
"""
NUMBERS = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric"})
RUN_ALL = """
DO $run$
DECLARE statement text;
BEGIN
    FOREACH statement IN ARRAY {statements} LOOP
        BEGIN
            EXECUTE statement;
            RAISE NOTICE USING MESSAGE = 'ran', DETAIL = statement;
        EXCEPTION WHEN OTHERS THEN
            RAISE NOTICE USING MESSAGE = SQLERRM, DETAIL = statement;
        END;
    END LOOP;
END $run$
"""
TRACES_SQL = """
SELECT pg_current_xact_id_if_assigned() AS transaction_id,
       ARRAY(SELECT DISTINCT mode || ' ' || locktype FROM pg_locks
             WHERE pid = pg_backend_pid() AND locktype <> 'virtualxid'
               AND (mode <> 'AccessShareLock' OR locktype NOT IN ('relation', 'object'))) AS locks,
       (SELECT md5(string_agg(name || '=' || coalesce(setting, ''), ';' ORDER BY name))
        FROM pg_settings) AS settings,
       (SELECT count(*) FROM pg_largeobject_metadata) AS large_objects,
       (SELECT count(*) FROM pg_prepared_statements) AS prepared_statements,
       (SELECT count(*) FROM pg_cursors) AS cursors,
       (SELECT count(*) FROM pg_listening_channels()) AS channels,
       (SELECT last_value::text || is_called FROM public.numbers) AS sequence
"""


@pytest.fixture
def connection(postgres: Server) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's session in a database of its own, without prepared statements."""
    with postgres.database("template0") as database, psycopg.connect(database.dsn()) as connection:
        connection.prepare_threshold = None
        connection.execute(
            """
            CREATE TYPE public.mood AS ENUM ('calm');
            CREATE SEQUENCE public.numbers;
            CREATE TABLE public.things (id serial);
            CREATE PUBLICATION published FOR TABLE public.things;
            """
        )
        run_all(connection, ["SELECT 1"])  # loads plpgsql, which brings settings of its own
        connection.commit()
        yield connection
        connection.rollback()


def test_no_safe_function_leaves_a_trace(connection: psycopg.Connection[Any]) -> None:
    """No transaction id, no lock above ACCESS SHARE, nothing else that ``traces`` looks at."""
    calls = safe_calls(connection, SAMPLES) | own_calls(connection)
    # Unlocking comes first, lest it clear away the traces of what ran before it.
    in_order = sorted(calls, key=lambda statement: not calls[statement].startswith("pg_advisory_unlock"))
    before = traces(connection)
    outcomes = run_all(connection, in_order)
    assert traces(connection) == before
    assert before["transaction_id"] is None
    ran = {calls[statement] for statement, outcome in outcomes.items() if outcome == "ran"}
    no_xml = {calls[statement] for statement, outcome in outcomes.items() if outcome == WITHOUT_LIBXML}
    assert set(calls.values()) - ran - no_xml - set(NOT_CALLED) == set()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_current_xact_id()",
        "SELECT pg_advisory_xact_lock(4711)",
        "SELECT set_config('work_mem', '3MB', true)",
        "SELECT lo_create(0)",
        "SELECT nextval('public.numbers')",
    ],
)
def test_the_traces_show_what_unsafe_functions_do(
    connection: psycopg.Connection[Any], statement: str
) -> None:
    before = traces(connection)
    run_all(connection, [statement])
    assert traces(connection) != before


@pytest.mark.parametrize("call", ["currval('public.numbers')", "lastval()"])
def test_reading_the_own_sequence_locks_that_sequence_alone(
    connection: psycopg.Connection[Any], call: str
) -> None:
    connection.execute("SELECT nextval('public.numbers')")
    connection.commit()
    before = traces(connection)
    assert connection.execute(f"SELECT {call}".encode()).fetchone() == (1,)
    after = traces(connection)
    assert after.pop("locks") == [*before.pop("locks"), "RowExclusiveLock relation"]
    assert after == before
    locked = connection.execute(
        "SELECT relation::regclass::text FROM pg_locks"
        " WHERE mode = 'RowExclusiveLock' AND pid = pg_backend_pid()"
    )
    assert locked.fetchall() == [("numbers",)]


def test_casts_to_json_names_every_function_that_calls_one(connection: psycopg.Connection[Any]) -> None:
    """A cast to json of the agent's schema is user code: which safe functions reach it unnamed?"""
    connection.execute(
        """
        CREATE FUNCTION public.mood_json(public.mood) RETURNS json LANGUAGE plpgsql IMMUTABLE
            AS $$ BEGIN RAISE EXCEPTION 'the cast was called'; END $$;
        CREATE CAST (public.mood AS json) WITH FUNCTION public.mood_json(public.mood);
        """
    )
    mood, moods = "'calm'::public.mood", "ARRAY['calm'::public.mood]"
    polymorphic = re.compile("any(compatible)?(element|nonarray|)")
    moody = {name: mood for name in SAMPLES if polymorphic.fullmatch(name)}
    moody |= {"anyarray": moods, "anycompatiblearray": moods, "record": f"ROW({mood})"}
    calls = safe_calls(connection, SAMPLES | moody)
    for name in (name for name in set(calls.values()) if re.search("object(_agg|$)", name)):
        calls[f"SELECT {name}('key'::text, {mood})"] = name
    outcomes = run_all(connection, calls)
    reached = {
        calls[statement] for statement, outcome in outcomes.items() if outcome == "the cast was called"
    }
    assert reached == {*builtin.CASTS_TO_JSON, *JSON_CONSTRUCTORS} & set(calls.values())


def safe_calls(connection: psycopg.Connection[Any], samples: dict[str, str]) -> dict[str, str]:
    """A statement for each safe overload on this server, but the sequence readers -> the function's name."""
    calls = {}
    for name, kind, aggregate, direct, spread, types in connection.execute(OVERLOADS_SQL).fetchall():
        if not builtin.is_safe(name, len(types)) or name in ("currval", "lastval"):
            continue
        arguments = [sample(type_name, samples) for type_name in types]
        if spread:
            arguments[-1] = f"VARIADIC {arguments[-1]}"
        function, listed = f'pg_catalog."{name}"', ", ".join(arguments)
        if kind == Kind.WINDOW:
            call = f"{function}({listed}) OVER (ORDER BY g)"
        elif kind == Kind.AGGREGATE and aggregate != "n":
            ordered = ", ".join(arguments[direct:]) or "1"
            call = f"{function}({', '.join(arguments[:direct])}) WITHIN GROUP (ORDER BY {ordered})"
        elif kind == Kind.AGGREGATE:
            call = f"{function}({listed or '*'})"
        else:
            call = f"{function}({listed})"
        calls[f"SELECT {call} FROM generate_series(1, 2) AS g"] = name
    return calls


def own_calls(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """The statements of OWN_CALLS whose function this server has -> the function's name."""
    present = {name for (name,) in connection.execute("SELECT proname FROM pg_proc").fetchall()}
    named = ((call, re.search(r"([a-z_]+)\"?\(", call)) for call in OWN_CALLS)
    return {f"SELECT {call}": match[1] for call, match in named if match and match[1] in present}


def sample(type_name: str, samples: dict[str, str]) -> str:
    if type_name in samples:
        return samples[type_name]
    return f"1::{type_name}" if type_name in NUMBERS else f'NULL::pg_catalog."{type_name}"'


def run_all(connection: psycopg.Connection[Any], statements: Iterable[str]) -> dict[str, str]:
    """Run each on the server, all in one transaction; statement -> ``ran`` or its error message."""
    wanted = list(statements)
    outcomes = dict.fromkeys(wanted, "no outcome")

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.message_detail in outcomes:
            outcomes[diagnostic.message_detail] = diagnostic.message_primary or ""

    connection.add_notice_handler(note)
    literals = sql.Literal(wanted).as_string(connection) + "::text[]"
    connection.execute(RUN_ALL.format(statements=literals).encode())
    connection.remove_notice_handler(note)
    return outcomes


def traces(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    cursor = connection.execute(TRACES_SQL)
    row = cursor.fetchone()
    assert row is not None and cursor.description is not None
    return dict(zip((column.name for column in cursor.description), row, strict=True))
